//! What one alone can see of a channel: what fits in, what an attempt says, what the types promise.

use crate::channel::*;
use crate::harness::*;
use std::error::Error;
use std::iter::FusedIterator;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

/// Says of a type whether it is `Send` and whether it is `Sync`, without asking for it: a method of the type itself is found before
/// that of a trait.
struct Probe<T>(std::marker::PhantomData<T>);

trait Otherwise {
    const SEND: bool = false;
    const SYNC: bool = false;
}
impl<T> Otherwise for Probe<T> {}

/// The same for `Sync`, so that each constant has one condition.
struct SyncProbe<T>(std::marker::PhantomData<T>);
impl<T> Otherwise for SyncProbe<T> {}

impl<T: Send> Probe<T> {
    const SEND: bool = true;
}
impl<T: Sync> SyncProbe<T> {
    const SYNC: bool = true;
}

#[test]
fn ends_may_go_to_other_threads_if_messages_may() {
    use std::cell::Cell;
    use std::rc::Rc;
    // A `Cell` is `Send`, but not `Sync`: that is enough.
    const {
        assert!(Probe::<Sender<Cell<u8>>>::SEND && SyncProbe::<Sender<Cell<u8>>>::SYNC);
        assert!(Probe::<Receiver<Cell<u8>>>::SEND && SyncProbe::<Receiver<Cell<u8>>>::SYNC);
        assert!(!Probe::<Sender<Rc<u8>>>::SEND && !SyncProbe::<Sender<Rc<u8>>>::SYNC);
        assert!(!Probe::<Receiver<Rc<u8>>>::SEND && !SyncProbe::<Receiver<Rc<u8>>>::SYNC);
    }
}

#[test]
fn types_have_the_traits_one_expects() {
    // Neither `Clone` nor `Debug`, nor anything about panics.
    struct Plain(#[allow(dead_code)] std::cell::Cell<u8>);
    fn end<T: Clone + std::fmt::Debug + UnwindSafe + RefUnwindSafe>(_: &T) {}
    fn iterator<T: FusedIterator + std::fmt::Debug>(_: &T) {}
    fn error<T: Error + Send + 'static>(error: T) -> String {
        format!("{error} {error:?}")
    }
    let (sender, receiver) = bounded::<Plain>(1);
    end(&sender);
    end(&receiver);
    iterator(&receiver.iter());
    iterator(&(&receiver).into_iter());
    let _: TryIter<'_, Plain> = receiver.try_iter();
    let _: Iter<'_, Plain> = receiver.iter();
    assert!(format!("{sender:?}").contains("Sender"));
    assert!(format!("{receiver:?}").contains("Receiver"));
    let into: IntoIter<Plain> = receiver.into_iter();
    iterator(&into);
    assert!(error(SendError(Plain(0.into()))).contains("disconnected"));
    assert!(error(TrySendError::Full(Plain(0.into()))).contains("full"));
    assert!(error(TrySendError::Disconnected(Plain(0.into()))).contains("disconnected"));
    assert!(error(SendTimeoutError::Timeout(Plain(0.into()))).contains("timed out"));
    assert!(error(SendTimeoutError::Disconnected(Plain(0.into()))).contains("disconnected"));
    assert!(error(RecvError).contains("disconnected"));
    assert!(error(TryRecvError::Empty).contains("empty"));
    assert!(error(TryRecvError::Disconnected).contains("disconnected"));
    assert!(error(RecvTimeoutError::Timeout).contains("timed out"));
    assert!(error(RecvTimeoutError::Disconnected).contains("disconnected"));
}

#[test]
fn errors_give_back_the_message_and_say_what_they_are() {
    assert_eq!(SendError(7).into_inner(), 7);
    assert_eq!(TrySendError::Full(7).into_inner(), 7);
    assert_eq!(TrySendError::Disconnected(7).into_inner(), 7);
    assert_eq!(SendTimeoutError::Timeout(7).into_inner(), 7);
    assert_eq!(SendTimeoutError::Disconnected(7).into_inner(), 7);
    assert!(TrySendError::Full(()).is_full() && !TrySendError::Full(()).is_disconnected());
    assert!(TrySendError::Disconnected(()).is_disconnected() && !TrySendError::Disconnected(()).is_full());
    let (late, gone) = (SendTimeoutError::Timeout(()), SendTimeoutError::Disconnected(()));
    assert!(late.is_timeout() && !late.is_disconnected() && gone.is_disconnected() && !gone.is_timeout());
    let (empty, gone) = (TryRecvError::Empty, TryRecvError::Disconnected);
    assert!(empty.is_empty() && !empty.is_disconnected() && gone.is_disconnected() && !gone.is_empty());
    let (late, gone) = (RecvTimeoutError::Timeout, RecvTimeoutError::Disconnected);
    assert!(late.is_timeout() && !late.is_disconnected() && gone.is_disconnected() && !gone.is_timeout());
    // What is always about the other side is an error of the other kinds, too.
    assert_eq!(TrySendError::from(SendError(7)), TrySendError::Disconnected(7));
    assert_eq!(
        SendTimeoutError::from(SendError(7)),
        SendTimeoutError::Disconnected(7)
    );
    assert_eq!(TryRecvError::from(RecvError), TryRecvError::Disconnected);
    assert_eq!(RecvTimeoutError::from(RecvError), RecvTimeoutError::Disconnected);
}

#[test]
fn figures_tell_what_is_in_a_channel() {
    alone(|| {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel();
            assert_eq!(
                (sender.capacity(), receiver.capacity()),
                (flavour.room(), flavour.room())
            );
            let check = |count: usize| {
                let is_full = flavour.room() == Some(count);
                assert_eq!((sender.len(), receiver.len()), (count, count), "{flavour:?}");
                assert_eq!((sender.is_empty(), receiver.is_empty()), (count == 0, count == 0));
                assert_eq!((sender.is_full(), receiver.is_full()), (is_full, is_full));
            };
            let most = flavour.room().unwrap_or(100);
            // More than once around, if it is a ring.
            for _ in 0..5 {
                check(0);
                for count in 0..most {
                    sender.try_send(count).unwrap();
                    check(count + 1);
                }
                for count in 0..most {
                    assert_eq!(receiver.try_recv(), Ok(count));
                    check(most - count - 1);
                }
                // And from another place in the ring.
                if most > 1 {
                    sender.send(0).unwrap();
                    receiver.recv().unwrap();
                }
            }
        }
    });
}

#[test]
fn a_large_bound_holds_as_many() {
    alone(|| {
        for room in [2, 31, 32, 33, 64, 1000] {
            let (sender, receiver) = bounded(room);
            (0..room).for_each(|number| sender.try_send(number).unwrap());
            assert_eq!(sender.try_send(room), Err(TrySendError::Full(room)));
            assert!(sender.is_full() && receiver.len() == room);
            assert_eq!(receiver.try_iter().collect::<Vec<_>>(), Vec::from_iter(0..room));
        }
    });
}

#[test]
fn many_messages_fit_where_there_is_no_bound() {
    alone(|| {
        let (sender, receiver) = unbounded();
        for round in 0..3 {
            let count = 5_000 + round;
            (0..count).for_each(|number| sender.send(number).unwrap());
            assert_eq!((sender.len(), sender.is_full()), (count, false));
            (0..count).for_each(|number| assert_eq!(receiver.recv(), Ok(number)));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        }
    });
}

#[test]
fn an_attempt_does_not_wait() {
    alone(|| {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel();
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            if let Some(room) = flavour.room() {
                (0..room).for_each(|number| sender.try_send(number).unwrap());
                assert_eq!(sender.try_send(100), Err(TrySendError::Full(100)));
                assert_eq!(receiver.try_iter().count(), room, "what was refused is not in it");
            } else {
                sender.try_send(100).unwrap();
                assert_eq!(receiver.try_recv(), Ok(100));
            }
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            drop(sender);
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
            let (sender, receiver) = flavour.channel();
            drop(receiver);
            assert_eq!(sender.try_send(7), Err(TrySendError::Disconnected(7)));
        }
    });
}

#[test]
fn ends_know_whether_they_belong_together() {
    alone(|| {
        let mut channels = Vec::new();
        for flavour in FLAVOURS.into_iter().chain(FLAVOURS) {
            channels.push(flavour.channel::<u8>());
        }
        for (first, (sender, receiver)) in channels.iter().enumerate() {
            for (second, (other_sender, other_receiver)) in channels.iter().enumerate() {
                assert_eq!(sender.same_channel(other_sender), first == second);
                assert_eq!(receiver.same_channel(other_receiver), first == second);
                assert_eq!(sender.same_channel(&other_sender.clone()), first == second);
                assert_eq!(receiver.same_channel(&other_receiver.clone()), first == second);
            }
        }
    });
}

#[test]
fn timers_know_whether_they_belong_together() {
    let (first, second) = (after(LONG), after(LONG));
    assert!(first.same_channel(&first.clone()) && !first.same_channel(&second));
    let (slow, other) = (tick(LONG), tick(LONG));
    assert!(slow.same_channel(&slow.clone()) && !slow.same_channel(&other) && !slow.same_channel(&first));
    // One cannot tell those apart that never bring anything.
    assert!(!never().same_channel(&slow));
    assert!(!never::<u8>().same_channel(&unbounded().1));
}

#[test]
fn receivers_are_iterators() {
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(4)] {
            let filled = || {
                let (sender, receiver) = flavour.channel();
                (0..4).for_each(|number| sender.send(number).unwrap());
                (sender, receiver)
            };
            // Without waiting it ends where there is nothing, and goes on when there is something again.
            let (sender, receiver) = filled();
            let mut attempts = receiver.try_iter();
            assert_eq!(attempts.by_ref().take(2).collect::<Vec<_>>(), [0, 1]);
            assert_eq!(attempts.by_ref().collect::<Vec<_>>(), [2, 3]);
            sender.send(4).unwrap();
            assert_eq!((attempts.next(), attempts.next()), (Some(4), None));
            // Otherwise it ends when there are no senders.
            let (sender, receiver) = filled();
            drop(sender);
            assert_eq!(receiver.iter().take(1).collect::<Vec<_>>(), [0]);
            let mut rest = Vec::new();
            for number in &receiver {
                rest.push(number);
            }
            assert_eq!(rest, [1, 2, 3]);
            assert_eq!((receiver.iter().next(), receiver.try_iter().next()), (None, None));
            let (sender, receiver) = filled();
            drop(sender);
            let mut all = receiver.into_iter();
            assert_eq!(all.by_ref().collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert_eq!(all.next(), None);
            // Who iterates over the receiver itself drops it.
            let (sender, receiver) = filled();
            for number in receiver {
                if number == 1 {
                    break;
                }
            }
            assert_eq!(sender.send(5), Err(SendError(5)));
        }
    });
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    #[derive(PartialEq, Debug)]
    struct Page([u8; 4096]);
    #[derive(PartialEq, Debug)]
    #[repr(align(256))]
    struct Aligned(u8);
    fn exchange<T: PartialEq + std::fmt::Debug + Send + 'static>(make: fn(u8) -> T) {
        everywhere_with_all(|place, flavour| {
            let (sender, receiver) = flavour.channel();
            let sending = place.spawn(move || (0..20).for_each(|number| sender.send(make(number)).unwrap()));
            let receiving = place.spawn(move || {
                for number in 0..20 {
                    assert_eq!(receiver.recv(), Ok(make(number)));
                }
                assert_eq!(receiver.recv(), Err(RecvError));
            });
            sending.join();
            receiving.join();
        });
    }
    exchange(|_| ());
    exchange(|number| Page(std::array::from_fn(|index| number.wrapping_mul(index as u8 | 1))));
    exchange(Aligned);
    exchange(|number| vec![number.to_string(); 3]);
    exchange(|number| (number % 2 == 0).then(|| Box::new(number)));
}

#[test]
fn what_has_no_size_is_counted_all_the_same() {
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(3)] {
            let (sender, receiver) = flavour.channel::<()>();
            (0..3).for_each(|_| sender.try_send(()).unwrap());
            assert_eq!(sender.try_send(()).is_ok(), flavour == Flavour::Unbounded);
            assert_eq!(receiver.try_iter().count(), sender.capacity().unwrap_or(4));
        }
    });
}

#[test]
fn a_channel_can_go_through_a_channel() {
    everywhere_with_all(|place, flavour| {
        let (outer, arrivals) = flavour.channel::<Receiver<Sender<u8>>>();
        let far = place.spawn(move || {
            let inner: Receiver<Sender<u8>> = arrivals.recv().unwrap();
            let answer = inner.recv().unwrap();
            answer.send(7).unwrap();
        });
        let near = place.spawn(move || {
            let (asks, questions) = flavour.channel();
            let (answers, answer) = flavour.channel();
            outer.send(questions).unwrap();
            asks.send(answers).unwrap();
            assert_eq!((answer.recv(), answer.recv()), (Ok(7), Err(RecvError)));
        });
        far.join();
        near.join();
    });
}

#[test]
fn endless_limits_are_no_limits() {
    alone(|| {
        let (sender, receiver) = bounded(1);
        sender.send_timeout(1, Duration::MAX).unwrap();
        assert_eq!(receiver.recv_timeout(Duration::MAX), Ok(1));
        drop(sender);
        assert_eq!(
            receiver.recv_timeout(Duration::MAX),
            Err(RecvTimeoutError::Disconnected)
        );
    });
}
