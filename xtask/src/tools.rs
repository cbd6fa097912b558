//! What some steps need from outside: is it there, and if not, can it be installed?
//!
//! [`test`](crate::test) and [`bench`](crate::bench) call it; it runs apt-get and rustup, where they exist, through
//! [`run`](crate::run).

use crate::run::{self, Outcome};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Once;

/// Something that a step needs.
pub enum Tool {
    /// A Debian package, and a program or file (a word with a slash) that shows that it is there.
    Package {
        /// What apt-get calls it.
        name: &'static str,
        /// Elsewhere the same thing may come from another package, so this counts, not the package.
        shown_by: &'static str,
    },
    /// A Rust toolchain, such as `nightly`.
    Toolchain(String),
    /// The standard library for another machine.
    Target(&'static str),
}

/// Whether a step can run.
pub enum Supply {
    /// All that it needs is there.
    Complete,
    /// What is missing, and how to install it.
    Lacks(String),
}

/// Makes sure that a step's tools are there, installing what is missing. Where that fails, people are told at the end; but
/// nobody reads what a machine has left out, so in CI (the variable `CI` is set) it is an error.
pub fn provide(step: &str, tools: &[Tool]) -> Outcome<Supply> {
    let Supply::Lacks(needs) = install(tools) else {
        return Ok(Supply::Complete);
    };
    if std::env::var_os("CI").is_some_and(|value| !value.is_empty()) {
        return Err(format!(
            "{step} {needs}; or leave this step out: --without {step}"
        ));
    }
    Ok(Supply::Lacks(needs))
}

/// Installs what is missing, as far as that is possible.
pub fn install(tools: &[Tool]) -> Supply {
    for tool in tools.iter().filter(|tool| !tool.is_there()) {
        if let Err(problem) = tool.install() {
            println!("    {} could not be installed: {problem}", tool.name());
        }
    }
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !tool.is_there()).collect();
    if missing.is_empty() {
        return Supply::Complete;
    }
    let join = |words: Vec<String>, between| words.join(between);
    let names = join(missing.iter().map(|tool| tool.name()).collect(), " ");
    let commands = join(missing.iter().map(|tool| tool.installer()).collect(), " && ");
    Supply::Lacks(format!("needs {names}, install with: {commands}"))
}

impl Tool {
    fn name(&self) -> String {
        match self {
            Tool::Package { name, .. } => (*name).to_owned(),
            Tool::Toolchain(name) => format!("Rust {name}"),
            Tool::Target(name) => format!("Rust for {name}"),
        }
    }

    fn is_there(&self) -> bool {
        match self {
            Tool::Package { shown_by, .. } if shown_by.contains('/') => Path::new(shown_by).exists(),
            Tool::Package { shown_by, .. } => is_program(shown_by),
            Tool::Toolchain(name) => succeeds(&format!("rustup run {name} rustc --version")),
            Tool::Target(name) => run::answer(run::line("rustup target list --installed"))
                .is_ok_and(|targets| targets.lines().any(|target| target == *name)),
        }
    }

    /// The command line that installs it.
    fn installer(&self) -> String {
        match self {
            Tool::Package { name, .. } => format!("apt-get install -y --no-install-recommends {name}"),
            Tool::Toolchain(name) => format!("rustup toolchain install {name} --profile minimal"),
            Tool::Target(name) => format!("rustup target add {name}"),
        }
    }

    fn install(&self) -> Outcome {
        if let Tool::Package { .. } = self {
            if !is_root() {
                return Err("only root may run apt-get".to_owned());
            }
            update_package_list();
        }
        println!("    {}", self.installer());
        let mut command = run::line(&self.installer());
        // Nobody is there to answer a package's questions.
        command.env("DEBIAN_FRONTEND", "noninteractive");
        run::openly(command)
    }
}

/// A fresh machine's list may be empty. If this fails, the installation that follows says so.
fn update_package_list() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = run::openly(run::line("apt-get update -q"));
    });
}

/// The owner of a process's entry is its user.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

fn is_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}

fn succeeds(line: &str) -> bool {
    let mut command = run::line(line);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_installed() {
        let shell = Tool::Package {
            name: "no-such-package",
            shown_by: "sh",
        };
        let root = Tool::Package {
            name: "no-such-package",
            shown_by: "/",
        };
        assert!(shell.is_there());
        assert!(root.is_there());
        assert!(matches!(install(&[shell, root]), Supply::Complete));
    }

    #[test]
    fn what_is_not_there_is_noticed() {
        let program = Tool::Package {
            name: "p",
            shown_by: "no-such-program",
        };
        let file = Tool::Package {
            name: "p",
            shown_by: "/no/such/file",
        };
        assert!(!program.is_there());
        assert!(!file.is_there());
    }
}
