//! Tests of the wheel: random programs against a simple model, re-entrance, far jumps, and the cost of the minimum.

use super::*;
use proptest::prelude::*;
use std::cell::RefCell;

/// Nanoseconds of a tick.
const TICK: u64 = 1 << TICK_BITS;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A wheel, whose alarms are for numbers, and the keys of those that are armed.
struct Rig {
    wheel: RefCell<Wheel<usize>>,
    keys: RefCell<Vec<Key>>,
}

impl Rig {
    fn new(count: usize, now: u64) -> Rig {
        Rig {
            wheel: RefCell::new(Wheel::new(now)),
            keys: RefCell::new(vec![NONE; count]),
        }
    }

    fn insert(&self, number: usize, deadline: u64) {
        assert!(!self.is_armed(number));
        self.keys.borrow_mut()[number] = self.wheel.borrow_mut().insert(number, deadline);
    }

    fn remove(&self, number: usize) {
        assert!(self.is_armed(number));
        let key = std::mem::replace(&mut self.keys.borrow_mut()[number], NONE);
        self.wheel.borrow_mut().remove(key);
    }

    fn is_armed(&self, number: usize) -> bool {
        self.keys.borrow()[number] != NONE
    }

    fn len(&self) -> usize {
        self.wheel.borrow().len()
    }

    fn next_deadline(&self) -> Option<u64> {
        self.wheel.borrow_mut().next_alarm().map(|(deadline, number)| {
            assert!(self.is_armed(number));
            deadline
        })
    }

    /// Advances, and calls `expired` with the number of each that goes off.
    fn expire(&self, now: u64, mut expired: impl FnMut(usize)) {
        self.wheel
            .borrow_mut()
            .advance(now, |number| assert!(self.is_armed(number)));
        loop {
            let mut wheel = self.wheel.borrow_mut();
            let [first, second] = [0, 1].map(|others| wheel.due_after(others));
            let taken = wheel.take_due();
            assert_eq!((taken, wheel.due_after(0)), (first, second));
            drop(wheel);
            let Some(number) = taken else {
                break;
            };
            self.keys.borrow_mut()[number] = NONE;
            expired(number);
        }
    }

    /// The numbers of those that expire, in order.
    fn advance(&self, now: u64) -> Vec<usize> {
        let mut expired = Vec::new();
        self.expire(now, |number| expired.push(number));
        expired
    }

    /// Checks everything that must hold between calls.
    fn check(&self) {
        let wheel = &*self.wheel.borrow();
        let mut len = 0;
        for (index, slot) in wheel.slots.iter().enumerate() {
            let bit = wheel.occupied[index / WIDTH] >> (index % WIDTH) & 1;
            if cfg!(miri) && bit == 0 {
                continue; // It takes Miri too long to look at the many that are empty.
            }
            assert_eq!(bit == 1, slot.head != NONE);
            assert_eq!(slot.head != NONE, slot.tail != NONE);
            let (mut previous, mut next) = (NONE, slot.head);
            let mut run = slot.sorted != NONE;
            while next != NONE {
                let alarm = &wheel.alarms[next as usize];
                assert_eq!(self.keys.borrow()[alarm.target], next);
                assert_eq!(alarm.slot as usize, index);
                assert_eq!(alarm.previous, previous);
                if index != DUE {
                    assert_eq!(wheel.index(alarm.deadline), index);
                }
                if run && previous != NONE {
                    assert!(wheel.deadline(previous) <= alarm.deadline);
                } else {
                    assert!(run || alarm.deadline >= slot.rest);
                }
                run &= slot.sorted != next;
                len += 1;
                (previous, next) = (next, alarm.next);
            }
            assert!(!run, "the run ends in the list");
            assert_eq!(previous, slot.tail);
            assert!(slot.sorted != slot.tail || slot.rest == u64::MAX);
        }
        assert_eq!(wheel.len(), len);
        let mut free = 0;
        let mut next = wheel.free;
        while next != NONE {
            free += 1;
            next = wheel.next(next);
        }
        assert_eq!(
            wheel.alarms.len(),
            len + free,
            "every number is an alarm's or free"
        );
    }
}

/// How a deadline or a time comes about.
#[derive(Clone, Copy, Debug)]
enum When {
    /// From the start of the clock.
    At(u64),
    /// From now on.
    After(u64),
    /// Before now.
    Before(u64),
}

impl When {
    fn from(self, now: u64) -> u64 {
        match self {
            When::At(time) => time,
            When::After(time) => now.saturating_add(time),
            When::Before(time) => now.saturating_sub(time),
        }
    }
}

/// One call of a random program. Alarms are given by a number that is reduced to those there are.
#[derive(Clone, Debug)]
enum Op {
    /// Arms an alarm; removes it before if it is armed.
    Insert(usize, When),
    /// Removes an alarm if it is armed.
    Remove(usize),
    /// Removes the alarm with the earliest deadline.
    RemoveFirst,
    /// Asks for the next deadline.
    Next,
    /// Advances, and does one of these at each expiry.
    Advance(When, Vec<Op>),
}

/// A duration of any magnitude, up to 2^bits.
fn duration(bits: u32) -> impl Strategy<Value = u64> {
    (64 - bits..64, any::<u64>()).prop_map(|(shift, random)| random >> shift)
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        2 => duration(64).prop_map(When::At),
        6 => duration(64).prop_map(When::After),
        6 => (0..40u64).prop_map(When::After),
        6 => (0..40u64).prop_map(|steps| When::After(steps * TICK / 8)),
        4 => (0..40u64).prop_map(|steps| When::After((1 << 40) + steps)),
        2 => duration(40).prop_map(When::Before),
        1 => Just(When::At(u64::MAX)),
    ]
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (any::<usize>(), when()).prop_map(|(alarm, when)| Op::Insert(alarm, when)),
        3 => any::<usize>().prop_map(Op::Remove),
        2 => Just(Op::RemoveFirst),
        2 => Just(Op::Next),
    ]
}

fn program() -> impl Strategy<Value = Vec<Op>> {
    let advance = (
        prop_oneof![
            8 => duration(24).prop_map(When::After),
            8 => duration(44).prop_map(When::After),
            1 => duration(64).prop_map(When::After),
            1 => duration(64).prop_map(When::Before),
        ],
        prop::collection::vec(operation(), 0..4),
    );
    let op = prop_oneof![
        5 => operation(),
        1 => advance.prop_map(|(when, within)| Op::Advance(when, within)),
    ];
    // Miri is slow.
    prop::collection::vec(op, 1..if cfg!(miri) { 30 } else { 200 })
}

/// What the wheel should do, done simply.
#[derive(Default)]
struct Model {
    /// Alarms that are armed: deadline, order of insertion, number.
    armed: Vec<(u64, usize, usize)>,
    /// How many were inserted.
    inserted: usize,
    /// The latest time.
    now: u64,
}

/// Does what an operation says in both, if it is not an advance. The model's due alarms are in `armed` too.
fn apply(op: &Op, rig: &Rig, model: &RefCell<Model>) {
    let model = &mut *model.borrow_mut();
    let number = |random: usize| random % rig.keys.borrow().len();
    let remove = |model: &mut Model, number: usize| {
        if let Some(position) = model.armed.iter().position(|alarm| alarm.2 == number) {
            model.armed.swap_remove(position);
            rig.remove(number);
        }
    };
    match *op {
        Op::Insert(random, when) => {
            remove(model, number(random));
            let deadline = when.from(model.now);
            rig.insert(number(random), deadline);
            model.armed.push((deadline, model.inserted, number(random)));
            model.inserted += 1;
        }
        Op::Remove(random) => remove(model, number(random)),
        Op::RemoveFirst => {
            if let Some(&(_, _, number)) = model.armed.iter().min() {
                remove(model, number);
            }
        }
        Op::Next => {
            assert_eq!(rig.next_deadline(), model.armed.iter().map(|alarm| alarm.0).min());
        }
        Op::Advance(..) => unreachable!("advances are not nested"),
    }
    assert_eq!(rig.len(), model.armed.len());
}

/// Runs a program in the wheel and in the model.
fn run(program: &[Op], count: usize, start: u64) {
    let rig = Rig::new(count, start);
    let model = RefCell::new(Model {
        now: start,
        ..Model::default()
    });
    for op in program {
        let Op::Advance(when, within) = op else {
            apply(op, &rig, &model);
            rig.check();
            continue;
        };
        let (before, asked) = (model.borrow().now, when.from(model.borrow().now));
        let now = before.max(asked);
        model.borrow_mut().now = now;
        // Nothing that is inserted from here on may expire.
        let limit = model.borrow().inserted;
        let due = |model: &Model| {
            let mut due = model.armed.clone();
            due.retain(|&(deadline, inserted, _)| deadline <= now && inserted < limit);
            due.into_iter().min()
        };
        let mut within = within.iter();
        rig.expire(asked, |number| {
            assert!(!rig.is_armed(number));
            let expected = due(&model.borrow()).expect("nothing is due");
            assert_eq!(expected.2, number, "in order of deadline and insertion");
            model.borrow_mut().armed.retain(|&armed| armed != expected);
            rig.check();
            if let Some(op) = within.next() {
                apply(op, &rig, &model);
                apply(&Op::Next, &rig, &model);
                rig.check();
            }
        });
        assert_eq!(due(&model.borrow()), None, "all that were due expired");
        rig.check();
    }
    apply(&Op::Next, &rig, &model);
    rig.expire(u64::MAX, drop);
    assert_eq!((rig.len(), rig.next_deadline()), (0, None));
    rig.check();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { ProptestConfig::default().cases },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Few alarms, everything random.
    #[test]
    fn agrees_with_the_model(program in program(), start in duration(63)) {
        run(&program, 40, start);
    }

    /// Many alarms in one slot, whose earliest are removed: the run, the rest and the sorting.
    #[test]
    fn finds_the_minimum_of_a_full_slot(
        offsets in prop::collection::vec(0..1000u64, 1..if cfg!(miri) { 100 } else { 300 }),
        removals in prop::collection::vec((0..4u8, any::<usize>(), 0..1000u64), 1..if cfg!(miri) { 20 } else { 300 }),
    ) {
        let far = 1 << 40;
        let mut program: Vec<Op> = offsets.iter().enumerate()
            .map(|(number, offset)| Op::Insert(number, When::At(far + offset))).collect();
        for (kind, random, offset) in removals {
            program.push(match kind {
                0 => Op::Insert(random, When::At(far + offset)),
                1 => Op::Remove(random),
                _ => Op::RemoveFirst,
            });
            program.push(Op::Next);
        }
        program.push(Op::Advance(When::At(far + 500), Vec::new()));
        run(&program, 300, 0);
    }
}

#[test]
fn expires_exactly_at_the_deadline() {
    let rig = Rig::new(3, 10 * TICK + 5);
    for (number, after) in [7, 6, 6].into_iter().enumerate() {
        rig.insert(number, 10 * TICK + after);
    }
    assert_eq!(rig.advance(10 * TICK + 5), []);
    assert_eq!(rig.advance(10 * TICK + 6), [1, 2]);
    assert_eq!(rig.next_deadline(), Some(10 * TICK + 7));
    assert_eq!(rig.advance(10 * TICK + 7), [0]);
}

#[test]
fn keeps_every_deadline_there_is() {
    let deadlines: Vec<u64> = (0..64)
        .flat_map(|bit| [(1u64 << bit) - 1, 1 << bit])
        .chain([u64::MAX])
        .collect();
    let rig = Rig::new(deadlines.len(), 0);
    for (number, &deadline) in deadlines.iter().enumerate().rev() {
        rig.insert(number, deadline);
        rig.check();
    }
    let expected = |now: u64| deadlines.iter().filter(|&&deadline| deadline <= now).count();
    let mut expired = 0;
    for now in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit]) {
        expired += rig.advance(now).len();
        assert_eq!(expired, expected(now));
        assert_eq!(
            rig.next_deadline(),
            deadlines.iter().copied().find(|&deadline| deadline > now)
        );
        rig.check();
    }
    assert_eq!(rig.advance(u64::MAX), [deadlines.len() - 1]);
}

#[test]
fn time_does_not_go_back() {
    let rig = Rig::new(2, SECOND);
    assert_eq!(rig.advance(5 * SECOND), []);
    rig.insert(0, 4 * SECOND);
    rig.insert(1, 6 * SECOND);
    assert_eq!(rig.next_deadline(), Some(4 * SECOND));
    assert_eq!(rig.advance(2 * SECOND), [0], "5 s counts");
    assert_eq!(rig.advance(6 * SECOND), [1]);
}

#[test]
fn jumps_far_in_few_steps() {
    // 150 years at once, and then all the years there are. With a step for each tick this would not end.
    let rig = Rig::new(4, 3);
    let year = 365 * 24 * 3600 * SECOND;
    for (number, deadline) in [500 * year, SECOND, year, 100 * year].into_iter().enumerate() {
        rig.insert(number, deadline);
    }
    assert_eq!(rig.advance(150 * year), [1, 2, 3]);
    assert_eq!(rig.next_deadline(), Some(500 * year));
    assert_eq!(rig.advance(u64::MAX), [0]);
    rig.insert(0, 0);
    assert_eq!(rig.advance(0), [0]);
}

#[test]
fn an_advance_ends_though_each_expiry_arms_again() {
    let rig = Rig::new(2, 0);
    rig.insert(0, SECOND);
    rig.insert(1, SECOND + 1);
    for (round, again) in [0, SECOND, 2 * SECOND, 2 * SECOND, 1].into_iter().enumerate() {
        let mut expired = 0;
        rig.expire(2 * SECOND, |number| {
            expired += 1;
            rig.insert(number, again);
            assert_eq!(rig.len(), 2);
        });
        assert_eq!(expired, 2, "round {round}");
        assert_eq!(rig.next_deadline(), Some(again));
    }
}

#[test]
fn an_expiry_may_remove_the_next_ones() {
    let rig = Rig::new(6, 0);
    // The same tick twice, another tick, another level, and one that is not due.
    let deadlines = [10, 10, 20, 5 * TICK, 100 * TICK, 200 * TICK];
    for (number, deadline) in deadlines.into_iter().enumerate() {
        rig.insert(number, deadline);
    }
    let mut expired = Vec::new();
    rig.expire(150 * TICK, |number| {
        expired.push(number);
        if expired.len() == 1 {
            for number in [4, 1, 5, 2] {
                rig.remove(number);
            }
            assert_eq!(rig.next_deadline(), Some(5 * TICK));
        }
    });
    assert_eq!(expired, [0, 3]);
    assert_eq!(rig.len(), 0);
    rig.check();
}

#[test]
fn the_room_of_alarms_is_used_again_and_given_back() {
    let rig = Rig::new(4 * KEPT, 0);
    let room = || rig.wheel.borrow().alarms.capacity();
    for number in 0..4 * KEPT {
        rig.insert(number, SECOND + number as u64);
    }
    let most = room();
    for number in 0..2 * KEPT {
        rig.remove(number);
    }
    for number in 0..2 * KEPT {
        rig.insert(number, SECOND);
    }
    assert_eq!(room(), most);
    assert_eq!(rig.advance(2 * SECOND).len(), 4 * KEPT);
    assert_eq!(room(), most, "as many may come again");
    rig.insert(0, SECOND);
    assert_eq!(rig.advance(2 * SECOND), [0]);
    assert!(room() < most, "{} of {most}", room());
}

#[test]
fn very_many_come_in_order() {
    // Enough for trails, through several levels; some of those that were to be fetched are gone by then.
    let rig = Rig::new(4 * CROWD, 0);
    let deadline = |number: usize| scattered(number as u64) % (3 * SECOND) + SECOND;
    for number in 0..4 * CROWD {
        rig.insert(number, deadline(number));
    }
    assert_eq!(rig.advance(SECOND / 2), []);
    let mut left: Vec<usize> = (0..4 * CROWD).collect();
    for now in [SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND] {
        left.retain(|&number| {
            let stays = number % 7 != 3 || deadline(number) <= now - SECOND;
            if !stays && rig.is_armed(number) {
                rig.remove(number);
            }
            stays
        });
        let mut due: Vec<usize> = Vec::new();
        left.retain(|&number| {
            if deadline(number) <= now {
                due.push(number);
            }
            deadline(number) > now
        });
        due.sort_by_key(|&number| deadline(number));
        assert_eq!(rig.advance(now), due);
        rig.check();
    }
    assert_eq!(rig.len(), 0);
}

#[test]
fn an_advance_within_an_expiry_takes_the_rest() {
    let rig = Rig::new(4, 0);
    for number in 0..4 {
        rig.insert(number, 10 + number as u64);
    }
    let (outer, inner) = (std::cell::Cell::new(0), RefCell::new(Vec::new()));
    rig.expire(12, |number| {
        outer.set(outer.get() + 1);
        rig.insert(number, 11);
        assert_eq!(rig.next_deadline(), Some(11));
        inner.borrow_mut().extend(rig.advance(13));
    });
    assert_eq!((outer.get(), inner.into_inner()), (1, vec![1, 0, 2, 3]));
    rig.check();
}

#[test]
fn what_was_not_taken_is_left_for_the_next_advance() {
    let rig = Rig::new(3, 0);
    for number in 0..3 {
        rig.insert(number, 10 + number as u64);
    }
    let panicking =
        std::panic::AssertUnwindSafe(|| rig.expire(20, |_| std::panic::resume_unwind(Box::new(()))));
    assert!(std::panic::catch_unwind(panicking).is_err());
    assert_eq!((rig.len(), rig.next_deadline()), (2, Some(11)));
    rig.insert(0, 11);
    rig.check();
    assert_eq!(rig.advance(20), [1, 0, 2]);
}

#[test]
fn a_crowd_is_spread_before_its_first_deadline() {
    for (crowd, is_spread) in [(CROWD / 2, false), (2 * CROWD, true)] {
        let rig = Rig::new(crowd, 0);
        for number in 0..crowd {
            // Not the first, which is where a slot begins.
            rig.insert(number, scattered(number as u64 + 1));
        }
        let first = rig.next_deadline().unwrap();
        let mut visits = Vec::new();
        loop {
            let (Visit::Alarm(visit, _) | Visit::Spread(visit)) =
                rig.wheel.borrow_mut().next_visit().unwrap();
            visits.push(visit);
            if visit == first {
                break;
            }
            assert!(visit < first);
            assert_eq!(rig.advance(visit), []);
            rig.check();
        }
        assert!(visits.is_sorted() && visits.len() <= LEVELS, "{visits:?}");
        assert_eq!(visits.len() > 1, is_spread);
        // What shares its tick is all that is left to do.
        assert_eq!(rig.wheel.borrow().first().unwrap() < WIDTH, is_spread);
        assert_eq!(rig.advance(first).len(), 1);
    }
}

/// The steps along lists that something takes.
fn steps(work: impl FnOnce()) -> usize {
    let before = STEPS.get();
    work();
    STEPS.get() - before
}

/// How many alarms the tests of the cost use.
const MANY: usize = if cfg!(miri) { 200 } else { 100_000 };

/// A deadline in the middle of a slot of level 4, as are those some minutes around it. The slot's middle is at 1.5 of
/// 2^40 ns, that is 27 minutes.
const MIDDLE: u64 = 3 << 39;

/// A deadline within two minutes from the middle, at random.
fn scattered(number: u64) -> u64 {
    MIDDLE + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (120 * SECOND)
}

#[test]
fn a_nearer_deadline_in_turn_costs_no_scan() {
    let rig = Rig::new(MANY + 3, 0);
    let first = (0..MANY).map(|number| scattered(number as u64)).min();
    for number in 0..MANY {
        rig.insert(number, scattered(number as u64));
    }
    assert_eq!(rig.next_deadline(), first);
    // In a slot of its own, in the same slot, and three in the same slot that are removed in any order.
    let nears: [[(usize, u64); 3]; 2] = [
        [(2, MIDDLE - 9), (1, MIDDLE - 7), (0, SECOND)],
        [(0, MIDDLE - 8), (2, MIDDLE - 9), (1, MIDDLE - 7)],
    ];
    let taken = steps(|| {
        for near in nears.iter().cycle().take(MANY) {
            for &(number, deadline) in near {
                rig.insert(MANY + number, deadline);
                rig.next_deadline();
            }
            for number in 0..3 {
                rig.remove(MANY + number);
                rig.next_deadline();
            }
            assert_eq!(rig.next_deadline(), first);
        }
    });
    // The 100,000 are sorted no more than once.
    assert!(taken < 40 * MANY, "{taken} steps in {MANY} rounds");
}

#[test]
fn equal_timeouts_in_turn_cost_no_scan() {
    // Each connection in turn arms its timeout anew: it is always the earliest that is removed.
    let rig = Rig::new(MANY, 0);
    for number in 0..MANY {
        rig.insert(number, MIDDLE + number as u64);
    }
    let taken = steps(|| {
        for round in 0..2 * MANY {
            assert_eq!(rig.next_deadline(), Some(MIDDLE + round as u64));
            rig.remove(round % MANY);
            rig.insert(round % MANY, MIDDLE + (MANY + round) as u64);
        }
    });
    assert_eq!(taken, 0);
}

#[test]
fn removing_the_earliest_of_scattered_ones_is_cheap() {
    // The wheel as a queue: the earliest is removed, and comes back somewhere among the others.
    let rig = Rig::new(MANY, 0);
    let mut model = std::collections::BTreeMap::new();
    for number in 0..MANY {
        rig.insert(number, scattered(number as u64));
        model.insert((scattered(number as u64), number), number);
    }
    let taken = steps(|| {
        for round in 0..MANY {
            let ((deadline, _), number) = model.pop_first().expect("never empty");
            assert_eq!(rig.next_deadline(), Some(deadline));
            rig.remove(number);
            let again = scattered((MANY + round) as u64);
            rig.insert(number, again);
            model.insert((again, MANY + round), number);
        }
    });
    // About the square root of their number: as many rounds pass before one that came back is the earliest.
    assert!(
        taken / MANY < 4 * MANY.isqrt() + LOOK,
        "{} steps per round",
        taken / MANY
    );
}

#[test]
fn many_alarms_of_one_tick_are_not_quadratic() {
    let rig = Rig::new(MANY, 0);
    let deadline = |number: usize| TICK + (number as u64).wrapping_mul(0x9e37_79b9) % TICK;
    for number in 0..MANY {
        rig.insert(number, deadline(number));
    }
    let mut previous = 0;
    let mut expired = 0;
    let taken = steps(|| {
        // In several advances within the tick.
        for now in (TICK..=2 * TICK).step_by(64) {
            rig.expire(now, |number| {
                let deadline = deadline(number);
                assert!(previous <= deadline && deadline <= now);
                previous = deadline;
                expired += 1;
            });
        }
    });
    assert_eq!(expired, MANY);
    assert!(taken < 30 * MANY, "{taken} steps");
}
