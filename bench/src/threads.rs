//! Threads of the operating system as tasks of the benchmarks of locks and channels; a worker is a processor.

use std::io;
use std::mem;
use std::process;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use crate::blocking::Tasks;
use crate::micro::Outcome;

/// Enough for what the threads do here.
pub const STACK: usize = 64 << 10;

/// Threads that share so many processors.
#[derive(Clone, Copy)]
pub struct Threads {
    /// How many.
    pub workers: usize,
}

/// Binds the calling thread to these processors.
pub fn bind(processors: &[usize]) {
    // SAFETY: all zeros is the empty set; the processors' numbers are within the set, and zero means the calling thread.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        for &processor in processors {
            libc::CPU_SET(processor, &mut set);
        }
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// The processors that the process may use.
fn processors() -> &'static [usize] {
    static PROCESSORS: OnceLock<Vec<usize>> = OnceLock::new();
    PROCESSORS.get_or_init(|| {
        // SAFETY: all zeros is a set, and is there to be written to; the first thread has the number of the process.
        let (result, set) = unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            let process = process::id() as libc::pid_t;
            (
                libc::sched_getaffinity(process, mem::size_of_val(&set), &mut set),
                set,
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        (0..libc::CPU_SETSIZE as usize)
            // SAFETY: a number within the set.
            .filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) })
            .collect()
    })
}

impl Tasks for Threads {
    type Handle = JoinHandle<()>;

    fn spawn(self, seat: Option<usize>, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        let all = processors();
        let own = match seat {
            Some(seat) => &all[seat..=seat],
            None => &all[..self.workers.min(all.len())],
        };
        thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || {
                bind(own);
                body();
            })
            .expect("a thread")
    }

    fn join(handle: JoinHandle<()>) {
        handle.join().expect("a thread");
    }

    fn yield_now() {
        thread::yield_now();
    }

    fn workers(self) -> usize {
        self.workers
    }

    fn seats(self) -> Outcome<()> {
        if processors().len() < 2 {
            return Err("the process has one processor".into());
        }
        Ok(())
    }

    fn has_locals(self) -> bool {
        true
    }
}
