//! The dump says of a fiber that waits which channels it waits for, by address and name, and whether it sends, receives or chooses; and
//! it may be made at any moment, while channels come and go.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Watchdog, eventually};
use crate::select;
use fibrant::JoinHandle;
use fibrant::fiber::WaitReason;
use fibrant::runtime::{FiberDump, Handle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

/// What the dump says about a fiber, as soon as that is enough.
#[track_caller]
fn told<T>(runtime: &Handle, fiber: &JoinHandle<T>, is_enough: impl Fn(&FiberDump) -> bool) -> FiberDump {
    let mut told = None;
    eventually("the dump tells", || {
        let mut fibers = runtime.dump().fibers.into_iter();
        told = fibers.find(|one| one.id == fiber.id());
        told.as_ref().is_some_and(&is_enough)
    });
    told.unwrap()
}

/// The address of the one channel that a fiber waits for, to receive or to send.
#[track_caller]
fn address_of<T>(runtime: &Handle, fiber: &JoinHandle<T>) -> usize {
    let told = told(runtime, fiber, |fiber| fiber.wait.is_some());
    match told.wait {
        Some(WaitReason::Receiving { address } | WaitReason::Sending { address }) => address,
        other => panic!("{other:?}"),
    }
}

/// What the dump says about what a fiber chooses from, as soon as it is in the lists of so many of these channels: the last one.
#[track_caller]
fn choices_of<T>(runtime: &Handle, fiber: &JoinHandle<T>, count: usize) -> String {
    let last = format!("fiber {})", fiber.id());
    let told = told(runtime, fiber, |fiber| {
        let subject = fiber.subject.as_deref().unwrap_or_default();
        subject.matches(&last).count() == count
    });
    told.subject.unwrap()
}

/// The line of the dump's text that is about a fiber which waits.
fn line_of<T>(runtime: &Handle, fiber: &JoinHandle<T>) -> String {
    let mut line = String::new();
    eventually("it waits", || {
        let dump = runtime.dump();
        let waits = |id| dump.fibers.iter().any(|one| one.id == id && one.wait.is_some());
        let text = dump.to_string();
        let prefix = format!("fiber {}", fiber.id());
        let found = text.lines().find(|line| {
            let rest = line.trim_start().strip_prefix(&prefix);
            rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
        });
        line = found.unwrap_or_default().to_lowercase();
        waits(fiber.id())
    });
    line
}

#[track_caller]
fn assert_says(line: &str, words: &[&str]) {
    assert!(
        words.iter().any(|word| line.contains(word)),
        "{line} has none of {words:?}"
    );
}

#[test]
fn the_dump_names_the_channel() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel::<u8>();
            receiver.set_name("orders");
            // Whichever end has named it.
            let (answers, answer) = Flavour::Bounded(flavour.room().unwrap_or(0)).channel::<u8>();
            answers.set_name("answers");
            (0..flavour.room().unwrap_or(0)).for_each(|_| answers.send(0).unwrap());
            let clone = receiver.clone();
            let receives = runtime.spawn(move || clone.recv().is_ok());
            let clone = answers.clone();
            let sends = runtime.spawn(move || clone.send(1).is_ok());
            let (from, to) = (receiver.clone(), answers.clone());
            let chooses = runtime.spawn(move || {
                select! {
                    recv(from) -> message => message.is_ok(),
                    send(to, 1) -> result => result.is_ok(),
                    default(LONG) => unreachable!(),
                }
            });
            let line = line_of(&runtime, &receives);
            assert_says(&line, &["recv", "receiv"]);
            assert_says(&line, &["orders"]);
            assert_says(&line, &["channel"]);
            let line = line_of(&runtime, &sends);
            assert_says(&line, &["send"]);
            assert_says(&line, &["answers"]);
            assert_says(&line, &["channel"]);
            let line = line_of(&runtime, &chooses);
            assert_says(&line, &["select"]);
            assert_says(&line, &["orders"]);
            assert_says(&line, &["answers"]);
            // The same for programs.
            let json = runtime.dump().to_json();
            assert!(json.contains("orders") && json.contains("answers"), "{json}");
            // When nobody waits any more, it says nothing.
            drop((sender, receiver, answers, answer));
            let ended = [receives, sends, chooses].map(|fiber| fiber.join().unwrap());
            assert_eq!(ended, [false, false, false]);
            let text = runtime.dump().to_string();
            assert!(!text.contains("orders") && !text.contains("answers"), "{text}");
        }
        runtime.stop().unwrap();
    }
}

#[test]
fn a_channel_without_a_name_is_shown_by_its_address() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    for flavour in FLAVOURS {
        let (sender, receiver) = flavour.channel::<u8>();
        let (other_sender, other) = flavour.channel::<u8>();
        let [one, two] =
            [receiver.clone(), receiver.clone()].map(|receiver| runtime.spawn(move || receiver.recv()));
        // A choice that is none.
        let three = runtime.spawn(move || select! { recv(receiver) -> message => message });
        let elsewhere = runtime.spawn(move || other.recv());
        let address = address_of(&runtime, &one);
        assert_eq!(address_of(&runtime, &two), address, "it is the same channel");
        assert_eq!(address_of(&runtime, &three), address, "it is the same channel");
        assert_ne!(address_of(&runtime, &elsewhere), address, "it is another channel");
        for fiber in [&one, &two, &three] {
            let line = line_of(&runtime, fiber);
            let words = format!("receiving from the channel at {address:#x} (channel, ");
            assert!(line.contains(&words), "{line}");
        }
        drop((sender, other_sender));
        for fiber in [one, two, three, elsewhere] {
            assert!(fiber.join().unwrap().is_err());
        }
    }
    runtime.stop().unwrap();
}

#[test]
fn a_choice_is_shown_with_the_address_and_the_name_of_every_channel() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let (_to_plain, plain) = bounded::<u8>(2);
        let (_to_orders, orders) = unbounded::<u8>();
        orders.set_name("orders");
        let (full, _from_full) = bounded::<u8>(1);
        full.send(0).unwrap();
        let (answers, _from_answers) = bounded::<u8>(0);
        answers.set_name("answers");
        // Who waits for one only says where that is.
        let receives = [&plain, &orders].map(|receiver| {
            let receiver = receiver.clone();
            runtime.spawn(move || receiver.recv().is_ok())
        });
        let sends = [&full, &answers].map(|sender| {
            let sender = sender.clone();
            runtime.spawn(move || sender.send(1).is_ok())
        });
        let [at_plain, at_orders] = receives.each_ref().map(|fiber| address_of(&runtime, fiber));
        let [at_full, at_answers] = sends.each_ref().map(|fiber| address_of(&runtime, fiber));
        let chooses = runtime.spawn(move || {
            select! {
                recv(plain) -> _ => unreachable!(),
                send(answers, 1) -> _ => unreachable!(),
                recv(orders) -> _ => unreachable!(),
                send(full, 1) -> _ => unreachable!(),
            }
        });
        let id = chooses.id();
        let [first, second] = receives.each_ref().map(JoinHandle::id);
        let [third, fourth] = sends.each_ref().map(JoinHandle::id);
        let expected = format!(
            "receiving from the channel at {at_plain:#x} \
             (channel, holds 0 of 2, 1 senders, 2 receivers, receiving: fiber {first}, fiber {id}); \
             sending to the channel at {at_answers:#x} \
             (channel 'answers', rendezvous, 2 senders, 1 receivers, sending: fiber {fourth}, fiber {id}); \
             receiving from the channel at {at_orders:#x} \
             (channel 'orders', unbounded, holds 0, 1 senders, 2 receivers, receiving: fiber {second}, fiber {id}); \
             sending to the channel at {at_full:#x} \
             (channel, holds 1 of 1, 2 senders, 1 receivers, sending: fiber {third}, fiber {id})"
        );
        assert_eq!(choices_of(&runtime, &chooses, 4), expected);
        // For people, and for programs.
        let dump = runtime.dump();
        let words = format!("fiber {id}: selecting among 4 channels ({expected}) for ");
        assert!(dump.to_string().contains(&words), "{dump}");
        let words = format!("\"wait\":\"selecting among 4 channels\",\"subject\":\"{expected}\"");
        assert!(dump.to_json().contains(&words), "{}", dump.to_json());
        for fiber in receives.into_iter().chain(sends).chain([chooses]) {
            fiber.cancel();
            assert!(fiber.join().is_err());
        }
        runtime.stop().unwrap();
    }
}

#[test]
fn of_a_choice_of_many_channels_the_first_are_shown_and_the_rest_are_counted() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let channels: [_; 12] = std::array::from_fn(|_| bounded::<u8>(1));
    channels[1].1.set_name("second");
    channels[11].1.set_name("last");
    let receivers = channels.each_ref().map(|(_, receiver)| receiver.clone());
    let alone = receivers
        .clone()
        .map(|receiver| runtime.spawn(move || receiver.recv().is_ok()));
    let addresses = alone.each_ref().map(|fiber| address_of(&runtime, fiber));
    let chooses = runtime.spawn(move || {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = &receivers;
        select! {
            recv(a) -> _ => false, recv(b) -> _ => false, recv(c) -> _ => false, recv(d) -> _ => false,
            recv(e) -> _ => false, recv(f) -> _ => false, recv(g) -> _ => false, recv(h) -> _ => false,
            recv(i) -> _ => false, recv(j) -> _ => false, recv(k) -> _ => false, recv(l) -> _ => false,
        }
    });
    let mut expected: Vec<_> = (0..8)
        .map(|index| {
            let name = if index == 1 { " 'second'" } else { "" };
            let others = format!("fiber {}, fiber {}", alone[index].id(), chooses.id());
            format!(
                "receiving from the channel at {:#x} (channel{name}, holds 0 of 1, 1 senders, 3 receivers, receiving: {others})",
                addresses[index]
            )
        })
        .collect();
    expected.push("and 4 more".to_owned());
    assert_eq!(choices_of(&runtime, &chooses, 8), expected.join("; "));
    for fiber in alone.into_iter().chain([chooses]) {
        fiber.cancel();
        assert!(fiber.join().is_err());
    }
    runtime.stop().unwrap();
}

#[test]
fn dumps_may_be_made_while_channels_come_and_go() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let over = Arc::new(AtomicBool::new(false));
        let fibers: Vec<_> = (0..8)
            .map(|index| {
                let over = Arc::clone(&over);
                runtime.spawn(move || {
                    while !over.load(SeqCst) {
                        come_and_go(index);
                    }
                })
            })
            .collect();
        let start = Instant::now();
        let mut choices = 0;
        // Longer on a machine that is too busy to meet one.
        while start.elapsed() < ms(500) || choices == 0 {
            for fiber in runtime.dump().fibers {
                let Some(subject) = fiber.subject else { continue };
                let is_whole =
                    |part: &str| part.contains(" the channel at 0x") && part.contains(" (channel 'brief ");
                if matches!(fiber.wait, Some(WaitReason::Select { .. })) {
                    assert!(subject.split("; ").all(is_whole), "{subject}");
                    choices += 1;
                }
            }
        }
        over.store(true, SeqCst);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        runtime.stop().unwrap();
    }
}

/// Channels that live for one short choice each, and whose names do so, too. What a dump would read of them after that is overwritten.
fn come_and_go(index: u64) {
    let (sender, receiver) = bounded::<[u8; 64]>(1);
    let (full, _from_full) = bounded::<[u8; 64]>(1);
    full.send([0; 64]).unwrap();
    sender.set_name(format!("brief {index}, to receive from"));
    full.set_name(format!("brief {index}, to send to"));
    let helper = fibrant::spawn(move || {
        fibrant::yield_now();
        sender.send([1; 64])
    });
    select! {
        recv(receiver) -> message => assert_eq!(message.unwrap(), [1; 64]),
        send(full, [2; 64]) -> _ => unreachable!("nobody receives"),
        default(us(20 * index)) => {}
    }
    drop((receiver, full, _from_full));
    for size in [64, 128, 192, 256, 512] {
        std::hint::black_box(vec![0xFF_u8; size]);
    }
    let _ = helper.join().unwrap();
}

#[test]
fn one_who_waits_for_a_moment_is_shown() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let waits: [fn(); 4] = [
        || assert!(after(LONG).recv().is_err()),
        || assert!(tick(LONG).recv().is_err()),
        || assert!(never::<u8>().recv().is_err()),
        || select! { recv(after(LONG)) -> _ => {}, recv(never::<u8>()) -> _ => {} },
    ];
    for wait in waits {
        let fiber = runtime.spawn(wait);
        assert!(!line_of(&runtime, &fiber).contains("running"));
        fiber.cancel();
        assert!(fiber.join().is_err());
    }
    runtime.stop().unwrap();
}

#[test]
fn a_name_can_be_changed_and_is_anyones() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    for flavour in FLAVOURS {
        let (sender, receiver) = flavour.channel::<u8>();
        sender.set_name("before");
        receiver.clone().set_name("afterwards");
        let waiting = runtime.spawn(move || receiver.recv());
        let line = line_of(&runtime, &waiting);
        assert!(line.contains("afterwards") && !line.contains("before"), "{line}");
        sender.send(1).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(1));
    }
    runtime.stop().unwrap();
}
