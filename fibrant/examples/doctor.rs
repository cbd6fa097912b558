//! Are the hooks at work, here and in this build? `cargo run --example doctor` tells, function by function.
//!
//! For each name that fibrant hooks it looks whose definition the program finds. Then it makes the calls in a fiber, where they must
//! wait, and looks whether another fiber of the same worker runs meanwhile. It exits with 1 if anything is not as it should be.

#[path = "doctor/trials.rs"]
mod trials;

use fibrant::hook;
use fibrant::runtime::{Builder, Runtime};
use std::ffi::{CStr, CString, c_void};
use std::io;
use std::mem::zeroed;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use trials::{PATIENCE, TRIALS, Trial, mask};

/// After how long a call hangs for good.
const HOPELESS: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    // Those who wait for it want it blocked in all threads.
    mask(libc::SIG_BLOCK, libc::SIGUSR1);
    let runtime = Builder::new().workers(1).name("doctor").build();
    let runtime = runtime.unwrap_or_else(|error| panic!("the runtime could not be started: {error}"));
    let enabled = runtime.spawn(hook::is_enabled).join().unwrap();
    println!("hook::is_enabled in a fiber: {enabled}\n");
    println!("{:<22} {:<10} {:<9} note", "function", "hooked", "waits");
    let (mut strangers, mut blockers) = (Vec::new(), Vec::new());
    for name in hook::names() {
        let hooked = match whose(name) {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not here",
        };
        let (waits, note) = match TRIALS.iter().find(|(trial, ..)| *trial == name) {
            Some((_, note, make)) if enabled => match try_out(&runtime, name, *make) {
                Ok(()) => ("yes", (*note).to_owned()),
                Err(problem) => ("NO", problem),
            },
            Some((_, note, _)) => ("", (*note).to_owned()),
            None => ("", String::new()),
        };
        println!(
            "{}",
            format!("{name:<22} {hooked:<10} {waits:<9} {note}").trim_end()
        );
        if hooked == "NO" {
            strangers.push(name);
        }
        if waits == "NO" {
            blockers.push(name);
        }
    }
    verdict(enabled, &strangers, &blockers)
}

fn verdict(enabled: bool, strangers: &[&str], blockers: &[&str]) -> ExitCode {
    println!();
    if !enabled {
        println!("The hooks are off: see whether FIBRANT says hooks=off, or the program's Builder does.");
    }
    if !strangers.is_empty() {
        println!("Not the program's own definitions: {}.", strangers.join(", "));
        println!(
            "Blocking calls go past the hooks. A program that is linked statically (target-feature=+crt-static) is not \
             supported: link it dynamically. Otherwise a library that is loaded first defines them, too: see LD_PRELOAD."
        );
    }
    if !blockers.is_empty() {
        println!(
            "Calls that blocked the worker, or went wrong: {}.",
            blockers.join(", ")
        );
        println!(
            "If their definitions are the program's own, please report this. Until then run what calls them in \
             fibrant::spawn_blocking."
        );
    }
    if enabled && strangers.is_empty() && blockers.is_empty() {
        println!("All is well here. If a program of yours blocks all the same, see whether");
        println!(
            "- it names the crate: a dependency that no code mentions is not linked (`use fibrant as _;` is enough);"
        );
        println!(
            "- the call is made by a library that goes past the C library: rustix without its feature use-libc;"
        );
        println!("- the library was opened with RTLD_DEEPBIND, which makes it find the C library first;");
        println!(
            "- the call is one that cannot be hooked: docs/hooks.md has the list. spawn_blocking runs it."
        );
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}

/// Whether the definition of a name that libraries find is in the program itself; none if there is none.
fn whose(name: &str) -> Option<bool> {
    let name = CString::new(name).expect("names have no zeros");
    // SAFETY: the name is a string of C's.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: as above.
    let behind = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() && behind.is_null() {
        // No library here has such a function, so none looks for it; or there are no libraries at all.
        return if file_of(main as *const c_void).is_some() {
            None
        } else {
            Some(false)
        };
    }
    Some(!found.is_null() && file_of(found) == file_of(main as *const c_void))
}

/// The file that something is in.
fn file_of(address: *const c_void) -> Option<String> {
    // SAFETY: all zero is a value of it; the name is looked at only if one was found.
    unsafe {
        let mut found: libc::Dl_info = zeroed();
        let is_found = libc::dladdr(address, &mut found) != 0 && !found.dli_fname.is_null();
        is_found.then(|| CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned())
    }
}

/// Makes a call in a fiber of the runtime's only worker. An error if no other fiber ran meanwhile, or the result was wrong.
fn try_out(runtime: &Runtime, name: &str, make: fn() -> Trial) -> Result<(), String> {
    let outcome = runtime.spawn(move || {
        let Trial { call, release } = make();
        let has_run = Arc::new(AtomicBool::new(false));
        let other = Arc::clone(&has_run);
        let releaser = thread::spawn(move || {
            let start = Instant::now();
            while !other.load(SeqCst) && start.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(1));
            }
            release();
        });
        let sibling = Arc::clone(&has_run);
        let sibling = fibrant::spawn_local(move || sibling.store(true, SeqCst));
        let is_right = call(&has_run);
        let error = io::Error::last_os_error();
        let has_run = has_run.load(SeqCst);
        sibling.join().unwrap();
        releaser.join().unwrap();
        match (has_run, is_right) {
            (true, true) => Ok(()),
            (true, false) => Err(format!("waits, but comes to something else ({error})")),
            (false, _) => Err("blocks the worker".to_owned()),
        }
    });
    match outcome.join_timeout(HOPELESS) {
        Ok(outcome) => outcome.unwrap_or_else(|_| Err("panicked".to_owned())),
        Err(_) => {
            println!("{name} never returns");
            std::process::exit(1);
        }
    }
}
