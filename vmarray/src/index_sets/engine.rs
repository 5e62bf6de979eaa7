//! The join of two inputs of tuples. To limit RAM, it processes a block of tuples of each input at a time.

use std::marker::PhantomData;
use std::sync::Arc;

use super::cut::SetCut;
use super::emit::Matches;
use super::keys::KeyHash;
use super::merge::Merge;
use super::runs::KeyIndex;
use super::source::{TupleBlock, Tuples};
use crate::base::error::{ErrorKind, Result};

/// The number of threads of a join, and its memory limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinLimits {
    pub(super) threads: usize,
    /// The approximate bytes of memory for the inputs and their index structures.
    pub(super) memory_bytes: usize,
}

/// A join of two sources with the number of its results. The join consists of pieces. Each piece is the join
/// of a *strip* (a part of the first source) with a *block* (a part of the second one). Sources within the
/// memory limit have a single piece.
#[derive(Debug)]
pub(super) struct JoinEngine<'a, A: ?Sized, B: ?Sized, H> {
    a: &'a A,
    b: &'a B,
    merge: Merge,
    threads: usize,
    strips: SetCut,
    blocks: SetCut,
    /// The number of results of each piece: first all strips with the first block, then all strips with the
    /// second block, and so on.
    totals: Vec<usize>,
    len: usize,
    /// The piece, if there is only one, for later calls.
    kept: Option<Arc<StripPiece<'a>>>,
    hash: PhantomData<fn() -> H>,
}

/// A strip and a block, with the matching tuples of each of the strip's tuples, for the output of results.
#[derive(Debug)]
pub(super) struct StripPiece<'a> {
    strip: TupleBlock<'a>,
    block: Arc<Grouped<'a>>,
    rest_width: usize,
    found: Matches,
}

#[derive(Debug)]
pub(super) struct Grouped<'a> {
    block: TupleBlock<'a>,
    /// `None` for a product, in which all pairs match.
    index: Option<KeyIndex>,
}

/// The block of the last visited piece, with its number. A walk in order groups each block once.
pub(super) type Walk<'a> = Option<(usize, Arc<Grouped<'a>>)>;

impl<'a, A: Tuples + ?Sized, B: Tuples + ?Sized, H: KeyHash> JoinEngine<'a, A, B, H> {
    /// Reads both sources, and counts the results.
    pub(super) fn new(a: &'a A, b: &'a B, merge: Merge, limits: JoinLimits) -> Result<Self> {
        /// Minimum number of tuples for each thread.
        const TUPLES_MIN: usize = 16 << 10;
        let tuples = a.len().saturating_add(b.len());
        let threads = limits.threads.clamp(1, 1 + tuples / TUPLES_MIN);
        let (strips, blocks) = Self::cut(a, b, &merge, limits.memory_bytes);
        let mut engine = Self {
            a,
            b,
            merge,
            threads,
            strips,
            blocks,
            totals: Vec::new(),
            len: 0,
            kept: None,
            hash: PhantomData,
        };
        engine.count()?;
        Ok(engine)
    }

    /// Divides both sources. The strips and the blocks each take half of the memory.
    fn cut(a: &A, b: &B, merge: &Merge, memory_bytes: usize) -> (SetCut, SetCut) {
        /// Bytes per tuple of a strip: an entry of a partition, and a run.
        const STRIP_BYTES: usize = 16 + 8;
        /// Bytes per tuple of a block: an entry of a partition, and a key with its slots in a growing table.
        const BLOCK_BYTES: usize = 16 + 24 * 2 + 4 * 5;
        let loaded = |is_in_memory: bool, width: usize| if is_in_memory { 0 } else { 8 * width };
        let mut strip_bytes = loaded(a.in_memory().is_some(), merge.a_width);
        let mut block_bytes = loaded(b.in_memory().is_some(), merge.b_width);
        let mut most = usize::MAX;
        if !merge.is_product() {
            strip_bytes += STRIP_BYTES;
            block_bytes += BLOCK_BYTES + 8 * merge.b_rest.len();
            most = KeyIndex::TUPLES_MAX;
        }
        let cut = |len: usize, bytes: usize| {
            SetCut::of(len, (memory_bytes / 2).checked_div(bytes).unwrap_or(most).min(most))
        };
        (cut(a.len(), strip_bytes), cut(b.len(), block_bytes))
    }

    fn count(&mut self) -> Result<()> {
        let too_long = |_| ErrorKind::TooLong { elements: u64::MAX, element_bytes: 8 * self.merge.width() };
        let mut walk = None;
        let pieces = self.strips.parts().checked_mul(self.blocks.parts()).ok_or(()).map_err(too_long)?;
        let mut totals = Vec::new();
        totals
            .try_reserve_exact(pieces)
            .map_err(|_| ErrorKind::NoMemory { bytes: pieces.saturating_mul(8) })?;
        let (mut len, mut kept) = (0_usize, None);
        for number in 0..pieces {
            let mut piece = self.build(number, &mut walk)?;
            totals.push(piece.len());
            len = len.checked_add(piece.len()).ok_or(()).map_err(too_long)?;
            if pieces == 1 {
                walk = None;
                piece.settle();
                kept = Some(Arc::new(piece));
            }
        }
        (self.totals, self.len, self.kept) = (totals, len, kept);
        Ok(())
    }

    fn build(&self, number: usize, walk: &mut Walk<'a>) -> Result<StripPiece<'a>> {
        let (block_number, strip_number) = (number / self.strips.parts(), number % self.strips.parts());
        let block = match walk.take().filter(|(number, _)| *number == block_number) {
            Some((_, block)) => block,
            None => Arc::new(self.group(block_number)?),
        };
        *walk = Some((block_number, Arc::clone(&block)));
        let strip = TupleBlock::load(self.a, self.strips.part(strip_number), self.threads)?;
        let found = match &block.index {
            Some(index) => {
                let runs = index.runs::<H>(&strip, &block.block, &self.merge, self.threads)?;
                Matches::each(runs, self.threads)?
            }
            None => Matches::all(strip.len(), block.block.len())?,
        };
        Ok(StripPiece { strip, block, rest_width: self.merge.b_rest.len(), found })
    }

    fn group(&self, number: usize) -> Result<Grouped<'a>> {
        let mut block = TupleBlock::load(self.b, self.blocks.part(number), self.threads)?;
        let index = match self.merge.is_product() {
            true => None,
            false => Some(KeyIndex::build::<H>(&block, &self.merge, self.threads)?),
        };
        if index.as_ref().is_some_and(KeyIndex::is_exact) && block.is_owned() {
            block.forget();
        }
        Ok(Grouped { block, index })
    }

    /// Returns the piece with a number.
    ///
    /// Returns an error if a source's tuples have changed since they were counted.
    pub(super) fn piece(&self, number: usize, walk: &mut Walk<'a>) -> Result<Arc<StripPiece<'a>>> {
        if let Some(piece) = &self.kept {
            return Ok(Arc::clone(piece));
        }
        let piece = self.build(number, walk)?;
        let (expected, got) = (self.totals[number], piece.len());
        if got == expected {
            Ok(Arc::new(piece))
        } else {
            Err(ErrorKind::InputChanged { expected, got }.into())
        }
    }

    pub(super) fn pieces(&self) -> usize {
        self.totals.len()
    }

    pub(super) fn len_of(&self, number: usize) -> usize {
        self.totals[number]
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn merge(&self) -> &Merge {
        &self.merge
    }
}

impl StripPiece<'_> {
    /// Frees the hash tables, if no other piece needs them.
    fn settle(&mut self) {
        if let Some(Grouped { block, index: Some(index) }) = Arc::get_mut(&mut self.block) {
            index.forget_keys();
            if block.is_owned() {
                block.forget();
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.found.total()
    }

    /// Writes results of the piece until `into` is full, beginning at result number `first`.
    pub(super) fn emit(&self, first: usize, into: &mut [u64]) {
        let rest = self.block.index.as_ref().map_or(self.block.block.values(), KeyIndex::rest);
        self.found.emit(&self.strip, rest, self.rest_width, first, into);
    }
}
