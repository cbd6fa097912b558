//! System calls that the runtime does not hear of, as other languages' libraries make them: `libc::syscall` is a function of the C
//! library, and hooked like all others.

#![allow(dead_code)] // each test binary uses its part

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};

/// Calls the kernel.
///
/// # Safety
/// The arguments are what that call asks for.
pub unsafe fn call(number: libc::c_long, [a, b, c]: [usize; 3]) -> isize {
    let result;
    // SAFETY: this is how a system call is made; it changes these registers only, and what the caller says.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c,
            options(nostack),
        );
    }
    result
}

/// Closes a descriptor.
pub fn close(file: impl Into<OwnedFd>) {
    let number = file.into().into_raw_fd() as usize;
    // SAFETY: it is this function's to close.
    let result = unsafe { call(libc::SYS_close, [number, 0, 0]) };
    assert_eq!(result, 0);
}

/// Makes a descriptor's number stand for another file, too. Both are open.
pub fn put(file: &OwnedFd, number: RawFd) {
    use std::os::fd::AsRawFd;
    let arguments = [
        file.as_raw_fd() as usize,
        number as usize,
        libc::O_CLOEXEC as usize,
    ];
    // SAFETY: the number is the caller's.
    assert_eq!(unsafe { call(libc::SYS_dup3, arguments) }, number as isize);
}

/// Sets the status flags of a descriptor.
pub fn set_flags(number: RawFd, flags: libc::c_int) {
    let arguments = [number as usize, libc::F_SETFL as usize, flags as usize];
    // SAFETY: numbers.
    assert_eq!(unsafe { call(libc::SYS_fcntl, arguments) }, 0);
}
