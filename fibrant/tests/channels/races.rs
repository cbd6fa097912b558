//! `select!` against `select!`, and against everything else that can be done to a channel: nobody hangs, and every message comes once.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Census, Counted};
use crate::select;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// How often two meet.
const MEETINGS: usize = 10_000;

/// What one of two who meet has seen: how many it has sent, and what it has received.
struct Seen {
    sent: usize,
    received: Vec<usize>,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            sent: 0,
            received: Vec::new(),
        }
    }

    fn note(&mut self, result: Result<Option<usize>, ()>) {
        match result.expect("the other one is there") {
            Some(number) => self.received.push(number),
            None => self.sent += 1,
        }
    }
}

#[test]
fn two_selects_with_crossed_arms_meet() {
    // Each may send to the other, or receive from it: a meeting is either.
    everywhere(|place| {
        let meetings = place.rounds(MEETINGS);
        let (there, from_here) = bounded(0);
        let (back, from_there) = bounded(0);
        let meet = |to: Sender<usize>, from: Receiver<usize>, sends_first: bool| {
            place.spawn(move || {
                let mut seen = Seen::new();
                for _ in 0..meetings {
                    let result = if sends_first {
                        select! {
                            send(to, seen.sent) -> result => result.map(|()| None).map_err(drop),
                            recv(from) -> message => message.map(Some).map_err(drop),
                        }
                    } else {
                        select! {
                            recv(from) -> message => message.map(Some).map_err(drop),
                            send(to, seen.sent) -> result => result.map(|()| None).map_err(drop),
                        }
                    };
                    seen.note(result);
                }
                seen
            })
        };
        let one = meet(there, from_there, true);
        let other = meet(back, from_here, false);
        let (one, other) = (one.join(), other.join());
        assert_eq!(one.received, Vec::from_iter(0..other.sent));
        assert_eq!(other.received, Vec::from_iter(0..one.sent));
        assert_eq!(one.sent + other.sent, meetings);
    });
}

#[test]
fn two_selects_with_the_same_arms_meet() {
    // Both may send and receive at the same rendezvous, and neither meets itself.
    everywhere(|place| {
        let meetings = place.rounds(MEETINGS);
        let (sender, receiver) = bounded(0);
        let both: Vec<_> = (0..2)
            .map(|_| {
                let (sender, receiver) = (sender.clone(), receiver.clone());
                place.spawn(move || {
                    let mut seen = Seen::new();
                    for _ in 0..meetings / 2 {
                        let result = select! {
                            send(sender, seen.sent) -> result => result.map(|()| None).map_err(drop),
                            recv(receiver) -> message => message.map(Some).map_err(drop),
                        };
                        seen.note(result);
                    }
                    seen
                })
            })
            .collect();
        let both = join_all(both);
        assert_eq!(both[0].received, Vec::from_iter(0..both[1].sent));
        assert_eq!(both[1].received, Vec::from_iter(0..both[0].sent));
    });
}

#[test]
fn send_arms_meet_receive_arms() {
    everywhere(|place| {
        let meetings = place.rounds(MEETINGS);
        let (first, from_first) = bounded(0);
        let (second, from_second) = bounded(0);
        let sending = place.spawn(move || {
            let mut sent = [0; 2];
            for _ in 0..meetings {
                select! {
                    send(first, sent[0]) -> result => { result.unwrap(); sent[0] += 1; }
                    send(second, sent[1]) -> result => { result.unwrap(); sent[1] += 1; }
                }
            }
            sent
        });
        let receiving = place.spawn(move || {
            let mut received = [0; 2];
            for _ in 0..meetings {
                let (place, number) = select! {
                    recv(from_second) -> number => (1, number.unwrap()),
                    recv(from_first) -> number => (0, number.unwrap()),
                };
                assert_eq!(number, received[place]);
                received[place] += 1;
            }
            received
        });
        assert_eq!(sending.join(), receiving.join());
    });
}

#[test]
fn a_ring_of_selects_goes_on_until_somebody_leaves() {
    const RING: usize = 5;
    everywhere(|place| {
        let meetings = place.rounds(MEETINGS);
        let (mut senders, mut receivers): (Vec<_>, Vec<_>) = (0..RING).map(|_| bounded::<usize>(0)).unzip();
        receivers.rotate_left(1);
        let members: Vec<_> = senders
            .drain(..)
            .zip(receivers)
            .map(|(to_next, from_other)| {
                place.spawn(move || {
                    let mut seen = Seen::new();
                    while seen.sent + seen.received.len() < meetings / RING {
                        let result = select! {
                            send(to_next, seen.sent) -> result => result.map(|()| None).map_err(drop),
                            recv(from_other) -> message => message.map(Some).map_err(drop),
                        };
                        if result.is_err() {
                            break;
                        }
                        seen.note(result);
                    }
                    seen
                })
            })
            .collect();
        let seen = join_all(members);
        for (index, one) in seen.iter().enumerate() {
            // Whom it receives from: the channels were rotated by one.
            let from = &seen[(index + 1) % RING];
            assert_eq!(one.received, Vec::from_iter(0..from.sent));
        }
    });
}

/// How many messages each sender sends into each channel.
const ROUNDS: usize = 60;

/// The ends of three channels, as one member has them. Those that are done with are dropped.
type Senders = [Option<Sender<Message>>; 3];
type Receivers = [Option<Receiver<Message>>; 3];

/// Sends all messages into all of the channels, in whatever order there is room.
fn send_all(me: usize, mut senders: Senders) {
    let mut random = Random::new(me);
    let mut next = [0; 3];
    // One into which nothing ever fits, for channels that are done with.
    let (nowhere, _keeps) = bounded(0);
    while senders.iter().any(Option::is_some) {
        let [a, b, c] = senders
            .each_ref()
            .map(|sender| sender.as_ref().unwrap_or(&nowhere));
        let message = |place: usize| Message {
            sender: me,
            number: next[place],
        };
        let chosen = match random.below(4) {
            0 => select! {
                send(a, message(0)) -> result => result.map(|()| 0),
                send(b, message(1)) -> result => result.map(|()| 1),
                send(c, message(2)) -> result => result.map(|()| 2),
                default(us(random.below(150))) => continue,
            },
            1 => select! {
                send(c, message(2)) -> result => result.map(|()| 2),
                send(a, message(0)) -> result => result.map(|()| 0),
                send(b, message(1)) -> result => result.map(|()| 1),
                default => {
                    fibrant::yield_now();
                    continue;
                }
            },
            2 => {
                // Without a select, one of them; without waiting for long, as nobody may be at this one.
                let place = random.below(3) as usize;
                let Some(sender) = &senders[place] else { continue };
                match sender.send_timeout(message(place), us(random.below(100))) {
                    Ok(()) => Ok(place),
                    Err(SendTimeoutError::Timeout(_)) => continue,
                    Err(SendTimeoutError::Disconnected(message)) => Err(SendError(message)),
                }
            }
            _ => select! {
                send(b, message(1)) -> result => result.map(|()| 1),
                send(c, message(2)) -> result => result.map(|()| 2),
                send(a, message(0)) -> result => result.map(|()| 0),
            },
        };
        let place = chosen.expect("there are receivers");
        next[place] += 1;
        if next[place] == ROUNDS {
            senders[place] = None;
        }
        random.linger();
    }
}

/// Receives from all of the channels until there are no senders any more.
fn receive_all(me: usize, mut receivers: Receivers, ledgers: &[Arc<Ledger>; 3]) {
    let mut random = Random::new(100 + me);
    let mut readers = ledgers.each_ref().map(|ledger| ledger.reader());
    let nothing = never();
    while receivers.iter().any(Option::is_some) {
        let [a, b, c] = receivers
            .each_ref()
            .map(|receiver| receiver.as_ref().unwrap_or(&nothing));
        let (place, result) = match random.below(4) {
            0 => select! {
                recv(a) -> message => (0, message),
                recv(b) -> message => (1, message),
                recv(c) -> message => (2, message),
                default(us(random.below(150))) => continue,
            },
            1 => select! {
                recv(b) -> message => (1, message),
                recv(c) -> message => (2, message),
                recv(a) -> message => (0, message),
                default => {
                    fibrant::yield_now();
                    continue;
                }
            },
            2 => {
                let place = random.below(3) as usize;
                let Some(receiver) = &receivers[place] else {
                    continue;
                };
                match receiver.recv_timeout(us(random.below(100))) {
                    Ok(message) => (place, Ok(message)),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => (place, Err(RecvError)),
                }
            }
            _ => select! {
                recv(c) -> message => (2, message),
                recv(a) -> message => (0, message),
                recv(b) -> message => (1, message),
            },
        };
        match result {
            Ok(message) => readers[place].note(message),
            Err(RecvError) => receivers[place] = None,
        }
        random.linger();
    }
}

#[test]
fn selects_and_all_the_rest_lose_nothing() {
    everywhere(|place| {
        for flavours in [
            [RENDEZVOUS; 3],
            [Flavour::Bounded(1); 3],
            [Flavour::Unbounded, Flavour::Bounded(2), RENDEZVOUS],
        ] {
            // Senders 0 to 2 choose; 3 to 5 have one channel each, so that they may simply wait.
            let ledgers = [(); 3].map(|()| Ledger::new(4, ROUNDS));
            let (senders, receivers): (Vec<_>, Vec<_>) = flavours.into_iter().map(Flavour::channel).unzip();
            let mut members = Vec::new();
            for me in 0..3 {
                let all: Senders = std::array::from_fn(|index| Some(senders[index].clone()));
                members.push(place.spawn(move || send_all(me, all)));
                let all: Receivers = std::array::from_fn(|index| Some(receivers[index].clone()));
                let shared = ledgers.clone();
                members.push(place.spawn(move || receive_all(me, all, &shared)));
                let one = senders[me].clone();
                members.push(place.spawn(move || {
                    let mut random = Random::new(10 + me);
                    for number in 0..ROUNDS {
                        send_somehow(&one, Message { sender: 3, number }, &mut random).unwrap();
                        random.linger();
                    }
                }));
                let (one, ledger) = (receivers[me].clone(), Arc::clone(&ledgers[me]));
                members.push(place.spawn(move || {
                    let mut random = Random::new(20 + me);
                    let mut reader = ledger.reader();
                    while let Some(message) = receive_somehow(&one, &mut random) {
                        reader.note(message);
                        random.linger();
                    }
                }));
            }
            drop((senders, receivers));
            join_all(members);
            ledgers.iter().for_each(|ledger| ledger.assert_complete());
        }
    });
}

#[test]
fn receivers_leave_in_the_middle() {
    // Each message is received, given back, or left in a channel that nobody receives from any more; and dropped once.
    everywhere_with_all(|place, flavour| {
        for round in 0..10 {
            let census = Census::default();
            let channels = [flavour.channel::<Counted>(), flavour.channel::<Counted>()];
            let (sent, received) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let mut members = Vec::new();
            for me in 0..3 {
                let [a, b] = channels.each_ref().map(|(sender, _)| sender.clone());
                let (census, sent) = (census.clone(), Arc::clone(&sent));
                members.push(place.spawn(move || {
                    let mut random = Random::new(round * 10 + me);
                    loop {
                        let result = select! {
                            send(a, census.count()) -> result => result,
                            send(b, census.count()) -> result => result,
                        };
                        if result.is_err() {
                            break;
                        }
                        sent.fetch_add(1, SeqCst);
                        random.linger();
                    }
                }));
                let [a, b] = channels.each_ref().map(|(_, receiver)| receiver.clone());
                let received = Arc::clone(&received);
                members.push(place.spawn(move || {
                    let mut random = Random::new(round * 10 + 5 + me);
                    for _ in 0..random.below(30) {
                        let result = select! {
                            recv(a) -> message => message,
                            recv(b) -> message => message,
                        };
                        if result.is_err() {
                            break;
                        }
                        received.fetch_add(1, SeqCst);
                        random.linger();
                    }
                }));
            }
            drop(channels);
            join_all(members);
            assert_eq!(census.made(), census.dropped());
            let left = sent.load(SeqCst) - received.load(SeqCst);
            assert!(
                flavour.room().is_none_or(|room| left <= 2 * room),
                "{left} are lost"
            );
        }
    });
}

#[test]
fn whoever_chooses_hears_that_it_is_to_stop() {
    // Workers with a channel for work and one that tells them to stop: all stop, and nothing that they took is lost.
    everywhere_with_all(|place, flavour| {
        for _ in 0..5 {
            let (work, todo) = flavour.channel::<usize>();
            let (stop, stopped) = bounded::<()>(0);
            let is_over = Arc::new(AtomicBool::new(false));
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    let (todo, stopped) = (todo.clone(), stopped.clone());
                    place.spawn(move || {
                        let mut done = Vec::new();
                        loop {
                            select! {
                                recv(todo) -> number => done.push(number.unwrap()),
                                recv(stopped) -> message => {
                                    assert!(message.is_err());
                                    return done;
                                }
                            }
                        }
                    })
                })
                .collect();
            let giving = place.spawn({
                let is_over = Arc::clone(&is_over);
                move || {
                    let mut given = 0;
                    while !is_over.load(SeqCst) {
                        given += usize::from(work.send_timeout(given, us(100)).is_ok());
                        fibrant::yield_now();
                    }
                    (given, work)
                }
            });
            fibrant::sleep(us(500));
            drop(stop);
            let mut done: Vec<_> = join_all(workers).concat();
            is_over.store(true, SeqCst);
            let (given, work) = giving.join();
            drop(work);
            done.extend(todo.iter());
            done.sort();
            assert_eq!(done, Vec::from_iter(0..given));
        }
    });
}
