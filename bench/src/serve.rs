//! What the servers of the peers share: `<peer> <echo|stream|http> <workers> <port>` listens on the loopback, at any free port if it is
//! 0, says `READY` and the port, and runs until it is killed.
//!
//! The programs in src/bin/ call it; a server itself is written there, as a user of its library would write it.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;

/// The bytes that an echo server reads at once, at most: messages are small.
pub const SMALL: usize = 1 << 10;

/// The bytes that a server of streams reads at once, at most.
pub const LARGE: usize = 64 << 10;

/// What an HTTP server answers to every request.
pub const HELLO: &str = "Hello, World!";

/// What a server does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Sends back what it gets, with a small buffer for each connection.
    Echo,
    /// The same with a large one.
    Stream,
    /// Answers each request with [`HELLO`].
    Http,
}

impl Service {
    /// The one that the command line calls so.
    pub fn named(name: &str) -> Option<Service> {
        match name {
            "echo" => Some(Service::Echo),
            "stream" => Some(Service::Stream),
            "http" => Some(Service::Http),
            _ => None,
        }
    }
}

/// Where a server with this port listens.
pub fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Lets more clients wait to be accepted than the 128 that std asks the kernel for: what comes in excess is not answered, and tries again a
/// second later. Other libraries ask for a thousand or more.
pub fn lengthen_queue(listener: &impl AsRawFd) {
    // SAFETY: no pointers; whoever has the listener keeps it open.
    let result = unsafe { libc::listen(listener.as_raw_fd(), 4096) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Lets the process have as many connections as the system allows it.
pub fn allow_many_connections() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is there to be written to, and to be read.
    let result = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Says that the server listens there.
pub fn ready(address: io::Result<SocketAddr>) {
    let port = address.expect("the address of the listener").port();
    let mut output = io::stdout().lock();
    writeln!(output, "READY {port}")
        .and_then(|()| output.flush())
        .expect("somebody who reads it");
}
