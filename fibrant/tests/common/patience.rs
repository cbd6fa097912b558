//! Waiting in tests: for a condition, with a limit; and a watchdog for tests that might hang.

#![allow(dead_code)] // each test binary uses its part

use fibrant::runtime::{Builder, Handle, Runtime};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long a condition may take to come true. Only a broken program needs it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a test may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until the condition holds; panics with `what` if it does not in good time. Fibers and plain threads may call it.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}

/// The same, for what takes longer by itself.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "in vain: {what}");
        fibrant::sleep(Duration::from_micros(200));
    }
}

/// Ends the process, with a message and the dumps of the runtimes it was shown, if it is not dropped within a minute.
pub struct Watchdog {
    runtimes: Arc<Mutex<Vec<Handle>>>,
    /// What else it prints.
    notes: Arc<Mutex<String>>,
    /// Dropped with the watchdog, which ends its thread.
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    #[track_caller]
    pub fn new() -> Watchdog {
        let place = std::panic::Location::caller();
        let (alive, dropped) = mpsc::channel::<()>();
        let runtimes: Arc<Mutex<Vec<Handle>>> = Arc::default();
        let notes: Arc<Mutex<String>> = Arc::default();
        let (shown, words) = (Arc::clone(&runtimes), Arc::clone(&notes));
        let (begun, begins) = mpsc::channel::<()>();
        thread::spawn(move || {
            drop(begun);
            if dropped.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let words = words.lock().unwrap_or_else(PoisonError::into_inner);
                // Not `eprintln`: what tests print is kept until they end, and this one does not.
                let mut output = io::stderr();
                let _ = writeln!(output, "the test at {place} hangs {words}");
                for runtime in shown.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    let _ = writeln!(output, "{}", runtime.dump());
                }
                std::process::abort();
            }
        });
        // Tests that fork do so when all threads have begun.
        let _ = begins.recv();
        Watchdog {
            runtimes,
            notes,
            _alive: alive,
        }
    }

    /// A runtime with so many workers, all of them threads of its own, whose dump is printed if the test hangs.
    pub fn runtime(&self, workers: usize) -> Runtime {
        let builder = Builder::new().workers(workers).name("test");
        let builder = if cfg!(feature = "valgrind") {
            // SAFETY: what such tests run keeps nothing in thread-locals across a wait. Valgrind cannot set the thread pointer.
            unsafe { builder.light() }
        } else {
            builder
        };
        let runtime = builder.build().unwrap();
        self.show(&runtime);
        runtime
    }

    /// Prints this, too, if the test hangs.
    pub fn note(&self, words: String) {
        *self.notes.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    /// Prints this runtime's dump if the test hangs.
    pub fn show(&self, runtime: &Handle) {
        self.runtimes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(runtime.clone());
    }
}

/// The payload of a panic that is text.
pub fn text(payload: &(dyn std::any::Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "not text".to_owned(),
    }
}

/// Counts how many of it there are, and how many have been dropped.
#[derive(Clone, Default)]
pub struct Census(Arc<[std::sync::atomic::AtomicUsize; 2]>);

/// One that is counted.
pub struct Counted(Census);

impl Census {
    pub fn count(&self) -> Counted {
        self.0[0].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Counted(self.clone())
    }
    pub fn made(&self) -> usize {
        self.0[0].load(std::sync::atomic::Ordering::SeqCst)
    }
    pub fn dropped(&self) -> usize {
        self.0[1].load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0[1].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}
