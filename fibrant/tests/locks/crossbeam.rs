//! The channels of crossbeam-channel and what waits in crossbeam-utils, unchanged. Both know who waits by its thread.

use crate::harness::*;
use crate::patience::{Watchdog, eventually};
use crossbeam_channel::{
    Receiver, RecvTimeoutError, Select, SendTimeoutError, Sender, TryRecvError, after, bounded, never,
    select, select_biased, tick, unbounded,
};
use crossbeam_utils::sync::{Parker, ShardedLock, Unparker, WaitGroup};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// How often each member does it.
const ROUNDS: usize = 60;

/// How many fibers and how many threads.
const MEMBERS: [(usize, usize); 2] = [(8, 0), (5, 4)];

/// A message: who has sent it, and its number there.
type Message = (usize, usize);

type Channel = (Sender<Message>, Receiver<Message>);

/// One of each flavour.
const FLAVOURS: [fn() -> Channel; 3] = [unbounded, || bounded(2), || bounded(0)];

/// The ends of a channel, for each member its own: who sends drops its sender at its end, and who receives notices the last one.
struct Ends {
    senders: Mutex<Vec<Option<Sender<Message>>>>,
    receiver: Receiver<Message>,
    /// How often each message has come.
    seen: Vec<Vec<AtomicUsize>>,
}

impl Ends {
    fn new(count: usize, (sender, receiver): Channel) -> Ends {
        let new_row = || (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
        Ends {
            senders: Mutex::new(vec![Some(sender); count]),
            receiver,
            seen: (0..count).map(|_| new_row()).collect(),
        }
    }

    fn take_sender(&self, me: &Member) -> Sender<Message> {
        self.senders.lock().unwrap()[me.index].take().unwrap()
    }

    /// Notes a message, the last one of whose sender was this.
    fn note(&self, (sender, number): Message, last: &mut [Option<usize>]) {
        self.seen[sender][number].fetch_add(1, SeqCst);
        assert!(
            last[sender] < Some(number),
            "a message comes before an earlier one"
        );
        last[sender] = Some(number);
    }

    /// Every message of these senders has come once.
    fn check(&self, senders: impl Iterator<Item = usize>) {
        for sender in senders {
            let is_once = |count: &AtomicUsize| count.load(SeqCst) == 1;
            assert!(
                self.seen[sender].iter().all(is_once),
                "one is lost, or came twice"
            );
        }
    }
}

fn send(sender: &Sender<Message>, message: Message, me: &mut Member) {
    if me.below(3) > 0 {
        return sender.send(message).unwrap();
    }
    let mut message = message;
    while let Err(SendTimeoutError::Timeout(back)) = sender.send_timeout(message, us(300)) {
        message = back;
    }
}

/// Receives in one way or another; `None` if there are no senders any more.
fn receive(receiver: &Receiver<Message>, me: &mut Member) -> Option<Message> {
    loop {
        match me.below(4) {
            0 => match receiver.recv_timeout(us(200)) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            },
            1 => match receiver.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => return None,
            },
            _ => return receiver.recv().ok(),
        }
    }
}

#[test]
fn every_message_comes_once_and_in_its_senders_order() {
    for flavour in FLAVOURS {
        for (fibers, threads) in MEMBERS {
            let count = fibers + threads;
            together(
                fibers,
                threads,
                || Ends::new(count, flavour()),
                |ends, me| {
                    let sender = ends.take_sender(me);
                    if me.index % 2 == 0 {
                        for round in 0..ROUNDS {
                            send(&sender, (me.index, round), me);
                            me.linger();
                        }
                    } else {
                        drop(sender);
                        let mut last = vec![None; me.count];
                        while let Some(message) = receive(&ends.receiver, me) {
                            ends.note(message, &mut last);
                            me.linger();
                        }
                    }
                },
                |ends| ends.check((0..count).step_by(2)),
            );
        }
    }
}

#[test]
fn a_choice_of_several_loses_nothing() {
    for flavour in FLAVOURS {
        for (fibers, threads) in MEMBERS {
            let count = fibers + threads;
            together(
                fibers,
                threads,
                || [(); 3].map(|()| Ends::new(count, flavour())),
                |all, me| {
                    let senders = all.each_ref().map(|ends| ends.take_sender(me));
                    if me.index % 2 == 0 {
                        // Sends all of it to each, in whatever order they have room.
                        let mut next = [0; 3];
                        while next.iter().any(|&number| number < ROUNDS) {
                            let mut choice = Select::new();
                            let open: Vec<_> = (0..3).filter(|&place| next[place] < ROUNDS).collect();
                            open.iter().for_each(|&place| {
                                choice.send(&senders[place]);
                            });
                            if let Ok(chosen) = choice.select_timeout(us(500)) {
                                let place = open[chosen.index()];
                                chosen.send(&senders[place], (me.index, next[place])).unwrap();
                                next[place] += 1;
                            }
                            me.linger();
                        }
                        return;
                    }
                    drop(senders);
                    let mut last = [(); 3].map(|()| vec![None; me.count]);
                    let mut receivers = all.each_ref().map(|ends| ends.receiver.clone());
                    let mut open = 3;
                    while open > 0 {
                        let (place, result) = select! {
                            recv(receivers[0]) -> result => (0, result),
                            recv(receivers[1]) -> result => (1, result),
                            recv(receivers[2]) -> result => (2, result),
                            default(us(300)) => continue,
                        };
                        match result {
                            Ok(message) => all[place].note(message, &mut last[place]),
                            Err(_) => {
                                receivers[place] = never();
                                open -= 1;
                            }
                        }
                        me.linger();
                    }
                },
                |all| all.iter().for_each(|ends| ends.check((0..count).step_by(2))),
            );
        }
    }
}

#[test]
fn those_who_wait_notice_that_the_other_side_is_gone() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        for flavour in FLAVOURS {
            let runtime = watchdog.runtime(workers);
            let (sender, receiver) = flavour();
            let receiving: Vec<_> = (0..3)
                .map(|_| {
                    let receiver = receiver.clone();
                    runtime.spawn(move || receiver.recv().is_err())
                })
                .collect();
            eventually("they wait", || waiting_for_locks(&runtime) == 3);
            runtime.spawn(move || drop(sender)).join().unwrap();
            receiving
                .into_iter()
                .for_each(|fiber| assert!(fiber.join().unwrap()));
            runtime.stop().unwrap();
        }
        let runtime = watchdog.runtime(workers);
        let (sender, receiver) = bounded(0);
        let sending: Vec<_> = (0..3)
            .map(|message| {
                let sender = sender.clone();
                runtime.spawn(move || sender.send(message).unwrap_err().0 == message)
            })
            .collect();
        eventually("they wait", || waiting_for_locks(&runtime) == 3);
        runtime.spawn(move || drop(receiver)).join().unwrap();
        sending
            .into_iter()
            .for_each(|fiber| assert!(fiber.join().unwrap()));
        runtime.stop().unwrap();
    }
}

#[test]
fn moments_come_when_they_are_due() {
    together(
        6,
        2,
        || (),
        |(), me| {
            let limit = ms(4 * (me.index as u64 + 1));
            let start = Instant::now();
            let due = after(limit).recv().unwrap();
            assert!(start.elapsed() >= limit && due >= start + limit);
            let start = Instant::now();
            let ticks = tick(ms(3));
            for count in 1..=4 {
                ticks.recv().unwrap();
                assert!(start.elapsed() >= ms(3 * count));
            }
            let (sender, receiver) = bounded::<()>(0);
            let start = Instant::now();
            let is_late = select! {
                recv(receiver) -> _ => false,
                send(sender, ()) -> _ => false,
                recv(never::<()>()) -> _ => false,
                recv(after(limit)) -> _ => true,
            };
            assert!(is_late && start.elapsed() >= limit);
            let start = Instant::now();
            let is_late = select_biased! {
                recv(receiver) -> _ => false,
                recv(never::<()>()) -> _ => false,
                default(limit) => true,
            };
            assert!(is_late && start.elapsed() >= limit);
            assert!(select! { recv(receiver) -> _ => false, default => true });
        },
        |()| {},
    );
}

#[test]
fn no_unpark_is_lost() {
    for (fibers, threads) in [(6, 0), (4, 3)] {
        let count = fibers + threads;
        together(
            fibers,
            threads,
            || {
                let parkers: Vec<_> = (0..count).map(|_| Parker::new()).collect();
                let unparkers: Vec<Unparker> =
                    parkers.iter().map(|parker| parker.unparker().clone()).collect();
                let parkers: Vec<_> = parkers.into_iter().map(Some).collect();
                (Mutex::new(parkers), unparkers, AtomicUsize::new(0))
            },
            |(parkers, unparkers, turns), me| {
                let parker = parkers.lock().unwrap()[me.index].take().unwrap();
                for round in 0..ROUNDS {
                    while turns.load(SeqCst) != round * me.count + me.index {
                        if me.below(4) == 0 {
                            parker.park_timeout(us(300));
                        } else {
                            parker.park();
                        }
                    }
                    turns.fetch_add(1, SeqCst);
                    unparkers[(me.index + 1) % me.count].unpark();
                    if me.below(4) == 0 {
                        me.linger();
                    }
                }
            },
            |(_, _, turns)| assert_eq!(turns.load(SeqCst), count * ROUNDS),
        );
    }
}

#[test]
fn a_group_is_waited_for() {
    for (fibers, threads) in MEMBERS {
        let count = fibers + threads;
        together(
            fibers,
            threads,
            || {
                let group = WaitGroup::new();
                (Mutex::new(vec![Some(group); count]), AtomicUsize::new(0))
            },
            |(groups, arrived), me| {
                let group = groups.lock().unwrap()[me.index].take().unwrap();
                me.linger();
                arrived.fetch_add(1, SeqCst);
                group.wait();
                assert_eq!(arrived.load(SeqCst), me.count, "some are not there yet");
            },
            |_| {},
        );
    }
}

#[test]
fn a_lock_in_pieces_keeps_readers_and_writers_apart() {
    for (fibers, threads) in MEMBERS {
        together(
            fibers,
            threads,
            || (ShardedLock::new((0_usize, 0_usize)), AtomicUsize::new(0)),
            |(lock, writes), me| {
                for _ in 0..ROUNDS {
                    if me.below(4) == 0 {
                        let mut pair = lock.write().unwrap();
                        pair.0 += 1;
                        me.linger();
                        pair.1 += 1;
                        writes.fetch_add(1, SeqCst);
                    } else {
                        let pair = lock.read().unwrap();
                        me.linger();
                        assert_eq!(pair.0, pair.1, "somebody writes");
                    }
                    me.linger();
                }
            },
            |(lock, writes)| {
                let count = writes.load(SeqCst);
                assert_eq!(*lock.read().unwrap(), (count, count));
            },
        );
    }
}

/// A fiber waits for a message, and another one of its worker sends it. Shared with the tests of light fibers, which cannot do that.
pub fn hand_over(runtime: &fibrant::runtime::Handle) {
    let (sender, receiver) = bounded(1);
    let has_come = Arc::new(AtomicBool::new(false));
    let come = Arc::clone(&has_come);
    let receiving = runtime.spawn_on(0, move || {
        receiver.recv().unwrap();
        come.store(true, SeqCst);
    });
    eventually("the receiver waits", || waiting_for_locks(runtime) == 1);
    let sending = runtime.spawn_on(0, move || {
        sender.send(()).unwrap();
        // Its end would tell the receiver, too.
        while !has_come.load(SeqCst) {
            thread::sleep(ms(1));
        }
    });
    receiving.join().unwrap();
    sending.join().unwrap();
}

#[test]
fn fibers_of_a_worker_hand_over_messages() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    (0..20).for_each(|_| hand_over(&runtime));
    runtime.stop().unwrap();
}
