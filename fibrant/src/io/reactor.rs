//! The reactor: what a worker sleeps in. Its epoll instance, its wheel of deadlines, and the bell that others ring.
//!
//! The scheduler calls it as its [`Driver`]; the waits of this module register descriptors with it. It calls the descriptor
//! table to find out whom an edge concerns, and the wheel of [`timer`].
//!
//! # Registration
//!
//! A descriptor is registered with the worker that waits for it, once, for edges, and stays registered: for input from the
//! start, for output from the first wait for output on. An edge wakes the oldest waiter of this worker; who leaves its wait
//! wakes the next. Observers, who wait for something that the others do not, are all woken by every edge. An edge that finds
//! nobody twice running ends the registration. An event carries the generation of the descriptor it was registered for: one
//! for a file that has been closed since is ignored.

use super::Event;
use super::doubt::Doubts;
use super::table::{self, DIRECTIONS, Registration, State};
use crate::clock;
use crate::context;
use crate::scheduler::{self, Armed, Desk, Driver, Purpose, Timed, Worker};
use crate::sys::{self, syscall};
use crate::timer;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How many events one poll takes at most; the rest wait for the next.
const BATCH: usize = 256;

// What has no deadline has a key that no deadline has.
const _: () = assert!(Timed::UNARMED == timer::NONE);

/// How many deadlines later somebody is woken when its stack is asked for.
const DEADLINES_AHEAD: usize = 4;

/// How many events later somebody's turn is when the fiber is fetched; twice as many when what it has on its stack is, which leads there.
const AHEAD: usize = 3;

/// So many descriptors do not stay in the cache with all that belongs to them.
const CROWD: usize = 300;

/// So many deadlines are expired some at a time, and so far apart: nanoseconds. A thread's sleeps have as much slack, unless it asks for less.
const MANY_ALARMS: usize = 4096;
const SLACK: u64 = 50_000;

/// If so many of them have expired since the last sleep, others come soon, and each sleep until then costs processor time: two microseconds, or thirty in
/// some virtual machines. So they are as much further apart that sleeping takes at most such a part of the time; but no further than this.
const MANY_DUE: usize = 16;
const PART_FOR_SLEEPING: u64 = 16;
const MOST_SLACK: u64 = 500_000;

/// Of so many sleeps among [`MANY_ALARMS`] the processor time of one is measured, which takes a microsecond.
const SLEEPS_MEASURED: u8 = 16;

/// From here on a sleep is so long that what the kernel may add shows: nanoseconds.
const LONG_SLEEP: u64 = 100_000_000;

/// What the bell's event carries instead of a descriptor.
const BELL: u64 = u64::MAX;

/// Whether the kernel lacks `epoll_pwait2` (before Linux 5.11).
static NO_PWAIT2: AtomicBool = AtomicBool::new(false);

/// A worker's epoll and wheel.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    /// Its deadlines, and what its timers need.
    timers: timer::Kept,
    desk: &'static Desk,
    doubts: Doubts,
    /// When deadlines last expired.
    last_expired: Cell<u64>,
    /// How many have since the last sleep.
    expired: Cell<usize>,
    /// The processor time that a short sleep takes, in nanoseconds, and how many sleeps there are to come before it is measured again.
    sleep_cost: Cell<u64>,
    until_measured: Cell<u8>,
    /// The descriptors that are registered here, or were.
    registered: RefCell<HashSet<RawFd>>,
    events: RefCell<Box<[libc::epoll_event; BATCH]>>,
}

impl Reactor {
    /// A reactor that listens to this desk's bell.
    pub(crate) fn new(desk: &'static Desk) -> io::Result<Reactor> {
        let epoll = new_epoll()?;
        let mut event = libc::epoll_event {
            // Edges, so that the bell need not be read: each ring is one.
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: BELL,
        };
        // SAFETY: both descriptors are open; the event is a local variable.
        sys::check(unsafe {
            syscall!(
                SYS_epoll_ctl,
                epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                desk.bell(),
                &raw mut event
            )
        })?;
        Ok(Reactor {
            epoll,
            timers: timer::Kept::new(),
            desk,
            doubts: Doubts::new(),
            last_expired: Cell::new(0),
            expired: Cell::new(0),
            sleep_cost: Cell::new(0),
            until_measured: Cell::new(0),
            registered: RefCell::default(),
            events: RefCell::new(Box::new([libc::epoll_event { events: 0, u64: 0 }; BATCH])),
        })
    }

    /// The reactor of a worker.
    #[inline(always)]
    pub(super) fn of(worker: &Worker) -> &Reactor {
        debug_assert!(worker.driver.as_any().is::<Reactor>());
        // SAFETY: a worker's driver is made by the runtime, of the only type that is one, and stays with it. To ask it for its type would take
        // longer than most of what is done with it.
        unsafe { &*ptr::from_ref(&*worker.driver).cast::<Reactor>() }
    }

    /// The epoll's descriptor.
    pub(super) fn epoll(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Makes sure that a descriptor, whose state is locked, is registered here for an event. Returns how often in a row the registration
    /// was found to be good.
    pub(super) fn register(&self, fd: RawFd, state: &mut State, event: Event) -> io::Result<u8> {
        let event = event & (Event::READ | Event::WRITE);
        let generation = state.generation;
        let epoll = self.epoll();
        let trust = match state.registrations.with(epoll) {
            Some(registration) if registration.interest.contains(event) => return Ok(registration.trust),
            Some(registration) => {
                let interest = registration.interest | event;
                change(epoll, fd, generation, interest)?;
                registration.interest = interest;
                registration.trust
            }
            None => {
                // Input is always asked for: it costs nothing, and most descriptors are read from sooner or later.
                let interest = Event::READ | event;
                add(epoll, fd, generation, interest)?;
                self.registered.borrow_mut().insert(fd);
                state.registrations.add(Registration {
                    epoll,
                    interest,
                    is_stray: false,
                    trust: 0,
                    doubted: None,
                });
                0
            }
        };
        table::entry(fd).note_home(state);
        Ok(trust)
    }

    /// Asks the kernel anew for what a registration, which may be gone, stands for. If the descriptor is ready, an edge
    /// comes of it.
    pub(super) fn verify(&self, fd: RawFd, state: &mut State) -> io::Result<()> {
        let generation = state.generation;
        let epoll = self.epoll();
        let Some(registration) = state.registrations.with(epoll) else {
            return Ok(());
        };
        let changed = change(epoll, fd, generation, registration.interest);
        match changed {
            Ok(true) => registration.trust = registration.trust.saturating_add(1),
            Ok(false) => registration.trust = 0,
            Err(_) => state.registrations.remove(epoll),
        }
        table::entry(fd).note_home(state);
        changed.map(drop)
    }

    /// Trusts a registration no longer, which somebody has relied on in vain: the next wait verifies it soon.
    pub(super) fn distrust(&self, fd: RawFd, state: &mut State) {
        if let Some(registration) = state.registrations.with(self.epoll()) {
            registration.trust = 0;
            table::entry(fd).note_home(state);
        }
    }

    /// Somebody begins to wait for a descriptor, whose state is locked, and trusts its registration so much: it is to be reminded, if
    /// that lasts.
    #[inline]
    pub(super) fn doubt(&self, fd: RawFd, state: &mut State, trust: u8) {
        // On a list that is looked at less often it would be reminded late. The other one finds that it has gone.
        if let Some(registration) = state.registrations.with(self.epoll())
            && !registration.doubted.is_some_and(|listed| listed.suits(trust))
        {
            registration.doubted = Some(self.doubts.add(fd, trust));
        }
    }

    /// Looks after the waits for the descriptors on the lists whose time has come. Returns whether any was ended.
    #[cold]
    fn remind(&self, now: u64) -> bool {
        let mut found = false;
        while let Some((listed, descriptors)) = self.doubts.take_due(now) {
            for &fd in &descriptors {
                let mut state = table::entry(fd).lock();
                let registration = state.registrations.with(self.epoll());
                if registration.is_none_or(|registration| registration.doubted != Some(listed)) {
                    continue; // on another list, or seen in this turn, or closed meanwhile
                }
                let (any_young, any_old) = state.remind(self.desk);
                found |= any_old;
                if let Some(registration) = state.registrations.with(self.epoll()) {
                    registration.doubted = any_young.then(|| self.doubts.add_again(fd, listed));
                }
            }
            self.doubts.keep_room(listed, descriptors);
        }
        found
    }

    /// Sleeps in epoll until something happens or the moment comes. Returns how many events there are.
    fn wait(&self, until: Option<u64>) -> usize {
        let timeout = match until {
            None => None,
            Some(0) => Some(0),
            Some(until) => Some(match until.saturating_sub(clock::now()) {
                // The kernel may add a thousandth: the last bit of a long sleep is slept apart.
                long @ LONG_SLEEP.. => long - long / 500,
                short => short,
            }),
        };
        // SAFETY: the buffer has room for a batch, and nobody borrows it: this runs in a poll only, which does not nest.
        let events = unsafe { (**self.events.as_ptr()).as_mut_ptr() };
        match epoll_wait(self.epoll(), events, timeout) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => panic!("epoll: {error}"),
        }
    }

    /// When the next deadlines are to be expired. Of very many, several at once, at most [`SLACK`] late, or a little more: to wake for each
    /// takes longer than all that is done then.
    fn next_visit(&self) -> u64 {
        let next = self.timers.next_visit().unwrap_or(clock::NEVER);
        if self.alarms() < MANY_ALARMS {
            return next;
        }
        let slack = if self.expired.get() < MANY_DUE {
            SLACK
        } else {
            (self.sleep_cost.get() * PART_FOR_SLEEPING).clamp(SLACK, MOST_SLACK)
        };
        next.max(self.last_expired.get().saturating_add(slack))
    }

    /// The same as [`wait`](Reactor::wait), and measures now and then what a sleep costs, if that matters.
    fn wait_measured(&self, until: u64) -> usize {
        self.expired.set(0);
        let until = (until != clock::NEVER).then_some(until);
        if self.alarms() < MANY_ALARMS {
            return self.wait(until);
        }
        if self.until_measured.get() > 0 {
            self.until_measured.set(self.until_measured.get() - 1);
            return self.wait(until);
        }
        self.until_measured.set(SLEEPS_MEASURED - 1);
        let before = clock::thread_cpu_time();
        let count = self.wait(until);
        let cost = clock::thread_cpu_time() - before;
        // Whatever the machine did meanwhile is in it: one sleep alone says little.
        self.sleep_cost.set(match self.sleep_cost.get() {
            0 => cost,
            known => (3 * known + cost) / 4,
        });
        count
    }

    /// Expires the deadlines that have come by then. Returns whether there were any.
    fn expire_until(&self, moment: u64, worker: &Worker) -> bool {
        // Most are of fibers that have not run for a while: what they will need is fetched before they do.
        self.timers
            .wheel
            .borrow_mut()
            .advance(moment, |armed| match armed.purpose() {
                Purpose::Wait => scheduler::prefetch_sleeper(armed.timed()),
                Purpose::Timer | Purpose::Nothing => context::prefetch(armed.timed().as_ptr()),
            });
        let mut due = 0;
        loop {
            let mut wheel = self.timers.wheel.borrow_mut();
            if let Some(later) = wheel.due_after(DEADLINES_AHEAD)
                && later.purpose() == Purpose::Wait
            {
                // SAFETY: what `arm` was given stays valid until it has expired or is disarmed, and this has not.
                unsafe { scheduler::prefetch_stack_of_sleeper(later.timed()) };
            }
            let Some(armed) = wheel.take_due() else {
                break;
            };
            drop(wheel);
            due += 1;
            // SAFETY: as above: it has expired just now.
            unsafe {
                let timed = armed.timed();
                timed.as_ref().key.set(Timed::UNARMED);
                match armed.purpose() {
                    Purpose::Wait => scheduler::expire_wait(timed, worker),
                    Purpose::Timer => timer::expire(timed, worker),
                    Purpose::Nothing => {}
                }
            }
        }
        if due > 0 {
            self.last_expired.set(moment);
            self.expired.set(self.expired.get() + due);
        }
        due > 0
    }

    /// Something has happened to a descriptor.
    fn dispatch(&self, data: u64, bits: u32) {
        let (fd, generation) = (data as u32 as RawFd, (data >> 32) as u32);
        let event = Event::from_epoll(bits);
        let entry = table::entry(fd);
        let mut state = entry.lock();
        if state.generation != generation {
            return; // of a file that had this number before
        }
        entry.lull.stir(bits);
        let mut found = false;
        for (index, direction) in DIRECTIONS {
            if event.contains(direction) {
                found |= state.wake_oldest(index, self.desk, bits);
            }
        }
        let callbacks = state
            .has_callbacks()
            .then(|| state.take_callbacks(event, self.desk));
        found |= callbacks
            .as_ref()
            .is_some_and(|taken| taken.iter().any(Option::is_some));
        // Somebody who waits for the other direction needs the registration, too.
        let found = found || state.concerns(self.desk);
        if let Some(registration) = state.registrations.with(self.epoll()) {
            if found {
                registration.is_stray = false;
            } else if registration.is_stray {
                forget(self.epoll(), fd);
                state.registrations.remove(self.epoll());
                entry.note_home(&state);
            } else {
                registration.is_stray = true;
            }
        }
        drop(state);
        if let Some(callbacks) = callbacks {
            callbacks
                .into_iter()
                .flatten()
                .for_each(|callback| callback.call());
        }
    }
}

fn new_epoll() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, which is then owned here alone.
    Ok(unsafe {
        OwnedFd::from_raw_fd(sys::check(syscall!(SYS_epoll_create1, libc::EPOLL_CLOEXEC))? as RawFd)
    })
}

/// An error, if a descriptor is not open or cannot be waited for: asks an epoll of its own.
pub(super) fn check_pollable(fd: RawFd) -> io::Result<()> {
    add(new_epoll()?.as_raw_fd(), fd, 0, Event::READ)
}

/// Registers a descriptor with an epoll; if it is registered, which we did not know, changes that.
fn add(epoll: RawFd, fd: RawFd, generation: u32, interest: Event) -> io::Result<()> {
    match control(epoll, libc::EPOLL_CTL_ADD, fd, generation, interest) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            control(epoll, libc::EPOLL_CTL_MOD, fd, generation, interest)
        }
        result => result,
    }
}

/// Changes a descriptor's registration with an epoll; if it is gone, which we did not know, registers it. Returns whether it was there.
fn change(epoll: RawFd, fd: RawFd, generation: u32, interest: Event) -> io::Result<bool> {
    match control(epoll, libc::EPOLL_CTL_MOD, fd, generation, interest) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            control(epoll, libc::EPOLL_CTL_ADD, fd, generation, interest).map(|()| false)
        }
        result => result.map(|()| true),
    }
}

fn control(
    epoll: RawFd,
    operation: libc::c_int,
    fd: RawFd,
    generation: u32,
    interest: Event,
) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: interest.to_epoll(),
        u64: u64::from(fd as u32) | u64::from(generation) << 32,
    };
    // SAFETY: the event is a local variable; a descriptor that is not open is an error.
    match sys::check(unsafe { syscall!(SYS_epoll_ctl, epoll, operation, fd, &raw mut event) }) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(unpollable(fd)),
        Err(error) => Err(error),
    }
}

/// The error for a file that epoll does not take.
pub(super) fn unpollable(fd: RawFd) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "descriptor {fd} cannot be waited for: regular files, directories and devices like /dev/null are always ready"
        ),
    )
}

/// Ends a descriptor's registration with an epoll.
pub(super) fn forget(epoll: RawFd, fd: RawFd) {
    // SAFETY: it may be gone already, which is an error that does not matter. The event is not looked at.
    unsafe { syscall!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0) };
}

/// Waits for events, for so many nanoseconds, or until there is one.
fn epoll_wait(epoll: RawFd, events: *mut libc::epoll_event, timeout: Option<u64>) -> io::Result<usize> {
    if timeout == Some(0) || NO_PWAIT2.load(Relaxed) {
        // SAFETY: the caller's buffer has room for a batch.
        let result = unsafe { syscall!(SYS_epoll_pwait, epoll, events, BATCH, milliseconds(timeout), 0, 0) };
        return sys::check(result);
    }
    let time = timeout.map(|nanoseconds| libc::timespec {
        tv_sec: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: as above; the time, if any, is a local variable. No signal mask is given.
    let result = unsafe { syscall!(SYS_epoll_pwait2, epoll, events, BATCH, time, 0, 0) };
    match sys::check(result) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            NO_PWAIT2.store(true, Relaxed);
            epoll_wait(epoll, events, timeout)
        }
        result => result,
    }
}

/// So many nanoseconds in milliseconds, as `epoll_wait` wants them: for ever is -1. Rounded up: what is slept too little is slept again and again,
/// without any rest, until the moment comes.
fn milliseconds(timeout: Option<u64>) -> i32 {
    timeout.map_or(-1, |nanoseconds| {
        i32::try_from(nanoseconds.div_ceil(1_000_000)).unwrap_or(i32::MAX)
    })
}

impl Driver for Reactor {
    fn poll(&self, worker: &Worker, until: Option<u64>) -> bool {
        // Nobody has waited for a descriptor here, and the bell is for those who sleep: there is nothing to ask for.
        if until == Some(0) && self.registered.borrow().is_empty() {
            self.expire_due(worker);
            return false;
        }
        let count = match until {
            // It does not matter when the next deadline is, and finding out may take a while.
            Some(0) => self.wait(Some(0)),
            _ => {
                let visit = self.next_visit();
                self.wait_measured(until.unwrap_or(clock::NEVER).min(visit).min(self.doubts.due()))
            }
        };
        // With many connections whatever belongs to one has left the cache when an event comes: it is fetched a little ahead.
        let is_crowded = self.registered.borrow().len() >= CROWD;
        let descriptor = |index: usize| self.events.borrow()[index].u64 as u32 as RawFd;
        if is_crowded {
            (0..count).for_each(|index| table::prefetch(descriptor(index)));
        }
        for index in 0..count {
            if is_crowded && index + 2 * AHEAD < count {
                table::prefetch_waiter(descriptor(index + 2 * AHEAD));
            }
            if is_crowded && index + AHEAD < count {
                table::prefetch_fiber(descriptor(index + AHEAD));
            }
            let event = self.events.borrow()[index];
            if event.u64 != BELL {
                self.dispatch(event.u64, event.events);
            }
        }
        self.expire_due(worker);
        true
    }

    fn expire_due(&self, worker: &Worker) -> bool {
        if self.alarms() == 0 && self.doubts.due() == clock::NEVER {
            return false;
        }
        let now = clock::now();
        let is_anyone_reminded = self.doubts.due() <= now && self.remind(now);
        self.expire_until(now, worker) || is_anyone_reminded
    }

    unsafe fn arm(&self, timed: NonNull<Timed>, purpose: Purpose, deadline: u64) {
        // SAFETY: by the caller's promise.
        unsafe { self.timers.arm(Armed::new(timed, purpose), deadline) };
    }

    unsafe fn disarm(&self, timed: NonNull<Timed>) {
        // SAFETY: by the caller's promise.
        unsafe { self.timers.disarm(timed) };
    }

    fn expire_all(&self, worker: &Worker) {
        self.timers.forget_stale();
        self.expire_until(clock::NEVER, worker);
    }

    fn next_deadline(&self) -> Option<u64> {
        self.timers.next_deadline()
    }

    fn alarms(&self) -> usize {
        self.timers.alarms()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn timers(&self) -> &dyn Any {
        &self.timers
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        for fd in self.registered.take() {
            table::forget_worker(fd, self.epoll(), self.desk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up() {
        let cases = [
            (None, -1),
            (Some(0), 0),
            (Some(1), 1),
            (Some(1_000_000), 1),
            (Some(1_000_001), 2),
            (Some(u64::MAX), i32::MAX),
        ];
        for (timeout, expected) in cases {
            assert_eq!(milliseconds(timeout), expected, "{timeout:?}");
        }
    }

    /// A worker sleeps until the very nanosecond of the next deadline; only among very many it may come later, by no more than it says.
    #[test]
    fn a_worker_wakes_for_the_next_deadline() {
        let desk = Desk::take().unwrap();
        let reactor = Reactor::new(desk).unwrap();
        let first = clock::now() + 3_600_000_000_007;
        let deadlines: Vec<Timed> = (0..MANY_ALARMS).map(|_| Timed::new()).collect();
        reactor.last_expired.set(first - 1);
        for (index, timed) in deadlines.iter().enumerate() {
            // SAFETY: it is not armed, and stays until it is disarmed below.
            unsafe { reactor.arm(NonNull::from(timed), Purpose::Nothing, first + index as u64) };
            if index + 1 < MANY_ALARMS {
                assert_eq!(reactor.next_visit(), first);
            }
        }
        reactor.expired.set(MANY_DUE);
        reactor.sleep_cost.set(u64::MAX / PART_FOR_SLEEPING);
        assert_eq!(reactor.next_visit(), first - 1 + MOST_SLACK);
        reactor.expired.set(0);
        assert_eq!(reactor.next_visit(), first - 1 + SLACK);
        reactor.last_expired.set(0);
        assert_eq!(reactor.next_visit(), first, "none has expired for long");
        for timed in &deadlines {
            // SAFETY: it is armed, here.
            unsafe { reactor.disarm(NonNull::from(timed)) };
        }
        assert_eq!(reactor.next_visit(), clock::NEVER);
        desk.give_back();
    }
}
