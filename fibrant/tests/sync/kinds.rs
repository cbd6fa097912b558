//! Fibers of special kinds that use locks; and which of the types may be sent and shared.

use crate::harness::{Kind, ms};
use crate::patience::{Watchdog, eventually};
use crate::support::*;
use fibrant::fiber::Fiber;
use fibrant::sync::*;
use std::cell::{Cell, RefCell};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

#[test]
fn fibers_that_share_thread_locals_use_locks_across_waits() {
    let watchdog = Watchdog::new();
    for kind in [Kind::Isolated, Kind::Light] {
        let runtime = kind.runtime(1);
        watchdog.show(&runtime);
        let all = runtime.spawn(|| {
            // What is not Send may be guarded, too.
            let shared = Rc::new((Mutex::new(Rc::new(Cell::new(0))), Condvar::new()));
            let fibers: Vec<_> = (0..10)
                .map(|index| {
                    let shared = Rc::clone(&shared);
                    fibrant::spawn_local(move || {
                        let guard = shared.0.lock().unwrap();
                        let guard = shared.1.wait_while(guard, |turn| turn.get() != index).unwrap();
                        fibrant::yield_now();
                        guard.set(index + 1);
                        shared.1.notify_all();
                    })
                })
                .collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            assert_eq!(shared.0.lock().unwrap().get(), 10);
        });
        all.join().unwrap();
        runtime.stop().unwrap();
    }
}

#[test]
fn hand_driven_fibers_wait_as_whoever_drives_them() {
    static MUTEX: Mutex<u32> = Mutex::named("by-hand", 0);
    static SEMAPHORE: Semaphore = Semaphore::new(0);
    let drive = || {
        let fiber = Fiber::new(|| {
            let mut guard = MUTEX.lock().unwrap();
            fibrant::fiber::suspend(); // with the guard
            *guard += 1;
            drop(guard);
            SEMAPHORE.acquire().forget();
        });
        fiber.resume().unwrap();
        assert!(MUTEX.try_lock().is_err());
        // The one that is suspended cannot go on meanwhile: this would wait for ever.
        let again = Fiber::new(|| drop(MUTEX.lock()));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| again.resume())).is_err());
        fiber.resume().unwrap();
        // Its guard goes with it.
        let dropped = Fiber::new(|| {
            let _guard = MUTEX.lock().unwrap();
            fibrant::fiber::suspend();
        });
        dropped.resume().unwrap();
        assert!(MUTEX.try_lock().is_err());
        drop(dropped);
        MUTEX.clear_poison();
        drop(MUTEX.try_lock().expect("its guard was dropped"));
    };
    let watchdog = Watchdog::new();
    let thread = thread::spawn(drive);
    SEMAPHORE.release(1);
    thread.join().unwrap();
    let runtime = watchdog.runtime(2);
    let guard = MUTEX.lock().unwrap();
    let in_fiber = runtime.spawn(drive);
    until_waiting(&runtime, "by-hand", 1);
    drop(guard);
    SEMAPHORE.release(1);
    in_fiber.join().unwrap();
    runtime.stop().unwrap();
    assert_eq!(*MUTEX.lock().unwrap(), 2);
}

#[test]
fn locks_do_not_need_hooks() {
    static MUTEX: Mutex<u32> = Mutex::named("unhooked", 0);
    let watchdog = Watchdog::new();
    let runtime = fibrant::runtime::Builder::new()
        .workers(1)
        .hooks(false)
        .build()
        .unwrap();
    watchdog.show(&runtime);
    let guard = MUTEX.lock().unwrap();
    let waits = runtime.spawn(|| *MUTEX.lock().unwrap() += 1);
    let waits_too = runtime.spawn(|| fibrant::hook::disabled(|| *MUTEX.lock().unwrap() += 1));
    until_waiting(&runtime, "unhooked", 2);
    assert_eq!(runtime.spawn(|| 1).join().unwrap(), 1, "the worker is free");
    drop(guard);
    waits.join().unwrap();
    waits_too.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn a_fiber_may_move_to_another_worker_with_a_guard() {
    static MUTEX: Mutex<u32> = Mutex::new(0);
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(2);
    let moves = || {
        for worker in [0, 1, 0, 1] {
            let mut guard = MUTEX.lock().unwrap();
            // SAFETY: the guard names the fiber, not its thread, and nothing else is on this stack.
            unsafe { fibrant::switch_to(worker) };
            *guard += 1;
        }
    };
    let fibers: Vec<_> = (0..4).map(|_| runtime.spawn(moves)).collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(*MUTEX.lock().unwrap(), 16);
    runtime.stop().unwrap();
}

#[test]
fn a_lock_may_be_freed_as_soon_as_it_was_unlocked() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(2);
    for _ in 0..300 {
        let shared = Arc::new((Mutex::new(0), RwLock::new(0), Semaphore::new(1)));
        let fibers: Vec<_> = (0..3)
            .map(|_| {
                let shared = Arc::clone(&shared);
                runtime.spawn(move || {
                    *shared.0.lock().unwrap() += 1;
                    *shared.1.write().unwrap() += 1;
                    let _permit = shared.2.acquire();
                })
            })
            .collect();
        drop(shared);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    }
    runtime.stop().unwrap();
}

#[test]
fn forgotten_guards_keep_locks_locked() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let shared = Arc::new((
        Mutex::new(()),
        RwLock::new(()),
        RwLock::new(()),
        Semaphore::new(1),
    ));
    let theirs = Arc::clone(&shared);
    let forgets = runtime.spawn(move || {
        std::mem::forget(theirs.0.lock().unwrap());
        std::mem::forget(theirs.1.write().unwrap());
        std::mem::forget(theirs.2.read().unwrap());
        std::mem::forget(theirs.3.acquire());
    });
    forgets.join().unwrap();
    let (mutex, written, read, semaphore) = &*shared;
    assert!(mutex.try_lock().is_err() && written.try_read().is_err());
    assert!(read.try_write().is_err() && read.try_read().is_ok());
    assert!(semaphore.acquire_timeout(ms(1)).is_none());
    let theirs = Arc::clone(&shared);
    let waits = runtime.spawn(move || drop(theirs.0.lock()));
    eventually("it waits for ever", || waiting(&runtime) == 1);
    waits.cancel();
    assert!(waits.join().is_err());
    runtime.stop().unwrap();
}

#[test]
fn values_without_a_size_can_be_guarded() {
    let mutex: &Mutex<[u32]> = &Mutex::new([1, 2, 3]);
    mutex.lock().unwrap()[0] = 4;
    let lock: Box<RwLock<dyn Fn() -> u32>> = Box::new(RwLock::new(|| 5));
    assert_eq!((lock.read().unwrap())() + mutex.lock().unwrap()[0], 9);
    let (condvar, mutex) = (Condvar::new(), mutex);
    let (guard, _) = condvar.wait_timeout(mutex.lock().unwrap(), ms(1)).unwrap();
    assert_eq!(guard.len(), 3);
}

#[test]
fn they_print_as_stds_do() {
    assert_eq!(
        format!("{:?}", Mutex::from(1)),
        format!("{:?}", std::sync::Mutex::from(1))
    );
    assert_eq!(
        format!("{:?}", RwLock::from(1)),
        format!("{:?}", std::sync::RwLock::from(1))
    );
    let mutex = Mutex::new(1);
    let guard = mutex.lock().unwrap();
    assert_eq!(
        format!("{mutex:?}"),
        "Mutex { data: <locked>, poisoned: false, .. }"
    );
    assert_eq!(format!("{guard:?}{guard}"), "11");
    assert_eq!(format!("{:?}", Condvar::new()), "Condvar { .. }");
    assert_eq!(format!("{:?}", Barrier::new(1)), "Barrier { .. }");
    assert_eq!(
        format!("{:?}", Semaphore::new(2).acquire()),
        "Permit { count: 1, .. }"
    );
    assert_eq!(format!("{:?}", WaitGroup::default()), "WaitGroup { count: 1 }");
}

/// Whether a type has a trait: a constant of the type itself is found before one of a trait.
macro_rules! has {
    ($type:ty: $($bound:tt)+) => {{
        #[allow(dead_code)]
        trait Otherwise {
            const HAS: bool = false;
        }
        impl<T: ?Sized> Otherwise for T {}
        #[allow(dead_code)]
        struct Asked<T: ?Sized>(std::marker::PhantomData<T>);
        #[allow(dead_code)]
        impl<T: ?Sized + $($bound)+> Asked<T> {
            const HAS: bool = true;
        }
        <Asked<$type>>::HAS
    }};
}

/// Asserts that a type has these traits if, and only if, std's does.
macro_rules! as_stds {
    ($bound:ident: $($name:ident<$value:ty>),+ $(,)?) => {$(
        assert_eq!(
            has!($name<$value>: $bound),
            has!(std::sync::$name<$value>: $bound),
            concat!(stringify!($name<$value>), ": ", stringify!($bound))
        );
    )+};
}

#[test]
fn what_may_be_sent_and_shared_is_as_stds() {
    type Sent = Cell<u32>; // Send, not Sync
    type Shared = std::sync::MutexGuard<'static, u32>; // Sync, not Send
    type Neither = Rc<RefCell<u32>>;
    as_stds!(Send: Mutex<u32>, Mutex<Sent>, Mutex<Shared>, Mutex<Neither>, RwLock<u32>, RwLock<Sent>, RwLock<Shared>, RwLock<Neither>);
    as_stds!(Sync: Mutex<u32>, Mutex<Sent>, Mutex<Shared>, Mutex<Neither>, RwLock<u32>, RwLock<Sent>, RwLock<Shared>, RwLock<Neither>);
    as_stds!(UnwindSafe: Mutex<u32>, Mutex<Sent>, Mutex<Shared>, Mutex<Neither>, RwLock<u32>, RwLock<Sent>, RwLock<Shared>, RwLock<Neither>);
    as_stds!(RefUnwindSafe: Mutex<u32>, Mutex<Sent>, Mutex<Shared>, Mutex<Neither>, RwLock<u32>, RwLock<Sent>, RwLock<Shared>, RwLock<Neither>);
    as_stds!(Send: MutexGuard<u32>, MutexGuard<Sent>, MutexGuard<Shared>, RwLockReadGuard<u32>, RwLockReadGuard<Sent>, RwLockReadGuard<Shared>);
    as_stds!(Send: RwLockWriteGuard<u32>, RwLockWriteGuard<Sent>, RwLockWriteGuard<Shared>);
    as_stds!(Sync: MutexGuard<u32>, MutexGuard<Sent>, MutexGuard<Shared>, RwLockReadGuard<u32>, RwLockReadGuard<Sent>, RwLockReadGuard<Shared>);
    as_stds!(Sync: RwLockWriteGuard<u32>, RwLockWriteGuard<Sent>, RwLockWriteGuard<Shared>);
    assert!(has!(Mutex<Sent>: Sync) && !has!(MutexGuard<u32>: Send));
    const {
        const fn all<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
        all::<Condvar>();
        all::<Barrier>();
        all::<Semaphore>();
        all::<Permit<'static>>();
        all::<WaitGroup>();
        all::<WaitTimeoutResult>();
        all::<BarrierWaitResult>();
    }
}
