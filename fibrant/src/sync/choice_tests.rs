//! Tests of the choice among arms: it favours none, neither as they try nor as they enlist. They are not in its own file, which
//! `tests/models_sync.rs` compiles once more, with primitives that only its models can use.

use super::channel::arm::{Arm, Turn, choose};
use crate::clock;
use crate::fiber::WaitReason;
use std::cell::Cell;

/// An arm that can do what it wants as soon as one of its choice has tried to enlist: with that one the wait is decided.
struct Sudden<'a> {
    first: &'a Cell<Option<usize>>,
    number: usize,
}

impl Arm for Sudden<'_> {
    fn attempt(&self) -> bool {
        self.first.get() == Some(self.number)
    }

    unsafe fn enlist(&self, _: &Turn, index: usize) -> bool {
        assert_eq!(index, self.number);
        self.first.set(Some(index));
        false
    }

    fn withdraw(&self) {}

    fn settle(&self) -> bool {
        unreachable!("nobody has claimed it")
    }

    fn forsake(&self) {
        unreachable!("nobody has claimed it")
    }

    fn due(&self) -> u64 {
        clock::NEVER
    }

    fn reason(&self) -> WaitReason {
        WaitReason::Receiving { address: 0 }
    }

    fn describe(&self) -> String {
        String::new()
    }
}

#[test]
fn each_arm_is_as_likely_to_enlist_first() {
    const ROUNDS: usize = 10_000;
    for count in [2, 3, 5, 20] {
        let mut hits = vec![0; count];
        for _ in 0..ROUNDS {
            let first = Cell::new(None);
            let arms: Vec<_> = (0..count)
                .map(|number| Sudden {
                    first: &first,
                    number,
                })
                .collect();
            let arms: Vec<&dyn Arm> = arms.iter().map(|arm| arm as &dyn Arm).collect();
            hits[choose(&arms, clock::NEVER).unwrap()] += 1;
        }
        let share = 1.0 / count as f64;
        let expected = ROUNDS as f64 * share;
        let deviation = (expected * (1.0 - share)).sqrt();
        for &hit in &hits {
            assert!((f64::from(hit) - expected).abs() < 6.0 * deviation, "{hits:?}");
        }
    }
}
