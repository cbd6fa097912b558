//! Stacks: sizes, reuse, trimming, usage, guards.

use fibrant::fiber::{self, Fiber, State};
use fibrant::stats;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs a fiber of its own size that suspends, and tells where its stack is.
fn suspended(size: usize) -> (Fiber, usize) {
    let address = Rc::new(Cell::new(0));
    let fiber = Fiber::with_stack_size(size, {
        let address = Rc::clone(&address);
        move || {
            let local = 0_u8;
            address.set(&raw const local as usize);
            fiber::suspend();
        }
    });
    fiber.resume().unwrap();
    (fiber, address.get())
}

/// Held by tests that trim: trimming reaches the idle stacks of all.
static TRIMMING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    TRIMMING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Uses at least `bytes` of the stack.
#[inline(never)]
fn use_stack(bytes: usize) -> usize {
    let page = [1_u8; 2048];
    let page = std::hint::black_box(&page);
    let used = page.iter().map(|&byte| byte as usize).sum::<usize>();
    if bytes > used {
        used + use_stack(bytes - used)
    } else {
        used
    }
}

#[test]
fn sizes_are_rounded_up_to_pages_and_to_the_minimum() {
    for (asked, least) in [
        (0, fiber::MIN_STACK_SIZE),
        (1, fiber::MIN_STACK_SIZE),
        (fiber::MIN_STACK_SIZE + 1, fiber::MIN_STACK_SIZE + 1),
        (100_000, 100_000),
        (1 << 30, 1 << 30),
    ] {
        let fiber = Fiber::with_stack_size(asked, || {});
        fiber.resume().unwrap();
        let size = fiber.stack_size();
        assert!(
            size >= least && size < least + (64 << 10),
            "{asked} became {size}"
        );
        assert_eq!(size % 4096, 0);
    }
    let fiber = Fiber::new(|| {});
    fiber.resume().unwrap();
    assert_eq!(fiber.stack_size(), fiber::DEFAULT_STACK_SIZE);
}

#[test]
fn the_whole_stack_can_be_used() {
    for size in [64 << 10, 256 << 10, 8 << 20] {
        // What the fiber's own frames and the control block take is far less than 8 KiB.
        let fiber = Fiber::with_stack_size(size, move || {
            assert!(use_stack_exactly(size - (8 << 10)));
            // And the very last byte.
            let page = 4096;
            let local = 0_u8;
            let end = (&raw const local as usize / page + 1) * page;
            // SAFETY: the lowest byte of this fiber's own stack, far below the frames that are in use.
            unsafe { std::ptr::without_provenance_mut::<u8>(end - size).write_volatile(1) };
        });
        assert_eq!(fiber.resume().unwrap(), State::Term);
        assert_eq!(fiber.stack_usage().unwrap(), size);
    }
    /// Touches every page down to `bytes` below this frame.
    #[inline(never)]
    fn use_stack_exactly(bytes: usize) -> bool {
        let here = 0_u8;
        let start = &raw const here as usize;
        fn down(start: usize, bytes: usize) -> bool {
            let frame = [0_u8; 512];
            let at = std::hint::black_box(&raw const frame as usize);
            start - at + 1024 > bytes || down(start, bytes) && std::hint::black_box(&frame)[0] == 0
        }
        down(start, bytes)
    }
}

#[test]
fn the_last_stack_put_back_is_the_first_used_again() {
    const SIZE: usize = 68 << 10;
    let (a, at_a) = suspended(SIZE);
    let (b, at_b) = suspended(SIZE);
    let (c, at_c) = suspended(SIZE);
    assert!(at_a != at_b && at_b != at_c && at_c != at_a);
    drop(a);
    drop(c);
    drop(b);
    let before = stats::current_thread();
    let again: Vec<_> = (0..3).map(|_| suspended(SIZE)).collect();
    assert_eq!(
        again.iter().map(|(_, at)| *at).collect::<Vec<_>>(),
        [at_b, at_c, at_a]
    );
    let after = stats::current_thread();
    assert_eq!(after.stacks_reused - before.stacks_reused, 3);
    assert_eq!(after.stacks_fresh, before.stacks_fresh);
}

#[test]
fn many_stacks_come_back_through_the_pool() {
    let _alone = alone(); // what another test is trimming is not in the pool for a moment
    // More than a thread keeps at hand, so that batches go to the pool and come back.
    const SIZE: usize = 72 << 10;
    let before = stats::current_thread();
    for _ in 0..3 {
        let fibers: Vec<_> = (0..1000).map(|_| suspended(SIZE)).collect();
        let mut addresses: Vec<_> = fibers.iter().map(|(_, at)| *at).collect();
        addresses.sort_unstable();
        assert!(
            addresses.windows(2).all(|pair| pair[1] - pair[0] > SIZE),
            "stacks overlap"
        );
    }
    let after = stats::current_thread();
    assert_eq!(after.stacks_fresh - before.stacks_fresh, 1000);
    assert_eq!(after.stacks_reused - before.stacks_reused, 2000);
}

#[test]
fn the_stacks_of_an_ended_thread_are_used_by_others() {
    let _alone = alone(); // as above
    const SIZE: usize = 76 << 10;
    let there = std::thread::spawn(|| (0..10).map(|_| suspended(SIZE).1).collect::<Vec<_>>())
        .join()
        .unwrap();
    let here: Vec<_> = (0..1).map(|_| suspended(SIZE).1).collect();
    assert!(there.contains(&here[0]));
}

#[test]
fn the_stacks_of_fibers_in_destructors_of_thread_locals_are_not_lost() {
    let _alone = alone(); // as above
    const SIZE: usize = 92 << 10;
    struct RunsAFiber;
    impl Drop for RunsAFiber {
        fn drop(&mut self) {
            drop(suspended(SIZE));
        }
    }
    // Two of them, one registered before fibrant's own thread-local and one after: one of the two is dropped after it.
    thread_local!(static EARLY: RunsAFiber = const { RunsAFiber });
    thread_local!(static LATE: RunsAFiber = const { RunsAFiber });
    std::thread::spawn(|| {
        EARLY.with(|_| ());
        Fiber::new(|| {}).resume().unwrap();
        LATE.with(|_| ());
    })
    .join()
    .unwrap();
    let before = stats::current_thread();
    drop(suspended(SIZE));
    assert_eq!(stats::current_thread().stacks_fresh, before.stacks_fresh);
    assert_eq!(stats::current_thread().stacks_reused, before.stacks_reused + 1);
}

#[test]
fn trimming_gives_memory_back_and_usage_starts_anew() {
    let _alone = alone();
    const SIZE: usize = 1 << 20;
    let used = |bytes: usize| {
        let fiber = Fiber::with_stack_size(SIZE, move || {
            use_stack(bytes);
        });
        fiber.resume().unwrap();
        fiber.stack_usage().unwrap()
    };
    let large = used(600_000);
    assert!((600_000..SIZE).contains(&large), "{large}");
    // The same stack again still carries the marks of the first fiber.
    assert!(used(10_000) >= large);
    assert!(fiber::trim_stacks() >= 1);
    let small = used(10_000);
    assert!((10_000..100_000).contains(&small), "{small}");
}

#[test]
fn a_suspended_stack_survives_trimming() {
    let _alone = alone();
    let value = Rc::new(Cell::new(0));
    let fiber = Fiber::with_stack_size(80 << 10, {
        let value = Rc::clone(&value);
        move || {
            let numbers: [u64; 1000] = std::array::from_fn(|i| i as u64);
            let numbers = std::hint::black_box(numbers);
            fiber::suspend();
            value.set(numbers.iter().sum());
        }
    });
    fiber.resume().unwrap();
    // Neighbours on both sides are idle and are trimmed.
    drop((0..10).map(|_| suspended(80 << 10)).collect::<Vec<_>>());
    assert!(fiber::trim_stacks() >= 10);
    fiber.resume().unwrap();
    assert_eq!(value.get(), 499_500);
}

#[test]
fn guards_survive_trimming() {
    let _alone = alone();
    // The page below an idle, trimmed stack still answers EFAULT to the kernel.
    const SIZE: usize = 84 << 10;
    let (fiber, at) = suspended(SIZE);
    let size = fiber.stack_size();
    let page = 4096;
    let end = (at / page + 1) * page; // the first page from the top holds a local of the first function
    drop(fiber);
    fiber::trim_stacks();
    let guard = end - size - page;
    // SAFETY: asks the kernel to read a path from an address; it answers EFAULT if it may not.
    let result = unsafe { libc::access(std::ptr::without_provenance(guard), libc::F_OK) };
    assert_eq!(
        (result, std::io::Error::last_os_error().raw_os_error()),
        (-1, Some(libc::EFAULT))
    );
    // And directly above it is the stack.
    // SAFETY: as above.
    let result = unsafe { libc::access(std::ptr::without_provenance(guard + page), libc::F_OK) };
    assert_eq!(
        (result, std::io::Error::last_os_error().raw_os_error()),
        (-1, Some(libc::ENOENT))
    );
}

#[test]
fn huge_pages_are_declined() {
    // One would swallow many stacks. Where a kernel has them, it notes in its flags that a mapping does not want any.
    if std::env::var_os("FIBRANT_TEST_RUNNER").is_some() {
        return eprintln!("not checked: an emulator maps memory elsewhere than the program sees it");
    }
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return eprintln!("not checked: this kernel has no transparent huge pages");
    }
    let (_fiber, at) = suspended(96 << 10);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut within = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().unwrap().split_once('-');
        let range = range.and_then(|(start, end)| {
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        });
        if let Some(range) = range {
            within = range.contains(&at);
        } else if within && line.starts_with("VmFlags:") {
            assert!(line.split(' ').any(|flag| flag == "nh"), "{line}");
            return;
        }
    }
    panic!("no mapping holds the stack");
}

#[test]
fn very_many_idle_stacks_are_trimmed_by_themselves() {
    let _alone = alone();
    // 20,000 idle stacks of one page each would be 80 MB; beyond 16,384 the oldest are given back.
    const SIZE: usize = 88 << 10;
    const COUNT: usize = 20_000;
    std::thread::spawn(|| {
        let fibers: Vec<_> = (0..COUNT).map(|_| suspended(SIZE)).collect();
        drop(fibers);
    })
    .join()
    .unwrap();
    let still_warm = fiber::trim_stacks();
    assert!(
        still_warm < COUNT - 1_000,
        "{still_warm} of {COUNT} still had memory"
    );
}
