//! A server as a process: it is started, stopped between its turns, asked for its processor time, and ends with the load generator,
//! however that ends. [`super::run`] calls it.

use std::fs;
use std::io::{self, Read};
use std::mem::{self, MaybeUninit};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use crate::threads;

/// How long a server may take until it says that it is ready.
const PATIENCE: Duration = Duration::from_secs(20);

const ENDED: &str = "ended before it was ready";

/// The processors of a measurement.
#[derive(Clone, Copy, Default)]
pub struct Seats {
    /// The server's and the generator's, if they have one each.
    own: Option<(usize, usize)>,
}

impl Seats {
    /// The first processor is the server's and the last one the generator's, where there are two.
    pub fn apart() -> Self {
        // SAFETY: all zeros is the empty set, which is there to be written to.
        let (result, set) = unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            (libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set), set)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        let mut all = (0..libc::CPU_SETSIZE as usize)
            // SAFETY: a number within the set.
            .filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) });
        let own = all
            .next()
            .and_then(|first| all.next_back().map(|last| (first, last)));
        Self { own }
    }

    /// The calling thread, and what it starts, takes the generator's.
    pub fn take(self) {
        if let Some((_, last)) = self.own {
            threads::bind(&[last]);
        }
    }
}

/// A command's process will end with this thread, if not before.
pub fn ends_with_us(command: &mut Command) {
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    };
}

/// A server that runs.
pub struct Server {
    process: Child,
    /// Stays open: a server may print what it likes.
    _output: ChildStdout,
    /// Where it listens.
    pub port: u16,
}

impl Server {
    /// Starts a server, and waits until it says where it listens.
    pub fn start(command: &str, seats: Seats) -> Outcome<Self> {
        let mut shell = Command::new("sh");
        // The process is the server's own then, not a shell's that waits for it.
        shell.arg("-c").arg(format!("exec {command}"));
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        ends_with_us(&mut shell);
        if let Some((first, _)) = seats.own {
            // SAFETY: between fork and exec only system calls are made; `bind` allocates nothing unless it fails.
            unsafe {
                shell.pre_exec(move || {
                    threads::bind(&[first]);
                    Ok(())
                })
            };
        }
        let mut process = shell.spawn().map_err(|error| format!("cannot start: {error}"))?;
        let mut output = process.stdout.take().expect("it is piped");
        match wait_until_ready(&mut output) {
            Ok(port) => Ok(Self {
                process,
                _output: output,
                port,
            }),
            Err(reason) => {
                let _ = process.kill();
                let status = process.wait().map_err(|error| error.to_string())?;
                Err(if reason == ENDED {
                    format!("{reason} ({status})")
                } else {
                    reason
                })
            }
        }
    }

    /// The number of the process.
    pub fn id(&self) -> libc::pid_t {
        self.process.id() as libc::pid_t
    }

    /// It does nothing until it may go on.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// It is its turn.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is our child and has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.id(), signal) };
    }

    /// The processor time of all its threads, to the nanosecond.
    pub fn processor_time(&self) -> Outcome<Duration> {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: both results are there to be written to; the time is read only if it was.
        unsafe {
            let mut clock = 0;
            match libc::clock_getcpuclockid(self.id(), &mut clock) {
                0 if libc::clock_gettime(clock, time.as_mut_ptr()) == 0 => {
                    let time = time.assume_init();
                    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
                }
                _ => Err("the process has no clock any more".into()),
            }
        }
    }

    /// The ticks of processor time that it spent itself, and the kernel on its behalf.
    pub fn ticks(&self) -> Outcome<(u64, u64)> {
        let stat =
            fs::read_to_string(format!("/proc/{}/stat", self.id())).map_err(|error| error.to_string())?;
        ticks(&stat).ok_or_else(|| format!("not the state of a process: {stat}"))
    }

    /// Waits until it does nothing any more, but not for long.
    pub fn let_settle(&self) -> Outcome<()> {
        let end = Instant::now() + Duration::from_secs(2);
        let mut before = self.processor_time()?;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
            let now = self.processor_time()?;
            if now - before < Duration::from_micros(200) {
                break;
            }
            before = now;
        }
        Ok(())
    }

    /// How it ended, if it did.
    pub fn end(&mut self) -> Option<String> {
        // One that crashes hangs up a moment before it can be waited for.
        for _ in 0..20 {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status.to_string());
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The port in the line that says so; before it may come others.
fn wait_until_ready(output: &mut ChildStdout) -> Outcome<u16> {
    let end = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd {
            fd: output.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `poll` is there to be read and written to.
        if left.is_zero() || unsafe { libc::poll(&mut poll, 1, left.as_millis() as libc::c_int) } == 0 {
            return Err(format!("not ready after {} s", PATIENCE.as_secs()));
        }
        // Byte by byte: it is one line.
        let mut byte = [0];
        match output.read(&mut byte) {
            Ok(0) => return Err(ENDED.into()),
            Ok(_) if byte != *b"\n" => line.push(byte[0]),
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                if let Some(port) = text.strip_prefix("READY ") {
                    return port.trim().parse().map_err(|_| format!("not a port: {port}"));
                }
                if let Some((_, reason)) = text.split_once("FAIL: ") {
                    return Err(reason.split('\t').next().unwrap_or(reason).to_owned());
                }
                line.clear();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The user's and the system's time in what /proc says of a process.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    // The second field is the name, in parentheses, and may hold both blanks and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_state_of_a_process() {
        let stat = "26231 (a ) b) R 5392 7446 5392 34835 7446 0 421 0 0 0 17 23 1 2 20 0 1 0";
        assert_eq!(ticks(stat), Some((17, 23)));
        assert_eq!(ticks("26231 (vim) R 5392"), None);
    }

    #[test]
    fn a_server_that_cannot_run_says_why() {
        let start = |command| Server::start(command, Seats::default()).map(|_| ()).unwrap_err();
        assert_eq!(
            start("printf 'x\\techo\\t-\\tFAIL: no io_uring\\t-\\n'"),
            "no io_uring"
        );
        assert_eq!(start("false"), "ended before it was ready (exit status: 1)");
        assert_eq!(start("echo READY soon"), "not a port: soon");
    }

    #[test]
    fn a_server_may_say_something_before_it_is_ready() {
        let server = Server::start(
            "sh -c 'echo hello; echo READY 80; exec sleep 60'",
            Seats::default(),
        );
        let server = server.expect("a server");
        assert_eq!(server.port, 80);
        assert!(server.processor_time().expect("its time") > Duration::ZERO);
        server.ticks().expect("its ticks");
    }
}
