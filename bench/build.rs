//! Builds the Boost.Context peer where its headers are installed (Debian: libboost-context-dev); elsewhere the
//! benchmarks run without it, and say so.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=src/boost.cpp");
    println!("cargo::rustc-check-cfg=cfg(boost)");
    let header = "boost/context/fiber.hpp";
    let folders = ["/usr/include", "/usr/local/include"];
    if !folders
        .iter()
        .any(|folder| Path::new(folder).join(header).exists())
    {
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
