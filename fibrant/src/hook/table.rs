//! The table of hooks: each name once, with its arguments, what a fiber gets instead, and what the C library's function comes
//! down to.
//!
//! The functions are defined for C, so that the program's own definitions win over the C library's, for Rust's std and for every
//! shared library. Each looks at one thread-local word: outside fibers, and where hooks are off, the real function is called with
//! the same arguments. In a fiber it is emulated; an emulation gives a result or an error's number, and `errno` is written last,
//! after everything that may have waited.
//!
//! To add a hook is to add a line here and write its emulation.

use super::barrier::Initialiser;
use super::real::Real;
use super::retry::{Answer, Caller};
use super::{
    barrier, batch, c11, child, condition, connection, copy, descriptor, file, lock, names, raw, readiness,
    signal, time, transfer,
};
use crate::scheduler::Worker;
use crate::stats;
use crate::sys::syscall;
use libc::{
    FILE, addrinfo, c_char, c_int, c_long, c_uint, c_ulong, c_void, clockid_t, epoll_event, fd_set, hostent,
    id_t, idtype_t, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd, pthread_barrier_t,
    pthread_cond_t, pthread_mutex_t, pthread_once_t, pthread_rwlock_t, pthread_t, rusage, sem_t,
    sighandler_t, siginfo_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;

/// A C string made of a name.
pub(super) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with its only zero"),
    }
}

/// Tells C what an emulation has come to.
#[inline]
fn tell(answer: Answer) -> isize {
    answer.unwrap_or_else(|error| {
        // SAFETY: the address is that of this thread's variable.
        unsafe { *libc::__errno_location() = error };
        -1
    })
}

/// A result of the kernel's, for C.
#[cold]
fn tell_kernel(result: isize) -> isize {
    tell(super::retry::answer(result))
}

/// What a function that is more than a system call gives where there is no such function.
///
/// # Safety
/// None is needed: it stands where others call the kernel.
unsafe fn absent(result: c_int) -> isize {
    result as isize
}

/// Defines one function.
macro_rules! define {
    // Emulated in fibers whose calls are hooked.
    (fiber $name:ident ($($argument:ident: $type:ty),*) -> $result:ty, $emulate:path, $kernel:expr) => {
        /// The C library's function of this name, emulated in fibers.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static REAL: Real<unsafe extern "C" fn($($type),*) -> $result> =
                // SAFETY: it is the C library's, with these arguments.
                unsafe { Real::new(c_name(concat!(stringify!($name), "\0"))) };
            if let Some(worker) = Worker::of_hooked_fiber() {
                let caller = Caller { worker, hook: Hook::$name };
                caller.count().calls.increment();
                // SAFETY: the arguments are those that the function was called with.
                return tell(unsafe { $emulate(caller, $($argument),*) }) as $result;
            }
            match REAL.get() {
                // SAFETY: the arguments are those that the function was called with.
                Some(real) => unsafe { real($($argument),*) },
                // SAFETY: the arguments are those that the function was called with.
                None => tell_kernel(unsafe { $kernel }) as $result,
            }
        }
    };
    // For everyone: it keeps the books.
    (everyone $name:ident ($($argument:ident: $type:ty),*) -> $result:ty, $emulate:path, $kernel:expr) => {
        /// The C library's function of this name; it also tells those who wait.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            if let Some(worker) = Worker::of_hooked_fiber() {
                Caller { worker, hook: Hook::$name }.count().calls.increment();
            }
            // SAFETY: the arguments are those that the function was called with.
            tell(unsafe { $emulate($($argument),*) }) as $result
        }
    };
    // For everyone, and it gives what the emulation gives: fibers and threads wait for the same locks.
    (lock $name:ident ($($argument:ident: $type:ty),*) -> $result:ty, $emulate:path, $kernel:expr) => {
        define!(@lock "C" $name ($($argument: $type),*) -> $result, $emulate);
    };
    // The same, and it may unwind: it calls a function of the program's, or ends a thread.
    (unwinding $name:ident ($($argument:ident: $type:ty),*) -> $result:ty, $emulate:path, $kernel:expr) => {
        define!(@lock "C-unwind" $name ($($argument: $type),*) -> $result, $emulate);
    };
    (@lock $abi:literal $name:ident ($($argument:ident: $type:ty),*) -> $result:ty, $emulate:path) => {
        /// The C library's function of this name; where it would block, fibers and threads wait side by side.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $name($($argument: $type),*) -> $result {
            // The runtime's own code blocks like a thread while it holds a lock of ours.
            let caller = crate::sync::address::patient_fiber().map(|worker| {
                let caller = Caller { worker, hook: Hook::$name };
                caller.count().calls.increment();
                caller
            });
            // SAFETY: the arguments are those that the function was called with.
            unsafe { $emulate(caller, $($argument),*) }
        }
    };
}

/// Another name for the same function.
macro_rules! alias {
    ($alias:ident, $name:ident, ($($argument:ident: $type:ty),*), $result:ty) => {
        /// Another name for the function.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $alias($($argument: $type),*) -> $result {
            // SAFETY: the arguments are those that the function was called with.
            unsafe { $name($($argument),*) }
        }
    };
}

macro_rules! hooks {
    ($($who:ident $name:ident $arguments:tt -> $result:ty $(as $alias:ident)* => $emulate:path, $kernel:expr;)*) => {
        /// The hooks, by number.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Hook {
            $($name,)*
        }

        /// Their names, by number.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name),)*];

        /// Every name that is defined this way.
        pub(super) const SYMBOLS: &[&str] = &[$(stringify!($name), $(stringify!($alias),)*)*];

        $(hooks!(@one $who $name $arguments, $result, $emulate, $kernel);)*
        $($(hooks!(@alias $alias $name $arguments, $result);)*)*
    };
    (@one $who:ident $name:ident ($($argument:ident: $type:ty),*), $result:ty, $emulate:path, $kernel:expr) => {
        define!($who $name ($($argument: $type),*) -> $result, $emulate, $kernel);
    };
    (@alias $alias:ident $name:ident ($($argument:ident: $type:ty),*), $result:ty) => {
        alias!($alias, $name, ($($argument: $type),*), $result);
    };
}

const _: () = assert!(NAMES.len() <= stats::HOOKS);

/// Defines the name by which a function is called where the compiler knows the size of a buffer: `$count` things of that many bytes
/// must fit in.
macro_rules! checked {
    ($($name:ident ($($argument:ident: $type:ty),*) -> $result:ty => $plain:ident ($($passed:ident),*), $count:expr, $size:ident;)*) => {
        $(
            /// The function of a similar name, called where the size of the buffer is known.
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                static REAL: Real<unsafe extern "C" fn($($type),*) -> $result> =
                    // SAFETY: it is the C library's, with these arguments.
                    unsafe { Real::new(c_name(concat!(stringify!($name), "\0"))) };
                if $count > $size {
                    // It ends the program with a message.
                    if let Some(real) = REAL.get() {
                        // SAFETY: the arguments are those that the function was called with.
                        return unsafe { real($($argument),*) };
                    }
                    std::process::abort();
                }
                // SAFETY: the arguments are those that the function was called with.
                unsafe { $plain($($passed),*) }
            }
        )*

        /// Their names.
        pub(super) const CHECKED: &[&str] = &[$(stringify!($name),)*];
    };
}

checked! {
    __read_chk (fd: c_int, buffer: *mut c_void, length: size_t, size: size_t) -> ssize_t => read(fd, buffer, length), length, size;
    __pread_chk (fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t, size: size_t) -> ssize_t => pread(fd, buffer, length, offset), length, size;
    __pread64_chk (fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t, size: size_t) -> ssize_t => pread(fd, buffer, length, offset), length, size;
    __recv_chk (fd: c_int, buffer: *mut c_void, length: size_t, size: size_t, flags: c_int) -> ssize_t => recv(fd, buffer, length, flags), length, size;
    __recvfrom_chk (fd: c_int, buffer: *mut c_void, length: size_t, size: size_t, flags: c_int, address: *mut sockaddr, room: *mut socklen_t) -> ssize_t => recvfrom(fd, buffer, length, flags, address, room), length, size;
    __poll_chk (descriptors: *mut pollfd, count: nfds_t, milliseconds: c_int, size: size_t) -> c_int => poll(descriptors, count, milliseconds), count as usize * size_of::<pollfd>(), size;
    __ppoll_chk (descriptors: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t, size: size_t) -> c_int => ppoll(descriptors, count, time, mask), count as usize * size_of::<pollfd>(), size;
}

hooks! {
    // Time.
    fiber sleep (seconds: c_uint) -> c_uint => time::sleep, time::sleep_in_kernel(u64::from(seconds) * 1_000_000);
    fiber usleep (microseconds: c_uint) -> c_int => time::usleep, time::sleep_in_kernel(microseconds.into());
    fiber nanosleep (time: *const timespec, rest: *mut timespec) -> c_int as __nanosleep => time::nanosleep,
        syscall!(SYS_nanosleep, time, rest);
    fiber clock_nanosleep (clock: clockid_t, flags: c_int, time: *const timespec, rest: *mut timespec) -> c_int => time::clock_nanosleep,
        -syscall!(SYS_clock_nanosleep, clock, flags, time, rest);
    fiber sched_yield () -> c_int as __sched_yield => time::sched_yield, syscall!(SYS_sched_yield);
    fiber thrd_yield () -> c_int => time::thrd_yield, syscall!(SYS_sched_yield);
    fiber thrd_sleep (time: *const timespec, rest: *mut timespec) -> c_int => time::thrd_sleep, syscall!(SYS_nanosleep, time, rest);

    // Input.
    fiber read (fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t as __read => transfer::read, syscall!(SYS_read, fd, buffer, length);
    fiber readv (fd: c_int, list: *const iovec, count: c_int) -> ssize_t => transfer::readv, syscall!(SYS_readv, fd, list, count);
    fiber recv (fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t as __recv => transfer::recv,
        syscall!(SYS_recvfrom, fd, buffer, length, flags, 0, 0);
    fiber recvfrom (fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t => transfer::recvfrom,
        syscall!(SYS_recvfrom, fd, buffer, length, flags, address, size);
    fiber recvmsg (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t => transfer::recvmsg, syscall!(SYS_recvmsg, fd, message, flags);

    fiber recvmmsg (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, time: *mut timespec) -> c_int => batch::recvmmsg,
        syscall!(SYS_recvmmsg, fd, messages, count, flags, time);

    // Output.
    fiber write (fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t as __write => transfer::write, syscall!(SYS_write, fd, buffer, length);
    fiber writev (fd: c_int, list: *const iovec, count: c_int) -> ssize_t => transfer::writev, syscall!(SYS_writev, fd, list, count);
    fiber send (fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t as __send => transfer::send,
        syscall!(SYS_sendto, fd, buffer, length, flags, 0, 0);
    fiber sendto (fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t => transfer::sendto,
        syscall!(SYS_sendto, fd, buffer, length, flags, address, size);
    fiber sendmsg (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t => transfer::sendmsg, syscall!(SYS_sendmsg, fd, message, flags);

    fiber sendmmsg (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int as __sendmmsg => batch::sendmmsg,
        syscall!(SYS_sendmmsg, fd, messages, count, flags);
    fiber sendfile (to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t as sendfile64 => copy::sendfile,
        syscall!(SYS_sendfile, to, from, offset, count);
    fiber splice (from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: c_uint) -> ssize_t => copy::splice,
        syscall!(SYS_splice, from, from_offset, to, to_offset, length, flags);
    fiber tee (from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t => copy::tee, syscall!(SYS_tee, from, to, length, flags);

    // Connections.
    fiber connect (fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int as __connect => connection::connect, syscall!(SYS_connect, fd, address, size);
    fiber accept (fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int => connection::accept, syscall!(SYS_accept, fd, address, size);
    fiber accept4 (fd: c_int, address: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int => connection::accept4,
        syscall!(SYS_accept4, fd, address, size, flags);

    // Readiness.
    fiber poll (descriptors: *mut pollfd, count: nfds_t, milliseconds: c_int) -> c_int as __poll => readiness::poll,
        crate::sys::poll(descriptors, count as usize, milliseconds);
    fiber ppoll (descriptors: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int => readiness::ppoll,
        syscall!(SYS_ppoll, descriptors, count, time, mask, 8);
    fiber select (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *mut timeval) -> c_int as __select => readiness::select,
        readiness::select_in_kernel(count, [read, write, except], time);
    fiber pselect (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *const timespec, mask: *const sigset_t) -> c_int => readiness::pselect,
        syscall!(SYS_pselect6, count, read, write, except, time, [mask as usize, 8].as_ptr());
    fiber epoll_wait (epoll: c_int, events: *mut epoll_event, room: c_int, milliseconds: c_int) -> c_int => readiness::epoll_wait,
        syscall!(SYS_epoll_pwait, epoll, events, room, milliseconds, 0, 0);
    fiber epoll_pwait (epoll: c_int, events: *mut epoll_event, room: c_int, milliseconds: c_int, mask: *const sigset_t) -> c_int => readiness::epoll_pwait,
        syscall!(SYS_epoll_pwait, epoll, events, room, milliseconds, mask, 8);
    fiber epoll_pwait2 (epoll: c_int, events: *mut epoll_event, room: c_int, time: *const timespec, mask: *const sigset_t) -> c_int => readiness::epoll_pwait2,
        syscall!(SYS_epoll_pwait2, epoll, events, room, time, mask, 8);

    // Names.
    fiber getaddrinfo (node: *const c_char, service: *const c_char, hints: *const addrinfo, found: *mut *mut addrinfo) -> c_int => names::getaddrinfo,
        absent(libc::EAI_FAIL);
    fiber getnameinfo (address: *const sockaddr, size: socklen_t, host: *mut c_char, host_size: socklen_t, service: *mut c_char, service_size: socklen_t, flags: c_int) -> c_int => names::getnameinfo,
        absent(libc::EAI_FAIL);

    fiber gethostbyname (name: *const c_char) -> *mut hostent => names::gethostbyname, absent(0);
    fiber gethostbyname2 (name: *const c_char, family: c_int) -> *mut hostent => names::gethostbyname2, absent(0);
    fiber gethostbyaddr (host: *const c_void, length: socklen_t, family: c_int) -> *mut hostent => names::gethostbyaddr, absent(0);
    fiber gethostbyname_r (name: *const c_char, found: *mut hostent, buffer: *mut c_char, size: size_t, result: *mut *mut hostent, error: *mut c_int) -> c_int => names::gethostbyname_r,
        absent(libc::ENOSYS);
    fiber gethostbyname2_r (name: *const c_char, family: c_int, found: *mut hostent, buffer: *mut c_char, size: size_t, result: *mut *mut hostent, error: *mut c_int) -> c_int => names::gethostbyname2_r,
        absent(libc::ENOSYS);
    fiber gethostbyaddr_r (host: *const c_void, length: socklen_t, family: c_int, found: *mut hostent, buffer: *mut c_char, size: size_t, result: *mut *mut hostent, error: *mut c_int) -> c_int => names::gethostbyaddr_r,
        absent(libc::ENOSYS);

    // Children and threads.
    fiber wait (status: *mut c_int) -> pid_t as __wait => child::wait, syscall!(SYS_wait4, -1_isize, status, 0, 0);
    fiber waitpid (child: pid_t, status: *mut c_int, options: c_int) -> pid_t as __waitpid => child::waitpid, syscall!(SYS_wait4, child, status, options, 0);
    fiber wait3 (status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t => child::wait3, syscall!(SYS_wait4, -1_isize, status, options, usage);
    fiber wait4 (child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t => child::wait4, syscall!(SYS_wait4, child, status, options, usage);
    fiber waitid (kind: idtype_t, id: id_t, found: *mut siginfo_t, options: c_int) -> c_int => child::waitid, syscall!(SYS_waitid, kind, id, found, options, 0);
    fiber pthread_join (thread: pthread_t, result: *mut *mut c_void) -> c_int => child::pthread_join, absent(libc::ENOSYS);

    fiber pthread_timedjoin_np (thread: pthread_t, result: *mut *mut c_void, time: *const timespec) -> c_int => child::pthread_timedjoin_np, absent(libc::ENOSYS);
    fiber pthread_clockjoin_np (thread: pthread_t, result: *mut *mut c_void, clock: clockid_t, time: *const timespec) -> c_int => child::pthread_clockjoin_np, absent(libc::ENOSYS);
    fiber system (command: *const c_char) -> c_int => child::system, absent(-libc::ENOSYS);
    fiber popen (command: *const c_char, mode: *const c_char) -> *mut FILE => child::popen, absent(0);
    fiber pclose (stream: *mut FILE) -> c_int => child::pclose, absent(-libc::ENOSYS);

    // Locks.
    lock pthread_mutex_lock (mutex: *mut pthread_mutex_t) -> c_int => lock::mutex_lock, ();
    lock pthread_mutex_timedlock (mutex: *mut pthread_mutex_t, time: *const timespec) -> c_int => lock::mutex_timedlock, ();
    lock pthread_mutex_clocklock (mutex: *mut pthread_mutex_t, clock: clockid_t, time: *const timespec) -> c_int => lock::mutex_clocklock, ();
    lock pthread_mutex_trylock (mutex: *mut pthread_mutex_t) -> c_int => lock::mutex_trylock, ();
    lock pthread_mutex_unlock (mutex: *mut pthread_mutex_t) -> c_int => lock::mutex_unlock, ();
    lock pthread_rwlock_rdlock (lock: *mut pthread_rwlock_t) -> c_int => lock::rwlock_rdlock, ();
    lock pthread_rwlock_wrlock (lock: *mut pthread_rwlock_t) -> c_int => lock::rwlock_wrlock, ();
    lock pthread_rwlock_timedrdlock (lock: *mut pthread_rwlock_t, time: *const timespec) -> c_int => lock::rwlock_timedrdlock, ();
    lock pthread_rwlock_timedwrlock (lock: *mut pthread_rwlock_t, time: *const timespec) -> c_int => lock::rwlock_timedwrlock, ();
    lock pthread_rwlock_clockrdlock (lock: *mut pthread_rwlock_t, clock: clockid_t, time: *const timespec) -> c_int => lock::rwlock_clockrdlock, ();
    lock pthread_rwlock_clockwrlock (lock: *mut pthread_rwlock_t, clock: clockid_t, time: *const timespec) -> c_int => lock::rwlock_clockwrlock, ();
    lock pthread_rwlock_unlock (lock: *mut pthread_rwlock_t) -> c_int => lock::rwlock_unlock, ();
    lock sem_wait (semaphore: *mut sem_t) -> c_int => lock::sem_wait, ();
    lock sem_timedwait (semaphore: *mut sem_t, time: *const timespec) -> c_int => lock::sem_timedwait, ();
    lock sem_clockwait (semaphore: *mut sem_t, clock: clockid_t, time: *const timespec) -> c_int => lock::sem_clockwait, ();
    lock sem_post (semaphore: *mut sem_t) -> c_int => lock::sem_post, ();
    unwinding pthread_cond_wait (condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int => condition::wait, ();
    unwinding pthread_cond_timedwait (condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, time: *const timespec) -> c_int => condition::timedwait, ();
    unwinding pthread_cond_clockwait (condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t, time: *const timespec) -> c_int => condition::clockwait, ();
    lock pthread_cond_signal (condition: *mut pthread_cond_t) -> c_int => condition::signal, ();
    lock pthread_cond_broadcast (condition: *mut pthread_cond_t) -> c_int => condition::broadcast, ();
    lock pthread_cancel (thread: pthread_t) -> c_int => condition::cancel, ();
    lock pthread_barrier_wait (barrier: *mut pthread_barrier_t) -> c_int => barrier::barrier_wait, ();
    unwinding pthread_once (control: *mut pthread_once_t, initialise: Option<Initialiser>) -> c_int => barrier::once, ();

    // The same in C11.
    lock mtx_lock (mutex: *mut pthread_mutex_t) -> c_int => c11::mtx_lock, ();
    lock mtx_timedlock (mutex: *mut pthread_mutex_t, time: *const timespec) -> c_int => c11::mtx_timedlock, ();
    lock mtx_unlock (mutex: *mut pthread_mutex_t) -> c_int => c11::mtx_unlock, ();
    unwinding cnd_wait (condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int => c11::cnd_wait, ();
    unwinding cnd_timedwait (condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, time: *const timespec) -> c_int => c11::cnd_timedwait, ();
    lock cnd_signal (condition: *mut pthread_cond_t) -> c_int => c11::cnd_signal, ();
    lock cnd_broadcast (condition: *mut pthread_cond_t) -> c_int => c11::cnd_broadcast, ();
    unwinding call_once (flag: *mut pthread_once_t, initialise: Option<Initialiser>) -> () => c11::call_once, ();
    fiber thrd_join (thread: pthread_t, result: *mut c_int) -> c_int => c11::thrd_join, absent(c11::ERROR);

    // Signals.
    fiber sigwait (set: *const sigset_t, found: *mut c_int) -> c_int => signal::sigwait, absent(libc::ENOSYS);
    fiber sigwaitinfo (set: *const sigset_t, information: *mut siginfo_t) -> c_int => signal::sigwaitinfo,
        syscall!(SYS_rt_sigtimedwait, set, information, 0, 8);
    fiber sigtimedwait (set: *const sigset_t, information: *mut siginfo_t, time: *const timespec) -> c_int => signal::sigtimedwait,
        syscall!(SYS_rt_sigtimedwait, set, information, time, 8);
    fiber pause () -> c_int => signal::pause, syscall!(SYS_ppoll, 0, 0, 0, 0, 0);
    fiber sigsuspend (mask: *const sigset_t) -> c_int as __sigsuspend => signal::sigsuspend, syscall!(SYS_rt_sigsuspend, mask, 8);
    everyone sigaction (number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int => signal::sigaction, ();
    everyone siginterrupt (number: c_int, ends_calls: c_int) -> c_int => signal::siginterrupt, ();
    everyone signal (number: c_int, handler: sighandler_t) -> sighandler_t as bsd_signal as ssignal => signal::signal, ();

    // Files.
    fiber pread (fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t) -> ssize_t as pread64 => file::pread, syscall!(SYS_pread64, fd, buffer, length, offset);
    fiber preadv (fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t as preadv64 => file::preadv, syscall!(SYS_preadv, fd, list, count, offset, 0);
    fiber preadv2 (fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t as preadv64v2 => file::preadv2,
        syscall!(SYS_preadv2, fd, list, count, offset, 0, flags);
    fiber open (path: *const c_char, flags: c_int, mode: mode_t) -> c_int as open64 as __open as __open64 => file::open, syscall!(SYS_openat, libc::AT_FDCWD, path, flags, mode);
    fiber openat (directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int as openat64 => file::openat, syscall!(SYS_openat, directory, path, flags, mode);
    fiber __open_2 (path: *const c_char, flags: c_int) -> c_int as __open64_2 => file::open_without_mode,
        syscall!(SYS_openat, libc::AT_FDCWD, path, flags, 0);
    fiber __openat_2 (directory: c_int, path: *const c_char, flags: c_int) -> c_int as __openat64_2 => file::openat_without_mode,
        syscall!(SYS_openat, directory, path, flags, 0);
    fiber lockf (fd: c_int, command: c_int, length: off_t) -> c_int as lockf64 => file::lockf, absent(-libc::ENOSYS);
    fiber fsync (fd: c_int) -> c_int => file::fsync, syscall!(SYS_fsync, fd);
    fiber fdatasync (fd: c_int) -> c_int => file::fdatasync, syscall!(SYS_fdatasync, fd);
    fiber flock (fd: c_int, operation: c_int) -> c_int => file::flock, syscall!(SYS_flock, fd, operation);

    // By number. The arguments that were not given are looked at by nobody.
    everyone syscall (number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long => raw::syscall, ();

    // Descriptors.
    everyone close (fd: c_int) -> c_int as __close => descriptor::close, ();
    everyone closefrom (first: c_int) -> c_int => descriptor::closefrom, ();
    everyone fclose (stream: *mut FILE) -> c_int => descriptor::fclose, ();
    everyone dup (fd: c_int) -> c_int => descriptor::dup, ();
    everyone dup2 (old: c_int, new: c_int) -> c_int as __dup2 => descriptor::dup2, ();
    everyone dup3 (old: c_int, new: c_int, flags: c_int) -> c_int => descriptor::dup3, ();
    everyone close_range (first: c_uint, last: c_uint, flags: c_int) -> c_int => descriptor::close_range, ();
    everyone fcntl (fd: c_int, command: c_int, argument: usize) -> c_int as fcntl64 as __fcntl => descriptor::fcntl, ();
    everyone ioctl (fd: c_int, request: c_ulong, argument: usize) -> c_int => descriptor::ioctl, ();
    everyone socket (domain: c_int, kind: c_int, protocol: c_int) -> c_int => descriptor::socket, ();
    everyone socketpair (domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int => descriptor::socketpair, ();
    everyone shutdown (fd: c_int, how: c_int) -> c_int => descriptor::shutdown, ();
    everyone getsockopt (fd: c_int, level: c_int, name: c_int, value: *mut c_void, size: *mut socklen_t) -> c_int => descriptor::getsockopt, ();
    everyone setsockopt (fd: c_int, level: c_int, name: c_int, value: *const c_void, size: socklen_t) -> c_int => descriptor::setsockopt, ();
}

/// The C library's function of this name, which in a fiber ends the fiber. Unlike all others it unwinds.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    // SAFETY: the arguments are those that the function was called with.
    unsafe { child::pthread_exit(value) }
}

/// The same in C11.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn thrd_exit(result: c_int) -> ! {
    // SAFETY: the arguments are those that the function was called with.
    unsafe { child::pthread_exit(result as usize as *mut c_void) }
}

/// It is `fork`: a child that shares its parent's memory would close the parent's descriptors in our books.
///
/// # Safety
/// As the C library's.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // It returns twice, to the caller: so it must not have a frame of its own.
    std::arch::naked_asm!("jmp {fork}", fork = sym libc::fork)
}

/// It is `fork`: a child that shares its parent's memory would close the parent's descriptors in our books.
///
/// # Safety
/// As the C library's.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // It returns twice, to the caller: so it must not have a frame of its own.
    std::arch::naked_asm!("b {fork}", fork = sym libc::fork)
}

/// The names of those that are defined by hand.
pub(super) const OTHERS: &[&str] = &["pthread_exit", "thrd_exit", "vfork"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// The file that a function is in.
    fn file_of(address: *const c_void) -> String {
        // SAFETY: what is found is looked at only if there is something.
        unsafe {
            let mut found = std::mem::zeroed::<libc::Dl_info>();
            assert_ne!(libc::dladdr(address, &mut found), 0);
            CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned()
        }
    }

    /// The definition of a name that everybody in the program finds, libraries included; or, instead of the program's own, the
    /// next one.
    fn definition_of(name: &str, which: *mut c_void) -> Option<*const c_void> {
        let name = CString::new(name).unwrap();
        // SAFETY: the name is a string of C's.
        let address = unsafe { libc::dlsym(which, name.as_ptr()) };
        (!address.is_null()).then_some(address.cast_const())
    }

    #[test]
    fn the_programs_own_definitions_win() {
        let own = file_of(read as *const c_void);
        let malloc = definition_of("malloc", libc::RTLD_DEFAULT).unwrap();
        assert_ne!(file_of(malloc), own, "malloc is not hooked");
        let mut found = 0;
        for name in SYMBOLS.iter().chain(CHECKED).chain(OTHERS) {
            match definition_of(name, libc::RTLD_DEFAULT) {
                Some(definition) => assert_eq!(file_of(definition), own, "{name}"),
                // Only what a library defines is seen by others, and some of the old names are not there on every machine.
                None => assert_eq!(definition_of(name, libc::RTLD_NEXT), None, "{name}"),
            }
            found += usize::from(definition_of(name, libc::RTLD_DEFAULT).is_some());
        }
        assert!(found >= NAMES.len(), "{found} of {} names", NAMES.len());
    }
}
