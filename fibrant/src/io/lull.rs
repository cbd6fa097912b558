//! Whether a stream is silent: the word that says so, in one atomic number.
//!
//! `stream` changes it with every read, `reactor` with every edge, and closing a descriptor puts it back.
//!
//! # The states of a stream
//!
//! - *Unknown*: nobody has made sure that it is a plain TCP stream. A read says nothing of the next one.
//! - *Plain*: it is. Each read takes a new number before it asks the kernel.
//! - *Silent*: a read has emptied the stream, and neither another read nor an edge has come since it took its number.
//! - *Odd*: it is no plain stream; or the kernel has said something else of it than that there is input: it is at its end, has failed,
//!   or has urgent data. Those are one edge with the data before them, so it is never silent again.
//!
//! All of it is in one word: three bits, and above them the number, which every read and every edge changes. A read that finds its own
//! number unchanged knows that nobody came in between.

use crate::primitives::atomic::{AtomicU32, Ordering::*};

/// What epoll says of a stream besides that there is input, or room.
const ODD_EVENTS: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLPRI) as u32;

/// The word of a descriptor's entry.
#[derive(Default)]
pub(super) struct Lull(AtomicU32);

const SILENT: u32 = 1;
const PLAIN: u32 = 2;
const ODD: u32 = 4;
const NUMBER: u32 = 8;

impl Lull {
    /// Whether a read need not try.
    pub(super) fn is_silent(&self) -> bool {
        self.0.load(Acquire) & SILENT != 0
    }

    pub(super) fn is_plain(&self) -> bool {
        self.0.load(Relaxed) & (PLAIN | ODD) == PLAIN
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.0.load(Relaxed) & (PLAIN | ODD) == 0
    }

    pub(super) fn introduce(&self, is_plain: bool) {
        self.0.fetch_or(if is_plain { PLAIN } else { ODD }, Relaxed);
    }

    /// A read begins. Returns what the word is now.
    pub(super) fn begin(&self) -> u32 {
        self.0.fetch_add(NUMBER, AcqRel).wrapping_add(NUMBER)
    }

    /// A read that began so ends. If it has emptied the stream, and nobody else came in between, that is silent.
    pub(super) fn end(&self, begun: u32, is_empty: bool) {
        if is_empty {
            // It may be silent already: then it is so still, unless somebody has put an end to that.
            let _ = self.0.compare_exchange(begun, begun | SILENT, AcqRel, Relaxed);
        } else if begun & SILENT != 0 {
            self.0.fetch_and(!SILENT, AcqRel);
        }
    }

    /// An edge has come, with these bits of epoll's.
    pub(super) fn stir(&self, bits: u32) {
        let odd = if bits & ODD_EVENTS != 0 { ODD } else { 0 };
        let stirred = |word: u32| Some((word.wrapping_add(NUMBER) & !SILENT) | odd);
        let _ = self.0.fetch_update(AcqRel, Relaxed, stirred);
    }

    /// Urgent data was read: the kernel says no more that there is some, but reads stop where it was.
    pub(super) fn note_urgent(&self) {
        self.stir(libc::EPOLLPRI as u32);
    }

    /// The descriptor is closed: the next file is another.
    pub(super) fn forget(&self) {
        let unknown = |word: u32| Some(word.wrapping_add(NUMBER) & !(SILENT | PLAIN | ODD));
        let _ = self.0.fetch_update(AcqRel, Relaxed, unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Lull {
        let lull = Lull::default();
        lull.introduce(true);
        lull
    }

    #[test]
    fn a_read_that_empties_the_stream_makes_it_silent() {
        let lull = plain();
        lull.end(lull.begin(), true);
        assert!(lull.is_silent());
        // And again, for those who try all the same.
        lull.end(lull.begin(), true);
        assert!(lull.is_silent());
    }

    #[test]
    fn a_read_that_leaves_something_ends_the_silence() {
        let lull = plain();
        lull.end(lull.begin(), true);
        lull.end(lull.begin(), false);
        assert!(!lull.is_silent());
    }

    #[test]
    fn an_edge_during_a_read_counts() {
        let lull = plain();
        let begun = lull.begin();
        lull.stir(libc::EPOLLIN as u32);
        lull.end(begun, true);
        assert!(!lull.is_silent());
    }

    #[test]
    fn an_edge_ends_the_silence() {
        let lull = plain();
        lull.end(lull.begin(), true);
        lull.stir(libc::EPOLLIN as u32);
        assert!(!lull.is_silent());
        assert!(lull.is_plain());
    }

    #[test]
    fn another_read_in_between_counts() {
        let lull = plain();
        let first = lull.begin();
        lull.end(lull.begin(), false);
        lull.end(first, true);
        assert!(!lull.is_silent());
    }

    #[test]
    fn what_is_odd_stays_so_until_it_is_closed() {
        for bits in [libc::EPOLLRDHUP, libc::EPOLLHUP, libc::EPOLLERR, libc::EPOLLPRI] {
            let lull = plain();
            lull.stir((libc::EPOLLIN | bits) as u32);
            lull.introduce(true);
            assert!(!lull.is_plain());
            lull.forget();
            lull.introduce(true);
            assert!(lull.is_plain());
        }
    }
}
