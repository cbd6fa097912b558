//! connect and accept: points 21 and 22.

use crate::support::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

bodies! {
    p21_a_refused_connection_is_an_error, true, || {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        kind(TcpStream::connect(address).map(drop))
    };
    p21_a_local_connection_waits_for_room, true, || {
        let directory = std::env::temp_dir().join(format!("fibrant-{}-{:?}", std::process::id(), thread::current().id()));
        drop(std::fs::create_dir(&directory));
        let path = directory.join(format!("{:?}", Instant::now()).replace(' ', ""));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: sets the length of its queue anew.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let first = UnixStream::connect(&path).map(drop);
        later(move || (0..2).for_each(|_| drop(listener.accept().unwrap())));
        let second = UnixStream::connect(&path).map(drop);
        drop(std::fs::remove_dir_all(directory));
        (kind(first), kind(second))
    };
    p22_accept_waits, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        later(move || drop(TcpStream::connect(address).unwrap().write_all(b"hello")));
        let (mut accepted, peer) = listener.accept().unwrap();
        let mut all = String::new();
        (kind(accepted.read_to_string(&mut all)), all, peer.ip())
    };
    p22_accept_times_out, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let time = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        // SAFETY: the option is a time.
        let set = unsafe {
            libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), 16)
        };
        (set, kind(listener.accept().map(drop)))
    };
}
