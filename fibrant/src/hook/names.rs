//! Names: what the C library asks the network, or files, inside calls that no hook sees. A real thread asks while the fiber waits.

use super::real::Real;
use super::retry::{Answer, Caller};
use crate::scheduler;
use libc::{addrinfo, c_char, c_int, sockaddr, socklen_t};

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

/// Makes a call on a real thread, and passes its `errno` on: some results say that the reason is there.
///
/// # Safety
/// What the call uses may be used on another thread meanwhile.
unsafe fn ask(caller: Caller, call: impl Fn() -> c_int) -> Answer {
    caller.count().offloads.increment();
    let both = || {
        let result = call();
        (
            result,
            std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        )
    };
    // SAFETY: the caller's promise.
    let (result, error) = unsafe { scheduler::offload(caller.worker, both) }.unwrap_or_else(|_| both());
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
    static REAL: Real = Real::new(c"getaddrinfo");
    let Some(address) = REAL.address() else {
        return Ok(libc::EAI_FAIL as isize);
    };
    // SAFETY: it is the address of the function of that name, which has this type.
    let real: GetAddrInfo = unsafe { std::mem::transmute(address) };
    // SAFETY: the arguments are the caller's, who waits.
    unsafe { ask(caller, || real(node, service, hints, found)) }
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
    static REAL: Real = Real::new(c"getnameinfo");
    let Some(function) = REAL.address() else {
        return Ok(libc::EAI_FAIL as isize);
    };
    // SAFETY: it is the address of the function of that name, which has this type.
    let real: GetNameInfo = unsafe { std::mem::transmute(function) };
    // SAFETY: the arguments are the caller's, who waits.
    unsafe {
        ask(caller, || {
            real(address, size, host, host_size, service, service_size, flags)
        })
    }
}
