//! Why budgets are missed, where that is known, and what it would take to keep them. `docs/performance.md` has more of it.
//!
//! Whatever shows verdicts asks it. The words are for whoever reads a report in which the budget was missed; if it was kept, nobody sees
//! them.

use super::budgets::{State, Verdict};

/// The benchmarks, by how their names begin; and why.
const REASONS: &[(&[&str], &str)] = &[
    (
        &["echo_", "growth_echo"],
        "Why: to wake a fiber, receive, send and wait takes some 1,600 instructions over 146 lines of code, which the kernel's own has pushed out \
         of the first-level cache; the bare server is one loop of 67 instructions. tokio takes as many as we do; with 1,000 connections it \
         serves some of them while others wait many times as long (see its 99th percentile), and so stays in the cache. Needed: half of \
         the code on the way, or messages of many connections by one system call (io_uring). Where system calls are counted, strace makes each \
         slow: with 1,000 connections a wait then lasts longer than the 10 to 20 ms after which its registration and its limits are asked for again.",
    ),
    (
        &["http"],
        "Why: plain std code writes each answer by a call of its own and parses with httparse; what is saved over hyper is its machinery, what \
         is the same are the two system calls, which are most of it. Needed: less code around them, as for echo.",
    ),
    (
        &["timer_insert", "growth_timer_insert"],
        "Why: arming a timer asks for the time, which alone takes 20 to 32 ns, most or all of the budget; and a million timers are more than the \
         caches hold. In a new process the kernel has to bring their memory, too, as for everybody. Needed: a cheaper clock; one that is as of the last \
         poll would make timers early.",
    ),
    (
        &["timer_cancel", "growth_timer_cancel"],
        "Why: a timer may be cancelled from any thread, so it has a lock, and its function is freed: 108 instructions, one of them locked, and one line \
         of the cache. Needed: timers that only their own worker may touch, as sleeping fibers have.",
    ),
    (
        &["timer_expire"],
        "Why: each sleeper is on a page of its own that has long left the cache and the table of pages that the processor keeps; a task of \
         tokio's is a few hundred bytes. Twelve lines of each of a million such pages, and nothing else, take 120 to 138 ns; waking a million that are parked takes 200. And deadlines are kept to 50 to 500 us, \
         by that many more sleeps, where tokio's clock ticks once a millisecond. Needed: larger pages for stacks.",
    ),
    (
        &["channel"],
        "Why: two fibers that only park and wake each other, without a channel, take half to two thirds of that (see there). A message takes 530 \
         instructions one way, four of them locked, which are a fifth of the time. \
         tokio's tasks have no stacks to switch. Needed: a cheaper switch; and channels for the fibers of one worker, without locks.",
    ),
    (
        &["throughput"],
        "Why: between two workers each message changes a line that both want, and a lock keeps the order of senders and receivers; crossbeam's array has a \
         place for each message, and no order among those who wait. Needed: the same for channels that nobody waits for.",
    ),
    (
        &["pingpong_2"],
        "Why: workers that wake each other again and again watch for a moment before they sleep; where others keep the processors busy that is in \
         vain, and to wake a worker that sleeps is an eventfd and an epoll, where the peer's thread sleeps in a read of the eventfd itself. \
         Needed: a machine of one's own.",
    ),
    (
        &["spawn1"],
        "Why: 1,040 instructions, four of them locked: the fiber is put on a list that dumps and thieves read, and taken off it; its parent waits, \
         and is woken; it gets a stack, and gives it back. Needed: one who joins at once and runs its child as if it called it.",
    ),
    (
        &["yield", "spawn", "pingpong", "skynet"],
        "Why: a turn is 168 instructions, and reads the floating-point control words, which a fiber has of its own, as a thread has: 1 to 5 ns. It also keeps what dumps, hooks \
         and the monitor of stuck workers read. Among 1,000, bare switches without a scheduler take 10 ns. Needed: fewer of those stores.",
    ),
    (
        &["lock"],
        "Why: two locked instructions are most of what any mutex takes. Ours also notes who holds it and since when, which dumps show: some ten \
         instructions more. Needed: mutexes that do not tell.",
    ),
    (
        &["hook", "create"],
        "Why: a few instructions more or less; on a shared machine two runs differ by as much. Needed: a machine of one's own, to tell.",
    ),
    (
        &["fresh"],
        "Why: most of it is the kernel's first touch of a page, which costs both sides the same, and is dearer on some machines than on others. \
         Needed: stacks that are touched beforehand.",
    ),
    (
        &["resume"],
        "Why: a fiber has its own floating-point control words, as a thread has, and reading MXCSR takes 1 to 5 ns, twice a round trip. Fibers that do not \
         need that can share them (Fiber::sharing_float_control); what then remains is state, current fiber and counters. Among 1,000 fibers the lines of the \
         cache count that each takes: its Fiber, its block, its frame. Needed: all of it in one line or two.",
    ),
    (
        &["c_echo"],
        "Why: as for echo servers in Rust; and coroutines of libco's go back to their resumer at each wait, which is another switch. \
         Needed: the same as there.",
    ),
];

/// Why a budget was missed, if it was, and that is known.
pub fn of(verdict: &Verdict) -> Option<&'static str> {
    let concerns = |(names, _): &&(&[&str], &str)| names.iter().any(|name| verdict.bench.starts_with(name));
    let (_, reason) = REASONS.iter().find(concerns)?;
    (verdict.state == State::Missed).then_some(reason)
}

/// Verdicts that are missed for the same reason, one after the other, with it.
pub fn grouped<'a>(
    missed: impl Iterator<Item = &'a Verdict>,
) -> Vec<(Vec<&'a Verdict>, Option<&'static str>)> {
    let mut groups: Vec<(Vec<&Verdict>, Option<&'static str>)> = Vec::new();
    for verdict in missed {
        let reason = of(verdict);
        match groups.iter_mut().find(|(_, other)| *other == reason) {
            Some((verdicts, _)) => verdicts.push(verdict),
            None => groups.push((vec![verdict], reason)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::some;
    use super::*;

    #[test]
    fn tells_why_once_for_all_that_it_goes_for() {
        let mut missed = some().verdicts[0].clone();
        missed.bench = "something else".to_owned();
        assert_eq!(of(&missed), None, "nobody knows");
        missed.bench = "echo_100".to_owned();
        let mut other = missed.clone();
        other.bench = "echo_1000".to_owned();
        let groups = grouped([&missed, &other].into_iter());
        let [(verdicts, Some(reason))] = &groups[..] else {
            panic!("{} groups", groups.len());
        };
        assert!(verdicts.len() == 2 && reason.starts_with("Why"));
        missed.state = State::Met;
        assert_eq!(of(&missed), None, "nothing to tell");
    }
}
