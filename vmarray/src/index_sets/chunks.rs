//! [`CombinationChunks`]: an iterator over the result tuples of a join, one chunk at a time.

use std::iter::FusedIterator;
use std::sync::Arc;

use super::engine::{JoinEngine, StripPiece, Walk};
use super::keys::FoldedMultiply;
use super::{IndexSet, Tuples, count_of};
use crate::base::error::Result;
use crate::base::scratch_pool::unspecified_vec;
use crate::engine::shared_work;

/// An iterator over the results of a [`Combination`](super::Combination) as index sets of limited length,
/// created by [`chunks`](super::Combination::chunks). The iterator ends after the first error.
///
/// ```
/// let a = vmarray::IndexSet::from_rows([0], [[1], [2], [3]])?;
/// let merged = vmarray::index_set::Combine::new(&a, &a).run()?;
/// for chunk in merged.chunks(2) {
///     assert!(chunk?.len() <= 2);
/// }
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct CombinationChunks<'c, 'a, A: ?Sized, B: ?Sized> {
    engine: &'c JoinEngine<'a, A, B, FoldedMultiply>,
    walk: Walk<'a>,
    /// The present piece of the join, and its number.
    piece: Option<(usize, Arc<StripPiece<'a>>)>,
    next_piece: usize,
    /// The number of the next result within this piece.
    within: usize,
    left: usize,
    tuples: usize,
    threads: usize,
}

impl<A: ?Sized, B: ?Sized> std::fmt::Debug for CombinationChunks<'_, '_, A, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CombinationChunks")
            .field("left", &self.left)
            .field("tuples", &self.tuples)
            .finish_non_exhaustive()
    }
}

impl<'c, 'a, A: Tuples + ?Sized, B: Tuples + ?Sized> CombinationChunks<'c, 'a, A, B> {
    pub(super) fn new(
        engine: &'c JoinEngine<'a, A, B, FoldedMultiply>,
        tuples: usize,
        threads: usize,
    ) -> Self {
        let left = engine.len();
        Self { engine, walk: None, piece: None, next_piece: 0, within: 0, left, tuples, threads }
    }

    /// Returns the piece that contains the next result.
    fn piece(&mut self) -> Result<Arc<StripPiece<'a>>> {
        if let Some((_, piece)) = self.piece.as_ref().filter(|(_, piece)| self.within < piece.len()) {
            return Ok(Arc::clone(piece));
        }
        self.piece = None;
        while self.engine.len_of(self.next_piece) == 0 {
            self.next_piece += 1;
        }
        let piece = self.engine.piece(self.next_piece, &mut self.walk)?;
        self.piece = Some((self.next_piece, Arc::clone(&piece)));
        (self.next_piece, self.within) = (self.next_piece + 1, 0);
        Ok(piece)
    }

    pub(super) fn chunk(&mut self) -> Result<IndexSet> {
        let merge = self.engine.merge();
        let (width, len) = (merge.width(), self.tuples.min(self.left));
        let mut values = unspecified_vec(count_of(len, width)?)?;
        let mut done = 0;
        while width > 0 && done < len {
            let piece = self.piece()?;
            let part = (len - done).min(piece.len() - self.within);
            let into = &mut values[done * width..][..part * width];
            emit_from(&piece, self.within, width, self.threads, into)?;
            done += part;
            self.within += part;
        }
        self.left -= len;
        Ok(IndexSet::assemble(merge.dimensions.clone(), values, len))
    }
}

impl<A: Tuples + ?Sized, B: Tuples + ?Sized> Iterator for CombinationChunks<'_, '_, A, B> {
    type Item = Result<IndexSet>;

    fn next(&mut self) -> Option<Result<IndexSet>> {
        if self.left == 0 {
            return None;
        }
        let chunk = self.chunk();
        if chunk.is_err() {
            self.left = 0;
        }
        Some(chunk)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may end the iterator early, so the lower bound is at most one.
        (usize::from(self.left > 0), Some(self.left.div_ceil(self.tuples)))
    }
}

impl<A: Tuples + ?Sized, B: Tuples + ?Sized> FusedIterator for CombinationChunks<'_, '_, A, B> {}

/// Writes the results of a piece, beginning at result number `first`.
fn emit_from(
    piece: &StripPiece<'_>,
    first: usize,
    width: usize,
    threads: usize,
    into: &mut [u64],
) -> Result<()> {
    /// Number of values that a thread writes at a time.
    const VALUES: usize = 128 << 10;
    let at_once = (VALUES / width).max(1);
    let parts = into.chunks_mut(at_once * width).zip((first..).step_by(at_once));
    shared_work::for_each(threads, parts, |(into, first)| {
        piece.emit(first, into);
        Ok(())
    })
}
