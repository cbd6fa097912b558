//! `cargo xtask red`: proof that the tests notice. Each patch in `tests/red` breaks something on purpose, and names the
//! test that must fail then.
//!
//! `main` calls it. All of it happens in a copy of the workspace below `target/red`, which is scratch: the tree that one
//! works in is only read. Before each break the copy is made equal to the original again, so whatever an interrupted run
//! has left there does no harm. It runs git and cargo through `run`.
//!
//! A patch begins with lines that say what it is about, before the diff:
//!
//! ```text
//! test: -p fibrant --test fiber -- a_panic_goes_on_in_the_resumer
//! env: FIBRANT=guard=mprotect
//! The payload is dropped instead of handed to the resumer.
//! ```
//!
//! `test:` holds the arguments of `cargo test`. Lines with `env:` are optional. The rest is for people.

use crate::run::{self, Outcome};
use crate::test::{self, PATCHES};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A broken test may hang. That is red, too.
const TEST_LIMIT: Duration = Duration::from_secs(5 * 60);

/// A build that takes longer hangs.
const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// What a patch says about itself.
#[derive(Debug, PartialEq)]
struct Header {
    /// Arguments of `cargo test`.
    test: Vec<String>,
    environment: Vec<(String, String)>,
}

/// Tries all patches, or those named; fails if a test does not.
pub fn run(names: &[String]) -> Outcome {
    let patches = chosen(test::patches()?, names)?;
    let copy = Copy::place()?;
    let mut failed = 0;
    for patch in &patches {
        let name = stem(patch);
        match is_red(&copy, patch) {
            Ok(true) => println!("red: {name} ok (test failed as it should)"),
            Ok(false) => {
                failed += 1;
                println!("red: {name} NOT RED (the test passes although the code is broken)");
            }
            Err(problem) => {
                failed += 1;
                println!("red: {name} ERROR {problem}");
            }
        }
    }
    println!("{} red, {failed} not", patches.len() - failed);
    match failed {
        0 => Ok(()),
        _ => Err(format!("{failed} of {} breaks go unnoticed", patches.len())),
    }
}

/// The patches of these names, or all.
fn chosen(patches: Vec<PathBuf>, names: &[String]) -> Outcome<Vec<PathBuf>> {
    let known: Vec<String> = patches.iter().map(|patch| stem(patch)).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!(
            "there is no {PATCHES}/{name}.patch; there are {}",
            known.join(", ")
        ));
    }
    let wanted = |patch: &PathBuf| names.is_empty() || names.contains(&stem(patch));
    Ok(patches.into_iter().filter(wanted).collect())
}

/// A patch's name.
fn stem(patch: &Path) -> String {
    patch.file_stem().unwrap_or_default().display().to_string()
}

/// Whether the patch makes its test fail. That it does not build is an error: it says nothing about the test.
fn is_red(copy: &Copy, patch: &Path) -> Outcome<bool> {
    let text = fs::read_to_string(patch).map_err(|error| error.to_string())?;
    let header = header(&text)?;
    copy.refresh()?;
    copy.apply(patch)?;
    let built = run::quietly(copy.cargo_build(&header), BUILD_LIMIT)?;
    if !built.success {
        return Err(format!("does not build: {}\n{}", built.how, built.output));
    }
    let tested = run::quietly(copy.cargo("cargo test", &header.test, &header), TEST_LIMIT)?;
    if tested.success {
        println!("{}", tested.output);
    }
    Ok(!tested.success)
}

/// Reads what stands before the diff.
fn header(patch: &str) -> Outcome<Header> {
    let lines = patch
        .lines()
        .take_while(|line| !line.starts_with("diff ") && !line.starts_with("--- "));
    let mut test = None;
    let mut environment = Vec::new();
    for line in lines {
        if let Some(arguments) = line.strip_prefix("test:") {
            test = Some(arguments.split_whitespace().map(String::from).collect());
        } else if let Some(setting) = line.strip_prefix("env:") {
            let (key, value) = setting
                .trim()
                .split_once('=')
                .ok_or_else(|| format!("'{line}' is not env: KEY=VALUE"))?;
            environment.push((key.to_owned(), value.to_owned()));
        }
    }
    let test = test.ok_or("has no line 'test: ARGUMENTS OF CARGO TEST' before the diff")?;
    Ok(Header { test, environment })
}

/// The copy of the workspace in which things are broken.
struct Copy {
    original: PathBuf,
    folder: PathBuf,
    /// Where cargo builds it: kept, so that only what a patch changes is built again.
    build: PathBuf,
}

impl Copy {
    fn place() -> Outcome<Copy> {
        let original = std::env::current_dir().map_err(|error| error.to_string())?;
        let scratch = original.join("target/red");
        let folder = scratch.join("tree");
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        Ok(Copy {
            original,
            folder,
            build: scratch.join("build"),
        })
    }

    /// Makes the copy equal to the original. Files that are equal keep their times, or cargo would build everything again.
    fn refresh(&self) -> Outcome {
        let listed = self.listed()?;
        for path in self.differences(&listed)? {
            let (from, to) = (self.original.join(&path), self.folder.join(&path));
            replace(&from, &to, listed.contains(&path)).map_err(at(&to))?;
        }
        Ok(())
    }

    /// The files of the original that belong to it: what git has, or would take.
    fn listed(&self) -> Outcome<BTreeSet<PathBuf>> {
        let list = run::answer(run::line("git ls-files -z --cached --others --exclude-standard"))?;
        let paths = list.split_terminator('\0').map(PathBuf::from);
        // One that has been deleted is still in git's index.
        Ok(paths
            .filter(|path| self.original.join(path).is_symlink() || self.original.join(path).exists())
            .collect())
    }

    /// The files that are not the same here and there.
    fn differences(&self, listed: &BTreeSet<PathBuf>) -> Outcome<Vec<PathBuf>> {
        let mut here = BTreeSet::new();
        files_below(&self.folder, &mut here).map_err(at(&self.folder))?;
        let here = here.iter().map(|path| {
            path.strip_prefix(&self.folder)
                .expect("it was found there")
                .to_owned()
        });
        let all: BTreeSet<PathBuf> = here.chain(listed.iter().cloned()).collect();
        let differs = |path: &PathBuf| {
            !listed.contains(path) || content(&self.original.join(path)) != content(&self.folder.join(path))
        };
        Ok(all.into_iter().filter(differs).collect())
    }

    /// Applies a patch to the copy. Git must not notice that it lies in an ignored folder of a repository: it would skip
    /// every file and call that success.
    fn apply(&self, patch: &Path) -> Outcome {
        let mut command = run::line("git apply");
        command
            .arg(self.original.join(patch))
            .current_dir(&self.folder)
            .env(
                "GIT_CEILING_DIRECTORIES",
                self.folder.parent().unwrap_or(&self.folder),
            );
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(variable);
        }
        run::openly(command).map_err(|problem| format!("does not apply: {problem}"))?;
        if self.differences(&self.listed()?)?.is_empty() {
            return Err("changes nothing".to_owned());
        }
        Ok(())
    }

    /// Builds what the test needs. Doc tests are built when they run, so for them it is only the library.
    fn cargo_build(&self, header: &Header) -> Command {
        let arguments = header.test.split(|word| word == "--").next().unwrap_or_default();
        if arguments.iter().any(|word| word == "--doc") {
            let others: Vec<String> = arguments
                .iter()
                .filter(|word| *word != "--doc")
                .cloned()
                .collect();
            return self.cargo("cargo build", &others, header);
        }
        self.cargo("cargo test --no-run", arguments, header)
    }

    fn cargo(&self, line: &str, arguments: &[String], header: &Header) -> Command {
        let mut command = run::line(line);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.build)
            .envs(header.environment.iter().map(|(key, value)| (key, value)));
        command
    }
}

/// What a path leads to.
#[derive(PartialEq)]
enum Content {
    File(Vec<u8>),
    Link(PathBuf),
}

fn content(path: &Path) -> Option<Content> {
    match fs::read_link(path) {
        Ok(target) => Some(Content::Link(target)),
        Err(_) => fs::read(path).ok().map(Content::File),
    }
}

/// Puts a copy of one file in the place of another, or nothing if it is not wanted.
fn replace(from: &Path, to: &Path, wanted: bool) -> io::Result<()> {
    if to.is_symlink() || to.exists() {
        fs::remove_file(to)?;
    }
    if !wanted {
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    match fs::read_link(from) {
        Ok(target) => symlink(target, to),
        Err(_) => fs::copy(from, to).map(drop),
    }
}

/// All files in a folder and the folders in it; links are not followed.
fn files_below(folder: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files_below(&entry.path(), found)?;
        } else {
            found.insert(entry.path());
        }
    }
    Ok(())
}

/// Turns an error into words that say where it happened.
fn at(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn reads_what_stands_before_the_diff() {
        let patch = "test: -p fibrant --test fiber -- a_panic\nenv: FIBRANT=guard=mprotect\nenv: A=b c\n\
                     Panics are swallowed.\n\ndiff --git a/x b/x\ntest: of the diff\n";
        let expected = Header {
            test: words("-p fibrant --test fiber -- a_panic"),
            environment: vec![
                ("FIBRANT".to_owned(), "guard=mprotect".to_owned()),
                ("A".to_owned(), "b c".to_owned()),
            ],
        };
        assert_eq!(header(patch), Ok(expected));
    }

    #[test]
    fn says_what_a_header_lacks() {
        assert!(
            header("Prose.\n--- a/x\n+++ b/x\ntest: too late\n")
                .unwrap_err()
                .contains("no line 'test:")
        );
        assert!(
            header("test: -p fibrant\nenv: nothing\n")
                .unwrap_err()
                .contains("'env: nothing'")
        );
    }

    #[test]
    fn chooses_by_name() {
        let patches = || {
            vec![
                PathBuf::from("tests/red/one.patch"),
                PathBuf::from("tests/red/two.patch"),
            ]
        };
        assert_eq!(chosen(patches(), &[]).unwrap(), patches());
        assert_eq!(chosen(patches(), &words("two")).unwrap(), patches()[1..]);
        assert!(
            chosen(patches(), &words("three"))
                .unwrap_err()
                .contains("one, two")
        );
    }

    #[test]
    fn replaces_files_and_links() {
        let folder = std::env::temp_dir().join(format!("xtask-red-{}", std::process::id()));
        let (file, link, copy) = (
            folder.join("file"),
            folder.join("link"),
            folder.join("inner/copy"),
        );
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, "text").unwrap();
        symlink("file", &link).unwrap();
        for original in [&file, &link] {
            replace(original, &copy, true).unwrap();
            assert!(content(original) == content(&copy));
        }
        replace(&file, &copy, false).unwrap();
        assert!(content(&copy).is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
