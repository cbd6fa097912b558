//! Who a fiber is, to those who ask for the thread: std, the C library, locks, locales, signals.

use crate::common;
use crate::patience::{Watchdog, eventually};
use crate::support::*;
use crate::worker::thread_number;
use fibrant::fiber;
use std::collections::HashSet;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[test]
fn std_gives_each_fiber_an_id_that_stays() {
    on_workers(|runtime| {
        let ids = together(runtime, 50, |_| {
            let id = std::thread::current().id();
            for round in 0..5 {
                wait(round);
                assert_eq!(std::thread::current().id(), id);
            }
            id
        });
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 50);
    });
}

/// A fiber is parked and woken as a thread is.
#[test]
fn std_parks_and_wakes_fibers() {
    on_workers(|runtime| {
        runtime.run_on(0, || {
            let (sender, receiver) = std::sync::mpsc::channel();
            let fibers: Vec<_> = (0..5)
                .map(|_| {
                    let sender = sender.clone();
                    fibrant::spawn(move || {
                        sender.send(std::thread::current()).unwrap();
                        std::thread::park();
                    })
                })
                .collect();
            for _ in 0..5 {
                receiver.recv().unwrap().unpark();
            }
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
    });
}

#[test]
fn pthread_self_is_the_fiber() {
    on_workers(|runtime| {
        let all_live = Arc::new(std::sync::Barrier::new(50));
        let selves = together(runtime, 50, move |_| {
            let own = pthread_self();
            all_live.wait();
            for round in 0..5 {
                wait(round);
                assert_eq!(pthread_self(), own);
                // SAFETY: compares numbers.
                assert_ne!(unsafe { libc::pthread_equal(own as _, libc::pthread_self()) }, 0);
            }
            own
        });
        let distinct: HashSet<_> = selves.iter().collect();
        assert_eq!(distinct.len(), 50);
    });
}

/// The kernel's questions about a thread are answered for the worker, and about the stack for the fiber.
#[test]
fn the_fibers_thread_can_be_asked_about() {
    on_workers(|runtime| {
        together(runtime, 8, |number| {
            // SAFETY: asks about the calling thread; everything is written to local variables.
            unsafe {
                let own = libc::pthread_self();
                let here = 0_u8;
                let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
                assert_eq!(libc::pthread_getattr_np(own, attributes.as_mut_ptr()), 0);
                let (mut start, mut size, mut guard) = (std::ptr::null_mut(), 0, 0);
                let attributes = attributes.as_mut_ptr();
                assert_eq!(libc::pthread_attr_getstack(attributes, &mut start, &mut size), 0);
                assert_eq!(libc::pthread_attr_getguardsize(attributes, &mut guard), 0);
                assert_eq!(libc::pthread_attr_destroy(attributes), 0);
                let addresses = start.addr()..start.addr() + size;
                assert!(addresses.contains(&(&raw const here).addr()));
                assert!((128 << 10..=256 << 10).contains(&size), "{size}");
                assert!(guard > 0);

                let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
                let length = size_of_val(&set);
                assert_eq!(libc::pthread_getaffinity_np(own, length, &mut set), 0);
                assert!(libc::CPU_COUNT(&set) > 0);
                assert_eq!(libc::pthread_setaffinity_np(own, length, &set), 0);
                let processor = libc::sched_getcpu();
                assert!(processor >= 0 && libc::CPU_ISSET(processor as usize, &set));

                let (mut policy, mut parameters) = (-1, MaybeUninit::zeroed().assume_init());
                assert_eq!(libc::pthread_getschedparam(own, &mut policy, &mut parameters), 0);
                assert_eq!(policy, libc::SCHED_OTHER);
                assert_eq!(libc::pthread_setschedparam(own, policy, &parameters), 0);

                let mut clock = 0;
                assert_eq!(libc::pthread_getcpuclockid(own, &mut clock), 0);
                let mut time = MaybeUninit::<libc::timespec>::uninit();
                assert_eq!(libc::clock_gettime(clock, time.as_mut_ptr()), 0);

                let mut name = [0 as c_char; 32];
                assert_eq!(libc::pthread_getname_np(own, name.as_mut_ptr(), name.len()), 0);
                let shown = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
                assert_eq!(c_text(name.as_ptr()), shown.trim_end());
            }
            wait(number);
        });
    });
}

static HANDLED_BY: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_thread(_: c_int) {
    HANDLED_BY.store(thread_number(), SeqCst);
}

/// A signal to a fiber goes to its worker.
#[test]
fn a_signal_to_a_fiber_reaches_its_worker() {
    // SAFETY: the handler stores a number.
    unsafe { libc::signal(libc::SIGUSR2, note_thread as *const () as usize) };
    on_workers(|runtime| {
        let worker = runtime.workers() - 1;
        let (sender, receiver) = std::sync::mpsc::channel();
        let fiber = runtime.spawn_on(worker, move || {
            sender.send((pthread_self(), thread_number())).unwrap();
            fiber::park();
        });
        let (thread, number) = receiver.recv().unwrap();
        HANDLED_BY.store(0, SeqCst);
        // SAFETY: the fiber lives, and the signal has a handler.
        assert_eq!(unsafe { libc::pthread_kill(thread as _, libc::SIGUSR2) }, 0);
        eventually("it was handled", || HANDLED_BY.load(SeqCst) == number);
        fiber.fiber().unpark();
        fiber.join().unwrap();
        // To itself.
        HANDLED_BY.store(0, SeqCst);
        runtime.run_on(worker, move || {
            // SAFETY: as above.
            let sent = unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(sent, 0);
            assert_eq!(HANDLED_BY.load(SeqCst), number);
            HANDLED_BY.store(0, SeqCst);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
            assert_eq!(HANDLED_BY.load(SeqCst), number);
        });
    });
}

fn mutex(kind: c_int, robust: bool) -> Arc<Mutex> {
    let mutex = Arc::new(Mutex(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
    // SAFETY: makes attributes, and a lock of them, which nobody uses yet.
    unsafe {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        libc::pthread_mutexattr_init(attributes.as_mut_ptr());
        assert_eq!(libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), kind), 0);
        if robust {
            let result =
                libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            assert_eq!(result, 0);
        }
        assert_eq!(libc::pthread_mutex_init(mutex.0.get(), attributes.as_ptr()), 0);
    }
    mutex
}

struct Mutex(std::cell::UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: it is made to be used by several.
unsafe impl Sync for Mutex {}
// SAFETY: it stays where it is, behind a counted reference.
unsafe impl Send for Mutex {}

impl Mutex {
    fn lock(&self) -> c_int {
        // SAFETY: it was made by `mutex`.
        unsafe { libc::pthread_mutex_lock(self.0.get()) }
    }
    fn try_lock(&self) -> c_int {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) }
    }
    fn unlock(&self) -> c_int {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) }
    }
}

#[test]
fn locks_know_which_fiber_has_them() {
    on_workers(|runtime| {
        for robust in [false, true] {
            let recursive = mutex(libc::PTHREAD_MUTEX_RECURSIVE, robust);
            let checking = mutex(libc::PTHREAD_MUTEX_ERRORCHECK, robust);
            runtime.run_on(0, move || {
                assert_eq!([recursive.lock(), recursive.lock(), checking.lock()], [0; 3]);
                assert_eq!(checking.lock(), libc::EDEADLK);
                let (theirs, thereof) = (Arc::clone(&recursive), Arc::clone(&checking));
                let other = fibrant::Builder::new().worker(0).spawn(move || {
                    // A robust mutex is the worker's: the kernel releases it if the thread dies.
                    if !robust {
                        assert_eq!(theirs.try_lock(), libc::EBUSY);
                        assert_eq!(thereof.try_lock(), libc::EBUSY);
                        assert_eq!(theirs.unlock(), libc::EPERM);
                        assert_eq!(thereof.unlock(), libc::EPERM);
                    }
                });
                other.unwrap().join().unwrap();
                assert_eq!(
                    [recursive.unlock(), recursive.unlock(), checking.unlock()],
                    [0; 3]
                );
                let other = fibrant::Builder::new().worker(0).spawn(move || {
                    assert_eq!([recursive.try_lock(), checking.try_lock()], [0; 2]);
                    wait(0);
                    assert_eq!([recursive.unlock(), checking.unlock()], [0; 2]);
                });
                other.unwrap().join().unwrap();
            });
        }
    });
}

/// Robust locks, many at once, in any order: they are in a list of their fiber's.
#[test]
fn robust_locks_are_listed_by_fiber() {
    on_workers(|runtime| {
        together(runtime, 10, |number| {
            let locks: Vec<_> = (0..5).map(|_| mutex(libc::PTHREAD_MUTEX_NORMAL, true)).collect();
            for round in 0..5 {
                locks.iter().for_each(|lock| assert_eq!(lock.lock(), 0));
                wait(round + number);
                for index in 0..5 {
                    assert_eq!(locks[(index + number) % 5].unlock(), 0);
                }
            }
        });
    });
}

unsafe extern "C" {
    fn isalpha_l(character: c_int, locale: libc::locale_t) -> c_int;
    fn toupper(character: c_int) -> c_int;
    fn mbtowc(wide: *mut libc::wchar_t, text: *const c_char, length: usize) -> c_int;
}

#[test]
fn characters_and_numbers_are_read_and_written() {
    on_workers(|runtime| {
        together(runtime, 20, |number| {
            // SAFETY: what is read and written are local variables and constants.
            unsafe {
                assert_ne!(libc::isalpha(c_int::from(b'q')), 0);
                assert_eq!(libc::isdigit(c_int::from(b'q')), 0);
                assert_eq!(toupper(c_int::from(b'q')), c_int::from(b'Q'));
                assert_eq!(libc::strtod(c"-2.5e3".as_ptr(), std::ptr::null_mut()), -2500.0);
                let mut text = [0 as c_char; 64];
                libc::snprintf(
                    text.as_mut_ptr(),
                    text.len(),
                    c"%d %.3f %s".as_ptr(),
                    number as c_int,
                    number as f64 / 8.0,
                    c"words".as_ptr(),
                );
                wait(number);
                assert_eq!(
                    c_text(text.as_ptr()),
                    format!("{number} {:.3} words", number as f64 / 8.0)
                );
                assert!(c_text(libc::strerror(libc::ENOENT)).contains("No such file"));
            }
        });
    });
}

#[test]
fn each_fiber_has_its_locale() {
    on_workers(|runtime| {
        together(runtime, 20, |number| {
            // SAFETY: the locale is made, used and freed here.
            unsafe {
                let everybodys = libc::uselocale(std::ptr::null_mut());
                assert_eq!(everybodys.addr(), usize::MAX, "the process's");
                let own = libc::newlocale(libc::LC_ALL_MASK, c"C.UTF-8".as_ptr(), std::ptr::null_mut());
                assert!(!own.is_null());
                if number % 2 == 0 {
                    libc::uselocale(own);
                }
                for round in 0..5 {
                    wait(round);
                    let (used, length) = (libc::uselocale(std::ptr::null_mut()), {
                        let mut wide = 0 as libc::wchar_t;
                        mbtowc(&mut wide, c"\u{e4}".as_ptr(), 2)
                    });
                    if number % 2 == 0 {
                        assert_eq!((used, length), (own, 2));
                    } else {
                        assert_eq!(
                            (used, length),
                            (everybodys, -1),
                            "the locale C has no such letter"
                        );
                    }
                    assert_ne!(libc::isalpha(c_int::from(b'z')), 0);
                    assert_ne!(isalpha_l(c_int::from(b'z'), own), 0);
                }
                libc::uselocale(everybodys);
                libc::freelocale(own);
            }
        });
    });
}

#[test]
fn names_are_resolved() {
    on_workers(|runtime| {
        let found = together(runtime, 10, |number| {
            let name = ["localhost:80", "127.0.0.1:80"][number % 2];
            for round in 0..5 {
                let mut addresses = name.to_socket_addrs().unwrap();
                assert!(addresses.any(|address| address.ip().is_loopback()));
                wait(round);
            }
            // A name that nobody has, without a question to any server.
            let unknown = "no..such:80".to_socket_addrs();
            unknown.is_err()
        });
        assert_eq!(found, [true; 10]);
    });
}

extern "C" fn begin_thread(data: *mut c_void) -> *mut c_void {
    data.wrapping_byte_add(1)
}

#[test]
fn fibers_start_threads_and_join_them() {
    on_workers(|runtime| {
        together(runtime, 10, |number| {
            // SAFETY: the thread gives its number back, and is joined.
            unsafe {
                let mut thread = 0;
                let data = std::ptr::without_provenance_mut(number);
                assert_eq!(
                    libc::pthread_create(&mut thread, std::ptr::null(), begin_thread, data),
                    0
                );
                assert_ne!(thread as usize, pthread_self());
                let mut result = std::ptr::null_mut();
                assert_eq!(libc::pthread_join(thread, &mut result), 0);
                assert_eq!(result.addr(), number + 1);
            }
            let own = std::thread::current().id();
            let other = std::thread::spawn(|| std::thread::current().id());
            assert_ne!(other.join().unwrap(), own);
            let mut words = vec![String::new(); 3];
            std::thread::scope(|scope| {
                for (index, word) in words.iter_mut().enumerate() {
                    scope.spawn(move || *word = format!("{number} {index}"));
                }
            });
            assert_eq!(words[2], format!("{number} 2"));
        });
    });
}

unsafe extern "C-unwind" {
    fn pthread_exit(value: *mut c_void) -> !;
}

/// `pthread_exit` ends the fiber, destructors included, and nobody else.
#[test]
fn pthread_exit_ends_the_fiber() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<crate::patience::Counted>> = const { std::cell::RefCell::new(None) };
    }
    on_workers(|runtime| {
        let census = crate::patience::Census::default();
        for _ in 0..20 {
            let counted = census.clone();
            let fiber = runtime.spawn(move || {
                let _on_stack = counted.count();
                KEPT.set(Some(counted.count()));
                fibrant::yield_now();
                // SAFETY: what is on the stack is unwound.
                unsafe { pthread_exit(std::ptr::null_mut()) }
            });
            assert!(fiber.join().is_err());
        }
        assert_eq!((census.made(), census.dropped()), (40, 40));
    });
}

#[inline(never)]
#[allow(unconditional_recursion)] // until the stack is full
fn recurse(depth: usize) -> usize {
    let frame = [depth; 32];
    recurse(std::hint::black_box(frame)[31] + 1) + std::hint::black_box(&frame)[0]
}

/// An overflow is still reported as one.
#[test]
fn an_overflow_is_reported() {
    const TEST: &str = "identity::an_overflow_is_reported";
    let _watchdog = Watchdog::new();
    if common::case().is_some() {
        let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
        let fiber = runtime.spawn(|| {
            fibrant::sleep(Duration::from_millis(1));
            recurse(0)
        });
        fiber.join().unwrap();
        return;
    }
    let child = common::child(TEST, "overflow", &[]);
    assert!(
        child.stderr().contains("overflowed its stack"),
        "{}",
        child.stderr()
    );
    assert_eq!(child.signal(), Some(libc::SIGABRT));
}

/// Thousands of fibers begin, one after the other on the same stack, while signals come as fast as they can: a handler finds
/// thread-locals that are whole, whatever it interrupts.
#[test]
fn a_signal_may_come_while_a_fiber_begins() {
    static HANDLED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handle(_: c_int) {
        // SAFETY: the address is that of the thread's variable.
        unsafe { *libc::__errno_location() += 0 };
        HANDLED.fetch_add(1, SeqCst);
    }
    alone("identity::a_signal_may_come_while_a_fiber_begins", || {
        let watchdog = Watchdog::new();
        let runtime = watchdog.runtime(1);
        // SAFETY: the handler may run at any time.
        unsafe { libc::signal(libc::SIGUSR2, handle as *const () as usize) };
        let worker = runtime.dump().workers[0].thread;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !is_over.load(SeqCst) {
                    let before = HANDLED.load(SeqCst);
                    // SAFETY: the thread is there until the runtime ends.
                    let sent =
                        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), worker, libc::SIGUSR2) };
                    assert_eq!(sent, 0);
                    // One at a time.
                    while HANDLED.load(SeqCst) == before && !is_over.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                }
            });
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(500) || HANDLED.load(SeqCst) < 1000 {
                let fibers = runtime.spawn_all((0..1000).map(|number| move || number));
                let sum: usize = fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum();
                assert_eq!(sum, 999 * 500);
            }
            is_over.store(true, SeqCst);
        });
    });
}

/// Signals that interrupt fibers wherever they are find a thread.
#[test]
fn handlers_run_in_fibers() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn count(_: c_int) {
        set_errno(libc::EINTR);
        COUNT.fetch_add(1, SeqCst);
        set_errno(0);
    }
    // SAFETY: the handler counts.
    unsafe { libc::signal(libc::SIGURG, count as *const () as usize) };
    on_workers(|runtime| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let is_done = Arc::new(AtomicBool::new(false));
        let interrupted = Arc::clone(&is_done);
        let fiber = runtime.spawn(move || {
            let before = COUNT.load(SeqCst);
            sender.send(pthread_self()).unwrap();
            while COUNT.load(SeqCst) == before {
                std::hint::spin_loop();
            }
            while COUNT.load(SeqCst) < before + 10 {
                wait(1);
            }
            interrupted.store(true, SeqCst);
            fiber::park();
        });
        let thread = receiver.recv().unwrap();
        eventually("it was interrupted", || {
            // SAFETY: the fiber lives: it is parked in the end.
            unsafe { libc::pthread_kill(thread as _, libc::SIGURG) };
            is_done.load(SeqCst)
        });
        fiber.fiber().unpark();
        fiber.join().unwrap();
    });
}
