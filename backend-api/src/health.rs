//! The health of a GPU's memory, as the GPU reports it.

use std::fmt;

/// A GPU's report about errors in its memory, now. A field is `None` if the GPU does not report it.
///
/// ```
/// use backend_api::CardHealth;
/// let mut health = CardHealth::default();
/// assert_eq!(health.to_string(), "unknown");
/// health.ecc = Some(true);
/// health.uncorrected_errors = Some(2);
/// health.remapped_rows = Some(1);
/// assert_eq!(health.to_string(), "ECC on, 2 uncorrected errors, 1 row remapped");
/// assert_eq!(health.wants_replacement(), None);
/// health.remap_failed = Some(true);
/// assert!(health.wants_replacement().unwrap().contains("no spare row"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CardHealth {
    /// True if ECC is on: the GPU corrects errors in memory, and reports errors that it cannot correct.
    pub ecc: Option<bool>,
    /// Number of uncorrectable errors since the GPU was made.
    pub uncorrected_errors: Option<u64>,
    /// Number of uncorrectable errors since the driver was loaded.
    pub uncorrected_errors_lately: Option<u64>,
    /// Number of rows of the memory chips that the GPU has replaced by spare rows.
    pub remapped_rows: Option<u64>,
    /// True if the GPU will replace rows at its next reset. Until then it does not use these rows.
    pub remap_pending: Option<bool>,
    /// True if the GPU could not replace a row.
    pub remap_failed: Option<bool>,
    /// True if memory pages with errors are still in use: the driver retires them when it is loaded again.
    pub retirement_pending: Option<bool>,
}

impl CardHealth {
    /// Returns a reason to replace the GPU, if there is one: a row with errors has no spare row, or pages
    /// with errors are still in use. Rows that [wait for a reset](Self::remap_pending) are no reason.
    #[must_use]
    pub fn wants_replacement(&self) -> Option<&'static str> {
        if self.remap_failed == Some(true) {
            Some("a row of its memory has errors and no spare row is left: replace the GPU")
        } else if self.retirement_pending == Some(true) {
            Some("pages of its memory have errors and are still in use: reset the GPU, or replace it")
        } else {
            None
        }
    }
}

impl fmt::Display for CardHealth {
    /// Writes the known properties in a few words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: u64, what: &str| match number {
            1 => format!("1 {what}"),
            _ => format!("{number} {what}s"),
        };
        let said = |fact: Option<bool>, words: &str| fact.filter(|is_so| *is_so).map(|_| words.to_owned());
        let parts = [
            self.ecc.map(|on| format!("ECC {}", if on { "on" } else { "off" })),
            self.uncorrected_errors.map(|errors| count(errors, "uncorrected error")),
            self.uncorrected_errors_lately
                .filter(|errors| *errors > 0)
                .map(|errors| format!("{errors} lately")),
            self.remapped_rows.map(|rows| format!("{} remapped", count(rows, "row"))),
            said(self.remap_pending, "more rows at the next reset"),
            said(self.remap_failed, "remapping failed"),
            said(self.retirement_pending, "pages to be retired"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "unknown" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}
