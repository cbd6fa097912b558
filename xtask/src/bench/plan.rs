//! The plan: which benchmarks there are, the command lines of each, how often they are run, and the budgets. Nothing but data.
//!
//! `run` asks for it and hands it to `measure`; `budgets` judges by it.
//!
//! Peers have no thread-locals of their own for each task, so where tasks are compared, the budgets are for light fibers, which have none
//! either; what isolated ones take is shown next to it. For servers they are for fibers as they come.

use super::budgets::{Budget, Limit, Point};
use super::figures;
use super::programs::{self, Supply};
use super::results::{FIBRANT, LIGHT, Section, Shape};

/// What decides how much is run.
pub struct Scale {
    /// Less of everything.
    pub quick: bool,
    pub cores: u64,
    /// In GiB.
    pub memory: f64,
}

/// A benchmark.
pub struct Benchmark {
    pub name: String,
    pub title: String,
    pub about: String,
    pub section: Section,
    pub shape: Shape,
    /// These are run in turn,
    pub runs: Vec<Run>,
    /// so often.
    pub rounds: usize,
}

/// A program's run.
#[derive(Clone)]
pub struct Run {
    /// The command line, word by word.
    pub words: Vec<String>,
    /// The word with which its lines name the benchmark.
    pub bench: String,
    /// Whose column its figures are for; if none is given, that of the peer that a line names.
    pub label: Option<String>,
    /// The number of what grows.
    pub at: Option<u64>,
    /// Whose figures it prints.
    pub peers: Vec<String>,
    /// About how long it takes.
    pub seconds: f64,
}

impl Benchmark {
    /// About how long it takes.
    pub fn seconds(&self) -> f64 {
        self.rounds as f64 * self.runs.iter().map(|run| run.seconds).sum::<f64>()
    }
}

impl Run {
    /// Its command line, as one would type it.
    pub fn typed(&self) -> String {
        let quoted = |word: &String| match word.split_once('=') {
            Some((name, value)) if value.contains(' ') => format!("{name}='{value}'"),
            _ => word.clone(),
        };
        self.words.iter().map(quoted).collect::<Vec<_>>().join(" ")
    }
}

/// Whether the words ask for a benchmark. None ask for all; `c`, which is in many names, means those in C.
pub fn wanted(filter: &[String], name: &str) -> bool {
    let asks = |word: &String| match word.as_str() {
        "c" => name.starts_with("c_"),
        word => name.contains(word),
    };
    filter.is_empty() || filter.iter().any(asks)
}

/// Everything that is to be run, with what there is to run it with. What is in no supply is left out.
pub fn benchmarks(scale: &Scale, supply: &Supply) -> Vec<Benchmark> {
    let mut all = servers(scale, supply);
    all.extend(MICRO.iter().filter_map(|one| one.benchmark(scale, supply)));
    all.extend(in_c(scale));
    if !scale.quick {
        all.extend(growth(scale, supply));
    }
    all.retain(|one| !one.runs.is_empty());
    all
}

/// A benchmark of the programs that are called as `PROGRAM BENCH WORKERS [N]`.
struct Micro {
    name: &'static str,
    bench: &'static str,
    title: &'static str,
    about: &'static str,
    section: Section,
    shape: Shape,
    workers: u32,
    /// How much is done, if it is not the program's choice; and in a quick run.
    n: [Option<u64>; 2],
    /// With a number behind a colon, one does so much.
    peers: &'static str,
    /// Those of a quick run.
    few: &'static str,
    rounds: usize,
    /// About how long a run takes.
    seconds: f64,
}

/// One with the usual peers and rounds; the rest is up to it.
const fn micro(
    name: &'static str,
    section: Section,
    title: &'static str,
    about: &'static str,
    peers: &'static str,
    few: &'static str,
) -> Micro {
    Micro {
        name,
        bench: name,
        title,
        about,
        section,
        shape: Shape::Plain,
        workers: 1,
        n: [None, None],
        peers,
        few,
        rounds: 5,
        seconds: 0.4,
    }
}

/// Locks and channels: a process measures all kinds that it has.
const fn sync(
    name: &'static str,
    title: &'static str,
    about: &'static str,
    peers: &'static str,
    few: &'static str,
) -> Micro {
    Micro {
        shape: Shape::Families,
        rounds: 3,
        seconds: 0.7,
        ..micro(name, Section::Sync, title, about, peers, few)
    }
}

const fn on_two(name: &'static str, bench: &'static str, one: Micro) -> Micro {
    Micro {
        name,
        bench,
        workers: 2,
        ..one
    }
}

/// Everybody who can run tasks on one worker.
const EVERYBODY: &str = "fibrant light may tokio_mt tokio_ct go std_thread";

const SPAWN_ABOUT: &str = "A thousand tasks that do nothing are spawned, then joined; for each.";
const SKYNET_ABOUT: &str =
    "A tree of tasks, ten below each, down to a million leaves, whose numbers are added up by joining.";
const CHANNEL_ABOUT: &str =
    "A number goes to another task and back, over two channels; on two workers, the tasks are on one each.";
const STREAM_ABOUT: &str = "A stream of numbers through a channel with room for 1,000, from one sender to one receiver or from four to \
                            four; for each.";
const CONTEND_ABOUT: &str =
    "4 or 100 tasks want one lock, and hold it for a few instructions or across a yield; for each time.";
const SELECT_ABOUT: &str = "Receive from whichever of two channels has something: at once, or after a wait.";

const MICRO: &[Micro] = &[
    micro(
        "yield2",
        Section::Tasks,
        "yield, 2 tasks",
        "Two tasks on one worker give way to each other; for each time.",
        EVERYBODY,
        "fibrant light may tokio_mt go",
    ),
    micro(
        "yield1000",
        Section::Tasks,
        "yield, 1,000 tasks",
        "A thousand tasks on one worker give way to each other; for each time.",
        EVERYBODY,
        "fibrant light may tokio_mt",
    ),
    micro(
        "spawn",
        Section::Tasks,
        "spawn and join, 1,000 at once",
        SPAWN_ABOUT,
        EVERYBODY,
        "fibrant light tokio_mt go",
    ),
    micro(
        "spawn1",
        Section::Tasks,
        "spawn one, join it",
        "A task that does nothing is spawned and joined, one after the other.",
        EVERYBODY,
        "fibrant light tokio_mt",
    ),
    Micro {
        n: [None, Some(100_000)],
        rounds: 3,
        seconds: 1.2,
        ..micro(
            "skynet",
            Section::Tasks,
            "skynet",
            SKYNET_ABOUT,
            "fibrant light may tokio_mt go",
            "fibrant light tokio_mt",
        )
    },
    Micro {
        rounds: 3,
        seconds: 1.2,
        ..on_two(
            "skynet_2",
            "skynet",
            micro(
                "",
                Section::Tasks,
                "skynet, 2 workers",
                SKYNET_ABOUT,
                "fibrant light may tokio_mt go",
                "",
            ),
        )
    },
    micro(
        "pingpong",
        Section::Tasks,
        "park and wake, there and back",
        "Two tasks on one worker wake each other in turn, each in the way that suits its library best; for both ways.",
        EVERYBODY,
        "fibrant light tokio_ct go",
    ),
    Micro {
        rounds: 3,
        seconds: 1.0,
        ..on_two(
            "pingpong_2",
            "pingpong",
            micro(
                "",
                Section::Tasks,
                "park and wake, there and back, 2 workers",
                "The same with two workers: both on one, wherever the library puts them, or one on each.",
                "fibrant light may tokio_mt go std_thread eventfd eventfd_epoll",
                "fibrant light eventfd eventfd_epoll",
            ),
        )
    },
    Micro {
        n: [None, Some(100_000)],
        rounds: 3,
        seconds: 0.7,
        ..micro(
            "timer_insert",
            Section::Waiting,
            "arm a timer",
            "A million timers, from ten seconds to a thousand ahead; for each. First in a new process, whose memory was never touched, then \
             again in the same. The least it takes is to ask for the time.",
            "fibrant light tokio_mt go least",
            "fibrant light tokio_mt",
        )
    },
    Micro {
        n: [None, Some(100_000)],
        rounds: 3,
        seconds: 0.7,
        ..micro(
            "timer_cancel",
            Section::Waiting,
            "cancel a timer",
            "The same timers are cancelled before their time; for each. The least it takes is to lock a record and to take a deadline out of a list.",
            "fibrant light tokio_mt go least",
            "fibrant light tokio_mt",
        )
    },
    Micro {
        n: [Some(1_000_000), Some(20_000)],
        rounds: 2,
        seconds: 5.0,
        ..micro(
            "timer_expire",
            Section::Waiting,
            "sleepers that wake",
            "A million tasks sleep until moments spread over one second, or 100,000 of those that take two pages each: the processor time for \
             each, in a new process (`first`) and again, and how long it takes until all are done.",
            "fibrant:100000 light tokio_mt go",
            "fibrant light tokio_mt",
        )
    },
    Micro {
        n: [Some(1_000_000), Some(100_000)],
        rounds: 1,
        seconds: 2.5,
        ..micro(
            "mem",
            Section::Waiting,
            "memory of a parked task",
            "What each of a million tasks that do nothing but wait takes, stack and page tables included; of those that take two pages or \
             more, each of 100,000.",
            "fibrant:100000 light may:100000 tokio_mt go",
            "fibrant:20000 light:20000 tokio_mt go",
        )
    },
    Micro {
        rounds: 1,
        seconds: 1.5,
        ..micro(
            "idle",
            Section::Waiting,
            "idle with 10,000 parked tasks",
            "The processor time of a process that has nothing to do.",
            "fibrant light may tokio_mt go",
            "fibrant light",
        )
    },
    sync(
        "lock",
        "take a lock that nobody wants",
        "Lock and unlock, for each time, of whatever locks a library's tasks can use.",
        "fibrant light std_thread tokio_ct may go",
        "fibrant light std_thread",
    ),
    sync(
        "channel",
        "a message there and back",
        CHANNEL_ABOUT,
        "fibrant light std_thread tokio_ct tokio_mt may go",
        "fibrant light tokio_ct",
    ),
    on_two(
        "channel_2",
        "channel",
        sync(
            "",
            "a message there and back, 2 workers",
            CHANNEL_ABOUT,
            "fibrant light std_thread tokio_mt go",
            "",
        ),
    ),
    sync(
        "throughput",
        "a stream of messages",
        STREAM_ABOUT,
        "fibrant light std_thread tokio_ct tokio_mt may go",
        "fibrant light std_thread",
    ),
    on_two(
        "throughput_2",
        "throughput",
        sync(
            "",
            "a stream of messages, 2 workers",
            STREAM_ABOUT,
            "fibrant light std_thread tokio_mt may go",
            "",
        ),
    ),
    sync(
        "contend",
        "a lock that many want",
        CONTEND_ABOUT,
        "fibrant light std_thread tokio_ct may go",
        "",
    ),
    on_two(
        "contend_2",
        "contend",
        sync(
            "",
            "a lock that many want, 2 workers",
            CONTEND_ABOUT,
            "fibrant light std_thread tokio_mt may go",
            "fibrant light",
        ),
    ),
    sync(
        "select",
        "select between two channels",
        SELECT_ABOUT,
        "fibrant light std_thread tokio_ct go",
        "fibrant light std_thread",
    ),
    on_two(
        "select_2",
        "select",
        sync(
            "",
            "select between two channels, 2 workers",
            SELECT_ABOUT,
            "fibrant light std_thread tokio_mt go",
            "",
        ),
    ),
    Micro {
        rounds: 2,
        seconds: 1.1,
        ..sync(
            "meet",
            "tasks that wait for each other",
            "Two tasks take turns by a condition, four meet at a barrier, one waits for a group of four that it spawns, next to joining them; \
             for each time. And what telling nobody costs, or one more of a group.",
            "fibrant light std_thread tokio_ct may",
            "",
        )
    },
    Micro {
        rounds: 2,
        ..sync(
            "moment",
            "channels that a clock fills",
            "One that has a message after a time is made and dropped, is made and received from when the time is up, or is the limit of a \
             receive that does not need it; and one is received from that always has a tick.",
            "fibrant light std_thread",
            "",
        )
    },
    Micro {
        shape: Shape::Ways,
        rounds: 3,
        seconds: 1.4,
        ..micro(
            "hook",
            Section::Hooks,
            "a hooked call that is ready",
            "64 bytes, next to the C library's own function in the same process.",
            FIBRANT,
            FIBRANT,
        )
    },
    Micro {
        shape: Shape::Ways,
        n: [None, Some(20_000)],
        rounds: 1,
        seconds: 5.0,
        ..micro(
            "isolation",
            Section::Hooks,
            "what thread-locals of its own cost a fiber",
            "The same things with fibers as they come, and with light ones, which share the thread-locals of their worker.",
            FIBRANT,
            FIBRANT,
        )
    },
    Micro {
        shape: Shape::Ways,
        ..micro(
            "resume",
            Section::ByHand,
            "resume and suspend",
            "One fiber, or a thousand in turn; for each time there and back. corosensei does not keep the floating-point control words, so \
             it is to be compared with the fibers that share them.",
            "fibrant corosensei boost",
            "fibrant corosensei boost",
        )
    },
    Micro {
        shape: Shape::Ways,
        ..micro(
            "create",
            Section::ByHand,
            "make, run and drop",
            "A fiber on a stack that was used before.",
            "fibrant corosensei boost",
            "fibrant corosensei boost",
        )
    },
    Micro {
        shape: Shape::Ways,
        ..micro(
            "fresh",
            Section::ByHand,
            "make and start on a fresh stack",
            "A fiber on a stack that was never used, up to its first suspension.",
            "fibrant corosensei boost",
            "fibrant corosensei",
        )
    },
    Micro {
        shape: Shape::Ways,
        ..micro(
            "switch",
            Section::ByHand,
            "the switch alone",
            "There and back, with and without what gives a fiber thread-locals of its own.",
            FIBRANT,
            "",
        )
    },
];

impl Micro {
    fn benchmark(&self, scale: &Scale, supply: &Supply) -> Option<Benchmark> {
        let (peers, n, rounds) = if scale.quick {
            (self.few, self.n[1], if self.seconds < 0.6 { 2 } else { 1 })
        } else {
            (self.peers, self.n[0], self.rounds)
        };
        let n = n.map(|n| at_most(n, scale));
        let runs = peers
            .split_whitespace()
            .map(|peer| match peer.split_once(':') {
                Some((peer, own)) => (peer, own.parse().ok()),
                None => (peer, n),
            })
            .filter(|(peer, _)| supply.has(peer))
            .map(|(peer, n)| self.run(peer, n))
            .collect();
        (!peers.is_empty()).then(|| Benchmark {
            name: self.name.to_owned(),
            title: self.title.to_owned(),
            about: self.about.to_owned(),
            section: self.section,
            shape: self.shape,
            runs,
            rounds,
        })
    }

    fn run(&self, peer: &str, n: Option<u64>) -> Run {
        // The bare cost of what `pingpong` does across workers.
        let bench = if peer.starts_with("eventfd") {
            peer
        } else {
            self.bench
        };
        // Less is asked for in a quick run only.
        let is_less = n.is_some() && n == self.n[1];
        let seconds = if is_less { self.seconds / 2.0 } else { self.seconds };
        Run {
            at: None,
            ..micro_run(peer, bench, u64::from(self.workers), n, seconds)
        }
    }
}

/// A million isolated fibers take 9 GB.
fn at_most(n: u64, scale: &Scale) -> u64 {
    if scale.memory < 14.0 { n.min(100_000) } else { n }
}

/// A run of one of the programs that are called as `PROGRAM BENCH WORKERS [N]`.
fn micro_run(peer: &str, bench: &str, workers: u64, n: Option<u64>, seconds: f64) -> Run {
    let mut words = programs::words(peer);
    words.push(bench.to_owned());
    words.push(workers.to_string());
    words.extend(n.map(|n| n.to_string()));
    Run {
        words,
        bench: bench.to_owned(),
        label: Some(peer.to_owned()),
        at: n,
        peers: vec![peer.to_owned()],
        seconds,
    }
}

/// A benchmark of servers, by the program `load`.
struct Load {
    service: &'static str,
    connections: u64,
    size: Option<u64>,
    workers: u64,
    peers: &'static str,
    rounds: u64,
    turn: f64,
    /// Whether system calls are counted, and wrk asks, too.
    more: &'static [&'static str],
}

impl Load {
    fn run(&self, supply: &Supply) -> Option<Run> {
        let peers: Vec<&str> = self
            .peers
            .split_whitespace()
            .filter(|peer| supply.has(peer))
            .collect();
        if peers.is_empty() || !supply.has("load") {
            return None;
        }
        let mut words = programs::words("load");
        words.push(self.service.to_owned());
        let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        option("connections", self.connections.to_string());
        if let Some(size) = self.size {
            option("size", size.to_string());
        }
        option("rounds", self.rounds.to_string());
        option("turn", self.turn.to_string());
        option("workers", self.workers.to_string());
        let more = self.more.iter().filter(|tool| supply.has(tool));
        let more: Vec<&str> = more
            .map(|&tool| if tool == "strace" { "--syscalls" } else { "--wrk" })
            .collect();
        words.extend(more.iter().map(|&option| option.to_owned()));
        // To the client a stream is an echo of large messages; the servers have larger buffers for it.
        let service = if self.size.is_some() {
            "stream"
        } else {
            self.service
        };
        words.extend(peers.iter().map(|peer| {
            let server = programs::words(peer).join(" ");
            format!("{peer}={server} {service} {} 0", self.workers)
        }));
        let rounds = self.rounds as f64;
        // If not all connections fit into a process, each server is connected to anew for its turn.
        let is_full = self.connections * peers.len() as u64 > 15_000;
        let connecting = self.connections as f64 / 6_000.0 * if is_full { rounds } else { 1.0 };
        // A turn has a warm-up; one of wrk's takes a second.
        let mut seconds = connecting + rounds * (self.turn + 0.1);
        if more.contains(&"--syscalls") {
            seconds += 0.5 + self.connections as f64 / 1_000.0;
        }
        if more.contains(&"--wrk") {
            seconds += rounds * 1.1;
        }
        Some(Run {
            words,
            bench: self.service.to_owned(),
            label: None,
            at: None,
            seconds: peers.len() as f64 * seconds,
            peers: peers.into_iter().map(String::from).collect(),
        })
    }
}

const SERVERS: &str = "fibrant light epoll tokio_mt tokio_ct may monoio go std_thread";
/// Those that can have several workers.
const SERVERS_ON_TWO: &str = "fibrant light epoll tokio_mt may monoio go std_thread";
/// Those that are connected to by many, which takes long.
const SERVERS_OF_MANY: &str = "fibrant light epoll tokio_mt may monoio go";
const HTTP_SERVERS: &str = "fibrant light epoll tokio_mt tokio_ct may go";

fn servers(scale: &Scale, supply: &Supply) -> Vec<Benchmark> {
    let echo = Load {
        service: "echo",
        connections: 100,
        size: None,
        workers: 1,
        peers: if scale.quick {
            "fibrant light epoll tokio_mt go"
        } else {
            SERVERS
        },
        rounds: if scale.quick { 3 } else { 6 },
        turn: if scale.quick { 0.2 } else { 0.3 },
        more: &[],
    };
    let on_two = || Load {
        workers: 2,
        peers: SERVERS_ON_TWO,
        rounds: 3,
        ..echo
    };
    let one = |name: &str, title: &str, about: &str, load: Load| {
        Some(Benchmark {
            name: name.to_owned(),
            title: title.to_owned(),
            about: about.to_owned(),
            section: Section::Servers,
            shape: Shape::Server,
            runs: vec![load.run(supply)?],
            rounds: 1,
        })
    };
    const ECHO: &str = "64 bytes there and back on each connection, the next as soon as the answer is complete. The server has one \
                        processor, and who asks another. (monoio is here as a server only: its tasks are not measured by themselves.)";
    const ECHO_ON_TWO: &str =
        "The same with two workers, who share the processors with who asks: what counts is what they take.";
    let mut all = vec![
        one(
            "echo_100",
            "echo, 100 connections",
            ECHO,
            Load {
                more: &["strace"],
                ..echo
            },
        ),
        one(
            "echo_1000",
            "echo, 1,000 connections",
            ECHO,
            Load {
                connections: 1000,
                more: if scale.quick { &[] } else { &["strace"] },
                ..echo
            },
        ),
        one(
            "http",
            "HTTP, 100 connections",
            "A short answer to each request, with connections that are kept: hyper for tokio, may_minihttp for may, net/http for Go, and \
             plain std with httparse in fibers. wrk asks all of them, too: where the server is what is slow, it must find the same rate as our \
             own program does. It takes more time for a request than that, so from faster servers it gets less.",
            Load {
                service: "http",
                peers: if scale.quick {
                    "fibrant light tokio_mt"
                } else {
                    HTTP_SERVERS
                },
                rounds: 3,
                more: if scale.quick { &[] } else { &["wrk"] },
                ..echo
            },
        ),
        one(
            "stream",
            "echo of 64 KiB, 100 connections",
            "The same servers with large messages: copying is what counts.",
            Load {
                size: Some(64 << 10),
                peers: if scale.quick {
                    "fibrant epoll tokio_mt"
                } else {
                    SERVERS
                },
                rounds: if scale.quick { 3 } else { 5 },
                ..echo
            },
        ),
    ];
    if !scale.quick {
        all.push(one(
            "echo_9000",
            "echo, 9,000 connections",
            ECHO,
            Load {
                connections: 9000,
                peers: SERVERS_OF_MANY,
                rounds: 2,
                ..echo
            },
        ));
        if scale.cores > 1 {
            all.push(one(
                "echo_100_2",
                "echo, 100 connections, 2 workers",
                ECHO_ON_TWO,
                on_two(),
            ));
            all.push(one(
                "echo_1000_2",
                "echo, 1,000 connections, 2 workers",
                ECHO_ON_TWO,
                Load {
                    connections: 1000,
                    ..on_two()
                },
            ));
            all.push(one(
                "echo_9000_2",
                "echo, 9,000 connections, 2 workers",
                ECHO_ON_TWO,
                Load {
                    connections: 9000,
                    peers: "fibrant epoll tokio_mt go",
                    ..on_two()
                },
            ));
        }
    }
    all.into_iter().flatten().collect()
}

/// The programs in `bench/c`, whose lines say whose figure it is.
fn in_c(scale: &Scale) -> Vec<Benchmark> {
    let run = |bench: &str, line: &str, at, seconds| Run {
        words: programs::words_in_c(line),
        bench: bench.to_owned(),
        label: None,
        at,
        peers: Vec::new(),
        seconds,
    };
    let one = |bench: &str, title: &str, about: &str, shape, runs, rounds| Benchmark {
        name: bench.to_owned(),
        title: title.to_owned(),
        about: about.to_owned(),
        section: Section::InC,
        shape,
        runs,
        rounds: if scale.quick { 1 } else { rounds },
    };
    let counts: &[u64] = if scale.quick {
        &[1_000_000]
    } else {
        &[1_000, 10_000, 100_000, 1_000_000, MANY_IN_C]
    };
    let counts = counts.iter().filter(|&&count| at_most(count, scale) == count);
    let many = counts
        .map(|&count| {
            let seconds = 0.1 + count as f64 * 1e-6;
            run("c_many", &format!("many {count}"), Some(count), seconds)
        })
        .collect();
    let rounds = if scale.quick { 5 } else { 12 };
    let connections: &[u64] = if scale.quick { &[100] } else { &[100, 1000] };
    let echo = connections
        .iter()
        .map(|connections| {
            let line = format!(
                "echo_load {connections} {rounds} echo_epoll echo_libco:poll echo_libco:read echo_fibers"
            );
            run("c_echo", &line, None, 1.0 + f64::from(rounds) * 0.8)
        })
        .collect();
    vec![
        one(
            "c_switch",
            "co_resume and co_yield_ct",
            "One coroutine, or a thousand in turn; for each time there and back.",
            Shape::Plain,
            vec![run("c_switch", "switch", None, 1.5)],
            3,
        ),
        one(
            "c_create",
            "a coroutine's life",
            "co_create, one co_resume to its end, co_release.",
            Shape::Plain,
            vec![run("c_create", "create", None, 1.0)],
            3,
        ),
        one(
            "c_shared",
            "taking turns on one stack",
            "Two coroutines whose frames are copied out and in at every switch.",
            Shape::Plain,
            vec![run("c_shared", "shared", None, 0.5)],
            3,
        ),
        one(
            "c_echo",
            "echo in C",
            "Processor time of a server for each message of 64 bytes.",
            Shape::Plain,
            echo,
            1,
        ),
        one(
            "c_many",
            "coroutines on one shared stack",
            "All are suspended at once on one stack, to which their frames are copied back when they go on.",
            Shape::Growth,
            many,
            1,
        ),
    ]
}

/// How many coroutines a process is to have on one stack.
const MANY_IN_C: u64 = 10_000_000;

/// The connections at which the server is seen to grow.
const CONNECTIONS: [u64; 7] = [10, 30, 100, 300, 1000, 3000, MANY_CONNECTIONS];
const MANY_CONNECTIONS: u64 = 9000;

/// The same things in growing numbers.
fn growth(scale: &Scale, supply: &Supply) -> Vec<Benchmark> {
    const PEERS: [&str; 3] = [FIBRANT, LIGHT, "tokio_mt"];
    let counts = [1_000, 10_000, 100_000, 1_000_000].map(|count| at_most(count, scale));
    let one = |name: &str, title: &str, about: &str, runs, rounds| Benchmark {
        name: name.to_owned(),
        title: title.to_owned(),
        about: about.to_owned(),
        section: Section::Growth,
        shape: Shape::Growth,
        runs,
        rounds,
    };
    let micro = |bench: &str| {
        let mut runs: Vec<Run> = Vec::new();
        for count in counts {
            for peer in PEERS {
                // A machine with little memory has the same count twice.
                if supply.has(peer)
                    && !runs
                        .iter()
                        .any(|run| run.at == Some(count) && run.peers[0] == peer)
                {
                    // What is touched for the first time is what takes long.
                    let each = match (bench, peer) {
                        ("many", FIBRANT) => 25e-6,
                        ("many", LIGHT) => 6e-6,
                        ("many", _) => 3e-6,
                        _ => 0.7e-6,
                    };
                    let seconds = 0.05 + count as f64 * each;
                    runs.push(micro_run(peer, bench, 1, Some(count), seconds));
                }
            }
        }
        runs
    };
    let echo = CONNECTIONS.iter().filter_map(|&connections| {
        let load = Load {
            service: "echo",
            connections,
            size: None,
            workers: 1,
            peers: "fibrant epoll tokio_mt",
            rounds: 1,
            turn: 0.3,
            more: &[],
        };
        Some(Run {
            at: Some(connections),
            ..load.run(supply)?
        })
    });
    let spawn = (1..=scale.cores).flat_map(|workers| {
        PEERS.iter().filter(|peer| supply.has(peer)).map(move |peer| Run {
            at: Some(workers),
            ..micro_run(peer, "spawn", workers, None, 0.4)
        })
    });
    vec![
        one(
            "growth_many",
            "many tasks",
            "So many tasks are spawned and park, then all are woken and joined; for each of them. A million fibers with \
             thread-locals of their own are 9 GB that nobody has touched before: there the kernel, and who hosts it, clear \
             pages.",
            micro("many"),
            1,
        ),
        one(
            "growth_timer_insert",
            "arm many timers",
            "For each of so many.",
            micro("timer_insert"),
            2,
        ),
        one(
            "growth_timer_cancel",
            "cancel many timers",
            "For each of so many. Beyond 100,000 they have left the caches, and each has to come back.",
            micro("timer_cancel"),
            2,
        ),
        one(
            "growth_echo",
            "echo to many connections",
            "64 bytes there and back on each of so many connections, one worker. Beyond 1,000 the kernel's sockets, and what \
             belongs to them, are more than the caches hold, for everybody: bare epoll shows how much.",
            echo.collect(),
            2,
        ),
        one(
            "growth_spawn",
            "spawn on many workers",
            "A thousand tasks that do nothing are spawned by one, then joined; for each. More workers can only help as far as starting and ending \
             a task takes longer than spawning it: who spawns is one.",
            spawn.collect(),
            3,
        ),
    ]
}

/// A budget for a figure next to one in the same benchmark.
fn next_to(bench: &str, ours: (&str, &str), theirs: (&str, &str), limit: Limit) -> Budget {
    let point = |(label, variant): (&str, &str)| Point {
        bench: bench.to_owned(),
        label: label.to_owned(),
        variant: variant.to_owned(),
        at: None,
    };
    Budget {
        ours: point(ours),
        theirs: Some(point(theirs)),
        limit,
    }
}

/// A budget for a figure alone.
fn alone(bench: &str, ours: (&str, &str), most: f64) -> Budget {
    Budget {
        theirs: None,
        ..next_to(bench, ours, ("", ""), Limit::Most(most))
    }
}

/// All budgets.
pub fn budgets() -> Vec<Budget> {
    [
        for_servers(),
        for_tasks(),
        for_sync(),
        for_hooks(),
        by_hand(),
        for_c(),
    ]
    .concat()
}

fn for_servers() -> Vec<Budget> {
    let mut budgets = Vec::new();
    for bench in ["echo_100", "echo_1000"] {
        let mut add = |variant, peer, limit| {
            budgets.push(next_to(bench, (FIBRANT, variant), (peer, variant), limit));
        };
        for (peer, most) in [
            ("epoll", 1.03),
            ("tokio_mt", 1.0),
            ("tokio_ct", 1.0),
            ("may", 0.9),
            ("go", 0.75),
        ] {
            add("cpu", peer, Limit::Times(most));
        }
        for peer in ["epoll", "tokio_mt", "tokio_ct", "may", "go"] {
            add("rate", peer, Limit::AtLeastRoughly(1.0));
        }
        add("p99", "epoll", Limit::Times(1.0));
        for kind in [figures::RECEIVING, figures::SENDING] {
            budgets.push(alone(bench, (FIBRANT, kind), 1.02));
        }
        // The polls are shared by all whose messages have come.
        budgets.push(alone(bench, (FIBRANT, "syscalls all"), 2.1));
    }
    budgets.push(next_to(
        "http",
        (FIBRANT, "cpu"),
        ("tokio_mt", "cpu"),
        Limit::Times(0.9),
    ));
    // Who asks is checked by another who asks: they must agree where the server is what is slow.
    budgets.push(next_to(
        "http",
        (FIBRANT, "rate"),
        (FIBRANT, "wrk rate"),
        Limit::Near(0.25),
    ));
    let at = |connections| Point {
        bench: "growth_echo".to_owned(),
        label: FIBRANT.to_owned(),
        variant: "rate".to_owned(),
        at: Some(connections),
    };
    budgets.push(Budget {
        ours: at(MANY_CONNECTIONS),
        theirs: Some(at(1000)),
        limit: Limit::AtLeast(0.9),
    });
    budgets
}

fn for_tasks() -> Vec<Budget> {
    let than =
        |bench, peer, variant, most| next_to(bench, (LIGHT, variant), (peer, variant), Limit::Times(most));
    vec![
        than("yield2", "may", "", 0.5),
        than("yield1000", "may", "", 0.35),
        than("spawn", "tokio_mt", "", 0.25),
        than("spawn1", "tokio_mt", "", 0.4),
        than("skynet", "tokio_mt", "", 0.4),
        than("skynet_2", "tokio_mt", "", 0.4),
        than("pingpong", "tokio_ct", "same", 0.35),
        than("pingpong_2", "eventfd", "across", 1.2),
        than("timer_insert", "tokio_mt", "first", 0.2),
        than("timer_insert", "tokio_mt", "", 0.2),
        than("timer_cancel", "tokio_mt", "first", 0.2),
        than("timer_cancel", "tokio_mt", "", 0.2),
        than("timer_expire", "tokio_mt", "first", 0.5),
        than("timer_expire", "tokio_mt", "", 0.5),
        alone("mem", (LIGHT, ""), 4505.0),
        alone("idle", (LIGHT, ""), 0.1),
    ]
}

/// At least 1.5 times the throughput.
const FASTER: f64 = 1.0 / 1.5;

fn for_sync() -> Vec<Budget> {
    // What is ours for another lock or channel is in the same kind of fiber.
    const OURS: &str = LIGHT;
    let within =
        |bench, most, ours, peer, theirs| next_to(bench, (LIGHT, ours), (peer, theirs), Limit::Times(most));
    let open = |bench, ours, peer, theirs| next_to(bench, (LIGHT, ours), (peer, theirs), Limit::Open);
    let mut budgets = vec![
        within("lock", 1.2, "fibrant mutex", OURS, "std mutex"),
        within("lock", 1.2, "fibrant mutex", "std_thread", "std mutex"),
        within("lock", 1.2, "fibrant mutex, thread", "std_thread", "std mutex"),
        open("lock", "fibrant read", OURS, "std read"),
        open("lock", "fibrant write", OURS, "std write"),
        open("lock", "fibrant semaphore", "tokio_ct", "tokio semaphore"),
        within(
            "channel",
            0.4,
            "fibrant bounded(1)",
            "tokio_ct",
            "tokio bounded(1)",
        ),
        within(
            "channel",
            0.4,
            "fibrant bounded(1)",
            "tokio_mt",
            "tokio bounded(1)",
        ),
        open("channel", "fibrant bounded(0)", "tokio_ct", "tokio bounded(1)"),
        within("channel", 0.4, "fibrant unbounded", "tokio_ct", "tokio unbounded"),
        open("channel_2", "fibrant bounded(1)", "tokio_mt", "tokio bounded(1)"),
    ];
    for bench in ["throughput", "throughput_2"] {
        for (ours, theirs) in [("fibrant 1:1", "crossbeam 1:1"), ("fibrant 4:4", "crossbeam 4:4")] {
            budgets.push(within(bench, FASTER, ours, "std_thread", theirs));
            budgets.push(open(bench, ours, OURS, theirs));
        }
    }
    for bench in ["contend", "contend_2"] {
        for (ours, theirs) in [
            ("fibrant mutex, 4 short", "std mutex, 4 short"),
            ("fibrant mutex, 4 yielding", "std mutex, 4 yielding"),
            ("fibrant mutex, 100 short", "std mutex, 100 short"),
            ("fibrant mutex, 100 yielding", "std mutex, 100 yielding"),
        ] {
            budgets.push(open(bench, ours, OURS, theirs));
        }
    }
    for bench in ["select", "select_2"] {
        for (ours, theirs) in [
            ("fibrant ready", "crossbeam ready"),
            ("fibrant waiting", "crossbeam waiting"),
        ] {
            budgets.push(open(bench, ours, "std_thread", theirs));
        }
    }
    budgets
}

/// A ready call costs at most this more, as a ratio and in nanoseconds: outside fibers next to nothing; on a pipe in a fiber, which takes
/// a system call that can be told not to block, more than on a socket.
fn for_hooks() -> Vec<Budget> {
    let mut budgets = Vec::new();
    for (call, is_pipe) in [
        ("recv socket", false),
        ("send socket", false),
        ("read socket", false),
        ("write socket", false),
        ("read pipe", true),
        ("write pipe", true),
    ] {
        let inside = if is_pipe { (2.0, 150.0) } else { (1.15, 15.0) };
        for (place, (times, more)) in [("outside fibers", (1.05, 5.0)), ("in a fiber", inside)] {
            for limit in [Limit::Times(times), Limit::More(more)] {
                let [ours, theirs] = [place, "C library"].map(|place| format!("{call}, {place}"));
                budgets.push(next_to("hook", (FIBRANT, &ours), (FIBRANT, &theirs), limit));
            }
        }
    }
    budgets
}

fn by_hand() -> Vec<Budget> {
    let within =
        |bench, ours, peer, theirs, most| next_to(bench, (FIBRANT, ours), (peer, theirs), Limit::Times(most));
    vec![
        within("resume", "1", "corosensei", "1", 1.5),
        within("resume", "1, shared float control", "corosensei", "1", 1.5),
        within("resume", "1000", "corosensei", "1000", 0.7),
        within("resume", "1000, shared float control", "corosensei", "1000", 0.7),
        within("create", "", "boost", "", 0.5),
        within("create", "shared float control", "boost", "", 0.5),
        within("fresh", "", FIBRANT, "bare guard and first touch", 1.3),
        within("fresh", "", "corosensei", "", 0.4),
        next_to(
            "switch",
            (FIBRANT, "with thread pointer"),
            (FIBRANT, ""),
            Limit::Open,
        ),
    ]
}

fn for_c() -> Vec<Budget> {
    const OURS: &str = "coroutines";
    let mut budgets = Vec::new();
    for variant in ["one", "of 1,000"] {
        let ours = (OURS, variant);
        budgets.push(next_to(
            "c_switch",
            ours,
            ("boost_jump", variant),
            Limit::Times(1.5),
        ));
        budgets.push(next_to("c_switch", ours, ("boost_fiber", variant), Limit::Open));
    }
    // Half of what libco takes; docs/from-libco.md has the figure.
    budgets.push(alone("c_create", (OURS, "own stack"), 125.0));
    budgets.push(alone("c_shared", (OURS, "512 bytes"), 60.0));
    let mut many = alone("c_many", (OURS, "whole process"), 4.0);
    many.ours.at = Some(MANY_IN_C);
    budgets.push(many);
    for connections in ["100 connections", "1000 connections"] {
        let ratio = format!("{connections}, ratio to the first");
        for server in ["echo_libco poll", "echo_libco read"] {
            budgets.push(alone("c_echo", (server, &ratio), 1.15));
        }
        budgets.push(next_to(
            "c_echo",
            ("echo_fibers", connections),
            ("echo_epoll", connections),
            Limit::Open,
        ));
    }
    budgets
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Scale = Scale {
        quick: false,
        cores: 2,
        memory: 32.0,
    };

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn names_are_unique() {
        for quick in [false, true] {
            let all = benchmarks(&Scale { quick, ..FULL }, &Supply::everything());
            let mut names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn budgets_are_for_what_is_run() {
        let all = benchmarks(&FULL, &Supply::everything());
        for budget in budgets() {
            for point in [Some(budget.ours), budget.theirs].into_iter().flatten() {
                let bench = all.iter().find(|one| one.name == point.bench);
                let bench = bench.unwrap_or_else(|| panic!("{} is no benchmark", point.bench));
                let prints = |run: &Run| {
                    run.at == point.at && (run.peers.is_empty() || run.peers.contains(&point.label))
                };
                assert!(bench.runs.iter().any(prints), "{point:?}");
            }
        }
    }

    #[test]
    fn takes_about_as_long_as_is_said() {
        let seconds = |quick| {
            let all = benchmarks(&Scale { quick, ..FULL }, &Supply::everything());
            all.iter().map(Benchmark::seconds).sum::<f64>()
        };
        assert!(seconds(false) < 12.0 * 60.0, "{}", seconds(false));
        assert!(seconds(true) < 90.0, "{}", seconds(true));
    }

    #[test]
    fn a_quick_run_has_something_of_everything() {
        let all = benchmarks(&Scale { quick: true, ..FULL }, &Supply::everything());
        for section in Section::ALL {
            let is_there = all.iter().any(|one| one.section == section);
            assert_eq!(is_there, section != Section::Growth, "{section:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_left_out() {
        let mut supply = Supply::everything();
        supply.lack("go", "no Go");
        let all = benchmarks(&FULL, &supply);
        let has = |run: &Run| run.words.iter().any(|word| word.contains("/go "));
        assert!(!all.iter().flat_map(|one| &one.runs).any(has));
        supply.lack("load", "not built");
        assert!(
            !benchmarks(&FULL, &supply)
                .iter()
                .any(|one| one.section == Section::Servers)
        );
    }

    #[test]
    fn the_word_c_means_those_in_c() {
        assert!(wanted(&words("c lock"), "c_echo"));
        assert!(wanted(&words("c lock"), "lock"));
        assert!(!wanted(&words("c"), "channel"));
        assert!(wanted(&[], "channel"));
        assert!(wanted(&words("echo"), "echo_100"));
    }

    #[test]
    fn a_server_is_started_by_the_program_that_asks() {
        let all = benchmarks(&FULL, &Supply::everything());
        let echo = all.iter().find(|one| one.name == "echo_1000").unwrap();
        let words = &echo.runs[0].words;
        assert!(words.join(" ").contains("echo --connections 1000 --rounds"));
        assert!(words.contains(&"epoll=target/release/epoll echo 1 0".to_owned()));
        assert!(words.contains(&"light=env BENCH_LIGHT=1 target/release/fibrant echo 1 0".to_owned()));
    }
}
