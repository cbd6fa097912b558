//! Futexes: waiting for a number in memory to change.
//!
//! All of std's locks, channels and parkers wait this way, and so do most others. [`raw`](super::raw) comes here. A fiber that waits
//! for a private futex (one of this process alone, as all of these are) waits in the [table](crate::sync); a thread waits in the
//! kernel. Who wakes wakes both: some here, the rest in the kernel, and the result is the sum. Which side is asked first changes from
//! call to call where both have somebody waiting, so that neither starves the other.
//!
//! Errors are the kernel's: before a fiber waits, the kernel is asked once, in a way that does nothing but look at the arguments and the
//! number.
//!
//! What is shared between processes is the kernel's business alone, and a fiber waits for it on a thread of its own: not on one of the
//! pool, whose threads could all be waiting for somebody who needs one. Futexes that hand on priorities (`FUTEX_LOCK_PI` and its
//! relatives) belong to threads, not to fibers, and block the worker. A wake in a signal handler reaches threads only: the handler may
//! have interrupted whoever holds what it takes to wake fibers.

use super::raw::in_kernel;
use super::retry::{Answer, Caller, answer};
use super::table::Hook;
use super::time::{nanoseconds, reading};
use crate::clock;
use crate::scheduler::{self, Worker};
use crate::sync::address::{self, End, Key, Space, Target, Who, Woken};
use crate::sys::{self, syscall};
use libc::{c_int, clockid_t, timespec};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

/// What a private futex of 32 bits is called by the calls of the second kind.
const PRIVATE_32: usize = (0x02 | libc::FUTEX_PRIVATE_FLAG) as usize;

/// How long a fiber waits for a time of a clock that can be set before the clock is looked at again: nanoseconds.
const LOOK_AT_CLOCK_AFTER: u64 = 1_000_000_000;

/// How long a light fiber that panics blocks its worker before it waits as others do: nanoseconds.
const PANIC_PATIENCE: u64 = 20_000_000;

/// What a call that waits for several takes.
#[repr(C)]
struct OneOfSeveral {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// The fiber that makes the call, if it is one that may wait.
#[inline]
fn caller() -> Option<Caller> {
    address::patient_fiber().map(|worker| Caller {
        worker,
        hook: Hook::syscall,
    })
}

fn key(address: usize) -> Key {
    Key::new(Space::Futex, address)
}

/// The number at an address.
///
/// # Safety
/// The kernel has just found one there.
unsafe fn number<'a>(address: usize) -> &'a AtomicU32 {
    // SAFETY: the caller's promise. Whoever uses futexes uses them atomically.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

/// Asks the kernel for the error that a call with these two would give: a bad address, or another value than this one. It does
/// nothing else.
fn look(address: usize, value: u32) -> Result<(), i32> {
    let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: wakes nobody and moves nobody; the kernel checks the address.
    answer(unsafe { syscall!(SYS_futex, address, operation, 0, 0, address, value) }).map(|_| ())
}

/// # Safety
/// As the call `futex`.
#[inline(always)]
pub(super) unsafe fn futex(arguments: [usize; 6]) -> Answer {
    let [address, operation, value, time, other, more] = arguments;
    let operation = operation as c_int;
    let is_private = operation & libc::FUTEX_PRIVATE_FLAG != 0;
    // SAFETY: the arguments are the caller's.
    unsafe {
        match operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) {
            libc::FUTEX_WAKE if is_private => wake_up(address, value as c_int, !0, arguments),
            libc::FUTEX_WAKE_BITSET if is_private && more as u32 != 0 => {
                wake_up(address, value as c_int, more as u32, arguments)
            }
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => wait_for_one(arguments, is_private),
            libc::FUTEX_REQUEUE if is_private => {
                let counts = (value as c_int, time as c_int);
                move_on(libc::SYS_futex, arguments, (address, other), counts, None)
            }
            libc::FUTEX_CMP_REQUEUE if is_private => {
                let counts = (value as c_int, time as c_int);
                move_on(
                    libc::SYS_futex,
                    arguments,
                    (address, other),
                    counts,
                    Some(more as u32),
                )
            }
            libc::FUTEX_WAKE_OP if is_private => {
                change_and_wake((address, other), (value as c_int, time as c_int), more as u32)
            }
            _ => in_kernel(libc::SYS_futex, arguments),
        }
    }
}

/// Wakes up to so many who wait for an address with one of these bits: fibers here, threads by the same call in the kernel.
///
/// # Safety
/// As the call.
#[inline(always)]
unsafe fn wake_up(address: usize, count: c_int, bits: u32, arguments: [usize; 6]) -> Answer {
    // The kernel wakes one if it is asked for none.
    let most = count.max(1) as usize;
    wake_both(address, most, bits, |most| {
        let mut arguments = arguments;
        arguments[2] = most;
        // SAFETY: the caller's promise.
        unsafe { sys::call(libc::SYS_futex, arguments) }
    })
}

/// Wakes fibers here and threads by `kernel`, which takes how many, and gives how many it has woken.
#[inline(always)]
fn wake_both(address: usize, most: usize, bits: u32, kernel: impl Fn(usize) -> isize) -> Answer {
    let worker = Worker::of_hooked_fiber();
    address::note_fed(worker, address);
    if !address::may_have_waiters(key(address)) {
        let (result, woken) = address::wake_in_kernel(address, || kernel(most));
        address::give_way_after(woken);
        return answer(result);
    }
    let woken = wake_in_turn(address, most, bits, &kernel)?;
    address::give_way_after(woken);
    Ok(woken.count as isize)
}

#[cold]
fn wake_in_turn(
    address: usize,
    most: usize,
    bits: u32,
    kernel: &dyn Fn(usize) -> isize,
) -> Result<Woken, i32> {
    if address::is_threads_turn(address) {
        let (result, threads) = address::wake_in_kernel(address, || kernel(most));
        answer(result)?;
        let rest = most.saturating_sub(threads.count);
        return Ok(match rest {
            0 => threads,
            rest => threads.and(address::wake(key(address), rest, bits)),
        });
    }
    let fibers = address::wake(key(address), most, bits);
    let rest = most - fibers.count;
    if rest == 0 {
        return Ok(fibers);
    }
    let (result, threads) = address::wake_in_kernel(address, || kernel(rest));
    if fibers.count == 0 {
        answer(result)?;
    }
    Ok(fibers.and(threads))
}

/// When a wait ends at the latest: nanoseconds of the monotonic clock; and whether that is really the end, and not a moment to look
/// at a clock that can be set.
///
/// # Safety
/// Null or a time.
unsafe fn deadline(time: *const timespec, is_absolute: bool, clock: clockid_t) -> Result<(u64, bool), i32> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else {
        return Ok((clock::NEVER, true));
    };
    let time = nanoseconds(time)?;
    if !is_absolute {
        return Ok((clock::now().saturating_add(time), true));
    }
    if clock == libc::CLOCK_MONOTONIC {
        return Ok((time, true));
    }
    let rest = time.saturating_sub(reading(clock));
    let end = clock::now().saturating_add(rest.min(LOOK_AT_CLOCK_AFTER));
    Ok((end, rest <= LOOK_AT_CLOCK_AFTER))
}

/// What the end of a wait is for its caller.
fn told((end, index): (End, usize), is_final: bool) -> Answer {
    match end {
        End::Woken => Ok(index as isize),
        End::Unexpected => Err(libc::EAGAIN),
        End::TimedOut if is_final => Err(libc::ETIMEDOUT),
        // The clock may have been set meanwhile. Who waits for a futex is prepared to be woken for nothing, and looks again.
        End::TimedOut => Ok(index as isize),
    }
}

/// Makes a fiber wait, and notes that it does.
fn park(caller: Caller, wait: impl FnOnce(&'static Worker) -> (End, usize)) -> (End, usize) {
    caller.count().would_block.increment();
    caller.count().parks.increment();
    caller.parking(|| wait(caller.worker))
}

/// # Safety
/// As `FUTEX_WAIT` and `FUTEX_WAIT_BITSET`.
#[inline(never)]
unsafe fn wait_for_one(arguments: [usize; 6], is_private: bool) -> Answer {
    let [address, operation, value, time, _, more] = arguments;
    let Some(caller) = caller() else {
        let block = || {
            // SAFETY: the caller's promise.
            unsafe { in_kernel(libc::SYS_futex, arguments) }
        };
        return if is_private {
            address::in_kernel(address, block)
        } else {
            block()
        };
    };
    let takes_bits = operation as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME)
        == libc::FUTEX_WAIT_BITSET;
    let is_real = operation as c_int & libc::FUTEX_CLOCK_REALTIME != 0;
    let bits = if takes_bits { more as u32 } else { !0 };
    if bits == 0 || (is_real && !takes_bits) {
        // An error, and the kernel knows which.
        // SAFETY: the caller's promise.
        return unsafe { in_kernel(libc::SYS_futex, arguments) };
    }
    if !is_private {
        // SAFETY: the caller's promise; what it points to may be used on another thread while the caller waits.
        return unsafe { wait_on_a_thread(caller, libc::SYS_futex, arguments) };
    }
    let clock = if is_real {
        libc::CLOCK_REALTIME
    } else {
        libc::CLOCK_MONOTONIC
    };
    // SAFETY: null or a time, as the caller promises.
    let (until, is_final) = unsafe { deadline(time as *const timespec, takes_bits, clock)? };
    let value = value as u32;
    if thread::panicking() && !caller.worker.has_own_locals() {
        // Perhaps it is about to print its message, and another one has the output. If it waited as others do, another fiber could
        // panic with the same thread-locals meanwhile, and std would take that for a panic in the middle of a panic and end the
        // program. So it has some patience; but not for ever: who has the lock may be a fiber of this worker.
        let patience = until.min(clock::now() + PANIC_PATIENCE);
        let patience = timespec {
            tv_sec: (patience / 1_000_000_000) as i64,
            tv_nsec: (patience % 1_000_000_000) as i64,
        };
        let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the caller's arguments, and a local variable.
        let result = unsafe { syscall!(SYS_futex, address, operation, value, &raw const patience, 0, bits) };
        match answer(result) {
            Err(libc::ETIMEDOUT) => {}
            result => return result,
        }
    }
    look(address, value)?;
    // SAFETY: the kernel has found a number there.
    let still = || unsafe { number(address) }.load(SeqCst) == value;
    let end = park(caller, |worker| {
        (
            address::wait(Who::Fiber(worker), key(address), bits, until, still),
            0,
        )
    });
    told(end, is_final)
}

/// Waits in the kernel, on a thread of its own, while the fiber waits for that.
///
/// # Safety
/// As the call; and what it points to may be used on another thread.
unsafe fn wait_on_a_thread(caller: Caller, call: libc::c_long, arguments: [usize; 6]) -> Answer {
    caller.count().offloads.increment();
    // SAFETY: the caller's promise.
    let block = || unsafe { in_kernel(call, arguments) };
    // SAFETY: as above.
    let result = caller.parking(|| unsafe { scheduler::offload_alone(caller.worker, block) });
    // Without a thread to be had, it blocks the worker: late, but right.
    result.unwrap_or_else(|_| block())
}

/// Wakes some of those who wait for one address, and lets others wait for another one instead: only if the first has this value, if
/// one is given.
///
/// # Safety
/// As the call with that number and these arguments.
unsafe fn move_on(
    call: libc::c_long,
    arguments: [usize; 6],
    (from, to): (usize, usize),
    (wake, most): (c_int, c_int),
    value: Option<u32>,
) -> Answer {
    if !address::may_have_waiters(key(from)) || wake < 0 || most < 0 {
        // SAFETY: the caller's promise.
        return unsafe { in_kernel(call, arguments) };
    }
    if !to.is_multiple_of(4) {
        return Err(libc::EINVAL);
    }
    match (value, look(from, value.unwrap_or(0))) {
        (_, Ok(())) | (None, Err(libc::EAGAIN)) => {}
        (_, Err(error)) => return Err(error),
    }
    // SAFETY: the kernel has found a number there.
    let is_right = || value.is_none_or(|value| unsafe { number(from) }.load(SeqCst) == value);
    let (wake, most) = (wake as usize, most as usize);
    let moved = address::requeue(key(from), key(to), wake, most, is_right);
    let (woken, moved) = moved.ok_or(libc::EAGAIN)?;
    let rest = (wake - woken.count, most - moved);
    let mut count = woken.count + moved;
    if rest != (0, 0) {
        // The value has been looked at, and may be another one by now.
        let operation = libc::FUTEX_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel checks the addresses.
        let result = unsafe { syscall!(SYS_futex, from, operation, rest.0, rest.1, to, 0) };
        count += result.max(0) as usize;
    }
    address::give_way_after(woken);
    Ok(count as isize)
}

/// Changes the number at the second address as the code says, wakes some who wait for the first, and some who wait for the second if
/// its former value was as the code says.
///
/// # Safety
/// As `FUTEX_WAKE_OP`.
unsafe fn change_and_wake(
    (first, second): (usize, usize),
    (wake_first, wake_second): (c_int, c_int),
    code: u32,
) -> Answer {
    /// Twelve bits of the code, with a sign.
    fn signed(bits: u32) -> i32 {
        (bits << 20) as i32 >> 20
    }
    if !first.is_multiple_of(4) {
        return Err(libc::EINVAL);
    }
    match look(second, 0) {
        Ok(()) | Err(libc::EAGAIN) => {}
        Err(error) => return Err(error),
    }
    // SAFETY: the kernel has found a number there.
    let number = unsafe { number(second) };
    let mut argument = signed(code >> 12);
    if code >> 28 & 8 != 0 {
        argument = 1 << (argument & 31);
    }
    let argument = argument as u32;
    let before = match code >> 28 & 7 {
        0 => number.swap(argument, SeqCst),
        1 => number.fetch_add(argument, SeqCst),
        2 => number.fetch_or(argument, SeqCst),
        3 => number.fetch_and(!argument, SeqCst),
        4 => number.fetch_xor(argument, SeqCst),
        _ => return Err(libc::ENOSYS),
    } as i32;
    let compared = signed(code);
    let is_so = match code >> 24 & 15 {
        0 => before == compared,
        1 => before != compared,
        2 => before < compared,
        3 => before <= compared,
        4 => before > compared,
        5 => before >= compared,
        _ => return Err(libc::ENOSYS),
    };
    let wake = |address: usize, count: c_int| {
        let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
        let kernel = |most: usize| {
            // SAFETY: wakes.
            unsafe { syscall!(SYS_futex, address, operation, most, 0, 0, 0) }
        };
        wake_in_turn(address, count.max(1) as usize, !0, &kernel)
    };
    let mut woken = wake(first, wake_first)?;
    if is_so {
        woken = woken.and(wake(second, wake_second)?);
    }
    address::give_way_after(woken);
    Ok(woken.count as isize)
}

/// # Safety
/// As the call `futex_wake`.
pub(super) unsafe fn wake(arguments: [usize; 6]) -> Answer {
    let [address, bits, count, flags, ..] = arguments;
    let count = count as c_int;
    if flags as u32 as usize != PRIVATE_32 || count <= 0 || u32::try_from(bits).is_ok_and(|bits| bits == 0) {
        // SAFETY: the caller's promise.
        return unsafe { in_kernel(super::raw::FUTEX_WAKE, arguments) };
    }
    wake_both(address, count as usize, bits as u32, |most| {
        // SAFETY: the caller's promise.
        unsafe { sys::call(super::raw::FUTEX_WAKE, [address, bits, most, flags, 0, 0]) }
    })
}

/// A moment that is over, so that a call looks and does not wait.
static OVER: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// # Safety
/// As the call `futex_wait`.
pub(super) unsafe fn wait(arguments: [usize; 6]) -> Answer {
    let call = super::raw::FUTEX_WAIT;
    let [address, value, bits, flags, time, clock] = arguments;
    let Some(caller) = caller() else {
        // SAFETY: the caller's promise.
        return unsafe { in_kernel(call, arguments) };
    };
    // SAFETY: the caller's promise.
    unsafe {
        let clock = if time == 0 {
            libc::CLOCK_MONOTONIC
        } else {
            clock as clockid_t
        };
        let (until, is_final) = deadline(time as *const timespec, true, clock)?;
        let over = &raw const OVER as usize;
        match in_kernel(call, [address, value, bits, flags, over, clock as usize]) {
            Err(libc::ETIMEDOUT) => {}
            result => return result,
        }
        if flags as u32 as usize != PRIVATE_32 {
            return wait_on_a_thread(caller, call, arguments);
        }
        let still = || number(address).load(SeqCst) == value as u32;
        let end = park(caller, |worker| {
            let end = address::wait(Who::Fiber(worker), key(address), bits as u32, until, still);
            (end, 0)
        });
        told(end, is_final)
    }
}

/// # Safety
/// As the call `futex_waitv`.
pub(super) unsafe fn wait_for_several(arguments: [usize; 6]) -> Answer {
    let call = libc::SYS_futex_waitv;
    let [list, count, flags, time, clock, _] = arguments;
    let Some(caller) = caller() else {
        // SAFETY: the caller's promise.
        return unsafe { in_kernel(call, arguments) };
    };
    // SAFETY: the caller's promise; the list is looked at after the kernel has.
    unsafe {
        let clock = if time == 0 {
            libc::CLOCK_MONOTONIC
        } else {
            clock as clockid_t
        };
        let (until, is_final) = deadline(time as *const timespec, true, clock)?;
        let over = &raw const OVER as usize;
        match in_kernel(call, [list, count, flags, over, clock as usize, 0]) {
            Err(libc::ETIMEDOUT) => {}
            result => return result,
        }
        let list = std::slice::from_raw_parts(list as *const OneOfSeveral, count as u32 as usize);
        if list.iter().any(|one| one.flags as usize != PRIVATE_32) {
            return wait_on_a_thread(caller, call, arguments);
        }
        let is_same = |one: &OneOfSeveral| number(one.address as usize).load(SeqCst) == one.value as u32;
        let looks: Vec<_> = list.iter().map(|one| move || is_same(one)).collect();
        let targets: Vec<_> = list
            .iter()
            .zip(&looks)
            .map(|(one, still)| Target {
                key: key(one.address as usize),
                bits: !0,
                still,
            })
            .collect();
        let end = park(caller, |worker| address::wait_for_any(worker, &targets, until));
        told(end, is_final)
    }
}

/// # Safety
/// As the call `futex_requeue`.
pub(super) unsafe fn requeue(arguments: [usize; 6]) -> Answer {
    let call = super::raw::FUTEX_REQUEUE;
    let [list, flags, wake, most, ..] = arguments;
    // SAFETY: the caller's promise; the list is looked at after the kernel has.
    unsafe {
        // Wakes nobody and moves nobody, but looks at everything.
        in_kernel(call, [list, flags, 0, 0, 0, 0])?;
        let list = std::slice::from_raw_parts(list as *const OneOfSeveral, 2);
        if list.iter().any(|one| one.flags as usize != PRIVATE_32) {
            return in_kernel(call, arguments);
        }
        let addresses = (list[0].address as usize, list[1].address as usize);
        let counts = (wake as c_int, most as c_int);
        move_on(call, arguments, addresses, counts, Some(list[0].value as u32))
    }
}
