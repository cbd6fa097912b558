//! Random programs of everything that fibers can do, ended at random points: nothing hangs, and nothing is lost or dropped
//! twice. One test alone in its binary: it looks at the number of fibers in the process.

#[path = "common/patience.rs"]
mod patience;

use fibrant::fiber::{self, Fiber, live_count};
use fibrant::io::{self, Event};
use fibrant::runtime::{Builder, Report};
use fibrant::{Cancelled, timer};
use patience::{Census, PATIENCE, Watchdog, eventually};
use proptest::prelude::*;
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::time::Duration;

/// What a fiber does in one step.
#[derive(Clone, Debug)]
enum Action {
    Spawn(Vec<Action>, Fate),
    SpawnLocal(Vec<Action>, Fate),
    SpawnBlocking,
    Scope(Vec<Vec<Action>>),
    ByHand(Vec<Action>),
    Timeout(u8, Vec<Action>),
    Deferring(Vec<Action>),
    Yield,
    Sleep(u8),
    /// Parks until a partner, spawned for it, unparks it.
    Park,
    /// Arms a timer, which is cancelled again or not.
    Timer(u8, bool),
    /// Arms one that fires again and again, until it is cancelled or the runtime ends.
    Repeat(u8, bool),
    /// Adds an event, which then happens, is cancelled, or is removed.
    Event(Ending),
    /// Waits for a descriptor that becomes ready, or does not in time.
    Wait(bool),
    /// Closes a descriptor that another fiber waits for.
    Close,
    Panic,
}

/// What becomes of a child.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Join,
    JoinTimeout(u8),
    Detach,
    CancelAndJoin,
    CancelAndDetach,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Ready,
    Cancelled,
    Removed,
    /// The fiber goes on, and its descriptors are closed when it ends.
    Left,
}

/// How the runtime is ended.
#[derive(Clone, Copy, Debug)]
enum End {
    Stop,
    /// After so many milliseconds, with so much patience.
    Shutdown(u8, u8),
    Drop(u8),
}

#[derive(Clone, Debug)]
struct Program {
    workers: usize,
    use_caller: bool,
    roots: Vec<Vec<Action>>,
    /// What threads do that come as guests, if worker 0 is not the caller's.
    guests: Vec<Vec<Action>>,
    /// What the thread runs that worker 0 belongs to, if that is not the one that ends the runtime. It may be there still when that happens.
    owner: Option<Vec<Action>>,
    end: End,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Join),
        1 => (0..3_u8).prop_map(Fate::JoinTimeout),
        2 => Just(Fate::Detach),
        1 => Just(Fate::CancelAndJoin),
        1 => Just(Fate::CancelAndDetach),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let ending = prop_oneof![
        Just(Ending::Ready),
        Just(Ending::Cancelled),
        Just(Ending::Removed),
        Just(Ending::Left)
    ];
    let leaf = prop_oneof![
        4 => Just(Action::Yield),
        4 => (0..4_u8).prop_map(Action::Sleep),
        3 => Just(Action::Park),
        2 => (0..4_u8, any::<bool>()).prop_map(|(delay, cancel)| Action::Timer(delay, cancel)),
        1 => (1..4_u8, any::<bool>()).prop_map(|(interval, cancel)| Action::Repeat(interval, cancel)),
        2 => ending.prop_map(Action::Event),
        1 => any::<bool>().prop_map(Action::Wait),
        1 => Just(Action::Close),
        1 => Just(Action::SpawnBlocking),
        1 => Just(Action::Panic),
    ];
    let list = |action| prop::collection::vec(action, 0..7);
    let action = leaf.prop_recursive(5, 100, 6, move |inner| {
        let some = || list(inner.clone());
        prop_oneof![
            4 => (some(), fate()).prop_map(|(actions, fate)| Action::Spawn(actions, fate)),
            2 => (some(), fate()).prop_map(|(actions, fate)| Action::SpawnLocal(actions, fate)),
            2 => prop::collection::vec(some(), 0..4).prop_map(Action::Scope),
            1 => some().prop_map(Action::ByHand),
            1 => (0..4_u8, some()).prop_map(|(time, actions)| Action::Timeout(time, actions)),
            1 => some().prop_map(Action::Deferring),
        ]
    });
    list(action.boxed())
}

fn program() -> impl Strategy<Value = Program> {
    let end = prop_oneof![
        Just(End::Stop),
        (0..6_u8, 0..3_u8).prop_map(|(after, patience)| End::Shutdown(after, patience)),
        (0..6_u8).prop_map(End::Drop),
    ];
    let roots = prop::collection::vec(actions(), 1..10);
    let guests = prop::collection::vec(actions(), 0..3);
    let owner = prop::option::of(actions());
    let parts = (1..4_usize, any::<bool>(), roots, guests, owner, end);
    parts.prop_map(|(workers, use_caller, roots, guests, owner, end)| {
        let owner = owner.filter(|_| use_caller);
        Program {
            workers,
            use_caller,
            roots,
            guests: if use_caller { Vec::new() } else { guests },
            end: match end {
                // It would wait for an owner that does not come back.
                End::Stop if owner.is_some() => End::Shutdown(0, 2),
                end => end,
            },
            owner,
        }
    })
}

fn ms(milliseconds: u8) -> Duration {
    Duration::from_millis(milliseconds.into())
}

/// Takes back whatever waits for a descriptor before it is closed.
struct Registered(RawFd);

impl Drop for Registered {
    fn drop(&mut self) {
        io::cancel_all(self.0);
    }
}

/// Closes a descriptor when it is dropped.
struct Closes(RawFd);

impl Drop for Closes {
    fn drop(&mut self) {
        io::close(self.0).unwrap();
    }
}

/// Unparks a fiber when it is dropped.
struct Unparks(fiber::Handle);

impl Drop for Unparks {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// A function that runs these actions, and holds something that is counted before, while and after it does.
fn body(actions: Vec<Action>, census: &Census) -> impl FnOnce() -> patience::Counted + Send + 'static {
    let (census, closure) = (census.clone(), census.count());
    move || {
        let _closure = closure;
        let _stack = census.count();
        let result = census.count();
        perform(actions, &census);
        result
    }
}

fn end_of<T>(child: fibrant::JoinHandle<T>, fate: Fate) {
    match fate {
        Fate::Join => drop(child.join()),
        Fate::JoinTimeout(time) => drop(child.join_timeout(ms(time))),
        Fate::Detach => drop(child),
        Fate::CancelAndJoin => {
            child.cancel();
            drop(child.join());
        }
        Fate::CancelAndDetach => child.cancel(),
    }
}

fn perform(actions: Vec<Action>, census: &Census) {
    for action in actions {
        match action {
            Action::Spawn(actions, fate) => end_of(fibrant::spawn(body(actions, census)), fate),
            Action::SpawnLocal(actions, fate) => end_of(fibrant::spawn_local(body(actions, census)), fate),
            Action::SpawnBlocking => {
                let counted = census.count();
                drop(fibrant::spawn_blocking(move || {
                    std::thread::sleep(Duration::from_micros(100));
                    counted
                }));
            }
            Action::Scope(children) => {
                let borrowed = census.count();
                fibrant::scope(|s| {
                    for actions in children {
                        let borrowed = &borrowed;
                        let child = body(actions, census);
                        s.spawn(move || {
                            let result = child();
                            std::hint::black_box(borrowed);
                            result
                        });
                    }
                });
            }
            Action::ByHand(actions) => {
                let child = body(actions, census);
                let hand = Fiber::new(move || {
                    fiber::suspend();
                    drop(child());
                });
                while hand.resume().unwrap() != fiber::State::Term {}
            }
            Action::Timeout(time, actions) => {
                let _ = fibrant::timeout(ms(time), || perform(actions, census));
            }
            Action::Deferring(actions) => {
                let _guard = fibrant::defer_cancel();
                perform(actions, census);
            }
            Action::Yield => fibrant::yield_now(),
            Action::Sleep(time) => fibrant::sleep(ms(time)),
            Action::Park => {
                // Even a partner that is cancelled before it starts does it: who has put off its own cancel relies on that.
                let (unparks, counted) = (Unparks(fiber::current().unwrap()), census.count());
                drop(fibrant::spawn(move || {
                    fibrant::yield_now();
                    drop((unparks, counted));
                }));
                fiber::park();
            }
            Action::Timer(delay, cancel) => {
                let counted = census.count();
                let timer = timer::after(ms(delay), move || drop(counted));
                if cancel {
                    fibrant::yield_now();
                    timer.cancel();
                }
            }
            Action::Repeat(interval, cancel) => {
                let counted = census.count();
                let timer = timer::every(ms(interval), move || _ = std::hint::black_box(&counted));
                if cancel {
                    fibrant::yield_now();
                    timer.cancel();
                }
            }
            Action::Event(ending) => {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                let fd = ours.as_raw_fd();
                let counted = census.count();
                io::add_event(fd, Event::READ, move || drop(counted)).unwrap();
                let registered = Registered(fd);
                match ending {
                    Ending::Ready => theirs.write_all(b"x").unwrap(),
                    Ending::Cancelled => drop(io::cancel_event(fd, Event::READ)),
                    Ending::Removed => drop(io::del_event(fd, Event::READ)),
                    Ending::Left => {}
                }
                fibrant::yield_now();
                fibrant::sleep(Duration::from_micros(100));
                drop(registered); // before the descriptors
            }
            Action::Wait(ready) => {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                if ready {
                    theirs.write_all(b"x").unwrap();
                }
                let _ = io::wait(ours.as_raw_fd(), Event::READ, Some(ms(1)));
            }
            Action::Close => {
                let (ours, _theirs) = UnixStream::pair().unwrap();
                let (fd, counted) = (ours.into_raw_fd(), census.count());
                let closes = Closes(fd);
                let waits = fibrant::spawn(move || {
                    let _counted = counted;
                    // In time, for if it comes late the number may stand for something else.
                    let _ = io::wait(fd, Event::READ, Some(ms(3)));
                });
                fibrant::yield_now();
                drop(closes);
                drop(waits.join());
            }
            Action::Panic => resume_unwind(Box::new("scripted")),
        }
    }
}

fn execute(program: Program) {
    let watchdog = Watchdog::new();
    watchdog.note(format!("in {program:?}"));
    let census = Census::default();
    let before = live_count();
    let builder = Builder::new()
        .workers(program.workers)
        .use_caller(program.use_caller);
    let runtime = builder.name("program").build().unwrap();
    watchdog.show(&runtime);
    let bodies: Vec<_> = program
        .roots
        .iter()
        .map(|root| body(root.clone(), &census))
        .collect();
    let handles: Vec<_> = bodies.into_iter().map(|root| runtime.spawn(root)).collect();
    let report = std::thread::scope(|s| {
        for actions in &program.guests {
            let (runtime, actions) = (&runtime, actions.clone());
            let visit = body(actions, &census);
            // It panics if that is in its script, if it is shut down, or if it comes too late.
            s.spawn(move || drop(catch_unwind(AssertUnwindSafe(|| runtime.run(visit)))));
        }
        if let Some(actions) = &program.owner {
            let (runtime, actions) = (&runtime, actions.clone());
            let stay = body(actions, &census);
            let (owned, is_owned) = mpsc::channel();
            s.spawn(move || {
                runtime.run(|| ());
                owned.send(()).unwrap();
                drop(catch_unwind(AssertUnwindSafe(|| runtime.run(stay))));
            });
            is_owned.recv().unwrap();
        }
        match program.end {
            End::Stop => {
                runtime.stop().unwrap();
                Report::default()
            }
            End::Shutdown(after, patience) => {
                std::thread::sleep(ms(after));
                let report = runtime.shutdown(ms(patience));
                // They all end when they are cancelled, if somebody is there to run them.
                let is_right = report.abandoned.is_empty() || program.owner.is_some();
                assert!(is_right, "{:#?}", report.abandoned);
                report
            }
            End::Drop(after) => {
                std::thread::sleep(ms(after));
                Report::default()
            }
        }
    });
    let is_dropped = matches!(program.end, End::Drop(_));
    let may_be_abandoned = program.owner.is_some() && (is_dropped || !report.abandoned.is_empty());
    drop(runtime);
    let mut cancelled: Vec<u64> = report.cancelled.iter().map(|fiber| fiber.id).collect();
    for handle in handles {
        let id = handle.id();
        let Ok(result) = handle.join_timeout(PATIENCE) else {
            panic!("a root has not ended");
        };
        // The script cancels no roots: whoever was cancelled is in the report.
        if result.is_err_and(|payload| payload.is::<Cancelled>()) {
            assert!(
                is_dropped || cancelled.contains(&id) || report.abandoned.iter().any(|fiber| fiber.id == id),
                "{id} is not in {report:#?}"
            );
        }
    }
    let reported = cancelled.len();
    cancelled.sort_unstable();
    cancelled.dedup();
    assert_eq!(cancelled.len(), reported, "each of them once: {report:#?}");
    // A function on a real thread, which a shutdown cannot end, may take a moment longer. What those hold that were abandoned is never dropped.
    eventually("everything is dropped", || {
        may_be_abandoned || census.made() == census.dropped()
    });
    // The threads of a runtime that is gone have added up what they counted.
    eventually("all fibers are gone", || live_count() == before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_end_and_lose_nothing(program in program()) {
        quieten();
        execute(program);
    }
}

/// Keeps what the programs panic with on purpose from being printed.
fn quieten() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = patience::text(info.payload());
            let scripted = [
                "a scoped fiber panicked",
                "shut the runtime",
                "takes no more work",
            ];
            if !scripted.iter().any(|part| text.contains(part)) {
                print(info);
            }
        }));
    });
}
