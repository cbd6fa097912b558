//! The arms of a wait for channels: each is one thing to send or to receive. A plain `send` or `recv` is a wait with one arm.
//!
//! The [ends](super::ends) and [`select!`](crate::select) make arms and call [`choose`], which does this, over and over:
//!
//! 1. Every arm tries, in random order, to do what it wants. The first that can has been chosen.
//! 2. Nobody can: the wait begins, and every arm enlists with its channel, unless it finds there that it could do something now. In
//!    random order, too: what comes meanwhile claims the wait by the arms that are enlisted, so whoever came first always would have
//!    been chosen more often.
//! 3. Whoever serves one of the arms claims the wait, which succeeds once: that arm has been chosen. The others withdraw.
//!
//! So each round is decided by one claim.

use super::core::{Channel, Given, Put, Seat, State, Take, wake};
use super::error::{RecvError, SendError};
use super::{Receiver, Sender};
use crate::clock;
use crate::fiber::{Subject, WaitReason};
use crate::primitives::draw;
use crate::scheduler::{Guard, InTable};
use crate::sync::holder::Holder;
use crate::sync::list::Node;
use crate::sync::someone::{End, Someone, Wish};
use crate::sync::subject::SHOWN;
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::{iter, slice};

/// The wait of one who waits for channels.
pub(crate) struct Turn {
    pub(crate) someone: Someone,
    pub(crate) holder: Holder,
    /// The arm by which it was claimed. Written by whoever has claimed it.
    pub(crate) chosen: Cell<usize>,
}

impl Turn {
    fn new() -> Turn {
        Turn::with(0)
    }

    /// The turn of somebody who has so many of our own locks.
    #[inline]
    fn with(own_locks: u32) -> Turn {
        let someone = Someone::present_with(own_locks);
        Turn {
            holder: someone.holder(),
            someone,
            chosen: Cell::new(0),
        }
    }
}

/// One of the things that somebody waits for.
pub(crate) trait Arm {
    /// Does what it wants, if it can now.
    fn attempt(&self) -> bool;

    /// Enlists with the channel, unless it could do something now.
    ///
    /// # Safety
    /// Neither the arm nor the turn goes away before it withdraws.
    unsafe fn enlist(&self, turn: &Turn, index: usize) -> bool;

    /// Leaves the channel's list.
    fn withdraw(&self);

    /// It was claimed by this arm: whether it has done what it wants.
    fn settle(&self) -> bool;

    /// Whoever was claimed by this arm never goes on: gives back what others count on.
    fn forsake(&self);

    /// When it can do what it wants by itself: nanoseconds of the monotonic clock.
    fn due(&self) -> u64;

    /// What it waits for: which channel, and what for.
    fn reason(&self) -> WaitReason;

    /// What dumps show of the channel besides.
    fn describe(&self) -> String;
}

/// Waits until one of the arms has done what it wants, and says which; at most until then: nanoseconds of the monotonic clock. 0 is
/// always over.
pub(crate) fn choose(arms: &[&dyn Arm], deadline: u64) -> Option<usize> {
    if let Some(index) = attempt_any(arms) {
        return Some(index);
    }
    if deadline == 0 {
        return None;
    }
    wait(arms, deadline)
}

/// Does the same, when nothing could be done a moment ago.
#[inline(never)]
pub(super) fn wait(arms: &[&dyn Arm], deadline: u64) -> Option<usize> {
    loop {
        let turn = Turn::new();
        let choice = Choice { arms, turn: &turn };
        let due = arms.iter().map(|arm| arm.due()).min().unwrap_or(clock::NEVER);
        let reason = match arms {
            [arm] => arm.reason(),
            _ => WaitReason::Select { arms: arms.len() },
        };
        let wish = choice.wish(reason, deadline.min(due));
        let end = turn.someone.wait(&wish, || {
            in_random_order(arms.len(), |mut order| {
                // SAFETY: all withdraw below, before this frame ends, or when the fiber is given up, whose frames stay.
                order.all(|index| unsafe { arms[index].enlist(&turn, index) })
            })
        });
        // Whoever has claimed it has taken the chosen one out of its list.
        let chosen = (end == End::Woken).then(|| turn.chosen.get());
        for (index, arm) in arms.iter().enumerate() {
            if chosen != Some(index) {
                arm.withdraw();
            }
        }
        match end {
            End::Woken if arms[turn.chosen.get()].settle() => return chosen,
            End::Interrupted(interruption) => interruption.unwind(),
            _ => {}
        }
        if let Some(index) = attempt_any(arms) {
            return Some(index);
        }
        if end == End::TimedOut && deadline != clock::NEVER && clock::now() >= deadline {
            return None;
        }
    }
}

/// Lets the arms try, in random order.
#[inline]
fn attempt_any(arms: &[&dyn Arm]) -> Option<usize> {
    in_random_order(arms.len(), |mut order| order.find(|&index| arms[index].attempt()))
}

/// Hands over the numbers below `count`, in an order that is as likely as any other.
#[inline]
fn in_random_order<T>(count: usize, with: impl FnOnce(iter::Copied<slice::Iter<'_, usize>>) -> T) -> T {
    if count == 1 {
        return with([0].iter().copied());
    }
    let mut few = [0; 16];
    let mut many = Vec::new();
    let order = match few.get_mut(..count) {
        Some(few) => few,
        None => {
            many.resize(count, 0);
            &mut many[..]
        }
    };
    let mut random = mix(draw());
    for index in 0..count {
        // Each is put somewhere among those before it, and that one takes its place.
        let place = (random % (index as u64 + 1)) as usize;
        random = mix(random);
        order[index] = order[place];
        order[place] = index;
    }
    with(order.iter().copied())
}

/// Spreads what two numbers differ in over all bits.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

/// A wait that has begun.
struct Choice<'a> {
    arms: &'a [&'a dyn Arm],
    turn: &'a Turn,
}

impl Choice<'_> {
    /// How it waits.
    #[inline(always)]
    fn wish(&self, reason: WaitReason, deadline: u64) -> Wish<'_> {
        // A wait for nothing but its end has nothing to tell.
        let subject: Option<&dyn Subject> = if self.arms.is_empty() { None } else { Some(self) };
        Wish {
            reason,
            subject,
            interruptible: true,
            deadline,
            in_table: Some(InTable {
                give_up: Choice::give_up,
                wait: NonNull::from(self).cast(),
            }),
        }
    }

    /// The fiber that waits here never goes on.
    ///
    /// # Safety
    /// See [`InTable`].
    unsafe fn give_up(choice: NonNull<()>) {
        // SAFETY: it is what `wait` has noted, in the frame of a fiber that never goes on, so that it stays.
        let choice = unsafe { choice.cast::<Choice<'_>>().as_ref() };
        let was_claimed = choice.turn.someone.give_up();
        for arm in choice.arms {
            arm.withdraw();
        }
        // All have withdrawn, so whoever has claimed one of them has written which one; if there is none, it may write yet.
        if was_claimed && !choice.arms.is_empty() {
            choice.arms[choice.turn.chosen.get()].forsake();
        }
    }
}

impl Subject for Choice<'_> {
    /// The reason of a wait for one channel says which one it is, and what for. There is no room in it for several: here each says the
    /// same as if it were waited for alone.
    fn describe(&self) -> String {
        if let [arm] = self.arms {
            return arm.describe();
        }
        let shown = self.arms.iter().take(SHOWN);
        let mut texts: Vec<_> = shown
            .map(|arm| format!("{} ({})", arm.reason(), arm.describe()))
            .collect();
        if self.arms.len() > SHOWN {
            texts.push(format!("and {} more", self.arms.len() - SHOWN));
        }
        texts.join("; ")
    }
}

/// An arm that receives something.
pub struct ReceiveArm<'a, T> {
    channel: &'a Channel<T>,
    seat: Node<Seat<T>>,
}

impl<'a, T> ReceiveArm<'a, T> {
    /// An arm that receives from there.
    pub fn new(receiver: &'a Receiver<T>) -> ReceiveArm<'a, T> {
        ReceiveArm {
            channel: receiver.channel(),
            seat: Seat::new(None),
        }
    }

    /// It as one of several, but not as two of them.
    pub fn arm(&mut self) -> AnyArm<'_> {
        AnyArm(self)
    }

    /// Lets the channel go.
    pub fn close(self) {}

    /// What the arm, which was chosen, has received.
    pub fn finish(&self) -> Result<T, RecvError> {
        self.seat.given.set(Given::Nothing);
        // SAFETY: the wait is over, so nobody else can find it.
        unsafe { self.seat.take_message() }.ok_or(RecvError)
    }

    /// Waits for a message, as [`wait`] does, but for this one only, and with the lock by which it was seen that there is none: it is let
    /// go when this one is enlisted.
    #[inline(never)]
    pub(super) fn wait_alone(self, mut state: Guard<'_, State<T>>) -> Result<T, RecvError> {
        if self.channel.has_clockwork {
            drop(state);
            wait(&[&self], clock::NEVER);
            return self.finish();
        }
        let turn = Turn::with(1);
        let arms: [&dyn Arm; 1] = [&self];
        let choice = Choice {
            arms: &arms,
            turn: &turn,
        };
        let wish = choice.wish(self.reason(), clock::NEVER);
        self.seat.turn.set(&turn);
        let end = turn.someone.wait(&wish, || {
            // SAFETY: it withdraws below, before this frame ends, or when the fiber is given up, whose frames stay; or was claimed.
            unsafe { state.push_receiver(&self.seat) };
            drop(state);
            true
        });
        match end {
            End::Woken if self.settle() => {}
            End::Woken => {
                wait(&[&self], clock::NEVER);
            }
            End::Interrupted(interruption) => {
                self.withdraw();
                interruption.unwind();
            }
            End::TimedOut | End::Needless => unreachable!("it has no deadline, and has to wait"),
        }
        self.finish()
    }

    /// The message of a late sender, which was claimed. There may be none after all.
    pub(super) fn receive_late(self, sender: NonNull<Node<Seat<T>>>) -> Option<T> {
        self.meet(sender);
        // SAFETY: the wait is over, so nobody else can find it.
        unsafe { self.seat.take_message() }
    }

    /// Waits for the message of a late sender, which was claimed. There may be none after all.
    #[cold]
    fn meet(&self, sender: NonNull<Node<Seat<T>>>) -> bool {
        let turn = Turn::new();
        self.seat.turn.set(&turn);
        let choice = Choice {
            arms: &[],
            turn: &turn,
        };
        let wish = Wish {
            reason: self.reason(),
            subject: None,
            // The sender counts on it.
            interruptible: false,
            deadline: clock::NEVER,
            in_table: Some(InTable {
                give_up: Choice::give_up,
                wait: NonNull::from(&choice).cast(),
            }),
        };
        turn.someone.wait(&wish, || {
            // SAFETY: it was claimed, and is woken once. This frame stays until this one is claimed, or has no reason to wait.
            unsafe { self.channel.introduce(&self.seat, sender) }
        });
        matches!(self.seat.given.get(), Given::Message)
    }
}

impl<T> Arm for ReceiveArm<'_, T> {
    fn attempt(&self) -> bool {
        loop {
            match self.channel.take() {
                Take::Message(message, someone) => {
                    wake(someone);
                    // SAFETY: it is this arm's, and nobody can find it now.
                    unsafe { *self.seat.message.get() = Some(message) };
                    self.seat.given.set(Given::Message);
                    return true;
                }
                Take::Late(sender) => {
                    if self.meet(sender) {
                        return true;
                    }
                    // Somebody else may have waited to send all the time.
                }
                Take::Disconnected => {
                    self.seat.given.set(Given::Disconnected);
                    return true;
                }
                Take::Empty => return false,
            }
        }
    }

    unsafe fn enlist(&self, turn: &Turn, index: usize) -> bool {
        self.seat.turn.set(turn);
        self.seat.index.set(index);
        self.seat.given.set(Given::Nothing);
        // SAFETY: the caller's promise.
        unsafe { self.channel.enlist_receiver(&self.seat) }
    }

    fn withdraw(&self) {
        // SAFETY: it enlists nowhere else.
        unsafe { self.channel.withdraw_receiver(&self.seat) };
    }

    fn settle(&self) -> bool {
        // Nothing, if it was a late sender's partner, and there was no message after all.
        matches!(self.seat.given.get(), Given::Message | Given::Disconnected)
    }

    fn forsake(&self) {
        // The message is lost with the fiber that has received it.
    }

    fn due(&self) -> u64 {
        self.channel.due()
    }

    fn reason(&self) -> WaitReason {
        WaitReason::Receiving {
            address: ptr::from_ref(self.channel).addr(),
        }
    }

    fn describe(&self) -> String {
        self.channel.describe()
    }
}

/// An arm that sends something: a message that it has, or one that will be there when it was chosen.
pub struct SendArm<'a, T> {
    channel: &'a Channel<T>,
    seat: Node<Seat<T>>,
    is_late: bool,
}

impl<'a, T> SendArm<'a, T> {
    /// An arm that sends something there.
    pub fn late(sender: &'a Sender<T>) -> SendArm<'a, T> {
        SendArm {
            channel: sender.channel(),
            seat: Seat::new(None),
            is_late: true,
        }
    }

    /// An arm that sends this there.
    pub(super) fn now(channel: &'a Channel<T>, message: T) -> SendArm<'a, T> {
        SendArm {
            channel,
            seat: Seat::new(Some(message)),
            is_late: false,
        }
    }

    /// It as one of several, but not as two of them.
    pub fn arm(&mut self) -> AnyArm<'_> {
        AnyArm(self)
    }

    /// Lets the channel go.
    pub fn close(self) {}

    /// The message that was not sent, if it was not.
    pub(super) fn rest(self) -> Option<T> {
        // SAFETY: the wait is over, so nobody else can find it.
        unsafe { self.seat.take_message() }
    }

    /// Sends the message of the arm, which was chosen.
    pub fn finish(&self, message: T) -> Result<(), SendError<T>> {
        match self.seat.given.replace(Given::Nothing) {
            Given::Place => self.channel.fill_promised(message).map_err(SendError),
            Given::Partner(receiver) => {
                // SAFETY: it was claimed, and is woken once.
                wake(Some(unsafe { receiver.as_ref().give_message(message) }));
                Ok(())
            }
            _ => Err(SendError(message)),
        }
    }

    /// Gives back what was promised, and is not used.
    fn give_back(&self, given: Given<T>) {
        match given {
            Given::Place => self.channel.forgo_promised(),
            Given::Candidate(receiver) => {
                // SAFETY: it waits until it is claimed, which nobody else does, and it is woken once.
                unsafe {
                    if receiver.as_ref().claim() {
                        wake(Some(receiver.as_ref().give(Given::Nothing)));
                    }
                }
            }
            Given::Partner(receiver) => {
                // SAFETY: it was claimed, and is woken once.
                wake(Some(unsafe { receiver.as_ref().give(Given::Nothing) }));
            }
            _ => {}
        }
    }
}

impl<T> Drop for SendArm<'_, T> {
    fn drop(&mut self) {
        self.give_back(self.seat.given.replace(Given::Nothing));
    }
}

impl<T> Arm for SendArm<'_, T> {
    fn attempt(&self) -> bool {
        if self.is_late {
            let given = self.channel.reserve();
            self.seat.given.set(given);
            return !matches!(given, Given::Nothing);
        }
        // SAFETY: it is this arm's, and nobody can find it now.
        let Some(message) = (unsafe { self.seat.take_message() }) else {
            return false;
        };
        let (given, rest) = match self.channel.put(message) {
            Put::Done(someone) => {
                wake(someone);
                (Given::Taken, None)
            }
            Put::Full(message) => (Given::Nothing, Some(message)),
            Put::Disconnected(message) => (Given::Disconnected, Some(message)),
        };
        self.seat.given.set(given);
        // SAFETY: as above. There was none, so nothing is dropped.
        unsafe { *self.seat.message.get() = rest };
        !matches!(given, Given::Nothing)
    }

    unsafe fn enlist(&self, turn: &Turn, index: usize) -> bool {
        self.seat.turn.set(turn);
        self.seat.index.set(index);
        self.seat.given.set(Given::Nothing);
        // SAFETY: the caller's promise.
        unsafe { self.channel.enlist_sender(&self.seat) }
    }

    fn withdraw(&self) {
        // SAFETY: it enlists nowhere else.
        unsafe { self.channel.withdraw_sender(&self.seat) };
    }

    fn settle(&self) -> bool {
        if let Given::Candidate(receiver) = self.seat.given.get() {
            // SAFETY: it waits until it is claimed, or was given up, and then its frames stay.
            let is_there = unsafe { receiver.as_ref().claim() };
            self.seat.given.set(if is_there {
                Given::Partner(receiver)
            } else {
                Given::Nothing
            });
        }
        !matches!(self.seat.given.get(), Given::Nothing)
    }

    fn forsake(&self) {
        // Whoever has claimed it gives it something in good time, or sees that it is too late: both under the channel's lock.
        self.give_back(self.channel.forsake_sender(&self.seat));
    }

    fn due(&self) -> u64 {
        clock::NEVER
    }

    fn reason(&self) -> WaitReason {
        WaitReason::Sending {
            address: ptr::from_ref(self.channel).addr(),
        }
    }

    fn describe(&self) -> String {
        self.channel.describe()
    }
}

/// One arm of several. Not `Copy`: it is one of them once.
pub struct AnyArm<'a>(&'a dyn Arm);

/// Waits until one of the arms was chosen, and says which.
pub fn select<const N: usize>(arms: [AnyArm<'_>; N]) -> Option<usize> {
    choose(&arms.map(|arm| arm.0), clock::NEVER)
}

/// The same for a number of arms that is known at run time only; at most for that long, if it is limited.
#[cfg(feature = "c-api")]
pub fn select_among(arms: &[AnyArm<'_>], timeout: Option<std::time::Duration>) -> Option<usize> {
    let arms: Vec<_> = arms.iter().map(|arm| arm.0).collect();
    let deadline = match timeout {
        Some(time) if time.is_zero() => 0,
        time => time.map_or(clock::NEVER, clock::after),
    };
    choose(&arms, deadline)
}

/// Says which arm was chosen, if one can be chosen now.
pub fn try_select<const N: usize>(arms: [AnyArm<'_>; N]) -> Option<usize> {
    choose(&arms.map(|arm| arm.0), 0)
}

/// Waits until one of the arms was chosen, and says which, at most for that long.
pub fn select_timeout<const N: usize>(arms: [AnyArm<'_>; N], timeout: std::time::Duration) -> Option<usize> {
    choose(&arms.map(|arm| arm.0), clock::after(timeout))
}
