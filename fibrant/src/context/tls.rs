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
//! Nothing is assumed that cannot be asked: sizes and offsets come from the descriptors that it exports for debuggers, from the
//! kernel, or from a look at a scratch thread, and each is checked there. If something does not fit, [`layout`] says why and there
//! are no isolated fibers. Where the words of its `malloc` are is seen on the scratch thread, too: all fibers of a worker share
//! their worker's, as its allocator never waits.

use super::{call_with_thread_pointer, thread_pointer, thread_pointer_can_change};
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::{fmt, io, mem, ptr, slice};

/// Blocks are aligned to this many bytes: what tops of stacks are multiples of.
const ALIGNMENT: usize = 64;

/// The first number of a fiber as the C library's locks know their owners. Numbers of real threads are below it: the kernel
/// gives none above 2^22.
const FIRST_NUMBER: u64 = 1 << 22;

/// How many such numbers there are: locks keep two bits of a word for themselves.
const NUMBERS: u64 = (1 << 30) - FIRST_NUMBER;

/// How often destructors of keys are run if they set keys again, as POSIX has it.
const KEY_ROUNDS: usize = 4;

/// How many keys a process may have here, and how many of them share an array.
const KEYS: usize = 1024;
const KEYS_PER_ARRAY: usize = 32;

/// What is known of the C library, once it has been looked at; and why it cannot be used.
static LAYOUT: OnceLock<Result<Layout, Unsupported>> = OnceLock::new();

/// The template that blocks begin with. Replaced when a library is loaded; never freed, as somebody may be copying it.
static TEMPLATE: AtomicPtr<Template> = AtomicPtr::new(ptr::null_mut());

/// The addresses of stacks that have a block: start and end. A place that is in use never changes.
static REGIONS: [[AtomicUsize; 2]; 256] = [const { [const { AtomicUsize::new(0) }; 2] }; 256];

/// The destructors of keys, by key; 0 if a key has none.
static DESTRUCTORS: [AtomicUsize; KEYS] = [const { AtomicUsize::new(0) }; KEYS];

/// One more than the largest key that has had a destructor.
static USED_KEYS: AtomicUsize = AtomicUsize::new(0);

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
            let template = &*TEMPLATE.load(Acquire);
            ptr::copy_nonoverlapping(
                template.bytes.as_ptr(),
                pointer.offset(template.start),
                template.bytes.len(),
            );
            for &(place, target) in &self.own_addresses {
                self.set_word(pointer, place, pointer.offset(target));
            }
            self.set_word(pointer, self.dtv, dtv);
            self.set_word(pointer, self.home, home);
            let number = (FIRST_NUMBER + fiber % NUMBERS) as u32;
            pointer.offset(self.number).cast::<u32>().write(number);
        }
        // SAFETY: as above.
        unsafe { self.share_malloc(pointer, home) };
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
            self.share_malloc(pointer, home);
        }
    }

    /// Lets a block use the allocator's words of the thread that runs it.
    ///
    /// # Safety
    /// The block has begun. `home` is the thread pointer of the calling thread, which is the one that runs the block.
    #[inline]
    unsafe fn share_malloc(&self, pointer: *mut u8, home: *mut u8) {
        for &place in &self.malloc {
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
        for _ in 0..KEY_ROUNDS {
            if !end_keys() {
                break;
            }
        }
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
        // SAFETY: a word of the block that the caller runs with.
        unsafe { layout.set_word(pointer, layout.home, pointer) };
    }
}

/// Notes the destructor of a key of pthread's.
pub(crate) fn note_key(key: libc::pthread_key_t, destructor: Option<unsafe extern "C" fn(*mut c_void)>) {
    let Some(place) = DESTRUCTORS.get(key as usize) else {
        return;
    };
    place.store(destructor.map_or(0, |function| function as usize), Release);
    if destructor.is_some() {
        USED_KEYS.fetch_max(key as usize + 1, Release);
    }
}

/// Runs the destructors of the values of keys that the calling thread has. Returns whether there were any.
fn end_keys() -> bool {
    let mut any = false;
    for (key, destructor) in DESTRUCTORS[..USED_KEYS.load(Acquire)].iter().enumerate() {
        let destructor = destructor.load(Acquire);
        if destructor == 0 {
            continue;
        }
        let key = key as libc::pthread_key_t;
        // SAFETY: a key that was made and not deleted; the value is the thread's own.
        unsafe {
            let value = libc::pthread_getspecific(key);
            if !value.is_null() {
                libc::pthread_setspecific(key, ptr::null());
                // SAFETY: `note_key` has stored such a function.
                let destructor = mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(destructor);
                destructor(value);
                any = true;
            }
        }
    }
    any
}

/// After a library was loaded or unloaded: blocks that begin from now on have its thread-locals. Returns where the present
/// blocks must be brought up to date, if they must.
pub(crate) fn note_libraries() -> Option<Update> {
    let layout = known()?;
    // SAFETY: it is null, or a template that is never freed.
    let old = unsafe { TEMPLATE.load(Acquire).as_ref() }?;
    if old.loads == loads() {
        return None;
    }
    let new = Box::leak(Box::new(layout.template().ok()?));
    TEMPLATE.store(new, Release);
    let is_new = |module: &&Module| !old.modules.contains(module);
    let modules: Vec<Module> = new.modules.iter().filter(is_new).cloned().collect();
    (!modules.is_empty()).then_some(Update {
        layout,
        template: new,
        modules,
    })
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

// ---------------------------------------------------------------------------------------------------------------------------
// Looking at the C library.

/// The address of something that the C library exports.
fn exported(name: &CStr) -> Result<*mut c_void, Unsupported> {
    // SAFETY: looks up a name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        let name = name.to_string_lossy();
        return Err(Unsupported(format!(
            "the C library has no {name} (it takes a dynamically linked glibc, 2.34 or later)"
        )));
    }
    Ok(address)
}

/// A function that it exports.
///
/// # Safety
/// `F` is the type of pointers to it.
unsafe fn function<F: Copy>(name: &CStr) -> Result<F, Unsupported> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = exported(name)?;
    // SAFETY: the caller's promise; the sizes are the same.
    Ok(unsafe { mem::transmute_copy(&address) })
}

/// A number that the C library exports for debuggers.
fn number(name: &CStr) -> Result<usize, Unsupported> {
    // SAFETY: it is such a number, 32 bits.
    Ok(unsafe { exported(name)?.cast::<u32>().read() } as usize)
}

/// The offset of a field, by a descriptor for debuggers: its size in bits, how many there are, and its offset.
fn field(name: &CStr) -> Result<isize, Unsupported> {
    // SAFETY: it is such a descriptor.
    let [_, _, offset] = unsafe { exported(name)?.cast::<[u32; 3]>().read() };
    Ok(offset as isize)
}

/// How often libraries have been loaded and unloaded.
fn loads() -> (u64, u64) {
    let mut loads = (0, 0);
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the C library's information, and the variable below.
        unsafe { *data.cast::<(u64, u64)>() = ((*info).dlpi_adds, (*info).dlpi_subs) };
        1
    }
    // SAFETY: calls `look` with each module; the first is enough.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut loads).cast()) };
    loads
}

/// The modules that have thread-locals: number, where it was loaded, size of its thread-locals, and the caller's own.
fn modules() -> Vec<(usize, u64, usize, *mut u8)> {
    type Found = Vec<(usize, u64, usize, *mut u8)>;
    let mut found = Found::new();
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the C library's information, and the variable below.
        let (info, found) = unsafe { (&*info, &mut *data.cast::<Found>()) };
        if info.dlpi_tls_modid != 0 {
            // SAFETY: so many headers are there.
            let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
            if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_TLS) {
                found.push((
                    info.dlpi_tls_modid,
                    info.dlpi_addr,
                    header.p_memsz as usize,
                    info.dlpi_tls_data.cast(),
                ));
            }
        }
        0
    }
    // SAFETY: calls `look` with each module.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// What the scratch thread saw of itself.
#[derive(Default)]
struct Scratch {
    /// The words of the C library's own thread-locals that a first `malloc` changes: offsets from the thread pointer.
    malloc: Vec<isize>,
    /// The rest of what was found.
    found: Option<Result<Layout, Unsupported>>,
}

/// How many words the C library's own thread-locals may have: there are 18 in glibc 2.36.
const MAX_WORDS: usize = 256;

/// The C library's own thread-locals on this thread.
fn own_module() -> Option<(*const usize, usize)> {
    // SAFETY: gives the address of a thread-local of the C library's.
    let errno = unsafe { libc::__errno_location() }.addr();
    modules().into_iter().find_map(|(_, _, size, data)| {
        let is_its = !data.is_null() && (data.addr()..data.addr() + size).contains(&errno);
        is_its.then_some((data.cast_const().cast::<usize>(), size / size_of::<usize>()))
    })
}

/// The first function of the scratch thread, which has not allocated anything yet.
extern "C" fn look_around(data: *mut c_void) -> *mut c_void {
    // SAFETY: `discover` waits for the thread and lends it this.
    let scratch = unsafe { &mut *data.cast::<Scratch>() };
    let (mut words, mut before) = (ptr::null::<usize>(), [0_usize; MAX_WORDS]);
    let mut place = (ptr::null::<u8>(), 0);
    unsafe extern "C" fn find(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: as in `modules`, but without allocating.
        unsafe {
            let (info, place) = (&*info, &mut *data.cast::<(*const u8, usize)>());
            let errno = libc::__errno_location().addr();
            let headers = slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
            let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_TLS) else {
                return 0;
            };
            let (start, size) = (info.dlpi_tls_data.addr(), header.p_memsz as usize);
            if start != 0 && (start..start + size).contains(&errno) {
                *place = (info.dlpi_tls_data.cast(), size);
                return 1;
            }
            0
        }
    }
    // SAFETY: calls `find` with each module; what it finds are this thread's own words.
    unsafe {
        libc::dl_iterate_phdr(Some(find), (&raw mut place).cast());
        let count = (place.1 / size_of::<usize>()).min(MAX_WORDS);
        if !place.0.is_null() {
            words = place.0.cast();
            for (index, word) in before[..count].iter_mut().enumerate() {
                *word = words.add(index).read_volatile();
            }
        }
        libc::free(std::hint::black_box(libc::malloc(40)));
        for (index, word) in before[..count].iter().enumerate() {
            if words.add(index).read_volatile() != *word {
                let offset = words.add(index).cast::<u8>().offset_from(thread_pointer());
                scratch.malloc.push(offset);
            }
        }
    }
    let malloc = mem::take(&mut scratch.malloc);
    scratch.found = Some(Layout::look(malloc).and_then(Layout::try_out));
    ptr::null_mut()
}

impl Layout {
    /// Looks at the C library, on a scratch thread.
    fn discover() -> Result<Layout, Unsupported> {
        if cfg!(fibrant_asan) {
            return Err(Unsupported(
                "AddressSanitizer keeps state in thread-locals".into(),
            ));
        }
        if !cfg!(target_env = "gnu") || cfg!(target_feature = "crt-static") {
            return Err(Unsupported("it takes glibc, dynamically linked".into()));
        }
        if !thread_pointer_can_change() {
            return Err(Unsupported(
                "the kernel does not let programs change the thread pointer (FSGSBASE: Linux 5.9 or later, and a processor that \
                 has it)"
                    .into(),
            ));
        }
        let mut scratch = Scratch::default();
        let mut thread: libc::pthread_t = 0;
        // SAFETY: the thread gets a variable that outlives it, as it is joined here.
        unsafe {
            let data = (&raw mut scratch).cast();
            let error = libc::pthread_create(&mut thread, ptr::null(), look_around, data);
            if error != 0 {
                let error = io::Error::from_raw_os_error(error);
                return Err(Unsupported(format!(
                    "no thread could be started to look: {error}"
                )));
            }
            libc::pthread_join(thread, ptr::null_mut());
        }
        let layout = scratch.found.expect("it has looked")?;
        let template = layout.template()?;
        TEMPLATE.store(Box::leak(Box::new(template)), Release);
        Ok(layout)
    }

    /// Finds out where things are; `malloc` says where the allocator's words are. On the scratch thread.
    fn look(malloc: Vec<isize>) -> Result<Layout, Unsupported> {
        // SAFETY: the C library's functions, by their names; their types have been the same for as long as they exist.
        let functions = unsafe {
            Functions {
                allocate: function(c"_dl_allocate_tls")?,
                deallocate: function(c"_dl_deallocate_tls")?,
                call_destructors: function(c"__call_tls_dtors")?,
                begin_ctype: function(c"__ctype_init")?,
            }
        };
        let (mut size, mut alignment) = (0_usize, 0_usize);
        // SAFETY: as above; it fills two numbers.
        unsafe {
            let ask: unsafe extern "C" fn(*mut usize, *mut usize) = function(c"_dl_get_tls_static_info")?;
            ask(&mut size, &mut alignment);
        }
        if alignment > ALIGNMENT {
            return Err(Unsupported(format!(
                "some thread-local is aligned to {alignment} bytes"
            )));
        }
        let control = number(c"_thread_db_sizeof_pthread")?;
        let pointer = thread_pointer();
        // x86_64 has the control block, which is counted in `size`, at the thread pointer; aarch64 has it below.
        let is_below = cfg!(target_arch = "aarch64");
        let start = if is_below { -(control as isize) } else { 0 };
        let (below, above) = if is_below {
            (control, size)
        } else {
            (size.saturating_sub(control), control)
        };
        // One word more is ours.
        let above = (above + size_of::<usize>()).next_multiple_of(ALIGNMENT);
        let misfit = |what: &str| Unsupported(format!("the C library's {what} is not where it should be"));
        // SAFETY: asks for a number.
        if unsafe { libc::pthread_self() } as usize != pointer.wrapping_offset(start).addr() {
            return Err(misfit("thread control block"));
        }
        // SAFETY: a word of this thread's own control block, whose size is known, or of its thread-locals.
        let read = |place: isize| unsafe { pointer.offset(place).cast::<usize>().read() };
        let address = |place: isize| pointer.wrapping_offset(place).addr();
        let tid = start + field(c"_thread_db_pthread_tid")?;
        // SAFETY: asks for a number.
        if read(tid) as u32 != unsafe { libc::gettid() } as u32 {
            return Err(misfit("thread id"));
        }
        let list = start + field(c"_thread_db_pthread_list")?;
        // SAFETY: this thread is in the list of all threads, whose nodes point to each other.
        if unsafe { *((read(list) as *const usize).add(1)) } != address(list) {
            return Err(misfit("list of threads"));
        }
        let dtv = start + field(c"_thread_db_pthread_dtvp")?;
        let robust = robust_list(pointer).unwrap_or(tid + 16);
        if robust != tid + 16 || read(robust) != address(robust) {
            return Err(misfit("list of robust locks"));
        }
        let keys = start + field(c"_thread_db_pthread_specific")?;
        let first_keys = read(keys).wrapping_sub(pointer.addr()) as isize;
        if !(start..keys).contains(&first_keys) {
            return Err(misfit("first array of keys"));
        }
        let mut own_addresses = vec![
            (list, list),
            (list + 8, list),
            (robust - 8, robust),
            (robust, robust),
            (keys, first_keys),
        ];
        let mut constants = vec![(robust + 8, read(robust + 8))];
        if cfg!(target_arch = "x86_64") {
            // The ABI has the block's address in two of its words, and the guards of stacks and pointers in two others.
            own_addresses.extend([(0, 0), (0x10, 0)]);
            constants.extend([0x18, 0x28, 0x30, 0x48].map(|place| (place, read(place))));
        }
        if let Ok(rseq) = exported(c"__rseq_offset") {
            // SAFETY: it is such an offset.
            let rseq = unsafe { rseq.cast::<isize>().read() };
            // No processor's number, as the kernel writes it to the thread's own block only: ask it.
            constants.push((rseq, 0xFFFF_FFFF_0000_0000));
        }
        // The resolver's state is part of the control block, and found through one of the C library's thread-locals.
        // SAFETY: it has no arguments and gives an address.
        let resolver = unsafe {
            let ask: unsafe extern "C" fn() -> usize = function(c"__res_state")?;
            ask()
        };
        let state = resolver.wrapping_sub(pointer.addr()) as isize;
        let (words, count) = own_module().ok_or_else(|| misfit("errno"))?;
        // SAFETY: so many words are there.
        let place = (0..count).find(|index| unsafe { words.add(*index).read() } == resolver);
        match place {
            Some(index) if (start..start + control as isize).contains(&state) => {
                // SAFETY: both are in this thread's block.
                let place = unsafe { words.add(index).cast::<u8>().offset_from(pointer) };
                own_addresses.push((place, state));
            }
            _ => return Err(misfit("state of the resolver")),
        }
        Ok(Layout {
            functions,
            below: below.next_multiple_of(ALIGNMENT),
            above,
            home: (above - size_of::<usize>()) as isize,
            control: (start, control),
            dtv,
            number: tid,
            keys,
            own_addresses,
            constants,
            malloc,
        })
    }

    /// Makes a template of a block as the C library makes it now.
    fn template(&self) -> Result<Template, Unsupported> {
        let loads = loads();
        // SAFETY: makes a block of its own.
        let pointer = unsafe { (self.functions.allocate)(ptr::null_mut()) };
        if pointer.is_null() {
            return Err(Unsupported("no memory for a block".into()));
        }
        // SAFETY: a vector as described at `forget_dynamic`.
        let place_of = |id: usize| unsafe {
            let dtv: *mut Entry = self.word(pointer, self.dtv);
            (id <= (*dtv.sub(1)).place.addr()).then(|| (*dtv.add(id)).place)
        };
        let block = pointer.addr() - self.below..pointer.addr() + self.above;
        let modules: Vec<Module> = modules()
            .into_iter()
            .filter_map(|(id, base, size, _)| {
                let place = place_of(id).filter(|place| block.contains(&place.addr()))?;
                let start = place.addr().wrapping_sub(pointer.addr()) as isize;
                Some(Module {
                    id,
                    base,
                    start,
                    size,
                })
            })
            .collect();
        // The control block, and as much of the room for thread-locals as is in use.
        let (start, end) = if cfg!(target_arch = "aarch64") {
            let end = modules
                .iter()
                .map(|module| module.start + module.size as isize)
                .max();
            (self.control.0, end.unwrap_or(16))
        } else {
            let start = modules.iter().map(|module| module.start).min();
            (start.unwrap_or(0) & !7, self.control.1 as isize)
        };
        let mut bytes = vec![0; (end - start) as usize];
        for module in &modules {
            let from = (module.start - start) as usize;
            // SAFETY: so many bytes of the scratch block are this module's, initialised by the C library.
            let image = unsafe { slice::from_raw_parts(pointer.offset(module.start), module.size) };
            bytes[from..from + module.size].copy_from_slice(image);
        }
        for (place, value) in &self.constants {
            let from = (place - start) as usize;
            bytes[from..from + size_of::<usize>()].copy_from_slice(&value.to_ne_bytes());
        }
        // SAFETY: nobody has run with it.
        unsafe { (self.functions.deallocate)(pointer, true) };
        Ok(Template {
            start,
            bytes,
            modules,
            loads,
        })
    }

    /// Memory for a scratch block.
    fn scratch(size: usize) -> Result<*mut u8, Unsupported> {
        let mut memory = ptr::null_mut();
        // SAFETY: allocates so many bytes, or says that it cannot, and makes them zero.
        unsafe {
            if libc::posix_memalign(&mut memory, ALIGNMENT, size) != 0 {
                return Err(Unsupported("no memory for a block".into()));
            }
            libc::memset(memory, 0, size);
        }
        Ok(memory.cast())
    }

    /// Runs some code with a scratch block, before anything depends on it.
    fn try_out(self) -> Result<Layout, Unsupported> {
        struct Trial<'a> {
            layout: &'a Layout,
            pointer: *mut u8,
            problem: Option<&'static str>,
        }
        unsafe extern "C" fn run(data: *mut ()) {
            // SAFETY: the trial below; this runs with its block.
            unsafe {
                let trial = &mut *data.cast::<Trial<'_>>();
                trial.layout.arrive();
                let errno = libc::__errno_location();
                let allocated = libc::malloc(100).cast::<u8>();
                let is_fine = [
                    (thread_pointer() == trial.pointer, "thread pointer"),
                    (*errno == 0, "errno"),
                    (!allocated.is_null(), "malloc"),
                    (libc::isalpha(c_int::from(b'a')) != 0, "ctype"),
                    (libc::sched_getcpu() >= 0, "processor's number"),
                    (libc::strtod(c"2.5".as_ptr(), ptr::null_mut()) == 2.5, "locale"),
                ];
                *errno = libc::EDOM;
                libc::free(allocated.cast());
                trial.problem = is_fine.iter().find(|(fine, _)| !fine).map(|(_, what)| *what);
            }
        }
        // SAFETY: a block of its own, with which only the trial runs, on this thread; it is given back afterwards.
        unsafe {
            let template = self.template()?;
            let memory = Layout::scratch(self.size())?;
            let pointer = self.thread_pointer(memory.wrapping_add(self.size()));
            let before = TEMPLATE.swap(Box::leak(Box::new(template)), Release);
            debug_assert!(before.is_null());
            *libc::__errno_location() = 0;
            let problem = match self.begin(pointer, 1, thread_pointer()) {
                Err(_) => Some("allocation"),
                Ok(()) => {
                    let mut trial = Trial {
                        layout: &self,
                        pointer,
                        problem: None,
                    };
                    call_with_thread_pointer(pointer, run, (&raw mut trial).cast());
                    trial.problem
                }
            };
            let leaked = *libc::__errno_location() == libc::EDOM;
            self.release(pointer);
            libc::free(memory.cast());
            match problem.or(leaked.then_some("errno")) {
                Some(what) => Err(Unsupported(format!("with a scratch block, its {what} was wrong"))),
                None => Ok(self),
            }
        }
    }
}

/// Where the kernel has been told that the list of robust locks is, if it says.
fn robust_list(pointer: *mut u8) -> Option<isize> {
    let (mut head, mut length) = (0_usize, 0_usize);
    // SAFETY: fills two numbers.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    (result == 0).then(|| head.wrapping_sub(pointer.addr()) as isize)
}
