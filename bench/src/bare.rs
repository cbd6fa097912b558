//! The least that things can cost: a fresh guarded stack is a guard and the first touch of a page; a timer, which anyone may cancel, is a
//! look at the clock, a lock and a place in a list.

use std::hint::black_box;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MADV_GUARD_INSTALL: libc::c_int = 102;

/// The size of a memory page here.
pub fn page_size() -> usize {
    // SAFETY: reads a setting.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The time that it takes to guard and touch `count` stacks of `size` bytes in one mapping, guarded by a marker or, where
/// the kernel has none, by mprotect.
pub fn guard_and_touch(count: usize, size: usize) -> Duration {
    let page = page_size();
    let slot = size + page;
    // SAFETY: a new mapping at an address of the kernel's choice, used within its bounds and unmapped at the end.
    unsafe {
        let base = libc::mmap(
            ptr::null_mut(),
            count * slot,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        libc::madvise(base, count * slot, libc::MADV_NOHUGEPAGE);
        let start = Instant::now();
        for index in 0..count {
            let guard = base.add(index * slot);
            if libc::madvise(guard, page, MADV_GUARD_INSTALL) != 0 {
                assert_eq!(
                    libc::mprotect(guard, page, libc::PROT_NONE),
                    0,
                    "{}",
                    io::Error::last_os_error()
                );
            }
            guard.add(slot - 64).cast::<u8>().write_volatile(1);
        }
        let time = start.elapsed();
        libc::munmap(base, count * slot);
        time
    }
}

/// What a timer's handle leads to: a line of the cache.
#[repr(align(64))]
struct Record {
    is_taken: AtomicBool,
    is_over: bool,
    /// The number of its alarm.
    alarm: u32,
}

/// A deadline in the list of those that are about as far ahead.
#[derive(Clone, Copy)]
struct Alarm {
    _deadline: Duration,
    list: u32,
    /// Its neighbours' numbers, or [`NONE`].
    previous: u32,
    next: u32,
}

/// No alarm.
const NONE: u32 = u32::MAX;

/// How many lists there are, and how many seconds their deadlines are apart: as in a wheel with 64 slots a level.
const LISTS: usize = 64;
const APART: u64 = 17;

/// The time that it takes to ask for the time for each of `n` timers; and to end each, in the order in which they were made: its record is
/// locked, its deadline taken out of a list, and it is noted as free.
pub fn timers(n: usize, delay: impl Fn(usize) -> Duration) -> (Duration, Duration) {
    let start = Instant::now();
    for _ in 0..n {
        black_box(Instant::now());
    }
    let clock = start.elapsed();

    let mut ends = [[NONE; 2]; LISTS];
    let mut alarms: Vec<Alarm> = Vec::with_capacity(n);
    let mut records = Vec::with_capacity(n);
    for alarm in 0..n as u32 {
        let deadline = delay(alarm as usize);
        let list = (deadline.as_secs() / APART) as usize % LISTS;
        let [first, last] = &mut ends[list];
        let previous = std::mem::replace(last, alarm);
        match previous {
            NONE => *first = alarm,
            previous => alarms[previous as usize].next = alarm,
        }
        alarms.push(Alarm {
            _deadline: deadline,
            list: list as u32,
            previous,
            next: NONE,
        });
        records.push(Record {
            is_taken: AtomicBool::new(false),
            is_over: false,
            alarm,
        });
    }
    // Not zeros, which would be touched for the first time below.
    let mut free = vec![NONE; n];
    let start = Instant::now();
    for (record, free) in records.iter_mut().zip(&mut free) {
        let taken = (record.is_taken).compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        assert_eq!(taken, Ok(false));
        let alarm = alarms[record.alarm as usize];
        match alarm.previous {
            NONE => ends[alarm.list as usize][0] = alarm.next,
            previous => alarms[previous as usize].next = alarm.next,
        }
        match alarm.next {
            NONE => ends[alarm.list as usize][1] = alarm.previous,
            next => alarms[next as usize].previous = alarm.previous,
        }
        record.is_over = true;
        *free = record.alarm;
        record.is_taken.store(false, Ordering::Release);
    }
    let cancel = start.elapsed();
    assert_eq!(ends, [[NONE; 2]; LISTS]);
    black_box((records, free));
    (clock, cancel)
}
