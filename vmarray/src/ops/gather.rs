//! Gathers and scatters: reads and writes of many elements by lists of indices.

#[forbid(unsafe_code)]
mod asynchronous;
#[forbid(unsafe_code)]
mod batch_probe;
#[forbid(unsafe_code)]
mod deliver;
#[forbid(unsafe_code)]
mod duplicates;
#[forbid(unsafe_code)]
mod fetch;
#[forbid(unsafe_code)]
mod homes;
#[forbid(unsafe_code)]
mod in_place;
#[forbid(unsafe_code)]
mod in_turn;
#[forbid(unsafe_code)]
mod kernels;
#[forbid(unsafe_code)]
mod lanes;
#[forbid(unsafe_code)]
mod places;
#[forbid(unsafe_code)]
mod segments;
#[forbid(unsafe_code)]
pub(crate) mod spans;
mod stage;

use crate::base::error::{ErrorKind, Result};
use crate::base::scoped_threads::{CORES, works_alone};

pub use asynchronous::GatherAsync;
pub(crate) use deliver::scatter;
pub(crate) use fetch::gather;

/// The least work for a thread, in bytes, because a thread costs some microseconds.
const BYTES_PER_WORKER: usize = 2 << 20;
/// The number of indices that a thread checks without interruption.
const CHECKED_AT_ONCE: usize = 1 << 16;

/// Returns true if all indices of a part of a list are below `len`.
fn all_inside(indices: &[usize], len: usize) -> bool {
    // Compute the maximum without branches, because the compiler vectorizes this loop.
    indices.iter().fold(0, |max, &index| max.max(index)) < len || indices.is_empty()
}

/// Returns an error unless all indices are below `len`.
pub(crate) fn check_list(indices: &[usize], len: usize) -> Result<()> {
    let pieces = indices.chunks(CHECKED_AT_ONCE).enumerate();
    let outside = pieces.filter(|(_, piece)| !all_inside(piece, len)).find_map(|(number, piece)| {
        let at = piece.iter().position(|&index| index >= len)?;
        Some((number * CHECKED_AT_ONCE + at, piece[at]))
    });
    match outside {
        Some((position, index)) => Err(ErrorKind::ListedIndexOutside { position, index, len }.into()),
        None => Ok(()),
    }
}

/// Returns the number of threads, at most `most`, for work of this size in bytes.
fn workers(bytes: usize, most: usize) -> usize {
    if works_alone() {
        return 1;
    }
    (bytes / BYTES_PER_WORKER).min(*CORES).min(most).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::array::testing::{host, one_channel};
    use crate::prelude::*;

    #[test]
    fn little_work_is_done_alone() {
        assert_eq!(workers(BYTES_PER_WORKER, 100), 1);
        assert_eq!(workers(usize::MAX, 1), 1);
    }

    #[test]
    fn a_scatter_to_a_guarded_page_would_deadlock() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (4, 16), 4).build().unwrap();
        let guard = array.page_mut(2).unwrap();
        let error = array.scatter(&[3, 35], &[1, 2]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::WouldDeadlock { page: 2 });
        drop(guard);
        assert_eq!(array.get(35).unwrap(), 0);
    }

    #[test]
    fn the_first_index_outside_is_named() {
        let mut list = vec![6; 3 * CHECKED_AT_ONCE];
        check_list(&list, 7).unwrap();
        check_list(&[], 0).unwrap();
        list[CHECKED_AT_ONCE + 5] = 7;
        list[2 * CHECKED_AT_ONCE] = 9;
        let outside = ErrorKind::ListedIndexOutside { position: CHECKED_AT_ONCE + 5, index: 7, len: 7 };
        assert_eq!(*check_list(&list, 7).unwrap_err().kind(), outside);
    }
}
