//! Models of the channels: their own files, both ends and `select!` included.

use super::*;
use crate::channel::arms::{SendArm, select};
use crate::channel::{Receiver, Sender, bounded, never};
use crate::primitives::set_luck;
use std::mem::ManuallyDrop;
use std::time::Duration;

/// A message. Whoever opens it must see what was written when it was made.
struct Message {
    number: usize,
    content: Unguarded,
}

impl Message {
    fn new(number: usize) -> Message {
        let content = Unguarded::new();
        content.write();
        Message { number, content }
    }

    fn open(self) -> usize {
        self.content.write();
        self.number
    }
}

/// Runs `f` as a fiber with one end of a channel, or both, on a thread of its own. Says what it has come to, if it was not interrupted.
fn start<E: 'static, T: 'static>(
    fiber: &Arc<Fiber>,
    number: u64,
    end: E,
    f: impl FnOnce(&E) -> T + 'static,
) -> thread::JoinHandle<Option<T>> {
    let fiber = Arc::clone(fiber);
    thread::spawn(move || {
        let mut result = None;
        as_fiber(&fiber, number, || result = Some(f(&end)));
        // Not dropped before: loom's locks would be poisoned.
        drop(end);
        result
    })
}

/// So many fibers.
fn fibers<const N: usize>() -> [Arc<Fiber>; N] {
    [(); N].map(|()| Fiber::new())
}

fn send(sender: &Sender<Message>, number: usize) -> bool {
    sender.send(Message::new(number)).is_ok()
}

fn receive(receiver: &Receiver<Message>) -> Option<usize> {
    receiver.recv().ok().map(Message::open)
}

fn receive_in_time(receiver: &Receiver<Message>) -> Option<usize> {
    receiver.recv_timeout(Duration::ZERO).ok().map(Message::open)
}

/// A select with a message that is made late.
fn send_late(sender: &Sender<Message>, number: usize) -> bool {
    crate::select! { send(sender, Message::new(number)) -> result => result.is_ok() }
}

/// Runs a model once for each capacity, in all orders with no more than so many preemptions.
fn with_each(capacities: &[usize], preemptions: usize, model: impl Fn(usize) + Copy + Send + Sync + 'static) {
    for &capacity in capacities {
        in_orders_with(preemptions, FOR_EVER, move || model(capacity));
    }
}

#[test]
fn sender_and_receiver_meet() {
    with_each(&[0], 4, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<2>(), bounded(capacity));
        let sending = start(&fibers[1], 2, sender, |end| send(end, 1) && send(end, 2));
        as_fiber(&fibers[0], 1, || {
            assert_eq!(receive(&receiver), Some(1));
            assert_eq!(receive(&receiver), Some(2));
            assert_eq!(sending.join().unwrap(), Some(true));
            assert_eq!(receive(&receiver), None, "it is disconnected");
        });
    });
}

#[test]
fn messages_keep_their_order() {
    with_each(&[1, 2], 3, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<2>(), bounded(capacity));
        let sending = start(&fibers[1], 2, sender, |end| {
            (1..=3).all(|number| send(end, number))
        });
        as_fiber(&fibers[0], 1, || {
            let got: Vec<_> = receiver.iter().map(Message::open).collect();
            assert_eq!(got, [1, 2, 3]);
            assert_eq!(sending.join().unwrap(), Some(true));
        });
    });
}

#[test]
fn two_senders_and_a_receiver() {
    with_each(&[0, 1], 2, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded(capacity));
        let sending = [1, 2].map(|number| {
            let sender = sender.clone();
            start(&fibers[number], number as u64 + 1, sender, move |end| {
                send(end, number)
            })
        });
        drop(sender);
        as_fiber(&fibers[0], 1, || {
            let got: Vec<_> = receiver.iter().map(Message::open).collect();
            assert!(got == [1, 2] || got == [2, 1], "{got:?}");
            assert_eq!(sending.map(|one| one.join().unwrap()), [Some(true); 2]);
        });
    });
}

#[test]
fn what_a_cancelled_receiver_does_not_get_is_for_the_next() {
    with_each(&[0, 1], 3, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded(capacity));
        let mine = receiver.clone();
        let receiving = start(&fibers[1], 2, mine, receive);
        let sending = start(&fibers[2], 3, sender, |end| send(end, 1));
        as_fiber(&fibers[0], 1, || {
            fibers[1].cancel();
            match receiving.join().unwrap() {
                Some(got) => assert_eq!(got, Some(1)),
                None => assert_eq!(receive(&receiver), Some(1)),
            }
            assert_eq!(sending.join().unwrap(), Some(true));
            assert_eq!(receive(&receiver), None, "it comes once");
        });
    });
}

#[test]
fn a_message_for_one_who_is_being_cancelled_goes_to_the_next() {
    with_each(&[0, 1], 2, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded(capacity));
        let first = start(&fibers[1], 2, receiver.clone(), receive);
        let second = start(&fibers[2], 3, receiver, receive);
        as_fiber(&fibers[0], 1, || {
            fibers[1].cancel();
            assert!(send(&sender, 1));
            let Some(first) = first.join().unwrap() else {
                assert_eq!(second.join().unwrap(), Some(Some(1)));
                return;
            };
            assert!(send(&sender, 2));
            let second = second.join().unwrap().unwrap();
            assert!(matches!((first, second), (Some(1), Some(2)) | (Some(2), Some(1))));
        });
    });
}

#[test]
fn what_a_receiver_does_not_get_in_time_is_for_the_next() {
    with_each(&[0, 1], 4, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<2>(), bounded(capacity));
        let sending = start(&fibers[1], 2, sender, |end| send(end, 1));
        as_fiber(&fibers[0], 1, || {
            let got = receive_in_time(&receiver).or_else(|| receive(&receiver));
            assert_eq!(got, Some(1));
            assert_eq!(sending.join().unwrap(), Some(true));
            assert_eq!(receive(&receiver), None, "it comes once");
        });
    });
}

#[test]
fn a_cancelled_sender_has_sent_its_message_or_not() {
    with_each(&[0, 1], 2, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded(capacity));
        (0..capacity).for_each(|_| assert!(send(&sender, 0)));
        let mine = sender.clone();
        let cancelled = start(&fibers[1], 2, mine, |end| send(end, 1));
        let sending = start(&fibers[2], 3, sender, |end| send(end, 2));
        as_fiber(&fibers[0], 1, || {
            fibers[1].cancel();
            let mut got: Vec<_> = receiver.iter().map(Message::open).collect();
            assert_eq!(sending.join().unwrap(), Some(true));
            assert!(got.drain(..capacity).all(|number| number == 0));
            got.sort();
            match cancelled.join().unwrap() {
                Some(is_sent) => assert!(is_sent && got == [1, 2], "{got:?}"),
                None => assert_eq!(got, [2]),
            }
        });
    });
}

#[test]
fn a_message_that_is_made_late_arrives_once() {
    for luck in 0..2 {
        with_each(&[0, 1], 3, move |capacity| {
            set_luck(luck);
            let (fibers, (sender, receiver)) = (fibers::<2>(), bounded(capacity));
            let sending = start(&fibers[1], 2, sender, |end| send_late(end, 1));
            as_fiber(&fibers[0], 1, || {
                let got = crate::select! {
                    recv(receiver) -> message => message.ok().map(Message::open),
                    recv(never::<Message>()) -> _ => None,
                    recv(receiver) -> message => message.ok().map(Message::open),
                };
                assert_eq!(got, Some(1));
                assert_eq!(sending.join().unwrap(), Some(true));
                assert_eq!(receive(&receiver), None, "it comes once");
            });
        });
    }
}

#[test]
fn a_choice_takes_one_message_and_leaves_the_other() {
    for luck in 0..2 {
        with_each(&[0, 1], 2, move |capacity| {
            set_luck(luck);
            let fibers = fibers::<3>();
            let [(one, from_one), (two, from_two)] = [(); 2].map(|()| bounded(capacity));
            let sending = [
                start(&fibers[1], 2, one, |end| send(end, 1)),
                start(&fibers[2], 3, two, |end| send(end, 2)),
            ];
            as_fiber(&fibers[0], 1, || {
                let (got, other) = crate::select! {
                    recv(from_one) -> message => (message, receive(&from_two)),
                    recv(from_two) -> message => (message, receive(&from_one)),
                };
                let got = got.ok().map(Message::open);
                assert!(matches!((got, other), (Some(1), Some(2)) | (Some(2), Some(1))));
                assert_eq!(sending.map(|one| one.join().unwrap()), [Some(true); 2]);
            });
        });
    }
}

#[test]
fn two_that_would_send_or_receive_find_each_other() {
    for luck in 0..4 {
        with_each(&[0], 3, move |capacity| {
            set_luck(luck);
            let (fibers, (sender, receiver)) = (fibers::<2>(), bounded(capacity));
            /// What was received; nothing, if the own number was sent.
            fn send_or_receive(
                (sender, receiver): &(Sender<Message>, Receiver<Message>),
                number: usize,
            ) -> Option<usize> {
                crate::select! {
                    send(sender, Message::new(number)) -> result => {
                        assert!(result.is_ok());
                        None
                    },
                    recv(receiver) -> message => Some(message.ok().unwrap().open()),
                }
            }
            let ends = (sender.clone(), receiver.clone());
            let other = start(&fibers[1], 2, ends, |ends| send_or_receive(ends, 2));
            as_fiber(&fibers[0], 1, || {
                let ends = (sender, receiver);
                let mine = send_or_receive(&ends, 1);
                let other = other.join().unwrap().unwrap();
                assert!(
                    matches!((mine, other), (None, Some(1)) | (Some(2), None)),
                    "{mine:?} {other:?}"
                );
                assert!(ends.1.try_recv().is_err() && ends.0.try_send(Message::new(0)).is_err());
            });
        });
    }
}

#[test]
fn a_message_that_is_never_made_leaves_no_trace() {
    with_each(&[0, 1], 2, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded(capacity));
        let mine = sender.clone();
        let failing = start(&fibers[1], 2, mine, |end| {
            // As a panic would do.
            let mut arm = SendArm::late(end);
            let chosen = select([arm.arm()]);
            drop(arm);
            chosen
        });
        let sending = start(&fibers[2], 3, sender, |end| send(end, 1));
        as_fiber(&fibers[0], 1, || {
            assert_eq!(receive(&receiver), Some(1));
            assert_eq!(sending.join().unwrap(), Some(true));
            // It may wait for a receiver still.
            assert!(receiver.recv().is_err());
            assert_eq!(failing.join().unwrap(), Some(Some(0)));
        });
    });
}

#[test]
fn a_receiver_about_to_wait_hears_that_the_last_sender_is_gone() {
    with_each(&[0, 1], 3, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded::<Message>(capacity));
        let clone = sender.clone();
        let going = start(&fibers[1], 2, sender, |_| ());
        let mine = receiver.clone();
        let other = start(
            &fibers[2],
            3,
            mine,
            |end| crate::select! { recv(end) -> message => message.is_err() },
        );
        drop(clone);
        as_fiber(&fibers[0], 1, || {
            assert!(receiver.recv().is_err());
            assert_eq!(going.join().unwrap(), Some(()));
            assert_eq!(other.join().unwrap(), Some(true));
        });
    });
}

#[test]
fn a_sender_about_to_wait_hears_that_the_last_receiver_is_gone() {
    with_each(&[0, 1], 3, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded(capacity));
        (0..capacity).for_each(|_| assert!(send(&sender, 0)));
        let going = start(&fibers[1], 2, receiver, |_| ());
        let mine = sender.clone();
        let other = start(&fibers[2], 3, mine, |end| send_late(end, 1));
        as_fiber(&fibers[0], 1, || {
            assert!(!send(&sender, 2));
            assert_eq!(going.join().unwrap(), Some(()));
            assert_eq!(other.join().unwrap(), Some(false));
            assert!(sender.is_empty(), "what nobody can receive is dropped");
        });
    });
}

#[test]
fn a_place_that_is_given_back_when_the_last_receiver_goes_keeps_no_message() {
    with_each(&[1], 3, |capacity| {
        let (fibers, (sender, receiver)) = (fibers::<3>(), bounded::<Message>(capacity));
        let promised = start(&fibers[1], 2, sender.clone(), |end| {
            let mut arm = SendArm::late(end);
            select([arm.arm()])
        });
        let sending = start(&fibers[2], 3, sender.clone(), |end| send(end, 1));
        as_fiber(&fibers[0], 1, || {
            drop(receiver);
            assert_eq!(promised.join().unwrap(), Some(Some(0)));
            assert!(sending.join().unwrap().is_some());
            assert!(sender.is_empty(), "what nobody can receive is dropped");
        });
    });
}

#[test]
fn a_receiver_that_is_abandoned_takes_one_message_at_most() {
    with_each(&[0, 1], 4, |capacity| {
        let (fibers, (sender, receiver)) = (
            [Fiber::new(), Arc::new(Fiber::abandoned_after(|| {}))],
            bounded(capacity),
        );
        let mine = receiver.clone();
        let abandoned = start(&fibers[1], 2, mine, receive);
        as_fiber(&fibers[0], 1, || {
            let is_sent = sender.try_send(Message::new(1)).is_ok();
            abandoned.join().unwrap();
            let got = receiver.try_recv().ok().map(Message::open);
            assert!(got.is_none() || is_sent);
            assert!(sender.try_send(Message::new(2)).is_err() || capacity > 0);
        });
    });
}

#[test]
fn what_was_promised_to_an_abandoned_sender_goes_to_the_next() {
    with_each(&[0, 1], 2, |capacity| {
        let (fibers, (sender, receiver)) = (
            [
                Fiber::new(),
                Arc::new(Fiber::abandoned_after(|| {})),
                Fiber::new(),
            ],
            bounded(capacity),
        );
        (0..capacity).for_each(|_| assert!(send(&sender, 0)));
        let mine = sender.clone();
        let abandoned = start(&fibers[1], 2, mine, |end| {
            // The frames of a fiber that is abandoned stay: nothing in them is dropped.
            let mut arm = ManuallyDrop::new(SendArm::late(end));
            assert_eq!(select([arm.arm()]), Some(0));
            arm.finish(Message::new(1)).is_ok()
        });
        let sending = start(&fibers[2], 3, sender, |end| send(end, 2));
        as_fiber(&fibers[0], 1, || {
            let got: Vec<_> = receiver.iter().map(Message::open).collect();
            assert_eq!(sending.join().unwrap(), Some(true));
            // It was not abandoned if it did not have to wait.
            let first = abandoned.join().unwrap();
            assert_eq!(got.contains(&1), first == Some(true));
            assert!(got.contains(&2));
        });
    });
}
