//! Looking at the C library: where things are in a block of thread-locals, and whether that is true.
//!
//! [`tls`](super) calls it, once, and again for a new template when libraries have been loaded.

use super::{ALIGNMENT, Entry, Functions, Layout, Module, TEMPLATE, Template, Unsupported};
use crate::context::{call_with_thread_pointer, thread_pointer, thread_pointer_can_change};
use crate::sys::syscall;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::Ordering::Release;
use std::{io, mem, ptr, slice};

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

/// The same for a function that is hooked: the C library's own.
///
/// # Safety
/// As [`function`].
unsafe fn next_function<F: Copy>(name: &CStr) -> Result<F, Unsupported> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: looks up a name.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let found = (!address.is_null()).then_some(address);
    let address =
        found.ok_or_else(|| Unsupported(format!("the C library has no {}", name.to_string_lossy())))?;
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
pub(super) fn loads() -> (u64, u64) {
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

/// Whether this node is in a list whose nodes are two addresses each, those of the next and of the previous. It is the list of all
/// threads: others come and go meanwhile, so what is next now may be gone, or another, in the next moment.
fn is_in_list(node: *const usize) -> bool {
    (0..1000).any(|_| {
        // SAFETY: a word of this thread's own control block, which others write.
        let next = unsafe { node.read_volatile() };
        let is_next = read_if_there(next + size_of::<usize>()) == Some(node.addr());
        if !is_next {
            crate::primitives::yield_thread();
        }
        is_next
    })
}

/// The word at an address where there may be nothing: the kernel looks.
fn read_if_there(address: usize) -> Option<usize> {
    let (mut ends, mut word) = ([0; 2], 0_usize);
    // SAFETY: the kernel writes two numbers; it reads what is at the address if there is something, and gives it back to a variable. Both
    // descriptors are this function's.
    unsafe {
        if syscall!(SYS_pipe2, &raw mut ends, libc::O_CLOEXEC) < 0 {
            return None;
        }
        let size = size_of::<usize>() as isize;
        let is_there = syscall!(SYS_write, ends[1], address, size) == size
            && syscall!(SYS_read, ends[0], &raw mut word, size) == size;
        for end in ends {
            crate::sys::close(end);
        }
        is_there.then_some(word)
    }
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
    pub(super) fn discover() -> Result<Layout, Unsupported> {
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
                error_of_loader: next_function(c"dlerror")?,
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
        if !is_in_list(address(list) as *const usize) {
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
        let join_state = join_state(pointer, tid)?;
        if join_state.is_some_and(|(place, _)| !(start..start + control as isize).contains(&place)) {
            return Err(misfit("state for joining"));
        }
        let random = random_state(
            pointer.wrapping_offset(start).cast(),
            control / size_of::<usize>(),
        );
        let random = random.map(|index| start + (index * size_of::<usize>()) as isize);
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
            random,
            join_state,
        })
    }

    /// Makes a template of a block as the C library makes it now.
    pub(super) fn template(&self) -> Result<Template, Unsupported> {
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
        // The control block, and as much of the room for thread-locals as is in use: by modules, and by the C library itself, which
        // has the kernel's word for the processor's number there since 2.41.
        let places = modules.iter().map(|module| (module.start, module.size));
        let words = self
            .constants
            .iter()
            .map(|(place, _)| (*place, size_of::<usize>()));
        let in_use = places.chain(words).chain([self.control]);
        let ends = in_use.map(|(start, size)| (start, start + size as isize));
        let (start, end) = ends
            .reduce(|(start, end), (from, to)| (start.min(from), end.max(to)))
            .expect("the control block is there");
        let start = start & !7;
        if start < -(self.below as isize) || end > self.home {
            return Err(Unsupported(
                "the C library has thread-locals of its own where none should be".into(),
            ));
        }
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
        if let Some((place, value)) = self.join_state {
            let from = (place - start) as usize;
            bytes[from..from + size_of::<u32>()].copy_from_slice(&value.to_ne_bytes());
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

/// Which of a control block's words has the state of the C library's `getrandom`, if it has one (glibc since 2.41, where the kernel
/// lends a hand): the one that was null and is an address after the first call. On a thread that has not called it.
fn random_state(control: *const usize, words: usize) -> Option<usize> {
    // SAFETY: so many words are this thread's. The kernel may change some of them.
    let read = || (0..words).map(|index| unsafe { control.add(index).read_volatile() });
    let before: Vec<usize> = read().collect();
    let mut byte = [0_u8];
    // SAFETY: writes a byte to a local variable.
    unsafe { libc::getrandom((&raw mut byte).cast(), 1, 0) };
    let is_state =
        |(before, after): (&usize, usize)| *before == 0 && after > u32::MAX as usize && after % 8 == 0;
    let mut found = before
        .iter()
        .zip(read())
        .enumerate()
        .filter(|(_, pair)| is_state(*pair));
    // If there are several it is not known which; then each fiber has one of its own.
    found
        .next()
        .filter(|_| found.next().is_none())
        .map(|(index, _)| index)
}

/// Where a control block says whether its thread can be joined, and what it says of the calling thread, which can: a word that the
/// kernel makes zero when a thread ends. Nowhere, if that is the thread's number, as it was up to glibc 2.41: a fiber has one of those.
fn join_state(pointer: *mut u8, tid: isize) -> Result<Option<(isize, u32)>, Unsupported> {
    const PR_GET_TID_ADDRESS: c_int = 40;
    let mut word: *mut u32 = ptr::null_mut();
    // SAFETY: fills in an address.
    let result = unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut word, 0_u64, 0_u64, 0_u64) };
    if result != 0 {
        // The kernel was built without this question.
        return if is_older_than((2, 42)) {
            Ok(None)
        } else {
            Err(Unsupported(
                "the kernel does not tell what it clears when a thread ends (CONFIG_CHECKPOINT_RESTORE)"
                    .into(),
            ))
        };
    }
    let place = word.addr().wrapping_sub(pointer.addr()) as isize;
    // SAFETY: the kernel's word for it; this thread's own.
    Ok((place != tid).then(|| (place, unsafe { word.read_volatile() })))
}

/// Whether the C library is of an earlier version.
fn is_older_than(version: (u32, u32)) -> bool {
    // SAFETY: gives a string that stays.
    let own = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let mut numbers = own
        .to_str()
        .unwrap_or_default()
        .split('.')
        .map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < version
}

/// Where the kernel has been told that the list of robust locks is, if it says.
fn robust_list(pointer: *mut u8) -> Option<isize> {
    let (mut head, mut length) = (0_usize, 0_usize);
    // SAFETY: fills two numbers.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    (result == 0).then(|| head.wrapping_sub(pointer.addr()) as isize)
}
