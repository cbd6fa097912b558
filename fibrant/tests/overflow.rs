//! What happens when a stack overflows, and that all other faults go where they would have gone. Each case runs in a child
//! process, which crashes.

mod common;

use common::{Child, case, child};
use fibrant::fiber::Fiber;
use std::ptr;

#[inline(never)]
#[allow(unconditional_recursion)] // until the stack is full
fn recurse(depth: usize) -> usize {
    let frame = [depth; 32];
    // Used after the call as well, so that the compiler cannot make a loop of it.
    recurse(std::hint::black_box(frame)[31] + 1) + std::hint::black_box(&frame)[0]
}

fn overflow() {
    let fiber = Fiber::with_stack_size(64 << 10, || {
        recurse(0);
    })
    .named("deep");
    fiber.resume().unwrap();
}

/// Reads an address that nothing is mapped at.
fn wild_read() {
    // SAFETY: none: this is the fault that the test is about.
    unsafe { std::hint::black_box(ptr::without_provenance::<u8>(16).read_volatile()) };
}

/// The one line, and the abort.
fn check_message(child: &Child, name: &str, size: &str) {
    let stderr = child.stderr();
    let lines: Vec<_> = stderr
        .lines()
        .filter(|line| line.contains("overflowed its stack"))
        .collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    let line = lines[0];
    assert!(line.starts_with("fibrant: fiber "), "{line}");
    assert!(
        line.split(' ').nth(2).unwrap().parse::<u64>().unwrap() > 0,
        "{line}"
    );
    for part in [name, size, "Fiber::with_stack_size", "FIBRANT=stack="] {
        assert!(line.contains(part), "{part} is missing: {line}");
    }
    assert_eq!(child.signal(), Some(libc::SIGABRT), "{stderr}");
}

#[test]
fn an_overflow_is_reported_with_name_and_size() {
    match case().as_deref() {
        None => {
            for name in ["here", "thread", "bare thread", "nested", "default size"] {
                let child = child("an_overflow_is_reported_with_name_and_size", name, &[]);
                let size = if name == "default size" {
                    "256 KiB"
                } else {
                    "64 KiB"
                };
                check_message(&child, "'deep'", size);
            }
            let child = child(
                "an_overflow_is_reported_with_name_and_size",
                "here",
                &[("FIBRANT", "guard=mprotect")],
            );
            check_message(&child, "'deep'", "64 KiB");
        }
        Some("here") => overflow(),
        Some("thread") => std::thread::spawn(overflow).join().unwrap(),
        Some("bare thread") => on_bare_thread(),
        Some("nested") => {
            let outer = Fiber::new(|| {
                Fiber::new(|| {}).resume().unwrap();
                overflow();
            });
            outer.resume().unwrap();
        }
        Some("default size") => {
            let fiber = Fiber::new(|| {
                recurse(0);
            });
            fiber.named("deep").resume().unwrap();
        }
        Some(other) => unreachable!("{other}"),
    }
}

#[test]
fn the_outer_fiber_is_named_when_it_overflows_after_an_inner_one() {
    if case().is_some() {
        let outer = Fiber::with_stack_size(128 << 10, || {
            let inner = Fiber::new(fibrant::fiber::suspend).named("inner");
            inner.resume().unwrap();
            recurse(0);
        })
        .named("outer");
        outer.resume().unwrap();
    }
    let child = child(
        "the_outer_fiber_is_named_when_it_overflows_after_an_inner_one",
        "outer",
        &[],
    );
    check_message(&child, "'outer'", "128 KiB");
}

/// A thread that std knows nothing of, and that has no signal stack.
fn on_bare_thread() {
    extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
        overflow();
        ptr::null_mut()
    }
    // SAFETY: starts and joins a thread that runs a function of the right type.
    unsafe {
        let mut thread = std::mem::zeroed();
        assert_eq!(
            libc::pthread_create(&mut thread, ptr::null(), run, ptr::null_mut()),
            0
        );
        libc::pthread_join(thread, ptr::null_mut());
    }
}

#[test]
fn other_faults_end_the_process_as_before() {
    match case().as_deref() {
        None => {
            for name in ["in a fiber", "outside", "after the fibers", "neighbour's guard"] {
                let child = child("other_faults_end_the_process_as_before", name, &[]);
                assert_eq!(child.signal(), Some(libc::SIGSEGV), "{name}: {}", child.stderr());
                assert!(
                    !child.stderr().contains("overflowed"),
                    "{name}: {}",
                    child.stderr()
                );
            }
        }
        Some("in a fiber") => Fiber::new(wild_read).resume().map(drop).unwrap(),
        Some("outside") => {
            let fiber = Fiber::new(fibrant::fiber::suspend);
            fiber.resume().unwrap();
            wild_read();
        }
        Some("after the fibers") => {
            Fiber::new(|| {}).resume().unwrap();
            wild_read();
        }
        Some("neighbour's guard") => {
            // A wild write to the guard of a fiber that is not running is not an overflow.
            let fiber = Fiber::with_stack_size(64 << 10, || {
                let local = 0_u8;
                LOCAL.set(&raw const local as usize);
                fibrant::fiber::suspend();
            });
            fiber.resume().unwrap();
            let page = 4096;
            let guard = (LOCAL.get() / page + 1) * page - (64 << 10) - page;
            // SAFETY: none: this is the fault that the test is about.
            unsafe { ptr::without_provenance_mut::<u8>(guard + 8).write_volatile(1) };
        }
        Some(other) => unreachable!("{other}"),
    }
    thread_local!(static LOCAL: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
}

#[test]
fn an_overflow_of_a_thread_is_still_reported_by_std() {
    if case().is_some() {
        Fiber::new(|| {}).resume().unwrap();
        std::thread::Builder::new()
            .name("shallow".to_owned())
            .spawn(|| recurse(0))
            .unwrap()
            .join()
            .unwrap();
    }
    let child = child("an_overflow_of_a_thread_is_still_reported_by_std", "thread", &[]);
    assert!(
        child.stderr().contains("has overflowed its stack"),
        "{}",
        child.stderr()
    );
    assert!(child.stderr().contains("shallow"), "{}", child.stderr());
    assert!(!child.stderr().contains("fibrant:"), "{}", child.stderr());
    assert_eq!(child.signal(), Some(libc::SIGABRT));
}

#[test]
fn the_previous_handler_gets_every_other_fault() {
    extern "C" fn with_info(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's own arguments, passed on.
        let address = unsafe { (*info).si_addr() as usize };
        let as_expected = signal == libc::SIGSEGV && address == 16 && !context.is_null();
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(if as_expected { 41 } else { 1 }) };
    }
    extern "C" fn plain(signal: libc::c_int) {
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(if signal == libc::SIGSEGV { 42 } else { 1 }) };
    }
    extern "C" fn once(_: libc::c_int) {
        // Returning means that the fault happens again, and then meets the default action.
    }
    fn install(handler: usize, flags: libc::c_int) {
        // SAFETY: installs a handler whose signature fits the flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
        }
    }
    match case().as_deref() {
        None => {
            let run = |name| child("the_previous_handler_gets_every_other_fault", name, &[]);
            for (name, code) in [("info", 41), ("plain", 42)] {
                let child = run(name);
                assert_eq!(child.0.status.code(), Some(code), "{name}: {}", child.stderr());
            }
            for name in ["once", "ignored", "default and sent"] {
                let child = run(name);
                assert_eq!(child.signal(), Some(libc::SIGSEGV), "{name}: {}", child.stderr());
            }
            run("ignored and sent").succeeded();
            check_message(&run("overflow"), "'deep'", "64 KiB");
            return;
        }
        Some("info" | "overflow") => install(with_info as *const () as usize, libc::SA_SIGINFO),
        Some("plain") => install(plain as *const () as usize, 0),
        Some("once") => install(once as *const () as usize, libc::SA_RESETHAND),
        Some("ignored" | "ignored and sent") => install(libc::SIG_IGN, 0),
        Some("default and sent") => install(libc::SIG_DFL, 0),
        Some(other) => unreachable!("{other}"),
    }
    // On a thread of its own, which has no fibers yet, as all that follows is about the first use.
    std::thread::spawn(|| match case().as_deref() {
        Some("overflow") => overflow(),
        Some("ignored and sent" | "default and sent") => {
            Fiber::new(|| {}).resume().unwrap();
            // SAFETY: sends this thread a signal.
            unsafe { libc::raise(libc::SIGSEGV) };
        }
        _ => Fiber::new(wild_read).resume().map(drop).unwrap(),
    })
    .join()
    .unwrap();
}
