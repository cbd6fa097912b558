//! Names, children, threads, files and the rest of the C library's calls that wait: points 2, 8, 11, 27 and 28.

use crate::support::*;
use fibrant::hook::disabled;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn gethostbyname(name: *const libc::c_char) -> *mut libc::hostent;
    fn gethostbyname2(name: *const libc::c_char, family: i32) -> *mut libc::hostent;
    fn gethostbyaddr(address: *const libc::c_void, length: u32, family: i32) -> *mut libc::hostent;
    fn gethostbyname_r(
        name: *const libc::c_char,
        found: *mut libc::hostent,
        buffer: *mut libc::c_char,
        size: usize,
        result: *mut *mut libc::hostent,
        error: *mut i32,
    ) -> i32;
    fn __h_errno_location() -> *mut i32;
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        result: *mut *mut libc::c_void,
        time: *const libc::timespec,
    ) -> i32;
    fn pthread_clockjoin_np(
        thread: libc::pthread_t,
        result: *mut *mut libc::c_void,
        clock: libc::clockid_t,
        time: *const libc::timespec,
    ) -> i32;
    fn vfork() -> libc::pid_t;
    fn closefrom(first: i32);
}

/// The addresses that were found.
///
/// # Safety
/// It is null or a host.
unsafe fn addresses(host: *mut libc::hostent) -> Option<(i32, Vec<Vec<u8>>)> {
    // SAFETY: the caller's promise; the list ends with a null pointer, and each address has that length.
    unsafe {
        let host = host.as_ref()?;
        let mut all = Vec::new();
        let mut next = host.h_addr_list;
        while !(*next).is_null() {
            all.push(std::slice::from_raw_parts((*next).cast::<u8>(), host.h_length as usize).to_vec());
            next = next.add(1);
        }
        Some((host.h_addrtype, all))
    }
}

/// A path for one use.
fn path(what: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("fibrant-{what}-{}-{number}", std::process::id()))
}

/// A named pipe.
fn fifo() -> PathBuf {
    let path = path("fifo");
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is a string of C's.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

/// What a thread of C's does before it ends.
type Work = Box<dyn FnOnce() + Send>;

extern "C" fn work(work: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: it was made of such a box, for this thread.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    work();
    20 as *mut _
}

/// A thread that does this, ends, and gives 20.
fn c_thread(f: impl FnOnce() + Send + 'static) -> libc::pthread_t {
    let mut made = std::mem::MaybeUninit::uninit();
    let given = Box::into_raw(Box::new(Box::new(f) as Work));
    // SAFETY: the function takes such a box.
    unsafe {
        assert_eq!(
            libc::pthread_create(made.as_mut_ptr(), std::ptr::null(), work, given.cast()),
            0
        );
        made.assume_init()
    }
}

/// A time of a clock, some milliseconds from now.
fn from_now(clock: i32, milliseconds: i64) -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a local variable.
    unsafe { libc::clock_gettime(clock, &mut time) };
    let sum = time.tv_nsec + milliseconds * 1_000_000;
    libc::timespec {
        tv_sec: time.tv_sec + sum / 1_000_000_000,
        tv_nsec: sum % 1_000_000_000,
    }
}

/// Waits for a child, and gives its exit code.
fn exit_code(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: writes to a local variable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -1
    }
}

bodies! {
    p28_a_host_is_found_by_name, true, || {
        // SAFETY: the names are strings of C's; what is found is looked at before the next question.
        unsafe {
            let (first, second) = (addresses(gethostbyname(c"127.0.0.1".as_ptr())), addresses(gethostbyname2(c"127.0.0.2".as_ptr(), libc::AF_INET)));
            let none = gethostbyname(c"no..such".as_ptr()).is_null();
            (first, second, none, *__h_errno_location() != 0)
        }
    };
    p28_a_host_is_found_by_address, true, || {
        let address = [127_u8, 0, 0, 1];
        // SAFETY: the address is as long as it says.
        unsafe {
            let host = gethostbyaddr(address.as_ptr().cast(), 4, libc::AF_INET);
            host.as_ref().map(|host| CStr::from_ptr(host.h_name).to_owned())
        }
    };
    p28_a_host_is_put_where_it_is_wanted, true, || {
        // SAFETY: the places are local variables; all zero is a value of it.
        unsafe {
            let (mut found, mut buffer): (libc::hostent, [libc::c_char; 1024]) = (std::mem::zeroed(), [0; 1024]);
            let (mut result, mut error) = (std::ptr::null_mut(), 0);
            let told = gethostbyname_r(c"127.0.0.9".as_ptr(), &mut found, buffer.as_mut_ptr(), 1024, &mut result, &mut error);
            let small = gethostbyname_r(c"127.0.0.9".as_ptr(), &mut found, buffer.as_mut_ptr(), 2, &mut result, &mut error);
            (told, small, found.h_length)
        }
    };
    p27_a_command_is_run, true, || {
        // SAFETY: strings of C's.
        unsafe { (libc::WEXITSTATUS(libc::system(c"exit 7".as_ptr())), libc::system(std::ptr::null()) != 0) }
    };
    p27_a_commands_output_is_read_and_its_end_waited_for, true, || {
        // SAFETY: strings of C's, and a buffer as long as it says.
        unsafe {
            let stream = libc::popen(c"echo hello; sleep 0.02; exit 3".as_ptr(), c"r".as_ptr());
            let mut line = [0; 32];
            let got = !libc::fgets(line.as_mut_ptr(), 32, stream).is_null();
            let text = CStr::from_ptr(line.as_ptr()).to_owned();
            (got, text, libc::WEXITSTATUS(libc::pclose(stream)))
        }
    };
    p27_a_vforked_child_ends, true alone, || {
        let (reader, writer) = pipe();
        // SAFETY: the child only reads and ends.
        let child = unsafe { vfork() };
        if child == 0 {
            // SAFETY: the buffer has that length.
            unsafe {
                libc::alarm(30); // ends it if it hangs
                libc::read(reader.as_raw_fd(), [0_u8; 1].as_mut_ptr().cast(), 1); // so that it is waited for
                libc::_exit(9);
            }
        }
        later(move || File::from(writer).write_all(b"x").unwrap());
        exit_code(child)
    };
    p28_a_thread_is_joined_in_time, true, || {
        let thread = c_thread(gate());
        let mut result = std::ptr::null_mut();
        // SAFETY: the thread is joined once, and the places are local variables.
        let told = unsafe { pthread_timedjoin_np(thread, &mut result, &from_now(libc::CLOCK_REALTIME, 20_000)) };
        (told, result as usize)
    };
    p28_a_thread_is_not_joined_in_time, true, || {
        let (ender, end) = mpsc::channel::<()>();
        let thread = c_thread(move || end.recv().unwrap_or(()));
        let start = Instant::now();
        // SAFETY: as above.
        let told = unsafe { pthread_clockjoin_np(thread, std::ptr::null_mut(), libc::CLOCK_MONOTONIC, &from_now(libc::CLOCK_MONOTONIC, 30)) };
        let waited = start.elapsed();
        drop(ender);
        // SAFETY: as above: it was not joined.
        let joined = unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        (told, waited >= ms(30), joined)
    };
    p28_times_before_all_others_have_passed, true, || {
        let (ender, end) = mpsc::channel::<()>();
        let thread = c_thread(move || end.recv().unwrap_or(()));
        let past = [(-1, 0), (i64::MIN, 0), (0, 0)].map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
        let told = past.map(|time| {
            // SAFETY: as above: it runs.
            unsafe {
                let first = pthread_timedjoin_np(thread, std::ptr::null_mut(), &time);
                (first, pthread_clockjoin_np(thread, std::ptr::null_mut(), libc::CLOCK_MONOTONIC, &time))
            }
        });
        drop(ender);
        thread::sleep(ms(1)); // the thread may be over before it is joined: this waits in any case
        // SAFETY: as above.
        (told, unsafe { libc::pthread_join(thread, std::ptr::null_mut()) })
    };
    p28_a_time_that_cannot_be_is_an_error, false => ([22; 3], 0), || {
        let thread = c_thread(|| ());
        let wrong = [(0, -1), (5, 1_000_000_000), (-1, -1)].map(|(tv_sec, tv_nsec)| {
            // SAFETY: the thread has not been joined.
            unsafe { pthread_timedjoin_np(thread, std::ptr::null_mut(), &libc::timespec { tv_sec, tv_nsec }) }
        });
        // SAFETY: as above.
        (wrong, fibrant::hook::disabled(|| unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }))
    };
    p28_a_thread_that_is_over_is_joined_whatever_the_time, true, || {
        [(-1, 0), (0, 0)].map(|(tv_sec, tv_nsec)| {
            let (teller, told) = mpsc::channel();
            // SAFETY: asks for a number.
            let thread = c_thread(move || teller.send(unsafe { libc::gettid() }).unwrap());
            let own = PathBuf::from(format!("/proc/self/task/{}", told.recv().unwrap()));
            thread::sleep(ms(1));
            while own.exists() {
                thread::sleep(ms(1));
            }
            let mut result = std::ptr::null_mut();
            // SAFETY: the thread is joined once, and the places are local variables.
            let told = unsafe { pthread_timedjoin_np(thread, &mut result, &libc::timespec { tv_sec, tv_nsec }) };
            (told, result as usize)
        })
    };
    p28_a_part_of_a_file_is_waited_for, true alone, || {
        let path = path("lockf");
        let file = File::create(&path).unwrap();
        // Held by a child: such locks are a process's.
        let (ready, told_to_end) = (pipe(), pipe());
        let fd = file.as_raw_fd();
        // SAFETY: only calls that a forked child may make.
        let holder = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(30); // ends it if it hangs
                libc::lockf(fd, libc::F_LOCK, 10);
                libc::write(ready.1.as_raw_fd(), c"x".as_ptr().cast(), 1);
                libc::read(told_to_end.0.as_raw_fd(), [0_u8; 1].as_mut_ptr().cast(), 1);
                libc::_exit(0);
            }
            child
        };
        File::from(ready.0).read_exact(&mut [0]).unwrap();
        // SAFETY: numbers.
        let (tried, test) = unsafe { (told(libc::lockf(fd, libc::F_TLOCK, 10) as isize).0, told(libc::lockf(fd, libc::F_TEST, 10) as isize).0) };
        let ender = later(move || drop(File::from(told_to_end.1).write_all(b"x")));
        // SAFETY: as above.
        let locked = told(unsafe { libc::lockf(fd, libc::F_LOCK, 10) } as isize);
        ender.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        (tried, test, locked, exit_code(holder))
    };
    p28_a_named_pipe_is_opened_when_a_reader_comes, true, || {
        let path = fifo();
        let other = path.clone();
        let reader = later(move || {
            let mut all = String::new();
            File::open(other).unwrap().read_to_string(&mut all).unwrap();
            all
        });
        let mut writer = File::options().write(true).open(&path).unwrap();
        // SAFETY: asks for a number.
        let flags = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETFL) } & (libc::O_NONBLOCK | libc::O_ACCMODE);
        writer.write_all(b"through").unwrap();
        drop(writer);
        std::fs::remove_file(&path).unwrap();
        (flags, reader.join().unwrap())
    };
    p28_any_number_may_wait_for_a_writer, true alone, || {
        let named = fifo();
        // More than there are threads for what comes to an end by itself.
        let mut readers: Vec<_> = (0..530)
            .map(|_| {
                let named = named.clone();
                go(move || File::open(named).is_ok())
            })
            .collect();
        let last = readers.pop().unwrap().waiting();
        // Whoever is to end their waits needs such a thread.
        let other = path("other");
        File::create(&other).unwrap().sync_all().unwrap();
        let writer = File::options().write(true).open(&named).unwrap();
        let opened = readers.into_iter().chain([last]).map(Activity::join).filter(|&is_open| is_open).count();
        drop(writer);
        [named, other].iter().for_each(|path| std::fs::remove_file(path).unwrap());
        opened
    };
    p28_a_named_pipe_is_opened_when_a_writer_comes, true, || {
        let path = fifo();
        let other = path.clone();
        let writer = thread::spawn(move || {
            thread::sleep(ms(20));
            File::options().write(true).open(other).unwrap().write_all(b"through").unwrap();
        });
        // What waits is a real thread, for this fiber; the bytes are there when it has opened it, or it waits for them.
        let mut reader = File::open(&path).unwrap();
        writer.join().unwrap();
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        std::fs::remove_file(&path).unwrap();
        all
    };
    p09_a_named_pipe_without_a_reader_is_refused, false, || {
        use std::os::unix::fs::OpenOptionsExt;
        let path = fifo();
        let opened = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        std::fs::remove_file(&path).unwrap();
        opened.map(drop).map_err(|error| error.raw_os_error())
    };
    p11_a_file_is_read_from_several_places, false, || {
        let path = path("preadv");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (mut first, mut second) = ([0_u8; 3], [0_u8; 20]);
        let list = [
            libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: 3 },
            libc::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: 20 },
        ];
        let fd = file.as_raw_fd();
        // SAFETY: the buffers are as long as they say.
        let results = unsafe {
            (
                told(libc::preadv(fd, list.as_ptr(), 2, 2)),
                told(libc::preadv2(fd, list.as_ptr(), 1, 8, 0)),
                told(libc::preadv2(fd, list.as_ptr(), 1, -1, 0)),
                told(libc::preadv(fd, list.as_ptr(), 1, -1)),
                told(libc::pread(fd, first.as_mut_ptr().cast(), 3, -1)),
                told(libc::pread(fd, first.as_mut_ptr().cast(), 3, 100)),
            )
        };
        (results, second)
    };
    p11_a_files_own_position_is_read_at, false, || {
        let path = path("position");
        std::fs::write(&path, b"0123456789").unwrap();
        let mut file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (reader, writer) = pipe();
        disabled(|| File::from(writer.try_clone().unwrap()).write_all(b"pipe")).unwrap();
        let read = |fd| {
            let mut buffer = [0_u8; 20];
            let list = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 20 }];
            // With a flag that asks for nothing that matters here.
            // SAFETY: the buffer is as long as it says.
            (told(unsafe { libc::preadv2(fd, list.as_ptr(), 1, -1, libc::RWF_HIPRI) }), buffer)
        };
        let (of_file, of_pipe) = ([0; 2].map(|_| read(file.as_raw_fd())), read(reader.as_raw_fd()));
        (of_file, file.stream_position().unwrap(), of_pipe)
    };
    p11_a_file_is_read_to_the_end, true, || {
        let path = path("read");
        let data: Vec<u8> = (0..3_000_000_u32).map(|index| index as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let file = File::open(&path).unwrap();
        // Only the beginning of it is in memory, if it is on a disk: the rest is read all the same. To write it down is a wait in any
        // case.
        // SAFETY: advice, and one byte.
        unsafe {
            libc::fdatasync(file.as_raw_fd());
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            libc::pread(file.as_raw_fd(), [0_u8; 1].as_mut_ptr().cast(), 1, 0);
        }
        let mut read = vec![0; 4_000_000];
        // One call.
        // SAFETY: the buffer is as long as it says.
        let count = told(unsafe { libc::read(file.as_raw_fd(), read.as_mut_ptr().cast(), read.len()) });
        std::fs::remove_file(&path).unwrap();
        (count, read[..3_000_000] == data[..])
    };
    p02_fclose_closes, false alone, || {
        // In a process of its own: a child that another test forks would have the writing end for a while.
        let (reader, writer) = pipe();
        // SAFETY: the stream has the descriptor from now on, and is closed once.
        let closed = unsafe {
            let stream = libc::fdopen(writer.into_raw_fd(), c"w".as_ptr());
            libc::fputs(c"written at the end".as_ptr(), stream);
            libc::fclose(stream)
        };
        let mut all = String::new();
        File::from(reader).read_to_string(&mut all).unwrap();
        (closed, all)
    };
    p02_fclose_ends_a_read, true => ((-1, libc::EBADF), 0), || {
        let (reader, _writer) = pipe();
        let fd = reader.into_raw_fd();
        // SAFETY: the stream has the descriptor from now on.
        let stream = unsafe { libc::fdopen(fd, c"r".as_ptr()) } as usize;
        let closer = later(move || {
            // By now who waits has made sure that it is open: only who closes it can tell.
            thread::sleep(ms(50));
            // SAFETY: it is closed once.
            unsafe { libc::fclose(stream as *mut libc::FILE) }
        });
        // SAFETY: the buffer is as long as it says.
        let read = told(unsafe { libc::read(fd, [0_u8; 4].as_mut_ptr().cast(), 4) });
        (read, closer.join().unwrap())
    };
    p02_closefrom_closes_in_a_child, true alone, || {
        let ((reader, writer), (go_on, told_to_go_on)) = (pipe(), pipe());
        // SAFETY: the child only reads, closes, asks and ends.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(30); // ends it if it hangs
                libc::read(go_on.as_raw_fd(), [0_u8; 1].as_mut_ptr().cast(), 1); // so that it is waited for
                closefrom(writer.as_raw_fd().min(reader.as_raw_fd()));
                let open = libc::fcntl(writer.as_raw_fd(), libc::F_GETFD) >= 0;
                libc::_exit(i32::from(open));
            }
            child
        };
        later(move || File::from(told_to_go_on).write_all(b"x").unwrap());
        let code = exit_code(child);
        // A thread's call is ours, too: to compare is not enough.
        assert_eq!(code, 0, "it is closed there");
        // Ours is open.
        (code, kind(File::from(writer).write(b"x")), kind(File::from(reader).read(&mut [0; 4])))
    };
    p08_the_flag_set_by_ioctl_is_seen, false, || {
        let (ours, _theirs) = streams();
        let (fd, on, off) = (ours.as_raw_fd(), 1_i32, 0_i32);
        // SAFETY: the argument is a number's address.
        unsafe {
            let first = libc::ioctl(fd, libc::FIONBIO, &on);
            let flags = libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK;
            let read = receive(fd, &mut [0; 4], 0);
            let second = libc::ioctl(fd, libc::FIONBIO, &off);
            let rest = libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK;
            // A thread's calls are ours, too: to compare is not enough.
            assert_eq!((flags, rest), (libc::O_NONBLOCK, 0));
            (first, flags, read, second, rest)
        }
    };
    p10_an_unknown_request_goes_to_the_kernel, false, || {
        let (ours, mut theirs) = streams();
        theirs.write_all(b"seven b").unwrap();
        let mut count = 0;
        // SAFETY: writes to a local variable.
        unsafe {
            let told_count = told(libc::ioctl(ours.as_raw_fd(), libc::FIONREAD, &mut count) as isize);
            (told_count, count, told(libc::ioctl(ours.as_raw_fd(), 0xdead, 0) as isize), told(libc::ioctl(-1, libc::FIONREAD, &mut count) as isize))
        }
    };
    p22_a_listener_that_is_shut_down_wakes_who_accepts, true, || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = listener.try_clone().unwrap();
        // SAFETY: numbers.
        let closer = later(move || unsafe { libc::shutdown(other.as_raw_fd(), libc::SHUT_RD) });
        let accepted = listener.accept().map(drop).map_err(|error| error.raw_os_error());
        (accepted, closer.join().unwrap())
    };
    p03_a_copy_is_read_from, true, || {
        let (ours, mut theirs) = streams();
        // SAFETY: a descriptor of ours.
        let copy = unsafe { File::from_raw_fd(libc::dup(ours.as_raw_fd())) };
        drop(ours);
        let sender = later(move || theirs.write_all(b"copy").unwrap());
        let mut word = [0; 4];
        let read = kind((&copy).read(&mut word));
        sender.join().unwrap();
        (read, word)
    };
}

#[test]
fn each_fiber_has_a_host_of_its_own() {
    let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
    let ask = |last: u8| {
        move || {
            let name = CString::new(format!("127.0.0.{last}")).unwrap();
            // SAFETY: the name is a string of C's.
            let host = unsafe { gethostbyname(name.as_ptr()) };
            // The other one asks meanwhile, of the same thread.
            fibrant::sleep(Duration::from_millis(20));
            // SAFETY: it is this fiber's until it asks again.
            unsafe { addresses(host) }.unwrap().1
        }
    };
    let asked: Vec<_> = (1..=4).map(|last| runtime.spawn(ask(last))).collect();
    for (index, handle) in asked.into_iter().enumerate() {
        assert_eq!(handle.join().unwrap(), [vec![127, 0, 0, 1 + index as u8]]);
    }
    runtime.stop().unwrap();
}

#[test]
fn a_fiber_that_leaves_as_a_thread_would_is_unwound() {
    struct Dropped(std::sync::mpsc::Sender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }
    unsafe extern "C-unwind" {
        fn pthread_exit(value: *mut libc::c_void) -> !;
    }
    let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let fiber = runtime.spawn(move || {
        let _dropped = Dropped(sender);
        // SAFETY: it ends the fiber.
        unsafe { pthread_exit(std::ptr::null_mut()) }
    });
    let end: thread::Result<()> = fiber.join();
    assert!(end.unwrap_err().is::<fibrant::Cancelled>());
    receiver.recv().unwrap();
    // The worker goes on.
    assert_eq!(runtime.spawn(|| 7).join().unwrap(), 7);
    runtime.stop().unwrap();
}
