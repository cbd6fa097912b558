//! Tells valgrind where the stacks are, so that it takes a switch for what it is.
//!
//! [`region`](super::region) calls it once per slot. Without the feature `valgrind` it does nothing. With it, a request is
//! a sequence of instructions that changes no register and that valgrind recognises when it runs the program; outside
//! valgrind it costs about a nanosecond.

#[cfg(not(feature = "valgrind"))]
pub(super) fn register(_bottom: *mut u8, _size: usize) {}

/// Registers a stack for as long as the program runs (slots are never unmapped).
#[cfg(feature = "valgrind")]
pub(super) fn register(bottom: *mut u8, size: usize) {
    const STACK_REGISTER: usize = 0x1501;
    let request: [usize; 6] = [
        STACK_REGISTER,
        bottom as usize,
        bottom as usize + size - 1,
        0,
        0,
        0,
    ];
    // SAFETY: four rotations by 64 bits in all and a register exchanged with itself (or its equivalent) leave everything
    // as it was; under valgrind the request is read from the array and the result replaces one register, declared so.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rax") request.as_ptr() => _,
            inout("rdx") 0_usize => _,
            out("rdi") _,
            options(nostack)
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            inout("x3") 0_usize => _,
            inout("x4") request.as_ptr() => _,
            out("x12") _,
            options(nostack)
        );
    }
}
