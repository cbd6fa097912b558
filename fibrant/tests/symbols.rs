//! What this program defines in the C library's place is exactly what the table of hooks says: `nm` shows it.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::path::Path;
use std::process::Command;

/// The functions that a file defines, for the linker or, with `dynamic`, for other files when the program runs.
fn functions(file: &Path, dynamic: bool) -> BTreeSet<String> {
    let mut command = Command::new("nm");
    command.args(["--defined-only", "--format=posix"]);
    if dynamic {
        command.arg("--dynamic");
    }
    let output = command.arg(file).output();
    let output = output.expect("nm is needed: install the package binutils");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some("T" | "W" | "t")) = (words.next(), words.next()) {
            // Without its version.
            let name = name.split('@').next().unwrap();
            // A local one is none of ours: what is defined for C is global.
            if !line.contains(" t ") {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// The C library's file.
fn c_library() -> std::path::PathBuf {
    // SAFETY: what is found is looked at only if there is something.
    unsafe {
        let mut found = std::mem::zeroed::<libc::Dl_info>();
        assert_ne!(libc::dladdr(libc::malloc as *const libc::c_void, &mut found), 0);
        Path::new(CStr::from_ptr(found.dli_fname).to_str().unwrap()).to_owned()
    }
}

#[test]
fn nm_shows_what_the_table_says() {
    // The runtime is used, so that all of it is linked.
    fibrant::run(|| assert!(fibrant::hook::is_enabled()));
    let table: BTreeSet<String> = fibrant::hook::names().map(str::to_owned).collect();
    assert_eq!(
        table.len(),
        fibrant::hook::names().count(),
        "a name is there twice"
    );
    let own = functions(&std::env::current_exe().unwrap(), false);
    let missing: Vec<_> = table.difference(&own).collect();
    assert!(missing.is_empty(), "in the table, but not defined: {missing:?}");
    let library = functions(&c_library(), true);
    assert!(
        library.contains("malloc") && library.len() > 1000,
        "{} names",
        library.len()
    );
    let unknown: Vec<_> = own
        .intersection(&library)
        .filter(|name| !table.contains(*name))
        .collect();
    assert!(
        unknown.is_empty(),
        "defined in the C library's place, but not in the table: {unknown:?}"
    );
}

/// Libraries find the program's definitions, those too that are loaded while it runs: everything that the C library has is exported.
#[test]
fn libraries_find_the_programs_definitions() {
    let table: BTreeSet<String> = fibrant::hook::names().map(str::to_owned).collect();
    let (exported, library) = (
        functions(&std::env::current_exe().unwrap(), true),
        functions(&c_library(), true),
    );
    let hidden: Vec<_> = table
        .intersection(&library)
        .filter(|name| !exported.contains(*name))
        .collect();
    assert!(hidden.is_empty(), "not exported: {hidden:?}");
}
