//! A scheduled fiber, as far as this module knows it: who it is, what it waits for, and how it is woken.
//!
//! The scheduler makes it (its own part follows in the same block of memory), whoever wants to wake, cancel or describe the
//! fiber holds a counted [`TaskRef`]. The memory lives until the last reference is gone, long after the fiber may have
//! ended.

use super::reason::{Subject, WaitReason};
use super::wait::Wait;
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// The head of a scheduled fiber's block of memory.
#[repr(C)]
pub(crate) struct Task {
    /// What the rest of the block is.
    pub(crate) kind: &'static Kind,
    /// How its waits begin and end.
    pub(crate) wait: Wait,
    /// What it waits for, if it does; its kind is below, where it fills a gap. A reader may catch it between the two stores and see the
    /// kind of one reason with the rest of another: good enough for a dump, and never anything worse.
    reason: AtomicU64,
    /// When that began: nanoseconds of the monotonic clock, as of the worker's last look at it.
    since: AtomicU64,
    /// More about it, for dumps: where the fiber has a reference to what it waits for. Null, or good while the fiber's wait is pinned.
    subject: AtomicPtr<&'static dyn Subject>,
    id: u64,
    /// One word: few fibers have a name.
    name: Option<Arc<String>>,
    /// Where it was spawned.
    spawned_at: &'static Location<'static>,
    references: AtomicU32,
    kind_of_reason: AtomicU8,
}

/// What can be done with a task without knowing what it runs.
pub(crate) struct Kind {
    /// Puts the task, whose wait the caller has just claimed, into its worker's queue.
    ///
    /// # Safety
    /// The caller has claimed the task's wait, and calls this once.
    pub(crate) wake: unsafe fn(NonNull<Task>),
    /// Frees the block.
    ///
    /// # Safety
    /// There are no more references.
    pub(crate) free: unsafe fn(NonNull<Task>),
}

impl Task {
    /// A task with `references` references.
    pub(crate) fn new(
        kind: &'static Kind,
        id: u64,
        name: Option<Arc<String>>,
        spawned_at: &'static Location<'static>,
        references: u32,
    ) -> Task {
        Task {
            kind,
            wait: Wait::new(),
            reason: AtomicU64::new(0),
            since: AtomicU64::new(0),
            subject: AtomicPtr::new(ptr::null_mut()),
            id,
            name,
            spawned_at,
            references: AtomicU32::new(references),
            kind_of_reason: AtomicU8::new(0),
        }
    }

    /// The fiber's number.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The fiber's name.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref().map(String::as_str)
    }

    /// Where it was spawned.
    pub(crate) fn spawned_at(&self) -> &'static Location<'static> {
        self.spawned_at
    }

    /// Notes what the fiber is about to wait for. Only its own thread calls this.
    #[inline]
    pub(crate) fn note_reason(&self, reason: WaitReason, since: u64) {
        let (kind, rest) = reason.encode();
        self.kind_of_reason.store(kind, Relaxed);
        self.reason.store(rest, Relaxed);
        self.since.store(since, Relaxed);
    }

    /// What it waits for and since when, if it waits.
    pub(crate) fn waiting(&self) -> Option<(WaitReason, u64)> {
        self.wait
            .is_waiting()
            .then(|| (self.last_reason(), self.since.load(Relaxed)))
    }

    /// What it waits for, or has waited for last.
    pub(crate) fn last_reason(&self) -> WaitReason {
        WaitReason::decode(self.kind_of_reason.load(Relaxed), self.reason.load(Relaxed))
    }

    /// Notes where the fiber, which is about to wait and is the caller, has a reference to what it waits for; or that this is over.
    /// Both must stay until then.
    #[inline]
    pub(crate) fn set_subject(&self, subject: Option<&&dyn Subject>) {
        let place = subject.map_or(ptr::null(), ptr::from_ref);
        self.subject.store(place.cast_mut().cast(), Relaxed);
    }

    /// What it waits for has to say about itself, if it waits and there is more to say than its reason. One caller at a time: the roster's
    /// lock is held.
    pub(crate) fn describe_subject(&self) -> Option<String> {
        if !self.wait.pin() {
            return None;
        }
        let subject = self.subject.load(Relaxed);
        // SAFETY: the fiber has set it before its wait began, and takes it back after that has ended; neither the reference nor what
        // it refers to goes away in between, and while the wait is pinned the fiber does not go on from it.
        let text = unsafe { subject.as_ref() }.map(|subject| subject.describe());
        self.wait.unpin();
        text
    }

    /// Puts the fiber into its worker's queue.
    ///
    /// # Safety
    /// The caller has claimed its wait, and calls this once.
    #[inline]
    pub(crate) unsafe fn wake(&self) {
        // SAFETY: the caller's promise.
        unsafe { (self.kind.wake)(NonNull::from(self)) }
    }

    /// Ends a park, or lets the next one return at once.
    pub(crate) fn unpark(&self) {
        if self.wait.unpark() {
            // SAFETY: the wait was just claimed.
            unsafe { self.wake() }
        }
    }

    /// Asks the fiber to end.
    pub(crate) fn cancel(&self) {
        if self.wait.cancel() {
            // SAFETY: the wait was just claimed.
            unsafe { self.wake() }
        }
    }
}

/// A counted reference to a task.
pub(crate) struct TaskRef(NonNull<Task>);

// SAFETY: what a reference gives access to is atomic or never changes; what the fiber runs and returns is not reachable
// through it, and is freed by `Kind::free`, which the scheduler only lets happen on another thread if that is `Send`.
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

/// How many references there may be to a task.
const MOST_REFERENCES: u32 = u32::MAX / 2;

impl TaskRef {
    /// Takes over one counted reference.
    ///
    /// # Safety
    /// The task is alive, and one of its counted references is the caller's to give.
    #[inline]
    pub(crate) unsafe fn from_raw(task: NonNull<Task>) -> TaskRef {
        TaskRef(task)
    }

    /// One more reference to a task that somebody else keeps alive.
    ///
    /// # Safety
    /// The task is alive.
    #[inline]
    pub(crate) unsafe fn share(task: NonNull<Task>) -> TaskRef {
        // SAFETY: the task is alive by the caller's promise.
        let references = unsafe { &task.as_ref().references };
        // So many cannot exist, but they can be forgotten: if the count began anew, the task would be freed under those who have it.
        if references.fetch_add(1, Relaxed) > MOST_REFERENCES {
            std::process::abort();
        }
        TaskRef(task)
    }

    /// The task's address.
    #[inline]
    pub(crate) fn as_ptr(&self) -> NonNull<Task> {
        self.0
    }
}

impl Clone for TaskRef {
    fn clone(&self) -> TaskRef {
        // SAFETY: this reference keeps it alive.
        unsafe { TaskRef::share(self.0) }
    }
}

impl Deref for TaskRef {
    type Target = Task;

    #[inline]
    fn deref(&self) -> &Task {
        // SAFETY: a counted reference keeps the task alive.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for TaskRef {
    #[inline]
    fn drop(&mut self) {
        // Whoever holds the only reference need not count down: nobody else can make a new one. That saves a locked instruction
        // in most fibers' lives. The load, or the fence of the decrement, makes what the other holders did happen before.
        if self.references.load(Acquire) == 1 || self.references.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: this was the last reference.
            unsafe { (self.kind.free)(self.0) }
        }
    }
}

impl fmt::Debug for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fiber")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
