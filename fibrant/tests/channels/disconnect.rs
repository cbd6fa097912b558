//! What happens when one side goes: the other one notices, what was sent can still be received, and every message is dropped once.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Census, Counted};
use crate::select;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

#[test]
fn receivers_take_what_is_left() {
    everywhere_with_all(|place, flavour| {
        let count = flavour.room().unwrap_or(50);
        let (sender, receiver) = flavour.channel();
        (0..count).for_each(|number| sender.send(number).unwrap());
        drop(place.spawn(move || sender).join());
        assert_eq!((receiver.len(), receiver.is_empty()), (count, count == 0));
        let receiving = place.spawn({
            let receiver = receiver.clone();
            move || {
                for number in 0..count {
                    let received = match number % 4 {
                        0 => receiver.recv().ok(),
                        1 => receiver.try_recv().ok(),
                        2 => receiver.recv_timeout(ms(0)).ok(),
                        _ => {
                            select! { recv(receiver) -> message => message.ok(), recv(never::<u8>()) -> _ => None }
                        }
                    };
                    assert_eq!(received, Some(number));
                }
                assert_eq!(receiver.recv(), Err(RecvError));
            }
        });
        receiving.join();
        // It stays so, for everyone.
        for _ in 0..3 {
            assert_eq!(receiver.recv(), Err(RecvError));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
            assert_eq!(receiver.iter().next(), None);
        }
    });
}

#[test]
fn senders_get_their_message_back() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel();
        drop(place.spawn(move || receiver).join());
        let sending = place.spawn(move || {
            for _ in 0..3 {
                let message = || Box::new(7);
                assert_eq!(sender.send(message()), Err(SendError(message())));
                assert_eq!(
                    sender.try_send(message()),
                    Err(TrySendError::Disconnected(message()))
                );
                let gone = Err(SendTimeoutError::Disconnected(message()));
                assert_eq!(sender.send_timeout(message(), LONG), gone);
                let back = select! { send(sender, message()) -> result => result, recv(never::<u8>()) -> _ => Ok(()) };
                assert_eq!(back, Err(SendError(message())));
            }
        });
        sending.join();
    });
}

#[test]
fn a_side_is_there_until_its_last_one_goes() {
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(9)] {
            let (sender, receiver) = flavour.channel();
            let mut senders = vec![sender.clone(), sender.clone(), sender];
            while let Some(one) = senders.pop() {
                one.send(1).unwrap();
                drop(one);
                assert_eq!(receiver.recv(), Ok(1));
                let is_gone = receiver.try_recv() == Err(TryRecvError::Disconnected);
                assert_eq!(is_gone, senders.is_empty());
            }
            let (sender, receiver) = flavour.channel();
            let mut receivers = vec![receiver.clone(), receiver.clone(), receiver];
            while let Some(one) = receivers.pop() {
                sender.send(2).unwrap();
                assert_eq!(one.recv(), Ok(2));
                drop(one);
                let is_gone = sender.try_send(3).is_err();
                assert_eq!(is_gone, receivers.is_empty());
                receivers.iter().take(1).for_each(|other| {
                    other.recv().unwrap();
                });
            }
        }
    });
}

#[test]
fn whoever_waits_to_receive_is_told() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel::<u8>();
        let spare = sender.clone();
        let ways: [fn(&Receiver<u8>) -> bool; 6] = [
            |receiver| receiver.recv() == Err(RecvError),
            |receiver| receiver.recv_timeout(LONG) == Err(RecvTimeoutError::Disconnected),
            |receiver| receiver.iter().next().is_none(),
            |receiver| select! { recv(receiver) -> message => message.is_err(), recv(never::<u8>()) -> _ => false },
            |receiver| select! { recv(receiver) -> message => message.is_err(), default(LONG) => false },
            |receiver| {
                let (full, _other) = bounded::<u8>(0);
                select! {
                    send(full, 1) -> _ => false,
                    recv(receiver) -> message => message.is_err(),
                    default(LONG) => false,
                }
            },
        ];
        let waiting = ways.map(|way| {
            let receiver = receiver.clone();
            place.spawn(move || way(&receiver))
        });
        waiting.iter().for_each(Member::wait_until_it_waits);
        drop(sender);
        assert!(waiting.iter().all(|member| !member.is_finished()), "one is left");
        place.spawn(move || drop(spare)).join();
        assert_eq!(join_all(waiting), [true; 6]);
    });
}

#[test]
fn whoever_waits_to_send_is_told() {
    everywhere(|place| {
        for room in [0, 1, 3] {
            let (sender, receiver) = bounded::<u8>(room);
            (0..room).for_each(|_| sender.send(0).unwrap());
            let spare = receiver.clone();
            let ways: [fn(&Sender<u8>) -> bool; 5] = [
                |sender| sender.send(7) == Err(SendError(7)),
                |sender| sender.send_timeout(7, LONG) == Err(SendTimeoutError::Disconnected(7)),
                |sender| {
                    select! { send(sender, 7) -> result => result == Err(SendError(7)), recv(never::<u8>()) -> _ => false }
                },
                |sender| select! { send(sender, 7) -> result => result == Err(SendError(7)), default(LONG) => false },
                |sender| {
                    let (_other, empty) = bounded::<u8>(0);
                    select! {
                        recv(empty) -> _ => false,
                        send(sender, 7) -> result => result == Err(SendError(7)),
                        default(LONG) => false,
                    }
                },
            ];
            let waiting = ways.map(|way| {
                let sender = sender.clone();
                place.spawn(move || way(&sender))
            });
            waiting.iter().for_each(Member::wait_until_it_waits);
            drop(receiver);
            assert!(waiting.iter().all(|member| !member.is_finished()), "one is left");
            place.spawn(move || drop(spare)).join();
            assert_eq!(join_all(waiting), [true; 5]);
        }
    });
}

#[test]
fn what_is_left_is_dropped_with_the_last_receiver() {
    everywhere(|place| {
        for flavour in FLAVOURS {
            let count = flavour.room().unwrap_or(100);
            let census = Census::default();
            let (sender, receiver) = flavour.channel();
            (0..count).for_each(|_| sender.send(census.count()).unwrap());
            let other = receiver.clone();
            drop(receiver);
            assert_eq!(census.dropped(), 0, "there is another receiver");
            place.spawn(move || drop(other)).join();
            // With a bound, crossbeam keeps them until both sides are gone.
            if flavour == Flavour::Unbounded {
                assert_eq!(census.dropped(), count, "nobody can receive them");
            }
            assert!(sender.send(census.count()).is_err());
            drop(sender);
            assert_eq!((census.made(), census.dropped()), (count + 1, count + 1));
        }
    });
}

#[test]
fn what_is_left_is_dropped_with_both_sides() {
    everywhere(|place| {
        for flavour in FLAVOURS {
            let count = flavour.room().unwrap_or(100);
            let census = Census::default();
            let (sender, receiver) = flavour.channel();
            (0..count).for_each(|_| sender.send(census.count()).unwrap());
            // Not from the first place of a ring.
            receiver.try_iter().take(1).for_each(drop);
            let before = census.dropped();
            place.spawn(move || drop(sender)).join();
            assert_eq!(census.dropped(), before, "they can still be received");
            drop(receiver.try_recv());
            place.spawn(move || drop(receiver)).join();
            assert_eq!((census.made(), census.dropped()), (count, count));
        }
    });
}

#[test]
fn every_message_is_dropped_once_whoever_goes_first() {
    // Members leave at about the same time, in the middle of sends and receives.
    everywhere_with_all(|place, flavour| {
        for round in 0..15 {
            let census = Census::default();
            let (sender, receiver) = flavour.channel::<Counted>();
            let (sent, received) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let mut members = Vec::new();
            for me in 0..3 {
                let (sender, census, sent) = (sender.clone(), census.clone(), Arc::clone(&sent));
                members.push(place.spawn(move || {
                    let mut random = Random::new(round * 10 + me);
                    for _ in 0..random.below(20) {
                        match send_somehow(&sender, census.count(), &mut random) {
                            Ok(()) => drop(sent.fetch_add(1, SeqCst)),
                            Err(_) => break,
                        }
                        random.linger();
                    }
                }));
                let (receiver, received) = (receiver.clone(), Arc::clone(&received));
                members.push(place.spawn(move || {
                    let mut random = Random::new(round * 10 + 5 + me);
                    for _ in 0..random.below(20) {
                        match receive_somehow(&receiver, &mut random) {
                            Some(_) => drop(received.fetch_add(1, SeqCst)),
                            None => break,
                        }
                        random.linger();
                    }
                }));
            }
            drop((sender, receiver));
            join_all(members);
            assert_eq!(census.made(), census.dropped());
            let left = sent.load(SeqCst) - received.load(SeqCst);
            assert!(flavour.holds(left), "{left} were sent, and not received");
        }
    });
}

/// A message that uses its own channel when it is dropped.
struct Nosy {
    sender: Sender<Nosy>,
    census: Census,
    _counted: Counted,
    /// How many more messages it may send.
    more: usize,
}

impl Nosy {
    fn new(sender: &Sender<Nosy>, census: &Census, more: usize) -> Nosy {
        Nosy {
            sender: sender.clone(),
            census: census.clone(),
            _counted: census.count(),
            more,
        }
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        let sender = &self.sender;
        let _ = (
            sender.len(),
            sender.is_empty(),
            sender.is_full(),
            sender.capacity(),
        );
        let another = || Nosy::new(sender, &self.census, self.more - 1);
        match self.more {
            0 => {}
            1 => drop(sender.try_send(another())),
            2 => drop(sender.send_timeout(another(), us(1))),
            _ => select! {
                send(sender, another()) -> result => drop(result),
                default => {}
            },
        }
    }
}

#[test]
fn a_message_may_use_its_channel_as_it_is_dropped() {
    everywhere_with_all(|place, flavour| {
        let census = Census::default();
        let count = flavour.room().unwrap_or(10);
        // Dropped after it was received; and with an error.
        let (sender, receiver) = flavour.channel();
        let all_sent = Arc::new(AtomicBool::new(false));
        let receiving = place.spawn({
            let (receiver, all_sent) = (receiver.clone(), Arc::clone(&all_sent));
            // As long as one may come: those that are dropped send others.
            move || {
                loop {
                    let none_is_to_come = all_sent.load(SeqCst);
                    if receiver.recv_timeout(ms(1)).is_err() && none_is_to_come {
                        break;
                    }
                }
            }
        });
        let sending = place.spawn({
            let (sender, census) = (sender.clone(), census.clone());
            move || (0..5).for_each(|more| drop(sender.send(Nosy::new(&sender, &census, more))))
        });
        sending.join();
        all_sent.store(true, SeqCst);
        receiving.join();
        // Dropped by the channel, as nobody can receive them.
        (0..count).for_each(|more| drop(sender.try_send(Nosy::new(&sender, &census, more % 4))));
        assert_eq!(receiver.len(), count);
        place.spawn(move || drop(receiver)).join();
        assert!(sender.send(Nosy::new(&sender, &census, 3)).is_err());
        place.spawn(move || drop(sender)).join();
        if flavour == Flavour::Unbounded {
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn a_message_may_hold_the_last_receiver() {
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(2)] {
            struct Holding(#[allow(dead_code)] Receiver<Holding>);
            let (sender, receiver) = flavour.channel();
            sender.send(Holding(receiver.clone())).unwrap();
            let Holding(inner) = receiver.recv().unwrap();
            sender.send(Holding(inner)).unwrap();
            let message = receiver.recv().unwrap();
            drop(receiver);
            assert!(
                sender.try_send(message).is_ok(),
                "there is one receiver left, in the message"
            );
            assert_eq!(sender.len(), 1);
        }
    });
}

#[test]
fn a_message_that_panics_as_it_is_dropped_is_not_dropped_again() {
    struct Fragile {
        drops: Arc<[AtomicUsize; 4]>,
        index: usize,
    }
    impl Drop for Fragile {
        fn drop(&mut self) {
            self.drops[self.index].fetch_add(1, SeqCst);
            if self.index == 1 && !std::thread::panicking() {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        }
    }
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(4)] {
            for receiver_first in [true, false] {
                let drops: Arc<[AtomicUsize; 4]> = Arc::default();
                let (sender, receiver) = flavour.channel();
                for index in 0..4 {
                    let drops = Arc::clone(&drops);
                    sender.send(Fragile { drops, index }).unwrap();
                }
                let ends = catch_unwind(AssertUnwindSafe(move || {
                    if receiver_first {
                        drop(receiver);
                        drop(sender);
                    } else {
                        drop(sender);
                        drop(receiver);
                    }
                }));
                assert!(ends.is_err());
                // Others may be forgotten.
                assert!(drops.iter().all(|count| count.load(SeqCst) <= 1), "{drops:?}");
                assert_eq!(drops[1].load(SeqCst), 1);
            }
        }
    });
}
