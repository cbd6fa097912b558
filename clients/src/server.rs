//! Servers that a test starts for itself: on a free port of the loopback, in a folder of their own, gone when the test is.

use std::ffi::CStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to start. Only a broken one needs it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Someone else may take the port that was free: then the server is started again, so many times in all.
const ATTEMPTS: usize = 3;

/// A running server. Dropping it ends it, and so does the end of the thread that started it.
pub struct Server {
    process: Process,
    port: u16,
    // After the process, which uses it.
    folder: Folder,
}

impl Server {
    /// Starts a server and returns when it accepts connections. The command line is made of the folder, which is the server's
    /// alone, and the port. Servers refuse to run as root, or should: then it is `nobody` who runs them.
    ///
    /// # Panics
    ///
    /// With all that the server has printed, if it does not accept connections in good time.
    pub fn start(name: &str, command: impl Fn(&Path, u16) -> Command) -> Server {
        for _ in 0..ATTEMPTS {
            let folder = Folder::new(name);
            let port = free_port();
            let mut server = Server {
                process: Process::start(command(&folder.0, port), &folder),
                port,
                folder,
            };
            if server.accepts() {
                return server;
            }
            eprintln!("{name} does not start:\n{}", server.log());
        }
        panic!("{name} does not start, {ATTEMPTS} times");
    }

    /// Its port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// What it has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.log()).unwrap_or_default()
    }

    /// Waits until it accepts connections; false if it ends instead, or takes too long.
    fn accepts(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.process.has_ended() {
                return false;
            }
            if answers(self.port) {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the server's words:\n{}", self.log());
        }
    }
}

/// A port that nobody uses right now; and not one of those that the kernel gives to clients, which would take it away again.
fn free_port() -> u16 {
    const CHOICE: std::ops::Range<u32> = 10_000..30_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in CHOICE {
        // Other processes that run these tests begin elsewhere.
        let number =
            (std::process::id().wrapping_mul(100) + NEXT.fetch_add(1, Relaxed)) % (CHOICE.end - CHOICE.start);
        let port = u16::try_from(CHOICE.start + number).expect("the choice is of ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Whether somebody accepts connections there. A client that tries often enough may get the port itself, and is then connected to
/// itself.
fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .is_ok_and(|stream| stream.local_addr().ok() != stream.peer_addr().ok())
}

/// A process that ends when this is dropped.
struct Process(Child);

impl Process {
    fn start(mut command: Command, folder: &Folder) -> Process {
        let log = || File::options().append(true).create(true).open(folder.log());
        let log = || log().expect("the folder takes a file");
        // Where this process is, nobody may not be allowed to be.
        command.current_dir(&folder.0).stdin(Stdio::null());
        command.stdout(log()).stderr(log());
        restrain(&mut command);
        let child = command.spawn();
        Process(child.unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}")))
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let start = Instant::now();
        if !self.has_ended() {
            let id = libc::pid_t::try_from(self.0.id()).expect("process ids are small");
            // SAFETY: the process is a child that has not been waited for, so the id is still its own.
            unsafe { libc::kill(id, END) };
        }
        while !self.has_ended() && start.elapsed() < FAREWELL {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The signal that ends servers. PostgreSQL takes it for an order to stop at once, and tells its processes; others may want to end in
/// an orderly way.
const END: libc::c_int = libc::SIGQUIT;

/// How long they have for that.
const FAREWELL: Duration = Duration::from_secs(5);

/// Lets a command run as `nobody` if this is root, and end with the thread that starts it, however that ends.
fn restrain(command: &mut Command) {
    if let Some((user, group)) = unprivileged() {
        command.uid(user).gid(group);
    }
    let end = || {
        // SAFETY: a system call that changes nothing but the process.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, END) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: what it calls between fork and exec is a bare system call.
    unsafe { command.pre_exec(end) };
}

/// Who runs a server if this is root: `nobody`, by user and group.
fn unprivileged() -> Option<(u32, u32)> {
    const NOBODY: &CStr = c"nobody";
    // SAFETY: no arguments, no failure.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    // SAFETY: the name is a C string, and no other thread of the tests asks for users.
    let entry = unsafe { libc::getpwnam(NOBODY.as_ptr()) };
    assert!(!entry.is_null(), "there is no user 'nobody'");
    // SAFETY: it has just been found.
    Some(unsafe { ((*entry).pw_uid, (*entry).pw_gid) })
}

/// A folder for temporary files that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        // Short, because the names of sockets in it must be.
        let path = std::env::temp_dir().join(format!("fibrant-{name}-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let folder = Folder(path);
        if let Some((user, group)) = unprivileged() {
            chown(&folder.0, Some(user), Some(group)).expect("root may give a folder away");
        }
        folder
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
