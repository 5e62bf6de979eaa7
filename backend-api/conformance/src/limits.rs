//! Limits of the conformance checks: the memory that a check uses, and the time that it waits.

use std::time::Duration;

/// Limits of a check: the memory that the check allocates, and the time that it waits for wake-ups.
///
/// ```
/// use std::time::Duration;
/// use vmarray_conformance::Limits;
/// let slow = Limits::default().with_bytes(16 << 20).with_seed(2).with_patience(Duration::from_secs(300));
/// assert_eq!((slow.bytes, slow.seed, slow.patience.as_secs()), (16 << 20, 2, 300));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of bytes of device memory, and of host memory, that a check has allocated at any time.
    /// Values below [`Limits::LEAST_BYTES`] count as `LEAST_BYTES`. Greater values enable checks of large
    /// memory, for example of buffers that exceed the driver's largest allocation.
    pub bytes: u64,
    /// Time that a check waits for a wake-up before it fails.
    pub patience: Duration,
    /// Seed of the random programs that checks generate. The same seed generates the same programs.
    pub seed: u64,
}

impl Limits {
    /// Number of bytes of memory that all checks need, except for the checks of large memory.
    pub const LEAST_BYTES: u64 = 8 << 20;

    /// Sets the maximum number of [bytes](Self::bytes) of memory.
    #[must_use]
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the [seed](Self::seed) of random programs.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the [time](Self::patience) that a check waits for a wake-up.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl Default for Limits {
    /// The default limits: 32 MiB of memory, 30 seconds of patience, and the seed 0.
    fn default() -> Self {
        Self { bytes: 32 << 20, patience: Duration::from_secs(30), seed: 0 }
    }
}
