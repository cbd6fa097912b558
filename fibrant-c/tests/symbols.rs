//! What the shared library defines for others is its own functions and the hooks, and nothing else: `nm` shows it. The archive that
//! `cargo xtask dist` packs defines the same.

use std::collections::BTreeSet;
use std::process::Command;

/// Functions of the C library that are this crate's alone to replace.
const OWN_HOOKS: [&str; 4] = ["getenv", "setenv", "unsetenv", "__res_state"];

/// Functions of the headers whose names do not tell.
const OTHER_FUNCTIONS: [&str; 1] = ["GetCurrThreadCo"];

/// What the names of functions in libco's only class begin with.
const CLASS: &str = "_ZN10clsCoMutex";

/// The names that the library beside this program exports.
fn exported() -> BTreeSet<String> {
    let program = std::env::current_exe().expect("this program is a file");
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(program.with_file_name("libfibrant_c.so"))
        .output()
        .expect("nm is needed: install the package binutils");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("names are text");
    let names = text.lines().filter_map(|line| line.split([' ', '@']).next());
    names.map(str::to_owned).collect()
}

/// Whether a name is one of the headers'.
fn is_of_a_header(name: &str) -> bool {
    name.starts_with("fb_") || name.starts_with("co_") || OTHER_FUNCTIONS.contains(&name)
}

/// What a function of C++ that is in no class is called in its sources.
fn in_cpp(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("_Z")?;
    let digits = rest.len()
        - rest
            .trim_start_matches(|letter: char| letter.is_ascii_digit())
            .len();
    let (length, rest) = rest.split_at(digits);
    rest.get(..length.parse().ok()?)
}

#[test]
fn every_hook_is_exported() {
    let exported = exported();
    let missing: Vec<_> = fibrant::hook::names()
        .filter(|name| !exported.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}

#[test]
fn nothing_else_is_exported() {
    let hooks: BTreeSet<&str> = fibrant::hook::names().chain(OWN_HOOKS).collect();
    let exported = exported();
    let others: Vec<_> = exported
        .iter()
        .filter(|name| !hooks.contains(name.as_str()))
        .filter(|name| !is_of_a_header(name) && !in_cpp(name).is_some_and(is_of_a_header))
        .filter(|name| !name.starts_with(CLASS))
        .collect();
    assert!(others.is_empty(), "exported for no reason: {others:?}");
}

#[test]
fn names_of_cpp_are_understood() {
    assert_eq!(in_cpp("_Z9co_resumeP13stCoRoutine_t"), Some("co_resume"));
    assert_eq!(in_cpp("_Z4co"), None);
    assert_eq!(in_cpp("_ZN7fibrant5sleep17h0123456789abcdefE"), None);
    assert_eq!(in_cpp("co_resume"), None);
}
