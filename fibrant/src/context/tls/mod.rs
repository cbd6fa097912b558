//! Thread-locals of a fiber's own: a block for them and a thread control block, as a new thread gets.
//!
//! [`stack`](super::stack) keeps room for a block at the top of each stack that is to have one, [`scheduler`](crate::scheduler)
//! begins and ends them, and the [switch](super) changes the thread pointer. What a program calls its thread (`thread_local!`,
//! `__thread`, `errno`, `pthread_self`, std's thread id, a lock's owner) is found through that pointer, so a fiber with a block
//! of its own is a thread to everything that it calls.
//!
//! ```text
//!    x86_64      | thread-locals of all modules  | struct pthread |      aarch64   | struct pthread | thread-locals  |
//!              floor                       thread pointer        top             floor       thread pointer         top
//! ```
//!
//! # A block's life
//!
//! - **unmade**: memory that reads as zero (a fresh or trimmed stack). It has no vector of modules (dtv).
//! - **made**: the C library's own `_dl_allocate_tls` has given it one. It stays made while its stack is used again and again,
//!   until [`Layout::release`] gives the vector back.
//! - **begun**: [`Layout::begin`] has written every byte of it anew: the initial image of each module, from a template, and the
//!   few words that a new thread would have been given. Nothing of the last fiber is left.
//! - **ended**: [`Layout::end`] has run the destructors, on the block itself.
//!
//! # What is known of the C library
//!
//! Nothing is assumed that cannot be asked: [`look`] has sizes and offsets from the descriptors that it exports for debuggers, from the
//! kernel, or from a scratch thread, and checks each there. If something does not fit, [`layout`] says why and there are no isolated
//! fibers. Where the words of its `malloc` are, and the state of its `getrandom`, is seen on the scratch thread, too: all fibers of a
//! worker share their worker's, as these never wait.

pub(crate) mod keys;
mod look;

use super::thread_pointer;
use keys::{KEYS, KEYS_PER_ARRAY};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*, compiler_fence};
use std::{fmt, io, mem, ptr};

/// Blocks are aligned to this many bytes: what tops of stacks are multiples of.
const ALIGNMENT: usize = 64;

/// The first number of a fiber as the C library's locks know their owners. Numbers of real threads are below it: the kernel
/// gives none above 2^22.
const FIRST_NUMBER: u64 = 1 << 22;

/// How many such numbers there are: locks keep two bits of a word for themselves.
const NUMBERS: u64 = (1 << 30) - FIRST_NUMBER;

/// What is known of the C library, once it has been looked at; and why it cannot be used.
static LAYOUT: OnceLock<Result<Layout, Unsupported>> = OnceLock::new();

/// The template that blocks begin with. Replaced when a library is loaded; never freed, as somebody may be copying it.
static TEMPLATE: AtomicPtr<Template> = AtomicPtr::new(ptr::null_mut());

/// The addresses of stacks that have a block: start and end. A place that is in use never changes.
static REGIONS: [[AtomicUsize; 2]; 256] = [const { [const { AtomicUsize::new(0) }; 2] }; 256];

/// Why fibers cannot have thread-locals of their own here.
#[derive(Clone, Debug)]
pub(crate) struct Unsupported(String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fibers cannot have thread-locals of their own here: {}",
            self.0
        )
    }
}

/// The functions of the C library that are used, which are not in its headers.
struct Functions {
    allocate: unsafe extern "C" fn(*mut u8) -> *mut u8,
    deallocate: unsafe extern "C" fn(*mut u8, bool),
    call_destructors: unsafe extern "C" fn(),
    begin_ctype: unsafe extern "C" fn(),
    error_of_loader: unsafe extern "C" fn() -> *mut c_void,
}

/// Where things are in a block. Offsets are from the thread pointer.
pub(crate) struct Layout {
    functions: Functions,
    /// From the floor of a block to its thread pointer, and from there to its top.
    below: usize,
    above: usize,
    /// The thread pointer of the thread that runs the block: a word of ours, above everything else.
    home: isize,
    /// Where the control block begins, and its size.
    control: (isize, usize),
    /// The vector of modules.
    dtv: isize,
    /// The number of the thread.
    number: isize,
    /// The arrays of keys' values.
    keys: isize,
    /// Words that hold an address within their own block: where they are, and what they point to.
    own_addresses: Vec<(isize, isize)>,
    /// Words that are copied from the scratch thread: the same in every thread.
    constants: Vec<(isize, usize)>,
    /// The words of the C library's allocator.
    malloc: Vec<isize>,
    /// The state of its `getrandom`, if it has one.
    random: Option<isize>,
    /// Whether the thread can be joined, and what says that it can: 32 bits.
    join_state: Option<(isize, u32)>,
}

/// The initial bytes of a block.
struct Template {
    /// Where they begin, and what they are.
    start: isize,
    bytes: Vec<u8>,
    modules: Vec<Module>,
    /// How often libraries had been loaded and unloaded.
    loads: (u64, u64),
}

/// The place of a module's thread-locals in all blocks.
#[derive(Clone, PartialEq, Debug)]
struct Module {
    id: usize,
    /// Where the module was loaded.
    base: u64,
    start: isize,
    size: usize,
}

/// What is known of this C library, or why that is not enough.
pub(crate) fn layout() -> Result<&'static Layout, &'static Unsupported> {
    LAYOUT.get_or_init(Layout::discover).as_ref()
}

/// The same, for code that only runs once it is known.
#[inline(always)]
fn known() -> Option<&'static Layout> {
    LAYOUT.get().and_then(|known| known.as_ref().ok())
}

impl Layout {
    /// From the top of a stack to the floor of the block there: where the stack itself begins.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.below + self.above
    }

    /// The thread pointer of the block that ends at `top`.
    #[inline]
    pub(crate) fn thread_pointer(&self, top: *mut u8) -> *mut u8 {
        top.wrapping_sub(self.above)
    }

    /// Begins a block: what runs with it is a new thread, as far as it can tell. Its number derives from the fiber's.
    ///
    /// # Safety
    /// The block is unmade, or made and nobody runs with it, except the caller if nothing that it still needs is a thread-local.
    /// `home` is the thread pointer of the thread that will run it.
    #[inline]
    pub(crate) unsafe fn begin(&self, pointer: *mut u8, fiber: u64, home: *mut u8) -> io::Result<()> {
        // SAFETY: the words are inside the block, which is the caller's; `home`'s are read on its own thread.
        unsafe {
            let mut dtv: *mut Entry = self.word(pointer, self.dtv);
            if dtv.is_null() {
                if (self.functions.allocate)(pointer).is_null() {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                dtv = self.word(pointer, self.dtv);
            } else {
                forget_dynamic(dtv);
            }
            loop {
                let template = TEMPLATE.load(Acquire);
                ptr::copy_nonoverlapping(
                    (*template).bytes.as_ptr(),
                    pointer.offset((*template).start),
                    (*template).bytes.len(),
                );
                for &(place, target) in &self.own_addresses {
                    self.set_word(pointer, place, pointer.offset(target));
                }
                self.set_word(pointer, self.dtv, dtv);
                // A library may have been loaded meanwhile, and this block been taken for an unmade one: see `note_libraries`.
                compiler_fence(SeqCst);
                if TEMPLATE.load(Acquire) == template {
                    break;
                }
            }
            self.set_word(pointer, self.home, home);
            let number = (FIRST_NUMBER + fiber % NUMBERS) as u32;
            pointer.offset(self.number).cast::<u32>().write(number);
        }
        // SAFETY: as above.
        unsafe { self.share(pointer, home) };
        Ok(())
    }

    /// Makes a block that of another thread, to which its fiber has moved.
    ///
    /// # Safety
    /// The block has begun. `home` is the thread pointer of the calling thread, which is the one that runs the block now.
    pub(crate) unsafe fn move_home(&self, pointer: *mut u8, home: *mut u8) {
        // SAFETY: words of the block; the others are the calling thread's own.
        unsafe {
            self.set_word(pointer, self.home, home);
            self.share(pointer, home);
        }
    }

    /// Lets a block use what never waits and is dear to have of one's own: the words of the allocator, and the state of `getrandom`, of
    /// the thread that runs it.
    ///
    /// # Safety
    /// The block has begun. `home` is the thread pointer of the calling thread, which is the one that runs the block.
    #[inline]
    unsafe fn share(&self, pointer: *mut u8, home: *mut u8) {
        for &place in self.malloc.iter().chain(&self.random) {
            // SAFETY: words of the C library's in either block.
            unsafe { self.set_word(pointer, place, self.word::<u8>(home, place)) };
        }
    }

    /// Completes the beginning of the block that the caller runs with: what the C library does on a new thread itself.
    ///
    /// # Safety
    /// The caller runs with a block that has just begun.
    #[inline]
    pub(crate) unsafe fn arrive(&self) {
        // SAFETY: sets three of the block's own words.
        unsafe { (self.functions.begin_ctype)() };
    }

    /// Runs the destructors of the thread-locals and keys of the block that the caller runs with.
    ///
    /// # Safety
    /// The caller runs with a block that has begun, and nothing else will.
    pub(crate) unsafe fn end(&self) {
        // SAFETY: what a thread does at its end.
        unsafe { (self.functions.call_destructors)() };
        keys::end();
        // What the loader had to say is freed once it has been told, and asked for again.
        // SAFETY: it has no arguments.
        while !unsafe { (self.functions.error_of_loader)() }.is_null() {}
        // The first array is part of the control block; the others were allocated when they were first used.
        for array in 1..KEYS / KEYS_PER_ARRAY {
            let place = self.keys + (array * size_of::<usize>()) as isize;
            // SAFETY: the word is null or what the C library has allocated for this block, which nobody uses any more.
            unsafe {
                let values: *mut c_void = self.word(thread_pointer(), place);
                if !values.is_null() {
                    self.set_word(thread_pointer(), place, ptr::null_mut::<u8>());
                    libc::free(values);
                }
            }
        }
    }

    /// Gives back what a made block holds; it is unmade then.
    ///
    /// # Safety
    /// The memory is that of a block, made or unmade, and nobody runs with it.
    pub(crate) unsafe fn release(&self, pointer: *mut u8) {
        // SAFETY: by the contract; a block that has a vector has got it from `allocate`.
        unsafe {
            if !self.word::<u8>(pointer, self.dtv).is_null() {
                (self.functions.deallocate)(pointer, false);
                self.set_word(pointer, self.dtv, ptr::null_mut::<u8>());
            }
        }
    }

    /// Reads a word of a block.
    ///
    /// # Safety
    /// It is one.
    #[inline(always)]
    unsafe fn word<T>(&self, pointer: *mut u8, place: isize) -> *mut T {
        // SAFETY: by the contract. Words are aligned in every block alike.
        unsafe { pointer.offset(place).cast::<*mut T>().read() }
    }

    /// Writes a word of a block.
    ///
    /// # Safety
    /// It is one, and the caller's to write.
    #[inline(always)]
    unsafe fn set_word<T>(&self, pointer: *mut u8, place: isize, value: *mut T) {
        // SAFETY: by the contract.
        unsafe { pointer.offset(place).cast::<*mut T>().write(value) };
    }
}

/// An entry of a vector of modules, as the C library lays it out: a count in the first ones, a module's place in the others.
#[repr(C)]
struct Entry {
    place: *mut u8,
    /// What to free with it: thread-locals of libraries that were loaded later are allocated when they are first used.
    allocation: *mut c_void,
}

/// Forgets what a block's last user has allocated for thread-locals of libraries that were loaded later.
///
/// # Safety
/// It is the vector of a block that nobody runs with.
#[inline]
unsafe fn forget_dynamic(dtv: *mut Entry) {
    // SAFETY: the entry before the first tells how many follow the first.
    unsafe {
        let count = (*dtv.sub(1)).place.addr();
        for module in 1..=count {
            let entry = &mut *dtv.add(module);
            if !entry.allocation.is_null() {
                libc::free(mem::replace(&mut entry.allocation, ptr::null_mut()));
                entry.place = ptr::without_provenance_mut(usize::MAX); // the C library's word for "not allocated"
            }
        }
    }
}

/// Whether another place of stacks with blocks can be noted. A few may be left for those who ask at the same time.
pub(crate) fn has_room_for_region() -> bool {
    REGIONS[REGIONS.len() - 16][0].load(Acquire) == 0
}

/// Notes where stacks with blocks are.
pub(crate) fn note_region(addresses: std::ops::Range<usize>) {
    for [start, end] in &REGIONS {
        // The end is written last: it is what makes the place one.
        if start
            .compare_exchange(0, addresses.start, AcqRel, Acquire)
            .is_ok()
        {
            return end.store(addresses.end, Release);
        }
    }
}

/// What the C library calls the thread that runs a fiber, if that is how the fiber itself is called. For signal handlers, too.
pub(crate) fn home_of(thread: usize) -> Option<usize> {
    let layout = known()?;
    let mut places = REGIONS.iter().take_while(|[start, _]| start.load(Acquire) != 0);
    let is_fibers = places.any(|[start, end]| (start.load(Acquire)..end.load(Acquire)).contains(&thread));
    // SAFETY: it is the control block at the top of a stack; blocks are never unmapped. A fiber that has ended, too, has had a home.
    is_fibers.then(|| unsafe {
        let pointer = ptr::with_exposed_provenance_mut::<u8>(thread).offset(-layout.control.0);
        layout
            .word::<u8>(pointer, layout.home)
            .addr()
            .wrapping_add_signed(layout.control.0)
    })
}

/// Makes the block that the caller runs with, if it is a fiber's, one that no other thread runs: the child of a fork is that fiber
/// and nothing else.
pub(crate) fn stay_here() {
    let Some(layout) = known() else { return };
    let pointer = thread_pointer();
    if home_of(pointer.addr().wrapping_add_signed(layout.control.0)).is_some() {
        // SAFETY: words of the block that the caller runs with.
        unsafe {
            layout.set_word(pointer, layout.home, pointer);
            // In the child the C library has given the worker's to the next thread that asks for one.
            if let Some(place) = layout.random {
                layout.set_word(pointer, place, ptr::null_mut::<u8>());
            }
        }
    }
}

/// Makes sure that the calling thread has what its fibers are to share. It runs with its own thread-locals.
pub(crate) fn prepare_home() {
    if let Some(place) = known().and_then(|layout| layout.random) {
        let mut byte = [0_u8];
        // SAFETY: a word of the thread's own control block.
        let state = unsafe { thread_pointer().offset(place).cast::<*mut u8>().read() };
        if state.is_null() {
            // SAFETY: writes a byte to a local variable.
            unsafe { libc::getrandom((&raw mut byte).cast(), 1, 0) };
        }
    }
}

/// After a library was loaded or unloaded: blocks that begin from now on have its thread-locals. Returns where the present
/// blocks must be brought up to date, if they must.
pub(crate) fn note_libraries() -> Option<Update> {
    let layout = known()?;
    // SAFETY: it is null, or a template that is never freed.
    let old = unsafe { TEMPLATE.load(Acquire).as_ref() }?;
    if old.loads == look::loads() {
        return None;
    }
    let new = Box::leak(Box::new(layout.template().ok()?));
    TEMPLATE.store(new, Release);
    // Whoever is about to begin a block has made it by now, so that it is brought up to date with the others, or will see the new
    // template. All processors are asked to agree: a fence of theirs, without one in each beginning. (Where the kernel cannot, a block
    // may be missed.)
    fence_all_threads();
    let is_new = |module: &&Module| !old.modules.contains(module);
    let modules: Vec<Module> = new.modules.iter().filter(is_new).cloned().collect();
    (!modules.is_empty()).then_some(Update {
        layout,
        template: new,
        modules,
    })
}

/// Has all threads of this process pass a fence, wherever they are. The quick way takes microseconds, and has to be asked for once in a process; the
/// other one takes milliseconds.
fn fence_all_threads() {
    // SAFETY: these have no effect but that.
    let barrier = |command: c_int| unsafe { crate::sys::syscall!(SYS_membarrier, command, 0) } == 0;
    let _ = (barrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
        && barrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
        || barrier(libc::MEMBARRIER_CMD_GLOBAL);
}

/// The thread-locals of libraries that were just loaded, for blocks that began before.
pub(crate) struct Update {
    layout: &'static Layout,
    template: &'static Template,
    modules: Vec<Module>,
}

impl Update {
    /// Gives a block the initial values, if it is made.
    ///
    /// # Safety
    /// The memory is that of a block, and no code of these libraries has run with it.
    pub(crate) unsafe fn apply(&self, pointer: *mut u8) {
        // SAFETY: reads a word of the block.
        if unsafe { self.layout.word::<u8>(pointer, self.layout.dtv) }.is_null() {
            return;
        }
        for module in &self.modules {
            let from = (module.start - self.template.start) as usize;
            let image = &self.template.bytes[from..from + module.size];
            // SAFETY: the place of the module in the block; by the contract nobody uses it yet.
            unsafe { ptr::copy_nonoverlapping(image.as_ptr(), pointer.offset(module.start), image.len()) };
        }
    }
}
