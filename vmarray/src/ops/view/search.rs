//! Searches in a part of a view, with the matches in the index order of the view.

use std::ops::Range;

use super::shape::Shape;
use super::store::Store;
use crate::base::error::Result;
use crate::ops::find::{Found, Seek};
use crate::ops::sealed::INTERNAL;

impl Found {
    /// Converts storage indices to indices of the view.
    pub(crate) fn by_index<X: Shape>(self, shape: &X) -> Found<X::Index> {
        Found { indices: shape.indices_at(self.indices), total: self.total }
    }
}

/// The most elements between two runs of a region that are searched as one.
const GAP_MAX: usize = if cfg!(test) { 8 } else { 1 << 16 };
/// The most elements in a search that joins several runs.
const JOINED_MAX: usize = if cfg!(test) { 64 } else { 1 << 22 };

/// If the store has another order than the view, the most matches listed to find the first ones.
const ORDERED_MAX: usize = if cfg!(test) { 8 } else { 1 << 20 };

/// Searches a region of a store. With `count_all` the total is the exact number of matches.
pub(super) fn search_region<S: Store, X: Shape>(
    store: &S,
    shape: &X,
    of: &Range<X::Index>,
    seek: Seek<'_>,
) -> Result<Found<X::Index>> {
    let Seek { what, limit, count_all } = seek;
    if limit == 0 || limit == usize::MAX {
        return search_slab(store, shape, of, seek);
    }
    let mut all = Found { indices: Vec::new(), total: 0 };
    for slab in shape.slabs(of) {
        let more = limit - all.indices.len();
        if more == 0 && !count_all {
            break;
        }
        all.append(search_slab(store, shape, &slab, Seek { what, limit: more, count_all })?);
    }
    Ok(all)
}

/// Like [`search_region`], for a region whose indices are all less than the indices of later regions.
fn search_slab<S: Store, X: Shape>(
    store: &S,
    shape: &X,
    of: &Range<X::Index>,
    seek: Seek<'_>,
) -> Result<Found<X::Index>> {
    let Seek { what, limit, count_all } = seek;
    let (region, is_in_order) = (shape.cut(of), shape.is_in_order(of));
    if !is_in_order && (1..usize::MAX).contains(&limit) {
        // The device must list all matches before this function can determine the first matches in view
        // order. A part of the view with too many matches is therefore split.
        let total = search_slab(store, shape, of, Seek { what, limit: 0, count_all: true })?.total;
        if total > ORDERED_MAX
            && let Some([first, second]) = shape.halves(of)
        {
            let mut found = search_slab(store, shape, &first, seek)?;
            if found.indices.len() < limit {
                let limit = limit - found.indices.len();
                found.append(search_slab(store, shape, &second, Seek { what, limit, count_all: false })?);
            }
            return Ok(Found { total, ..found });
        }
    }
    let joins = |next: &Range<usize>, range: &Range<usize>| match next.start - range.end {
        0 => true,
        // A search across a gap (elements outside of the view) must list all matches, to exclude matches in
        // the gap. A mere count (`limit` 0) has no list, so it crosses no gap.
        gap => limit > 0 && gap <= GAP_MAX && next.end - range.start <= JOINED_MAX,
    };
    let mut all = Found { indices: Vec::new(), total: 0 };
    let mut runs = shape.runs(of).peekable();
    while let Some(mut range) = runs.next() {
        let mut has_gaps = false;
        while let Some(next) = runs.next_if(|next| joins(next, &range)) {
            has_gaps |= next.start > range.end;
            range.end = next.end;
        }
        // The device must list all matches if matches in gaps must be excluded, or if matches must be sorted.
        let is_exact = !has_gaps && (is_in_order || limit == 0);
        let wanted = if is_exact { limit - all.indices.len() } else { usize::MAX };
        let seek = Seek { what, limit: wanted, count_all: count_all || !is_exact };
        let Found { indices, total } = store.ask(&[], &range, &seek, INTERNAL)?;
        let mut places = indices;
        if has_gaps {
            places.retain(|place| region.index_at(*place).is_some());
        }
        let indices = shape.indices_at(places);
        all.append(Found { total: if has_gaps { indices.len() } else { total }, indices });
        if is_in_order {
            all.indices.truncate(limit);
            if !count_all && all.indices.len() == limit {
                break;
            }
        }
    }
    if !is_in_order {
        all.indices.sort_unstable();
        all.indices.truncate(limit);
    }
    Ok(all)
}
