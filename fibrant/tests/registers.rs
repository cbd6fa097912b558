//! What a switch must keep: callee-saved registers and the floating-point control words, on both sides.

use fibrant::fiber::{self, Fiber, State};
use std::cell::Cell;
use std::rc::Rc;

/// Fills every register that a function may rely on across a call with a number, calls `call(data)`, and returns how many
/// of them have changed.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn changed_registers(call: extern "C" fn(*const Fiber), data: *const Fiber, seed: usize) -> usize {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "lea rbp, [rdx + 1]",
        "lea rbx, [rdx + 2]",
        "lea r12, [rdx + 3]",
        "lea r13, [rdx + 4]",
        "lea r14, [rdx + 5]",
        "lea r15, [rdx + 6]",
        "call rax",
        "pop rdx",
        "xor eax, eax",
        "xor ecx, ecx",
        "lea rsi, [rdx + 1]",
        "cmp rbp, rsi",
        "setne cl",
        "add rax, rcx",
        "lea rsi, [rdx + 2]",
        "cmp rbx, rsi",
        "setne cl",
        "add rax, rcx",
        "lea rsi, [rdx + 3]",
        "cmp r12, rsi",
        "setne cl",
        "add rax, rcx",
        "lea rsi, [rdx + 4]",
        "cmp r13, rsi",
        "setne cl",
        "add rax, rcx",
        "lea rsi, [rdx + 5]",
        "cmp r14, rsi",
        "setne cl",
        "add rax, rcx",
        "lea rsi, [rdx + 6]",
        "cmp r15, rsi",
        "setne cl",
        "add rax, rcx",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// The same for aarch64, with the low halves of v8 to v15.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn changed_registers(call: extern "C" fn(*const Fiber), data: *const Fiber, seed: usize) -> usize {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-0xb0]!",
        "stp x19, x20, [sp, #0x10]",
        "stp x21, x22, [sp, #0x20]",
        "stp x23, x24, [sp, #0x30]",
        "stp x25, x26, [sp, #0x40]",
        "stp x27, x28, [sp, #0x50]",
        "stp d8, d9, [sp, #0x60]",
        "stp d10, d11, [sp, #0x70]",
        "stp d12, d13, [sp, #0x80]",
        "stp d14, d15, [sp, #0x90]",
        "str x2, [sp, #0xa0]",
        "mov x9, x0",
        "mov x0, x1",
        "add x19, x2, #1",
        "add x20, x2, #2",
        "add x21, x2, #3",
        "add x22, x2, #4",
        "add x23, x2, #5",
        "add x24, x2, #6",
        "add x25, x2, #7",
        "add x26, x2, #8",
        "add x27, x2, #9",
        "add x28, x2, #10",
        "add x29, x2, #11",
        "fmov d8, x19",
        "fmov d9, x20",
        "fmov d10, x21",
        "fmov d11, x22",
        "fmov d12, x23",
        "fmov d13, x24",
        "fmov d14, x25",
        "fmov d15, x26",
        "blr x9",
        "ldr x2, [sp, #0xa0]",
        "mov x0, #0",
        "add x3, x2, #1",
        "cmp x19, x3",
        "cinc x0, x0, ne",
        "fmov x4, d8",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #2",
        "cmp x20, x3",
        "cinc x0, x0, ne",
        "fmov x4, d9",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #3",
        "cmp x21, x3",
        "cinc x0, x0, ne",
        "fmov x4, d10",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #4",
        "cmp x22, x3",
        "cinc x0, x0, ne",
        "fmov x4, d11",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #5",
        "cmp x23, x3",
        "cinc x0, x0, ne",
        "fmov x4, d12",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #6",
        "cmp x24, x3",
        "cinc x0, x0, ne",
        "fmov x4, d13",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #7",
        "cmp x25, x3",
        "cinc x0, x0, ne",
        "fmov x4, d14",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #8",
        "cmp x26, x3",
        "cinc x0, x0, ne",
        "fmov x4, d15",
        "cmp x4, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #9",
        "cmp x27, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #10",
        "cmp x28, x3",
        "cinc x0, x0, ne",
        "add x3, x2, #11",
        "cmp x29, x3",
        "cinc x0, x0, ne",
        "ldp x19, x20, [sp, #0x10]",
        "ldp x21, x22, [sp, #0x20]",
        "ldp x23, x24, [sp, #0x30]",
        "ldp x25, x26, [sp, #0x40]",
        "ldp x27, x28, [sp, #0x50]",
        "ldp d8, d9, [sp, #0x60]",
        "ldp d10, d11, [sp, #0x70]",
        "ldp d12, d13, [sp, #0x80]",
        "ldp d14, d15, [sp, #0x90]",
        "ldp x29, x30, [sp], #0xb0",
        "ret",
    )
}

extern "C" fn suspend(_: *const Fiber) {
    fiber::suspend();
}

extern "C" fn resume(fiber: *const Fiber) {
    // SAFETY: the test passes a fiber that it owns.
    unsafe { &*fiber }.resume().unwrap();
}

fn check_registers(share_float_control: bool) {
    let changed = Rc::new(Cell::new(usize::MAX));
    let mut fiber = Fiber::new({
        let changed = Rc::clone(&changed);
        move || {
            changed.set(0);
            for round in 0..100 {
                changed.set(changed.get() + changed_registers(suspend, std::ptr::null(), 0x1000 + round));
            }
        }
    });
    if share_float_control {
        fiber = fiber.sharing_float_control();
    }
    for round in 0..100 {
        assert_eq!(
            changed_registers(resume, &raw const fiber, 0x9000_0000 + round),
            0,
            "on the resumer's side"
        );
    }
    // To its end: a fiber that is suspended below a C function cannot be unwound.
    assert_eq!(fiber.resume().unwrap(), State::Term);
    assert_eq!(changed.get(), 0, "on the fiber's side");
}

#[test]
fn callee_saved_registers_are_kept() {
    check_registers(false);
}

#[test]
fn callee_saved_registers_are_kept_when_control_words_are_shared() {
    check_registers(true);
}

/// The control words of this thread: MXCSR without its sticky flags, and the x87 control word.
#[cfg(target_arch = "x86_64")]
fn control_words() -> (u32, u16) {
    let (mut mxcsr, mut x87) = (0_u32, 0_u16);
    // SAFETY: stores two control words in two variables.
    unsafe { std::arch::asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &raw mut mxcsr, in(reg) &raw mut x87) };
    (mxcsr & 0xffc0, x87)
}

#[cfg(target_arch = "x86_64")]
fn set_control_words((mxcsr, x87): (u32, u16)) {
    // SAFETY: the values have reserved bits as the processor wants them; the tests do no arithmetic in between.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &raw const mxcsr, in(reg) &raw const x87)
    };
}

/// Other control words than the usual ones: each differs in one thing.
#[cfg(target_arch = "x86_64")]
fn unusual() -> Vec<(u32, u16)> {
    let (mxcsr, x87) = control_words();
    vec![
        (mxcsr | 0x8000, x87),          // flush to zero
        (mxcsr | 0x0040, x87),          // denormals are zero
        (mxcsr | 0x6000, x87),          // rounding toward zero
        (mxcsr & !0x0200, x87),         // division by zero faults
        (mxcsr, x87 | 0x0c00),          // x87: rounding toward zero
        (mxcsr, x87 & !0x0300),         // x87: single precision
        (mxcsr | 0x2000, x87 | 0x0400), // both: rounding down
    ]
}

#[cfg(target_arch = "aarch64")]
fn control_words() -> u64 {
    let fpcr;
    // SAFETY: reads one control register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr) };
    fpcr
}

#[cfg(target_arch = "aarch64")]
fn set_control_words(fpcr: u64) {
    // SAFETY: the bits are defined ones; the tests do no arithmetic in between.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) fpcr) };
}

#[cfg(target_arch = "aarch64")]
fn unusual() -> Vec<u64> {
    let usual = control_words();
    vec![
        usual | 1 << 24, /* flush to zero */
        usual | 3 << 22, /* rounding toward zero */
        usual | 1 << 25, /* default NaN */
    ]
}

#[test]
fn each_fiber_has_its_own_control_words() {
    let usual = control_words();
    for other in unusual() {
        assert_ne!(usual, other);
        let fiber = Fiber::new(move || {
            assert_eq!(control_words(), usual); // inherited
            set_control_words(other);
            fiber::suspend();
            assert_eq!(control_words(), other);
            fiber::suspend();
            assert_eq!(control_words(), other); // and it ends with them
        });
        for _ in 0..3 {
            fiber.resume().unwrap();
            let now = control_words();
            set_control_words(usual);
            assert_eq!(now, usual);
        }
    }
}

#[test]
fn the_resumers_control_words_survive_a_fiber_with_the_usual_ones() {
    let usual = control_words();
    for other in unusual() {
        let fiber = Fiber::new(move || {
            fiber::suspend();
            assert_eq!(control_words(), usual);
            fiber::suspend();
        });
        fiber.resume().unwrap();
        set_control_words(other);
        let resumed = fiber.resume();
        let now = control_words();
        set_control_words(usual);
        resumed.unwrap();
        assert_eq!(now, other);
    }
}

#[test]
fn a_fiber_starts_with_the_control_words_of_its_resumer() {
    let usual = control_words();
    for other in unusual() {
        let fiber = Fiber::new(move || assert_eq!(control_words(), other));
        set_control_words(other);
        let resumed = fiber.resume();
        set_control_words(usual);
        resumed.unwrap();
    }
}

#[test]
fn shared_control_words_are_shared() {
    let usual = control_words();
    let other = unusual()[0];
    let fiber = Fiber::new(move || {
        set_control_words(other);
        fiber::suspend();
        assert_eq!(control_words(), usual); // as the resumer left them
    })
    .sharing_float_control();
    fiber.resume().unwrap();
    let now = control_words();
    set_control_words(usual);
    assert_eq!(now, other);
    fiber.resume().unwrap();
}
