//! Waits that are cancelled, and waits inside `fibrant::timeout`: they unwind at once, nothing is lost or comes twice, and those who wait
//! behind are served.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Census, Counted, Watchdog, eventually, text};
use crate::select;
use fibrant::runtime::Handle;
use fibrant::{Cancelled, JoinHandle};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

/// A message: a number, and a count of those that are there.
type Numbered = (usize, Counted);

#[track_caller]
fn wait_until_it_waits<T>(runtime: &Handle, fiber: &JoinHandle<T>) {
    eventually("it waits", || {
        let fibers = runtime.dump().fibers;
        fibers
            .iter()
            .any(|one| one.id == fiber.id() && one.wait.is_some())
    });
}

/// Whether the fiber was cancelled; if it panicked for another reason, this goes on with that.
#[track_caller]
fn was_cancelled<T>(result: &thread::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(payload) => {
            assert!(payload.is::<Cancelled>(), "{}", text(&**payload));
            true
        }
    }
}

/// Runs a test in runtimes with one worker and with two, with each flavour.
#[track_caller]
fn in_fibers(test: impl Fn(&Handle, Flavour)) {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        for flavour in FLAVOURS {
            watchdog.note(format!("{workers} workers, {flavour:?}"));
            let runtime = watchdog.runtime(workers);
            test(&runtime, flavour);
            runtime.stop().unwrap();
        }
    }
}

/// A way to wait for a message.
type Receive = fn(&Receiver<Numbered>) -> Option<Numbered>;

/// All of them.
const RECEIVES: [Receive; 7] = [
    |receiver| receiver.recv().ok(),
    |receiver| receiver.recv_timeout(LONG).ok(),
    |receiver| receiver.recv_deadline(Instant::now() + LONG).ok(),
    |receiver| receiver.iter().next(),
    |receiver| select! { recv(receiver) -> message => message.ok() },
    |receiver| {
        let (full, empty) = bounded::<Numbered>(0);
        select! {
            recv(empty) -> _ => None,
            recv(receiver) -> message => message.ok(),
            send(full, unreachable()) -> _ => None,
            recv(after(LONG)) -> _ => None,
        }
    },
    |receiver| {
        select! {
            recv(receiver) -> message => message.ok(),
            recv(receiver) -> message => message.ok(),
            recv(never::<u8>()) -> _ => None,
            default(LONG) => None,
        }
    },
];

/// A way to wait for room.
type Send = fn(&Sender<Numbered>, Numbered) -> bool;

/// All of them.
const SENDS: [Send; 6] = [
    |sender, message| sender.send(message).is_ok(),
    |sender, message| sender.send_timeout(message, LONG).is_ok(),
    |sender, message| sender.send_deadline(message, Instant::now() + LONG).is_ok(),
    |sender, message| select! { send(sender, message) -> result => result.is_ok() },
    |sender, message| {
        let (full, empty) = bounded::<Numbered>(0);
        select! {
            recv(empty) -> _ => false,
            send(sender, message) -> result => result.is_ok(),
            send(full, unreachable()) -> _ => false,
            recv(tick(LONG)) -> _ => false,
        }
    },
    |sender, message| {
        select! {
            send(sender, message) -> result => result.is_ok(),
            send(sender, message) -> result => result.is_ok(),
            recv(never::<u8>()) -> _ => false,
            default(LONG) => false,
        }
    },
];

/// The value of an arm that is not chosen.
fn unreachable<T>() -> T {
    panic!("this arm is not chosen")
}

/// A channel that is full. There is none if there is no bound.
fn full(flavour: Flavour, census: &Census) -> Option<(Sender<Numbered>, Receiver<Numbered>)> {
    let room = flavour.room()?;
    let (sender, receiver) = flavour.channel();
    (0..room).for_each(|_| sender.send((0, census.count())).ok().unwrap());
    Some((sender, receiver))
}

/// What is in a channel, as numbers.
fn drain(receiver: &Receiver<Numbered>) -> Vec<usize> {
    receiver.try_iter().map(|(number, _)| number).collect()
}

/// Nobody waits to receive: a message that is sent can be received, and does not vanish.
fn assert_nobody_receives(
    flavour: Flavour,
    census: &Census,
    (sender, receiver): &(Sender<Numbered>, Receiver<Numbered>),
) {
    let result = sender.try_send((7, census.count()));
    if flavour == RENDEZVOUS {
        assert!(result.is_err_and(|error| error.is_full()), "somebody took it");
    } else {
        assert!(result.is_ok());
        assert_eq!(drain(receiver), [7]);
    }
    assert!(receiver.is_empty());
}

#[test]
fn a_cancelled_receive_unwinds_and_leaves_no_trace() {
    in_fibers(|runtime, flavour| {
        for receive in RECEIVES {
            let census = Census::default();
            let channel = flavour.channel();
            let receiver = channel.1.clone();
            let fiber = runtime.spawn(move || receive(&receiver).is_some());
            wait_until_it_waits(runtime, &fiber);
            let start = Instant::now();
            fiber.cancel();
            assert!(was_cancelled(&fiber.join()));
            assert!(start.elapsed() < LATE);
            assert_nobody_receives(flavour, &census, &channel);
            // Whoever comes next is served.
            let (sender, receiver) = channel;
            let next = runtime.spawn(move || receive(&receiver).map(|(number, _)| number));
            sender.send((8, census.count())).ok().unwrap();
            assert_eq!(next.join().unwrap(), Some(8));
            drop(sender);
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn a_cancelled_send_unwinds_and_has_sent_nothing() {
    in_fibers(|runtime, flavour| {
        for send in SENDS {
            let census = Census::default();
            let Some((sender, receiver)) = full(flavour, &census) else {
                return;
            };
            let room = flavour.room().unwrap();
            let (mine, message) = (sender.clone(), (1, census.count()));
            let fiber = runtime.spawn(move || send(&mine, message));
            wait_until_it_waits(runtime, &fiber);
            fiber.cancel();
            assert!(was_cancelled(&fiber.join()));
            assert_eq!(census.dropped(), 1, "its message is dropped");
            assert_eq!(drain(&receiver), vec![0; room]);
            // Whoever comes next is served.
            let message = (2, census.count());
            let next = runtime.spawn(move || send(&sender, message));
            assert_eq!(receiver.recv().ok().map(|(number, _)| number), Some(2));
            assert!(next.join().unwrap() && receiver.recv().is_err());
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn a_receive_runs_out_of_time_and_can_be_made_again() {
    in_fibers(|runtime, flavour| {
        for receive in RECEIVES {
            let census = Census::default();
            let channel = flavour.channel();
            let receiver = channel.1.clone();
            let is_over = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&is_over);
            let fiber = runtime.spawn(move || {
                for _ in 0..2 {
                    let start = Instant::now();
                    assert!(fibrant::timeout(ms(2), || receive(&receiver)).is_err());
                    assert!(start.elapsed() >= ms(2) && start.elapsed() < LATE);
                }
                over.store(true, SeqCst);
                // Within its time, and without a limit.
                let first = fibrant::timeout(LONG, || receive(&receiver)).unwrap();
                (first.unwrap().0, receive(&receiver).unwrap().0)
            });
            eventually("its time is up", || is_over.load(SeqCst));
            channel.0.send((1, census.count())).ok().unwrap();
            channel.0.send((2, census.count())).ok().unwrap();
            assert_eq!(fiber.join().unwrap(), (1, 2));
            assert_nobody_receives(flavour, &census, &channel);
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn a_send_runs_out_of_time_and_can_be_made_again() {
    in_fibers(|runtime, flavour| {
        for send in SENDS {
            let census = Census::default();
            let Some((sender, receiver)) = full(flavour, &census) else {
                return;
            };
            let (is_over, counted) = (Arc::new(AtomicBool::new(false)), census.clone());
            let over = Arc::clone(&is_over);
            let fiber = runtime.spawn(move || {
                for _ in 0..2 {
                    let (start, message) = (Instant::now(), (9, counted.count()));
                    assert!(fibrant::timeout(ms(2), || send(&sender, message)).is_err());
                    assert!(start.elapsed() >= ms(2) && start.elapsed() < LATE);
                }
                over.store(true, SeqCst);
                let message = (1, counted.count());
                assert_eq!(fibrant::timeout(LONG, || send(&sender, message)), Ok(true));
                assert!(send(&sender, (2, counted.count())));
            });
            eventually("its time is up", || is_over.load(SeqCst));
            let got: Vec<_> = receiver.iter().map(|(number, _)| number).collect();
            fiber.join().unwrap();
            assert!(got.ends_with(&[1, 2]) && !got.contains(&9), "{got:?}");
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn those_who_wait_behind_a_cancelled_receive_are_served() {
    in_fibers(|runtime, flavour| {
        for receive in RECEIVES {
            let census = Census::default();
            let (sender, receiver) = flavour.channel();
            let mut waiting: Vec<_> = (0..4)
                .map(|_| {
                    let receiver = receiver.clone();
                    let fiber = runtime.spawn(move || receive(&receiver).map(|(number, _)| number));
                    wait_until_it_waits(runtime, &fiber);
                    fiber
                })
                .collect();
            // The first one, and one in the middle.
            for index in [2, 0] {
                let fiber = waiting.remove(index);
                fiber.cancel();
                assert!(was_cancelled(&fiber.join()));
            }
            for number in 1..=2 {
                sender.send((number, census.count())).ok().unwrap();
            }
            let mut got: Vec<_> = waiting.into_iter().map(|fiber| fiber.join().unwrap()).collect();
            got.sort();
            assert_eq!(got, [Some(1), Some(2)]);
        }
    });
}

#[test]
fn those_who_wait_behind_a_cancelled_send_are_served() {
    in_fibers(|runtime, flavour| {
        for send in SENDS {
            let census = Census::default();
            let Some((sender, receiver)) = full(flavour, &census) else {
                return;
            };
            let mut waiting: Vec<_> = (1..=4)
                .map(|number| {
                    let (sender, message) = (sender.clone(), (number, census.count()));
                    let fiber = runtime.spawn(move || send(&sender, message));
                    wait_until_it_waits(runtime, &fiber);
                    fiber
                })
                .collect();
            drop(sender);
            for index in [2, 0] {
                let fiber = waiting.remove(index);
                fiber.cancel();
                assert!(was_cancelled(&fiber.join()));
            }
            let mut got: Vec<_> = receiver.iter().map(|(number, _)| number).collect();
            assert!(waiting.into_iter().all(|fiber| fiber.join().unwrap()));
            got.retain(|&number| number > 0);
            got.sort();
            assert_eq!(got, [2, 4]);
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn a_message_for_one_who_is_being_cancelled_is_not_lost() {
    // A message is sent while the first of two who wait is cancelled: one of them gets it.
    in_fibers(|runtime, flavour| {
        for round in 0..40 {
            let receive = RECEIVES[round % RECEIVES.len()];
            let census = Census::default();
            let (sender, receiver) = flavour.channel();
            let [first, second] = [(); 2].map(|()| {
                let receiver = receiver.clone();
                let fiber = runtime.spawn(move || receive(&receiver).map(|(number, _)| number));
                wait_until_it_waits(runtime, &fiber);
                fiber
            });
            let message = (1, census.count());
            let sending = runtime.spawn(move || {
                sender.send(message).ok().unwrap();
                sender
            });
            (0..round * 20).for_each(|_| std::hint::spin_loop());
            first.cancel();
            let first = first.join();
            if was_cancelled(&first) {
                assert_eq!(second.join().unwrap(), Some(1));
                drop(sending.join().unwrap());
            } else {
                assert_eq!(first.unwrap(), Some(1));
                // The other one gets nothing, and hears that there is nothing more.
                drop(sending.join().unwrap());
                assert_eq!(second.join().unwrap(), None);
            }
            assert!(receiver.try_recv().is_err());
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn a_message_for_the_only_one_who_is_being_cancelled_stays() {
    in_fibers(|runtime, flavour| {
        for round in 0..40 {
            let receive = RECEIVES[round % RECEIVES.len()];
            let census = Census::default();
            let (sender, receiver) = flavour.channel();
            let mine = receiver.clone();
            let fiber = runtime.spawn(move || receive(&mine).map(|(number, _)| number));
            wait_until_it_waits(runtime, &fiber);
            let message = (1, census.count());
            let sending = runtime.spawn(move || sender.send(message).is_ok());
            (0..round * 20).for_each(|_| std::hint::spin_loop());
            fiber.cancel();
            let result = fiber.join();
            if was_cancelled(&result) {
                assert_eq!(receiver.recv().ok().map(|(number, _)| number), Some(1));
            } else {
                assert_eq!(result.unwrap(), Some(1));
            }
            assert!(sending.join().unwrap() && receiver.recv().is_err());
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn room_for_one_who_is_being_cancelled_goes_to_the_next() {
    in_fibers(|runtime, flavour| {
        for round in 0..40 {
            let send = SENDS[round % SENDS.len()];
            let census = Census::default();
            let Some((sender, receiver)) = full(flavour, &census) else {
                return;
            };
            let [first, second] = [1, 2].map(|number| {
                let (sender, message) = (sender.clone(), (number, census.count()));
                let fiber = runtime.spawn(move || send(&sender, message));
                wait_until_it_waits(runtime, &fiber);
                fiber
            });
            drop(sender);
            let receiving =
                runtime.spawn(move || receiver.iter().map(|(number, _)| number).collect::<Vec<_>>());
            (0..round * 20).for_each(|_| std::hint::spin_loop());
            first.cancel();
            let first = first.join();
            assert!(second.join().unwrap());
            let got = receiving.join().unwrap();
            let count = |number| got.iter().filter(|&&one| one == number).count();
            assert_eq!(count(0), flavour.room().unwrap());
            assert_eq!(count(2), 1);
            if was_cancelled(&first) {
                assert!(count(1) <= 1, "{got:?}");
            } else {
                assert_eq!(count(1), 1);
            }
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn ends_that_a_cancelled_fiber_holds_are_dropped() {
    in_fibers(|runtime, flavour| {
        let (sender, receiver) = flavour.channel::<u8>();
        let (answers, answer) = flavour.channel::<u8>();
        let (_silent, nothing) = flavour.channel::<u8>();
        // It has the last sender of one, and the last receiver of another, while it waits for a third.
        let holding = runtime.spawn(move || {
            let _holds = (sender, answer);
            nothing.recv().is_ok()
        });
        let told = runtime.spawn(move || receiver.recv());
        wait_until_it_waits(runtime, &holding);
        holding.cancel();
        assert!(was_cancelled(&holding.join()));
        assert_eq!(told.join().unwrap(), Err(RecvError));
        assert_eq!(answers.send(1), Err(SendError(1)));
    });
}

#[test]
fn a_wait_that_must_not_be_cancelled_goes_on() {
    in_fibers(|runtime, flavour| {
        for receive in RECEIVES {
            let census = Census::default();
            let (sender, receiver) = flavour.channel();
            let fiber = runtime.spawn(move || {
                let guard = fibrant::defer_cancel();
                let number = receive(&receiver).unwrap().0;
                assert_eq!(number, 5);
                drop(guard);
                receive(&receiver).is_some()
            });
            wait_until_it_waits(runtime, &fiber);
            fiber.cancel();
            let fiber = fiber.join_timeout(ms(2)).unwrap_err();
            sender.send((5, census.count())).ok().unwrap();
            assert!(was_cancelled(&fiber.join()));
            assert_eq!(census.made(), census.dropped());
        }
    });
}

#[test]
fn a_cancelled_select_leaves_no_trace_in_any_arm() {
    in_fibers(|runtime, _| {
        let receivers = [(); 3].map(|()| bounded::<u8>(0));
        let senders = [(); 3].map(|()| bounded::<u8>(0));
        for _ in 0..10 {
            let from = receivers.each_ref().map(|(_, receiver)| receiver.clone());
            let to = senders.each_ref().map(|(sender, _)| sender.clone());
            let fiber = runtime.spawn(move || {
                select! {
                    recv(from[0]) -> _ => {}
                    send(to[0], 1) -> _ => {}
                    recv(from[1]) -> _ => {}
                    send(to[1], 1) -> _ => {}
                    recv(from[2]) -> _ => {}
                    send(to[2], 1) -> _ => {}
                    recv(after(LONG)) -> _ => {}
                }
            });
            wait_until_it_waits(runtime, &fiber);
            fiber.cancel();
            assert!(was_cancelled(&fiber.join()));
            for (sender, _) in &receivers {
                assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
            }
            for (_, receiver) in &senders {
                assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            }
        }
    });
}

#[test]
fn timers_can_be_cancelled() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let waits: [fn(); 5] = [
        || assert!(after(LONG).recv().is_err()),
        || assert!(tick(LONG).recv().is_err()),
        || assert!(never::<u8>().recv().is_err()),
        || assert!(at(Instant::now() + LONG).recv_timeout(LONG).is_err()),
        || select! { default(LONG) => {} },
    ];
    for wait in waits {
        let fiber = runtime.spawn(wait);
        wait_until_it_waits(&runtime, &fiber);
        fiber.cancel();
        assert!(was_cancelled(&fiber.join()));
        let limited = runtime.spawn(move || {
            let start = Instant::now();
            assert!(fibrant::timeout(ms(2), wait).is_err());
            assert!(start.elapsed() >= ms(2));
        });
        limited.join().unwrap();
    }
    runtime.stop().unwrap();
}

#[test]
fn a_shutdown_ends_those_who_wait() {
    let watchdog = Watchdog::new();
    for flavour in FLAVOURS {
        let runtime = watchdog.runtime(2);
        let census = Census::default();
        let (sender, receiver) = flavour.channel::<Numbered>();
        let mut fibers: Vec<_> = RECEIVES
            .iter()
            .map(|receive| {
                let receiver = receiver.clone();
                runtime.spawn(move || receive(&receiver).is_some())
            })
            .collect();
        if let Some((full_sender, keeps)) = full(flavour, &census) {
            fibers.extend(SENDS.iter().map(|send| {
                let (sender, message) = (full_sender.clone(), (1, census.count()));
                let keeps = keeps.clone();
                runtime.spawn(move || {
                    let _keeps = keeps;
                    send(&sender, message)
                })
            }));
        }
        fibers
            .iter()
            .for_each(|fiber| wait_until_it_waits(&runtime, fiber));
        let report = runtime.shutdown(ms(1));
        assert_eq!(
            (report.cancelled.len(), report.abandoned.len()),
            (fibers.len(), 0)
        );
        assert!(fibers.into_iter().all(|fiber| was_cancelled(&fiber.join())));
        drop((sender, receiver));
        assert_eq!(census.made(), census.dropped());
    }
}

/// How often each number has come.
fn tally(numbers: impl IntoIterator<Item = usize>) -> HashMap<usize, usize> {
    let mut counts = HashMap::new();
    numbers
        .into_iter()
        .for_each(|number| *counts.entry(number).or_default() += 1);
    counts
}

#[test]
fn a_storm_of_timeouts_loses_nothing() {
    const ROUNDS: usize = 150;
    in_fibers(|runtime, flavour| {
        let census = Census::default();
        let (sender, receiver) = flavour.channel();
        let sending: Vec<_> = (0..3)
            .map(|me| {
                let (sender, census) = (sender.clone(), census.clone());
                runtime.spawn_on(me % runtime.workers(), move || {
                    let mut random = Random::new(me);
                    let mut sent = Vec::new();
                    for number in me * ROUNDS..(me + 1) * ROUNDS {
                        let send = SENDS[random.below(SENDS.len() as u64) as usize];
                        let (limit, message) = (us(random.below(150)), (number, census.count()));
                        // One that ran out of time may have sent it or not, but not twice.
                        if fibrant::timeout(limit, || send(&sender, message)) == Ok(true) {
                            sent.push(number);
                        }
                        random.linger();
                    }
                    sent
                })
            })
            .collect();
        let receiving: Vec<_> = (0..3)
            .map(|me| {
                let receiver = receiver.clone();
                runtime.spawn_on(me % runtime.workers(), move || {
                    let mut random = Random::new(10 + me);
                    let mut received = Vec::new();
                    loop {
                        let receive = RECEIVES[random.below(RECEIVES.len() as u64) as usize];
                        match fibrant::timeout(us(random.below(150)), || receive(&receiver)) {
                            Ok(Some((number, _))) => received.push(number),
                            Ok(None) => return received,
                            Err(_) => {}
                        }
                        random.linger();
                    }
                })
            })
            .collect();
        drop((sender, receiver));
        let sent: Vec<_> = sending
            .into_iter()
            .flat_map(|fiber| fiber.join().unwrap())
            .collect();
        let received = receiving.into_iter().flat_map(|fiber| fiber.join().unwrap());
        let counts = tally(received);
        assert!(counts.values().all(|&count| count == 1), "one came twice");
        assert!(
            sent.iter().all(|number| counts.contains_key(number)),
            "one is lost"
        );
        assert_eq!(census.made(), census.dropped());
    });
}

#[test]
fn a_storm_of_cancels_loses_nothing() {
    in_fibers(|runtime, flavour| {
        let census = Census::default();
        let (sender, receiver) = flavour.channel::<Numbered>();
        let stays = runtime.spawn({
            let receiver = receiver.clone();
            move || receiver.iter().map(|(number, _)| number).collect::<Vec<_>>()
        });
        let sending = runtime.spawn({
            let (sender, census) = (sender.clone(), census.clone());
            move || {
                for number in 0..1500 {
                    sender.send((number, census.count())).ok().unwrap();
                    if number % 10 == 0 {
                        fibrant::yield_now();
                    }
                }
            }
        });
        // Others receive as well, and are cancelled in the middle; what they have received they have noted before they wait again.
        let mut received = Vec::new();
        let mut index = 0;
        while !sending.is_finished() {
            let (notes, noted) = unbounded();
            let others: Vec<_> = (0..3)
                .map(|_| {
                    let (receiver, notes) = (receiver.clone(), notes.clone());
                    index += 1;
                    let receive = RECEIVES[index % RECEIVES.len()];
                    runtime.spawn(move || {
                        while let Some((number, _)) = receive(&receiver) {
                            notes.send(number).unwrap();
                        }
                    })
                })
                .collect();
            drop(notes);
            fibrant::sleep(us(100));
            for fiber in others {
                fiber.cancel();
                was_cancelled(&fiber.join());
            }
            received.extend(noted.iter());
        }
        sending.join().unwrap();
        drop((sender, receiver));
        received.extend(stays.join().unwrap());
        received.sort();
        assert_eq!(received, Vec::from_iter(0..1500));
        assert_eq!(census.made(), census.dropped());
    });
}
