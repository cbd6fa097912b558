//! Names: what the C library asks the network, or files, inside calls that no hook sees. A real thread asks while the fiber waits.
//!
//! The old functions give a result that the next call of the same thread overwrites. Here the next call of the same fiber does.

use super::real::Real;
use super::retry::{Answer, Caller};
use crate::scheduler;
use libc::{addrinfo, c_char, c_int, c_void, hostent, size_t, sockaddr, socklen_t};
use std::cell::RefCell;
use std::ptr;

type GetAddrInfo =
    unsafe extern "C" fn(*const c_char, *const c_char, *const addrinfo, *mut *mut addrinfo) -> c_int;
type GetNameInfo = unsafe extern "C" fn(
    *const sockaddr,
    socklen_t,
    *mut c_char,
    socklen_t,
    *mut c_char,
    socklen_t,
    c_int,
) -> c_int;

/// Makes a call on a real thread.
///
/// # Safety
/// What the call uses may be used on another thread meanwhile.
unsafe fn ask<T>(caller: Caller, call: impl Fn() -> T) -> T {
    caller.count().offloads.increment();
    // SAFETY: the caller's promise.
    let result = caller.parking(|| unsafe { scheduler::offload(caller.worker, &call) });
    result.unwrap_or_else(|_| call())
}

/// The same, for a call whose result may say that the reason is in `errno`.
///
/// # Safety
/// As `ask`.
unsafe fn ask_with_errno(caller: Caller, call: impl Fn() -> c_int) -> Answer {
    // SAFETY: the caller's promise.
    let (result, error) = unsafe { ask(caller, || (call(), super::file::last_error())) };
    if result == libc::EAI_SYSTEM {
        // SAFETY: the address is that of this thread's variable.
        unsafe { *libc::__errno_location() = error };
    }
    Ok(result as isize)
}

/// # Safety
/// As `getaddrinfo`.
pub(super) unsafe fn getaddrinfo(
    caller: Caller,
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    found: *mut *mut addrinfo,
) -> Answer {
    // SAFETY: it is of this type.
    static REAL: Real<GetAddrInfo> = unsafe { Real::new(c"getaddrinfo") };
    let Some(real) = REAL.get() else {
        return Ok(libc::EAI_FAIL as isize);
    };
    // SAFETY: the arguments are the caller's, who waits.
    unsafe { ask_with_errno(caller, || real(node, service, hints, found)) }
}

/// # Safety
/// As `getnameinfo`.
#[expect(clippy::too_many_arguments, reason = "the C library's")]
pub(super) unsafe fn getnameinfo(
    caller: Caller,
    address: *const sockaddr,
    size: socklen_t,
    host: *mut c_char,
    host_size: socklen_t,
    service: *mut c_char,
    service_size: socklen_t,
    flags: c_int,
) -> Answer {
    // SAFETY: it is of this type.
    static REAL: Real<GetNameInfo> = unsafe { Real::new(c"getnameinfo") };
    let Some(real) = REAL.get() else {
        return Ok(libc::EAI_FAIL as isize);
    };
    // SAFETY: the arguments are the caller's, who waits.
    unsafe {
        ask_with_errno(caller, || {
            real(address, size, host, host_size, service, service_size, flags)
        })
    }
}

/// What `gethostbyname_r` and its relatives are told where to leave, and how much they may.
type Place = (*mut hostent, *mut c_char, size_t, *mut *mut hostent, *mut c_int);
type ByName = unsafe extern "C" fn(
    *const c_char,
    *mut hostent,
    *mut c_char,
    size_t,
    *mut *mut hostent,
    *mut c_int,
) -> c_int;
type ByName2 = unsafe extern "C" fn(
    *const c_char,
    c_int,
    *mut hostent,
    *mut c_char,
    size_t,
    *mut *mut hostent,
    *mut c_int,
) -> c_int;
type ByAddress = unsafe extern "C" fn(
    *const c_void,
    socklen_t,
    c_int,
    *mut hostent,
    *mut c_char,
    size_t,
    *mut *mut hostent,
    *mut c_int,
) -> c_int;

// SAFETY: each is of its type.
static BY_NAME: Real<ByName> = unsafe { Real::new(c"gethostbyname_r") };
// SAFETY: as above.
static BY_NAME_2: Real<ByName2> = unsafe { Real::new(c"gethostbyname2_r") };
// SAFETY: as above.
static BY_ADDRESS: Real<ByAddress> = unsafe { Real::new(c"gethostbyaddr_r") };

/// What is asked for.
#[derive(Clone, Copy)]
enum Question {
    Name(*const c_char),
    NameOfFamily(*const c_char, c_int),
    Address(*const c_void, socklen_t, c_int),
}

impl Question {
    /// Asks, on this thread. Gives an error's number.
    ///
    /// # Safety
    /// As the function of that name.
    unsafe fn ask(self, (found, buffer, size, result, error): Place) -> c_int {
        // SAFETY: the arguments are the caller's.
        let told = unsafe {
            match self {
                Question::Name(name) => BY_NAME
                    .get()
                    .map(|ask| ask(name, found, buffer, size, result, error)),
                Question::NameOfFamily(name, family) => BY_NAME_2
                    .get()
                    .map(|ask| ask(name, family, found, buffer, size, result, error)),
                Question::Address(host, length, family) => BY_ADDRESS
                    .get()
                    .map(|ask| ask(host, length, family, found, buffer, size, result, error)),
            }
        };
        told.unwrap_or(libc::ENOSYS)
    }
}

/// A fiber's last answer.
struct Host {
    found: hostent,
    buffer: Vec<c_char>,
}

crate::fiber_local! {
    static HOST: RefCell<Option<Box<Host>>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    /// Where the functions that give no error's number leave one.
    fn __h_errno_location() -> *mut c_int;
}

/// Asks, and leaves the answer where the fiber's next question will find it.
///
/// # Safety
/// As the function of that name.
unsafe fn ask_for_host(caller: Caller, question: Question) -> Answer {
    // It is this call's own while another thread writes to it.
    let mut host = HOST.take().unwrap_or_else(|| {
        Box::new(Host {
            // SAFETY: all zero is a value of it.
            found: unsafe { std::mem::zeroed() },
            buffer: vec![0; 1024],
        })
    });
    let (mut result, mut error) = (ptr::null_mut(), 0);
    loop {
        let place: Place = (
            &mut host.found,
            host.buffer.as_mut_ptr(),
            host.buffer.len(),
            &mut result,
            &mut error,
        );
        // SAFETY: the places are this call's, which waits.
        match unsafe { ask(caller, || question.ask(place)) } {
            libc::ERANGE if host.buffer.len() < 1 << 20 => {
                let larger = 2 * host.buffer.len();
                host.buffer.resize(larger, 0);
            }
            _ => break,
        }
    }
    HOST.set(Some(host));
    // SAFETY: the address is that of this thread's variable.
    unsafe { *__h_errno_location() = error };
    Ok(result as isize)
}

/// # Safety
/// As `gethostbyname`.
pub(super) unsafe fn gethostbyname(caller: Caller, name: *const c_char) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { ask_for_host(caller, Question::Name(name)) }
}

/// # Safety
/// As `gethostbyname2`.
pub(super) unsafe fn gethostbyname2(caller: Caller, name: *const c_char, family: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { ask_for_host(caller, Question::NameOfFamily(name, family)) }
}

/// # Safety
/// As `gethostbyaddr`.
pub(super) unsafe fn gethostbyaddr(
    caller: Caller,
    host: *const c_void,
    length: socklen_t,
    family: c_int,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { ask_for_host(caller, Question::Address(host, length, family)) }
}

/// # Safety
/// As `gethostbyname_r`.
pub(super) unsafe fn gethostbyname_r(
    caller: Caller,
    name: *const c_char,
    found: *mut hostent,
    buffer: *mut c_char,
    size: size_t,
    result: *mut *mut hostent,
    error: *mut c_int,
) -> Answer {
    let place = (found, buffer, size, result, error);
    // SAFETY: the arguments are the caller's, who waits.
    Ok(unsafe { ask(caller, || Question::Name(name).ask(place)) } as isize)
}

/// # Safety
/// As `gethostbyname2_r`.
#[expect(clippy::too_many_arguments, reason = "the C library's")]
pub(super) unsafe fn gethostbyname2_r(
    caller: Caller,
    name: *const c_char,
    family: c_int,
    found: *mut hostent,
    buffer: *mut c_char,
    size: size_t,
    result: *mut *mut hostent,
    error: *mut c_int,
) -> Answer {
    let place = (found, buffer, size, result, error);
    // SAFETY: the arguments are the caller's, who waits.
    Ok(unsafe { ask(caller, || Question::NameOfFamily(name, family).ask(place)) } as isize)
}

/// # Safety
/// As `gethostbyaddr_r`.
#[expect(clippy::too_many_arguments, reason = "the C library's")]
pub(super) unsafe fn gethostbyaddr_r(
    caller: Caller,
    host: *const c_void,
    length: socklen_t,
    family: c_int,
    found: *mut hostent,
    buffer: *mut c_char,
    size: size_t,
    result: *mut *mut hostent,
    error: *mut c_int,
) -> Answer {
    let place = (found, buffer, size, result, error);
    // SAFETY: the arguments are the caller's, who waits.
    Ok(unsafe { ask(caller, || Question::Address(host, length, family).ask(place)) } as isize)
}
