//! Models of those parts of the runtime in which threads race. Loom runs each model in all orders in which its threads can
//! take their steps (the larger ones: in those with a few preemptions), and lets each load see every value that the memory
//! model allows.
//!
//! The files under test are the library's own, compiled once more: they take what they need of threads from
//! `crate::primitives`, and in this crate that is loom's. What is theirs but not atomic (a station, a waiter) loom cannot see;
//! the models put an [`Unguarded`] value beside it, which is used whenever that is used.

use completion::{Completion, ResultOwner};
use hands::Hands;
use inbox::{Inbox, Item, Pushed};
use lock::Lock;
use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, Ordering::*};
use loom::thread::{self, yield_now};
use roster::{Member, Roster, Station};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use table::{Key, Place, Sleeper, Space, Table};
use wait::{NoWait, Outcome, Wait, WaitKind, WaitNumber};
use waker::Waker;

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

    pub(crate) fn note_locked() {}
    pub(crate) fn note_unlocked() {}
}

// No model needs all of a file.
#[allow(dead_code)]
#[path = "../src/scheduler/completion.rs"]
mod completion;
#[path = "../src/scheduler/hands.rs"]
mod hands;
#[allow(dead_code)]
#[path = "../src/scheduler/inbox.rs"]
mod inbox;
#[allow(dead_code)]
#[path = "../src/sync/list.rs"]
mod list;
#[path = "../src/scheduler/lock.rs"]
mod lock;
#[allow(dead_code)]
#[path = "../src/scheduler/roster.rs"]
mod roster;
#[allow(dead_code)]
#[path = "../src/sync/table.rs"]
mod table;
#[allow(dead_code)]
#[path = "../src/fiber/wait.rs"]
mod wait;

/// Where `table` looks for the lock.
mod scheduler {
    pub(crate) use crate::lock::Lock;
}

/// What `completion` wakes: a model's fiber, in the way of the library's own `scheduler::waker`.
mod waker {
    use super::{Arc, Fiber, Outcome, Relaxed, WaitNumber};

    /// A fiber, and the wait that is to end.
    pub(crate) struct Waker(pub(crate) Arc<Fiber>, pub(crate) WaitNumber);

    impl Waker {
        /// Ends the wait, if it has not ended for another reason.
        ///
        /// # Safety
        /// The fiber has not ended. Loom finds out if it has.
        pub(crate) unsafe fn wake(self) {
            let Waker(fiber, number) = self;
            fiber.wakers_used.fetch_add(1, Relaxed);
            fiber.memory.get();
            if fiber.wait.claim(number, Outcome::Woken) {
                fiber.put_into_queue();
            }
        }
    }
}

/// Runs a model in all orders.
fn in_all_orders(model: impl Fn() + Send + Sync + 'static) {
    run(&loom::model::Builder::new(), model);
}

/// Runs a model for which that would take hours in all orders with no more than so many preemptions. A thread that gives
/// way, waits for another or ends is not preempted.
fn in_orders_with(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    run(&builder, model);
}

fn run(builder: &loom::model::Builder, model: impl Fn() + Send + Sync + 'static) {
    OTHERS.set(0);
    builder.check(model);
}

thread_local! {
    /// How many threads of the model that runs here have been spawned and not ended. Loom runs them all on one real thread,
    /// and does not see this number: no order comes from it.
    static OTHERS: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f` on a thread of its own, with what it shares.
fn spawn<S: Send + Sync + 'static, R: 'static>(
    shared: &Arc<S>,
    f: impl FnOnce(&S) -> R + 'static,
) -> thread::JoinHandle<R> {
    OTHERS.set(OTHERS.get() + 1);
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let result = f(&shared);
        OTHERS.set(OTHERS.get() - 1);
        result
    })
}

/// Whether the model's first thread is the only one that is left: what is not there now will never come.
fn is_alone() -> bool {
    OTHERS.get() == 0
}

/// Counts calls that have come and not been answered: the model's first thread waits for them.
struct Calls(AtomicUsize);

impl Calls {
    fn new() -> Calls {
        Calls(AtomicUsize::new(0))
    }

    fn call(&self, order: Ordering) {
        self.0.fetch_add(1, order);
    }

    /// Waits for a call, which must be the only one, and answers it.
    fn answer(&self, order: Ordering) {
        while self.0.load(Relaxed) == 0 {
            // A load may still see an old number; an addition does not.
            let never = is_alone() && self.0.fetch_add(0, Relaxed) == 0;
            assert!(!never, "asleep for good: nobody is left who could call");
            yield_now();
        }
        assert_eq!(self.0.fetch_sub(1, order), 1, "called more than once");
    }

    /// How many there are, once nobody else does anything any more.
    fn unanswered(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// A value that has no protection of its own. Loom stops the model if two threads use it, one of them writes, and nothing
/// makes the one happen before the other.
struct Unguarded<T>(loom::cell::UnsafeCell<T>);

// SAFETY: loom runs one thread at a time, and stops where real threads could touch the value at once.
unsafe impl<T: Send> Sync for Unguarded<T> {}

impl<T: Copy> Unguarded<T> {
    fn new(value: T) -> Unguarded<T> {
        Unguarded(loom::cell::UnsafeCell::new(value))
    }

    fn get(&self) -> T {
        // SAFETY: the pointer is to the cell's value, and loom has just found that nobody writes it meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    fn set(&self, value: T) {
        // SAFETY: the pointer is to the cell's value, and loom has just found that nobody else uses it meanwhile.
        self.0.with_mut(|place| unsafe { *place = value });
    }
}

// The wait word.

const PARK: WaitKind = WaitKind {
    park: true,
    cancellable: false,
};
const CANCELLABLE: WaitKind = WaitKind {
    park: false,
    cancellable: true,
};
const UNINTERRUPTED: WaitKind = WaitKind {
    park: false,
    cancellable: false,
};

/// A fiber that waits, as far as its wait word and its worker's queue go.
struct Fiber {
    wait: Wait,
    /// How often it is in its worker's queue, which passes on what was done before.
    queue: Calls,
    /// Stands for the fiber's memory: whoever looks at the fiber reads it, the fiber's end writes it.
    memory: Unguarded<()>,
    /// How many wakers have been used.
    wakers_used: AtomicUsize,
}

impl Fiber {
    fn new() -> Arc<Fiber> {
        Arc::new(Fiber {
            wait: Wait::new(),
            queue: Calls::new(),
            memory: Unguarded::new(()),
            wakers_used: AtomicUsize::new(0),
        })
    }

    /// For whoever has ended a wait.
    fn put_into_queue(&self) {
        self.queue.call(Release);
    }

    /// Leaves the processor, comes back when somebody has put the fiber into the queue, and says how the wait ended.
    fn leave_until_queued(&self) -> Outcome {
        self.queue.answer(Acquire);
        self.wait.outcome()
    }

    fn begin(&self, kind: WaitKind) -> WaitNumber {
        self.wait
            .begin(kind)
            .expect("nothing keeps this wait from beginning")
    }

    /// Ends a wait if it has not ended. Returns whether this is what ended it.
    fn end_wait(&self, number: WaitNumber, outcome: Outcome) -> bool {
        let ended = self.wait.claim(number, outcome);
        if ended {
            self.put_into_queue();
        }
        ended
    }

    fn cancel(&self) -> bool {
        let ended = self.wait.cancel();
        if ended {
            self.put_into_queue();
        }
        ended
    }

    fn unpark(&self) {
        if self.wait.unpark() {
            self.put_into_queue();
        }
    }

    fn park(&self) {
        match self.wait.begin(PARK) {
            Ok(_) => assert_eq!(self.leave_until_queued(), Outcome::Woken),
            Err(reason) => assert_eq!(reason, NoWait::Token),
        }
    }

    /// The fiber's memory is freed.
    fn free(&self) {
        self.memory.set(());
    }

    /// Once nobody else does anything any more: no wake is left over.
    fn assert_not_queued(&self) {
        assert_eq!(
            self.queue.unanswered(),
            0,
            "the fiber was woken when it did not wait"
        );
    }
}

#[test]
fn of_two_claims_and_a_cancel_one_ends_the_wait_and_the_fiber_sees_which() {
    in_orders_with(2, || {
        let fiber = Fiber::new();
        let number = fiber.begin(CANCELLABLE);
        let claims = [Outcome::Woken, Outcome::TimedOut].map(|outcome| {
            let claim = spawn(&fiber, move |fiber| fiber.end_wait(number, outcome));
            (outcome, claim)
        });
        let cancel = spawn(&fiber, Fiber::cancel);
        let seen = fiber.leave_until_queued();
        let mut winners = Vec::new();
        for (outcome, claim) in claims {
            if claim.join().unwrap() {
                winners.push(outcome);
            }
        }
        if cancel.join().unwrap() {
            winners.push(Outcome::Cancelled);
        }
        assert_eq!(winners, [seen]);
        assert!(fiber.wait.is_cancelled());
        fiber.assert_not_queued();
    });
}

#[test]
fn a_claim_with_an_old_number_never_ends_the_next_wait() {
    in_orders_with(3, || {
        let fiber = Fiber::new();
        let first = fiber.begin(UNINTERRUPTED);
        let claims = [Outcome::Woken, Outcome::TimedOut]
            .map(|outcome| spawn(&fiber, move |fiber| fiber.end_wait(first, outcome)));
        fiber.leave_until_queued();
        let second = fiber.begin(UNINTERRUPTED);
        assert_ne!(first, second);
        assert!(
            fiber.wait.claim(second, Outcome::Closed),
            "the second wait was ended by a claim of the first"
        );
        assert_eq!(fiber.wait.outcome(), Outcome::Closed);
        let won = claims.map(|claim| claim.join().unwrap());
        assert_ne!(won[0], won[1]);
        fiber.assert_not_queued();
    });
}

#[test]
fn an_unpark_before_during_or_after_a_park_ends_it_and_shows_what_was_done_before() {
    in_all_orders(|| {
        let fiber_and_news = Arc::new((Fiber::new(), Unguarded::new(0)));
        let (fiber, news) = &*fiber_and_news;
        let other = spawn(&fiber_and_news, |(fiber, news)| {
            news.set(1);
            fiber.unpark();
        });
        fiber.park();
        assert_eq!(news.get(), 1);
        other.join().unwrap();
        fiber.assert_not_queued();
    });
}

#[test]
fn of_two_unparks_neither_is_lost() {
    in_orders_with(2, || {
        let fiber_and_news = Arc::new((Fiber::new(), [AtomicUsize::new(0), AtomicUsize::new(0)]));
        let (fiber, news) = &*fiber_and_news;
        let others = [0, 1].map(|index| {
            spawn(&fiber_and_news, move |(fiber, news)| {
                news[index].store(1, Relaxed);
                fiber.unpark();
            })
        });
        // How parks are used: until there is what one waits for. Two unparks may have left one token; whoever takes it sees
        // what both did before.
        while news.iter().any(|one| one.load(Relaxed) == 0) {
            fiber.park();
        }
        for other in others {
            other.join().unwrap();
        }
        fiber.assert_not_queued();
    });
}

#[test]
fn a_token_outlasts_a_wait_that_is_not_a_park() {
    in_orders_with(3, || {
        let fiber = Fiber::new();
        let number = fiber.begin(UNINTERRUPTED);
        let unpark = spawn(&fiber, Fiber::unpark);
        let claim = spawn(&fiber, move |fiber| fiber.end_wait(number, Outcome::Closed));
        assert_eq!(fiber.leave_until_queued(), Outcome::Closed);
        fiber.park();
        unpark.join().unwrap();
        assert!(claim.join().unwrap());
        fiber.assert_not_queued();
    });
}

#[test]
fn a_cancel_is_either_found_by_begin_or_ends_the_wait() {
    in_all_orders(|| {
        let fiber = Fiber::new();
        let cancel = spawn(&fiber, Fiber::cancel);
        let begun = fiber.wait.begin(CANCELLABLE);
        match begun {
            Ok(_) => assert_eq!(fiber.leave_until_queued(), Outcome::Cancelled),
            Err(reason) => assert_eq!(reason, NoWait::Cancelled),
        }
        assert_eq!(cancel.join().unwrap(), begun.is_ok());
        assert_eq!(fiber.wait.begin(CANCELLABLE), Err(NoWait::Cancelled));
        fiber.assert_not_queued();
    });
}

#[test]
fn a_cancel_leaves_alone_what_may_not_be_cancelled() {
    in_orders_with(3, || {
        let fiber = Fiber::new();
        let cancel = spawn(&fiber, Fiber::cancel);
        let number = fiber.begin(UNINTERRUPTED);
        let claim = spawn(&fiber, move |fiber| fiber.end_wait(number, Outcome::Closed));
        assert_eq!(fiber.leave_until_queued(), Outcome::Closed);
        assert!(!cancel.join().unwrap());
        assert!(claim.join().unwrap());
        assert_eq!(fiber.wait.begin(CANCELLABLE), Err(NoWait::Cancelled));
        fiber.assert_not_queued();
    });
}

// The inbox.

/// Something to leave in an inbox.
struct Letter {
    link: AtomicPtr<Letter>,
    /// Used whenever the link is: the pusher's until the letter is in the inbox, then the worker's.
    link_use: Unguarded<()>,
    content: Unguarded<usize>,
}

// SAFETY: nothing else uses the link.
unsafe impl Item for Letter {
    fn link(&self) -> &AtomicPtr<Letter> {
        self.link_use.set(());
        &self.link
    }
}

/// A worker's inbox and its bell.
struct Desk {
    inbox: Inbox<Letter>,
    letters: [Letter; 3],
    /// It passes nothing on: what the worker sees of others it sees through the inbox.
    bell: Calls,
}

impl Desk {
    fn new() -> Arc<Desk> {
        let letter = || Letter {
            link: AtomicPtr::new(ptr::null_mut()),
            link_use: Unguarded::new(()),
            content: Unguarded::new(usize::MAX),
        };
        Arc::new(Desk {
            inbox: Inbox::new(),
            letters: [letter(), letter(), letter()],
            bell: Calls::new(),
        })
    }

    /// Writes a letter, leaves it in the inbox, and rings if it must.
    fn deliver(&self, index: usize) {
        let letter = &self.letters[index];
        letter.content.set(index);
        // SAFETY: the letters live as long as the desk; each is delivered once per model.
        if unsafe { self.inbox.push(NonNull::from(letter)) } == Pushed::MustRing {
            self.ring();
        }
    }

    /// Ends the worker's sleep, and rings if it must. Returns whether there was a sleep.
    fn rouse(&self) -> bool {
        let asleep = self.inbox.rouse();
        if asleep {
            self.ring();
        }
        asleep
    }

    fn ring(&self) {
        self.bell.call(Relaxed);
    }

    /// The worker sleeps until the bell rings.
    fn sleep_until_rung(&self) {
        self.bell.answer(Relaxed);
    }

    /// The worker reads what is in the inbox.
    fn read_all(&self, read: &mut Vec<usize>) {
        self.inbox.take_all(|letter| {
            // SAFETY: it is one of the desk's letters, which live as long as the desk.
            read.push(unsafe { letter.as_ref() }.content.get());
        });
    }

    /// The worker, which is awake, looks until there is something to read.
    fn read_something(&self) -> Vec<usize> {
        let mut read = Vec::new();
        while read.is_empty() {
            let is_last_look = is_alone();
            self.read_all(&mut read);
            assert!(!is_last_look || !read.is_empty(), "a letter is lost");
            yield_now();
        }
        read
    }

    /// Once nobody else does anything any more.
    fn assert_bell_silent(&self) {
        assert_eq!(
            self.bell.unanswered(),
            0,
            "the bell was rung for a worker that does not sleep"
        );
    }
}

#[test]
fn a_worker_that_sleeps_between_letters_gets_them_all_in_each_senders_order() {
    in_orders_with(2, || {
        let desk = Desk::new();
        let senders = [
            spawn(&desk, |desk| {
                desk.deliver(0);
                desk.deliver(1);
            }),
            spawn(&desk, |desk| desk.deliver(2)),
        ];
        let mut read = Vec::new();
        loop {
            desk.read_all(&mut read);
            if read.len() == desk.letters.len() {
                break;
            }
            if desk.inbox.fall_asleep() {
                desk.sleep_until_rung();
                desk.inbox.wake_up();
            }
        }
        for sender in senders {
            sender.join().unwrap();
        }
        let of_the_first_sender: Vec<_> = read.iter().filter(|letter| **letter != 2).collect();
        assert_eq!(of_the_first_sender, [&0, &1]);
        assert!(read.contains(&2));
        desk.assert_bell_silent();
    });
}

#[test]
fn a_worker_that_wakes_by_itself_misses_no_letter_and_is_rung_for_once_at_most() {
    in_all_orders(|| {
        let desk = Desk::new();
        assert!(desk.inbox.fall_asleep());
        let sender = spawn(&desk, |desk| desk.deliver(0));
        // Its time is up.
        desk.inbox.wake_up();
        let read = desk.read_something();
        sender.join().unwrap();
        assert_eq!(read, [0]);
        assert!(!desk.inbox.is_asleep());
        assert!(desk.bell.unanswered() <= 1);
    });
}

#[test]
fn of_a_letter_and_a_rouse_one_rings_for_the_sleep() {
    in_orders_with(3, || {
        let desk = Desk::new();
        assert!(desk.inbox.fall_asleep());
        let rouse = spawn(&desk, Desk::rouse);
        let sender = spawn(&desk, |desk| desk.deliver(0));
        desk.sleep_until_rung();
        let read = desk.read_something();
        rouse.join().unwrap();
        sender.join().unwrap();
        assert_eq!(read, [0]);
        desk.assert_bell_silent();
    });
}

// The roster and its lock.

#[test]
fn the_lock_lets_one_thread_in_and_shows_it_what_the_others_did() {
    in_all_orders(|| {
        let count = Arc::new(Lock::new(Unguarded::new(0)));
        let increment = |count: &Lock<Unguarded<u32>>| {
            let count = count.lock();
            count.set(count.get() + 1);
        };
        let other = spawn(&count, move |count| {
            increment(count);
            increment(count);
        });
        increment(&count);
        other.join().unwrap();
        assert_eq!(count.lock().get(), 3);
    });
}

/// A fiber on a roster.
struct Child {
    station: Station<Child>,
    /// Used whenever the station is.
    station_use: Unguarded<()>,
    /// The index of the roster that it is on.
    owner: AtomicUsize,
    /// How often it has started.
    starts: Unguarded<u32>,
}

// SAFETY: only the roster uses the station, under its lock; the models stop if that is not so.
unsafe impl Send for Child {}
// SAFETY: as above.
unsafe impl Sync for Child {}

// SAFETY: nothing else uses the station.
unsafe impl Member for Child {
    fn station(&self) -> &Station<Child> {
        self.station_use.set(());
        &self.station
    }
}

/// Two workers' rosters, and the children that are on them.
struct Rosters {
    rosters: [Roster<Child>; 2],
    children: Vec<Child>,
}

impl Rosters {
    /// The children are on none.
    fn new(children: usize) -> Arc<Rosters> {
        let child = || Child {
            station: Station::nowhere(),
            station_use: Unguarded::new(()),
            owner: AtomicUsize::new(usize::MAX),
            starts: Unguarded::new(0),
        };
        Arc::new(Rosters {
            rosters: [Roster::new(), Roster::new()],
            children: (0..children).map(|_| child()).collect(),
        })
    }

    /// Puts a child on the first worker's roster.
    fn add(&self, child: usize, bound: bool) {
        let child = &self.children[child];
        let own = |_| child.owner.store(0, Relaxed);
        // SAFETY: children live as long as their rosters, may start anywhere, and are added once each.
        unsafe { self.rosters[0].add([NonNull::from(child)], bound, child_stamp(), own) }
            .expect("it is open");
    }

    /// A worker starts whatever is on its roster.
    fn start_all(&self, worker: usize) {
        while let Some(child) = self.rosters[worker].start_next() {
            // SAFETY: children live as long as their rosters.
            start(unsafe { child.as_ref() }, worker);
        }
    }

    /// A fiber of this worker's is about to join the child, which runs next if it is with the same worker.
    fn start_joined(&self, worker: usize, child: usize) {
        let child = &self.children[child];
        let is_here = || child.owner.load(Relaxed) == worker;
        if is_here() && self.rosters[worker].start(NonNull::from(child), is_here) {
            start(child, worker);
        }
    }

    /// The second worker steals from the first. Returns how many.
    fn steal(&self) -> usize {
        let [victim, thief] = &self.rosters;
        victim.steal(thief, child_stamp(), |child| {
            // SAFETY: children live as long as their rosters.
            unsafe { child.as_ref() }.owner.store(1, Relaxed);
        })
    }
}

/// All children are as old as each other.
fn child_stamp() -> u64 {
    1
}

fn start(child: &Child, worker: usize) {
    assert_eq!(child.owner.load(Relaxed), worker, "it starts where it belongs");
    child.starts.set(child.starts.get() + 1);
}

#[test]
fn every_child_starts_once_whether_in_its_turn_joined_or_stolen() {
    in_orders_with(3, || {
        let shared = Rosters::new(4);
        for child in 0..3 {
            shared.add(child, false);
        }
        shared.add(3, true);
        let thief = spawn(&shared, |shared| {
            shared.steal();
            shared.start_all(1);
        });
        shared.start_joined(0, 1);
        shared.start_all(0);
        thief.join().unwrap();
        for child in &shared.children {
            assert_eq!(child.starts.get(), 1);
            // SAFETY: it has started, and is on its owner's roster.
            unsafe { shared.rosters[child.owner.load(Relaxed)].remove(NonNull::from(child)) };
        }
        assert_eq!(
            shared.children[3].owner.load(Relaxed),
            0,
            "who is bound is not stolen"
        );
        for roster in &shared.rosters {
            assert!(!roster.has_unstarted());
            assert_eq!((roster.fresh(), roster.started()), (0, 0));
            assert_eq!(roster.first_stamp(), u64::MAX);
        }
    });
}

#[test]
fn whoever_comes_to_a_worker_that_goes_is_found_there_or_turned_away() {
    in_all_orders(|| {
        let shared = Rosters::new(2);
        shared.add(0, true);
        let late = spawn(&shared, |shared| {
            let child = &shared.children[1];
            let own = |_| child.owner.store(0, Relaxed);
            // SAFETY: it lives as long as its roster, may start anywhere, and is added once.
            let added = unsafe { shared.rosters[0].add([NonNull::from(child)], false, child_stamp(), own) };
            added.is_err()
        });
        let mut found = 0;
        shared.rosters[0].close(|child| {
            // SAFETY: it lives as long as its roster.
            assert_eq!(unsafe { child.as_ref() }.owner.load(Relaxed), 0);
            found += 1;
        });
        assert_eq!(shared.steal(), 0, "nobody is left to be stolen");
        let is_turned_away = late.join().unwrap();
        assert_eq!(found, if is_turned_away { 1 } else { 2 });
        assert_eq!(shared.rosters[0].started(), found);
        assert!(!shared.rosters[0].has_unstarted());
    });
}

#[test]
fn a_worker_about_to_sleep_and_a_spawner_cannot_both_miss_each_other() {
    in_all_orders(|| {
        let shared = Arc::new((Rosters::new(1), AtomicUsize::new(0)));
        let (rosters, idle) = &*shared;
        let worker = spawn(&shared, |(rosters, idle)| {
            // As in `Crew::note_asleep` and `Worker::sleep`.
            idle.fetch_add(1, SeqCst);
            rosters.rosters[0].has_fresh()
        });
        rosters.add(0, false);
        // As in `Crew::wake_thief`.
        let sees_worker = idle.load(Relaxed) > 0;
        let sees_child = worker.join().unwrap();
        assert!(sees_worker || sees_child);
    });
}

#[test]
fn a_worker_that_falls_asleep_is_woken_for_what_it_can_steal() {
    in_all_orders(|| {
        let shared = Arc::new((Rosters::new(1), AtomicUsize::new(0), Desk::new()));
        let (rosters, idle, desk) = &*shared;
        let spawner = spawn(&shared, |(rosters, idle, desk)| {
            rosters.add(0, false);
            // As in `Crew::wake_thief`.
            if idle.load(Relaxed) > 0 {
                desk.rouse();
            }
        });
        let mut sleeps_until_rung = 0;
        while rosters.steal() == 0 {
            // As in `Worker::sleep`.
            if desk.inbox.fall_asleep() {
                idle.fetch_add(1, SeqCst);
                if !rosters.rosters[0].has_fresh() {
                    desk.sleep_until_rung();
                    sleeps_until_rung += 1;
                }
                idle.fetch_sub(1, SeqCst);
                desk.inbox.wake_up();
            }
        }
        rosters.start_all(1);
        spawner.join().unwrap();
        assert!(sleeps_until_rung <= 1);
        assert_eq!(rosters.children[0].starts.get(), 1);
    });
}

// Completions.

const RESULT: u32 = 42;

/// A fiber that somebody joins.
struct Joined {
    completion: Completion,
    result: Unguarded<Option<u32>>,
    /// How often its result was found and taken.
    results_taken: AtomicUsize,
    joiner: Arc<Fiber>,
}

// SAFETY: the model's joiner and completer use the completion as its contract says; who owns its cell is what the models check.
unsafe impl Send for Joined {}
// SAFETY: as above.
unsafe impl Sync for Joined {}

impl Joined {
    fn new() -> Arc<Joined> {
        Arc::new(Joined {
            completion: Completion::new(),
            result: Unguarded::new(None),
            results_taken: AtomicUsize::new(0),
            joiner: Fiber::new(),
        })
    }

    /// The fiber ends.
    fn complete(&self) {
        self.result.set(Some(RESULT));
        // SAFETY: each model completes once, and keeps it until all threads have ended.
        if unsafe { self.completion.complete() } == ResultOwner::Completer {
            self.take_result();
        }
    }

    fn take_result(&self) {
        assert_eq!(
            self.result.get(),
            Some(RESULT),
            "the result is there, and nobody has taken it"
        );
        self.result.set(None);
        self.results_taken.fetch_add(1, Relaxed);
    }

    /// The joiner begins a wait for the end, as `scheduler::join` does. Returns its number and whether it left a waker.
    fn begin_to_join(&self) -> (WaitNumber, bool) {
        let number = self.joiner.begin(CANCELLABLE);
        // SAFETY: the models' joiner forgets its last waiter before it comes here again.
        let left = unsafe { self.completion.wait(Waker(Arc::clone(&self.joiner), number)) };
        if !left {
            let ended = self.joiner.end_wait(number, Outcome::Woken);
            assert!(ended, "nobody else was told of this wait");
        }
        (number, left)
    }

    /// The joiner leaves the processor until its wait has ended, and takes its waker back. Returns how the wait ended.
    fn finish_to_join(&self) -> Outcome {
        let outcome = self.joiner.leave_until_queued();
        // SAFETY: the caller is the joiner.
        unsafe { self.completion.forget(outcome == Outcome::Woken) };
        outcome
    }

    /// The joiner drops its handle.
    fn detach(&self) {
        // SAFETY: the caller is the joiner, and comes here last.
        if unsafe { self.completion.detach() } {
            self.take_result();
        }
    }

    /// Once nobody else does anything any more.
    fn assert_settled(&self) {
        assert!(self.completion.is_done());
        assert_eq!(self.results_taken.load(Relaxed), 1);
        assert_eq!(self.result.get(), None);
        self.joiner.assert_not_queued();
    }
}

#[test]
fn a_joiner_is_woken_if_it_left_a_waker_and_finds_the_result() {
    in_all_orders(|| {
        let joined = Joined::new();
        let completer = spawn(&joined, Joined::complete);
        let (_, left) = joined.begin_to_join();
        assert_eq!(joined.finish_to_join(), Outcome::Woken);
        joined.joiner.free();
        assert!(joined.completion.is_done());
        joined.take_result();
        completer.join().unwrap();
        assert_eq!(joined.joiner.wakers_used.load(Relaxed), usize::from(left));
        joined.assert_settled();
    });
}

#[test]
fn a_joiner_whose_time_is_up_may_wait_again() {
    in_all_orders(|| {
        let joined = Joined::new();
        let completer = spawn(&joined, Joined::complete);
        let (number, _) = joined.begin_to_join();
        // Its worker finds that the time is up.
        joined.joiner.end_wait(number, Outcome::TimedOut);
        joined.finish_to_join();
        let used = joined.joiner.wakers_used.load(Relaxed);
        if !joined.completion.is_done() {
            assert_eq!(used, 0, "a waker that was taken back was used");
            let (_, left) = joined.begin_to_join();
            assert_eq!(joined.finish_to_join(), Outcome::Woken);
            assert_eq!(joined.joiner.wakers_used.load(Relaxed), usize::from(left));
        }
        joined.joiner.free();
        assert!(joined.completion.is_done());
        joined.take_result();
        completer.join().unwrap();
        joined.assert_settled();
    });
}

#[test]
fn a_joiner_whose_time_is_up_may_end_and_be_freed() {
    in_all_orders(|| {
        let joined = Joined::new();
        let completer = spawn(&joined, Joined::complete);
        let (number, _) = joined.begin_to_join();
        joined.joiner.end_wait(number, Outcome::TimedOut);
        joined.finish_to_join();
        joined.detach();
        joined.joiner.free();
        completer.join().unwrap();
        joined.assert_settled();
    });
}

#[test]
fn the_result_of_a_detached_fiber_has_one_owner() {
    in_all_orders(|| {
        let joined = Joined::new();
        let completer = spawn(&joined, Joined::complete);
        joined.detach();
        completer.join().unwrap();
        assert_eq!(joined.joiner.wakers_used.load(Relaxed), 0);
        joined.assert_settled();
    });
}

// The wait table.

/// A fiber in the table, and which of its waits it is.
struct InTable(Arc<Fiber>, WaitNumber);

impl Sleeper for InTable {
    fn claim(&self) -> bool {
        self.0.memory.get();
        self.0.wait.claim(self.1, Outcome::Woken)
    }
}

/// A table, the values that fibers wait for to change, and the keys of those, in different buckets.
struct Futexes {
    table: Table<InTable>,
    values: [AtomicUsize; 2],
    keys: [Key; 2],
}

impl Futexes {
    fn new() -> Arc<Futexes> {
        let table = Table::new(2);
        let key = |bucket: usize| {
            let keys = (1..).map(|index| Key::new(Space::Futex, 4 * index));
            keys.into_iter().find(|&key| table.place(key) == bucket)
        };
        let keys = [key(0), key(1)].map(|key| key.expect("some address falls into each bucket"));
        let values = [AtomicUsize::new(0), AtomicUsize::new(0)];
        Arc::new(Futexes { table, values, keys })
    }

    /// The fiber waits as long as the first value is 0, and leaves the table when it goes on. `meanwhile` is done by its worker.
    fn wait(&self, fiber: &Arc<Fiber>, meanwhile: impl FnOnce(WaitNumber)) -> Outcome {
        let number = fiber.begin(UNINTERRUPTED);
        let waiter = Place::waiter(InTable(Arc::clone(fiber), number), self.keys[0], !0);
        // SAFETY: it is removed below.
        if !unsafe { self.table.enter(&waiter, || self.values[0].load(Relaxed) == 0) } {
            fiber.end_wait(number, Outcome::Closed);
        }
        meanwhile(number);
        let outcome = fiber.leave_until_queued();
        self.table.remove(&waiter);
        assert_eq!(waiter.was_taken(), outcome == Outcome::Woken);
        fiber.free();
        outcome
    }

    /// Wakes one, if there is one, by this key. Returns how many there were.
    fn wake(&self, index: usize) -> usize {
        loom::sync::atomic::fence(SeqCst);
        if !self.table.may_have(self.keys[index]) {
            return 0;
        }
        let claimed = self.table.claim(self.keys[index], 1, !0);
        let count = claimed.count;
        claimed.wake(|sleeper| {
            // SAFETY: it was claimed, and its fiber goes on when it is in the queue.
            let fiber = unsafe { sleeper.as_ref() }.0.clone();
            fiber.memory.get();
            fiber.put_into_queue();
        });
        count
    }
}

#[test]
fn whoever_waits_sees_the_change_or_is_woken() {
    in_all_orders(|| {
        let futexes = Futexes::new();
        let fiber = Fiber::new();
        let waker = spawn(&futexes, |futexes| {
            futexes.values[0].store(1, Relaxed);
            futexes.wake(0)
        });
        let outcome = futexes.wait(&fiber, |_| {});
        let woken = waker.join().unwrap();
        assert_eq!(woken == 1, outcome == Outcome::Woken);
        fiber.assert_not_queued();
    });
}

#[test]
fn a_wake_counts_whom_it_has_woken_and_a_deadline_the_others() {
    in_orders_with(3, || {
        let futexes = Futexes::new();
        let fiber = Fiber::new();
        let waker = spawn(&futexes, |futexes| futexes.wake(0) + futexes.wake(0));
        let outcome = futexes.wait(&fiber, |number| {
            fiber.end_wait(number, Outcome::TimedOut);
        });
        let woken = waker.join().unwrap();
        assert_eq!(woken, usize::from(outcome == Outcome::Woken));
        fiber.assert_not_queued();
    });
}

#[test]
fn whoever_is_moved_is_woken_there_or_leaves_from_there() {
    in_orders_with(3, || {
        let futexes = Futexes::new();
        let fiber = Fiber::new();
        let mover = spawn(&futexes, |futexes| {
            let [from, to] = futexes.keys;
            let moved = futexes.table.requeue(from, to, 0, 1, || true);
            (moved.map_or(0, |(_, moved)| moved), futexes.wake(1))
        });
        let outcome = futexes.wait(&fiber, |number| {
            fiber.end_wait(number, Outcome::TimedOut);
        });
        let (moved, woken) = mover.join().unwrap();
        assert!(woken <= moved);
        assert_eq!(woken, usize::from(outcome == Outcome::Woken));
        assert!(
            futexes.keys.iter().all(|&key| !futexes.table.may_have(key)),
            "somebody is left behind"
        );
        fiber.assert_not_queued();
    });
}

// A worker that a thread of the user's drives, and the end of its runtime.

/// A runtime with such a worker.
struct Theirs {
    hands: Hands,
    is_over: AtomicBool,
    /// How many fibers are left there, and how often they were given up. The worker's: used by whoever has it.
    left: Unguarded<usize>,
    given_up: Unguarded<usize>,
}

impl Theirs {
    fn new() -> Arc<Theirs> {
        Arc::new(Theirs {
            hands: Hands::new(),
            is_over: AtomicBool::new(false),
            left: Unguarded::new(1),
            given_up: Unguarded::new(0),
        })
    }

    /// Its thread comes, makes another fiber, and leaves. Returns whether it was let in.
    fn visit(&self) -> bool {
        let is_let_in = self.hands.man();
        if is_let_in {
            assert_eq!(self.given_up.get(), 0);
            self.left.set(self.left.get() + 1);
            self.hands.leave();
            self.give_up();
        }
        is_let_in
    }

    /// Somebody shuts it down.
    fn end(&self) {
        self.is_over.store(true, Release);
        self.give_up();
    }

    fn give_up(&self) {
        if self.hands.give_up(|| self.is_over.load(Acquire)) {
            self.left.set(0);
            self.given_up.set(self.given_up.get() + 1);
            self.hands.note_given_up();
        }
    }
}

#[test]
fn what_is_left_with_a_thread_that_leaves_is_given_up_by_it_or_by_who_ends_the_runtime() {
    in_all_orders(|| {
        let theirs = Theirs::new();
        let owner = spawn(&theirs, |theirs| {
            theirs.visit();
            theirs.visit();
        });
        theirs.end();
        owner.join().unwrap();
        assert_eq!(theirs.left.get(), 0);
        assert!(!theirs.visit());
        assert!(theirs.given_up.get() > 0);
    });
}

#[test]
fn two_that_end_a_runtime_do_not_give_it_up_at_once() {
    in_orders_with(3, || {
        let theirs = Theirs::new();
        let owner = spawn(&theirs, |theirs| {
            theirs.visit();
        });
        let other = spawn(&theirs, Theirs::end);
        theirs.end();
        owner.join().unwrap();
        other.join().unwrap();
        assert_eq!(theirs.left.get(), 0);
    });
}
