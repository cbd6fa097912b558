//! The wall clock is not used: setting it changes no deadline. Alone in its binary, because it replaces functions of the C
//! library for the whole process.

mod common;
#[path = "common/waiting.rs"]
mod waiting;

use fibrant::fiber;
use fibrant::io::{self, Event};
use fibrant::runtime::Builder;
use fibrant::timer;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};
use waiting::{eventually, watched};

/// How often the process has asked for the wall clock, and for any other.
static WALL: AtomicUsize = AtomicUsize::new(0);
static OTHER: AtomicUsize = AtomicUsize::new(0);

/// The C library's function, which std and fibrant call, replaced by one that counts.
///
/// # Safety
/// As the original: `time` can be written to.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | libc::CLOCK_REALTIME_ALARM | libc::CLOCK_TAI => {
            WALL.fetch_add(1, SeqCst)
        }
        _ => OTHER.fetch_add(1, SeqCst),
    };
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int }
}

/// The older way to ask for the wall clock.
///
/// # Safety
/// As the original: both can be written to, unless they are null.
#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut libc::timeval, zone: *mut libc::c_void) -> libc::c_int {
    WALL.fetch_add(1, SeqCst);
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_gettimeofday, time, zone) as libc::c_int }
}

#[test]
fn timers_and_waits_do_not_look_at_the_wall_clock() {
    const NAME: &str = "timers_and_waits_do_not_look_at_the_wall_clock";
    if common::case().is_none() {
        // In a process of its own, where no test harness looks at clocks at the same time.
        common::child(NAME, "clock", &[]).succeeded();
        return;
    }
    watched(|| {
        let before = (WALL.load(SeqCst), OTHER.load(SeqCst));
        let _ = (SystemTime::now(), Instant::now());
        let after = (WALL.load(SeqCst), OTHER.load(SeqCst));
        assert!(
            after.0 > before.0 && after.1 > before.1,
            "the replacement is not called"
        );

        let (wall, other) = after;
        for workers in [1, 2] {
            let runtime = Builder::new().workers(workers).build().unwrap();
            runtime.run_on(0, every_kind_of_deadline);
            let parked = runtime.spawn(fiber::park);
            let parked = parked.join_timeout(Duration::from_millis(1)).unwrap_err();
            parked.fiber().unpark();
            parked.join().unwrap();
            runtime.stop().unwrap();
        }
        assert_eq!(WALL.load(SeqCst), wall, "somebody has looked at the wall clock");
        assert!(OTHER.load(SeqCst) > other, "nobody has looked at any clock");
    });
}

fn every_kind_of_deadline() {
    const SHORT: Duration = Duration::from_millis(2);
    const LONG: Duration = Duration::from_millis(30); // long enough for a wait to verify its registration
    let fired = Arc::new(AtomicUsize::new(0));
    let count = || {
        let fired = Arc::clone(&fired);
        move || {
            fired.fetch_add(1, SeqCst);
        }
    };
    timer::after(LONG, count());
    let ticker = timer::every(SHORT, count());
    let moved = timer::after(Duration::from_secs(3600), count());
    assert!(moved.refresh() && moved.reset(LONG, true) && moved.reset(LONG, false));
    assert!(timer::next_deadline().is_some());

    fibrant::sleep(LONG);
    fiber::park_timeout(SHORT);
    let (ours, theirs) = UnixStream::pair().unwrap();
    io::wait(ours.as_raw_fd(), Event::READ, Some(LONG)).unwrap_err();
    io::wait(theirs.as_raw_fd(), Event::WRITE, Some(LONG)).unwrap();
    assert!(fibrant::timeout(SHORT, fiber::park).is_err());
    let parked = fibrant::spawn(fiber::park).join_timeout(SHORT).unwrap_err();
    parked.fiber().unpark();
    parked.join().unwrap();
    eventually(|| fired.load(SeqCst) >= 5);
    ticker.cancel();
}
