//! Where fibrant promises more than crossbeam-channel does.

use crate::channel::*;
use crate::harness::*;
use crate::patience::Census;
use crate::select;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[test]
fn what_nobody_can_receive_is_dropped_at_once_in_every_flavour() {
    // With a bound, crossbeam keeps it until the senders are gone, too.
    alone(|| {
        for flavour in FLAVOURS {
            let count = flavour.room().unwrap_or(10);
            let census = Census::default();
            let (sender, receiver) = flavour.channel();
            (0..count).for_each(|_| sender.send(census.count()).unwrap());
            drop(receiver);
            assert_eq!(census.dropped(), count);
            assert_eq!((sender.len(), sender.is_empty()), (0, true));
        }
    });
}

fn panicking() -> u8 {
    resume_unwind(Box::new("on purpose"))
}

#[test]
fn a_value_that_panics_is_not_sent_and_does_no_harm() {
    // With crossbeam the process ends.
    alone(|| {
        for flavour in [Flavour::Unbounded, Flavour::Bounded(1), Flavour::Bounded(3)] {
            let (sender, receiver) = flavour.channel::<u8>();
            for number in 0..5 {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    select! {
                        send(sender, panicking()) -> _ => unreachable!(),
                        recv(never::<u8>()) -> _ => unreachable!(),
                    }
                }));
                assert!(result.is_err());
                assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
                sender.try_send(number).unwrap();
                assert_eq!(receiver.try_recv(), Ok(number));
            }
        }
    });
}
