//! Builds the Boost.Context peer where it is installed (Debian: libboost-context-dev); elsewhere the benchmarks run without
//! it, and say so.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=src/boost.cpp");
    // Either may be installed later: what is not there counts as changed.
    println!("cargo::rerun-if-changed=/usr/include/boost/context/fiber.hpp");
    println!("cargo::rerun-if-changed={}/libboost_context.so", multiarch());
    println!("cargo::rustc-check-cfg=cfg(boost)");
    if !is_installed() {
        return;
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .file("src/boost.cpp")
        .compile("boost_peer");
    println!("cargo::rustc-link-lib=boost_context");
    println!("cargo::rustc-cfg=boost");
}

/// Whether both the header and the library are there: the header alone comes with other parts of Boost, too.
fn is_installed() -> bool {
    let header = ["/usr/include", "/usr/local/include"]
        .iter()
        .any(|folder| Path::new(folder).join("boost/context/fiber.hpp").exists());
    let multiarch = multiarch();
    let library = [multiarch.as_str(), "/usr/lib", "/usr/lib64", "/usr/local/lib"]
        .iter()
        .flat_map(fs::read_dir)
        .flatten()
        .flatten()
        .any(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("libboost_context.")
        });
    header && library
}

/// Where Debian keeps the machine's libraries.
fn multiarch() -> String {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    format!("/usr/lib/{arch}-linux-gnu")
}
