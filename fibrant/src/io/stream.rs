//! What is remembered of a TCP stream, so that who is to wait for input need not ask the kernel what is known already.
//!
//! `hook::stream` comes here for every plain read. A read that got less than it had room for has emptied the stream, and whatever
//! comes later makes an edge with every epoll that the descriptor is registered with: until one is heard the stream is *silent*, and
//! a read may wait at once. A descriptor that is not registered where it is waited for makes an edge when it is, if it is ready; so
//! nothing is missed. The word for that is [`Lull`](super::lull::Lull).
//!
//! What the user has set, whether and how long to wait, is remembered, too, until somebody changes such an option of any descriptor:
//! several may stand for one stream. Another process may change it, or someone who does not call the C library; so it is a belief,
//! and a wait that lasts a while makes sure of it ([`Round::Doubt`](super::Round::Doubt)).

use super::table::{self, Entry};
use crate::clock;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// How long a read waits, as the user has set it.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// The state of everybody's options when the kernel was asked.
    pub(crate) options: Options,
    /// Nanoseconds. Not at all is not remembered, for then it has to try every time: so 0 is that nobody has asked.
    pub(crate) time: u64,
}

/// Stands for the options of all descriptors, which are other ones whenever somebody changes one that matters here. The default stands for
/// none that there ever are.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Options(u32);

static OPTIONS: AtomicU32 = AtomicU32::new(1);

impl Options {
    /// The present ones.
    pub(crate) fn present() -> Options {
        Options(OPTIONS.load(Acquire))
    }

    /// Lets `change` change how a call waits for some descriptor. Whoever asks the kernel meanwhile may get the old answer or the new
    /// one: so they are others before it, for those who wait, and afterwards, for those who come.
    pub(crate) fn changing<R>(change: impl FnOnce() -> R) -> R {
        OPTIONS.fetch_add(1, AcqRel);
        let result = change();
        OPTIONS.fetch_add(1, AcqRel);
        result
    }
}

/// A descriptor that is known as a plain TCP stream.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    entry: &'static Entry,
    /// A number that the file which the descriptor stands for has, and the next one has not.
    pub(crate) generation: u32,
}

impl Stream {
    /// The stream that a descriptor stands for, if it is known as one.
    #[inline]
    pub(crate) fn of(fd: RawFd) -> Option<Stream> {
        let entry = table::existing(fd)?;
        let generation = entry.generation.load(Acquire);
        entry.lull.is_plain().then_some(Stream { entry, generation })
    }

    /// Whether nobody has said yet what an open descriptor stands for.
    pub(crate) fn is_unknown(fd: RawFd) -> bool {
        table::existing(fd).is_none_or(|entry| entry.lull.is_unknown())
    }

    /// Notes that an open descriptor stands for a plain TCP stream, or does not; unless it stands for another file by now than for
    /// the one with this [`generation`](super::generation).
    pub(crate) fn introduce(fd: RawFd, generation: u32, is_plain: bool) {
        let entry = table::entry(fd);
        let state = entry.lock();
        if state.generation == generation {
            entry.lull.introduce(is_plain);
        }
    }

    /// How long a read may wait that need not try first; none if it has to try.
    pub(crate) fn silence(self) -> Option<Patience> {
        if self.entry.lull.is_silent() {
            self.patience()
        } else {
            None
        }
    }

    /// How long a read may wait, if that is remembered.
    pub(crate) fn patience(self) -> Option<Patience> {
        let options = Options::present();
        if options.0 != 0 && self.entry.endless.load(Acquire) == options.0 {
            let time = clock::NEVER;
            return Some(Patience { options, time });
        }
        let patience = self.entry.lock().patience;
        (patience.time != 0 && patience.options == options).then_some(patience)
    }

    /// Remembers how long a read may wait.
    pub(crate) fn remember(self, patience: Patience) {
        let mut state = self.entry.lock();
        if state.generation == self.generation {
            state.patience = patience;
            let is_endless = patience.time == clock::NEVER;
            let endless = if is_endless { patience.options.0 } else { 0 };
            self.entry.endless.store(endless, Release);
        }
    }

    /// Forgets what is remembered of it: something else was found.
    pub(crate) fn forget(self) {
        self.remember(Patience::default());
        self.entry.lull.forget();
    }

    /// Somebody has asked for urgent data: from now on reads try first.
    pub(crate) fn note_urgent(self) {
        self.entry.lull.note_urgent();
    }

    /// Reads: `call` gives the kernel's result of asking for so many bytes without waiting.
    #[inline]
    pub(crate) fn read(self, length: usize, call: impl FnOnce() -> isize) -> isize {
        let begun = self.entry.lull.begin();
        let result = call();
        let is_short = result > 0 && (result as usize) < length;
        let is_empty = is_short || result == -(libc::EAGAIN as isize);
        self.entry.lull.end(begun, is_empty);
        result
    }
}
