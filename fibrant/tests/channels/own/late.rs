//! The message of a `send` arm is made when the arm was chosen, and that may take its time, or fail: nobody else is held up, and nothing
//! is lost.

use crate::channel::*;
use crate::harness::*;
use crate::patience::eventually;
use crate::select;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Somebody who sends a number that is made when a gate opens, or is not made after all.
struct Late {
    /// Whether its arm was chosen.
    is_chosen: Arc<AtomicBool>,
    gate: Sender<Option<u32>>,
    /// Says whether it was sent, if it was made.
    member: Member<Option<bool>>,
}

impl Late {
    fn new(place: &Place, sender: &Sender<u32>) -> Late {
        let (gate, opened) = unbounded::<Option<u32>>();
        let is_chosen = Arc::new(AtomicBool::new(false));
        let (sender, chosen) = (sender.clone(), Arc::clone(&is_chosen));
        let make = move || {
            chosen.store(true, SeqCst);
            let number = opened.recv().unwrap();
            number.unwrap_or_else(|| resume_unwind(Box::new("on purpose")))
        };
        let member = place.spawn(move || {
            catch_unwind(AssertUnwindSafe(|| {
                select! {
                    recv(never::<u32>()) -> _ => unreachable!(),
                    send(sender, make()) -> result => result.is_ok(),
                }
            }))
            .ok()
        });
        Late {
            is_chosen,
            gate,
            member,
        }
    }

    #[track_caller]
    fn wait_until_it_is_chosen(&self) {
        eventually("its arm was chosen", || self.is_chosen.load(SeqCst));
    }

    /// Opens the gate for this number, or for none, and says whether it was sent.
    fn finish(self, number: Option<u32>) -> Option<bool> {
        self.gate.send(number).unwrap();
        self.member.join()
    }
}

/// A way to receive a number, if there is one in time.
type Receive = fn(&Receiver<u32>) -> Option<u32>;

/// Those that wait for long.
const WAITING: [Receive; 4] = [
    |receiver| receiver.recv().ok(),
    |receiver| receiver.recv_timeout(LONG).ok(),
    |receiver| select! { recv(receiver) -> number => number.ok() },
    |receiver| {
        select! {
            recv(never::<u8>()) -> _ => None,
            recv(receiver) -> number => number.ok(),
            recv(receiver) -> number => number.ok(),
            default(LONG) => None,
        }
    },
];

/// Those that do not wait, or not for long.
const HASTY: [Receive; 4] = [
    |receiver| receiver.try_recv().ok(),
    |receiver| receiver.recv_timeout(ms(1)).ok(),
    |receiver| select! { recv(receiver) -> number => number.ok(), default => None },
    |receiver| select! { recv(receiver) -> number => number.ok(), default(ms(1)) => None },
];

#[test]
fn a_promised_place_holds_up_nobody() {
    everywhere(|place| {
        for receive in WAITING.into_iter().chain(HASTY) {
            let (sender, receiver) = bounded(1);
            let late = Late::new(place, &sender);
            late.wait_until_it_is_chosen();
            let (clone, second) = (sender.clone(), receiver.clone());
            let sending = place.spawn(move || clone.send(2).is_ok());
            sending.wait_until_it_waits();
            assert_eq!(place.spawn(move || receive(&second)).join(), Some(2));
            assert!(sending.join());
            // Whoever waits to receive does not wait for the promised message either.
            let second = receiver.clone();
            let receiving = place.spawn(move || second.recv());
            receiving.wait_until_it_waits();
            sender.send(3).unwrap();
            assert_eq!(receiving.join(), Ok(3));
            assert!(receiver.is_empty() && sender.try_send(4).is_err());
            assert_eq!(late.finish(Some(1)), Some(true));
            assert_eq!(receiver.try_recv(), Ok(1));
        }
    });
}

#[test]
fn a_promised_place_that_is_not_used_goes_to_the_next() {
    everywhere(|place| {
        let (sender, receiver) = bounded(1);
        let late = Late::new(place, &sender);
        late.wait_until_it_is_chosen();
        let sending = [2, 3].map(|number| {
            let clone = sender.clone();
            let sending = place.spawn(move || clone.send(number).is_ok());
            sending.wait_until_it_waits();
            sending
        });
        let last = Late::new(place, &sender);
        last.member.wait_until_it_waits();
        assert_eq!(late.finish(None), None);
        let [first, second] = sending;
        assert!(first.join());
        assert_eq!(receiver.recv(), Ok(2));
        assert!(second.join());
        assert_eq!(receiver.recv(), Ok(3));
        last.wait_until_it_is_chosen();
        assert_eq!(last.finish(None), None);
        sender.try_send(4).unwrap();
        assert_eq!(receiver.try_recv(), Ok(4));
    });
}

#[test]
fn a_receiver_whose_message_is_not_made_goes_on_waiting() {
    everywhere(|place| {
        for receive in WAITING {
            for comes_first in [true, false] {
                let (sender, receiver) = bounded(0);
                let receive = move || receive(&receiver);
                let (late, receiving) = if comes_first {
                    let receiving = place.spawn(receive);
                    receiving.wait_until_it_waits();
                    (Late::new(place, &sender), receiving)
                } else {
                    let late = Late::new(place, &sender);
                    late.member.wait_until_it_waits();
                    (late, place.spawn(receive))
                };
                late.wait_until_it_is_chosen();
                // It has its partner already.
                assert!(sender.try_send(6).is_err());
                assert_eq!(late.finish(None), None);
                assert!(!receiving.is_finished());
                sender.send(7).unwrap();
                assert_eq!(receiving.join(), Some(7));
            }
        }
    });
}

#[test]
fn a_receiver_that_was_chosen_in_time_gets_its_message() {
    everywhere(|place| {
        for receive in HASTY {
            let (sender, receiver) = bounded(0);
            let late = Late::new(place, &sender);
            late.member.wait_until_it_waits();
            let receiving = place.spawn(move || receive(&receiver));
            late.wait_until_it_is_chosen();
            // Its time is up.
            fibrant::sleep(ms(5));
            assert!(!receiving.is_finished());
            assert_eq!(late.finish(Some(1)), Some(true));
            assert_eq!(receiving.join(), Some(1));
        }
    });
}

#[test]
fn whoever_does_not_wait_gets_what_the_next_one_sends() {
    everywhere(|place| {
        for receive in HASTY {
            let (sender, receiver) = bounded(0);
            let late = Late::new(place, &sender);
            late.member.wait_until_it_waits();
            let clone = sender.clone();
            let sending = place.spawn(move || clone.send(2).is_ok());
            sending.wait_until_it_waits();
            late.gate.send(None).unwrap();
            assert_eq!(place.spawn(move || receive(&receiver)).join(), Some(2));
            assert!(sending.join());
            assert_eq!(late.member.join(), None);
        }
    });
}
