//! Children of fibers: a hundred fibers on one worker each run a program with nothing but std, feed it more than a pipe holds,
//! and read what it says to the end. None of them may keep the others from running.

#[path = "common/patience.rs"]
mod patience;

use fibrant::runtime::{Builder, Runtime};
use patience::Watchdog;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const CHILDREN: usize = 100;

/// More than three times what a pipe holds.
const LENGTH: usize = 200_000;

/// What a fiber tells its child: no two say the same.
fn speech(fiber: usize) -> Vec<u8> {
    (0..LENGTH).map(|index| (index / 7 + 31 * fiber) as u8).collect()
}

fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command
}

fn piped(mut command: Command) -> Child {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A hundred children at a time are enough.
static ALONE: Mutex<()> = Mutex::new(());

/// How many children there are at once, and how many there have been at most.
#[derive(Default)]
struct Count {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Count {
    fn come(&self) -> usize {
        let now = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        now
    }

    fn go(&self) {
        self.now.fetch_sub(1, SeqCst);
    }
}

/// Runs a body in a hundred fibers of one worker, and returns the most that had called `come` without `go` at a time.
fn hundred(body: impl Fn(usize, &Count) + Send + Sync + 'static) -> usize {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    watchdog.show(&runtime);
    let (body, count) = (Arc::new(body), Arc::new(Count::default()));
    let fibers: Vec<_> = (0..CHILDREN)
        .map(|fiber| {
            let (body, count) = (Arc::clone(&body), Arc::clone(&count));
            runtime.spawn(move || body(fiber, &count))
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    let waits = runtime.stats().descriptor_waits;
    assert!(waits >= CHILDREN as u64, "they waited as fibers do: {waits}");
    runtime.stop().unwrap();
    count.most.load(SeqCst)
}

/// A sibling that counts its turns. It shows that nobody keeps the worker.
fn pulse(runtime: &Runtime) -> Arc<AtomicUsize> {
    let beats = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&beats);
    runtime.spawn(move || {
        // Until nobody else has it.
        while Arc::strong_count(&own) > 1 {
            own.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
    });
    beats
}

#[test]
fn a_hundred_children_are_fed_and_heard() {
    // One fiber feeds and one listens, as two threads would: the child says everything back, and would wait for a listener.
    let most = hundred(|fiber, count| {
        let mut child = piped(Command::new("cat"));
        count.come();
        let mut input = child.stdin.take().unwrap();
        let feeder = fibrant::spawn(move || input.write_all(&speech(fiber)).unwrap());
        let mut heard = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut heard).unwrap();
        feeder.join().unwrap();
        count.go();
        assert!(child.wait().unwrap().success());
        assert!(heard == speech(fiber), "child {fiber} said something else");
    });
    assert!(most > 1, "one after the other");
}

#[test]
fn a_child_that_listens_late_is_waited_for() {
    // No child reads before all of them live: if a write kept the worker, there would never be so many.
    let most = hundred(|fiber, count| {
        let mut child = piped(shell("read go; cat >/dev/null; echo $go; exit 3"));
        count.come();
        let mut input = child.stdin.take().unwrap();
        patience::eventually("all children live", || count.most.load(SeqCst) == CHILDREN);
        input.write_all(format!("word {fiber}\n").as_bytes()).unwrap();
        input.write_all(&speech(fiber)).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("word {fiber}\n")
        );
    });
    assert_eq!(most, CHILDREN);
}

#[test]
fn output_takes_what_comes_from_both_pipes() {
    // The children share it, and wait for its end.
    let (gate, opener) = io::pipe().unwrap();
    let opener = Mutex::new(Some(opener));
    let most = hundred(move |fiber, count| {
        // More than a pipe holds in each, one after the other: whoever reads only one of them never ends.
        let noise = "head -c 100000 /dev/zero | tr '\\0'";
        let line = format!("cat; {noise} e >&2; {noise} o; {noise} e >&2; exit {fiber}");
        let mut command = shell(&line);
        command.stdin(gate.try_clone().unwrap());
        if count.come() == CHILDREN {
            drop(opener.lock().unwrap().take());
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(fiber as i32));
        assert!(output.stdout == [b'o'; 100_000] && output.stderr == [b'e'; 200_000]);
    });
    assert_eq!(most, CHILDREN, "one is not kept waiting by another");
}

#[test]
fn children_with_something_to_do_before_they_begin() {
    // This makes std fork, instead of having the C library do it.
    let most = hundred(|fiber, count| {
        let mut command = Command::new("cat");
        // SAFETY: it only asks and calls the kernel, which a child may do.
        unsafe {
            command.pre_exec(move || {
                // Nothing is hooked in the child: it sleeps as it is, and its closes are its own.
                libc::usleep(1000);
                libc::close(libc::dup(0));
                if fiber % 10 == 9 {
                    return Err(io::Error::from_raw_os_error(libc::EDOM));
                }
                Ok(())
            })
        };
        count.come();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        if fiber % 10 == 9 {
            assert_eq!(spawned.unwrap_err().raw_os_error(), Some(libc::EDOM));
            return;
        }
        let mut child = spawned.unwrap();
        let mut input = child.stdin.take().unwrap();
        let feeder = fibrant::spawn(move || input.write_all(&speech(fiber)).unwrap());
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        count.go();
        assert!(output.status.success() && output.stdout == speech(fiber));
    });
    assert!(most > 1, "one after the other");
}

#[test]
fn a_child_that_is_killed_is_waited_for() {
    let most = hundred(|_, count| {
        let mut child = piped(Command::new("cat"));
        count.come();
        patience::eventually("all children live", || count.most.load(SeqCst) == CHILDREN);
        assert!(child.try_wait().unwrap().is_none(), "it waits for input");
        let mut output = child.stdout.take().unwrap();
        let listener = fibrant::spawn(move || output.read_to_end(&mut Vec::new()).unwrap());
        fibrant::yield_now(); // it waits for what the child says
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!((status.signal(), status.code()), (Some(libc::SIGKILL), None));
        assert_eq!(listener.join().unwrap(), 0);
        assert_eq!(child.wait().unwrap(), status, "as often as one likes");
    });
    assert_eq!(most, CHILDREN);
}

#[test]
fn siblings_run_while_one_waits_for_a_child() {
    let watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    watchdog.show(&runtime);
    let beats = pulse(&runtime);
    let seen = Arc::clone(&beats);
    let waiter = runtime.spawn(move || {
        let mut child = piped(shell("read word; exit 4"));
        let input = child.stdin.take();
        let before = seen.load(Relaxed);
        let closer = fibrant::spawn(move || {
            // The child ends only after its parent's siblings have had many turns during the wait.
            patience::eventually("the pulse goes on", || seen.load(Relaxed) > before + 20);
            drop(input);
        });
        let status = child.wait().unwrap();
        closer.join().unwrap();
        status.code()
    });
    assert_eq!(waiter.join().unwrap(), Some(4));
    drop(beats);
    runtime.stop().unwrap();
}
