//! Forked children: what they leave alone, how they end, and runtimes of their own.
//!
//! Each body runs in a child that is forked from a process with a runtime at work; what the child finds out is its exit code.
//!
//! Each test has a process of its own, and forks when the threads there have begun: std has a lock while a thread begins or ends, and
//! a child that is forked by another thread at that moment can never start any. The threads of other tests would come and go.

mod common;
#[path = "common/patience.rs"]
mod patience;

use fibrant::fiber::{self, Fiber, State};
use fibrant::runtime::Builder;
use patience::Watchdog;
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Whether this is a process for this test alone. If not, the test is run in one, and has to succeed.
fn alone(test: &str) -> bool {
    if common::case().is_some() {
        return true;
    }
    common::child(test, "alone", &[]).succeeded();
    false
}

/// Forks, runs `f` in the child, and ends the child with its result as the exit code.
fn in_child(f: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child has one thread, and the tests want to know what it can do.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Nothing of the parent's is to be unwound here, and a child that hangs is ended.
        // SAFETY: sets a timer, whose signal ends the process; ends the process.
        unsafe {
            libc::alarm(30);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            libc::_exit(result.unwrap_or(101));
        }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    child
}

/// The exit code of a child; minus the signal that has ended it.
fn exit_code(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: writes to a local variable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -libc::WTERMSIG(status)
    }
}

/// A program of some fibers, with sockets, sleeps, and calls on real threads.
fn use_a_runtime(workers: usize) -> i32 {
    let runtime = Builder::new().workers(workers).build().unwrap();
    let sum = runtime.run(|| {
        assert!(fibrant::hook::is_enabled());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = fibrant::spawn(move || {
            for _ in 0..10 {
                let (mut stream, _) = listener.accept().unwrap();
                fibrant::spawn(move || {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    stream.write_all(&byte).unwrap();
                });
            }
        });
        let clients: Vec<_> = (0..10_u8)
            .map(|number| {
                fibrant::spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                    stream.write_all(&[number]).unwrap();
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    fibrant::spawn_blocking(move || i32::from(byte[0]))
                        .join()
                        .unwrap()
                })
            })
            .collect();
        server.join().unwrap();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum::<i32>()
    });
    runtime.stop().unwrap();
    sum
}

/// A runtime that is busy with everything, so that a fork finds its locks in all states. But nobody panics when it is shut down: std
/// has a lock for messages, and a child that was forked meanwhile could say nothing about a panic of its own.
fn busy() -> fibrant::runtime::Runtime {
    let runtime = Builder::new().workers(2).build().unwrap();
    // More real threads than it needs: none is started later, while somebody forks.
    let barrier = Arc::new(Barrier::new(16));
    let jobs: [_; 16] = std::array::from_fn(|_| {
        let barrier = Arc::clone(&barrier);
        fibrant::spawn_blocking(move || {
            barrier.wait();
        })
    });
    jobs.into_iter().for_each(|job| job.join().unwrap());
    let rounds: [_; 4] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    for rounds in rounds.clone() {
        runtime.spawn(move || {
            loop {
                rounds.fetch_add(1, Relaxed);
                let (mut ours, mut theirs) = UnixStream::pair().unwrap();
                let reader = fibrant::spawn(move || theirs.read(&mut [0; 4]));
                fibrant::sleep(Duration::from_micros(50));
                let is_over = ours.write_all(b"x").is_err() || !matches!(reader.join(), Ok(Ok(1)));
                if is_over || fibrant::spawn_blocking(|| ()).join().is_err() {
                    return;
                }
            }
        });
    }
    patience::eventually("it is at work", || {
        rounds.iter().all(|rounds| rounds.load(Relaxed) > 50)
    });
    runtime
}

#[test]
fn a_child_of_a_thread_has_a_runtime_of_its_own() {
    if !alone("a_child_of_a_thread_has_a_runtime_of_its_own") {
        return;
    }
    let _watchdog = Watchdog::new();
    let runtime = busy();
    for round in 0..20 {
        let child = in_child(|| use_a_runtime(1 + round % 2));
        assert_eq!(exit_code(child), 45, "round {round}");
    }
    runtime.shutdown(Duration::ZERO);
}

#[test]
fn a_child_of_a_fiber_has_a_runtime_of_its_own() {
    if !alone("a_child_of_a_fiber_has_a_runtime_of_its_own") {
        return;
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(2);
    let other = busy();
    for round in 0..20 {
        let code = runtime.spawn(move || {
            let child = in_child(|| {
                assert!(!fibrant::hook::is_enabled() && fibrant::fiber::current().is_none());
                use_a_runtime(1 + round % 2)
            });
            exit_code(child)
        });
        assert_eq!(code.join().unwrap(), 45, "round {round}");
    }
    // The parent's sockets have not suffered.
    assert_eq!(use_a_runtime(2), 45);
    other.shutdown(Duration::ZERO);
    runtime.stop().unwrap();
}

#[test]
fn a_child_may_fork_and_the_global_runtime_is_its_own() {
    if !alone("a_child_may_fork_and_the_global_runtime_is_its_own") {
        return;
    }
    let _watchdog = Watchdog::new();
    assert_eq!(fibrant::spawn(|| 1).join().unwrap(), 1);
    let child = in_child(|| {
        let own = fibrant::spawn(|| 2).join().unwrap();
        let grandchild = in_child(|| fibrant::spawn(|| 3).join().unwrap());
        10 * own + exit_code(grandchild)
    });
    assert_eq!(exit_code(child), 23);
}

#[test]
fn a_fiber_that_returns_in_a_child_ends_it() {
    if !alone("a_fiber_that_returns_in_a_child_ends_it") {
        return;
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let fiber = |panics: bool| {
        move || {
            // SAFETY: the child returns, or panics, at once.
            let child = unsafe { libc::fork() };
            if child == 0 && panics {
                std::panic::resume_unwind(Box::new("in the child"));
            }
            child
        }
    };
    let start = Instant::now();
    let children = [false, true].map(|panics| runtime.spawn(fiber(panics)).join().unwrap());
    assert_eq!(children.map(exit_code), [0, 101]);
    // So does the function that `run` runs.
    let child = runtime.run(fiber(false));
    assert_eq!(exit_code(child), 0);
    assert!(start.elapsed() < Duration::from_secs(20));
    runtime.stop().unwrap();
}

/// Whether nested fibers, one of which forks, go on in the child as they do in the parent. The caller is no hand-driven fiber.
fn drive_by_hand() -> bool {
    let child = Rc::new(Cell::new(0));
    let innermost = Fiber::new({
        let child = Rc::clone(&child);
        move || {
            // SAFETY: the child goes on like its parent, until it exits below.
            child.set(unsafe { libc::fork() });
            if child.get() == 0 {
                // SAFETY: sets a timer, whose signal ends a child that hangs.
                unsafe { libc::alarm(30) };
            }
            assert!(fiber::current().is_some());
            fiber::suspend();
        }
    });
    let outer = Fiber::new(move || {
        assert_eq!(innermost.resume().unwrap(), State::Ready);
        fiber::suspend();
        assert_eq!(innermost.resume().unwrap(), State::Term);
    });
    let went_on = panic::catch_unwind(AssertUnwindSafe(|| {
        assert_eq!(outer.resume().unwrap(), State::Ready);
        // A scheduled fiber that drives them is the parent's.
        assert!(child.get() != 0 || fiber::current().is_none());
        assert_eq!(outer.resume().unwrap(), State::Term);
    }));
    if child.get() == 0 {
        // SAFETY: ends the process; nothing of the parent's is to be unwound.
        unsafe { libc::_exit(if went_on.is_ok() { 7 } else { 101 }) };
    }
    went_on.unwrap();
    exit_code(child.get()) == 7
}

#[test]
fn a_child_of_a_hand_driven_fiber_goes_on_in_it() {
    if !alone("a_child_of_a_hand_driven_fiber_goes_on_in_it") {
        return;
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    assert!(drive_by_hand());
    // Also if a fiber of the runtime drives it, which the child goes on in as in a thread.
    assert!(runtime.spawn(drive_by_hand).join().unwrap());
    runtime.stop().unwrap();
}

#[test]
fn a_runtime_is_not_its_childrens() {
    if !alone("a_runtime_is_not_its_childrens") {
        return;
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    // A child must not print what it panics with: another thread may have had std's lock for that when it was forked.
    let (parent, usual) = (std::process::id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::process::id() == parent {
            usual(panic);
        }
    }));
    let child = in_child(|| {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.spawn(|| ())));
        let refused = refused.map(drop).unwrap_err();
        let text = patience::text(&*refused).to_owned();
        assert!(text.contains("forked from"), "{text}");
        assert!(runtime.stop().is_err());
        assert!(runtime.shutdown(Duration::from_secs(1)).cancelled.is_empty());
        drop(runtime);
        7
    });
    // Only the child has dropped it.
    assert_eq!(exit_code(child), 7);
}

#[test]
fn sleeps_and_yields_of_a_fiber_in_a_child_are_a_threads() {
    if !alone("sleeps_and_yields_of_a_fiber_in_a_child_are_a_threads") {
        return;
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let code = runtime.spawn(|| {
        let sibling = fibrant::spawn_local(std::process::id);
        let child = in_child(|| {
            let start = Instant::now();
            fibrant::sleep(Duration::from_millis(10));
            std::thread::sleep(Duration::from_millis(10));
            fibrant::yield_now();
            std::thread::yield_now();
            i32::from(start.elapsed() >= Duration::from_millis(20))
        });
        let code = exit_code(child);
        // The sibling has run in the parent only.
        assert_eq!(sibling.join().unwrap(), std::process::id());
        code
    });
    assert_eq!(code.join().unwrap(), 1);
    runtime.stop().unwrap();
}
