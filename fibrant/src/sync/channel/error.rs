//! The errors of channels. Those that could not send a message give it back.

use std::error::Error;
use std::fmt;

/// The message could not be sent: all receivers are gone.
///
/// ```
/// use fibrant::sync::channel;
///
/// let (sender, receiver) = channel::unbounded();
/// drop(receiver);
/// assert_eq!(sender.send("hello").unwrap_err().into_inner(), "hello");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

/// The message could not be sent at once.
///
/// ```
/// use fibrant::sync::channel::{self, TrySendError};
///
/// let (sender, _receiver) = channel::bounded(1);
/// sender.try_send(1).unwrap();
/// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// There is no room, or nobody waits for it.
    Full(T),
    /// All receivers are gone.
    Disconnected(T),
}

/// The message could not be sent in time.
///
/// ```
/// use fibrant::sync::channel;
/// use std::time::Duration;
///
/// let (sender, _receiver) = channel::bounded(0);
/// assert!(sender.send_timeout(1, Duration::from_millis(1)).unwrap_err().is_timeout());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    /// There was no room.
    Timeout(T),
    /// All receivers are gone.
    Disconnected(T),
}

/// There is nothing to receive, and never will be: all senders are gone.
///
/// ```
/// use fibrant::sync::channel::{self, RecvError};
///
/// let (sender, receiver) = channel::unbounded::<u32>();
/// drop(sender);
/// assert_eq!(receiver.recv(), Err(RecvError));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError;

/// There is nothing to receive at once.
///
/// ```
/// use fibrant::sync::channel::{self, TryRecvError};
///
/// let (_sender, receiver) = channel::unbounded::<u32>();
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is nothing now.
    Empty,
    /// There is nothing, and never will be: all senders are gone.
    Disconnected,
}

/// There was nothing to receive in time.
///
/// ```
/// use fibrant::sync::channel::{self, RecvTimeoutError};
/// use std::time::Duration;
///
/// let (_sender, receiver) = channel::unbounded::<u32>();
/// assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvTimeoutError {
    /// There was nothing.
    Timeout,
    /// There is nothing, and never will be: all senders are gone.
    Disconnected,
}

const NO_RECEIVERS: &str = "the channel is disconnected: all its receivers are gone";
const NO_SENDERS: &str = "the channel is empty and disconnected: all its senders are gone";

impl<T> SendError<T> {
    /// The message.
    ///
    /// ```
    /// assert_eq!(fibrant::sync::channel::SendError(1).into_inner(), 1);
    /// ```
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> TrySendError<T> {
    /// The message.
    ///
    /// ```
    /// assert_eq!(fibrant::sync::channel::TrySendError::Full(1).into_inner(), 1);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(message) | TrySendError::Disconnected(message) => message,
        }
    }

    /// Whether there was no room.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::TrySendError::Full(1).is_full());
    /// ```
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }

    /// Whether all receivers are gone.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::TrySendError::Disconnected(1).is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, TrySendError::Disconnected(_))
    }
}

impl<T> SendTimeoutError<T> {
    /// The message.
    ///
    /// ```
    /// assert_eq!(fibrant::sync::channel::SendTimeoutError::Timeout(1).into_inner(), 1);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::Timeout(message) | SendTimeoutError::Disconnected(message) => message,
        }
    }

    /// Whether the time was up.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::SendTimeoutError::Timeout(1).is_timeout());
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self, SendTimeoutError::Timeout(_))
    }

    /// Whether all receivers are gone.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::SendTimeoutError::Disconnected(1).is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, SendTimeoutError::Disconnected(_))
    }
}

impl TryRecvError {
    /// Whether there is nothing now.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::TryRecvError::Empty.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        matches!(self, TryRecvError::Empty)
    }

    /// Whether all senders are gone.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::TryRecvError::Disconnected.is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, TryRecvError::Disconnected)
    }
}

impl RecvTimeoutError {
    /// Whether the time was up.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::RecvTimeoutError::Timeout.is_timeout());
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self, RecvTimeoutError::Timeout)
    }

    /// Whether all senders are gone.
    ///
    /// ```
    /// assert!(fibrant::sync::channel::RecvTimeoutError::Disconnected.is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, RecvTimeoutError::Disconnected)
    }
}

// Errors can be shown whatever the message is: it is not.
impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendError(..)")
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "Full(..)",
            TrySendError::Disconnected(_) => "Disconnected(..)",
        })
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => "Timeout(..)",
            SendTimeoutError::Disconnected(_) => "Disconnected(..)",
        })
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NO_RECEIVERS)
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "the channel is full",
            TrySendError::Disconnected(_) => NO_RECEIVERS,
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => "sending has timed out: the channel is full",
            SendTimeoutError::Disconnected(_) => NO_RECEIVERS,
        })
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NO_SENDERS)
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryRecvError::Empty => "the channel is empty",
            TryRecvError::Disconnected => NO_SENDERS,
        })
    }
}

impl fmt::Display for RecvTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecvTimeoutError::Timeout => "receiving has timed out: the channel is empty",
            RecvTimeoutError::Disconnected => NO_SENDERS,
        })
    }
}

impl<T> Error for SendError<T> {}
impl<T> Error for TrySendError<T> {}
impl<T> Error for SendTimeoutError<T> {}
impl Error for RecvError {}
impl Error for TryRecvError {}
impl Error for RecvTimeoutError {}

impl<T> From<SendError<T>> for TrySendError<T> {
    fn from(SendError(message): SendError<T>) -> TrySendError<T> {
        TrySendError::Disconnected(message)
    }
}

impl<T> From<SendError<T>> for SendTimeoutError<T> {
    fn from(SendError(message): SendError<T>) -> SendTimeoutError<T> {
        SendTimeoutError::Disconnected(message)
    }
}

impl From<RecvError> for TryRecvError {
    fn from(RecvError: RecvError) -> TryRecvError {
        TryRecvError::Disconnected
    }
}

impl From<RecvError> for RecvTimeoutError {
    fn from(RecvError: RecvError) -> RecvTimeoutError {
        RecvTimeoutError::Disconnected
    }
}
