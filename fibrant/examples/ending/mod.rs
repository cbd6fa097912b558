//! A graceful end, for the examples that are servers: Ctrl-C and SIGTERM are waited for by a fiber, nobody new is let in, and
//! who is there may finish. Copy it.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The signals that ask a program to end: SIGINT, which is Ctrl-C, and SIGTERM.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Keeps them from ending the program. Threads inherit that, so this comes first in `main`, before there are any.
    pub fn block() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the first call makes a set of the local variable, and the others add to it and read it.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) {
                0 => Ok(Signals(set.assume_init())),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for one of them and says which. There is no handler: this is ordinary code, and only its fiber waits.
    pub fn wait(&self) -> io::Result<&'static str> {
        let mut signal = 0;
        // SAFETY: reads a set, and writes to a local variable.
        match unsafe { libc::sigwait(&self.0, &mut signal) } {
            0 if signal == libc::SIGINT => Ok("SIGINT"),
            0 => Ok("SIGTERM"),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Makes `accept` fail from now on, also one that waits.
pub fn stop_accepting(listener: &TcpListener) {
    // SAFETY: the descriptor is open as long as the listener is borrowed.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RD) };
}

/// The connections that are open.
#[derive(Default)]
pub struct Connections(Mutex<HashMap<RawFd, Arc<TcpStream>>>);

impl Connections {
    /// Notes a connection, until what this returns is dropped. That is used like the stream.
    pub fn enter(self: &Arc<Connections>, stream: TcpStream) -> Connection {
        let stream = Arc::new(stream);
        self.open().insert(stream.as_raw_fd(), Arc::clone(&stream));
        Connection {
            all: Arc::clone(self),
            stream,
        }
    }

    /// Lets everybody finish: who waits to read something finds the end, and who is writing writes on. Returns how many had not
    /// finished when the time was up.
    pub fn finish(&self, patience: Duration) -> usize {
        for stream in self.open().values() {
            let _ = stream.shutdown(Shutdown::Read); // if it fails, the other side has gone
        }
        let deadline = Instant::now() + patience;
        while !self.open().is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        self.open().len()
    }

    /// The lock is never held while a fiber waits.
    fn open(&self) -> MutexGuard<'_, HashMap<RawFd, Arc<TcpStream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is open.
pub struct Connection {
    all: Arc<Connections>,
    stream: Arc<TcpStream>,
}

impl Deref for Connection {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.open().remove(&self.stream.as_raw_fd());
    }
}
