//! Signals, fork, exec, and what is no fiber: points 26 to 28.

use crate::support::*;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::thread;

bodies! {
    p27_a_child_is_waited_for, true, || {
        let mut child = shell("read word; exit 7");
        let input = child.stdin.take();
        later(move || drop(input));
        kind(child.wait().map(|status| status.code()))
    };
    p27_a_childs_output_is_read, true, || {
        let mut child = shell("cat; echo end >&2");
        let mut input = child.stdin.take().unwrap();
        later(move || input.write_all(&[b'x'; 30_000]).unwrap());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), output.stdout.len(), output.stderr)
    };
    p27_a_child_that_may_stop_is_waited_for, true, || {
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::uninit());
        let mut child = shell("read word; kill -9 $$");
        let input = child.stdin.take();
        later(move || drop(input));
        let id = child.id() as libc::pid_t;
        // SAFETY: the places are local variables.
        unsafe {
            let waited = libc::wait4(id, &mut status, libc::WUNTRACED, usage.as_mut_ptr());
            let again = told(libc::waitpid(id, &mut status, 0) as isize);
            (waited == id, libc::WTERMSIG(status), again, child.wait().is_err())
        }
    };
    p28_names_are_found, true, || {
        use std::net::ToSocketAddrs;
        let found = ("localhost", 80).to_socket_addrs().map(|all| all.map(|one| one.ip().is_loopback()).collect::<Vec<_>>());
        (kind(found).map(|all| !all.is_empty() && all.iter().all(|&is| is)), ("no.such.name.invalid", 1).to_socket_addrs().is_err())
    };
    p28_a_thread_is_joined, true, || {
        let gate = gate();
        let thread = thread::spawn(move || {
            gate();
            42
        });
        thread.join().unwrap()
    };
    p28_a_file_is_read_and_locked, false, || {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut magic = [0; 4];
        let read = kind(file.read_at(&mut magic, 0));
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: numbers.
        let locks = unsafe {
            let shared = [file.as_raw_fd(), other.as_raw_fd()].map(|fd| libc::flock(fd, libc::LOCK_SH));
            (shared, told(libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) as isize))
        };
        (read, magic, locks, kind(file.read_at(&mut magic, u64::MAX)).is_err())
    };
    p28_a_lock_is_waited_for, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-lock-{}-{:?}", std::process::id(), thread::current().id()));
        let (first, second) = (std::fs::File::create(&path).unwrap(), std::fs::File::create(&path).unwrap());
        drop(std::fs::remove_file(&path));
        // SAFETY: numbers.
        unsafe {
            let held = libc::flock(first.as_raw_fd(), libc::LOCK_EX);
            later(move || drop(first));
            (held, libc::flock(second.as_raw_fd(), libc::LOCK_EX), kind(second.sync_all()))
        }
    };
    p28_a_record_lock_is_waited_for, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-record-{}-{:?}", std::process::id(), thread::current().id()));
        let (first, second) = (std::fs::File::create(&path).unwrap(), std::fs::File::create(&path).unwrap());
        drop(std::fs::remove_file(&path));
        // SAFETY: all zero, but for what is said, is the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        // SAFETY: the lock is a local variable.
        unsafe {
            let held = libc::fcntl(first.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock);
            let refused = told(libc::fcntl(second.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) as isize);
            later(move || drop(first));
            (held, refused, libc::fcntl(second.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock))
        }
    };
}
