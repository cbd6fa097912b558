//! Runtimes of one and of two workers, fibers that take turns, and libraries written in C.

use crate::common;
use crate::patience::Watchdog;
use fibrant::runtime::Runtime;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Calls `body` with a runtime of one worker, and with one of two.
#[track_caller]
pub fn on_workers(body: impl Fn(&Runtime)) {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        watchdog.note(format!("on {workers} workers"));
        let runtime = watchdog.runtime(workers);
        body(&runtime);
        runtime.stop().unwrap();
    }
}

/// Calls `body` in a process of its own, as test `test`: what others do there, and hold when it forks, would be in its way.
pub fn alone(test: &str, body: impl FnOnce()) {
    match common::case() {
        Some(_) => body(),
        None => drop(common::child(test, "alone", &[]).succeeded()),
    }
}

/// Runs so many fibers at once, on all workers, and gives what they return. `body` is given the number of its fiber.
pub fn together<T: Send + 'static>(
    runtime: &Runtime,
    fibers: usize,
    body: impl Fn(usize) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let workers = runtime.workers();
    let fibers: Vec<_> = (0..fibers)
        .map(|number| {
            let body = body.clone();
            runtime.spawn_on(number % workers, move || body(number))
        })
        .collect();
    fibers.into_iter().map(|fiber| fiber.join().unwrap()).collect()
}

/// Lets the others run, in one of several ways.
pub fn wait(round: usize) {
    if round.is_multiple_of(4) {
        std::thread::sleep(Duration::from_millis(1));
    } else {
        fibrant::yield_now();
    }
}

pub fn errno() -> c_int {
    // SAFETY: the address is that of the caller's variable.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(number: c_int) {
    // SAFETY: the address is that of the caller's variable.
    unsafe { *libc::__errno_location() = number };
}

/// What the C library calls the calling thread.
pub fn pthread_self() -> usize {
    // SAFETY: asks for a number.
    unsafe { libc::pthread_self() as usize }
}

/// A library that was compiled from a source next to this file. Its file is removed in the end.
pub struct Compiled(PathBuf);

/// How the thread-locals of a library are reached.
pub const DYNAMIC: &[&str] = &["-ftls-model=global-dynamic"];
pub const STATIC: &[&str] = &["-ftls-model=initial-exec"];

/// Whether an emulator runs this. It cannot fork a process that has started threads and start others there, its own threads keep
/// their user, and its memory is no measure.
pub fn is_emulated() -> bool {
    std::env::var_os("FIBRANT_TEST_RUNNER").is_some()
}

/// The compiler of C, or of C++. This test may run in an emulator; the compiler does not.
pub fn compiler(is_plus: bool) -> &'static str {
    let emulated = cfg!(target_arch = "aarch64") && is_emulated();
    match (emulated, is_plus) {
        (false, false) => "cc",
        (false, true) => "c++",
        (true, false) => "aarch64-linux-gnu-gcc",
        (true, true) => "aarch64-linux-gnu-g++",
    }
}

impl Compiled {
    /// Compiles a source, with some options.
    pub fn new(source: &str, options: &[&str]) -> Compiled {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/isolation");
        let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("isolation-{}-{number}.so", std::process::id()));
        let output = Command::new(compiler(source.ends_with(".cpp")))
            .args(["-shared", "-fPIC", "-O1", "-g", "-o"])
            .arg(&file)
            .arg(folder.join(source))
            .args(options)
            .output()
            .expect("a C compiler is needed: install the package build-essential");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Compiled(file)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Loads it.
    pub fn load(&self) -> Loaded {
        self.try_load().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, or why not.
    pub fn try_load(&self) -> Result<Loaded, String> {
        let name = CString::new(self.0.to_str().unwrap()).unwrap();
        // SAFETY: the library's constructors, if it has some, do nothing that is not asked of them.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            Err(loading_error())
        } else {
            Ok(Loaded(handle.addr()))
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What dlerror says.
pub fn loading_error() -> String {
    // SAFETY: null or a text that stays until the next call.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            String::from("no error")
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// A library that is loaded.
#[derive(Clone, Copy)]
pub struct Loaded(usize);

impl Loaded {
    /// The whole program: all that was loaded with it.
    pub fn program() -> Loaded {
        // SAFETY: loads nothing.
        Loaded(unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) }.addr())
    }

    /// The address of a function.
    pub fn symbol(self, name: &CStr) -> *mut c_void {
        let handle = std::ptr::with_exposed_provenance_mut(self.0);
        // SAFETY: the library is loaded.
        let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}: {}", loading_error());
        symbol
    }

    /// The functions of `locals.c`.
    pub fn locals(self) -> NativeLocals {
        // SAFETY: they are of these types.
        unsafe {
            NativeLocals {
                are_initial: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(
                    self.symbol(c"are_initial"),
                ),
                soil: std::mem::transmute::<*mut c_void, extern "C" fn(c_long)>(self.symbol(c"soil")),
                are_soiled: std::mem::transmute::<*mut c_void, extern "C" fn(c_long) -> c_int>(
                    self.symbol(c"are_soiled"),
                ),
            }
        }
    }

    pub fn unload(self) {
        // SAFETY: nobody uses it any more: the tests see to that.
        let result = unsafe { libc::dlclose(std::ptr::with_exposed_provenance_mut(self.0)) };
        assert_eq!(result, 0, "{}", loading_error());
    }
}

/// The thread-locals of a library written in C.
#[derive(Clone, Copy)]
pub struct NativeLocals {
    are_initial: extern "C" fn() -> c_int,
    soil: extern "C" fn(c_long),
    are_soiled: extern "C" fn(c_long) -> c_int,
}

impl NativeLocals {
    /// Whether they have the values that a new thread finds.
    pub fn are_initial(self) -> bool {
        (self.are_initial)() != 0
    }

    /// Writes all of them; what, depends on the number.
    pub fn soil(self, number: usize) {
        (self.soil)(number as c_long);
    }

    /// Whether they are what was written last, with that number.
    pub fn are_soiled(self, number: usize) -> bool {
        (self.are_soiled)(number as c_long) != 0
    }

    /// What a new fiber must see: initial values, then its own, across waits.
    #[track_caller]
    pub fn check(self, number: usize) {
        assert!(self.are_initial(), "they are those of a new thread");
        for round in 0..5 {
            self.soil(number * 10 + round);
            wait(round);
            assert!(self.are_soiled(number * 10 + round), "they are its own");
        }
    }
}

/// What a C string says.
///
/// # Safety
/// It is one.
pub unsafe fn c_text(text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
