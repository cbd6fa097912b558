//! Another library that is written in Rust and has a copy of its std, in the program `neighbours.cpp`.

use std::panic;
use std::thread;

/// Ten times the number, as a thread says; or 40 if it panics, which it does when the number is 3.
#[unsafe(no_mangle)]
pub extern "C" fn neighbour(number: i32) -> i32 {
    panic::set_hook(Box::new(|_| ()));
    let answer = panic::catch_unwind(|| {
        assert_ne!(number, 3, "it may be anything else");
        thread::spawn(move || 10 * number).join().unwrap_or(0)
    });
    answer.unwrap_or(40)
}
