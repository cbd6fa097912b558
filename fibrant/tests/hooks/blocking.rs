//! Blocking and non-blocking: points 8 to 10.

use crate::support::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;

bodies! {
    p08_flags_are_what_the_user_set, true, || {
        let (mut ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        // SAFETY: asks for a number.
        let flags = move || unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let before = flags();
        later(move || theirs.write_all(b"x").unwrap());
        let read = kind(ours.read(&mut [0; 4]));
        (read, flags() == before, before & libc::O_NONBLOCK)
    };
    p09_a_nonblocking_read_does_not_wait, false, || {
        let (mut ours, _theirs) = streams();
        ours.set_nonblocking(true).unwrap();
        kind(ours.read(&mut [0; 4]))
    };
    p09_dontwait_does_not_wait, false, || {
        let (ours, _theirs) = streams();
        receive(ours.as_raw_fd(), &mut [0; 4], libc::MSG_DONTWAIT)
    };
    p09_a_nonblocking_accept_does_not_wait, false, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        kind(listener.accept().map(drop))
    };
    p09_an_accepted_socket_is_blocking, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        later(move || {
            let _stream = TcpStream::connect(address).unwrap();
            thread::sleep(ms(20));
        });
        let (mut accepted, _) = listener.accept().unwrap();
        kind(accepted.read(&mut [0; 4]))
    };
    p10_commands_of_fcntl_reach_the_kernel, false, || {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        // SAFETY: numbers, and a descriptor that is closed again.
        unsafe {
            let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 700);
            let flags = (libc::fcntl(copy, libc::F_GETFD), libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK));
            let both = (libc::fcntl(copy, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFL));
            (copy >= 700, flags, both, libc::close(copy), told(libc::fcntl(copy, libc::F_GETFD) as isize), told(libc::fcntl(fd, 9999) as isize))
        }
    };
}
