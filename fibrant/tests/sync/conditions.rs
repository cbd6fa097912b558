//! What libco's conditions promise holds for ours: first in, first out, and whoever signals goes on running.

use crate::patience::Watchdog;
use crate::support::*;
use fibrant::sync::{Condvar, Mutex};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

#[test]
fn a_signal_wakes_the_oldest_and_does_not_switch() {
    static STATE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::named("libco"));
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let handle = runtime.handle();
    let all = runtime.spawn(move || {
        let record = Rc::new(RefCell::new(Vec::new()));
        let fibers: Vec<_> = (0..6)
            .map(|index| {
                let record = Rc::clone(&record);
                let fiber = fibrant::spawn_local(move || {
                    drop(STATE.1.wait(STATE.0.lock().unwrap()));
                    record.borrow_mut().push(index);
                });
                until_waiting(&handle, "libco", index + 1);
                fiber
            })
            .collect();
        STATE.1.notify_one();
        STATE.1.notify_one();
        assert!(
            record.borrow().is_empty(),
            "nobody runs before the signaller waits"
        );
        assert_eq!(waiters(&handle, "libco"), 4);
        while record.borrow().len() < 2 {
            fibrant::yield_now();
        }
        assert_eq!(*record.borrow(), [0, 1]);
        (0..10).for_each(|_| fibrant::yield_now());
        assert_eq!(record.borrow().len(), 2, "one signal, one fiber");
        STATE.1.notify_all();
        assert_eq!(record.borrow().len(), 2);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(*record.borrow(), [0, 1, 2, 3, 4, 5]);
        // A signal that nobody waits for is forgotten.
        STATE.1.notify_one();
        let (_guard, result) = STATE
            .1
            .wait_timeout(STATE.0.lock().unwrap(), crate::harness::ms(5))
            .unwrap();
        assert!(result.timed_out());
    });
    all.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn each_notification_wakes_one_among_fibers_and_threads() {
    const MEMBERS: usize = 8;
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let shared = Arc::new((Mutex::new((0, 0)), Condvar::new()));
        let member = || {
            let shared = Arc::clone(&shared);
            move || {
                let mut guard = shared.0.lock().unwrap();
                guard.0 += 1; // it waits from here on
                let mut guard = shared.1.wait(guard).unwrap();
                guard.1 += 1;
            }
        };
        let fibers: Vec<_> = (0..MEMBERS / 2).map(|_| runtime.spawn(member())).collect();
        let threads: Vec<_> = (0..MEMBERS / 2).map(|_| thread::spawn(member())).collect();
        crate::patience::eventually("all wait", || shared.0.lock().unwrap().0 == MEMBERS);
        for told in 1..=MEMBERS {
            shared.1.notify_one();
            crate::patience::eventually("one goes on", || shared.0.lock().unwrap().1 >= told);
            fibrant::sleep(crate::harness::us(300));
            assert_eq!(shared.0.lock().unwrap().1, told, "one at a time");
        }
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        runtime.stop().unwrap();
    }
}
