//! Identity and lifetime of descriptors: points 1 to 7.

use crate::support::*;
use std::os::fd::AsRawFd;

bodies! {
    p02_a_read_ends_when_a_thread_closes_the_descriptor, true => (-1, libc::EBADF), || {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        later(move || drop(ours)); // from a thread that is no worker
        receive(fd, &mut [0; 4], 0)
    };
}
