//! `cargo xtask glibc`: the tests with another C library than this machine's: that of a newer (or older) Debian.
//!
//! `main` calls it. A fiber's thread-locals depend on what the C library has where, and each version may move it: that of Debian 13 kept
//! fibers from starting at all, which no test on a Debian 12 could notice. The library's package is fetched by apt from where this
//! machine has its own packages, and the tests, as cargo has built them for this machine, run where it lies over the folder of libraries. That takes root,
//! and a Debian. It runs everything through `run`.

use crate::run::{self, Outcome, TestProgram};
use crate::test;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The release whose C library is taken if none is named.
const RELEASE: &str = "trixie";

/// A test program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(5 * 60);

/// Takes gigabytes and has nothing to do with the C library.
const LEFT_OUT: &str = "million";

/// The release that the command line names.
pub fn asked(arguments: &[String]) -> Outcome<String> {
    match arguments {
        [] => Ok(RELEASE.to_owned()),
        [name] if !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric()) => {
            Ok(name.clone())
        }
        _ => Err("glibc is for one release of Debian, such as trixie or sid".to_owned()),
    }
}

/// Runs all tests with the C library of that release; fails if one does.
pub fn run(release: &str) -> Outcome {
    let library = fetch(release)?;
    let version = library.answer("getconf GNU_LIBC_VERSION")?;
    println!("{release} has {}", version.trim());
    let programs = run::test_programs("-p fibrant")?;
    let failed: Vec<_> = programs
        .iter()
        .filter(|program| program.name != LEFT_OUT)
        .filter_map(|program| match library.run(program) {
            Ok(()) => {
                println!("    {}: ok", program.name);
                None
            }
            Err(problem) => {
                println!("    {}: {problem}", program.name);
                Some(program.name.as_str())
            }
        })
        .collect();
    match failed[..] {
        [] => Ok(()),
        _ => Err(format!("with {}: {} failed", version.trim(), failed.join(", "))),
    }
}

/// Another C library.
struct Library {
    /// Where its files are, and where this machine's are.
    files: PathBuf,
    place: PathBuf,
}

impl Library {
    /// A command that runs another with this library. Files lie over others in a namespace of the process's own.
    fn command(&self) -> Command {
        let (files, place) = (self.files.display(), self.place.display());
        let script =
            format!("mount -t overlay overlay -o lowerdir={files}:{place} {place} && exec \"$@\" || exit 1");
        let mut command = run::line("unshare --mount sh -c");
        command.args([&script, "sh"]);
        command
    }

    fn answer(&self, line: &str) -> Outcome<String> {
        let mut command = self.command();
        command.args(line.split_whitespace());
        run::answer(command)
    }

    fn run(&self, program: &TestProgram) -> Outcome {
        let direct = program.command("");
        let mut command = self.command();
        command.arg(direct.get_program());
        if let Some(folder) = direct.get_current_dir() {
            command.current_dir(folder);
        }
        for (name, value) in direct.get_envs() {
            command.env(name, value.expect("no variable is taken away"));
        }
        let ending = run::quietly(command, LIMIT)?;
        if ending.success {
            return Ok(());
        }
        Err(format!("{}\n{}", ending.how, ending.output))
    }
}

/// Gets the library of a release, unless it is there from the last time.
fn fetch(release: &str) -> Outcome<Library> {
    let current = std::env::current_dir().map_err(|error| format!("the current folder: {error}"))?;
    let folder = current.join("target/glibc").join(release);
    let host = test::host()?;
    let machine = host.split('-').next().unwrap_or_default();
    let place = PathBuf::from(format!("/usr/lib/{machine}-linux-gnu"));
    let root = folder.join("root");
    let files = root.join(place.strip_prefix("/").expect("it is absolute"));
    if !files.join("libc.so.6").exists() {
        download(release, &folder)?;
        run::openly(unpacking(&folder, &root)?)?;
    }
    Ok(Library { files, place })
}

/// Has apt fetch the package into a folder, from where this machine has its own.
fn download(release: &str, folder: &Path) -> Outcome {
    let lists = folder.join("lists");
    fs::create_dir_all(&lists).map_err(|error| format!("{}: {error}", lists.display()))?;
    let mut ask = run::line("apt-get indextargets --format $(REPO_URI)");
    ask.arg("Created-By: Packages");
    let places = run::answer(ask)?;
    let place = archive(&places).ok_or("apt-get knows no archive of packages")?;
    let sources = folder.join("sources.list");
    fs::write(&sources, format!("deb {place} {release} main\n"))
        .map_err(|error| format!("{}: {error}", sources.display()))?;
    for action in ["update --quiet", "download libc6"] {
        let mut command = run::line("apt-get");
        command.current_dir(folder).args([
            "-o",
            &format!("Dir::Etc::SourceList={}", sources.display()),
            "-o",
            "Dir::Etc::SourceParts=-",
            "-o",
            &format!("Dir::State::Lists={}", lists.display()),
        ]);
        command.args(action.split_whitespace());
        run::openly(command)?;
    }
    Ok(())
}

/// The archive with all packages, of those that apt-get lists, one on a line: others are parts of it, and have longer names.
fn archive(places: &str) -> Option<&str> {
    places
        .lines()
        .map(str::trim)
        .filter(|place| !place.is_empty())
        .min_by_key(|place| place.len())
}

/// The command that unpacks the package in a folder.
fn unpacking(folder: &Path, root: &Path) -> Outcome<Command> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let package = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or("apt-get has fetched nothing")?;
    let mut command = run::line("dpkg -x");
    command.args([&package, root]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_release() {
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(asked(&words("")), Ok("trixie".to_owned()));
        assert_eq!(asked(&words("sid")), Ok("sid".to_owned()));
        assert!(asked(&words("one two")).is_err());
        assert!(asked(&words("../..")).is_err());
    }

    #[test]
    fn finds_the_archive() {
        let places = "http://mirror.example/debian-security/\nhttp://mirror.example/debian/\n\n";
        assert_eq!(archive(places), Some("http://mirror.example/debian/"));
        assert_eq!(archive("\n"), None);
    }
}
