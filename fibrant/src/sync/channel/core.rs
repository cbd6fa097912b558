//! What a channel is inside: a buffer, those who wait, and a small lock around both.
//!
//! The [ends](super::ends) count themselves here, the [arms](super::arm) of a wait take, put and enlist. All functions work under the
//! channel's lock; whom they return is to be woken after it was let go ([`wake`]). Nothing of the user's (no drop, no clone) runs
//! under the lock. `tests/models_sync.rs` runs channels in all orders.
//!
//! # Who gives what to whom
//!
//! Somebody who waits has a [`Seat`] in the channel's list of those who want to receive, or to send. Whoever comes and can serve it
//! *claims* it: then nobody else does, and what is given is put into the seat before its owner is woken.
//!
//! - A message goes straight to the one that has waited longest to receive; the buffer is for messages that nobody waits for.
//! - A place that becomes free goes straight to the one that has waited longest to send, whose message moves from its seat to the buffer.
//! - Without a place, sender and receiver meet: whoever comes second claims the first.
//!
//! So nobody waits to receive while somebody else waits to send, or while there is something in the buffer; and those who wait are served in the order in which they came, and nobody overtakes them.
//!
//! # Messages that do not exist yet
//!
//! The message of a `send` arm of a select is evaluated when the arm was chosen, not before. Such a *late* sender has no message in its seat:
//! it is promised a place (counted in [`State::promised`]), or a partner, a receiver that was claimed and waits until the message is
//! there. If there never is one, because evaluating it has panicked, the promise is given back, and the partner looks again.

use super::super::list::{List, Node};
use super::arm::Turn;
use crate::clock;
use crate::scheduler::{Guard, Lock};
use crate::sync::someone::Someone;
use std::borrow::Cow;
use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

/// What the buffer of a bounded channel is made with at once, at most: bytes.
const AT_ONCE: usize = 64 << 10;

/// A channel. What every message changes, the lock and the buffer's ends, is in one line of the cache: it goes from processor to processor.
#[repr(C, align(64))]
pub(crate) struct Channel<T> {
    state: Lock<State<T>>,
    /// How many messages it holds.
    pub(crate) capacity: usize,
    /// Whether a clock makes its messages.
    pub(crate) has_clockwork: bool,
}

/// What the lock guards.
#[repr(C)]
pub(crate) struct State<T> {
    buffer: VecDeque<T>,
    /// Those who wait to receive. If there are any, the buffer is empty, and nobody else waits to send.
    receiving: List<Seat<T>>,
    /// Those who wait to send. If there are any, there is no free place.
    sending: List<Seat<T>>,
    /// Places that were promised to late senders.
    promised: usize,
    /// How many ends there are; none, if it was closed.
    pub(crate) senders: usize,
    pub(crate) receivers: usize,
    /// Whether it was closed: then the ends are not counted any more.
    pub(crate) is_closed: bool,
    clockwork: Option<Clockwork<T>>,
    pub(crate) name: Option<Cow<'static, str>>,
}

/// What makes the messages of a channel that has no senders: a clock.
struct Clockwork<T> {
    /// When the next message is there: nanoseconds of the monotonic clock, and in std's terms.
    due: u64,
    instant: Instant,
    period: Option<Duration>,
    make: fn(Instant) -> T,
}

/// A place in one of the lists, in the frame of whoever waits.
pub(crate) struct Seat<T> {
    /// Whose it is. Set before others can find it.
    pub(crate) turn: Cell<*const Turn>,
    /// Which arm of that.
    pub(crate) index: Cell<usize>,
    /// What was given. Written by its owner while nobody can find it; by others after they have claimed it.
    pub(crate) given: Cell<Given<T>>,
    /// The message: one to be sent, or one that was received. As above.
    pub(crate) message: UnsafeCell<Option<T>>,
}

/// What somebody who wants to send or to receive was given.
pub(crate) enum Given<T> {
    /// Nothing yet, or nothing after all.
    Nothing,
    /// To a receiver: a message.
    Message,
    /// To a sender: its message was taken.
    Taken,
    /// All ends of the other kind are gone.
    Disconnected,
    /// To a late sender: a place.
    Place,
    /// To a late sender: a receiver, that has to be claimed still.
    Candidate(NonNull<Node<Seat<T>>>),
    /// To a late sender: a receiver, that was claimed.
    Partner(NonNull<Node<Seat<T>>>),
    /// Nothing, ever: whoever waited to send never goes on.
    Forsaken,
}

impl<T> Clone for Given<T> {
    fn clone(&self) -> Given<T> {
        *self
    }
}

impl<T> Copy for Given<T> {}

/// What looking for a message has come to.
pub(crate) enum Take<T> {
    /// One, and perhaps somebody whose place it has freed.
    Message(T, Option<NonNull<Someone>>),
    /// A late sender, which was claimed.
    Late(NonNull<Node<Seat<T>>>),
    Empty,
    Disconnected,
}

/// What offering a message has come to.
pub(crate) enum Put<T> {
    /// It is there, and perhaps somebody gets it.
    Done(Option<NonNull<Someone>>),
    Full(T),
    Disconnected(T),
}

impl<T> Seat<T> {
    pub(crate) fn new(message: Option<T>) -> Node<Seat<T>> {
        Node::new(Seat {
            turn: Cell::new(ptr::null()),
            index: Cell::new(0),
            given: Cell::new(Given::Nothing),
            message: UnsafeCell::new(message),
        })
    }

    /// Whoever waits here.
    ///
    /// # Safety
    /// It is in a list whose lock the caller holds, or was claimed by it.
    unsafe fn someone(&self) -> NonNull<Someone> {
        // SAFETY: the turn is set, and in place as long as the seat is in a list, or is claimed and not woken.
        NonNull::from(unsafe { &(*self.turn.get()).someone })
    }

    /// Claims whoever waits here, and notes that it was by this seat.
    ///
    /// # Safety
    /// As for `someone`.
    pub(crate) unsafe fn claim(&self) -> bool {
        // SAFETY: as above.
        unsafe {
            let turn = &*self.turn.get();
            let is_claimed = turn.someone.claim();
            if is_claimed {
                turn.chosen.set(self.index.get());
            }
            is_claimed
        }
    }

    /// Gives something to whoever waits here, and says whom to wake.
    ///
    /// # Safety
    /// The caller has claimed it.
    pub(crate) unsafe fn give(&self, given: Given<T>) -> NonNull<Someone> {
        self.given.set(given);
        // SAFETY: the caller's promise.
        unsafe { self.someone() }
    }

    /// Gives a message.
    ///
    /// # Safety
    /// The caller has claimed it, and it is a receiver's.
    pub(crate) unsafe fn give_message(&self, message: T) -> NonNull<Someone> {
        // SAFETY: the caller's promise: until it is woken it is the caller's alone. There was no message, so nothing is dropped.
        unsafe {
            *self.message.get() = Some(message);
            self.give(Given::Message)
        }
    }

    /// Takes the message out.
    ///
    /// # Safety
    /// The caller has claimed it, or is its owner and nobody can find it.
    pub(crate) unsafe fn take_message(&self) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { (*self.message.get()).take() }
    }
}

/// Lets somebody go on who was claimed.
#[inline]
pub(crate) fn wake(someone: Option<NonNull<Someone>>) {
    if let Some(someone) = someone {
        // SAFETY: the functions of this file return only whom they have claimed, once.
        unsafe { Someone::wake(someone) };
    }
}

/// Takes the first one that can be claimed out of a list.
fn claim_first<T>(list: &mut List<Seat<T>>) -> Option<NonNull<Node<Seat<T>>>> {
    let mut claimed = None;
    list.for_each(|list, seat| {
        // SAFETY: it is in this list, whose lock is held. If it cannot be claimed, its owner is about to take it out itself.
        unsafe {
            list.unlink(seat);
            if seat.claim() {
                claimed = Some(NonNull::from(seat));
            }
        }
        claimed.is_none()
    });
    claimed
}

/// Tells the first one that can be claimed that all ends of the other kind are gone, and says whom to wake.
fn disappoint_first<T>(list: &mut List<Seat<T>>) -> Option<NonNull<Someone>> {
    // SAFETY: it was just claimed.
    claim_first(list).map(|seat| unsafe { seat.as_ref().give(Given::Disconnected) })
}

/// Whether somebody is in a list besides the owner of this turn.
fn has_others<T>(list: &mut List<Seat<T>>, turn: *const Turn) -> bool {
    let mut has_others = false;
    list.for_each(|_, seat| {
        has_others = seat.turn.get() != turn;
        !has_others
    });
    has_others
}

impl<T> Channel<T> {
    /// A channel with one end of each kind.
    pub(crate) fn new(capacity: usize) -> Channel<T> {
        let at_once = if capacity == usize::MAX { 0 } else { capacity };
        let at_once = at_once.min(AT_ONCE / size_of::<T>().max(1));
        Channel {
            state: Lock::new(State {
                buffer: VecDeque::with_capacity(at_once),
                promised: 0,
                receiving: List::new(),
                sending: List::new(),
                senders: 1,
                receivers: 1,
                is_closed: false,
                clockwork: None,
                name: None,
            }),
            capacity,
            has_clockwork: false,
        }
    }

    /// A channel whose messages a clock makes: the first at that moment, which is given in both terms, the others each a period after the
    /// last was taken. It is never disconnected, as if it had a sender.
    pub(crate) fn clockwork(
        instant: Instant,
        due: u64,
        period: Option<Duration>,
        make: fn(Instant) -> T,
    ) -> Channel<T> {
        // What the clock makes goes straight to whoever receives it: there is never anything in the buffer, so none is made.
        let channel = Channel::new(0);
        channel.lock().clockwork = Some(Clockwork {
            due,
            instant,
            period,
            make,
        });
        Channel {
            capacity: 1,
            has_clockwork: true,
            ..channel
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, State<T>> {
        self.state.lock()
    }

    /// Takes a message, if there is one.
    pub(crate) fn take(&self) -> Take<T> {
        self.take_from(&mut self.lock())
    }

    /// The same for whoever has the channel's lock already.
    #[inline]
    pub(crate) fn take_from(&self, state: &mut State<T>) -> Take<T> {
        match state.buffer.pop_front() {
            Some(message) if state.sending.is_empty() => Take::Message(message, None),
            Some(message) => Take::Message(message, state.fill_place(self.capacity)),
            None if state.senders > 0 && state.sending.is_empty() && !self.has_clockwork => Take::Empty,
            None => state.take_elsewhere(),
        }
    }

    /// Gives a message to whoever waits for one, or puts it into the buffer, if there is room.
    #[inline]
    pub(crate) fn put(&self, message: T) -> Put<T> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.receivers == 0 {
            return Put::Disconnected(message);
        }
        if !state.receiving.is_empty()
            && let Some(seat) = state.first_receiver()
        {
            // SAFETY: it was just claimed.
            return Put::Done(Some(unsafe { seat.as_ref().give_message(message) }));
        }
        if state.buffer.len() + state.promised < self.capacity {
            state.buffer.push_back(message);
            return Put::Done(None);
        }
        Put::Full(message)
    }

    /// What a late sender would be given now.
    pub(crate) fn reserve(&self) -> Given<T> {
        let mut state = self.lock();
        if state.receivers == 0 {
            Given::Disconnected
        } else if state.buffer.len() + state.promised < self.capacity {
            state.promised += 1;
            Given::Place
        } else {
            claim_first(&mut state.receiving).map_or(Given::Nothing, Given::Partner)
        }
    }

    /// Fills a place that was promised.
    pub(crate) fn fill_promised(&self, message: T) -> Result<(), T> {
        let mut state = self.lock();
        state.promised -= 1;
        if state.receivers == 0 {
            return Err(message);
        }
        let receiver = match claim_first(&mut state.receiving) {
            // SAFETY: it was just claimed.
            Some(seat) => Some(unsafe { seat.as_ref().give_message(message) }),
            None => {
                state.buffer.push_back(message);
                None
            }
        };
        let sender = state.fill_place(self.capacity);
        drop(state);
        wake(receiver);
        wake(sender);
        Ok(())
    }

    /// Gives a promised place back.
    pub(crate) fn forgo_promised(&self) {
        let mut state = self.lock();
        state.promised -= 1;
        let sender = state.fill_place(self.capacity);
        drop(state);
        wake(sender);
    }

    /// Tells a late sender of a receiver that waits for its message, and lets it go on. Says whether it comes: not if it never goes on.
    ///
    /// # Safety
    /// The caller has claimed the sender, whose channel this is. The receiver waits, or is about to, and stays in place until it is
    /// claimed.
    pub(crate) unsafe fn introduce(&self, receiver: &Node<Seat<T>>, sender: NonNull<Node<Seat<T>>>) -> bool {
        // SAFETY: it was claimed, so it stays until it is woken.
        let (seat, someone) = unsafe { (sender.as_ref(), sender.as_ref().someone()) };
        let state = self.lock();
        let comes = !matches!(seat.given.get(), Given::Forsaken);
        if comes {
            seat.given.set(Given::Candidate(NonNull::from(receiver)));
        }
        drop(state);
        wake(Some(someone));
        comes
    }

    /// Whoever waits to send here never goes on: says what it was given, and makes sure that it is given nothing more.
    pub(crate) fn forsake_sender(&self, seat: &Node<Seat<T>>) -> Given<T> {
        let _state = self.lock();
        seat.given.replace(Given::Forsaken)
    }

    /// Lets somebody wait to receive, unless there is something to receive.
    ///
    /// # Safety
    /// The seat is in no other list, has a turn, and stays in place until it is withdrawn or was claimed and woken.
    pub(crate) unsafe fn enlist_receiver(&self, seat: &Node<Seat<T>>) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let is_ready = !state.buffer.is_empty()
            || state.senders == 0
            || has_others(&mut state.sending, seat.turn.get())
            || state.clockwork.as_ref().is_some_and(Clockwork::is_due);
        if !is_ready && !seat.is_linked() {
            // SAFETY: it is in no list, and stays in place by the caller's promise.
            unsafe { state.receiving.push(seat) };
        }
        !is_ready
    }

    /// Lets somebody wait to send, unless there is room.
    ///
    /// # Safety
    /// As for [`enlist_receiver`](Channel::enlist_receiver).
    pub(crate) unsafe fn enlist_sender(&self, seat: &Node<Seat<T>>) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let is_ready = state.receivers == 0
            || state.buffer.len() + state.promised < self.capacity
            || has_others(&mut state.receiving, seat.turn.get());
        if !is_ready && !seat.is_linked() {
            // SAFETY: as above.
            unsafe { state.sending.push(seat) };
        }
        !is_ready
    }

    /// Takes somebody who waits to receive, or not any more, out of the list.
    ///
    /// # Safety
    /// If the seat is in a list, it is that one.
    pub(crate) unsafe fn withdraw_receiver(&self, seat: &Node<Seat<T>>) {
        // SAFETY: the caller's promise.
        unsafe { self.lock().receiving.remove(seat) };
    }

    /// Takes somebody who waits to send, or not any more, out of the list.
    ///
    /// # Safety
    /// If the seat is in a list, it is that one.
    pub(crate) unsafe fn withdraw_sender(&self, seat: &Node<Seat<T>>) {
        // SAFETY: the caller's promise.
        unsafe { self.lock().sending.remove(seat) };
    }

    /// The last sender is gone: whoever waits to receive, waits in vain.
    pub(crate) fn end_receiving(&self) {
        loop {
            let someone = disappoint_first(&mut self.lock().receiving);
            if someone.is_none() {
                break;
            }
            wake(someone);
        }
    }

    /// Nothing is sent any more, and whoever receives gets what is left: as if all ends were gone, but what is there stays.
    #[cfg(feature = "c-api")]
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        (state.senders, state.receivers, state.is_closed) = (0, 0, true);
        drop(state);
        self.end_receiving();
        self.disappoint_senders();
    }

    fn disappoint_senders(&self) {
        loop {
            let someone = disappoint_first(&mut self.lock().sending);
            if someone.is_none() {
                break;
            }
            wake(someone);
        }
    }

    /// The last receiver is gone: whoever waits to send, waits in vain, and what is there is dropped.
    pub(crate) fn end_sending(&self) {
        self.disappoint_senders();
        // Not before: as long as somebody waits, a place that is given back is filled.
        let rest = std::mem::take(&mut self.lock().buffer);
        drop(rest);
    }

    /// When the clock has the next message: nanoseconds of the monotonic clock.
    pub(crate) fn due(&self) -> u64 {
        if !self.has_clockwork {
            return clock::NEVER;
        }
        let state = self.lock();
        state.clockwork.as_ref().map_or(clock::NEVER, |works| works.due)
    }

    /// How many messages there are.
    pub(crate) fn len(&self) -> usize {
        let state = self.lock();
        let is_due = state.clockwork.as_ref().is_some_and(Clockwork::is_due);
        state.buffer.len() + usize::from(is_due)
    }

    /// What dumps show of it.
    pub(crate) fn describe(&self) -> String {
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut text = crate::sync::subject::Text::new("channel", state.name.as_deref());
        text.add(&match self.capacity {
            usize::MAX => format!("unbounded, holds {}", state.buffer.len()),
            0 => "rendezvous".to_owned(),
            capacity => format!("holds {} of {capacity}", state.buffer.len()),
        });
        text.add(&match state.is_closed {
            true => "closed".to_owned(),
            false => format!("{} senders, {} receivers", state.senders, state.receivers),
        });
        for (list, words) in [
            (&mut state.receiving, "receiving:"),
            (&mut state.sending, "sending:"),
        ] {
            text.those(words, |each| {
                list.for_each(|_, seat| {
                    // SAFETY: whoever is in the list has set its turn, and is in place.
                    each(unsafe { &*seat.turn.get() }.holder);
                    true
                });
            });
        }
        text.finish()
    }
}

impl<T> State<T> {
    /// Claims whoever has waited longest to receive.
    #[inline(never)]
    fn first_receiver(&mut self) -> Option<NonNull<Node<Seat<T>>>> {
        claim_first(&mut self.receiving)
    }

    /// Lets somebody wait to receive, who has just seen that there is nothing to receive.
    ///
    /// # Safety
    /// As for [`enlist_receiver`](Channel::enlist_receiver); and the lock was not let go since.
    pub(crate) unsafe fn push_receiver(&mut self, seat: &Node<Seat<T>>) {
        // SAFETY: the caller's promise.
        unsafe { self.receiving.push(seat) };
    }

    /// Gives a place, if there is a free one, to whoever has waited longest to send.
    #[inline(never)]
    fn fill_place(&mut self, capacity: usize) -> Option<NonNull<Someone>> {
        if self.sending.is_empty() || self.buffer.len() + self.promised >= capacity {
            return None;
        }
        let seat = claim_first(&mut self.sending)?;
        // SAFETY: it was just claimed.
        unsafe {
            let seat = seat.as_ref();
            match seat.take_message() {
                Some(message) => {
                    self.buffer.push_back(message);
                    Some(seat.give(Given::Taken))
                }
                None => {
                    self.promised += 1;
                    Some(seat.give(Given::Place))
                }
            }
        }
    }

    /// Takes a message that is not in the buffer: from the clock, or from somebody who waits to send it, as there is no place, or all are
    /// promised.
    #[inline(never)]
    fn take_elsewhere(&mut self) -> Take<T> {
        if let Some(works) = &mut self.clockwork
            && let Some(message) = works.take()
        {
            return Take::Message(message, None);
        }
        if let Some(sender) = claim_first(&mut self.sending) {
            // SAFETY: it was just claimed.
            return unsafe {
                match sender.as_ref().take_message() {
                    Some(message) => Take::Message(message, Some(sender.as_ref().give(Given::Taken))),
                    None => Take::Late(sender),
                }
            };
        }
        if self.senders == 0 {
            Take::Disconnected
        } else {
            Take::Empty
        }
    }
}

impl<T> Clockwork<T> {
    fn is_due(&self) -> bool {
        self.due <= clock::now()
    }

    /// The message, if it is there; and when the next will be.
    fn take(&mut self) -> Option<T> {
        if self.due == clock::NEVER {
            return None;
        }
        // In std's terms first: a message is not there before its moment, and the time between the two looks may be long.
        let moment = self.period.map(|_| Instant::now());
        let now = clock::now();
        if now < self.due {
            return None;
        }
        let message = (self.make)(self.instant);
        let next = moment
            .zip(self.period)
            .and_then(|(moment, period)| Some((self.instant.max(moment).checked_add(period)?, period)));
        match next {
            Some((next, period)) => {
                self.instant = next;
                self.due = now.saturating_add(clock::nanoseconds(period));
            }
            None => self.due = clock::NEVER,
        }
        Some(message)
    }
}
