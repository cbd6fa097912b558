//! Initialisers that unwind, and one that runs while the process forks.

use crate::patience::{Watchdog, eventually};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread;
use std::time::Duration;

/// What is done once.
struct Once(UnsafeCell<libc::pthread_once_t>);

// SAFETY: it is made for being used by several threads.
unsafe impl Sync for Once {}

impl Once {
    const fn new() -> Once {
        Once(UnsafeCell::new(libc::PTHREAD_ONCE_INIT))
    }

    fn call(&self, initialise: extern "C-unwind" fn()) -> c_int {
        unsafe extern "C-unwind" {
            fn pthread_once(control: *mut libc::pthread_once_t, initialise: extern "C-unwind" fn()) -> c_int;
        }
        // SAFETY: it is one, and a function.
        unsafe { pthread_once(self.0.get(), initialise) }
    }
}

/// An initialiser that unwinds has done nothing: the next one does it.
#[test]
fn an_initialiser_that_unwinds_lets_the_next_one_try() {
    static ONCE: Once = Once::new();
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    extern "C-unwind" fn initialise() {
        thread::sleep(Duration::from_millis(1));
        if CALLS.fetch_add(1, SeqCst) < 3 {
            resume_unwind(Box::new("not yet"));
        }
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let unwound = Arc::new(AtomicUsize::new(0));
    let attempt = |unwound: &Arc<AtomicUsize>| {
        let unwound = Arc::clone(unwound);
        move || {
            while catch_unwind(|| ONCE.call(initialise)).is_err() {
                unwound.fetch_add(1, SeqCst);
            }
        }
    };
    let fibers: Vec<_> = (0..4).map(|_| runtime.spawn(attempt(&unwound))).collect();
    let threads: Vec<_> = (0..2).map(|_| thread::spawn(attempt(&unwound))).collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((CALLS.load(SeqCst), unwound.load(SeqCst)), (4, 3));
    runtime.stop().unwrap();
}

/// A child that is forked while another fiber initialises something does not wait for it: that one is not there.
#[test]
fn a_forked_child_does_not_wait_for_its_parents_initialiser() {
    static ONCE: Once = Once::new();
    static RUNS: AtomicBool = AtomicBool::new(false);
    static GOES_ON: AtomicBool = AtomicBool::new(false);
    extern "C-unwind" fn initialise() {
        RUNS.store(true, SeqCst);
        while !GOES_ON.load(SeqCst) {
            fibrant::yield_now();
        }
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let first = runtime.spawn(|| ONCE.call(initialise));
    eventually("it runs", || RUNS.load(SeqCst));
    let status = runtime
        .spawn(|| {
            extern "C-unwind" fn own() {}
            // SAFETY: the child calls what needs no other thread, and ends.
            unsafe {
                match libc::fork() {
                    0 => libc::_exit(ONCE.call(own)),
                    child => {
                        let mut status = -1;
                        assert_eq!(libc::waitpid(child, &mut status, 0), child);
                        status
                    }
                }
            }
        })
        .join()
        .unwrap();
    assert_eq!(status, 0);
    GOES_ON.store(true, SeqCst);
    assert_eq!(first.join().unwrap(), 0);
    runtime.stop().unwrap();
}
