//! How the things that are waited for describe themselves to dumps.

use super::holder::Holder;
use crate::clock;
use std::fmt::Write as _;
use std::time::Duration;

/// What something is called, if anything.
pub(crate) type Name = Option<&'static str>;

/// How many are named of those who wait, or of what somebody waits for.
pub(crate) const SHOWN: usize = 8;

/// A description in the making.
pub(crate) struct Text(String);

impl Text {
    /// Something of this kind.
    pub(crate) fn new(kind: &str, name: Option<&str>) -> Text {
        Text(name.map_or_else(|| kind.to_owned(), |name| format!("{kind} '{name}'")))
    }

    /// It is held by somebody, since then, if that is known.
    pub(crate) fn holder(&mut self, holder: Option<Holder>, since: u64) {
        let Some(holder) = holder else { return };
        let _ = write!(self.0, ", held by {holder}");
        if since != 0 {
            let time = Duration::from_nanos(clock::now().saturating_sub(since));
            let _ = write!(self.0, " for {time:.1?}");
        }
    }

    /// One more thing about it.
    pub(crate) fn add(&mut self, words: &str) {
        let _ = write!(self.0, ", {words}");
    }

    /// Who waits for it: `all` calls the function that it is given with each.
    pub(crate) fn waiters(&mut self, all: impl FnOnce(&mut dyn FnMut(Holder))) {
        self.those("wanted by", all);
    }

    /// Several of which something is true, as `words` say.
    pub(crate) fn those(&mut self, words: &str, all: impl FnOnce(&mut dyn FnMut(Holder))) {
        let mut count = 0;
        let text = &mut self.0;
        all(&mut |holder| {
            let _ = match count {
                0 => write!(text, ", {words} {holder}"),
                _ if count < SHOWN => write!(text, ", {holder}"),
                _ => Ok(()),
            };
            count += 1;
        });
        if count > SHOWN {
            let _ = write!(text, " and {} more", count - SHOWN);
        }
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}
