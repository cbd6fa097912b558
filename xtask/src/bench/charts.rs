//! Charts as SVG: bars for a group of figures, curves for what grows and for latencies.
//!
//! `html` puts them into its page, and `publish` and `run` write a few as files of their own. Colours and fonts are in classes, so that a
//! page, or the style that a file of its own has, can make them fit light and dark.

use super::figures::{Figure, find, number, with_commas};
use super::results::{FIBRANT, Group, LIGHT, Measured, PERCENTILES, is_ours, shown_label};
use std::fmt::Write;

/// What the classes look like: in the light, and what is different in the dark. Also for the page.
pub const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:#24292f}\
.quiet{fill:#6e7781;font-size:12px}\
.small{font-size:11px}\
.strong{font-weight:600}\
.title{font-size:15px;font-weight:600}\
.paper{fill:#ffffff;stroke:#d8dee4}\
.ours{fill:#0969da}.light{fill:#6cb0f5}.peer{fill:#c3cad2}\
.ours-text{fill:#0969da;font-weight:600}\
.whisker{stroke:#24292f;stroke-width:1.2;fill:none;opacity:.75}\
.axis{stroke:#d8dee4;stroke-width:1;fill:none}\
.ours-line{stroke:#0969da;stroke-width:2.4;fill:none}\
.light-line{stroke:#6cb0f5;stroke-width:2.4;fill:none}\
.peer-line{stroke:#9aa4ae;stroke-width:1.6;fill:none}\
.gap{stroke:#ffffff;stroke-width:3;fill:none}\
@media (prefers-color-scheme:dark){\
text{fill:#e6edf3}.quiet{fill:#8b949e}\
.paper{fill:#0d1117;stroke:#30363d}\
.ours{fill:#4493f8}.light{fill:#2b5f9e}.peer{fill:#484f58}\
.ours-text{fill:#79b8ff}\
.whisker{stroke:#e6edf3}.axis{stroke:#30363d}\
.ours-line{stroke:#4493f8}.light-line{stroke:#2f6cb5}.peer-line{stroke:#6e7681}\
.gap{stroke:#0d1117}}";

/// Of a picture on a page, where two are side by side.
const WIDTH: f64 = 520.0;

/// A scale from values to places, straight or by powers of ten.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    is_log: bool,
}

impl Axis {
    pub fn straight(to: f64, start: f64, end: f64) -> Axis {
        Axis {
            from: 0.0,
            to: if to > 0.0 { to } else { 1.0 },
            start,
            end,
            is_log: false,
        }
    }

    /// Both values are greater than 0.
    pub fn log(from: f64, to: f64, start: f64, end: f64) -> Axis {
        Axis {
            from: from.log10(),
            to: if to > from { to.log10() } else { from.log10() + 1.0 },
            start,
            end,
            is_log: true,
        }
    }

    pub fn at(&self, value: f64) -> f64 {
        let value = if self.is_log {
            value.max(f64::MIN_POSITIVE).log10()
        } else {
            value
        };
        let part = (value - self.from) / (self.to - self.from);
        self.start + part.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Round values, about so many, in its range.
    pub fn ticks(&self, about: usize) -> Vec<f64> {
        if self.is_log {
            return self.log_ticks();
        }
        let rough = self.to / about.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(power);
        let count = (self.to / step + 1e-9).floor() as usize;
        (0..=count).map(|nth| nth as f64 * step).collect()
    }

    /// Powers of ten; if those are few, two and five times them, too.
    fn log_ticks(&self) -> Vec<f64> {
        let factors: &[f64] = if self.to - self.from > 2.2 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let (low, high) = (self.from.floor() as i32, self.to.ceil() as i32);
        let all =
            (low..=high).flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
        let within = |value: &f64| {
            let value = value.log10();
            value >= self.from - 1e-9 && value <= self.to + 1e-9
        };
        all.filter(within).collect()
    }
}

/// The classes of a bar and of a line.
fn class(label: &str, is_ours: bool) -> &'static str {
    match label {
        LIGHT if is_ours => "light",
        _ if is_ours => "ours",
        _ => "peer",
    }
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A picture for a page.
fn inline(width: f64, height: f64, name: &str, body: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\" xmlns=\"http://www.w3.org/2000/svg\">{body}</svg>\n",
        escaped(name)
    )
}

/// A picture for a file of its own, with its colours and a background.
fn standalone(width: f64, height: f64, name: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" rx=\"8\"/>\n{body}</svg>\n",
        escaped(name),
        width - 1.0,
        height - 1.0
    )
}

const ROW: f64 = 26.0;
const NAMES: f64 = 168.0;
const VALUES: f64 = 118.0;

/// How many times as long as ours a bar may be: what is far slower would leave the others nothing.
const LONGEST: f64 = 8.0;

/// Bars for a group, from `top` on, in a picture so wide. Returns where they end.
fn bars_into(body: &mut String, group: &Group<'_>, left: f64, width: f64, top: f64) -> f64 {
    let rows: Vec<_> = group
        .rows
        .iter()
        .filter(|row| !row.figure.values.is_empty())
        .collect();
    let greatest = |pick: fn(&Figure) -> Option<f64>| {
        let values = rows.iter().filter_map(|row| pick(row.figure));
        values.max_by(f64::total_cmp).unwrap_or(1.0)
    };
    let most = greatest(Figure::median) * 1.02;
    let base = group.base().and_then(Figure::median).unwrap_or(most);
    let limit = if base > 0.0 {
        most.min(base * LONGEST)
    } else {
        most
    };
    // Room for whiskers, but not for every outlier.
    let limit = greatest(Figure::greatest).min(limit * 1.25).max(limit);
    let start = left + NAMES;
    let axis = Axis::straight(limit, start, left + width - VALUES);
    let mut y = top;
    for row in rows {
        let Some(median) = row.figure.median() else {
            continue;
        };
        let (middle, end) = (y + ROW / 2.0, axis.at(median));
        let text = if row.is_ours { " class=\"strong\"" } else { "" };
        let _ = writeln!(
            body,
            "<text{text} x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            start - 10.0,
            middle + 4.5,
            escaped(&row.name)
        );
        let _ = writeln!(
            body,
            "<rect class=\"{}\" x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"2.5\"/>",
            class(&row.figure.label, row.is_ours),
            middle - 8.0,
            (end - start).max(1.5)
        );
        let mut shown = end;
        if median > limit {
            // It goes on beyond the edge.
            let _ = writeln!(
                body,
                "<path class=\"gap\" d=\"M{:.1} {:.1}l6 -20M{:.1} {:.1}l6 -20\"/>",
                end - 26.0,
                middle + 10.0,
                end - 18.0,
                middle + 10.0
            );
        } else if let (Some(least), Some(greatest), true) = (
            row.figure.least(),
            row.figure.greatest(),
            row.figure.values.len() > 1,
        ) {
            let (low, high) = (axis.at(least), axis.at(greatest));
            shown = end.max(high);
            let _ = writeln!(
                body,
                "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v6M{high:.1} {:.1}v6\"/>",
                middle - 3.0,
                middle - 3.0
            );
        }
        let unit = if row.figure.unit == "req/s" {
            ""
        } else {
            &row.figure.unit
        };
        let value = format!("{} {unit}", number(median));
        let ratio = match group.ratio(row) {
            Some(ratio) if (ratio - 1.0).abs() > 1e-9 => {
                format!("<tspan class=\"quiet small\">  {ratio:.2} x</tspan>")
            }
            _ => String::new(),
        };
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" xml:space=\"preserve\">{}{ratio}</text>",
            shown + 8.0,
            middle + 4.5,
            escaped(value.trim_end())
        );
        y += ROW;
    }
    y
}

/// Bars for a page.
pub fn bars(group: &Group<'_>, name: &str) -> String {
    let mut body = String::new();
    let height = bars_into(&mut body, group, 0.0, WIDTH, 0.0);
    inline(WIDTH, height.max(1.0), name, &body)
}

/// A line through points: place, median, least, greatest.
struct Curve<'a> {
    label: &'a str,
    points: Vec<[f64; 4]>,
}

/// Where curves are drawn.
struct Frame {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// Draws curves, their whiskers and, at their right ends, their names. `xs` are the places of the marks below with their names.
fn curves_into(
    body: &mut String,
    frame: &Frame,
    curves: &[Curve<'_>],
    y: &Axis,
    unit: &str,
    xs: &[(f64, String)],
) {
    for tick in y.ticks(5) {
        let place = y.at(tick);
        let _ = writeln!(
            body,
            "<path class=\"axis\" d=\"M{:.1} {place:.1}H{:.1}\"/><text class=\"quiet small\" x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            frame.left,
            frame.right,
            frame.left - 7.0,
            place + 4.0,
            short(tick)
        );
    }
    let _ = writeln!(
        body,
        "<text class=\"quiet small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        frame.left - 7.0,
        frame.top - 12.0,
        escaped(unit)
    );
    for (place, name) in xs {
        let _ = writeln!(
            body,
            "<text class=\"quiet small\" x=\"{place:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            frame.bottom + 18.0
        );
    }
    // Ours last, so that it is above the others.
    let mut order: Vec<&Curve<'_>> = curves.iter().collect();
    order.sort_by_key(|curve| match curve.label {
        FIBRANT => 2,
        label if is_ours(label) => 1,
        _ => 0,
    });
    for curve in &order {
        let kind = class(curve.label, is_ours(curve.label));
        let places: Vec<String> = curve
            .points
            .iter()
            .map(|point| format!("{:.1} {:.1}", point[0], y.at(point[1])))
            .collect();
        let _ = writeln!(body, "<path class=\"{kind}-line\" d=\"M{}\"/>", places.join("L"));
        for [place, median, least, greatest] in &curve.points {
            if greatest > least {
                let _ = writeln!(
                    body,
                    "<path class=\"whisker\" d=\"M{place:.1} {:.1}V{:.1}\"/>",
                    y.at(*least),
                    y.at(*greatest)
                );
            }
            let _ = writeln!(
                body,
                "<circle class=\"{kind}\" cx=\"{place:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                y.at(*median)
            );
        }
    }
    names_into(body, frame, curves, y);
}

/// The names at the ends of the curves, far enough from each other to be read.
fn names_into(body: &mut String, frame: &Frame, curves: &[Curve<'_>], y: &Axis) {
    const APART: f64 = 15.0;
    let mut names: Vec<(f64, &Curve<'_>, f64)> = curves
        .iter()
        .filter_map(|curve| {
            let last = curve.points.last()?;
            Some((y.at(last[1]), curve, last[0]))
        })
        .collect();
    names.sort_by(|one, other| one.0.total_cmp(&other.0));
    let places = apart(
        &names.iter().map(|name| name.0).collect::<Vec<_>>(),
        APART,
        frame.bottom,
    );
    for (&(at, curve, end), place) in names.iter().zip(places) {
        let class = if is_ours(curve.label) {
            "small ours-text"
        } else {
            "small"
        };
        if (place - at).abs() > 3.0 || end < frame.right - 1.0 {
            let _ = writeln!(
                body,
                "<path class=\"axis\" d=\"M{:.1} {at:.1}L{:.1} {place:.1}\"/>",
                end + 5.0,
                frame.right + 14.0
            );
        }
        let _ = writeln!(
            body,
            "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            frame.right + 18.0,
            place + 4.0,
            escaped(shown_label(curve.label))
        );
    }
}

/// Places in order, moved so that they are at least so far apart, and none is below the end.
fn apart(places: &[f64], distance: f64, end: f64) -> Vec<f64> {
    let mut moved: Vec<f64> = places.to_vec();
    for index in 1..moved.len() {
        moved[index] = moved[index].max(moved[index - 1] + distance);
    }
    let mut last = end;
    for place in moved.iter_mut().rev() {
        *place = place.min(last);
        last = *place - distance;
    }
    moved
}

/// A number on an axis.
fn short(value: f64) -> String {
    let (value, ending) = match value {
        _ if value >= 1e6 => (value / 1e6, "M"),
        _ if value >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{ending}")
}

/// An axis for the medians of curves: by powers of ten if they are far from each other, or if that is asked for. An outlier's whisker may
/// end at its end.
fn fitting(curves: &[Curve<'_>], is_log: bool, start: f64, end: f64) -> Axis {
    let values = || {
        curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|point| point[1]))
            .filter(|value| *value > 0.0)
    };
    let greatest = values().max_by(f64::total_cmp).unwrap_or(1.0);
    let least = values().min_by(f64::total_cmp).unwrap_or(1.0);
    if is_log || greatest / least > 30.0 {
        Axis::log(least * 0.8, greatest * 1.2, start, end)
    } else {
        Axis::straight(greatest * 1.15, start, end)
    }
}

/// How the latency of a server's answers is spread, for a page; none if it was not measured.
pub fn latencies(one: &Measured) -> Option<String> {
    const HEIGHT: f64 = 280.0;
    let frame = Frame {
        left: 46.0,
        top: 30.0,
        right: WIDTH - 150.0,
        bottom: HEIGHT - 30.0,
    };
    let step = (frame.right - frame.left - 40.0) / (PERCENTILES.len() - 1) as f64;
    let place = |index: usize| frame.left + 20.0 + index as f64 * step;
    let curve = |label| {
        let point = |(index, percentile)| {
            let figure = find(&one.figures, label, percentile, None)?;
            // The whiskers of so many curves would hide them.
            let median = figure.median()?;
            Some([place(index), median, median, median])
        };
        let points: Vec<_> = PERCENTILES.into_iter().enumerate().filter_map(point).collect();
        (!points.is_empty()).then_some(Curve { label, points })
    };
    let curves: Vec<Curve<'_>> = one.labels().into_iter().filter_map(curve).collect();
    if curves.is_empty() {
        return None;
    }
    let y = fitting(&curves, true, frame.bottom, frame.top);
    let marks: Vec<_> = PERCENTILES
        .into_iter()
        .enumerate()
        .map(|(index, name)| (place(index), format!("{} %", name.trim_start_matches('p'))))
        .collect();
    let mut body = String::new();
    curves_into(&mut body, &frame, &curves, &y, "us", &marks);
    Some(inline(WIDTH, HEIGHT, &format!("latency, {}", one.title), &body))
}

/// Draws how a variant grows. Returns whether there is anything to draw.
fn growth_into(body: &mut String, frame: &Frame, one: &Measured, variant: &str) -> bool {
    let of_it: Vec<&Figure> = one
        .figures
        .iter()
        .filter(|figure| figure.variant == variant && !figure.values.is_empty())
        .collect();
    let mut numbers: Vec<u64> = of_it.iter().filter_map(|figure| figure.at).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let [Some(&first), Some(&last)] = [numbers.first(), numbers.last()] else {
        return false;
    };
    if first == last {
        return false;
    }
    let x = Axis::log(first as f64, last as f64, frame.left + 14.0, frame.right - 8.0);
    let curves: Vec<Curve<'_>> = one
        .labels()
        .into_iter()
        .map(|label| {
            let point = |&at: &u64| {
                let figure = find(&one.figures, label, variant, Some(at))?;
                Some([
                    x.at(at as f64),
                    figure.median()?,
                    figure.least()?,
                    figure.greatest()?,
                ])
            };
            Curve {
                label,
                points: numbers.iter().filter_map(point).collect(),
            }
        })
        .filter(|curve| !curve.points.is_empty())
        .collect();
    let unit = of_it.first().map_or("", |figure| figure.unit.as_str());
    let y = fitting(&curves, false, frame.bottom, frame.top);
    let marks: Vec<_> = numbers
        .iter()
        .map(|&at| {
            let name = if at < 10_000 {
                with_commas(at as i64)
            } else {
                short(at as f64)
            };
            (x.at(at as f64), name)
        })
        .collect();
    curves_into(body, frame, &curves, &y, unit, &marks);
    true
}

/// How a variant grows, for a page; none if there is only one number.
pub fn growth(one: &Measured, variant: &str) -> Option<String> {
    const HEIGHT: f64 = 230.0;
    let frame = Frame {
        left: 46.0,
        top: 30.0,
        right: WIDTH - 150.0,
        bottom: HEIGHT - 30.0,
    };
    let mut body = String::new();
    growth_into(&mut body, &frame, one, variant)
        .then(|| inline(WIDTH, HEIGHT, &format!("{} {variant}", one.title), &body))
}

/// A picture of its own: the groups with this title of some benchmarks, side by side.
pub fn side_by_side(title: &str, quiet: &str, groups: &[(&str, Group<'_>)]) -> Option<String> {
    const MARGIN: f64 = 24.0;
    const EACH: f64 = 470.0;
    if groups.is_empty() {
        return None;
    }
    let mut body = String::new();
    let width = MARGIN + groups.len() as f64 * (EACH + MARGIN);
    heading(&mut body, MARGIN, title, quiet);
    let mut bottom: f64 = 0.0;
    for (index, (name, group)) in groups.iter().enumerate() {
        let left = MARGIN + index as f64 * (EACH + MARGIN);
        let _ = writeln!(
            body,
            "<text class=\"strong\" x=\"{left:.1}\" y=\"82\">{}</text>",
            escaped(name)
        );
        let end = bars_into(&mut body, group, left, EACH, 94.0);
        bottom = bottom.max(end);
    }
    Some(standalone(width, bottom + 18.0, title, &body))
}

/// A picture of its own: how several things grow.
pub fn growing(title: &str, quiet: &str, parts: &[(String, &Measured, &str)]) -> Option<String> {
    const MARGIN: f64 = 24.0;
    const EACH: f64 = 470.0;
    const HEIGHT: f64 = 240.0;
    let mut body = String::new();
    heading(&mut body, MARGIN, title, quiet);
    let mut count = 0;
    for (name, one, variant) in parts {
        let left = MARGIN + f64::from(count % 2) * (EACH + MARGIN);
        let top = 70.0 + f64::from(count / 2) * (HEIGHT + 34.0);
        let frame = Frame {
            left: left + 44.0,
            top: top + 48.0,
            right: left + EACH - 110.0,
            bottom: top + HEIGHT - 10.0,
        };
        let mut drawn = String::new();
        if growth_into(&mut drawn, &frame, one, variant) {
            let _ = writeln!(
                body,
                "<text class=\"strong\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>",
                top + 14.0,
                escaped(name)
            );
            body += &drawn;
            count += 1;
        }
    }
    let rows = f64::from((count + 1) / 2);
    let columns = f64::from(count.min(2));
    (count > 0).then(|| {
        let width = MARGIN + columns * (EACH + MARGIN);
        standalone(width, 70.0 + rows * (HEIGHT + 34.0), title, &body)
    })
}

fn heading(body: &mut String, left: f64, title: &str, quiet: &str) {
    let _ = writeln!(
        body,
        "<text class=\"title\" x=\"{left:.1}\" y=\"32\">{}</text><text class=\"quiet\" x=\"{left:.1}\" y=\"52\">{}</text>",
        escaped(title),
        escaped(quiet)
    );
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::some;
    use super::*;

    #[test]
    fn scales_lead_from_one_end_to_the_other() {
        let straight = Axis::straight(200.0, 10.0, 110.0);
        assert_eq!(
            (straight.at(0.0), straight.at(100.0), straight.at(200.0)),
            (10.0, 60.0, 110.0)
        );
        assert_eq!(straight.at(999.0), 110.0, "what is too long is cut");
        let log = Axis::log(1.0, 100.0, 100.0, 0.0);
        assert_eq!((log.at(1.0), log.at(10.0), log.at(100.0)), (100.0, 50.0, 0.0));
        assert!(Axis::straight(0.0, 0.0, 1.0).at(0.0).is_finite());
        assert!(Axis::log(5.0, 5.0, 0.0, 1.0).at(5.0).is_finite());
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            Axis::straight(23.0, 0.0, 1.0).ticks(5),
            [0.0, 5.0, 10.0, 15.0, 20.0]
        );
        let close = |ticks: Vec<f64>, expected: &[f64]| {
            assert_eq!(ticks.len(), expected.len(), "{ticks:?}");
            let differ = |(one, other): (&f64, &f64)| (one - other).abs() > 1e-9 * other;
            assert!(!ticks.iter().zip(expected).any(differ), "{ticks:?}");
        };
        close(
            Axis::log(10.0, 10_000.0, 0.0, 1.0).ticks(5),
            &[10.0, 100.0, 1000.0, 10_000.0],
        );
        close(Axis::log(3.0, 60.0, 0.0, 1.0).ticks(5), &[5.0, 10.0, 20.0, 50.0]);
    }

    #[test]
    fn names_do_not_cover_each_other() {
        assert_eq!(apart(&[10.0, 11.0, 50.0], 15.0, 100.0), [10.0, 25.0, 50.0]);
        assert_eq!(apart(&[90.0, 99.0], 15.0, 100.0), [85.0, 100.0]);
    }

    #[test]
    fn numbers_on_axes_are_short() {
        let shown = [0.5, 0.0, 20.0, 1500.0, 1e6].map(short);
        assert_eq!(shown, ["0.5", "0", "20", "1.5k", "1M"]);
    }

    #[test]
    fn pictures_are_well_formed() {
        let results = some();
        let mut pictures = Vec::new();
        for one in &results.benchmarks {
            pictures.extend(one.groups().iter().map(|group| bars(group, &one.title)));
            pictures.extend(latencies(one));
            pictures.extend(
                one.variants()
                    .into_iter()
                    .filter_map(|variant| growth(one, variant)),
            );
        }
        assert_eq!(pictures.len(), 8);
        for picture in pictures {
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
            assert!(!picture.contains("<title"), "{picture}");
            for element in ["text", "svg"] {
                let count = |what: String| picture.matches(&what).count();
                assert_eq!(count(format!("<{element} ")), count(format!("</{element}>")));
            }
        }
    }
}
