//! Turns of wrk, by which others may check our figures of HTTP; [`super::run`] calls it.
//!
//! The two agree where the server sets the pace. Where they do themselves, wrk is slower, as it makes two more system calls for each
//! request, and finds shorter latencies: it sends the next request one round of its event loop after an answer, and does not count the
//! time between.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::Outcome;
use super::server::ends_with_us;

/// What wrk says: requests in a second, and latencies in microseconds.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Requests in a second.
    pub rate: f64,
    /// The median latency.
    pub p50: f64,
    /// What 99 of 100 requests stay below.
    pub p99: f64,
}

/// A turn at the server that listens there, of whole seconds. It has no warm-up: the time in which many connect is to be a small part.
pub fn run(port: u16, connections: usize, time: Duration) -> Outcome<Figures> {
    let time = time.max(Duration::from_micros(500) * connections as u32);
    let seconds = time.as_secs_f64().ceil();
    let mut command = Command::new("wrk");
    command
        .arg("-t1")
        .arg(format!("-c{connections}"))
        .arg(format!("-d{seconds}s"))
        .arg("--latency")
        .arg(format!("http://127.0.0.1:{port}/"))
        .stdin(Stdio::null());
    ends_with_us(&mut command);
    let output = command
        .output()
        .map_err(|error| format!("wrk cannot start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let problem = String::from_utf8_lossy(&output.stderr);
        return Err(format!("wrk: {}", problem.lines().next().unwrap_or_default()));
    }
    figures(&text)
}

/// The figures in wrk's output.
fn figures(text: &str) -> Outcome<Figures> {
    for problem in ["Socket errors:", "Non-2xx"] {
        if let Some(line) = text.lines().find(|line| line.trim().starts_with(problem)) {
            return Err(format!("wrk: {}", line.trim()));
        }
    }
    let after = |name: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(name))
            .map(str::trim)
            .ok_or_else(|| format!("wrk does not say {name}"))
    };
    let latency = |name| {
        let value = after(name)?;
        microseconds(value).ok_or_else(|| format!("wrk: {name} is {value}"))
    };
    let rate = after("Requests/sec:")?;
    Ok(Figures {
        rate: rate
            .parse()
            .map_err(|_| format!("wrk: Requests/sec: is {rate}"))?,
        p50: latency("50%")?,
        p99: latency("99%")?,
    })
}

/// A time with its unit.
fn microseconds(text: &str) -> Option<f64> {
    let (value, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let unit = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3600e6,
        _ => return None,
    };
    Some(value.parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Running 1s test @ http://127.0.0.1:18080/
  1 threads and 100 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     0.99ms   98.11us   3.14ms   93.20%
    Req/Sec   101.33k     2.10k  104.10k    81.82%
  Latency Distribution
     50%  971.00us
     75%    1.00ms
     90%    1.05ms
     99%    1.21ms
  110901 requests in 1.10s, 5.50MB read
Requests/sec: 100811.27
Transfer/sec:      5.00MB
";

    #[test]
    fn reads_the_figures_in_microseconds() {
        let expected = Figures {
            rate: 100_811.27,
            p50: 971.0,
            p99: 1210.0,
        };
        assert_eq!(figures(OUTPUT), Ok(expected));
        assert_eq!(microseconds("1.50s"), Some(1.5e6));
        assert_eq!(microseconds("2.00m"), Some(120e6));
        assert_eq!(microseconds("2.00"), None);
        assert_eq!(microseconds("2.00parsecs"), None);
    }

    #[test]
    fn errors_are_errors() {
        let line = "  Socket errors: connect 0, read 12, write 0, timeout 0\nRequests/sec:";
        let error = figures(&OUTPUT.replace("Requests/sec:", line)).unwrap_err();
        assert_eq!(
            error,
            "wrk: Socket errors: connect 0, read 12, write 0, timeout 0"
        );
        let line = "  Non-2xx or 3xx responses: 7\nRequests/sec:";
        assert!(figures(&OUTPUT.replace("Requests/sec:", line)).is_err());
        assert!(figures("").is_err());
        assert!(figures(&OUTPUT.replace("971.00us", "nan")).is_err());
    }
}
