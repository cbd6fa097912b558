//! Signals, fork, exec, and what is no fiber: points 26 to 28.

#![expect(clippy::zombie_processes, reason = "they are waited for by their numbers")]

use crate::patience::eventually;
use crate::support::*;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Forks. The child does this, which must need nothing but system calls, and ends with what it gives.
fn fork(child: impl FnOnce() -> u8) -> libc::pid_t {
    // SAFETY: the child only makes system calls, and leaves without a destructor.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(30); // ends it if it hangs: it would keep the test's output open for ever
                libc::_exit(child().into())
            }
            id => id,
        }
    }
}

/// Waits for a child, and gives how it has ended: its code, or a signal beyond 1000, or that it is stopped, as 2000.
fn end_of(child: libc::pid_t, options: i32) -> Result<i32, i32> {
    let mut status = 0;
    // SAFETY: the status is a local variable.
    match unsafe { libc::waitpid(child, &mut status, options) } {
        id if id == child && libc::WIFEXITED(status) => Ok(libc::WEXITSTATUS(status)),
        id if id == child && libc::WIFSTOPPED(status) => Ok(2000 + libc::WSTOPSIG(status)),
        id if id == child => Ok(1000 + libc::WTERMSIG(status)),
        0 => Ok(-1),
        _ => Err(errno()),
    }
}

/// A read, raw, that allocates nothing.
fn read(fd: RawFd, buffer: &mut [u8]) -> isize {
    // SAFETY: the buffer has that length.
    unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) }
}

/// Many kinds of calls, none of which waits for long, and what they give.
fn calls() -> Vec<isize> {
    let mut results = Vec::new();
    let mut ends = [0; 2];
    // SAFETY: the places are local variables, and the descriptors are closed again.
    unsafe {
        let mut note = |result: isize| results.push(told(result));
        note(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) as isize);
        let mut one = libc::pollfd {
            fd: ends[0],
            events: libc::POLLIN,
            revents: 0,
        };
        note(libc::poll(&mut one, 1, 2) as isize);
        note(libc::write(ends[1], b"hello".as_ptr().cast(), 5));
        note(libc::poll(&mut one, 1, -1) as isize);
        let mut buffer = [0_u8; 8];
        note(libc::read(ends[0], buffer.as_mut_ptr().cast(), 8));
        note(libc::recv(ends[0], buffer.as_mut_ptr().cast(), 8, 0));
        note(libc::nanosleep(
            &libc::timespec {
                tv_sec: 0,
                tv_nsec: 1000,
            },
            std::ptr::null_mut(),
        ) as isize);
        note(libc::usleep(1) as isize);
        note(libc::sched_yield() as isize);
        note(libc::fcntl(ends[0], libc::F_GETFL) as isize);
        note(libc::flock(ends[0], libc::LOCK_UN) as isize);
        note(libc::accept(ends[0], std::ptr::null_mut(), std::ptr::null_mut()) as isize);
        note(libc::waitpid(-4711, std::ptr::null_mut(), libc::WNOHANG) as isize);
        note(libc::close(ends[0]) as isize);
        note(libc::dup2(ends[1], ends[1]).min(0) as isize);
        note(libc::close(ends[1]) as isize);
    }
    results
        .into_iter()
        .flat_map(|(result, error)| [result, error as isize])
        .collect()
}

/// What the calls gave before `main`.
static BEFORE_MAIN: OnceLock<Vec<isize>> = OnceLock::new();

extern "C" fn call_early() {
    BEFORE_MAIN.get_or_init(calls);
}

// SAFETY: the section holds functions that are called before `main`, and this is one.
#[unsafe(link_section = ".init_array")]
#[used]
static CONSTRUCTOR: extern "C" fn() = call_early;

/// Makes a blocking call when its thread ends, and leaves how many bytes it got.
struct ReadsAtTheEnd(UnixStream, Arc<AtomicI32>);

impl Drop for ReadsAtTheEnd {
    fn drop(&mut self) {
        self.1
            .store(read(self.0.as_raw_fd(), &mut [0; 8]) as i32, Ordering::Relaxed);
    }
}

thread_local! {
    static READS_AT_THE_END: RefCell<Option<ReadsAtTheEnd>> = const { RefCell::new(None) };
}

bodies! {
    p27_a_forked_childs_calls_block, true alone, || {
        // Nobody runs fibers there: its calls wait as a thread's do.
        let (reader, writer) = pipe();
        let (ours, _theirs) = streams();
        let (from, to, quiet) = (reader.as_raw_fd(), writer.as_raw_fd(), ours.as_raw_fd());
        set_receive_timeout(quiet, ms(10));
        let child = fork(|| {
            // SAFETY: the places are local variables.
            unsafe {
                let slept = libc::nanosleep(&libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 }, std::ptr::null_mut()) == 0;
                let timed_out = libc::recv(quiet, [0_u8; 4].as_mut_ptr().cast(), 4, 0) == -1 && errno() == libc::EAGAIN;
                let mut one = libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 };
                let found = libc::poll(&mut one, 1, -1) == 1;
                let got = read(from, &mut [0; 8]) == 5;
                u8::from(slept) | u8::from(timed_out) << 1 | u8::from(found) << 2 | u8::from(got) << 3
            }
        });
        // SAFETY: five bytes.
        later(move || unsafe { libc::write(to, b"hello".as_ptr().cast(), 5) });
        end_of(child, 0)
    };
    p27_what_a_child_closes_stays_open_here, true alone, || {
        let number = numbers(1);
        let (ours, mut theirs) = streams();
        put(ours, number);
        let reads = Arc::new(AtomicI32::new(0));
        let count = Arc::clone(&reads);
        let reader = go(move || {
            [0; 2].map(|_| {
                let length = read(number, &mut [0; 8]);
                count.fetch_add(1, Ordering::Relaxed);
                length
            })
        })
        .waiting();
        let child = fork(|| {
            // SAFETY: the child's own.
            unsafe { libc::close(number) as u8 + libc::dup2(2, number).min(0) as u8 + libc::close_range(number as u32, number as u32, 0) as u8 }
        });
        let ended = end_of(child, 0);
        let reader = reader.waiting();
        theirs.write_all(b"one").unwrap();
        // Otherwise one read may take both; even if nothing is left to read, as the one that took it may go on looking for more.
        eventually("it is read", || reads.load(Ordering::Relaxed) == 1);
        theirs.write_all(b"three").unwrap();
        let result = (ended, reader.join());
        close(number);
        result
    };
    p27_a_child_that_returns_is_over, true alone, || {
        let (reader, writer) = pipe();
        // SAFETY: the child returns soon.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: sets a timer, whose signal ends the process if it hangs.
                unsafe { libc::alarm(30) };
                read(reader.as_raw_fd(), &mut [0]); // so that it is waited for
                None
            }
            child => {
                later(move || std::fs::File::from(writer).write_all(b"x").unwrap());
                Some(end_of(child, 0))
            }
        }
    };
    p27_a_child_may_fork_and_wait_in_turn, true alone, || {
        let (reader, writer) = pipe();
        let (from, to) = (reader.as_raw_fd(), writer.as_raw_fd());
        let child = fork(|| {
            let grandchild = fork(|| read(from, &mut [0; 8]) as u8);
            end_of(grandchild, 0).map_or(255, |code| code as u8 + 1)
        });
        // SAFETY: five bytes.
        later(move || unsafe { libc::write(to, b"hello".as_ptr().cast(), 5) });
        end_of(child, 0)
    };
    p27_a_spawned_child_gets_what_it_is_told, true, || {
        let (reader, writer) = pipe();
        let mut id = 0;
        let arguments = [c"sh", c"-c", c"read word; echo \"got $word\"; exit 3"];
        let mut list = arguments.map(|argument| argument.as_ptr().cast_mut()).to_vec();
        list.push(std::ptr::null_mut());
        let (input, mut feed) = pipe();
        // SAFETY: the lists end with a null, and what is pointed to outlives the call.
        let spawned = unsafe {
            let mut actions = std::mem::zeroed();
            libc::posix_spawn_file_actions_init(&mut actions);
            libc::posix_spawn_file_actions_adddup2(&mut actions, input.as_raw_fd(), 0);
            libc::posix_spawn_file_actions_adddup2(&mut actions, writer.as_raw_fd(), 1);
            let nothing = [std::ptr::null_mut()];
            let result = libc::posix_spawnp(&mut id, c"sh".as_ptr(), &actions, std::ptr::null(), list.as_ptr(), nothing.as_ptr());
            libc::posix_spawn_file_actions_destroy(&mut actions);
            result
        };
        drop(writer);
        later(move || {
            let file = std::fs::File::from(feed);
            (&file).write_all(b"it\n").unwrap();
            feed = file.into();
            feed
        });
        let mut all = String::new();
        let read = kind(std::fs::File::from(reader).read_to_string(&mut all));
        (spawned, read, all, end_of(id, 0))
    };
    p27_a_command_that_forks, true, || {
        let run = |program: &str, fails: bool| {
            let mut command = Command::new(program);
            command.args(["-c", "read word; exit 9"]).stdin(Stdio::piped());
            // SAFETY: makes no call at all.
            unsafe {
                command.pre_exec(move || {
                    if fails { Err(std::io::Error::from_raw_os_error(libc::EDOM)) } else { Ok(()) }
                })
            };
            let mut child = command.spawn().map_err(|error| error.raw_os_error())?;
            let input = child.stdin.take();
            later(move || drop(input));
            Ok::<_, Option<i32>>(child.wait().unwrap().code())
        };
        // What goes wrong in the child before it is another program is told here.
        [run("sh", false), run("sh", true), run("/no/such/program", false)]
    };
    p27_nothing_of_the_runtime_is_inherited, true, || {
        let mut child = shell("read word; ls -l /proc/self/fd | grep -c 'eventpoll\\|eventfd'");
        let input = child.stdin.take();
        later(move || drop(input));
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    p27_a_child_is_looked_at_before_it_is_reaped, true, || {
        let child = shell("read word; exit 4");
        let (id, input) = (child.id(), child.stdin);
        later(move || drop(input));
        // SAFETY: all zero is a value of it; the place is a local variable.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let early = end_of(id as libc::pid_t, libc::WNOHANG);
        // SAFETY: as above.
        let looked = unsafe {
            let flags = libc::WEXITED | libc::WNOWAIT;
            let first = libc::waitid(libc::P_PID, id, &mut found, flags);
            (first, found.si_signo, found.si_code, found.si_status(), libc::waitid(libc::P_PID, id, &mut found, flags))
        };
        let reaped = [0; 2].map(|_| end_of(id as libc::pid_t, 0));
        (early, looked, reaped)
    };
    p27_a_child_that_stops_is_told, true, || {
        let child = shell("kill -STOP $$; read word; exit 6");
        let id = child.id() as libc::pid_t;
        let stopped = end_of(id, libc::WUNTRACED);
        // SAFETY: a child of ours.
        assert_eq!(unsafe { libc::kill(id, libc::SIGCONT) }, 0);
        let input = child.stdin;
        later(move || drop(input));
        (stopped, end_of(id, libc::WUNTRACED))
    };
    p27_whoever_ends_first_is_waited_for_first, true alone, || {
        // In a process of its own: any child will do.
        let (first, second) = (shell("read word; exit 1"), shell("read word; exit 2"));
        let (ids, inputs) = ([first.id(), second.id()], (first.stdin, second.stdin));
        let wait = || {
            let mut status = 0;
            // SAFETY: the status is a local variable.
            let id = unsafe { libc::wait(&mut status) };
            (ids.iter().position(|&one| one == id as u32), libc::WEXITSTATUS(status))
        };
        let (one, other) = inputs;
        later(move || drop(other));
        let earlier = wait();
        later(move || drop(one));
        (earlier, wait(), wait().0, errno())
    };
    p27_each_waits_for_its_own_child, true, || {
        let children: Vec<_> = (0..4)
            .map(|code| {
                let mut child = shell(&format!("read word; exit {code}"));
                let input = child.stdin.take();
                (input, go_anywhere(move || child.wait().unwrap().code()).waiting())
            })
            .collect();
        // The last one first.
        let mut codes: Vec<_> = children.into_iter().rev().map(|(input, waiter)| { drop(input); waiter.join() }).collect();
        codes.reverse();
        codes
    };
    p27_a_group_is_waited_for, true, || {
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", "read word; exit 8"]).stdin(Stdio::piped()).process_group(0).spawn().unwrap();
        let input = child.stdin.take();
        later(move || drop(input));
        let (id, mut status) = (child.id() as libc::pid_t, 0);
        // An emulator does not wait until the child has begun, as the kernel does.
        // SAFETY: asks for a number.
        while unsafe { libc::getpgid(id) } != id {
            std::thread::yield_now();
        }
        // SAFETY: the status is a local variable.
        let waited = unsafe { libc::waitpid(-id, &mut status, 0) };
        // SAFETY: as above.
        let again = told(unsafe { libc::waitpid(-id, &mut status, 0) } as isize);
        (waited == id, libc::WEXITSTATUS(status), again)
    };

    p27_a_child_is_waited_for, true, || {
        let mut child = shell("read word; exit 7");
        let input = child.stdin.take();
        later(move || drop(input));
        kind(child.wait().map(|status| status.code()))
    };
    p27_a_childs_output_is_read, true, || {
        let mut child = shell("cat; echo end >&2");
        let mut input = child.stdin.take().unwrap();
        later(move || input.write_all(&[b'x'; 30_000]).unwrap());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), output.stdout.len(), output.stderr)
    };
    p27_a_child_that_may_stop_is_waited_for, true, || {
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::uninit());
        let mut child = shell("read word; kill -9 $$");
        let input = child.stdin.take();
        later(move || drop(input));
        let id = child.id() as libc::pid_t;
        // SAFETY: the places are local variables.
        unsafe {
            let waited = libc::wait4(id, &mut status, libc::WUNTRACED, usage.as_mut_ptr());
            let again = told(libc::waitpid(id, &mut status, 0) as isize);
            (waited == id, libc::WTERMSIG(status), again, child.wait().is_err())
        }
    };
    p28_names_are_found, true, || {
        use std::net::ToSocketAddrs;
        let found = ("localhost", 80).to_socket_addrs().map(|all| all.map(|one| one.ip().is_loopback()).collect::<Vec<_>>());
        (kind(found).map(|all| !all.is_empty() && all.iter().all(|&is| is)), ("no..such", 1).to_socket_addrs().is_err())
    };
    p28_a_thread_is_joined, true, || {
        let gate = gate();
        let thread = thread::spawn(move || {
            gate();
            42
        });
        thread.join().unwrap()
    };
    p28_a_file_is_read_and_locked, false, || {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut magic = [0; 4];
        let read = kind(file.read_at(&mut magic, 0));
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: numbers.
        let locks = unsafe {
            let shared = [file.as_raw_fd(), other.as_raw_fd()].map(|fd| libc::flock(fd, libc::LOCK_SH));
            (shared, told(libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) as isize))
        };
        (read, magic, locks, kind(file.read_at(&mut magic, u64::MAX)).is_err())
    };
    p28_a_lock_is_waited_for, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-lock-{}-{:?}", std::process::id(), thread::current().id()));
        let (first, second) = (std::fs::File::create(&path).unwrap(), std::fs::File::create(&path).unwrap());
        drop(std::fs::remove_file(&path));
        // SAFETY: numbers.
        unsafe {
            let held = libc::flock(first.as_raw_fd(), libc::LOCK_EX);
            later(move || drop(first));
            (held, libc::flock(second.as_raw_fd(), libc::LOCK_EX), kind(second.sync_all()))
        }
    };
    p28_a_record_lock_is_waited_for, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-record-{}-{:?}", std::process::id(), thread::current().id()));
        let (first, second) = (std::fs::File::create(&path).unwrap(), std::fs::File::create(&path).unwrap());
        drop(std::fs::remove_file(&path));
        // SAFETY: all zero, but for what is said, is the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        // SAFETY: the lock is a local variable.
        unsafe {
            let held = libc::fcntl(first.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock);
            let refused = told(libc::fcntl(second.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) as isize);
            later(move || drop(first));
            (held, refused, libc::fcntl(second.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock))
        }
    };
    p28_calls_before_main_do_what_they_do_now, true, || {
        BEFORE_MAIN.get() == Some(&calls())
    };
    p28_a_threads_calls_are_its_own, true, || {
        // It is no fiber, though one has made it: nobody else waits for what it waits for.
        let (mut ours, mut theirs) = streams();
        let thread = go_in_a_thread(move || {
            assert!(!fibrant::hook::is_enabled());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            set_receive_timeout(listener.as_raw_fd(), ms(5));
            let mut buffer = [0; 8];
            (calls(), kind(listener.accept().map(drop)), kind(ours.read(&mut buffer)), buffer)
        });
        let thread = thread.waiting();
        theirs.write_all(b"hello").unwrap();
        thread.join()
    };
    p28_a_thread_may_wait_as_it_ends, true, || {
        let (ours, mut theirs) = streams();
        let got = Arc::new(AtomicI32::new(-7));
        let told = Arc::clone(&got);
        let thread = go_in_a_thread(move || READS_AT_THE_END.with(|place| drop(place.replace(Some(ReadsAtTheEnd(ours, told)))))).waiting();
        theirs.write_all(b"hello").unwrap();
        thread.join();
        got.load(Ordering::Relaxed)
    };
    p28_a_thread_cannot_join_itself, false, || {
        // SAFETY: the kernel and the C library say what is wrong.
        unsafe { libc::pthread_join(libc::pthread_self(), std::ptr::null_mut()) }
    };
    p28_hooks_that_are_off_block, false, || {
        // A blocking call is what it is: the whole thread waits.
        fibrant::hook::disabled(|| {
            let (mut ours, mut theirs) = streams();
            let peer = thread::spawn(move || {
                thread::sleep(ms(10));
                theirs.write_all(b"hello").unwrap();
            });
            let start = Instant::now();
            let read = kind(ours.read(&mut [0; 8]));
            peer.join().unwrap();
            thread::sleep(ms(2));
            (read, start.elapsed() >= ms(2), start.elapsed() < Duration::from_secs(30), calls())
        })
    };
    p28_addresses_have_names, true, || {
        let name = libc::sockaddr_in { sin_family: libc::AF_INET as _, sin_port: 80_u16.to_be(), sin_addr: libc::in_addr { s_addr: 0x7f00_0001_u32.to_be() }, sin_zero: [0; 8] };
        let (mut host, mut service) = ([0; 64], [0; 32]);
        // SAFETY: the places are local variables of these sizes.
        unsafe {
            let size = size_of_val(&name) as u32;
            let flags = libc::NI_NUMERICHOST | libc::NI_NUMERICSERV;
            let found = libc::getnameinfo((&raw const name).cast(), size, host.as_mut_ptr(), 64, service.as_mut_ptr(), 32, flags);
            let short = libc::getnameinfo((&raw const name).cast(), size, host.as_mut_ptr(), 2, std::ptr::null_mut(), 0, flags);
            let wrong = libc::getnameinfo((&raw const name).cast(), 3, host.as_mut_ptr(), 64, std::ptr::null_mut(), 0, flags);
            let service = std::ffi::CStr::from_ptr(service.as_ptr()).to_owned();
            let mut list = std::ptr::null_mut();
            let nobody = libc::getaddrinfo(std::ptr::null(), std::ptr::null(), std::ptr::null(), &mut list);
            (found, short, wrong, service, nobody)
        }
    };
}
