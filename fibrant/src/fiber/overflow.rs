//! The message when a fiber's stack is too small.
//!
//! A stack that overflows runs into its guard, and the kernel sends SIGSEGV. The handler here runs on an alternate signal
//! stack (the fiber's own is full), tells such a fault from all others by its address, prints one line and aborts. Every
//! other fault goes on to the handler that was there before, as if this one did not exist.
//!
//! [`thread`](super::thread) calls [`prepare_thread`] once on each thread that has to do with fibers.

use super::block::Block;
use super::thread::Thread;
use crate::context::stack::page_size;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

/// The size of the signal stacks that are made here; the handler needs little, what it passes a fault on to may need more.
const SIGNAL_STACK_SIZE: usize = 64 << 10;

/// What handled SIGSEGV before, and still handles all faults but ours.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes overflows of fibers on this thread be reported: installs the handler if this is the first thread, and gives the
/// thread a signal stack if it has none (std gives one to its own threads, C does not).
pub(super) fn prepare_thread() -> Option<SignalStack> {
    PREVIOUS.get_or_init(install);
    SignalStack::for_this_thread()
}

fn install() -> libc::sigaction {
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the present action; a zeroed one is valid if the call should fail, which it cannot for SIGSEGV.
    let previous = unsafe {
        libc::sigaction(libc::SIGSEGV, ptr::null(), previous.as_mut_ptr());
        previous.assume_init()
    };
    let mut action = previous;
    action.sa_sigaction = on_fault as *const () as usize;
    // The mask and these flags stay what the previous handler asked for, so that it runs as it would without this one.
    action.sa_flags =
        libc::SA_SIGINFO | libc::SA_ONSTACK | (previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART));
    // SAFETY: the handler has the signature that SA_SIGINFO asks for and is safe to run at any instruction: see there. It
    // reads PREVIOUS, which is being set; until it is, a fault is treated as if there had been no handler.
    unsafe { libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()) };
    previous
}

/// Handles SIGSEGV. Everything it does is allowed in a signal handler: it reads memory that no lock guards, writes to
/// standard error and aborts, or calls the previous handler.
///
/// # Safety
/// Only the kernel calls it.
unsafe extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the signal's own information.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // Codes above 0 are faults; others mean that somebody sent the signal, and there is no address.
    if code > 0 {
        let is_known = match (overflowing(address), overflowing_routine(address)) {
            (Some(block), _) => {
                report(block);
                true
            }
            (None, Some(size)) => {
                report_routine(size);
                true
            }
            (None, None) => false,
        };
        if is_known {
            // SAFETY: ends the process; allowed here.
            unsafe { libc::abort() };
        }
    }
    // SAFETY: the arguments are the kernel's.
    unsafe { pass_on(signal, info, context, code) };
}

/// The fiber whose guard was hit. Only the running one can overflow, or its resumer in the moment of switching to it.
fn overflowing(address: usize) -> Option<&'static Block> {
    let hit = |block: Option<NonNull<Block>>| {
        // SAFETY: the current fiber and its resumers have started and not ended, so their blocks are in place; the reference
        // is used only in this handler, which ends the process or forgets it.
        let block: &'static Block = unsafe { block?.as_ref() };
        block.stack.guard().contains(&address).then_some(block)
    };
    let current = Thread::current_in_signal_handler()?;
    // SAFETY: as above.
    let parent = unsafe { current.as_ref() }.parent.get();
    hit(Some(current)).or_else(|| hit(parent))
}

/// The size of the stack of the coroutine whose guard was hit.
fn overflowing_routine(address: usize) -> Option<usize> {
    // SAFETY: a routine that runs is alive; the handler reads what does not change while it does.
    let routine = unsafe { Thread::routine_in_signal_handler()?.as_ref() };
    let stack = routine.stack()?;
    stack.guard().contains(&address).then(|| stack.size())
}

/// Prints the one line for a coroutine.
fn report_routine(size: usize) {
    let mut line = Line::new();
    line.text("fibrant: a coroutine has overflowed its stack of ");
    line.number(size as u64 >> 10);
    line.text(" KiB. Give it more with stCoRoutineAttr_t::stack_size, or with co_alloc_sharestack if it shares one\n");
    line.print();
}

/// Prints the one line.
fn report(block: &Block) {
    let mut line = Line::new();
    line.text("fibrant: fiber ");
    line.number(block.identity.id());
    if let Some(name) = block.identity.name() {
        line.text(" '");
        line.text(name);
        line.text("'");
    }
    let kib = block.stack.size() >> 10;
    line.text(" has overflowed its stack of ");
    line.number(kib as u64);
    line.text(" KiB. Give it more with Fiber::with_stack_size, or all fibers with FIBRANT=stack=");
    line.number(2 * kib as u64);
    line.text("k\n");
    line.print();
}

/// Does with a fault what would have happened without this handler.
///
/// # Safety
/// The arguments are those that the kernel called the handler with.
unsafe fn pass_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    code: libc::c_int,
) {
    let (handler, flags) = PREVIOUS.get().map_or((libc::SIG_DFL, 0), |previous| {
        (previous.sa_sigaction, previous.sa_flags)
    });
    let sent = code <= 0;
    if handler == libc::SIG_IGN && sent {
        return;
    }
    let is_function = handler != libc::SIG_DFL && handler != libc::SIG_IGN;
    if !is_function || flags & libc::SA_RESETHAND != 0 {
        // SAFETY: a zeroed action is the default one.
        unsafe { libc::sigaction(signal, &MaybeUninit::zeroed().assume_init(), ptr::null_mut()) };
    }
    if !is_function {
        // A fault happens again when this returns, and then meets the default action (a real fault cannot be ignored). A
        // signal that was sent has to be sent again; it arrives when this returns.
        if sent {
            // SAFETY: sends this thread a signal.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: whoever installed the handler with this flag gave it this signature.
        unsafe {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        }
    } else {
        // SAFETY: whoever installed the handler without that flag gave it this signature.
        unsafe {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

/// A line of text, put together without allocating.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Line {
    fn new() -> Line {
        Line {
            bytes: [0; 512],
            length: 0,
        }
    }

    /// Adds text. A name that would fill the line is cut, so that there is room for what follows it.
    fn text(&mut self, text: &str) {
        let room = (self.bytes.len() - self.length).min(256);
        for byte in text.bytes().take(room) {
            self.bytes[self.length] = byte;
            self.length += 1;
        }
    }

    fn number(&mut self, number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(std::str::from_utf8(&digits[at..]).unwrap_or("?"));
    }

    fn print(&self) {
        // SAFETY: writes initialised bytes to standard error; allowed in a signal handler. If it fails there is nobody to tell.
        unsafe { libc::write(libc::STDERR_FILENO, self.bytes.as_ptr().cast(), self.length) };
    }
}

/// A signal stack that was made for a thread, taken back when the thread ends.
pub(super) struct SignalStack {
    /// The mapping: a guard page and the stack.
    base: *mut libc::c_void,
}

impl SignalStack {
    /// One for this thread, unless it has one. If there is no memory for it, an overflow is a plain segmentation fault.
    fn for_this_thread() -> Option<SignalStack> {
        let mut present = MaybeUninit::<libc::stack_t>::zeroed();
        // SAFETY: asks for the present setting.
        let present = unsafe {
            libc::sigaltstack(ptr::null(), present.as_mut_ptr());
            present.assume_init()
        };
        if present.ss_flags & libc::SS_DISABLE == 0 {
            return None;
        }
        // SAFETY: a new mapping, at an address of the kernel's choice; its lowest page stays without access, as a guard.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SIGNAL_STACK_SIZE + page_size(),
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let made = SignalStack { base };
        let stack = libc::stack_t {
            ss_sp: made.bottom(),
            ss_flags: 0,
            ss_size: SIGNAL_STACK_SIZE,
        };
        // SAFETY: the range is the rest of the new mapping; it is unmapped only after this thread has stopped using it.
        let ready = unsafe {
            libc::mprotect(
                made.bottom(),
                SIGNAL_STACK_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
            ) == 0
                && libc::sigaltstack(&stack, ptr::null_mut()) == 0
        };
        ready.then_some(made)
    }

    fn bottom(&self) -> *mut libc::c_void {
        // SAFETY: one page into a mapping of several.
        unsafe { self.base.add(page_size()) }
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let mut present = MaybeUninit::<libc::stack_t>::zeroed();
        // SAFETY: this runs on the thread that uses the stack (it is part of its state), and not in a signal handler; so once
        // the setting is gone nobody uses the mapping. A stack that somebody else has set meanwhile stays.
        unsafe {
            libc::sigaltstack(ptr::null(), present.as_mut_ptr());
            if present.assume_init().ss_sp == self.bottom() {
                let mut none = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
                none.ss_flags = libc::SS_DISABLE;
                none.ss_size = SIGNAL_STACK_SIZE;
                libc::sigaltstack(&none, ptr::null_mut());
            }
            libc::munmap(self.base, SIGNAL_STACK_SIZE + page_size());
        }
    }
}
