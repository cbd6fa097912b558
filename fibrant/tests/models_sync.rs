//! Models of the locks and channels for fibers. As in `models.rs`, the files under test are the library's own, compiled once more with
//! loom's primitives: the mutex, the semaphore, the channel, the list and the wait word. What they need of the rest of the
//! library is here in a small form: whoever waits is a loom thread with a wait word ([`someone`]), and time passes when it is looked at
//! ([`clock`]). The models of channels are in [`channels`].
//!
//! A wait is a real one for loom: if nobody is left who could end it, loom says that there is a deadlock.

use holder::{Fiber, Holder};
use loom::sync::atomic::{AtomicUsize, Ordering::*};
use loom::thread;
use raw_mutex::RawMutex;
use raw_semaphore::RawSemaphore;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use wait::{Outcome, Wait, WaitKind};

/// Loom's primitives, by the names that the library's own have.
mod primitives {
    pub(crate) use loom::hint::spin_loop as spin;
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::thread::yield_now as yield_thread;

    /// Loom's primitives are made at run time.
    macro_rules! const_unless_modelled {
        ($($function:tt)*) => { $($function)* };
    }
    pub(crate) use const_unless_modelled;

    std::thread_local! {
        static LUCK: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// A number that depends on the fiber that draws it, and on nothing that happens in the model.
    pub(crate) fn draw() -> u64 {
        LUCK.get() * 5 + crate::holder::Holder::present().0.number()
    }

    /// Sets what is drawn, at the beginning of a model.
    pub(crate) fn set_luck(luck: u64) {
        LUCK.set(luck);
    }
}

// No model needs all of a file.
#[allow(dead_code, unused_imports)]
#[path = "../src/sync/channel/mod.rs"]
mod channel;
#[path = "models_sync/channels.rs"]
mod channels;
#[allow(dead_code)]
#[path = "../src/sync/list.rs"]
mod list;
#[allow(dead_code)]
#[path = "../src/sync/raw_mutex.rs"]
mod raw_mutex;
#[allow(dead_code)]
#[path = "../src/sync/raw_semaphore.rs"]
mod raw_semaphore;
#[allow(dead_code)]
#[path = "../src/sync/subject.rs"]
mod subject;
#[allow(dead_code)]
#[path = "../src/fiber/wait.rs"]
mod wait;

mod sync {
    pub(crate) use crate::{channel, holder, list, someone, subject};
}

mod scheduler {
    use std::ops::{Deref, DerefMut};
    use std::ptr::NonNull;

    /// The small lock. It has models of its own in `models.rs`; here it is loom's, as there are too many orders in which threads can spin.
    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

    pub(crate) struct Guard<'a, T>(loom::sync::MutexGuard<'a, T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Guard(self.0.lock().unwrap())
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct InTable {
        pub(crate) give_up: unsafe fn(wait: NonNull<()>),
        pub(crate) wait: NonNull<()>,
    }
}

mod fiber {
    pub(crate) trait Subject {
        #[allow(dead_code)]
        fn describe(&self) -> String;
    }

    #[allow(dead_code)]
    pub(crate) enum WaitReason {
        Lock { address: usize },
        Receiving { address: usize },
        Sending { address: usize },
        Select { arms: usize },
    }

    impl std::fmt::Display for WaitReason {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("waiting")
        }
    }
}

/// A clock that goes on by a step whenever somebody looks at it. Loom runs all threads of a model on one real thread, and does not see it:
/// no order comes from it.
mod clock {
    use std::cell::Cell;

    pub(crate) const NEVER: u64 = u64::MAX;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
        static STEP: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn now() -> u64 {
        NOW.set(NOW.get() + STEP.get());
        NOW.get()
    }

    /// The next look finds that it has come.
    pub(crate) fn after(_: std::time::Duration) -> u64 {
        NOW.get() + 1
    }

    pub(crate) fn nanoseconds(duration: std::time::Duration) -> u64 {
        duration.as_nanos() as u64
    }

    /// Sets it at the beginning of a model: how many looks last as long as a waiter's patience.
    pub(crate) fn set(looks: u64) {
        NOW.set(1);
        STEP.set(1_000_000_u64.div_ceil(looks));
    }
}

mod holder {
    use super::*;
    use std::cell::Cell;
    use std::fmt;

    /// A fiber, which is a loom thread.
    pub(crate) struct Fiber {
        pub(crate) wait: Wait,
        /// Whether it is in its worker's queue.
        queue: (loom::sync::Mutex<bool>, loom::sync::Condvar),
        /// If it never goes on from a wait: what happens before it is given up.
        before_the_end: Option<Box<dyn Fn() + Send + Sync>>,
    }

    loom::thread_local! {
        /// The fiber that this thread is, and its number.
        static PRESENT: Cell<(*const Fiber, u64)> = Cell::new((std::ptr::null(), 0));
    }

    impl Fiber {
        pub(crate) fn new() -> Arc<Fiber> {
            Arc::new(Fiber::made(None))
        }

        /// One that is given up when it waits, after this has been done.
        pub(crate) fn abandoned_after(f: impl Fn() + Send + Sync + 'static) -> Fiber {
            Fiber::made(Some(Box::new(f)))
        }

        fn made(before_the_end: Option<Box<dyn Fn() + Send + Sync>>) -> Fiber {
            Fiber {
                wait: Wait::new(),
                queue: (loom::sync::Mutex::new(false), loom::sync::Condvar::new()),
                before_the_end,
            }
        }

        /// For whoever has ended a wait.
        pub(crate) fn put_into_queue(&self) {
            let was_there = std::mem::replace(&mut *self.queue.0.lock().unwrap(), true);
            assert!(!was_there, "woken twice");
            self.queue.1.notify_one();
        }

        /// Leaves the processor until somebody has put the fiber into the queue.
        pub(crate) fn leave_until_queued(&self) {
            let mut is_queued = self.queue.0.lock().unwrap();
            while !*is_queued {
                is_queued = self.queue.1.wait(is_queued).unwrap();
            }
            *is_queued = false;
        }

        pub(crate) fn cancel(&self) {
            if self.wait.cancel() {
                self.put_into_queue();
            }
        }

        pub(crate) fn before_the_end(&self) -> Option<&dyn Fn()> {
            self.before_the_end.as_ref().map(|f| &**f as &dyn Fn())
        }

        /// Makes the calling thread this fiber, with this number.
        pub(crate) fn enter(&self, number: u64) {
            PRESENT.with(|present| present.set((self, number)));
        }

        /// The fiber that the calling thread is.
        pub(crate) fn present() -> *const Fiber {
            PRESENT.with(|present| present.get().0)
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Holder(u64);

    impl Holder {
        pub(crate) fn present() -> (Holder, u64) {
            (Holder(PRESENT.with(|present| present.get().1)), 0)
        }

        pub(crate) fn number(self) -> u64 {
            self.0
        }

        pub(crate) fn from_number(number: u64) -> Option<Holder> {
            (number != 0).then_some(Holder(number))
        }
    }

    impl fmt::Display for Holder {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "fiber {}", self.0)
        }
    }
}

/// Whoever waits, in the way of the library's own `sync::someone`.
mod someone {
    use super::*;
    use crate::fiber::{Subject, WaitReason};
    use crate::holder::Holder;
    use crate::scheduler::InTable;
    use std::cell::Cell;
    use std::ptr::NonNull;
    use wait::WaitNumber;

    pub(crate) struct Someone {
        fiber: *const Fiber,
        number: Cell<Option<WaitNumber>>,
        /// Stands for the frame of the one that waits: whoever looks at it reads it, its end writes it.
        frame: Unguarded,
    }

    pub(crate) struct Wish<'a> {
        #[allow(dead_code)]
        pub(crate) reason: WaitReason,
        #[allow(dead_code)]
        pub(crate) subject: Option<&'a dyn Subject>,
        pub(crate) interruptible: bool,
        pub(crate) deadline: u64,
        pub(crate) in_table: Option<InTable>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum End {
        Woken,
        TimedOut,
        Needless,
        Interrupted(Interruption),
    }

    /// What unwinds a fiber that was cancelled, or was abandoned.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Interruption;

    impl Interruption {
        pub(crate) fn unwind(self) -> ! {
            resume_unwind(Box::new(Interruption));
        }
    }

    impl Someone {
        pub(crate) fn holder(&self) -> Holder {
            Holder::present().0
        }

        pub(crate) fn present() -> Someone {
            Someone {
                fiber: Fiber::present(),
                number: Cell::new(None),
                frame: Unguarded::new(),
            }
        }

        pub(crate) fn present_with(_own_locks: u32) -> Someone {
            Someone::present()
        }

        fn fiber(&self) -> &Fiber {
            // SAFETY: the model keeps its fibers until all threads have ended.
            unsafe { &*self.fiber }
        }

        pub(crate) fn wait(&self, wish: &Wish<'_>, announce: impl FnOnce() -> bool) -> End {
            let fiber = self.fiber();
            let kind = WaitKind {
                park: false,
                cancellable: wish.interruptible,
            };
            let Ok(number) = fiber.wait.begin(kind) else {
                return End::Interrupted(Interruption);
            };
            self.number.set(Some(number));
            let is_needless = !announce() && self.claim();
            if is_needless {
                fiber.put_into_queue();
            }
            if wish.deadline != clock::NEVER && fiber.wait.claim(number, Outcome::TimedOut) {
                fiber.put_into_queue();
            }
            if let Some(before_the_end) = fiber.before_the_end() {
                before_the_end();
                self.abandon(wish);
            }
            fiber.leave_until_queued();
            match fiber.wait.outcome() {
                Outcome::Cancelled => End::Interrupted(Interruption),
                Outcome::TimedOut => End::TimedOut,
                _ if is_needless => End::Needless,
                _ => End::Woken,
            }
        }

        /// What its worker does for a fiber that never goes on. Its frame stays; here it goes when nobody can look at it any more.
        fn abandon(&self, wish: &Wish<'_>) -> ! {
            let in_table = wish.in_table.expect("what waits can be given up");
            // SAFETY: by the contract: once, for what was noted.
            unsafe { (in_table.give_up)(in_table.wait) };
            if self.fiber().wait.outcome() != Outcome::Closed {
                self.fiber().leave_until_queued(); // somebody had claimed it
            }
            resume_unwind(Box::new(Interruption));
        }

        pub(crate) fn claim(&self) -> bool {
            self.frame.read();
            let number = self.number.get().expect("who can be found waits");
            self.fiber().wait.claim(number, Outcome::Woken)
        }

        pub(crate) unsafe fn wake(someone: NonNull<Someone>) {
            // SAFETY: it was claimed, so it stays until it is in the queue.
            let someone = unsafe { someone.as_ref() };
            someone.frame.read();
            someone.fiber().put_into_queue();
        }

        pub(crate) fn give_up(&self) -> bool {
            let number = self.number.get();
            number.is_none_or(|number| !self.fiber().wait.claim(number, Outcome::Closed))
        }
    }

    impl Drop for Someone {
        fn drop(&mut self) {
            self.frame.write();
        }
    }
}

/// Something that has no protection of its own. Loom stops the model if two threads use it, one of them writes, and nothing makes the one
/// happen before the other.
struct Unguarded(loom::cell::UnsafeCell<()>);

// SAFETY: loom runs one thread at a time, and stops where real threads could touch it at once.
unsafe impl Sync for Unguarded {}

impl Unguarded {
    fn new() -> Unguarded {
        Unguarded(loom::cell::UnsafeCell::new(()))
    }

    fn read(&self) {
        self.0.with(|_| ());
    }

    fn write(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Runs a model in all orders with no more than so many preemptions. A thread that gives way, waits for another or ends is not preempted.
/// Time passes so fast that a waiter's patience lasts for so many looks at the clock.
fn in_orders_with(preemptions: usize, looks: u64, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        clock::set(looks);
        model();
    });
}

/// Waiters never lose their patience.
const FOR_EVER: u64 = 1_000_000;

/// Runs `f` as a fiber with this number, on a thread of its own. Says whether it was not interrupted.
fn spawn<S: Send + Sync + 'static>(
    shared: &Arc<S>,
    fiber: &Arc<Fiber>,
    number: u64,
    f: impl FnOnce(&S) + 'static,
) -> thread::JoinHandle<bool> {
    let (shared, fiber) = (Arc::clone(shared), Arc::clone(fiber));
    thread::spawn(move || as_fiber(&fiber, number, || f(&shared)))
}

/// Runs `f` on this thread, as a fiber with this number.
fn as_fiber(fiber: &Fiber, number: u64, f: impl FnOnce()) -> bool {
    fiber.enter(number);
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(()) => true,
        Err(payload) if payload.is::<someone::Interruption>() => false,
        Err(payload) => resume_unwind(payload),
    }
}

// The mutex.

/// A mutex, and what it guards.
struct Guarded {
    mutex: RawMutex,
    /// Who has locked it, as a number.
    holder: std::sync::atomic::AtomicU64,
    value: Unguarded,
}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded {
            mutex: RawMutex::new(None),
            holder: 0.into(),
            value: Unguarded::new(),
        })
    }

    fn lock(&self) {
        let holder = self.mutex.lock();
        self.holder.store(holder.number(), Relaxed);
        self.value.write();
    }

    fn unlock(&self) {
        self.value.write();
        let holder = Holder::from_number(self.holder.load(Relaxed)).expect("it is locked");
        // SAFETY: the models unlock what they have locked.
        unsafe { self.mutex.unlock(holder) };
    }

    fn lock_and_unlock(&self) {
        self.lock();
        self.unlock();
    }

    /// Once nobody else does anything any more.
    fn assert_free(&self) {
        let holder = self.mutex.try_lock().expect("nobody has it, so it is free");
        self.holder.store(holder.number(), Relaxed);
        self.unlock();
    }
}

#[test]
fn a_mutex_has_one_holder_and_wakes_whoever_waits() {
    in_orders_with(4, FOR_EVER, || {
        let (guarded, fibers) = (Guarded::new(), [(); 2].map(|()| Fiber::new()));
        let other = spawn(&guarded, &fibers[1], 2, |guarded| {
            guarded.lock_and_unlock();
            guarded.lock_and_unlock();
        });
        as_fiber(&fibers[0], 1, || {
            guarded.lock_and_unlock();
            guarded.lock_and_unlock();
            assert!(other.join().unwrap());
            guarded.assert_free();
        });
    });
}

#[test]
fn a_mutex_goes_from_hand_to_hand() {
    for looks in [1, 2, FOR_EVER] {
        in_orders_with(2, looks, || {
            let (guarded, fibers) = (Guarded::new(), [(); 3].map(|()| Fiber::new()));
            let others = [1, 2].map(|index| {
                spawn(
                    &guarded,
                    &fibers[index],
                    index as u64 + 1,
                    Guarded::lock_and_unlock,
                )
            });
            as_fiber(&fibers[0], 1, || {
                guarded.lock_and_unlock();
                for other in others {
                    assert!(other.join().unwrap());
                }
                guarded.assert_free();
            });
        });
    }
}

#[test]
fn a_mutex_that_is_handed_over_to_one_about_to_wait_again_is_taken() {
    in_orders_with(3, 2, || {
        let (guarded, fibers) = (Guarded::new(), [(); 2].map(|()| Fiber::new()));
        as_fiber(&fibers[0], 1, || {
            guarded.lock();
            let other = spawn(&guarded, &fibers[1], 2, Guarded::lock_and_unlock);
            guarded.unlock();
            // It takes the mutex from the one that it has woken, and then hands it over.
            guarded.lock_and_unlock();
            assert!(other.join().unwrap());
            guarded.assert_free();
        });
    });
}

#[test]
fn what_an_interrupted_fiber_was_given_of_a_mutex_is_passed_on() {
    for looks in [1, FOR_EVER] {
        in_orders_with(2, looks, || {
            let (guarded, fibers) = (Guarded::new(), [(); 3].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || {
                guarded.lock();
                let [interrupted, other] = [1, 2].map(|index| {
                    spawn(
                        &guarded,
                        &fibers[index],
                        index as u64 + 1,
                        Guarded::lock_and_unlock,
                    )
                });
                guarded.unlock();
                fibers[1].cancel();
                interrupted.join().unwrap();
                assert!(other.join().unwrap());
                guarded.assert_free();
            });
        });
    }
}

#[test]
fn a_fiber_that_is_interrupted_when_a_mutex_is_handed_over_to_it_passes_it_on() {
    for looks in [1, 2] {
        in_orders_with(3, looks, || {
            let (guarded, fibers) = (Guarded::new(), [(); 2].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || {
                guarded.lock();
                let interrupted = spawn(&guarded, &fibers[1], 2, Guarded::lock_and_unlock);
                guarded.unlock();
                guarded.lock();
                fibers[1].cancel();
                guarded.unlock();
                interrupted.join().unwrap();
                guarded.assert_free();
            });
        });
    }
}

#[test]
fn what_an_abandoned_fiber_was_given_of_a_mutex_is_passed_on() {
    for looks in [1, FOR_EVER] {
        in_orders_with(2, looks, || {
            let (guarded, fibers) = (Guarded::new(), [(); 2].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || guarded.lock());
            let other = spawn(&guarded, &fibers[1], 2, Guarded::lock_and_unlock);
            let unlocked = Arc::clone(&guarded);
            let abandoned = Fiber::abandoned_after(move || unlocked.unlock());
            let has_locked = as_fiber(&abandoned, 3, || guarded.lock());
            assert!(!has_locked, "it has to wait, and never goes on");
            assert!(other.join().unwrap());
            guarded.assert_free();
        });
    }
}

// The semaphore.

/// A semaphore, how many of its permits are taken, and something that all of them together guard.
struct Permits {
    semaphore: RawSemaphore,
    count: usize,
    taken: AtomicUsize,
    value: Unguarded,
}

impl fiber::Subject for Permits {
    fn describe(&self) -> String {
        String::new()
    }
}

impl Permits {
    fn new(count: usize) -> Arc<Permits> {
        Arc::new(Permits {
            semaphore: RawSemaphore::new(count),
            count,
            taken: AtomicUsize::new(0),
            value: Unguarded::new(),
        })
    }

    fn take(&self, wanted: usize, deadline: u64) -> bool {
        let is_taken = self.semaphore.take(wanted, deadline, 0, self);
        if is_taken {
            let now = self.taken.fetch_add(wanted, Relaxed) + wanted;
            assert!(now <= self.count, "{now} are taken");
            if wanted == self.count {
                self.value.write();
            } else {
                self.value.read();
            }
        }
        is_taken
    }

    fn give(&self, count: usize) {
        self.taken.fetch_sub(count, Relaxed);
        self.semaphore.give(count).unwrap();
    }

    fn take_and_give(&self, wanted: usize) {
        assert!(self.take(wanted, clock::NEVER));
        self.give(wanted);
    }

    /// Once nobody else does anything any more.
    fn assert_all_free(&self) {
        assert_eq!(self.semaphore.free(), self.count);
        assert!(
            self.semaphore.take_at_once(self.count),
            "nobody waits, but it looks so"
        );
    }
}

#[test]
fn permits_are_not_taken_twice_and_whoever_waits_is_woken() {
    for looks in [2, FOR_EVER] {
        in_orders_with(2, looks, || {
            let (permits, fibers) = (Permits::new(2), [(); 3].map(|()| Fiber::new()));
            let others = [1, 2].map(|index| {
                spawn(&permits, &fibers[index], index as u64 + 1, move |permits| {
                    permits.take_and_give(index);
                })
            });
            as_fiber(&fibers[0], 1, || {
                permits.take_and_give(2);
                for other in others {
                    assert!(other.join().unwrap());
                }
                permits.assert_all_free();
            });
        });
    }
}

#[test]
fn whoever_is_woken_and_finds_too_few_permits_is_woken_again() {
    // At the third look it is still overtaken, at the fourth no more.
    for looks in [1, 3, FOR_EVER] {
        in_orders_with(3, looks, || {
            let (permits, fibers) = (Permits::new(1), [(); 2].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || {
                permits.take(1, clock::NEVER);
                let other = spawn(&permits, &fibers[1], 2, |permits| permits.take_and_give(1));
                permits.give(1);
                permits.take_and_give(1);
                assert!(other.join().unwrap());
                permits.assert_all_free();
            });
        });
    }
}

#[test]
fn permits_of_an_interrupted_fiber_are_passed_on() {
    for looks in [1, FOR_EVER] {
        in_orders_with(2, looks, || {
            let (permits, fibers) = (Permits::new(1), [(); 3].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || {
                permits.take(1, clock::NEVER);
                let [interrupted, other] = [1, 2].map(|index| {
                    spawn(&permits, &fibers[index], index as u64 + 1, |permits| {
                        permits.take_and_give(1);
                    })
                });
                permits.give(1);
                fibers[1].cancel();
                interrupted.join().unwrap();
                assert!(other.join().unwrap());
                permits.assert_all_free();
            });
        });
    }
}

#[test]
fn a_fiber_that_is_interrupted_when_permits_are_given_to_it_passes_them_on() {
    for looks in [1, 3] {
        in_orders_with(3, looks, || {
            let (permits, fibers) = (Permits::new(1), [(); 2].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || {
                permits.take(1, clock::NEVER);
                let interrupted = spawn(&permits, &fibers[1], 2, |permits| permits.take_and_give(1));
                permits.give(1);
                permits.take(1, clock::NEVER);
                fibers[1].cancel();
                permits.give(1);
                interrupted.join().unwrap();
                permits.assert_all_free();
            });
        });
    }
}

#[test]
fn permits_of_an_abandoned_fiber_are_passed_on() {
    for looks in [1, FOR_EVER] {
        in_orders_with(2, looks, || {
            let (permits, fibers) = (Permits::new(1), [(); 2].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || assert!(permits.take(1, clock::NEVER)));
            let other = spawn(&permits, &fibers[1], 2, |permits| permits.take_and_give(1));
            let given = Arc::clone(&permits);
            let abandoned = Fiber::abandoned_after(move || given.give(1));
            let has_taken = as_fiber(&abandoned, 3, || assert!(permits.take(1, clock::NEVER)));
            assert!(!has_taken, "it has to wait, and never goes on");
            assert!(other.join().unwrap());
            permits.assert_all_free();
        });
    }
}

#[test]
fn a_large_request_that_gives_up_lets_a_small_one_have_what_is_free() {
    for looks in [1, FOR_EVER] {
        in_orders_with(2, looks, || {
            let (permits, fibers) = (Permits::new(2), [(); 3].map(|()| Fiber::new()));
            as_fiber(&fibers[0], 1, || {
                permits.take(1, clock::NEVER);
                let large = spawn(&permits, &fibers[1], 2, |permits| {
                    if permits.take(2, 0) {
                        permits.give(2);
                    }
                });
                let small = spawn(&permits, &fibers[2], 3, |permits| permits.take_and_give(1));
                assert!(large.join().unwrap());
                // Nothing is given back yet.
                assert!(small.join().unwrap());
                permits.give(1);
                permits.assert_all_free();
            });
        });
    }
}

// The pin.

#[test]
fn what_a_pinned_fiber_waits_for_stays() {
    in_orders_with(4, FOR_EVER, || {
        /// A fiber, and what it waits for, which it frees after its wait.
        struct Seen {
            fiber: Arc<Fiber>,
            subject: Unguarded,
        }
        let seen = Arc::new(Seen {
            fiber: Fiber::new(),
            subject: Unguarded::new(),
        });
        let kind = WaitKind {
            park: false,
            cancellable: false,
        };
        seen.subject.write();
        let number = seen.fiber.wait.begin(kind).unwrap();
        let dumper = spawn(&seen, &seen.fiber, 1, |seen| {
            for _ in 0..2 {
                if seen.fiber.wait.pin() {
                    seen.subject.read();
                    seen.fiber.wait.unpin();
                }
            }
        });
        let waker = spawn(&seen, &seen.fiber, 2, move |seen| {
            if seen.fiber.wait.claim(number, Outcome::Woken) {
                seen.fiber.put_into_queue();
            }
        });
        seen.fiber.leave_until_queued();
        assert_eq!(seen.fiber.wait.outcome(), Outcome::Woken);
        seen.subject.write();
        assert!(dumper.join().unwrap() && waker.join().unwrap());
        assert!(!seen.fiber.wait.pin(), "it waits no more");
    });
}
