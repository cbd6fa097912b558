//! A backtrace taken inside a fiber walks to the fiber's entry and ends there.

use fibrant::fiber::{self, Fiber, State};
use std::cell::RefCell;
use std::rc::Rc;

/// The names of the frames of whoever calls, innermost first.
fn frames() -> Vec<String> {
    let mut names = Vec::new();
    backtrace::trace(|frame| {
        if frame.ip().is_null() {
            return false; // how the unwinder says that there is no further frame
        }
        let mut name = String::from("?");
        backtrace::resolve_frame(frame, |symbol| {
            if let Some(found) = symbol.name() {
                name = found.to_string();
            }
        });
        names.push(name);
        names.len() < 200 // an endless walk is a failure, not a hang
    });
    names
}

#[inline(never)]
fn innermost(levels: usize, frames_seen: &RefCell<Vec<Vec<String>>>) {
    if levels > 0 {
        innermost(levels - 1, frames_seen);
        std::hint::black_box(levels);
        return;
    }
    frames_seen.borrow_mut().push(frames());
    fiber::suspend();
    frames_seen.borrow_mut().push(frames());
}

fn check(names: &[String]) {
    let text = names.join("\n");
    assert!(names.len() < 200, "the walk does not end:\n{text}");
    let own = names.iter().filter(|name| name.contains("innermost")).count();
    assert_eq!(own, 6, "\n{text}");
    let last = names.last().unwrap();
    assert!(last.contains("launch"), "the walk ends in {last}:\n{text}");
    assert!(
        !text.contains("the_walk_ends_at_the_entry\n"),
        "it walks into the resumer:\n{text}"
    );
}

#[test]
fn the_walk_ends_at_the_entry() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let fiber = Fiber::new({
        let seen = Rc::clone(&seen);
        move || innermost(5, &seen)
    });
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    // Resumed from another depth: the walk still ends at the entry.
    fn deeper(fiber: &Fiber) -> State {
        std::hint::black_box(fiber.resume().unwrap())
    }
    assert_eq!(deeper(&fiber), State::Term);
    let seen = seen.borrow();
    assert_eq!(seen.len(), 2);
    seen.iter().for_each(|names| check(names));
}

#[test]
fn std_prints_it() {
    let fiber = Fiber::new(|| {
        let text = std::backtrace::Backtrace::force_capture().to_string();
        assert!(text.contains("launch"), "{text}");
        assert!(text.contains("std_prints_it"), "{text}"); // this closure
        assert!(!text.contains("test::run_test"), "{text}"); // whoever resumes it
    });
    fiber.resume().unwrap();
}

#[test]
fn frame_pointers_end_at_the_entry_too() {
    // The chain of frame pointers ends in a null: code that was built without them may break it, but never past the entry.
    let fiber = Fiber::new(|| {
        let mut pointer: *const usize;
        // SAFETY: reads a register.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!("mov {}, rbp", out(reg) pointer);
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("mov {}, x29", out(reg) pointer);
        }
        let here = 0_u8;
        let stack = (&raw const here as usize)..(&raw const here as usize + fiber::DEFAULT_STACK_SIZE);
        for _ in 0..100 {
            if !stack.contains(&(pointer as usize)) {
                return; // null, or a register that holds something else
            }
            // SAFETY: within this fiber's stack.
            let next = unsafe { *pointer } as *const usize;
            assert!(next.is_null() || next > pointer || !stack.contains(&(next as usize)));
            pointer = next;
        }
        panic!("the chain does not end");
    });
    fiber.resume().unwrap();
}
