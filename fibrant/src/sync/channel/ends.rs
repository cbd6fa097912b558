//! The two ends of a channel.

use super::arm::{ReceiveArm, SendArm, choose, wait};
use super::core::{Channel, Put, Seat, Take, wake};
use super::error::{RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError};
use crate::clock;
use crate::sync::list::Node;
use std::borrow::Cow;
use std::fmt;
use std::iter::FusedIterator;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The end of a channel that messages are sent to. Clones send to the same channel; when the last is gone, receivers get what is left and
/// then an error.
///
/// ```
/// use fibrant::sync::channel;
///
/// fibrant::run(|| {
///     let (sender, receiver) = channel::bounded(1);
///     for number in 0..3 {
///         let sender = sender.clone();
///         fibrant::spawn(move || sender.send(number).unwrap());
///     }
///     drop(sender);
///     assert_eq!(receiver.iter().sum::<i32>(), 3);
/// });
/// ```
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// The end of a channel that messages are received from. Each message goes to one of its clones; when the last is gone, what is left is
/// dropped, and senders get an error.
///
/// ```
/// use fibrant::sync::channel;
///
/// fibrant::run(|| {
///     let (sender, receiver) = channel::unbounded();
///     let workers: Vec<_> = (0..3)
///         .map(|_| {
///             let receiver = receiver.clone();
///             fibrant::spawn(move || receiver.iter().count())
///         })
///         .collect();
///     (0..100).for_each(|number| sender.send(number).unwrap());
///     drop(sender);
///     let done: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
///     assert_eq!(done, 100);
/// });
/// ```
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
}

// Whatever a panic interrupts leaves the channel whole: nothing of the user's runs while it is changed.
impl<T> UnwindSafe for Sender<T> {}
impl<T> RefUnwindSafe for Sender<T> {}
impl<T> UnwindSafe for Receiver<T> {}
impl<T> RefUnwindSafe for Receiver<T> {}

/// Both ends of a new channel.
pub(super) fn pair<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(capacity));
    let sender = Sender {
        channel: Arc::clone(&channel),
    };
    (sender, Receiver { channel })
}

/// The only end of a channel that has no senders but is not disconnected.
pub(super) fn alone<T>(channel: Channel<T>) -> Receiver<T> {
    Receiver {
        channel: Arc::new(channel),
    }
}

/// A moment as a deadline; one that is over, for those who have to wait nevertheless.
pub(super) fn deadline_of(moment: Instant) -> u64 {
    clock::after(moment.saturating_duration_since(Instant::now()))
}

impl<T> Sender<T> {
    #[inline]
    pub(super) fn channel(&self) -> &Channel<T> {
        &self.channel
    }

    /// Sends a message. Waits for room; on a channel of capacity 0, for somebody to receive it.
    ///
    /// # Errors
    ///
    /// If all receivers are gone; the message is in the error.
    ///
    /// ```
    /// let (sender, receiver) = fibrant::sync::channel::bounded(1);
    /// sender.send("hello").unwrap();
    /// assert_eq!(receiver.recv(), Ok("hello"));
    /// ```
    #[inline]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        match self.channel.put(message) {
            Put::Done(someone) => {
                wake(someone);
                Ok(())
            }
            Put::Full(message) => self.send_waiting(message),
            Put::Disconnected(message) => Err(SendError(message)),
        }
    }

    /// Sends a message, if there is room, or somebody waits for it.
    ///
    /// # Errors
    ///
    /// If not, or if all receivers are gone; the message is in the error.
    ///
    /// ```
    /// let (sender, receiver) = fibrant::sync::channel::bounded(1);
    /// sender.try_send(1).unwrap();
    /// assert!(sender.try_send(2).is_err());
    /// # drop(receiver);
    /// ```
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        match self.channel.put(message) {
            Put::Done(someone) => {
                wake(someone);
                Ok(())
            }
            Put::Full(message) => Err(TrySendError::Full(message)),
            Put::Disconnected(message) => Err(TrySendError::Disconnected(message)),
        }
    }

    /// Like [`send`](Sender::send), for at most that long.
    ///
    /// # Errors
    ///
    /// If the time is up, or all receivers are gone; the message is in the error.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (sender, _receiver) = fibrant::sync::channel::bounded(0);
    /// assert!(sender.send_timeout(1, Duration::from_millis(1)).is_err());
    /// ```
    pub fn send_timeout(&self, message: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        self.send_until(message, clock::after(timeout))
    }

    /// Like [`send`](Sender::send), at most until then.
    ///
    /// # Errors
    ///
    /// If the time is up, or all receivers are gone; the message is in the error.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// let (sender, _receiver) = fibrant::sync::channel::bounded(0);
    /// let deadline = Instant::now() + Duration::from_millis(1);
    /// assert!(sender.send_deadline(1, deadline).is_err());
    /// ```
    pub fn send_deadline(&self, message: T, deadline: Instant) -> Result<(), SendTimeoutError<T>> {
        self.send_until(message, deadline_of(deadline))
    }

    /// Sends a message, when there was no room a moment ago.
    #[inline(never)]
    fn send_waiting(&self, message: T) -> Result<(), SendError<T>> {
        let arm = SendArm::now(&self.channel, message);
        wait(&[&arm], clock::NEVER);
        arm.rest().map_or(Ok(()), |message| Err(SendError(message)))
    }

    fn send_until(&self, message: T, deadline: u64) -> Result<(), SendTimeoutError<T>> {
        let arm = SendArm::now(&self.channel, message);
        let is_chosen = choose(&[&arm], deadline).is_some();
        match arm.rest() {
            None => Ok(()),
            Some(message) if is_chosen => Err(SendTimeoutError::Disconnected(message)),
            Some(message) => Err(SendTimeoutError::Timeout(message)),
        }
    }

    /// Closes the channel for all of its ends: nothing is sent any more, and receivers get what is left, and then an error.
    #[cfg(feature = "c-api")]
    #[doc(hidden)]
    pub fn close(&self) {
        self.channel.close();
    }

    /// Whether both send to the same channel.
    ///
    /// ```
    /// let (sender, _receiver) = fibrant::sync::channel::unbounded::<u32>();
    /// assert!(sender.same_channel(&sender.clone()));
    /// ```
    pub fn same_channel(&self, other: &Sender<T>) -> bool {
        Arc::ptr_eq(&self.channel, &other.channel)
    }
}

impl<T> Receiver<T> {
    #[inline]
    pub(super) fn channel(&self) -> &Channel<T> {
        &self.channel
    }

    /// Receives a message. Waits for one.
    ///
    /// # Errors
    ///
    /// If there is none, and all senders are gone.
    ///
    /// ```
    /// let (sender, receiver) = fibrant::sync::channel::unbounded();
    /// sender.send(1).unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv(), Ok(1));
    /// assert!(receiver.recv().is_err());
    /// ```
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.channel.lock();
        match self.channel.take_from(&mut state) {
            Take::Message(message, someone) => {
                drop(state);
                wake(someone);
                Ok(message)
            }
            Take::Disconnected => Err(RecvError),
            Take::Empty => ReceiveArm::new(self).wait_alone(state),
            Take::Late(sender) => {
                drop(state);
                self.recv_late(sender)
            }
        }
    }

    /// Receives the message of a late sender, or another.
    #[cold]
    fn recv_late(&self, sender: NonNull<Node<Seat<T>>>) -> Result<T, RecvError> {
        match ReceiveArm::new(self).receive_late(sender) {
            Some(message) => Ok(message),
            None => self.recv_until(clock::NEVER).map_err(|_| RecvError),
        }
    }

    /// Receives a message, if there is one.
    ///
    /// # Errors
    ///
    /// If there is none, or if all senders are gone, too.
    ///
    /// ```
    /// let (sender, receiver) = fibrant::sync::channel::unbounded();
    /// assert!(receiver.try_recv().is_err());
    /// sender.send(1).unwrap();
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        match self.recv_until(0) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => Err(TryRecvError::Empty),
            Err(RecvTimeoutError::Disconnected) => Err(TryRecvError::Disconnected),
        }
    }

    /// Like [`recv`](Receiver::recv), for at most that long.
    ///
    /// # Errors
    ///
    /// If the time is up, or all senders are gone.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (_sender, receiver) = fibrant::sync::channel::unbounded::<u32>();
    /// assert!(receiver.recv_timeout(Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_until(clock::after(timeout))
    }

    /// Like [`recv`](Receiver::recv), at most until then.
    ///
    /// # Errors
    ///
    /// If the time is up, or all senders are gone.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// let (_sender, receiver) = fibrant::sync::channel::unbounded::<u32>();
    /// assert!(receiver.recv_deadline(Instant::now() + Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_deadline(&self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.recv_until(deadline_of(deadline))
    }

    fn recv_until(&self, deadline: u64) -> Result<T, RecvTimeoutError> {
        let arm = ReceiveArm::new(self);
        match choose(&[&arm], deadline) {
            Some(_) => Ok(arm.finish()?),
            None => Err(RecvTimeoutError::Timeout),
        }
    }

    /// Receives message after message, and waits for each, until all senders are gone. A `for` loop over `&receiver` does the same.
    ///
    /// ```
    /// let (sender, receiver) = fibrant::sync::channel::unbounded();
    /// (0..3).for_each(|number| sender.send(number).unwrap());
    /// drop(sender);
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 1, 2]);
    /// ```
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }

    /// Receives the messages that are there, without waiting.
    ///
    /// ```
    /// let (sender, receiver) = fibrant::sync::channel::unbounded();
    /// (0..3).for_each(|number| sender.send(number).unwrap());
    /// assert_eq!(receiver.try_iter().count(), 3);
    /// ```
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }

    /// Whether both receive from the same channel.
    ///
    /// ```
    /// let (_sender, receiver) = fibrant::sync::channel::unbounded::<u32>();
    /// assert!(receiver.same_channel(&receiver.clone()));
    /// ```
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Arc::ptr_eq(&self.channel, &other.channel)
    }
}

/// What both ends can tell about their channel.
macro_rules! tell_about_the_channel {
    ($end:ident, $example:literal) => {
        impl<T> $end<T> {
            /// Whether there is no message in the channel.
            ///
            /// ```
            #[doc = $example]
            /// assert!(end.is_empty());
            /// ```
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Whether there is no room. A channel of capacity 0 is always full.
            ///
            /// ```
            #[doc = $example]
            /// assert!(!end.is_full());
            /// ```
            pub fn is_full(&self) -> bool {
                self.len() >= self.channel.capacity
            }

            /// How many messages are in the channel.
            ///
            /// ```
            #[doc = $example]
            /// assert_eq!(end.len(), 0);
            /// ```
            pub fn len(&self) -> usize {
                self.channel.len()
            }

            /// How many messages the channel holds at most; none, if there is no limit.
            ///
            /// ```
            #[doc = $example]
            /// assert_eq!(end.capacity(), Some(5));
            /// ```
            pub fn capacity(&self) -> Option<usize> {
                Some(self.channel.capacity).filter(|&capacity| capacity != usize::MAX)
            }

            /// Gives the channel a name, which [dumps](crate::runtime::Handle::dump) show.
            ///
            /// ```
            #[doc = $example]
            /// end.set_name("jobs");
            /// ```
            pub fn set_name(&self, name: impl Into<Cow<'static, str>>) {
                let name = Some(name.into());
                let old = std::mem::replace(&mut self.channel.lock().name, name);
                drop(old);
            }
        }

        impl<T> fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end))
                    .field("len", &self.len())
                    .field("capacity", &self.capacity())
                    .finish_non_exhaustive()
            }
        }
    };
}

tell_about_the_channel!(
    Sender,
    "let (end, _receiver) = fibrant::sync::channel::bounded::<u32>(5);"
);
tell_about_the_channel!(
    Receiver,
    "let (_sender, end) = fibrant::sync::channel::bounded::<u32>(5);"
);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        let mut state = self.channel.lock();
        state.senders += usize::from(!state.is_closed);
        drop(state);
        Sender {
            channel: Arc::clone(&self.channel),
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        let mut state = self.channel.lock();
        state.receivers += usize::from(!state.is_closed);
        drop(state);
        Receiver {
            channel: Arc::clone(&self.channel),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.channel.lock();
            state.senders -= usize::from(!state.is_closed);
            state.senders == 0 && !state.is_closed
        };
        if is_last {
            self.channel.end_receiving();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.channel.lock();
            state.receivers -= usize::from(!state.is_closed);
            state.receivers == 0 && !state.is_closed
        };
        if is_last {
            self.channel.end_sending();
        }
    }
}

/// Receives message after message: [`Receiver::iter`].
///
/// ```
/// let (sender, receiver) = fibrant::sync::channel::bounded(1);
/// sender.send(1).unwrap();
/// assert_eq!(receiver.iter().next(), Some(1));
/// ```
pub struct Iter<'a, T> {
    receiver: &'a Receiver<T>,
}

/// Receives the messages that are there: [`Receiver::try_iter`].
///
/// ```
/// let (_sender, receiver) = fibrant::sync::channel::bounded::<u32>(1);
/// assert_eq!(receiver.try_iter().next(), None);
/// ```
pub struct TryIter<'a, T> {
    receiver: &'a Receiver<T>,
}

/// Receives message after message, and owns the receiver.
///
/// ```
/// let (sender, receiver) = fibrant::sync::channel::bounded(1);
/// sender.send(1).unwrap();
/// drop(sender);
/// for number in receiver {
///     assert_eq!(number, 1);
/// }
/// ```
pub struct IntoIter<T> {
    receiver: Receiver<T>,
}

// Not derived: that would ask for messages that can be shown.
impl<T> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Iter").field(self.receiver).finish()
    }
}

impl<T> fmt::Debug for TryIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TryIter").field(self.receiver).finish()
    }
}

impl<T> fmt::Debug for IntoIter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IntoIter").field(&self.receiver).finish()
    }
}

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

impl<T> FusedIterator for Iter<'_, T> {}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

impl<T> FusedIterator for IntoIter<T> {}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter { receiver: self }
    }
}
