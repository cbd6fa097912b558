//! What `select!` chooses and when: among ready arms, while it waits, with disconnected channels, with the same channel in many arms.

use crate::channel::*;
use crate::harness::*;
use crate::patience::eventually;
use crate::select;
use std::time::Instant;

/// Which arm was chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Arm {
    Send(Result<(), SendError<u8>>),
    Receive(Result<u8, RecvError>),
    Other,
    Late,
}

#[test]
fn a_ready_arm_is_chosen_at_once() {
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(1), Flavour::Bounded(3)] {
            let (sender, receiver) = flavour.channel();
            let (full, empty) = bounded::<u8>(0);
            for number in 0..5 {
                let sent = select! {
                    recv(empty) -> _ => Arm::Other,
                    send(full, 0) -> _ => Arm::Other,
                    send(sender, number) -> result => Arm::Send(result),
                    recv(receiver) -> message => Arm::Receive(message),
                };
                assert_eq!(sent, Arm::Send(Ok(())));
                let received = select! {
                    recv(receiver) -> message => Arm::Receive(message),
                    recv(empty) -> _ => Arm::Other,
                    send(full, 0) -> _ => Arm::Other,
                    default => Arm::Late,
                };
                assert_eq!(received, Arm::Receive(Ok(number)));
                // Even if no time is given.
                sender.send(number).unwrap();
                let received = select! {
                    recv(empty) -> _ => Arm::Other,
                    recv(receiver) -> message => Arm::Receive(message),
                    default(ms(0)) => Arm::Late,
                };
                assert_eq!(received, Arm::Receive(Ok(number)));
                let nothing = select! {
                    recv(empty) -> _ => Arm::Other,
                    recv(receiver) -> message => Arm::Receive(message),
                    default(ms(0)) => Arm::Late,
                };
                assert_eq!(nothing, Arm::Late);
            }
        }
    });
}

#[test]
fn a_default_is_for_when_nothing_is_ready() {
    alone(|| {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel::<u8>();
            let chosen = select! {
                recv(receiver) -> message => Arm::Receive(message),
                default => Arm::Late,
            };
            assert_eq!(chosen, Arm::Late);
            let Some(room) = flavour.room() else { continue };
            (0..room).for_each(|_| sender.send(1).unwrap());
            let (_speaks, empty) = bounded::<u8>(0);
            let chosen = select! {
                send(sender, 2) -> result => Arm::Send(result),
                recv(empty) -> _ => Arm::Other,
                default => Arm::Late,
            };
            assert_eq!(chosen, Arm::Late);
            let start = Instant::now();
            let chosen = select! {
                send(sender, 2) -> result => Arm::Send(result),
                recv(empty) -> _ => Arm::Other,
                default(ms(8)) => Arm::Late,
            };
            let took = start.elapsed();
            assert_eq!(chosen, Arm::Late);
            assert!(took >= ms(8) && took < LATE, "{took:?}");
            assert_eq!(receiver.len(), room, "nothing was sent");
        }
    });
}

#[test]
fn an_endless_limit_is_no_limit() {
    alone(|| {
        let (sender, receiver) = unbounded();
        sender.send(1).unwrap();
        let chosen = select! {
            recv(receiver) -> message => Arm::Receive(message),
            recv(never::<u8>()) -> _ => Arm::Other,
            default(std::time::Duration::MAX) => Arm::Late,
        };
        assert_eq!(chosen, Arm::Receive(Ok(1)));
    });
    everywhere(|place| {
        let (sender, receiver) = bounded(0);
        let waiting = place.spawn(move || {
            select! {
                recv(receiver) -> message => Arm::Receive(message),
                recv(never::<u8>()) -> _ => Arm::Other,
                default(std::time::Duration::MAX) => Arm::Late,
            }
        });
        waiting.wait_until_it_waits();
        sender.send(2).unwrap();
        assert_eq!(waiting.join(), Arm::Receive(Ok(2)));
    });
}

#[test]
fn a_disconnected_channel_is_ready() {
    alone(|| {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel::<u8>();
            drop(sender);
            let (_speaks, empty) = bounded::<u8>(0);
            for _ in 0..3 {
                let chosen = [
                    select! { recv(receiver) -> message => Arm::Receive(message) },
                    select! { recv(receiver) -> message => Arm::Receive(message), default => Arm::Late },
                    select! { recv(receiver) -> message => Arm::Receive(message), default(LONG) => Arm::Late },
                    select! { recv(empty) -> _ => Arm::Other, recv(receiver) -> message => Arm::Receive(message) },
                    select! {
                        recv(empty) -> _ => Arm::Other,
                        recv(receiver) -> message => Arm::Receive(message),
                        default => Arm::Late,
                    },
                ];
                assert_eq!(chosen, [Arm::Receive(Err(RecvError)); 5]);
            }
            let (sender, receiver) = flavour.channel::<u8>();
            drop(receiver);
            for _ in 0..3 {
                let chosen = [
                    select! { send(sender, 7) -> result => Arm::Send(result) },
                    select! { send(sender, 7) -> result => Arm::Send(result), default => Arm::Late },
                    select! { send(sender, 7) -> result => Arm::Send(result), default(LONG) => Arm::Late },
                    select! { recv(empty) -> _ => Arm::Other, send(sender, 7) -> result => Arm::Send(result) },
                    select! {
                        recv(empty) -> _ => Arm::Other,
                        send(sender, 7) -> result => Arm::Send(result),
                        default => Arm::Late,
                    },
                ];
                assert_eq!(chosen, [Arm::Send(Err(SendError(7))); 5]);
            }
        }
    });
}

#[test]
fn what_is_left_in_a_disconnected_channel_comes_first() {
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(3)] {
            let (sender, receiver) = flavour.channel();
            (0..3).for_each(|number| sender.send(number).unwrap());
            drop(sender);
            for number in 0..5 {
                let chosen = select! {
                    recv(receiver) -> message => message.ok(),
                    recv(never::<u8>()) -> _ => unreachable!(),
                };
                assert_eq!(chosen, (number < 3).then_some(number));
            }
        }
    });
}

/// What somebody else does to a select that waits, and which arm that must lead to.
#[test]
fn whatever_happens_first_is_chosen() {
    everywhere_with_all(|place, flavour| {
        let steps: [(&str, Arm); 5] = [
            ("send", Arm::Receive(Ok(5))),
            ("receive", Arm::Send(Ok(()))),
            ("drop the sender", Arm::Receive(Err(RecvError))),
            ("drop the receiver", Arm::Send(Err(SendError(6)))),
            ("nothing", Arm::Late),
        ];
        for (step, expected) in steps {
            let (to_member, from_here) = flavour.channel::<u8>();
            // What the member sends into is full.
            let full = match flavour {
                Flavour::Unbounded => RENDEZVOUS,
                bounded => bounded,
            };
            let (from_member, to_here) = full.channel::<u8>();
            (0..full.room().unwrap()).for_each(|_| from_member.send(0).unwrap());
            let (_silent, other) = bounded::<u8>(0);
            let limit = if step == "nothing" { ms(5) } else { LONG };
            let waiting = place.spawn(move || {
                select! {
                    recv(other) -> _ => Arm::Other,
                    recv(from_here) -> message => Arm::Receive(message),
                    send(from_member, 6) -> result => Arm::Send(result),
                    recv(never::<u8>()) -> _ => Arm::Other,
                    default(limit) => Arm::Late,
                }
            });
            if step != "nothing" {
                waiting.wait_until_it_waits();
            }
            let last = match step {
                "send" => Some(to_member.send(5).map(|()| 0).unwrap()),
                "receive" => to_here.iter().last(),
                "drop the sender" => {
                    drop(to_member);
                    None
                }
                "drop the receiver" => {
                    drop(to_here);
                    None
                }
                _ => None,
            };
            assert_eq!(waiting.join(), expected, "{step}");
            if step == "receive" {
                assert_eq!(last, Some(6));
            }
        }
    });
}

#[test]
fn a_channel_may_be_in_many_arms() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel::<u8>();
        let other_end = receiver.clone();
        let waiting = place.spawn(move || {
            (0..3)
                .map(|_| {
                    select! {
                        recv(receiver) -> message => message.unwrap(),
                        recv(other_end) -> message => message.unwrap(),
                        recv(receiver) -> message => message.unwrap(),
                    }
                })
                .collect::<Vec<_>>()
        });
        waiting.wait_until_it_waits();
        let sending = place.spawn(move || {
            for number in 0..3 {
                select! {
                    send(sender, number) -> result => result.unwrap(),
                    send(sender, number) -> result => result.unwrap(),
                    send(sender.clone(), number) -> result => result.unwrap(),
                }
            }
        });
        sending.join();
        assert_eq!(waiting.join(), [0, 1, 2]);
    });
}

#[test]
fn nobody_meets_itself_at_a_rendezvous() {
    everywhere(|place| {
        let (sender, receiver) = bounded::<u8>(0);
        let (ours, theirs) = (sender.clone(), receiver.clone());
        let alone = place.spawn(move || {
            for _ in 0..5 {
                let chosen = select! {
                    send(ours, 1) -> result => Arm::Send(result),
                    recv(theirs) -> message => Arm::Receive(message),
                    default(ms(2)) => Arm::Late,
                };
                assert_eq!(chosen, Arm::Late);
                let chosen = select! {
                    recv(theirs) -> message => Arm::Receive(message),
                    send(ours, 1) -> result => Arm::Send(result),
                    default => Arm::Late,
                };
                assert_eq!(chosen, Arm::Late);
            }
        });
        alone.join();
        // Two of them meet, and one of them has sent.
        for _ in 0..20 {
            let both: Vec<_> = (0..2_u8)
                .map(|me| {
                    let (sender, receiver) = (sender.clone(), receiver.clone());
                    place.spawn(move || {
                        select! {
                            send(sender, me) -> result => Arm::Send(result),
                            recv(receiver) -> message => Arm::Receive(message),
                        }
                    })
                })
                .collect();
            let chosen = join_all(both);
            assert!(
                chosen == [Arm::Send(Ok(())), Arm::Receive(Ok(0))]
                    || chosen == [Arm::Receive(Ok(1)), Arm::Send(Ok(()))],
                "{chosen:?}"
            );
        }
    });
}

#[test]
fn who_waits_with_both_ends_leaves_no_trace() {
    alone(|| {
        // The two ends of the same channel, with room: what it has sent itself it may receive the next time.
        let (sender, receiver) = bounded::<u8>(1);
        for number in 0..10 {
            let chosen = select! {
                send(sender, number) -> result => Arm::Send(result),
                recv(receiver) -> message => Arm::Receive(message),
            };
            let expected = if number % 2 == 0 {
                Arm::Send(Ok(()))
            } else {
                Arm::Receive(Ok(number - 1))
            };
            assert_eq!(chosen, expected);
        }
    });
}

#[test]
fn only_one_arm_of_a_select_is_taken() {
    // Two senders offer something to the same select at the same time: one is taken, and the other one waits on.
    everywhere(|place| {
        for round in 0..30 {
            let (first, from_first) = bounded::<u8>(0);
            let (second, from_second) = bounded::<u8>(0);
            let (again_first, again_second) = (from_first.clone(), from_second.clone());
            let choosing = place.spawn(move || {
                select! {
                    recv(from_first) -> message => message.unwrap(),
                    recv(from_second) -> message => message.unwrap(),
                }
            });
            if round % 2 == 0 {
                choosing.wait_until_it_waits();
            }
            let offers = [(first, 1), (second, 2)]
                .map(|(sender, number)| place.spawn(move || sender.send_timeout(number, LONG).is_ok()));
            let chosen = choosing.join();
            let (taken, other) = if chosen == 1 {
                (again_first, again_second)
            } else {
                (again_second, again_first)
            };
            // The other one is still there.
            let left = other.recv().unwrap();
            assert_eq!(chosen + left, 3);
            assert_eq!(join_all(offers), [true, true]);
            assert!(taken.recv().is_err());
        }
    });
}

#[test]
fn a_message_for_one_who_chose_another_arm_goes_on() {
    // Those who wait for two channels are woken by one; what comes through the other is for the rest.
    everywhere_with_all(|place, flavour| {
        let (first, from_first) = flavour.channel::<usize>();
        let (second, from_second) = flavour.channel::<usize>();
        let waiting: Vec<_> = (0..6)
            .map(|_| {
                let (from_first, from_second) = (from_first.clone(), from_second.clone());
                place.spawn(move || {
                    select! {
                        recv(from_first) -> message => message.unwrap(),
                        recv(from_second) -> message => message.unwrap(),
                    }
                })
            })
            .collect();
        waiting.iter().for_each(Member::wait_until_it_waits);
        let sending = place.spawn(move || {
            for number in 0..3 {
                first.send(number).unwrap();
                second.send(10 + number).unwrap();
            }
            (first, second)
        });
        let mut got = join_all(waiting);
        got.sort();
        assert_eq!(got, [0, 1, 2, 10, 11, 12]);
        drop(sending.join());
    });
}

#[test]
fn an_attempt_sees_whoever_waits_in_a_select() {
    everywhere(|place| {
        let (sender, receiver) = bounded::<u8>(0);
        let (answers, answer) = bounded::<u8>(0);
        for number in 0..10 {
            let (from_us, to_us) = (receiver.clone(), answers.clone());
            let waiting = place.spawn(move || {
                select! {
                    recv(from_us) -> message => Arm::Receive(message),
                    send(to_us, 100) -> result => Arm::Send(result),
                }
            });
            let expected = if number % 2 == 0 {
                eventually("it takes something", || sender.try_send(number).is_ok());
                Arm::Receive(Ok(number))
            } else {
                eventually("it gives something", || answer.try_recv() == Ok(100));
                Arm::Send(Ok(()))
            };
            assert_eq!(waiting.join(), expected);
            assert!(
                sender.try_send(0).is_err() && answer.try_recv().is_err(),
                "nobody waits now"
            );
        }
    });
}

#[test]
fn a_select_meets_those_who_wait_already() {
    everywhere(|place| {
        let (sender, receiver) = bounded::<u8>(0);
        for number in 0..5 {
            let offering = {
                let sender = sender.clone();
                place.spawn(move || sender.send(number))
            };
            offering.wait_until_it_waits();
            let got = select! {
                recv(receiver) -> message => message,
                recv(never()) -> message => message,
            };
            assert_eq!((got, offering.join()), (Ok(number), Ok(())));
            let wanting = {
                let receiver = receiver.clone();
                place.spawn(move || receiver.recv())
            };
            wanting.wait_until_it_waits();
            select! {
                recv(never::<u8>()) -> _ => unreachable!(),
                send(sender, number) -> result => result.unwrap(),
            }
            assert_eq!(wanting.join(), Ok(number));
        }
    });
}
