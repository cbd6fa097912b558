//! What dumps tell about locks; and that they may be made at any moment, while locks come and go.

use crate::harness::ms;
use crate::patience::{Watchdog, eventually};
use crate::support::*;
use fibrant::sync::{Barrier, Condvar, Mutex, RwLock, Semaphore, WaitGroup};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_dump_tells_who_holds_a_mutex_since_when_and_who_waits() {
    static MUTEX: Mutex<()> = Mutex::named("told-mutex", ());
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let holds = runtime.spawn(|| {
        let _guard = MUTEX.lock().unwrap();
        fibrant::fiber::park();
    });
    eventually("it is locked", || MUTEX.try_lock().is_err());
    let waits = runtime.spawn(|| drop(MUTEX.lock()));
    until_waiting(&runtime, "told-mutex", 1);
    thread::sleep(ms(20));
    let (sender, receiver) = std::sync::mpsc::channel();
    let in_thread = thread::spawn(move || {
        // SAFETY: asks for a number.
        sender.send(unsafe { libc::gettid() }).unwrap();
        drop(MUTEX.lock());
    });
    let thread = receiver.recv().unwrap();
    until_waiting(&runtime, "told-mutex", 2);
    let text = subject(&runtime, "told-mutex").unwrap();
    let start = format!("mutex 'told-mutex', held by fiber {} for ", holds.id());
    let rest = text.strip_prefix(&start).expect(&text);
    let (time, waiters) = rest.split_once(", ").unwrap();
    assert!(time.ends_with('s') && !time.starts_with("0."), "{text}");
    assert_eq!(
        waiters,
        format!("wanted by fiber {}, thread {thread}", waits.id())
    );
    let dump = runtime.dump();
    let address = format!("waiting for the lock at {:#x}", {
        let fiber = dump.fibers.iter().find(|fiber| fiber.id == waits.id()).unwrap();
        match fiber.wait {
            Some(fibrant::fiber::WaitReason::Lock { address }) => address,
            other => panic!("{other:?}"),
        }
    });
    assert!(dump.to_string().contains(&address), "{dump}");
    assert!(dump.to_string().contains(&text[..start.len()]), "{dump}");
    assert!(
        dump.to_json()
            .contains("\"subject\":\"mutex 'told-mutex', held by"),
        "{}",
        dump.to_json()
    );
    holds.fiber().unpark();
    holds.join().unwrap();
    waits.join().unwrap();
    in_thread.join().unwrap();
    // A thread that holds it.
    let guard = MUTEX.lock().unwrap();
    let waits = runtime.spawn(|| drop(MUTEX.lock()));
    until_waiting(&runtime, "told-mutex", 1);
    // SAFETY: asks for a number.
    let me = format!("held by thread {} for ", unsafe { libc::gettid() });
    assert!(subject(&runtime, "told-mutex").unwrap().contains(&me));
    drop(guard);
    waits.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn a_mutex_is_held_since_it_was_got_not_since_it_was_wanted() {
    static MUTEX: Mutex<()> = Mutex::named("since", ());
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let guard = MUTEX.lock().unwrap();
    let first = runtime.spawn(|| {
        let _guard = MUTEX.lock().unwrap();
        fibrant::fiber::park();
    });
    until_waiting(&runtime, "since", 1);
    let start = Instant::now();
    thread::sleep(ms(1500));
    drop(guard);
    eventually("it is handed over", || waiters(&runtime, "since") == 0);
    let second = runtime.spawn(|| drop(MUTEX.lock()));
    until_waiting(&runtime, "since", 1);
    let text = subject(&runtime, "since").unwrap();
    if start.elapsed() < ms(2500) {
        let (_, time) = text.split_once(" for ").expect(&text);
        let (time, _) = time.split_once(',').unwrap();
        let is_short = time.ends_with("ms") || time.ends_with("µs") || time.ends_with("ns");
        assert!(is_short, "{text}");
    }
    first.fiber().unpark();
    first.join().unwrap();
    second.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn a_dump_tells_about_all_kinds_of_locks() {
    static LOCK: RwLock<()> = RwLock::named("told-rwlock", ());
    static SEMAPHORE: Semaphore = Semaphore::named("told-semaphore", 1);
    static STATE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::named("told-condvar"));
    static BARRIER: Barrier = Barrier::named("told-barrier", 3);
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let group = WaitGroup::named("told-group");
    let clone = group.clone();
    let reads = [LOCK.read().unwrap(), LOCK.read().unwrap()];
    let fibers = [
        runtime.spawn(|| drop(LOCK.write())),
        runtime.spawn(|| drop(SEMAPHORE.acquire_many(2))),
        runtime.spawn(|| drop(STATE.1.wait(STATE.0.lock().unwrap()))),
        runtime.spawn(|| {
            BARRIER.wait();
        }),
        runtime.spawn(move || clone.wait()),
    ];
    eventually("all wait", || waiting(&runtime) == 5);
    let ids: Vec<u64> = fibers.iter().map(|fiber| fiber.id()).collect();
    let expect = |name: &str, words: String| {
        let text = subject(&runtime, name).unwrap();
        assert_eq!(text, words);
    };
    expect(
        "told-rwlock",
        format!("rwlock 'told-rwlock', read by 2, wanted by fiber {}", ids[0]),
    );
    expect(
        "told-semaphore",
        format!("semaphore 'told-semaphore', 1 free, wanted by fiber {}", ids[1]),
    );
    expect(
        "told-condvar",
        format!("condvar 'told-condvar', wanted by fiber {}", ids[2]),
    );
    expect(
        "told-barrier",
        format!(
            "barrier 'told-barrier', 1 of 3 are here, wanted by fiber {}",
            ids[3]
        ),
    );
    expect(
        "told-group",
        format!("wait group 'told-group', 1 to come, wanted by fiber {}", ids[4]),
    );
    drop(reads);
    drop(group);
    SEMAPHORE.release(1);
    STATE.1.notify_one();
    let others = [(); 2].map(|()| thread::spawn(|| BARRIER.wait()));
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    others.into_iter().for_each(|other| assert!(other.join().is_ok()));
    // A writer is named.
    let writes = runtime.spawn(|| {
        let _guard = LOCK.write().unwrap();
        fibrant::fiber::park();
    });
    eventually("it is locked", || LOCK.try_read().is_err());
    let reads = runtime.spawn(|| drop(LOCK.read()));
    until_waiting(&runtime, "told-rwlock", 1);
    let text = subject(&runtime, "told-rwlock").unwrap();
    let start = format!("rwlock 'told-rwlock', held by fiber {} for ", writes.id());
    assert!(text.starts_with(&start), "{text}");
    writes.fiber().unpark();
    writes.join().unwrap();
    reads.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn more_waiters_than_are_named_are_counted() {
    static SEMAPHORE: Semaphore = Semaphore::named("crowd", 0);
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let fibers: Vec<_> = (0..11)
        .map(|_| runtime.spawn(|| SEMAPHORE.acquire().forget()))
        .collect();
    eventually("all wait", || waiting(&runtime) == 11);
    assert!(subject(&runtime, "crowd").unwrap().ends_with(" and 3 more"));
    SEMAPHORE.release(11);
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    runtime.stop().unwrap();
}

/// How long dumps are made of locks that live shortly: longer by request.
fn hammer_time() -> Duration {
    let seconds = std::env::var("FIBRANT_TEST_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(2))
}

#[test]
fn dumps_may_be_made_while_locks_come_and_go() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let over = Arc::new(AtomicBool::new(false));
        let fibers: Vec<_> = (0..8)
            .map(|index| {
                let over = Arc::clone(&over);
                runtime.spawn(move || {
                    while !over.load(SeqCst) {
                        come_and_go(index);
                    }
                })
            })
            .collect();
        let start = Instant::now();
        let (mut dumps, mut told) = (0, 0);
        while start.elapsed() < hammer_time() / 2 {
            let dump = runtime.dump();
            dumps += 1;
            told += dump.fibers.iter().filter(|fiber| fiber.subject.is_some()).count();
        }
        over.store(true, SeqCst);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(told > 0, "{dumps} dumps have seen nothing");
        runtime.stop().unwrap();
    }
}

/// Locks that live on the heap for one short wait each. What a dump would read of them after that is overwritten.
fn come_and_go(index: usize) {
    let locks = Box::new((
        Mutex::named("brief", ()),
        Semaphore::named("brief", 0),
        RwLock::named("brief", ()),
        (Mutex::new(()), Condvar::named("brief")),
    ));
    fibrant::scope(|scope| {
        let guards = (locks.0.lock().unwrap(), locks.2.read().unwrap());
        scope.spawn(|| drop(locks.0.lock().unwrap()));
        scope.spawn(|| locks.1.acquire().forget());
        scope.spawn(|| drop(locks.2.write().unwrap()));
        let condition = &locks.3;
        scope.spawn(|| {
            let timeout = Duration::from_micros(20 * index as u64);
            drop(condition.1.wait_timeout(condition.0.lock().unwrap(), timeout));
        });
        fibrant::yield_now();
        drop(guards);
        locks.1.release(1);
        condition.1.notify_one();
    });
    let size = std::mem::size_of_val(&*locks);
    drop(locks);
    drop(vec![0xFF_u8; size]);
}
