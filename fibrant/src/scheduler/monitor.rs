//! The monitor: notices a worker that is stuck in one fiber.
//!
//! A fiber that computes for long, or blocks in a call that nobody hooks, keeps its worker from everyone else. One thread for the
//! process looks at all workers now and then, and notes at the desk since when a worker has been running the same turn; dumps show
//! it. Fresh fibers that wait there are stolen by others all the same. When all workers sleep the monitor does, too, until one of
//! them wakes.
//!
//! [`Crew`](super::crew::Crew) has its desks watched as long as it lives.

use super::desk::Desk;
use super::scheduled::Scheduled;
use crate::clock;
use crate::sys::PerProcess;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::*, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, Thread};
use std::time::Duration;

/// The shortest time between two looks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// A worker that is looked at.
struct Watched {
    desk: &'static Desk,
    /// After how long in one turn it is called stuck: nanoseconds.
    limit: u64,
    /// What it was doing at the last look, and since when, if nothing has changed.
    seen: Option<(*mut Scheduled, u64, u64)>,
    since: u64,
}

// SAFETY: the pointer is compared and never followed.
unsafe impl Send for Watched {}

/// All workers, and the thread that looks at them.
#[derive(Default)]
struct Monitor {
    watched: Vec<Watched>,
    thread: Option<Thread>,
}

static MONITOR: PerProcess<Mutex<Monitor>> = PerProcess::new(Mutex::default);

/// Whether the monitor sleeps until it is roused.
static DOZES: AtomicBool = AtomicBool::new(false);

fn monitor() -> MutexGuard<'static, Monitor> {
    // Nothing panics halfway through a change.
    MONITOR.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has these workers watched. Without a thread for it, they are not.
pub(super) fn watch(desks: &[&'static Desk], limit: Duration) {
    if desks.is_empty() {
        return;
    }
    let mut monitor = monitor();
    monitor.watched.extend(desks.iter().map(|&desk| Watched {
        desk,
        limit: clock::nanoseconds(limit),
        seen: None,
        since: 0,
    }));
    let mut begun = None;
    if monitor.thread.is_none() {
        let (sender, receiver) = mpsc::sync_channel(1);
        let builder = thread::Builder::new().name("fibrant-monitor".to_owned());
        let serve = move || {
            drop(sender);
            serve();
        };
        if let Ok(handle) = builder.spawn(serve) {
            monitor.thread = Some(handle.thread().clone());
            begun = Some(receiver);
        }
    }
    drop(monitor);
    // Like a worker's thread: std has a lock while one begins, and a child that is forked meanwhile could never start any.
    if let Some(begun) = begun {
        let _: Result<(), _> = begun.recv();
    }
    note_awake();
}

/// Does so no longer.
pub(super) fn forget(desks: &[&'static Desk]) {
    monitor().watched.retain(|watched| {
        let is_one = desks.iter().any(|&desk| ptr::eq(desk, watched.desk));
        if is_one {
            watched.desk.stuck_since.store(0, Relaxed);
        }
        !is_one
    });
}

/// Forgets the monitor of the process that this one was forked from.
pub(super) fn forget_parents() {
    DOZES.store(false, SeqCst);
}

/// Tells the monitor that a worker is awake.
#[inline]
pub(super) fn note_awake() {
    if DOZES.load(SeqCst) {
        rouse();
    }
}

#[cold]
fn rouse() {
    if DOZES.swap(false, SeqCst)
        && let Some(thread) = &monitor().thread
    {
        thread.unpark();
    }
}

/// What the monitor's thread does.
fn serve() {
    // No signal is for this thread: the program may have blocked in all its own what a fiber waits for.
    // SAFETY: blocks signals in this thread only; the set is a local variable.
    unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut());
    }
    loop {
        let pause = monitor().look();
        match pause {
            Some(pause) => thread::sleep(pause),
            None => {
                DOZES.store(true, SeqCst);
                fence(SeqCst);
                // A worker that woke before it could see that is seen here.
                let is_anyone_awake = monitor().look().is_some();
                if is_anyone_awake {
                    DOZES.store(false, SeqCst);
                    continue;
                }
                while DOZES.load(SeqCst) {
                    thread::park();
                }
            }
        }
    }
}

impl Monitor {
    /// Looks at everyone. Returns after how long to look again; `None` if everyone sleeps.
    fn look(&mut self) -> Option<Duration> {
        let now = clock::now();
        let mut shortest = None;
        for watched in &mut self.watched {
            if watched.look(now) {
                shortest = Some(shortest.map_or(watched.limit, |limit: u64| limit.min(watched.limit)));
            }
        }
        shortest.map(|limit| SHORTEST_PAUSE.max(Duration::from_nanos(limit / 2)))
    }
}

impl Watched {
    /// Looks at a worker. Returns whether it is awake.
    fn look(&mut self, now: u64) -> bool {
        let desk = self.desk;
        let is_awake = desk.is_manned.load(Relaxed) && !desk.inbox().is_asleep();
        let running = desk.running.load(Relaxed);
        let seen = (is_awake && !running.is_null())
            .then(|| (running, desk.turns.load(Relaxed), desk.polls.load(Relaxed)));
        if seen.is_none() || seen != self.seen {
            self.seen = seen;
            self.since = now;
            desk.stuck_since.store(0, Relaxed);
        } else if now - self.since >= self.limit && desk.stuck_since.swap(self.since, Relaxed) == 0 {
            warn(desk, running, now - self.since);
        }
        is_awake
    }
}

/// Tells whoever listens about a fiber that keeps its worker.
#[cfg(feature = "tracing")]
fn warn(desk: &'static Desk, running: *mut Scheduled, nanoseconds: u64) {
    let mut found = None;
    desk.roster.for_each(|fiber, _| {
        if fiber.as_ptr() == running {
            // SAFETY: it is on the roster, whose lock is held, so it has not ended.
            let task = unsafe { &fiber.as_ref().task };
            found = Some((task.id(), task.name().map(str::to_owned)));
        }
    });
    let Some((fiber, name)) = found else { return };
    tracing::warn!(
        target: "fibrant",
        thread = desk.thread.load(Relaxed),
        fiber,
        name,
        milliseconds = nanoseconds / 1_000_000,
        "a fiber keeps its worker from all others: it computes for long, or blocks in a call that is not hooked"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn(_: &'static Desk, _: *mut Scheduled, _: u64) {}
