//! What the doctor tries: calls that have to wait, each with something that ends the wait.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::{MaybeUninit, zeroed};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::thread::JoinHandleExt;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// How long another fiber has time to run before what waits is released all the same. Only a call that blocks needs it.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A call that has to wait, and what ends that. The call is told when another fiber has run, and says whether it came to what it
/// should.
pub struct Trial {
    pub call: Box<dyn FnOnce(&AtomicBool) -> bool>,
    pub release: Box<dyn FnOnce() + Send>,
}

fn trial(call: impl FnOnce() -> bool + 'static, release: impl FnOnce() + Send + 'static) -> Trial {
    Trial {
        call: Box::new(|_| call()),
        release: Box::new(release),
    }
}

/// A call that ends by itself. It is made again if nobody has run meanwhile: a real thread may have been so quick that there was
/// nothing to wait for.
fn by_itself(call: fn() -> bool) -> Trial {
    let call = move |has_run: &AtomicBool| {
        let start = Instant::now();
        loop {
            let is_right = call();
            if !is_right || has_run.load(SeqCst) || start.elapsed() > PATIENCE {
                return is_right;
            }
        }
    };
    Trial {
        call: Box::new(call),
        release: Box::new(|| ()),
    }
}

/// Functions that the crate libc does not declare.
mod c {
    use super::*;
    unsafe extern "C" {
        pub fn thrd_sleep(time: *const libc::timespec, rest: *mut libc::timespec) -> c_int;
        pub fn thrd_yield();
        pub fn wait3(status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> libc::pid_t;
        pub fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
        pub fn gethostbyname(name: *const c_char) -> *mut libc::hostent;
        pub fn gethostbyname2(name: *const c_char, family: c_int) -> *mut libc::hostent;
        pub fn gethostbyaddr(
            host: *const c_void,
            length: libc::socklen_t,
            family: c_int,
        ) -> *mut libc::hostent;
        pub fn getnameinfo(
            address: *const libc::sockaddr,
            size: libc::socklen_t,
            host: *mut c_char,
            host_size: libc::socklen_t,
            service: *mut c_char,
            service_size: libc::socklen_t,
            flags: c_int,
        ) -> c_int;
        pub fn pthread_clockjoin_np(
            thread: libc::pthread_t,
            result: *mut *mut c_void,
            clock: libc::clockid_t,
            time: *const libc::timespec,
        ) -> c_int;
    }
}

/// A call of C's.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: what a trial passes is its own: local variables that live until the call has returned, strings, and descriptors
        // that are open until then.
        #[allow(unused_unsafe, reason = "calls are nested")]
        unsafe {
            $call
        }
    }};
}

/// What is tried, by name: a note for the table, and how.
pub type Entry = (&'static str, &'static str, fn() -> Trial);

const MOMENT: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Longer than anything here takes.
const MINUTE: libc::timespec = libc::timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

#[rustfmt::skip] // a table
pub const TRIALS: &[Entry] = &[
    // Time.
    ("sleep", "", || by_itself(|| call!(libc::sleep(1)) == 0)),
    ("usleep", "", || by_itself(|| call!(libc::usleep(5000)) == 0)),
    ("nanosleep", "", || by_itself(|| call!(libc::nanosleep(&MOMENT, null_mut())) == 0)),
    ("clock_nanosleep", "std::thread::sleep", || by_itself(|| call!(libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &MOMENT, null_mut())) == 0)),
    ("sched_yield", "std::thread::yield_now", || by_itself(|| call!(libc::sched_yield()) == 0)),
    ("thrd_yield", "", || by_itself(|| { call!(c::thrd_yield()); true })),
    ("thrd_sleep", "", || by_itself(|| call!(c::thrd_sleep(&MOMENT, null_mut())) == 0)),

    // Input.
    ("read", "", || input(|fd| call!(libc::read(fd, [0_u8; 8].as_mut_ptr().cast(), 8)) == 1)),
    ("readv", "", || input(|fd| call!(libc::readv(fd, &piece(&mut [0; 8]), 1)) == 1)),
    ("recv", "TcpStream::read", || input(|fd| call!(libc::recv(fd, [0_u8; 8].as_mut_ptr().cast(), 8, 0)) == 1)),
    ("recvfrom", "", || input(|fd| call!(libc::recvfrom(fd, [0_u8; 8].as_mut_ptr().cast(), 8, 0, null_mut(), null_mut())) == 1)),
    ("recvmsg", "", || input(|fd| call!(libc::recvmsg(fd, &mut message(&mut piece(&mut [0; 8])), 0)) == 1)),
    ("recvmmsg", "", || input(|fd| call!(libc::recvmmsg(fd, &mut batch(&mut piece(&mut [0; 8])), 1, 0, null_mut())) == 1)),

    // Output.
    ("write", "", || output(|fd, text| call!(libc::write(fd, text.as_ptr().cast(), text.len())) == text.len() as isize)),
    ("writev", "", || output(|fd, text| call!(libc::writev(fd, &piece(text), 1)) == text.len() as isize)),
    ("send", "TcpStream::write", || output(|fd, text| call!(libc::send(fd, text.as_ptr().cast(), text.len(), 0)) == text.len() as isize)),
    ("sendto", "", || output(|fd, text| call!(libc::sendto(fd, text.as_ptr().cast(), text.len(), 0, null(), 0)) == text.len() as isize)),
    ("sendmsg", "", || output(|fd, text| call!(libc::sendmsg(fd, &message(&mut piece(text)), 0)) == text.len() as isize)),
    ("sendmmsg", "", || output(|fd, text| call!(libc::sendmmsg(fd, &mut batch(&mut piece(text)), 1, 0)) == 1)),
    ("sendfile", "", || output(|fd, text| call!(libc::sendfile(fd, file_with(text).as_raw_fd(), &mut 0, text.len())) == text.len() as isize)),
    ("splice", "", || output(|fd, text| call!(libc::splice(pipe_with(&text[..999]).as_raw_fd(), null_mut(), fd, null_mut(), 999, 0)) == 999)),
    ("tee", "", tee),

    // Connections.
    ("connect", "to a local socket whose queue is full", connect),
    ("accept", "", || accept(|fd| call!(libc::accept(fd, null_mut(), null_mut())))),
    ("accept4", "TcpListener::accept", || accept(|fd| call!(libc::accept4(fd, null_mut(), null_mut(), libc::SOCK_CLOEXEC)))),

    // Readiness.
    ("poll", "", || input(|fd| call!(libc::poll(&mut question(fd), 1, -1)) == 1)),
    ("ppoll", "", || input(|fd| call!(libc::ppoll(&mut question(fd), 1, null(), null())) == 1)),
    ("select", "", || input(|fd| call!(libc::select(fd + 1, &mut set_of(fd), null_mut(), null_mut(), null_mut())) == 1)),
    ("pselect", "", || input(|fd| call!(libc::pselect(fd + 1, &mut set_of(fd), null_mut(), null_mut(), null(), null())) == 1)),
    ("epoll_wait", "other event loops", || input(|fd| call!(libc::epoll_wait(epoll(fd).as_raw_fd(), &mut zeroed(), 1, -1)) == 1)),
    ("epoll_pwait", "", || input(|fd| call!(libc::epoll_pwait(epoll(fd).as_raw_fd(), &mut zeroed(), 1, -1, null())) == 1)),
    ("epoll_pwait2", "", || input(|fd| call!(libc::epoll_pwait2(epoll(fd).as_raw_fd(), &mut zeroed(), 1, null(), null())) == 1)),

    // Names. Whether an address has one here does not matter.
    ("getaddrinfo", "a real thread asks", || by_itself(getaddrinfo)),
    ("getnameinfo", "a real thread asks", || by_itself(getnameinfo)),
    ("gethostbyname", "a real thread asks", || by_itself(|| !call!(c::gethostbyname(c"127.0.0.1".as_ptr())).is_null())),
    ("gethostbyname2", "a real thread asks", || by_itself(|| !call!(c::gethostbyname2(c"127.0.0.1".as_ptr(), libc::AF_INET)).is_null())),
    ("gethostbyaddr", "a real thread asks", || by_itself(|| { call!(c::gethostbyaddr([127_u8, 0, 0, 1].as_ptr().cast(), 4, libc::AF_INET)); true })),

    // Children and threads.
    ("wait", "", || child(|id| call!(libc::wait(&mut 0)) == id)),
    ("waitpid", "std::process::Child::wait", || child(|id| call!(libc::waitpid(id, &mut 0, 0)) == id)),
    ("wait3", "", || child(|id| call!(c::wait3(&mut 0, 0, null_mut())) == id)),
    ("wait4", "", || child(|id| call!(libc::wait4(id, &mut 0, 0, null_mut())) == id)),
    ("waitid", "", || child(|id| call!(libc::waitid(libc::P_PID, id as libc::id_t, &mut zeroed(), libc::WEXITED)) == 0)),
    ("pthread_join", "JoinHandle::join", || join(|thread| call!(libc::pthread_join(thread, null_mut())))),
    ("pthread_timedjoin_np", "", || join(|thread| call!(libc::pthread_timedjoin_np(thread, null_mut(), &later(libc::CLOCK_REALTIME))))),
    ("pthread_clockjoin_np", "", || join(|thread| call!(c::pthread_clockjoin_np(thread, null_mut(), libc::CLOCK_MONOTONIC, &later(libc::CLOCK_MONOTONIC))))),
    ("system", "a real thread runs the command", || by_itself(|| call!(libc::system(c"exit 3".as_ptr())) == 3 << 8)),
    ("pclose", "a real thread waits for the command", || by_itself(|| call!(libc::pclose(c::popen(c"exit 3".as_ptr(), c"r".as_ptr()))) == 3 << 8)),

    // Signals.
    ("sigwait", "a signal that is blocked in all threads", || signal(|set| call!(libc::sigwait(set, &mut 0)) == 0)),
    ("sigwaitinfo", "", || signal(|set| call!(libc::sigwaitinfo(set, null_mut())) == libc::SIGUSR1)),
    ("sigtimedwait", "", || signal(|set| call!(libc::sigtimedwait(set, null_mut(), &MINUTE)) == libc::SIGUSR1)),
    ("pause", "until a handler has run", || handler(libc::SIG_UNBLOCK, || call!(libc::pause()))),
    ("sigsuspend", "until a handler has run", || handler(libc::SIG_BLOCK, || call!(libc::sigsuspend(&zeroed())))),

    // Files.
    ("open", "a named pipe", || named_pipe(|path| call!(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)))),
    ("openat", "a named pipe", || named_pipe(|path| call!(libc::openat(libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)))),
    ("fsync", "a real thread does it", || by_itself(|| call!(libc::fsync(file_with(b"").as_raw_fd())) == 0)),
    ("fdatasync", "a real thread does it", || by_itself(|| call!(libc::fdatasync(file_with(b"").as_raw_fd())) == 0)),
    ("flock", "File::lock; asked for again and again", || lock(|fd| call!(libc::flock(fd, libc::LOCK_EX)))),
    ("fcntl", "F_OFD_SETLKW; asked for again and again", || lock(|fd| call!(libc::fcntl(fd, libc::F_OFD_SETLKW, &whole_file())))),
    ("lockf", "asked for again and again", || lock(|fd| call!(libc::lockf(fd, libc::F_LOCK, 0)))),

    // Descriptors.
    ("close", "wakes a read with EBADF", || closed(|fd| call!(libc::close(fd)))),
    ("fclose", "wakes a read with EBADF", || closed(|fd| call!(libc::fclose(libc::fdopen(fd, c"r".as_ptr()))))),
    ("dup2", "wakes a read with EBADF", || closed(|fd| call!(libc::dup2(2, fd)))),
    ("dup3", "wakes a read with EBADF", || closed(|fd| call!(libc::dup3(2, fd, libc::O_CLOEXEC)))),
    ("close_range", "wakes a read with EBADF", || closed(|fd| call!(libc::close_range(fd as u32, fd as u32, 0)))),
    ("shutdown", "wakes a read with the end", shut_down),
];

/// A call that waits for a byte of a socket.
fn input(call: fn(RawFd) -> bool) -> Trial {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    trial(
        move || call(ours.as_raw_fd()),
        move || drop(theirs.write_all(b"x")),
    )
}

/// A call that waits for room in a socket, and is to write all of a text.
fn output(call: fn(RawFd, &mut [u8]) -> bool) -> Trial {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 4096]).is_ok() {}
    while (&ours).write(&[0]).is_ok() {}
    ours.set_nonblocking(false).unwrap();
    let call = move || {
        let is_right = call(ours.as_raw_fd(), &mut [b'x'; 20_000]);
        drop(ours); // and the other side finds the end
        is_right
    };
    trial(call, move || drop(io::copy(&mut { theirs }, &mut io::sink())))
}

fn tee() -> Trial {
    let ((reader, writer), (_other, target)) = (pipe(), pipe());
    let call = move || {
        let _open = &_other;
        call!(libc::tee(reader.as_raw_fd(), target.as_raw_fd(), 8, 0)) == 1
    };
    trial(call, move || drop(File::from(writer).write_all(b"x")))
}

fn connect() -> Trial {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("fibrant-doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    call!(libc::listen(listener.as_raw_fd(), 0));
    drop(UnixStream::connect_addr(&address).unwrap()); // there is room for no other
    let call = move || UnixStream::connect_addr(&address).is_ok();
    trial(call, move || (0..2).for_each(|_| drop(listener.accept())))
}

/// A call that waits for a connection.
fn accept(call: fn(RawFd) -> RawFd) -> Trial {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let call = move || {
        let fd = call(listener.as_raw_fd());
        // SAFETY: it was accepted, and is nobody else's.
        fd >= 0 && unsafe { TcpStream::from_raw_fd(fd) }.peer_addr().is_ok()
    };
    trial(call, move || drop(TcpStream::connect(address)))
}

fn getaddrinfo() -> bool {
    let mut found = null_mut();
    let result = call!(libc::getaddrinfo(
        c"127.0.0.1".as_ptr(),
        null(),
        null(),
        &mut found
    ));
    if result == 0 {
        call!(libc::freeaddrinfo(found));
    }
    result == 0
}

fn getnameinfo() -> bool {
    let mut address: libc::sockaddr_in = call!(zeroed());
    address.sin_family = libc::AF_INET as _;
    let (place, size) = ((&raw const address).cast(), size_of_val(&address));
    let mut host = [0; 64];
    let (room, flags) = (host.as_mut_ptr(), libc::NI_NUMERICHOST);
    call!(c::getnameinfo(place, size as u32, room, 64, null_mut(), 0, flags)) == 0
}

/// A call that waits for a child.
fn child(call: fn(libc::pid_t) -> bool) -> Trial {
    let mut command = Command::new("cat");
    #[expect(clippy::zombie_processes, reason = "the call waits for it")]
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let input = child.stdin.take();
    trial(move || call(child.id() as libc::pid_t), move || drop(input))
}

/// A call that waits for a thread.
fn join(call: fn(libc::pthread_t) -> c_int) -> Trial {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || receiver.recv().is_ok()).into_pthread_t();
    trial(move || call(thread) == 0, move || drop(sender))
}

/// A minute from now.
fn later(clock: libc::clockid_t) -> libc::timespec {
    let mut time = MINUTE;
    call!(libc::clock_gettime(clock, &mut time));
    time.tv_sec += MINUTE.tv_sec;
    time
}

/// A call that waits for the signal that is blocked in all threads.
fn signal(call: fn(&libc::sigset_t) -> bool) -> Trial {
    let release = || {
        call!(libc::kill(libc::getpid(), libc::SIGUSR1));
    };
    trial(move || call(&signals(libc::SIGUSR1)), release)
}

/// A call that waits until a handler has run. Its signal is sent to the worker.
fn handler(mask_before: c_int, call: fn() -> c_int) -> Trial {
    extern "C" fn nothing(_: c_int) {}
    call!(libc::signal(
        libc::SIGUSR2,
        nothing as *const () as libc::sighandler_t
    ));
    mask(mask_before, libc::SIGUSR2);
    let worker = call!(libc::pthread_self());
    trial(
        move || call() == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR),
        move || {
            call!(libc::pthread_kill(worker, libc::SIGUSR2));
        },
    )
}

/// A call that opens a named pipe, which waits until somebody opens its other end.
fn named_pipe(call: fn(&CStr) -> RawFd) -> Trial {
    let path = std::env::temp_dir().join(format!("fibrant-doctor-{}", std::process::id()));
    let name = CString::new(path.to_str().expect("the folder's name is text")).unwrap();
    let made = call!(libc::mkfifo(name.as_ptr(), 0o600));
    let call = move || {
        let fd = call(&name);
        // SAFETY: it was opened, and is nobody else's.
        made == 0 && fd >= 0 && unsafe { File::from_raw_fd(fd) }.metadata().is_ok()
    };
    trial(call, move || {
        drop(File::options().write(true).open(&path));
        drop(std::fs::remove_file(&path));
    })
}

/// A call that wants a lock of a file, which another descriptor has: both kinds of lock.
fn lock(call: fn(RawFd) -> c_int) -> Trial {
    let file = file_with(b"");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let other = File::options().read(true).write(true).open(path).unwrap();
    call!(libc::flock(file.as_raw_fd(), libc::LOCK_EX));
    call!(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole_file()));
    trial(move || call(other.as_raw_fd()) == 0, move || drop(file))
}

fn whole_file() -> libc::flock {
    let mut lock: libc::flock = call!(zeroed());
    lock.l_type = libc::F_WRLCK as _;
    lock
}

/// A read that is ended because somebody closes its descriptor, or puts another in its place.
fn closed(close: fn(RawFd) -> c_int) -> Trial {
    let (reader, writer) = pipe();
    let fd = reader.into_raw_fd();
    let call = move || {
        let result = call!(libc::read(fd, [0_u8; 8].as_mut_ptr().cast(), 8));
        result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
    };
    trial(call, move || {
        close(fd);
        drop(File::from(writer).write_all(b"x")); // a read that was not woken ends now
    })
}

fn shut_down() -> Trial {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    let call = move || matches!((&ours).read(&mut [0; 8]), Ok(0));
    trial(call, move || {
        call!(libc::shutdown(fd, libc::SHUT_RD));
        drop(theirs);
    })
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = io::pipe().expect("there are descriptors");
    (reader.into(), writer.into())
}

/// A pipe with something in it.
fn pipe_with(text: &[u8]) -> OwnedFd {
    let (reader, writer) = pipe();
    File::from(writer).write_all(text).unwrap();
    reader
}

/// A file, in memory only.
fn file_with(text: &[u8]) -> File {
    let fd = call!(libc::memfd_create(c"doctor".as_ptr(), libc::MFD_CLOEXEC));
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: it was made above.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(text).unwrap();
    file
}

fn piece(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

fn message(piece: &mut libc::iovec) -> libc::msghdr {
    let mut message: libc::msghdr = call!(zeroed());
    message.msg_iov = piece;
    message.msg_iovlen = 1;
    message
}

fn batch(piece: &mut libc::iovec) -> libc::mmsghdr {
    libc::mmsghdr {
        msg_hdr: message(piece),
        msg_len: 0,
    }
}

/// Whether there is something to be read.
fn question(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

fn set_of(fd: RawFd) -> libc::fd_set {
    let mut set: libc::fd_set = call!(zeroed());
    call!(libc::FD_SET(fd, &mut set));
    set
}

fn epoll(fd: RawFd) -> OwnedFd {
    let epoll = call!(libc::epoll_create1(libc::EPOLL_CLOEXEC));
    assert!(epoll >= 0, "{}", io::Error::last_os_error());
    // SAFETY: it was made above.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    call!(libc::epoll_ctl(
        epoll.as_raw_fd(),
        libc::EPOLL_CTL_ADD,
        fd,
        &mut event
    ));
    epoll
}

fn signals(signal: c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: makes a set of the local variable.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Blocks a signal in this thread, or lets it in.
pub fn mask(how: c_int, signal: c_int) {
    call!(libc::pthread_sigmask(how, &signals(signal), null_mut()));
}
