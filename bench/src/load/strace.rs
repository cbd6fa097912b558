//! Counts a server's system calls with strace, which is attached to it while nothing is asked of it, and leaves it in the same state: all
//! requests in between are seen, and nothing else is. [`super::run`] calls it.
//!
//! A server that is watched is many times slower, so that more requests wait for it at a time: calls that are shared by requests, such
//! as epoll_wait, are fewer than they would be otherwise.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use super::Outcome;
use super::server::ends_with_us;

/// A strace that watches a process.
pub struct Strace {
    process: Child,
    output: BufReader<ChildStderr>,
}

impl Strace {
    /// Begins to watch a process with all its threads.
    pub fn attach(id: libc::pid_t) -> Outcome<Self> {
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-p", &id.to_string()]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        ends_with_us(&mut command);
        let mut process = command
            .spawn()
            .map_err(|error| format!("strace cannot start: {error}"))?;
        let output = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut strace = Self { process, output };
        let mut line = String::new();
        match strace.output.read_line(&mut line) {
            Ok(_) if line.contains("attached") => Ok(strace),
            _ => Err(match line.trim() {
                "" => "strace ended at once".into(),
                reason if reason.starts_with("strace") => reason.to_owned(),
                reason => format!("strace: {reason}"),
            }),
        }
    }

    /// Ends the watch: the calls that were seen, by name.
    pub fn detach(mut self) -> Outcome<Vec<(String, u64)>> {
        // SAFETY: the process is our child and has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGINT) };
        let mut text = String::new();
        self.output
            .read_to_string(&mut text)
            .map_err(|error| error.to_string())?;
        let calls = calls(&text);
        if calls.is_empty() {
            return Err(format!("strace has seen no calls: {}", text.trim()));
        }
        Ok(calls)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The calls in strace's summary. Its columns are the share of time, seconds, microseconds for each call, calls, errors if there were
/// any, and the name.
fn calls(summary: &str) -> Vec<(String, u64)> {
    summary
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (5 | 6, Some(&name)) = (fields.len(), fields.last()) else {
                return None;
            };
            fields[0].parse::<f64>().ok()?;
            let calls = fields[3].parse().ok()?;
            (name != "total").then(|| (name.to_owned(), calls))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_summary() {
        let summary = "\
strace: Process 4711 detached
strace: Process 4712 detached
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 54.07    0.110270           5     20018           write
 45.60    0.093000           4     20020         2 read
  0.33    0.000672           3       201           epoll_wait
------ ----------- ----------- --------- --------- ----------------
100.00    0.203942           5     40239         2 total
";
        let expected = [("write", 20018), ("read", 20020), ("epoll_wait", 201)];
        assert_eq!(calls(summary), expected.map(|(name, calls)| (name.into(), calls)));
        assert!(calls("strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted").is_empty());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let error = Strace::attach(libc::pid_t::MAX).map(|_| ()).unwrap_err();
        assert!(error.starts_with("strace"), "{error}");
    }
}
