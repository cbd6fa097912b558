//! The typed coroutine: values in and out, and iteration.

use fibrant::fiber::{Coroutine, Progress, ResumeError, State, Yielder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

#[test]
fn carries_values_both_ways() {
    let mut adder = Coroutine::new(|yielder, first: u32| {
        let mut sum = first;
        for _ in 0..3 {
            sum += yielder.suspend(sum);
        }
        format!("total {sum}")
    });
    assert_eq!(adder.resume(1).unwrap(), Progress::Yielded(1));
    assert_eq!(adder.resume(10).unwrap(), Progress::Yielded(11));
    assert_eq!(adder.resume(100).unwrap(), Progress::Yielded(111));
    assert_eq!(
        adder.resume(1000).unwrap(),
        Progress::Returned("total 1111".to_owned())
    );
    assert!(matches!(adder.resume(0), Err(ResumeError::State(State::Term))));
}

#[test]
fn is_an_iterator_that_yields_from_any_depth() {
    enum Tree {
        Leaf,
        Node(Box<Tree>, u32, Box<Tree>),
    }
    fn tree(range: std::ops::Range<u32>) -> Tree {
        if range.is_empty() {
            return Tree::Leaf;
        }
        let middle = range.start + range.len() as u32 / 2;
        Tree::Node(
            Box::new(tree(range.start..middle)),
            middle,
            Box::new(tree(middle + 1..range.end)),
        )
    }
    fn walk(yielder: &Yielder<(), u32>, tree: &Tree) {
        if let Tree::Node(left, value, right) = tree {
            walk(yielder, left);
            yielder.suspend(*value);
            walk(yielder, right);
        }
    }
    let tree = tree(0..1000);
    let mut values = Coroutine::new(move |yielder, ()| walk(yielder, &tree));
    assert!(values.by_ref().eq(0..1000));
    assert_eq!(values.next(), None); // and stays at its end
    assert_eq!(values.next(), None);
}

#[test]
fn is_unwound_when_it_is_dropped_halfway() {
    let kept = Rc::new(());
    let mut endless = Coroutine::new({
        let kept = Rc::clone(&kept);
        move |yielder, ()| {
            let _kept = kept;
            loop {
                yielder.suspend(1);
            }
        }
    });
    assert_eq!(endless.by_ref().take(10).sum::<u32>(), 10);
    assert_eq!(Rc::strong_count(&kept), 2);
    drop(endless);
    assert_eq!(Rc::strong_count(&kept), 1);
}

#[test]
fn a_panic_goes_on_in_the_resumer_and_ends_the_iteration() {
    let mut failing = Coroutine::new(|yielder, ()| {
        yielder.suspend(1);
        panic!("expected");
    });
    assert_eq!(failing.next(), Some(1));
    assert!(catch_unwind(AssertUnwindSafe(|| failing.next())).is_err());
    assert_eq!(failing.next(), None);
}

#[test]
fn an_input_that_cannot_be_delivered_is_dropped() {
    let input = Rc::new(());
    let mut coroutine =
        Coroutine::<_, (), _>::with_stack_size(usize::MAX, |_: &Yielder<Rc<()>, ()>, input| drop(input));
    assert!(matches!(
        coroutine.resume(Rc::clone(&input)),
        Err(ResumeError::Stack(_))
    ));
    assert_eq!(Rc::strong_count(&input), 1);
}
