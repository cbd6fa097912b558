//! What a descriptor can be ready for.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};

/// What to wait for, or what has happened: [`READ`](Event::READ), [`WRITE`](Event::WRITE), or both.
///
/// ```
/// use fibrant::io::Event;
///
/// let both = Event::READ | Event::WRITE;
/// assert!(both.contains(Event::READ));
/// assert_eq!(both & Event::WRITE, Event::WRITE);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Event(u8);

impl Event {
    /// There is something to read: data, a connection, the end of the stream, urgent data, or an error.
    ///
    /// ```
    /// assert!(!fibrant::io::Event::READ.is_empty());
    /// ```
    pub const READ: Event = Event(1);

    /// There is room to write, a connection has been made, or there is an error.
    ///
    /// ```
    /// assert_ne!(fibrant::io::Event::WRITE, fibrant::io::Event::READ);
    /// ```
    pub const WRITE: Event = Event(2);

    /// Not a direction: who waits asks for something else than input, or room, alone. It is told of every edge, and takes nothing that
    /// others wait for. Users never see it.
    pub(crate) const ANYTHING: Event = Event(4);

    /// Whether all of `other` is in it.
    ///
    /// ```
    /// # use fibrant::io::Event;
    /// assert!(!Event::READ.contains(Event::WRITE));
    /// ```
    pub const fn contains(self, other: Event) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it is neither.
    ///
    /// ```
    /// # use fibrant::io::Event;
    /// assert!(Event::default().is_empty());
    /// ```
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What epoll reports, as directions: whatever means that a call would not block counts.
    pub(super) fn from_epoll(bits: u32) -> Event {
        let both = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let read = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32 | both;
        let write = libc::EPOLLOUT as u32 | both;
        Event(u8::from(bits & read != 0) | u8::from(bits & write != 0) << 1)
    }

    /// What to ask epoll for: edges.
    pub(super) fn to_epoll(self) -> u32 {
        let mut bits = libc::EPOLLET as u32;
        if self.contains(Event::READ) {
            bits |= (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;
        }
        if self.contains(Event::WRITE) {
            bits |= libc::EPOLLOUT as u32;
        }
        bits
    }

    /// What to ask poll for.
    pub(crate) fn to_poll(self) -> i16 {
        let mut bits = 0;
        if self.contains(Event::READ) {
            bits |= libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI;
        }
        if self.contains(Event::WRITE) {
            bits |= libc::POLLOUT;
        }
        bits
    }

    /// What poll reports: its bits are those of epoll.
    pub(super) fn from_poll(bits: i16) -> Event {
        Event::from_epoll(bits as u16 as u32)
    }
}

impl BitOr for Event {
    type Output = Event;
    fn bitor(self, other: Event) -> Event {
        Event(self.0 | other.0)
    }
}

impl BitOrAssign for Event {
    fn bitor_assign(&mut self, other: Event) {
        self.0 |= other.0;
    }
}

impl BitAnd for Event {
    type Output = Event;
    fn bitand(self, other: Event) -> Event {
        Event(self.0 & other.0)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "(none)",
            1 => "READ",
            2 => "WRITE",
            _ => "READ | WRITE",
        })
    }
}
