//! `cargo xtask dist`: the library for C and C++ as its users get it: `target/dist`, and a tarball beside it.
//!
//! `main` calls it, and `test`'s step `c`, which then uses what has been packed. It runs cargo, and binutils' programs for the machine
//! that is built for, through `run`.
//!
//! The archive is one object in which only what the shared library exports is global. So whoever uses one function gets all hooks; and
//! a program may contain another library written in Rust, whose copy of std would otherwise define the same names.

use crate::run::{self, Outcome};
use crate::test;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crate with the headers and the examples.
const SOURCES: &str = "fibrant-c";

/// The shared library's file, and what programs that are linked to it ask for. The number changes when they would no longer run.
const SHARED: &str = "libfibrant.so.0";

/// What a program that links the archive needs besides.
pub const SYSTEM_LIBRARIES: &str = "-lpthread -ldl -lm";

/// Where a package for this machine is written. That for another has the machine's name behind it.
pub const FOLDER: &str = "target/dist";

/// Packs the library for this machine, or for the one that the target names.
pub fn run(target: Option<&str>) -> Outcome {
    let package = Package::of(target)?;
    let built = package.build(target)?;
    package.start_afresh()?;
    package.add_libraries(&built)?;
    package.add_texts()?;
    package.tar()
}

/// The command that builds what is packed, for this machine or for the one that the target names.
pub fn build_command(target: Option<&str>) -> Outcome<Command> {
    Ok(Package::of(target)?.building(target))
}

/// What is packed, for which machine and where.
struct Package {
    folder: PathBuf,
    /// Such as `x86_64`.
    machine: String,
    /// What the names of binutils' programs for that machine begin with.
    prefix: String,
    version: String,
}

impl Package {
    fn of(target: Option<&str>) -> Outcome<Package> {
        let host = test::host()?;
        let target = target.unwrap_or(&host);
        let machine = target.split('-').next().unwrap_or_default().to_owned();
        let is_ours = target == host;
        Ok(Package {
            folder: if is_ours {
                FOLDER.into()
            } else {
                format!("{FOLDER}-{machine}").into()
            },
            prefix: if is_ours {
                String::new()
            } else {
                format!("{machine}-linux-gnu-")
            },
            machine,
            version: version()?,
        })
    }

    /// Builds both libraries and says in which folder they are.
    fn build(&self, target: Option<&str>) -> Outcome<PathBuf> {
        run::openly(self.building(target))?;
        Ok(Path::new("target")
            .join(target.unwrap_or_default())
            .join("packed"))
    }

    /// The command that builds both libraries.
    fn building(&self, target: Option<&str>) -> Command {
        // With all crate types cargo would not optimise the whole at once. Users expect that valgrind can be used; it costs nothing.
        let mut command = run::line(
            "cargo rustc -p fibrant-c --profile packed --features valgrind --crate-type staticlib,cdylib",
        );
        if let Some(target) = target {
            command.args(["--target", target]);
            let variable = target.to_uppercase().replace('-', "_");
            command.env(
                format!("CARGO_TARGET_{variable}_LINKER"),
                format!("{}gcc", self.prefix),
            );
        }
        // Not in the manifest: tests find the library beside them by the name of its file.
        command.args(["--", "-C", &format!("link-arg=-Wl,-soname,{SHARED}")]);
        command
    }

    /// A folder with nothing in it but folders.
    fn start_afresh(&self) -> Outcome {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).map_err(|error| wrong(&self.folder, &error))?;
        }
        for name in ["lib/pkgconfig", "include", "examples"] {
            let folder = self.folder.join(name);
            fs::create_dir_all(&folder).map_err(|error| wrong(&folder, &error))?;
        }
        Ok(())
    }

    fn add_libraries(&self, built: &Path) -> Outcome {
        let lib = self.folder.join("lib");
        let shared = lib.join(SHARED);
        copy(&built.join("libfibrant_c.so"), &shared)?;
        link(SHARED, &lib.join("libfibrant.so"))?;
        self.archive(&built.join("libfibrant_c.a"), &shared, &lib.join("libfibrant.a"))?;
        // By the name that programs for libco ask for.
        link("libfibrant.a", &lib.join("libcolib.a"))?;
        let description = lib.join("pkgconfig/fibrant.pc");
        fs::write(&description, pkg_config(&self.version)).map_err(|error| wrong(&description, &error))
    }

    /// Makes an archive of one object, in which only what the shared library exports is global.
    fn archive(&self, built: &Path, shared: &Path, archive: &Path) -> Outcome {
        let work = built.with_file_name("object");
        fs::create_dir_all(&work).map_err(|error| wrong(&work, &error))?;
        let (names, object) = (work.join("names"), work.join("fibrant.o"));
        let exported = self.exported(shared)?;
        fs::write(&names, exported.join("\n") + "\n").map_err(|error| wrong(&names, &error))?;
        // Whoever needs nothing but one of these gets all, so they are all asked for. What else is in the archive are functions that the
        // compiler may call, and which the C compiler has, too.
        let mut join = self.tool("ld -r --strip-debug --force-group-allocation");
        join.args(exported.iter().map(|name| format!("--undefined={name}")))
            .arg("-o")
            .args([&object, built]);
        run::openly(join)?;
        let mut hide = self.tool("objcopy");
        hide.arg(format!("--keep-global-symbols={}", names.display()))
            .arg(&object);
        run::openly(hide)?;
        let mut pack = self.tool("ar rcsD");
        pack.args([archive, &object]);
        run::openly(pack)
    }

    /// The names that a shared library defines for others.
    fn exported(&self, library: &Path) -> Outcome<Vec<String>> {
        let mut command = self.tool("nm --dynamic --defined-only --format=posix");
        command.arg(library);
        let names = run::answer(command)?;
        let names = names.lines().filter_map(|line| line.split([' ', '@']).next());
        Ok(names.map(String::from).collect())
    }

    /// What is read: headers, examples, licences.
    fn add_texts(&self) -> Outcome {
        for folder in ["include", "examples"] {
            copy_all(&Path::new(SOURCES).join(folder), &self.folder.join(folder))?;
        }
        copy(
            &Path::new(SOURCES).join("README.md"),
            &self.folder.join("README.md"),
        )?;
        for licence in ["LICENSE", "LICENSE-APACHE", "LICENSE-MIT"] {
            copy(Path::new(licence), &self.folder.join(licence))?;
        }
        Ok(())
    }

    /// One file of it all, whose only folder has its name.
    fn tar(&self) -> Outcome {
        let name = format!("fibrant-{}-{}-linux", self.version, self.machine);
        let file = format!("{name}.tar.gz");
        let folder = self.folder.file_name().expect("it has a name").display();
        openly_in(
            Path::new("target"),
            &format!(
                "tar --create --gzip --file {file} --sort=name --owner=0 --group=0 --numeric-owner \
                 --transform s,^{folder},{name},S {folder}"
            ),
        )?;
        println!("    {} and target/{file}", self.folder.display());
        Ok(())
    }

    /// A command of binutils, for the machine.
    fn tool(&self, line: &str) -> Command {
        run::line(&format!("{}{line}", self.prefix))
    }
}

/// What pkg-config is told. It is found wherever the folder is moved to.
fn pkg_config(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: fibrant
Description: Stackful fibers and libco's coroutines for C and C++
Version: {version}
Libs: -L${{libdir}} -lfibrant
Libs.private: {SYSTEM_LIBRARIES}
Cflags: -I${{includedir}}
"
    )
}

/// The workspace's version.
fn version() -> Outcome<String> {
    let id = run::answer(run::line("cargo pkgid -p fibrant-c"))?;
    let version = id.trim().rsplit(['#', '@']).next();
    Ok(version.unwrap_or_default().to_owned())
}

fn openly_in(folder: &Path, line: &str) -> Outcome {
    let mut command = run::line(line);
    command.current_dir(folder);
    run::openly(command)
}

/// Copies the files of a folder, and those in its folders.
fn copy_all(from: &Path, to: &Path) -> Outcome {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to).map_err(|error| wrong(to, &error))?;
    for entry in fs::read_dir(from).map_err(|error| wrong(from, &error))? {
        let entry = entry.map_err(|error| wrong(from, &error))?;
        let (source, copied) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_all(&source, &copied)?;
        } else {
            copy(&source, &copied)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Outcome {
    fs::copy(from, to).map_err(|error| wrong(from, &error))?;
    Ok(())
}

fn link(to: &str, name: &Path) -> Outcome {
    symlink(to, name).map_err(|error| wrong(name, &error))
}

fn wrong(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_moves_with_its_folder() {
        let text = pkg_config("1.2.3");
        assert!(text.starts_with("prefix=${pcfiledir}/../..\n"), "{text}");
        assert!(text.contains("\nVersion: 1.2.3\n"), "{text}");
    }

    #[test]
    fn another_machine_has_a_folder_and_tools_of_its_own() {
        let ours = Package::of(None).unwrap();
        assert_eq!((ours.folder, ours.prefix), (FOLDER.into(), String::new()));
        let other = Package::of(Some("riscv64gc-unknown-linux-gnu")).unwrap();
        assert_eq!(other.folder, Path::new("target/dist-riscv64gc"));
    }
}
