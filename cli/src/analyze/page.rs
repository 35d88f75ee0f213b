//! A report as one HTML page without scripts and other files.

use std::fmt::Write as _;

use roce_analysis::ladder::ladder;
use roce_analysis::verdict::Verdict;
use roce_document::analyze::{Losses, Part, Report, of_requests};
use roce_plot::{dark_style, escape};

use super::charts::charts;
use super::text::proof;

/// Maximum number of rows of a ladder.
const MOST_ROWS: usize = 60;
/// Maximum number of connections with pictures, so that a browser can show the page.
const MOST_PICTURES: usize = 50;

/// The background of dark pages.
const DARK: &str = "#16181c";
/// Colors for light and dark pages, except those of charts.
const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--ink:#222;--faint:#6b6b6b;--line:#ddd;--pass:#2e7d32;--fail:#c62828}\
@media(prefers-color-scheme:dark){:root{--page:#16181c;--ink:#e4e4e4;--faint:#9a9a9a;--line:#3a3d44;\
--pass:#7ee787;--fail:#ff7b72}}\
body{font:15px/1.5 Helvetica,Arial,sans-serif;max-width:920px;margin:2em auto;padding:0 1em;\
background:var(--page);color:var(--ink)}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2.2em;padding-top:.6em;border-top:1px solid var(--line)}h3{font-size:1em}\
table{border-collapse:collapse;margin:1em 0;width:100%}\
td,th{padding:.35em .8em .35em 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\
th{color:var(--faint);font-weight:normal}\
.verdicts td:first-child{width:4.5em}.verdicts td:nth-child(2){width:14em}\
.conclusion{font-size:1.1em}.lossy{font-weight:bold;color:var(--fail)}.faint{color:var(--faint)}.pass{color:var(--pass)}.fail{color:var(--fail);font-weight:bold}\
.unknown{color:var(--faint)}a{color:inherit}svg{max-width:100%;height:auto;margin:.4em 0}";

/// Returns the page.
pub(super) fn text(report: &Report<'_>) -> String {
    let files = escape(&report.captures.files.join(", "));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{files}</title>\n<style>{STYLE}\
         @media(prefers-color-scheme:dark){{{}}}</style></head><body>\n<h1>{files}</h1>\n",
        dark_style(DARK)
    );
    // Writing to a string cannot fail.
    let _ = write_conclusion(&mut html, report);
    for (index, part) in report.parts.iter().enumerate() {
        let _ = write_part(&mut html, report, part, index < MOST_PICTURES);
    }
    html + "</body></html>\n"
}

fn write_conclusion(html: &mut String, report: &Report<'_>) -> std::fmt::Result {
    let [losses, verdicts, first] = report.conclusion().map(|line| escape(&line));
    let outcome = report.outcome().name();
    let class = if report.losses().text().is_some() { "lossy" } else { "lossless" };
    writeln!(html, "<p class=\"conclusion\"><span class=\"{class}\">{losses}</span><br>")?;
    writeln!(html, "<b class=\"{outcome}\">{outcome}</b>: {verdicts}<br>\n{first}</p>")?;
    write_verdicts(html, &report.verdicts)?;
    if report.parts.len() > 1 {
        writeln!(html, "<table><tr><th>connection</th><th>ends</th><th>failed</th><th>losses</th></tr>")?;
        for part in &report.parts {
            let number = part.number;
            let failed = part.verdicts.iter().filter(|verdict| verdict.outcome.name() == "fail");
            let failed: Vec<&str> = failed.map(|verdict| verdict.rule.title).collect();
            writeln!(
                html,
                "<tr><td><a href=\"#c{number}\">{number}</a></td><td>{}</td><td class=\"fail\">{}</td><td>{}</td></tr>",
                escape(&part.title()),
                escape(&failed.join(", ")),
                Losses::of([&part.summary]).text().unwrap_or_default()
            )?;
        }
        writeln!(html, "</table>")?;
    }
    if report.parts.len() > MOST_PICTURES {
        writeln!(
            html,
            "<p>Only the first {MOST_PICTURES} connections have pictures; --connection N draws another one.</p>"
        )?;
    }
    Ok(())
}

fn write_part(
    html: &mut String,
    report: &Report<'_>,
    part: &Part<'_>,
    has_pictures: bool,
) -> std::fmt::Result {
    let number = part.number;
    writeln!(html, "<h2 id=\"c{number}\">Connection {number}: {}</h2>", escape(&part.title()))?;
    writeln!(html, "<p>{}</p>", escape(&part.about()))?;
    for (end, requests) in part.summary.ends.iter().zip(&part.summary.requests) {
        let lines = of_requests(requests);
        if !lines.is_empty() {
            let name = escape(&roce_analysis::connection::name(*end));
            writeln!(
                html,
                "<p><b>{name}</b> requests {}</p>",
                escape(&lines.join(".\n")).replace('\n', "<br>")
            )?;
        }
    }
    write_verdicts(html, &part.verdicts)?;
    if !has_pictures {
        return Ok(());
    }
    let analysis = &report.captures.analysis;
    writeln!(html, "<h3>Packets</h3>\n{}", ladder(analysis, part.connection, MOST_ROWS).to_svg())?;
    for chart in charts(analysis, part.connection, &part.summary) {
        writeln!(html, "{}", chart.to_svg())?;
    }
    Ok(())
}

fn write_verdicts(html: &mut String, verdicts: &[Verdict]) -> std::fmt::Result {
    if verdicts.is_empty() {
        return Ok(());
    }
    writeln!(html, "<table class=\"verdicts\">")?;
    for verdict in verdicts {
        let (outcome, rule) = (verdict.outcome.name(), verdict.rule);
        let proof = escape(&proof(verdict));
        writeln!(
            html,
            "<tr><td class=\"{outcome}\">{outcome}</td><td title=\"{}\">{}</td>\
             <td>{} <span class=\"faint\">{proof}</span></td></tr>",
            escape(&format!("{} {}", rule.question, rule.source)),
            escape(rule.title),
            escape(&verdict.summary)
        )?;
    }
    writeln!(html, "</table>")
}
