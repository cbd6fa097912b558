//! Results as tables for a terminal.
//!
//! `run` prints them when all is measured.

use super::budgets::{State, Verdict};
use super::figures::{self, Figure, number};
use super::reasons;
use super::results::{Group, Measured, PERCENTILES, Results, Shape, shown_label};
use std::fmt::Write;

/// How long the longest bar is.
const BAR: f64 = 30.0;

/// Everything, as text.
pub fn shown(results: &Results) -> String {
    let mut text = String::new();
    for one in &results.benchmarks {
        benchmark(&mut text, one);
    }
    budgets(&mut text, &results.verdicts);
    for note in &results.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn benchmark(text: &mut String, one: &Measured) {
    let _ = writeln!(text, "\n{} [{}]", one.title, one.name);
    if one.shape == Shape::Growth {
        growth(text, one);
    }
    for found in one.groups() {
        group(text, &found);
    }
    if one.shape == Shape::Server {
        latencies(text, one);
    }
    for (label, reason) in one.failures() {
        let _ = writeln!(text, "  {label}: {reason}");
    }
}

/// A row for each peer: median, spread, ratio to ours, bar.
fn group(text: &mut String, group: &Group<'_>) {
    let better = if group.more_is_better { "more" } else { "less" };
    let title = [group.title.as_str(), group.unit].map(str::trim);
    let title: Vec<&str> = title.into_iter().filter(|word| !word.is_empty()).collect();
    let _ = writeln!(text, "  {} ({better} is better)", title.join(", "));
    let medians = group.rows.iter().filter_map(|row| row.figure.median());
    let greatest = medians.max_by(f64::total_cmp).unwrap_or(0.0);
    for row in group.rows.iter().filter(|row| !row.figure.values.is_empty()) {
        let median = row.figure.median().unwrap_or(0.0);
        let bar = if greatest > 0.0 {
            "#".repeat((median / greatest * BAR).round().max(0.0) as usize)
        } else {
            String::new()
        };
        let ratio = group
            .ratio(row)
            .map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let line = format!(
            "    {:<32} {:>9} {:>21} {ratio:>7}  {bar}",
            row.name,
            number(median),
            spread(row.figure)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// The least and the greatest, if there are several.
fn spread(figure: &Figure) -> String {
    match (figure.least(), figure.greatest()) {
        (Some(least), Some(greatest)) if figure.values.len() > 1 => {
            format!("{} - {}", number(least), number(greatest))
        }
        _ => String::new(),
    }
}

/// A row for each peer, and a column for each percentile.
fn latencies(text: &mut String, one: &Measured) {
    let has = |label: &&str| figures::find(&one.figures, label, PERCENTILES[0], None).is_some();
    let labels: Vec<&str> = one.labels().into_iter().filter(has).collect();
    if labels.is_empty() {
        return;
    }
    let _ = write!(text, "  latency, us\n    {:<32}", "");
    for percentile in PERCENTILES {
        let _ = write!(text, " {percentile:>9}");
    }
    for label in labels {
        let _ = write!(text, "\n    {:<32}", shown_label(label));
        for percentile in PERCENTILES {
            let median = figures::find(&one.figures, label, percentile, None).and_then(Figure::median);
            let _ = write!(text, " {:>9}", median.map_or(String::new(), number));
        }
    }
    text.push('\n');
}

/// For each variant, a row for each peer, and a column for each number.
fn growth(text: &mut String, one: &Measured) {
    let mut numbers: Vec<u64> = one.figures.iter().filter_map(|figure| figure.at).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for variant in one.variants() {
        let of_it = one.figures.iter().find(|figure| figure.variant == variant);
        let unit = of_it.map_or("", |figure| &figure.unit);
        let title = format!("{variant} {unit}");
        let _ = write!(text, "  {:<34}", title.trim());
        for at in &numbers {
            let _ = write!(text, " {:>10}", figures::with_commas(*at as i64));
        }
        for label in one.labels() {
            let _ = write!(text, "\n    {:<32}", shown_label(label));
            for at in &numbers {
                let median = figures::find(&one.figures, label, variant, Some(*at)).and_then(Figure::median);
                let _ = write!(text, " {:>10}", median.map_or(String::new(), number));
            }
        }
        text.push('\n');
    }
}

fn budgets(text: &mut String, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\nbudgets{:<69} {:>13} {:>13} {:>8} {:>8}",
        "", "ours", "theirs", "value", "beside"
    );
    for one in verdicts {
        let words = |words: &Option<String>| words.clone().unwrap_or_default();
        let value = |value: Option<f64>| value.map_or(String::new(), number);
        let line = format!(
            "  {:<74} {:>13} {:>13} {:>8} {:>8}  {:<28} {}",
            one.what,
            words(&one.ours),
            words(&one.theirs),
            value(one.value),
            value(one.beside),
            one.limit,
            verdict(one)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let count = |state: &State| verdicts.iter().filter(|one| one.state == *state).count();
    let _ = writeln!(
        text,
        "\n{} met, {} missed. (beside: the same for the other kind of fibers, isolated or light)",
        count(&State::Met),
        count(&State::Missed)
    );
    let missed = verdicts.iter().filter(|one| one.state == State::Missed);
    for (group, reason) in reasons::grouped(missed) {
        if let Some(reason) = reason {
            let mut names: Vec<&str> = group.iter().map(|one| one.bench.as_str()).collect();
            names.dedup();
            let _ = writeln!(text, "{}: {reason}", names.join(", "));
        }
    }
}

/// A verdict in words, with by how much a budget was missed.
pub fn verdict(one: &Verdict) -> String {
    match (&one.state, one.by) {
        (State::Missed, Some(by)) => format!("**missed** by {:.0} %", (by * 100.0).max(1.0)),
        (state, _) => state.word().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::some;
    use super::*;

    #[test]
    fn shows_a_row_for_each_peer() {
        let text = shown(&some());
        let row = text.lines().find(|line| line.starts_with("    may ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            ["may", "21.0", "20.0", "-", "22.0", "0.67", "####################"]
        );
        assert!(text.contains("monoio: no io_uring"), "{text}");
        assert!(text.contains("**missed** by 20 %"), "{text}");
        assert!(text.contains("1,000,000"), "{text}");
        assert!(text.contains("p99.99"), "{text}");
    }
}
