//! Kernel parameters for data that items (GPU threads) share: memory of their group (thread block), elements
//! that they change by atomics, and elements that they append.

use crate::KernelType;
use crate::interpret::InterpreterArgument;
use crate::layout::{ElementMemory, Layout};
use crate::number::{KernelInteger, KernelNumber};
use crate::source::{Item, LaunchArguments};
use crate::views::{Parameter, ParameterInfo, ParameterKind, kind};
use crate::{bounds_report, group_ops, rules};
use backend_api::kernel::HostView;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

/// A number with atomic operations: `u32`, `i32`, `f32`, `u64`, `i64`, `f64`, `usize` or `isize`.
///
/// ```
/// use vmarray_kernel::{Atomic, Shared};
/// fn counted<T: Atomic>(of: &Shared<T>) -> usize {
///     of.len()
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be changed atomically",
    note = "atomics need a number of 32 or 64 bits"
)]
pub trait Atomic: KernelNumber + ElementMemory {}

macro_rules! atomic {
    ($($T:ident)*) => { $(impl Atomic for $T {})* };
}
atomic!(u32 i32 f32 u64 i64 f64 usize isize);

/// Writes an element. If the index is out of bounds, counts the access instead.
#[inline(always)]
fn put<T>(elements: &[Cell<T>], index: usize, value: T) {
    match elements.get(index) {
        Some(place) => place.set(value),
        None => bounds_report::note(index),
    }
}

/// A kernel parameter: group memory (shared memory in CUDA) of `A` elements, initially zero, for all items
/// (GPU threads) of a group. Call [`barrier`](macro@crate::kernel) between a write and another item's read.
///
/// ```
/// use vmarray_kernel::{At, Group, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel, group = 4)]
/// fn reversed(at: At<1>, part: &Group<u32, 4>, x: &mut Own<u32>) {
///     let i = at.in_group();
///     part.set(i, x.get());
///     barrier();
///     x.set(part[3 - i]);
/// }
/// let mut x = [1, 2, 3, 4, 5, 6];
/// run_on_host::<reversed>(0..6, ((), (), &mut x))?;
/// assert_eq!(x, [4, 3, 2, 1, 0, 0]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
///
/// Group memory has the atomic operations of [`Shared`], too:
///
/// ```
/// use vmarray_kernel::{At, Group, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel, group = 8)]
/// fn each_way(at: At<1>, of: &Group<u32, 8>, x: &mut Own<u32>) {
///     of.add(0, x.get());
///     of.min(1, x.get());
///     of.max(2, x.get());
///     of.and(3, x.get());
///     of.or(4, x.get());
///     of.xor(5, x.get());
///     of.exchange(6, 9);
///     of.compare_exchange(7, 0, of.len() as u32);
///     barrier();
///     x.set(of[at.in_group()]);
/// }
/// let mut x = [6, 3, 7, 0, 0, 0, 0, 0];
/// run_on_host::<each_way>(0..8, ((), (), &mut x))?;
/// assert_eq!(x, [16, 0, 7, 0, 7, 2, 9, 8]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
///
/// With two to four axes (`Group<T, A, B>` to `Group<T, A, B, C, D>`), the index is an array, such as
/// `part[[y, x]]`:
///
/// ```
/// use vmarray_kernel::{At, Group, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel, group = [2, 3])]
/// fn turned(at: At<2>, part: &Group<u32, 2, 3>, x: &mut Own<u32>) {
///     let i = at.in_group();
///     part.set([1 - i[0], 2 - i[1]], x.get());
///     barrier();
///     x.set(part[i]);
/// }
/// let mut x = [1, 2, 3, 4, 5, 6];
/// run_on_host::<turned>(0..6, ([2, 3], (), &mut x))?;
/// assert_eq!(x, [6, 5, 4, 3, 2, 1]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
pub struct Group<T, const A: usize, const B: usize = 0, const C: usize = 0, const D: usize = 0>(
    PhantomData<Cell<T>>,
);

impl<T, const A: usize, const B: usize, const C: usize, const D: usize> std::fmt::Debug
    for Group<T, A, B, C, D>
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").finish_non_exhaustive()
    }
}

/// An index into [`Group`] memory: a number, or an array with a number for each axis.
///
/// ```
/// use vmarray_kernel::GroupIndex;
/// fn is_index<const A: usize, const B: usize>(_: impl GroupIndex<A, B, 0, 0>) {}
/// is_index::<64, 0>(7_usize);
/// is_index::<8, 8>([1_usize, 7]);
/// ```
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot index this memory of a group",
    note = "use a `usize` for `Group<T, N>`, `[y, x]` for `Group<T, A, B>`, and so on for up to four axes"
)]
pub trait GroupIndex<const A: usize, const B: usize, const C: usize, const D: usize> {}
impl<const A: usize> GroupIndex<A, 0, 0, 0> for usize {}
impl<const A: usize, const B: usize> GroupIndex<A, B, 0, 0> for [usize; 2] {}
impl<const A: usize, const B: usize, const C: usize> GroupIndex<A, B, C, 0> for [usize; 3] {}
impl<const A: usize, const B: usize, const C: usize, const D: usize> GroupIndex<A, B, C, D> for [usize; 4] {}

impl<T: KernelType, const A: usize, const B: usize, const C: usize, const D: usize> Group<T, A, B, C, D> {
    /// Returns the number of elements.
    #[allow(clippy::len_without_is_empty, reason = "the type states the length")]
    #[must_use]
    pub const fn len(&self) -> usize {
        A * if B > 0 { B } else { 1 } * if C > 0 { C } else { 1 } * if D > 0 { D } else { 1 }
    }

    /// Writes `value` to the element at `index`.
    ///
    /// # Panics
    /// If the program calls the kernel's function instead of launching the kernel. The other methods also
    /// panic in this case.
    pub fn set<I: GroupIndex<A, B, C, D>>(&self, index: I, value: T) {
        let _ = (index, value);
        group_ops::never()
    }
}

/// Private memory of an item (GPU thread): `alloc::<T>(n)` in a kernel allocates `n` elements, initially
/// zero, until the end of the item. An item can allocate [`PRIVATE_HEAP_BYTES`](crate::PRIVATE_HEAP_BYTES)
/// bytes in all, unless the launch sets another size. An allocation beyond this size is empty, and counts as
/// an access out of bounds.
///
/// ```
/// use vmarray_kernel::{At, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn digits(at: At<1>, sum: &mut Own<u32>) {
///     let n = at.index() + 1;
///     let squares = alloc::<u32>(n);
///     for i in 0..n {
///         squares.set(i, (i * i) as u32);
///     }
///     let mut all = 0;
///     for i in 0..squares.len() {
///         all += squares[i];
///     }
///     sum.set(all);
/// }
/// let mut sums = [0; 4];
/// run_on_host::<digits>(0..4, ((), &mut sums))?;
/// assert_eq!(sums, [0, 1, 5, 14]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
pub struct PrivateSlice<T>(Box<[Cell<T>]>);

/// Allocates `len` zeros in the item's (GPU thread's) private heap. If the heap is too small, allocates no
/// elements, and counts an access out of bounds.
pub fn alloc<T: ElementMemory>(len: usize) -> PrivateSlice<T> {
    let bytes = (len as u64).min(u32::MAX.into()) * size_of::<T>() as u64;
    let len = if bounds_report::take_bytes(bytes) { len } else { 0 };
    PrivateSlice((0..len).map(|_| Cell::new(T::ZERO)).collect())
}

impl<T> std::fmt::Debug for PrivateSlice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrivateSlice").finish_non_exhaustive()
    }
}

impl<T: ElementMemory> PrivateSlice<T> {
    /// Returns the number of elements.
    #[allow(
        clippy::len_without_is_empty,
        reason = "kernels cannot call `is_empty`; they compare `len` with \
            zero"
    )]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes `value` to the element at `index`; if the index is out of bounds, only counts the access.
    #[inline(always)]
    pub fn set(&self, index: usize, value: T) {
        put(&self.0, index, value);
    }

    #[inline(always)]
    pub(crate) fn element(&self, index: usize) -> Option<T> {
        self.0.get(index).map(Cell::get)
    }
}

/// A kernel parameter: an array that all items (GPU threads) read by `to[i]` and write by `to.set(i, value)`.
/// If two items write the same element, each field of the element gets one of the two values. A write outside
/// of the array has no effect, and counts as an access out of bounds.
///
/// ```
/// use vmarray_kernel::{Own, Shared, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn scattered(x: &Own<u8>, place: &Own<u32>, to: &Shared<u8>) {
///     to.set(place.get() as usize, x.get());
/// }
/// let mut to = [0; 3];
/// run_on_host::<scattered>(0..3, (&[7, 8, 9], &[2, 0, 1], &mut to))?;
/// assert_eq!(to, [8, 9, 7]);
/// assert!(run_on_host::<scattered>(0..1, (&[7], &[3], &mut to)).is_err());
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
///
/// Any item can change [numbers of 32 or 64 bits](Atomic) atomically. The methods return the old value. The
/// order in which items change an element is unspecified, so sums of floats can differ in rounding.
///
/// ```
/// use vmarray_kernel::{Own, Shared, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn histogram(x: &Own<u8>, bins: &Shared<u32>) {
///     bins.add(x.get() as usize / 64, 1);
/// }
/// let mut bins = [0; 4];
/// run_on_host::<histogram>(0..5, (&[0, 255, 63, 70, 200], &mut bins))?;
/// assert_eq!(bins, [2, 1, 0, 2]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
///
/// All operations:
///
/// ```
/// use vmarray_kernel::{Own, Shared, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn each_way(x: &Own<u32>, of: &Shared<u32>) {
///     of.add(0, x.get());
///     of.min(1, x.get());
///     of.max(2, x.get());
///     of.and(3, x.get());
///     of.or(4, x.get());
///     of.xor(5, x.get());
///     of.exchange(6, 9);
///     of.compare_exchange(7, 0, of.len() as u32);
/// }
/// let mut of = [0, 100, 0, 255, 0, 0, 0, 0];
/// run_on_host::<each_way>(0..3, (&[6, 3, 7], &mut of))?;
/// assert_eq!(of, [16, 3, 7, 2, 7, 2, 9, 8]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[repr(transparent)]
pub struct Shared<T: 'static>(SharedElements<'static, T>);

/// The memory of a [`Shared`] parameter on the host.
#[doc(hidden)]
pub enum SharedElements<'s, T> {
    /// Memory of the program, for a kernel that the program runs on the host.
    Slice(&'s [Cell<T>]),
    /// Memory of a device that computes on the CPU.
    View(HostView<'s>),
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl<T: ElementMemory> Shared<T> {
    /// Returns the number of elements.
    #[allow(
        clippy::len_without_is_empty,
        reason = "kernels cannot call `is_empty`; they compare `len` with \
            zero"
    )]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            SharedElements::Slice(cells) => cells.len(),
            SharedElements::View(view) => view.count() as usize,
        }
    }

    #[inline(always)]
    pub(crate) fn element(&self, index: usize) -> Option<T> {
        match &self.0 {
            SharedElements::Slice(cells) => cells.get(index).map(Cell::get),
            SharedElements::View(view) => {
                let mut value = T::zeroed();
                view.read(index as u64, size_of::<T>(), bytemuck::bytes_of_mut(&mut value)).then_some(value)
            }
        }
    }

    /// Writes `value` to the element at `index`; if the index is out of bounds, only counts the access.
    #[inline(always)]
    pub fn set(&self, index: usize, value: T) {
        match &self.0 {
            SharedElements::Slice(cells) => put(cells, index, value),
            SharedElements::View(view) => {
                if !view.write(index as u64, size_of::<T>(), bytemuck::bytes_of(&value)) {
                    bounds_report::note(index);
                }
            }
        }
    }
}

impl<T: Atomic> Shared<T> {
    /// Reads the element at `index`, which another item (GPU thread) [releases](Self::release). If `acquire`
    /// returns the released value, this item then sees all earlier writes of the other item. If the other
    /// item had passed a `barrier()`, this item also sees the writes of the other item's group before the
    /// barrier.
    ///
    /// ```
    /// use vmarray_kernel::{At, Own, Shared, kernel, run_on_host};
    ///
    /// #[kernel(crate = vmarray_kernel)]
    /// fn handed_on(at: At<1>, values: &Shared<u64>, is_there: &Shared<u32>, out: &mut Own<u64>) {
    ///     if at.index() == 0 {
    ///         values.set(0, 77);
    ///         is_there.release(0, 1);
    ///     }
    ///     out.set(if is_there.acquire(0) == 1 { values[0] } else { 0 });
    /// }
    /// let (mut values, mut is_there, mut out) = ([0], [0], [1, 1]);
    /// run_on_host::<handed_on>(0..2, ((), &mut values, &mut is_there, &mut out))?;
    /// assert_eq!(out[0], 77);
    /// # Ok::<_, vmarray_kernel::OutOfBounds>(())
    /// ```
    ///
    /// In a loop, the item can wait for an item of another group. Only devices with
    /// [`forward_progress`](backend_api::DeviceInfo::forward_progress) run such a kernel; other devices
    /// refuse it as unsupported. The other group must have started, so groups take their numbers from a
    /// counter: `at.group()` is no start order. No device promises progress to an item that waits for its own
    /// group.
    #[inline(always)]
    pub fn acquire(&self, index: usize) -> T {
        let value = self.element(index);
        fence(Ordering::Acquire);
        value.unwrap_or_else(|| bounds_report::read(index))
    }

    /// Writes the element at `index`. An item (GPU thread) that [acquires](Self::acquire) this value also
    /// sees all earlier writes of this item.
    #[inline(always)]
    pub fn release(&self, index: usize, value: T) {
        fence(Ordering::Release);
        self.set(index, value);
    }

    #[inline(always)]
    fn change(&self, index: usize, change: impl Fn(T) -> T) -> T {
        let before = match &self.0 {
            SharedElements::Slice(cells) => cells.get(index).map(|cell| cell.replace(change(cell.get()))),
            SharedElements::View(view) => {
                let change = |old| change(T::of_native(old)).native();
                view.change::<T::Native>(index as u64, 0, change).map(T::of_native)
            }
        };
        before.unwrap_or_else(|| bounds_report::read(index))
    }
}

impl<T: Atomic, const A: usize, const B: usize, const C: usize, const D: usize> Group<T, A, B, C, D> {
    /// Reads an element that another thread of the group [releases](Self::release); see [`Shared::acquire`].
    pub fn acquire<I: GroupIndex<A, B, C, D>>(&self, index: I) -> T {
        let _ = index;
        group_ops::never()
    }

    /// Writes an element; a thread that acquires it sees earlier writes of this thread: [`Shared::acquire`].
    pub fn release<I: GroupIndex<A, B, C, D>>(&self, index: I, value: T) {
        let _ = (index, value);
        group_ops::never()
    }
}

impl<T, const A: usize, const B: usize, const C: usize, const D: usize> Group<T, A, B, C, D> {
    fn change<I: GroupIndex<A, B, C, D>>(&self, index: I, change: impl Fn(T) -> T) -> T {
        let _ = (index, change);
        group_ops::never()
    }
}

macro_rules! atomics {
    ([$($more:tt)*] [$($index:tt)*] $Index:ty, $Of:ty) => {
        impl<T: Atomic, $($more)*> $Of {
            /// Adds a value to an element in one atomic step, and returns the old element.
            #[inline(always)]
            pub fn add$($index)*(&self, index: $Index, value: T) -> T {
                self.change(index, |old| rules::add(old, value))
            }

            /// Stores the value atomically, and returns the old element.
            #[inline(always)]
            pub fn exchange$($index)*(&self, index: $Index, value: T) -> T {
                self.change(index, |_| value)
            }
        }

        impl<T: Atomic + KernelInteger, $($more)*> $Of {
            /// Stores the smaller of the element and the value atomically, and returns the old element.
            #[inline(always)]
            pub fn min$($index)*(&self, index: $Index, value: T) -> T {
                self.change(index, |old| rules::min(old, value))
            }

            /// Stores the larger of the element and the value atomically, and returns the old element.
            #[inline(always)]
            pub fn max$($index)*(&self, index: $Index, value: T) -> T {
                self.change(index, |old| rules::max(old, value))
            }

            /// Stores the bitwise and of the element and the value atomically, and returns the old element.
            #[inline(always)]
            pub fn and$($index)*(&self, index: $Index, value: T) -> T {
                self.change(index, |old| rules::and(old, value))
            }

            /// Stores the bitwise or of the element and the value atomically, and returns the old element.
            #[inline(always)]
            pub fn or$($index)*(&self, index: $Index, value: T) -> T {
                self.change(index, |old| rules::or(old, value))
            }

            /// Stores the bitwise xor of the element and the value atomically, and returns the old element.
            #[inline(always)]
            pub fn xor$($index)*(&self, index: $Index, value: T) -> T {
                self.change(index, |old| rules::xor(old, value))
            }

            /// Stores the value atomically if the old element equals `expected`, and returns the old element.
            #[inline(always)]
            pub fn compare_exchange$($index)*(&self, index: $Index, expected: T, value: T) -> T {
                self.change(index, |old| if old == expected { value } else { old })
            }
        }
    };
}
atomics!([] [] usize, Shared<T>);
atomics!([const A: usize, const B: usize, const C: usize, const D: usize] [<I: GroupIndex<A, B, C, D>>] I, Group<T, A, B, C, D>);

/// A kernel parameter: a list to which items (GPU threads) append elements. The order is unspecified unless
/// the launch requests item order. If the list is full, it drops further elements; each counts as an access
/// out of bounds.
///
/// ```
/// use vmarray_kernel::{Append, At, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn odd(at: At<1>, x: &Own<u32>, found: &Append<u64>) {
///     if x.get() % 2 == 1 {
///         found.push(at.index() as u64);
///     }
/// }
/// let (mut found, mut count) = ([0; 4], 0);
/// run_on_host::<odd>(0..5, ((), &[4, 5, 7, 2, 1], (&mut found, &mut count)))?;
/// assert_eq!((found, count), ([1, 2, 4, 0], 3));
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[repr(transparent)]
pub struct Append<T: 'static>(AppendedElements<'static, T>);

/// The memory of an [`Append`] parameter on the host.
#[doc(hidden)]
pub enum AppendedElements<'s, T> {
    /// Memory of the program, for a kernel that the program runs on the host: the elements, and the counter.
    Slice(&'s [Cell<T>], &'s Cell<u64>),
    /// Memory of a device that computes on the CPU: the counter, and the elements. `numbered` is temporary
    /// memory for one element with the item's index.
    View { counter: HostView<'s>, elements: HostView<'s>, item: u64, numbered: Cell<Vec<u8>> },
}

impl<T> std::fmt::Debug for Append<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Append").finish_non_exhaustive()
    }
}

impl<T: ElementMemory> Append<T> {
    /// Appends `value` to the list. If the list is full, drops `value` and counts an access out of bounds.
    #[inline(always)]
    pub fn push(&self, value: T) {
        let (index, has_room) = match &self.0 {
            AppendedElements::Slice(cells, count) => {
                let index = count.replace(count.get() + 1);
                let place = cells.get(index as usize);
                place.inspect(|cell| cell.set(value));
                (index, place.is_some())
            }
            AppendedElements::View { counter, elements, item, numbered } => {
                let index = counter.change(0, 0, |count: u64| count.wrapping_add(1)).unwrap_or(u64::MAX);
                let (value, stride) = (bytemuck::bytes_of(&value), elements.stride() as usize);
                if stride == value.len() {
                    return self.noted(index, elements.write(index, stride, value));
                }
                let mut element = numbered.take();
                element.resize(stride, 0);
                element[..8].copy_from_slice(&item.to_ne_bytes());
                element[8..][..value.len()].copy_from_slice(value);
                let has_room = elements.write(index, stride, &element);
                numbered.set(element);
                (index, has_room)
            }
        };
        self.noted(index, has_room);
    }

    /// Counts an access out of bounds if the list has no room for an element.
    #[inline(always)]
    fn noted(&self, index: u64, has_room: bool) {
        if !has_room {
            bounds_report::note(index as usize);
        }
    }
}

impl<T: KernelType, const A: usize, const B: usize, const C: usize, const D: usize> Parameter
    for &'static Group<T, A, B, C, D>
{
    type Source<'s> = ();
    type Bound<'s> = Group<T, A, B, C, D>;
    type OfItem<'i> = &'i Group<T, A, B, C, D>;
    type Kind = kind::GroupKind;

    fn info(name: &'static str) -> ParameterInfo {
        let array = |of, len| Layout::Array(Box::new(of), len);
        let inner = [D, C, B].into_iter().filter(|extent| *extent > 0).fold(T::layout(), array);
        let axes = 1 + [B, C, D].into_iter().filter(|extent| *extent > 0).count();
        ParameterInfo { name, kind: ParameterKind::Group(array(inner, A), axes) }
    }

    fn bound(_: Self::Source<'_>) -> Self::Bound<'_> {
        Group(PhantomData)
    }

    fn given<'s>(_: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s> {
        Group(PhantomData)
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Group<T, A, B, C, D> {
        bound
    }

    fn argument(_: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Place
    }
}

impl<T: ElementMemory> Parameter for &'static Shared<T> {
    type Source<'s> = &'s mut [T];
    type Bound<'s> = SharedElements<'s, T>;
    type OfItem<'i> = &'i Shared<T>;
    type Kind = kind::SharedKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Shared(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        SharedElements::Slice(Cell::from_mut(source).as_slice_of_cells())
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s> {
        SharedElements::View(given.view())
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Shared<T> {
        // SAFETY: the types differ only in a lifetime, which is longer than 'i. No code can keep the contents
        // longer than 'i: the type is neither copied nor moved out of a reference, and its methods return
        // values.
        unsafe { &*std::ptr::from_mut(bound).cast_const().cast() }
    }

    fn argument(source: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Write(bytemuck::cast_slice_mut(source), size_of::<T>())
    }
}

impl<T: ElementMemory> Parameter for &'static Append<T> {
    type Source<'s> = (&'s mut [T], &'s mut u64);
    type Bound<'s> = AppendedElements<'s, T>;
    type OfItem<'i> = &'i Append<T>;
    type Kind = kind::AppendKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Append(T::layout()) }
    }

    fn bound((elements, count): Self::Source<'_>) -> Self::Bound<'_> {
        AppendedElements::Slice(Cell::from_mut(elements).as_slice_of_cells(), Cell::from_mut(count))
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s> {
        let (counter, elements) = (given.view(), given.view());
        AppendedElements::View { counter, elements, item: 0, numbered: Cell::default() }
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, of: Item) -> &'i Append<T> {
        if let AppendedElements::View { item, .. } = bound {
            *item = of.index as u64;
        }
        // SAFETY: as for `Shared`.
        unsafe { &*std::ptr::from_mut(bound).cast_const().cast() }
    }

    fn argument((elements, count): Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Append(
            bytemuck::bytes_of_mut(count),
            bytemuck::cast_slice_mut(elements),
            size_of::<T>(),
        )
    }
}
