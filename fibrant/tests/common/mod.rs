//! What several tests need: running a test once more in a child process, where it may crash or be measured alone.

#![allow(dead_code)] // each test binary uses its part

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// Set in a child process, with the name of the case it is to run.
const CASE: &str = "FIBRANT_TEST_CASE";

/// The case that this process is to run, if it is a child.
pub fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// Runs test `test` of this binary in a child process as case `case`, with more environment variables.
pub fn child(test: &str, case: &str, environment: &[(&str, &str)]) -> Child {
    let output = command(test, case, environment).output();
    Child(output.expect("the test binary runs"))
}

/// What runs that child process.
pub fn command(test: &str, case: &str, environment: &[(&str, &str)]) -> Command {
    let program = std::env::current_exe().expect("the test binary has a path");
    // An emulator that runs this binary has to be named to run it once more.
    let runner = std::env::var("FIBRANT_TEST_RUNNER").unwrap_or_default();
    let mut words = runner
        .split_whitespace()
        .map(String::from)
        .chain([program.display().to_string()]);
    let mut command = Command::new(words.next().expect("at least the program"));
    command
        .args(words)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env_remove("FIBRANT")
        .env("RUST_BACKTRACE", "0")
        .env(CASE, case)
        .envs(environment.iter().copied());
    command
}

/// What became of a child process.
pub struct Child(pub Output);

impl Child {
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        self.0.status.signal()
    }

    /// Panics with all that the child printed unless it succeeded.
    pub fn succeeded(self) -> Child {
        assert!(
            self.0.status.success(),
            "{}\n{}\n{}",
            self.0.status,
            self.stdout(),
            self.stderr()
        );
        self
    }
}
