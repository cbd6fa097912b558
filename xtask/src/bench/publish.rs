//! What becomes of results outside a terminal: files in `target/bench`, and, if they are published, in `docs/benchmarks` and in the part of
//! the README between two comments.
//!
//! `run` calls it.

use super::charts;
use super::figures::{Figure, number};
use super::html;
use super::reasons;
use super::results::{Group, LIGHT, Measured, Results};
use crate::run::Outcome;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Where results always go, and where they are published.
pub const FOLDER: &str = "target/bench";
const PUBLISHED: &str = "docs/benchmarks";

/// Whose part between the two comments is rewritten.
const README: &str = "README.md";

const BEGIN: &str = "<!-- benchmarks: begin -->";
const END: &str = "<!-- benchmarks: end -->";

/// Writes the files of a report.
pub fn write(results: &Results, folder: &str) -> Outcome {
    fs::create_dir_all(folder).map_err(|error| format!("{folder}: {error}"))?;
    let files = [
        ("results.json", Some(results.to_json()?)),
        ("index.html", Some(html::page(results))),
        ("main.svg", main_picture(results)),
        ("growth.svg", growth_picture(results)),
    ];
    for (name, text) in files {
        let path = Path::new(folder).join(name);
        let outcome = match text {
            Some(text) => fs::write(&path, text),
            // What an earlier run has left does not belong to this one.
            None if path.exists() => fs::remove_file(&path),
            None => Ok(()),
        };
        outcome.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Writes the files where they are published, and rewrites the part of the README.
pub fn publish(results: &Results) -> Outcome {
    write(results, PUBLISHED)?;
    let text = fs::read_to_string(README).map_err(|error| format!("{README}: {error}"))?;
    let text = rewritten(&text, &part(results)).ok_or_else(|| format!("{README} lacks {BEGIN} or {END}"))?;
    fs::write(README, text).map_err(|error| format!("{README}: {error}"))?;
    println!("published: {PUBLISHED}, {README}");
    Ok(())
}

/// The text with another part between the comments.
fn rewritten(text: &str, part: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{part}{END}{after}"))
}

/// What a server takes for a request, by peer.
fn main_picture(results: &Results) -> Option<String> {
    let groups: Vec<(&str, Group<'_>)> = ["echo_100", "echo_1000"]
        .into_iter()
        .filter_map(|name| {
            let one = results.named(name)?;
            let group = one.groups().into_iter().next()?;
            Some((one.title.as_str(), group))
        })
        .collect();
    let quiet = format!(
        "{}. Less is better; whiskers: least and greatest.",
        results.machine.brief()
    );
    charts::side_by_side("Processor time of an echo server per request", &quiet, &groups)
}

/// How it grows.
fn growth_picture(results: &Results) -> Option<String> {
    let wanted = [
        (
            "growth_echo",
            "cpu",
            "server's processor time per request, by connections",
        ),
        ("growth_echo", "rate", "requests per second, by connections"),
        ("growth_many", "spawn", "spawn and park a task, by tasks"),
        ("growth_many", "memory", "memory of a parked task, by tasks"),
        ("growth_timer_insert", "", "arm a timer, by timers"),
        ("growth_timer_cancel", "", "cancel a timer, by timers"),
    ];
    let parts: Vec<(String, &Measured, &str)> = wanted
        .into_iter()
        .filter_map(|(name, variant, title)| Some((title.to_owned(), results.named(name)?, variant)))
        .collect();
    charts::growing("In growing numbers", &results.machine.brief(), &parts)
}

/// What the README's table shows: the benchmark and the group in it, empty for the only one.
const SHOWN: [(&str, &str); 18] = [
    ("echo_100", "processor time per request"),
    ("echo_1000", "processor time per request"),
    ("echo_9000", "processor time per request"),
    ("echo_1000", "99th percentile of the latency"),
    ("stream", "processor time per request"),
    ("http", "processor time per request"),
    ("yield2", ""),
    ("yield1000", ""),
    ("spawn", ""),
    ("spawn1", ""),
    ("skynet", ""),
    ("pingpong", "same"),
    ("timer_insert", ""),
    ("timer_cancel", ""),
    ("mem", ""),
    ("lock", "mutex"),
    ("channel", "bounded(1)"),
    ("throughput", "1:1"),
];

/// The part of the README.
fn part(results: &Results) -> String {
    let mut text = String::new();
    let date = results.date.split('T').next().unwrap_or_default();
    let _ = writeln!(
        text,
        "Measured by `{}` on {date}: {}. Medians; all programs took turns. \
         [The report]({PUBLISHED}/index.html), [all figures]({PUBLISHED}/results.json).\n",
        results.command,
        results.machine.brief(),
    );
    for (file, says, picture) in [
        (
            "main.svg",
            "processor time of echo servers per request",
            main_picture(results),
        ),
        (
            "growth.svg",
            "what grows, in growing numbers",
            growth_picture(results),
        ),
    ] {
        if picture.is_some() {
            let _ = writeln!(text, "![{says}]({PUBLISHED}/{file})\n");
        }
    }
    table(&mut text, results);
    losses(&mut text, results);
    text
}

fn table(text: &mut String, results: &Results) {
    let mut rows = Vec::new();
    for (name, title) in SHOWN {
        let Some(one) = results.named(name) else { continue };
        let groups = one.groups();
        rows.extend(
            groups
                .iter()
                .find(|group| group.title == title)
                .and_then(|group| {
                    let what = match title {
                        "" => one.title.clone(),
                        title => format!("{}, {title}", one.title),
                    };
                    row(&what, group)
                }),
        );
    }
    if rows.is_empty() {
        return;
    }
    text.push_str("| | fibrant | light | best peer | fibrant / peer |\n|---|---|---|---|---|\n");
    for row in rows {
        text.push_str(&row);
    }
    text.push('\n');
}

fn row(what: &str, group: &Group<'_>) -> Option<String> {
    let show = |figure: &Figure| figure.median().map(number);
    let base = group.base()?;
    let light = group
        .rows
        .iter()
        .find(|row| row.is_ours && row.figure.label == LIGHT)
        .and_then(|row| show(row.figure));
    let (peer, _) = group.best_peer()?;
    let ratio = 1.0 / group.ratio(peer)?;
    Some(format!(
        "| {what} | {} {} | {} | {} {} | {ratio:.2} |\n",
        show(base)?,
        group.unit,
        light.unwrap_or_default(),
        peer.name,
        show(peer.figure)?
    ))
}

fn losses(text: &mut String, results: &Results) {
    let missed: Vec<_> = results.missed().collect();
    let lost = results.lost();
    if missed.is_empty() && lost.is_empty() {
        return;
    }
    // Long lists can be opened by whoever wants to read them.
    let _ = writeln!(
        text,
        "**Where we lose**: {} budgets were missed, and a peer does better in {} figures.\n\n<details><summary>Which</summary>\n",
        missed.len(),
        lost.len()
    );
    for (verdicts, reason) in reasons::grouped(missed.into_iter()) {
        for one in verdicts {
            let value = one.value.map_or(String::new(), number);
            let _ = writeln!(text, "- Budget missed: {}: {value}, {}.", one.what, one.limit);
        }
        if let Some(reason) = reason {
            let _ = writeln!(text, "  *{reason}*");
        }
    }
    for sentence in lost {
        let _ = writeln!(text, "- {sentence}.");
    }
    text.push_str("\n</details>\n\n");
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::some;
    use super::*;

    #[test]
    fn only_the_part_between_the_comments_changes() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = rewritten(&text, "new\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}\nnew\n{END}\nafter\n"));
        assert_eq!(rewritten(&new, "new\n").as_ref(), Some(&new));
        assert_eq!(rewritten("nothing", "new"), None);
    }

    #[test]
    fn the_readme_has_its_comments() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(README);
        let text = fs::read_to_string(path).unwrap();
        assert!(rewritten(&text, "").is_some());
    }

    #[test]
    fn tells_the_best_peer_and_where_we_lose() {
        let text = part(&some());
        assert!(
            text.contains("| yield2 <title> | 31.5 ns | 12.5 | may 21.0 | 1.50 |"),
            "{text}"
        );
        assert!(text.contains("- Budget missed: yield"), "{text}");
        assert!(text.contains("](docs/benchmarks/main.svg)"), "{text}");
    }
}
