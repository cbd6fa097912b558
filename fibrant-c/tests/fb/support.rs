//! Building programs with the system's compilers, and running them with a time limit.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take. Only a broken one needs it.
const LIMIT: Duration = Duration::from_secs(120);

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    Statically,
    Dynamically,
}

/// What a program has said, and how it has ended.
pub struct Ended {
    pub status: ExitStatus,
    pub output: String,
}

/// A place below this crate.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo has put the libraries: beside the test itself.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Runs a compiler, with every warning an error.
pub fn compile(standard: &str, arguments: &[&str]) {
    let (compiler, package) = match standard.starts_with("c++") {
        true => ("c++", "g++"),
        false => ("cc", "gcc"),
    };
    let ended = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"])
        .arg("-I")
        .arg(here("include"))
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} cannot be run ({error}): install the package {package}"));
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "{compiler} -std={standard} {arguments:?}:\n{errors}"
    );
}

/// Makes a program of a source file, and says where it is.
pub fn build(source: &Path, linked: Linked) -> PathBuf {
    let name = source.file_name().unwrap().to_str().unwrap();
    let standard = if name.ends_with(".c") { "c11" } else { "c++17" };
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fb-{name}-{linked:?}"));
    let directory = libraries();
    let library = match linked {
        Linked::Statically => directory.join("libfibrant_c.a"),
        Linked::Dynamically => directory.join("libfibrant_c.so"),
    };
    assert!(library.exists(), "{} is missing", library.display());
    let run_path = format!("-Wl,-rpath,{}", directory.display());
    compile(
        standard,
        &[
            "-D_GNU_SOURCE",
            source.to_str().unwrap(),
            "-o",
            program.to_str().unwrap(),
            library.to_str().unwrap(),
            &run_path,
            "-lpthread",
            "-ldl",
            "-lm",
        ],
    );
    program
}

/// Runs a program to its end.
pub fn run(program: &Path, arguments: &[&str]) -> Ended {
    let log = program.with_extension(arguments.join("-") + ".log");
    let file = File::create(&log).unwrap();
    let mut child = Command::new(program)
        .args(arguments)
        .env_remove("FIBRANT")
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            let output = fs::read_to_string(&log).unwrap_or_default();
            panic!("{} {arguments:?} hangs:\n{output}", program.display());
        }
        thread::sleep(Duration::from_millis(2));
    };
    let output = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    Ended { status, output }
}

/// Runs a program that is to end well.
pub fn run_well(program: &Path, arguments: &[&str]) -> String {
    let ended = run(program, arguments);
    assert!(
        ended.status.success(),
        "{} {arguments:?}: {}\n{}",
        program.display(),
        ended.status,
        ended.output
    );
    ended.output
}
