//! What isolated fibers cost, and that they leave nothing behind. In processes of their own, whose memory is theirs alone.

use crate::common;
use crate::patience::{Watchdog, eventually};
use crate::support::*;
use fibrant::fiber;
use fibrant::runtime::Builder;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

thread_local! {
    static WORDS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The resident memory of this process in bytes, page tables included.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let figure = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    };
    figure("VmRSS:") + figure("VmPTE:")
}

unsafe extern "C" fn free(value: *mut std::ffi::c_void) {
    // SAFETY: the values are boxes.
    drop(unsafe { Box::from_raw(value.cast::<[u8; 100]>()) });
}

/// Two hundred thousand fibers that use all kinds of thread-locals, some at a time.
#[test]
fn nothing_is_left_of_many_fibers() {
    const TEST: &str = "memory::nothing_is_left_of_many_fibers";
    let _watchdog = Watchdog::new();
    if common::case().is_none() {
        return print!("{}", common::child(TEST, "measure", &[]).succeeded().stderr());
    }
    let (dynamic, fixed) = (
        Compiled::new("locals.c", DYNAMIC),
        Compiled::new("locals.c", STATIC),
    );
    let libraries = [dynamic.load(), fixed.load()].map(Loaded::locals);
    let mut keys = [0; 40];
    for key in &mut keys {
        // SAFETY: makes a key.
        assert_eq!(unsafe { libc::pthread_key_create(key, Some(free)) }, 0);
    }
    let runtime = Builder::new().workers(2).build().unwrap();
    let spawn = move |count: usize| {
        for _ in 0..count / 50 {
            let fibers: Vec<_> = (0..50)
                .map(|number| {
                    fibrant::spawn(move || {
                        WORDS.with_borrow_mut(|words| words.push("word".repeat(number)));
                        for locals in libraries {
                            assert!(locals.are_initial());
                            locals.soil(number);
                        }
                        let value = Box::into_raw(Box::new([number as u8; 100]));
                        // SAFETY: the key was made above.
                        unsafe { libc::pthread_setspecific(keys[(number % 2) * 39], value.cast()) };
                        if number % 8 == 0 {
                            fibrant::yield_now();
                        }
                        assert_eq!(std::thread::current().name(), None);
                        // Its first one asks for random numbers, for which newer C libraries keep something for each thread.
                        assert!(HashMap::from([(number, number)]).contains_key(&number));
                    })
                })
                .collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        }
    };
    runtime.run_on(0, move || spawn(20_000));
    let before = resident();
    runtime.run_on(0, move || spawn(200_000));
    let growth = resident().saturating_sub(before);
    eprintln!("200000 fibers left {growth} bytes");
    assert!(is_emulated() || growth < 4 << 20, "{growth} bytes are left");
    runtime.stop().unwrap();
}

/// A fiber that is parked takes two pages: its block and the top of its stack.
#[test]
fn a_parked_fiber_takes_little() {
    const TEST: &str = "memory::a_parked_fiber_takes_little";
    const COUNT: usize = 20_000;
    let _watchdog = Watchdog::new();
    if common::case().is_none() {
        return print!("{}", common::child(TEST, "measure", &[]).succeeded().stderr());
    }
    let runtime = Builder::new().workers(2).stack_size(64 << 10).build().unwrap();
    runtime.run_on(0, || drop(fibrant::spawn(|| ()).join()));
    let parked = Arc::new(AtomicUsize::new(0));
    let before = resident();
    let fibers: Vec<_> = (0..COUNT)
        .map(|_| {
            let parked = Arc::clone(&parked);
            runtime.spawn(move || {
                parked.fetch_add(1, SeqCst);
                fiber::park();
            })
        })
        .collect();
    eventually("all are parked", || parked.load(SeqCst) == COUNT);
    let each = (resident() - before) / COUNT;
    eprintln!("a parked fiber takes {each} bytes");
    // Without optimisation its frames are larger.
    let most = if cfg!(debug_assertions) {
        20 << 10
    } else {
        10 << 10
    };
    assert!(is_emulated() || each < most, "{each} bytes");
    fibers.iter().for_each(|fiber| fiber.fiber().unpark());
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    runtime.stop().unwrap();
}

/// Fibers that resolve names, for which the C library keeps a state in each thread.
#[test]
fn nothing_is_left_of_names() {
    const TEST: &str = "memory::nothing_is_left_of_names";
    const COUNT: usize = 5_000;
    let _watchdog = Watchdog::new();
    if common::case().is_none() {
        return print!("{}", common::child(TEST, "measure", &[]).succeeded().stderr());
    }
    let runtime = Builder::new().workers(1).build().unwrap();
    let resolve = |count: usize| {
        for _ in 0..count {
            let fiber = fibrant::spawn(|| "localhost:80".to_socket_addrs().unwrap().count());
            assert!(fiber.join().unwrap() > 0);
        }
    };
    runtime.run_on(0, move || resolve(500));
    let before = resident();
    runtime.run_on(0, move || resolve(COUNT));
    let growth = resident().saturating_sub(before);
    eprintln!("{COUNT} fibers that resolved a name left {growth} bytes");
    assert!(is_emulated() || growth < 512 << 10, "{growth} bytes are left");
    runtime.stop().unwrap();
}

/// Fibers that look for a function which is not there: the C library keeps, for each thread, what there is to say about it.
#[test]
fn nothing_is_left_of_errors() {
    const TEST: &str = "memory::nothing_is_left_of_errors";
    const COUNT: usize = 20_000;
    let _watchdog = Watchdog::new();
    if common::case().is_none() {
        return print!("{}", common::child(TEST, "measure", &[]).succeeded().stderr());
    }
    let runtime = Builder::new().workers(1).build().unwrap();
    let look = |count: usize| {
        for _ in 0..count {
            // SAFETY: looks for what is not there.
            let look = || unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"no_such_function".as_ptr()).is_null() };
            assert!(fibrant::spawn(look).join().unwrap());
        }
    };
    runtime.run_on(0, move || look(500));
    let before = resident();
    runtime.run_on(0, move || look(COUNT));
    let growth = resident().saturating_sub(before);
    eprintln!("{COUNT} fibers that looked in vain left {growth} bytes");
    assert!(is_emulated() || growth < 512 << 10, "{growth} bytes are left");
    runtime.stop().unwrap();
}
