//! Channels: messages between fibers and threads, many to many.
//!
//! Names and meanings are those of the crate crossbeam-channel, and the idea is that of Go's channels: a channel holds up to so many
//! messages ([`bounded`]), any number ([`unbounded`]), or none, so that sender and receiver meet (`bounded(0)`). Both ends can be cloned.
//! When all senders are gone, receivers get what is left and then an error; when all receivers are gone, senders get their message back.
//! [`select!`](crate::select) waits for several at once. [`after`] and [`tick`] are channels whose messages the clock makes.
//!
//! Those who wait are served in the order in which they came. Waiting is a fibrant wait: a fiber that is cancelled, or whose
//! [`timeout`](crate::timeout) is up, unwinds from it and leaves no trace.
//!
//! ```
//! use fibrant::sync::channel;
//!
//! fibrant::run(|| {
//!     let (numbers, input) = channel::bounded(10);
//!     let (output, squares) = channel::unbounded();
//!     for _ in 0..4 {
//!         let (input, output) = (input.clone(), output.clone());
//!         fibrant::spawn(move || input.iter().for_each(|number: u64| output.send(number * number).unwrap()));
//!     }
//!     drop(output);
//!     fibrant::spawn(move || (1..=100).for_each(|number| numbers.send(number).unwrap()));
//!     assert_eq!(squares.iter().sum::<u64>(), 338_350);
//! });
//! ```

pub(crate) mod arm;
mod core;
mod ends;
mod error;
mod select;

pub use ends::{IntoIter, Iter, Receiver, Sender, TryIter};
pub use error::{RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError};

use self::core::Channel;
use crate::clock;
use std::time::{Duration, Instant};

/// What [`select!`](crate::select) expands to.
#[doc(hidden)]
pub mod arms {
    #[cfg(feature = "c-api")]
    pub use super::arm::select_among;
    pub use super::arm::{AnyArm, ReceiveArm, SendArm, select, select_timeout, try_select};
}

/// A channel that holds up to so many messages. `bounded(0)` holds none: [`send`](Sender::send) waits until the message is received.
///
/// ```
/// use fibrant::sync::channel;
///
/// fibrant::run(|| {
///     let (sender, receiver) = channel::bounded(0);
///     let other = fibrant::spawn(move || sender.send("hello").unwrap());
///     assert_eq!(receiver.recv(), Ok("hello"));
///     other.join().unwrap();
/// });
/// ```
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    ends::pair(capacity)
}

/// A channel that holds any number of messages: [`send`](Sender::send) never waits.
///
/// ```
/// let (sender, receiver) = fibrant::sync::channel::unbounded();
/// (0..1000).for_each(|number| sender.send(number).unwrap());
/// assert_eq!(receiver.len(), 1000);
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    ends::pair(usize::MAX)
}

/// A channel with one message, the moment at which it comes: that much later. Clones of the receiver share it; it costs nothing as long
/// as nobody waits for it.
///
/// ```
/// use fibrant::sync::channel::{self, after};
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let (_sender, receiver) = channel::unbounded::<u32>();
///     fibrant::select! {
///         recv(receiver) -> message => panic!("nobody sends {message:?}"),
///         recv(after(Duration::from_millis(5))) -> _ => println!("nothing came"),
///     }
/// });
/// ```
pub fn after(duration: Duration) -> Receiver<Instant> {
    every(duration, None)
}

/// A channel with one message, which comes at that moment and is that moment.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// let moment = Instant::now() + Duration::from_millis(5);
/// assert_eq!(fibrant::sync::channel::at(moment).recv(), Ok(moment));
/// assert!(Instant::now() >= moment);
/// ```
pub fn at(moment: Instant) -> Receiver<Instant> {
    let due = ends::deadline_of(moment);
    ends::alone(Channel::clockwork(moment, due, None, |instant| instant))
}

/// A channel with a message every `period`: the moment at which it was there. Messages do not pile up: the next comes a period after the
/// last was received, or was there, whichever is later.
///
/// ```
/// use fibrant::sync::channel::tick;
/// use std::time::{Duration, Instant};
///
/// fibrant::run(|| {
///     let start = Instant::now();
///     let ticks = tick(Duration::from_millis(5));
///     ticks.iter().take(3).for_each(|_| println!("tick"));
///     assert!(start.elapsed() >= Duration::from_millis(15));
/// });
/// ```
pub fn tick(period: Duration) -> Receiver<Instant> {
    every(period, Some(period))
}

/// A channel with a message after that time, and then one every period, if there is one.
fn every(first: Duration, period: Option<Duration>) -> Receiver<Instant> {
    let Some(moment) = Instant::now().checked_add(first) else {
        return never();
    };
    // The clock is read after it was read in std's terms, so that no message comes before its moment.
    let due = clock::after(first);
    ends::alone(Channel::clockwork(moment, due, period, |instant| instant))
}

/// A channel without messages, that is never disconnected: for an arm of a [`select!`](crate::select) that is not wanted now.
///
/// ```
/// use fibrant::sync::channel::never;
///
/// assert!(never::<u32>().try_recv().unwrap_err().is_empty());
/// ```
pub fn never<T>() -> Receiver<T> {
    ends::alone(Channel::new(0))
}
