//! White-box tests of the switch: what fibers do not use yet.

use super::stack::{Cache, Stack};
use super::*;
use crate::stats::Counters;
use std::cell::{Cell, RefCell};

fn a_stack() -> Stack {
    Cache::new(false)
        .take(64 << 10, false, &Counters::default())
        .expect("a stack")
}

/// Three contexts and the test's own, and what they did.
#[derive(Default)]
struct Ring {
    contexts: [Option<Context>; 3],
    home: Option<Context>,
    visits: RefCell<Vec<(usize, usize)>>,
}

/// What a context of the ring is started with.
struct Member {
    ring: *const Ring,
    index: usize,
}

unsafe extern "C" fn go_round(member: *mut (), argument: usize) -> ! {
    started();
    // SAFETY: the test passes a member that outlives the ring's contexts.
    let member = unsafe { &*member.cast::<Member>() };
    // SAFETY: likewise.
    let ring = unsafe { &*member.ring };
    let own = ring.contexts[member.index].as_ref().unwrap();
    let mut argument = argument;
    loop {
        ring.visits.borrow_mut().push((member.index, argument));
        let next = ring.contexts.get(member.index + 1).unwrap_or(&ring.home);
        let next = next.as_ref().unwrap();
        let is_new = ring.visits.borrow().len() < 3 && member.index < 2;
        // SAFETY: in the first round the next of the ring is prepared, later it has switched on before; home always has.
        argument = unsafe {
            if is_new {
                switch_to_new(own, next, argument + 1)
            } else {
                switch(own, next, argument + 1)
            }
        };
    }
}

#[test]
fn any_context_switches_to_any_other_directly() {
    let ring = Ring {
        contexts: std::array::from_fn(|_| Some(Context::spent())),
        home: Some(Context::spent()),
        visits: RefCell::default(),
    };
    let stacks: [Stack; 3] = std::array::from_fn(|_| a_stack());
    let members: [Member; 3] = std::array::from_fn(|index| Member {
        ring: &raw const ring,
        index,
    });
    for (index, context) in ring.contexts.iter().flatten().enumerate() {
        let (stack, member) = (&stacks[index], &raw const members[index]);
        // SAFETY: a stack of its own, and a context that is spent.
        unsafe { context.prepare(stack, stack.top().as_ptr(), go_round, member.cast_mut().cast()) };
    }
    let (home, first) = (ring.home.as_ref().unwrap(), ring.contexts[0].as_ref().unwrap());
    for round in 0..2 {
        // SAFETY: the first is prepared, later it has switched on and been left alone since.
        let answer = unsafe {
            if round == 0 {
                switch_to_new(home, first, round * 100)
            } else {
                switch(home, first, round * 100)
            }
        };
        assert_eq!(answer, round * 100 + 3);
    }
    let expected = [(0, 0), (1, 1), (2, 2), (0, 100), (1, 101), (2, 102)];
    assert_eq!(*ring.visits.borrow(), expected);
}

/// The two sides of the test below.
struct Pair {
    here: Context,
    there: Context,
    home_pointer: *mut u8,
    seen: Cell<*mut u8>,
}

unsafe extern "C" fn look_at_the_thread_pointer(pair: *mut (), _: usize) -> ! {
    // No sanitizer note here, and nothing else that might use a thread-local: this runs on a block that has none.
    // SAFETY: the test passes a pair that outlives this context.
    let pair = unsafe { &*pair.cast::<Pair>() };
    loop {
        pair.seen.set(thread_pointer());
        // SAFETY: the test waits in `here`, and its thread pointer is handed back.
        unsafe {
            arch::switch_with_thread_pointer(
                pair.there.frame.get(),
                pair.here.frame.get(),
                0,
                pair.home_pointer,
            )
        };
    }
}

#[test]
fn the_thread_pointer_can_be_part_of_a_switch() {
    if !thread_pointer_can_change() {
        return eprintln!("this kernel does not let user code change the thread pointer");
    }
    // The least that a thread control block needs here: on x86_64, its own address in its first word.
    let mut block = Box::new([0_usize; 512]);
    let address = (&raw mut block[256]).cast::<u8>();
    block[256] = address as usize;
    let stack = a_stack();
    let pair = Pair {
        here: Context::spent(),
        there: Context::spent(),
        home_pointer: thread_pointer(),
        seen: Cell::new(ptr::null_mut()),
    };
    // SAFETY: a stack of its own, and a context that is spent.
    unsafe {
        pair.there.prepare(
            &stack,
            stack.top().as_ptr(),
            look_at_the_thread_pointer,
            (&raw const pair).cast_mut().cast(),
        );
    }
    // SAFETY: it has just been prepared.
    unsafe { arch::switch_to_new(pair.here.frame.get(), pair.there.frame.get(), 0) };
    assert_eq!(pair.seen.get(), pair.home_pointer);
    for _ in 0..3 {
        pair.seen.set(ptr::null_mut());
        // SAFETY: it waits in its own switch; it runs nothing that uses thread-locals, so the block will do.
        unsafe {
            arch::switch_with_thread_pointer(pair.here.frame.get(), pair.there.frame.get(), 0, address)
        };
        assert_eq!(thread_pointer(), pair.home_pointer);
        assert_eq!(pair.seen.get(), address);
    }
    // A thread-local still works after all that.
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(1) });
    assert_eq!(NUMBER.replace(2), 1);
}
