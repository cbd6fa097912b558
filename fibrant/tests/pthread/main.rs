//! The C library's locks, used by a C library (`locks.c`) that knows nothing of fibers: crowds of fibers and threads take them and hold
//! them across calls that block, on one worker and on two. Nobody deadlocks, nobody is let in who must not be, and nobody waits in vain.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patience.rs"]
mod patience;

mod library;
mod once;

use fibrant::runtime::Runtime;
use library::{Function, Library, Member};
use patience::{Watchdog, eventually};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};

/// Lets so many fibers and threads call a function, and adds up what they found wrong.
#[track_caller]
fn crowd(runtime: &Runtime, fibers: usize, threads: usize, rounds: usize, function: Function) {
    let count = fibers + threads;
    let member = move |index: usize| {
        move || {
            let mut member = Member::new(index, count, rounds);
            // SAFETY: it takes a member.
            unsafe { function(&mut member) }
        }
    };
    let fibers: Vec<_> = (0..fibers).map(|index| runtime.spawn(member(index))).collect();
    let threads: Vec<_> = (fibers.len()..count)
        .map(|index| thread::spawn(member(index)))
        .collect();
    let wrong = fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum::<i64>()
        + threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum::<i64>();
    assert_eq!(wrong, 0);
}

/// Lets crowds of several kinds take a lock by this function: each visit is counted, and none is lost.
#[track_caller]
fn hammer(name: &str, rounds: usize) {
    hammer_crowds(
        name,
        rounds,
        &[(1, 8, 0), (2, 8, 0), (1, 6, 2), (2, 6, 4), (1, 1, 4)],
    );
}

#[track_caller]
fn hammer_crowds(name: &str, rounds: usize, crowds: &[(usize, usize, usize)]) {
    let library = Library::get();
    let watchdog = Watchdog::new();
    let function = library.function(name);
    for &(workers, fibers, threads) in crowds {
        watchdog.note(format!(
            "with {workers} workers, {fibers} fibers, {threads} threads in {name}"
        ));
        let runtime = watchdog.runtime(workers);
        crowd(&runtime, fibers, threads, rounds, function);
        let total = library.number("take_total");
        if total != 0 {
            assert!(total as usize <= (fibers + threads) * rounds);
        }
        if name != "hammer_rw" && name != "hammer_writers_first" {
            assert_eq!(
                total as usize,
                (fibers + threads) * rounds,
                "{workers} workers, {fibers} fibers, {threads} threads"
            );
        }
        runtime.stop().unwrap();
    }
}

#[test]
fn a_mutex_admits_one() {
    hammer("hammer_plain", 60);
}

#[test]
fn an_adaptive_mutex_admits_one() {
    hammer("hammer_adaptive", 40);
}

#[test]
fn a_robust_mutex_admits_one() {
    hammer("hammer_robust", 15);
}

#[test]
fn a_mutex_that_processes_share_admits_one() {
    hammer("hammer_shared", 15);
}

#[test]
fn a_mutex_with_a_time_limit_admits_one() {
    hammer("hammer_timed", 40);
}

#[test]
fn those_who_give_up_leave_no_trace() {
    hammer("hammer_impatient", 30);
}

#[test]
fn a_mutex_of_c11_admits_one() {
    hammer("hammer_standard", 40);
}

/// Where nobody shares a thread, owners are told apart.
#[test]
fn a_recursive_mutex_admits_its_owner_again() {
    hammer_crowds("hammer_recursive", 40, &[(1, 1, 4)]);
}

#[test]
fn a_recursive_mutex_tells_fibers_of_one_worker_apart() {
    hammer("hammer_recursive", 40);
}

#[test]
fn a_checked_mutex_knows_its_owner() {
    hammer_crowds("own_checked", 40, &[(1, 1, 4)]);
}

#[test]
fn a_checked_mutex_tells_fibers_of_one_worker_apart() {
    hammer("own_checked", 40);
    hammer("hammer_checked", 40);
}

#[test]
fn a_lock_for_readers_and_writers_keeps_them_apart() {
    hammer("hammer_rw", 60);
}

#[test]
fn so_does_one_that_lets_writers_go_first() {
    hammer("hammer_writers_first", 60);
}

#[test]
fn a_semaphore_with_one_to_give_is_a_lock() {
    let library = Library::get();
    assert_eq!(library.number_of("begin_semaphore", 0), 0);
    hammer("hammer_semaphore", 40);
}

#[test]
fn so_is_one_that_processes_share() {
    let library = Library::get();
    assert_eq!(library.number_of("begin_semaphore", 1), 0);
    hammer("hammer_semaphore", 15);
}

#[test]
fn a_queue_with_two_conditions_passes_everything_on() {
    hammer_crowds(
        "hammer_queue",
        60,
        &[(1, 8, 0), (2, 8, 0), (1, 4, 4), (2, 6, 4), (1, 1, 1)],
    );
}

#[test]
fn so_does_one_of_c11() {
    let library = Library::get();
    assert_eq!(library.number("begin_standard_queue"), 0);
    hammer_crowds(
        "hammer_standard_queue",
        40,
        &[(1, 8, 0), (2, 8, 0), (1, 4, 4), (2, 6, 4)],
    );
}

#[test]
fn so_does_one_that_processes_share() {
    let library = Library::get();
    assert_eq!(library.number("begin_shared_queue"), 0);
    hammer_crowds("hammer_shared_queue", 10, &[(1, 4, 0), (2, 4, 2)]);
}

/// A signal wakes one, whoever it is, and no more; a broadcast wakes the rest.
#[test]
fn a_signal_wakes_exactly_one() {
    let library = Library::get();
    let watchdog = Watchdog::new();
    let function = library.function("wait_to_be_woken");
    for (workers, fibers, threads) in [(1, 4, 0), (1, 3, 3), (2, 4, 2)] {
        let runtime = watchdog.runtime(workers);
        library.call("forget_waiting");
        let waiters = {
            let runtime = runtime.handle();
            thread::spawn(move || {
                let member = move || {
                    // SAFETY: it takes a member.
                    unsafe { function(&mut Member::new(0, 0, 0)) }
                };
                let fibers: Vec<_> = (0..fibers).map(|_| runtime.spawn(member)).collect();
                let threads: Vec<_> = (0..threads).map(|_| thread::spawn(member)).collect();
                let wrong: i64 = fibers.into_iter().map(|one| one.join().unwrap()).sum();
                wrong + threads.into_iter().map(|one| one.join().unwrap()).sum::<i64>()
            })
        };
        let all = fibers + threads;
        eventually("all wait", || library.waiting().0 as usize == all);
        for woken in 1..all - 1 {
            library.call("signal_one");
            eventually("one is woken", || library.waiting().1 as usize >= woken);
            // Nobody else is: there is nothing to wait for, so this may only miss something.
            thread::sleep(Duration::from_millis(5));
            assert_eq!(library.waiting().1 as usize, woken);
        }
        library.call("signal_all");
        assert_eq!(waiters.join().unwrap(), 0);
        assert_eq!(library.waiting().1 as usize, all);
        runtime.stop().unwrap();
    }
}

#[test]
fn a_barrier_lets_all_go_on_and_tells_one() {
    let rounds = 40;
    let library = Library::get();
    let watchdog = Watchdog::new();
    for (workers, fibers, threads) in [(1, 5, 0), (2, 6, 0), (1, 3, 3), (2, 4, 2), (1, 1, 0), (1, 0, 3)] {
        let runtime = watchdog.runtime(workers);
        library.begin_barrier(fibers + threads, false);
        crowd(&runtime, fibers, threads, rounds, library.function("meet"));
        assert_eq!(library.number("take_serials") as usize, rounds);
        runtime.stop().unwrap();
    }
}

#[test]
fn so_does_one_that_processes_share_a_barrier() {
    let rounds = 5;
    let library = Library::get();
    let watchdog = Watchdog::new();
    for (workers, fibers, threads) in [(1, 3, 0), (2, 3, 2)] {
        let runtime = watchdog.runtime(workers);
        library.begin_barrier(fibers + threads, true);
        crowd(&runtime, fibers, threads, rounds, library.function("meet"));
        assert_eq!(library.number("take_serials") as usize, rounds);
        runtime.stop().unwrap();
    }
}

#[test]
fn what_is_done_once_is_done_once() {
    let rounds = 20;
    let library = Library::get();
    let watchdog = Watchdog::new();
    for (workers, fibers, threads) in [(1, 8, 0), (2, 8, 0), (1, 4, 4), (2, 6, 4)] {
        let runtime = watchdog.runtime(workers);
        crowd(
            &runtime,
            fibers,
            threads,
            rounds,
            library.function("initialise_once"),
        );
        assert_eq!(library.number("take_done") as usize, 2 * rounds + 2);
        runtime.stop().unwrap();
    }
}

#[test]
fn limits_of_time_are_kept_while_others_run() {
    let library = Library::get();
    let watchdog = Watchdog::new();
    library.call("hold_all");
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let function = library.function("time_out");
        // A worker that is blocked lets the others have a turn only when a fiber ends. A busy machine may do that, too, but not each time.
        let turns: Vec<i32> = (0..20)
            .map(|_| turns_during(&runtime, || crowd(&runtime, 3, 2, 1, function)))
            .take_while(|&turns| turns < 20)
            .collect();
        assert!(turns.len() < 20, "the worker was blocked: {turns:?} turns");
        runtime.stop().unwrap();
    }
    library.call("release_all");
}

/// How many turns a fiber has that sleeps for short while this runs, which takes some 15 waits of 3 milliseconds.
fn turns_during(runtime: &Runtime, act: impl FnOnce()) -> i32 {
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let ticker = runtime.spawn(move || {
        let mut turns = 0;
        while !ends.load(Relaxed) {
            fibrant::sleep(Duration::from_micros(100));
            turns += 1;
        }
        turns
    });
    let start = Instant::now();
    act();
    assert!(start.elapsed() >= Duration::from_millis(40));
    over.store(true, Relaxed);
    ticker.join().unwrap()
}

#[test]
fn whoever_waits_for_a_robust_mutex_hears_that_its_owner_has_died() {
    let library = Library::get();
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        assert_eq!(library.number("begin_orphan"), 0);
        let function = library.function("inherit");
        // SAFETY: it takes a member.
        let heir = runtime.spawn(move || unsafe { function(&mut Member::new(0, 1, 1)) });
        eventually("the heir waits", || {
            let stats = runtime.hook_stats();
            let locks = stats.iter().find(|hook| hook.name == "pthread_mutex_lock");
            locks.is_some_and(|hook| hook.would_block > 0)
        });
        library.call("let_it_die");
        assert_eq!(heir.join().unwrap(), 0);
        runtime.stop().unwrap();
    }
}

/// A handler may add to a semaphore, whatever it has interrupted.
#[test]
fn a_signal_handler_adds_to_a_semaphore() {
    let rounds = 200;
    let library = Library::get();
    let watchdog = Watchdog::new();
    assert_eq!(library.number("begin_handler"), 0);
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let function = library.function("wait_for_handler");
        let waiters: Vec<_> = (0..4)
            .map(|index| {
                // SAFETY: it takes a member.
                runtime.spawn(move || unsafe { function(&mut Member::new(index, 4, rounds)) })
            })
            .collect();
        for _ in 0..4 * rounds {
            // The handler runs on the worker, in the middle of whatever that does. Signals of one kind are not counted, so each is
            // followed by the next only when it was handled.
            runtime.spawn(|| {
                // SAFETY: there is a handler.
                unsafe { libc::raise(libc::SIGUSR1) };
            });
        }
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), 0);
        }
        runtime.stop().unwrap();
    }
}

/// Threads that wait where fibers do are ended by `pthread_cancel` all the same.
#[test]
fn a_thread_that_waits_for_a_condition_can_be_told_to_end() {
    let library = Library::get();
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    crowd(&runtime, 1, 0, 100, library.function("end_waiting"));
    crowd(&runtime, 0, 1, 100, library.function("end_waiting"));
    runtime.stop().unwrap();
}

#[test]
fn threads_of_c11_are_joined() {
    let library = Library::get();
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        crowd(&runtime, 3, 1, 4, library.function("join_standard"));
        runtime.stop().unwrap();
    }
}

/// Those who hold a mutex most of the time, and take it again at once, do not keep it for themselves: neither fibers from a thread nor
/// threads from a fiber.
#[test]
fn fibers_and_threads_take_turns() {
    let library = Library::get();
    let watchdog = Watchdog::new();
    let function = library.take_turns();
    for (workers, fibers, threads) in [(1, 3, 1), (2, 3, 1), (1, 1, 3), (1, 2, 0), (2, 1, 1)] {
        // A fiber that never waits keeps its worker, lock or no lock.
        let pauses: &[c_int] = if threads == 0 { &[200] } else { &[0, 200] };
        for &pause in pauses {
            watchdog.note(format!(
                "{workers} workers, {fibers} fibers, {threads} threads, {pause} us"
            ));
            let runtime = watchdog.runtime(workers);
            let turns: Arc<Vec<AtomicI32>> =
                Arc::new((0..fibers + threads).map(|_| AtomicI32::new(0)).collect());
            let over = Arc::new(AtomicI32::new(0));
            let member = |index: usize| {
                let (turns, over) = (Arc::clone(&turns), Arc::clone(&over));
                // SAFETY: they are atomic numbers, which live as long.
                move || unsafe { function(turns[index].as_ptr(), over.as_ptr(), pause) }
            };
            let in_fibers: Vec<_> = (0..fibers).map(|index| runtime.spawn(member(index))).collect();
            let in_threads: Vec<_> = (fibers..fibers + threads)
                .map(|index| thread::spawn(member(index)))
                .collect();
            let enough: c_int = 10;
            let start = Instant::now();
            while turns.iter().any(|turns| turns.load(Relaxed) < enough) {
                assert!(
                    start.elapsed() < Duration::from_secs(20),
                    "{workers} workers, {pause} us: {turns:?}"
                );
                thread::sleep(Duration::from_millis(1));
            }
            over.store(1, Relaxed);
            for fiber in in_fibers {
                assert_eq!(fiber.join().unwrap(), 0);
            }
            for thread in in_threads {
                assert_eq!(thread.join().unwrap(), 0);
            }
            runtime.stop().unwrap();
        }
    }
}

/// What the hooks pass on is the C library's present version, not the one for old programs.
#[test]
fn a_child_that_was_forked_uses_the_c_librarys_locks() {
    let library = Library::get();
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let function = library.function("hammer_plain");
    let status = runtime
        .spawn(move || {
            // SAFETY: the child only uses locks that nobody has, and ends.
            unsafe {
                match libc::fork() {
                    0 => libc::_exit(function(&mut Member::new(0, 1, 5)) as c_int),
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
    runtime.stop().unwrap();
}
