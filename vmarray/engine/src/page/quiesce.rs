//! Quiescing pages: waits until all running lock-free accesses to some pages have ended. The caller has shut
//! the pages' gates (words that allow such accesses) before, so no new access begins.

use super::entry::Entry;
use super::hazard::HazardAccess;
use super::state::{READERS, State, WRITERS};

/// Waits for the end of all lock-free accesses of the kind `access`: calls `barrier`, then `drain` for each
/// page. The caller has shut the gates (which allow accesses); each `State` is from before. The caller holds
/// the pages: exclusively for [`HazardAccess::All`], at least shared for [`HazardAccess::Writes`].
pub fn quiesce_by<'a>(
    pages: impl Iterator<Item = (&'a Entry, State)> + Clone,
    access: HazardAccess,
    barrier: impl FnOnce(),
    drain: impl Fn(&'a Entry),
) {
    let bits = if access == HazardAccess::All { READERS | WRITERS } else { WRITERS };
    let open = pages.filter(|(_, before)| before.any(bits));
    if open.clone().next().is_none() {
        return;
    }
    for (entry, _) in open.clone() {
        if access == HazardAccess::All { entry.shut() } else { entry.shut_writes() }
    }
    barrier();
    for (entry, _) in open {
        drain(entry);
        entry.quiet(bits);
    }
}
