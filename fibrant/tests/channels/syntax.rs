//! The forms in which `select!` can be written, as crossbeam-channel has them.

#![allow(unused_braces, clippy::toplevel_ref_arg)] // all forms are tested

use crate::channel::*;
use crate::harness::*;
use crate::select;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// A channel with one message in it.
fn ready<T>(message: T) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = unbounded();
    sender.send(message).unwrap();
    (sender, receiver)
}

/// The value of an arm that is not chosen.
fn not_evaluated<T>() -> T {
    panic!("this arm is not chosen")
}

/// One that nothing comes out of, and nothing fits into.
fn blocked<T>() -> (Sender<T>, Receiver<T>) {
    bounded(0)
}

#[test]
fn one_arm_is_enough() {
    alone(|| {
        let (sender, receiver) = bounded(1);
        select! { send(sender, 1) -> result => assert_eq!(result, Ok(())) }
        select! { recv(receiver) -> message => assert_eq!(message, Ok(1)) }
        select! { send(sender, 2) -> result => assert_eq!(result, Ok(())), }
        select! { recv(receiver) -> message => { assert_eq!(message, Ok(2)) } }
        select! { send(sender, 3) -> result => { result.unwrap() }, }
        select! {
            recv(receiver) -> message => assert_eq!(message, Ok(3)),
        }
        select!(send(sender, 4) -> result => result.unwrap());
        select![recv(receiver) -> message => assert_eq!(message, Ok(4))];
    });
}

#[test]
fn one_arm_and_a_default() {
    alone(|| {
        let (sender, receiver) = bounded(1);
        select! { recv(receiver) -> _ => unreachable!(), default => {} }
        select! { recv(receiver) -> _ => unreachable!(), default(ms(1)) => {} }
        select! { send(sender, 1) -> result => result.unwrap(), default => unreachable!() }
        select! { send(sender, 1) -> _ => unreachable!(), default => {} }
        select! { send(sender, 1) -> _ => unreachable!(), default(ms(1)) => {} }
        select! { recv(receiver) -> message => assert_eq!(message, Ok(1)), default => unreachable!() }
        select! { send(sender, 2) -> result => result.unwrap(), default(LONG) => unreachable!() }
        select! { recv(receiver) -> message => assert_eq!(message, Ok(2)), default(LONG) => unreachable!() }
    });
}

#[test]
fn a_default_alone() {
    alone(|| {
        assert_eq!(select! { default => 1 }, 1);
        assert_eq!(select! { default => 2, }, 2);
        assert_eq!(select! { default => { 3 } }, 3);
        assert_eq!(select! { default() => 4 }, 4);
        let start = std::time::Instant::now();
        assert_eq!(select! { default(ms(5)) => 5 }, 5);
        assert_eq!(select! { default(ms(5)) => { 6 }, }, 6);
        assert!(start.elapsed() >= ms(10));
    });
}

#[test]
fn commas_after_blocks_are_optional() {
    alone(|| {
        let (sender, receiver) = ready(1);
        let (full, empty) = blocked::<u8>();
        let mut hits = 0;
        select! {
            recv(receiver) -> message => { assert_eq!(message, Ok(1)); hits += 1; }
            recv(empty) -> _ => {}
            send(full, 1) -> _ => {}
            default => {}
        }
        sender.send(2).unwrap();
        select! {
            recv(receiver) -> message => { assert_eq!(message, Ok(2)); hits += 1; },
            recv(empty) -> _ => {},
            send(full, 1) -> _ => {},
            default => {},
        }
        sender.send(3).unwrap();
        select! {
            send(full, 1) -> _ => unreachable!(),
            recv(receiver) -> message => { assert_eq!(message, Ok(3)); hits += 1; }
            recv(empty) -> _ => unreachable!(),
            default(LONG) => { unreachable!() }
        }
        sender.send(4).unwrap();
        select! {
            default => unreachable!(),
            send(full, 1) -> _ => unreachable!(),
            recv(receiver) -> message => hits += message.unwrap() / 4,
            recv(empty) -> _ => unreachable!()
        }
        assert_eq!(hits, 4);
    });
}

#[test]
fn a_default_may_stand_anywhere() {
    alone(|| {
        let (full, empty) = blocked::<u8>();
        assert_eq!(
            select! { default => 1, recv(empty) -> _ => 2, send(full, 1) -> _ => 3 },
            1
        );
        assert_eq!(
            select! { recv(empty) -> _ => 2, default => 1, send(full, 1) -> _ => 3 },
            1
        );
        assert_eq!(
            select! { recv(empty) -> _ => 2, send(full, 1) -> _ => 3, default => 1 },
            1
        );
        assert_eq!(
            select! { default(ms(1)) => 1, recv(empty) -> _ => 2, send(full, 1) -> _ => 3 },
            1
        );
        assert_eq!(
            select! { recv(empty) -> _ => { 2 } default() => { 1 } send(full, 1) -> _ => { 3 } },
            1
        );
        assert_eq!(
            select! { recv(empty) -> _ => { 2 } default(ms(1)) => { 1 } send(full, 1) -> _ => { 3 } },
            1
        );
    });
}

#[test]
fn commas_after_arguments_are_allowed() {
    alone(|| {
        let (sender, receiver) = bounded(1);
        select! {
            send(sender, 1,) -> result => result.unwrap(),
            recv(receiver,) -> _ => unreachable!(),
            default(LONG,) => unreachable!(),
        }
        assert_eq!(receiver.recv(), Ok(1));
    });
}

#[test]
fn patterns_that_match_everything() {
    alone(|| {
        let (sender, receiver) = unbounded::<Vec<u8>>();
        (0..6).for_each(|number| sender.send(vec![number]).unwrap());
        let (_speaks, never_comes) = blocked::<u8>();
        select! { recv(receiver) -> _ => {}, recv(never_comes) -> _ => {} }
        select! { recv(receiver) -> _unused => {}, recv(never_comes) -> _ => {} }
        select! {
            recv(receiver) -> mut message => {
                message.as_mut().unwrap().push(7);
                assert_eq!(message, Ok(vec![2, 7]));
            }
            recv(never_comes) -> _ => {}
        }
        select! { recv(receiver) -> ref message => assert_eq!(message, &Ok(vec![3])), recv(never_comes) -> _ => {} }
        select! { recv(receiver) -> message @ (Ok(_) | Err(_)) => assert_eq!(message, Ok(vec![4])), recv(never_comes) -> _ => {} }
        select! { recv(receiver) -> (Ok(_) | Err(_)) => {}, recv(never_comes) -> _ => {} }
        assert!(receiver.is_empty());
        // The same name in all arms, of several types.
        let (words, spoken) = ready("word");
        let length = select! {
            recv(receiver) -> one => one.unwrap().len(),
            recv(spoken) -> one => one.unwrap().len(),
            recv(never_comes) -> one => usize::from(one.unwrap()),
        };
        assert_eq!(length, 4);
        drop(words);
    });
}

#[test]
fn results_have_their_types() {
    alone(|| {
        let (sender, receiver) = unbounded::<String>();
        select! {
            send(sender, "text".to_owned()) -> result => { let _: Result<(), SendError<String>> = result; }
            recv(receiver) -> _ => unreachable!(),
        }
        select! {
            recv(receiver) -> message => { let _: Result<String, RecvError> = message; }
            default => unreachable!(),
        }
        sender.send(String::new()).unwrap();
        select! { recv(receiver) -> message => { let _: Result<String, RecvError> = message; } }
        // Types of channels and messages are found out from what is done with them.
        let (sender, receiver) = unbounded();
        select! { send(sender, Default::default()) -> _ => {} }
        select! {
            recv(receiver) -> message => { let _: u16 = message.unwrap(); }
            default(LONG) => unreachable!(),
        }
    });
}

#[test]
fn bodies_have_values() {
    alone(|| {
        let (_sender, receiver) = ready(20);
        let (full, empty) = blocked::<u8>();
        let value = select! {
            recv(receiver) -> message => message.unwrap() + 1,
            recv(empty) -> _ => 0,
            send(full, 1) -> _ => panic!("a body need not have a value"),
            default => unreachable!(),
        };
        assert_eq!(value, 21);
        let text: Option<&str> = select! {
            recv(receiver) -> _ => None,
            default(ms(1)) => Some("late"),
        };
        assert_eq!(text, Some("late"));
        // As an expression within another one, and as what a closure returns.
        let (_sender, receiver) = ready(3);
        assert_eq!(
            1 + select! { recv(receiver) -> message => message.unwrap(), recv(empty) -> _ => 0 },
            4
        );
        let attempt = || select! { recv(receiver) -> message => message.ok(), default => None };
        assert_eq!(attempt(), None);
    });
}

#[test]
fn bodies_can_leave_loops() {
    alone(|| {
        let (sender, receiver) = unbounded();
        let (full, empty) = blocked::<u8>();
        (0..10).for_each(|number| sender.send(number).unwrap());
        let mut odd = Vec::new();
        let last = loop {
            let number = select! {
                recv(receiver) -> message => match message {
                    Ok(9) => break "nine",
                    Ok(number) if number % 2 == 0 => continue,
                    Ok(number) => number,
                    Err(RecvError) => break "nobody",
                },
                recv(empty) -> _ => break "never",
                send(full, 1) -> _ => break "not either",
                default => break "nothing",
            };
            odd.push(number);
        };
        assert_eq!((last, odd), ("nine", vec![1, 3, 5, 7]));
        let mut rounds = 0;
        'outer: loop {
            loop {
                rounds += 1;
                select! {
                    send(full, 1) -> _ => continue 'outer,
                    recv(empty) -> _ => {}
                    default(ms(1)) => break 'outer,
                }
            }
        }
        assert_eq!(rounds, 1);
        // The condition of a loop.
        let mut sum = 0;
        while select! { send(sender, 5) -> _ => sum < 20, recv(empty) -> _ => false } {
            sum += receiver.recv().unwrap();
        }
        assert_eq!(sum, 20);
    });
}

#[test]
fn bodies_can_return_and_pass_on_errors() {
    fn returns(receiver: &Receiver<u8>) -> u8 {
        select! {
            recv(receiver) -> message => return message.unwrap(),
            default => {}
        }
        100
    }
    fn passes_on(receiver: &Receiver<u8>, sender: &Sender<u8>) -> Result<u8, Box<dyn std::error::Error>> {
        let number = select! {
            recv(receiver) -> message => message?,
            default => {
                sender.send(0)?;
                "7".parse()?
            }
        };
        select! {
            send(sender, number) -> result => result?,
            default(LONG) => return Err("late".into()),
        }
        Ok(number)
    }
    fn only_some(receiver: &Receiver<u8>) -> Option<u8> {
        let number = select! { recv(receiver) -> message => message.ok()?, recv(never::<u8>()) -> _ => 0 };
        Some(number + 1)
    }
    alone(|| {
        let (sender, receiver) = bounded(3);
        assert_eq!(returns(&receiver), 100);
        sender.send(1).unwrap();
        assert_eq!(returns(&receiver), 1);
        assert_eq!(passes_on(&receiver, &sender).unwrap(), 7);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [0, 7]);
        sender.send(4).unwrap();
        assert_eq!(only_some(&receiver), Some(5));
        drop(sender);
        assert_eq!(only_some(&receiver), None);
        let (sender, gone) = bounded(3);
        drop(gone);
        assert!(passes_on(&receiver, &sender).is_err());
        let (sender, receiver) = bounded(3);
        sender.send(9).unwrap();
        let (other, gone) = bounded(3);
        drop(gone);
        let error = passes_on(&receiver, &other).unwrap_err();
        assert!(error.is::<SendError<u8>>(), "{error}");
    });
}

#[test]
fn channels_can_be_any_expression() {
    alone(|| {
        let (_first_sender, first) = ready(1);
        let (_second_sender, second) = ready(2);
        let (full, empty) = blocked::<i32>();
        for (is_first, expected) in [(true, 1), (false, 2)] {
            let got = select! {
                recv(if is_first { &first } else { &second }) -> message => message.unwrap(),
                recv(empty) -> _ => 0,
            };
            assert_eq!(got, expected);
        }
        let list = [first.clone(), second.clone(), ready(3).1];
        let boxed = Box::new(ready(4).1);
        let shared = Rc::new(ready(5).1);
        let by_name = HashMap::from([("six", ready(6).1)]);
        let (maybe, perhaps) = (Some(ready(7).1), Some(second.clone()));
        let nothing: Option<Receiver<i32>> = None;
        let cell = RefCell::new(ready(8).1);
        struct Holder {
            inner: (Sender<i32>, Receiver<i32>),
        }
        let holder = Holder { inner: ready(9) };
        let index = 2;
        let got = [
            select! { recv(list[index]) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv(boxed) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv(shared) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv(by_name["six"]) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv(maybe.as_ref().unwrap_or(&never())) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv(cell.borrow()) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv(holder.inner.1) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv(&&&ready(10).1) -> message => message, recv(empty) -> _ => Err(RecvError) },
            select! { recv({ let (_, receiver) = ready(11); receiver }) -> message => message, recv(empty) -> _ => Err(RecvError) },
        ];
        assert_eq!(got.map(Result::unwrap), [3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let is_nothing = select! {
            recv(nothing.as_ref().unwrap_or(&never())) -> _ => false,
            send(Some(&full).filter(|_| true).unwrap(), 1) -> _ => false,
            recv(first) -> _ => false,
            default(ms(1)) => true,
        };
        assert!(is_nothing);
        // The same with one arm alone.
        holder.inner.0.send(12).unwrap();
        assert_eq!(
            select! { recv(if index == 2 { &holder.inner.1 } else { &first }) -> message => message },
            Ok(12)
        );
        assert_eq!(
            select! { recv(maybe.as_ref().unwrap_or(&never())) -> message => message, default => Ok(0) },
            Err(RecvError)
        );
        assert_eq!(
            select! { recv(perhaps.unwrap_or(never())) -> message => message, default(ms(1)) => Ok(0) },
            Ok(0)
        );
        let mut mutable = ready(13);
        let receiver = &mut mutable.1;
        assert_eq!(
            select! { recv(receiver) -> message => message, recv(empty) -> _ => Ok(0) },
            Ok(13)
        );
    });
}

#[test]
fn a_channel_of_a_temporary_lives_long_enough() {
    alone(|| {
        fn sender_of(list: &[Sender<u8>], index: usize) -> Sender<u8> {
            list[index].clone()
        }
        let (sender, receiver) = bounded(1);
        let list = [bounded(0).0, sender];
        select! {
            send(sender_of(&list, 1), 5) -> result => result.unwrap(),
            recv(bounded::<u8>(0).0.clone().capacity().map_or(never::<u8>(), |_| never())) -> _ => unreachable!(),
            default => unreachable!(),
        }
        assert_eq!(receiver.recv(), Ok(5));
    });
}

#[test]
fn channels_and_limits_are_evaluated_once() {
    alone(|| {
        let count = Cell::new(0);
        let counted = |receiver: &Receiver<u8>| {
            count.set(count.get() + 1);
            receiver.clone()
        };
        let (full, empty) = blocked::<u8>();
        select! {
            recv(counted(&empty)) -> _ => unreachable!(),
            recv(counted(&empty)) -> _ => unreachable!(),
            send({ count.set(count.get() + 1); &full }, not_evaluated()) -> _ => unreachable!(),
            default({ count.set(count.get() + 1); ms(3) }) => {}
        }
        assert_eq!(count.get(), 4);
        select! { recv(counted(&empty)) -> _ => unreachable!(), default => {} }
        select! { recv(counted(&empty)) -> _ => unreachable!(), default({ count.set(count.get() + 1); ms(3) }) => {} }
        assert_eq!(count.get(), 7);
    });
}

#[test]
#[allow(unreachable_code)]
fn an_arm_whose_channel_returns_is_not_chosen() {
    fn early() -> u8 {
        let (_sender, receiver) = ready(1);
        select! {
            recv(receiver) -> _ => 2,
            recv({ return 3; never::<u8>() }) -> _ => 4,
        }
    }
    alone(|| assert_eq!(early(), 3));
}

#[test]
fn the_value_of_a_send_is_evaluated_only_if_it_is_sent() {
    alone(|| {
        let (full, _other) = blocked::<Box<u8>>();
        let (_sender, receiver) = ready(1_u8);
        // It is moved in one arm, and still there in the others.
        let value = Box::new(5);
        let kept = select! {
            send(full, value) -> _ => unreachable!(),
            recv(receiver) -> message => (value, message),
            default => unreachable!(),
        };
        assert_eq!(kept, (Box::new(5), Ok(1)));
        let value = kept.0;
        let kept = select! {
            send(full, value) -> _ => unreachable!(),
            recv(receiver) -> _ => unreachable!(),
            default => value,
        };
        let value = kept;
        let kept = select! {
            send(full, value) -> _ => unreachable!(),
            default(ms(1)) => value,
        };
        let value = kept;
        // Two arms may send the same value: it goes one way.
        let (sender, arrivals) = unbounded();
        select! {
            send(sender, value) -> result => result.unwrap(),
            send(full, value) -> _ => unreachable!(),
        }
        assert_eq!(arrivals.recv(), Ok(Box::new(5)));
        let mut count = 0;
        for _ in 0..50 {
            let mut next = || {
                count += 1;
                Box::new(count)
            };
            select! {
                send(sender, next()) -> result => result.unwrap(),
                send(full, not_evaluated()) -> _ => {}
            }
        }
        assert_eq!(count, 50);
        assert_eq!(
            arrivals.try_iter().map(|number| *number).collect::<Vec<_>>(),
            Vec::from_iter(1..=50)
        );
        // Where nobody receives it is evaluated, and comes back.
        drop(arrivals);
        let back = select! { send(sender, Box::new(9)) -> result => result, send(full, not_evaluated()) -> _ => Ok(()) };
        assert_eq!(back, Err(SendError(Box::new(9))));
    });
}

#[test]
fn the_value_of_a_send_is_evaluated_after_the_wait() {
    everywhere(|place| {
        for room in [0, 1] {
            let (sender, receiver) = bounded(room);
            (0..room).for_each(|_| sender.send(0).unwrap());
            let now = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(1));
            let seen = std::sync::Arc::clone(&now);
            let waiting = place.spawn(move || {
                select! {
                    send(sender, seen.load(std::sync::atomic::Ordering::SeqCst)) -> result => result.unwrap(),
                    recv(never::<u8>()) -> _ => unreachable!(),
                }
            });
            waiting.wait_until_it_waits();
            now.store(2, std::sync::atomic::Ordering::SeqCst);
            let got = place.spawn(move || receiver.iter().last()).join();
            waiting.join();
            assert_eq!(got, Some(2));
        }
    });
}

#[test]
fn a_value_may_itself_be_received() {
    alone(|| {
        let (_sender, receiver) = ready(1);
        let (copies, copy) = unbounded();
        select! {
            send(copies, receiver.recv().unwrap() + 1) -> result => result.unwrap(),
            recv(never::<u8>()) -> _ => unreachable!(),
        }
        assert_eq!(copy.recv(), Ok(2));
    });
}

#[test]
fn bodies_borrow_and_move_what_they_like() {
    alone(|| {
        let (sender, receiver) = ready(vec![1]);
        let mut list = vec![0];
        let text = String::from("text");
        // Both arms change the same list, and both take the same text: one of them runs.
        let taken = select! {
            recv(receiver) -> message => {
                list.extend(message.unwrap());
                text
            }
            default => {
                list.push(100);
                text
            }
        };
        assert_eq!((list, taken.as_str()), (vec![0, 1], "text"));
        // The channels of the arms themselves may be used, even dropped, in the bodies.
        sender.send(vec![2]).unwrap();
        select! {
            recv(receiver) -> message => {
                sender.send(message.unwrap()).unwrap();
                drop(receiver);
                drop(sender);
            }
            recv(never::<u8>()) -> _ => unreachable!(),
        }
    });
}

#[test]
fn a_select_within_a_select() {
    alone(|| {
        let (_first_sender, first) = ready(1);
        let (_second_sender, second) = ready(2);
        let (full, empty) = blocked::<i32>();
        let sum = select! {
            recv(first) -> one => select! {
                recv(second) -> two => one.unwrap() + two.unwrap() + select! { default => 10, recv(empty) -> _ => 0 },
                send(full, 1) -> _ => 0,
            },
            recv(empty) -> _ => {
                select! { recv(first) -> _ => 0, default => 1 }
            }
        };
        assert_eq!(sum, 13);
        // In the value of a send, and where a channel is expected.
        let (sender, receiver) = unbounded();
        select! {
            send(sender, select! { recv(empty) -> _ => 0, default => 7 }) -> result => result.unwrap(),
            recv(select! { default => never::<u8>() }) -> _ => unreachable!(),
        }
        assert_eq!(receiver.recv(), Ok(7));
    });
}

#[test]
fn names_of_the_user_are_not_in_the_way() {
    alone(|| {
        let (_sender, receiver) = ready(1);
        // Whatever the macro calls its own variables.
        let (index, select, oper, sel, res, handle, token, message, value, arms, chosen, timeout) =
            (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ms(1));
        let (_index, _sel, _oper, _res, _r, _s, _handle) = (1, 1, 1, 1, 1, 1, 1);
        let sum = select! {
            recv(receiver) -> got => {
                got.unwrap() + index + select + oper + sel + res + handle + token + message + value + arms + chosen
                    + _index + _sel + _oper + _res + _r + _s + _handle
            }
            recv(never::<u8>()) -> _ => 0,
            default(timeout) => 0,
        };
        assert_eq!(sum, 19);
    });
}

#[test]
fn sixteen_arms() {
    alone(|| {
        let channels: Vec<(Sender<usize>, Receiver<usize>)> = (0..16).map(|_| bounded(1)).collect();
        for chosen in 0..16 {
            let (senders, receivers): (Vec<_>, Vec<_>) = channels.iter().cloned().unzip();
            senders[chosen].send(chosen).unwrap();
            let (place, number) = select! {
                recv(receivers[0]) -> number => (0, number),
                recv(receivers[1]) -> number => (1, number),
                recv(receivers[2]) -> number => (2, number),
                recv(receivers[3]) -> number => (3, number),
                recv(receivers[4]) -> number => (4, number),
                recv(receivers[5]) -> number => (5, number),
                recv(receivers[6]) -> number => (6, number),
                recv(receivers[7]) -> number => (7, number),
                recv(receivers[8]) -> number => (8, number),
                recv(receivers[9]) -> number => (9, number),
                recv(receivers[10]) -> number => (10, number),
                recv(receivers[11]) -> number => (11, number),
                recv(receivers[12]) -> number => (12, number),
                recv(receivers[13]) -> number => (13, number),
                recv(receivers[14]) -> number => (14, number),
                recv(receivers[15]) -> number => (15, number),
            };
            assert_eq!((place, number), (chosen, Ok(chosen)));
        }
    });
}
