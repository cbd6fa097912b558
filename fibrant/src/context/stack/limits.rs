//! Says which limit of the system stands in the way of one more stack, and how to raise it.
//!
//! [`region`](super::region) and [`guard`](super::guard) call it on failure: the kernel answers ENOMEM to all of these.

use std::fs;
use std::io;

/// Turns a failed system call into an error for people. `what` was being done; it needed `bytes` of address space.
pub(super) fn explain(error: io::Error, what: &str, bytes: usize) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return io::Error::new(error.kind(), format!("{what} failed: {error}"));
    }
    let reason = mappings()
        .or_else(|| address_space(bytes))
        .or_else(overcommit)
        .unwrap_or_else(|| {
            "the kernel has no memory left for it (ENOMEM); use smaller or fewer stacks".to_owned()
        });
    io::Error::new(io::ErrorKind::OutOfMemory, format!("{what} failed: {reason}"))
}

/// The number of mappings, if there is no room for two more (a guard in the middle of a mapping makes three of it).
fn mappings() -> Option<String> {
    let limit: usize = number("/proc/sys/vm/max_map_count")?;
    let used = fs::read_to_string("/proc/self/maps").ok()?.lines().count();
    (used + 2 >= limit).then(|| {
        format!(
            "the process has {used} memory mappings and vm.max_map_count allows {limit}. Raise it as root: \
             sysctl -w vm.max_map_count={}. (A stack needs two mappings when it is guarded by mprotect; on Linux 6.13 \
             and later it needs none, unless FIBRANT=guard=mprotect is set or memory is locked.)",
            limit * 16
        )
    })
}

/// The limit of the address space, if there is one and `bytes` more would exceed it.
fn address_space(bytes: usize) -> Option<String> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills the structure that it is given.
    if unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    let limit = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
    let pages: usize = fs::read_to_string("/proc/self/statm")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()?;
    let used = pages * super::page_size();
    (used + bytes > limit).then(|| {
        format!(
            "the process uses {} KiB of address space and RLIMIT_AS allows {} KiB. Raise it (ulimit -v, or \
             LimitAS= of its service) or use smaller stacks",
            used >> 10,
            limit >> 10
        )
    })
}

/// Strict overcommit, which counts every reserved page as used.
fn overcommit() -> Option<String> {
    (number("/proc/sys/vm/overcommit_memory") == Some(2)).then(|| {
        "vm.overcommit_memory is 2, so reserved stacks count as used memory. Set it to 0 as root \
         (sysctl -w vm.overcommit_memory=0), raise vm.overcommit_ratio, or use smaller stacks"
            .to_owned()
    })
}

fn number(path: &str) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
