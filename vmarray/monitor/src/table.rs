//! The monitor's tables of devices and of channels (shares of a device), as rows of text for a terminal and
//! for scripts.

use std::collections::BTreeMap;
use std::fmt;

use crate::watched::{Watched, WatchedChannel};

/// A table of text: column names, and rows of cells.
#[derive(Debug, Default)]
pub struct Table {
    pub header: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// The traffic in one direction of a bus, and the limit of the bus.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    bytes: u64,
    per_second: Option<f64>,
    limit: Option<u64>,
}

impl Traffic {
    fn read(of: &WatchedChannel<'_>) -> Self {
        let (bytes, limit) = (of.channel.stats.bytes_from_device, of.channel.read_limit);
        Self { bytes, per_second: of.rate(|stats| stats.bytes_from_device), limit }
    }

    fn written(of: &WatchedChannel<'_>) -> Self {
        let (bytes, limit) = (of.channel.stats.bytes_to_device, of.channel.write_limit);
        Self { bytes, per_second: of.rate(|stats| stats.bytes_to_device), limit }
    }

    /// Adds the traffic of two arrays on the same GPU, which have the same limit.
    fn and(self, other: Self) -> Self {
        let both = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (None, None) => None,
            _ => Some(one.unwrap_or(0.0) + other.unwrap_or(0.0)),
        };
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            per_second: both(self.per_second, other.per_second),
            limit: self.limit.or(other.limit),
        }
    }

    /// Returns two cells: the rate, or all bytes if the rate is unknown; and the limit.
    fn cells(self) -> [String; 2] {
        let carried = match self.per_second {
            Some(rate) => gigabytes(rate),
            None => bytes(self.bytes),
        };
        [carried, self.limit.map_or_else(none, |limit| gigabytes(limit as f64))]
    }
}

fn none() -> String {
    "-".into()
}

fn gigabytes(per_second: f64) -> String {
    format!("{:.2} GB/s", per_second / 1e9)
}

fn bytes(bytes: u64) -> String {
    vmarray::device::readable_bytes(bytes)
}

impl Table {
    /// Creates a table with one row for each GPU, which sums the traffic of all arrays on it.
    pub fn of_cards(watched: &Watched) -> Self {
        let mut cards: BTreeMap<&str, ([Traffic; 2], u64, u64)> = BTreeMap::new();
        for of in watched.channels() {
            let (traffic, pinned, channels) = cards.entry(&of.channel.device).or_default();
            *traffic = [traffic[0].and(Traffic::read(&of)), traffic[1].and(Traffic::written(&of))];
            *pinned = pinned.saturating_add(of.channel.pinned_bytes);
            *channels += 1;
        }
        let header = vec!["card", "channels", "from it", "at most", "to it", "at most", "pinned"];
        let row = |(card, ([read, written], pinned, channels)): (&str, ([Traffic; 2], u64, u64))| {
            let mut row = vec![card.to_owned(), channels.to_string()];
            row.extend(read.cells().into_iter().chain(written.cells()).chain([bytes(pinned)]));
            row
        };
        Self { header, rows: cards.into_iter().map(row).collect() }
    }

    /// Creates a table with one row for each channel (share of a device) of each array.
    pub fn of_channels(watched: &Watched) -> Self {
        let header = vec![
            "program",
            "process",
            "array",
            "length",
            "channel",
            "card",
            "hits",
            "misses",
            "from card",
            "to card",
            "evictions",
            "through host",
            "waits",
            "pinned",
        ];
        let row = |of: WatchedChannel<'_>| {
            let stats = &of.channel.stats;
            // Hits are counted per array, not per channel (share of a device), so show them for channel 0
            // only.
            let hits = of.hit_rate().filter(|_| of.number == 0);
            vec![
                of.program.name.clone(),
                of.program.process.to_string(),
                of.array.name.clone(),
                bytes(of.array.bytes),
                of.number.to_string(),
                of.channel.device.clone(),
                hits.map_or_else(none, |rate| format!("{:.1} %", 100.0 * rate)),
                stats.misses.to_string(),
                Traffic::read(&of).cells()[0].clone(),
                Traffic::written(&of).cells()[0].clone(),
                stats.evictions.to_string(),
                bytes(stats.bytes_through_host),
                stats.waits.to_string(),
                bytes(of.channel.pinned_bytes),
            ]
        };
        Self { header, rows: watched.channels().map(row).collect() }
    }

    /// Returns the width of each column in characters.
    pub fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.header[column].len()]).max().unwrap_or(0)
        };
        (0..self.header.len()).map(width).collect()
    }
}

impl fmt::Display for Table {
    /// Writes the table with two blanks between columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let header = self.header.iter().map(ToString::to_string).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watched::tests::program;

    #[test]
    fn cards_carry_the_sum_of_all_arrays() {
        let mut watched = Watched::default();
        watched.read(vec![program(1, 1), program(2, 1)]);
        let cards = Table::of_cards(&watched);
        assert_eq!(
            cards.rows[0],
            ["card 0 (cuda pci:0)", "2", "1.9 GiB", "8.00 GB/s", "0 bytes", "-", "6.0 MiB"]
        );
        watched.read(vec![program(1, 2), program(2, 2)]);
        assert_eq!(Table::of_cards(&watched).rows[1][2], "8.00 GB/s");
    }

    #[test]
    fn a_channel_has_a_row_and_its_array_one_hit_rate() {
        let mut watched = Watched::default();
        watched.read(vec![program(7, 2)]);
        let text = Table::of_channels(&watched).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("walker   7        steps  1.0 GiB  0"), "{text}");
        assert!(lines[1].contains("90.0 %") && !lines[2].contains('%'), "{text}");
    }
}
