//! The counters of the whole process. One test alone in its binary: nothing else counts meanwhile.

use fibrant::fiber::{self, Fiber, live_count};
use fibrant::{routine, stats};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// What a coroutine runs.
unsafe extern "C" fn nothing(argument: *mut c_void) -> *mut c_void {
    argument
}

#[test]
fn fibers_and_stacks_are_counted() {
    assert_eq!(live_count(), 0);
    assert_eq!(stats::process(), stats::current_thread());

    let fiber = Fiber::new(fiber::suspend);
    assert_eq!(live_count(), 1); // made
    fiber.resume().unwrap();
    assert_eq!(live_count(), 1); // suspended
    fiber.resume().unwrap();
    assert_eq!(live_count(), 0); // ended, although the Fiber is still there
    fiber.reset(fiber::suspend).unwrap();
    assert_eq!(live_count(), 1); // reset
    fiber.reset(fiber::suspend).unwrap();
    assert_eq!(live_count(), 1);
    fiber.resume().unwrap();
    drop(fiber);
    assert_eq!(live_count(), 0); // unwound

    drop(Fiber::new(|| {}));
    assert_eq!(live_count(), 0); // never started
    let reset = Fiber::new(|| {});
    reset.resume().unwrap();
    reset.reset(|| {}).unwrap();
    drop(reset);
    assert_eq!(live_count(), 0); // never started again
    let panicking = Fiber::new(|| panic!("expected"));
    assert!(catch_unwind(AssertUnwindSafe(|| panicking.resume())).is_err());
    assert_eq!(live_count(), 0); // panicked

    let stubborn = Fiber::new(|| {
        loop {
            let _ = catch_unwind(fiber::suspend);
        }
    });
    stubborn.resume().unwrap();
    drop(stubborn);
    assert_eq!(live_count(), 0); // abandoned
    assert_eq!(stats::process().fibers_abandoned, 1);

    let inner = Fiber::new(|| {
        let before = live_count();
        let fiber = Fiber::new(|| assert_eq!(live_count(), 2));
        assert_eq!(live_count(), before + 1);
        fiber.resume().unwrap();
    });
    inner.resume().unwrap();
    assert_eq!(live_count(), 0);

    // A thread's own counters are part of the total while it lives and afterwards.
    let before = stats::process();
    std::thread::spawn(move || {
        let fiber = Fiber::new(fiber::suspend);
        fiber.resume().unwrap();
        assert_eq!(live_count(), 1);
        assert_eq!(stats::process().fibers_created, before.fibers_created + 1);
        let own = stats::current_thread();
        assert_eq!((own.fibers_created, own.fibers_ended, own.switches), (1, 0, 2));
        assert_eq!(own.stacks_fresh + own.stacks_reused, 1);
    })
    .join()
    .unwrap();
    let after = stats::process();
    assert_eq!(live_count(), 0);
    assert_eq!(after.fibers_created - before.fibers_created, 1);
    assert_eq!(after.switches - before.switches, 4); // resumed once, then unwound

    // A coroutine is counted if there is one.
    for (size, is_made) in [(64 << 10, true), (usize::MAX, false)] {
        // SAFETY: the function may be called so.
        let made = unsafe { routine::create(size, nothing, ptr::null_mut()) };
        assert_eq!(made.is_ok(), is_made);
        assert_eq!(live_count(), usize::from(is_made));
        if let Ok(routine) = made {
            // SAFETY: it was just made, and never ran.
            unsafe { routine::release(routine) }.unwrap();
        }
    }
    assert_eq!(live_count(), 0);
}
