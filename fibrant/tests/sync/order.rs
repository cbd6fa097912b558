//! Who has waited for a millisecond is served first come, first served, and before all who come later.

use crate::harness::{Kind, ms};
use crate::patience::Watchdog;
use crate::support::*;
use fibrant::runtime::Handle;
use fibrant::sync::{Mutex, RwLock, Semaphore};
use std::sync::{Arc, Mutex as StdMutex};
use std::thread;

/// What has happened, in its order.
#[derive(Clone, Default)]
struct Record(Arc<StdMutex<Vec<String>>>);

impl Record {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Something that ends.
enum Task {
    Fiber(fibrant::JoinHandle<()>),
    Thread(thread::JoinHandle<()>),
}

impl Task {
    fn join(self) {
        match self {
            Task::Fiber(fiber) => fiber.join().unwrap(),
            Task::Thread(thread) => thread.join().unwrap(),
        }
    }
}

/// Lets five wait for what has this name, one after the other: fibers, and a thread in the middle.
fn queue_up(runtime: &Handle, name: &str, wait: impl Fn(usize) + Clone + Send + 'static) -> Vec<Task> {
    let wait_as = |index| {
        let wait = wait.clone();
        move || wait(index)
    };
    let enter = |index| {
        let task = match index {
            2 => Task::Thread(thread::spawn(wait_as(index))),
            _ => Task::Fiber(runtime.spawn(wait_as(index))),
        };
        until_waiting(runtime, name, index + 1);
        thread::sleep(ms(2)); // longer than its patience
        task
    };
    (0..5).map(enter).collect()
}

const IN_ORDER: [&str; 6] = ["0", "1", "2", "3", "4", "newcomer"];

#[test]
fn a_mutex_is_handed_over_in_order() {
    static MUTEX: Mutex<()> = Mutex::named("order-mutex", ());
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        for kind in [Kind::Isolated, Kind::Light] {
            let runtime = kind.runtime(workers);
            watchdog.show(&runtime);
            let record = Record::default();
            let guard = MUTEX.lock().unwrap();
            let noted = record.clone();
            let tasks = queue_up(&runtime, "order-mutex", move |index| {
                let _guard = MUTEX.lock().unwrap();
                noted.note(index.to_string());
                fibrant::yield_now(); // who comes next has a chance to be here too early
            });
            drop(guard);
            assert!(
                MUTEX.try_lock().is_err() || record.all().len() == 5,
                "a newcomer has taken what belongs to others"
            );
            let _guard = MUTEX.lock().unwrap();
            record.note("newcomer");
            assert_eq!(record.all(), IN_ORDER);
            tasks.into_iter().for_each(Task::join);
            runtime.stop().unwrap();
        }
    }
}

#[test]
fn a_fiber_that_locks_again_at_once_does_not_starve_others_of_its_worker() {
    static MUTEX: Mutex<()> = Mutex::named("order-again", ());
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let record = Record::default();
    let noted = record.clone();
    let handle = runtime.handle();
    let greedy = runtime.spawn(move || {
        let guard = MUTEX.lock().unwrap();
        let other = {
            let noted = noted.clone();
            handle.spawn(move || {
                let _guard = MUTEX.lock().unwrap();
                noted.note("other");
            })
        };
        until_waiting(&handle, "order-again", 1);
        fibrant::sleep(ms(2));
        drop(guard);
        // No switch in between: whoever takes it only if it is free would never get it.
        let _guard = MUTEX.lock().unwrap();
        noted.note("greedy");
        drop(_guard);
        other.join().unwrap();
    });
    greedy.join().unwrap();
    assert_eq!(record.all(), ["other", "greedy"]);
    runtime.stop().unwrap();
}

#[test]
fn permits_go_to_those_who_have_waited_also_if_they_want_many() {
    static SEMAPHORE: Semaphore = Semaphore::named("order-semaphore", 3);
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let record = Record::default();
        let permit = SEMAPHORE.acquire_many(2);
        let noted = record.clone();
        let tasks = queue_up(&runtime, "order-semaphore", move |index| {
            // The first wants all, and one is free all the time.
            let _permit = SEMAPHORE.acquire_many(if index == 0 { 3 } else { 2 });
            noted.note(index.to_string());
            fibrant::yield_now();
        });
        assert!(SEMAPHORE.try_acquire().is_none(), "it is free, but others wait");
        assert!(SEMAPHORE.acquire_timeout(ms(5)).is_none());
        assert_eq!(SEMAPHORE.available(), 1);
        drop(permit);
        let _permit = SEMAPHORE.acquire_many(3);
        record.note("newcomer");
        assert_eq!(record.all(), IN_ORDER);
        tasks.into_iter().for_each(Task::join);
        runtime.stop().unwrap();
    }
}

#[test]
fn one_release_serves_all_for_whom_it_is_enough() {
    static SEMAPHORE: Semaphore = Semaphore::named("order-all", 0);
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let record = Record::default();
    let noted = record.clone();
    let tasks = queue_up(&runtime, "order-all", move |index| {
        SEMAPHORE.acquire_many(index + 1).forget();
        noted.note(index.to_string());
    });
    SEMAPHORE.release(1 + 2 + 3 + 4);
    until_waiting(&runtime, "order-all", 1);
    assert_eq!(SEMAPHORE.available(), 0);
    SEMAPHORE.release(4);
    assert_eq!(SEMAPHORE.available(), 4, "the last one wants more");
    SEMAPHORE.release(1);
    tasks.into_iter().for_each(Task::join);
    assert_eq!(SEMAPHORE.available(), 0);
    let mut all = record.all();
    all.sort_unstable(); // a thread notes it at its leisure
    assert_eq!(all, ["0", "1", "2", "3", "4"]);
    runtime.stop().unwrap();
}

#[test]
fn readers_and_writers_are_served_in_order_and_readers_together() {
    static LOCK: RwLock<()> = RwLock::named("order-rwlock", ());
    static MEETING: fibrant::sync::Barrier = fibrant::sync::Barrier::new(2);
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let record = Record::default();
        let reader = LOCK.read().unwrap();
        let noted = record.clone();
        // A writer, two readers, a writer, a reader.
        let tasks = queue_up(&runtime, "order-rwlock", move |index| {
            if index == 0 || index == 3 {
                let _guard = LOCK.write().unwrap();
                noted.note(index.to_string());
                fibrant::yield_now();
            } else {
                let _guard = LOCK.read().unwrap();
                noted.note(if index == 4 { "4" } else { "reads" });
                if index != 4 {
                    MEETING.wait(); // both are in at the same time
                }
            }
        });
        assert!(
            LOCK.try_read().is_err(),
            "a reader has overtaken a writer that has waited"
        );
        drop(reader);
        let _guard = LOCK.write().unwrap();
        record.note("newcomer");
        assert_eq!(record.all(), ["0", "reads", "reads", "3", "4", "newcomer"]);
        tasks.into_iter().for_each(Task::join);
        runtime.stop().unwrap();
    }
}

#[test]
fn a_writer_gets_its_turn_among_readers_that_never_leave_the_lock_free() {
    static LOCK: RwLock<bool> = RwLock::new(false);
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(2);
    let readers: Vec<_> = (0..6)
        .map(|_| {
            runtime.spawn(|| {
                loop {
                    let guard = LOCK.read().unwrap();
                    if *guard {
                        return;
                    }
                    fibrant::sleep(ms(1)); // others come meanwhile
                }
            })
        })
        .collect();
    *LOCK.write().unwrap() = true;
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    runtime.stop().unwrap();
}
