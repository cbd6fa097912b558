//! Which thread runs a fiber: `thread::current` would name the fiber itself.

#![allow(dead_code)] // each test binary uses its part

/// The thread that runs this code, as the kernel numbers it: in a fiber, its worker.
pub fn thread_number() -> i32 {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() }
}

/// The name that the kernel shows for it.
pub fn thread_name() -> String {
    let name = std::fs::read_to_string("/proc/thread-self/comm").expect("the kernel tells");
    name.trim_end().to_owned()
}
