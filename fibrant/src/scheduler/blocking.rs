//! Real threads for calls that block: an elastic pool, shared by the process.
//!
//! A job takes an idle thread or, if there is none, a new one, up to [`MOST_THREADS`]; beyond that it waits in line. A thread
//! that has had nothing to do for [`IDLE_TIMEOUT`] ends. Jobs that may wait for each other without end do not belong here: they
//! could take all threads.

use super::cancel::defer_cancel;
use super::completion::ResultOwner;
use super::crew::Crew;
use super::join::JoinHandle;
use super::scheduled::{Making, Rest, Scheduled};
use super::worker::Worker;
use crate::fiber::TaskRef;
use crate::sys::PerProcess;
use std::collections::VecDeque;
use std::io;
use std::panic::{self, Location};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How many threads there are at most.
const MOST_THREADS: usize = 512;

/// How long a thread waits for the next job.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A function to be run on a real thread, and the runtime that waits for it at its end.
struct Job {
    task: TaskRef,
    crew: Option<Arc<Crew>>,
}

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// The pool, and what its idle threads wait for.
static POOL: PerProcess<(Mutex<Pool>, Condvar)> = PerProcess::new(Default::default);

fn pool() -> MutexGuard<'static, Pool> {
    // Nothing panics halfway through a change.
    POOL.get().0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a task on a real thread. The reference is the scheduler's.
///
/// # Safety
/// The task is new, and what it runs may run on another thread.
pub(crate) unsafe fn submit(task: TaskRef, crew: Option<Arc<Crew>>) -> io::Result<()> {
    let job = Job { task, crew };
    if let Some(crew) = &job.crew {
        crew.note_offloaded();
    }
    let mut pool = pool();
    pool.jobs.push_back(job);
    if pool.idle >= pool.jobs.len() || pool.threads == MOST_THREADS {
        POOL.get().1.notify_one();
        return Ok(());
    }
    pool.threads += 1;
    drop(pool);
    let spawned = thread::Builder::new()
        .name("fibrant-blocking".to_owned())
        .spawn(serve);
    if let Err(error) = spawned {
        let mut pool = self::pool();
        pool.threads -= 1;
        // If others are at work, one of them will come to it. Otherwise nobody would.
        if pool.threads == 0 {
            let jobs = std::mem::take(&mut pool.jobs);
            drop(pool); // what they would have run is dropped, and that may be anything
            jobs.into_iter().for_each(|job| refuse(job, &error));
            return Err(error);
        }
    }
    Ok(())
}

/// Runs `f` on a real thread while the fiber that calls this, on that worker, waits for it. An error if there is no thread.
///
/// # Safety
/// What `f` uses may be used on another thread, as long as the fiber waits.
pub(crate) unsafe fn offload<T>(worker: &Worker, f: impl FnOnce() -> T) -> io::Result<T> {
    // SAFETY: the caller's promise; the task is new.
    unsafe { offload_by(worker, f, |task, crew| submit(task, crew)) }
}

/// The same, on a thread of its own: for what may wait for a fiber that needs a thread of the pool.
///
/// # Safety
/// As `offload`.
pub(crate) unsafe fn offload_alone<T>(worker: &Worker, f: impl FnOnce() -> T) -> io::Result<T> {
    let begin = |task, crew: Option<Arc<Crew>>| {
        let job = Job { task, crew };
        if let Some(crew) = &job.crew {
            crew.note_offloaded();
        }
        let crew = job.crew.clone();
        let thread = thread::Builder::new().name("fibrant-waiting".to_owned());
        match thread.spawn(move || run(job)) {
            Ok(_) => Ok(()),
            Err(error) => {
                if let Some(crew) = crew {
                    crew.note_offload_ended();
                }
                Err(error)
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { offload_by(worker, f, begin) }
}

/// # Safety
/// As `offload`; `begin` takes the scheduler's reference.
unsafe fn offload_by<T>(
    worker: &Worker,
    f: impl FnOnce() -> T,
    begin: impl FnOnce(TaskRef, Option<Arc<Crew>>) -> io::Result<()>,
) -> io::Result<T> {
    if worker.keeps_no_records() {
        // What it uses may be on a shared stack, which nobody else may look at once the coroutine has left it: the thread blocks.
        return Ok(f());
    }
    // The wait must come to its end: `f` borrows.
    let _guard = defer_cancel();
    let making = Making {
        id: worker.thread().next_id(),
        name: None,
        spawned_at: Location::caller(),
        stack_size: 0,
        is_bound: true,
        locals: super::Locals::Workers,
        scope: None,
    };
    // SAFETY: this waits for its end; the rest is the caller's promise.
    let (job, task) = unsafe { Scheduled::make(making, f) };
    // SAFETY: it is new, and this is the scheduler's reference.
    let reference = unsafe { TaskRef::from_raw(job.cast()) };
    begin(reference, Some(Arc::clone(&worker.crew)))?;
    // SAFETY: its only join handle, of the right type.
    let handle = unsafe { JoinHandle::new(task) };
    Ok(handle
        .join()
        .unwrap_or_else(|payload| panic::resume_unwind(payload)))
}

/// What a thread of the pool does.
fn serve() {
    let mut pool = pool();
    loop {
        while let Some(job) = pool.jobs.pop_front() {
            drop(pool);
            run(job);
            pool = self::pool();
        }
        pool.idle += 1;
        let (woken, timeout) = POOL
            .get()
            .1
            .wait_timeout(pool, IDLE_TIMEOUT)
            .unwrap_or_else(PoisonError::into_inner);
        pool = woken;
        pool.idle -= 1;
        if timeout.timed_out() && pool.jobs.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}

fn run(job: Job) {
    let scheduled = Scheduled::of(&job.task);
    if job.task.wait.is_cancelled() {
        // SAFETY: it has not run.
        unsafe { scheduled.refuse(Box::new(super::cancel::Cancelled::new()), Rest::Dropped) };
    } else {
        // SAFETY: it is run once, here.
        unsafe { scheduled.run() };
    }
    end(job);
}

fn refuse(job: Job, error: &io::Error) {
    // SAFETY: it has not run.
    unsafe {
        Scheduled::of(&job.task).refuse(
            Box::new(format!("no thread to run it on: {error}")),
            Rest::Dropped,
        )
    };
    end(job);
}

fn end(job: Job) {
    let scheduled = Scheduled::of(&job.task);
    // SAFETY: it ends once.
    if unsafe { scheduled.completion.complete() } == ResultOwner::Completer {
        // SAFETY: the result is in place and nobody else's.
        unsafe { scheduled.drop_result() };
    }
    if let Some(crew) = &job.crew {
        crew.note_offload_ended();
    }
}
