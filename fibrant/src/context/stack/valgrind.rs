//! Tells valgrind where the stacks are, so that it takes a switch for what it is.
//!
//! [`region`](super::region) calls it once per slot, [`shared`](super::shared) whenever it copies frames to where they were. Without the
//! feature `valgrind` it does nothing. With it, a request is a sequence of instructions that changes no register and that valgrind
//! recognises when it runs the program; outside valgrind it costs about a nanosecond.

#[cfg(not(feature = "valgrind"))]
pub(super) fn register(_bottom: *mut u8, _size: usize) {}

/// Registers a stack for as long as the program runs (slots are never unmapped). Its top counts as a part of it: a stack on which
/// nothing has been put yet begins there.
#[cfg(feature = "valgrind")]
pub(super) fn register(bottom: *mut u8, size: usize) {
    const STACK_REGISTER: usize = 0x1501;
    request(STACK_REGISTER, bottom as usize, bottom as usize + size);
}

#[cfg(not(feature = "valgrind"))]
#[inline]
pub(super) fn revive(_low: *mut u8, _size: usize) {}

/// Says that a part of a stack may be written to although whoever ran there last has left it.
#[cfg(feature = "valgrind")]
#[inline]
pub(super) fn revive(low: *mut u8, size: usize) {
    const MAKE_UNDEFINED: usize = ((b'M' as usize) << 24) | ((b'C' as usize) << 16) | 1;
    request(MAKE_UNDEFINED, low as usize, size);
}

#[cfg(feature = "valgrind")]
#[inline]
fn request(number: usize, first: usize, second: usize) {
    let request: [usize; 6] = [number, first, second, 0, 0, 0];
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
