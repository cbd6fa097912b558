//! Timeouts and deadlines: they do not end early, they give the message back, and whoever gave up leaves no trace.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Census, eventually};
use crate::select;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

/// Runs something that must take at least so long, and not much longer.
#[track_caller]
fn takes<T>(milliseconds: u64, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = f();
    let took = start.elapsed();
    assert!(took >= ms(milliseconds), "early: {took:?}");
    assert!(took < ms(milliseconds) + LATE, "late: {took:?}");
    result
}

/// A channel that is full, for what flavour can be.
fn full(flavour: Flavour) -> Option<(Sender<u32>, Receiver<u32>)> {
    let room = flavour.room()?;
    let (sender, receiver) = flavour.channel();
    (0..room).for_each(|_| sender.send(0).unwrap());
    Some((sender, receiver))
}

#[test]
fn a_receive_gives_up_in_time() {
    alone(|| {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel::<u8>();
            let late = Err(RecvTimeoutError::Timeout);
            assert_eq!(takes(12, || receiver.recv_timeout(ms(12))), late);
            assert_eq!(takes(7, || receiver.recv_deadline(Instant::now() + ms(7))), late);
            assert_eq!(takes(0, || receiver.recv_timeout(ms(0))), late);
            assert_eq!(takes(0, || receiver.recv_deadline(Instant::now() - ms(5))), late);
            drop(sender);
            let gone = Err(RecvTimeoutError::Disconnected);
            assert_eq!(takes(0, || receiver.recv_timeout(LONG)), gone);
            assert_eq!(takes(0, || receiver.recv_timeout(ms(0))), gone);
            assert_eq!(takes(0, || receiver.recv_deadline(Instant::now() - ms(5))), gone);
        }
    });
}

#[test]
fn a_send_gives_up_in_time_and_gives_the_message_back() {
    alone(|| {
        for flavour in FLAVOURS {
            let Some((sender, receiver)) = full(flavour) else {
                continue;
            };
            let late = Err(SendTimeoutError::Timeout(7));
            assert_eq!(takes(12, || sender.send_timeout(7, ms(12))), late);
            assert_eq!(takes(7, || sender.send_deadline(7, Instant::now() + ms(7))), late);
            assert_eq!(takes(0, || sender.send_timeout(7, ms(0))), late);
            assert_eq!(takes(0, || sender.send_deadline(7, Instant::now() - ms(5))), late);
            drop(receiver);
            let gone = Err(SendTimeoutError::Disconnected(7));
            assert_eq!(takes(0, || sender.send_timeout(7, LONG)), gone);
            assert_eq!(takes(0, || sender.send_timeout(7, ms(0))), gone);
            assert_eq!(takes(0, || sender.send_deadline(7, Instant::now() - ms(5))), gone);
        }
    });
}

#[test]
fn what_can_be_done_at_once_is_done_even_if_it_is_late() {
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(3)] {
            let (sender, receiver) = flavour.channel();
            let past = Instant::now() - ms(5);
            sender.send_deadline(1, past).unwrap();
            sender.send_timeout(2, ms(0)).unwrap();
            sender.send_timeout(3, LONG).unwrap();
            assert_eq!(receiver.recv_deadline(past), Ok(1));
            assert_eq!(receiver.recv_timeout(ms(0)), Ok(2));
            assert_eq!(receiver.recv_timeout(LONG), Ok(3));
        }
    });
    everywhere(|place| {
        let (sender, receiver) = bounded(0);
        let past = Instant::now() - ms(5);
        let waiting = place.spawn({
            let receiver = receiver.clone();
            move || (receiver.recv(), receiver.recv())
        });
        eventually("it is taken late", || sender.send_deadline(1, past).is_ok());
        eventually("it is taken at once", || sender.send_timeout(2, ms(0)).is_ok());
        assert_eq!(waiting.join(), (Ok(1), Ok(2)));
        let waiting = place.spawn(move || (sender.send(3), sender.send(4)));
        eventually("it is there late", || receiver.recv_deadline(past) == Ok(3));
        eventually("it is there at once", || receiver.recv_timeout(ms(0)) == Ok(4));
        assert_eq!(waiting.join(), (Ok(()), Ok(())));
    });
}

#[test]
fn who_waits_with_a_limit_is_served_before_it() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel();
        let waiting = place.spawn(move || {
            let first = receiver.recv_timeout(LONG);
            (first, receiver.recv_deadline(Instant::now() + LONG))
        });
        waiting.wait_until_it_waits();
        sender.send(1).unwrap();
        sender.send_timeout(2, LONG).unwrap();
        assert_eq!(waiting.join(), (Ok(1), Ok(2)));
        let Some((sender, receiver)) = full(flavour) else {
            return;
        };
        let waiting = place.spawn(move || {
            let first = sender.send_timeout(1, LONG);
            (first, sender.send_deadline(2, Instant::now() + LONG))
        });
        waiting.wait_until_it_waits();
        let got: Vec<_> = receiver.iter().collect();
        assert!(got.ends_with(&[1, 2]), "{got:?}");
        assert_eq!(waiting.join(), (Ok(()), Ok(())));
    });
}

#[test]
fn who_gave_up_to_receive_takes_nothing() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel();
        let (silent, _listens) = bounded::<u32>(0);
        for _ in 0..3 {
            let given_up = {
                let (receiver, silent) = (receiver.clone(), silent.clone());
                place.spawn(move || {
                    assert!(receiver.recv_timeout(ms(2)).is_err());
                    select! {
                        recv(receiver) -> message => panic!("{message:?}"),
                        send(silent, 1) -> result => panic!("{result:?}"),
                        recv(receiver) -> message => panic!("{message:?}"),
                        default(ms(2)) => {}
                    }
                })
            };
            given_up.join();
        }
        if flavour == RENDEZVOUS {
            assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)), "nobody waits");
        } else {
            sender.try_send(1).unwrap();
            assert_eq!((receiver.len(), receiver.try_recv()), (1, Ok(1)));
        }
        // Whoever comes next is served.
        let next = place.spawn(move || receiver.recv());
        sender.send(2).unwrap();
        assert_eq!(next.join(), Ok(2));
    });
}

#[test]
fn who_gave_up_to_send_has_sent_nothing() {
    everywhere_with_all(|place, flavour| {
        let Some((sender, receiver)) = full(flavour) else {
            return;
        };
        let (_speaks, silent) = bounded::<u32>(0);
        for _ in 0..3 {
            let given_up = {
                let (sender, silent) = (sender.clone(), silent.clone());
                place.spawn(move || {
                    assert_eq!(sender.send_timeout(7, ms(2)), Err(SendTimeoutError::Timeout(7)));
                    select! {
                        send(sender, 8) -> result => panic!("{result:?}"),
                        recv(silent) -> message => panic!("{message:?}"),
                        send(sender, 9) -> result => panic!("{result:?}"),
                        default(ms(2)) => {}
                    }
                })
            };
            given_up.join();
        }
        let room = flavour.room().unwrap();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), vec![0; room]);
        let next = place.spawn(move || sender.send(2));
        assert_eq!((receiver.recv(), next.join()), (Ok(2), Ok(())));
        assert_eq!(receiver.recv(), Err(RecvError));
    });
}

#[test]
fn messages_meet_limits_at_the_last_moment() {
    // Both sides give up after about as long as the other one needs: every message that was sent is received, no other.
    const ROUNDS: usize = 150;
    everywhere_with_all(|place, flavour| {
        let census = Census::default();
        let (sender, receiver) = flavour.channel();
        let (sent, received) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut members = Vec::new();
        for me in 0..2 {
            let (sender, sent, census) = (sender.clone(), Arc::clone(&sent), census.clone());
            members.push(place.spawn(move || {
                let mut random = Random::new(me);
                for _ in 0..ROUNDS {
                    match sender.send_timeout(census.count(), us(random.below(60))) {
                        Ok(()) => drop(sent.fetch_add(1, SeqCst)),
                        Err(error) => assert!(error.is_timeout()),
                    }
                    random.linger();
                }
            }));
            let (receiver, received) = (receiver.clone(), Arc::clone(&received));
            members.push(place.spawn(move || {
                let mut random = Random::new(10 + me);
                loop {
                    match receiver.recv_timeout(us(random.below(60))) {
                        Ok(_) => drop(received.fetch_add(1, SeqCst)),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                    random.linger();
                }
            }));
        }
        drop((sender, receiver));
        join_all(members);
        assert_eq!(sent.load(SeqCst), received.load(SeqCst));
        assert_eq!((census.made(), census.dropped()), (2 * ROUNDS, 2 * ROUNDS));
    });
}

#[test]
fn many_limits_end_while_others_go_on() {
    everywhere(|place| {
        let (sender, receiver) = bounded::<u8>(0);
        let endless = place.spawn({
            let receiver = receiver.clone();
            move || receiver.recv()
        });
        endless.wait_until_it_waits();
        let limited: Vec<_> = (0..12)
            .map(|index| {
                let receiver = receiver.clone();
                place.spawn(move || takes(index % 5, || receiver.recv_timeout(ms(index % 5))))
            })
            .collect();
        for result in join_all(limited) {
            assert_eq!(result, Err(RecvTimeoutError::Timeout));
        }
        assert!(!endless.is_finished());
        sender.send(3).unwrap();
        assert_eq!(endless.join(), Ok(3));
    });
}
