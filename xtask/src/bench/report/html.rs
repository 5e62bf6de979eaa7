//! A page that needs nothing else: tables, and plots as SVG.

use super::digits;
use super::plot::{bars, by_threads, escape, lines};
use crate::bench::results::Row;
use crate::bench::workloads::Family;
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1b1f24;background:#fff}\
h1{font-size:1.6em}h2{margin-top:2em;border-bottom:1px solid #d0d7de}h3{font-size:1em;margin:1.4em 0 .3em}\
table{border-collapse:collapse;font-size:13px}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}\
td.n{text-align:right;font-variant-numeric:tabular-nums}svg{display:block;max-width:100%;height:auto}\
svg text{font:11px system-ui,sans-serif;fill:currentColor}\
rect,circle{fill:var(--c)}polyline{fill:none;stroke:var(--c);stroke-width:2}\
.ours{--c:#0969da}.limit{--c:#6e7781}.limit-ram{--c:#afb8c1}.peer{--c:#cf222e}.lru{--c:#bf8700}.other{--c:#1a7f37}\
.spread{stroke:#1b1f24;stroke-width:1.5}.grid{stroke:#d0d7de}details{margin:.3em 0 1em}\
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}.spread{stroke:#e6edf3}.grid{stroke:#30363d}}";

/// The page: the setup, then a section for each family that has rows.
pub fn page(setup: &[(&'static str, String)], families: &[Family], rows: &[Row]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>vmarray benchmarks</title>\
         <style>{STYLE}</style></head><body>\n<h1>vmarray benchmarks</h1>\n<table>"
    );
    for (name, value) in setup {
        let _ = write!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    page += "</table>\n<p>Bars and points are medians, thin lines go from the lowest to the highest repetition. \
             In brackets: how many times faster the array is.</p>\n";
    for family in families {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.family() == family.name).collect();
        if !rows.is_empty() {
            section(&mut page, family, &rows);
        }
    }
    page + "</body></html>\n"
}

fn section(page: &mut String, family: &Family, rows: &[&Row]) {
    let _ = writeln!(page, "<h2 id=\"{0}\">{0}</h2>\n<p>{1}</p>", family.name, escape(family.about));
    for (name, group) in groups(rows) {
        let _ = writeln!(page, "<h3>{}</h3>", escape(name));
        if group.len() >= 3 {
            let points: Vec<(u32, &Row)> =
                group.iter().filter_map(|row| Some((by_threads(&row.name)?.1, *row))).collect();
            *page += &lines(&points);
        } else {
            for row in &group {
                if group.len() > 1
                    && let Some((_, threads)) = by_threads(&row.name)
                {
                    let _ =
                        write!(page, "<div>{threads} thread{}</div>", if threads == 1 { "" } else { "s" });
                }
                *page += &bars(row);
            }
        }
        numbers(page, &group);
    }
}

/// Rows that differ in their threads alone, together.
fn groups<'a>(rows: &[&'a Row]) -> Vec<(&'a str, Vec<&'a Row>)> {
    let mut groups: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        let name = by_threads(&row.name).map_or(row.name.as_str(), |(name, _)| name);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, group)) => group.push(row),
            None => groups.push((name, vec![row])),
        }
    }
    groups
}

fn numbers(page: &mut String, rows: &[&Row]) {
    *page += "<details><summary>numbers</summary><table>";
    for row in rows {
        let _ = write!(page, "<tr><th colspan=\"4\">{}</th></tr>", escape(&row.name));
        let ratios: Vec<(&str, f64)> = row.ratios().collect();
        for entry in &row.entries {
            let ratio = ratios.iter().find(|(name, _)| *name == entry.name);
            let ratio = ratio.map(|(_, ratio)| format!("({}x)", digits(*ratio))).unwrap_or_default();
            let _ = write!(
                page,
                "<tr><td>{}</td><td class=\"n\">{} {}</td><td class=\"n\">{} to {}</td><td class=\"n\">{ratio}</td></tr>",
                escape(entry.name),
                digits(entry.summary.median),
                row.unit.symbol(),
                digits(entry.summary.low),
                digits(entry.summary.high)
            );
        }
        for (name, value) in &row.counts {
            let name = escape(&name.replace('_', " "));
            let _ = write!(
                page,
                "<tr><td>{name}</td><td class=\"n\">{}</td><td></td><td></td></tr>",
                digits(*value)
            );
        }
    }
    *page += "</table></details>\n";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Unit;
    use crate::bench::results::exactly;
    use crate::bench::workloads::FAMILIES;

    #[test]
    fn the_page_is_complete_and_loads_nothing() {
        let row = |name: &str| {
            let mut row = Row::new(name.into(), Unit::GigabytesPerSecond);
            row.limit("bus", exactly(50.0));
            row
        };
        let rows = [row("bulk/read/t1"), row("bulk/read/t2"), row("bulk/read/t4"), row("find/all")];
        let page = page(&[("devices", "a <card>".into())], FAMILIES, &rows);
        assert_eq!(page.matches("<h2").count(), 2);
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("a &lt;card&gt;"));
        for outside in ["http:", "https:", "<script", "<link", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
