//! Accepting a connection without blocking, from a listener that others may share.
//!
//! `accept` cannot be told not to block for one call, and the listener's flag is not ours to change: another process may accept from
//! it at the same moment. To ask `poll` first is not enough, either, for the same reason: whoever else takes the connection in between
//! leaves our thread blocked. The kernel's ring can be told. One is made for the process when it is first needed; a call puts one
//! entry in and takes the result out, all in one system call.
//!
//! Kernels before 6.10, and sandboxes that forbid rings, have none of this: then [`accept`] says so, and
//! [`connection`](super::connection) asks first.

use crate::scheduler::Lock;
use crate::sys::{self, syscall};
use libc::{c_int, sockaddr, socklen_t};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

const ACCEPT: u8 = 13;
/// In the entry: give up rather than wait.
const DONT_WAIT: u16 = 1 << 1;
/// Where the kernel maps the entries.
const ENTRIES_OFFSET: usize = 0x1000_0000;
/// It maps both rings at once, as all kernels do that know the flag above.
const SINGLE_MAP: u32 = 1;

/// What the kernel says about a new ring.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    entries: u32,
    completions: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    work_queue: u32,
    reserved: [u32; 3],
    submission: Offsets,
    completion: Offsets,
}

/// Where the parts of one of the two rings are. Both have head, tail, mask and size first; the submissions then have flags, dropped and
/// array, the completions overflow, entries and flags.
#[repr(C)]
#[derive(Default)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    size: u32,
    rest: [u32; 4],
    address: u64,
}

/// An entry: what is asked for.
#[repr(C)]
#[derive(Default)]
struct Entry {
    operation: u8,
    flags: u8,
    accept_options: u16,
    fd: i32,
    size: u64,
    address: u64,
    length: u32,
    accept_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

/// What has come of it.
#[repr(C)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// A ring with one place.
struct Ring {
    fd: RawFd,
    entry: *mut Entry,
    submission_tail: *const AtomicU32,
    completion_head: *const AtomicU32,
    completion_tail: *const AtomicU32,
    completion_mask: u32,
    completions: *const Completion,
}

// SAFETY: the memory is the ring's, which whoever has the lock may use from any thread.
unsafe impl Send for Ring {}

/// The process's ring; null before it is needed, `absent` where there is none to be had.
static RING: AtomicPtr<Lock<Ring>> = AtomicPtr::new(ptr::null_mut());

fn absent() -> *mut Lock<Ring> {
    ptr::dangling_mut()
}

/// Forgets the ring of the process that this one was forked from.
pub(super) fn forget_parents() {
    RING.store(ptr::null_mut(), Relaxed);
}

/// Accepts a connection if there is one: the kernel's result. `None` if that cannot be done here.
///
/// # Safety
/// As `accept4`.
pub(super) unsafe fn accept(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
    flags: c_int,
) -> Option<isize> {
    let mut ring = RING.load(Acquire);
    if ring.is_null() {
        ring = make();
    }
    if ring == absent() {
        return None;
    }
    // SAFETY: it was leaked.
    let ring = unsafe { &*ring }.lock();
    // SAFETY: the caller's promise.
    unsafe { ring.accept(fd, address, size, flags) }
}

/// Makes the process's ring, and finds out whether it can be used.
#[cold]
fn make() -> *mut Lock<Ring> {
    let made = match Ring::new().filter(Ring::can_accept) {
        Some(ring) => Box::into_raw(Box::new(Lock::new(ring))),
        None => absent(),
    };
    match RING.compare_exchange(ptr::null_mut(), made, AcqRel, Acquire) {
        Ok(_) => made,
        Err(theirs) => {
            if made != absent() {
                // SAFETY: it was made above, and nobody has seen it; the memory is left: this happens once, if ever.
                unsafe { sys::close(Box::from_raw(made).lock().fd) };
            }
            theirs
        }
    }
}

impl Ring {
    fn new() -> Option<Ring> {
        let mut parameters = Parameters::default();
        // SAFETY: reads and writes a local variable; the descriptor is closed on exec.
        let fd = unsafe { syscall!(SYS_io_uring_setup, 1, &raw mut parameters) };
        if fd < 0 {
            return None;
        }
        let map = |length: usize, offset: usize| {
            // SAFETY: maps memory of the ring's, where there is room.
            let address = unsafe {
                syscall!(
                    SYS_mmap,
                    0,
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_POPULATE,
                    fd,
                    offset
                )
            };
            (!(-4095..0).contains(&address))
                .then_some(ptr::with_exposed_provenance_mut::<u8>(address as usize))
        };
        let (submission, completion) = (&parameters.submission, &parameters.completion);
        let (array, entries) = (submission.rest[2] as usize, completion.rest[1] as usize);
        let completions = parameters.completions as usize * size_of::<Completion>();
        let length = (array + parameters.entries as usize * 4).max(entries + completions);
        let rings = (parameters.features & SINGLE_MAP != 0)
            .then(|| map(length, 0))
            .flatten();
        let entry = map(parameters.entries as usize * size_of::<Entry>(), ENTRIES_OFFSET);
        let (Some(rings), Some(entry)) = (rings, entry) else {
            // SAFETY: it was made above.
            unsafe { sys::close(fd as RawFd) };
            return None;
        };
        // SAFETY: the kernel has said that these places are in what was mapped, and what is there.
        unsafe {
            let place = |offset: u32| rings.add(offset as usize);
            // The one place of the array always says: the first entry.
            place(submission.rest[2]).cast::<u32>().write(0);
            Some(Ring {
                fd: fd as RawFd,
                entry: entry.cast(),
                submission_tail: place(submission.tail).cast(),
                completion_head: place(completion.head).cast(),
                completion_tail: place(completion.tail).cast(),
                completion_mask: place(completion.mask).cast::<u32>().read(),
                completions: place(completion.rest[1]).cast(),
            })
        }
    }

    /// Accepts a connection, if there is one.
    ///
    /// # Safety
    /// As `accept4`.
    unsafe fn accept(
        &self,
        fd: c_int,
        address: *mut sockaddr,
        size: *mut socklen_t,
        flags: c_int,
    ) -> Option<isize> {
        // SAFETY: the places are the ring's as long as it lives, and whoever has it uses it alone: the kernel looks at the entry
        // during the call only, and writes no completion outside of it. The rest is the caller's promise.
        unsafe {
            self.entry.write(Entry {
                operation: ACCEPT,
                accept_options: DONT_WAIT,
                fd,
                size: size.expose_provenance() as u64,
                address: address.expose_provenance() as u64,
                accept_flags: flags as u32,
                ..Entry::default()
            });
            let tail = &*self.submission_tail;
            tail.store(tail.load(Relaxed).wrapping_add(1), Release);
            loop {
                // It does not wait, but may be interrupted before it has begun.
                let taken = syscall!(SYS_io_uring_enter, self.fd, 1, 0, 0, 0, 0);
                if taken != -(libc::EINTR as isize) && taken != -(libc::EAGAIN as isize) {
                    break;
                }
            }
            let head = &*self.completion_head;
            let next = head.load(Relaxed);
            if next == (*self.completion_tail).load(Acquire) {
                return None; // nothing has come of it: there is no memory, perhaps
            }
            let result = (*self.completions.add((next & self.completion_mask) as usize)).result;
            head.store(next.wrapping_add(1), Release);
            Some(result as isize)
        }
    }

    /// Whether the kernel knows what is asked of it: it says of a listener of ours, to whom nobody connects, that it would block.
    fn can_accept(&self) -> bool {
        let address = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: a socket is made, gets a name that the kernel chooses, listens, and is closed again.
        unsafe {
            let fd = syscall!(
                SYS_socket,
                libc::AF_UNIX,
                libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
                0
            );
            syscall!(SYS_bind, fd, &raw const address, size_of_val(&address));
            syscall!(SYS_listen, fd, 1);
            let result = self.accept(fd as RawFd, ptr::null_mut(), ptr::null_mut(), 0);
            sys::close(fd as RawFd);
            if result == Some(-(libc::EAGAIN as isize)) {
                return true;
            }
            sys::close(self.fd);
            false
        }
    }
}
