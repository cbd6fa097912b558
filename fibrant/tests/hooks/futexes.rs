//! Futexes, and calls by number: a part of point 29.

use crate::support::*;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

type Number = Arc<AtomicU32>;

fn number(value: u32) -> Number {
    Arc::new(AtomicU32::new(value))
}

/// The call: its result, and `errno`.
fn call(
    address: *const u32,
    operation: i32,
    value: u32,
    fourth: usize,
    other: *const u32,
    more: u32,
) -> (isize, i32) {
    // SAFETY: the kernel, or the hook, looks at what it is given; the callers give addresses of numbers and times.
    told(unsafe { libc::syscall(libc::SYS_futex, address, operation, value, fourth, other, more) } as isize)
}

fn futex(number: &AtomicU32, operation: i32, value: u32) -> (isize, i32) {
    call(
        number.as_ptr(),
        operation | libc::FUTEX_PRIVATE_FLAG,
        value,
        0,
        null(),
        0,
    )
}

fn wake(number: &AtomicU32, count: u32) -> (isize, i32) {
    futex(number, libc::FUTEX_WAKE, count)
}

/// A wait for this value to change, with a time.
fn wait_until(
    number: &AtomicU32,
    operation: i32,
    value: u32,
    time: libc::timespec,
    bits: u32,
) -> (isize, i32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    call(
        number.as_ptr(),
        operation,
        value,
        (&raw const time) as usize,
        null(),
        bits,
    )
}

fn time(tv_sec: i64, tv_nsec: i64) -> libc::timespec {
    libc::timespec { tv_sec, tv_nsec }
}

/// A time of a clock, so many milliseconds from now.
fn ahead(clock: i32, milliseconds: i64) -> libc::timespec {
    let mut now = time(0, 0);
    // SAFETY: writes to a local variable.
    unsafe { libc::clock_gettime(clock, &mut now) };
    let nanoseconds = now.tv_nsec + milliseconds * 1_000_000;
    time(
        now.tv_sec + nanoseconds / 1_000_000_000,
        nanoseconds % 1_000_000_000,
    )
}

/// So many that wait for a number to be something else than 0, by this call, in this order.
fn waiters(
    count: usize,
    number: &Number,
    wait: impl Fn(&AtomicU32) -> (isize, i32) + Copy + Send + 'static,
) -> Vec<Activity<(isize, i32)>> {
    (0..count)
        .map(|_| {
            let number = Arc::clone(number);
            go(move || wait(&number)).waiting()
        })
        .collect()
}

fn joined<T>(activities: Vec<Activity<T>>) -> Vec<T> {
    activities.into_iter().map(Activity::join).collect()
}

fn wait(number: &AtomicU32) -> (isize, i32) {
    futex(number, libc::FUTEX_WAIT, 0)
}

/// One of several futexes, for the calls of the second kind.
#[repr(C)]
struct One {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// A number of 32 bits, private to the process.
const PRIVATE_32: u32 = 2 | 128;

fn one(number: &AtomicU32, value: u64) -> One {
    One {
        value,
        address: number.as_ptr() as u64,
        flags: PRIVATE_32,
        reserved: 0,
    }
}

/// A call of the second kind, if this kernel has it.
fn second_kind(call: i64, arguments: [usize; 6]) -> (isize, i32) {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: as in `call`.
    told(unsafe { libc::syscall(call, a, b, c, d, e, f) } as isize)
}

fn wait_for_any(list: &[One], limit: Option<libc::timespec>) -> (isize, i32) {
    let limit = limit.as_ref().map_or(0, |time| std::ptr::from_ref(time) as usize);
    second_kind(449, [list.as_ptr() as usize, list.len(), 0, limit, 1, 0])
}

bodies! {
    p29_another_value_is_an_error_at_once, false, || {
        let number = number(5);
        (futex(&number, libc::FUTEX_WAIT, 4), futex(&number, libc::FUTEX_WAIT_BITSET, 4))
    };
    p29_bad_addresses_are_errors, false, || {
        let number = number(0);
        let odd = number.as_ptr().cast::<u8>().wrapping_add(1).cast::<u32>();
        let private = libc::FUTEX_PRIVATE_FLAG;
        [null(), 16 as *const u32, odd.cast_const()].map(|address| [
            call(address, libc::FUTEX_WAIT | private, 0, 0, null(), 0),
            call(address, libc::FUTEX_CMP_REQUEUE | private, 1, 1, number.as_ptr(), 0),
            call(number.as_ptr(), libc::FUTEX_WAKE_OP | private, 1, 1, address, 0),
        ])
    };
    p29_a_wake_needs_an_aligned_address, false, || {
        let number = number(0);
        let odd = number.as_ptr().cast::<u8>().wrapping_add(1).cast::<u32>();
        call(odd, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1, 0, null(), 0)
    };
    p29_no_bits_are_an_error, false, || {
        let number = number(0);
        let wait = wait_until(&number, libc::FUTEX_WAIT_BITSET, 0, time(0, 0), 0);
        (wait, futex(&number, libc::FUTEX_WAKE_BITSET, 1))
    };
    p29_bad_times_are_errors, false, || {
        let number = number(0);
        [time(0, 1_000_000_000), time(0, -1), time(-1, 0)]
            .map(|time| wait_until(&number, libc::FUTEX_WAIT, 0, time, 0))
    };
    p29_a_time_that_is_over_is_over, true, || {
        let number = number(0);
        let early = wait_until(&number, libc::FUTEX_WAIT_BITSET, 0, time(1, 0), 1);
        (early, wait_until(&number, libc::FUTEX_WAIT_BITSET, 1, time(1, 0), 1))
    };
    p29_a_relative_time_cannot_be_of_another_clock, false, || {
        let number = number(0);
        wait_until(&number, libc::FUTEX_WAIT | libc::FUTEX_CLOCK_REALTIME, 1, time(0, 1), 0)
    };
    p29_a_wait_ends_after_its_time, true, || {
        let number = number(0);
        let start = Instant::now();
        let end = wait_until(&number, libc::FUTEX_WAIT, 0, time(0, 7_000_000), 0);
        (end, start.elapsed() >= ms(7))
    };
    p29_a_wait_ends_at_its_time_of_either_clock, true, || {
        let number = number(0);
        [(libc::CLOCK_MONOTONIC, 0), (libc::CLOCK_REALTIME, libc::FUTEX_CLOCK_REALTIME)].map(|(clock, flag)| {
            let start = Instant::now();
            let operation = libc::FUTEX_WAIT_BITSET | flag;
            let end = wait_until(&number, operation, 0, ahead(clock, 8), !0);
            (end, start.elapsed() >= ms(7))
        })
    };
    p29_so_many_are_woken, true, || {
        let number = number(0);
        let waiting = waiters(3, &number, wait);
        let woken = [wake(&number, 2), wake(&number, 10), wake(&number, 10)];
        (woken, joined(waiting))
    };
    p29_who_waits_longest_is_woken_first, true, || {
        let number = number(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..4).map(|index| {
            let (number, order) = (Arc::clone(&number), Arc::clone(&order));
            go(move || {
                let end = wait(&number);
                order.lock().unwrap().push(index);
                end
            }).waiting()
        }).collect();
        for count in 1..=4 {
            assert_eq!(wake(&number, 1), (1, 0));
            while order.lock().unwrap().len() < count {
                thread::sleep(ms(1));
            }
        }
        let ends = joined(waiting);
        (ends, order.lock().unwrap().clone())
    };
    p29_to_wake_none_is_to_wake_one, true, || {
        let number = number(0);
        let waiting = waiters(2, &number, wait);
        let woken = [wake(&number, 0), wake(&number, u32::MAX)];
        (woken, joined(waiting))
    };
    p29_bits_choose_who_is_woken, true, || {
        let number = number(0);
        let far = || ahead(libc::CLOCK_MONOTONIC, 60_000);
        let first = waiters(1, &number, move |number| wait_until(number, libc::FUTEX_WAIT_BITSET, 0, far(), 1));
        let second = waiters(1, &number, move |number| wait_until(number, libc::FUTEX_WAIT_BITSET, 0, far(), 6));
        let wake = |bits| {
            let operation = libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG;
            call(number.as_ptr(), operation, 10, 0, null(), bits)
        };
        let woken = [wake(8), wake(4), wake(4)];
        let second = joined(second);
        (woken, second, wake(!0), joined(first))
    };
    p29_those_who_wait_for_one_wait_for_another, true, || {
        let (first, second) = (number(0), number(0));
        let waiting = waiters(4, &first, wait);
        let requeue = |value| {
            let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
            call(first.as_ptr(), operation, 1, 2, second.as_ptr(), value)
        };
        let results = (requeue(1), requeue(0), wake(&first, 10), wake(&second, 10));
        (results, joined(waiting))
    };
    p29_they_can_be_moved_without_a_look, true, || {
        let (first, second) = (number(0), number(0));
        let waiting = waiters(3, &first, wait);
        first.store(7, SeqCst);
        let operation = libc::FUTEX_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
        let moved = call(first.as_ptr(), operation, 0, 10, second.as_ptr(), 0);
        (moved, wake(&first, 10), wake(&second, 10), joined(waiting))
    };
    p29_a_number_is_changed_and_two_are_told, true, || {
        // Each: what is done with the second number, and how its former value is compared with what.
        let operations = [(0, 9, 0, 3), (1, 2, 1, 3), (2, 4, 2, 4), (3, 1, 3, 3), (4, 7, 4, 2), (1 | 8, 3, 5, 4)];
        operations.map(|(what, argument, how, with)| {
            let (first, second) = (number(0), number(3));
            let one = waiters(1, &first, wait);
            let two = waiters(1, &second, |number| futex(number, libc::FUTEX_WAIT, 3));
            let code = what << 28 | how << 24 | argument << 12 | with;
            let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
            let woken = call(first.as_ptr(), operation, 1, 1, second.as_ptr(), code);
            let rest = wake(&second, 1);
            (woken, rest, second.load(SeqCst), joined(one), joined(two))
        })
    };
    p29_an_unknown_operation_is_an_error, false, || {
        let (first, second) = (number(0), number(3));
        let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
        let how = call(first.as_ptr(), operation, 1, 1, second.as_ptr(), 9 << 24);
        (call(first.as_ptr(), 77, 0, 0, null(), 0), how)
    };
    p29_shared_and_private_ones_do_not_meet, true, || {
        let number = number(0);
        let waiting = waiters(1, &number, wait);
        let shared = call(number.as_ptr(), libc::FUTEX_WAKE, 1, 0, null(), 0);
        (shared, wake(&number, 1), joined(waiting))
    };
    p29_a_shared_one_is_waited_for_on_a_thread, true, || {
        let number = number(0);
        let waiting = waiters(3, &number, |number| call(number.as_ptr(), libc::FUTEX_WAIT, 0, 0, null(), 0));
        // A fiber that waits has not got to the kernel yet.
        let mut woken = 0;
        while woken < 3 {
            woken += call(number.as_ptr(), libc::FUTEX_WAKE, 1, 0, null(), 0).0;
            thread::sleep(ms(1));
        }
        joined(waiting)
    };
    p29_threads_and_others_are_woken_by_one_call, true, || {
        let number = number(0);
        let mut waiting = waiters(3, &number, wait);
        for _ in 0..3 {
            let number = Arc::clone(&number);
            waiting.push(go_in_a_thread(move || wait(&number)).waiting());
        }
        let woken = [wake(&number, 2), wake(&number, 2), wake(&number, 10), wake(&number, 10)];
        (woken, joined(waiting))
    };
    p29_threads_and_others_are_moved_by_one_call, true, || {
        let (first, second) = (number(0), number(0));
        let mut waiting = waiters(2, &first, wait);
        for _ in 0..2 {
            let number = Arc::clone(&first);
            waiting.push(go_in_a_thread(move || wait(&number)).waiting());
        }
        let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
        let moved = call(first.as_ptr(), operation, 1, 10, second.as_ptr(), 0);
        (moved, wake(&first, 10), wake(&second, 10), joined(waiting))
    };
    p29_one_of_several_is_enough, true, || {
        let numbers = [number(0), number(0), number(0)];
        let list = numbers.clone();
        let waiting = go(move || wait_for_any(&list.each_ref().map(|number| one(number, 0)), None)).waiting();
        let woken = wake(&numbers[1], 5);
        (woken, waiting.join(), wake(&numbers[0], 5))
    };
    p29_several_have_values_and_a_time, true, || {
        let numbers = [number(0), number(1)];
        let wrong = wait_for_any(&[one(&numbers[0], 0), one(&numbers[1], 0)], None);
        let right = [one(&numbers[0], 0), one(&numbers[1], 1)];
        let late = wait_for_any(&right, Some(ahead(libc::CLOCK_MONOTONIC, 5)));
        let bad = wait_for_any(&right, Some(time(0, -1)));
        (wrong, late, bad, wait_for_any(&[], None))
    };
    p29_the_second_kind_does_the_same, true, || {
        let (first, second) = (number(0), number(0));
        let flags = PRIVATE_32 as usize;
        let waits = |number: &AtomicU32| {
            second_kind(455, [number.as_ptr() as usize, 0, !0_u32 as usize, PRIVATE_32 as usize, 0, 1])
        };
        if waits(&number(1)).1 == libc::ENOSYS {
            thread::sleep(ms(1)); // an old kernel, in a thread as in a fiber
            return (vec![], vec![]);
        }
        let waiting = waiters(3, &first, waits);
        let wake = |number: &AtomicU32, count: usize| {
            second_kind(454, [number.as_ptr() as usize, !0_u32 as usize, count, flags, 0, 0])
        };
        let requeue = |value| {
            let list = [one(&first, value), one(&second, 0)];
            second_kind(456, [list.as_ptr() as usize, 0, 1, 1, 0, 0])
        };
        let limit = ahead(libc::CLOCK_MONOTONIC, 5);
        let late = second_kind(455, [second.as_ptr() as usize, 0, 1, flags, (&raw const limit) as usize, 1]);
        let results = vec![
            wake(&first, 0), requeue(1), requeue(0), wake(&first, 10), wake(&second, 10), late, waits(&number(1)),
        ];
        (results, joined(waiting))
    };
    p29_a_lock_is_held_across_a_sleep, true, || {
        let lock = Arc::new(Mutex::new(Vec::new()));
        let others: Vec<_> = (0..3).map(|index| {
            let lock = Arc::clone(&lock);
            go(move || {
                let mut list = lock.lock().unwrap();
                thread::sleep(ms(3));
                list.push(index);
            })
        }).collect();
        joined(others);
        let mut list = std::mem::take(&mut *lock.lock().unwrap());
        list.sort_unstable();
        list
    };
    p29_success_leaves_errno, true, || {
        let number = number(0);
        let waiting = waiters(1, &number, wait);
        set_errno(77);
        let woken = wake(&number, 1).0;
        let after = errno();
        (woken, after, joined(waiting))
    };
    p29_calls_by_number_wait_as_by_name, true, || {
        let (ours, mut theirs) = streams();
        let helper = later(move || {
            theirs.write_all(b"hello").unwrap();
            let mut rest = String::new();
            theirs.read_to_string(&mut rest).unwrap();
            rest
        });
        let mut word = [0_u8; 5];
        let fd = ours.into_raw_fd();
        // SAFETY: the buffers are as long as it says, and the descriptor is this body's.
        unsafe {
            let read = told(libc::syscall(libc::SYS_read, fd, word.as_mut_ptr(), word.len()) as isize);
            let write = told(libc::syscall(libc::SYS_write, fd, b"bye".as_ptr(), 3_usize) as isize);
            let close = told(libc::syscall(libc::SYS_close, fd) as isize);
            let again = told(libc::syscall(libc::SYS_close, fd + 100_000) as isize);
            (read, write, close, again, word, helper.join().unwrap())
        }
    };
    p29_sleeps_and_polls_by_number, true, || {
        let (ours, _theirs) = streams();
        let start = Instant::now();
        let (short, bad) = (time(0, 3_000_000), time(0, 1_000_000_000));
        let mut asked = libc::pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 9 };
        // SAFETY: local variables.
        unsafe {
            let slept = [
                told(libc::syscall(libc::SYS_nanosleep, &raw const short, null::<()>()) as isize),
                told(libc::syscall(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, &raw const short, null::<()>()) as isize),
                told(libc::syscall(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, &raw const bad, null::<()>()) as isize),
                told(libc::syscall(libc::SYS_ppoll, &raw mut asked, 1_usize, &raw const short, null::<()>(), 8_usize) as isize),
            ];
            (slept, asked.revents, start.elapsed() >= ms(9))
        }
    };
    p29_other_numbers_are_the_kernels, false, || {
        // SAFETY: asks for numbers.
        unsafe {
            let process = libc::syscall(libc::SYS_getpid) == i64::from(libc::getpid());
            (process, told(libc::syscall(9999) as isize), told(libc::syscall(libc::SYS_dup, -1) as isize))
        }
    };
}
