//! Results: all that a run has found, as it is kept in a file, and in which groups it is shown.
//!
//! `run` makes and saves them, or reads them again; `terminal`, `html`, `charts` and `publish` show them.

use super::budgets::{State, Verdict};
use super::figures::{self, Figure};
use super::machine::Machine;
use crate::run::Outcome;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The labels of our columns: fibers as they come, and light ones.
pub const FIBRANT: &str = "fibrant";
pub const LIGHT: &str = "light";

/// Everything that a run has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// When, in universal time.
    pub date: String,
    /// What was measured.
    pub commit: String,
    /// How it was asked for.
    pub command: String,
    pub quick: bool,
    pub machine: Machine,
    /// What was left out, and why.
    pub notes: Vec<String>,
    pub benchmarks: Vec<Measured>,
    pub verdicts: Vec<Verdict>,
}

impl Results {
    pub fn read(file: &Path) -> Outcome<Results> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
    }

    pub fn to_json(&self) -> Outcome<String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|error| error.to_string())
    }

    pub fn named(&self, name: &str) -> Option<&Measured> {
        self.benchmarks.iter().find(|one| one.name == name)
    }

    /// Budgets that were missed.
    pub fn missed(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts
            .iter()
            .filter(|verdict| verdict.state == State::Missed)
    }

    /// Each group in which a peer does better than our fibers as they come, by more than noise: a sentence.
    pub fn lost(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        for one in &self.benchmarks {
            for group in one.groups() {
                sentences.extend(group.loss().map(|loss| {
                    let title = match group.title.as_str() {
                        "" => one.title.clone(),
                        title => format!("{}, {title}", one.title),
                    };
                    format!("{title}: {loss}")
                }));
            }
        }
        sentences
    }
}

/// What a benchmark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Section {
    Servers,
    Tasks,
    Waiting,
    Sync,
    Hooks,
    ByHand,
    InC,
    Growth,
}

impl Section {
    pub const ALL: [Section; 8] = [
        Section::Servers,
        Section::Tasks,
        Section::Waiting,
        Section::Sync,
        Section::Hooks,
        Section::ByHand,
        Section::InC,
        Section::Growth,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Section::Servers => "Servers",
            Section::Tasks => "Tasks",
            Section::Waiting => "Timers and tasks that wait",
            Section::Sync => "Locks and channels",
            Section::Hooks => "Hooks and thread-locals",
            Section::ByHand => "Fibers driven by hand",
            Section::InC => "In C",
            Section::Growth => "Growth",
        }
    }
}

/// How the variants of a benchmark belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A group for each variant, and the peers in it.
    Plain,
    /// What stands behind the last comma of a variant is another way to do the same thing.
    Ways,
    /// A variant begins with the library whose lock or channel it is.
    Families,
    /// A server's many figures, of which some are shown as groups, and the percentiles as curves.
    Server,
    /// The same thing in growing numbers.
    Growth,
}

/// A benchmark that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub name: String,
    pub title: String,
    pub about: String,
    pub section: Section,
    pub shape: Shape,
    /// Whose figures were asked for, and at which number of what grows.
    pub peers: Vec<(String, Option<u64>)>,
    /// What was run.
    pub commands: Vec<String>,
    pub figures: Vec<Figure>,
}

/// The percentiles that a server's latency has, as their variants call them.
pub const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "p99.99"];

/// What is shown of a server as groups, and what that is called.
const SERVER_GROUPS: [(&str, &str); 6] = [
    ("cpu", "processor time per request"),
    ("rate", "requests per second"),
    ("p99", "99th percentile of the latency"),
    ("wrk rate", "requests per second, asked by wrk"),
    (figures::RECEIVING, "system calls that receive, per request"),
    (figures::SENDING, "system calls that send, per request"),
];

/// What is not shown of a server as it grows; all of it is among the figures.
const DETAILS: [&str; 8] = [
    "p50",
    "p90",
    "p99.9",
    "p99.99",
    "max",
    "cpu user",
    "cpu system",
    "client idle",
];

/// Figures that can be compared.
pub struct Group<'a> {
    /// Empty if it is the only one.
    pub title: String,
    pub unit: &'a str,
    pub more_is_better: bool,
    /// The best comes first; what failed comes last.
    pub rows: Vec<Row<'a>>,
}

pub struct Row<'a> {
    pub name: String,
    pub is_ours: bool,
    pub figure: &'a Figure,
}

impl Measured {
    /// Whether such a figure was to be measured.
    pub fn asked(&self, label: &str, at: Option<u64>) -> bool {
        self.peers.iter().any(|peer| peer.0 == label && peer.1 == at)
            || self
                .figures
                .iter()
                .any(|figure| figure.label == label && figure.at == at)
    }

    /// The figures in groups, in the order in which they were first seen. What grows has curves instead.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let fitting = |figure: &&Figure| figure.at.is_none() || self.shape != Shape::Growth;
        for figure in self.figures.iter().filter(fitting) {
            let Some((title, row)) = self.place(figure) else {
                continue;
            };
            match groups.iter_mut().find(|group| group.title == title) {
                Some(group) => group.rows.push(row),
                None => groups.push(Group {
                    title,
                    unit: "",
                    more_is_better: false,
                    rows: vec![row],
                }),
            }
        }
        self.sort_servers(&mut groups);
        // What a peer has said of the benchmark as a whole is why it has no figure.
        if groups.len() > 1 {
            groups.retain(|group| group.rows.iter().any(|row| !row.figure.values.is_empty()));
        }
        for group in &mut groups {
            group.finish();
        }
        groups
    }

    /// The group that a figure belongs to, and its row there.
    fn place<'a>(&self, figure: &'a Figure) -> Option<(String, Row<'a>)> {
        let label = shown_label(&figure.label);
        let is_ours = is_ours(&figure.label);
        let variant = figure.variant.as_str();
        // It is of use to a budget only.
        if variant.ends_with("ratio to the first") {
            return None;
        }
        let (title, name, is_ours) = match self.shape {
            Shape::Plain | Shape::Growth => (variant.to_owned(), label.to_owned(), is_ours),
            Shape::Ways => match way(variant) {
                (thing, "") => (thing.to_owned(), label.to_owned(), is_ours),
                // What is there for comparison.
                (thing, way) if way == "C library" || way.starts_with("bare") => {
                    (thing.to_owned(), way.to_owned(), false)
                }
                (thing, way) => (thing.to_owned(), format!("{label}, {way}"), is_ours),
            },
            Shape::Families => {
                let (family, thing) = family(variant);
                let is_ours = is_ours && family.starts_with(FIBRANT);
                let name = match family.as_str() {
                    "" => label.to_owned(),
                    FIBRANT if is_ours => label.to_owned(),
                    family if label.to_lowercase().starts_with(family) => label.to_owned(),
                    family => format!("{family} in {}", place_label(&figure.label)),
                };
                (thing.to_owned(), name, is_ours)
            }
            Shape::Server => {
                let (_, title) = SERVER_GROUPS.iter().find(|(name, _)| *name == variant)?;
                ((*title).to_owned(), label.to_owned(), is_ours)
            }
        };
        Some((
            title,
            Row {
                name,
                is_ours,
                figure,
            },
        ))
    }

    fn sort_servers(&self, groups: &mut [Group<'_>]) {
        if self.shape == Shape::Server {
            groups.sort_by_key(|group| SERVER_GROUPS.iter().position(|(_, title)| *title == group.title));
        }
    }

    /// Peers that have failed altogether, with the reason.
    pub fn failures(&self) -> Vec<(&str, &str)> {
        let mut failures: Vec<(&str, &str)> = Vec::new();
        for figure in &self.figures {
            if let Some(failure) = &figure.failure
                && figure.values.is_empty()
                && !failures.iter().any(|known| known.0 == figure.label)
            {
                failures.push((shown_label(&figure.label), failure));
            }
        }
        failures
    }

    /// The variants that are shown as they grow, in the order in which they were first seen. Without a unit it is a mere count.
    pub fn variants(&self) -> Vec<&str> {
        let mut variants: Vec<&str> = Vec::new();
        for figure in &self.figures {
            if !figure.values.is_empty()
                && !figure.unit.is_empty()
                && !DETAILS.contains(&figure.variant.as_str())
                && !variants.contains(&figure.variant.as_str())
            {
                variants.push(&figure.variant);
            }
        }
        variants
    }

    /// The peers, in the order in which they were first seen.
    pub fn labels(&self) -> Vec<&str> {
        let mut labels: Vec<&str> = Vec::new();
        for figure in &self.figures {
            if !figure.values.is_empty() && !labels.contains(&figure.label.as_str()) {
                labels.push(&figure.label);
            }
        }
        labels
    }
}

impl Group<'_> {
    fn finish(&mut self) {
        let first = self.rows.iter().find(|row| !row.figure.values.is_empty());
        self.unit = first.map_or("", |row| &row.figure.unit);
        self.more_is_better = first.is_some_and(|row| row.figure.more_is_better());
        let sign = if self.more_is_better { -1.0 } else { 1.0 };
        let key = |row: &Row<'_>| row.figure.median().map_or(f64::INFINITY, |median| sign * median);
        self.rows.sort_by(|one, other| key(one).total_cmp(&key(other)));
    }

    /// The figure of ours that the others are held against: that of fibers as they come, if it is there.
    pub fn base(&self) -> Option<&Figure> {
        let ours = || {
            self.rows
                .iter()
                .filter(|row| row.is_ours && !row.figure.values.is_empty())
        };
        let named = |name: &str| ours().find(|row| row.name == name);
        let row = named(FIBRANT)
            .or_else(|| named("fibrant, isolated"))
            .or_else(|| named("fibrant, in a fiber"))
            .or_else(|| ours().find(|row| row.figure.label == FIBRANT))
            .or_else(|| ours().next())?;
        Some(row.figure)
    }

    /// A row's ratio to ours.
    pub fn ratio(&self, row: &Row<'_>) -> Option<f64> {
        figures::ratio(row.figure, self.base()?)
    }

    /// The peer that does best, and by what factor it is better than our fibers as they come.
    pub fn best_peer(&self) -> Option<(&Row<'_>, f64)> {
        let best = self
            .rows
            .iter()
            .find(|row| !row.is_ours && row.figure.label != LEAST && !row.figure.values.is_empty())?;
        let ratio = self.ratio(best)?;
        Some((best, if self.more_is_better { ratio } else { 1.0 / ratio }))
    }

    /// In words, what the best peer does better.
    fn loss(&self) -> Option<String> {
        const NOISE: f64 = 1.05;
        let (best, factor) = self.best_peer()?;
        if factor <= NOISE {
            return None;
        }
        let show = |figure: &Figure| figure.median().map(figures::number).unwrap_or_default();
        let base = self.base()?;
        let light = self
            .rows
            .iter()
            .find(|row| row.figure.label == LIGHT && row.is_ours);
        let beside = light.map_or(String::new(), |row| format!(" (light: {})", show(row.figure)));
        let (ours, theirs, unit) = (show(base), show(best.figure), self.unit);
        let ours = format!("{ours}{beside} {unit}");
        Some(format!("{}, where {} has {theirs}", ours.trim_end(), best.name))
    }
}

/// What is measured, and the way in which it is done: behind the last comma, or all, unless it is a number of things.
fn way(variant: &str) -> (&str, &str) {
    match variant.rsplit_once(", ") {
        Some(parts) => parts,
        None if variant.starts_with(|letter: char| letter.is_ascii_digit()) => (variant, ""),
        None => ("", variant),
    }
}

/// The library at the beginning of a variant, and what of it is measured.
fn family(variant: &str) -> (String, &str) {
    let Some((library, thing)) = variant.split_once(' ') else {
        return (String::new(), variant);
    };
    // One library has several kinds of channels, which do the same.
    for kind in ["spsc", "mpsc", "mpmc"] {
        if let Some(thing) = thing.strip_prefix(kind) {
            return (format!("{library} {kind}"), thing.trim_start());
        }
    }
    match thing.strip_suffix(", thread") {
        Some(thing) => (format!("{library}, in a thread"), thing),
        None => (library.to_owned(), thing),
    }
}

/// Whether a label is one of ours.
pub fn is_ours(label: &str) -> bool {
    [FIBRANT, LIGHT, "coroutines"].contains(&label)
        || label.starts_with("echo_libco")
        || label.starts_with("echo_fibers")
}

/// A part of the work that nobody can do without: shown, but no peer.
const LEAST: &str = "least";

/// What a label is called where people read it.
pub fn shown_label(label: &str) -> &str {
    match label {
        LIGHT => "fibrant light",
        "tokio_mt" => "tokio",
        "tokio_ct" => "tokio, current thread",
        "std_thread" => "threads",
        "boost" => "Boost.Context",
        "epoll" => "bare epoll",
        "eventfd" => "threads, bare eventfd",
        "eventfd_epoll" => "threads, eventfd by epoll",
        LEAST => "the least it takes",
        "go" => "Go",
        "coroutines" => "fibrant's libco",
        "boost_jump" => "Boost, bare jump",
        "boost_fiber" => "Boost, fiber",
        "echo_epoll" => "bare epoll",
        "echo_libco poll" => "fibrant's libco, poll",
        "echo_libco read" => "fibrant's libco, read",
        "echo_fibers" => "fibrant in C",
        other => other,
    }
}

/// The same, of where a lock or channel is used.
fn place_label(label: &str) -> &str {
    match label {
        FIBRANT => "fibers",
        LIGHT => "light fibers",
        other => shown_label(other),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Results with something of everything.
    pub fn some() -> Results {
        let figure = |label: &str, variant: &str, at, unit: &str, values: &[f64]| Figure {
            label: label.to_owned(),
            variant: variant.to_owned(),
            at,
            unit: unit.to_owned(),
            values: values.to_vec(),
            failure: None,
        };
        let one = |name: &str, section, shape, figures| Measured {
            name: name.to_owned(),
            title: format!("{name} <title>"),
            about: "What it is.".to_owned(),
            section,
            shape,
            peers: vec![(FIBRANT.to_owned(), None)],
            commands: vec![format!("fibrant {name} 1")],
            figures,
        };
        let mut failed = figure("monoio", "", None, "", &[]);
        failed.failure = Some("no io_uring".to_owned());
        let mut echo = Vec::new();
        for (label, scale) in [(FIBRANT, 1.0), (LIGHT, 0.98), ("epoll", 0.97), ("go", 1.5)] {
            echo.push(figure(label, "cpu", None, "us", &[6.0 * scale, 6.2 * scale]));
            echo.push(figure(
                label,
                "rate",
                None,
                "req/s",
                &[160e3 / scale, 150e3 / scale],
            ));
            for (index, percentile) in PERCENTILES.into_iter().enumerate() {
                let latency = 600.0 * scale * (index as f64).exp();
                echo.push(figure(label, percentile, None, "us", &[latency]));
            }
        }
        let mut growth = Vec::new();
        for (label, scale) in [(FIBRANT, 1.0), ("tokio_mt", 2.0)] {
            for at in [1_000, 10_000, 100_000, 1_000_000] {
                let value = scale * 100.0 + (at as f64).ln();
                growth.push(figure(label, "spawn", Some(at), "ns", &[value, value * 1.1]));
            }
        }
        Results {
            date: "2026-01-02T03:04:05Z".to_owned(),
            commit: "abc".to_owned(),
            command: "cargo xtask bench".to_owned(),
            quick: false,
            machine: Machine::default(),
            notes: vec!["no Go".to_owned()],
            benchmarks: vec![
                one("echo_100", Section::Servers, Shape::Server, echo),
                one(
                    "yield2",
                    Section::Tasks,
                    Shape::Plain,
                    vec![
                        figure("may", "", None, "ns", &[20.0, 22.0, 21.0]),
                        figure(FIBRANT, "", None, "ns", &[30.0, 33.0, 31.5]),
                        figure(LIGHT, "", None, "ns", &[12.0, 12.5, 13.0]),
                        failed,
                    ],
                ),
                one(
                    "lock",
                    Section::Sync,
                    Shape::Families,
                    vec![
                        figure(FIBRANT, "fibrant mutex", None, "ns", &[5.0]),
                        figure(FIBRANT, "std mutex", None, "ns", &[6.0]),
                        figure(LIGHT, "fibrant mutex, thread", None, "ns", &[5.5]),
                        figure("may", "may spsc unbounded", None, "ns", &[70.0]),
                        figure("tokio_ct", "tokio unbounded", None, "ns", &[80.0]),
                    ],
                ),
                one("growth_many", Section::Growth, Shape::Growth, growth),
            ],
            verdicts: vec![Verdict {
                bench: "yield2".to_owned(),
                what: "yield, 2 tasks: fibrant light / may".to_owned(),
                ours: Some("12.5 ns".to_owned()),
                theirs: Some("21.0 ns".to_owned()),
                value: Some(0.6),
                limit: "at most 0.5 x".to_owned(),
                state: State::Missed,
                by: Some(0.2),
                beside: None,
            }],
        }
    }

    #[test]
    fn comes_back_from_json_as_it_was() {
        let results = some();
        let json = results.to_json().unwrap();
        assert_eq!(serde_json::from_str::<Results>(&json).unwrap(), results);
    }

    #[test]
    fn the_best_comes_first_and_what_failed_last() {
        let results = some();
        let groups = results.named("yield2").unwrap().groups();
        let names: Vec<&str> = groups[0].rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["fibrant light", "may", "fibrant", "monoio"]);
        assert_eq!(groups[0].base().unwrap().label, FIBRANT);
        let (best, factor) = groups[0].best_peer().unwrap();
        assert_eq!((best.name.as_str(), factor), ("may", 1.5));
        let groups = results.named("echo_100").unwrap().groups();
        assert_eq!(groups[1].rows[0].name, "bare epoll", "of rates the greatest");
    }

    #[test]
    fn locks_are_grouped_by_what_they_do() {
        let results = some();
        let groups = results.named("lock").unwrap().groups();
        let of = |title: &str| groups.iter().find(|group| group.title == title).unwrap();
        let names: Vec<_> = of("mutex")
            .rows
            .iter()
            .map(|row| (row.name.as_str(), row.is_ours))
            .collect();
        assert_eq!(
            names,
            [
                ("fibrant", true),
                ("fibrant, in a thread in light fibers", true),
                ("std in fibers", false)
            ]
        );
        assert_eq!(of("unbounded").rows[0].name, "may spsc in may");
        assert_eq!(of("unbounded").rows[1].name, "tokio, current thread");
    }

    #[test]
    fn knows_the_ways_to_do_a_thing() {
        assert_eq!(way("recv, socket, in a fiber"), ("recv, socket", "in a fiber"));
        assert_eq!(way("1000"), ("1000", ""));
        assert_eq!(way("shared float control"), ("", "shared float control"));
        assert_eq!(way(""), ("", ""));
    }

    #[test]
    fn tells_where_we_lose() {
        let lost = some().lost();
        assert_eq!(
            lost,
            ["yield2 <title>: 31.5 (light: 12.5) ns, where may has 21.0"]
        );
    }
}
