//! Gathers of a table: the kernel for the formats and the home of the rows, with or without a cache.

use super::buffers::{CheckedList, RowBuffer, RowExtent, RowView, alignment};
use super::cache::RowCache;
use super::formats::RowFormat;
use super::host_reads::HostReads;
use super::kernels::BLOCK;
use super::launches::{RowKernel, RowLaunch, RowShape, StreamCall};
use super::memory::RowHome;
use super::order;
use super::table::RowTable;
use crate::base::error::Result;

const WARPS: u64 = BLOCK as u64 / 32;
/// Most groups of a kernel that reads through a cache.
const CACHED_GROUPS: u64 = 132;

/// The rows that a launch reads: all of a table, or staged ones.
struct GatherSource<'a> {
    table: RowView<'a>,
    /// Number of the first row's first chunk in the view.
    first: u64,
    rows: u64,
    scales: RowExtent,
}

impl RowTable<'_> {
    /// Enqueues the kernels of a gather. An empty `out` discards the rows, and only the cache keeps some.
    pub(super) fn gather(
        &self,
        call: StreamCall<'_>,
        list: &CheckedList,
        out: RowExtent,
        to: RowFormat,
    ) -> Result<()> {
        let (count, rows) = (list.count, self.rows as u64);
        let row_bytes = self.row_len as u64 * self.format.bytes() as u64;
        let mut aligns = [self.memory.align(row_bytes), alignment(out.start[0])];
        if self.cache.is_some() {
            // With shorter chunks, all lanes of a warp have a chunk of a short row.
            aligns[0] = aligns[0].min((row_bytes / 32).next_power_of_two().clamp(4, 16));
        }
        let shape = self.gather_shape(to, aligns)?;
        let mut order = RowExtent::default();
        if self.memory.home == RowHome::Ram {
            order = self.orders.order(call, list, rows)?;
        }
        let (table, first) = self.table_view(&shape);
        let source = GatherSource { table, first, rows, scales: self.scales_extent()? };
        let out = RowExtent { count: out.count * shape.chunks, ..out };
        if let (Some(cache), RowKernel::Gather(words)) = (&self.cache, shape.kernel) {
            return gather_cached(call, cache, words, &shape, (list, &order, &source, &out));
        }
        if out.count == 0 {
            return Ok(());
        }
        let mut groups = shape.groups(count);
        if self.memory.home == RowHome::Ram {
            groups = groups.min(order::GROUPS_OF_RAM);
        }
        let values = &values(list, &source, &shape, shape.shift());
        let views = &views(list, &order, &source, out.of(shape.strides[1]));
        call.launch(&RowLaunch { kernel: shape.kernel, groups, views, values })
    }

    /// Enqueues a gather of rows in storage: for each piece of the list, threads of the host read the rows to
    /// page-locked memory, and a kernel converts them.
    pub(super) fn gather_stored(
        &self,
        call: StreamCall<'_>,
        reads: &HostReads,
        out: RowBuffer,
        list: &CheckedList,
    ) -> Result<()> {
        let mut first = 0;
        while first < list.count {
            let count = reads.piece_rows().min(list.count - first);
            let staged = reads.read(call, &list.part(first, count), self.status_address.is_some())?;
            let to = out.address + first * self.row_len as u64 * out.format.bytes() as u64;
            let aligns = [alignment(staged.rows | reads.row_bytes), alignment(to)];
            let shape = self.gather_shape(out.format, aligns)?;
            let scales = RowExtent::new(self.scales.as_ref().map_or(0, |_| count), staged.scales);
            let rows = RowExtent::new(count * shape.chunks, staged.rows);
            let source = GatherSource { table: rows.of(shape.strides[0]), first: 0, rows: count, scales };
            // The result's row `i` is the staged row `i`. The stream overwrites the staged rows only after
            // this kernel.
            let list = &CheckedList { count, ..CheckedList::default() };
            let out = RowExtent::new(count * shape.chunks, to);
            call.launch(&RowLaunch {
                kernel: shape.kernel,
                groups: shape.groups(count),
                views: &views(list, &RowExtent::default(), &source, out.of(shape.strides[1])),
                values: &values(list, &source, &shape, shape.shift()),
            })?;
            first += count;
        }
        Ok(())
    }

    fn gather_shape(&self, to: RowFormat, aligns: [u64; 2]) -> Result<RowShape> {
        RowShape::of_gather(self.row_len as u64, [self.format, to], self.scales.is_some(), aligns)
            .ok_or_else(|| self.unsupported(to))
    }
}

/// Returns the views that all kernels of gathers have.
fn views<'a>(
    list: &'a CheckedList,
    order: &'a RowExtent,
    source: &'a GatherSource<'_>,
    out: RowView<'a>,
) -> [RowView<'a>; 6] {
    [list.ids.of(4), order.of(4), source.table, source.scales.of(4), out, list.status.of(8)]
}

/// Returns the scalars that all kernels of gathers have; `split` divides the work.
fn values(list: &CheckedList, source: &GatherSource<'_>, shape: &RowShape, split: u64) -> [u64; 8] {
    let [from, to] = shape.formats;
    [list.count, source.rows, shape.chunks, source.first, split, from, to, list.id_words]
}

/// Enqueues the kernel that reads through the cache, in chunks of words: of the table and of the result.
fn gather_cached(
    call: StreamCall<'_>,
    cache: &RowCache,
    words: [u8; 2],
    shape: &RowShape,
    (list, order, source, out): (&CheckedList, &RowExtent, &GatherSource<'_>, &RowExtent),
) -> Result<()> {
    let [tags, uses, reads, rows, counters] = cache.extents(shape.strides[0]);
    let of_cache = [tags.of(4), uses.of(4), reads.of(4), rows.of(shape.strides[0]), counters.of(8)];
    let of_gather = views(list, order, source, out.of(shape.strides[1]));
    call.launch(&RowLaunch {
        kernel: RowKernel::Cached(words),
        groups: list.count.div_ceil(WARPS).min(CACHED_GROUPS),
        views: &[&of_gather[..], &of_cache].concat(),
        values: &values(list, source, shape, cache.sets),
    })?;
    cache.age(call, list.count)
}
