//! Budgets: what a figure of ours may be, next to a peer's of the same run or for itself, and what came of it.
//!
//! `plan` lays them down, `run` has them judged once all is measured, and whatever shows results shows the verdicts.

use super::figures::{self, Figure, number};
use super::results::{FIBRANT, LIGHT, Measured, shown_label};
use serde::{Deserialize, Serialize};

/// Whose figure of what.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub bench: String,
    pub label: String,
    pub variant: String,
    pub at: Option<u64>,
}

/// What is laid down for a figure of ours.
#[derive(Clone, Debug)]
pub struct Budget {
    pub ours: Point,
    /// What it is held against.
    pub theirs: Option<Point>,
    pub limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Ours is at most so many times theirs.
    Times(f64),
    /// Ours is at least so many times theirs.
    AtLeast(f64),
    /// The same, but a difference within the noise is none.
    AtLeastRoughly(f64),
    /// The two differ by so much of theirs at most, either way.
    Near(f64),
    /// Ours is at most so much more than theirs.
    More(f64),
    /// It is at most this.
    Most(f64),
    /// Nothing; but the ratio is of interest.
    Open,
}

/// What two runs of the same thing may differ by.
const NOISE: f64 = 0.05;

/// How a figure does by its budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub bench: String,
    /// What was measured, whose, and the peer.
    pub what: String,
    pub ours: Option<String>,
    pub theirs: Option<String>,
    /// What the limit is for: a ratio, a difference or the figure itself.
    pub value: Option<f64>,
    /// The limit in words.
    pub limit: String,
    pub state: State,
    /// By how much it was missed, of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<f64>,
    /// The same ratio for fibers of the other kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum State {
    Met,
    Missed,
    /// No limit was laid down.
    Open,
    /// It was to be measured and was not.
    NotMeasured(String),
}

impl State {
    pub fn word(&self) -> &str {
        match self {
            State::Met => "met",
            State::Missed => "missed",
            State::Open => "",
            State::NotMeasured(reason) => reason,
        }
    }
}

impl Limit {
    fn words(self) -> String {
        match self {
            Limit::Times(times) => format!("at most {} x", brief(times)),
            Limit::AtLeast(times) => format!("at least {} x", brief(times)),
            Limit::AtLeastRoughly(times) => format!("at least {} x, 5 % is noise", brief(times)),
            Limit::Near(part) => format!("within {:.0} %", part * 100.0),
            Limit::More(more) => format!("at most {} more", brief(more)),
            Limit::Most(most) => format!("at most {}", brief(most)),
            Limit::Open => String::new(),
        }
    }

    /// What is to be compared with it.
    fn value(self, ours: &Figure, theirs: Option<&Figure>) -> Option<f64> {
        match self {
            Limit::Most(_) => ours.median(),
            Limit::More(_) => Some(ours.median()? - theirs?.median()?),
            _ => figures::ratio(ours, theirs?),
        }
    }

    /// By how much a value misses it, of the limit; 0 or less if it does not.
    fn missed_by(self, value: f64) -> Option<f64> {
        match self {
            Limit::Times(limit) | Limit::More(limit) | Limit::Most(limit) => Some(value / limit - 1.0),
            Limit::AtLeast(limit) => Some(1.0 - value / limit),
            Limit::Near(part) => Some((value - 1.0).abs() / part - 1.0),
            Limit::AtLeastRoughly(limit) => Some(1.0 - value / (limit * (1.0 - NOISE))),
            Limit::Open => None,
        }
    }
}

/// A limit as one would write it.
fn brief(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The verdict on each budget whose benchmark was run. There is none for what was not even asked for; in a quick run, that is much.
pub fn judge(budgets: &[Budget], measured: &[Measured], quick: bool) -> Vec<Verdict> {
    let unasked = |verdict: &Verdict| quick && verdict.state == State::NotMeasured(NOT_MEASURED.to_owned());
    budgets
        .iter()
        .filter_map(|budget| budget.judge(measured))
        .filter(|verdict| !unasked(verdict))
        .collect()
}

/// All that is known of a figure that was not printed.
const NOT_MEASURED: &str = "not measured";

impl Budget {
    fn judge(&self, measured: &[Measured]) -> Option<Verdict> {
        let run = |point: &Point| measured.iter().find(|one| one.name == point.bench);
        let bench = run(&self.ours)?;
        // What is measured in a plan and what of it is judged must both have been asked for.
        let asked = |point: &Point| run(point).is_some_and(|one| one.asked(&point.label, point.at));
        if !asked(&self.ours) || self.theirs.as_ref().is_some_and(|theirs| !asked(theirs)) {
            return None;
        }
        let of_ours = |point: &Point| measured_at(&run(point)?.figures, &point.label, point);
        let of_theirs = |point: &Point| {
            let figures = &run(point)?.figures;
            // What others' locks and channels take in light fibers is taken from isolated ones if they cannot do with light ones.
            measured_at(figures, &point.label, point)
                .or_else(|| measured_at(figures, FIBRANT, point).filter(|_| point.label == LIGHT))
        };
        let ours = of_ours(&self.ours);
        let theirs = self.theirs.as_ref().map(|point| (point, of_theirs(point)));
        let failure = failure(run(&self.ours), &self.ours, ours).or_else(|| {
            let (point, figure) = theirs?;
            failure(run(point), point, figure)
        });
        let value = ours.and_then(|ours| self.limit.value(ours, theirs.and_then(|theirs| theirs.1)));
        let by = value.and_then(|value| self.limit.missed_by(value));
        let state = match (value, by) {
            (None, _) => State::NotMeasured(failure.unwrap_or_else(|| NOT_MEASURED.to_owned())),
            (Some(_), None) => State::Open,
            (Some(_), Some(by)) if by <= 1e-9 => State::Met,
            (Some(_), Some(_)) => State::Missed,
        };
        Some(Verdict {
            bench: bench.name.clone(),
            what: self.what(&bench.title),
            ours: ours.and_then(shown),
            theirs: theirs.and_then(|(_, figure)| figure.and_then(shown)),
            value,
            limit: self.limit.words(),
            by: by.filter(|_| state == State::Missed),
            state,
            beside: self.of_the_other_kind().and_then(|other| {
                let theirs = other.theirs.as_ref().and_then(of_theirs);
                other.limit.value(of_ours(&other.ours)?, theirs)
            }),
        })
    }

    fn what(&self, title: &str) -> String {
        let mut text = title.to_owned();
        if !self.ours.variant.is_empty() {
            text += &format!(", {}", self.ours.variant);
        }
        if let Some(at) = self.ours.at {
            text += &format!(", at {}", figures::with_commas(at as i64));
        }
        text += &format!(": {}", shown_label(&self.ours.label));
        if let Some(Point {
            bench,
            label,
            variant,
            at,
        }) = &self.theirs
        {
            text += " / ";
            match at.filter(|_| *at != self.ours.at) {
                Some(at) => text += &format!("at {}", figures::with_commas(at as i64)),
                None if *label == self.ours.label && !variant.is_empty() => text += variant,
                None if *variant != self.ours.variant && !variant.is_empty() => {
                    text += &format!("{}, {variant}", shown_label(label));
                }
                None => text += shown_label(label),
            }
            debug_assert!(*bench == self.ours.bench || at.is_some());
        }
        text
    }

    /// The same for fibers that have thread-locals of their own instead of light ones, or the other way round.
    fn of_the_other_kind(&self) -> Option<Budget> {
        let other = match self.ours.label.as_str() {
            FIBRANT => LIGHT,
            LIGHT => FIBRANT,
            _ => return None,
        };
        let mut budget = self.clone();
        other.clone_into(&mut budget.ours.label);
        if let Some(theirs) = &mut budget.theirs
            && theirs.label == self.ours.label
        {
            other.clone_into(&mut theirs.label);
        }
        Some(budget)
    }
}

/// The figure of a point, or of another's at the same point, if it was measured.
fn measured_at<'a>(figures: &'a [Figure], label: &str, point: &Point) -> Option<&'a Figure> {
    figures::find(figures, label, &point.variant, point.at).filter(|figure| !figure.values.is_empty())
}

/// Why there is no figure: what is known of it, or of everything of that peer's.
fn failure(bench: Option<&Measured>, point: &Point, figure: Option<&Figure>) -> Option<String> {
    if figure.is_some_and(|figure| !figure.values.is_empty()) {
        return None;
    }
    let figures = &bench?.figures;
    let reason = |variant| {
        figures::find(figures, &point.label, variant, point.at)?
            .failure
            .clone()
    };
    let reason = reason(&point.variant).or_else(|| reason(""))?;
    Some(format!("{}: {reason}", shown_label(&point.label)))
}

fn shown(figure: &Figure) -> Option<String> {
    let median = number(figure.median()?);
    Some(format!("{median} {}", figure.unit).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::results::{Section, Shape};
    use super::*;

    fn point(label: &str, variant: &str) -> Point {
        Point {
            bench: "lock".to_owned(),
            label: label.to_owned(),
            variant: variant.to_owned(),
            at: None,
        }
    }

    fn measured(lines: &str) -> Measured {
        let mut one = Measured {
            name: "lock".to_owned(),
            title: "lock".to_owned(),
            about: String::new(),
            section: Section::Sync,
            shape: Shape::Families,
            peers: vec![],
            commands: vec![],
            figures: vec![],
        };
        for label in [FIBRANT, LIGHT, "may"] {
            one.peers.push((label.to_owned(), None));
            let place = figures::Place {
                bench: "lock",
                label: Some(label),
                at: None,
            };
            let of_it: String = lines
                .lines()
                .filter(|line| line.starts_with(label))
                .map(|line| line.replace(' ', "\t").replace('_', " ") + "\n")
                .collect();
            figures::note(&mut one.figures, place, &of_it);
        }
        one
    }

    fn verdict(limit: Limit, ours: Point, theirs: Option<Point>, lines: &str) -> Verdict {
        let budget = Budget { ours, theirs, limit };
        judge(&[budget], &[measured(lines)], false).remove(0)
    }

    #[test]
    fn judges_ratios() {
        let lines = "light lock - 9 ns\nmay lock - 20 ns\nfibrant lock - 18 ns\n";
        let of = |limit| verdict(limit, point(LIGHT, ""), Some(point("may", "")), lines);
        let met = of(Limit::Times(0.5));
        assert_eq!(
            (met.state, met.value, met.beside),
            (State::Met, Some(0.45), Some(0.9))
        );
        let missed = of(Limit::Times(0.4));
        assert_eq!(missed.state, State::Missed);
        assert!((missed.by.unwrap() - 0.125).abs() < 1e-9);
        assert_eq!(of(Limit::AtLeast(0.44)).state, State::Met);
        assert_eq!(of(Limit::AtLeast(0.47)).state, State::Missed);
        assert_eq!(of(Limit::Near(0.6)).state, State::Met);
        assert_eq!(of(Limit::Near(0.5)).state, State::Missed);
        assert_eq!(of(Limit::AtLeastRoughly(0.47)).state, State::Met);
        assert_eq!(of(Limit::AtLeastRoughly(0.5)).state, State::Missed);
        assert_eq!(of(Limit::More(-10.0)).value, Some(-11.0));
        assert_eq!(of(Limit::Open).state, State::Open);
    }

    #[test]
    fn judges_a_figure_for_itself() {
        let of = |limit| verdict(limit, point(LIGHT, ""), None, "light lock - 9 ns\n").state;
        assert_eq!(
            (of(Limit::Most(9.0)), of(Limit::Most(8.0))),
            (State::Met, State::Missed)
        );
    }

    #[test]
    fn what_cannot_be_had_is_told_with_its_reason() {
        let lines = "light lock - 9 ns\nmay lock - FAIL:_no_locks -\n";
        let absent = verdict(
            Limit::Times(1.0),
            point(LIGHT, "none"),
            Some(point("may", "")),
            lines,
        );
        assert_eq!(absent.state, State::NotMeasured("may: no locks".to_owned()));
        let nobody_prints_it = Budget {
            ours: point(LIGHT, "other"),
            theirs: None,
            limit: Limit::Most(1.0),
        };
        let verdicts = |quick| {
            judge(
                std::slice::from_ref(&nobody_prints_it),
                &[measured("light lock one 9 ns\n")],
                quick,
            )
        };
        assert_eq!(
            verdicts(false)[0].state,
            State::NotMeasured(NOT_MEASURED.to_owned())
        );
        assert!(verdicts(true).is_empty());
        let of_another = Budget {
            ours: point(LIGHT, ""),
            theirs: Some(point("tokio_mt", "")),
            limit: Limit::Open,
        };
        assert!(judge(&[of_another], &[measured(lines)], false).is_empty());
    }

    #[test]
    fn nothing_stands_beside_what_is_of_one_kind() {
        let lines = "fibrant lock one 5 ns\nmay lock one 10 ns\n";
        let one = verdict(
            Limit::Times(0.6),
            point(FIBRANT, "one"),
            Some(point("may", "one")),
            lines,
        );
        assert_eq!((one.state, one.beside), (State::Met, None));
    }

    #[test]
    fn light_fibers_are_compared_with_what_only_isolated_ones_can_do() {
        let lines =
            "light lock fibrant_mutex 5 ns\nlight lock std_mutex FAIL:_no -\nfibrant lock std_mutex 10 ns\n";
        let one = verdict(
            Limit::Times(0.4),
            point(LIGHT, "fibrant mutex"),
            Some(point(LIGHT, "std mutex")),
            lines,
        );
        assert_eq!((one.value, one.state), (Some(0.5), State::Missed));
    }
}
