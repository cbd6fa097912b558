//! Barriers and initialisation that is done once: those who meet, or wait for the first one, do so in user space, everybody alike.
//!
//! Neither can be done by trying the C library's function, so the books are ours: a list of the barriers at which somebody is, and of
//! the initialisers that run. An entry lies in the frame of whoever came first, who stays until it is taken out. Nobody looks at a
//! barrier after it was told to go on, so that it may be destroyed at once.
//!
//! The word of what is done once is kept as the C library does, so that it is not done again there.

use super::condition::on_a_thread;
use super::layout;
use super::lock::{note_fed, parking, real, reals, who};
use super::retry::Caller;
use crate::clock;
use crate::primitives::yield_thread;
use crate::sync::address::{self, ALL_BITS, Key, Space};
use crate::sys::{self, syscall};
use libc::{c_int, pthread_barrier_t, pthread_once_t};
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::*};

/// A function that is called once. It may unwind.
pub(super) type Initialiser = unsafe extern "C-unwind" fn();

reals! {
    BARRIER_WAIT: unsafe extern "C" fn(*mut pthread_barrier_t) -> c_int = c"pthread_barrier_wait";
    ONCE: unsafe extern "C-unwind" fn(*mut pthread_once_t, Option<Initialiser>) -> c_int = c"pthread_once";
}

/// An initialiser that runs, or a barrier at which somebody is.
struct Entry {
    key: Key,
    /// Tells it from later ones of the same address.
    number: u64,
    /// How many have come.
    arrived: Cell<u32>,
    next: Cell<*const Entry>,
}

impl Entry {
    fn new(key: Key) -> Entry {
        Entry {
            key,
            number: 0,
            arrived: Cell::new(1),
            next: Cell::new(ptr::null()),
        }
    }
}

/// The entries. Not behind the scheduler's lock: that one is made on the heap, and what is done once may be an allocator's own
/// beginning.
struct List {
    /// The process whose thread has the list, or 0.
    taken: AtomicU32,
    inside: UnsafeCell<Inside>,
}

struct Inside {
    /// The process that the entries are of. A forked child has no use for its parent's.
    process: u32,
    first: *const Entry,
    last_number: u64,
}

// SAFETY: what is inside is touched by whoever has the list; entries stay in place while they are in it.
unsafe impl Sync for List {}

static LIST: List = List {
    taken: AtomicU32::new(0),
    inside: UnsafeCell::new(Inside {
        process: 0,
        first: ptr::null(),
        last_number: 0,
    }),
};

impl List {
    /// Calls `f` with what is inside. It does not wait.
    fn with<R>(&self, f: impl FnOnce(&mut Inside) -> R) -> R {
        // Not our own number of the process: that is only kept where there are runtimes.
        // SAFETY: asks for a number.
        let process = unsafe { syscall!(SYS_getpid) } as u32;
        loop {
            let taken = self.taken.load(Relaxed);
            // Whoever had it in the parent is not here.
            if taken != process
                && self
                    .taken
                    .compare_exchange(taken, process, Acquire, Relaxed)
                    .is_ok()
            {
                break;
            }
            yield_thread();
        }
        // SAFETY: it was just taken.
        let inside = unsafe { &mut *self.inside.get() };
        if inside.process != process {
            inside.process = process;
            inside.first = ptr::null();
        }
        let result = f(inside);
        self.taken.store(0, Release);
        result
    }
}

impl Inside {
    /// The entry of that kind and address.
    fn find(&self, key: Key) -> Option<&Entry> {
        let mut next = self.first;
        // SAFETY: entries stay in place while they are in the list.
        while let Some(entry) = unsafe { next.as_ref() } {
            if entry.key == key {
                return Some(entry);
            }
            next = entry.next.get();
        }
        None
    }

    fn has(&self, key: Key, number: u64) -> bool {
        self.find(key).is_some_and(|entry| entry.number == number)
    }

    /// Enters it.
    fn push(&mut self, entry: &mut Entry) -> u64 {
        self.last_number += 1;
        entry.number = self.last_number;
        entry.next.set(self.first);
        self.first = entry;
        entry.number
    }

    /// Takes out the entry of that kind and address.
    fn remove(&mut self, key: Key) {
        let mut before: Option<&Entry> = None;
        let mut next = self.first;
        // SAFETY: entries stay in place while they are in the list.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.next.get();
            if entry.key == key {
                match before {
                    Some(before) => before.next.set(next),
                    None => self.first = next,
                }
                return;
            }
            before = Some(entry);
        }
    }
}

/// What somebody finds at a barrier.
enum Arrival {
    Last,
    /// The others of this number are yet to come.
    Early(u64),
}

/// # Safety
/// As `pthread_barrier_wait`.
pub(super) unsafe fn barrier_wait(caller: Option<Caller>, barrier: *mut pthread_barrier_t) -> c_int {
    // SAFETY: the caller's promise.
    let pass = || unsafe { real!(BARRIER_WAIT(barrier)) };
    // SAFETY: the caller's promise.
    let (count, shared) = unsafe {
        (
            layout::BARRIER_COUNT.of(barrier),
            layout::BARRIER_SHARED.of(barrier),
        )
    };
    let (Some(count), Some(shared)) = (count, shared) else {
        return pass();
    };
    if sys::is_forked() {
        return pass();
    }
    if shared != 0 {
        // SAFETY: the barrier is there until the call returns.
        let result = caller.and_then(|caller| unsafe { on_a_thread(caller, &|| told(pass()), || {}) });
        return result.map_or_else(pass, untold);
    }
    let key = Key::new(Space::Barrier, barrier.addr());
    let mut entry = Entry::new(key);
    let arrival = LIST.with(|list| match list.find(key) {
        None if count == 1 => Arrival::Last,
        None => Arrival::Early(list.push(&mut entry)),
        Some(first) => {
            first.arrived.set(first.arrived.get() + 1);
            if first.arrived.get() < count {
                return Arrival::Early(first.number);
            }
            list.remove(key);
            Arrival::Last
        }
    });
    match arrival {
        Arrival::Last => {
            let _ = address::wake_all(key);
            libc::PTHREAD_BARRIER_SERIAL_THREAD
        }
        Arrival::Early(number) => {
            if let Some(caller) = caller {
                caller.count().would_block.increment();
            }
            let is_early = || LIST.with(|list| list.has(key, number));
            // Those of the next round may be woken with those of this one.
            while is_early() {
                parking(caller, || {
                    address::wait(who(caller), key, ALL_BITS, clock::NEVER, is_early)
                });
            }
            note_fed(caller, key.address);
            0
        }
    }
}

/// The result of a barrier's wait, which may be -1, as one that is not.
fn told(result: c_int) -> c_int {
    result + 2
}

fn untold(result: c_int) -> c_int {
    result - 2
}

/// The value of what has been done.
const DONE: c_int = 2;

/// The value that the C library gives to what is being done, in this process; nothing, if it does it otherwise than is known here.
fn doing() -> Option<c_int> {
    static PLACE: AtomicPtr<pthread_once_t> = AtomicPtr::new(ptr::null_mut());
    static SEEN: AtomicI32 = AtomicI32::new(0);
    unsafe extern "C-unwind" fn look() {
        // SAFETY: it is set below.
        SEEN.store(unsafe { *PLACE.load(Relaxed) }, Relaxed);
    }
    let real = ONCE.get()?;
    // One at a time: a function that is called once has no arguments.
    LIST.with(|_| {
        let mut scratch = libc::PTHREAD_ONCE_INIT;
        PLACE.store(&raw mut scratch, Relaxed);
        // SAFETY: a local variable, and a function that only looks at it.
        unsafe { real(&raw mut scratch, Some(look)) };
        let seen = SEEN.load(Relaxed);
        (scratch == DONE && seen & 3 == 1).then_some(seen)
    })
}

/// What is being done once, by whoever has this.
struct Doing<'a> {
    word: &'a AtomicI32,
    key: Key,
    /// What is to be written when it is over, if anything.
    value: Option<c_int>,
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        if let Some(value) = self.value {
            self.word.store(value, Release);
            // Those who have come there past the hooks.
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the kernel uses the address as a name only.
            unsafe { syscall!(SYS_futex, self.word.as_ptr(), operation, i32::MAX, 0, 0, 0) };
        }
        LIST.with(|list| list.remove(self.key));
        let _ = address::wake_all(self.key);
    }
}

/// # Safety
/// As `pthread_once`.
#[inline]
pub(super) unsafe fn once(
    caller: Option<Caller>,
    control: *mut pthread_once_t,
    initialise: Option<Initialiser>,
) -> c_int {
    // SAFETY: the caller's promise; others change it as an atomic, too.
    let word = unsafe { AtomicI32::from_ptr(control) };
    if word.load(Acquire) == DONE {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { once_slowly(caller, word, initialise) }
}

/// # Safety
/// As `pthread_once`.
#[cold]
unsafe fn once_slowly(caller: Option<Caller>, word: &AtomicI32, initialise: Option<Initialiser>) -> c_int {
    // SAFETY: the caller's promise.
    let pass = || unsafe { real!(ONCE(word.as_ptr(), initialise)) };
    if sys::is_forked() {
        return pass();
    }
    let Some(doing) = doing() else {
        return pass();
    };
    let key = Key::new(Space::Once, word.as_ptr().addr());
    let mut entry = Entry::new(key);
    let mut claim = || {
        LIST.with(|list| {
            let is_free = list.find(key).is_none();
            if is_free {
                list.push(&mut entry);
            }
            is_free
        })
    };
    while !claim() {
        let is_claimed = || LIST.with(|list| list.find(key).is_some());
        parking(caller, || {
            address::wait(who(caller), key, ALL_BITS, clock::NEVER, is_claimed)
        });
        note_fed(caller, key.address);
        if word.load(Acquire) == DONE {
            return 0;
        }
    }
    let mut claimed = Doing {
        word,
        key,
        value: None,
    };
    let found = word.load(Acquire);
    if found == DONE {
        return 0;
    }
    // Somebody who has come past the hooks is at it, or has been faster.
    if found == doing || word.compare_exchange(found, doing, Acquire, Relaxed).is_err() {
        return pass();
    }
    // If it unwinds, the next one does it.
    claimed.value = Some(libc::PTHREAD_ONCE_INIT);
    if let Some(initialise) = initialise {
        // SAFETY: the caller's promise.
        unsafe { initialise() };
    }
    claimed.value = Some(DONE);
    0
}
