//! Fibers of all kinds use channels, with each other and with threads; and they may wait in odd places: with the hooks off, in the
//! destructor of a thread-local, while they panic, in a fiber that is driven by hand.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Watchdog, eventually, text};
use crate::select;
use fibrant::fiber::{self, Fiber, State};
use fibrant::runtime::{Builder, Handle, Runtime};
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

fn light_runtime(workers: usize, watchdog: &Watchdog) -> Runtime {
    let builder = Builder::new().workers(workers).name("light");
    // SAFETY: what these tests run keeps nothing in thread-locals across a wait; channels do not either, which is what is tested.
    let runtime = unsafe { builder.light() }.build().unwrap();
    watchdog.show(&runtime);
    runtime
}

/// Runs a test with light fibers, on one worker and on two.
#[track_caller]
fn in_light_fibers(test: impl Fn(&Handle)) {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = light_runtime(workers, &watchdog);
        test(&runtime);
        runtime.stop().unwrap();
    }
}

#[test]
fn light_fibers_lose_nothing() {
    in_light_fibers(|runtime| {
        for flavour in FLAVOURS {
            let ledger = Ledger::new(4, 100);
            let (sender, receiver) = flavour.channel();
            let mut members = Vec::new();
            let mut threads = Vec::new();
            for me in 0..4 {
                let sender = sender.clone();
                let sends = move || {
                    let mut random = Random::new(me);
                    for number in 0..100 {
                        let message = Message { sender: me, number };
                        send_somehow(&sender, message, &mut random).unwrap();
                        random.linger();
                    }
                };
                let (receiver, ledger) = (receiver.clone(), Arc::clone(&ledger));
                let receives = move || {
                    let mut random = Random::new(10 + me);
                    let mut reader = ledger.reader();
                    while let Some(message) = receive_somehow(&receiver, &mut random) {
                        reader.note(message);
                        random.linger();
                    }
                };
                // One of each is a plain thread.
                if me == 3 {
                    threads.push(thread::spawn(sends));
                    threads.push(thread::spawn(receives));
                } else {
                    members.push(runtime.spawn(sends));
                    members.push(runtime.spawn(receives));
                }
            }
            drop((sender, receiver));
            members.into_iter().for_each(|fiber| fiber.join().unwrap());
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            ledger.assert_complete();
        }
    });
}

/// Two who have the same thread-locals meet often: by `select!` on both sides, by plain calls on both, and by one of each.
fn meet(first: impl Fn(Box<dyn FnOnce()>), second: impl Fn(Box<dyn FnOnce()>)) {
    const MEETINGS: usize = 300;
    type Way = fn(&Sender<usize>, &Receiver<usize>, usize) -> Option<usize>;
    let choose: Way = |sender, receiver, number| {
        select! {
            send(sender, number) -> result => { result.unwrap(); None }
            recv(receiver) -> message => Some(message.unwrap()),
        }
    };
    let send: Way = |sender, _, number| {
        sender.send(number).unwrap();
        None
    };
    let receive: Way = |_, receiver, _| Some(receiver.recv().unwrap());
    for (one, other) in [
        (choose, choose),
        (send, receive),
        (choose, receive),
        (send, choose),
    ] {
        let (sender, receiver) = bounded(0);
        let (done, is_done) = unbounded();
        let run = |way: Way| -> Box<dyn FnOnce()> {
            let (sender, receiver, done) = (sender.clone(), receiver.clone(), done.clone());
            Box::new(move || {
                let mut sent = 0;
                let mut received = Vec::new();
                for _ in 0..MEETINGS {
                    match way(&sender, &receiver, sent) {
                        Some(number) => received.push(number),
                        None => sent += 1,
                    }
                }
                done.send((sent, received)).unwrap();
            })
        };
        first(run(one));
        second(run(other));
        let (one, other) = (is_done.recv().unwrap(), is_done.recv().unwrap());
        assert_eq!(one.1, Vec::from_iter(0..other.0));
        assert_eq!(other.1, Vec::from_iter(0..one.0));
    }
}

#[test]
fn light_fibers_of_one_worker_meet() {
    // To std they are the same thread.
    let watchdog = Watchdog::new();
    let runtime = light_runtime(1, &watchdog);
    let main = runtime.spawn(|| {
        let spawn = |f| drop(fibrant::spawn_local(f));
        meet(spawn, spawn);
    });
    main.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn fibers_that_share_thread_locals_meet() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let main = runtime.spawn(|| {
            let spawn = |f| drop(fibrant::spawn_local(f));
            meet(spawn, spawn);
            // And the one that they share them with.
            meet(spawn, |f| f());
        });
        main.join().unwrap();
        runtime.stop().unwrap();
    }
}

#[test]
fn messages_of_local_fibers_need_not_be_send() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let main = runtime.spawn(|| {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel::<Rc<Cell<u32>>>();
            let count = Rc::new(Cell::new(0));
            let adding = fibrant::spawn_local(move || {
                for cell in receiver {
                    cell.set(cell.get() + 1);
                }
            });
            (0..10).for_each(|_| sender.send(Rc::clone(&count)).unwrap());
            drop(sender);
            adding.join().unwrap();
            assert_eq!(count.get(), 10);
        }
    });
    main.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn nobody_meets_itself_light() {
    in_light_fibers(|runtime| {
        let alone = runtime.spawn(|| {
            let (sender, receiver) = bounded::<u8>(0);
            select! {
                send(sender, 1) -> result => panic!("{result:?}"),
                recv(receiver) -> message => panic!("{message:?}"),
                default(ms(3)) => {}
            }
        });
        alone.join().unwrap();
    });
}

#[test]
fn a_choice_among_light_fibers_is_fair() {
    in_light_fibers(|runtime| {
        let hits = runtime.spawn(|| {
            let (first, from_first) = bounded(1);
            let (second, from_second) = unbounded();
            let (_silent, nothing) = bounded::<u8>(0);
            first.send(0).unwrap();
            second.send(0).unwrap();
            let mut hits = [0_i32; 2];
            for _ in 0..10_000 {
                select! {
                    recv(from_first) -> _ => { hits[0] += 1; first.send(0).unwrap(); }
                    recv(nothing) -> _ => unreachable!(),
                    recv(from_second) -> _ => { hits[1] += 1; second.send(0).unwrap(); }
                }
            }
            hits
        });
        let hits = hits.join().unwrap();
        // Six standard deviations.
        assert!((hits[0] - 5_000).abs() <= 300, "{hits:?}");
    });
}

#[test]
fn fibers_of_all_kinds_and_threads_pass_it_on() {
    let watchdog = Watchdog::new();
    let (isolated, light) = (watchdog.runtime(2), light_runtime(2, &watchdog));
    for flavour in FLAVOURS {
        let (first, mut receiver) = flavour.channel::<usize>();
        let mut threads = Vec::new();
        let mut fibers = Vec::new();
        for stage in 0..12 {
            let (sender, next) = flavour.channel();
            let from = std::mem::replace(&mut receiver, next);
            let pass = move || from.iter().for_each(|number| sender.send(number + 1).unwrap());
            match stage % 4 {
                0 => fibers.push(isolated.spawn(pass)),
                1 => threads.push(thread::spawn(pass)),
                2 => fibers.push(light.spawn(pass)),
                _ => fibers.push(isolated.spawn(move || fibrant::spawn_blocking(pass).join().unwrap())),
            }
        }
        threads.push(thread::spawn(move || {
            (0..50).for_each(|number| first.send(number).unwrap())
        }));
        assert_eq!(receiver.iter().collect::<Vec<_>>(), Vec::from_iter(12..62));
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    isolated.stop().unwrap();
    light.stop().unwrap();
}

#[test]
fn the_first_fiber_of_a_runtime_waits_like_others() {
    let _watchdog = Watchdog::new();
    fibrant::run(|| {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel();
            let sending = fibrant::spawn(move || (0..50).for_each(|number| sender.send(number).unwrap()));
            let mut got = Vec::new();
            loop {
                select! {
                    recv(receiver) -> number => match number {
                        Ok(number) => got.push(number),
                        Err(RecvError) => break,
                    },
                    recv(never::<u8>()) -> _ => unreachable!(),
                }
            }
            assert_eq!(got, Vec::from_iter(0..50));
            sending.join().unwrap();
        }
    });
}

#[test]
fn a_fiber_that_is_driven_by_hand_waits_with_its_driver() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel::<u32>();
            let (answers, answer) = flavour.channel::<u32>();
            let driver = runtime.spawn_on(0, move || {
                let fiber = Fiber::new(move || {
                    let first = receiver.recv().unwrap();
                    fiber::suspend();
                    let second = select! {
                        recv(receiver) -> number => number.unwrap(),
                        recv(never::<u8>()) -> _ => unreachable!(),
                    };
                    answers.send(first + second).unwrap();
                    assert_eq!(receiver.recv(), Err(RecvError));
                });
                let mut turns = 0;
                while fiber.state() != State::Term {
                    fiber.resume().unwrap();
                    turns += 1;
                }
                turns
            });
            // On the same worker, which must be free while the other one waits.
            let other = runtime.spawn_on(0, move || {
                sender.send(1).unwrap();
                sender.send(2).unwrap();
                answer.recv().unwrap()
            });
            assert_eq!((other.join().unwrap(), driver.join().unwrap()), (3, 2));
        }
        runtime.stop().unwrap();
    }
}

#[test]
fn fibers_that_are_driven_by_hand_pass_messages_on_a_plain_thread() {
    let _watchdog = Watchdog::new();
    for flavour in [Flavour::Unbounded, Flavour::Bounded(1), Flavour::Bounded(3)] {
        let (sender, receiver) = flavour.channel();
        let got = Rc::new(RefCell::new(Vec::new()));
        let sending = Fiber::new(move || {
            for number in 0..10 {
                while let Err(error) = sender.try_send(number) {
                    assert!(error.is_full());
                    fiber::suspend();
                }
            }
        });
        let notes = Rc::clone(&got);
        let receiving = Fiber::new(move || {
            loop {
                select! {
                    recv(receiver) -> number => match number {
                        Ok(number) => notes.borrow_mut().push(number),
                        Err(RecvError) => break,
                    },
                    default => fiber::suspend(),
                }
            }
        });
        while receiving.state() != State::Term {
            if sending.state() != State::Term {
                sending.resume().unwrap();
            }
            receiving.resume().unwrap();
        }
        assert_eq!(*got.borrow(), Vec::from_iter(0..10));
    }
    // One that waits keeps its thread; another thread ends that.
    let (sender, receiver) = bounded(0);
    let other = thread::spawn(move || (0..3).for_each(|number| sender.send(number).unwrap()));
    let fiber = Fiber::new(move || assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 1, 2]));
    assert_eq!(fiber.resume().unwrap(), State::Term);
    other.join().unwrap();
}

#[test]
fn a_suspended_fiber_that_is_dropped_lets_go_of_its_ends() {
    let (sender, receiver) = bounded::<u8>(1);
    let fiber = Fiber::new(move || {
        let _sender = sender;
        fiber::suspend();
    });
    fiber.resume().unwrap();
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    drop(fiber);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
}

#[test]
fn without_hooks_a_wait_is_still_a_fibers() {
    let watchdog = Watchdog::new();
    let unhooked = Builder::new().workers(1).hooks(false).build().unwrap();
    watchdog.show(&unhooked);
    let hooked = watchdog.runtime(1);
    for runtime in [&unhooked, &hooked] {
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel();
            let (answers, answer) = flavour.channel();
            // Both on the one worker: neither may keep it.
            let first = runtime.spawn(move || {
                fibrant::hook::disabled(|| {
                    assert!(!fibrant::hook::is_enabled());
                    for number in 0..20 {
                        sender.send(number).unwrap();
                        let got = select! {
                            recv(answer) -> got => got,
                            recv(never()) -> got => got,
                            default(LONG) => Err(RecvError),
                        };
                        assert_eq!(got, Ok(number + 1));
                    }
                    assert!(!fibrant::hook::is_enabled());
                });
            });
            let second = runtime.spawn(move || {
                fibrant::hook::disabled(|| {
                    while let Ok(number) = receiver.recv_timeout(LONG) {
                        answers.send(number + 1).unwrap();
                    }
                });
            });
            first.join().unwrap();
            second.join().unwrap();
        }
    }
    unhooked.stop().unwrap();
    hooked.stop().unwrap();
}

/// Waits when it is dropped, as the thread-local of a fiber or a thread.
struct Late {
    receiver: Receiver<u32>,
    answers: Sender<u32>,
}

impl Drop for Late {
    fn drop(&mut self) {
        let first = self.receiver.recv().unwrap();
        let second = select! {
            recv(self.receiver) -> number => number.unwrap(),
            recv(never::<u8>()) -> _ => unreachable!(),
            default(LONG) => unreachable!(),
        };
        self.answers.send(first + second).unwrap();
        select! {
            send(self.answers, 100) -> result => result.unwrap(),
            recv(never::<u8>()) -> _ => unreachable!(),
        }
    }
}

thread_local!(static LATE_ONE: RefCell<Option<Late>> = const { RefCell::new(None) });

#[test]
fn a_thread_local_may_wait_as_it_is_dropped() {
    everywhere_with_all(|place, flavour| {
        let (sender, receiver) = flavour.channel();
        let (answers, answer) = flavour.channel();
        let late = Late { receiver, answers };
        let ending = place.spawn(move || LATE_ONE.set(Some(late)));
        let other = place.spawn(move || {
            sender.send(1).unwrap();
            sender.send(2).unwrap();
            let got = (answer.recv(), answer.recv());
            assert_eq!(answer.recv(), Err(RecvError));
            got
        });
        assert_eq!(other.join(), (Ok(3), Ok(100)));
        ending.join();
    });
}

/// Does something when it is dropped.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn one_may_wait_while_it_panics() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        for flavour in FLAVOURS {
            let (sender, receiver) = flavour.channel::<u32>();
            let (answers, answer) = flavour.channel::<u32>();
            let panicking: Vec<_> = (0..4)
                .map(|index| {
                    let (receiver, answers) = (receiver.clone(), answers.clone());
                    runtime.spawn(move || {
                        let _end = AtEnd(|| {
                            let number = if index % 2 == 0 {
                                receiver.recv().unwrap()
                            } else {
                                select! {
                                    recv(receiver) -> number => number.unwrap(),
                                    recv(never::<u8>()) -> _ => unreachable!(),
                                }
                            };
                            answers.send(number + 1).unwrap();
                            assert!(thread::panicking());
                        });
                        resume_unwind(Box::new("on purpose"));
                    })
                })
                .collect();
            let other = runtime.spawn(move || {
                assert!(!thread::panicking());
                (0..4).for_each(|number| sender.send(number).unwrap());
            });
            drop((receiver, answers));
            let mut got: Vec<_> = answer.iter().collect();
            got.sort();
            assert_eq!(got, [1, 2, 3, 4]);
            other.join().unwrap();
            for fiber in panicking {
                assert_eq!(text(&*fiber.join().unwrap_err()), "on purpose");
            }
        }
        runtime.stop().unwrap();
    }
}

#[test]
fn a_fiber_that_waits_lets_its_worker_go_on() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let (sender, receiver) = bounded::<u8>(0);
    let turns = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let waiting = [(); 3].map(|()| {
        let receiver = receiver.clone();
        runtime.spawn(move || select! { recv(receiver) -> message => message, default(LONG) => Ok(0) })
    });
    let (count, over) = (Arc::clone(&turns), Arc::clone(&is_over));
    let busy = runtime.spawn(move || {
        while !over.load(SeqCst) {
            count.fetch_add(1, SeqCst);
            fibrant::yield_now();
        }
    });
    eventually("the other one has had many turns", || turns.load(SeqCst) > 1000);
    assert!(waiting.iter().all(|fiber| !fiber.is_finished()));
    (1..=3).for_each(|number| sender.send(number).unwrap());
    let mut got = waiting.map(|fiber| fiber.join().unwrap().unwrap());
    got.sort();
    assert_eq!(got, [1, 2, 3]);
    is_over.store(true, SeqCst);
    busy.join().unwrap();
    runtime.stop().unwrap();
}
