//! Merge of two adjacent sorted pieces: the shorter piece is in RAM, the longer one passes through a buffer.
//!
//! The merge writes its result from the start of the shorter piece on. The gap between written and unread
//! elements is therefore always as long as the elements in RAM. If a device fails, the elements in RAM are
//! written into the gap, so no element is lost.

use std::mem::take;

use super::rows::RowSorting;
use crate::base::error::Result;
use crate::ops::sort::keys::SortKey;
use crate::ops::view::StoreMut;

/// Merges a sorted range with the range that begins at `middle`. The shorter range must fit into a piece.
pub(super) fn merge<T: SortKey, S: StoreMut<Element = T>>(
    sorting: &mut RowSorting<'_, T, S>,
    start: usize,
    middle: usize,
    end: usize,
) -> Result<()> {
    let (mut piece, mut beside) = (take(&mut sorting.piece.keys), take(&mut sorting.beside.keys));
    let is_backward = end - middle < middle - start;
    let (held, half) = ((middle - start).min(end - middle), beside.len() / 2);
    let (streamed, merged) = beside.split_at_mut(half);
    let mut merging = Merging {
        sorting,
        ends: if is_backward { Some(end) } else { None },
        start,
        len: end - start,
        held: &mut piece[..held],
        taken: 0,
        streamed,
        at: 0,
        filled: 0,
        next: held,
        merged,
        ready: 0,
        written: 0,
    };
    let done = merging.hold().and_then(|()| {
        let merged = merging.run();
        merged.and(merging.put_back())
    });
    (sorting.piece.keys, sorting.beside.keys) = (piece, beside);
    done
}

/// A merge in progress. Positions count from the first element that is written. If the second range is held
/// in RAM, they count backwards from the end.
struct Merging<'a, 's, T: SortKey, S> {
    sorting: &'a RowSorting<'s, T, S>,
    /// The end of both ranges, if positions count backwards.
    ends: Option<usize>,
    start: usize,
    len: usize,
    /// The shorter range, held in RAM, and the number of its merged elements.
    held: &'a mut [T],
    taken: usize,
    /// A part of the longer range in RAM, whose elements before `at` are merged; and the next part's
    /// position.
    streamed: &'a mut [T],
    at: usize,
    filled: usize,
    next: usize,
    /// Merged elements that are not written yet, and the number of written elements.
    merged: &'a mut [T],
    ready: usize,
    written: usize,
}

impl<T: SortKey, S: StoreMut<Element = T>> Merging<'_, '_, T, S> {
    fn hold(&mut self) -> Result<()> {
        let held = take(&mut self.held);
        let done = self.read(0, held);
        self.held = held;
        done
    }

    fn read(&self, place: usize, into: &mut [T]) -> Result<()> {
        let Some(end) = self.ends else { return self.sorting.read_keys(self.start + place, into) };
        self.sorting.read_keys(end - place - into.len(), into)?;
        into.reverse();
        Ok(())
    }

    /// Writes elements that exist only in RAM. Afterwards the slice is in an unspecified order.
    fn write(&self, place: usize, from: &mut [T]) -> Result<()> {
        let Some(end) = self.ends else { return self.sorting.write_keys(self.start + place, from) };
        from.reverse();
        self.sorting.write_keys(end - place - from.len(), from)
    }

    /// Merges until one range is at its end.
    fn run(&mut self) -> Result<()> {
        while self.taken < self.held.len() {
            if self.at == self.filled {
                let len = self.streamed.len().min(self.len - self.next);
                if len == 0 {
                    break;
                }
                self.sorting.report(len)?;
                let streamed = take(&mut self.streamed);
                let done = self.read(self.next, &mut streamed[..len]);
                self.streamed = streamed;
                done?;
                (self.at, self.filled, self.next) = (0, len, self.next + len);
            }
            if self.ready == self.merged.len() {
                self.flush()?;
            }
            self.step();
        }
        Ok(())
    }

    /// Merges elements until an input buffer may be empty, or the output buffer full.
    fn step(&mut self) {
        let backward = if self.ends.is_some() { u64::MAX } else { 0 };
        let (held, streamed) = (&self.held[self.taken..], &self.streamed[self.at..self.filled]);
        let merged = &mut self.merged[self.ready..];
        let len = held.len().min(streamed.len()).min(merged.len());
        let key = |element: T| self.sorting.key(element) ^ backward;
        let (mut one, mut two) = (0, 0);
        for to in &mut merged[..len] {
            let (first, second) = (held[one], streamed[two]);
            let is_second = key(second) < key(first);
            *to = if is_second { second } else { first };
            (one, two) = (one + usize::from(!is_second), two + usize::from(is_second));
        }
        (self.taken, self.at, self.ready) = (self.taken + one, self.at + two, self.ready + len);
    }

    fn flush(&mut self) -> Result<()> {
        let (merged, place) = (take(&mut self.merged), self.written);
        let done = self.write(place, &mut merged[..self.ready]);
        self.merged = merged;
        (self.written, self.ready) = (place + self.ready, 0);
        done
    }

    /// Writes all elements that exist only in RAM to the store, also elements that are not merged. Unless a
    /// device has failed, only one of the two ranges has such elements.
    fn put_back(&mut self) -> Result<()> {
        let merged = self.flush();
        let (held, streamed) = (take(&mut self.held), take(&mut self.streamed));
        let held = &mut held[self.taken..];
        let streamed = &mut streamed[self.at..self.filled];
        let held_written = self.write(self.written, held);
        let streamed_written = self.write(self.written + held.len(), streamed);
        debug_assert_eq!(self.written + held.len() + streamed.len(), self.next);
        merged.and(held_written).and(streamed_written)
    }
}
