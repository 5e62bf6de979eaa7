//! Plots as SVG: bars for one workload, lines over the number of threads.

use super::digits;
use crate::bench::results::{Role, Row};
use std::fmt::Write;

const BAR_HEIGHT: usize = 18;
const LABEL_WIDTH: f64 = 130.0;
const WIDTH: f64 = 640.0;
const LINES: (f64, f64) = (640.0, 240.0);

/// The class that gives a contender its colour.
pub fn class(name: &str, role: Role) -> &'static str {
    match (role, name) {
        (Role::Ours, _) => "ours",
        (Role::Limit, "vec" | "memcpy") => "limit-ram",
        (Role::Limit, _) => "limit",
        (Role::Alternative, "peer") => "peer",
        (Role::Alternative, "lru") => "lru",
        (Role::Alternative, _) => "other",
    }
}

/// Text in which nothing is taken for markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A bar for each contender, from 0 to its median, with a line from its lowest to its highest.
pub fn bars(row: &Row) -> String {
    let most = row.entries.iter().map(|entry| entry.summary.high).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let height = row.entries.len() * BAR_HEIGHT + 4;
    let room = WIDTH - LABEL_WIDTH - 130.0;
    let x = |value: f64| LABEL_WIDTH + room * (value / most).clamp(0.0, 1.0);
    let mut svg =
        format!(r#"<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">"#);
    for (at, entry) in row.entries.iter().enumerate() {
        let top = at * BAR_HEIGHT + 2;
        let (name, class) = (escape(entry.name), class(entry.name, entry.role));
        let (start, end) = (LABEL_WIDTH, x(entry.summary.median));
        let middle = top as f64 + 7.0;
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{}" text-anchor="end">{name}</text>"#,
            LABEL_WIDTH - 6.0,
            top + 11
        );
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{start:.1}" y="{top}" width="{:.1}" height="14"/>"#,
            (end - start).max(1.0)
        );
        let _ = write!(
            svg,
            r#"<line class="spread" x1="{:.1}" x2="{:.1}" y1="{middle}" y2="{middle}"/>"#,
            x(entry.summary.low),
            x(entry.summary.high)
        );
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{}">{} {}</text>"#,
            x(entry.summary.high) + 6.0,
            top + 11,
            digits(entry.summary.median),
            row.unit.symbol()
        );
    }
    svg + "</svg>"
}

/// The threads of a workload: the number behind the last `/t` of its name, and the name without it.
pub fn by_threads(name: &str) -> Option<(&str, u32)> {
    let (name, threads) = name.rsplit_once("/t")?;
    Some((name, threads.parse().ok()?))
}

/// A line for each contender over the number of threads, in steps of a factor of two.
pub fn lines(rows: &[(u32, &Row)]) -> String {
    let (width, height) = LINES;
    let (left, right, top, bottom) = (60.0, width - 120.0, 10.0, height - 28.0);
    let most = rows.iter().flat_map(|(_, row)| &row.entries).map(|entry| entry.summary.high);
    let most = most.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let last = rows.iter().map(|(threads, _)| *threads).max().unwrap_or(1).max(2);
    let x = |threads: u32| left + (right - left) * f64::from(threads.max(1)).log2() / f64::from(last).log2();
    let y = |value: f64| bottom - (bottom - top) * (value / most).clamp(0.0, 1.0);
    let mut svg =
        format!(r#"<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">"#);
    let unit = rows.first().map(|(_, row)| row.unit.symbol()).unwrap_or_default();
    for part in [0.0, 0.5, 1.0] {
        let at = y(most * part);
        let _ = write!(svg, r#"<line class="grid" x1="{left}" x2="{right}" y1="{at:.1}" y2="{at:.1}"/>"#);
        let text = digits(most * part);
        let _ =
            write!(svg, r#"<text x="{}" y="{:.1}" text-anchor="end">{text}</text>"#, left - 6.0, at + 4.0);
    }
    for (threads, _) in rows {
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{threads}</text>"#,
            x(*threads),
            height - 10.0
        );
    }
    let _ = write!(svg, r#"<text x="{right}" y="{height}" text-anchor="end">threads; {unit}</text>"#);
    let mut names: Vec<(&str, Role)> = Vec::new();
    for entry in rows.iter().flat_map(|(_, row)| &row.entries) {
        if !names.iter().any(|(name, _)| *name == entry.name) {
            names.push((entry.name, entry.role));
        }
    }
    for (name, role) in names {
        let points: Vec<(f64, f64)> =
            rows.iter().filter_map(|(threads, row)| Some((x(*threads), y(row.of(name)?.median)))).collect();
        let class = class(name, role);
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(svg, r#"<polyline class="{class}" points="{}"/>"#, path.join(" "));
        for (x, y) in &points {
            let _ = write!(svg, r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="3"/>"#);
        }
        if let Some((x, y)) = points.last() {
            let _ = write!(svg, r#"<text x="{:.1}" y="{:.1}">{}</text>"#, x + 8.0, y + 4.0, escape(name));
        }
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Unit;
    use crate::bench::results::{Entry, exactly};

    fn row(name: &str, ours: f64) -> Row {
        let mut row = Row::new(name.into(), Unit::MegaPerSecond);
        row.entries.push(Entry { name: "ours", role: Role::Ours, summary: exactly(ours) });
        row.limit("<vec>", exactly(2.0 * ours));
        row
    }

    #[test]
    fn every_contender_has_a_bar_in_proportion() {
        let svg = bars(&row("a", 5.0));
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains(r#"width="380.0""#) && svg.contains(r#"width="190.0""#), "{svg}");
        assert!(svg.contains("&lt;vec&gt;") && !svg.contains("<vec>"));
    }

    #[test]
    fn every_contender_has_a_line_with_a_point_for_each_row() {
        let (one, two, four) = (row("a/t1", 1.0), row("a/t2", 2.0), row("a/t4", 3.0));
        let svg = lines(&[(1, &one), (2, &two), (4, &four)]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 6));
    }

    #[test]
    fn threads_are_in_the_name() {
        assert_eq!(by_threads("random/get/4B/t16"), Some(("random/get/4B", 16)));
        assert_eq!(by_threads("find/all"), None);
        assert_eq!(by_threads("x/total"), None);
    }
}
