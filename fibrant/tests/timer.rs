//! Timers and the waits that have a deadline: when they fire, where, how they are moved and ended.

mod common;
#[path = "common/waiting.rs"]
mod waiting;
#[path = "common/worker.rs"]
mod worker;

use fibrant::fiber;
use fibrant::io::{self, Event};
use fibrant::runtime::{Builder, Runtime};
use fibrant::timer::{self, Timer};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{self, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use waiting::{
    FAR, Numbers, eventually, eventually_some, in_runtime, in_runtimes, message, undisturbed, watched,
};
use worker::thread_number;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A year, about.
const YEAR: Duration = Duration::from_secs(31_556_952);

/// What fires, and how often it has. Whoever holds a copy shows in `copies`.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
    /// A function that counts its calls.
    fn counter(&self) -> impl Fn() + Send + 'static {
        let calls = Arc::clone(&self.0);
        move || {
            calls.fetch_add(1, SeqCst);
        }
    }
    /// How many functions made by `counter` exist.
    fn counters(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// The ways to act on a timer: as its own worker, as another one, as a plain thread.
const ACTORS: [Actor; 4] = [
    Actor::ItsFiber,
    Actor::AnotherFiber,
    Actor::AnotherWorker,
    Actor::Thread,
];

#[derive(Clone, Copy, Debug)]
enum Actor {
    /// The fiber that armed it.
    ItsFiber,
    /// Another fiber of its worker.
    AnotherFiber,
    /// A fiber of the last worker, which is another one if there are several.
    AnotherWorker,
    /// A thread that is no worker.
    Thread,
}

impl Actor {
    fn act<T: Send + 'static>(
        self,
        timer: &Arc<Timer>,
        workers: usize,
        action: impl Fn(&Timer) -> T + Send + 'static,
    ) -> T {
        let timer = Arc::clone(timer);
        match self {
            Actor::ItsFiber => action(&timer),
            Actor::AnotherFiber => fibrant::spawn_local(move || action(&timer)).join().unwrap(),
            Actor::AnotherWorker => fibrant::run_on(workers - 1, move || action(&timer)),
            // Joined as a thread: this worker cannot look after its timers meanwhile.
            Actor::Thread => thread::spawn(move || action(&timer)).join().unwrap(),
        }
    }
}

// Firing.

#[test]
fn a_timer_fires_once_and_not_early_as_a_fiber_on_the_worker_that_armed_it() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            fibrant::run_on(worker, || {
                let (sender, receiver) = mpsc::channel();
                let armed_by = (thread_number(), fiber::current().unwrap().id());
                let start = Instant::now();
                timer::after(ms(20), move || {
                    let here = (thread_number(), fiber::current().unwrap().id());
                    sender.send((start.elapsed(), here)).unwrap();
                });
                let (elapsed, fired_by) = eventually_some(|| receiver.try_recv().ok());
                assert!(elapsed >= ms(20), "it fired after {elapsed:?}");
                assert_eq!(fired_by.0, armed_by.0, "on its worker");
                assert_ne!(fired_by.1, armed_by.1, "in a fiber of its own");
                // The function is gone after its call, so that there cannot be another.
                eventually(|| receiver.try_recv() == Err(mpsc::TryRecvError::Disconnected));
            });
        }
    });
}

#[test]
fn a_timers_function_may_sleep_spawn_join_park_and_arm_timers() {
    in_runtimes(|_| {
        let (sender, receiver) = mpsc::channel();
        timer::after(ms(1), move || {
            let start = Instant::now();
            fibrant::sleep(ms(5));
            fiber::park_timeout(ms(5));
            assert!(start.elapsed() >= ms(10));
            assert_eq!(fibrant::spawn(|| 7).join().unwrap(), 7);
            timer::after(ms(1), move || sender.send(()).unwrap());
        });
        eventually_some(|| receiver.try_recv().ok());
    });
}

#[test]
fn timers_fire_in_the_order_of_their_deadlines() {
    in_runtimes(|_| {
        let fired: Arc<Mutex<Vec<usize>>> = Arc::default();
        let mut numbers = Numbers(1);
        // The deadline of each lies between these two moments: one may be held up while it arms them.
        let deadlines: Vec<(Instant, Instant)> = (0..300)
            .map(|index| {
                let delay = Duration::from_micros(numbers.below(80_000));
                let fired = Arc::clone(&fired);
                let before = Instant::now();
                timer::after(delay, move || fired.lock().unwrap().push(index));
                (before + delay, Instant::now() + delay)
            })
            .collect();
        eventually(|| fired.lock().unwrap().len() == deadlines.len());
        let fired = fired.lock().unwrap();
        for (place, &first) in fired.iter().enumerate() {
            for &second in &fired[place..] {
                assert!(
                    deadlines[first].0 <= deadlines[second].1,
                    "{first} fired before {second}, which was due earlier"
                );
            }
        }
    });
}

#[test]
fn a_timer_without_delay_fires_soon_but_not_inside_the_call_that_arms_it() {
    in_runtimes(|_| {
        let calls = Calls::default();
        let timer = timer::after(Duration::ZERO, calls.counter());
        assert_eq!(calls.count(), 0);
        eventually(|| calls.count() == 1);
        assert!(!timer.cancel());
    });
}

#[test]
fn dropping_the_handle_detaches_the_timer() {
    in_runtimes(|_| {
        let calls = Calls::default();
        let _ = timer::after(ms(5), calls.counter());
        let ticks = Calls::default();
        let alive = Arc::new(());
        let _ = timer::every_if(ms(1), Arc::downgrade(&alive), ticks.counter());
        eventually(|| calls.count() == 1 && ticks.count() >= 3);
    });
}

#[test]
fn a_panic_in_a_timers_function_harms_nobody_else() {
    in_runtimes(|_| {
        let calls = Calls::default();
        timer::after(ms(1), || panic::resume_unwind(Box::new("expected")));
        timer::after(ms(2), calls.counter());
        eventually(|| calls.count() == 1);
    });
}

#[test]
fn a_timer_fires_while_another_fiber_yields_for_ever() {
    in_runtime(1, || {
        let fired = Arc::new(AtomicBool::new(false));
        timer::after(ms(5), {
            let fired = Arc::clone(&fired);
            move || fired.store(true, SeqCst)
        });
        let start = Instant::now();
        while !fired.load(SeqCst) {
            assert!(start.elapsed() < Duration::from_secs(10), "the timer starves");
            fibrant::yield_now();
        }
    });
}

#[test]
fn timers_work_on_the_thread_that_calls_run() {
    watched(|| {
        fibrant::run(|| {
            let here = thread_number();
            let (sender, receiver) = mpsc::channel();
            timer::after(ms(5), move || sender.send(thread_number()).unwrap());
            assert_eq!(eventually_some(|| receiver.try_recv().ok()), here);
        });
    });
}

// Lengths without end.

#[test]
fn centuries_neither_overflow_nor_fire() {
    in_runtimes(|workers| {
        let calls = Calls::default();
        let lengths = [
            Duration::MAX,
            Duration::from_nanos(u64::MAX),
            Duration::from_nanos(u64::MAX - 1),
            Duration::from_secs(u64::MAX),
            500 * YEAR,
            YEAR,
        ];
        let timers: Vec<Arc<Timer>> = lengths
            .iter()
            .flat_map(|length| {
                [
                    timer::after(*length, calls.counter()),
                    timer::every(*length, calls.counter()),
                    timer::after_if(*length, Weak::<()>::new(), calls.counter()),
                ]
            })
            .map(Arc::new)
            .collect();
        let next = timer::next_deadline().unwrap();
        assert!(next > Instant::now() + YEAR - FAR);
        for timer in &timers {
            assert!(timer.refresh());
            assert!(timer.reset(Duration::MAX, false));
            assert!(timer.reset(Duration::MAX, true));
        }
        fibrant::sleep(ms(20));
        assert_eq!(calls.count(), 0);
        for (timer, actor) in timers.iter().zip(ACTORS.into_iter().cycle()) {
            assert!(actor.act(timer, workers, Timer::cancel));
        }
        eventually(|| calls.counters() == 0);
    });
}

#[test]
fn waits_may_be_as_long_as_they_like() {
    in_runtimes(|_| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let released = Arc::new(AtomicBool::new(false));
        let joined = fibrant::spawn({
            let released = Arc::clone(&released);
            move || eventually(|| released.load(SeqCst))
        });
        let waiting = [
            fibrant::spawn(|| fibrant::sleep(Duration::MAX)),
            fibrant::spawn(|| fiber::park_timeout(Duration::MAX)),
            fibrant::spawn(|| drop(joined.join_timeout(Duration::MAX))),
            fibrant::spawn(move || drop(io::wait(fd, Event::READ, Some(Duration::MAX)))),
            fibrant::spawn(|| fibrant::timeout(Duration::MAX, fiber::park).unwrap()),
        ];
        fibrant::sleep(ms(20));
        for fiber in waiting {
            assert!(!fiber.is_finished());
            fiber.cancel();
            assert!(fiber.join().unwrap_err().is::<fibrant::Cancelled>());
        }
        released.store(true, SeqCst);
    });
}

// Cancel.

#[test]
fn a_cancelled_timer_does_not_fire_whoever_cancels_it() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            let calls = Calls::default();
            let timer = Arc::new(timer::after(ms(30), calls.counter()));
            if actor.act(&timer, workers, Timer::cancel) {
                fibrant::sleep(ms(60));
                assert_eq!(calls.count(), 0, "{actor:?}");
            } else {
                assert!(
                    !matches!(actor, Actor::ItsFiber),
                    "its worker had no chance to fire it"
                );
                eventually(|| calls.count() == 1);
            }
            eventually(|| calls.counters() == 0); // the function is dropped, although the handle is still there
            assert!(
                !timer.cancel() && !timer.refresh() && !timer.reset(ms(1), true),
                "{actor:?}"
            );
        }
        // The sleeps of `eventually` are over, and so are the timers.
        assert!(!timer::has_timers());
    });
}

#[test]
fn a_cancelled_timers_function_is_dropped_at_once_and_not_at_its_deadline() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            let calls = Calls::default();
            let timer = Arc::new(timer::after(FAR, calls.counter()));
            let ticker = Arc::new(timer::every(FAR, calls.counter()));
            assert_eq!(calls.counters(), 2);
            assert!(actor.act(&timer, workers, Timer::cancel));
            assert!(actor.act(&ticker, workers, Timer::cancel));
            eventually(|| calls.counters() == 0);
            assert_eq!(calls.count(), 0);
        }
    });
}

#[test]
fn a_fired_timer_cannot_be_cancelled_refreshed_or_reset() {
    in_runtimes(|workers| {
        let calls = Calls::default();
        let timer = Arc::new(timer::after(ms(1), calls.counter()));
        eventually(|| calls.count() == 1);
        for actor in ACTORS {
            assert!(!actor.act(&timer, workers, Timer::cancel));
            assert!(!actor.act(&timer, workers, Timer::refresh));
            assert!(!actor.act(&timer, workers, |timer| timer.reset(ms(1), true)));
            assert!(!actor.act(&timer, workers, |timer| timer.reset(FAR, false)));
        }
        fibrant::sleep(ms(10));
        assert_eq!(calls.count(), 1);
    });
}

#[test]
fn the_handle_of_a_timer_that_is_over_leaves_later_timers_alone() {
    in_runtimes(|workers| {
        let calls = Calls::default();
        let fired = Arc::new(timer::after(ms(1), calls.counter()));
        eventually(|| calls.count() == 1);
        let cancelled = Arc::new(timer::after(FAR, calls.counter()));
        assert!(cancelled.cancel());
        // Where the two were kept there is room for these.
        let later: Vec<Timer> = (0..50).map(|_| timer::after(ms(20), calls.counter())).collect();
        for actor in ACTORS {
            for over in [&fired, &cancelled] {
                assert!(!actor.act(over, workers, Timer::cancel));
                assert!(!actor.act(over, workers, |timer| timer.reset(FAR, true)));
            }
        }
        eventually(|| calls.count() == 51);
        assert!(later.iter().all(|timer| !timer.cancel()));
    });
}

#[test]
fn a_timer_is_over_when_its_runtime_is() {
    let calls = Calls::default();
    for use_caller in [false, true] {
        let runtime = Builder::new().workers(1).use_caller(use_caller).build().unwrap();
        let timers = runtime.run(|| {
            [
                timer::after(FAR, calls.counter()),
                timer::every(FAR, calls.counter()),
            ]
        });
        runtime.shutdown(Duration::ZERO);
        for timer in &timers {
            assert!(
                !timer.refresh() && !timer.reset(ms(1), true) && !timer.cancel(),
                "{timer:?}"
            );
        }
        assert_eq!(
            (calls.count(), calls.counters()),
            (0, 0),
            "what they would have called is dropped"
        );
    }
}

#[test]
fn a_guests_timers_outlive_its_visit() {
    let runtime = Builder::new().workers(2).build().unwrap();
    let calls = Calls::default();
    let (cancelled, ticker) = runtime.run(|| {
        let _ = timer::after(ms(5), calls.counter());
        let cancelled = timer::after(FAR, calls.counter());
        // This may come before the timer has reached the worker that it belongs to.
        let soon_cancelled = timer::after(FAR, calls.counter());
        assert!(soon_cancelled.cancel());
        (cancelled, timer::every(ms(1), calls.counter()))
    });
    eventually(|| calls.count() >= 3);
    assert!(cancelled.cancel() && ticker.cancel());
    eventually(|| calls.counters() == 0);
    runtime.stop().unwrap();

    let runtime = Builder::new().workers(1).build().unwrap();
    let last = Calls::default();
    runtime.run(|| timer::after(ms(20), last.counter()));
    runtime.stop().unwrap();
    assert_eq!(last.count(), 1, "a stop waits for it");
}

#[test]
fn in_its_own_call_a_timer_has_fired() {
    in_runtimes(|_| {
        let timer: Arc<OnceLock<Timer>> = Arc::default();
        let (sender, receiver) = mpsc::channel();
        let armed = timer::after(ms(1), {
            let timer = Arc::clone(&timer);
            move || {
                let timer = timer.get().unwrap();
                sender
                    .send((timer.cancel(), timer.refresh(), timer.reset(ms(1), true)))
                    .unwrap();
            }
        });
        assert!(timer.set(armed).is_ok());
        assert_eq!(
            eventually_some(|| receiver.try_recv().ok()),
            (false, false, false)
        );
    });
}

#[test]
fn a_repeating_timer_may_be_cancelled_in_its_own_call() {
    in_runtimes(|_| {
        let timer: Arc<OnceLock<Timer>> = Arc::default();
        let calls = Calls::default();
        let counter = calls.counter();
        let armed = timer::every(ms(1), {
            let (timer, calls) = (Arc::clone(&timer), calls.clone());
            move || {
                counter();
                if calls.count() == 3 {
                    assert!(timer.get().unwrap().cancel());
                }
            }
        });
        assert!(timer.set(armed).is_ok());
        eventually(|| calls.count() == 3);
        fibrant::sleep(ms(20));
        assert_eq!(calls.count(), 3);
        assert!(!timer.get().unwrap().cancel());
    });
}

// Refresh and reset.

#[test]
fn a_refreshed_timer_begins_anew_whoever_refreshes_it() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            undisturbed(|| {
                let (sender, receiver) = mpsc::channel();
                let timer = Arc::new(timer::after(ms(60), move || sender.send(Instant::now()).unwrap()));
                let mut last = Instant::now();
                for _ in 0..5 {
                    fibrant::sleep(ms(20));
                    last = Instant::now();
                    if !actor.act(&timer, workers, Timer::refresh) {
                        return None; // held up for so long that it fired
                    }
                }
                let fired = eventually_some(|| receiver.try_recv().ok());
                assert!(
                    fired >= last + ms(60),
                    "{actor:?}: early by {:?}",
                    last + ms(60) - fired
                );
                Some(())
            });
        }
    });
}

#[test]
fn a_timer_may_be_moved_to_an_earlier_moment_whoever_moves_it() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            let (sender, receiver) = mpsc::channel();
            let timer = Arc::new(timer::after(FAR, move || sender.send(Instant::now()).unwrap()));
            let start = Instant::now();
            assert!(actor.act(&timer, workers, |timer| timer.reset(ms(20), true)));
            let fired = eventually_some(|| receiver.try_recv().ok());
            assert!(fired >= start + ms(20), "{actor:?}");
            assert!(!timer.cancel());
        }
    });
}

#[test]
fn a_timer_may_be_moved_to_an_earlier_moment_while_its_worker_sleeps() {
    in_runtimes(|workers| {
        let worker = workers - 1;
        let (sender, receiver) = mpsc::channel();
        let arm = || timer::after(FAR, move || sender.send(()).unwrap());
        let timer = fibrant::run_on(worker, arm);
        let asleep = Runtime::current().unwrap();
        thread::scope(|scope| {
            let mover = scope.spawn(|| {
                eventually(|| asleep.dump().workers[worker].idle);
                assert!(timer.reset(ms(1), true));
            });
            // Without a deadline of this fiber's own, which would end the sleep of a worker that is also this one.
            let done = fibrant::spawn_blocking(move || receiver.recv().unwrap());
            done.join().unwrap();
            mover.join().unwrap();
        });
    });
}

#[test]
fn a_timer_may_be_moved_to_a_later_moment_whoever_moves_it() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            undisturbed(|| {
                let calls = Calls::default();
                let timer = Arc::new(timer::after(ms(40), calls.counter()));
                if !actor.act(&timer, workers, |timer| timer.reset(FAR, true)) {
                    return None;
                }
                fibrant::sleep(ms(80));
                assert_eq!(calls.count(), 0, "{actor:?}");
                assert!(timer.cancel());
                Some(())
            });
        }
    });
}

#[test]
fn reset_counts_from_now_or_from_when_the_timer_was_begun() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            for from_now in [true, false] {
                undisturbed(|| {
                    let before = Instant::now();
                    let timer = Arc::new(timer::after(2 * FAR, || ()));
                    let armed = Instant::now();
                    fibrant::sleep(ms(20));
                    let reset_at = Instant::now();
                    assert!(actor.act(&timer, workers, move |timer| timer.reset(FAR, from_now)));
                    // A plain thread tells the worker, which looks when it polls.
                    let due = eventually_some(|| {
                        timer::next_deadline().filter(|due| *due < before + 2 * FAR - ms(500))
                    });
                    let from = if from_now { reset_at } else { before };
                    let to = if from_now { Instant::now() } else { armed };
                    assert!(timer.cancel());
                    assert!(due >= from + FAR, "{actor:?}, {from_now}");
                    // Two clocks are read, one after the other: a stall in between moves what is seen.
                    (due <= to + FAR + ms(5)).then_some(())
                });
            }
        }
    });
}

#[test]
fn a_reset_into_the_past_fires_at_once() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            let calls = Calls::default();
            let timer = Arc::new(timer::after(FAR, calls.counter()));
            fibrant::sleep(ms(5));
            assert!(actor.act(&timer, workers, |timer| timer.reset(ms(1), false)));
            eventually(|| calls.count() == 1);
        }
    });
}

#[test]
fn refresh_uses_the_length_that_reset_has_set() {
    in_runtimes(|_| {
        let timer = timer::after(ms(1), || ());
        assert!(timer.reset(FAR, true));
        let before = Instant::now();
        assert!(timer.refresh());
        assert!(timer::next_deadline().unwrap() >= before + FAR);
        assert!(timer.cancel());
    });
}

#[test]
fn a_repeating_timers_period_may_be_changed() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            let calls = Calls::default();
            let timer = Arc::new(timer::every(FAR, calls.counter()));
            assert!(actor.act(&timer, workers, |timer| timer.reset(ms(2), true)));
            eventually(|| calls.count() >= 3);
            assert!(actor.act(&timer, workers, |timer| timer.reset(FAR, true)));
            fibrant::sleep(ms(5)); // a call that had begun ends
            let before = calls.count();
            fibrant::sleep(ms(30));
            assert_eq!(calls.count(), before, "{actor:?}");
            assert!(timer.cancel());
        }
    });
}

#[test]
fn many_threads_may_move_one_timer_at_once() {
    in_runtimes(|_| {
        let calls = Calls::default();
        let timer = timer::after(FAR, calls.counter());
        let busy = AtomicUsize::new(4);
        thread::scope(|scope| {
            for seed in 0..4 {
                let (timer, busy) = (&timer, &busy);
                scope.spawn(move || {
                    let mut numbers = Numbers(seed);
                    for _ in 0..500 {
                        match numbers.below(3) {
                            0 => assert!(timer.refresh()),
                            1 => assert!(timer.reset(FAR, true)),
                            _ => assert!(timer.reset(FAR + ms(numbers.below(1000)), false)),
                        }
                    }
                    busy.fetch_sub(1, SeqCst);
                });
            }
            eventually(|| busy.load(SeqCst) == 0);
        });
        assert_eq!(calls.count(), 0);
        assert!(timer.reset(ms(1), true));
        eventually(|| calls.count() == 1);
        assert!(!timer.cancel());
    });
}

#[test]
fn of_a_cancel_and_a_firing_at_the_same_time_exactly_one_wins() {
    in_runtimes(|_| {
        for round in 0..200 {
            let calls = Calls::default();
            let timer = timer::after(Duration::from_micros(100), calls.counter());
            let cancelled = fibrant::spawn_blocking(move || {
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(round) {
                    std::hint::spin_loop();
                }
                timer.cancel()
            });
            let cancelled = cancelled.join().unwrap();
            eventually(|| calls.counters() == 0);
            assert_eq!(calls.count(), usize::from(!cancelled), "round {round}");
        }
    });
}

#[test]
fn a_timer_that_is_refreshed_just_as_it_is_due_does_not_fire_early() {
    in_runtimes(|_| {
        const LENGTH: Duration = ms(1);
        let mut numbers = Numbers(5);
        for round in 0..300 {
            let (sender, receiver) = mpsc::channel();
            let start = Instant::now();
            let timer = timer::after(LENGTH, move || sender.send(Instant::now()).unwrap());
            let pause = Duration::from_micros(900 + numbers.below(160));
            let refreshed = fibrant::spawn_blocking(move || {
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
                let now = Instant::now();
                timer.refresh().then_some(now)
            });
            let refreshed = refreshed.join().unwrap();
            let fired = eventually_some(|| receiver.try_recv().ok());
            let from = refreshed.unwrap_or(start);
            assert!(
                fired >= from + LENGTH,
                "round {round}: early by {:?}",
                from + LENGTH - fired
            );
        }
    });
}

// Repeating.

#[test]
fn a_repeating_timer_fires_every_period_and_never_early_until_it_is_cancelled() {
    in_runtimes(|workers| {
        for actor in ACTORS {
            let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
            let here = thread_number();
            let start = Instant::now();
            let timer = Arc::new(timer::every(ms(5), {
                let times = Arc::clone(&times);
                move || {
                    assert_eq!(thread_number(), here);
                    times.lock().unwrap().push(Instant::now());
                }
            }));
            eventually(|| times.lock().unwrap().len() >= 5);
            assert!(actor.act(&timer, workers, Timer::cancel));
            assert!(!timer.cancel() && !timer.refresh() && !timer.reset(ms(1), true));
            eventually(|| Arc::strong_count(&times) == 1 || Arc::strong_count(&timer) == 1);
            fibrant::sleep(ms(5)); // a call that had begun ends
            let calls = times.lock().unwrap().len();
            fibrant::sleep(ms(20));
            let times = times.lock().unwrap();
            assert_eq!(times.len(), calls, "{actor:?}: it went on");
            for (index, time) in times.iter().enumerate() {
                let due = start + ms(5) * (index as u32 + 1);
                assert!(*time >= due, "call {index} was early by {:?}", due - *time);
            }
        }
    });
}

#[test]
fn calls_of_a_repeating_timer_do_not_pile_up() {
    in_runtimes(|_| {
        const PERIOD: Duration = ms(4);
        let inside = Arc::new(AtomicUsize::new(0));
        let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let start = Instant::now();
        let timer = timer::every(PERIOD, {
            let (inside, times) = (Arc::clone(&inside), Arc::clone(&times));
            move || {
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two calls at once");
                let calls = {
                    let mut times = times.lock().unwrap();
                    times.push(Instant::now());
                    times.len()
                };
                if calls == 1 {
                    fibrant::sleep(10 * PERIOD);
                }
                inside.fetch_sub(1, SeqCst);
            }
        });
        eventually(|| times.lock().unwrap().len() >= 6);
        assert!(timer.cancel());
        eventually(|| inside.load(SeqCst) == 0);
        // Ten ticks have passed during the first call. They are left out, not made up for.
        let times = times.lock().unwrap();
        for (index, time) in times.iter().enumerate().skip(1) {
            let due = start + PERIOD * (10 + index as u32);
            assert!(
                *time >= due,
                "call {index} came {:?} before its tick",
                due - *time
            );
        }
    });
}

#[test]
fn a_repeating_timer_that_was_held_up_does_not_make_up_for_it() {
    in_runtimes(|_| {
        let calls = Calls::default();
        let timer = timer::every(ms(1), calls.counter());
        eventually(|| calls.count() >= 1);
        let before = calls.count();
        fibrant::hook::disabled(|| thread::sleep(ms(50))); // the whole worker stands still
        // Both turns lie within a tick or two, unless the machine is slow, which makes ticks come, not fewer calls.
        let start = Instant::now();
        fibrant::sleep(Duration::from_micros(1));
        let (caught_up, elapsed) = (calls.count() - before, start.elapsed());
        assert!(timer.cancel());
        let ticks = 2 + elapsed.as_millis() as usize;
        assert!(caught_up <= ticks, "{caught_up} calls within {elapsed:?}");
    });
}

#[test]
fn a_repeating_timer_whose_function_panics_ends() {
    in_runtimes(|_| {
        let calls = Calls::default();
        let counter = calls.counter();
        let timer = timer::every(ms(1), move || {
            counter();
            panic::resume_unwind(Box::new("expected"));
        });
        eventually(|| calls.count() == 1);
        eventually(|| !timer.refresh());
        fibrant::sleep(ms(10));
        assert_eq!(calls.count(), 1);
        assert!(!timer.cancel());
        eventually(|| calls.counters() == 0);
    });
}

#[test]
fn a_period_of_nothing_is_refused_with_a_reason() {
    in_runtime(1, || {
        let text = message(catch_unwind(|| timer::every(Duration::ZERO, || ())).unwrap_err());
        assert!(text.contains("period"), "{text}");
        let dead = Weak::<()>::new();
        let text = message(catch_unwind(|| timer::every_if(Duration::ZERO, dead, || ())).unwrap_err());
        assert!(text.contains("period"), "{text}");
        assert!(!timer::has_timers());
    });
}

// Conditions.

#[test]
fn a_conditional_timer_does_nothing_once_its_condition_is_dead() {
    in_runtimes(|_| {
        let calls = Calls::default();
        let condition = Arc::new(());
        timer::after_if(ms(5), Arc::downgrade(&condition), calls.counter());
        let ticker = timer::every_if(ms(5), Arc::downgrade(&condition), calls.counter());
        drop(condition); // before either has fired: nothing runs here in between
        timer::after_if(ms(1), Weak::<()>::new(), calls.counter());
        eventually(|| calls.counters() == 0);
        assert_eq!(calls.count(), 0);
        assert!(!ticker.cancel() && !ticker.refresh(), "it has ended by itself");
    });
}

#[test]
fn a_repeating_timer_ends_with_its_condition() {
    in_runtimes(|_| {
        let calls = Calls::default();
        let condition = Arc::new(());
        let ticker = timer::every_if(ms(1), Arc::downgrade(&condition), calls.counter());
        eventually(|| calls.count() >= 3);
        drop(condition);
        eventually(|| calls.counters() == 0);
        assert!(!ticker.cancel());
        let before = calls.count();
        fibrant::sleep(ms(10));
        assert_eq!(calls.count(), before);
        assert!(!timer::has_timers());
    });
}

#[test]
fn a_condition_is_held_during_the_call_and_not_between_calls() {
    in_runtimes(|_| {
        for repeating in [false, true] {
            let condition = Arc::new(());
            let weak = Arc::downgrade(&condition);
            let (sender, receiver) = mpsc::channel();
            let go_on = Arc::new(AtomicBool::new(false));
            let f = {
                let (weak, go_on) = (weak.clone(), Arc::clone(&go_on));
                move || {
                    sender.send(()).unwrap();
                    eventually(|| go_on.load(SeqCst));
                    assert_eq!(weak.strong_count(), 1, "the call alone holds it");
                }
            };
            let timer = if repeating {
                timer::every_if(ms(1), weak.clone(), f)
            } else {
                timer::after_if(ms(1), weak.clone(), f)
            };
            assert_eq!(weak.strong_count(), 1, "an armed timer does not hold it");
            eventually_some(|| receiver.try_recv().ok());
            assert_eq!(weak.strong_count(), 2);
            drop(condition);
            assert_eq!(weak.strong_count(), 1);
            go_on.store(true, SeqCst);
            eventually(|| weak.strong_count() == 0);
            eventually(|| receiver.try_recv() == Err(mpsc::TryRecvError::Disconnected));
            assert!(!timer.cancel());
        }
    });
}

// Where there is no runtime.

#[test]
fn arming_a_timer_outside_a_runtime_panics_and_says_what_to_do() {
    let arms: [fn() -> Timer; 4] = [
        || timer::after(ms(1), || ()),
        || timer::every(ms(1), || ()),
        || timer::after_if(ms(1), Weak::<()>::new(), || ()),
        || timer::every_if(ms(1), Weak::<()>::new(), || ()),
    ];
    for arm in arms {
        let text = message(catch_unwind(arm).unwrap_err());
        assert!(
            text.contains("outside a runtime") && text.contains("fibrant::run"),
            "{text}"
        );
    }
    assert_eq!(timer::next_deadline(), None);
    assert!(!timer::has_timers());
}

// What a worker knows of its deadlines.

#[test]
fn the_next_deadline_is_that_of_the_earliest_timer_or_sleep_of_this_worker() {
    in_runtimes(|workers| {
        assert_eq!((timer::next_deadline(), timer::has_timers()), (None, false));
        let before = Instant::now();
        let late = timer::after(2 * FAR, || ());
        let due = timer::next_deadline().unwrap();
        assert!(timer::has_timers());
        assert!(due >= before + 2 * FAR && due < before + 3 * FAR);

        let early = timer::every(FAR, || ());
        let due = timer::next_deadline().unwrap();
        assert!(due >= before + FAR && due < before + 2 * FAR);

        let sleeper = fibrant::spawn_local(|| fibrant::sleep(FAR / 2));
        fibrant::yield_now();
        let due = timer::next_deadline().unwrap();
        assert!(due >= before + FAR / 2 && due < before + FAR);

        if workers > 1 {
            let elsewhere = fibrant::run_on(1, || (timer::next_deadline(), timer::has_timers()));
            assert_eq!(elsewhere, (None, false));
        }

        sleeper.cancel();
        sleeper.join().unwrap_err();
        let due = timer::next_deadline().unwrap();
        assert!(due >= before + FAR && due < before + 2 * FAR);
        assert!(early.cancel());
        let due = timer::next_deadline().unwrap();
        assert!(due >= before + 2 * FAR && due < before + 3 * FAR);
        assert!(late.cancel());
        assert_eq!((timer::next_deadline(), timer::has_timers()), (None, false));
    });
}

#[test]
fn the_next_deadline_is_right_though_timers_were_cancelled_moved_and_armed_anew() {
    const HOUR: Duration = Duration::from_secs(3600);
    in_runtimes(|_| {
        let before = Instant::now();
        let is_after = |hours: u32| {
            let next = timer::next_deadline().unwrap();
            assert!(next >= before + hours * HOUR, "{next:?}");
            assert!(next < before + hours * HOUR + HOUR / 2, "{next:?}");
        };
        let arm = |hours: u32| timer::after(hours * HOUR, || ());
        let [first, second, third] = [2, 4, 6].map(arm);
        is_after(2);
        assert!(first.cancel());
        is_after(4);
        assert!(second.reset(8 * HOUR, true));
        is_after(6);
        let earlier = arm(1);
        is_after(1);
        assert!(earlier.cancel());
        let later = arm(10);
        is_after(6);
        assert!(third.cancel());
        is_after(8);
        assert!(second.reset(3 * HOUR, true));
        is_after(3);
        assert!(second.cancel());
        is_after(10);
        assert!(later.cancel());
        assert_eq!(timer::next_deadline(), None);
    });
}

/// Cancelled and moved timers leave something behind, of which nobody is to hear.
#[test]
fn a_cancelled_or_moved_timer_wakes_nobody() {
    watched(|| {
        let runtime = Builder::new().workers(1).build().unwrap();
        let moved = runtime.run_on(0, || {
            let arm = |index| timer::after(ms(100) + ms(index), || panic!("it was cancelled"));
            let timers: Vec<_> = (0..400).map(arm).collect();
            let (cancelled, moved): (Vec<_>, Vec<_>) = timers
                .into_iter()
                .enumerate()
                .partition(|(index, _)| index % 2 == 0);
            assert!(cancelled.iter().all(|(_, timer)| timer.cancel()));
            assert!(moved.iter().all(|(_, timer)| timer.reset(FAR, true)));
            moved
        });
        eventually(|| runtime.dump().workers[0].idle);
        let polls = || runtime.dump().workers[0].polls;
        let before = polls();
        thread::sleep(ms(700));
        let during = polls() - before;
        assert!(during < 50, "{during} times");
        assert_eq!(runtime.dump().workers[0].timers, 200);
        assert!(moved.iter().all(|(_, timer)| timer.cancel()));
        runtime.stop().unwrap();
    });
}

#[test]
fn timers_are_on_time_whatever_became_of_those_before_them() {
    in_runtimes(|workers| {
        let mut random = Numbers(workers as u64);
        let mut moment = || {
            let due = Instant::now() + ms(random.below(60));
            (due, random.below(4))
        };
        let left = |due: Instant| due.saturating_duration_since(Instant::now());
        let fired = Arc::new(Mutex::new(Vec::new()));
        let mut expected = Vec::new();
        for number in 0..600 {
            let (mut due, fate) = moment();
            if fate == 0 {
                assert!(timer::after(FAR, || ()).cancel()); // the next one may have its place
            }
            let calls = Arc::clone(&fired);
            let timer = timer::after(left(due), move || {
                calls.lock().unwrap().push((number, Instant::now()))
            });
            if fate == 1 {
                assert!(timer.cancel());
                continue;
            }
            if fate == 2 {
                (due, _) = moment();
                assert!(timer.reset(left(due), true));
            }
            expected.push((number, due));
            if number % 40 == 0 {
                fibrant::sleep(ms(3));
            }
        }
        eventually(|| fired.lock().unwrap().len() >= expected.len());
        let mut fired = std::mem::take(&mut *fired.lock().unwrap());
        fired.sort_by_key(|&(number, _)| number);
        let numbers = |of: &[(usize, Instant)]| of.iter().map(|&(number, _)| number).collect::<Vec<_>>();
        assert_eq!(numbers(&fired), numbers(&expected));
        for (&(number, fired), &(_, due)) in fired.iter().zip(&expected) {
            assert!(fired >= due, "{number} is early");
            assert!(fired < due + Duration::from_secs(2), "{number} is late");
        }
    });
}

// Waits with a deadline.

/// Lengths below, at and above the tick of the wheel, and of several levels of it.
const LENGTHS: [Duration; 8] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_micros(50),
    Duration::from_micros(65),
    Duration::from_micros(700),
    ms(5),
    ms(21),
    ms(280),
];

/// What sleeps in one way or another for so long.
fn sleepers() -> [fn(Duration); 5] {
    [
        fibrant::sleep,
        fiber::park_timeout,
        |length| {
            let endless = fibrant::spawn(|| fibrant::sleep(Duration::MAX));
            let endless = endless.join_timeout(length).unwrap_err();
            endless.cancel();
            endless.join().unwrap_err();
        },
        |length| assert!(fibrant::timeout(length, || fibrant::sleep(Duration::MAX)).is_err()),
        |length| {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let error = io::wait(ours.as_raw_fd(), Event::READ, Some(length)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        },
    ]
}

#[test]
fn no_wait_ends_before_its_deadline() {
    in_runtimes(|_| {
        let fibers: Vec<_> = sleepers()
            .into_iter()
            .enumerate()
            .flat_map(|(kind, sleep)| LENGTHS.map(|length| (kind, sleep, length)))
            .map(|(kind, sleep, length)| {
                fibrant::spawn(move || {
                    let start = Instant::now();
                    sleep(length);
                    let elapsed = start.elapsed();
                    assert!(
                        elapsed >= length,
                        "wait {kind} of {length:?} ended after {elapsed:?}"
                    );
                    assert!(elapsed < length + Duration::from_secs(10), "{kind}: {elapsed:?}");
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

#[test]
fn no_wait_of_a_plain_thread_ends_before_its_deadline() {
    watched(|| {
        let runtime = Builder::new().workers(1).build().unwrap();
        let endless = runtime.spawn(|| fibrant::sleep(Duration::MAX));
        let mut endless = Some(endless);
        for length in LENGTHS {
            let start = Instant::now();
            fibrant::sleep(length);
            assert!(start.elapsed() >= length, "sleep {length:?}");

            let start = Instant::now();
            endless = Some(endless.take().unwrap().join_timeout(length).unwrap_err());
            assert!(start.elapsed() >= length, "join_timeout {length:?}");
        }
        endless.unwrap().cancel();
        runtime.stop().unwrap();
    });
}

#[test]
fn a_wait_with_a_deadline_ends_early_when_what_it_waits_for_happens() {
    in_runtimes(|_| {
        let start = Instant::now();
        let parked = fibrant::spawn(|| fiber::park_timeout(FAR));
        let joined = fibrant::spawn(|| {
            fibrant::sleep(ms(1));
            5
        });
        assert_eq!(joined.join_timeout(FAR).unwrap().unwrap(), 5);
        assert_eq!(
            fibrant::timeout(FAR, || fibrant::spawn(|| 6).join().unwrap()),
            Ok(6)
        );
        parked.fiber().unpark();
        parked.join().unwrap();
        assert!(start.elapsed() < FAR);
        // What they had armed is armed no more.
        assert!(!timer::has_timers());
    });
}

#[test]
fn ten_thousand_sleepers_all_wake_up_and_none_early() {
    in_runtimes(|workers| {
        let woken = Arc::new(AtomicUsize::new(0));
        let mut numbers = Numbers(7);
        let sleepers: Vec<_> = (0..10_000)
            .map(|_| {
                let length = Duration::from_micros(numbers.below(150_000));
                let woken = Arc::clone(&woken);
                fibrant::spawn(move || {
                    let start = Instant::now();
                    fibrant::sleep(length);
                    assert!(start.elapsed() >= length, "{length:?}");
                    woken.fetch_add(1, SeqCst);
                })
            })
            .collect();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert_eq!(woken.load(SeqCst), 10_000, "{workers} workers");
    });
}

#[test]
fn equal_sleeps_end_in_the_order_in_which_they_began() {
    in_runtime(1, || {
        let woken: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let sleepers: Vec<_> = (0..100)
            .map(|_| {
                let woken = Arc::clone(&woken);
                fibrant::spawn(move || {
                    let start = Instant::now();
                    fibrant::sleep(ms(10));
                    woken.lock().unwrap().push(start);
                })
            })
            .collect();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert!(woken.lock().unwrap().is_sorted());
    });
}

// timeout.

/// Notes that it was dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_timeout_ends_every_kind_of_wait_and_unwinds() {
    in_runtimes(|_| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let drops = Arc::new(AtomicUsize::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let spawn_endless = || {
            let over = Arc::clone(&over);
            fibrant::spawn(move || {
                while !over.load(SeqCst) {
                    fibrant::sleep(ms(1));
                }
            })
        };
        let endless: [&dyn Fn(); 6] = [
            &|| fibrant::sleep(FAR),
            &|| fiber::park(),
            &|| fiber::park_timeout(FAR),
            &|| spawn_endless().join().unwrap(),
            &|| drop(io::wait(fd, Event::READ, None)),
            // No single wait is long, all of them together are.
            &|| loop {
                fibrant::sleep(ms(1));
            },
        ];
        for (index, wait) in endless.iter().enumerate() {
            let start = Instant::now();
            let result = fibrant::timeout(ms(15), || {
                let _dropped = Dropped(Arc::clone(&drops));
                wait();
                unreachable!("wait {index} has ended");
            });
            let result: Result<(), fibrant::Elapsed> = result;
            assert_eq!(result.unwrap_err().to_string(), "the time was up");
            assert!(start.elapsed() >= ms(15), "{index}");
            assert_eq!(drops.load(SeqCst), index + 1);
        }
        over.store(true, SeqCst);
        fibrant::sleep(ms(20)); // no deadline is left behind
    });
}

#[test]
fn a_timeout_does_not_touch_what_returns_in_time_or_does_not_wait() {
    in_runtimes(|_| {
        assert_eq!(fibrant::timeout(FAR, || 1), Ok(1));
        let in_time = fibrant::timeout(FAR, || {
            fibrant::sleep(ms(2));
            2
        });
        assert_eq!(in_time, Ok(2));
        let late = fibrant::timeout(ms(1), || {
            fibrant::hook::disabled(|| thread::sleep(ms(5))); // not a wait of fibrant's
            3
        });
        assert_eq!(late, Ok(3));
        fibrant::sleep(ms(5)); // which is over with the timeout
        // A wait's own deadline is not the timeout's.
        let own = fibrant::timeout(FAR, || {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            io::wait(ours.as_raw_fd(), Event::READ, Some(ms(2)))
                .unwrap_err()
                .kind()
        });
        assert_eq!(own, Ok(std::io::ErrorKind::TimedOut));
    });
    assert_eq!(fibrant::timeout(ms(1), || 4), Ok(4)); // outside a runtime
}

#[test]
fn of_nested_timeouts_the_earliest_counts() {
    in_runtimes(|_| {
        // The inner one is earlier: the outer one goes on, with its own deadline.
        let start = Instant::now();
        let outer = fibrant::timeout(ms(60), || {
            let inner = fibrant::timeout(ms(10), || fibrant::sleep(FAR));
            assert!(inner.is_err());
            assert!(start.elapsed() >= ms(10));
            fibrant::sleep(FAR);
        });
        assert!(outer.is_err());
        assert!(start.elapsed() >= ms(60));

        // The outer one is earlier: the inner one does not return at all.
        let start = Instant::now();
        let inner_returned = AtomicBool::new(false);
        let outer = fibrant::timeout(ms(10), || {
            let _ = fibrant::timeout(FAR, || fibrant::sleep(FAR));
            inner_returned.store(true, SeqCst);
        });
        assert!(outer.is_err());
        assert!(!inner_returned.load(SeqCst));
        assert!(start.elapsed() >= ms(10));

        // Three of them; the one in the middle is up.
        let result = fibrant::timeout(FAR, || {
            fibrant::timeout(ms(5), || fibrant::timeout(FAR, || fibrant::sleep(FAR))).is_err()
        });
        assert_eq!(result, Ok(true));
    });
}

#[test]
fn a_panic_goes_through_a_timeout() {
    in_runtime(1, || {
        let payload = catch_unwind(|| fibrant::timeout(FAR, || panic::resume_unwind(Box::new(5_u8))));
        let payload = payload.map(|result: Result<(), _>| result).unwrap_err();
        assert_eq!(payload.downcast_ref::<u8>(), Some(&5));
    });
}

#[test]
fn the_fiber_that_a_timed_out_join_waited_for_goes_on() {
    in_runtimes(|_| {
        let ended = Calls::default();
        let fiber = fibrant::spawn({
            let count = ended.counter();
            move || {
                fibrant::sleep(ms(20));
                count();
            }
        });
        if fibrant::timeout(ms(1), || fiber.join().unwrap()).is_ok() {
            assert_eq!(ended.count(), 1);
        }
        eventually(|| ended.count() == 1);
    });
}

// The end of a runtime.

#[test]
fn stop_waits_for_one_shot_timers_and_ends_repeating_ones() {
    watched(|| {
        for workers in [1, 2, 4] {
            let runtime = Builder::new().workers(workers).build().unwrap();
            let (fired, ticks, cancelled) = (Calls::default(), Calls::default(), Calls::default());
            let start = Instant::now();
            for worker in 0..workers {
                runtime.run_on(worker, || {
                    let count = fired.counter();
                    timer::after(ms(50), move || {
                        fibrant::sleep(ms(10)); // its fiber is waited for, too
                        let count_again = count;
                        timer::after(ms(10), count_again); // and what it arms in turn
                    });
                    timer::every(ms(1), ticks.counter());
                    timer::every(FAR, ticks.counter());
                    assert!(timer::after(FAR, cancelled.counter()).cancel());
                });
            }
            eventually(|| ticks.count() > 3);
            runtime.stop().unwrap();
            assert_eq!(fired.count(), workers);
            assert!(start.elapsed() >= ms(70));
            let ticked = ticks.count();
            fibrant::hook::disabled(|| thread::sleep(ms(10)));
            assert_eq!(ticks.count(), ticked);
            assert_eq!(cancelled.count(), 0);
        }
    });
}

#[test]
fn repeating_timers_end_when_stop_begins_and_not_when_it_ends() {
    watched(|| {
        for workers in [1, 2, 4] {
            let runtime = Builder::new().workers(workers).build().unwrap();
            let ticks = Calls::default();
            let released = Arc::new(AtomicBool::new(false));
            let last = runtime.spawn({
                let released = Arc::clone(&released);
                move || eventually(|| released.load(SeqCst))
            });
            for worker in 0..workers {
                runtime.run_on(worker, || drop(timer::every(ms(1), ticks.counter())));
            }
            eventually(|| ticks.count() > 3);
            thread::scope(|scope| {
                let stopper = scope.spawn(|| runtime.stop().unwrap());
                eventually(|| runtime.dump().stopping);
                eventually(|| ticks.counters() == 0); // their functions are dropped
                assert!(!stopper.is_finished(), "there is still a fiber");
                released.store(true, SeqCst);
            });
            last.join().unwrap();
        }
    });
}

#[test]
fn a_timer_may_be_cancelled_while_its_runtime_is_being_stopped() {
    watched(|| {
        for workers in [1, 2, 4] {
            let runtime = Builder::new().workers(workers).build().unwrap();
            let timer = runtime.run_on(workers - 1, || timer::after(FAR, || ()));
            let handle = runtime.handle();
            let canceller = thread::spawn(move || {
                eventually(|| handle.dump().stopping);
                assert!(timer.cancel());
            });
            runtime.stop().unwrap(); // hangs if nobody tells it that the timer is gone
            canceller.join().unwrap();
        }
    });
}

#[test]
fn dropping_a_runtime_drops_the_functions_of_its_timers() {
    watched(|| {
        let calls = Calls::default();
        let runtime = Builder::new().workers(2).build().unwrap();
        runtime.run_on(1, || {
            timer::after(FAR, calls.counter());
            timer::every(FAR, calls.counter());
        });
        assert_eq!(calls.counters(), 2);
        drop(runtime);
        // Soon: a thread that does not come back within a second is not waited for.
        eventually(|| calls.counters() == 0);
        assert_eq!(calls.count(), 0);
    });
}

#[test]
fn a_timer_that_outlives_its_runtime_can_be_handled_and_does_nothing() {
    const NAME: &str = "a_timer_that_outlives_its_runtime_can_be_handled_and_does_nothing";
    if common::case().is_none() {
        // In a process of its own: what a stale timer breaks is memory.
        common::child(NAME, "stale", &[]).succeeded();
        return;
    }
    watched(|| {
        let calls = Calls::default();
        for _ in 0..3 {
            let runtime = Builder::new().workers(1).build().unwrap();
            let stale = runtime.run_on(0, || {
                let arm = |_| {
                    [
                        timer::after(FAR, calls.counter()),
                        timer::every(FAR, calls.counter()),
                    ]
                };
                (0..6).flat_map(arm).collect::<Vec<Timer>>()
            });
            drop(runtime);
            // Its place may be taken by the next one: the handles must not reach that.
            let next = Builder::new().workers(1).build().unwrap();
            next.run_on(0, || {
                let own = timer::after(ms(20), calls.counter());
                let before = calls.count();
                for (index, timer) in stale.iter().enumerate() {
                    match index % 3 {
                        0 => drop(timer.cancel()),
                        1 => drop(timer.refresh()),
                        _ => drop(timer.reset(Duration::ZERO, true)),
                    }
                }
                drop(stale);
                eventually(|| calls.count() == before + 1);
                assert!(!own.cancel());
                assert!(!timer::has_timers());
            });
            next.stop().unwrap();
        }
        assert_eq!(calls.count(), 3);
    });
}

// Idleness.

/// The processor time that this process has used.
fn processor_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: writes to a local variable.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(result, 0);
    // SAFETY: it has succeeded.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn an_idle_runtime_uses_no_processor_time() {
    const NAME: &str = "an_idle_runtime_uses_no_processor_time";
    if common::case().is_none() {
        common::child(NAME, "idle", &[]).succeeded();
        return;
    }
    watched(|| {
        let runtime = Builder::new().workers(4).build().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let parked: Vec<_> = (0..10_000).map(|_| runtime.spawn(fiber::park)).collect();
        let sleeping = runtime.spawn(|| fibrant::sleep(FAR));
        let reading = runtime.spawn(move || drop(io::wait(fd, Event::READ, None)));
        let timers = runtime.run_on(1, || {
            [FAR, YEAR, Duration::MAX]
                .map(|length| (timer::after(length, || ()), timer::every(length, || ())))
        });
        eventually(|| {
            let dump = runtime.dump();
            dump.workers.iter().all(|worker| worker.idle)
                && dump.fibers.iter().all(|fiber| fiber.wait.is_some())
        });
        // The first spans may see the end of what idle workers do once: waits verify what they wait for, surplus memory is given back. How long
        // that takes is the machine's affair.
        let mut spans = Vec::new();
        while spans.len() < 4 && spans.last().is_none_or(|&used| used >= ms(5)) {
            let before = processor_time();
            fibrant::hook::disabled(|| thread::sleep(Duration::from_secs(5)));
            spans.push(processor_time() - before);
        }
        assert!(
            spans.last().is_some_and(|&used| used < ms(5)),
            "more than 0.1 % of each of these five seconds: {spans:?}"
        );
        // It was idle, not dead.
        parked.iter().for_each(|fiber| fiber.fiber().unpark());
        parked.into_iter().for_each(|fiber| fiber.join().unwrap());
        for (after, every) in timers {
            assert!(after.cancel() && every.cancel());
        }
        sleeping.cancel();
        reading.cancel();
        runtime.stop().unwrap();
    });
}
