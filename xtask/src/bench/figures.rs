//! Figures: what the programs have printed, collected over all their runs.
//!
//! `measure` collects them; `budgets` and everything that shows results reads them.
//!
//! A program prints a line for each figure: peer, bench, variant, value, unit, separated by tabs; `-` where there is no variant or unit,
//! and `FAIL: reason` instead of a value that cannot be had.

use serde::{Deserialize, Serialize};

/// All that one peer has said of one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Whose it is.
    pub label: String,
    /// What was measured, where a benchmark measures several things; else empty.
    pub variant: String,
    /// How many there were of what grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    pub unit: String,
    /// In the order in which they were measured, so that those of one round can be compared.
    pub values: Vec<f64>,
    /// Why there is none, or why there are fewer than there should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Figure {
    pub fn median(&self) -> Option<f64> {
        median(&self.values)
    }

    pub fn least(&self) -> Option<f64> {
        self.values.iter().copied().min_by(f64::total_cmp)
    }

    pub fn greatest(&self) -> Option<f64> {
        self.values.iter().copied().max_by(f64::total_cmp)
    }

    /// Whether more of it is better: rates are the only figures of which that is so.
    pub fn more_is_better(&self) -> bool {
        self.unit.ends_with("/s")
    }
}

/// The middle one; of an even number, what lies between the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[half]),
        _ => Some(f64::midpoint(sorted[half - 1], sorted[half])),
    }
}

/// The ratio of one figure to another: the median of those of each round, for what the machine does meanwhile hits both. If one has
/// failed at times, that of the medians.
pub fn ratio(ours: &Figure, theirs: &Figure) -> Option<f64> {
    let ratio = if ours.values.len() == theirs.values.len() {
        let pairs = ours.values.iter().zip(&theirs.values);
        median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    } else {
        Some(ours.median()? / theirs.median()?)
    };
    ratio.filter(|ratio| ratio.is_finite())
}

/// The figure of a peer, if there is one.
pub fn find<'a>(figures: &'a [Figure], label: &str, variant: &str, at: Option<u64>) -> Option<&'a Figure> {
    figures
        .iter()
        .find(|figure| figure.label == label && figure.variant == variant && figure.at == at)
}

/// Where what a program prints belongs.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The word with which its lines name the benchmark.
    pub bench: &'a str,
    /// Whose column it is; if none is given, that of the peer that a line names.
    pub label: Option<&'a str>,
    pub at: Option<u64>,
}

/// Adds what a program has printed. Returns how many lines that were.
pub fn note(figures: &mut Vec<Figure>, place: Place<'_>, output: &str) -> usize {
    let mut count = 0;
    for line in output.lines() {
        let [peer, bench, variant, value, unit] = line.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        if bench != place.bench {
            continue;
        }
        let known = figure(
            figures,
            place.label.unwrap_or(peer),
            unless_dash(variant),
            place.at,
        );
        match value.parse() {
            Ok(value) => {
                known.values.push(value);
                known.unit = unless_dash(unit).to_owned();
            }
            Err(_) => known.failure = Some(value.trim_start_matches("FAIL:").trim().to_owned()),
        }
        count += 1;
    }
    count
}

/// Notes that a program has not said anything of use.
pub fn note_failure(figures: &mut Vec<Figure>, place: Place<'_>, reason: &str) {
    let label = place.label.unwrap_or("all");
    figure(figures, label, "", place.at).failure = Some(reason.to_owned());
}

/// What a request takes by kind of system call, added up from the calls that a server was seen to make: there are several that receive,
/// and several that send.
pub fn add_up_calls(figures: &mut Vec<Figure>) {
    const KINDS: [(&str, &[&str]); 2] = [
        (
            RECEIVING,
            &["recvfrom", "recvmsg", "recvmmsg", "read", "readv", "preadv2"],
        ),
        (
            SENDING,
            &["sendto", "sendmsg", "sendmmsg", "write", "writev", "pwritev2"],
        ),
    ];
    let mut sums: Vec<(String, &str, f64)> = Vec::new();
    for seen in figures.iter() {
        let (Some(call), Some(median)) = (seen.variant.strip_prefix("syscalls "), seen.median()) else {
            continue;
        };
        for (kind, calls) in KINDS {
            if calls.contains(&call) {
                match sums
                    .iter_mut()
                    .find(|(label, of, _)| *label == seen.label && *of == kind)
                {
                    Some((_, _, sum)) => *sum += median,
                    None => sums.push((seen.label.clone(), kind, median)),
                }
            }
        }
    }
    for (label, kind, sum) in sums {
        figure(figures, &label, kind, None).values = vec![sum];
    }
}

/// The variants that `add_up_calls` adds.
pub const RECEIVING: &str = "syscalls, receiving";
pub const SENDING: &str = "syscalls, sending";

fn figure<'a>(figures: &'a mut Vec<Figure>, label: &str, variant: &str, at: Option<u64>) -> &'a mut Figure {
    let known = figures
        .iter()
        .position(|figure| figure.label == label && figure.variant == variant && figure.at == at);
    let index = known.unwrap_or_else(|| {
        figures.push(Figure {
            label: label.to_owned(),
            variant: variant.to_owned(),
            at,
            unit: String::new(),
            values: Vec::new(),
            failure: None,
        });
        figures.len() - 1
    });
    &mut figures[index]
}

fn unless_dash(word: &str) -> &str {
    if word == "-" { "" } else { word }
}

/// A number with three digits that count, if it has so many, and commas between the thousands.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 99.95 {
        return with_commas(value.round() as i64);
    }
    let digits = match size {
        _ if size >= 9.995 => 1,
        _ if size >= 0.0995 || size == 0.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// A count, with commas between the thousands.
pub fn with_commas(count: i64) -> String {
    let digits = count.unsigned_abs().to_string();
    let mut text = String::from(if count < 0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn of(label: &str, variant: &str, values: &[f64]) -> Figure {
        Figure {
            label: label.to_owned(),
            variant: variant.to_owned(),
            at: None,
            unit: "ns".to_owned(),
            values: values.to_vec(),
            failure: None,
        }
    }

    #[test]
    fn takes_the_median_and_the_spread() {
        let figure = of("fibrant", "", &[8.0, 30.0, 9.0]);
        assert_eq!(figure.median(), Some(9.0));
        assert_eq!((figure.least(), figure.greatest()), (Some(8.0), Some(30.0)));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn compares_round_by_round() {
        // Whoever is slow, both are in the same round.
        let ours = of("fibrant", "", &[10.0, 100.0, 12.0]);
        let theirs = of("may", "", &[20.0, 200.0, 24.0]);
        assert_eq!(ratio(&ours, &theirs), Some(0.5));
        let fewer = of("may", "", &[6.0, 6.0]);
        assert_eq!(ratio(&ours, &fewer), Some(2.0));
        assert_eq!(ratio(&ours, &of("may", "", &[])), None);
        assert_eq!(ratio(&ours, &of("may", "", &[0.0])), None);
    }

    #[test]
    fn reads_the_lines_that_are_meant() {
        let mut figures = Vec::new();
        let place = Place {
            bench: "pingpong",
            label: Some("light"),
            at: None,
        };
        let output = "a word of warning\nfibrant\tpingpong\tsame\t62.19\tns\nfibrant\tpingpong\tacross\tFAIL: no second core\t-\n\
                      fibrant\tspawn\t-\t1.00\tns\n";
        assert_eq!(note(&mut figures, place, output), 2);
        assert_eq!(
            note(&mut figures, place, "fibrant\tpingpong\tsame\t64.00\tns\n"),
            1
        );
        assert_eq!(figures.len(), 2);
        let same = find(&figures, "light", "same", None).unwrap();
        assert_eq!((&same.values[..], same.unit.as_str()), (&[62.19, 64.0][..], "ns"));
        let across = find(&figures, "light", "across", None).unwrap();
        assert_eq!(across.failure.as_deref(), Some("no second core"));
        assert_eq!(across.median(), None);
    }

    #[test]
    fn a_line_names_its_peer_if_nobody_else_does() {
        let mut figures = Vec::new();
        let place = Place {
            bench: "echo",
            label: None,
            at: Some(100),
        };
        note(
            &mut figures,
            place,
            "epoll\techo\tcpu\t5.91\tus\nfibrant\techo\tcpu\t6.00\tus\n",
        );
        assert_eq!(find(&figures, "epoll", "cpu", Some(100)).unwrap().values, [5.91]);
        assert!(find(&figures, "epoll", "cpu", None).is_none());
    }

    #[test]
    fn adds_up_calls_of_a_kind() {
        let mut figures = vec![
            of("fibrant", "syscalls recvfrom", &[1.0]),
            of("fibrant", "syscalls read", &[0.25]),
            of("fibrant", "syscalls sendto", &[1.0]),
            of("fibrant", "syscalls epoll_wait", &[0.1]),
            of("fibrant", "cpu", &[5.0]),
        ];
        add_up_calls(&mut figures);
        let values = |variant| find(&figures, "fibrant", variant, None).unwrap().values.clone();
        assert_eq!((values(RECEIVING), values(SENDING)), (vec![1.25], vec![1.0]));
    }

    #[test]
    fn shows_as_many_digits_as_count() {
        let shown = [0.0, 0.0312, 1.2345, 12.345, 99.97, 123.45, 1_234_567.8].map(number);
        assert_eq!(
            shown,
            ["0.00", "0.0312", "1.23", "12.3", "100", "123", "1,234,568"]
        );
        assert_eq!(with_commas(-1000), "-1,000");
    }
}
