//! Gathers of a table: the kernel for the formats and the home of the rows, with or without a cache.

use backend_api::{StreamLayout, StreamView};

use super::buffers::{CheckedList, RowBuffer, alignment};
use super::cache::RowCache;
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

impl RowTable<'_> {
    /// Enqueues the kernels of a gather.
    pub(super) fn gather(&self, call: StreamCall<'_>, out: RowBuffer, list: &CheckedList) -> Result<()> {
        let (count, rows) = (list.count, self.rows as u64);
        let row_bytes = self.row_len as u64 * self.format.bytes() as u64;
        let mut aligns = [self.memory.align(row_bytes), alignment(out.address)];
        if self.cache.is_some() {
            // With shorter chunks, all lanes of a warp have a chunk of a short row.
            aligns[0] = aligns[0].min((row_bytes / 32).next_power_of_two().clamp(4, 16));
        }
        let formats = [self.format, out.format];
        let shape = RowShape::of_gather(self.row_len as u64, formats, self.scales.is_some(), aligns)
            .ok_or_else(|| self.unsupported(out.format))?;
        let mut order = None;
        if self.memory.home == RowHome::Ram {
            order = self.orders.order(call, list, rows)?;
        }
        let (order_start, order_len) = order.map_or((0, 0), |start| (start, count));
        let scales = self.scales_view()?;
        let word = StreamLayout::contiguous(4);
        let result = StreamLayout::contiguous(shape.strides[1]);
        let table = self.table_layout(shape.strides[0]);
        let layouts = [word, word, table, word, result, StreamLayout::contiguous(8)];
        let views = [
            StreamView { count: count * list.id_words, starts: &list.ids },
            StreamView { count: order_len, starts: &[order_start] },
            StreamView { count: rows * shape.chunks, starts: &self.memory.starts },
            StreamView { count: scales.1, starts: &[scales.0] },
            StreamView { count: count * shape.chunks, starts: &[out.address] },
            StreamView { count: list.status_len, starts: &list.status },
        ];
        let [from, to] = shape.formats;
        if let (Some(cache), RowKernel::Gather(words)) = (&self.cache, shape.kernel) {
            let values = [count, rows, shape.chunks, cache.sets, from, to, list.id_words];
            let kernel = (words, shape.strides[0]);
            return self.gather_cached(call, cache, kernel, (&layouts, &views, &values));
        }
        let groups = match self.memory.home {
            RowHome::Ram => shape.groups(count).min(order::GROUPS_OF_RAM),
            _ => shape.groups(count),
        };
        let values = &[count, rows, shape.chunks, shape.shift(), from, to, list.id_words];
        call.launch(&RowLaunch { kernel: shape.kernel, groups, layouts: &layouts, views: &views, values })?;
        Ok(())
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
        let formats = [self.format, out.format];
        let word = StreamLayout::contiguous(4);
        let mut first = 0;
        while first < list.count {
            let count = reads.piece_rows().min(list.count - first);
            let piece = CheckedList { count, ids: [list.ids[0] + 4 * first * list.id_words], ..*list };
            let staged = reads.read(call, &piece, self.status_address.is_some())?;
            let to = out.address + first * self.row_len as u64 * out.format.bytes() as u64;
            let aligns = [alignment(staged.rows | reads.row_bytes), alignment(to)];
            let shape = RowShape::of_gather(self.row_len as u64, formats, self.scales.is_some(), aligns)
                .ok_or_else(|| self.unsupported(out.format))?;
            let [table, result] = shape.strides.map(StreamLayout::contiguous);
            let [from, into] = shape.formats;
            // The stream overwrites the staged rows only after this kernel.
            call.launch(&RowLaunch {
                kernel: shape.kernel,
                groups: shape.groups(count),
                layouts: &[word, word, table, word, result, StreamLayout::contiguous(8)],
                views: &[
                    StreamView { count: 0, starts: &[0] },
                    StreamView { count: 0, starts: &[0] },
                    StreamView { count: count * shape.chunks, starts: &[staged.rows] },
                    StreamView { count: self.scales.as_ref().map_or(0, |_| count), starts: &[staged.scales] },
                    StreamView { count: count * shape.chunks, starts: &[to] },
                    StreamView { count: 0, starts: &[0] },
                ],
                values: &[count, count, shape.chunks, shape.shift(), from, into, 0],
            })?;
            first += count;
        }
        Ok(())
    }

    /// Enqueues the kernel that reads through the cache, in chunks of words: of the table and of the result,
    /// and the bytes of a chunk of the table.
    fn gather_cached(
        &self,
        call: StreamCall<'_>,
        cache: &RowCache,
        (words, chunk): ([u8; 2], u64),
        (layouts, views, values): (&[StreamLayout; 6], &[StreamView<'_>; 6], &[u64; 7]),
    ) -> Result<()> {
        let (word, count) = (StreamLayout::contiguous(4), values[0]);
        let of_cache = cache.views(chunk);
        let of_cache = of_cache.each_ref().map(|(count, start)| StreamView { count: *count, starts: start });
        let cached = StreamLayout::contiguous(chunk);
        call.launch(&RowLaunch {
            kernel: RowKernel::Cached(words),
            groups: count.div_ceil(WARPS).min(CACHED_GROUPS),
            layouts: &[&layouts[..], &[word, word, word, cached, StreamLayout::contiguous(8)]].concat(),
            views: &[&views[..], &of_cache].concat(),
            values,
        })?;
        cache.age(call, count)?;
        Ok(())
    }
}
