//! What became of elements that devices were to write to.

use std::ops::Range;

use crate::base::error::{Error, ErrorKind, Result};

/// What has become of the elements so far, as ranges of indices.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub written: Vec<Range<usize>>,
    pub unspecified: Vec<Range<usize>>,
    /// The first trouble.
    pub failure: Option<Error>,
}

impl Outcome {
    /// Takes in what has become of other elements.
    pub fn add(&mut self, other: Self) {
        self.written.extend(other.written);
        self.unspecified.extend(other.unspecified);
        self.failure = self.failure.take().or(other.failure);
    }

    /// # Errors
    /// [`Interrupted`](ErrorKind::Interrupted) if some were written or are unspecified; else the trouble
    /// itself.
    pub fn into_result(self) -> Result<()> {
        let Some(failure) = self.failure else { return Ok(()) };
        if self.written.is_empty() && self.unspecified.is_empty() {
            return Err(failure);
        }
        let cause = match failure.kind() {
            ErrorKind::Device(cause) => cause.clone(),
            other => backend_api::Error::new(backend_api::ErrorKind::KernelFailed, "compute")
                .with_detail(other.to_string()),
        };
        let (written, unspecified) = (merged(self.written), merged(self.unspecified));
        Err(ErrorKind::Interrupted { written, unspecified, cause }.into())
    }
}

/// Whether an error of a submission says that nothing was changed.
pub(crate) fn changes_nothing(error: &Error) -> bool {
    use backend_api::ErrorKind::{InvalidArgument, UnknownHandle, Unsupported};
    matches!(error.kind(), ErrorKind::Device(cause)
        if matches!(cause.kind(), InvalidArgument | UnknownHandle | Unsupported))
}

/// Ranges in ascending order, those that touch as one.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}
