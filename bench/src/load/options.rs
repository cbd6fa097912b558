//! The load generator's command line; [`super::run`] reads it.

use std::time::Duration;

use super::Outcome;

/// How the program is called.
pub const USAGE: &str = "load <echo|http> [--connections N] [--size BYTES] [--rounds N] [--turn SECONDS] [--workers N] \
     [--syscalls] [--wrk] LABEL=COMMAND...";

/// What is asked of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Messages that come back.
    Echo,
    /// Requests of the same page.
    Http,
}

impl Service {
    /// The name of the benchmark.
    pub fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Http => "http",
        }
    }
}

/// What to do.
#[derive(Debug)]
pub struct Options {
    /// What is asked of the servers.
    pub service: Service,
    /// How many connections there are to the server whose turn it is.
    pub connections: usize,
    /// The bytes of a message.
    pub size: usize,
    /// How many turns each server has.
    pub rounds: usize,
    /// How long a turn is, at least.
    pub turn: Duration,
    /// The workers that the servers have.
    pub workers: usize,
    /// Whether the servers' system calls are counted.
    pub syscalls: bool,
    /// Whether wrk has turns, too.
    pub wrk: bool,
    /// Labels and commands.
    pub servers: Vec<(String, String)>,
}

impl Options {
    /// Understands the arguments after the program's name.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let service = match arguments.next().as_deref() {
            Some("echo") => Service::Echo,
            Some("http") => Service::Http,
            Some(other) => return Err(format!("neither echo nor http: {other}")),
            None => return Err("what to ask for: echo or http".into()),
        };
        let mut options = Self {
            service,
            connections: 100,
            size: 64,
            rounds: 9,
            turn: Duration::from_millis(300),
            workers: 1,
            syscalls: false,
            wrk: false,
            servers: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut number = || positive(&argument, arguments.next());
            match argument.as_str() {
                "--connections" => options.connections = number()?,
                "--size" => options.size = number()?,
                "--rounds" => options.rounds = number()?,
                "--workers" => options.workers = number()?,
                "--turn" => options.turn = seconds(&argument, arguments.next())?,
                "--syscalls" => options.syscalls = true,
                "--wrk" => options.wrk = true,
                option if option.starts_with('-') => return Err(format!("no such option: {option}")),
                server => match server.split_once('=') {
                    Some((label, command)) if !label.is_empty() && !command.is_empty() => {
                        options.servers.push((label.to_owned(), command.to_owned()));
                    }
                    _ => return Err(format!("not LABEL=COMMAND: {server}")),
                },
            }
        }
        if options.servers.is_empty() {
            return Err("no server".into());
        }
        if options.wrk && service != Service::Http {
            return Err("wrk speaks http only".into());
        }
        Ok(options)
    }

    /// How long a turn is: long enough for some requests on each of many connections.
    pub fn counted(&self) -> Duration {
        self.turn
            .max(Duration::from_micros(100) * self.connections as u32)
    }

    /// How long a server is busy before that.
    pub fn warm_up(&self) -> Duration {
        Duration::from_millis(50) + Duration::from_micros(20) * self.connections as u32
    }
}

fn positive(option: &str, value: Option<String>) -> Outcome<usize> {
    value
        .and_then(|value| value.parse().ok())
        .filter(|&value| value > 0)
        .ok_or_else(|| format!("{option} takes a number above zero"))
}

fn seconds(option: &str, value: Option<String>) -> Outcome<Duration> {
    value
        .and_then(|value| value.parse().ok())
        .and_then(|value| Duration::try_from_secs_f64(value).ok())
        .filter(|value| !value.is_zero())
        .ok_or_else(|| format!("{option} takes a number of seconds above zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Outcome<Options> {
        Options::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn has_defaults() {
        let options = parse(&["echo", "one=target/one echo 1 0"]).expect("options");
        assert_eq!(options.service, Service::Echo);
        assert_eq!(
            (options.connections, options.size, options.rounds, options.workers),
            (100, 64, 9, 1)
        );
        assert_eq!(options.counted(), Duration::from_millis(300));
        assert!(!options.syscalls && !options.wrk);
        assert_eq!(options.servers, [("one".into(), "target/one echo 1 0".into())]);
    }

    #[test]
    fn takes_options_before_and_between_servers() {
        let line =
            "http --connections 9000 --size 65536 --rounds 3 --turn 0.5 --workers 2 a=x --syscalls --wrk b=y";
        let options = parse(&line.split(' ').collect::<Vec<_>>()).expect("options");
        assert_eq!(options.service, Service::Http);
        assert_eq!(
            (options.connections, options.size, options.rounds, options.workers),
            (9000, 65536, 3, 2)
        );
        assert!(options.syscalls && options.wrk);
        assert_eq!(options.servers.len(), 2);
        // Each connection has some requests.
        assert_eq!(options.turn, Duration::from_millis(500));
        assert_eq!(options.counted(), Duration::from_millis(900));
    }

    #[test]
    fn a_command_may_set_the_environment() {
        let options = parse(&["echo", "light=env BENCH_LIGHT=1 fibrant echo 1 0"]).expect("options");
        assert_eq!(
            options.servers,
            [("light".into(), "env BENCH_LIGHT=1 fibrant echo 1 0".into())]
        );
    }

    #[test]
    fn says_what_it_does_not_understand() {
        for (line, problem) in [
            ("", "echo or http"),
            ("ftp a=x", "ftp"),
            ("echo", "no server"),
            ("echo server", "LABEL=COMMAND"),
            ("echo =x", "LABEL=COMMAND"),
            ("echo --connections 0 a=x", "--connections"),
            ("echo --turn -1 a=x", "--turn"),
            ("echo --turn nan a=x", "--turn"),
            ("echo --turn", "--turn"),
            ("echo --what a=x", "--what"),
            ("echo --wrk a=x", "wrk"),
        ] {
            let error = parse(&line.split_whitespace().collect::<Vec<_>>()).expect_err(line);
            assert!(error.contains(problem), "{line}: {error}");
        }
    }
}
