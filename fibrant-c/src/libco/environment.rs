//! Variables of a coroutine's own: what a CGI program takes for its environment.
//!
//! `co_set_env_list` names them, once. In a coroutine whose hooks are on `getenv`, `setenv` and `unsetenv` of these names are about the
//! coroutine's own; everywhere else, and of all other names, about the process's. The resolver's state is kept in the same way.

use super::event_loop::co_is_enable_sys_hook;
use super::extras::Extras;
use libc::{c_char, c_int, c_void, size_t};
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The names, once they are known.
static NAMES: OnceLock<Vec<CString>> = OnceLock::new();

/// How many words the resolver's state takes: more than any C library of today needs.
const RESOLVER_WORDS: usize = 128;

unsafe extern "C" {
    /// The process's environment.
    static environ: *const *mut c_char;
}

/// Names the variables that each coroutine has of its own. The first list counts.
///
/// # Safety
/// There are so many names; each is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_set_env_list(names: *const *const c_char, count: size_t) {
    NAMES.get_or_init(|| {
        let mut list: Vec<CString> = (0..count)
            // SAFETY: the caller's promise.
            .map(|index| unsafe { *names.add(index) })
            .filter(|name| !name.is_null())
            // SAFETY: the caller's promise.
            .map(|name| unsafe { CStr::from_ptr(name) }.to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        list.sort();
        list.dedup();
        list
    });
}

/// The environment of the coroutine that runs, if the variable is one of its own; and the variable's name.
///
/// # Safety
/// The name is null or a string.
unsafe fn own<'a>(name: *const c_char) -> Option<(&'a mut Vec<(CString, CString)>, &'a CStr)> {
    // Most programs have no list: they are done here.
    let names = NAMES.get()?;
    if name.is_null() || !co_is_enable_sys_hook() {
        return None;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    names.binary_search_by(|one| one.as_c_str().cmp(name)).ok()?;
    // SAFETY: it is that of the coroutine that runs, and nobody else uses it meanwhile.
    Some((unsafe { &mut (*Extras::present()?).environment }, name))
}

/// A function of the C library that one of ours stands in front of.
struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn named(name: &'static CStr) -> Next {
        Next {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its address; null in a program that is linked statically.
    fn address(&self) -> *mut c_void {
        let mut address = self.address.load(Relaxed);
        if address.is_null() {
            // SAFETY: looks a name up.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.address.store(address, Relaxed);
        }
        address
    }
}

/// The variable's value, or null.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    static NEXT: Next = Next::named(c"getenv");
    // SAFETY: the caller's promise.
    if let Some((environment, name)) = unsafe { own(name) } {
        let found = environment.iter().find(|one| one.0.as_c_str() == name);
        return found.map_or(ptr::null_mut(), |one| one.1.as_ptr().cast_mut());
    }
    let next = NEXT.address();
    if next.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { look_up(name) };
    }
    // SAFETY: it is the C library's function of this name; the rest is the caller's promise.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *mut c_char>(next)(name)
    }
}

/// What `getenv` does, where there is no other.
///
/// # Safety
/// As `getenv`.
unsafe fn look_up(name: *const c_char) -> *mut c_char {
    // SAFETY: the caller's promise; the environment is a list of strings that ends with null.
    unsafe {
        let name = CStr::from_ptr(name).to_bytes();
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            if text.get(name.len()) == Some(&b'=') && text.starts_with(name) {
                return (*entry).add(name.len() + 1);
            }
            entry = entry.add(1);
        }
    }
    ptr::null_mut()
}

/// What these functions give where there is no other to call.
fn not_there() -> c_int {
    super::set_error(libc::ENOSYS);
    -1
}

/// Sets a variable.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setenv(name: *const c_char, value: *const c_char, replace: c_int) -> c_int {
    static NEXT: Next = Next::named(c"setenv");
    // SAFETY: the caller's promise.
    if let Some((environment, name)) = unsafe { own(name) } {
        let place = environment.iter().position(|one| one.0.as_c_str() == name);
        if place.is_some() && replace == 0 {
            return 0;
        }
        // Copied before the old one goes: it may be that one.
        // SAFETY: the caller's promise.
        let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_owned());
        if let Some(place) = place {
            environment.swap_remove(place);
        }
        environment.extend(value.map(|value| (name.to_owned(), value)));
        return 0;
    }
    let next = NEXT.address();
    if next.is_null() {
        return not_there();
    }
    // SAFETY: it is the C library's function of this name; the rest is the caller's promise.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int>(
            next,
        )(name, value, replace)
    }
}

/// Takes a variable away.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unsetenv(name: *const c_char) -> c_int {
    static NEXT: Next = Next::named(c"unsetenv");
    // SAFETY: the caller's promise.
    if let Some((environment, name)) = unsafe { own(name) } {
        environment.retain(|one| one.0.as_c_str() != name);
        return 0;
    }
    let next = NEXT.address();
    if next.is_null() {
        return not_there();
    }
    // SAFETY: it is the C library's function of this name; the rest is the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(next)(name) }
}

/// The state of the resolver's: the coroutine's own, if its hooks are on.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __res_state() -> *mut c_void {
    static NEXT: Next = Next::named(c"__res_state");
    if co_is_enable_sys_hook()
        && let Some(extras) = Extras::present()
    {
        // SAFETY: they are those of the coroutine that runs, and nobody else uses them meanwhile.
        let state = unsafe { &mut (*extras).resolver };
        let state = state.get_or_insert_with(|| vec![0; RESOLVER_WORDS].into());
        return state.as_mut_ptr().cast();
    }
    let next = NEXT.address();
    if next.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: it is the C library's function of this name.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(next)() }
}
