//! Waiting for signals, and what a handler does: point 26.
//!
//! Signals are sent to the thread that the body runs on, because the others of this program do not block them. Each body has a
//! signal of its own.

use crate::support::*;
use std::io::{Read, Write};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

unsafe extern "C" {
    fn siginterrupt(signal: i32, yes: i32) -> i32;
}

/// A signal for one body.
fn own(number: i32) -> i32 {
    libc::SIGRTMIN() + number
}

fn set_of(signal: i32) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: makes a set of one signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Blocks a signal in this thread, or lets it in.
fn mask(how: i32, signal: i32) {
    // SAFETY: reads a local variable.
    let result = unsafe { libc::pthread_sigmask(how, &set_of(signal), std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Installs a handler.
fn handle(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: the handlers here do what a handler may.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

fn send(thread: usize, signal: i32) {
    // SAFETY: the thread waits for it, so it is there.
    let result = unsafe { libc::pthread_kill(thread as libc::pthread_t, signal) };
    assert_eq!(result, 0);
}

fn this_thread() -> usize {
    // SAFETY: asks who this is.
    unsafe { libc::pthread_self() as usize }
}

/// Sends a signal to this thread as soon as its fiber waits, and again as long as nothing comes of it.
fn send_later(signal: i32, done: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let thread = this_thread();
    later(move || {
        while !done.load(SeqCst) {
            send(thread, signal);
            thread::sleep(ms(20));
        }
    })
}

static HANDLED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

extern "C" fn count(signal: i32) {
    HANDLED[(signal - libc::SIGRTMIN()) as usize].fetch_add(1, SeqCst);
}

extern "C" fn sleep_in_handler(signal: i32) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 3_000_000,
    };
    // SAFETY: reads a local variable.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
    count(signal);
}

static READ_END: AtomicI32 = AtomicI32::new(-1);

/// Nothing is there to be read yet; a read that parked would let another fiber run, in the middle of a handler.
extern "C" fn poll_in_handler(signal: i32) {
    let mut asked = libc::pollfd {
        fd: READ_END.load(SeqCst),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one element.
    if unsafe { libc::poll(&mut asked, 1, 5) } == 0 {
        count(signal);
    }
}

extern "C" fn close_in_handler(signal: i32) {
    // SAFETY: the descriptor is the body's, which gave it up.
    if unsafe { libc::close(READ_END.load(SeqCst)) } == 0 {
        count(signal);
    }
}

/// The errors, and whether calls are restarted then.
const SIGINTERRUPT: [(i32, bool); 11] = [
    (0, true),
    (0, false),
    (0, false),
    (0, false),
    (libc::EINVAL, false),
    (0, true),
    (0, true),
    (libc::EINVAL, true),
    (libc::EINVAL, true),
    (libc::EINVAL, true),
    (libc::EINVAL, true),
];

bodies! {
    p26_sigwait_waits_for_a_signal, true, || {
        let signal = own(1);
        mask(libc::SIG_BLOCK, signal);
        let thread = this_thread();
        let sender = later(move || send(thread, signal));
        let mut found = 0;
        // SAFETY: local variables.
        let result = unsafe { libc::sigwait(&set_of(signal), &mut found) };
        sender.join().unwrap();
        (result, found == signal)
    };
    p26_the_functions_tell_less_than_the_kernel, false, || {
        let signal = own(13);
        mask(libc::SIG_BLOCK, signal);
        // SAFETY: all zero is a value of it; sets, times and what is found are local variables.
        unsafe {
            let mut found: libc::siginfo_t = zeroed();
            let time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let set = set_of(signal);
            let mut codes = Vec::new();
            for call in 0..3 {
                send(this_thread(), signal);
                let result = match call {
                    0 => libc::sigwaitinfo(&set, &mut found),
                    1 => libc::sigtimedwait(&set, &mut found, &time),
                    _ => libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, &raw mut found, &raw const time, 8) as i32,
                };
                codes.push((result == signal, found.si_signo == signal, found.si_code));
            }
            codes
        }
    };
    // What the C library's functions come to: threads get the same ones as fibers.
    p26_siginterrupt_is_for_the_handlers_of_signal, false alone => SIGINTERRUPT, || {
        let signal = own(14);
        let handler = count as *const () as usize;
        let restarts = || {
            // SAFETY: all zero is a value of it, which is a local variable.
            unsafe {
                let mut action: libc::sigaction = zeroed();
                assert_eq!(libc::sigaction(signal, std::ptr::null(), &mut action), 0);
                action.sa_flags & libc::SA_RESTART != 0
            }
        };
        // SAFETY: the handler does what a handler may.
        let install = |handler: usize| (told(unsafe { libc::signal(signal, handler) } as isize).1, restarts());
        // SAFETY: numbers.
        let interrupt = |signal, yes| (told(unsafe { siginterrupt(signal, yes) } as isize).1, restarts());
        [
            install(handler),
            interrupt(signal, 1),
            install(libc::SIG_DFL),
            install(handler),
            install(libc::SIG_ERR),
            interrupt(signal, 0),
            install(handler),
            install(libc::SIG_ERR),
            interrupt(0, 1),
            interrupt(99, 1),
            interrupt(libc::SIGKILL, 1),
        ]
    };
    p26_sigwaitinfo_takes_a_pending_one, false, || {
        let signal = own(2);
        mask(libc::SIG_BLOCK, signal);
        send(this_thread(), signal);
        let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: local variables, which all zero is a value of.
        let (result, information) = unsafe {
            (libc::sigwaitinfo(&set_of(signal), information.as_mut_ptr()), information.assume_init())
        };
        // SAFETY: the process that sent it, for a signal that was sent.
        (result == signal, information.si_signo == signal, unsafe { information.si_pid() } == std::process::id() as i32)
    };
    p26_sigtimedwait_gives_up, true, || {
        let signal = own(3);
        mask(libc::SIG_BLOCK, signal);
        let time = libc::timespec { tv_sec: 0, tv_nsec: 30_000_000 };
        let start = Instant::now();
        // SAFETY: local variables.
        let result = told(unsafe { libc::sigtimedwait(&set_of(signal), std::ptr::null_mut(), &time) } as isize);
        (result, start.elapsed() >= ms(30))
    };
    p26_sigtimedwait_refuses_a_bad_time, false, || {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
        // SAFETY: local variables.
        told(unsafe { libc::sigtimedwait(&set_of(own(3)), std::ptr::null_mut(), &time) } as isize)
    };
    p26_pause_returns_when_a_handler_has_run, true, || {
        let signal = own(4);
        handle(signal, count, 0);
        mask(libc::SIG_UNBLOCK, signal);
        let (before, done) = (HANDLED[4].load(SeqCst), Arc::new(AtomicBool::new(false)));
        let sender = send_later(signal, Arc::clone(&done));
        let mut told_last = (0, 0);
        // Handlers of other tests run, too.
        while HANDLED[4].load(SeqCst) == before {
            // SAFETY: waits for a signal.
            told_last = told(unsafe { libc::pause() } as isize);
        }
        done.store(true, SeqCst);
        sender.join().unwrap();
        told_last
    };
    p26_sigsuspend_lets_a_signal_in, true, || {
        let signal = own(5);
        handle(signal, count, 0);
        mask(libc::SIG_BLOCK, signal);
        let (before, done) = (HANDLED[5].load(SeqCst), Arc::new(AtomicBool::new(false)));
        let sender = send_later(signal, Arc::clone(&done));
        let mut told_last = (0, 0);
        while HANDLED[5].load(SeqCst) == before {
            // SAFETY: a set that blocks nothing.
            told_last = told(unsafe { libc::sigsuspend(&zeroed()) } as isize);
        }
        done.store(true, SeqCst);
        sender.join().unwrap();
        // It is blocked again.
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: asks for the mask.
        let is_blocked = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal)
        };
        (told_last, is_blocked)
    };
    p26_a_handled_signal_does_not_end_a_read, true, || {
        let signal = own(6);
        handle(signal, count, libc::SA_RESTART);
        let (mut ours, mut theirs) = streams();
        let (before, thread) = (HANDLED[6].load(SeqCst), this_thread());
        let sender = later(move || {
            send(thread, signal);
            while HANDLED[6].load(SeqCst) == before {
                thread::sleep(ms(1));
            }
            theirs.write_all(b"after").unwrap();
        });
        let mut word = [0; 5];
        let read = kind(ours.read(&mut word));
        sender.join().unwrap();
        (read, word)
    };
    p26_a_sleep_in_a_handler_does_not_park, false, || {
        let signal = own(7);
        handle(signal, sleep_in_handler, 0);
        let (before, start) = (HANDLED[7].load(SeqCst), Instant::now());
        send(this_thread(), signal);
        (HANDLED[7].load(SeqCst) - before, start.elapsed() >= ms(3))
    };
    p26_a_poll_in_a_handler_does_not_park, false, || {
        let (reader, _writer) = pipe();
        READ_END_LOCK.with_lock(|| {
            READ_END.store(reader.as_raw_fd(), SeqCst);
            let signal = own(8);
            handle(signal, poll_in_handler, 0);
            let before = HANDLED[8].load(SeqCst);
            send(this_thread(), signal);
            HANDLED[8].load(SeqCst) - before
        })
    };
    p26_the_program_sees_its_own_handlers, false, || {
        let signal = own(9);
        // SAFETY: local variables, which all zero is a value of; the handlers do what a handler may.
        unsafe {
            let mut old: libc::sigaction = zeroed();
            libc::signal(signal, libc::SIG_IGN);
            let first = libc::signal(signal, count as *const () as usize) == libc::SIG_IGN;
            libc::sigaction(signal, std::ptr::null(), &mut old);
            let second = (old.sa_sigaction == count as *const () as usize, old.sa_flags & (libc::SA_SIGINFO | libc::SA_RESTART));
            let third = libc::signal(signal, libc::SIG_DFL) == count as *const () as usize;
            // A thread's calls are ours, too: to compare is not enough.
            assert!(first && second.0 && third);
            libc::sigaction(signal, std::ptr::null(), &mut old);
            (first, second, third, old.sa_sigaction, libc::signal(0, libc::SIG_DFL), libc::signal(libc::SIGKILL, libc::SIG_IGN))
        }
    };
    p26_information_is_passed_on, false, || {
        static SEEN: Mutex<Option<(i32, i32)>> = Mutex::new(None);
        extern "C" fn handler(signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the kernel's.
            let sender = unsafe { (*information).si_pid() };
            assert!(!context.is_null());
            *SEEN.lock().unwrap() = Some((signal, sender));
        }
        let signal = own(10);
        // SAFETY: nothing else uses the lock when it is sent.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut());
            send(this_thread(), signal);
            let mut now: libc::sigaction = zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut now);
            let seen = SEEN.lock().unwrap().take();
            (seen == Some((signal, std::process::id() as i32)), now.sa_sigaction == libc::SIG_DFL)
        }
    };
    p26_a_handler_may_close, false alone, || {
        let (reader, writer) = pipe();
        READ_END_LOCK.with_lock(|| {
            READ_END.store(std::os::fd::IntoRawFd::into_raw_fd(reader), SeqCst);
            let signal = own(11);
            handle(signal, close_in_handler, 0);
            let before = HANDLED[11].load(SeqCst);
            send(this_thread(), signal);
            HANDLED[11].load(SeqCst) - before
        }) + usize::from(std::fs::File::from(writer).write(b"x").is_err())
    };
}

/// Two bodies share a place.
struct Turn(Mutex<()>);
static READ_END_LOCK: Turn = Turn(Mutex::new(()));

impl Turn {
    fn with_lock<T>(&self, f: impl FnOnce() -> T) -> T {
        // That another test has it is no wait of the body's.
        let _guard = fibrant::hook::disabled(|| self.0.lock().unwrap());
        f()
    }
}

#[test]
fn a_fiber_that_waits_for_a_signal_lets_others_run() {
    let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
    let signal = own(12);
    let waiter = runtime.spawn(move || {
        mask(libc::SIG_BLOCK, signal);
        let thread = this_thread();
        let sibling = fibrant::spawn_local(move || send(thread, signal));
        let mut found = 0;
        // SAFETY: local variables.
        assert_eq!(unsafe { libc::sigwait(&set_of(signal), &mut found) }, 0);
        sibling.join().unwrap();
        found
    });
    assert_eq!(waiter.join().unwrap(), signal);
    runtime.stop().unwrap();
}
