//! Compiles C and C++ programs with the system's compilers, links them with the library that cargo has just built, and runs them.
//! For the tests of this crate.

#![allow(dead_code)] // each test binary uses its part

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may run. They take a second or so; only one that hangs needs this, or a machine that is very busy.
const LIMIT: Duration = Duration::from_secs(60);

/// The headers must not cause the mildest complaint.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// How a program gets at the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linking {
    Static,
    Dynamic,
}

pub const BOTH: [Linking; 2] = [Linking::Static, Linking::Dynamic];

/// The folder of this crate.
pub fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the headers.
pub fn include_folder() -> PathBuf {
    crate_folder().join("include")
}

/// Where the libraries are: beside the test's own binary.
pub fn library_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// A file for a program or its output, in cargo's folder for such.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fibrant-c");
    fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// Whether a file is C++'s, by its name.
pub fn is_cxx(source: &Path) -> bool {
    source.extension() == Some(OsStr::new("cpp"))
}

/// The language standard of a program: what its first line asks for, or the oldest that the headers promise.
pub fn standard(source: &Path) -> String {
    let text = fs::read_to_string(source).unwrap();
    let first = text.lines().next().unwrap_or_default();
    match first.strip_prefix("// standard: ") {
        Some(standard) => standard.to_owned(),
        None if is_cxx(source) => "c++11".to_owned(),
        None => "c11".to_owned(),
    }
}

/// A command for the compiler of the file's language, with all warnings and our headers.
pub fn compiler(source: &Path, standard: &str) -> Command {
    let (variable, usual) = if is_cxx(source) {
        ("CXX", "c++")
    } else {
        ("CC", "cc")
    };
    let name = std::env::var(variable).unwrap_or_else(|_| usual.to_owned());
    let mut command = Command::new(name);
    command
        .arg(format!("-std={standard}"))
        .args(WARNINGS)
        .arg("-I")
        .arg(include_folder());
    // The library is built as this test is.
    if cfg!(debug_assertions) {
        command.arg("-DLIBRARY_IS_DEBUG");
    }
    command
}

/// Runs a compiler, and shows what it said if it fails.
#[track_caller]
pub fn compile(mut command: Command) {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            panic!("{command:?}: there is no such compiler; these tests need the packages gcc and g++")
        }
        Err(error) => panic!("{command:?}: {error}"),
    };
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Compiles a program of one file and links it.
#[track_caller]
pub fn build(source: &Path, standard: &str, linking: Linking) -> PathBuf {
    build_as(
        source.file_stem().unwrap().to_str().unwrap(),
        source,
        standard,
        linking,
    )
}

/// The same, with a name for the program.
#[track_caller]
pub fn build_as(name: &str, source: &Path, standard: &str, linking: Linking) -> PathBuf {
    let program = scratch(&format!("{name}-{standard}-{linking:?}"));
    let mut command = compiler(source, standard);
    command.arg(source).arg("-o").arg(&program);
    link(&mut command, linking);
    compile(command);
    program
}

/// Adds the library to a compiler's arguments.
pub fn link(command: &mut Command, linking: Linking) {
    let folder = library_folder();
    match linking {
        Linking::Static => {
            command.arg(folder.join("libfibrant_c.a"));
        }
        Linking::Dynamic => {
            command.arg("-L").arg(&folder).arg("-lfibrant_c");
            // The older kind goes before LD_LIBRARY_PATH, in which cargo names a folder that may hold an older build.
            command.arg(format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display()));
        }
    }
    // Without debug information, of which the library has a lot: a program would take tens of megabytes.
    command.args(["-lpthread", "-ldl", "-lm", "-Wl,--strip-debug"]);
}

/// A program that runs, and is ended with this if it still does.
pub struct Running {
    child: Child,
    started: Instant,
    /// Files, so that a program that prints a lot never waits for a reader.
    stdout: PathBuf,
    stderr: PathBuf,
}

/// What a program left.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The end of a self-checking program: with 0, and "ok" in the last line.
    #[track_caller]
    pub fn must_be_ok(&self, program: &str) {
        assert!(
            self.status.success() && self.stdout.lines().last() == Some("ok"),
            "{program}: {}\n{}{}",
            self.status,
            self.stdout,
            self.stderr
        );
    }
}

impl Running {
    #[track_caller]
    pub fn start(program: &Path, arguments: &[&str]) -> Running {
        let (stdout, stderr) = (program.with_extension("stdout"), program.with_extension("stderr"));
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Running {
            child,
            started: Instant::now(),
            stdout,
            stderr,
        }
    }

    /// What it has printed so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Waits for the end; panics with what it printed if that does not come.
    #[track_caller]
    pub fn finish(self) -> Outcome {
        self.finish_within(LIMIT)
    }

    /// The same, for a program that takes longer than others.
    #[track_caller]
    pub fn finish_within(mut self, limit: Duration) -> Outcome {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Outcome {
                    status,
                    stdout: self.printed(),
                    stderr: fs::read_to_string(&self.stderr).unwrap_or_default(),
                };
            }
            assert!(
                self.started.elapsed() < limit,
                "it hangs; it printed:\n{}{}",
                self.printed(),
                fs::read_to_string(&self.stderr).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended, which is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a self-checking program, links it in each way, and runs it: it must end with 0, and "ok" must be its last line.
#[track_caller]
pub fn must_say_ok(source: &Path, standard: &str) {
    for linking in BOTH {
        let program = build(source, standard, linking);
        let outcome = Running::start(&program, &[]).finish();
        outcome.must_be_ok(&format!(
            "{} as {standard}, linked as {linking:?}",
            source.display()
        ));
    }
}
