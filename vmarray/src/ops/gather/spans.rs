//! Reads of listed rows from files. A system call costs as much as the copy of some KiB, and random reads of
//! a drive cost more than sequential ones. So threads sort the rows by place, and read neighbouring rows of a
//! page together.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_api::Device;
use parking_lot::Mutex;

use crate::array::VirtualArray;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::{Result, expect_len};
use crate::base::racy_slice::RacySlice;
use crate::base::scoped_threads::{self, CORES, works_alone};
use crate::engine::pager::{PartFound, PartReads, Stream};

/// The longest gap between rows that are read together: a thread copies it in the time of a system call.
const GAP_BYTES: usize = 8 << 10;
/// The longest read of several rows.
const SPAN_BYTES: usize = 64 << 10;
/// The bytes and reads that a thread collects before it reads them; the bytes fit the caches of a core.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_READS: usize = 64;
/// Longer rows are read one at a time.
const ROW_BYTES_MAX: usize = 16 << 10;
/// A smaller granularity of a device's reads than this is worth direct reads.
const UNIT_BYTES: usize = 4 << 10;
/// The rows that a thread sorts at once, and the least number of rows for a thread.
const BUCKET_ROWS: usize = 256;
const ROWS_PER_WORKER: usize = 2 * BUCKET_ROWS;
const BUCKETS_MAX: usize = 1 << 10;
/// The rows whose places are in memory at the same time.
const ROWS_AT_ONCE: usize = 1 << 20;
/// The bytes of rows for a thread that reads one row at a time.
const BYTES_PER_WORKER: usize = 256 << 10;

/// A row of the list.
#[derive(Clone, Copy, Debug, Default)]
struct ListedRow {
    /// The index of its first element.
    start: usize,
    /// Its number in the list.
    number: usize,
}

/// Neighbouring rows of a page that one read copies.
#[derive(Debug)]
struct Span {
    page: u64,
    /// The elements in the page.
    within: Range<usize>,
    /// The rows, in the batch.
    rows: Range<usize>,
}

/// One call, shared by its threads.
struct Call<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    row_len: usize,
    into: &'a RacySlice<'a, T>,
}

struct SpanReader<'a, T: Element, D: Device> {
    call: &'a Call<'a, T, D>,
    reads: PartReads<'a>,
    spans: Vec<Span>,
    /// Memory for the elements of all spans, one span after the other.
    elements: Vec<T>,
    /// The number of elements of all spans.
    used: usize,
    rows: Vec<ListedRow>,
    /// Rows of pages that another thread holds, that are fetched to the cache, or that end on another page.
    late: Vec<ListedRow>,
}

/// Returns true if lists of rows are read by spans: for files whose parts can be read.
pub(crate) fn is_for<T: Element, D: Device>(array: &VirtualArray<T, D>, row_len: usize) -> bool {
    let (pager, bytes) = (array.pager(), row_len.saturating_mul(size_of::<T>()));
    (1..=ROW_BYTES_MAX).contains(&bytes)
        && row_len <= array.page_len()
        && pager.has_parts_of(UNIT_BYTES)
        && pager.pool().is_none()
        && pager.channels().iter().all(|channel| channel.loads_directly())
}

/// Returns true if one read copies a row and the next one of the same page.
fn are_together<T>(own: &Range<usize>, next: &Range<usize>) -> bool {
    next.start.saturating_sub(own.end) * size_of::<T>() <= GAP_BYTES
        && (next.end - own.start) * size_of::<T>() <= SPAN_BYTES
}

/// Returns the pages of some elements, and the bytes of each read that copies elements of the page.
pub(crate) fn bytes_of<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    mut elements: Vec<usize>,
) -> Vec<(usize, u64)> {
    let page_len = array.page_len();
    elements.sort_unstable();
    let mut spans: Vec<Range<usize>> = Vec::new();
    for next in elements.into_iter().map(|element| element..element + 1) {
        match spans.last_mut() {
            Some(own) if own.start / page_len == next.start / page_len && are_together::<T>(own, &next) => {
                own.end = next.end;
            }
            _ => spans.push(next),
        }
    }
    let bytes = |span: Range<usize>| (span.start / page_len, (span.len() * size_of::<T>()) as u64);
    spans.into_iter().map(bytes).collect()
}

/// Reads rows of `row_len` elements. Their starts count from `first`, and all rows are inside of the array.
pub(super) fn read<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    first: usize,
    starts: &[usize],
    row_len: usize,
    into: &RacySlice<'_, T>,
) -> Result<()> {
    let call = Call { array, row_len, into };
    for (part, starts) in starts.chunks(ROWS_AT_ONCE).enumerate() {
        let row = |(number, start): (usize, &usize)| ListedRow {
            start: first + start,
            number: part * ROWS_AT_ONCE + number,
        };
        let (mut rows, lengths) = in_buckets(starts.iter().enumerate().map(row));
        call.read(&mut rows, &lengths)?;
    }
    Ok(())
}

/// Sorts rows into buckets of ascending places. Returns them with the lengths of the buckets.
fn in_buckets(rows: impl ExactSizeIterator<Item = ListedRow> + Clone) -> (Vec<ListedRow>, Vec<usize>) {
    let (least, greatest) = rows
        .clone()
        .fold((usize::MAX, 0), |(least, greatest), row| (row.start.min(least), row.start.max(greatest)));
    let most = (rows.len() / BUCKET_ROWS).clamp(1, BUCKETS_MAX);
    let width = greatest.saturating_sub(least) / most + 1;
    let bucket = |row: &ListedRow| (row.start - least) / width;
    let mut lengths = vec![0; most];
    rows.clone().for_each(|row| lengths[bucket(&row)] += 1);
    let mut end = 0;
    let mut next: Vec<usize> = lengths.iter().map(|length| (end, end += length).0).collect();
    let mut sorted = vec![ListedRow::default(); rows.len()];
    for row in rows {
        let place = &mut next[bucket(&row)];
        sorted[*place] = row;
        *place += 1;
    }
    (sorted, lengths)
}

impl<T: Element, D: Device> Call<'_, T, D> {
    fn read(&self, rows: &mut [ListedRow], lengths: &[usize]) -> Result<()> {
        let workers = if works_alone() { 1 } else { (rows.len() / ROWS_PER_WORKER).clamp(1, *CORES) };
        let mut rest = rows;
        let mut buckets = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (bucket, others) = rest.split_at_mut(*length);
            buckets.push(bucket);
            rest = others;
        }
        let (buckets, outcome, is_over) =
            (Mutex::new(buckets.into_iter()), Mutex::new(Ok(())), AtomicBool::new(false));
        scoped_threads::together(workers, || {
            let mut reader = SpanReader::new(self);
            let mut read = || {
                while let Some(bucket) = { buckets.lock().next() }
                    && !is_over.load(Ordering::Relaxed)
                {
                    reader.bucket(bucket)?;
                }
                reader.finish_batch()
            };
            if let Err(error) = read() {
                is_over.store(true, Ordering::Relaxed);
                *outcome.lock() = Err(error);
            }
        });
        outcome.into_inner()
    }

    fn put(&self, row: ListedRow, elements: &[T]) {
        self.into.write(row.number * self.row_len, elements);
    }
}

impl<'a, T: Element, D: Device> SpanReader<'a, T, D> {
    fn new(call: &'a Call<'a, T, D>) -> Self {
        let (reads, spans, rows) = (call.array.pager().part_reads(), Vec::new(), Vec::new());
        Self { call, reads, spans, elements: Vec::new(), used: 0, rows, late: Vec::new() }
    }

    fn bucket(&mut self, rows: &mut [ListedRow]) -> Result<()> {
        rows.sort_unstable_by_key(|row| row.start);
        let (page_len, row_len) = (self.call.array.page_len(), self.call.row_len);
        let mut rest = &*rows;
        while let [next, others @ ..] = rest {
            let page = next.start / page_len;
            let end = (page + 1) * page_len;
            let count = rest.iter().take_while(|row| row.start + row_len <= end).count();
            if count == 0 {
                self.late.push(*next);
                rest = others;
            } else {
                let (own, others) = rest.split_at(count);
                self.page(page, own);
                rest = others;
            }
            if self.spans.len() >= BATCH_READS
                || self.used * size_of::<T>() >= BATCH_BYTES
                || self.late.len() >= BUCKET_ROWS
            {
                self.finish_batch()?;
            }
        }
        Ok(())
    }

    /// Copies rows of a page in the cache, or adds them to the batch.
    fn page(&mut self, page: usize, rows: &[ListedRow]) {
        let Self { call, .. } = *self;
        let (first, row_len) = (page * call.array.page_len(), call.row_len);
        match self.reads.find(page as u64, rows.len() * row_len * size_of::<T>()) {
            PartFound::Resident(hold) => {
                let elements = bytemuck::cast_slice(hold.bytes());
                rows.iter().for_each(|row| call.put(*row, &elements[row.start - first..][..row_len]));
            }
            PartFound::Zero => {
                let zeroes = vec![T::zeroed(); row_len];
                rows.iter().for_each(|row| call.put(*row, &zeroes));
            }
            PartFound::Later => self.late.extend_from_slice(rows),
            PartFound::Absent => {
                let own = self.spans.len();
                for row in rows {
                    let within = row.start - first..row.start - first + row_len;
                    self.span(own, page as u64, within);
                    self.rows.push(*row);
                }
                self.used += self.spans[own..].iter().map(|span| span.within.len()).sum::<usize>();
            }
        }
    }

    /// Adds the next row to the last span of its page, which are the spans from `own` on, or to a new span.
    fn span(&mut self, own: usize, page: u64, within: Range<usize>) {
        let number = self.rows.len();
        if let Some(last) = self.spans[own..].last_mut()
            && are_together::<T>(&last.within, &within)
        {
            last.within.end = last.within.end.max(within.end);
            last.rows.end = number + 1;
            return;
        }
        self.spans.push(Span { page, within, rows: number..number + 1 });
    }

    /// Reads all spans of the batch, and then the late rows, for which the thread may wait.
    fn finish_batch(&mut self) -> Result<()> {
        if self.elements.len() < self.used {
            self.elements.resize(self.used, T::zeroed());
        }
        let mut rest = &mut self.elements[..];
        let mut reads = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            let (own, others) = rest.split_at_mut(span.within.len());
            reads.push((span.page, span.within.start * size_of::<T>(), bytemuck::cast_slice_mut(own)));
            rest = others;
        }
        self.reads.finish(reads)?;
        let (call, mut first) = (self.call, 0);
        for Span { page, within, rows } in self.spans.drain(..) {
            let start = page as usize * call.array.page_len() + within.start;
            let elements = &self.elements[first..first + within.len()];
            for row in &self.rows[rows] {
                call.put(*row, &elements[row.start - start..][..call.row_len]);
            }
            first += within.len();
        }
        self.rows.clear();
        self.used = 0;
        let page_len = call.array.page_len();
        for row in self.late.drain(..) {
            let (page, at) = (row.start / page_len, row.start % page_len);
            if at + call.row_len <= page_len {
                let hold = call.array.pager().hold_shared(page as u64, Stream::Ignore)?;
                call.put(row, &bytemuck::cast_slice(hold.bytes())[at..][..call.row_len]);
            } else {
                let mut elements = vec![T::zeroed(); call.row_len];
                call.array.read_range(row.start, &mut elements)?;
                call.put(row, &elements);
            }
        }
        Ok(())
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Copies rows of `row_len` adjacent elements, which begin at the elements of a list, into a slice, in
    /// the order of the list.
    ///
    /// For arrays in files, several threads sort the rows by place, and read neighbouring rows together.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(1000)?;
    /// array.write(10, &[1, 2, 3, 4])?;
    /// let mut rows = [0; 4];
    /// array.gather_rows(&[12, 10], 2, &mut rows)?;
    /// assert_eq!(rows, [3, 4, 1, 2]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside) for the first row that ends outside of the array; no element
    /// is read then. [`LengthMismatch`](ErrorKind::LengthMismatch), [`NoMemory`](ErrorKind::NoMemory),
    /// [`Device`](ErrorKind::Device).
    pub fn gather_rows(&self, starts: &[usize], row_len: usize, into: &mut [T]) -> Result<()> {
        expect_len("the slice of rows", starts.len().saturating_mul(row_len), into.len())?;
        if row_len == 0 || starts.is_empty() {
            return Ok(());
        }
        starts.iter().try_for_each(|start| self.range_at(*start, row_len).map(drop))?;
        let into = RacySlice::from(into);
        if is_for(self, row_len) {
            return read(self, 0, starts, row_len, &into);
        }
        let workers = if works_alone() { 1 } else { (into.bytes() / BYTES_PER_WORKER).clamp(1, *CORES) };
        let (per_piece, outcome) = (starts.len().div_ceil(4 * workers), Mutex::new(Ok(())));
        scoped_threads::each(workers, starts.len().div_ceil(per_piece), |piece| {
            let rows = (piece * per_piece..starts.len()).take(per_piece);
            let mut elements = vec![T::zeroed(); row_len];
            let read = rows.map(|row| {
                self.read_range(starts[row], &mut elements)?;
                into.write(row * row_len, &elements);
                Ok(())
            });
            if let Err(error) = read.collect::<Result<()>>() {
                *outcome.lock() = Err(error);
            }
        });
        outcome.into_inner()
    }
}
