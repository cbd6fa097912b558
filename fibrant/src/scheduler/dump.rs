//! The dump: what every fiber and every worker of a runtime is doing.

use super::crew::{Crew, Phase};
use super::roster::Place;
use super::scheduled::Scheduled;
use crate::clock;
use crate::fiber::WaitReason;
use crate::stats::HookStats;
use crate::sys;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What a runtime's workers and fibers were doing at about one moment: [`Handle::dump`](crate::runtime::Handle::dump).
///
/// `{}` prints it for people; [`to_json`](Dump::to_json) is for programs.
///
/// ```
/// use fibrant::runtime::Runtime;
///
/// fibrant::run(|| {
///     let parked = fibrant::Builder::new().name("waits").spawn(fibrant::fiber::park).unwrap();
///     fibrant::yield_now();
///     let dump = Runtime::current().unwrap().dump();
///     let fiber = dump.fibers.iter().find(|fiber| fiber.name.as_deref() == Some("waits")).unwrap();
///     println!("{dump}");
///     assert!(dump.to_json().contains("\"name\":\"waits\""));
///     parked.fiber().unpark();
/// #   let _ = fiber;
/// });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The runtime's name.
    pub runtime: String,
    /// Whether it is being stopped.
    pub stopping: bool,
    /// Its workers, by index.
    pub workers: Vec<WorkerDump>,
    /// Its fibers.
    pub fibers: Vec<FiberDump>,
    /// What was counted of the hooked functions that its fibers have called.
    pub hooks: Vec<HookStats>,
}

/// What one worker was doing, in a [`Dump`].
///
/// ```
/// use fibrant::runtime::Runtime;
///
/// fibrant::run(|| {
///     let dump = Runtime::current().unwrap().dump();
///     assert!(dump.workers[0].active);
/// });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerDump {
    /// Its index.
    pub index: usize,
    /// The number of the system's thread that it is, 0 if none has been yet.
    pub thread: i32,
    /// Whether a thread is at work here; the caller's worker is active only while the caller is in `run`.
    pub active: bool,
    /// Whether it sleeps until something happens.
    pub idle: bool,
    /// The fiber that runs, or last did before the worker polled.
    pub current: Option<u64>,
    /// For how long it has been stuck in that fiber, if it is: see
    /// [`Builder::stuck_after`](crate::runtime::Builder::stuck_after).
    pub stuck: Option<Duration>,
    /// How many fibers could go on, as of its last poll.
    pub ready: usize,
    /// How many fibers here have not started.
    pub fresh: usize,
    /// How many have started and not ended.
    pub started: usize,
    /// How many turns it has made, as of its last poll: switches from one fiber to another.
    pub turns: u64,
    /// How many fibers it has stolen from others.
    pub steals: u64,
    /// How often it has polled.
    pub polls: u64,
    /// How many deadlines (sleeps, timeouts, timers) are pending here, as of its last poll.
    pub timers: usize,
    /// How many event callbacks are pending here.
    pub events: usize,
}

/// What one fiber was doing, in a [`Dump`].
///
/// ```
/// use fibrant::runtime::Runtime;
///
/// fibrant::run(|| {
///     let me = fibrant::fiber::current().unwrap().id();
///     let dump = Runtime::current().unwrap().dump();
///     assert!(dump.fibers.iter().any(|fiber| fiber.id == me));
/// });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FiberDump {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: Option<String>,
    /// The index of the worker that it is with.
    pub worker: usize,
    /// Whether it has started.
    pub started: bool,
    /// What it waits for; `None` if it runs, can run, or has not started.
    pub wait: Option<WaitReason>,
    /// More about what it waits for, if that is one of [`sync`](crate::sync)'s: its kind and name, who holds it and since when, who
    /// waits for it.
    pub subject: Option<String>,
    /// The hooked call that it waits in.
    pub call: Option<&'static str>,
    /// Who is at the other end of the socket that it waits for.
    pub peer: Option<String>,
    /// For how long it has waited, to within its worker's last poll.
    pub waited: Option<Duration>,
    /// Whether it has been asked to end.
    pub cancelled: bool,
    /// Where it was spawned, as `file:line:column`.
    pub spawned_at: String,
}

impl Dump {
    /// What the crew is doing.
    pub(crate) fn of(crew: &Crew) -> Dump {
        let now = clock::now();
        let mut fibers = Vec::new();
        let workers = crew.desks.iter().enumerate().map(|(index, desk)| {
            let mut unstarted = 0;
            let mut current = None;
            let running = desk.running.load(Relaxed);
            desk.roster.for_each(|fiber, place| {
                if fiber.as_ptr() == running {
                    // SAFETY: it is on the roster, whose lock is held, so it has not ended.
                    current = Some(unsafe { fiber.as_ref() }.task.id());
                }
                unstarted += usize::from(place != Place::Started);
                fibers.push(FiberDump::of(fiber, place, index, now));
            });
            WorkerDump {
                index,
                thread: desk.thread.load(Relaxed),
                active: desk.is_manned.load(Relaxed),
                idle: desk.inbox().is_asleep(),
                current,
                stuck: match desk.stuck_since.load(Relaxed) {
                    0 => None,
                    since => Some(Duration::from_nanos(now.saturating_sub(since))),
                },
                ready: desk.ready.load(Relaxed),
                fresh: unstarted,
                started: desk.roster.started(),
                turns: desk.turns.load(Relaxed),
                steals: desk.steals.load(Relaxed),
                polls: desk.polls.load(Relaxed),
                timers: desk.alarms.load(Relaxed),
                events: desk.events.load(Relaxed),
            }
        });
        Dump {
            runtime: crew.name.clone(),
            stopping: crew.phase() != Phase::Open,
            workers: workers.collect(),
            fibers,
            hooks: Vec::new(), // named by those who know the names
        }
    }

    /// The dump as JSON.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let json = fibrant::runtime::Runtime::current().unwrap().dump().to_json();
    ///     assert!(json.starts_with("{\"runtime\":"));
    /// });
    /// ```
    pub fn to_json(&self) -> String {
        let workers: Vec<String> = self.workers.iter().map(WorkerDump::to_json).collect();
        let fibers: Vec<String> = self.fibers.iter().map(FiberDump::to_json).collect();
        let hooks: Vec<String> = self.hooks.iter().map(hook_json).collect();
        format!(
            "{{\"runtime\":{},\"stopping\":{},\"workers\":[{}],\"fibers\":[{}],\"hooks\":[{}]}}",
            json_string(&self.runtime),
            self.stopping,
            workers.join(","),
            fibers.join(","),
            hooks.join(",")
        )
    }
}

impl WorkerDump {
    fn to_json(&self) -> String {
        format!(
            "{{\"index\":{},\"thread\":{},\"active\":{},\"idle\":{},\"current\":{},\"stuck_ms\":{},\"ready\":{},\"fresh\":{},\"started\":{},\
             \"turns\":{},\"steals\":{},\"polls\":{},\"timers\":{},\"events\":{}}}",
            self.index,
            self.thread,
            self.active,
            self.idle,
            self.current
                .map_or_else(|| "null".to_owned(), |id| id.to_string()),
            self.stuck
                .map_or_else(|| "null".to_owned(), |stuck| stuck.as_millis().to_string()),
            self.ready,
            self.fresh,
            self.started,
            self.turns,
            self.steals,
            self.polls,
            self.timers,
            self.events
        )
    }
}

impl FiberDump {
    /// What a fiber on a roster, whose lock is held, is doing.
    pub(super) fn of(fiber: NonNull<Scheduled>, place: Place, worker: usize, now: u64) -> FiberDump {
        // SAFETY: whoever is on a roster has not ended; the lock keeps it there.
        let fiber = unsafe { fiber.as_ref() };
        let task = &fiber.task;
        let waiting = task.waiting();
        // SAFETY: it is null or a name in a table.
        let call = unsafe { fiber.call.load(Relaxed).as_ref() }.filter(|_| waiting.is_some());
        let peer = match waiting {
            Some((WaitReason::Descriptor { fd, .. }, _)) => sys::peer_of(fd),
            _ => None,
        };
        FiberDump {
            id: task.id(),
            name: task.name().map(str::to_owned),
            worker,
            started: place == Place::Started,
            wait: waiting.map(|(reason, _)| reason),
            subject: task.describe_subject(),
            call: call.copied(),
            peer,
            waited: waiting.map(|(_, since)| Duration::from_nanos(now.saturating_sub(since))),
            cancelled: task.wait.is_cancelled(),
            spawned_at: task.spawned_at().to_string(),
        }
    }

    fn to_json(&self) -> String {
        let or_null =
            |text: Option<String>| text.map_or_else(|| "null".to_owned(), |text| json_string(&text));
        format!(
            "{{\"id\":{},\"name\":{},\"worker\":{},\"started\":{},\"wait\":{},\"subject\":{},\"call\":{},\"peer\":{},\"waited_ms\":{},\"cancelled\":{},\"spawned_at\":{}}}",
            self.id,
            or_null(self.name.clone()),
            self.worker,
            self.started,
            or_null(self.wait.map(|wait| wait.to_string())),
            or_null(self.subject.clone()),
            or_null(self.call.map(str::to_owned)),
            or_null(self.peer.clone()),
            self.waited
                .map_or_else(|| "null".to_owned(), |waited| waited.as_millis().to_string()),
            self.cancelled,
            json_string(&self.spawned_at)
        )
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopping = if self.stopping { ", stopping" } else { "" };
        writeln!(
            f,
            "runtime '{}': {} workers, {} fibers{stopping}",
            self.runtime,
            self.workers.len(),
            self.fibers.len()
        )?;
        for worker in &self.workers {
            let doing = match (worker.active, worker.idle, worker.current) {
                (false, ..) => "nobody at work".to_owned(),
                (_, true, _) => "idle".to_owned(),
                (.., Some(id)) => {
                    let name = self.fibers.iter().find(|fiber| fiber.id == id);
                    let name = name.and_then(|fiber| fiber.name.as_ref());
                    let name = name.map_or_else(String::new, |name| format!(" '{name}'"));
                    match worker.stuck {
                        Some(time) => format!("STUCK in fiber {id}{name} for {time:.1?}"),
                        None => format!("running fiber {id}{name}"),
                    }
                }
                _ => "polling".to_owned(),
            };
            writeln!(
                f,
                "  worker {} (thread {}): {doing}; {} ready, {} fresh, {} started; {} turns, {} steals, {} polls; \
                 {} timers, {} events",
                worker.index,
                worker.thread,
                worker.ready,
                worker.fresh,
                worker.started,
                worker.turns,
                worker.steals,
                worker.polls,
                worker.timers,
                worker.events
            )?;
        }
        for fiber in &self.fibers {
            write!(f, "  fiber {}", fiber.id)?;
            if let Some(name) = &fiber.name {
                write!(f, " '{name}'")?;
            }
            match (&fiber.wait, fiber.waited) {
                (Some(wait), Some(waited)) => {
                    let call = fiber.call.map_or_else(String::new, |call| format!("in {call}, "));
                    let peer = fiber.peer.as_ref();
                    let peer = peer.map_or_else(String::new, |peer| format!(" (peer {peer})"));
                    let subject = fiber.subject.as_ref();
                    let subject = subject.map_or_else(String::new, |subject| format!(" ({subject})"));
                    write!(f, ": {call}{wait}{peer}{subject} for {waited:.1?}")?;
                }
                _ if fiber.started => write!(f, ": running or ready")?,
                _ => write!(f, ": not started")?,
            }
            let cancelled = if fiber.cancelled { ", cancelled" } else { "" };
            writeln!(
                f,
                "{cancelled}; worker {}, spawned at {}",
                fiber.worker, fiber.spawned_at
            )?;
        }
        for hook in &self.hooks {
            writeln!(
                f,
                "  hook {}: {} calls, {} would block, {} parks, {} offloads",
                hook.name, hook.calls, hook.would_block, hook.parks, hook.offloads
            )?;
        }
        Ok(())
    }
}

fn hook_json(hook: &HookStats) -> String {
    format!(
        "{{\"name\":{},\"calls\":{},\"would_block\":{},\"parks\":{},\"offloads\":{}}}",
        json_string(hook.name),
        hook.calls,
        hook.would_block,
        hook.parks,
        hook.offloads
    )
}

/// A string as JSON has it.
fn json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            control if control.is_control() => json.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => json.push(other),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::json_string;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(json_string("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }
}
