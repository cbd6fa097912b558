//! Runtimes: running, stopping, shutting down, dropping, and looking at what they do.

mod common;
#[path = "common/patience.rs"]
mod patience;
#[path = "common/worker.rs"]
mod worker;

use fibrant::fiber::{self, WaitReason};
use fibrant::io::Event;
use fibrant::runtime::{Builder, Dump, FiberDump, FiberState, Handle, Runtime, WorkerDump};
use fibrant::{Cancelled, timer};
use patience::{Census, PATIENCE, Watchdog, eventually, text};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use worker::{thread_name, thread_number};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

/// What a shutdown may take: two seconds by its contract, and time to get a processor.
const BOUND: Duration = Duration::from_secs(8);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn build(workers: usize, use_caller: bool) -> Runtime {
    let builder = Builder::new().workers(workers).use_caller(use_caller);
    builder.name("test").build().unwrap()
}

/// Waits until the fiber with that number waits.
#[track_caller]
fn wait_until_it_waits(runtime: &Handle, id: u64) {
    eventually("it waits", || {
        let dump = runtime.dump();
        dump.fibers
            .iter()
            .any(|fiber| fiber.id == id && fiber.wait.is_some())
    });
}

// run

#[test]
fn run_returns_the_value_and_takes_what_is_not_send_and_borrows() {
    let _watchdog = Watchdog::new();
    let thread = thread_number();
    let local = Rc::new(Cell::new(1));
    let mut text = String::from("borrowed");
    let length = fibrant::run(|| {
        assert_eq!(thread_number(), thread);
        assert!(Runtime::current().is_some());
        assert!(fiber::current().is_some());
        local.set(2);
        fibrant::sleep(ms(1));
        assert_eq!(thread_number(), thread);
        text.push('!');
        Rc::new(text.len()) // not Send, either
    });
    assert_eq!((*length, local.get(), text.as_str()), (9, 2, "borrowed!"));
    assert!(Runtime::current().is_none());
    assert!(fiber::current().is_none());
    // Again and again.
    for n in 0..20 {
        assert_eq!(fibrant::run(|| fibrant::spawn(move || n).join().unwrap()), n);
    }
}

#[test]
fn a_nested_run_panics_with_the_reason() {
    let _watchdog = Watchdog::new();
    let check = |payload: Box<dyn std::any::Any + Send>| {
        assert!(
            text(&*payload).contains("cannot be run inside another"),
            "{}",
            text(&*payload)
        );
    };
    let other = build(1, false);
    fibrant::run(|| {
        check(catch_unwind(|| fibrant::run(|| ())).unwrap_err());
        check(catch_unwind(AssertUnwindSafe(|| other.run(|| ()))).unwrap_err());
        let inside = fibrant::spawn(|| catch_unwind(|| fibrant::run(|| ())).unwrap_err());
        check(inside.join().unwrap());
        // On a real thread it is not nested.
        assert_eq!(fibrant::spawn_blocking(|| fibrant::run(|| 1)).join().unwrap(), 1);
    });
}

#[test]
fn leftovers_are_cancelled_when_run_returns() {
    let _watchdog = Watchdog::new();
    let held = Census::default();
    let start = Instant::now();
    fibrant::run(|| {
        for n in 0..30 {
            let (counted, inside) = (held.count(), held.clone());
            let f = move || {
                let _counted = counted;
                let _inside = inside.count();
                match n % 3 {
                    0 => fiber::park(),
                    1 => fibrant::sleep(LONG),
                    _ => drop(fibrant::spawn(fiber::park).join()),
                }
            };
            drop(if n % 2 == 0 {
                fibrant::spawn(f)
            } else {
                fibrant::spawn_local(f)
            });
        }
        fibrant::sleep(ms(2)); // some have started
        drop(fibrant::spawn({
            let counted = held.count();
            move || drop(counted) // this one has not, perhaps
        }));
    });
    assert!(held.made() >= 31);
    assert_eq!(held.made(), held.dropped());
    assert!(start.elapsed() < BOUND);
}

#[test]
fn the_closures_panic_passes_on_after_the_leftovers_have_ended() {
    let _watchdog = Watchdog::new();
    let held = Census::default();
    let result = catch_unwind(AssertUnwindSafe(|| {
        fibrant::run(|| {
            let counted = held.count();
            drop(fibrant::spawn(move || {
                let _counted = counted;
                fiber::park();
            }));
            fibrant::sleep(ms(1));
            resume_unwind(Box::new("the closure's"))
        })
    }));
    let result: thread::Result<()> = result;
    assert_eq!(result.unwrap_err().downcast_ref(), Some(&"the closure's"));
    assert_eq!((held.made(), held.dropped()), (1, 1));
    assert_eq!(fibrant::run(|| 1), 1);
    // The same for a runtime that goes on afterwards.
    for use_caller in [false, true] {
        let runtime = build(2, use_caller);
        let result: thread::Result<()> = catch_unwind(AssertUnwindSafe(|| {
            runtime.run(|| resume_unwind(Box::new("once more")))
        }));
        assert_eq!(result.unwrap_err().downcast_ref(), Some(&"once more"));
        assert_eq!(runtime.run(|| 2), 2);
        runtime.stop().unwrap();
    }
}

// use_caller

#[test]
fn the_caller_is_worker_0_while_it_runs() {
    let watchdog = Watchdog::new();
    for workers in [1, 2, 3] {
        let runtime = build(workers, true);
        watchdog.show(&runtime);
        assert_eq!(runtime.workers(), workers);
        assert!(!runtime.dump().workers[0].active);
        let caller = thread_number();
        for _ in 0..2 {
            runtime.run(|| {
                let dump = Runtime::current().unwrap().dump();
                assert!(dump.workers[0].active);
                // SAFETY: asks for a number.
                assert_eq!(dump.workers[0].thread, unsafe { libc::gettid() });
                let there = fibrant::Builder::new().worker(0);
                let thread = there.spawn(thread_number).unwrap();
                assert_eq!(thread.join().unwrap(), caller);
            });
            assert!(!runtime.dump().workers[0].active);
        }
        // Also while it is stopped.
        let late = runtime.spawn_on(0, thread_number);
        runtime.stop().unwrap();
        assert_eq!(late.join().unwrap(), caller);
    }
}

#[test]
fn worker_0_belongs_to_the_thread_that_first_ran_it() {
    let watchdog = Watchdog::new();
    let runtime = build(2, true);
    watchdog.show(&runtime);
    runtime.run(|| ());
    thread::scope(|s| {
        let refused = s.spawn(|| catch_unwind(AssertUnwindSafe(|| runtime.run(|| ()))).unwrap_err());
        let payload = refused.join().unwrap();
        let message = text(&*payload);
        assert!(
            message.contains("worker 0 of the runtime 'test' belongs to"),
            "{message}"
        );
    });
    assert_eq!(runtime.run(|| 1), 1);
    runtime.stop().unwrap(); // the refused one has left nothing behind that this would wait for
}

#[test]
fn a_join_on_the_callers_thread_outside_run_drives_worker_0() {
    let watchdog = Watchdog::new();
    let runtime = build(1, true);
    watchdog.show(&runtime);
    runtime.run(|| ());
    let caller = thread_number();
    let fiber = runtime.spawn(move || {
        fibrant::sleep(ms(2));
        fibrant::spawn(move || assert_eq!(thread_number(), caller))
            .join()
            .unwrap();
        5
    });
    assert_eq!(fiber.join().unwrap(), 5);
    let parked = runtime.spawn(fiber::park);
    let parked = parked.join_timeout(ms(5)).unwrap_err();
    parked.fiber().unpark();
    parked.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn run_with_use_caller_returns_when_the_started_fibers_of_worker_0_have_ended() {
    let watchdog = Watchdog::new();
    let runtime = build(1, true);
    watchdog.show(&runtime);
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    runtime.run(move || {
        drop(fibrant::spawn(move || {
            fibrant::sleep(ms(10));
            flag.store(true, SeqCst);
        }));
        fibrant::yield_now(); // it starts
    });
    assert!(ended.load(SeqCst));
    // What comes next may wait in it again.
    runtime.run(|| fibrant::sleep(ms(1)));
    runtime.stop().unwrap();
}

#[test]
fn without_use_caller_the_thread_of_run_is_a_guest() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = build(workers, false);
        watchdog.show(&runtime);
        let here = thread_number();
        let local = Rc::new(Cell::new(0));
        let fired = Arc::new(AtomicUsize::new(0));
        let result = runtime.run(|| {
            assert_eq!(thread_number(), here);
            assert_eq!(Runtime::current().unwrap().name(), "test");
            // Others run on the runtime's own workers, bound ones here.
            let other = fibrant::spawn(thread_number);
            assert_ne!(other.join().unwrap(), here);
            let shared = Rc::clone(&local);
            let bound = fibrant::spawn_local(move || {
                fibrant::sleep(ms(1));
                shared.set(shared.get() + 1);
                thread_number()
            });
            assert_eq!(bound.join().unwrap(), here);
            let count = Arc::clone(&fired);
            drop(timer::after(ms(1), move || {
                assert_ne!(thread_number(), here, "a guest leaves its timers to a worker");
                count.fetch_add(1, SeqCst);
            }));
            let start = Instant::now();
            fibrant::sleep(ms(5));
            assert!(start.elapsed() >= ms(5));
            eventually("the timer fires", || fired.load(SeqCst) == 1);
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(b"x").unwrap();
            fibrant::io::wait(ours.as_raw_fd(), Event::READ, None).unwrap();
            let sum = AtomicUsize::new(0);
            fibrant::scope(|s| {
                for n in 0..10 {
                    let sum = &sum;
                    s.spawn(move || sum.fetch_add(n, SeqCst));
                }
            });
            assert_eq!(fibrant::run_on(workers - 1, || 3), 3);
            let myself = fiber::current().unwrap();
            let waker = fibrant::spawn(move || myself.unpark());
            fiber::park();
            waker.join().unwrap();
            Rc::new(sum.into_inner())
        });
        assert_eq!((*result, local.get()), (45, 1));
        // Several threads may be guests at once.
        thread::scope(|s| {
            for n in 0..4 {
                let runtime = &runtime;
                s.spawn(move || {
                    let result = runtime.run(|| {
                        fibrant::sleep(ms(2));
                        fibrant::spawn(move || n).join().unwrap()
                    });
                    assert_eq!(result, n);
                });
            }
        });
        runtime.stop().unwrap();
    }
}

#[test]
fn a_guests_panic_passes_on_when_its_own_fibers_have_ended() {
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let held = Census::default();
    let result: thread::Result<()> = catch_unwind(AssertUnwindSafe(|| {
        runtime.run(|| {
            let counted = held.count();
            drop(fibrant::spawn_local(move || {
                let _counted = counted;
                fibrant::sleep(ms(5));
            }));
            resume_unwind(Box::new("the guest's"))
        })
    }));
    assert_eq!(result.unwrap_err().downcast_ref(), Some(&"the guest's"));
    assert_eq!((held.made(), held.dropped()), (1, 1));
    runtime.stop().unwrap(); // it left no work behind that would never be done
}

#[test]
fn stop_waits_for_a_guest() {
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let ended = AtomicBool::new(false);
    let (begun, has_begun) = mpsc::channel();
    thread::scope(|s| {
        s.spawn(|| {
            runtime.run(|| {
                begun.send(()).unwrap();
                fibrant::sleep(ms(10));
                fibrant::spawn(|| fibrant::sleep(ms(1))).join().unwrap();
                ended.store(true, SeqCst);
            });
        });
        has_begun.recv().unwrap();
        runtime.stop().unwrap();
        assert!(ended.load(SeqCst));
    });
}

#[test]
fn a_shutdown_cancels_a_guest_that_waits() {
    let watchdog = Watchdog::new();
    let runtime = Arc::new(build(1, false));
    watchdog.show(&runtime);
    let (begun, has_begun) = mpsc::channel();
    let held = Census::default();
    let counted = held.count();
    let guest = thread::spawn({
        let runtime = Arc::clone(&runtime);
        move || {
            catch_unwind(AssertUnwindSafe(|| {
                runtime.run(|| {
                    drop(fibrant::spawn_local(move || {
                        let _counted = counted;
                        fibrant::sleep(LONG);
                    }));
                    fibrant::yield_now();
                    begun.send(fiber::current().unwrap()).unwrap();
                    fiber::park();
                });
            }))
        }
    });
    let handle = has_begun.recv().unwrap();
    wait_until_it_waits(&runtime, handle.id());
    let report = runtime.shutdown(Duration::ZERO);
    let payload = guest.join().unwrap().unwrap_err();
    assert!(
        text(&*payload).contains("shut the runtime 'test' down"),
        "{}",
        text(&*payload)
    );
    // It was cancelled like every other fiber, and so was its own.
    assert_eq!(report.cancelled.len(), 2, "{report:?}");
    assert!(report.cancelled.iter().any(|fiber| fiber.id == handle.id()));
    assert!(report.abandoned.is_empty(), "{report:?}");
    assert_eq!((held.made(), held.dropped()), (1, 1));
}

#[test]
fn a_guest_that_does_not_wait_is_reported_and_goes_on() {
    let watchdog = Watchdog::new();
    let runtime = Arc::new(build(1, false));
    watchdog.show(&runtime);
    let (begun, has_begun) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    let guest = thread::spawn({
        let (runtime, over) = (Arc::clone(&runtime), Arc::clone(&over));
        move || {
            runtime.run(|| {
                begun.send(fiber::current().unwrap().id()).unwrap();
                while !over.load(SeqCst) {
                    fibrant::hook::disabled(|| thread::sleep(ms(1)));
                }
                "to its end"
            })
        }
    });
    let id = has_begun.recv().unwrap();
    let start = Instant::now();
    let report = runtime.shutdown(Duration::ZERO);
    assert!(start.elapsed() < BOUND);
    over.store(true, SeqCst);
    let ids = |fibers: &[FiberDump]| fibers.iter().map(|fiber| fiber.id).collect::<Vec<_>>();
    assert_eq!(
        (ids(&report.cancelled), ids(&report.abandoned)),
        (vec![id], vec![id])
    );
    assert_eq!(guest.join().unwrap(), "to its end");
}

#[test]
fn a_guests_own_fibers_run_even_if_it_does_not_wait_for_them() {
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let ran = Rc::new(Cell::new(0));
    let count = Rc::clone(&ran);
    runtime.run(|| {
        drop(fibrant::spawn_local(move || {
            fibrant::sleep(ms(1));
            count.set(count.get() + 1);
            drop(fibrant::spawn_local(move || count.set(count.get() + 1)));
        }));
    });
    assert_eq!(ran.get(), 2);
    runtime.stop().unwrap();
}

#[test]
fn a_dump_shows_guests_and_their_fibers() {
    let watchdog = Watchdog::new();
    let runtime = build(2, false);
    watchdog.show(&runtime);
    thread::scope(|s| {
        let (begun, has_begun) = mpsc::channel();
        let guest = thread::Builder::new().name("visitor".to_owned());
        let runtime = &runtime;
        let visit = move || {
            runtime.run(|| {
                let own = fibrant::spawn_local(|| fibrant::sleep(LONG));
                fibrant::yield_now();
                let myself = fiber::current().unwrap();
                begun.send((thread_number(), myself, own.id())).unwrap();
                fiber::park();
                own.cancel();
                assert!(own.join().is_err());
            });
        };
        let visitor = guest.spawn_scoped(s, visit).unwrap();
        let (thread, handle, own) = has_begun.recv().unwrap();
        let root = handle.id();
        wait_until_it_waits(runtime, root);
        let dump = runtime.dump();
        let workers: Vec<_> = dump.workers.iter().map(|worker| worker.guest).collect();
        assert_eq!(workers, [false, false, true]);
        let guest = &dump.workers[2];
        assert_eq!(
            (guest.index, guest.thread, guest.active, guest.started),
            (2, thread, true, 2)
        );
        let find = |id| dump.fibers.iter().find(|fiber| fiber.id == id).unwrap();
        assert_eq!(
            (find(root).worker, find(root).name.as_deref(), find(root).wait),
            (2, Some("visitor"), Some(WaitReason::Parked))
        );
        assert_eq!(
            (find(own).worker, find(own).wait),
            (2, Some(WaitReason::Sleeping))
        );
        assert!(find(root).spawned_at.contains("runtime.rs"), "{dump}");
        let shown = dump.to_string();
        for part in [
            "runtime 'test': 2 workers".to_owned(),
            format!("guest 2 (thread {thread})"),
        ] {
            assert!(shown.contains(&part), "'{part}' is not in\n{shown}");
        }
        check_json(&dump.to_json()).unwrap();
        assert!(dump.to_json().contains("\"index\":2,\"guest\":true"));
        handle.unpark();
        visitor.join().unwrap();
        assert_eq!(runtime.dump().workers.len(), 2);
    });
}

// Names, numbers, settings.

#[test]
fn threads_are_named_after_the_runtime() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(3).name("web").build().unwrap();
    assert_eq!((runtime.name(), runtime.workers()), ("web", 3));
    for worker in 0..3 {
        let name = runtime.run_on(worker, thread_name);
        assert_eq!(name, format!("web-{worker}"));
    }
    assert_eq!(format!("{runtime:?}"), format!("{:?}", runtime.handle()));
}

#[test]
fn several_runtimes_live_side_by_side() {
    let watchdog = Watchdog::new();
    let runtimes: Vec<_> = (0..5)
        .map(|n| Builder::new().workers(2).name(format!("r{n}")).build().unwrap())
        .collect();
    runtimes.iter().for_each(|runtime| watchdog.show(runtime));
    let fibers: Vec<_> = (0..500)
        .map(|n| {
            runtimes[n % 5].spawn(move || {
                let name = || Runtime::current().unwrap().name().to_owned();
                assert_eq!(name(), format!("r{}", n % 5));
                fibrant::sleep(ms(1));
                assert_eq!(fibrant::spawn(name).join().unwrap(), format!("r{}", n % 5));
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    // One ends, the others go on.
    runtimes[0].stop().unwrap();
    for runtime in &runtimes[1..] {
        assert_eq!(runtime.spawn(|| 1).join().unwrap(), 1);
    }
}

#[test]
fn a_runtime_without_workers_is_an_error() {
    let error = Builder::new().workers(0).build().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("1 or more"), "{error}");
}

#[test]
fn the_environment_variable_sets_what_the_program_does_not() {
    const TEST: &str = "the_environment_variable_sets_what_the_program_does_not";
    match common::case().as_deref() {
        None => {
            let child = |case, setting| common::child(TEST, case, &[("FIBRANT", setting)]).succeeded();
            child("three", "workers=3");
            child("three", "workers=3,stack=1m");
            child("nonsense", "workers=many");
            child("nonsense", "wrokers=3");
            child("nonsense", "workers=0");
        }
        Some("three") => {
            assert_eq!(Builder::new().build().unwrap().workers(), 3);
            assert_eq!(Builder::new().use_caller(true).build().unwrap().workers(), 3);
            assert_eq!(fibrant::run(|| Runtime::current().unwrap().workers()), 3);
            assert_eq!(
                fibrant::spawn(|| Runtime::current().unwrap().workers())
                    .join()
                    .unwrap(),
                3
            );
            // The builder wins.
            assert_eq!(Builder::new().workers(2).build().unwrap().workers(), 2);
        }
        Some(_) => {
            let error = Builder::new().build().unwrap_err();
            assert!(error.to_string().contains("FIBRANT"), "{error}");
            let payload = catch_unwind(|| fibrant::run(|| ())).unwrap_err();
            assert!(text(&*payload).contains("FIBRANT"), "{}", text(&*payload));
        }
    }
}

// stop

#[test]
fn stop_drains_fibers_their_children_timers_and_events() {
    let watchdog = Watchdog::new();
    for workers in [1, 2, 4] {
        for use_caller in [false, true] {
            let runtime = build(workers, use_caller);
            watchdog.show(&runtime);
            let done = Arc::new(AtomicUsize::new(0));
            let (mut writer, reader) = UnixStream::pair().unwrap();
            let note = {
                let done = Arc::clone(&done);
                move || {
                    done.fetch_add(1, SeqCst);
                }
            };
            let (armed, is_armed) = mpsc::channel();
            let work = {
                let note = note.clone();
                move || {
                    // A child that spawns another, once the runtime is being stopped.
                    let child = note.clone();
                    drop(fibrant::spawn(move || {
                        fibrant::sleep(ms(10));
                        let grandchild = child.clone();
                        drop(fibrant::spawn(move || {
                            fibrant::sleep(ms(1));
                            grandchild();
                        }));
                        child();
                    }));
                    drop(timer::after(ms(15), note.clone()));
                    drop(fibrant::spawn_blocking({
                        let note = note.clone();
                        move || {
                            fibrant::hook::disabled(|| thread::sleep(ms(5)));
                            note();
                        }
                    }));
                    let fd = reader.as_raw_fd();
                    let event = note.clone();
                    let added = fibrant::io::add_event(fd, Event::READ, move || {
                        let _reader = reader;
                        event();
                    });
                    added.unwrap();
                    // One that repeats must not be waited for.
                    drop(timer::every(ms(1), || ()));
                    armed.send(()).unwrap();
                }
            };
            if use_caller {
                runtime.run(work);
            } else {
                runtime.spawn(work).join().unwrap();
            }
            is_armed.recv().unwrap();
            let writing = thread::spawn(move || {
                fibrant::hook::disabled(|| thread::sleep(ms(20)));
                writer.write_all(b"x").unwrap();
                writer
            });
            runtime.stop().unwrap();
            assert_eq!(done.load(SeqCst), 5, "{workers} workers, use_caller {use_caller}");
            assert!(runtime.dump().fibers.is_empty());
            assert!(runtime.dump().stopping && runtime.dump().workers.iter().all(|worker| worker.stopping));
            writing.join().unwrap();
        }
    }
}

#[test]
fn a_stopped_runtime_takes_no_more_work_from_outside() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(1, use_caller);
        watchdog.show(&runtime);
        runtime.stop().unwrap();
        let held = Census::default();
        type Refused<'a> = (&'a str, Box<dyn FnOnce() + 'a>);
        let refused: [Refused; 4] = [
            (
                "spawn",
                Box::new(|| {
                    drop(runtime.spawn({
                        let counted = held.count();
                        move || drop(counted)
                    }))
                }),
            ),
            ("spawn_on", Box::new(|| drop(runtime.spawn_on(0, || ())))),
            ("spawn_all", Box::new(|| drop(runtime.spawn_all([|| ()])))),
            ("run", Box::new(|| runtime.run(|| ()))),
        ];
        for (name, attempt) in refused {
            let payload = catch_unwind(AssertUnwindSafe(attempt)).expect_err(name);
            let message = text(&*payload);
            assert!(
                message.contains("the runtime 'test' has been stopped"),
                "{name}: {message}"
            );
        }
        assert_eq!(held.made(), held.dropped());
    }
}

#[test]
fn fibers_spawn_others_while_the_runtime_is_being_stopped() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = build(workers, false);
        watchdog.show(&runtime);
        let (spawned, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (all, count) = (Arc::clone(&spawned), Arc::clone(&ran));
        let handle = runtime.handle();
        runtime.spawn(move || {
            // Some of these come before the stop and some after it.
            for n in 0..200 {
                let count = Arc::clone(&count);
                let f = move || {
                    count.fetch_add(1, SeqCst);
                };
                drop(match n % 4 {
                    0 => fibrant::spawn(f),
                    1 => fibrant::spawn_local(f),
                    2 => handle.spawn_on(workers - 1, f),
                    _ => handle.spawn_all([f]).pop().unwrap(),
                });
                all.fetch_add(1, SeqCst);
                fibrant::sleep(Duration::from_micros(100));
            }
        });
        runtime.stop().unwrap();
        assert_eq!((spawned.load(SeqCst), ran.load(SeqCst)), (200, 200));
    }
}

#[test]
fn stop_from_a_fiber_is_an_error() {
    let watchdog = Watchdog::new();
    let runtime = Arc::new(build(1, false));
    watchdog.show(&runtime);
    let inside = Arc::clone(&runtime);
    let error = runtime.spawn(move || inside.stop().unwrap_err()).join().unwrap();
    assert!(error.to_string().contains("from a fiber"), "{error}");
    assert_eq!(runtime.spawn(|| 1).join().unwrap(), 1); // it was not stopped
    runtime.stop().unwrap();
}

#[test]
fn stopping_twice_and_from_two_threads_does_no_harm() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(2, use_caller);
        watchdog.show(&runtime);
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        drop(runtime.spawn_on(1, move || {
            fibrant::sleep(ms(5));
            flag.store(true, SeqCst);
        }));
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    runtime.stop().unwrap();
                    assert!(ended.load(SeqCst));
                });
            }
        });
        runtime.stop().unwrap();
        assert!(runtime.shutdown(Duration::ZERO).cancelled.is_empty());
    }
}

#[test]
fn no_wake_up_is_lost_at_a_stop() {
    let _watchdog = Watchdog::new();
    for round in 0..300 {
        let workers = round % 3 + 1;
        let runtime = build(workers, round % 2 == 0);
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..round % 5 {
            let count = Arc::clone(&ran);
            drop(runtime.spawn(move || {
                let inner = Arc::clone(&count);
                drop(fibrant::spawn(move || inner.fetch_add(1, SeqCst)));
                fibrant::yield_now();
                count.fetch_add(1, SeqCst);
            }));
        }
        runtime.stop().unwrap();
        assert_eq!(ran.load(SeqCst), round % 5 * 2, "round {round}");
    }
}

// shutdown

#[test]
fn a_shutdown_cancels_what_does_not_end_in_time() {
    let watchdog = Watchdog::new();
    for workers in [1, 2, 4] {
        for use_caller in [false, true] {
            let runtime = build(workers, use_caller);
            watchdog.show(&runtime);
            let held = Census::default();
            let (begun, may_end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let work = {
                let (held, begun) = (held.clone(), Arc::clone(&begun));
                move || {
                    for n in 0..12 {
                        let (counted, begun) = (held.count(), Arc::clone(&begun));
                        let f = move || {
                            let _counted = counted;
                            begun.fetch_add(1, SeqCst);
                            if n % 2 == 0 {
                                fiber::park()
                            } else {
                                fibrant::sleep(LONG)
                            }
                        };
                        drop(
                            fibrant::Builder::new()
                                .name(format!("fiber {n}"))
                                .spawn(f)
                                .unwrap(),
                        );
                    }
                }
            };
            if use_caller {
                runtime.run(|| ()); // from now on a join drives worker 0
            }
            runtime.spawn_on(workers - 1, work).join().unwrap();
            // A caller's worker stands still until somebody drives it.
            if !use_caller {
                eventually("all have begun", || begun.load(SeqCst) == 12);
            }
            may_end.store(true, SeqCst);
            let start = Instant::now();
            let report = runtime.shutdown(ms(50));
            assert!(start.elapsed() >= ms(50));
            assert!(start.elapsed() < BOUND);
            let mut names: Vec<_> = report
                .cancelled
                .iter()
                .map(|fiber| fiber.name.clone().unwrap())
                .collect();
            names.sort_by_key(|name| (name.len(), name.clone()));
            let expected: Vec<_> = (0..12).map(|n| format!("fiber {n}")).collect();
            assert_eq!(names, expected, "{workers} workers, use_caller {use_caller}");
            assert!(report.abandoned.is_empty(), "{:?}", report.abandoned);
            assert_eq!((held.made(), held.dropped()), (12, 12));
        }
    }
}

#[test]
fn a_shutdown_waits_for_what_ends_in_time() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(2, use_caller);
        watchdog.show(&runtime);
        let fiber = runtime.spawn(|| {
            fibrant::sleep(ms(5));
            "in time"
        });
        let start = Instant::now();
        let report = runtime.shutdown(LONG);
        assert!(
            report.cancelled.is_empty() && report.abandoned.is_empty(),
            "{report:?}"
        );
        assert!(start.elapsed() < PATIENCE);
        assert_eq!(fiber.join().unwrap(), "in time");
    }
}

#[test]
fn a_shutdown_ends_fibers_that_have_not_started() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(1, use_caller);
        watchdog.show(&runtime);
        let held = Census::default();
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        if !use_caller {
            // Keeps the worker until the shutdown has begun.
            drop(runtime.spawn(move || {
                begun.send(()).unwrap();
                let _ = may_go.recv();
                fibrant::hook::disabled(|| thread::sleep(ms(5)));
            }));
            has_begun.recv().unwrap();
        }
        let fibers: Vec<_> = (0..20)
            .map(|_| {
                let counted = held.count();
                runtime.spawn_on(0, move || drop(counted))
            })
            .collect();
        drop(go);
        let start = Instant::now();
        runtime.shutdown(Duration::ZERO);
        assert!(start.elapsed() < BOUND);
        for fiber in fibers {
            // It ran or it did not: there is an end for whoever joins.
            if let Err(payload) = fiber.join() {
                assert!(payload.is::<Cancelled>());
            }
        }
        assert_eq!((held.made(), held.dropped()), (20, 20));
    }
}

/// A runtime whose worker 0 belongs to a thread that does `before` with it, and `after` when it is told to go on, by dropping what is returned.
fn owned_by_another<T: Send>(
    workers: usize,
    before: impl FnOnce(&Runtime) -> T + Send,
    meanwhile: impl FnOnce(&Runtime, T),
    after: impl FnOnce(&Runtime) + Send,
) {
    let watchdog = Watchdog::new();
    let runtime = build(workers, true);
    watchdog.show(&runtime);
    thread::scope(|s| {
        let (ready, is_ready) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let owner = s.spawn({
            let runtime = &runtime;
            move || {
                ready.send(before(runtime)).unwrap();
                let _ = may_go.recv();
                after(runtime);
            }
        });
        meanwhile(&runtime, is_ready.recv().unwrap());
        drop(go);
        owner.join().unwrap();
    });
}

#[test]
fn a_shutdown_completes_the_fibers_of_worker_0_whose_thread_is_elsewhere() {
    for workers in [1, 2] {
        let held = Census::default();
        let (free, bound, local) = (held.count(), held.count(), held.count());
        owned_by_another(
            workers,
            |runtime| {
                runtime.run(|| {
                    // Not Send, and so nobody else may drop it. It is not started, as nobody waits for it.
                    let local = (Rc::new(()), local);
                    drop(fibrant::spawn_local(move || drop(local)));
                });
                // One that has started stays when whoever drives the worker for another goes away.
                let parked = runtime.spawn_on(0, fiber::park);
                runtime.spawn_on(0, || ()).join().unwrap();
                parked
            },
            |runtime, parked| {
                let free = runtime.spawn(move || drop(free));
                let bound = runtime.spawn_on(0, move || drop(bound));
                let start = Instant::now();
                let report = runtime.shutdown(Duration::ZERO);
                assert!(start.elapsed() < BOUND);
                let is_abandoned = |id| report.abandoned.iter().any(|fiber| fiber.id == id);
                assert!(
                    is_abandoned(parked.id()) && is_abandoned(bound.id()),
                    "{report:?}"
                );
                assert!(!is_abandoned(free.id()), "{report:?}");
                for fiber in [parked, bound] {
                    let result = fiber.join_timeout(PATIENCE).expect("it is completed");
                    assert!(result.unwrap_err().is::<Cancelled>());
                }
                match free.join_timeout(PATIENCE).expect("it is completed") {
                    // The other worker may have run it.
                    Ok(()) => assert_eq!(workers, 2),
                    Err(payload) => assert!(payload.is::<Cancelled>()),
                }
                // Only what may be dropped anywhere.
                assert_eq!((held.made(), held.dropped()), (3, 1));
            },
            |_| {},
        );
    }
}

#[test]
fn whoever_leaves_worker_0_after_a_shutdown_completes_its_fibers() {
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let watchdog = Watchdog::new();
    let runtime = build(1, true);
    watchdog.show(&runtime);
    thread::scope(|s| {
        let owner = s.spawn({
            let runtime = &runtime;
            move || {
                runtime.run(|| {
                    begun.send(()).unwrap();
                    fibrant::hook::disabled(|| may_go.recv()).unwrap_err();
                });
            }
        });
        has_begun.recv().unwrap();
        let fiber = runtime.spawn_on(0, || ());
        let report = runtime.shutdown(Duration::ZERO);
        assert!(
            report.abandoned.iter().any(|late| late.id == fiber.id()),
            "{report:?}"
        );
        assert!(!fiber.is_finished());
        drop(go);
        let result = fiber.join_timeout(PATIENCE).expect("it is completed");
        assert!(result.unwrap_err().is::<Cancelled>());
        owner.join().unwrap();
    });
}

#[test]
fn a_worker_0_that_was_given_up_is_not_entered_again() {
    let (hand_over, handed) = mpsc::channel::<fibrant::JoinHandle<()>>();
    owned_by_another(
        1,
        |runtime| {
            runtime.run(|| ());
        },
        |runtime, ()| {
            let fiber = runtime.spawn_on(0, || ());
            runtime.shutdown(Duration::ZERO);
            hand_over.send(fiber).unwrap();
        },
        move |runtime| {
            let fiber = handed.recv().unwrap();
            assert!(fiber.join().unwrap_err().is::<Cancelled>());
            let entered = AssertUnwindSafe(|| runtime.run(|| unreachable!()));
            let payload = catch_unwind(entered).unwrap_err();
            assert!(text(&*payload).contains("takes no more work"));
            assert!(runtime.shutdown(Duration::ZERO).cancelled.is_empty());
        },
    );
}

#[test]
fn a_join_that_drives_worker_0_and_a_shutdown_elsewhere_both_end() {
    let _watchdog = Watchdog::new();
    for round in 0..300 {
        let runtime = build(1, true);
        let start = std::sync::Barrier::new(2);
        thread::scope(|s| {
            let owner = s.spawn(|| {
                runtime.run(|| ());
                let fiber = runtime.spawn_on(0, fiber::park);
                start.wait();
                catch_unwind(AssertUnwindSafe(|| fiber.join()))
            });
            start.wait();
            // Another moment in each round.
            (0..round % 100).for_each(|_| std::hint::spin_loop());
            let report = runtime.shutdown(Duration::ZERO);
            // Nobody who goes on is called abandoned.
            assert!(report.abandoned.is_empty(), "{report:?}");
            match owner.join().unwrap() {
                Ok(result) => assert!(result.unwrap_err().is::<Cancelled>()),
                // It was driving, and was cancelled like every other.
                Err(payload) => assert!(text(&*payload).contains("shut the runtime")),
            }
        });
    }
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn what_a_shutdown_drops_may_join_another_that_has_not_started() {
    let heard = Arc::new(AtomicUsize::new(0));
    // By the thread that shuts it down, by the owner when it leaves, and by a worker's own thread.
    for (use_caller, is_owner) in [(true, false), (true, true), (false, false)] {
        let watchdog = Watchdog::new();
        let runtime = build(1, use_caller);
        watchdog.show(&runtime);
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        heard.store(0, SeqCst);
        let hold = move || {
            begun.send(()).unwrap();
            fibrant::hook::disabled(|| may_go.recv()).unwrap_err();
        };
        thread::scope(|s| {
            let runtime = &runtime;
            match (use_caller, is_owner) {
                (false, _) => drop(runtime.spawn(hold)),
                (true, true) => drop(s.spawn(move || runtime.run(hold))),
                (true, false) => {
                    // It has run, and is elsewhere.
                    s.spawn(|| runtime.run(|| ())).join().unwrap();
                    s.spawn(hold);
                }
            }
            has_begun.recv().unwrap();
            let hearer = Arc::clone(&heard);
            let (joined, to_join) = mpsc::channel::<fibrant::JoinHandle<()>>();
            let joins = OnDrop(move || {
                let result = to_join.recv().unwrap().join();
                assert!(result.unwrap_err().is::<Cancelled>());
                hearer.fetch_add(1, SeqCst);
            });
            // The one that joins is the first in line.
            drop(runtime.spawn(move || drop(joins)));
            joined.send(runtime.spawn(|| ())).unwrap();
            let mut go = Some(go);
            if use_caller {
                runtime.shutdown(Duration::ZERO);
                drop(go.take());
            } else {
                // It comes back when the crew is over, and finds both.
                s.spawn(move || {
                    thread::sleep(ms(1500));
                    drop(go);
                });
                runtime.shutdown(Duration::ZERO);
            }
        });
        // The worker's thread may come back after the shutdown has given it up.
        eventually("it has heard of the other's end", || heard.load(SeqCst) == 1);
    }
}

#[test]
fn what_a_timer_holds_may_join_and_spawn_when_a_shutdown_drops_it() {
    let (told, hears) = mpsc::channel();
    owned_by_another(
        2,
        |runtime| {
            // So that worker 1 does not take what waits at worker 0.
            let (begun, has_begun) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            drop(runtime.spawn_on(1, move || {
                begun.send(()).unwrap();
                fibrant::hook::disabled(|| may_go.recv()).unwrap_err();
            }));
            has_begun.recv().unwrap();
            runtime.run(|| {
                let mut joined = Some(fibrant::spawn(|| ()));
                let joins = OnDrop(move || {
                    let spawned = fibrant::spawn(|| ());
                    let local = fibrant::spawn_local(|| ());
                    for fiber in [joined.take().unwrap(), spawned, local] {
                        told.send(fiber.join().unwrap_err().is::<Cancelled>()).unwrap();
                    }
                });
                drop(timer::after(LONG, move || drop(joins)));
            });
            go
        },
        |runtime, go| {
            runtime.shutdown(Duration::ZERO);
            assert_eq!(hears.try_iter().collect::<Vec<_>>(), [true; 3]);
            drop(go);
        },
        |_| (),
    );
}

#[test]
fn what_is_spawned_again_and_again_as_it_is_dropped_comes_to_an_end() {
    /// Spawns another of its kind when it is dropped, until the count is at its end. It may have to be refused.
    struct Again(Arc<AtomicUsize>);
    impl Drop for Again {
        fn drop(&mut self) {
            // Far more than a stack has room for.
            if self.0.fetch_add(1, SeqCst) < 100_000 && Runtime::current().is_some() {
                let again = Again(Arc::clone(&self.0));
                drop(fibrant::spawn(move || drop(again)));
            }
        }
    }
    let watchdog = Watchdog::new();
    let runtime = build(1, true);
    watchdog.show(&runtime);
    let count = Arc::new(AtomicUsize::new(0));
    let again = Again(Arc::clone(&count));
    runtime.run(|| drop(timer::after(LONG, move || drop(again))));
    runtime.shutdown(Duration::ZERO);
    // The timer's, and the one that it has spawned: when that is dropped, there is no runtime any more.
    assert_eq!(count.load(SeqCst), 2);
}

#[test]
fn what_a_guest_leaves_behind_may_join_a_fiber_of_a_worker() {
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    let mut slow = Some(runtime.spawn(|| fibrant::sleep(ms(20))));
    let joined = Arc::new(AtomicBool::new(false));
    let joins = OnDrop({
        let joined = Arc::clone(&joined);
        move || {
            slow.take().unwrap().join().unwrap();
            joined.store(true, SeqCst);
        }
    });
    runtime.run(|| {
        fibrant::io::add_event(fd, Event::READ, move || drop(joins)).unwrap();
        // The guest does not wait any more, and what it is told is done as it leaves.
        fibrant::hook::disabled(|| {
            thread::scope(|s| {
                assert!(
                    s.spawn(|| fibrant::io::cancel_event(fd, Event::READ))
                        .join()
                        .unwrap()
                )
            });
        });
    });
    assert!(joined.load(SeqCst));
    // It has nothing to do with what comes later.
    let report = runtime.shutdown(Duration::ZERO);
    assert!(report.cancelled.is_empty(), "{report:?}");
}

#[test]
fn nothing_of_a_fiber_that_waits_in_its_thread_locals_end_is_dropped() {
    /// Waits for good when the thread-local is dropped.
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            fiber::park();
        }
    }
    thread_local!(static WAITS: Waits = const { Waits });
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let dropped = Arc::new(AtomicBool::new(false));
    let result = OnDrop({
        let dropped = Arc::clone(&dropped);
        move || {
            dropped.store(true, SeqCst);
            resume_unwind(Box::new("it is dropped"));
        }
    });
    let waits = runtime.spawn(move || {
        WAITS.with(|_| ());
        result
    });
    wait_until_it_waits(&runtime.handle(), waits.id());
    let other = runtime.spawn(|| {
        let _stays = fibrant::defer_cancel();
        fiber::park();
    });
    wait_until_it_waits(&runtime.handle(), other.id());
    let report = runtime.shutdown(Duration::ZERO);
    assert_eq!(report.abandoned.len(), 2, "{report:?}");
    for fiber in [other.join().unwrap_err(), waits.join().map(drop).unwrap_err()] {
        assert!(fiber.is::<Cancelled>());
    }
    assert!(!dropped.load(SeqCst));
}

/// Has a fiber of worker 0 do something when worker 1 has gone, and ever since fibers that are about to start at worker 0 are given to worker 1.
fn when_worker_1_has_gone<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> fibrant::JoinHandle<T> {
    let watchdog = Watchdog::new();
    let runtime = build(2, false);
    watchdog.show(&runtime);
    let other = runtime.run_on(1, thread_number);
    // A worker finds out every eight starts who is to have what it starts next: the last time at the 97th.
    for _ in 0..100 {
        let parked = runtime.spawn_on(0, || {
            let _stays = fibrant::defer_cancel();
            fiber::park();
        });
        wait_until_it_waits(&runtime.handle(), parked.id());
    }
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let acts = runtime.spawn_on(0, move || {
        begun.send(()).unwrap();
        fibrant::hook::disabled(|| may_go.recv()).unwrap();
        act()
    });
    has_begun.recv().unwrap();
    thread::scope(|s| {
        s.spawn(|| runtime.shutdown(Duration::ZERO));
        let task = format!("/proc/self/task/{other}");
        eventually("worker 1 has gone", || !std::path::Path::new(&task).exists());
        go.send(()).unwrap();
    });
    acts
}

#[test]
fn a_fiber_is_not_handed_to_a_worker_that_has_gone() {
    let spawner = when_worker_1_has_gone(|| fibrant::spawn(|| ()));
    let spawned = spawner.join_timeout(PATIENCE).expect("it ends").unwrap();
    let result = spawned.join_timeout(PATIENCE).expect("it is completed");
    assert!(result.unwrap_err().is::<Cancelled>());
}

#[test]
fn a_fiber_that_goes_to_a_worker_that_has_gone_is_abandoned() {
    // SAFETY: nothing that the fiber has on its stack is bound to its thread.
    let moves = when_worker_1_has_gone(|| unsafe { fibrant::switch_to(1) });
    let result = moves.join_timeout(PATIENCE).expect("it is completed");
    assert!(result.unwrap_err().is::<Cancelled>());
}

#[test]
fn whoever_waits_for_a_fiber_that_goes_to_a_worker_that_has_gone_is_told() {
    let watchdog = Watchdog::new();
    let runtime = build(2, true);
    watchdog.show(&runtime);
    let other = runtime.spawn_on(1, thread_number).join().unwrap();
    let (parks, parked) = mpsc::channel();
    thread::scope(|s| {
        // The function given to `run` goes on when the runtime is over, and so do fibers that it waits for.
        let owner = s.spawn(|| {
            runtime.run(|| {
                let _stays = fibrant::defer_cancel();
                let moves = fibrant::Builder::new().worker(0).spawn(move || {
                    let _stays = fibrant::defer_cancel();
                    parks.send(fiber::current().unwrap()).unwrap();
                    fiber::park();
                    // SAFETY: nothing that the fiber has on its stack is bound to its thread.
                    unsafe { fibrant::switch_to(1) };
                });
                moves.unwrap().join()
            })
        });
        let moves = parked.recv().unwrap();
        wait_until_it_waits(&runtime.handle(), moves.id());
        s.spawn(|| runtime.shutdown(Duration::ZERO));
        let task = format!("/proc/self/task/{other}");
        eventually("worker 1 has gone", || !std::path::Path::new(&task).exists());
        moves.unpark();
        assert!(owner.join().unwrap().unwrap_err().is::<Cancelled>());
    });
}

#[test]
fn a_runtime_stops_though_a_guests_timer_panics_when_it_is_dropped() {
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    drop(runtime.spawn(move || {
        begun.send(()).unwrap();
        fibrant::hook::disabled(|| may_go.recv()).unwrap_err();
    }));
    has_begun.recv().unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let panics = OnDrop({
        let dropped = Arc::clone(&dropped);
        move || {
            dropped.store(true, SeqCst);
            resume_unwind(Box::new("it is dropped"));
        }
    });
    // The timer is on its way to the worker, which is busy.
    runtime.run(move || assert!(timer::after(LONG, move || drop(panics)).cancel()));
    assert!(!dropped.load(SeqCst));
    drop(go);
    runtime.stop().unwrap();
    assert!(dropped.load(SeqCst));
}

#[test]
fn a_panic_of_what_a_shutdown_drops_does_not_keep_it_from_the_rest() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dropped);
    owned_by_another(
        1,
        move |runtime| {
            runtime.run(|| {
                for _ in 0..3 {
                    let count = Arc::clone(&count);
                    let panics = OnDrop(move || {
                        count.fetch_add(1, SeqCst);
                        // What it panics with panics in turn.
                        resume_unwind(Box::new(OnDrop(|| resume_unwind(Box::new("it is dropped")))));
                    });
                    drop(timer::after(LONG, move || drop(panics)));
                }
            });
        },
        |runtime, ()| {
            let fiber = runtime.spawn_on(0, || ());
            runtime.shutdown(Duration::ZERO);
            let result = fiber.join_timeout(PATIENCE).expect("it is completed");
            assert!(result.unwrap_err().is::<Cancelled>());
        },
        |_| {},
    );
    assert_eq!(dropped.load(SeqCst), 3);
}

#[test]
fn a_fiber_that_shuts_another_runtime_down_may_drop_what_waits() {
    let waited = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&waited);
    owned_by_another(
        1,
        move |runtime| {
            runtime.run(|| {
                let waits = OnDrop(move || {
                    thread::sleep(ms(1));
                    fibrant::sleep(ms(1));
                    note.store(true, SeqCst);
                });
                drop(timer::after(LONG, move || drop(waits)));
            });
            runtime.spawn_on(0, || ());
            let parked = runtime.spawn_on(0, fiber::park);
            runtime.spawn_on(0, || ()).join().unwrap();
            parked
        },
        |runtime, parked| {
            fibrant::run(|| {
                let other = fibrant::spawn(|| fibrant::sleep(ms(5)));
                runtime.shutdown(Duration::ZERO);
                other.join().unwrap();
            });
            assert!(parked.join().unwrap_err().is::<Cancelled>());
        },
        |_| {},
    );
    assert!(waited.load(SeqCst));
}

#[test]
fn a_panic_of_a_timers_function_that_another_thread_cancels_hurts_nobody() {
    let _watchdog = Watchdog::new();
    let (sender, receiver) = mpsc::channel::<fibrant::timer::Timer>();
    let (dropping, is_dropped) = mpsc::channel();
    let canceller = thread::spawn(move || receiver.recv().unwrap().cancel());
    fibrant::run(|| {
        // It would wait for a fiber that only this worker could run: that is a panic.
        let bound = fibrant::Builder::new().worker(0).spawn(fiber::park).unwrap();
        fibrant::yield_now();
        let mut bound = Some(bound);
        let joins = OnDrop(move || {
            let bound = bound.take().unwrap();
            let join = catch_unwind(AssertUnwindSafe(|| bound.join()));
            dropping.send(text(&*join.unwrap_err()).to_owned()).unwrap();
            resume_unwind(Box::new(OnDrop(|| resume_unwind(Box::new("it is dropped")))));
        });
        sender.send(timer::after(LONG, move || drop(joins))).unwrap();
        let message = is_dropped.recv().unwrap();
        assert!(message.contains("on its own worker"), "{message}");
    });
    assert!(canceller.join().unwrap());
}

#[test]
fn a_patience_without_end_is_no_error() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(1, use_caller);
        watchdog.show(&runtime);
        let fiber = runtime.spawn(|| fibrant::sleep(ms(5)));
        let report = runtime.shutdown(Duration::MAX);
        assert!(report.cancelled.is_empty() && fiber.is_finished());
    }
}

#[test]
fn what_is_let_in_while_a_shutdown_begins_comes_to_its_end() {
    let _watchdog = Watchdog::new();
    for round in 0..1000 {
        let runtime = build(1, false);
        let start = std::sync::Barrier::new(3);
        let (visit, spawned) = thread::scope(|s| {
            // Each takes a while from the moment in which it is let in to that in which a worker has it: a guest makes itself at home, a
            // large function is copied.
            let visitor = s.spawn(|| {
                start.wait();
                catch_unwind(AssertUnwindSafe(|| runtime.run(|| fibrant::spawn(|| ()).join())))
            });
            let spawner = s.spawn(|| {
                let large = [round as u8; 1 << 12];
                start.wait();
                catch_unwind(AssertUnwindSafe(|| runtime.spawn(move || large[5]).join()))
            });
            start.wait();
            if round % 3 == 0 {
                thread::yield_now();
            }
            // Another moment in each round.
            (0..round % 60).for_each(|_| std::hint::spin_loop());
            let report = runtime.shutdown(Duration::ZERO);
            assert!(report.abandoned.is_empty(), "{report:?}");
            (visitor.join().unwrap(), spawner.join().unwrap())
        });
        // It was not let in; or it was, and has ended or been cancelled.
        let is_refused = |payload: Box<dyn Any + Send>| {
            let text = text(&*payload);
            text.contains("takes no more work") || text.contains("shut the runtime")
        };
        match visit {
            Ok(Ok(())) => {}
            Ok(Err(payload)) => assert!(payload.is::<Cancelled>()),
            Err(payload) => assert!(is_refused(payload)),
        }
        match spawned {
            Ok(Ok(number)) => assert_eq!(number, round as u8),
            Ok(Err(payload)) => assert!(payload.is::<Cancelled>()),
            Err(payload) => assert!(is_refused(payload)),
        }
    }
}

#[test]
fn a_fiber_that_puts_off_its_cancel_for_ever_is_abandoned() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        for use_caller in [false, true] {
            let runtime = build(workers, use_caller);
            watchdog.show(&runtime);
            let held = Census::default();
            let counted = held.count();
            let stubborn = move || {
                let _counted = counted;
                let _guard = fibrant::defer_cancel();
                loop {
                    fiber::park();
                }
            };
            let handle = runtime.handle();
            if use_caller {
                runtime.run(|| ()); // from now on a join drives worker 0
            }
            let spawner = runtime.spawn_on(workers - 1, move || {
                let builder = fibrant::Builder::new().name("stubborn").worker(workers - 1);
                builder.spawn(stubborn).unwrap()
            });
            let mut stubborn = spawner.join().unwrap();
            while !handle
                .dump()
                .fibers
                .iter()
                .any(|fiber| fiber.id == stubborn.id() && fiber.wait == Some(WaitReason::Parked))
            {
                stubborn = stubborn.join_timeout(ms(1)).unwrap_err();
            }
            let other = handle.spawn_on(0, fiber::park);
            let start = Instant::now();
            let report = runtime.shutdown(ms(100));
            assert!(start.elapsed() < BOUND);
            let abandoned: Vec<_> = report.abandoned.iter().map(|fiber| fiber.id).collect();
            assert_eq!(abandoned, [stubborn.id()], "{report:?}");
            assert_eq!(report.abandoned[0].name.as_deref(), Some("stubborn"));
            assert_eq!(report.abandoned[0].wait, Some(WaitReason::Parked));
            assert_eq!(report.cancelled.len(), 2, "{report:?}");
            // The other one ended as it should; whoever joins the abandoned one does not wait for ever.
            assert!(other.join().unwrap_err().is::<Cancelled>());
            stubborn.fiber().unpark(); // too late, and harmless
            assert!(stubborn.join().unwrap_err().is::<Cancelled>());
            assert_eq!(held.dropped(), 0); // it never runs again, so nothing that it holds is dropped
            drop(runtime);
            handle.dump();
        }
    }
}

#[test]
fn a_fiber_that_computes_for_ever_is_abandoned() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = build(workers, false);
        watchdog.show(&runtime);
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        let (begun, has_begun) = mpsc::channel();
        let computes = runtime.spawn_on(workers - 1, move || {
            begun.send(()).unwrap();
            while !flag.load(SeqCst) {
                fibrant::hook::disabled(thread::yield_now);
            }
        });
        has_begun.recv().unwrap();
        let parked = runtime.spawn_on(0, fiber::park);
        let start = Instant::now();
        let report = runtime.shutdown(Duration::ZERO);
        let time = start.elapsed();
        let id = computes.id();
        over.store(true, SeqCst); // or it would go on for as long as the tests
        assert!(time < BOUND, "{time:?}");
        assert!(report.cancelled.iter().any(|fiber| fiber.id == id), "{report:?}");
        assert!(report.abandoned.iter().any(|fiber| fiber.id == id), "{report:?}");
        // When the thread comes back at last, whoever joins gets an answer.
        let _ = computes.join();
        let _ = parked.join();
    }
}

#[test]
fn what_run_on_has_borrowed_outlasts_a_fiber_that_is_abandoned() {
    /// What is borrowed.
    struct Lent<'a>(&'a AtomicBool);
    impl Drop for Lent<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    static IS_GONE: AtomicBool = AtomicBool::new(false);
    static OVER: AtomicBool = AtomicBool::new(false);
    let watchdog = Watchdog::new();
    let runtime = build(2, false);
    watchdog.show(&runtime);
    let (begun, has_begun) = mpsc::channel();
    let (ended, has_ended) = mpsc::channel();
    let handle = runtime.handle();
    let lender = thread::spawn(move || {
        let lent = Lent(&IS_GONE);
        handle.run_on(0, || {
            // This one waits and can be abandoned; the other one computes, on a thread that does not come back.
            fibrant::scope(|s| {
                let borrower = || {
                    begun.send(()).unwrap();
                    while !OVER.load(SeqCst) {
                        assert!(!lent.0.load(SeqCst));
                        fibrant::hook::disabled(thread::yield_now);
                    }
                    ended.send(lent.0.load(SeqCst)).unwrap();
                };
                s.spawn_with(fibrant::Builder::new().worker(1), borrower).unwrap();
            });
        });
    });
    has_begun.recv().unwrap();
    let report = runtime.shutdown(Duration::ZERO);
    assert_eq!(report.abandoned.len(), 2, "{report:?}");
    // Had it been told of the end, it would have gone on by now.
    thread::sleep(ms(200));
    OVER.store(true, SeqCst);
    assert!(!has_ended.recv().unwrap(), "it is used and gone");
    assert!(!lender.is_finished(), "it waits for one that never ends");
}

#[test]
fn a_fiber_that_yields_for_ever_is_abandoned_and_runs_no_more() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(1, use_caller);
        watchdog.show(&runtime);
        let (turns, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, flag) = (Arc::clone(&turns), Arc::clone(&over));
        if use_caller {
            runtime.run(|| ()); // from now on a join drives worker 0
        }
        let mut yields = runtime.spawn(move || {
            while !flag.load(SeqCst) {
                count.fetch_add(1, SeqCst);
                fibrant::yield_now();
            }
        });
        while turns.load(SeqCst) == 0 {
            yields = yields.join_timeout(ms(1)).unwrap_err();
        }
        let start = Instant::now();
        let report = runtime.shutdown(ms(5));
        let (time, after) = (start.elapsed(), turns.load(SeqCst));
        fibrant::hook::disabled(|| thread::sleep(ms(20)));
        let later = turns.load(SeqCst);
        over.store(true, SeqCst);
        assert!(time < BOUND, "{time:?}");
        assert!(
            report.abandoned.iter().any(|fiber| fiber.id == yields.id()),
            "{report:?}"
        );
        assert!(after > 0);
        assert_eq!(after, later, "it ran after the shutdown");
    }
}

#[test]
fn a_fiber_that_is_spawned_after_the_others_were_cancelled_is_cancelled_too() {
    /// Says that its fiber unwinds.
    struct Tells(mpsc::Sender<()>);
    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let watchdog = Watchdog::new();
    let runtime = build(2, false);
    watchdog.show(&runtime);
    let held = Census::default();
    let counted = held.count();
    let (cancelled, hears) = mpsc::channel();
    let parked = runtime.spawn_on(0, move || {
        let _tells = Tells(cancelled);
        fiber::park();
    });
    wait_until_it_waits(&runtime, parked.id());
    let (begun, has_begun) = mpsc::channel();
    let spawner = runtime.spawn_on(1, move || {
        begun.send(()).unwrap();
        hears.recv().unwrap(); // keeps its worker until the shutdown has cancelled everyone
        drop(fibrant::spawn_local(move || {
            let _counted = counted;
            fiber::park();
        }));
    });
    has_begun.recv().unwrap();
    let report = runtime.shutdown(Duration::ZERO);
    assert!(report.abandoned.is_empty(), "{:?}", report.abandoned);
    assert_eq!((held.made(), held.dropped()), (1, 1));
    spawner.join().unwrap();
}

#[test]
fn a_shutdown_drops_pending_timers_and_events_without_waiting_for_them() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let held = Census::default();
        // A shutdown that gives up only after its whole patience is no answer: the best of some counts, as the machine may be
        // busy.
        let times = (0..3).map(|_| {
            let runtime = build(workers, false);
            watchdog.show(&runtime);
            let (timer, repeating, event) = (held.count(), held.count(), held.count());
            let streams = runtime.spawn(move || {
                let (ours, theirs) = UnixStream::pair().unwrap();
                drop(timer::after(LONG, move || drop(timer)));
                drop(timer::every(LONG, move || {
                    let _ = &repeating;
                }));
                fibrant::io::add_event(ours.as_raw_fd(), Event::READ, move || drop(event)).unwrap();
                (ours, theirs)
            });
            let (ours, _theirs) = streams.join().unwrap();
            let start = Instant::now();
            runtime.shutdown(Duration::ZERO);
            let time = start.elapsed();
            drop(runtime);
            drop(ours);
            time
        });
        let best = times.min().unwrap();
        assert_eq!(
            (held.made(), held.dropped()),
            (9, 9),
            "what they held was dropped"
        );
        assert!(best < ms(700), "{best:?} to drop a timer and an event");
    }
}

#[test]
fn run_returns_at_once_although_a_timer_is_pending() {
    let _watchdog = Watchdog::new();
    let times = (0..3).map(|_| {
        let start = Instant::now();
        fibrant::run(|| drop(timer::after(LONG, || ())));
        start.elapsed()
    });
    let best = times.min().unwrap();
    assert!(best < ms(700), "{best:?}");
}

// Dropping.

#[test]
fn dropping_a_runtime_ends_its_fibers() {
    let _watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(2, use_caller);
        let held = Census::default();
        let counted = held.count();
        let parked = runtime.spawn_on(1, move || {
            let _counted = counted;
            fiber::park();
        });
        wait_until_it_waits(&runtime, parked.id());
        let handle = runtime.handle();
        let start = Instant::now();
        drop(runtime);
        assert!(start.elapsed() < BOUND);
        assert_eq!(held.dropped(), 1);
        assert!(parked.join().unwrap_err().is::<Cancelled>());
        // The handle is still there, and says so.
        let payload = catch_unwind(AssertUnwindSafe(|| handle.spawn(|| ()))).unwrap_err();
        assert!(text(&*payload).contains("has been stopped"));
        assert!(handle.dump().stopping);
        assert_eq!(handle.workers(), 2);
    }
}

#[test]
fn dropping_a_runtime_in_one_of_its_own_fibers_does_not_deadlock() {
    let _watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = build(workers, false);
        let handle = runtime.handle();
        let held = Census::default();
        let counted = held.count();
        let parked = runtime.spawn(move || {
            let _counted = counted;
            fiber::park();
        });
        wait_until_it_waits(&runtime, parked.id());
        let (sender, receiver) = mpsc::channel();
        let fiber = handle.spawn(move || {
            drop(runtime);
            sender.send(()).unwrap(); // it goes on
            fibrant::spawn(|| 5).join().map_err(drop)
        });
        receiver
            .recv_timeout(PATIENCE)
            .expect("dropping the runtime returns");
        // It goes on to its end, and so do the others.
        let _ = fiber.join().unwrap();
        assert!(parked.join().unwrap_err().is::<Cancelled>());
        assert_eq!(held.dropped(), 1);
        let wanted = || handle.dump().workers.iter().all(|worker| !worker.active);
        eventually("its workers leave by themselves", wanted);
    }
}

#[test]
fn a_runtime_may_be_dropped_in_a_fiber_of_another() {
    let watchdog = Watchdog::new();
    let outer = build(1, false);
    watchdog.show(&outer);
    let inner = build(1, false);
    let parked = inner.spawn(fiber::park);
    outer.spawn(move || drop(inner)).join().unwrap();
    assert!(parked.join().unwrap_err().is::<Cancelled>());
}

/// How many entries a directory of this process has in /proc.
fn entries(of: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count()
}

#[test]
fn runtimes_leave_neither_descriptors_nor_threads_behind() {
    const TEST: &str = "runtimes_leave_neither_descriptors_nor_threads_behind";
    // In a process of its own: other tests open descriptors and start threads.
    if common::case().is_none() {
        common::child(TEST, "alone", &[]).succeeded();
        return;
    }
    let _watchdog = Watchdog::new();
    let cycle = |n: usize| {
        let runtime = build(3, n & 1 == 0);
        let fiber = runtime.spawn_on(1, || {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let reader = fibrant::spawn(move || {
                fibrant::io::wait(ours.as_raw_fd(), Event::READ, None).unwrap();
            });
            fibrant::sleep(ms(1));
            theirs.write_all(b"x").unwrap();
            reader.join().unwrap();
        });
        fiber.join().unwrap();
        // A closure that panics leaves nothing behind, either.
        let panicking = AssertUnwindSafe(|| runtime.run(|| resume_unwind(Box::new(n))));
        assert!(catch_unwind(panicking).is_err());
        match n % 3 {
            0 => runtime.stop().unwrap(),
            1 => drop(runtime.shutdown(Duration::ZERO)),
            _ => runtime.run(|| ()),
        }
        drop(runtime);
        fibrant::run(|| fibrant::sleep(Duration::from_micros(1)));
    };
    (0..12).for_each(cycle); // until each kind has been there: desks are kept for the next runtime
    let (descriptors, threads) = (entries("fd"), entries("task"));
    (0..50).for_each(cycle);
    assert_eq!(entries("fd"), descriptors);
    // A joined thread may be seen for a moment longer.
    eventually("the threads are gone", || entries("task") <= threads);
}

// Dumps.

/// Checks that a text is JSON, and nothing more.
fn check_json(text: &str) -> Result<(), String> {
    fn space(text: &[u8], mut at: usize) -> usize {
        while text.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        at
    }
    fn string(text: &[u8], at: usize) -> Result<usize, String> {
        if text.get(at) != Some(&b'"') {
            return Err(format!("no string at {at}"));
        }
        let mut at = at + 1;
        loop {
            match text.get(at) {
                Some(b'"') => return Ok(at + 1),
                Some(b'\\') => match text.get(at + 1) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                    Some(b'u') => {
                        let digits = text.get(at + 2..at + 6).ok_or("a cut escape")?;
                        if !digits.iter().all(u8::is_ascii_hexdigit) {
                            return Err(format!("a wrong escape at {at}"));
                        }
                        at += 6;
                    }
                    _ => return Err(format!("a wrong escape at {at}")),
                },
                Some(byte) if *byte >= 0x20 => at += 1,
                _ => return Err(format!("a string that does not end at {at}")),
            }
        }
    }
    fn list(text: &[u8], at: usize, end: u8, object: bool) -> Result<usize, String> {
        let mut at = space(text, at);
        if text.get(at) == Some(&end) {
            return Ok(at + 1);
        }
        loop {
            if object {
                at = space(text, string(text, space(text, at))?);
                if text.get(at) != Some(&b':') {
                    return Err(format!("no colon at {at}"));
                }
                at += 1;
            }
            at = space(text, value(text, at)?);
            match text.get(at) {
                Some(b',') => at += 1,
                Some(byte) if *byte == end => return Ok(at + 1),
                _ => return Err(format!("neither a comma nor an end at {at}")),
            }
        }
    }
    fn value(text: &[u8], at: usize) -> Result<usize, String> {
        let at = space(text, at);
        let rest = &text[at..];
        for word in ["true", "false", "null"] {
            if rest.starts_with(word.as_bytes()) {
                return Ok(at + word.len());
            }
        }
        match rest.first() {
            Some(b'{') => list(text, at + 1, b'}', true),
            Some(b'[') => list(text, at + 1, b']', false),
            Some(b'"') => string(text, at),
            Some(byte) if byte.is_ascii_digit() || *byte == b'-' => {
                let length = rest
                    .iter()
                    .take_while(|byte| b"0123456789+-.eE".contains(byte))
                    .count();
                Ok(at + length)
            }
            _ => Err(format!("no value at {at}")),
        }
    }
    let end = space(text.as_bytes(), value(text.as_bytes(), 0)?);
    if end == text.len() {
        Ok(())
    } else {
        Err(format!("something follows at {end}"))
    }
}

#[test]
fn the_json_checker_tells_json_from_other_text() {
    for right in [
        "{}",
        " [1, -2.5e3, \"a\\u00e9\\n\", true, null] ",
        "{\"a\":{\"b\":[]}}",
    ] {
        assert_eq!(check_json(right), Ok(()), "{right}");
    }
    for wrong in [
        "", "{", "{\"a\"}", "[1,]", "\"a\nb\"", "{} {}", "\"\\x\"", "{a:1}",
    ] {
        assert!(check_json(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_dump_shows_what_every_fiber_does_and_where_it_was_spawned() {
    let watchdog = Watchdog::new();
    let runtime = build(2, false);
    watchdog.show(&runtime);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    let handle = runtime.handle();
    let (sender, receiver) = mpsc::channel();
    let line = line!() + 5;
    let owner = runtime.spawn_on(1, move || {
        let named = |name: &str| fibrant::Builder::new().name(name).worker(0);
        let _ours = ours;
        let mut fibers = vec![
            named("says \"park\"\n").spawn(fiber::park).unwrap(), // in this line
            named("sleeps").spawn(|| fibrant::sleep(LONG)).unwrap(),
            named("reads")
                .spawn(move || drop(fibrant::io::wait(fd, Event::READ, None)))
                .unwrap(),
            named("scopes")
                .spawn(|| fibrant::scope(|s| drop(s.spawn(fiber::park))))
                .unwrap(),
        ];
        let target = handle.spawn_on(0, fiber::park);
        let target_id = target.id();
        fibers.push(named("joins").spawn(move || drop(target.join())).unwrap());
        sender.send((target_id, fibers)).unwrap();
        // A timer, an event and the caller's own wait.
        drop(timer::after(LONG, || ()));
        let (mine, its) = UnixStream::pair().unwrap();
        fibrant::io::add_event(mine.as_raw_fd(), Event::READ, || ()).unwrap();
        fiber::park();
        fibrant::io::del_event(mine.as_raw_fd(), Event::READ);
        drop(its);
    });
    let (target, fibers) = receiver.recv().unwrap();
    let mut ids: Vec<u64> = fibers.iter().map(|fiber| fiber.id()).collect();
    ids.extend([target, owner.id()]);
    ids.iter().for_each(|id| wait_until_it_waits(&runtime, *id));
    // Workers publish some of their figures when they poll, which they do before they sleep.
    eventually("the workers are idle, and have said so", || {
        let workers = runtime.dump().workers;
        workers
            .iter()
            .all(|worker| worker.idle && worker.polls > 0 && worker.timers > 0)
    });

    let dump = runtime.dump();
    assert_eq!((dump.runtime.as_str(), dump.stopping), ("test", false));
    let find = |id: u64| dump.fibers.iter().find(|fiber| fiber.id == id).unwrap();
    let reasons: Vec<_> = ids[..5].iter().map(|id| find(*id).wait.unwrap()).collect();
    let descriptor = WaitReason::Descriptor {
        fd,
        read: true,
        write: false,
    };
    let joining = WaitReason::Joining { fiber: target };
    let expected = [
        WaitReason::Parked,
        WaitReason::Sleeping,
        descriptor,
        WaitReason::Scope,
        joining,
    ];
    assert_eq!(reasons, expected);
    for (fiber, id) in fibers.iter().zip(&ids) {
        let shown = find(*id);
        assert_eq!(shown.name.as_deref(), fiber.name());
        assert_eq!(
            (shown.worker, shown.state, shown.cancelled),
            (0, FiberState::Waiting, false)
        );
        assert!(shown.waited.is_some_and(|waited| waited < PATIENCE));
    }
    // Time passes.
    let since = find(ids[0]).waited;
    eventually("it has waited for longer", || {
        let later = runtime.dump().fibers;
        let shown = later.iter().find(|fiber| fiber.id == ids[0]).unwrap();
        shown.waited > since.map(|since| since + ms(10))
    });
    assert_eq!(find(owner.id()).worker, 1);
    let place = &find(ids[0]).spawned_at;
    assert!(
        place.contains("runtime.rs") && place.contains(&format!(":{line}:")),
        "{place}, not line {line}"
    );

    assert_eq!(dump.workers.len(), 2);
    for (index, worker) in dump.workers.iter().enumerate() {
        assert_eq!((worker.index, worker.active, worker.idle), (index, true, true));
        assert!(
            worker.thread > 0 && worker.polls > 0 && worker.switches > 0,
            "{worker:?}"
        );
        assert_eq!(
            (worker.current, worker.ready, worker.fresh, worker.bound),
            (None, 0, 0, 0)
        );
        assert!(!worker.guest && !worker.stopping, "{worker:?}");
        assert_eq!(
            worker.started,
            dump.fibers.iter().filter(|fiber| fiber.worker == index).count()
        );
    }
    assert_ne!(dump.workers[0].thread, dump.workers[1].thread);
    assert_eq!((dump.workers[1].timers, dump.workers[1].events), (1, 1));
    assert!(dump.workers[0].timers >= 1);

    let shown = dump.to_string();
    let parts = [
        "runtime 'test': 2 workers".to_owned(),
        "worker 0 (thread ".to_owned(),
        "parked".to_owned(),
        "sleeping".to_owned(),
        format!("waiting for input on descriptor {fd}"),
        format!("joining fiber {target}"),
        "waiting for the fibers of its scope".to_owned(),
        format!("fiber {} 'sleeps'", ids[1]),
        place.clone(),
    ];
    for part in parts {
        assert!(shown.contains(&part), "'{part}' is not in\n{shown}");
    }
    let json = dump.to_json();
    check_json(&json).unwrap_or_else(|error| panic!("{error}:\n{json}"));
    let parts = [
        format!("\"id\":{}", ids[1]),
        "\"name\":\"sleeps\"".to_owned(),
        "says \\\"park\\\"\\u000a".to_owned(),
        "\"wait\":\"sleeping\"".to_owned(),
        "\"workers\":[{\"index\":0".to_owned(),
    ];
    for part in parts {
        assert!(json.contains(&part), "'{part}' is not in\n{json}");
    }
    fibers[1].cancel();
    drop(fibers);
    theirs.write_all(b"x").unwrap();
    owner.fiber().unpark();
    owner.join().unwrap();
    runtime.shutdown(Duration::ZERO);
    assert!(runtime.dump().stopping);
    assert!(runtime.dump().to_string().contains("stopping"));
}

#[test]
fn a_dump_is_to_be_had_while_a_worker_computes() {
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&over);
    let (begun, has_begun) = mpsc::channel();
    let parked = runtime.spawn(fiber::park);
    wait_until_it_waits(&runtime, parked.id());
    let computes = runtime.spawn(move || {
        begun.send(()).unwrap();
        while !flag.load(SeqCst) {
            fibrant::hook::disabled(thread::yield_now);
        }
    });
    has_begun.recv().unwrap();
    parked.fiber().unpark();
    let fresh = runtime.spawn(|| ());
    fresh.cancel();
    let bound = runtime.spawn_on(0, || ());
    let Dump { workers, fibers, .. } = runtime.dump();
    over.store(true, SeqCst);
    assert_eq!(workers[0].current, Some(computes.id()));
    let lengths = |worker: &WorkerDump| (worker.ready, worker.fresh, worker.bound, worker.started);
    assert_eq!((workers[0].idle, lengths(&workers[0])), (false, (1, 1, 1, 2)));
    let shown = fibers.iter().find(|fiber| fiber.id == computes.id()).unwrap();
    assert_eq!(
        (shown.state, shown.wait, shown.waited),
        (FiberState::Running, None, None)
    );
    let shown = fibers.iter().find(|fiber| fiber.id == fresh.id()).unwrap();
    assert_eq!(
        (shown.state, shown.cancelled, shown.wait),
        (FiberState::Fresh, true, None)
    );
    // It was unparked by this thread, so it is in the inbox.
    let shown = fibers.iter().find(|fiber| fiber.id == parked.id()).unwrap();
    assert_eq!((shown.state, shown.wait), (FiberState::Ready, None));
    computes.join().unwrap();
    parked.join().unwrap();
    bound.join().unwrap();
}

/// Dumps never lose a fiber, and never show one twice, while fibers are passed from worker to worker.
#[test]
fn a_dump_shows_each_fiber_once_while_they_change_workers() {
    const MOVERS: usize = 3;
    const DUMPS: usize = 10_000;
    let watchdog = Watchdog::new();
    let runtime = build(3, false);
    watchdog.show(&runtime);
    let over = Arc::new(AtomicBool::new(false));
    let movers: Vec<_> = (0..MOVERS)
        .map(|n| {
            let over = Arc::clone(&over);
            runtime.spawn(move || {
                let mut worker = n;
                while !over.load(SeqCst) {
                    worker += 1;
                    // SAFETY: nothing here belongs to a thread.
                    unsafe { fibrant::switch_to(worker % 3) };
                    // Often they are still, or nobody could ever see them all.
                    fibrant::sleep(Duration::from_micros(100));
                }
            })
        })
        .collect();
    let mut ids: Vec<u64> = movers.iter().map(|mover| mover.id()).collect();
    ids.sort_unstable();
    let is_complete = |_: &usize| {
        let mut shown: Vec<u64> = runtime.dump().fibers.iter().map(|fiber| fiber.id).collect();
        shown.sort_unstable();
        shown == ids
    };
    let complete = (0..DUMPS).filter(is_complete).count();
    over.store(true, SeqCst);
    movers.into_iter().for_each(|mover| mover.join().unwrap());
    runtime.stop().unwrap();
    // One who moves may lose its processor just then, for longer than a dump waits.
    assert!(complete >= DUMPS - DUMPS / 50, "{complete} of {DUMPS}");
}

/// A fiber that is just on its way from one worker to another is waited for by a shutdown that has lost its patience.
#[test]
fn a_shutdown_waits_for_those_who_change_workers() {
    let watchdog = Watchdog::new();
    let start = Instant::now();
    for round in 0..2000 {
        if start.elapsed() > Duration::from_secs(20) {
            break; // a busy machine has its own interruptions
        }
        let runtime = build(2, false);
        watchdog.show(&runtime);
        let moves = Arc::new(AtomicUsize::new(0));
        let moved = Arc::clone(&moves);
        let mover = runtime.spawn(move || {
            loop {
                for worker in [0, 1, 0, 1] {
                    // SAFETY: nothing here belongs to a thread.
                    unsafe { fibrant::switch_to(worker) };
                    moved.fetch_add(1, SeqCst);
                }
                fibrant::fiber::park_timeout(Duration::ZERO);
            }
        });
        while moves.load(SeqCst) < 2 + round % 7 {
            thread::yield_now();
        }
        let report = runtime.shutdown(Duration::ZERO);
        let Ok(result) = mover.join_timeout(Duration::from_secs(20)) else {
            panic!("round {round}: nobody has ended it: {report:?}");
        };
        assert!(result.unwrap_err().is::<fibrant::Cancelled>());
        assert!(report.abandoned.is_empty(), "round {round}: {report:?}");
    }
}

// Deadlock help.

#[test]
fn the_dump_is_printed_once_when_nothing_can_ever_run() {
    const TEST: &str = "the_dump_is_printed_once_when_nothing_can_ever_run";
    let Some(case) = common::case() else {
        // All at once: they mostly wait.
        thread::scope(|s| {
            let expect = |case: &'static str, setting: String, times: usize| {
                s.spawn(move || {
                    let stderr = common::child(TEST, case, &[("FIBRANT", &setting)])
                        .succeeded()
                        .stderr();
                    assert_eq!(stderr.matches("no fiber of").count(), times, "{case}: {stderr}");
                    stderr
                })
            };
            for workers in [1, 2] {
                let setting = || format!("deadlock=300ms,workers={workers}");
                let stuck = expect("stuck", setting(), 1);
                expect("in run", setting(), 1);
                expect("guest waits", setting(), 1);
                for innocent in [
                    "timer",
                    "sleep",
                    "event",
                    "spawn_blocking",
                    "nothing",
                    "computes",
                    "run computes",
                    "guest computes",
                ] {
                    expect(innocent, setting(), 0);
                }
                let stderr = stuck.join().unwrap();
                for part in [
                    "no fiber of 'stuck'",
                    "joining fiber",
                    "parked",
                    "'waits for it'",
                    "runtime.rs:",
                ] {
                    assert!(stderr.contains(part), "'{part}' is not in\n{stderr}");
                }
            }
            expect("stuck", "workers=1".to_owned(), 0); // never without being asked
            expect("by the builder", String::new(), 1);
        });
        return;
    };
    let _watchdog = Watchdog::new();
    let mut builder = Builder::new().name("stuck");
    if case == "by the builder" {
        builder = builder.workers(2).deadlock_after(ms(300));
    }
    let runtime = builder.build().unwrap();
    let wait = || fibrant::hook::disabled(|| thread::sleep(ms(1200)));
    match case.as_str() {
        "stuck" | "by the builder" => {
            let parked = runtime.spawn(fiber::park);
            let unpark = parked.fiber().clone();
            let handle = runtime.handle();
            let joins = runtime.spawn(move || {
                let waits = fibrant::Builder::new().name("waits for it");
                waits
                    .spawn(move || parked.join().unwrap())
                    .unwrap()
                    .join()
                    .unwrap();
                drop(handle);
            });
            wait();
            // It was no error: the program goes on, and this plain thread ends it.
            unpark.unpark();
            joins.join().unwrap();
            let again = runtime.spawn(fiber::park);
            wait(); // a second time is not printed
            again.cancel();
            assert!(again.join().is_err());
        }
        "in run" => fibrant::run(|| {
            let parked = fibrant::spawn(fiber::park);
            let unpark = parked.fiber().clone();
            let waker = thread::spawn(move || {
                wait();
                unpark.unpark();
            });
            parked.join().unwrap();
            fibrant::spawn_blocking(|| waker.join().unwrap()).join().unwrap();
        }),
        "nothing" => wait(),
        "run computes" => fibrant::run(|| {
            drop(fibrant::spawn(fiber::park));
            fibrant::sleep(ms(10)); // so that it has been idle
            wait(); // the thread is busy, as far as the runtime knows
        }),
        "guest waits" => {
            let waker = runtime.run(|| {
                let myself = fiber::current().unwrap();
                let waker = thread::spawn(move || {
                    wait();
                    myself.unpark();
                });
                fiber::park();
                waker
            });
            waker.join().unwrap();
        }
        "guest computes" => {
            drop(runtime.spawn(fiber::park));
            runtime.run(|| {
                fibrant::sleep(ms(10));
                wait();
            });
        }
        innocent => {
            let parked = runtime.spawn(fiber::park);
            let innocent = innocent.to_owned();
            let (sender, receiver) = mpsc::channel();
            let over = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&over);
            let other = runtime.spawn(move || {
                match innocent.as_str() {
                    "timer" => drop(timer::after(LONG, || ())),
                    "sleep" => drop(fibrant::spawn(|| fibrant::sleep(LONG))),
                    "event" => {
                        let (ours, theirs) = UnixStream::pair().unwrap();
                        fibrant::io::add_event(ours.as_raw_fd(), Event::READ, || ()).unwrap();
                        sender.send((ours, theirs)).unwrap();
                    }
                    "computes" => {
                        while !flag.load(SeqCst) {
                            fibrant::hook::disabled(|| thread::sleep(ms(1)));
                        }
                    }
                    _ => drop(fibrant::spawn_blocking(|| {
                        fibrant::hook::disabled(|| thread::sleep(ms(1600)))
                    })), // longer than this test looks
                }
                fiber::park();
            });
            wait();
            drop(receiver.try_recv());
            over.store(true, SeqCst);
            parked.cancel();
            other.cancel();
            runtime.shutdown(Duration::ZERO);
        }
    }
}

#[test]
fn a_fiber_that_waits_for_a_descriptor_is_no_deadlock() {
    const TEST: &str = "a_fiber_that_waits_for_a_descriptor_is_no_deadlock";
    if common::case().is_none() {
        let child = common::child(TEST, "waits", &[("FIBRANT", "deadlock=300ms")]).succeeded();
        assert_eq!(
            child.stderr().matches("no fiber of").count(),
            0,
            "{}",
            child.stderr()
        );
        return;
    }
    let _watchdog = Watchdog::new();
    let runtime = build(1, false);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // A server that nobody talks to for a while.
    let reader = runtime.spawn(move || fibrant::io::wait(ours.as_raw_fd(), Event::READ, None).map(drop));
    fibrant::hook::disabled(|| thread::sleep(ms(1000)));
    theirs.write_all(b"x").unwrap();
    reader.join().unwrap().unwrap();
}

// Panics.

#[test]
fn a_panic_in_a_fiber_is_printed_like_a_threads_and_others_go_on() {
    const TEST: &str = "a_panic_in_a_fiber_is_printed_like_a_threads_and_others_go_on";
    if common::case().is_none() {
        let stderr = common::child(TEST, "panics", &[]).succeeded().stderr();
        // Whether somebody joins it or nobody does: as with threads.
        for part in [
            "joined in vain",
            "nobody joins this",
            "runtime.rs:",
            "panicked at",
        ] {
            assert!(stderr.contains(part), "'{part}' is not in\n{stderr}");
        }
        assert_eq!(stderr.matches("panicked at").count(), 3, "{stderr}");
        return;
    }
    let watchdog = Watchdog::new();
    let runtime = build(1, false);
    watchdog.show(&runtime);
    let other = RefCell::new(Some(runtime.spawn(|| {
        fibrant::sleep(ms(20));
        "goes on"
    })));
    let joined = runtime.spawn(|| panic!("joined in vain"));
    let payload = joined.join().unwrap_err();
    assert_eq!(text(&*payload), "joined in vain");
    drop(runtime.spawn(|| panic!("nobody joins this")));
    let local = runtime.spawn(|| {
        fibrant::spawn_local(|| panic!("number {}", 3))
            .join()
            .unwrap_err()
    });
    assert_eq!(text(&*local.join().unwrap()), "number 3");
    assert_eq!(other.take().unwrap().join().unwrap(), "goes on");
    runtime.stop().unwrap();
}

#[test]
fn a_fiber_that_starts_while_all_are_cancelled_is_reported_once() {
    for _ in 0..1000 {
        let runtime = Builder::new().workers(1).build().unwrap();
        let _parked = runtime.spawn(fibrant::fiber::park);
        assert_eq!(runtime.shutdown(Duration::ZERO).cancelled.len(), 1);
    }
}

#[test]
fn a_dump_says_where_each_fiber_was_spawned() {
    let watchdog = Watchdog::new();
    let runtime = build(1, true);
    watchdog.show(&runtime);
    let (mine, its) = UnixStream::pair().unwrap();
    let mut lines = Vec::new();
    macro_rules! noted {
        ($($spawn:tt)*) => {{ lines.push(line!()); $($spawn)* }};
    }
    runtime.run(|| {
        let handle = Runtime::current().unwrap();
        let mut fibers = vec![
            noted!(fibrant::spawn(fiber::park)),
            noted!(fibrant::spawn_local(fiber::park)),
            noted!(fibrant::Builder::new().spawn(fiber::park).unwrap()),
            noted!(handle.spawn(fiber::park)),
            noted!(handle.spawn_on(0, fiber::park)),
        ];
        fibers.extend(noted!(handle.spawn_all([fiber::park as fn()])));
        drop(noted!(timer::after(Duration::ZERO, fiber::park)));
        noted!(fibrant::io::add_event(its.as_raw_fd(), Event::WRITE, fiber::park)).unwrap();
        fibrant::scope(|s| {
            noted!(s.spawn(fiber::park));
            let mut fibers = Vec::new();
            eventually("all of them wait", || {
                fibers = handle.dump().fibers;
                fibers
                    .iter()
                    .filter(|fiber| fiber.wait == Some(WaitReason::Parked))
                    .count()
                    == lines.len()
            });
            for line in &lines {
                let is_there = |fiber: &FiberDump| fiber.spawned_at.contains(&format!("runtime.rs:{line}:"));
                assert!(fibers.iter().any(is_there), "line {line}: {fibers:?}");
            }
            runtime.shutdown(Duration::ZERO);
        });
    });
    drop(mine);
}
