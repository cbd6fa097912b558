//! The switch for x86_64 (System V ABI).
//!
//! [`context`](super) calls it. A suspended stack ends, at its low end, in this frame; a context is the address `frame`:
//!
//! ```text
//!    high addresses: the frame of the function that switched, with what it kept of the other registers
//!            +-----------------------+
//!    +0x18   |     where to go on    |  the end of the switch; `launch` for a new stack
//!    +0x10   |          rbp          |  the entry function for a new stack
//!    +0x08   |          rbx          |  its data
//!    +0x04   |  x87 control word (2) |
//!    frame   |      MXCSR (4)        |
//!            +-----------------------+
//!    low addresses: free
//! ```
//!
//! The switch is inline assembly that declares every register as changed, so the compiler saves what is in use at that
//! place and nothing else; rbx and rbp, which it does not let us declare, are saved here. Measured on an AMD Zen 3, a
//! round trip takes 2.5 ns this way, and 5.4 ns as a function that saves all six registers that the ABI lets a caller
//! keep.
//!
//! The control words are stored at every switch but loaded only if the control bits differ (a load can cost 100 ns); the
//! six low bits of MXCSR are sticky flags and do not count. A new stack has none yet and starts with those of whoever
//! switches to it first, as a new thread inherits its creator's; one that is left for good has none to store. Reading MXCSR
//! takes 5 ns on a Zen 3 and comparing what was read 2 more: hence the variant that shares the control words.
//!
//! The switch ends in `jmp`, not `ret`: the processor predicts a `ret` to go where the last `call` came from,
//! which after a switch is always wrong and costs 8 ns a time. For the same reason `launch` does not `call`: the
//! entry function never returns, and a call without its return would make the next one on the other stack go wrong.
//!
//! Unwinding: whoever goes on does so at the end of the switch with its stack pointer as it was, so the tables of the
//! function around it are right. `launch` declares its return address undefined: a backtrace ends there.

use super::Entry;
use std::arch::{asm, naked_asm};

/// The saved frame, as in the diagram.
#[repr(C)]
struct Frame {
    mxcsr: u32,
    x87_control: u16,
    _unused: u16,
    rbx: usize,
    rbp: usize,
    go_on: usize,
}

/// The control words with which the ABI lets a process begin: all exceptions masked, round to nearest.
const DEFAULT_MXCSR: u32 = 0x1F80;
const DEFAULT_X87_CONTROL: u16 = 0x037F;

/// Brings what is there into the cache. The address need not be valid.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    // SAFETY: a prefetch reads nothing that the program can see, and does not fault.
    unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

/// Gives the control words their default values, if they have others.
#[inline]
pub(super) fn reset_float_control() {
    let (mut mxcsr, mut x87_control) = (0_u32, 0_u16);
    // SAFETY: both store a register to a local variable; the loads below load what every process begins with.
    unsafe {
        asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack));
        asm!("fnstcw [{}]", in(reg) &raw mut x87_control, options(nostack));
        if (mxcsr ^ DEFAULT_MXCSR) & 0xFFC0 != 0 {
            asm!("ldmxcsr [{}]", in(reg) &DEFAULT_MXCSR, options(nostack));
        }
        if x87_control != DEFAULT_X87_CONTROL {
            asm!("fldcw [{}]", in(reg) &DEFAULT_X87_CONTROL, options(nostack));
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
        mxcsr: DEFAULT_MXCSR,
        x87_control: DEFAULT_X87_CONTROL,
        _unused: 0,
        rbx: data as usize,
        rbp: entry as usize,
        go_on: launch as *const () as usize,
    };
    // SAFETY: the place is writable and, as top is aligned to 16 and a frame takes 32 bytes, aligned.
    unsafe { frame.write(start) };
    frame.cast()
}

/// Where a new stack begins: enters the entry function with its data and the first switch's argument, and is the end of
/// every walk over the stack, by tables (return address undefined) and by frame pointers (rbp is 0). The stack pointer is
/// `top` here, and with the return address pushed it is as the ABI wants it.
#[unsafe(naked)]
unsafe extern "C" fn launch() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",
        "mov rdi, rbx",
        "mov rsi, rdx",
        "mov rax, rbp",
        "xor ebp, ebp",
        "lea rcx, [rip + 2f]",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "jmp rax",
        "nop", // a walk looks up the address before the one that was pushed
        "2: ud2",
        ".cfi_endproc",
    )
}

/// The switch, with two gaps: what is done about the control words once the rest of the frame is written and r8 holds the
/// target's, and what is done about the thread pointer. Labels: 2 goes on after the control words, 3 is out of the way, 4
/// is the end.
///
/// The frame is written below the stack pointer, in the red zone, which signal handlers leave alone: so up to the last two
/// instructions the stack pointer is that of the function around the switch, and a profiler can walk from each of them.
macro_rules! switch {
    ($from:ident, $to:ident, $argument:ident,
     control_words: [$($now:literal),*] [$($later:literal),*], thread_pointer: [$($set:literal)?] $($pointer:ident)?) => {{
        let answer;
        asm!(
            "lea rax, [rip + 4f]",
            "mov r8, [rsi]",
            "mov [rsp - 0x08], rax",
            "mov [rsp - 0x10], rbp",
            "mov [rsp - 0x18], rbx",
            $($now,)*
            "2:",
            $($set,)?
            "lea r9, [rsp - 0x20]",
            "mov [rdi], r9",
            "mov rbx, [r8 + 0x08]",
            "mov rbp, [r8 + 0x10]",
            "mov r9, [r8 + 0x18]",
            "lea rsp, [r8 + 0x20]",
            "jmp r9",
            "3:",
            $($later,)*
            "4:",
            in("rdi") $from,
            in("rsi") $to,
            inout("rdx") $argument => answer,
            $(in("rcx") $pointer,)?
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("sysv64"),
        );
        answer
    }};
    // Stored, compared with the target's, loaded if they differ. Loads are as wide as the stores they follow: a wider one
    // would wait for both.
    ($from:ident, $to:ident, $argument:ident, keep control words, thread_pointer: $($rest:tt)*) => {
        switch!($from, $to, $argument,
            control_words: [
                "stmxcsr [rsp - 0x20]",
                "fnstcw [rsp - 0x1c]",
                "mov eax, [rsp - 0x20]",
                "xor eax, [r8]",
                "test eax, 0xFFC0",
                "jnz 3f",
                "movzx eax, word ptr [rsp - 0x1c]",
                "cmp ax, [r8 + 4]",
                "jne 3f"
            ] [
                "ldmxcsr [r8]",
                "fldcw [r8 + 4]",
                "jmp 2b"
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
    unsafe { switch!(from, to, argument, keep control words, thread_pointer: []) }
}

/// [`switch()`] to a stack that was just prepared: it has no control words, and starts with those that are in force.
///
/// # Safety
/// As [`switch()`], but `*to` was prepared and not switched to since.
#[inline(always)]
pub(super) unsafe fn switch_to_new(from: *mut *mut u8, to: *const *mut u8, argument: usize) -> usize {
    // SAFETY: as in `switch`.
    unsafe {
        switch!(from, to, argument,
            control_words: ["stmxcsr [rsp - 0x20]", "fnstcw [rsp - 0x1c]"] [], thread_pointer: [])
    }
}

/// Leaves a stack for good: goes on in `*to` as [`switch()`] does, but saves nothing. To compare the control words they would
/// have to be stored all the same, so the target's are loaded unless they are shared: once in a fiber's life.
///
/// # Safety
/// As [`switch()`] or, if `share_float_control` is set, [`switch_sharing_float_control`].
#[inline(always)]
pub(super) unsafe fn leave(to: *const *mut u8, share_float_control: bool, argument: usize) -> ! {
    // SAFETY: by the contract the target's frame is complete, with control words unless they are shared. It is read by the
    // last instructions on this stack.
    unsafe {
        let frame = (*to).cast::<Frame>();
        if !share_float_control {
            asm!("ldmxcsr [{0}]", "fldcw [{0} + 4]", in(reg) frame, options(nostack, readonly));
        }
        asm!(
            "mov rbx, [r8 + 0x08]",
            "mov rbp, [r8 + 0x10]",
            "mov r9, [r8 + 0x18]",
            "lea rsp, [r8 + 0x20]",
            "jmp r9",
            in("r8") frame,
            in("rdx") argument,
            options(noreturn),
        )
    }
}

/// [`switch()`], without a look at the control words: they stay as they are.
///
/// # Safety
/// As [`switch()`] or [`switch_to_new`]; and whoever switches back to this frame does so by this function, too, as the
/// frame has no control words.
#[inline(always)]
pub(super) unsafe fn switch_sharing_float_control(
    from: *mut *mut u8,
    to: *const *mut u8,
    argument: usize,
) -> usize {
    // SAFETY: as in `switch`.
    unsafe { switch!(from, to, argument, control_words: [] [], thread_pointer: []) }
}

/// The body of a naked function for C that calls `depart`, with its own argument, and makes the switch between the two contexts that
/// this gives, as [`switch_sharing_float_control`] does; none, if the first is null. It keeps the registers that a function must, and
/// leaves by a jump: see above.
macro_rules! naked_crossing {
    ($depart:path) => {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "push rax", // the stack is aligned in calls
            ".cfi_adjust_cfa_offset 8",
            "call {depart}",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "test rax, rax",
            "jz 5f",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            ".cfi_adjust_cfa_offset 32",
            "mov r8, [rdx]",
            "lea rcx, [rip + 4f]",
            "mov [rsp - 0x08], rcx",
            "mov [rsp - 0x10], rbp",
            "mov [rsp - 0x18], rbx",
            "lea r9, [rsp - 0x20]",
            "mov [rax], r9",
            "xor edx, edx",
            "mov rbx, [r8 + 0x08]",
            "mov rbp, [r8 + 0x10]",
            "mov r9, [r8 + 0x18]",
            "lea rsp, [r8 + 0x20]",
            "jmp r9",
            "4:",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            ".cfi_adjust_cfa_offset -32",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_register rip, rcx",
            "jmp rcx",
            "5:",
            ".cfi_restore rip",
            ".cfi_adjust_cfa_offset 8",
            "ret",
            ".cfi_endproc",
            depart = sym $depart,
        )
    };
}
pub(crate) use naked_crossing;

/// [`switch()`], and `fs` gets a new base.
///
/// # Safety
/// As [`switch()`]; `thread_pointer` is a thread control block, and the processor and kernel allow `wrfsbase`.
#[inline(always)]
pub(super) unsafe fn switch_with_thread_pointer(
    from: *mut *mut u8,
    to: *const *mut u8,
    argument: usize,
    thread_pointer: *mut u8,
) -> usize {
    // SAFETY: as in `switch`; the new base is one that code may run with.
    unsafe {
        switch!(from, to, argument, keep control words, thread_pointer: ["wrfsbase rcx"] thread_pointer)
    }
}

/// [`leave`], and `fs` gets a new base.
///
/// # Safety
/// As [`leave`] to what [`switch()`] has saved, and as [`switch_with_thread_pointer`].
#[inline(always)]
pub(super) unsafe fn leave_with_thread_pointer(
    to: *const *mut u8,
    argument: usize,
    thread_pointer: *mut u8,
) -> ! {
    // SAFETY: as in `leave`; nothing of the old block is used once the base has changed.
    unsafe {
        asm!(
            "ldmxcsr [r8]",
            "fldcw [r8 + 4]",
            "wrfsbase rcx",
            "mov rbx, [r8 + 0x08]",
            "mov rbp, [r8 + 0x10]",
            "mov r9, [r8 + 0x18]",
            "lea rsp, [r8 + 0x20]",
            "jmp r9",
            in("r8") *to,
            in("rdx") argument,
            in("rcx") thread_pointer,
            options(noreturn),
        )
    }
}

/// Calls `f(data)` with another base of `fs`.
///
/// # Safety
/// As [`switch_with_thread_pointer`] for the pointer; `f` may be called with `data` and does not unwind.
pub(super) unsafe fn call_with_thread_pointer(
    thread_pointer: *mut u8,
    f: unsafe extern "C" fn(*mut ()),
    data: *mut (),
) {
    // SAFETY: a call like any other, but for the base, which is put back by the instruction that follows it. The registers that
    // hold both are such that a function keeps.
    unsafe {
        asm!(
            "wrfsbase r12",
            "call r13",
            "wrfsbase r14",
            in("r12") thread_pointer,
            in("r13") f,
            in("r14") self::thread_pointer(),
            in("rdi") data,
            clobber_abi("sysv64"),
        );
    }
}

/// Whether the kernel lets user code write the base of `fs` (FSGSBASE, Linux 5.9 and later).
pub(super) fn thread_pointer_can_change() -> bool {
    const HWCAP2_FSGSBASE: libc::c_ulong = 1 << 1;
    // SAFETY: getauxval only reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// The base of `fs`: the ABI keeps it in the first word of the block that it points to.
pub(super) fn thread_pointer() -> *mut u8 {
    let pointer;
    // SAFETY: reads a word that every thread has.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly)) };
    pointer
}
