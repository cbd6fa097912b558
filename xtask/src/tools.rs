//! What some steps need from outside: is it there, and if not, can it be installed?
//!
//! `test` and `bench` call it; it runs apt-get and rustup, where they exist, through `run`.

use crate::run::{self, Outcome};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Once;

const INSTALL_PACKAGES: &str = "apt-get install -y --no-install-recommends";

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
        return Err(format!("it {needs}; or leave it out: --without {step}"));
    }
    Ok(Supply::Lacks(needs))
}

/// Installs what is missing, as far as that is possible.
pub fn install(tools: &[Tool]) -> Supply {
    for line in installers(&missing(tools)) {
        if let Err(problem) = run_installer(&line) {
            println!("    {problem}");
        }
    }
    let missing = missing(tools);
    if missing.is_empty() {
        return Supply::Complete;
    }
    let names: Vec<String> = missing.iter().map(|tool| tool.name()).collect();
    Supply::Lacks(format!(
        "needs {}, install with: {}",
        names.join(", "),
        installers(&missing).join(" && ")
    ))
}

fn missing(tools: &[Tool]) -> Vec<&Tool> {
    tools.iter().filter(|tool| !tool.is_there()).collect()
}

/// The command lines that install these: one for all packages, one for each of the rest.
fn installers(tools: &[&Tool]) -> Vec<String> {
    let mut packages = Vec::new();
    let mut lines = Vec::new();
    for tool in tools {
        match tool {
            Tool::Package { name, .. } => packages.push(*name),
            Tool::Toolchain(name) => lines.push(format!("rustup toolchain install {name} --profile minimal")),
            Tool::Target(name) => lines.push(format!("rustup target add {name}")),
        }
    }
    if !packages.is_empty() {
        lines.insert(0, format!("{INSTALL_PACKAGES} {}", packages.join(" ")));
    }
    lines
}

fn run_installer(line: &str) -> Outcome {
    let mut command = run::line(line);
    if line.starts_with(INSTALL_PACKAGES) {
        if !is_root() {
            return Err(format!("only root may run {line}"));
        }
        update_package_list();
        // Nobody is there to answer a package's questions.
        command.env("DEBIAN_FRONTEND", "noninteractive");
    }
    println!("    {line}");
    run::openly(command)
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

/// Whether a program of this name can be run.
pub fn is_program(name: &str) -> bool {
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
    fn packages_are_installed_together() {
        let package = |name| Tool::Package {
            name,
            shown_by: "no-such-program",
        };
        let tools = [
            Tool::Target("aarch64-unknown-linux-gnu"),
            package("one"),
            package("two"),
        ];
        assert_eq!(
            installers(&tools.iter().collect::<Vec<_>>()),
            [
                "apt-get install -y --no-install-recommends one two",
                "rustup target add aarch64-unknown-linux-gnu"
            ]
        );
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
