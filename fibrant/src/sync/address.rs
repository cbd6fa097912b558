//! Waiting for an address, in user space: fibers, and threads among them, wait, and others wake them.
//!
//! The hooks of futexes and of the C library's locks come here. Whoever waits stands in one [`table`], first in, first out. The scheduler tells it when fibers that wait are
//! abandoned. Nothing here is interrupted when a fiber is cancelled: a lock is not such a place.
//!
//! # Who has waited in vain
//!
//! A lock that is let go may be taken by whoever comes first, and that is most often the one who let it go: it is on the processor,
//! while the one that it has woken is yet to get there. Threads are saved from that by preemption, some of the time. Fibers have none,
//! so there are two rules for those who wake somebody ([`give_way_after`]):
//!
//! 1. A fiber that wakes one of its own worker's which waits for the same address for the second time in a row
//!    ([`OVERTAKEN_AFTER`]), and has not woken anybody there in between, as the holder of a lock would, lets it run at once. Not the
//!    first time: who notifies somebody often holds a lock that the other one needs next.
//! 2. Whoever has waited that way [`HUNGRY_AFTER`] times in a row is *hungry*: who wakes it gives it a moment, be they on different
//!    workers, or threads. A fiber lets others run, a thread gives up the processor, until
//!    the hungry one has gone on; for [`MOMENT`] at most, and twice as long each time that it has been in vain again, up to
//!    [`LONGEST_MOMENT`]. So whoever is overtaken again and again gets there first in the end, and nobody pays for that more than
//!    once in so many wakes.

use super::someone::{self, Someone, Wish};
use super::table::{Claimed, Place, Sleeper, Table, Waiter};
use crate::clock;
use crate::fiber::WaitReason;
use crate::fiber::routine::elsewhere;
use crate::primitives::{full_fence, has_lock, yield_thread};
use crate::scheduler::{Desk, InTable, Worker};
use crate::sys::{self, PerProcess};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

pub(crate) use super::table::{Key, Space};

/// How many buckets there are.
const BUCKETS: usize = 512;

/// After how many waits in a row a fiber that is woken by one of its own worker runs at once.
const OVERTAKEN_AFTER: u32 = 2;

/// After how many waits in a row somebody is given a moment.
const HUNGRY_AFTER: u32 = 32;

/// How long a hungry one is waited for, at first and at most: nanoseconds.
const MOMENT: u64 = 200_000;
const LONGEST_MOMENT: u64 = 3_200_000;

/// For whoever wants all wakes of an address.
pub(crate) const ALL_BITS: u32 = !0;

/// The table, and how often hungry ones have gone on.
static TABLE: PerProcess<Table<Anyone<'static>>> = PerProcess::new(|| {
    sys::note_forks();
    Table::new(BUCKETS)
});

/// How often a hungry one has gone on, by address: who gives somebody a moment sees by it when that is over.
static SERVED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Threads that wait in the kernel, and the hungry ones among them, by address: those who wake there cannot see whom.
static THREADS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
static HUNGRY_THREADS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// Workers that block in the kernel, in the runtime's own code, and other threads that do so with one of our own locks, by address.
static WORKERS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// How often it was asked whose turn it is, by address.
static TURNS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

fn slot(address: usize) -> usize {
    (address >> 2).wrapping_mul(0x9E37_79B9) >> 12 & 63
}

/// Makes the table, so that nobody who waits needs memory for it: that may be what they wait for.
pub(crate) fn prepare() {
    TABLE.get();
}

/// The worker of the fiber that runs here, if it may wait for a lock: its calls are hooked, and it holds none of our own.
#[inline(always)]
pub(crate) fn patient_fiber() -> Option<&'static Worker> {
    Worker::of_hooked_fiber().filter(|_| !has_lock())
}

/// Who waits.
#[derive(Clone, Copy)]
pub(crate) enum Who<'a> {
    /// The fiber that runs on this worker.
    Fiber(&'a Worker),
    /// The calling thread. It blocks.
    Thread,
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Somebody has woken it, and counts on that.
    Woken,
    /// The deadline came first.
    TimedOut,
    /// There was no reason to wait any more.
    Unexpected,
}

/// One of the things that a fiber waits for.
pub(crate) struct Target<'a> {
    pub(crate) key: Key,
    /// Only wakes with one of these bits end the wait.
    pub(crate) bits: u32,
    /// Whether there is still a reason to wait. It is called under a lock: it only looks.
    pub(crate) still: &'a dyn Fn() -> bool,
}

/// What a wake has come to. Hand it to [`give_way_after`], when nothing is held any more that others need.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub(crate) struct Woken {
    /// How many were woken.
    pub(crate) count: usize,
    /// Whether a fiber of the caller's own worker is among them.
    pub(crate) is_local: bool,
    /// If one of them is hungry: the address, how long it may be waited for, and how often hungry ones had gone on there.
    hungry: Option<(usize, u64, usize)>,
}

/// Waits for `key` to be woken, at most until the deadline, in nanoseconds of the monotonic clock; not at all, if `still` says that
/// there is no reason to. It is called at the beginning, and then under the table's lock: it only looks.
pub(crate) fn wait(who: Who<'_>, key: Key, bits: u32, deadline: u64, still: impl Fn() -> bool) -> End {
    if !still() {
        return End::Unexpected;
    }
    match who {
        Who::Fiber(worker) => {
            let target = Target {
                key,
                bits,
                still: &still,
            };
            wait_for_any(worker, &[target], deadline).0
        }
        Who::Thread => wait_on_thread(key, bits, deadline, still, || {}, None),
    }
}

/// How often threads were told to end.
static INTERRUPTIONS: AtomicUsize = AtomicUsize::new(0);

/// A number that changes whenever [`interrupt`] is called.
pub(crate) fn interruptions() -> usize {
    INTERRUPTIONS.load(SeqCst)
}

/// Ends the wait of a thread that waits in [`wait_entered`], if it does.
pub(crate) fn interrupt(thread: libc::pthread_t) {
    INTERRUPTIONS.fetch_add(1, SeqCst);
    let Some(table) = TABLE.existing() else {
        return;
    };
    table.for_all(|anyone| {
        if let Some(other) = anyone.thread
            // SAFETY: compares numbers.
            && unsafe { libc::pthread_equal(other, thread) } != 0
        {
            anyone.someone.interrupt();
        }
    });
}

/// Waits for `key` to be woken, at most until the deadline. `entered` is called as soon as a wake would find the caller, with no lock
/// of ours held; it does not wait itself. A thread can be [interrupted](interrupt): the wait is then [`End::Unexpected`], also if
/// there has been an interruption since the number of [`interruptions`] was this.
pub(crate) fn wait_entered(
    who: Who<'_>,
    key: Key,
    deadline: u64,
    seen: usize,
    entered: impl FnOnce(),
) -> End {
    match who {
        Who::Fiber(worker) => elsewhere(|| {
            let target = Target {
                key,
                bits: ALL_BITS,
                still: &|| true,
            };
            let someone = Someone::fiber(&worker.fiber().expect("what waits here is a fiber").task);
            let anyone = Anyone::fiber(&someone, worker, Hunger(0));
            let place = [Place::waiter(anyone, key, ALL_BITS)];
            wait_in(&someone, &place, &[target], deadline, entered).0
        }),
        Who::Thread => {
            let still = || interruptions() == seen;
            // SAFETY: asks for a number.
            let thread = unsafe { libc::pthread_self() };
            wait_on_thread(key, ALL_BITS, deadline, still, entered, Some(thread))
        }
    }
}

/// Makes the fiber that runs on this worker wait for several things. Also gives the place in the list of the one that was woken, or
/// that there was no reason to wait for.
pub(crate) fn wait_for_any(worker: &Worker, targets: &[Target<'_>], deadline: u64) -> (End, usize) {
    elsewhere(|| wait_for_any_here(worker, targets, deadline))
}

/// The same, with the places that others find in the frames that follow.
fn wait_for_any_here(worker: &Worker, targets: &[Target<'_>], deadline: u64) -> (End, usize) {
    let fiber = worker.fiber().expect("what waits here is a fiber");
    let hunger = match targets {
        [one] => Hunger::of_row(&fiber.row, one.key.address),
        _ => Hunger(0),
    };
    let someone = Someone::fiber(&fiber.task);
    let waiter = |target: &Target<'_>| {
        let anyone = Anyone::fiber(&someone, worker, hunger);
        Place::waiter(anyone, target.key, target.bits)
    };
    match targets {
        // Most often: no allocation.
        [one] => wait_in(&someone, &[waiter(one)], targets, deadline, || {}),
        several => wait_in(
            &someone,
            &several.iter().map(waiter).collect::<Box<[_]>>(),
            targets,
            deadline,
            || {},
        ),
    }
}

/// Waits in these places, each with its target.
fn wait_in<'a>(
    someone: &'a Someone,
    waiters: &[Waiter<Anyone<'a>>],
    targets: &[Target<'_>],
    deadline: u64,
    entered: impl FnOnce(),
) -> (End, usize) {
    let table = table();
    let key = targets
        .first()
        .map_or(Key::new(Space::Futex, 0), |first| first.key);
    let places = Places { someone, waiters };
    let wish = Wish {
        reason: match key.space {
            Space::Futex => WaitReason::Futex { address: key.address },
            _ => WaitReason::Lock { address: key.address },
        },
        subject: None,
        interruptible: false,
        deadline,
        in_table: Some(InTable {
            give_up: Places::give_up,
            wait: NonNull::from(&places).cast(),
        }),
    };
    let mut unexpected = 0;
    let end = someone.wait(&wish, || {
        let refused = waiters.iter().zip(targets).position(|(waiter, target)| {
            // SAFETY: they are in this function's caller's frame, and are removed below before it ends, or claimed.
            !unsafe { table.enter(waiter, target.still) }
        });
        unexpected = refused.unwrap_or(0);
        if refused.is_none() {
            entered();
        }
        refused.is_none()
    });
    for waiter in waiters {
        table.remove(waiter);
        waiter.sleeper.hunger.note_served(key.address);
    }
    // Whoever was taken was claimed by a waker, who counts on it.
    if let Some(index) = waiters.iter().position(|waiter| waiter.was_taken()) {
        return (End::Woken, index);
    }
    match end {
        someone::End::Needless => (End::Unexpected, unexpected),
        someone::End::TimedOut => (End::TimedOut, 0),
        // Nobody else can end it.
        someone::End::Woken | someone::End::Interrupted(_) => (End::Woken, 0),
    }
}

/// Blocks the calling thread.
fn wait_on_thread(
    key: Key,
    bits: u32,
    deadline: u64,
    still: impl Fn() -> bool,
    entered: impl FnOnce(),
    thread: Option<libc::pthread_t>,
) -> End {
    let someone = Someone::thread();
    let anyone = Anyone {
        someone: &someone,
        desk: None,
        hunger: ROW.with(|row| Hunger::of_row(row, key.address)),
        thread,
    };
    let target = Target {
        key,
        bits,
        still: &still,
    };
    wait_in(
        &someone,
        &[Place::waiter(anyone, key, bits)],
        &[target],
        deadline,
        entered,
    )
    .0
}

/// The table, of those who wait now. Whoever looks at a place in it does so before the one who waits there goes on.
fn table<'a>() -> &'a Table<Anyone<'a>> {
    let table: &Table<Anyone<'static>> = TABLE.get();
    // SAFETY: a place is removed before the frame that it and its someone lie in ends, so what is in the table is always alive, and
    // it is looked at under the table's locks, or after it was claimed and before it is woken.
    unsafe { &*ptr::from_ref(table).cast() }
}

/// Whether there is a table: nobody waits before.
pub(crate) fn is_made() -> bool {
    TABLE.existing().is_some()
}

/// Whether somebody may be waiting. The caller has changed what they wait for.
#[inline(always)]
pub(crate) fn may_have_waiters(key: Key) -> bool {
    full_fence();
    TABLE.existing().is_some_and(|table| table.may_have(key))
}

/// Wakes up to so many of those who wait for `key` with one of these bits, the one that has waited longest first.
#[inline]
pub(crate) fn wake(key: Key, most: usize, bits: u32) -> Woken {
    full_fence();
    match TABLE.existing() {
        Some(table) if table.may_have(key) => wake_claimed(key.address, table.claim(key, most, bits)),
        _ => Woken::default(),
    }
}

/// Wakes all who wait for `key`.
#[allow(dead_code)]
pub(crate) fn wake_all(key: Key) -> Woken {
    wake(key, usize::MAX, ALL_BITS)
}

/// Wakes up to `wake` of those who wait for `from`, and lets up to `most` others wait for `to` instead: gives the wakes, and how many
/// were moved. `None`, if `check` says no, which is called under the table's locks and only looks.
pub(crate) fn requeue(
    from: Key,
    to: Key,
    wake: usize,
    most: usize,
    check: impl FnOnce() -> bool,
) -> Option<(Woken, usize)> {
    full_fence();
    let Some(table) = TABLE.existing() else {
        return check().then_some((Woken::default(), 0));
    };
    let (claimed, moved) = table.requeue(from, to, wake, most, check)?;
    Some((wake_claimed(from.address, claimed), moved))
}

#[cold]
fn wake_claimed(address: usize, claimed: Claimed<Anyone<'_>>) -> Woken {
    let own = Worker::here().map_or(ptr::null(), |worker| ptr::from_ref(worker.desk));
    let mut woken = Woken {
        count: claimed.count,
        ..Woken::default()
    };
    claimed.wake(|anyone| {
        // SAFETY: it was claimed and is in place until it is woken.
        let Anyone {
            someone,
            desk,
            hunger,
            ..
        } = unsafe { anyone.as_ref() };
        woken.is_local |= hunger.was_overtaken() && desk.is_some_and(|desk| ptr::eq(desk, own));
        if let Some(moment) = hunger.moment() {
            woken.note_hungry(address, moment);
        }
        // SAFETY: it was claimed, and this is called once.
        unsafe { Someone::wake(NonNull::from(*someone)) };
    });
    woken
}

impl Woken {
    /// Adds what another wake has come to.
    pub(crate) fn and(self, other: Woken) -> Woken {
        Woken {
            count: self.count + other.count,
            is_local: self.is_local || other.is_local,
            hungry: self.hungry.or(other.hungry),
        }
    }

    /// Notes that somebody who is about to be woken is to be given a moment.
    fn note_hungry(&mut self, address: usize, moment: u64) {
        let served = SERVED[slot(address)].load(Relaxed);
        self.hungry.get_or_insert((address, moment, served));
    }
}

/// Lets those run who were woken, if they need it: see the head of this file. The caller is about to return to the user's code.
#[inline]
pub(crate) fn give_way_after(woken: Woken) {
    if woken.is_local || woken.hungry.is_some() {
        give_way(woken);
    }
}

#[cold]
fn give_way(woken: Woken) {
    let worker = patient_fiber();
    if std::thread::panicking() && !worker.is_some_and(Worker::has_own_locals) {
        return; // perhaps in the middle of the message, where no other fiber with these thread-locals may panic
    }
    // A coroutine that gave way would go back to its resumer, which may want a lock that the coroutine has.
    let gives_way = worker.filter(|worker| !worker.is_event_loop);
    let let_run = || match gives_way {
        Some(worker) => worker.yield_now(),
        None => yield_thread(),
    };
    if gives_way.is_some() && woken.is_local {
        let_run();
    }
    let Some((address, moment, served)) = woken.hungry else {
        return;
    };
    if worker.is_none() && Worker::here().is_some() {
        return; // the runtime's own code, or a signal handler's
    }
    let until = clock::now() + moment;
    while SERVED[slot(address)].load(Relaxed) == served && clock::now() < until {
        let_run();
    }
}

thread_local! {
    /// Which address this thread has waited for last, and how often in a row.
    static ROW: Cell<u64> = const { Cell::new(0) };
}

/// How often in a row somebody has waited for the same address.
#[derive(Clone, Copy, Debug)]
struct Hunger(u32);

/// Whether a row is one of waits for this address. It is kept as the address and a number, in one word: of the address all but its highest
/// sixteen bits, in which those of one process do not differ.
#[inline]
fn is_row_of(row: u64, address: usize) -> bool {
    row >> 16 == (address as u64) << 16 >> 16
}

impl Hunger {
    /// Notes one more wait for this address.
    fn of_row(row: &Cell<u64>, address: usize) -> Hunger {
        let times = match row.get() {
            last if is_row_of(last, address) => (last as u16).saturating_add(1),
            _ => 1,
        };
        row.set((address as u64) << 16 | u64::from(times));
        Hunger(times.into())
    }

    /// Whether a fiber of the same worker that wakes this one is to let it run at once.
    fn was_overtaken(self) -> bool {
        self.0.is_multiple_of(OVERTAKEN_AFTER)
    }

    /// How long whoever wakes this one is to wait for it, if at all.
    fn moment(self) -> Option<u64> {
        let rounds = self.0 / HUNGRY_AFTER;
        let is_hungry = rounds > 0 && self.0.is_multiple_of(HUNGRY_AFTER);
        is_hungry.then(|| LONGEST_MOMENT.min(MOMENT << (rounds - 1).min(8)))
    }

    /// The one that was hungry goes on.
    fn note_served(self, address: usize) {
        if self.moment().is_some() {
            SERVED[slot(address)].fetch_add(1, Relaxed);
        }
    }
}

/// Notes that the caller has got what it waited for at this address, or wakes others there: it has not waited in vain.
#[inline]
pub(crate) fn note_fed(worker: Option<&Worker>, address: usize) {
    let clear = |row: &Cell<u64>| {
        if is_row_of(row.get(), address) {
            row.set(0);
        }
    };
    match worker.and_then(Worker::fiber) {
        Some(fiber) => clear(&fiber.row),
        None => ROW.with(clear),
    }
}

/// Calls `block`, in which the calling thread waits for this address in the kernel, so that those who wake it there know when it is
/// hungry.
pub(crate) fn in_kernel<R>(address: usize, block: impl FnOnce() -> R) -> R {
    let hunger = ROW.with(|row| Hunger::of_row(row, address));
    let slot = slot(address);
    let hungry = u32::from(hunger.moment().is_some());
    let worker = u32::from(Worker::here().is_some() || has_lock());
    WORKERS[slot].fetch_add(worker, SeqCst);
    THREADS[slot].fetch_add(1, Relaxed);
    HUNGRY_THREADS[slot].fetch_add(hungry, Relaxed);
    let result = block();
    HUNGRY_THREADS[slot].fetch_sub(hungry, Relaxed);
    THREADS[slot].fetch_sub(1, Relaxed);
    WORKERS[slot].fetch_sub(worker, Relaxed);
    hunger.note_served(address);
    result
}

/// Whether threads that wait for this address in the kernel are to be woken before fibers that wait for it: every other time, if there
/// are any; and now and then in any case, as there may be some that nobody knows of. If a worker is among them, it is always their turn:
/// a fiber that is woken in its place may be one of its own, and could not run. So it is if one of them has one of our own locks, which the
/// fiber's worker may want.
pub(crate) fn is_threads_turn(address: usize) -> bool {
    let slot = slot(address);
    let turn = TURNS[slot].fetch_add(1, Relaxed);
    let interval = if THREADS[slot].load(Relaxed) > 0 { 2 } else { 16 };
    turn % interval == 1 || WORKERS[slot].load(Relaxed) > 0
}

/// Calls `wake`, which wakes so many threads that wait for this address in the kernel.
#[inline(always)]
pub(crate) fn wake_in_kernel(address: usize, wake: impl FnOnce() -> isize) -> (isize, Woken) {
    let mut woken = Woken::default();
    if HUNGRY_THREADS[slot(address)].load(Relaxed) > 0 {
        woken.note_hungry(address, MOMENT);
    }
    let result = wake();
    if result <= 0 {
        woken.hungry = None;
    }
    woken.count = result.max(0) as usize;
    (result, woken)
}

/// Who is in the table.
struct Anyone<'a> {
    someone: &'a Someone,
    /// A fiber's worker.
    desk: Option<&'static Desk>,
    hunger: Hunger,
    /// Which thread it is, if it can be interrupted.
    thread: Option<libc::pthread_t>,
}

impl<'a> Anyone<'a> {
    fn fiber(someone: &'a Someone, worker: &Worker, hunger: Hunger) -> Anyone<'a> {
        Anyone {
            someone,
            desk: Some(worker.desk),
            hunger,
            thread: None,
        }
    }
}

impl Sleeper for Anyone<'_> {
    fn claim(&self) -> bool {
        self.someone.claim()
    }
}

/// Where a fiber waits.
struct Places<'p, 'a> {
    someone: &'a Someone,
    waiters: &'p [Waiter<Anyone<'a>>],
}

impl Places<'_, '_> {
    /// The fiber that waits here never goes on: nobody is to count on it. If somebody has woken it already, another one is woken
    /// instead.
    ///
    /// # Safety
    /// See [`InTable`].
    unsafe fn give_up(places: NonNull<()>) {
        // SAFETY: it is what `wait_in` has noted, in the frame of a fiber that never goes on, so that it stays.
        let places = unsafe { places.cast::<Places<'_, '_>>().as_ref() };
        places.someone.give_up();
        for waiter in places.waiters {
            table().remove(waiter);
            if waiter.was_taken() {
                let key = waiter.key();
                if wake(key, 1, waiter.bits).count == 0 && key.space == Space::Futex {
                    sys::unblock(key.address as *const AtomicU32);
                }
            }
        }
    }
}
