//! The published statistics of a program.

use std::time::Duration;

use crate::base::stats::ChannelStats;

/// A running program that publishes statistics of its arrays.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::monitor;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).publish("numbers").build()?;
/// array.fill(.., 7)?;
/// array.flush(..)?;
/// // Twice a second this happens by itself.
/// monitor::publish_now();
/// let own = monitor::programs().into_iter().find(|program| program.process == std::process::id());
/// # if let Some(program) = own {
/// let numbers = &program.arrays[0];
/// assert_eq!((&*numbers.name, numbers.bytes), ("numbers", 4000));
/// let stats: u64 = numbers.channels.iter().map(|channel| channel.stats.bytes_to_device).sum();
/// assert_eq!(stats, array.stats().total().bytes_to_device);
/// # }
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedProgram {
    /// The process ID.
    pub process: u32,
    /// The name of the program's file.
    pub name: String,
    /// The time of publication, since the beginning of 1970. The rate of a counter is the difference of two
    /// of its values, divided by the difference of their times.
    pub at: Duration,
    /// The arrays of the program, in the order in which they were built.
    pub arrays: Vec<PublishedArray>,
    /// The number of further arrays, which the file omits.
    pub left_out: u64,
}

/// An array of a [program](PublishedProgram).
///
/// ```
/// use vmarray::monitor::{PublishedArray, programs};
/// let arrays: Vec<PublishedArray> = programs().into_iter().flat_map(|program| program.arrays).collect();
/// for PublishedArray { name, hits, .. } in arrays {
///     println!("{name}: {hits:?} hits");
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedArray {
    /// The name passed to [`Builder::publish`](crate::Builder::publish), or `array` and a number.
    pub name: String,
    /// The length of the array, in bytes.
    pub bytes: u64,
    /// Number of hits since the creation of the array; `None` if the array does not count hits.
    pub hits: Option<u64>,
    /// The channels of the array.
    pub channels: Vec<PublishedChannel>,
}

/// A channel of an [array](PublishedArray).
///
/// ```
/// use vmarray::monitor::{PublishedChannel, programs};
/// let arrays = programs().into_iter().flat_map(|program| program.arrays);
/// let channels: Vec<PublishedChannel> = arrays.flat_map(|array| array.channels).collect();
/// println!("{} bytes are page-locked", channels.iter().map(|channel| channel.pinned_bytes).sum::<u64>());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedChannel {
    /// Name of the device, as in error messages.
    pub device: String,
    /// The counters since the array was built.
    pub stats: ChannelStats,
    /// RAM of the channel's frames, in bytes.
    pub cache_bytes: u64,
    /// Page-locked RAM of the channel's frames and buffers, in bytes; 0 if the frames are not page-locked.
    pub pinned_bytes: u64,
    /// The bandwidth from the device in bytes per second, if its [profile](crate::profile::Profile) is
    /// known.
    pub read_limit: Option<u64>,
    /// The bandwidth to the device in bytes per second, if its profile is known.
    pub write_limit: Option<u64>,
}
