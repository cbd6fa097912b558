//! Random programs of make, resume, reset and drop, compared with a simple model of what should happen.

use fibrant::fiber::{self, Fiber, ResumeError, State};
use proptest::prelude::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// What a fiber does: suspends so many times, then returns or panics.
#[derive(Clone, Copy, Debug)]
struct Script {
    suspensions: u32,
    panics: bool,
    stack_size: usize,
    shares_float_control: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Make(usize, Script),
    Resume(usize),
    Reset(usize, Script),
    Drop(usize),
    /// Resumes one fiber from within a new one.
    ResumeInside(usize),
    Trim,
}

/// What the model knows of a fiber.
struct Expected {
    state: State,
    script: Script,
    done: u32,
}

/// A fiber, what is expected of it, and a value that it holds while it lives.
struct Entry {
    fiber: Rc<Fiber>,
    expected: Expected,
    held: Rc<Cell<u32>>,
}

fn body(script: Script, held: &Rc<Cell<u32>>) -> impl FnOnce() + 'static {
    let held = Rc::clone(held);
    move || {
        for step in 1..=script.suspensions {
            held.set(step);
            fiber::suspend();
            assert_eq!(held.get(), step);
        }
        if script.panics {
            std::panic::resume_unwind(Box::new("scripted"));
        }
    }
}

impl Entry {
    fn make(script: Script) -> Entry {
        let held = Rc::new(Cell::new(0));
        let mut fiber = Fiber::with_stack_size(script.stack_size, body(script, &held));
        if script.shares_float_control {
            fiber = fiber.sharing_float_control();
        }
        let expected = Expected {
            state: State::Init,
            script,
            done: 0,
        };
        Entry {
            fiber: Rc::new(fiber),
            expected,
            held,
        }
    }

    /// Resumes it, directly or from within another fiber, and compares.
    fn resume(&mut self, inside: bool) {
        let fiber = Rc::clone(&self.fiber);
        let result = if inside {
            let answer = Rc::new(Cell::new(None));
            let outer = Fiber::new({
                let answer = Rc::clone(&answer);
                move || answer.set(Some(fiber.resume()))
            });
            catch_unwind(AssertUnwindSafe(|| outer.resume().unwrap())).map(|_| answer.take().unwrap())
        } else {
            catch_unwind(AssertUnwindSafe(|| fiber.resume()))
        };
        let expected = &mut self.expected;
        if expected.state == State::Term {
            assert!(matches!(result, Ok(Err(ResumeError::State(State::Term)))));
            return;
        }
        if expected.done < expected.script.suspensions {
            expected.done += 1;
            expected.state = State::Ready;
            assert_eq!(result.unwrap().unwrap(), State::Ready);
        } else {
            expected.state = State::Term;
            match result {
                Ok(state) => assert!(!expected.script.panics && state.unwrap() == State::Term),
                Err(payload) => assert_eq!(payload.downcast_ref::<&str>(), Some(&"scripted")),
            }
        }
    }

    fn reset(&mut self, script: Script) {
        let result = self.fiber.reset(body(script, &self.held));
        match self.expected.state {
            State::Init | State::Term => {
                result.unwrap();
                let stack_size = self.expected.script.stack_size;
                self.expected = Expected {
                    state: State::Init,
                    script: Script { stack_size, ..script },
                    done: 0,
                };
            }
            state => assert_eq!(result.unwrap_err().state(), state),
        }
    }

    fn check(&self) {
        assert_eq!(self.fiber.state(), self.expected.state);
        // Its closure, which holds a value, is gone exactly if it has ended.
        let holders = if self.expected.state == State::Term { 1 } else { 2 };
        assert_eq!(Rc::strong_count(&self.held), holders);
        if self.expected.state == State::Ready {
            assert_eq!(self.held.get(), self.expected.done);
        }
    }
}

fn script() -> impl Strategy<Value = Script> {
    (0..4_u32, any::<bool>(), 0..3_usize, any::<bool>()).prop_map(
        |(suspensions, panics, size, shares_float_control)| Script {
            suspensions,
            panics,
            stack_size: [32 << 10, 36 << 10, 64 << 10][size],
            shares_float_control,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let place = || 0..5_usize;
    prop_oneof![
        3 => (place(), script()).prop_map(|(place, script)| Step::Make(place, script)),
        8 => place().prop_map(Step::Resume),
        2 => (place(), script()).prop_map(|(place, script)| Step::Reset(place, script)),
        2 => place().prop_map(Step::Drop),
        3 => place().prop_map(Step::ResumeInside),
        1 => Just(Step::Trim),
    ]
}

fn run(steps: &[Step]) {
    let mut entries: [Option<Entry>; 5] = Default::default();
    for step in steps {
        match *step {
            Step::Make(place, script) => entries[place] = Some(Entry::make(script)),
            Step::Resume(place) => entries[place].iter_mut().for_each(|entry| entry.resume(false)),
            Step::ResumeInside(place) => entries[place].iter_mut().for_each(|entry| entry.resume(true)),
            Step::Reset(place, script) => entries[place].iter_mut().for_each(|entry| entry.reset(script)),
            Step::Drop(place) => {
                if let Some(entry) = entries[place].take() {
                    drop(entry.fiber);
                    assert_eq!(
                        Rc::strong_count(&entry.held),
                        1,
                        "it was dropped and still holds its value"
                    );
                }
            }
            Step::Trim => drop(fiber::trim_stacks()),
        }
        entries.iter().flatten().for_each(Entry::check);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fibers_do_what_the_model_says(steps in prop::collection::vec(step(), 1..60)) {
        run(&steps);
    }
}
