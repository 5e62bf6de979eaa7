//! Reports of kernel launches: the number of failed items (GPU threads), and the first failure.

/// The report of a launch about its failed items (GPU threads). At the end of the launch, the device writes
/// the report to host memory, as four unsigned 64-bit numbers in the host's byte order: see
/// [`words`](Self::words).
///
/// ```
/// use backend_api::kernel::Report;
/// let report = Report { failures: 2, site: 7, detail: 100, item: 41 };
/// assert_eq!(Report::from_words(report.words()), report);
/// assert_eq!((report.words().len() as u64 * 8, Report::default().failures), (Report::BYTES, 0));
/// let one = Report { failures: 1, site: 3, detail: 5, item: 12 };
/// assert_eq!(one.and(report), Report { failures: 3, ..one });
/// assert_eq!(Report::default().and(report), report);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of failed items (GPU threads). Above 2^31, the number is a lower bound.
    pub failures: u64,
    /// Number of the first operation that failed in the reported item (GPU thread): see
    /// [`Body::operation`](super::Body::operation). The number may contain the bit
    /// [`TIME_OVER`](Self::TIME_OVER). 0 if no item failed.
    pub site: u32,
    /// Detail of the reported failure: the index that was out of bounds, the detail of
    /// [`Op::Fail`](super::Op::Fail), the budget (maximum number of iterations) of a loop, or the bytes of
    /// [`Op::PrivateAlloc`](super::Op::PrivateAlloc). 0 if no item failed.
    pub detail: u64,
    /// Element index of the reported item (GPU thread). 0 if no item failed.
    pub item: u64,
}

impl Report {
    /// Length of a report in memory, in bytes.
    pub const BYTES: u64 = 32;
    /// Bit of [`site`](Self::site) that is set if the reported item (GPU thread) has exceeded the [time
    /// limit](super::Launch::time_limit); the other bits are the number of the loop. A merge of reports
    /// prefers such a report, because some items have not run.
    pub const TIME_OVER: u32 = 1 << 31;

    /// Creates the report of an item (thread) that has exceeded the time limit in the loop number `site`.
    #[must_use]
    pub const fn time_over(site: u32, item: u64) -> Self {
        Self { failures: 1, site: site | Self::TIME_OVER, detail: 0, item }
    }

    /// Returns the number of the loop in which the item (thread) has exceeded the time limit, if any.
    #[must_use]
    pub const fn loop_over_time(self) -> Option<u32> {
        if self.site & Self::TIME_OVER == 0 { None } else { Some(self.site & !Self::TIME_OVER) }
    }

    /// Returns the report as the four words that a device writes to memory.
    #[must_use]
    pub const fn words(self) -> [u64; 4] {
        [self.failures, self.site as u64, self.detail, self.item]
    }

    /// Creates the report from the four words that a device has written.
    #[must_use]
    pub const fn from_words([failures, site, detail, item]: [u64; 4]) -> Self {
        Self { failures, site: site as u32, detail, item }
    }

    /// Merges this report with the report `other` of a later part of the launch. Keeps the details of the
    /// first failure, but prefers a failure by the [time limit](Self::TIME_OVER).
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let failures = self.failures.saturating_add(other.failures);
        let is_later = other.loop_over_time().is_some() && self.loop_over_time().is_none();
        if self.failures == 0 || is_later { Self { failures, ..other } } else { Self { failures, ..self } }
    }
}
