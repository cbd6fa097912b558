//! Nobody starves: whoever waits for a lock that another one takes again and again gets it in the end.

use crate::harness::*;
use crate::patience::Watchdog;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

/// How often those who wait must get the lock.
const OFTEN: usize = 5;

struct Contest {
    mutex: Mutex<()>,
    is_over: AtomicBool,
    won: AtomicUsize,
}

/// Holds the lock nearly all of the time, until the others have had it often enough.
fn hog(contest: &Contest) {
    while !contest.is_over.load(SeqCst) {
        let _guard = contest.mutex.lock().unwrap();
        thread::sleep(us(300));
    }
}

/// Wants the lock now and then.
fn want(contest: &Contest) {
    for _ in 0..OFTEN {
        drop(contest.mutex.lock().unwrap());
        contest.won.fetch_add(1, SeqCst);
    }
}

/// Who is where: on which worker, or on a thread.
#[derive(Clone, Copy)]
enum Place {
    Worker(usize),
    Thread,
}

fn contest(hogs: &[Place], wanting: &[Place]) {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(2);
    let state = Arc::new(Contest {
        mutex: Mutex::new(()),
        is_over: AtomicBool::new(false),
        won: AtomicUsize::new(0),
    });
    let begin = |place: Place, f: fn(&Contest)| -> Box<dyn FnOnce()> {
        let state = Arc::clone(&state);
        match place {
            Place::Worker(index) => {
                let fiber = runtime.spawn_on(index, move || f(&state));
                Box::new(|| fiber.join().unwrap())
            }
            Place::Thread => {
                let thread = thread::spawn(move || f(&state));
                Box::new(|| thread.join().unwrap())
            }
        }
    };
    let hogs: Vec<_> = hogs.iter().map(|&place| begin(place, hog)).collect();
    let wanting: Vec<_> = wanting.iter().map(|&place| begin(place, want)).collect();
    let count = wanting.len();
    wanting.into_iter().for_each(|join| join());
    state.is_over.store(true, SeqCst);
    hogs.into_iter().for_each(|join| join());
    assert_eq!(state.won.load(SeqCst), OFTEN * count);
    runtime.stop().unwrap();
}

#[test]
fn fibers_of_the_same_worker_get_the_lock() {
    contest(&[Place::Worker(0)], &[Place::Worker(0); 3]);
    contest(&[Place::Worker(0); 2], &[Place::Worker(0); 3]);
}

#[test]
fn fibers_of_another_worker_get_the_lock() {
    contest(&[Place::Worker(0)], &[Place::Worker(1); 3]);
}

#[test]
fn threads_get_the_lock_from_a_fiber() {
    contest(&[Place::Worker(0)], &[Place::Thread; 2]);
}

#[test]
fn fibers_get_the_lock_from_a_thread() {
    contest(&[Place::Thread], &[Place::Worker(0), Place::Worker(1)]);
}

#[test]
fn fibers_and_threads_get_the_lock_from_fibers_and_threads() {
    contest(
        &[Place::Thread, Place::Worker(0)],
        &[Place::Worker(0), Place::Worker(1), Place::Thread],
    );
}
