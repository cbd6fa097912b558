//! What std has for messages and for waiting: mpsc, park and unpark, threads that are joined, and the locks of its output. All of it
//! knows its user by the thread that it runs on; so each fiber must be one.

use crate::common;
use crate::harness::*;
use crate::patience::{Watchdog, eventually};
use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{
    self, Receiver, RecvTimeoutError, SendError, Sender, SyncSender, TryRecvError, TrySendError,
};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often each member does it.
const ROUNDS: usize = 60;

/// Which channel: without a limit, or with this one.
const ROOMS: [Option<usize>; 3] = [None, Some(3), Some(0)];

/// A message: who has sent it, and its number there.
type Message = (usize, usize);

#[derive(Clone)]
enum Outlet {
    Endless(Sender<Message>),
    Limited(SyncSender<Message>),
}

impl Outlet {
    fn send(&self, message: Message) -> Result<(), SendError<Message>> {
        match self {
            Outlet::Endless(sender) => sender.send(message),
            Outlet::Limited(sender) => sender.send(message),
        }
    }
}

fn channel(room: Option<usize>) -> (Outlet, Receiver<Message>) {
    match room {
        None => {
            let (sender, receiver) = mpsc::channel();
            (Outlet::Endless(sender), receiver)
        }
        Some(room) => {
            let (sender, receiver) = mpsc::sync_channel(room);
            (Outlet::Limited(sender), receiver)
        }
    }
}

/// Receives in one way or another; `None` if there are no senders any more.
fn receive(receiver: &Receiver<Message>, me: &mut Member) -> Option<Message> {
    loop {
        match me.below(4) {
            0 => match receiver.recv_timeout(us(200)) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            },
            1 => match receiver.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => return None,
            },
            _ => return receiver.recv().ok(),
        }
    }
}

#[test]
fn every_message_comes_once_and_in_its_senders_order() {
    for room in ROOMS {
        // Who receives is a fiber, and then a thread.
        for (fibers, threads, whose_turn) in [(8, 0, 0), (5, 3, 0), (5, 3, 7)] {
            let count = fibers + threads;
            together(
                fibers,
                threads,
                || {
                    let (outlet, receiver) = channel(room);
                    let outlets = vec![Some(outlet); count];
                    (Mutex::new((outlets, Some(receiver))), AtomicUsize::new(0))
                },
                move |(ends, received), me| {
                    let mut taken = ends.lock().unwrap();
                    let outlet = taken.0[me.index].take().unwrap();
                    if me.index != whose_turn {
                        drop(taken);
                        for round in 0..ROUNDS {
                            outlet.send((me.index, round)).unwrap();
                            me.linger();
                        }
                        return;
                    }
                    let receiver = taken.1.take().unwrap();
                    drop((taken, outlet));
                    let mut next = vec![0; count];
                    while let Some((sender, round)) = receive(&receiver, me) {
                        assert_eq!(
                            round, next[sender],
                            "a message is lost, or comes twice or too early"
                        );
                        next[sender] += 1;
                        received.fetch_add(1, SeqCst);
                        me.linger();
                    }
                },
                |(_, received)| assert_eq!(received.load(SeqCst), (count - 1) * ROUNDS),
            );
        }
    }
}

#[test]
fn iterators_end_when_the_last_sender_is_gone() {
    let watchdog = Watchdog::new();
    for room in ROOMS {
        let runtime = watchdog.runtime(1);
        let (outlet, receiver) = channel(room);
        let receiving = runtime.spawn(move || {
            let first: Vec<_> = receiver.iter().take(4).collect();
            (first.len(), receiver.into_iter().count())
        });
        eventually("the receiver waits", || waiting_for_locks(&runtime) == 1);
        let sending: Vec<_> = (0..3)
            .map(|index| {
                let outlet = outlet.clone();
                runtime.spawn(move || {
                    for round in 0..5 {
                        outlet.send((index, round)).unwrap();
                    }
                    // The receiver has got everything there is, and waits, when the last one goes.
                    thread::sleep(ms(5));
                })
            })
            .collect();
        drop(outlet);
        sending.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(receiving.join().unwrap(), (4, 11));
        runtime.stop().unwrap();
    }
}

#[test]
fn senders_that_wait_notice_that_the_receiver_is_gone() {
    let watchdog = Watchdog::new();
    for (workers, room) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        let runtime = watchdog.runtime(workers);
        let (sender, receiver) = mpsc::sync_channel(room);
        (0..room).for_each(|_| sender.send(0).unwrap());
        let in_fibers: Vec<_> = (1..5)
            .map(|message| {
                let sender = sender.clone();
                runtime.spawn(move || (sender.send(message), message))
            })
            .collect();
        let in_thread = thread::spawn(move || sender.send(9));
        eventually("they wait", || waiting_for_locks(&runtime) == 4);
        // A fiber of the same worker goes away with it.
        runtime.spawn(move || drop(receiver)).join().unwrap();
        for fiber in in_fibers {
            let (result, message) = fiber.join().unwrap();
            assert_eq!(result, Err(SendError(message)));
        }
        assert_eq!(in_thread.join().unwrap(), Err(SendError(9)));
        runtime.stop().unwrap();
    }
}

#[test]
fn without_room_a_sender_waits_until_somebody_receives() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let (sender, receiver) = mpsc::sync_channel(0);
    assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
    let is_sent = Arc::new(AtomicBool::new(false));
    let (other, sent) = (sender.clone(), Arc::clone(&is_sent));
    let sending = runtime.spawn(move || {
        other.send(2).unwrap();
        sent.store(true, SeqCst);
    });
    eventually("the sender waits", || waiting_for_locks(&runtime) == 1);
    assert!(!is_sent.load(SeqCst));
    let receiving = runtime.spawn(move || (receiver.recv().unwrap(), receiver));
    let (message, receiver) = receiving.join().unwrap();
    sending.join().unwrap();
    assert!(message == 2 && is_sent.load(SeqCst));
    // And the other way round: with a fiber that waits for it, a message can be sent without waiting.
    let receiving = runtime.spawn(move || receiver.recv().unwrap());
    eventually("the receiver waits", || waiting_for_locks(&runtime) == 1);
    runtime.spawn(move || sender.try_send(3).unwrap()).join().unwrap();
    assert_eq!(receiving.join().unwrap(), 3);
    runtime.stop().unwrap();
}

#[test]
fn a_receiver_waits_as_long_as_it_said_and_not_less() {
    together(
        10,
        2,
        || (),
        |(), me| {
            let (_sender, receiver) = mpsc::channel::<()>();
            let (start, limit) = (Instant::now(), ms(3 * (me.index as u64 + 1)));
            assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::Timeout));
            assert!(start.elapsed() >= limit);
        },
        |()| {},
    );
}

#[test]
fn messages_go_to_and_fro() {
    for (fibers, threads) in [(2, 0), (1, 1)] {
        together(
            fibers,
            threads,
            || {
                let (there, back) = (mpsc::sync_channel(0), mpsc::channel());
                (
                    Mutex::new(Some((there.0, back.1))),
                    Mutex::new(Some((there.1, back.0))),
                    AtomicUsize::new(0),
                )
            },
            |(first, second, sum), me| match me.index {
                0 => {
                    let (sender, receiver) = first.lock().unwrap().take().unwrap();
                    for round in 0..300 {
                        sender.send(round).unwrap();
                        assert_eq!(receiver.recv(), Ok(round + 1));
                    }
                }
                _ => {
                    let (receiver, sender) = second.lock().unwrap().take().unwrap();
                    for round in receiver {
                        sum.fetch_add(round, SeqCst);
                        sender.send(round + 1).unwrap();
                    }
                }
            },
            |(_, _, sum)| assert_eq!(sum.load(SeqCst), 299 * 300 / 2),
        );
    }
}

#[test]
fn each_fiber_is_a_thread_and_remains_the_same_one() {
    together(
        8,
        2,
        || Mutex::new(HashSet::new()),
        |ids, me| {
            let id = thread::current().id();
            assert!(ids.lock().unwrap().insert(id), "two are the same thread");
            for _ in 0..10 {
                me.linger();
                assert_eq!(thread::current().id(), id);
            }
        },
        |ids| assert_eq!(ids.lock().unwrap().len(), 10),
    );
}

/// Two fibers of one worker park at the same time, and each goes on when it is its turn. Shared with the tests of light fibers, which
/// cannot do that.
pub fn park_two(runtime: &fibrant::runtime::Handle) {
    let is_turn = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let fibers: Vec<_> = (0..2)
        .map(|index| {
            let is_turn = Arc::clone(&is_turn);
            let (sender, receiver) = mpsc::channel();
            let fiber = runtime.spawn_on(0, move || {
                sender.send(thread::current()).unwrap();
                while !is_turn[index].load(SeqCst) {
                    thread::park();
                }
            });
            // A plain thread receives: the message itself is no matter here.
            let thread = receiver.recv().unwrap();
            (fiber, thread)
        })
        .collect();
    thread::sleep(ms(20)); // both park by now, most likely; if not, it is the same
    for (index, (fiber, thread)) in fibers.into_iter().enumerate() {
        is_turn[index].store(true, SeqCst);
        thread.unpark();
        fiber.join().unwrap();
    }
}

#[test]
fn two_fibers_of_a_worker_park_at_once() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    (0..20).for_each(|_| park_two(&runtime));
    runtime.stop().unwrap();
}

#[test]
fn no_unpark_is_lost() {
    for (fibers, threads) in [(6, 0), (4, 3)] {
        let count = fibers + threads;
        together(
            fibers,
            threads,
            || {
                let threads: Vec<_> = (0..count).map(|_| OnceLock::<Thread>::new()).collect();
                (threads, Barrier::new(count), AtomicUsize::new(0))
            },
            |(threads, barrier, turns), me| {
                threads[me.index].set(thread::current()).unwrap();
                barrier.wait();
                for round in 0..ROUNDS {
                    while turns.load(SeqCst) != round * me.count + me.index {
                        if me.below(4) == 0 {
                            thread::park_timeout(us(300));
                        } else {
                            thread::park();
                        }
                    }
                    turns.fetch_add(1, SeqCst);
                    threads[(me.index + 1) % me.count].get().unwrap().unpark();
                    if me.below(4) == 0 {
                        me.linger();
                    }
                }
            },
            |(_, _, turns)| assert_eq!(turns.load(SeqCst), count * ROUNDS),
        );
    }
}

#[test]
fn an_unpark_waits_for_its_own_fiber() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    // Nobody else on the worker takes it, and waits of other kinds do not.
    let others: Vec<_> = (0..3)
        .map(|_| {
            runtime.spawn(|| {
                let start = Instant::now();
                thread::park_timeout(ms(40));
                assert!(start.elapsed() >= ms(40));
            })
        })
        .collect();
    let fiber = runtime.spawn(|| {
        thread::current().unpark();
        thread::sleep(ms(10));
        let (mutex, condition) = (Mutex::new(()), Condvar::new());
        let waited = condition.wait_timeout(mutex.lock().unwrap(), ms(10)).unwrap();
        assert!(waited.1.timed_out());
        thread::park();
    });
    fiber.join().unwrap();
    others.into_iter().for_each(|fiber| fiber.join().unwrap());
    runtime.stop().unwrap();
}

#[test]
fn a_fiber_waits_for_threads_and_its_worker_goes_on() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let (sender, receiver) = mpsc::channel();
    let waiting = runtime.spawn(move || {
        let thread = thread::spawn(move || receiver.recv().unwrap());
        let message: i32 = thread.join().unwrap();
        let panic = thread::spawn(|| panic!("on purpose")).join().unwrap_err();
        (message, crate::patience::text(&*panic))
    });
    // Without this fiber of the same worker, the thread does not end.
    let other = runtime.spawn(move || {
        thread::sleep(ms(5));
        sender.send(7).unwrap();
    });
    assert_eq!(waiting.join().unwrap(), (7, "on purpose".to_owned()));
    other.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn a_scope_in_a_fiber_waits_for_its_threads() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let fibers: Vec<_> = (0..4)
            .map(|index| {
                let (sender, receiver) = mpsc::channel();
                let scoping = runtime.spawn(move || {
                    let mut parts = [0; 3];
                    let sum = thread::scope(|scope| {
                        for (place, part) in parts.iter_mut().enumerate() {
                            scope.spawn(move || {
                                thread::sleep(ms(place as u64));
                                *part = index + place;
                            });
                        }
                        let sum = scope.spawn(move || receiver.iter().sum::<usize>());
                        sum.join().unwrap()
                    });
                    assert_eq!(parts, [index, index + 1, index + 2]);
                    sum
                });
                let feeding = runtime.spawn(move || {
                    for part in 0..5 {
                        thread::sleep(ms(1));
                        sender.send(part).unwrap();
                    }
                });
                (scoping, feeding)
            })
            .collect();
        for (scoping, feeding) in fibers {
            assert_eq!(scoping.join().unwrap(), 10);
            feeding.join().unwrap();
        }
        runtime.stop().unwrap();
    }
}

/// How much a program in a child process writes, and who: fibers and threads.
const LINES: usize = 5;
const WRITERS: [&str; 6] = ["f0", "f1", "f2", "f3", "t4", "t5"];

/// Writes a line in three pieces, with a wait after each, while it has the lock.
fn write_slowly(mut output: impl Write, who: &str, line: usize) {
    for piece in ["<", who, " "] {
        output.write_all(piece.as_bytes()).unwrap();
        output.flush().unwrap();
        thread::sleep(us(700));
    }
    writeln!(output, "{line}>").unwrap();
}

/// Writes lines to both outputs, one way or the other.
fn write_lines(who: &str) {
    for line in 0..LINES {
        if line % 2 == 0 {
            write_slowly(io::stdout().lock(), who, line);
            println!("<{who} again>");
            write_slowly(io::stderr().lock(), who, line);
            eprintln!("<{who} again>");
        } else {
            let (output, errors) = (io::stdout().lock(), io::stderr().lock());
            // Who has a lock gets it again.
            println!("<{who} {line}>");
            eprintln!("<{who} {line}>");
            thread::sleep(us(300));
            drop((output, errors));
        }
        thread::sleep(Duration::ZERO);
    }
}

#[test]
fn who_has_the_output_has_it_alone() {
    let name = "channels::who_has_the_output_has_it_alone";
    if let Some(workers) = common::case() {
        let watchdog = Watchdog::new();
        let runtime = watchdog.runtime(workers.parse().unwrap());
        println!();
        let fibers: Vec<_> = WRITERS[..4]
            .iter()
            .map(|who| runtime.spawn(|| write_lines(who)))
            .collect();
        let threads: Vec<_> = WRITERS[4..]
            .iter()
            .map(|who| thread::spawn(|| write_lines(who)))
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        return runtime.stop().unwrap();
    }
    for workers in ["1", "2"] {
        let child = common::child(name, workers, &[]).succeeded();
        for output in [child.stdout(), child.stderr()] {
            for who in WRITERS {
                let expected = (0..LINES).flat_map(|line| {
                    let again = (line % 2 == 0).then(|| format!("<{who} again>"));
                    [format!("<{who} {line}>")].into_iter().chain(again)
                });
                let lines = output.lines().filter(|line| line.contains(who));
                assert!(lines.eq(expected), "{workers} workers, {who}:\n{output}");
            }
        }
    }
}
