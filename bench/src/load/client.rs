//! The connections to one server, and the closed loop of requests on them: bare epoll in the calling thread, and the next request as
//! soon as an answer is complete. [`super::run`] calls it; what is said is in [`super::talk`].
//!
//! The latency of a request is the time from just before it is sent until its answer has been read and checked. All requests that
//! begin within the counted time are looked at, however long they take, and those that are under way throughout: after it, requests go
//! on until the last of those has been answered. Otherwise the slowest ones would be forgotten.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::Outcome;
use super::talk::{self, Talk};
use crate::serve::LARGE;

/// How long nothing may happen.
pub const STALL: Duration = Duration::from_secs(5);

/// How many events are taken at once, at most.
const EVENTS: usize = 256;

/// So many connect before they make a first request each, which shows that the server has accepted them: that many fit into any
/// queue of those who wait for it.
const TOGETHER: usize = 64;

/// How far the requests of neighbours are apart in the pattern, and one connection's; no common divisor with its length.
const STRIDE: usize = 61;

/// One connection, on which there is a request, or silence between turns.
struct Connection {
    stream: TcpStream,
    /// The request's number.
    number: usize,
    sent: usize,
    received: usize,
    /// Whether the rest of the request waits for room.
    blocked: bool,
    /// When it was sent.
    since: u64,
    /// Whether its latency counts.
    counts: bool,
    /// The beginning of an answer in HTTP, if it came in parts.
    part: Vec<u8>,
}

/// What one turn has shown.
pub struct Turn {
    /// The time that is counted.
    pub time: Duration,
    /// The answers within it.
    pub answers: u64,
    /// How long there was nothing to do here.
    pub idle: Duration,
}

/// All connections to a server.
pub struct Client {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    buffer: Vec<u8>,
    talk: Talk,
    connections: Vec<Connection>,
    /// In nanoseconds.
    latencies: Histogram<u64>,
    /// The time at the last event, in nanoseconds.
    now: u64,
    /// The nanoseconds without anything to do.
    idle: u64,
    answers: u64,
    /// How many requests are under way, and how many of those count.
    under_way: usize,
    counting: usize,
    /// Whether an answer is followed by a request, and whether that counts.
    goes_on: bool,
    counts: bool,
}

impl Client {
    /// Connects, and makes a request on each connection.
    pub fn connect(port: u16, connections: usize, talk: Talk) -> Outcome<Self> {
        // SAFETY: the call takes no memory, and the descriptor that it returns is nobody else's.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(problem("no epoll"));
            }
            OwnedFd::from_raw_fd(fd)
        };
        let mut client = Self {
            epoll,
            // SAFETY: an event is a number and bits; all may be zero.
            events: vec![unsafe { mem::zeroed() }; EVENTS],
            buffer: vec![0; LARGE],
            talk,
            connections: Vec::with_capacity(connections),
            latencies: histogram(),
            now: now(),
            idle: 0,
            answers: 0,
            under_way: 0,
            counting: 0,
            goes_on: false,
            counts: false,
        };
        while client.connections.len() < connections {
            let first = client.connections.len();
            for index in first..connections.min(first + TOGETHER) {
                client.add(port)?;
                client.send_next(index)?;
            }
            client.finish()?;
        }
        Ok(client)
    }

    fn add(&mut self, port: u16) -> Outcome<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, STALL)
            .and_then(|stream| {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                forget_when_closed(&stream)?;
                Ok(stream)
            })
            .map_err(|error| {
                format!(
                    "cannot connect, with {} connections: {error}",
                    self.connections.len()
                )
            })?;
        let index = self.connections.len();
        self.control(libc::EPOLL_CTL_ADD, stream.as_raw_fd(), index, libc::EPOLLIN)?;
        self.connections.push(Connection {
            stream,
            number: index * STRIDE * STRIDE,
            sent: 0,
            received: 0,
            blocked: false,
            since: 0,
            counts: false,
            part: Vec::new(),
        });
        Ok(())
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, index: usize, events: libc::c_int) -> Outcome<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: index as u64,
        };
        // SAFETY: `event` is there to be read.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(problem("epoll_ctl")),
        }
    }

    /// A turn: requests on all connections, first for some time that is not counted. `mark` is called where the counted time begins and
    /// where it ends.
    pub fn turn(
        &mut self,
        warm_up: Duration,
        time: Duration,
        mut mark: impl FnMut() -> Outcome<()>,
    ) -> Outcome<Turn> {
        self.latencies.reset();
        self.begin()?;
        self.go_on_for(warm_up)?;
        mark()?;
        let (start, idle, answers) = (now(), self.idle, self.answers);
        self.counts = true;
        self.go_on_for(time)?;
        self.counts = false;
        let turn = Turn {
            time: Duration::from_nanos(now() - start),
            answers: self.answers - answers,
            idle: Duration::from_nanos(self.idle - idle),
        };
        mark()?;
        for connection in &mut self.connections {
            // What does not count began before the counted time, and is not answered yet.
            self.counting += usize::from(!connection.counts);
            connection.counts = true;
        }
        let end = now() + nanoseconds(STALL);
        while self.counting > 0 {
            self.step()?;
            if self.now > end {
                return Err(format!(
                    "{} requests without an answer for {} s",
                    self.counting,
                    STALL.as_secs()
                ));
            }
        }
        self.finish()?;
        if turn.answers == 0 {
            return Err("not one answer in a turn".into());
        }
        Ok(turn)
    }

    /// Makes requests for so long, and waits for the last answers: how many there were.
    pub fn requests(&mut self, time: Duration) -> Outcome<u64> {
        let answers = self.answers;
        self.begin()?;
        self.go_on_for(time)?;
        self.finish()?;
        Ok(self.answers - answers)
    }

    /// The latencies of the last turn, in nanoseconds.
    pub fn latencies(&self) -> &Histogram<u64> {
        &self.latencies
    }

    fn begin(&mut self) -> Outcome<()> {
        self.goes_on = true;
        self.now = now();
        (0..self.connections.len()).try_for_each(|index| {
            self.now = now();
            self.send_next(index)
        })
    }

    fn go_on_for(&mut self, time: Duration) -> Outcome<()> {
        let end = now() + nanoseconds(time);
        while self.now < end {
            self.step()?;
        }
        Ok(())
    }

    /// No request follows any more; waits for the last answers.
    fn finish(&mut self) -> Outcome<()> {
        self.goes_on = false;
        while self.under_way > 0 {
            self.step()?;
        }
        Ok(())
    }

    /// Takes the events that there are, or waits for some.
    fn step(&mut self) -> Outcome<()> {
        let mut count = self.wait(0)?;
        if count == 0 {
            let start = now();
            let end = start + nanoseconds(STALL);
            self.now = start;
            while count == 0 {
                count = self.wait((end.saturating_sub(self.now) / 1_000_000) as libc::c_int + 1)?;
                self.now = now();
                if count == 0 && self.now > end {
                    return Err(format!("no answer for {} s", STALL.as_secs()));
                }
            }
            self.idle += self.now - start;
        }
        for place in 0..count {
            let event = self.events[place];
            let index = event.u64 as usize;
            if event.events & libc::EPOLLOUT as u32 != 0 {
                self.send(index)?;
            }
            if event.events & !(libc::EPOLLOUT as u32) != 0 {
                self.receive(index)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, milliseconds: libc::c_int) -> Outcome<usize> {
        // SAFETY: there is room for as many events as said.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS as libc::c_int,
                milliseconds,
            )
        };
        if count < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(problem("epoll_wait"));
        }
        Ok(count.max(0) as usize)
    }

    /// Begins the next request, at the time of the last event.
    fn send_next(&mut self, index: usize) -> Outcome<()> {
        let connection = &mut self.connections[index];
        connection.number = connection.number.wrapping_add(STRIDE);
        connection.sent = 0;
        connection.received = 0;
        connection.since = self.now;
        connection.counts = self.counts;
        self.under_way += 1;
        self.counting += usize::from(self.counts);
        self.send(index)
    }

    /// Sends of the request what there is room for.
    fn send(&mut self, index: usize) -> Outcome<()> {
        let connection = &mut self.connections[index];
        let fd = connection.stream.as_raw_fd();
        let rest = &self.talk.request(connection.number)[connection.sent..];
        // SAFETY: the bytes are there to be read.
        let sent = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
        if sent < 0 && io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
            return Err(problem("hung up on a request"));
        }
        let sent = sent.max(0) as usize;
        connection.sent += sent;
        let blocked = sent < rest.len();
        if connection.blocked != blocked {
            connection.blocked = blocked;
            let events = libc::EPOLLIN | if blocked { libc::EPOLLOUT } else { 0 };
            self.control(libc::EPOLL_CTL_MOD, fd, index, events)?;
        }
        Ok(())
    }

    /// Reads once; if that completes the answer, the next request is sent.
    fn receive(&mut self, index: usize) -> Outcome<()> {
        let connection = &mut self.connections[index];
        let fd = connection.stream.as_raw_fd();
        // SAFETY: the buffer is there to be written to, and as long as said.
        let got = unsafe { libc::recv(fd, self.buffer.as_mut_ptr().cast(), self.buffer.len(), 0) };
        if got <= 0 {
            return match io::Error::last_os_error() {
                _ if got == 0 => Err("hung up".into()),
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                error => Err(format!("hung up: {error}")),
            };
        }
        let bytes = &self.buffer[..got as usize];
        let complete = match &self.talk {
            Talk::Echo { size, .. } => {
                let message = self.talk.request(connection.number);
                let received = connection.received + bytes.len();
                // More cannot have come back than was sent.
                if received > connection.sent {
                    return Err("sent more than it was sent".into());
                }
                if bytes != &message[connection.received..received] {
                    return Err("sent something else back".into());
                }
                connection.received = received;
                received == *size
            }
            Talk::Http { .. } if connection.part.is_empty() => {
                let complete = talk::is_complete_answer(bytes)?;
                if !complete {
                    connection.part.extend_from_slice(bytes);
                }
                complete
            }
            Talk::Http { .. } => {
                connection.part.extend_from_slice(bytes);
                let complete = talk::is_complete_answer(&connection.part)?;
                if complete {
                    connection.part.clear();
                }
                complete
            }
        };
        if complete {
            self.now = now();
            self.complete(index)?;
        }
        Ok(())
    }

    fn complete(&mut self, index: usize) -> Outcome<()> {
        let connection = &self.connections[index];
        self.answers += 1;
        self.under_way = self
            .under_way
            .checked_sub(1)
            .ok_or("sent something without being asked")?;
        if connection.counts {
            self.counting -= 1;
            self.latencies.saturating_record(self.now - connection.since);
        }
        if self.goes_on {
            self.send_next(index)?;
        }
        Ok(())
    }
}

/// From a nanosecond to a minute, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that make sense")
}

/// Nanoseconds since some moment.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is there to be written to; the clock is on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The last system call's error, and what it means here.
fn problem(what: &str) -> String {
    format!("{what}: {}", io::Error::last_os_error())
}

/// A connection that is closed leaves nothing behind: the ports of thousands would be taken for a minute.
fn forget_when_closed(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: `linger` is there to be read, and as long as said.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            ptr::from_ref(&linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_values() {
        let mut latencies = histogram();
        (1..=100_000).for_each(|value| latencies.saturating_record(value * 100));
        for (quantile, expected) in [
            (0.5, 5_000_000.0),
            (0.9, 9_000_000.0),
            (0.99, 9_900_000.0),
            (0.9999, 9_999_000.0),
        ] {
            let value = latencies.value_at_quantile(quantile) as f64;
            assert!((value / expected - 1.0).abs() < 0.001, "{quantile}: {value}");
        }
        latencies.saturating_record(u64::MAX);
        assert!(latencies.max() >= 60_000_000_000);
    }
}
