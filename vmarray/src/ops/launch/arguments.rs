//! Arguments of kernel launches: the values and views that the caller passes for the parameters of a kernel.

use std::ops::Range;

use backend_api::Device;
use vmarray_kernel::launch::{Mode, numbered};
use vmarray_kernel::{
    Anywhere, Append, ElementMemory, KernelType, Own, Parameter, Rows, Shared, Window, kind,
};

use super::broadcast::{Broadcast, Inside, Modes, Shown};
use super::session::{Binding, SessionArgument, SessionArguments};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::ops::executor::Operand;
use crate::ops::sealed::Internal;
use crate::ops::view::{INTERNAL, Linear, SectionMut, Shape, Store, StoreMut, StoredBox, View};

/// An argument of a kernel launch, after conversion from the caller's type to a form that all launches share.
#[doc(hidden)]
pub enum Bound<'a> {
    /// The bits of the scalars of a value or a table.
    Values(Vec<u64>),
    /// Elements of an array or source (program memory).
    Elements(PlacedElements<'a>),
    /// The target of appended elements, their maximum number, their size in bytes, and true if they must be
    /// in the order of work-items.
    Append(Box<dyn AppendTo + 'a>, usize, usize, bool),
    /// Elements whose neighbours each work-item reads, with the halo along each axis.
    Around(PlacedElements<'a>, Vec<usize>, Modes),
}

impl Bound<'_> {
    /// Marks the argument's store as used by no other thread.
    pub(crate) fn alone(self) -> Self {
        match self {
            Self::Elements(placed) => {
                Self::Elements(PlacedElements { operand: placed.operand.alone(), ..placed })
            }
            other => other,
        }
    }
}

/// Elements of an array or source (program memory) as a launch argument, and their positions in storage.
#[doc(hidden)]
pub struct PlacedElements<'a> {
    /// The store, and the storage index of the first element.
    pub(crate) operand: Operand<'a>,
    /// Number of elements along each axis.
    pub(crate) extents: Vec<usize>,
    /// The storage positions of the elements; `None` if the view has fewer axes than its store.
    pub(crate) stored: Option<StoredBox>,
    /// Reads elements by position.
    pub(crate) of: Box<dyn Broadcast + 'a>,
}

/// Converts a view to an argument. `of` reads its elements by position.
pub(crate) fn placed<'a, V>(view: V, of: Box<dyn Broadcast + 'a>) -> PlacedElements<'a>
where
    V: View<'a, Store: Store<Device: Device>>,
{
    let (store, shape) = view.parts();
    let (extents, stored) = (shape.axes(), shape.stored());
    let start = stored.as_ref().map_or(0, |stored| stored.range().start);
    PlacedElements { operand: Operand::new(store.as_operand(INTERNAL), start), extents, stored, of }
}

impl<'a> PlacedElements<'a> {
    /// Converts `len` elements of an operand to an argument.
    pub(crate) fn of(operand: Operand<'a>, len: usize) -> Self {
        let stored = Some(StoredBox::range_of(operand.start, len));
        Self { operand, extents: vec![len], stored, of: Box::new(Inside { operand, len }) }
    }

    /// Returns the range of the store that contains the elements.
    pub(crate) fn range(&self) -> Range<usize> {
        self.stored.as_ref().map_or(0..usize::MAX, StoredBox::range)
    }
}

impl std::fmt::Debug for Bound<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").finish_non_exhaustive()
    }
}

/// The target of the elements that a kernel appends.
#[doc(hidden)]
pub trait AppendTo {
    /// Appends elements, given as bytes.
    fn append(&mut self, bytes: &[u8]);

    /// Appends elements in the order of work-items. In `numbered`, each follows its work-item's index.
    fn append_in_order(&mut self, numbered: &[u8]);
}

/// Launch argument for a kernel's [`Append`](vmarray_kernel::Append) parameter: a vector, and the maximum
/// number of elements to append. If work-items (GPU threads) append more, the vector is unchanged, and the
/// launch returns [`KernelAppend`](crate::ErrorKind::KernelAppend).
///
/// ```
/// use vmarray::kernel::{Append, Appended, At, Own};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn odd(at: At<1>, x: &Own<u32>, found: &Append<u64>) {
///     if x.get() % 2 == 1 {
///         found.push(at.index() as u64);
///     }
/// }
/// let array = VirtualArray::<u32>::new(1000)?;
/// array.fill(10..13, 7)?;
/// let mut found = Vec::new();
/// odd::run((&array, Appended::to(&mut found, 100)))?;
/// found.sort();
/// assert_eq!(found, [10, 11, 12]);
/// let error = odd::run((&array, Appended::to(&mut found, 2))).unwrap_err();
/// assert!(error.to_string().contains("appends 3 elements to `found`, but 2 are allowed"), "{error}");
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Appended<'a, T> {
    to: &'a mut Vec<T>,
    most: usize,
    is_ordered: bool,
}

impl<'a, T> Appended<'a, T> {
    /// Makes a launch append at most `most` elements to a vector, in an unspecified order.
    ///
    /// If the kernel has a `&mut Own` parameter, it cannot run twice, so each device allocates memory for
    /// `most` elements. Otherwise the launch starts with less device memory. If this memory is too small, the
    /// launch runs the kernel a second time.
    pub fn to(vector: &'a mut Vec<T>, most: usize) -> Self {
        Self { to: vector, most, is_ordered: false }
    }

    /// Makes a launch append at most `most` elements in the order of work-items (GPU threads), and of calls
    /// within a work-item. The result is therefore the same on all devices. Work-items are in the storage
    /// order of their elements: row by row, or tile by tile.
    ///
    /// Each appended element takes 8 more bytes and some padding on the devices, and the host sorts the
    /// elements. Kernels whose work-groups are tiles of a result return
    /// [`KernelRefused`](crate::ErrorKind::KernelRefused).
    ///
    /// ```
    /// use vmarray::kernel::{Append, Appended, At, Own};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn divisors(at: At<1>, x: &Own<u32>, found: &Append<[u32; 2]>) {
    ///     for by in 2..x.get() {
    ///         if x.get() % by == 0 {
    ///             found.push([at.index() as u32, by]);
    ///         }
    ///     }
    /// }
    /// let array = VirtualArray::<u32>::new(5)?;
    /// array.write(0, &[7, 12, 1, 4, 9])?;
    /// let mut found = Vec::new();
    /// divisors::run((&array, Appended::in_order(&mut found, 100)))?;
    /// assert_eq!(found, [[1, 2], [1, 3], [1, 4], [1, 6], [3, 2], [4, 3]]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn in_order(vector: &'a mut Vec<T>, most: usize) -> Self {
        Self { to: vector, most, is_ordered: true }
    }
}

impl<T: ElementMemory> AppendTo for Appended<'_, T> {
    fn append(&mut self, bytes: &[u8]) {
        let before = self.to.len();
        self.to.resize(before + bytes.len() / size_of::<T>(), T::zeroed());
        bytemuck::cast_slice_mut(&mut self.to[before..]).copy_from_slice(bytes);
    }

    fn append_in_order(&mut self, numbered: &[u8]) {
        let item = |element: &[u8]| element.first_chunk().map_or(0, |index| u64::from_ne_bytes(*index));
        let mut elements: Vec<&[u8]> = numbered.chunks_exact(Self::stride(true)).collect();
        // The sort is stable, so the elements of one work-item (GPU thread) keep their order: the work-item
        // appended them at ascending positions.
        elements.sort_by_key(|element| item(element));
        let value = |element: &[u8]| bytemuck::pod_read_unaligned::<T>(&element[8..][..size_of::<T>()]);
        self.to.extend(elements.into_iter().map(value));
    }
}

impl<T: ElementMemory> Appended<'_, T> {
    /// The size in bytes of an appended element in device memory.
    fn stride(is_ordered: bool) -> usize {
        if is_ordered { numbered(T::layout()).bytes() } else { size_of::<T>() }
    }
}

impl<'a, T: ElementMemory> Argument<'a, &'static Append<T>, kind::AppendKind> for Appended<'a, T> {
    fn bound(self, _: Internal) -> Bound<'a> {
        // Limit the number to the elements that can fit into memory, so that sizes do not overflow.
        let (is_ordered, stride) = (self.is_ordered, Self::stride(self.is_ordered));
        let most = self.most.min(isize::MAX as usize / stride.max(1));
        Bound::Append(Box::new(self), most, stride, is_ordered)
    }
}

/// Launch argument for a kernel's [`Window`] parameter: each work-item (GPU thread) reads its element of the
/// view, and neighbours of the element (a halo). Created by [`window`](KernelView::window), also of a view
/// [with a boundary mode](crate::boundary::BoundaryView::window).
///
/// ```
/// use vmarray::boundary::Mirror;
/// use vmarray::kernel::{At, Own, Window};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn blurred<const R: usize>(at: At<1>, of: &Window<f32, 1>, weights: &[f32; 3], out: &mut Own<f32>) {
///     let mut sum = 0.0;
///     for k in 0..2 * R + 1 {
///         sum += weights[k] * of[at.plus(k as isize - R as isize)];
///     }
///     out.set(sum);
/// }
///
/// let samples = Source::new(vec![0.0, 4.0, 8.0, 8.0])?;
/// let mut result = VirtualArray::<f32>::new(4)?;
/// blurred::<1>::run((samples.bounded(Mirror).window(1), &[0.25, 0.5, 0.25], &mut result))?;
/// assert_eq!(result.to_vec(..)?, [2.0, 4.0, 7.0, 8.0]);
/// // Without a boundary mode, elements beyond the edges do not exist.
/// let error = blurred::<1>::run((samples.window(1), &[0.25, 0.5, 0.25], &mut result)).unwrap_err();
/// assert!(error.to_string().contains("2 items of kernel `blurred`"), "{error}");
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Windowed<V, I> {
    pub(crate) of: V,
    pub(crate) halo: I,
}

/// Methods of every [`View`] that create launch arguments from the view.
///
/// ```
/// use vmarray::kernel::KernelView;
/// use vmarray::prelude::*;
///
/// let samples = Source::new(vec![1, 4, 9, 16])?;
/// let windows = KernelView::window(&samples, 2);
/// assert!(format!("{windows:?}").contains("halo: 2"));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait KernelView<'a>: View<'a> {
    /// Returns an argument for a [`Window`] parameter: the kernel reads each element and its neighbours, up
    /// to `halo` elements away along each axis. A read beyond the edges of the view is an error, unless the
    /// view has a [boundary mode](crate::boundary::BoundaryView::window). The kernel must not read farther
    /// than the halo; a launch in place does not check this.
    ///
    /// ```
    /// use vmarray::kernel::{At, Own, Window};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn differences(at: At<1>, of: &Window<i32, 1>, out: &mut Own<i32>) {
    ///     out.set(of[at.plus(1)] - of[at]);
    /// }
    /// let values = Source::new(vec![1, 4, 9, 16])?;
    /// let mut out = VirtualArray::<i32>::new(3)?;
    /// differences::run((values.window(1), &mut out))?;
    /// assert_eq!(out.to_vec(..)?, [3, 5, 7]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn window(self, halo: Self::Index) -> Windowed<Self, Self::Index> {
        Windowed { of: self, halo }
    }
}

impl<'a, V: View<'a>> KernelView<'a> for V {}

/// Types of launch arguments for a kernel parameter of type `P`, which has a [kind](Parameter::Kind). The
/// table at [`RunKernel::run`](super::RunKernel::run) lists them.
///
/// ```
/// use vmarray::kernel::{Argument, Own, Parameter};
/// use vmarray::prelude::*;
///
/// fn accepts<'a, P: Parameter>(_: impl Argument<'a, P, P::Kind>) {}
/// let (array, mut source) = (VirtualArray::<u8>::new(10)?, Source::new(vec![1_u8; 10])?);
/// accepts::<&Own<u8>>(&array);
/// accepts::<&Own<u8>>(source.section(5..)?);
/// accepts::<&mut Own<u8>>(array.section_mut(..5)?);
/// accepts::<&mut Own<u8>>(&mut source);
/// accepts::<&[f32; 2]>(&[0.5, 2.0]);
/// accepts::<f32>(7.0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    note = "for `&Append<T>` give `Appended::to(&mut vector, most)`",
    message = "a kernel cannot take a `{Self}` as its parameter of type `{P}`",
    label = "this cannot be the argument for `{P}`",
    note = "for a value parameter give a value of its type, for `&[T; N]` a reference to such an array",
    note = "for `&Own<T>` give `&array`, `&source` or a section, whose elements are `T`",
    note = "for `&Anywhere<T, N>` the same, for `&Window<T, N>` `view.window(halo)` or `view.bounded(mode).window(halo)`",
    note = "for `&Rows<T>` give `&ragged_array`, or `(&starts, &elements)`, whose starts are `u64`",
    note = "for `&mut Own<T>` and `&Shared<T>` give `&mut array`, `&mut source` or `section_mut(..)?`, whose elements are `T`"
)]
pub trait Argument<'a, P, Kind> {
    #[doc(hidden)]
    fn bound(self, _: Internal) -> Bound<'a>;

    /// Appends one [`Bound`] for each device parameter of this argument. Rows have two, others have one.
    #[doc(hidden)]
    fn bounds(self, into: &mut Vec<Bound<'a>>, _: Internal)
    where
        Self: Sized,
    {
        into.push(self.bound(INTERNAL));
    }
}

/// Returns the scalars of an argument passed by value.
pub(crate) fn values(value: impl KernelType) -> Bound<'static> {
    let mut values = Vec::new();
    value.values(&mut values);
    Bound::Values(values)
}

impl<'a, T: KernelType> Argument<'a, T, kind::ValueKind> for T {
    fn bound(self, _: Internal) -> Bound<'a> {
        values(self)
    }
}

impl<'a, T: KernelType, const N: usize> Argument<'a, &'static [T; N], kind::TableKind> for &[T; N] {
    fn bound(self, _: Internal) -> Bound<'a> {
        values(*self)
    }
}

impl<'a, T: ElementMemory, V> Argument<'a, &'static Own<T>, kind::OwnKind> for V
where
    V: View<'a, Element = T, Store: Store<Device: Device>> + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        Bound::Elements(placed(self, Box::new(Shown(self))))
    }
}

impl<'a, T: ElementMemory, V> Argument<'a, &'static Anywhere<T>, kind::AnywhereKind> for V
where
    V: View<'a, Element = T, Store: Store<Device: Device>> + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        Bound::Elements(placed(self, Box::new(Shown(self))))
    }
}

/// An argument for rows: the start of each row and the end of the last one, and all elements.
impl<'a, T: ElementMemory, S, V> Argument<'a, &'static Rows<T>, kind::RowsKind> for (S, V)
where
    S: Argument<'a, &'static Anywhere<u64>, kind::AnywhereKind>,
    V: Argument<'a, &'static Anywhere<T>, kind::AnywhereKind>,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        self.1.bound(INTERNAL)
    }

    fn bounds(self, into: &mut Vec<Bound<'a>>, _: Internal) {
        into.extend([self.0.bound(INTERNAL), self.1.bound(INTERNAL)]);
    }
}

impl<'a, T: ElementMemory, V> Argument<'a, &'static Window<T, 1>, kind::WindowKind> for Windowed<V, usize>
where
    V: View<'a, Element = T, Shape = Linear, Store: Store<Device: Device>> + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let modes = Some(vec![(Mode::Checked, Vec::new())]);
        Bound::Around(placed(self.of, Box::new(Shown(self.of))), vec![self.halo], modes)
    }
}

/// Returns all elements of a view as a result of the launch.
pub(crate) fn changed<'a, V>(view: V) -> Bound<'a>
where
    V: View<'a, Element: ElementMemory, Store: StoreMut> + 'a,
{
    let (store, _) = view.parts();
    let placed = placed(view, Box::new(Shown(view)));
    let operand = Operand::changed(store.as_target(INTERNAL), placed.operand.start);
    Bound::Elements(PlacedElements { operand, ..placed })
}

/// Returns a range of a store as an argument that any work-item may change.
pub(crate) fn shared<'a, S: StoreMut>(store: &'a S, start: usize, len: usize) -> Bound<'a> {
    Bound::Elements(PlacedElements::of(Operand::changed(store.as_target(INTERNAL), start), len))
}

impl<'a, T: ElementMemory + Element, D: Device> Argument<'a, &'static Shared<T>, kind::SharedKind>
    for &'a mut VirtualArray<T, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let len = self.len();
        shared(&*self, 0, len).alone()
    }
}

impl<'a, T: ElementMemory, S: StoreMut<Element = T>> Argument<'a, &'static Shared<T>, kind::SharedKind>
    for SectionMut<'a, S>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let range = self.range();
        shared(self.store(), range.start, range.len())
    }
}

impl<'a, T: ElementMemory + Element, D: Device> Argument<'a, &'static mut Own<T>, kind::OwnMutKind>
    for &'a mut VirtualArray<T, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        changed(&*self).alone()
    }
}

impl<'a, T: ElementMemory, S: StoreMut<Element = T>> Argument<'a, &'static mut Own<T>, kind::OwnMutKind>
    for SectionMut<'a, S>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        changed(self)
    }
}

/// Tuples of launch arguments for the parameters of a kernel, whose types are `P`. The table at
/// [`RunKernel::run`](super::RunKernel::run) lists the argument of each parameter.
///
/// ```
/// use vmarray::kernel::{Arguments, Kernel, Own};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn scale(by: f32, x: &mut Own<f32>) {
///     x.set(x.get() * by);
/// }
///
/// fn run_twice<'a, A: Arguments<'a, <scale as Kernel>::Parameters>>(make: impl Fn() -> A) -> vmarray::Result<()> {
///     scale::run(make())?;
///     scale::run(make())
/// }
/// let array = VirtualArray::<f32>::new(10)?;
/// array.fill(.., 1.5)?;
/// run_twice(|| (2.0, array.section_mut(..).unwrap()))?;
/// assert_eq!(array.get(9)?, 6.0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "the kernel's parameters are `{P}`, which `{Self}` does not fit",
    label = "wrong arguments, or a wrong number of them",
    note = "arguments are one tuple, in the order of the parameters: `name::run((a, b))?`; `At` is left out"
)]
pub trait Arguments<'a, P> {
    #[doc(hidden)]
    fn bound(self, _: Internal) -> Vec<Bound<'a>>;
}

macro_rules! arguments {
    ($($($A:ident $P:ident $a:ident)*;)*) => { $(
        impl<'a, $($P: Parameter, $A: Argument<'a, $P, $P::Kind>),*> Arguments<'a, ($($P,)*)> for ($($A,)*) {
            fn bound(self, _: Internal) -> Vec<Bound<'a>> {
                let ($($a,)*) = self;
                #[allow(unused_mut, reason = "for the empty tuple the macro pushes nothing")]
                let mut all = Vec::new();
                $($a.bounds(&mut all, INTERNAL);)*
                all
            }
        }

        impl<$($P: Parameter, $A: SessionArgument<$P, $P::Kind>),*> SessionArguments<($($P,)*)> for ($($A,)*) {
            fn bind(self, _: Internal) -> Vec<Binding> {
                let ($($a,)*) = self;
                #[allow(unused_mut, reason = "for the empty tuple the macro pushes nothing")]
                let mut all = Vec::new();
                $($a.bind_all(&mut all, INTERNAL);)*
                all
            }
        }
    )* };
}
arguments! {
    ;
    A P a;
    A P a B Q b;
    A P a B Q b C R c;
    A P a B Q b C R c D S d;
    A P a B Q b C R c D S d E T e;
    A P a B Q b C R c D S d E T e F U f;
    A P a B Q b C R c D S d E T e F U f G V g;
    A P a B Q b C R c D S d E T e F U f G V g H W h;
    A P a B Q b C R c D S d E T e F U f G V g H W h I X i;
    A P a B Q b C R c D S d E T e F U f G V g H W h I X i J Y j;
    A P a B Q b C R c D S d E T e F U f G V g H W h I X i J Y j K Z k;
    A P a B Q b C R c D S d E T e F U f G V g H W h I X i J Y j K Z k L O l;
}
