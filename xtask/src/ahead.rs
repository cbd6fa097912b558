//! Building ahead: what later steps of `test` need is built while the tests of earlier ones run, which sleep most of the time.
//!
//! `test` starts it, and ends it by dropping it. It runs the commands one after the other, on processors that are idle otherwise (a test
//! that wakes up takes its processor at once, which niceness alone would not give it), and shows nothing of what they print: if something
//! does not build, the step that it is for says so, which runs the same command.

use crate::run;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Commands that are being run, until this is dropped.
pub struct Ahead {
    progress: Arc<Mutex<Progress>>,
    thread: Option<JoinHandle<()>>,
}

/// How far they have got.
#[derive(Default)]
struct Progress {
    child: Option<Child>,
    is_over: bool,
}

impl Ahead {
    /// Begins to run these commands, in this order.
    pub fn start(commands: Vec<Command>) -> Ahead {
        let progress = Arc::<Mutex<Progress>>::default();
        let shared = Arc::clone(&progress);
        let thread = thread::spawn(move || {
            for command in commands {
                // Between two of them it may be over.
                if !begin(&shared, command) {
                    return;
                }
                while is_running(&shared) {
                    thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Ahead {
            progress,
            thread: Some(thread),
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        {
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.is_over = true;
            if let Some(mut child) = progress.child.take() {
                // What is left of it is not worth a word: the steps that it was for have run, or never will.
                let _ = run::end(&mut child);
            }
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Begins a command, unless it is over. One that cannot be begun is left to its step.
fn begin(progress: &Mutex<Progress>, command: Command) -> bool {
    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
    if !progress.is_over {
        progress.child = humble(&command).spawn().ok();
    }
    !progress.is_over
}

fn is_running(progress: &Mutex<Progress>) -> bool {
    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
    let is_running = progress
        .child
        .as_mut()
        .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
    if !is_running {
        progress.child = None;
    }
    is_running
}

/// The same command at the lowest priority, in a group of its own, and silent.
fn humble(command: &Command) -> Command {
    let mut humble = run::line("chrt --idle 0 nice -n 19");
    humble.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => humble.env(name, value),
            None => humble.env_remove(name),
        };
    }
    humble
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    humble
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::Instant;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("xtask-ahead-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    fn shell(script: String) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    }

    fn wait_for(path: &Path) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let text = fs::read_to_string(path).unwrap_or_default();
            if text.ends_with('\n') {
                return text;
            }
            assert!(Instant::now() < deadline, "{} is not written", path.display());
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn commands_run_in_order_humbly_and_whatever_fails() {
        let (path, end) = (scratch("order"), scratch("order-end"));
        let write = |what: &str| shell(format!("{what} >> {}", path.display()));
        let mut commands = vec![
            write("nice"),
            shell("exit 1".to_owned()),
            run::line("no-such-program"),
        ];
        commands.extend([write("echo last"), shell(format!("echo > {}", end.display()))]);
        let ahead = Ahead::start(commands);
        wait_for(&end);
        assert_eq!(fs::read_to_string(&path).unwrap(), "19\nlast\n");
        drop(ahead);
        let _ = fs::remove_file(&path);
        let _ = fs::remove_file(&end);
    }

    #[test]
    fn what_runs_is_ended_and_nothing_more_begins() {
        let (path, never) = (scratch("end"), scratch("end-never"));
        let sleeps = shell(format!("sleep 600 & echo $! > {}; wait", path.display()));
        let ahead = Ahead::start(vec![sleeps, shell(format!("echo > {}", never.display()))]);
        let status = format!("/proc/{}/status", wait_for(&path).trim());
        drop(ahead);
        let deadline = Instant::now() + Duration::from_secs(60);
        // It is not our child, so nothing says when the signal has reached it; and its new parent may not have noticed yet.
        while fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ")) {
            assert!(Instant::now() < deadline, "it is still running");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!never.exists());
        let _ = fs::remove_file(&path);
    }
}
