//! Kernels compiled to Rust functions for the host (native kernels), and their access to a launch's memory.

mod interpreted;

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use super::interpret::{from_bits, to_bits};
use super::{Report, TimeLimit, f16_to_f32, f32_to_f16};
use crate::expr::{Geometry, Number};
use crate::racy;

/// A native kernel: the Rust function of a kernel for the host, for
/// [`VerifiedKernel::with_host`](super::VerifiedKernel::with_host). It runs a range of a launch's items
/// (threads) with the same effects as the kernel's body, and reports failed items.
///
/// ```
/// use backend_api::kernel::{HostForm, HostItems, Report};
/// /// `x[i] += index`, of numbers of 32 bits.
/// fn add_indices(items: &HostItems<'_>) -> Report {
///     for item in items.items() {
///         let old: u32 = items.view(0).load(item, 0).unwrap_or(0);
///         items.view(0).store(item, 0, old.wrapping_add(items.index(item) as u32));
///     }
///     Report::default()
/// }
/// let form: HostForm = add_indices;
/// ```
pub type HostForm = fn(&HostItems<'_>) -> Report;

/// The argument of a [native kernel](HostForm): a range of a launch's items (threads), and the launch's
/// arguments. A view's [`Access`](super::Access) limits the kernel: `Write` to the elements of these items,
/// `Read` to reads, `Append` to writes; `Atomic` allows all accesses. If the kernel has groups, the items
/// form whole groups. Other threads and queues may use the memory at the same time, by the rules of [`racy`].
///
/// ```
/// use backend_api::expr::Geometry;
/// use backend_api::kernel::{Access, Body, HostItems, Interpreter, VerifiedKernel, Memory, Type, ViewDecl};
/// use std::ptr::NonNull;
/// fn see(items: &HostItems<'_>) -> (u64, u64, u64, usize, Option<u64>) {
///     (items.items().end, items.index(3), items.param(0), items.table().len(), items.budget())
/// }
/// let fields = vec![(0, Memory::Value(Type::U8))];
/// let views = vec![ViewDecl { access: Access::Write { tile: 1 }, fields }];
/// let kernel = VerifiedKernel::new(Body { views, params: vec![Type::U8], ..Body::default() })?;
/// let launch = Interpreter { params: &[9], ..Interpreter::new(&kernel, 4, Geometry::plain(100)) };
/// let mut bytes = [1_u8, 2, 3, 4];
/// let bases = [NonNull::from(&mut bytes).cast()];
/// // SAFETY: there are four elements of a byte each.
/// let items = unsafe { HostItems::new(&launch, 2..4, [(&bases[..], 4, 1, 4)].into_iter()) };
/// assert_eq!(see(&items), (4, 103, 9, 0, None));
/// // Element 1 belongs to another item (thread).
/// assert!(items.view(0).store(2, 0, 7_u8) && !items.view(0).store(1, 0, 7_u8));
/// assert_eq!(bytes, [1, 2, 7, 4]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct HostItems<'a> {
    items: Range<u64>,
    launched: u64,
    geometry: Geometry,
    params: &'a [u64],
    table: &'a [u8],
    budget: Option<u64>,
    limit: Option<&'a TimeLimit>,
    private_heap_bytes: u64,
    views: Vec<HostView<'a>>,
}

/// A [native kernel](HostForm)'s access to a view (an array argument) of its launch.
///
/// ```
/// use backend_api::kernel::HostView;
/// fn read_and_write(view: &HostView<'_>) -> bool {
///     let (half, byte): (Option<f32>, Option<u8>) = (view.load_half(2, 4), view.load(2, 0));
///     view.store(2, 0, byte.unwrap_or(1));
///     view.count() > 0 && half.is_some_and(|half| view.store_half(2, 4, half * 2.0))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct HostView<'a> {
    bases: &'a [NonNull<u8>],
    page_len: u64,
    stride: u64,
    count: u64,
    /// Ranges of the elements that the items may read, and may write.
    readable: Range<u64>,
    writable: Range<u64>,
    is_atomic: bool,
    memory: PhantomData<&'a u8>,
}

impl<'a> HostItems<'a> {
    /// Returns the range of the numbers of the items (threads). If the kernel has groups, the range begins at
    /// a multiple of the group length, and excludes items that only complete the last group.
    #[must_use]
    pub fn items(&self) -> Range<u64> {
        self.items.clone()
    }

    /// Returns the number of all items (threads) of the launch.
    #[must_use]
    pub fn launched(&self) -> u64 {
        self.launched
    }

    /// Returns the element index of an item (thread): see [`Geometry`](crate::expr::Geometry).
    #[must_use]
    pub fn index(&self, item: u64) -> u64 {
        self.geometry.index(item)
    }

    /// Splits the range of items (threads) into ranges with consecutive element indices. Returns each range
    /// with the element index of its first item.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, u64)> + use<> {
        let (geometry, mut rest) = (self.geometry, self.items.clone());
        std::iter::from_fn(move || {
            let within = geometry.first.wrapping_add(rest.start) % geometry.page_len;
            let end = rest.end.min(rest.start.saturating_add(geometry.page_len - within));
            let run = std::mem::replace(&mut rest.start, end)..end;
            (!run.is_empty()).then(|| (run.clone(), geometry.index(run.start)))
        })
    }

    /// Returns the value of the kernel's parameter `number` as 64 bits; see [`Type`](super::Type).
    ///
    /// # Panics
    /// If the launch has no parameter with this index.
    #[must_use]
    pub fn param(&self, number: usize) -> u64 {
        self.params[number]
    }

    /// Returns the contents of the kernel's constant tables; see
    /// [`Body::table_offset`](super::Body::table_offset).
    #[must_use]
    pub fn table(&self) -> &'a [u8] {
        self.table
    }

    /// Returns the maximum number of loop iterations (back edges) of an item (thread); `None` for no limit.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Returns the time limit of an item (thread). A native kernel with loops of unknown length must read the
    /// clock in these loops. If an item exceeds the limit, the kernel must end all of its items.
    #[must_use]
    pub fn time_limit(&self) -> Option<&'a TimeLimit> {
        self.limit
    }

    /// Returns the size of the private heap of an item (thread), in bytes.
    #[must_use]
    pub fn private_heap_bytes(&self) -> u64 {
        self.private_heap_bytes
    }

    /// Returns the launch's view with the index `number`.
    ///
    /// # Panics
    /// If the launch has no view with this index.
    #[must_use]
    pub fn view(&self, number: usize) -> &HostView<'a> {
        &self.views[number]
    }
}

impl HostView<'_> {
    /// Returns the number of the view's elements.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes from one element to the next.
    #[must_use]
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Returns the address of a field of an existing element.
    #[inline(always)]
    fn place(&self, element: u64, offset: u32) -> *mut u8 {
        let (base, before) = match self.bases {
            [base] => (base, element),
            bases => {
                let page = element / self.page_len;
                let number = bases.len() as u64;
                let before = page / number * self.page_len + element % self.page_len;
                (&bases[(page % number) as usize], before)
            }
        };
        base.as_ptr().wrapping_add((before * self.stride) as usize + offset as usize)
    }

    #[inline(always)]
    fn load_bits(&self, element: u64, offset: u32, bytes: u32) -> Option<u64> {
        let inside = u64::from(offset) + u64::from(bytes) <= self.stride;
        if !inside || !self.readable.contains(&element) {
            return None;
        }
        let place = self.place(element, offset);
        if self.is_atomic && place.addr().is_multiple_of(bytes as usize) {
            // SAFETY: as below, and the place is aligned.
            return Some(unsafe { racy::load(place, bytes) });
        }
        let mut field = [0; 8];
        let field = &mut field[..bytes as usize];
        // SAFETY: the element exists, and contains the field; the creator of these items guarantees its
        // memory.
        unsafe { racy::read(place, field) };
        Some(to_bits(field))
    }

    #[inline(always)]
    fn store_bits(&self, element: u64, offset: u32, bytes: u32, bits: u64) -> bool {
        let inside = u64::from(offset) + u64::from(bytes) <= self.stride;
        if !inside || !self.writable.contains(&element) {
            return false;
        }
        let place = self.place(element, offset);
        if self.is_atomic && place.addr().is_multiple_of(bytes as usize) {
            // SAFETY: as in `load_bits`; the view is writable.
            unsafe { racy::store(place, bytes, bits) };
            return true;
        }
        let mut field = [0; 8];
        let field = &mut field[..bytes as usize];
        from_bits(field, bits.to_le_bytes());
        // SAFETY: as in `load_bits`; the view is writable.
        unsafe { racy::write(place, field) };
        true
    }

    /// Fills `into` with elements of `bytes` bytes each, beginning at element `first`. Returns false if an
    /// element does not exist, has another size, or is not readable. The elements of other items (threads)
    /// are not readable in a view with [`Access::Write`](super::Access), and no element is with `Append`.
    #[inline]
    #[must_use]
    pub fn read(&self, first: u64, bytes: usize, into: &mut [u8]) -> bool {
        let Some(run) = self.run_within(first, bytes, into.len(), &self.readable) else { return false };
        if let Some(place) = self.word_at(first, bytes, into.len()) {
            // SAFETY: as below, and the place is aligned.
            from_bits(into, unsafe { racy::load(place, bytes as u32) }.to_le_bytes());
            return true;
        }
        for (element, into) in (first..).step_by(run).zip(into.chunks_mut(run * bytes)) {
            // SAFETY: the elements exist, are contiguous and have this length; the creator of these items
            // guarantees their memory.
            unsafe { racy::read(self.place(element, 0), into) };
        }
        true
    }

    /// Writes the elements in `from`, of `bytes` bytes each, beginning at element `first`. Returns false, and
    /// writes nothing, if the kernel may not write one of the elements.
    #[inline]
    pub fn write(&self, first: u64, bytes: usize, from: &[u8]) -> bool {
        let Some(run) = self.run_within(first, bytes, from.len(), &self.writable) else { return false };
        if let Some(place) = self.word_at(first, bytes, from.len()) {
            // SAFETY: as in `read`, and the view is writable.
            unsafe { racy::store(place, bytes as u32, to_bits(from)) };
            return true;
        }
        for (element, from) in (first..).step_by(run).zip(from.chunks(run * bytes)) {
            // SAFETY: as in `read`; the view is writable.
            unsafe { racy::write(self.place(element, 0), from) };
        }
        true
    }

    /// Returns the address of an element that is one aligned word, if the view allows atomics.
    #[inline(always)]
    fn word_at(&self, element: u64, bytes: usize, all: usize) -> Option<*mut u8> {
        if !self.is_atomic || bytes != all || !matches!(bytes, 1 | 2 | 4 | 8) {
            return None;
        }
        Some(self.place(element, 0)).filter(|place| place.addr().is_multiple_of(bytes))
    }

    /// Returns the number of elements from `first` on that one copy can cover: all `all / bytes` elements, or
    /// 1 if they are not contiguous. Returns `None` if one of them is outside of `within`.
    #[inline]
    fn run_within(&self, first: u64, bytes: usize, all: usize, within: &Range<u64>) -> Option<usize> {
        let count = all.checked_div(bytes)?;
        let is_inside = count == 0
            || (within.start <= first
                && within.end.checked_sub(first).is_some_and(|most| most >= count as u64));
        if !is_inside || count * bytes != all || bytes as u64 > self.stride {
            return None;
        }
        let follow = self.bases.len() == 1 && bytes as u64 == self.stride;
        Some(if follow { count.max(1) } else { 1 })
    }

    /// Reads a number at `offset` bytes in an element; `element` counts from the start of the whole view.
    /// Returns `None` if the number would end beyond the element, or if [`read`](Self::read) would return
    /// false.
    #[inline(always)]
    #[must_use]
    pub fn load<T: Number>(&self, element: u64, offset: u32) -> Option<T> {
        self.load_bits(element, offset, T::NUMBER_TYPE.bytes()).map(T::from_value)
    }

    /// Writes a number at `offset` bytes in an element. Returns false, and writes nothing, if the number
    /// would end beyond the element, or if [`write`](Self::write) would return false.
    #[inline(always)]
    pub fn store<T: Number>(&self, element: u64, offset: u32, value: T) -> bool {
        self.store_bits(element, offset, T::NUMBER_TYPE.bytes(), value.to_value())
    }

    /// Atomically changes a number of 32 or 64 bits in an element of a view with the access `Atomic`. Returns
    /// the old number, or `None` if the element does not exist, or if the number is misaligned or ends beyond
    /// the element. This method may call `change` more than once.
    #[inline(always)]
    pub fn change<T: Number>(&self, element: u64, offset: u32, mut change: impl FnMut(T) -> T) -> Option<T> {
        let bytes = T::NUMBER_TYPE.bytes();
        let inside = u64::from(offset) + u64::from(bytes) <= self.stride && element < self.count;
        if !(inside && self.is_atomic && bytes >= 4) {
            return None;
        }
        let place = self.place(element, offset);
        if !place.addr().is_multiple_of(bytes as usize) {
            return None;
        }
        // SAFETY: the element exists, and the number is inside of it and aligned; the creator of these
        // items guarantees the memory. All items of the launch change it in this way, and load it as
        // `load_bits` does.
        let old = unsafe { racy::change(place, bytes, |old| change(T::from_value(old)).to_value()) };
        Some(T::from_value(old))
    }

    /// Reads a half-precision float as an `f32`, like [`load`](Self::load).
    #[inline(always)]
    #[must_use]
    pub fn load_half(&self, element: u64, offset: u32) -> Option<f32> {
        self.load_bits(element, offset, 2).map(|bits| f16_to_f32(bits as u16))
    }

    /// Writes an `f32` as a half-precision float, like [`store`](Self::store).
    #[inline(always)]
    pub fn store_half(&self, element: u64, offset: u32, value: f32) -> bool {
        self.store_bits(element, offset, 2, f32_to_f16(value).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Access, Body, Interpreter, Memory, Type, VerifiedKernel, ViewDecl};

    #[test]
    fn items_reach_their_own_tiles_and_read_their_values() {
        let decl = |access| ViewDecl { access, fields: vec![(0, Memory::Value(Type::U8))] };
        let views = vec![decl(Access::Read), decl(Access::Write { tile: 2 })];
        let kernel = VerifiedKernel::new(Body { views, ..Body::default() }).unwrap();
        let (mut input, mut output) = ([1_u8, 2, 3, 4, 5, 6], [0_u8; 7]);
        let bases = [[NonNull::from(&mut input).cast::<u8>()], [NonNull::from(&mut output).cast::<u8>()]];
        let view = |number: usize, stride, count| (&bases[number][..], 1 << 63, stride, count);
        let launch = Interpreter::new(&kernel, 4, Geometry::plain(0));
        // SAFETY: both arrays live as long as the items, and have at least these numbers of elements.
        let items = unsafe { HostItems::new(&launch, 1..3, [view(0, 2, 3), view(1, 1, 7)].into_iter()) };
        let (read, own) = (items.view(0), items.view(1));
        assert_eq!(
            (read.load::<u8>(2, 1), read.load::<u16>(0, 1), read.load::<u8>(3, 0)),
            (Some(6), None, None)
        );
        assert!(!read.store(0, 0, 9_u8), "it is not written to");
        let stored: Vec<bool> = (0..7).map(|element| own.store(element, 0, 8_u8)).collect();
        assert_eq!(stored, [false, false, true, true, true, true, false]);
        assert_eq!((own.load::<u8>(1, 0), own.load::<u8>(2, 0)), (None, Some(8)));
        let (mut whole, mut halves) = ([0_u8; 4], [0_u8; 2]);
        assert!(read.read(1, 2, &mut whole) && read.read(1, 1, &mut halves));
        assert_eq!((whole, halves), ([3, 4, 5, 6], [3, 5]));
        assert!(!read.read(2, 2, &mut whole) && !read.read(0, 3, &mut [0; 3]) && !read.read(4, 1, &mut [0]));
        assert!(own.write(2, 1, &[8; 4]) && !own.write(3, 1, &[9; 4]) && !own.write(1, 1, &[9; 4]));
        assert_eq!(output, [0, 0, 8, 8, 8, 8, 0]);
    }

    #[test]
    fn runs_of_items_have_consecutive_indices() {
        let kernel = VerifiedKernel::new(Body::default()).unwrap();
        let geometry = Geometry { first: 4, page_len: 5, channel: 1, channels: 3 };
        let launch = Interpreter::new(&kernel, 20, geometry);
        // SAFETY: the kernel has no views.
        let items = unsafe { HostItems::new(&launch, 0..8, std::iter::empty()) };
        let runs: Vec<_> = items.runs().collect();
        assert_eq!(runs, [(0..1, 9), (1..6, 20), (6..8, 35)]);
        let indices: Vec<u64> =
            runs.into_iter().flat_map(|(run, first)| run.zip(first..)).map(|r| r.1).collect();
        assert!(indices.into_iter().eq((0..8).map(|item| items.index(item))));
    }
}
