//! Results as a page that needs nothing else: no scripts, no network.
//!
//! `run` writes it; the pictures come from `charts`.

use super::budgets::{State, Verdict};
use super::charts::{self, escaped};
use super::figures::number;
use super::reasons;
use super::results::{Measured, Results, Section, Shape, shown_label};
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#24292f;--quiet:#6e7781;--line:#d8dee4;--soft:#f6f8fa;--accent:#0969da;--bad:#b35900}\
@media (prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--quiet:#8b949e;--line:#30363d;--soft:#161b22;--accent:#4493f8;--bad:#e3a04f}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--back);color:var(--text);font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}\
main{max-width:1080px;margin:0 auto;padding:40px 24px 80px}\
h1{font-size:30px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}\
h2{font-size:22px;margin:56px 0 4px;padding-top:18px;border-top:1px solid var(--line)}\
h3{font-size:17px;margin:34px 0 2px}\
h4{font-size:14px;margin:14px 0 4px;font-weight:600;color:var(--quiet)}\
p{margin:4px 0 12px;max-width:72ch}\
.quiet,.about{color:var(--quiet)}.about{font-size:14.5px}\
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--soft);padding:1px 5px;border-radius:4px}\
h3 code{font-weight:400;color:var(--quiet)}\
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}\
nav{margin:18px 0 0;font-size:14.5px;line-height:2}nav a{margin-right:18px;white-space:nowrap}\
.tiles{display:flex;flex-wrap:wrap;gap:14px;margin:26px 0 6px}\
.tile{border:1px solid var(--line);border-radius:8px;padding:12px 18px;min-width:140px}\
.tile b{display:block;font-size:26px;line-height:1.2;font-variant-numeric:tabular-nums}\
.tile span{font-size:13px;color:var(--quiet)}.why{list-style:none;color:var(--quiet);font-size:14.5px;max-width:80ch;margin:2px 0 10px}\
.ok b{color:var(--accent)}.bad b,.bad{color:var(--bad)}\
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,500px),1fr));gap:6px 32px}\
.grid>*{min-width:0}.wide{grid-column:1/-1}\
svg{width:100%;height:auto;display:block;max-width:600px;overflow:visible}\
.scroll{overflow-x:auto}\
table{border-collapse:collapse;font-size:14px;margin:12px 0;font-variant-numeric:tabular-nums}\
th{text-align:left;font-weight:600;color:var(--quiet);border-bottom:1px solid var(--line);padding:5px 14px 5px 0;white-space:nowrap}\
td{border-bottom:1px solid var(--line);padding:5px 14px 5px 0;vertical-align:top}\
td.n{text-align:right;white-space:nowrap}th.n{text-align:right}\
details{margin:10px 0;font-size:13.5px}summary{cursor:pointer;color:var(--quiet)}\
pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--soft);padding:10px 14px;border-radius:6px;overflow-x:auto}\
ul{padding-left:20px}li{margin:3px 0;max-width:90ch}";

/// The page.
pub fn page(results: &Results) -> String {
    let mut body = String::new();
    head(&mut body, results);
    losses(&mut body, results);
    for section in Section::ALL {
        let members: Vec<&Measured> = results
            .benchmarks
            .iter()
            .filter(|one| one.section == section)
            .collect();
        if members.is_empty() {
            continue;
        }
        let title = section.title();
        let _ = writeln!(body, "<h2 id=\"{section:?}\">{title}</h2>");
        body.push_str("<div class=\"grid\">\n");
        for one in members {
            benchmark(&mut body, one);
        }
        body.push_str("</div>\n");
    }
    budgets(&mut body, &results.verdicts);
    machine(&mut body, results);
    rerun(&mut body, results);
    let charts = charts::STYLE;
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>fibrant: benchmarks</title>\n\
         <style>{STYLE}\n{charts}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn head(body: &mut String, results: &Results) {
    let kind = if results.quick { ", a quick run" } else { "" };
    let _ = writeln!(
        body,
        "<h1>fibrant: benchmarks</h1>\n<p class=\"quiet\">{}, commit <code>{}</code>{kind}<br>{}</p>",
        escaped(&results.date.replace('T', " ").replace('Z', " UTC")),
        escaped(&results.commit),
        escaped(&results.machine.brief())
    );
    let count = |state: &State| results.verdicts.iter().filter(|one| one.state == *state).count();
    let (met, missed) = (count(&State::Met), count(&State::Missed));
    let tile = |class: &str, number: usize, what: &str| {
        format!("<div class=\"tile {class}\"><b>{number}</b><span>{what}</span></div>\n")
    };
    let _ = write!(
        body,
        "<div class=\"tiles\">\n{}{}{}</div>\n",
        tile("ok", met, "budgets met"),
        tile(if missed > 0 { "bad" } else { "" }, missed, "budgets missed"),
        tile("", results.benchmarks.len(), "benchmarks")
    );
    let _ = writeln!(
        body,
        "<p>All programs of a benchmark run in turn, round after round. Bars are medians, whiskers reach from the least to the greatest. \
         Ratios are to <span class=\"strong\">fibrant</span>, whose fibers have thread-locals of their own; those of \
         <span class=\"strong\">fibrant light</span> share their worker's, as the tasks of the peers do.</p>"
    );
    body.push_str("<nav>");
    for section in Section::ALL {
        if results.benchmarks.iter().any(|one| one.section == section) {
            let _ = write!(body, "<a href=\"#{section:?}\">{}</a> ", section.title());
        }
    }
    body.push_str("<a href=\"#budgets\">Budgets</a> <a href=\"#machine\">Machine</a></nav>\n");
}

fn losses(body: &mut String, results: &Results) {
    let missed: Vec<&Verdict> = results.missed().collect();
    let lost = results.lost();
    if missed.is_empty() && lost.is_empty() {
        return;
    }
    body.push_str("<h2>Where we lose</h2>\n");
    if !missed.is_empty() {
        body.push_str("<h4>Budgets that were missed</h4>\n<ul>\n");
        for (verdicts, reason) in reasons::grouped(missed.into_iter()) {
            for one in verdicts {
                let value = one.value.map_or(String::new(), number);
                let _ = writeln!(
                    body,
                    "<li>{}: {value}, {}</li>",
                    escaped(&one.what),
                    escaped(&one.limit)
                );
            }
            if let Some(reason) = reason {
                let _ = writeln!(body, "<li class=\"why\">{}</li>", escaped(reason));
            }
        }
        body.push_str("</ul>\n");
    }
    if !lost.is_empty() {
        body.push_str("<h4>Where a peer does better</h4>\n<ul>\n");
        for sentence in lost {
            let _ = writeln!(body, "<li>{}</li>", escaped(&sentence));
        }
        body.push_str("</ul>\n");
    }
}

fn benchmark(body: &mut String, one: &Measured) {
    let mut pictures = Vec::new();
    if one.shape == Shape::Growth {
        for variant in one.variants() {
            pictures.extend(charts::growth(one, variant).map(|picture| (variant.to_owned(), picture)));
        }
    }
    for group in one.groups() {
        let better = if group.more_is_better { "more" } else { "less" };
        let title = [group.title.as_str(), group.unit].map(str::trim);
        let title: Vec<&str> = title.into_iter().filter(|word| !word.is_empty()).collect();
        let title = format!("{}; {better} is better", title.join(", "));
        pictures.push((
            title.trim_start_matches("; ").to_owned(),
            charts::bars(&group, &one.title),
        ));
    }
    pictures.extend(charts::latencies(one).map(|picture| ("latency, us".to_owned(), picture)));
    // One picture alone takes half of the page.
    let wide = if pictures.len() > 1 { " class=\"wide\"" } else { "" };
    let _ = writeln!(
        body,
        "<section{wide}><h3 id=\"{name}\">{} <code>{name}</code></h3>\n<p class=\"about\">{}</p>",
        escaped(&one.title),
        escaped(&one.about),
        name = escaped(&one.name)
    );
    body.push_str("<div class=\"grid\">\n");
    for (title, picture) in pictures {
        let _ = writeln!(body, "<div><h4>{}</h4>\n{picture}</div>", escaped(&title));
    }
    body.push_str("</div>\n");
    for (label, reason) in one.failures() {
        let _ = writeln!(
            body,
            "<p class=\"about\">{}: {}</p>",
            escaped(label),
            escaped(reason)
        );
    }
    details(body, one);
    body.push_str("</section>\n");
}

/// Every figure, and what was run.
fn details(body: &mut String, one: &Measured) {
    body.push_str(
        "<details><summary>all figures and what was run</summary>\n<div class=\"scroll\"><table><tr><th></th><th></th>\
         <th class=\"n\">at</th><th class=\"n\">median</th><th class=\"n\">least</th><th class=\"n\">greatest</th><th class=\"n\">runs</th>\
         <th></th></tr>\n",
    );
    for figure in one.figures.iter().filter(|figure| !figure.values.is_empty()) {
        let cell = |value: Option<f64>| value.map_or(String::new(), number);
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td>{}</td></tr>",
            escaped(shown_label(&figure.label)),
            escaped(&figure.variant),
            figure.at.map_or(String::new(), |at| number(at as f64)),
            cell(figure.median()),
            cell(figure.least()),
            cell(figure.greatest()),
            figure.values.len(),
            escaped(&figure.unit)
        );
    }
    body.push_str("</table></div>\n");
    let _ = writeln!(body, "<pre>{}</pre></details>", escaped(&one.commands.join("\n")));
}

fn budgets(body: &mut String, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    body.push_str(
        "<h2 id=\"budgets\">Budgets</h2>\n<p class=\"about\">What was laid down, next to a peer in the same run or for itself. Ratios are \
         medians of those of each round. <em>beside</em> is the same for fibers of the other kind, isolated or light. Where no limit is \
         shown, none was laid down.</p>\n<div class=\"scroll\"><table>\n<tr><th></th><th class=\"n\">ours</th><th class=\"n\">theirs</th>\
         <th class=\"n\">value</th><th class=\"n\">beside</th><th>limit</th><th></th></tr>\n",
    );
    for one in verdicts {
        let words = |words: &Option<String>| escaped(words.as_deref().unwrap_or_default());
        let value = |value: Option<f64>| value.map_or(String::new(), number);
        let verdict = match (&one.state, one.by) {
            (State::Missed, Some(by)) => {
                format!("<b class=\"bad\">missed by {:.0} %</b>", (by * 100.0).max(1.0))
            }
            (state, _) => escaped(state.word()),
        };
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>\
             <td>{verdict}</td></tr>",
            escaped(&one.what),
            words(&one.ours),
            words(&one.theirs),
            value(one.value),
            value(one.beside),
            escaped(&one.limit)
        );
    }
    body.push_str("</table></div>\n");
}

fn machine(body: &mut String, results: &Results) {
    let machine = &results.machine;
    let mut rows = vec![
        ("processor", machine.processor.clone()),
        ("processors to use", machine.cores.to_string()),
        ("memory", format!("{:.1} GiB", machine.memory)),
        ("kernel", machine.kernel.clone()),
        ("virtualised", machine.virtualised.clone()),
        ("governor", machine.governor.clone()),
        ("Rust", machine.rustc.clone()),
    ];
    for (name, version) in &machine.versions {
        rows.push((name, version.clone()));
    }
    body.push_str("<h2 id=\"machine\">Machine</h2>\n<table>\n");
    for (name, value) in rows.iter().filter(|row| !row.1.is_empty()) {
        let _ = writeln!(
            body,
            "<tr><th>{}</th><td>{}</td></tr>",
            escaped(name),
            escaped(value)
        );
    }
    body.push_str("</table>\n");
    for note in &results.notes {
        let _ = writeln!(body, "<p class=\"about\">{}</p>", escaped(note));
    }
}

fn rerun(body: &mut String, results: &Results) {
    let _ = writeln!(
        body,
        "<h2>How to run it again</h2>\n<p>This was <code>{}</code>.</p>\n<pre>cargo xtask bench                 # everything, about ten minutes\n\
         cargo xtask bench --quick         # less of everything, under 90 seconds\n\
         cargo xtask bench echo lock       # those whose names contain one of these\n\
         cargo xtask bench c               # those in C\n\
         cargo xtask bench --report FILE   # this page again, from a results.json</pre>",
        escaped(&results.command)
    );
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::some;
    use super::*;

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page(&some());
        assert!(!page.contains("<script"));
        let addresses = page.matches("http").count();
        assert_eq!(
            addresses,
            page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count()
                + page.matches("http</code>").count()
        );
    }

    #[test]
    fn has_everything() {
        let page = page(&some());
        for part in [
            "yield2 &lt;title&gt;",
            "missed by 20 %",
            "no io_uring",
            "latency, us",
            "no Go",
            "fibrant yield2 1",
            "id=\"Growth\"",
        ] {
            assert!(page.contains(part), "{part}");
        }
        for element in ["div", "section", "table", "details", "ul", "h3", "main"] {
            let opened =
                page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
            assert_eq!(
                opened,
                page.matches(&format!("</{element}>")).count(),
                "{element}"
            );
        }
    }
}
