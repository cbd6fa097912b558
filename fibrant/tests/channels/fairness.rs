//! Among several ready arms of a `select!` each is equally likely, wherever they stand and whatever stands between them.

use crate::channel::*;
use crate::harness::*;
use crate::select;

/// How often one is chosen.
const ROUNDS: usize = 10_000;

/// Each arm must have been chosen about as often as the others: to within six standard deviations of what chance makes of it, so that a
/// fair choice fails once in some hundred million times.
#[track_caller]
fn assert_fair(hits: &[usize]) {
    let total = hits.iter().sum::<usize>() as f64;
    let share = 1.0 / hits.len() as f64;
    let deviation = (total * share * (1.0 - share)).sqrt();
    for &hit in hits {
        let off = (hit as f64 - total * share).abs();
        assert!(off <= 6.0 * deviation, "{hits:?}: {off} off, with {deviation}");
    }
}

/// Receivers that always have something.
struct Wells([(Sender<u8>, Receiver<u8>); 5]);

impl Wells {
    fn new() -> Wells {
        let flavours = [
            Flavour::Unbounded,
            Flavour::Bounded(1),
            Flavour::Bounded(3),
            Flavour::Unbounded,
            Flavour::Bounded(2),
        ];
        let wells = flavours.map(Flavour::channel);
        wells.iter().for_each(|(sender, _)| sender.send(0).unwrap());
        Wells(wells)
    }

    fn receiver(&self, index: usize) -> &Receiver<u8> {
        &self.0[index].1
    }

    /// Notes that one has been received, and fills it up again.
    fn note(&self, index: usize, hits: &mut [usize]) {
        hits[index] += 1;
        self.0[index].0.send(0).unwrap();
    }
}

#[test]
fn of_ready_receives_each_is_as_likely() {
    alone(|| {
        let wells = Wells::new();
        let [a, b, c, d, e] = std::array::from_fn(|index| wells.receiver(index));
        let mut two = [0; 2];
        let mut three = [0; 3];
        let mut five = [0; 5];
        for _ in 0..ROUNDS {
            let chosen = select! { recv(a) -> _ => 0, recv(b) -> _ => 1 };
            wells.note(chosen, &mut two);
            let chosen = select! { recv(a) -> _ => 0, recv(b) -> _ => 1, recv(c) -> _ => 2 };
            wells.note(chosen, &mut three);
            let chosen = select! {
                recv(a) -> _ => 0,
                recv(b) -> _ => 1,
                recv(c) -> _ => 2,
                recv(d) -> _ => 3,
                recv(e) -> _ => 4,
            };
            wells.note(chosen, &mut five);
        }
        assert_fair(&two);
        assert_fair(&three);
        assert_fair(&five);
    });
}

#[test]
fn of_ready_sends_each_is_as_likely() {
    alone(|| {
        let (first, into_first) = unbounded();
        let (second, into_second) = bounded(1);
        let (third, into_third) = bounded(3);
        let mut hits = [0; 3];
        for _ in 0..ROUNDS {
            let chosen = select! {
                send(first, ()) -> _ => 0,
                send(second, ()) -> _ => 1,
                send(third, ()) -> _ => 2,
            };
            hits[chosen] += 1;
            [&into_first, &into_second, &into_third][chosen].recv().unwrap();
        }
        assert_fair(&hits);
    });
}

#[test]
fn arms_that_are_not_ready_do_not_matter() {
    alone(|| {
        let wells = Wells::new();
        let [a, b, c, d, e] = std::array::from_fn(|index| wells.receiver(index));
        let (full, empty) = bounded::<u8>(0);
        let (taken, _keeps) = bounded::<u8>(1);
        taken.send(0).unwrap();
        let (_speaks, silent) = unbounded::<u8>();
        let mut two = [0; 2];
        let mut three = [0; 3];
        let mut five = [0; 5];
        for _ in 0..ROUNDS {
            let chosen = select! {
                recv(empty) -> _ => unreachable!(),
                recv(a) -> _ => 0,
                send(full, 0) -> _ => unreachable!(),
                recv(never::<u8>()) -> _ => unreachable!(),
                send(taken, 0) -> _ => unreachable!(),
                recv(b) -> _ => 1,
                recv(silent) -> _ => unreachable!(),
            };
            wells.note(chosen, &mut two);
            let chosen = select! {
                recv(a) -> _ => 0,
                recv(b) -> _ => 1,
                recv(empty) -> _ => unreachable!(),
                send(full, 0) -> _ => unreachable!(),
                recv(silent) -> _ => unreachable!(),
                recv(c) -> _ => 2,
            };
            wells.note(chosen, &mut three);
            let chosen = select! {
                recv(a) -> _ => 0,
                recv(empty) -> _ => unreachable!(),
                send(taken, 0) -> _ => unreachable!(),
                recv(silent) -> _ => unreachable!(),
                recv(b) -> _ => 1,
                recv(c) -> _ => 2,
                recv(after(LONG)) -> _ => unreachable!(),
                recv(d) -> _ => 3,
                recv(e) -> _ => 4,
            };
            wells.note(chosen, &mut five);
        }
        assert_fair(&two);
        assert_fair(&three);
        assert_fair(&five);
    });
}

#[test]
fn a_default_does_not_matter() {
    alone(|| {
        let wells = Wells::new();
        let [a, b, c] = std::array::from_fn(|index| wells.receiver(index));
        let (_speaks, silent) = unbounded::<u8>();
        let mut hits = [[0; 3]; 2];
        for _ in 0..ROUNDS {
            let chosen = select! {
                recv(a) -> _ => 0,
                default => unreachable!(),
                recv(silent) -> _ => unreachable!(),
                recv(b) -> _ => 1,
                recv(c) -> _ => 2,
            };
            wells.note(chosen, &mut hits[0]);
            let chosen = select! {
                recv(a) -> _ => 0,
                recv(b) -> _ => 1,
                recv(silent) -> _ => unreachable!(),
                recv(c) -> _ => 2,
                default(LONG) => unreachable!(),
            };
            wells.note(chosen, &mut hits[1]);
        }
        assert_fair(&hits[0]);
        assert_fair(&hits[1]);
    });
}

#[test]
fn arms_of_all_kinds_are_as_likely() {
    alone(|| {
        let wells = Wells::new();
        let (sender, drained) = unbounded();
        let (to_nobody, nobody) = bounded::<u8>(2);
        drop(nobody);
        let (gone, from_nobody) = bounded::<u8>(0);
        drop(gone);
        let past = std::time::Instant::now();
        let (full, empty) = bounded::<u8>(0);
        let mut hits = [0; 5];
        for _ in 0..ROUNDS {
            let chosen = select! {
                recv(wells.receiver(0)) -> _ => 0,
                send(sender, 0) -> _ => 1,
                recv(empty) -> _ => unreachable!(),
                send(to_nobody, 0) -> _ => 2,
                recv(from_nobody) -> _ => 3,
                send(full, 0) -> _ => unreachable!(),
                recv(at(past)) -> _ => 4,
            };
            match chosen {
                0 => wells.note(0, &mut hits),
                _ => hits[chosen] += 1,
            }
            drained.try_iter().for_each(drop);
        }
        assert_fair(&hits);
    });
}

#[test]
fn it_is_arms_that_are_as_likely_not_channels() {
    alone(|| {
        let wells = Wells::new();
        let mut hits = [0; 3];
        for _ in 0..ROUNDS {
            let (arm, well) = select! {
                recv(wells.receiver(0)) -> _ => (0, 0),
                recv(wells.receiver(0)) -> _ => (1, 0),
                recv(wells.receiver(1)) -> _ => (2, 1),
            };
            hits[arm] += 1;
            wells.0[well].0.send(0).unwrap();
        }
        assert_fair(&hits);
    });
}

#[test]
fn a_fresh_member_does_not_keep_to_one_arm() {
    // Whatever a choice is made by, it must not begin with a long run: those who live shortly choose a few times only.
    everywhere(|place| {
        let members: Vec<_> = (0..60)
            .map(|_| {
                place.spawn(|| {
                    let wells = Wells::new();
                    let mut hits = [0; 2];
                    for _ in 0..60 {
                        let chosen = select! {
                            recv(wells.receiver(0)) -> _ => 0,
                            recv(wells.receiver(1)) -> _ => 1,
                        };
                        wells.note(chosen, &mut hits);
                    }
                    hits
                })
            })
            .collect();
        for hits in join_all(members) {
            assert!(hits[0] > 0 && hits[1] > 0, "{hits:?}");
        }
    });
}

#[test]
fn one_who_waits_chooses_none_before_the_others() {
    // In each round one of three arms becomes ready first, by chance, and the others at once afterwards. All are of one flavour: how long a
    // send takes depends on it, so with several who is there first were not only a matter of chance.
    everywhere_with_all(|place, flavour| {
        if flavour == RENDEZVOUS {
            // Nobody could send to the others until one is chosen.
            return;
        }
        let rounds = place.rounds(ROUNDS);
        let (first, from_first) = flavour.channel();
        let (second, from_second) = flavour.channel();
        let (third, from_third) = flavour.channel();
        let (acknowledge, acknowledged) = bounded(1);
        let (_speaks, silent) = bounded::<u8>(0);
        let choosing = place.spawn(move || {
            let mut hits = [0; 3];
            for _ in 0..rounds {
                let chosen = select! {
                    recv(from_first) -> _ => 0,
                    recv(silent) -> _ => unreachable!(),
                    recv(from_second) -> _ => 1,
                    recv(never::<u8>()) -> _ => unreachable!(),
                    recv(from_third) -> _ => 2,
                };
                hits[chosen] += 1;
                let all = [&from_first, &from_second, &from_third];
                (0..3)
                    .filter(|&other| other != chosen)
                    .for_each(|other| all[other].recv().unwrap());
                acknowledge.send(()).unwrap();
            }
            hits
        });
        let driving = place.spawn(move || {
            let mut random = Random::new(1);
            let all = [first, second, third];
            for _ in 0..rounds {
                let begin = random.below(3) as usize;
                let step = 1 + random.below(2) as usize;
                (0..3).for_each(|turn| all[(begin + turn * step) % 3].send(()).unwrap());
                acknowledged.recv().unwrap();
            }
        });
        let hits = choosing.join();
        driving.join();
        assert_fair(&hits);
    });
}

#[test]
fn nobody_is_forgotten_under_load() {
    // Three who send again and again as soon as they are through, and one who chooses among them.
    everywhere(|place| {
        let rounds = place.rounds(ROUNDS);
        let ends: [(Sender<usize>, Receiver<usize>); 3] = std::array::from_fn(|_| bounded(0));
        let receivers = ends.each_ref().map(|(_, receiver)| receiver.clone());
        let sending: Vec<_> = ends
            .into_iter()
            .map(|(sender, receiver)| {
                drop(receiver);
                place.spawn(move || (0..).find(|&number| sender.send(number).is_err()).unwrap())
            })
            .collect();
        let choosing = place.spawn(move || {
            let [a, b, c] = &receivers;
            let mut hits = [0; 3];
            // Who is back when is a matter of the system's scheduler: one may be away for long, but not for ever.
            while hits.iter().sum::<usize>() < rounds || hits.iter().any(|&hit| hit < 50) {
                let (chosen, number) = select! {
                    recv(a) -> number => (0, number),
                    recv(b) -> number => (1, number),
                    recv(c) -> number => (2, number),
                };
                assert_eq!(number, Ok(hits[chosen]), "lost, or not in order");
                hits[chosen] += 1;
                if number.unwrap() % 100 == 0 {
                    fibrant::sleep(us(10));
                }
            }
            hits
        });
        let hits = choosing.join();
        assert_eq!(join_all(sending), hits, "as many have been sent");
        // Fibers of one worker take turns.
        if place.kind == Kind::OneWorker {
            assert!(hits.iter().all(|&hit| hit >= rounds / 4), "{hits:?}");
        }
    });
}
