//! Keys of pthread and of C11: values of each fiber, and destructors when it ends.

use crate::patience::eventually;
use crate::support::*;
use libc::pthread_key_t;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

unsafe extern "C" {
    fn tss_create(key: *mut pthread_key_t, destructor: Destructor) -> i32;
    fn tss_get(key: pthread_key_t) -> *mut c_void;
    fn tss_set(key: pthread_key_t, value: *mut c_void) -> i32;
    fn tss_delete(key: pthread_key_t);
}

type Destructor = Option<unsafe extern "C" fn(*mut c_void)>;

fn key(destructor: Destructor) -> pthread_key_t {
    let mut key = 0;
    // SAFETY: makes a key.
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, destructor) }, 0);
    key
}

fn delete(key: pthread_key_t) {
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
}

fn get(key: pthread_key_t) -> usize {
    // SAFETY: the tests use keys that they have made.
    unsafe { libc::pthread_getspecific(key) }.addr()
}

fn set(key: pthread_key_t, value: usize) {
    // SAFETY: as above.
    let result = unsafe { libc::pthread_setspecific(key, ptr::without_provenance(value)) };
    assert_eq!(result, 0);
}

/// Adds to the counter that a value is the address of.
unsafe extern "C" fn count(value: *mut c_void) {
    // SAFETY: the tests give such addresses.
    unsafe { &*value.cast::<AtomicUsize>() }.fetch_add(1, SeqCst);
}

#[test]
fn each_fiber_has_its_own_values() {
    on_workers(|runtime| {
        let plain = key(None);
        set(plain, 5);
        together(runtime, 30, move |number| {
            assert_eq!(get(plain), 0);
            for round in 0..5 {
                set(plain, number * 10 + round);
                wait(round);
                assert_eq!(get(plain), number * 10 + round);
            }
        });
        assert_eq!(get(plain), 5);
        delete(plain);
    });
}

#[test]
fn destructors_run_before_join_returns() {
    on_workers(|runtime| {
        let counted = key(Some(count));
        for ended in 1..50 {
            static ENDED: AtomicUsize = AtomicUsize::new(0);
            if ended == 1 {
                ENDED.store(0, SeqCst);
            }
            let value = ptr::from_ref(&ENDED).expose_provenance();
            runtime.spawn(move || set(counted, value)).join().unwrap();
            assert_eq!(ENDED.load(SeqCst), ended);
        }
        delete(counted);
    });
}

/// As many arrays of values as there are need more than the one that every thread has.
#[test]
fn there_may_be_many_keys() {
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    on_workers(|runtime| {
        ENDED.store(0, SeqCst);
        let keys: Vec<_> = (0..100).map(|_| key(Some(count))).collect();
        let used = keys.clone();
        together(runtime, 20, move |number| {
            for key in &used {
                assert_eq!(get(*key), 0);
            }
            wait(number);
            for key in &used {
                set(*key, ptr::from_ref(&ENDED).expose_provenance());
            }
        });
        assert_eq!(ENDED.load(SeqCst), 20 * keys.len());
        keys.into_iter().for_each(delete);
    });
}

thread_local! {
    static ROUNDS: Cell<(pthread_key_t, usize)> = const { Cell::new((0, 0)) };
}

static MOST_ROUNDS: AtomicUsize = AtomicUsize::new(0);

/// Sets its key again, each time.
unsafe extern "C" fn set_again(value: *mut c_void) {
    let (key, rounds) = ROUNDS.get();
    ROUNDS.set((key, rounds + 1));
    MOST_ROUNDS.fetch_max(rounds + 1, SeqCst);
    assert_eq!(get(key), 0, "it is null by now");
    set(key, value.addr());
    wait(rounds);
}

#[test]
fn destructors_that_set_again_are_called_four_times() {
    on_workers(|runtime| {
        MOST_ROUNDS.store(0, SeqCst);
        let again = key(Some(set_again));
        for _ in 0..3 {
            runtime
                .spawn(move || {
                    assert_eq!(get(again), 0, "nothing is left of the last fiber's");
                    ROUNDS.set((again, 0));
                    set(again, 1);
                })
                .join()
                .unwrap();
            assert_eq!(MOST_ROUNDS.load(SeqCst), 4);
        }
        delete(again);
    });
}

#[test]
fn destructors_of_deleted_keys_are_not_called() {
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    on_workers(|runtime| {
        let deleted = key(Some(count));
        runtime
            .spawn(move || {
                set(deleted, ptr::from_ref(&ENDED).expose_provenance());
                delete(deleted);
                let next = key(None);
                assert_eq!(get(next), 0, "a new key has no value, whatever its number");
                delete(next);
            })
            .join()
            .unwrap();
        assert_eq!(ENDED.load(SeqCst), 0);
    });
}

#[test]
fn keys_of_c11_are_the_same() {
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    on_workers(|runtime| {
        ENDED.store(0, SeqCst);
        let mut key = 0;
        // SAFETY: makes a key.
        assert_eq!(unsafe { tss_create(&mut key, Some(count)) }, 0);
        together(runtime, 20, move |number| {
            // SAFETY: the key was made above.
            unsafe {
                assert!(tss_get(key).is_null());
                let value = ptr::from_ref(&ENDED).cast_mut().cast();
                assert_eq!(tss_set(key, value), 0);
                wait(number);
                assert_eq!(tss_get(key), value);
            }
        });
        assert_eq!(ENDED.load(SeqCst), 20);
        // SAFETY: nobody uses it any more.
        unsafe { tss_delete(key) };
    });
}

/// Waits twice, says that it does, and counts in the end.
#[derive(Default)]
struct Slow {
    waits: AtomicBool,
    done: AtomicUsize,
}

impl Slow {
    fn wait(&self) {
        self.waits.store(true, SeqCst);
        fibrant::sleep(Duration::from_millis(20));
        fibrant::sleep(Duration::from_millis(1));
        self.done.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_cancel_leaves_destructors_alone() {
    /// Waits as it is dropped.
    struct Waits(Arc<Slow>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.wait();
        }
    }
    thread_local! {
        static WAITS: RefCell<Option<Waits>> = const { RefCell::new(None) };
    }
    unsafe extern "C" fn wait_for(value: *mut c_void) {
        // SAFETY: the test gives such addresses, of what it keeps until the fiber has been joined.
        unsafe { &*value.cast::<Slow>() }.wait();
    }
    let key = key(Some(wait_for));
    on_workers(|runtime| {
        for by_key in [true, false] {
            let slow = Arc::new(Slow::default());
            let its = Arc::clone(&slow);
            let fiber = runtime.spawn(move || {
                if by_key {
                    set(key, Arc::as_ptr(&its).expose_provenance());
                } else {
                    WAITS.set(Some(Waits(its)));
                }
                "returned"
            });
            eventually("its destructor waits", || slow.waits.load(SeqCst));
            fiber.cancel();
            assert_eq!(fiber.join().unwrap(), "returned");
            assert_eq!(slow.done.load(SeqCst), 1, "by a key: {by_key}");
        }
    });
    delete(key);
}
