//! The limits of the system: running into one is an error that names it, and the program goes on. Each case runs in a child
//! process, which sets the limit.

mod common;

use common::{case, child};
use fibrant::fiber::{self, Fiber, ResumeError, State};
use std::io;

/// Makes suspended fibers of a size until one is refused; returns them and the error.
fn until_refused(size: usize, most: usize) -> (Vec<Fiber>, io::Error) {
    let mut fibers = Vec::new();
    for _ in 0..most {
        let fiber = Fiber::with_stack_size(size, fiber::suspend);
        match fiber.resume() {
            Ok(_) => fibers.push(fiber),
            Err(ResumeError::Stack(error)) => return (fibers, error),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{most} stacks of {size} bytes were not too many");
}

/// The fibers that exist still work, and their stacks serve the next ones.
fn check_survivors(mut fibers: Vec<Fiber>, size: usize) {
    assert!(fibers.len() > 10, "{} fibers", fibers.len());
    assert_eq!(fibers.pop().unwrap().resume().unwrap(), State::Term);
    let next = Fiber::with_stack_size(size, || {});
    assert_eq!(next.resume().unwrap(), State::Term);
}

#[test]
fn the_number_of_mappings() {
    const SIZE: usize = 16 << 10;
    if case().is_some() {
        let (fibers, error) = until_refused(SIZE, 10_000_000);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        println!("{} stacks, then: {error}", fibers.len());
        // Making room for further mappings is enough: nothing else is lost. (Freeing one fiber's stack keeps its guard.)
        check_survivors(fibers, SIZE);
        return;
    }
    let child = child(
        "the_number_of_mappings",
        "mprotect",
        &[("FIBRANT", "guard=mprotect")],
    )
    .succeeded();
    for part in ["vm.max_map_count", "sysctl -w", "memory mappings"] {
        assert!(child.stdout().contains(part), "{}", child.stdout());
    }
}

#[test]
fn the_address_space() {
    const SIZE: usize = 1 << 20;
    if case().is_some() {
        let limit = libc::rlimit {
            rlim_cur: 600 << 20,
            rlim_max: 600 << 20,
        };
        // SAFETY: sets a limit of this child process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let (fibers, error) = until_refused(SIZE, 1000);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        println!("{} stacks, then: {error}", fibers.len());
        check_survivors(fibers, SIZE);
        return;
    }
    let child = child("the_address_space", "ulimit", &[]).succeeded();
    for part in ["RLIMIT_AS", "614400 KiB", "ulimit -v"] {
        assert!(child.stdout().contains(part), "{}", child.stdout());
    }
}

#[test]
fn the_environment_variable() {
    match case().as_deref() {
        None => {
            let run =
                |name, value| child("the_environment_variable", name, &[("FIBRANT", value)]).succeeded();
            run("half a megabyte", "stack=512k");
            run("nonsense", "stack=large");
            run("nonsense", "stak=512k");
        }
        Some("half a megabyte") => {
            let fiber = Fiber::new(|| {});
            assert_eq!(fiber.stack_size(), 512 << 10);
            fiber.resume().unwrap();
            assert_eq!(fiber.stack_size(), 512 << 10);
            // The program's own choice wins.
            let fiber = Fiber::with_stack_size(64 << 10, || {});
            fiber.resume().unwrap();
            assert_eq!(fiber.stack_size(), 64 << 10);
        }
        Some(_) => {
            let Err(ResumeError::Stack(error)) = Fiber::new(|| {}).resume() else {
                panic!("it was accepted")
            };
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("FIBRANT"), "{error}");
        }
    }
}

#[test]
fn locked_memory() {
    // Memory that is locked takes no guard marker; the guard is there all the same.
    if case().is_some() {
        // SAFETY: affects this child process only.
        let locked = unsafe { libc::mlockall(libc::MCL_FUTURE | libc::MCL_ONFAULT) } == 0;
        println!("locked: {locked}");
        let fiber = Fiber::with_stack_size(64 << 10, || {
            let local = 0_u8;
            let page = 4096;
            let guard = (&raw const local as usize / page + 1) * page - (64 << 10) - page;
            // SAFETY: asks the kernel to read a path from an address; it answers EFAULT if it may not.
            let result = unsafe { libc::access(std::ptr::without_provenance(guard), libc::F_OK) };
            assert_eq!(
                (result, io::Error::last_os_error().raw_os_error()),
                (-1, Some(libc::EFAULT))
            );
        });
        fiber.resume().unwrap();
        return;
    }
    child("locked_memory", "mlockall", &[]).succeeded();
}

/// Where stacks with thread-locals of their own are is kept in a table that has an end.
#[test]
fn the_number_of_sizes() {
    if case().is_some() {
        let ends = |pages: usize| {
            let builder = fibrant::Builder::new().stack_size((16 + pages) << 12);
            builder.spawn(|| ()).unwrap().join().is_ok()
        };
        let served = (0..300).take_while(|pages| ends(*pages)).count();
        assert!((200..256).contains(&served), "{served} sizes");
        assert!(ends(0), "there is a stack of that size");
        return;
    }
    let child = child("the_number_of_sizes", "sizes", &[]).succeeded();
    assert!(
        child.stderr().contains("too many different sizes"),
        "{}",
        child.stderr()
    );
}
