//! The last two readings of a program's published statistics, and the rates between them.

use std::time::Duration;

use vmarray::monitor::{PublishedArray, PublishedChannel, PublishedProgram};
use vmarray::stats::ChannelStats;

/// The programs that publish statistics, each with its last two readings.
#[derive(Debug, Default)]
pub struct Watched {
    programs: Vec<(PublishedProgram, Option<PublishedProgram>)>,
}

/// A channel (share of a device) of a published array, with its program and array, and its changes since the
/// last reading.
#[derive(Clone, Copy, Debug)]
pub struct WatchedChannel<'a> {
    pub program: &'a PublishedProgram,
    pub array: &'a PublishedArray,
    pub number: usize,
    pub channel: &'a PublishedChannel,
    /// The increase of the counters between the last two readings, and the time between the readings.
    pub lately: Option<(ChannelStats, Duration)>,
    /// Hits and misses of the whole array: between the last two readings, or since it was built.
    hits: Option<(u64, u64)>,
}

impl Watched {
    /// Stores a new reading of the programs' statistics, and keeps the previous reading for rates.
    pub fn read(&mut self, programs: Vec<PublishedProgram>) {
        let mut before = std::mem::take(&mut self.programs);
        let with_before = |program: PublishedProgram| {
            let known = before.iter().position(|(old, _)| is_same(old, &program));
            let earlier = known.map(|at| before.swap_remove(at)).and_then(|(old, older)| {
                // If the process has written no new statistics, keep the older reading for the rates.
                if old.at == program.at { older } else { Some(old) }
            });
            (program, earlier)
        };
        self.programs = programs.into_iter().map(with_before).collect();
    }

    /// Returns the number of arrays that the programs' files do not list, because of a size limit.
    pub fn left_out(&self) -> u64 {
        self.programs.iter().map(|(program, _)| program.left_out).sum()
    }

    /// Returns all channels (shares of devices), in the order of programs and arrays.
    pub fn channels(&self) -> impl Iterator<Item = WatchedChannel<'_>> {
        self.programs.iter().flat_map(|(program, before)| {
            let arrays = program.arrays.iter().enumerate();
            arrays.flat_map(move |(at, array)| {
                let earlier = before.as_ref().and_then(|before| {
                    // If the counts are lower, a newer array has the name, so return no older counts.
                    let old = before.arrays.get(at).filter(|old| old.name == array.name)?;
                    let is_later = old.channels.len() == array.channels.len() && misses(old) <= misses(array);
                    is_later.then(|| (old, program.at.saturating_sub(before.at)))
                });
                let hits = array.hits.map(|hits| match earlier {
                    Some((old, _)) => {
                        (hits.saturating_sub(old.hits.unwrap_or(0)), misses(array) - misses(old))
                    }
                    None => (hits, misses(array)),
                });
                array.channels.iter().enumerate().map(move |(number, channel)| {
                    let lately =
                        earlier.map(|(old, time)| (channel.stats - old.channels[number].stats, time));
                    WatchedChannel { program, array, number, channel, lately, hits }
                })
            })
        })
    }
}

fn is_same(one: &PublishedProgram, other: &PublishedProgram) -> bool {
    (one.process, &one.name) == (other.process, &other.name)
}

fn misses(array: &PublishedArray) -> u64 {
    array.channels.iter().fold(0, |sum, channel| sum.wrapping_add(channel.stats.misses))
}

impl WatchedChannel<'_> {
    /// Returns hits / accesses, from 0 to 1: since the previous reading, or else since the array was built.
    pub fn hit_rate(&self) -> Option<f64> {
        let (hits, misses) = self.hits?;
        let all = hits as f64 + misses as f64;
        (all > 0.0).then(|| hits as f64 / all)
    }

    /// Returns the rate of the counter that `counter` selects, between the last two readings, in bytes a
    /// second.
    pub fn rate(&self, counter: impl Fn(&ChannelStats) -> u64) -> Option<f64> {
        let (stats, time) = self.lately.as_ref()?;
        (!time.is_zero()).then(|| counter(stats) as f64 / time.as_secs_f64())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns for tests a program with one array of two channels, `steps` half seconds after its start.
    pub fn program(process: u32, steps: u64) -> PublishedProgram {
        let mut program = PublishedProgram::default();
        (program.process, program.name) = (process, "walker".into());
        program.at = Duration::from_millis(1000 + 500 * steps);
        let mut array = PublishedArray::default();
        (array.name, array.bytes, array.hits) = ("steps".into(), 1 << 30, Some(90 * steps));
        array.channels = vec![PublishedChannel::default(); 2];
        for (number, channel) in array.channels.iter_mut().enumerate() {
            channel.device = format!("card {number} (cuda pci:{number})");
            channel.stats.misses = 5 * steps;
            channel.stats.bytes_from_device = 1_000_000_000 * steps * (1 + number as u64);
            channel.pinned_bytes = 3 << 20;
            channel.read_limit = Some(8_000_000_000);
        }
        program.arrays = vec![array];
        program
    }

    #[test]
    fn rates_are_between_two_readings_that_differ() {
        let mut watched = Watched::default();
        let rates = |watched: &Watched| -> Vec<_> {
            watched.channels().map(|channel| channel.rate(|stats| stats.bytes_from_device)).collect()
        };
        watched.read(vec![program(1, 1)]);
        assert_eq!(rates(&watched), [None, None]);
        watched.read(vec![program(1, 3)]);
        assert_eq!(rates(&watched), [Some(2e9), Some(4e9)]);
        assert_eq!(watched.channels().next().unwrap().hit_rate(), Some(0.9));
        // First read the same process again without new statistics, then another process.
        watched.read(vec![program(1, 3)]);
        assert_eq!(rates(&watched), [Some(2e9), Some(4e9)]);
        watched.read(vec![program(2, 9)]);
        assert_eq!(rates(&watched), [None, None]);
    }

    #[test]
    fn an_array_that_has_done_less_than_before_is_another_one() {
        let mut watched = Watched::default();
        watched.read(vec![program(1, 5)]);
        let mut other = program(1, 6);
        other.arrays[0].channels[1].stats.misses = 0;
        other.arrays[0].channels[0].stats.misses = 0;
        watched.read(vec![other]);
        assert!(watched.channels().all(|channel| channel.lately.is_none()));
        // The file may contain any numbers, so sums must not overflow.
        let mut hostile = program(1, 7);
        hostile.arrays[0].hits = Some(u64::MAX);
        hostile.arrays[0].channels[0].stats.misses = u64::MAX;
        watched.read(vec![hostile.clone()]);
        hostile.at = Duration::ZERO;
        watched.read(vec![hostile]);
        assert_eq!(watched.channels().count(), 2);
        let _ = watched.channels().next().unwrap().rate(|stats| stats.misses);
    }
}
