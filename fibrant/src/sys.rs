//! System calls, without the C library in between.
//!
//! The runtime itself must not go through names that it hooks: a worker that looks for events would park the fiber that it looks
//! for. And a call of the C library's sets `errno`, which belongs to the fiber that runs. A leaf: `hook`, `io` and `scheduler` call
//! it.
//!
//! Results are the kernel's: a negative number is an error's, with its sign changed.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::*};

/// Whether this is a child that another process with a runtime has forked, and has none of its own yet: it has one thread, no
/// workers, and shares their epolls with its parent. Everything that is hooked goes to the kernel as it is.
static STATE: AtomicU8 = AtomicU8::new(OWN);

/// This process uses its own things.
const OWN: u8 = 0;
/// It was forked, and everything in memory is its parent's.
const FORKED: u8 = 1;
/// It is about to have a runtime.
const BEGINNING: u8 = 2;

/// How many processes there have been, from parent to child, up to this one.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether this process was forked from one with a runtime, and has none of its own.
#[inline(always)]
pub(crate) fn is_forked() -> bool {
    STATE.load(Relaxed) != OWN
}

/// A number that this process has, and its parent has not.
#[inline(always)]
pub(crate) fn process() -> u32 {
    PROCESS.load(Relaxed)
}

/// Makes sure that a forked child knows what it is, and calls `in_child` there before anything else. To be called before the first
/// worker begins; the function may only do what a child of a process with several threads may.
pub(crate) fn notice_forks(in_child: extern "C" fn()) {
    static ONCE: Once = Once::new();
    note_forks();
    ONCE.call_once(|| {
        // SAFETY: as the caller says.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Makes sure that a forked child knows what it is. It is noted first, before any other handler of ours is called.
pub(crate) fn note_forks() {
    static ONCE: Once = Once::new();
    extern "C" fn note() {
        STATE.store(FORKED, Relaxed);
        PROCESS.fetch_add(1, Relaxed);
    }
    ONCE.call_once(|| {
        // SAFETY: it only stores numbers.
        unsafe { libc::pthread_atfork(None, None, Some(note)) };
    });
}

/// Calls `forget`, once, if this process was forked from one with a runtime: it is about to have one of its own, and `forget` leaves
/// behind what is its parent's.
pub(crate) fn begin_anew(forget: impl FnOnce()) {
    match STATE.compare_exchange(FORKED, BEGINNING, Acquire, Acquire) {
        Ok(_) => {
            forget();
            STATE.store(OWN, Release);
        }
        Err(_) => {
            while STATE.load(Acquire) == BEGINNING {
                std::hint::spin_loop(); // another thread is at it, and soon done
            }
        }
    }
}

/// Something that each process has one of. A forked child does not use its parent's, which may have been in the middle of a change
/// when it was forked: it makes its own.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<Made<T>>,
    make: fn() -> T,
}

struct Made<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess {
            current: AtomicPtr::new(ptr::null_mut()),
            make,
        }
    }

    /// This process's.
    #[inline]
    pub(crate) fn get(&self) -> &'static T {
        // SAFETY: null, or leaked below.
        match unsafe { self.current.load(Acquire).as_ref() } {
            Some(made) if made.process == process() => &made.value,
            other => self.make(other.map_or(ptr::null_mut(), |made| ptr::from_ref(made).cast_mut())),
        }
    }

    /// This process's, if it has been made.
    #[inline]
    pub(crate) fn existing(&self) -> Option<&'static T> {
        // SAFETY: null, or leaked below.
        let made = unsafe { self.current.load(Acquire).as_ref() }?;
        (made.process == process()).then_some(&made.value)
    }

    #[cold]
    fn make(&self, before: *mut Made<T>) -> &'static T {
        let made = Box::into_raw(Box::new(Made {
            process: process(),
            value: (self.make)(),
        }));
        match self.current.compare_exchange(before, made, AcqRel, Acquire) {
            // SAFETY: it was just leaked.
            Ok(_) => unsafe { &(*made).value },
            Err(theirs) => {
                // SAFETY: nobody has seen ours; theirs was leaked.
                unsafe {
                    drop(Box::from_raw(made));
                    &(*theirs).value
                }
            }
        }
    }
}

/// Calls the kernel.
///
/// # Safety
/// The arguments are what that call asks for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: this is how a system call is made; it changes rcx, r11 and the result's register only, and what the caller says.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Calls the kernel.
///
/// # Safety
/// The arguments are what that call asks for.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: this is how a system call is made; it changes the result's register only, and what the caller says.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// The same, with as many arguments as the call has.
macro_rules! syscall {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let mut arguments = [0_usize; 6];
        let given: &[usize] = &[$($argument as usize),*];
        arguments[..given.len()].copy_from_slice(given);
        $crate::sys::call(libc::$number, arguments)
    }};
}
pub(crate) use syscall;

/// A result as Rust has it.
#[inline]
pub(crate) fn check(result: isize) -> io::Result<usize> {
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Which of these descriptors are ready; may sleep that many milliseconds, for ever if it is negative.
///
/// # Safety
/// There are so many.
pub(crate) unsafe fn poll(descriptors: *mut libc::pollfd, count: usize, milliseconds: i32) -> isize {
    let seconds = i64::from(milliseconds) / 1000;
    let mut time = libc::timespec {
        tv_sec: seconds,
        tv_nsec: (i64::from(milliseconds) % 1000) * 1_000_000,
    };
    let time = if milliseconds < 0 {
        std::ptr::null_mut()
    } else {
        &raw mut time
    };
    // SAFETY: the caller's promise; the time is a local variable.
    unsafe { syscall!(SYS_ppoll, descriptors, count, time, 0, 0) }
}

/// Blocks the thread while the number is this one, at most until the deadline, in nanoseconds of the monotonic clock. It may return
/// earlier.
pub(crate) fn block_while(number: &AtomicU32, value: u32, deadline: u64) {
    let time = libc::timespec {
        tv_sec: (deadline / 1_000_000_000) as i64,
        tv_nsec: (deadline % 1_000_000_000) as i64,
    };
    let time = if deadline == u64::MAX {
        ptr::null()
    } else {
        &raw const time
    };
    let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the number, and the time, a local variable.
    unsafe { syscall!(SYS_futex, number.as_ptr(), operation, value, time, 0, !0_u32) };
}

/// Wakes the thread that blocks at this address, if one does. What was there may be gone.
pub(crate) fn unblock(number: *const AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a name only.
    unsafe { syscall!(SYS_futex, number, operation, 1, 0, 0, 0) };
}

/// How many processors the calling thread may use.
pub(crate) fn processors() -> u32 {
    let mut set = [0_u64; 1024 / 64];
    // SAFETY: writes to a local variable, at most as much as it holds.
    let size = unsafe { syscall!(SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr()) };
    // More than there is room for: many.
    if size < 0 {
        u32::MAX
    } else {
        set.iter().map(|bits| bits.count_ones()).sum()
    }
}

/// The system's number of the calling thread.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: it has no arguments.
    unsafe { syscall!(SYS_gettid) as i32 }
}

/// Closes a descriptor.
///
/// # Safety
/// It is the caller's to close.
pub(crate) unsafe fn close(fd: RawFd) -> isize {
    // SAFETY: the caller's promise.
    unsafe { syscall!(SYS_close, fd as isize) }
}

/// Who is at the other end of a socket, if it is one and has one: an address, or a path.
pub(crate) fn peer_of(fd: RawFd) -> Option<String> {
    // SAFETY: all zero is a value of it.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: writes to local variables, no more than there is room.
    let result = unsafe { syscall!(SYS_getpeername, fd, &raw mut address, &raw mut size) };
    if result < 0 {
        return None;
    }
    let address = &raw const address;
    // SAFETY: the family says which kind of address it is; the storage has room for each.
    Some(unsafe {
        match i32::from((*address).ss_family) {
            libc::AF_INET => {
                let address = &*address.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                SocketAddr::from((ip, u16::from_be(address.sin_port))).to_string()
            }
            libc::AF_INET6 => {
                let address = &*address.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                SocketAddr::from((ip, u16::from_be(address.sin6_port))).to_string()
            }
            libc::AF_UNIX => {
                let address = &*address.cast::<libc::sockaddr_un>();
                let length = (size as usize).saturating_sub(size_of::<libc::sa_family_t>());
                let path: Vec<u8> = address
                    .sun_path
                    .iter()
                    .take(length)
                    .map(|&byte| byte as u8)
                    .collect();
                let path = String::from_utf8_lossy(&path);
                match path.trim_matches('\0') {
                    "" => "unnamed".to_owned(),
                    path => path.to_owned(),
                }
            }
            family => format!("of address family {family}"),
        }
    })
}

/// Tells the user about a problem, on standard error, from the runtime's own code, where nothing may wait for a fiber's turn.
pub(crate) fn complain(problem: &str) {
    let line = format!("fibrant: {problem}\n");
    // SAFETY: the text is as long as it says. If nobody can be told, nobody is.
    unsafe { syscall!(SYS_write, 2, line.as_ptr(), line.len()) };
}
