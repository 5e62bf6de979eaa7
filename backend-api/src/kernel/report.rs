//! What a launch says about its failures.

/// What a launch writes to host memory when it is over: four unsigned 64-bit numbers in the host's byte
/// order.
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
    /// How many items failed; at least so many, if more than 2^31.
    pub failures: u64,
    /// The operation of the first failure of one of them: see
    /// [`Body::operation`](super::Body::operation). 0 without failures.
    pub site: u32,
    /// Of an index outside: the index; of [`Op::Fail`](super::Op::Fail): its detail; of a loop: the budget;
    /// of [`Op::Arena`](super::Op::Arena): the bytes. 0 without failures.
    pub detail: u64,
    /// The item. 0 without failures.
    pub item: u64,
}

impl Report {
    /// Its length in bytes.
    pub const BYTES: u64 = 32;

    /// As it is written.
    #[must_use]
    pub const fn words(self) -> [u64; 4] {
        [self.failures, self.site as u64, self.detail, self.item]
    }

    /// As it is read.
    #[must_use]
    pub const fn from_words([failures, site, detail, item]: [u64; 4]) -> Self {
        Self { failures, site: site as u32, detail, item }
    }

    /// Of this part of a launch and of another one.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let failures = self.failures.saturating_add(other.failures);
        if self.failures == 0 { other } else { Self { failures, ..self } }
    }
}
