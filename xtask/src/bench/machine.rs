//! The machine on which something was measured, and the versions of what was measured there.
//!
//! `run` asks; it calls nothing but small programs that tell, through `run`, and reads what the kernel tells.

use crate::run;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

/// What is known of a machine; what is not is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    /// In GiB.
    pub memory: f64,
    pub kernel: String,
    /// By what, or just that it is.
    pub virtualised: String,
    pub governor: String,
    pub rustc: String,
    /// Of the peers.
    pub versions: BTreeMap<String, String>,
}

/// The peers and libraries whose versions are in `Cargo.lock`.
const CRATES: [&str; 9] = [
    "corosensei",
    "crossbeam-channel",
    "httparse",
    "hyper",
    "may",
    "may_minihttp",
    "monoio",
    "parking_lot",
    "tokio",
];

/// Where Boost says which it is.
const BOOST: &str = "/usr/include/boost/version.hpp";

impl Machine {
    pub fn this() -> Machine {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let processors = read("/proc/cpuinfo");
        let field = |name: &str| field(&processors, name).unwrap_or_default();
        let mut versions = locked(&read("Cargo.lock"));
        let boost = read(BOOST);
        if let Some(version) = boost
            .lines()
            .find_map(|line| line.strip_prefix("#define BOOST_LIB_VERSION "))
        {
            let version = version.trim_matches('"').replace('_', ".");
            versions.insert("Boost.Context".to_owned(), version);
        }
        let go = told("go version");
        if let Some(version) = go.split_whitespace().nth(2) {
            versions.insert("Go".to_owned(), version.trim_start_matches("go").to_owned());
        }
        let virtualised = match told("systemd-detect-virt").as_str() {
            "none" => String::new(),
            "" if field("flags").contains("hypervisor") => "yes".to_owned(),
            by => by.to_owned(),
        };
        Machine {
            processor: field("model name"),
            cores: cores(),
            memory: memory(),
            kernel: read("/proc/sys/kernel/osrelease"),
            virtualised,
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            rustc: told("rustc --version"),
            versions,
        }
    }

    /// In one line.
    pub fn brief(&self) -> String {
        let mut text = format!("{} x {}", self.cores, self.processor);
        if !self.virtualised.is_empty() {
            text += ", virtual";
        }
        text += &format!(", {:.0} GiB, Linux {}", self.memory, self.kernel);
        // Without the commit in brackets.
        let rustc: Vec<&str> = self.rustc.split_whitespace().take(2).collect();
        text + ", " + &rustc.join(" ")
    }
}

/// How many processors there are to use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// All memory, in GiB.
pub fn memory() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field(&text, "MemTotal").and_then(|value| value.trim_end_matches(" kB").parse().ok());
    kilobytes.unwrap_or(0.0) / f64::from(1 << 20)
}

/// The value of a line `name: value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// The versions that a lock file has of the peers. Of several, the greatest.
fn locked(lock: &str) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    let mut name = "";
    for line in lock.lines() {
        let quoted = || line.split('"').nth(1).unwrap_or_default();
        if line.starts_with("name = ") {
            name = quoted();
        } else if line.starts_with("version = ") && CRATES.contains(&name) {
            versions.insert(name.to_owned(), quoted().to_owned());
        }
    }
    versions
}

/// What a small program prints; nothing if it is not there.
pub fn told(line: &str) -> String {
    let mut command: Command = run::line(line);
    let output = command.stderr(Stdio::null()).output();
    output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_versions_in_a_lock_file() {
        let lock = "[[package]]\nname = \"tokio\"\nversion = \"1.54.1\"\nsource = \"x\"\n\n[[package]]\nname = \"other\"\nversion = \"2.0.0\"\n";
        let versions = locked(lock);
        assert_eq!(versions.len(), 1);
        assert_eq!(versions["tokio"], "1.54.1");
    }

    #[test]
    fn finds_a_field() {
        assert_eq!(
            field("model name\t: A Processor: fast\n", "model name").as_deref(),
            Some("A Processor: fast")
        );
        assert_eq!(field("", "model name"), None);
    }

    #[test]
    fn knows_this_machine() {
        assert!(cores() > 0 && memory() > 0.0);
        assert!(Machine::this().brief().contains("Linux"));
    }
}
