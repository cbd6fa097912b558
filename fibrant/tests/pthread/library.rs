//! Builds `locks.c` as a shared library, once, and loads it. Its state is the library's own, so one test at a time uses it.

use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::transmute;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// One of a crowd: as in `locks.c`.
#[repr(C)]
pub struct Member {
    index: c_int,
    count: c_int,
    rounds: c_int,
}

impl Member {
    pub fn new(index: usize, count: usize, rounds: usize) -> Member {
        let [index, count, rounds] = [index, count, rounds].map(|number| number as c_int);
        Member { index, count, rounds }
    }
}

/// What a crowd calls: it returns how many things it found wrong.
pub type Function = unsafe extern "C" fn(*mut Member) -> i64;

/// What those who take turns call.
pub type TakeTurns = unsafe extern "C" fn(*mut c_int, *const c_int, c_int) -> i64;

/// The library.
pub struct Library {
    handle: usize,
}

/// It, for one test.
pub struct Borrowed(
    &'static Library,
    #[allow(dead_code)] Option<MutexGuard<'static, ()>>,
);

thread_local! {
    /// A test may ask for it more than once.
    static IS_MINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if self.1.is_some() {
            IS_MINE.set(false);
        }
    }
}

impl std::ops::Deref for Borrowed {
    type Target = Library;

    fn deref(&self) -> &Library {
        self.0
    }
}

impl Library {
    /// The library, which is this test's until that is dropped.
    pub fn get() -> Borrowed {
        static IN_USE: Mutex<()> = Mutex::new(());
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        let guard = (!IS_MINE.replace(true)).then(|| IN_USE.lock().unwrap_or_else(PoisonError::into_inner));
        Borrowed(LIBRARY.get_or_init(Library::build), guard)
    }

    fn build() -> Library {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pthread/locks.c");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("locks-{}.so", std::process::id()));
        // Under an emulator it is for another machine than this one.
        let compiler = match std::env::var_os("FIBRANT_TEST_RUNNER") {
            Some(_) => concat_machine(),
            None => "cc".to_owned(),
        };
        let status = Command::new(&compiler)
            .args(["-O1", "-g", "-fPIC", "-shared", "-pthread", "-o"])
            .args([&target, &source])
            .status();
        let status = status.unwrap_or_else(|error| panic!("{compiler} is needed: {error}"));
        assert!(status.success());
        let name = CString::new(target.to_str().unwrap()).unwrap();
        // SAFETY: its constructors only make locks.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let _ = std::fs::remove_file(&target);
        if handle.is_null() {
            // SAFETY: there was an error, which is a text.
            panic!("{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
        }
        Library {
            handle: handle as usize,
        }
    }

    fn find(&self, name: &str) -> *mut c_void {
        let text = CString::new(name).unwrap();
        // SAFETY: the library is loaded, and stays.
        let found = unsafe { libc::dlsym(self.handle as *mut c_void, text.as_ptr()) };
        assert!(!found.is_null(), "{name}");
        found
    }

    pub fn function(&self, name: &str) -> Function {
        // SAFETY: it is of this type.
        unsafe { transmute(self.find(name)) }
    }

    pub fn take_turns(&self) -> TakeTurns {
        // SAFETY: it is of this type.
        unsafe { transmute(self.find("take_turns")) }
    }

    /// Calls a function that takes nothing and returns nothing.
    pub fn call(&self, name: &str) {
        // SAFETY: it is of this type.
        unsafe { transmute::<*mut c_void, extern "C" fn()>(self.find(name))() }
    }

    /// Calls a function that takes nothing and returns a number.
    pub fn number(&self, name: &str) -> c_int {
        // SAFETY: it is of this type.
        unsafe { transmute::<*mut c_void, extern "C" fn() -> c_int>(self.find(name))() }
    }

    /// Calls a function that takes a number and returns one.
    pub fn number_of(&self, name: &str, argument: c_int) -> c_int {
        // SAFETY: it is of this type.
        unsafe { transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(self.find(name))(argument) }
    }

    pub fn begin_barrier(&self, count: usize, is_shared: bool) {
        type Begin = extern "C" fn(c_int, c_int);
        // SAFETY: it is of this type.
        unsafe {
            transmute::<*mut c_void, Begin>(self.find("begin_barrier"))(count as c_int, is_shared.into())
        }
    }

    /// How many wait, or have waited, for a condition, and how many of them were woken.
    pub fn waiting(&self) -> (c_int, c_int) {
        type Read = extern "C" fn(*mut c_int, *mut c_int);
        let (mut waiting, mut woken) = (0, 0);
        // SAFETY: it is of this type.
        unsafe { transmute::<*mut c_void, Read>(self.find("read_waiting"))(&mut waiting, &mut woken) };
        (waiting, woken)
    }
}

/// The compiler for the machine that is emulated.
fn concat_machine() -> String {
    format!("{}-linux-gnu-gcc", std::env::consts::ARCH)
}
