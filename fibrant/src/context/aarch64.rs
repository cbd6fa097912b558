//! The switch for aarch64 (AAPCS64).
//!
//! [`context`](super) calls it. A suspended stack ends, at its low end, in this frame; a context is the address `frame`:
//!
//! ```text
//!    high addresses: the frame of the function that switched, with what it kept of the other registers
//!            +-----------------------+
//!    +0x18   |         FPCR          |
//!    +0x10   |         x19           |  the data of the entry function for a new stack
//!    +0x08   |     where to go on    |  the end of the switch; `launch` for a new stack
//!    frame   |       x29 (fp)        |  the entry function for a new stack
//!            +-----------------------+
//!    low addresses: free
//! ```
//!
//! The switch is inline assembly that declares every register as changed, so the compiler saves what is in use at that
//! place and nothing else; x19 and x29, which it does not let us declare, are saved here. (Why not a function that saves
//! all that a caller may keep: see the measurement in `x86_64.rs`.)
//!
//! The floating-point control register is stored at every switch but loaded only if it differs. A new stack has none yet
//! and starts with that of whoever switches to it first, as a new thread inherits its creator's; one that is left for good
//! has none to store.
//!
//! The switch ends in `br`, not `ret`: the processor predicts a `ret` to go where the last call came from, which after a
//! switch is always wrong. For the same reason `launch` does not `blr`: the entry function never returns, and a call
//! without its return would make the next one on the other stack go wrong.
//!
//! Unwinding: whoever goes on does so at the end of the switch with its stack pointer as it was, so the tables of the
//! function around it are right. `launch` declares its return address undefined: a backtrace ends there.

use super::Entry;
use std::arch::{asm, naked_asm};

/// The saved frame, as in the diagram.
#[repr(C)]
struct Frame {
    x29: usize,
    go_on: usize,
    x19: usize,
    fpcr: u64,
}

/// Brings what is there into the cache. The address need not be valid.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    // SAFETY: a prefetch reads nothing that the program can see, and does not fault.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

/// Gives the control register its default value, if it has another.
#[inline]
pub(super) fn reset_float_control() {
    let control: u64;
    // SAFETY: reads a register, and writes to it what every process begins with.
    unsafe {
        asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack));
        if control != 0 {
            asm!("msr fpcr, xzr", options(nomem, nostack));
        }
    }
}

/// Writes the frame of a new stack below `top`, so that the first switch to it enters `entry`.
///
/// # Safety
/// `top` is aligned to 16 bytes and the 32 bytes below it are writable and unused.
#[inline]
pub(super) unsafe fn prepare(top: *mut u8, entry: Entry, data: *mut ()) -> *mut u8 {
    // SAFETY: 32 bytes below top are ours by the caller's promise.
    let frame = unsafe { top.cast::<Frame>().sub(1) };
    let start = Frame {
        x29: entry as usize,
        go_on: launch as *const () as usize,
        x19: data as usize,
        fpcr: 0,
    };
    // SAFETY: the place is writable and, as top is aligned to 16 and a frame takes 32 bytes, aligned.
    unsafe { frame.write(start) };
    frame.cast()
}

/// Where a new stack begins: enters the entry function with its data and the first switch's argument, and is the end of
/// every walk over the stack, by tables (return address undefined) and by frame pointers (x29 is 0). The stack pointer is
/// `top` here, aligned as the ABI wants it.
#[unsafe(naked)]
unsafe extern "C" fn launch() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined x30",
        "mov x0, x19",
        "mov x1, x2",
        "mov x9, x29",
        "mov x29, xzr",
        "adr x30, 2f",
        "br x9",
        "nop", // a walk looks up the address before the one that x30 holds
        "2: brk #1",
        ".cfi_endproc",
    )
}

/// The switch, with two gaps: what is done about the control register once the frame at sp is complete but for it and x11
/// holds the target's, and what is done about the thread pointer. Label 4 is the end.
macro_rules! switch {
    ($from:ident, $to:ident, $argument:ident,
     control_register: [$($now:literal),*], thread_pointer: [$($set:literal)?] $($pointer:ident)?) => {{
        let answer;
        asm!(
            "adr x9, 4f",
            "stp x29, x9, [sp, #-0x20]!",
            "str x19, [sp, #0x10]",
            "ldr x11, [x1]",
            $($now,)*
            $($set,)?
            "mov x9, sp",
            "str x9, [x0]",
            "mov sp, x11",
            "ldr x19, [sp, #0x10]",
            "ldp x29, x9, [sp], #0x20",
            "br x9",
            "4:",
            in("x0") $from,
            in("x1") $to,
            inout("x2") $argument => answer,
            $(in("x3") $pointer,)?
            out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
            out("x25") _, out("x26") _, out("x27") _, out("x28") _,
            clobber_abi("C"),
        );
        answer
    }};
    // Stored, compared with the target's, loaded if it differs.
    ($from:ident, $to:ident, $argument:ident, keep control register, thread_pointer: $($rest:tt)*) => {
        switch!($from, $to, $argument,
            control_register: [
                "mrs x10, fpcr",
                "str x10, [sp, #0x18]",
                "ldr x12, [x11, #0x18]",
                "cmp x10, x12",
                "b.eq 2f",
                "msr fpcr, x12",
                "2:"
            ],
            thread_pointer: $($rest)*)
    };
}

/// Saves `*from`, goes on in `*to` with `argument` as the result there.
///
/// # Safety
/// `*to` is the address of a frame of this thread's that was saved and not switched to since; `from` is valid for a write.
#[inline(always)]
pub(super) unsafe fn switch(from: *mut *mut u8, to: *const *mut u8, argument: usize) -> usize {
    // SAFETY: by the contract the target's frame is complete, and whoever switches back restores this one. What happens in
    // between is like a call of a function that may change every register.
    unsafe { switch!(from, to, argument, keep control register, thread_pointer: []) }
}

/// [`switch()`] to a stack that was just prepared: it has no control register, and starts with the one that is in force.
///
/// # Safety
/// As [`switch()`], but `*to` was prepared and not switched to since.
#[inline(always)]
pub(super) unsafe fn switch_to_new(from: *mut *mut u8, to: *const *mut u8, argument: usize) -> usize {
    // SAFETY: as in `switch`.
    unsafe {
        switch!(from, to, argument,
            control_register: ["mrs x10, fpcr", "str x10, [sp, #0x18]"], thread_pointer: [])
    }
}

/// Leaves a stack for good: goes on in `*to` as [`switch()`] does, but saves nothing.
///
/// # Safety
/// As [`switch()`] or, if `share_float_control` is set, [`switch_sharing_float_control`].
#[inline(always)]
pub(super) unsafe fn leave(to: *const *mut u8, share_float_control: bool, argument: usize) -> ! {
    // SAFETY: by the contract the target's frame is complete, with a control register unless it is shared. It is read by the
    // last instructions on this stack.
    unsafe {
        let frame = (*to).cast::<Frame>();
        let present: u64;
        asm!("mrs {}, fpcr", out(reg) present, options(nostack, nomem));
        if !share_float_control && present != (*frame).fpcr {
            asm!("msr fpcr, {}", in(reg) (*frame).fpcr, options(nostack, nomem));
        }
        asm!(
            "mov sp, x11",
            "ldr x19, [sp, #0x10]",
            "ldp x29, x9, [sp], #0x20",
            "br x9",
            in("x11") frame,
            in("x2") argument,
            options(noreturn),
        )
    }
}

/// [`switch()`], without a look at the control register: it stays as it is.
///
/// # Safety
/// As [`switch()`] or [`switch_to_new`]; and whoever switches back to this frame does so by this function, too, as the
/// frame has no control register.
#[inline(always)]
pub(super) unsafe fn switch_sharing_float_control(
    from: *mut *mut u8,
    to: *const *mut u8,
    argument: usize,
) -> usize {
    // SAFETY: as in `switch`.
    unsafe { switch!(from, to, argument, control_register: [], thread_pointer: []) }
}

/// [`switch()`], and `tpidr_el0` gets a new value.
///
/// # Safety
/// As [`switch()`]; `thread_pointer` is a thread control block.
#[inline(always)]
pub(super) unsafe fn switch_with_thread_pointer(
    from: *mut *mut u8,
    to: *const *mut u8,
    argument: usize,
    thread_pointer: *mut u8,
) -> usize {
    // SAFETY: as in `switch`; the new value is one that code may run with.
    unsafe {
        switch!(from, to, argument, keep control register, thread_pointer: ["msr tpidr_el0, x3"] thread_pointer)
    }
}

/// [`leave`], and `tpidr_el0` gets a new value.
///
/// # Safety
/// As [`leave`] to what [`switch()`] has saved, and as [`switch_with_thread_pointer`].
#[inline(always)]
pub(super) unsafe fn leave_with_thread_pointer(
    to: *const *mut u8,
    argument: usize,
    thread_pointer: *mut u8,
) -> ! {
    // SAFETY: as in `leave`; nothing of the old block is used once the pointer has changed.
    unsafe {
        let frame = (*to).cast::<Frame>();
        asm!(
            "msr fpcr, x10",
            "msr tpidr_el0, x12",
            "mov sp, x11",
            "ldr x19, [sp, #0x10]",
            "ldp x29, x9, [sp], #0x20",
            "br x9",
            in("x10") (*frame).fpcr,
            in("x11") frame,
            in("x2") argument,
            in("x12") thread_pointer,
            options(noreturn),
        )
    }
}

/// Calls `f(data)` with another `tpidr_el0`.
///
/// # Safety
/// As [`switch_with_thread_pointer`] for the pointer; `f` may be called with `data` and does not unwind.
pub(super) unsafe fn call_with_thread_pointer(
    thread_pointer: *mut u8,
    f: unsafe extern "C" fn(*mut ()),
    data: *mut (),
) {
    // SAFETY: a call like any other, but for the pointer, which is put back by the instruction that follows it. The registers
    // that hold both are such that a function keeps.
    unsafe {
        asm!(
            "msr tpidr_el0, x20",
            "blr x21",
            "msr tpidr_el0, x22",
            in("x20") thread_pointer,
            in("x21") f,
            in("x22") self::thread_pointer(),
            in("x0") data,
            clobber_abi("C"),
        );
    }
}

/// User code may always write `tpidr_el0`.
pub(super) fn thread_pointer_can_change() -> bool {
    true
}

/// The value of `tpidr_el0`.
pub(super) fn thread_pointer() -> *mut u8 {
    let pointer;
    // SAFETY: reads a register that user code may read.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}
