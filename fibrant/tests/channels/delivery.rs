//! What is sent arrives: once, in order, and not before there is room for it.

use crate::channel::*;
use crate::harness::*;
use crate::patience::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// How many messages each sender sends.
const ROUNDS: usize = 80;

/// How many send, and how many receive.
const SIDES: [(usize, usize); 3] = [(1, 1), (4, 3), (2, 5)];

#[test]
fn every_message_comes_once_and_in_its_senders_order() {
    everywhere_with_all(|place, flavour| {
        for (senders, receivers) in SIDES {
            let ledger = Ledger::new(senders, ROUNDS);
            let (sender, receiver) = flavour.channel();
            let sending = (0..senders).map(|me| {
                let sender = sender.clone();
                place.spawn(move || {
                    let mut random = Random::new(me);
                    for number in 0..ROUNDS {
                        let message = Message { sender: me, number };
                        send_somehow(&sender, message, &mut random).unwrap();
                        random.linger();
                    }
                })
            });
            let receiving = (0..receivers).map(|me| {
                let (receiver, ledger) = (receiver.clone(), Arc::clone(&ledger));
                place.spawn(move || {
                    let mut random = Random::new(100 + me);
                    let mut reader = ledger.reader();
                    while let Some(message) = receive_somehow(&receiver, &mut random) {
                        reader.note(message);
                        random.linger();
                    }
                })
            });
            let (sending, receiving) = (Vec::from_iter(sending), Vec::from_iter(receiving));
            drop((sender, receiver));
            join_all(sending);
            join_all(receiving);
            ledger.assert_complete();
        }
    });
}

#[test]
fn those_who_only_ever_wait_lose_nothing() {
    everywhere_with_all(|place, flavour| {
        let ledger = Ledger::new(3, 200);
        let (sender, receiver) = flavour.channel();
        let mut members = Vec::new();
        for me in 0..3 {
            let sender = sender.clone();
            members.push(place.spawn(move || {
                (0..200).for_each(|number| sender.send(Message { sender: me, number }).unwrap());
            }));
            let (receiver, ledger) = (receiver.clone(), Arc::clone(&ledger));
            members.push(place.spawn(move || {
                let mut reader = ledger.reader();
                receiver.iter().for_each(|message| reader.note(message));
            }));
        }
        drop((sender, receiver));
        join_all(members);
        ledger.assert_complete();
    });
}

#[test]
fn one_receiver_gets_all_in_the_order_of_one_sender() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel();
        let sending = place.spawn(move || (0..500).for_each(|number| sender.send(number).unwrap()));
        let receiving = place.spawn(move || receiver.iter().collect::<Vec<_>>());
        sending.join();
        assert_eq!(receiving.join(), Vec::from_iter(0..500));
    });
}

#[test]
fn what_was_sent_first_comes_first_whoever_sent_it() {
    everywhere_with_all(|place, flavour| {
        if !flavour.holds(3) {
            return;
        }
        for _ in 0..20 {
            let (sender, receiver) = flavour.channel();
            for number in 0..3 {
                let sender = sender.clone();
                // The send of each has returned before the next one begins.
                place.spawn(move || sender.send(number).unwrap()).join();
            }
            drop(sender);
            for number in 0..3 {
                let receiver = receiver.clone();
                assert_eq!(place.spawn(move || receiver.recv()).join(), Ok(number));
            }
        }
    });
}

#[test]
fn there_are_never_more_messages_than_there_is_room() {
    everywhere(|place| {
        for room in [0, 1, 2, 5] {
            let (sender, receiver) = bounded(room);
            // Sends that have returned, and receives that have begun: all but those that are buffered have met.
            let (sent, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let mut members = Vec::new();
            for me in 0..3 {
                let (sender, sent, begun_receives) = (sender.clone(), Arc::clone(&sent), Arc::clone(&begun));
                members.push(place.spawn(move || {
                    let mut random = Random::new(me);
                    for _ in 0..100 {
                        sender.send(()).unwrap();
                        let sent = sent.fetch_add(1, SeqCst) + 1;
                        // Read later, so that it can only be more.
                        let begun = begun_receives.load(SeqCst);
                        assert!(sent <= begun + room, "{sent} are sent, {begun} were wanted");
                        assert!(sender.len() <= room);
                        random.linger();
                    }
                }));
                let (receiver, begun) = (receiver.clone(), Arc::clone(&begun));
                members.push(place.spawn(move || {
                    let mut random = Random::new(10 + me);
                    for _ in 0..100 {
                        begun.fetch_add(1, SeqCst);
                        receiver.recv().unwrap();
                        assert!(receiver.len() <= room);
                        random.linger();
                    }
                }));
            }
            join_all(members);
            assert_eq!((receiver.len(), sender.len()), (0, 0));
        }
    });
}

#[test]
fn a_sender_waits_for_room() {
    everywhere(|place| {
        for room in [1, 3] {
            let (sender, receiver) = bounded(room);
            (0..room).for_each(|number| sender.send(number).unwrap());
            let returned = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&returned);
            let waiting = place.spawn(move || {
                sender.send(room).unwrap();
                flag.store(true, SeqCst);
                sender
            });
            waiting.wait_until_it_waits();
            assert!(!returned.load(SeqCst), "there was no room");
            assert_eq!((receiver.len(), receiver.is_full()), (room, true));
            assert_eq!(receiver.recv(), Ok(0));
            let sender = waiting.join();
            assert!(returned.load(SeqCst) && sender.is_full());
            assert_eq!(receiver.try_iter().collect::<Vec<_>>(), Vec::from_iter(1..=room));
        }
    });
}

#[test]
fn where_there_is_no_room_a_send_returns_when_it_was_received() {
    everywhere(|place| {
        for _ in 0..20 {
            let (sender, receiver) = bounded(0);
            let returned = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&returned);
            let waiting = place.spawn(move || {
                sender.send(5).unwrap();
                flag.store(true, SeqCst);
            });
            waiting.wait_until_it_waits();
            assert!(!returned.load(SeqCst) && receiver.is_empty() && receiver.is_full());
            let receiving = place.spawn(move || receiver.recv());
            assert_eq!(receiving.join(), Ok(5));
            waiting.join();
        }
    });
}

#[test]
fn an_attempt_meets_whoever_waits_at_a_rendezvous() {
    everywhere(|place| {
        let (sender, receiver) = bounded(0);
        for number in 0..10 {
            let waiting = {
                let receiver = receiver.clone();
                place.spawn(move || receiver.recv())
            };
            let mut refused = 0;
            eventually("it is taken", || {
                let is_sent = sender.try_send(number).is_ok();
                refused += usize::from(!is_sent);
                is_sent
            });
            assert_eq!(waiting.join(), Ok(number));
            assert_eq!(
                sender.try_send(number),
                Err(TrySendError::Full(number)),
                "nobody waits now"
            );
            let waiting = {
                let sender = sender.clone();
                place.spawn(move || sender.send(number))
            };
            let mut taken = None;
            eventually("it is there", || {
                taken = receiver.try_recv().ok();
                taken.is_some()
            });
            assert_eq!((taken, waiting.join()), (Some(number), Ok(())));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty), "nobody waits now");
        }
    });
}

#[test]
fn everybody_who_waits_gets_something() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel();
        let waiting: Vec<_> = (0..6)
            .map(|_| {
                let receiver = receiver.clone();
                place.spawn(move || receiver.recv().unwrap())
            })
            .collect();
        waiting.iter().for_each(Member::wait_until_it_waits);
        // In one go, so that more is sent than receivers have been able to run.
        let sending = place.spawn(move || {
            (0..6).for_each(|number| sender.send(number).unwrap());
            sender
        });
        let mut got = join_all(waiting);
        got.sort();
        assert_eq!(got, [0, 1, 2, 3, 4, 5]);
        drop(sending.join());
    });
}

#[test]
fn everybody_who_waits_gets_rid_of_it() {
    everywhere(|place| {
        for room in [0, 1, 3] {
            let (sender, receiver) = bounded(room);
            (0..room).for_each(|_| sender.send(100).unwrap());
            let waiting: Vec<_> = (0..6)
                .map(|number| {
                    let sender = sender.clone();
                    place.spawn(move || sender.send(number).unwrap())
                })
                .collect();
            waiting.iter().for_each(Member::wait_until_it_waits);
            drop(sender);
            let mut got = place.spawn(move || receiver.iter().collect::<Vec<_>>()).join();
            join_all(waiting);
            assert!(got.drain(..room).all(|number| number == 100), "they were first");
            got.sort();
            assert_eq!(got, [0, 1, 2, 3, 4, 5]);
        }
    });
}

#[test]
fn ping_and_pong() {
    everywhere_with_all(|place, flavour| {
        let rounds = place.rounds(1000);
        let (there, ping) = flavour.channel();
        let (back, pong) = flavour.channel();
        let echo = place.spawn(move || {
            for number in ping {
                back.send(number + 1).unwrap();
            }
        });
        let asking = place.spawn(move || {
            for number in 0..rounds {
                there.send(number).unwrap();
                assert_eq!(pong.recv(), Ok(number + 1));
            }
        });
        asking.join();
        echo.join();
    });
}

#[test]
fn a_pipeline_of_many() {
    const STAGES: usize = 40;
    everywhere_with_all(|place, flavour| {
        let (first, mut receiver) = flavour.channel();
        let mut members = Vec::new();
        for _ in 0..STAGES {
            let (sender, next) = flavour.channel();
            members.push(place.spawn(move || {
                receiver
                    .iter()
                    .for_each(|number| sender.send(number + 1).unwrap())
            }));
            receiver = next;
        }
        members.push(place.spawn(move || (0..50).for_each(|number| first.send(number).unwrap())));
        let end = place.spawn(move || receiver.iter().collect::<Vec<_>>());
        join_all(members);
        assert_eq!(end.join(), Vec::from_iter(STAGES..STAGES + 50));
    });
}
