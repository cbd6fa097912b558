//! Who a fiber is, for others: its id, its name, and how to wake it.

use super::task::TaskRef;
use std::sync::Arc;

/// Who a fiber is: its id and name, and the way to [`unpark`](Handle::unpark) it. Cheap to clone, and may be kept and sent
/// anywhere, also after the fiber has ended.
///
/// ```
/// use fibrant::fiber::{self, Fiber};
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// let fiber = Fiber::new(move || sender.send(fiber::current().unwrap()).unwrap());
/// fiber.resume().unwrap();
/// let handle = receiver.recv().unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| println!("it was {handle:?}"));
/// });
/// assert_eq!(handle.id(), fiber.id());
/// ```
#[derive(Clone, Debug)]
pub struct Handle(Who);

#[derive(Clone, Debug)]
enum Who {
    /// A fiber that is driven by hand.
    Hand(Arc<Hand>),
    /// A scheduled fiber.
    Scheduled(TaskRef),
}

#[derive(Debug)]
struct Hand {
    id: u64,
    name: Option<Arc<str>>,
    /// The scheduled fiber, if any, that drove it when the handle was made.
    driver: Option<TaskRef>,
}

/// Who a fiber is, in its control block.
#[derive(Clone, Debug)]
pub(super) enum Identity {
    /// A fiber that is driven by hand.
    Hand { id: u64, name: Option<Arc<str>> },
    /// A scheduled fiber. The reference is the scheduler's.
    Scheduled(TaskRef),
}

impl Identity {
    /// The fiber's number.
    pub(super) fn id(&self) -> u64 {
        match self {
            Identity::Hand { id, .. } => *id,
            Identity::Scheduled(task) => task.id(),
        }
    }

    /// The fiber's name.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Identity::Hand { name, .. } => name.as_deref(),
            Identity::Scheduled(task) => task.name(),
        }
    }

    /// A handle to it; if it is driven by hand, `driver` drives it.
    pub(super) fn handle(&self, driver: Option<TaskRef>) -> Handle {
        Handle(match self {
            Identity::Hand { id, name } => Who::Hand(Arc::new(Hand {
                id: *id,
                name: name.clone(),
                driver,
            })),
            Identity::Scheduled(task) => Who::Scheduled(task.clone()),
        })
    }
}

impl Handle {
    /// A scheduled fiber.
    #[inline]
    pub(crate) fn of_task(task: TaskRef) -> Handle {
        Handle(Who::Scheduled(task))
    }

    /// The scheduled fiber that this is, or that drives it.
    #[inline]
    pub(crate) fn task(&self) -> Option<&TaskRef> {
        match &self.0 {
            Who::Hand(hand) => hand.driver.as_ref(),
            Who::Scheduled(task) => Some(task),
        }
    }

    /// Whether the scheduled fiber that this is, or that drives it, was asked to end.
    #[cfg(feature = "c-api")]
    #[doc(hidden)]
    pub fn is_cancelled(&self) -> bool {
        self.task().is_some_and(|task| task.wait.is_cancelled())
    }

    /// The fiber's number: no other fiber of this process has or had it.
    ///
    /// ```
    /// # use fibrant::fiber::{self, Fiber};
    /// Fiber::new(|| println!("fiber {}", fiber::current().unwrap().id())).resume().unwrap();
    /// ```
    pub fn id(&self) -> u64 {
        match &self.0 {
            Who::Hand(hand) => hand.id,
            Who::Scheduled(task) => task.id(),
        }
    }

    /// The fiber's name, if it was given one.
    ///
    /// ```
    /// # use fibrant::fiber::{self, Fiber};
    /// Fiber::new(|| assert_eq!(fiber::current().unwrap().name(), None)).resume().unwrap();
    /// ```
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Who::Hand(hand) => hand.name.as_deref(),
            Who::Scheduled(task) => task.name(),
        }
    }

    /// Wakes the fiber from [`park`](super::park), or lets its next park return at once. Like
    /// [`Thread::unpark`](std::thread::Thread::unpark): what the caller did before, the fiber sees after its park; several
    /// unparks before a park count as one.
    ///
    /// A [`Fiber`](super::Fiber) that is driven by hand has no park of its own: this wakes the scheduled fiber that drove it
    /// when the handle was made, and does nothing if none did.
    ///
    /// ```
    /// use fibrant::fiber;
    ///
    /// fibrant::run(|| {
    ///     let sleeper = fibrant::spawn(fiber::park);
    ///     sleeper.fiber().unpark();
    ///     sleeper.join().unwrap();
    /// });
    /// ```
    #[inline]
    pub fn unpark(&self) {
        if let Some(task) = self.task() {
            task.unpark();
        }
    }
}
