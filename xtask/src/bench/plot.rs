//! Draws plots of BENCHMARKS.md: panels of horizontal bars, as SVG.

use super::record::{Role, digits};
use std::fmt::Write;

/// The width of a plot in pixels, and of its parts: names, bars, and figures behind the bars.
const WIDTH: f64 = 760.0;
const NAMES: f64 = 300.0;
const BARS: f64 = 380.0;
/// The heights in pixels of a title, and of a bar with the space around it.
const TITLE: f64 = 30.0;
const BAR: f64 = 20.0;
/// The length of the shortest bar in pixels.
const BAR_MIN: f64 = 2.0;

/// A panel of a plot: horizontal bars with one unit.
pub struct Panel {
    pub title: String,
    /// Name, value and role of each bar, from top to bottom.
    pub bars: Vec<(String, f64, Role)>,
    /// True if the scale is logarithmic.
    pub is_logarithmic: bool,
}

impl Panel {
    /// Returns the length of a bar in pixels.
    fn length(&self, value: f64) -> f64 {
        let figures = || self.bars.iter().map(|(_, value, _)| *value);
        let (least, most) = (figures().fold(f64::MAX, f64::min), figures().fold(f64::MIN, f64::max));
        let share = if self.is_logarithmic {
            // The axis begins at the power of ten below half of the least figure.
            let begin = (least / 2.0).log10().floor();
            (value.log10() - begin) / (most.log10() - begin)
        } else {
            value / most.max(1.0)
        };
        (share * BARS).max(BAR_MIN)
    }
}

/// Draws `panels` one below the other, as the text of an SVG file.
pub fn svg(panels: &[Panel]) -> String {
    let height: f64 = panels.iter().map(|panel| TITLE + BAR * panel.bars.len() as f64).sum::<f64>() + 10.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let mut top = 0.0;
    for panel in panels {
        let scale = if panel.is_logarithmic { " (logarithmic)" } else { "" };
        let (title, y) = (escaped(&panel.title), top + 20.0);
        let _ = writeln!(text, "<text x=\"8\" y=\"{y}\" font-weight=\"bold\">{title}{scale}</text>");
        top += TITLE;
        for (name, value, role) in &panel.bars {
            let color = match role {
                Role::Ours => "#1f6fb4",
                Role::Limit => "#c9c9c9",
                Role::Alternative => "#e08a2c",
            };
            let (length, x, y) = (panel.length(*value), NAMES + 8.0, top + 14.0);
            let (name, figure) = (escaped(name), digits(*value));
            let _ = write!(
                text,
                "<text x=\"{NAMES}\" y=\"{y}\" text-anchor=\"end\">{name}</text>\n\
                 <rect x=\"{x}\" y=\"{}\" width=\"{length:.1}\" height=\"14\" fill=\"{color}\"/>\n\
                 <text x=\"{:.1}\" y=\"{y}\">{figure}</text>\n",
                top + 3.0,
                x + length + 5.0,
            );
            top += BAR;
        }
    }
    text + "</svg>\n"
}

/// Escapes text for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_scale() {
        let bars = [1.0, 10.0, 100.0].map(|value| (String::new(), value, Role::Ours)).to_vec();
        let mut panel = Panel { title: "a < b".into(), bars, is_logarithmic: true };
        assert_eq!([1.0, 10.0, 100.0].map(|value| panel.length(value).round()), [127.0, 253.0, 380.0]);
        panel.is_logarithmic = false;
        assert_eq!([1.0, 50.0, 100.0].map(|value| panel.length(value).round()), [4.0, 190.0, 380.0]);
        let text = svg(&[panel]);
        assert!(text.contains("height=\"100\"") && text.contains("a &lt; b"), "{text}");
    }
}
