//! Statistics of an array: counters of hits, misses and copied bytes for each channel (share of a device).
//! They are always enabled.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::readable_bytes;
use parking_lot::Mutex;

/// A counter to which any thread may add, with relaxed memory order.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters of a channel (share of a device), written only on misses. They share no cache line
        /// with data that hits read.
        #[doc(hidden)]
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $(pub $name: Counter,)*
        }

        impl Counters {
            pub fn snapshot(&self) -> ChannelStats {
                ChannelStats { $($name: self.$name.get(),)* }
            }
        }

        /// The activity of a channel (share of a device) since its array was built, or since the last reset
        /// of its statistics.
        ///
        /// ```
        /// use vmarray::prelude::*;
        /// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
        /// array.write(0, &[7; 1000])?;
        /// let before = array.stats().total();
        /// array.flush(..)?;
        /// let flushed = array.stats().total() - before;
        /// assert_eq!((flushed.write_backs, flushed.bytes_to_device, flushed.misses), (10, 4000, 0));
        /// # Ok::<(), vmarray::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        pub struct ChannelStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl ChannelStats {
            /// Returns the names and values of all counters.
            #[doc(hidden)]
            #[inline]
            pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Sets the counter with this name, if it exists.
            #[doc(hidden)]
            #[inline]
            pub fn set(&mut self, name: &str, count: u64) {
                match name {
                    $(stringify!($name) => self.$name = count,)*
                    _ => {}
                }
            }
        }

        impl Add for ChannelStats {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name),)* }
            }
        }

        impl Sub for ChannelStats {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(other.$name),)* }
            }
        }
    };
}

counters! {
    /// Accesses to a page that first had to enter the cache, with or without a fetch from the device.
    misses,
    /// Pages prefetched, by request or by read-ahead.
    prefetches,
    /// Prefetched pages that lost their frame before their first use.
    prefetches_unused,
    /// Pages that lost their frame to make room for others.
    evictions,
    /// Pages copied from their cache frame to their home slot on the device.
    write_backs,
    /// Failed copies of pages to their home slot. These pages stayed dirty in the cache.
    failed_write_backs,
    /// Pages copied between their home slot and the program's memory without the cache.
    bypasses,
    /// Bytes copied to the device.
    bytes_to_device,
    /// Bytes copied from the device.
    bytes_from_device,
    /// Bytes of the channel's elements that were copied to other device memory without the host: on the
    /// device itself, or over a link to another one.
    bytes_past_host,
    /// Bytes of other channels' and arrays' elements that were copied to this channel's device through the
    /// host, because there is no direct link. [`bytes_to_device`](Self::bytes_to_device) includes them.
    bytes_through_host,
    /// Bytes of the channel's elements that kernels and searches read or wrote in device memory. Partially
    /// changed rows count twice; work of a session does not count.
    bytes_in_place,
    /// Submissions to the device: batches of copies, and kernels.
    submissions,
    /// Barriers on all cores of the process. They precede the eviction, export or copy of pages that threads
    /// may be accessing without a lock. One barrier serves all pages of a batch.
    barriers,
    /// Number of times that a thread waited for a copy, for a page held by another thread, or for a frame.
    waits,
}

/// The activity of an array since its creation, or since the last reset of its statistics.
///
/// The array counts hits only if the builder enables it, and only for the whole array, because a hit does not
/// determine the channel (share of a device) of its page. If more than 63 arrays count hits at the same time,
/// the further arrays share one counter. All numbers are exact while no access is running.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).count_hits(true).build()?;
/// for i in 0..1000 {
///     array.set(i, 7)?;
/// }
/// let stats = array.stats();
/// let by_channel: u64 = stats.channels.iter().map(|channel| channel.misses).sum();
/// assert_eq!((stats.hits, stats.total().misses, by_channel), (Some(990), 10, 10));
/// assert_eq!(stats.hit_rate(), Some(0.99));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stats {
    /// Number of accesses to cached pages; `None` if the array does not count hits. An access to a range
    /// counts once for each page.
    pub hits: Option<u64>,
    /// The counters of each channel (share of a device).
    pub channels: Vec<ChannelStats>,
}

impl Stats {
    /// Creates statistics from the number of hits and the counters of each channel (share of a device).
    #[doc(hidden)]
    pub fn new(hits: Option<u64>, channels: Vec<ChannelStats>) -> Self {
        Self { hits, channels }
    }

    /// Returns the sum of each counter over all channels (shares of devices).
    #[must_use]
    #[inline]
    pub fn total(&self) -> ChannelStats {
        self.channels.iter().fold(ChannelStats::default(), |sum, c| sum + *c)
    }

    /// Returns hits / (hits + misses), or 1 without accesses. `None` if the array does not count hits.
    #[must_use]
    #[inline]
    pub fn hit_rate(&self) -> Option<f64> {
        let hits = self.hits?;
        let all = hits + self.total().misses;
        Some(if all == 0 { 1.0 } else { hits as f64 / all as f64 })
    }
}

/// Formats the counters in one line for a log, without counters that are zero.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
/// array.write(0, &[7; 1000])?;
/// array.flush(..)?;
/// let text = array.stats().total().to_string();
/// assert!(text.contains("10 write-backs, 4000 bytes to the device"), "{text}");
/// # Ok::<(), vmarray::Error>(())
/// ```
impl fmt::Display for ChannelStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.prefetches, "prefetches"),
            (self.prefetches_unused, "of them unused"),
            (self.evictions, "evictions"),
            (self.write_backs, "write-backs"),
            (self.failed_write_backs, "failed write-backs"),
            (self.bypasses, "pages that bypassed the cache"),
        ];
        write!(f, "{} misses", self.misses)?;
        let named = |f: &mut fmt::Formatter<'_>, (count, name)| match count {
            0 => Ok(()),
            _ => write!(f, ", {count} {name}"),
        };
        counts.into_iter().try_for_each(|count| named(f, count))?;
        for (bytes, way) in [(self.bytes_to_device, "to"), (self.bytes_from_device, "from")] {
            if bytes > 0 {
                write!(f, ", {} {way} the device", readable_bytes(bytes))?;
            }
        }
        if self.bytes_past_host > 0 {
            write!(f, ", {} past the host", readable_bytes(self.bytes_past_host))?;
        }
        if self.bytes_through_host > 0 {
            write!(f, ", {} through the host", readable_bytes(self.bytes_through_host))?;
        }
        if self.bytes_in_place > 0 {
            write!(f, ", {} in place", readable_bytes(self.bytes_in_place))?;
        }
        let counts = [(self.submissions, "submissions"), (self.barriers, "barriers"), (self.waits, "waits")];
        counts.into_iter().try_for_each(|count| named(f, count))
    }
}

/// Formats the statistics in one line for a log: hits, if they are counted, and the sum of all channels.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).count_hits(true).build()?;
/// for i in 0..1000 {
///     array.set(i, 7)?;
/// }
/// let text = array.stats().to_string();
/// assert!(text.starts_with("990 hits (99.0 %), 10 misses"), "{text}");
/// # Ok::<(), vmarray::Error>(())
/// ```
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(hits), Some(rate)) = (self.hits, self.hit_rate()) {
            write!(f, "{hits} hits ({:.1} %), ", 100.0 * rate)?;
        }
        self.total().fmt(f)
    }
}

/// The values of the counters at the last reset, which the array subtracts from later statistics.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Baseline(Mutex<Stats>);

impl Baseline {
    /// Returns the statistics since the last reset; `now` returns the current counters.
    #[inline]
    pub fn since(&self, now: impl FnOnce() -> Stats) -> Stats {
        let baseline = self.0.lock();
        let mut stats = now();
        stats.hits = stats.hits.map(|hits| hits.wrapping_sub(baseline.hits.unwrap_or(0)));
        for (now, before) in stats.channels.iter_mut().zip(&baseline.channels) {
            *now = *now - *before;
        }
        stats
    }

    #[inline]
    pub fn reset(&self, now: impl FnOnce() -> Stats) {
        let mut baseline = self.0.lock();
        *baseline = now();
    }
}
