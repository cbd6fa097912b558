//! Channels that bring moments: `after`, `at`, `tick`, and `never`, which brings none.

use crate::channel::*;
use crate::harness::*;
use crate::select;
use std::time::{Duration, Instant};

#[test]
fn a_moment_comes_once_and_not_early() {
    everywhere(|place| {
        let members = [1, 5, 9, 13].map(|milliseconds| {
            place.spawn(move || {
                let start = Instant::now();
                let timer = after(ms(milliseconds));
                let due = timer.recv().unwrap();
                let now = Instant::now();
                assert!(due >= start + ms(milliseconds), "it says it is early");
                assert!(now >= due, "it is early");
                assert!(now < start + ms(milliseconds) + LATE, "it is late");
                // There is no other, and it does not end: one would wait for ever.
                assert_eq!(timer.try_recv(), Err(TryRecvError::Empty));
                let start = Instant::now();
                assert_eq!(timer.recv_timeout(ms(3)), Err(RecvTimeoutError::Timeout));
                assert!(start.elapsed() >= ms(3));
                let chosen = select! { recv(timer) -> _ => "again", recv(never::<u8>()) -> _ => "never", default(ms(3)) => "late" };
                assert_eq!(chosen, "late");
            })
        });
        join_all(members);
    });
}

#[test]
fn a_moment_can_be_named() {
    everywhere(|place| {
        let members = [1, 4, 7].map(|milliseconds| {
            place.spawn(move || {
                let when = Instant::now() + ms(milliseconds);
                let timer = at(when);
                assert_eq!(timer.recv(), Ok(when), "it brings the moment it was made for");
                assert!(Instant::now() >= when);
                assert_eq!(timer.try_recv(), Err(TryRecvError::Empty));
            })
        });
        join_all(members);
        // One that has been comes at once.
        let when = Instant::now() - ms(50);
        assert_eq!(place.spawn(move || at(when).try_recv()).join(), Ok(when));
        assert_eq!(place.spawn(move || at(when).recv_timeout(ms(0))).join(), Ok(when));
    });
}

#[test]
fn nothing_is_no_time() {
    alone(|| {
        let start = Instant::now();
        let due = after(ms(0)).try_recv().unwrap();
        assert!(due >= start && due <= Instant::now());
        assert!(tick(ms(0)).try_recv().is_ok());
        // Without a pause there is always one.
        let ticks = tick(ms(0));
        (0..10).for_each(|_| assert!(ticks.recv().is_ok()));
    });
}

#[test]
fn too_far_is_never() {
    alone(|| {
        for timer in [after(Duration::MAX), tick(Duration::MAX)] {
            assert_eq!(timer.try_recv(), Err(TryRecvError::Empty));
            assert_eq!(timer.recv_timeout(ms(2)), Err(RecvTimeoutError::Timeout));
        }
    });
}

#[test]
fn figures_of_timers() {
    alone(|| {
        for timer in [after(LONG), tick(LONG), at(Instant::now() + LONG)] {
            assert_eq!(timer.capacity(), Some(1));
            assert_eq!((timer.len(), timer.is_empty(), timer.is_full()), (0, true, false));
        }
        let past = at(Instant::now());
        let ticks = tick(ms(1));
        fibrant::sleep(ms(2));
        for timer in [&past, &ticks] {
            assert_eq!(timer.capacity(), Some(1));
            assert_eq!((timer.len(), timer.is_empty(), timer.is_full()), (1, false, true));
        }
        past.recv().unwrap();
        assert_eq!((past.len(), past.is_empty(), past.is_full()), (0, true, false));
        let nothing = never::<u8>();
        assert_eq!(nothing.capacity(), Some(0));
        assert_eq!(
            (nothing.len(), nothing.is_empty(), nothing.is_full()),
            (0, true, true)
        );
    });
}

#[test]
fn never_is_never() {
    everywhere(|place| {
        let members: Vec<_> = (0..3)
            .map(|_| {
                place.spawn(|| {
                    let nothing = never::<String>();
                    let start = Instant::now();
                    assert_eq!(nothing.try_recv(), Err(TryRecvError::Empty));
                    assert_eq!(nothing.recv_timeout(ms(4)), Err(RecvTimeoutError::Timeout));
                    assert!(start.elapsed() >= ms(4));
                    let deadline = Instant::now() + ms(4);
                    assert_eq!(nothing.clone().recv_deadline(deadline), Err(RecvTimeoutError::Timeout));
                    assert!(Instant::now() >= deadline);
                    assert_eq!(nothing.try_iter().next(), None);
                    assert!(select! { recv(nothing) -> _ => false, default => true });
                    assert!(select! { recv(nothing) -> _ => false, default(ms(1)) => true });
                    assert!(select! { recv(nothing) -> _ => false, recv(nothing) -> _ => false, default(ms(1)) => true });
                })
            })
            .collect();
        join_all(members);
    });
}

#[test]
fn one_of_those_who_share_a_timer_gets_the_moment() {
    everywhere(|place| {
        let start = Instant::now();
        let timer = after(ms(8));
        let members: Vec<_> = (0..6)
            .map(|index| {
                let timer = timer.clone();
                place.spawn(move || {
                    let start = Instant::now();
                    let got = match index % 3 {
                        0 => timer.recv_timeout(ms(60)).ok(),
                        1 => select! { recv(timer) -> due => due.ok(), default(ms(60)) => None },
                        _ => select! {
                            recv(never::<u8>()) -> _ => None,
                            recv(timer) -> due => due.ok(),
                            recv(timer) -> due => due.ok(),
                            default(ms(60)) => None,
                        },
                    };
                    assert!(got.is_some() || start.elapsed() >= ms(60), "it gave up early");
                    got
                })
            })
            .collect();
        let got: Vec<_> = join_all(members).into_iter().flatten().collect();
        assert_eq!(got.len(), 1);
        assert!(got[0] >= start + ms(8));
        assert!(timer.is_empty());
    });
}

#[test]
fn a_timer_can_be_waited_for_in_parts() {
    everywhere(|place| {
        let waiting = place.spawn(|| {
            let start = Instant::now();
            let timer = after(ms(20));
            while timer.recv_timeout(ms(3)).is_err() {}
            assert!(start.elapsed() >= ms(20));
            let start = Instant::now();
            let ticks = tick(ms(20));
            while ticks.recv_deadline(Instant::now() + ms(3)).is_err() {}
            assert!(start.elapsed() >= ms(20));
        });
        waiting.join();
        // Made here, waited for there.
        let start = Instant::now();
        let timer = after(ms(5));
        place.spawn(move || timer.recv().unwrap()).join();
        assert!(start.elapsed() >= ms(5));
    });
}

#[test]
fn ticks_come_again_and_again_and_not_early() {
    everywhere(|place| {
        let members = [2, 3, 5].map(|milliseconds| {
            place.spawn(move || {
                let pause = ms(milliseconds);
                let start = Instant::now();
                let ticks = tick(pause);
                let mut last = start;
                for (count, due) in ticks.iter().take(8).enumerate() {
                    assert!(due >= last + pause, "the pause is too short");
                    assert!(Instant::now() >= due && start.elapsed() >= pause * (count as u32 + 1));
                    last = due;
                }
                assert!(start.elapsed() < LATE);
            })
        });
        join_all(members);
    });
}

#[test]
fn ticks_that_nobody_waits_for_do_not_pile_up() {
    everywhere(|place| {
        let waiting = place.spawn(|| {
            let pause = ms(15);
            let start = Instant::now();
            let ticks = tick(pause);
            let made = Instant::now();
            fibrant::sleep(pause * 5);
            assert_eq!(ticks.len(), 1);
            let before = Instant::now();
            let first = ticks.recv().unwrap();
            assert!(
                first >= start + pause && first <= made + pause,
                "it is the one that was due first"
            );
            // Those that come now are at least a pause apart, counted from when the first one was taken.
            let more = ticks.try_iter().count() as u32;
            assert!(pause * more <= before.elapsed(), "{more} more at once");
            let next = select! { recv(ticks) -> due => due.unwrap(), recv(never()) -> due => due.unwrap() };
            assert!(next >= before + pause && next <= Instant::now());
        });
        waiting.join();
    });
}

#[test]
fn those_who_share_ticks_get_different_ones() {
    everywhere(|place| {
        let pause = ms(4);
        let start = Instant::now();
        let ticks = tick(pause);
        let members: Vec<_> = (0..3)
            .map(|index| {
                let ticks = ticks.clone();
                place.spawn(move || {
                    (0..4)
                        .map(|_| match index {
                            0 => ticks.recv().unwrap(),
                            1 => select! { recv(ticks) -> due => due.unwrap() },
                            _ => select! { recv(ticks) -> due => due.unwrap(), recv(never()) -> due => due.unwrap() },
                        })
                        .inspect(|&due| assert!(Instant::now() >= due, "early"))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let mut all = join_all(members).concat();
        all.sort();
        assert_eq!(all.len(), 12);
        assert!(start.elapsed() >= pause * 12);
        assert!(
            all.windows(2).all(|pair| pair[1] >= pair[0] + pause),
            "two are the same, or too close"
        );
    });
}

#[test]
fn a_timer_among_other_arms() {
    everywhere(|place| {
        let waiting = place.spawn(|| {
            let (sender, receiver) = bounded::<u8>(0);
            let start = Instant::now();
            let chosen = select! {
                recv(receiver) -> _ => "message",
                send(sender, 1) -> _ => "sent",
                recv(after(ms(6))) -> _ => "time is up",
                recv(after(LONG)) -> _ => "much later",
                recv(tick(LONG)) -> _ => "much later",
                default(LONG) => "later",
            };
            assert_eq!(chosen, "time is up");
            assert!(start.elapsed() >= ms(6));
            let start = Instant::now();
            let chosen = select! { recv(after(LONG)) -> _ => "later", recv(receiver) -> _ => "message", default(ms(6)) => "default" };
            assert_eq!(chosen, "default");
            assert!(start.elapsed() >= ms(6));
            assert_eq!(select! { recv(after(LONG)) -> _ => "later", default => "default" }, "default");
            assert_eq!(select! { recv(after(ms(1))) -> _ => "now", default(LONG) => "default" }, "now");
            assert_eq!(select! { recv(after(ms(1))) -> _ => "now" }, "now");
            assert_eq!(select! { recv(at(Instant::now())) -> _ => "now", default => "default" }, "now");
        });
        waiting.join();
        // What comes before its time is up is chosen.
        let (sender, receiver) = bounded(0);
        let waiting = place.spawn(move || {
            select! {
                recv(after(LONG)) -> _ => None,
                recv(receiver) -> message => message.ok(),
            }
        });
        waiting.wait_until_it_waits();
        sender.send(5).unwrap();
        assert_eq!(waiting.join(), Some(5));
    });
}

#[test]
fn work_between_ticks_until_time_is_up() {
    everywhere(|place| {
        let (sender, receiver) = bounded::<usize>(2);
        let keeps_open = sender.clone();
        let working = place.spawn(move || {
            let start = Instant::now();
            let (ticks, end) = (tick(ms(3)), after(ms(30)));
            let (mut sum, mut beats) = (0, 0);
            loop {
                select! {
                    recv(receiver) -> number => sum += number.unwrap(),
                    recv(ticks) -> _ => beats += 1,
                    recv(end) -> _ => break,
                }
            }
            let took = start.elapsed();
            assert!(
                took >= ms(30) && beats as u128 <= took.as_millis() / 3,
                "{beats} in {took:?}"
            );
            (sum, receiver)
        });
        let sending = place.spawn(move || (1..=20).for_each(|number| sender.send(number).unwrap()));
        let (sum, receiver) = working.join();
        drop(keeps_open);
        let rest: usize = receiver.iter().sum();
        sending.join();
        assert_eq!(sum + rest, 210);
    });
}

#[test]
fn timers_may_be_dropped_before_their_time() {
    everywhere(|place| {
        let members: Vec<_> = (0..3)
            .map(|_| {
                place.spawn(|| {
                    for _ in 0..300 {
                        let timers = (after(ms(1)), tick(ms(1)), at(Instant::now() + LONG));
                        select! {
                            recv(timers.0.clone()) -> _ => {}
                            recv(timers.1.clone()) -> _ => {}
                            recv(timers.2) -> _ => unreachable!(),
                            default(us(10)) => {}
                        }
                    }
                })
            })
            .collect();
        join_all(members);
    });
}
