//! How far a run is, on standard error: a bar with the time left on a terminal, else a line for each benchmark.
//!
//! `measure` tells it what happens. What is planned to take long moves the bar while it runs, so a thread draws it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const WIDTH: usize = 32;

/// How often the bar is drawn. Rarely: what is measured has the machine for itself.
const PAUSE: Duration = Duration::from_secs(1);

pub struct Progress {
    state: Arc<Mutex<State>>,
    drawer: Option<(Sender<()>, JoinHandle<()>)>,
}

struct State {
    start: Instant,
    /// All that is planned, in seconds, and what of it is done.
    total: f64,
    done: f64,
    /// What the benchmark that is running takes and has taken, and since when its current program runs.
    planned: f64,
    advanced: f64,
    since: Instant,
    name: String,
    count: usize,
    nth: usize,
    began: Instant,
}

impl Progress {
    /// For so many planned seconds and benchmarks.
    pub fn new(total: f64, count: usize) -> Progress {
        let now = Instant::now();
        let state = Arc::new(Mutex::new(State {
            start: now,
            total,
            done: 0.0,
            planned: 0.0,
            advanced: 0.0,
            since: now,
            name: String::new(),
            count,
            nth: 0,
            began: now,
        }));
        let drawer = stderr().is_terminal().then(|| {
            let (stop, stopped) = channel();
            let state = Arc::clone(&state);
            (stop, thread::spawn(move || draw_until(&stopped, &state)))
        });
        Progress { state, drawer }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A benchmark begins that is planned to take so long.
    pub fn begin(&self, name: &str, planned: f64) {
        self.change(|state| {
            name.clone_into(&mut state.name);
            state.planned = planned;
            state.advanced = 0.0;
            state.nth += 1;
            state.began = Instant::now();
            state.since = state.began;
        });
    }

    /// A program of it has run, which was planned to take so long.
    pub fn advance(&self, seconds: f64) {
        self.change(|state| {
            state.advanced += seconds;
            state.since = Instant::now();
        });
    }

    /// The benchmark has ended, perhaps after fewer rounds than planned.
    pub fn end(&self) {
        self.change(|state| {
            state.done += state.planned;
            state.planned = 0.0;
            state.advanced = 0.0;
            if self.drawer.is_none() {
                let seconds = state.began.elapsed().as_secs_f64();
                eprintln!("{}/{} {}: {seconds:.1} s", state.nth, state.count, state.name);
            }
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, drawer)) = self.drawer.take() {
            drop(stop);
            let _ = drawer.join();
        }
    }
}

fn draw_until(stopped: &Receiver<()>, state: &Mutex<State>) {
    while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
        let line = state.lock().unwrap_or_else(PoisonError::into_inner).line();
        // Nobody is told that nobody can be told.
        let _ = write!(stderr(), "\r\x1b[K{line}");
    }
    let _ = write!(stderr(), "\r\x1b[K");
}

impl State {
    fn line(&self) -> String {
        let running = self.since.elapsed().as_secs_f64();
        let within = (self.advanced + running).min(self.planned);
        shown(
            self.done + within,
            self.total,
            self.start.elapsed().as_secs_f64(),
            &self.name,
        )
    }
}

/// The bar, with the time that is left if the rest takes as much longer than planned as what is done.
fn shown(done: f64, total: f64, elapsed: f64, name: &str) -> String {
    let part = (done / total.max(1e-9)).clamp(0.0, 1.0);
    let bar = "#".repeat((part * WIDTH as f64) as usize);
    // At first, what is planned counts for more than what has been seen.
    let pace = (elapsed + 10.0) / (done + 10.0);
    let left = ((total - done).max(0.0) * pace).round() as u64;
    format!(
        "[{bar:.<WIDTH$}] {:>3.0} %, {}:{:02} left: {name}",
        part * 100.0,
        left / 60,
        left % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_time_that_is_left() {
        assert_eq!(
            shown(0.0, 600.0, 0.0, "x"),
            format!("[{}]   0 %, 10:00 left: x", ".".repeat(WIDTH))
        );
        let slow = shown(300.0, 600.0, 610.0, "x");
        assert!(slow.contains("################................"), "{slow}");
        assert!(slow.contains(" 50 %, 10:00 left"), "{slow}");
        assert!(shown(700.0, 600.0, 900.0, "x").contains("100 %, 0:00"));
    }
}
