//! Reports: lines on a terminal, a JSON object, a page with plots.

pub mod html;
pub mod json;
mod plot;
pub mod table;

/// A number with three digits that count.
pub fn digits(value: f64) -> String {
    match value.abs() {
        value if value == 0.0 || !value.is_finite() => format!("{value}"),
        size if size < 0.01 => format!("{value:.1e}"),
        size if size < 1.0 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        let numbers = [0.0, 0.001_234, 0.12345, 1.2345, 12.345, 123.45, 12345.6];
        assert_eq!(numbers.map(digits), ["0", "1.2e-3", "0.123", "1.23", "12.3", "123", "12346"]);
    }
}
