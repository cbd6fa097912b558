//! How often the kernel is asked for events. Alone in its binary, because it replaces a function of the C library for the whole
//! process.

#[path = "common/patience.rs"]
mod patience;

use fibrant::io::{self, Event};
use fibrant::runtime::Builder;
use patience::Watchdog;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// How often the process has looked for events without sleeping.
static LOOKS: AtomicUsize = AtomicUsize::new(0);

/// The C library's function, which fibrant calls, replaced by one that counts.
///
/// # Safety
/// As the original: there is room for so many events.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: libc::c_int,
    events: *mut libc::epoll_event,
    room: libc::c_int,
    timeout: libc::c_int,
) -> libc::c_int {
    LOOKS.fetch_add(1, SeqCst);
    // SAFETY: the caller's promise; no signal mask is given.
    unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, room, timeout, 0, 0) as libc::c_int }
}

#[test]
fn fibers_that_wait_for_no_descriptor_cost_no_system_calls() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let looks = runtime.run_on(0, || {
        let mut looks = Vec::new();
        let mut many_turns = || {
            let before = LOOKS.load(SeqCst);
            let children: Vec<_> = (0..2)
                .map(|_| fibrant::spawn_local(|| (0..1000).for_each(|_| fibrant::yield_now())))
                .collect();
            children.into_iter().for_each(|child| child.join().unwrap());
            looks.push(LOOKS.load(SeqCst) - before);
        };
        many_turns();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"x").unwrap();
        io::wait(ours.as_raw_fd(), Event::READ, None).unwrap();
        many_turns();
        looks
    });
    runtime.stop().unwrap();
    assert_eq!(looks[0], 0, "nobody had waited for a descriptor");
    // Every 64 turns at the latest, however many fibers can run.
    assert!(looks[1] >= 2000 / 64, "{} looks in 2,000 turns", looks[1]);
}
