//! The dump says of a fiber that waits which channel it waits for, by name, and whether it sends, receives or chooses.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Watchdog, eventually};
use crate::select;
use fibrant::JoinHandle;
use fibrant::runtime::Handle;

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
            assert_says(&line, &["orders", "answers"]);
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
        let other = receiver.clone();
        let [one, two] = [receiver, other].map(|receiver| runtime.spawn(move || receiver.recv()));
        let (first, second) = (line_of(&runtime, &one), line_of(&runtime, &two));
        assert_says(&first, &["0x"]);
        let address = |line: &str| {
            line.split("0x")
                .nth(1)
                .unwrap()
                .chars()
                .take(8)
                .collect::<String>()
        };
        assert_eq!(address(&first), address(&second), "it is the same channel");
        drop(sender);
        assert!(one.join().unwrap().is_err() && two.join().unwrap().is_err());
    }
    runtime.stop().unwrap();
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
