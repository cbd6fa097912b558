//! The dump: what every fiber and every worker of a runtime is doing.

use super::crew::{Crew, Phase};
use super::desk::Desk;
use super::roster::Place;
use super::scheduled::Scheduled;
use crate::clock;
use crate::fiber::WaitReason;
use crate::stats::HookStats;
use crate::sys;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};
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
    /// Its workers, by index, and then its guests: threads that are in [`Runtime::run`](crate::runtime::Runtime::run) of a runtime
    /// that was built without `use_caller`.
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
    /// Its index; those of guests come after those of workers.
    pub index: usize,
    /// Whether it is a guest.
    pub guest: bool,
    /// The number of the system's thread that it is, 0 if none has been yet.
    pub thread: i32,
    /// Whether a thread is at work here; the caller's worker is active only while the caller is in `run`.
    pub active: bool,
    /// Whether it sleeps until something happens.
    pub idle: bool,
    /// Whether it will end: its runtime is being stopped.
    pub stopping: bool,
    /// The fiber that runs; none while the worker looks for one.
    pub current: Option<u64>,
    /// For how long it has been stuck in that fiber, if it is: see
    /// [`Builder::stuck_after`](crate::runtime::Builder::stuck_after).
    pub stuck: Option<Duration>,
    /// How many fibers could go on: they are in its run queue, or in its inbox.
    pub ready: usize,
    /// How many fibers here have not started, and may be stolen by others.
    pub fresh: usize,
    /// How many have not started, and are bound to this worker.
    pub bound: usize,
    /// How many have started and not ended.
    pub started: usize,
    /// How many switches from one stack to another it has made.
    pub switches: u64,
    /// How many fibers it has stolen from others.
    pub steals: u64,
    /// How often it has polled.
    pub polls: u64,
    /// How often others have woken it from its sleep.
    pub wakes: u64,
    /// How many deadlines (sleeps, timeouts, timers) are pending here, as of its last poll.
    pub timers: usize,
    /// How many event callbacks are pending here.
    pub events: usize,
}

/// What state a fiber was in, in a [`Dump`].
///
/// ```
/// use fibrant::runtime::{FiberState, Runtime};
///
/// fibrant::run(|| {
///     let fresh = fibrant::spawn(|| ());
///     let dump = Runtime::current().unwrap().dump();
///     let state_of = |id| dump.fibers.iter().find(|fiber| fiber.id == id).unwrap().state;
///     assert_eq!(state_of(fibrant::fiber::current().unwrap().id()), FiberState::Running);
/// #   let _ = fresh;
/// });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FiberState {
    /// It has not started.
    Fresh,
    /// It could go on, as soon as it is its turn.
    Ready,
    /// It runs.
    Running,
    /// It waits for something.
    Waiting,
}

impl fmt::Display for FiberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FiberState::Fresh => "not started",
            FiberState::Ready => "ready",
            FiberState::Running => "running",
            FiberState::Waiting => "waiting",
        })
    }
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
    /// What state it was in.
    pub state: FiberState,
    /// What it waits for; `None` if it runs, can run, or has not started.
    pub wait: Option<WaitReason>,
    /// More about what it waits for, if that is one of [`sync`](crate::sync)'s: its kind and name, who holds it and since when, who
    /// waits for it. Of a [`select!`](crate::select) with several arms, that of each channel in turn, with its address and whether it is
    /// to receive or to send; of the first eight, if there are more, and how many more.
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
        let stopping = crew.phase() != Phase::Open;
        let (workers, fibers) = crew.look_at_all(|| {
            let (mut workers, mut fibers) = (Vec::new(), Vec::new());
            crew.every_desk(|index, desk| {
                let with_it = FiberDump::of_all(desk, index, now);
                workers.push(WorkerDump {
                    guest: index >= crew.desks.len(),
                    stopping,
                    ..WorkerDump::of(desk, index, now, &with_it)
                });
                fibers.extend(with_it.into_iter().map(|(_, fiber)| fiber));
                true
            });
            (workers, fibers)
        });
        Dump {
            runtime: crew.name.clone(),
            stopping,
            workers,
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
    /// What a worker that these fibers are with is doing.
    fn of(desk: &Desk, index: usize, now: u64, fibers: &[(Place, FiberDump)]) -> WorkerDump {
        let count = |place| fibers.iter().filter(|(its, _)| *its == place).count();
        let in_state = |state| fibers.iter().filter(move |(_, fiber)| fiber.state == state);
        WorkerDump {
            index,
            guest: false,
            thread: desk.thread.load(Relaxed),
            active: desk.is_manned.load(Relaxed),
            idle: desk.inbox().is_asleep(),
            stopping: false,
            current: in_state(FiberState::Running).next().map(|(_, fiber)| fiber.id),
            stuck: match desk.stuck_since.load(Relaxed) {
                0 => None,
                since => Some(Duration::from_nanos(now.saturating_sub(since))),
            },
            ready: in_state(FiberState::Ready).count(),
            fresh: count(Place::Fresh),
            bound: count(Place::Bound),
            started: count(Place::Started),
            switches: desk.switches(),
            steals: desk.steals.load(Relaxed),
            polls: desk.polls.load(Relaxed),
            wakes: desk.wakes.load(Relaxed),
            timers: desk.alarms.load(Relaxed),
            events: desk.events.load(Relaxed),
        }
    }

    fn to_json(&self) -> String {
        format!(
            "{{\"index\":{},\"guest\":{},\"thread\":{},\"active\":{},\"idle\":{},\"stopping\":{},\"current\":{},\"stuck_ms\":{},\
             \"ready\":{},\"fresh\":{},\"bound\":{},\"started\":{},\"switches\":{},\"steals\":{},\"polls\":{},\"wakes\":{},\
             \"timers\":{},\"events\":{}}}",
            self.index,
            self.guest,
            self.thread,
            self.active,
            self.idle,
            self.stopping,
            self.current
                .map_or_else(|| "null".to_owned(), |id| id.to_string()),
            self.stuck
                .map_or_else(|| "null".to_owned(), |stuck| stuck.as_millis().to_string()),
            self.ready,
            self.fresh,
            self.bound,
            self.started,
            self.switches,
            self.steals,
            self.polls,
            self.wakes,
            self.timers,
            self.events
        )
    }
}

impl FiberDump {
    /// What all fibers at a desk are doing, and where they are on its roster.
    pub(super) fn of_all(desk: &Desk, worker: usize, now: u64) -> Vec<(Place, FiberDump)> {
        let mut fibers = Vec::new();
        desk.roster.for_each(|fiber, place| {
            let state = match place {
                Place::Started => FiberState::Ready,
                _ => FiberState::Fresh,
            };
            fibers.push((place, FiberDump::of(fiber, state, Some(desk), worker, now)));
        });
        fibers
    }

    /// What a fiber on a roster, whose lock is held, is doing: it is in that state if it neither waits nor runs at that desk.
    pub(super) fn of(
        fiber: NonNull<Scheduled>,
        state: FiberState,
        desk: Option<&Desk>,
        worker: usize,
        now: u64,
    ) -> FiberDump {
        let address = fiber.as_ptr();
        // SAFETY: whoever is on a roster has not ended; the lock keeps it there, or the caller, who has taken it out or found none.
        let fiber = unsafe { fiber.as_ref() };
        let task = &fiber.task;
        let waiting = task.waiting();
        // Looked at afterwards: one that has begun to wait, but has not left the processor, may not have told those who are to wake it.
        fence(Acquire);
        let runs = desk.is_some_and(|desk| desk.running.load(Acquire) == address);
        let waiting = waiting.filter(|_| !runs);
        let state = match waiting {
            Some(_) => FiberState::Waiting,
            None if runs => FiberState::Running,
            None => state,
        };
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
            state,
            wait: waiting.map(|(reason, _)| reason),
            subject: waiting.and_then(|_| task.describe_subject()),
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
            "{{\"id\":{},\"name\":{},\"worker\":{},\"state\":{},\"wait\":{},\"subject\":{},\"call\":{},\"peer\":{},\"waited_ms\":{},\"cancelled\":{},\"spawned_at\":{}}}",
            self.id,
            or_null(self.name.clone()),
            self.worker,
            json_string(&self.state.to_string()),
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
            self.workers.iter().filter(|worker| !worker.guest).count(),
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
                "  {} {} (thread {}): {doing}; {} ready, {} fresh, {} bound, {} started; {} switches, {} steals, {} polls, {} wakes; \
                 {} timers, {} events",
                if worker.guest { "guest" } else { "worker" },
                worker.index,
                worker.thread,
                worker.ready,
                worker.fresh,
                worker.bound,
                worker.started,
                worker.switches,
                worker.steals,
                worker.polls,
                worker.wakes,
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
                _ => write!(f, ": {}", fiber.state)?,
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
