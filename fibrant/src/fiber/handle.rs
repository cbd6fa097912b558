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
    /// A fiber that is driven by hand, and the scheduled one, if any, that drove it when this handle was made.
    Hand {
        id: u64,
        name: Option<Arc<str>>,
        driver: Option<TaskRef>,
    },
    /// A scheduled fiber.
    Scheduled(TaskRef),
}

impl Handle {
    /// A hand-driven fiber without a name.
    #[inline]
    pub(super) fn of_hand(id: u64) -> Handle {
        Handle(Who::Hand {
            id,
            name: None,
            driver: None,
        })
    }

    /// A scheduled fiber.
    #[inline]
    pub(crate) fn of_task(task: TaskRef) -> Handle {
        Handle(Who::Scheduled(task))
    }

    /// Names a hand-driven fiber.
    pub(super) fn set_name(&mut self, new: String) {
        if let Who::Hand { name, .. } = &mut self.0 {
            *name = Some(Arc::from(new));
        }
    }

    /// The same fiber; if it is driven by hand, `task` drives it.
    pub(super) fn driven_by(&self, task: Option<TaskRef>) -> Handle {
        match &self.0 {
            Who::Hand { id, name, .. } => Handle(Who::Hand {
                id: *id,
                name: name.clone(),
                driver: task,
            }),
            Who::Scheduled(task) => Handle(Who::Scheduled(task.clone())),
        }
    }

    /// Whether this is a scheduled fiber.
    #[inline]
    pub(super) fn is_scheduled(&self) -> bool {
        matches!(self.0, Who::Scheduled(_))
    }

    /// The scheduled fiber that this is, or that drives it.
    pub(crate) fn task(&self) -> Option<&TaskRef> {
        match &self.0 {
            Who::Hand { driver, .. } => driver.as_ref(),
            Who::Scheduled(task) => Some(task),
        }
    }

    /// The fiber's number: no other fiber of this process has or had it.
    ///
    /// ```
    /// # use fibrant::fiber::{self, Fiber};
    /// Fiber::new(|| println!("fiber {}", fiber::current().unwrap().id())).resume().unwrap();
    /// ```
    pub fn id(&self) -> u64 {
        match &self.0 {
            Who::Hand { id, .. } => *id,
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
            Who::Hand { name, .. } => name.as_deref(),
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
