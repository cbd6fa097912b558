//! The `FIBRANT` environment variable: settings a user can change without building again.
//!
//! A leaf: [`context`](crate::context) asks for the guard, [`fiber`](crate::fiber) for the stack size. It is read once, at
//! the first question. A word that is not understood is an error, reported where a setting is first needed.
//!
//! `FIBRANT=stack=256k,guard=mprotect`

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// What the variable asks for; `None` where it is silent.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// `stack=SIZE`: the size of a stack for which the program names none.
    pub(crate) stack_size: Option<usize>,
    /// `workers=N`: how many workers a runtime has for which the program names no number.
    pub(crate) workers: Option<usize>,
    /// `hooks=on|off`: whether blocking calls are hooked in runtimes for which the program does not say.
    pub(crate) hooks: Option<bool>,
    /// `deadlock=TIME`: after how long without a fiber that can run the dump is printed.
    pub(crate) deadlock_after: Option<Duration>,
    /// `stuck=TIME`: after how long in one fiber a worker is called stuck.
    pub(crate) stuck_after: Option<Duration>,
    /// `guard=mprotect`: guard pages by mprotect even where the kernel has lighter ones.
    pub(crate) guard_by_mprotect: bool,
}

/// The settings, or what is wrong with the variable.
#[inline]
pub(crate) fn settings() -> io::Result<&'static Settings> {
    static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
    SETTINGS.get_or_init(read).as_ref().map_err(useless)
}

#[cold]
fn read() -> Result<Settings, String> {
    match std::env::var("FIBRANT") {
        Ok(text) => parse(&text),
        Err(std::env::VarError::NotPresent) => Ok(Settings::default()),
        Err(std::env::VarError::NotUnicode(_)) => Err("it is not valid UTF-8".to_owned()),
    }
}

#[cold]
fn useless(problem: &String) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("the environment variable FIBRANT cannot be used: {problem}"),
    )
}

fn parse(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("stack", size)) => settings.stack_size = Some(parse_size(size)?),
            Some(("workers", number)) => settings.workers = Some(parse_workers(number)?),
            Some(("hooks", "on")) => settings.hooks = Some(true),
            Some(("hooks", "off")) => settings.hooks = Some(false),
            Some(("deadlock", time)) => settings.deadlock_after = Some(parse_time(time)?),
            Some(("stuck", time)) => settings.stuck_after = Some(parse_time(time)?),
            Some(("guard", "mprotect")) => settings.guard_by_mprotect = true,
            Some(("guard", "auto")) => settings.guard_by_mprotect = false,
            _ => {
                return Err(format!(
                    "'{word}' is not understood; it takes workers=N, stack=SIZE (such as 256k or 1m), hooks=on|off, \
                     deadlock=TIME (such as 5s or 500ms), stuck=TIME and guard=auto|mprotect, separated by commas"
                ));
            }
        }
    }
    Ok(settings)
}

/// How many workers: at least one.
fn parse_workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("'{text}' is not a number of workers; write 1 or more")),
    }
}

/// A time: digits, and `s` or `ms`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let milliseconds = match text.strip_suffix("ms") {
        Some(digits) => digits.parse().ok(),
        None => text
            .strip_suffix('s')
            .and_then(|digits| digits.parse::<u64>().ok()?.checked_mul(1000)),
    };
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| format!("'{text}' is not a time; write 5s or 500ms"))
}

/// A number of bytes: digits, and `k`, `m` or `g` for powers of 1,024.
fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| format!("'{text}' is not a size; write bytes, or 256k, 1m, 1g"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes_and_guards() {
        let settings = parse("stack=512k, guard=mprotect,").unwrap();
        assert_eq!(settings.stack_size, Some(512 << 10));
        assert!(settings.guard_by_mprotect);
        let settings = parse("workers=3,hooks=off,deadlock=500ms").unwrap();
        assert_eq!((settings.workers, settings.hooks), (Some(3), Some(false)));
        assert_eq!(settings.deadlock_after, Some(Duration::from_millis(500)));
        assert_eq!(
            parse("deadlock=5s").unwrap().deadlock_after,
            Some(Duration::from_secs(5))
        );
        assert_eq!(
            parse("stuck=20ms").unwrap().stuck_after,
            Some(Duration::from_millis(20))
        );
        assert_eq!(parse("").unwrap(), Settings::default());
        assert_eq!(parse("stack=70000").unwrap().stack_size, Some(70_000));
        assert_eq!(parse("stack=1G").unwrap().stack_size, Some(1 << 30));
    }

    #[test]
    fn names_the_word_it_does_not_understand() {
        for (text, part) in [
            ("stak=1m", "stak=1m"),
            ("stack", "'stack'"),
            ("guard=none", "guard=none"),
            ("stack=lots", "'lots'"),
            ("stack=99999999999g", "99999999999g"),
            ("workers=0", "'0'"),
            ("hooks=maybe", "hooks=maybe"),
            ("deadlock=5", "'5'"),
            ("stuck=soon", "'soon'"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
