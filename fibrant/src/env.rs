//! The `FIBRANT` environment variable: settings a user can change without building again.
//!
//! A leaf: [`context`](crate::context) asks for the guard, [`fiber`](crate::fiber) for the stack size. It is read once, at
//! the first question. A word that is not understood is an error, reported where a setting is first needed.
//!
//! `FIBRANT=stack=256k,guard=mprotect`

use std::io;
use std::sync::OnceLock;

/// What the variable asks for; `None` where it is silent.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// `stack=SIZE`: the size of a stack for which the program names none.
    pub(crate) stack_size: Option<usize>,
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
            Some(("guard", "mprotect")) => settings.guard_by_mprotect = true,
            Some(("guard", "auto")) => settings.guard_by_mprotect = false,
            _ => {
                return Err(format!(
                    "'{word}' is not understood; it takes stack=SIZE (such as 256k or 1m) and guard=auto|mprotect, \
                     separated by commas"
                ));
            }
        }
    }
    Ok(settings)
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
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
