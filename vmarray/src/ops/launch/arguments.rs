//! What can be given for the parameters of kernels.

use std::ops::Range;

use backend_api::Device;
use vmarray_kernel::launch::{Mode, numbered};
use vmarray_kernel::{
    Anywhere, Append, Atomic, KernelType, Memory, Own, Parameter, Rows, Shared, Window, kind,
};

use super::session::{HeldBound, SessionArgument, SessionArguments};
use super::spread::{Shown, Spread};
use super::stored::StoredBox;
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::ops::executor::Operand;
use crate::ops::view::sealed::Internal;
use crate::ops::view::{INTERNAL, Linear, SectionMut, Shape, Store, StoreMut, View};

/// What a launch is given for a parameter.
#[doc(hidden)]
pub enum Bound<'a> {
    /// The bits of the scalars of a value, or of a table.
    Values(Vec<u64>),
    /// Elements, one for each item.
    Own(Placed<'a>),
    /// Elements that many items read: all of them, by an index for each of so many axes.
    All(Placed<'a>, usize),
    /// Elements that any item changes.
    Shared(Operand<'a>, usize),
    /// At most so many elements of so many bytes, which are appended to something; whether in the order of
    /// items.
    Append(Box<dyn AppendTo + 'a>, usize, usize, bool),
    /// Those around each, as far as this says along each axis.
    Around(Placed<'a>, Vec<usize>, Modes),
}

impl Bound<'_> {
    /// The same of a store that nobody else uses meanwhile.
    pub(crate) fn alone(self) -> Self {
        match self {
            Self::Own(placed) => Self::Own(Placed { operand: placed.operand.alone(), ..placed }),
            Self::Shared(operand, len) => Self::Shared(operand.alone(), len),
            other => other,
        }
    }
}

/// What is read outside of each axis, if devices can find it: the mode, and scalars of a value.
pub(crate) type Modes = Option<Vec<(Mode, Vec<u64>)>>;

/// Elements of a store.
#[doc(hidden)]
pub struct Placed<'a> {
    /// The store, and the place of the first of them there.
    pub(crate) operand: Operand<'a>,
    /// How many there are along each axis.
    pub(crate) extents: Vec<usize>,
    /// Where they lie in the store, unless that has other axes.
    pub(crate) stored: Option<StoredBox>,
    /// How they are read by position.
    pub(crate) of: Box<dyn Spread + 'a>,
}

/// Those of a view, read by what may show more.
pub(crate) fn placed<'a, V>(view: V, of: Box<dyn Spread + 'a>) -> Placed<'a>
where
    V: View<'a, Store: Store<Device: Device>>,
{
    let (store, shape) = view.parts();
    let (extents, stored) = (shape.axes(), shape.stored());
    let start = stored.as_ref().map_or(0, |stored| stored.range().start);
    Placed { operand: Operand::new(store.as_operand(INTERNAL), start), extents, stored, of }
}

impl Placed<'_> {
    /// Which places of the store they are among.
    pub(crate) fn range(&self) -> Range<usize> {
        self.stored.as_ref().map_or(0..usize::MAX, StoredBox::range)
    }
}

impl std::fmt::Debug for Bound<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").finish_non_exhaustive()
    }
}

/// What appended elements go to.
#[doc(hidden)]
pub trait AppendTo {
    /// Appends elements, as bytes.
    fn append(&mut self, bytes: &[u8]);

    /// The same of elements that are preceded by the index of an item, in the order of items.
    fn append_in_order(&mut self, numbered: &[u8]);
}

/// Where the elements go that a kernel [appends](vmarray_kernel::Append): the end of a vector, and how many
/// at most. If there are more, none is appended, which is [`KernelAppend`](crate::ErrorKind::KernelAppend).
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
/// assert!(error.to_string().contains("appends 3 elements to `found`, 2 are allowed"), "{error}");
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Appended<'a, T> {
    to: &'a mut Vec<T>,
    most: usize,
    is_ordered: bool,
}

impl<'a, T> Appended<'a, T> {
    /// The end of a vector, to which at most so many elements are appended, in an order that is not said.
    ///
    /// A kernel with a `&mut Own` has room for so many taken on each device. Of others nothing is seen until
    /// all is done: they begin with less room, and are run once more if it was too little.
    pub fn to(vector: &'a mut Vec<T>, most: usize) -> Self {
        Self { to: vector, most, is_ordered: false }
    }

    /// The same, in the order of items, and what an item appends in the order in which it does: the same on
    /// any devices, however they run. Items are ordered as their elements are stored: in rows row by row, in
    /// tiles tile by tile.
    ///
    /// Each element takes 8 bytes more and some padding on the devices, and the host sorts them. Groups must
    /// not be tiles of a result, which is [`KernelRefused`](crate::ErrorKind::KernelRefused).
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

impl<T: Memory> AppendTo for Appended<'_, T> {
    fn append(&mut self, bytes: &[u8]) {
        let before = self.to.len();
        self.to.resize(before + bytes.len() / size_of::<T>(), T::zeroed());
        bytemuck::cast_slice_mut(&mut self.to[before..]).copy_from_slice(bytes);
    }

    fn append_in_order(&mut self, numbered: &[u8]) {
        let item = |element: &[u8]| element.first_chunk().map_or(0, |index| u64::from_ne_bytes(*index));
        let mut elements: Vec<&[u8]> = numbered.chunks_exact(Self::stride(true)).collect();
        // What an item appends follows one another, as it takes its places one after the other.
        elements.sort_by_key(|element| item(element));
        let value = |element: &[u8]| bytemuck::pod_read_unaligned::<T>(&element[8..][..size_of::<T>()]);
        self.to.extend(elements.into_iter().map(value));
    }
}

impl<T: Memory> Appended<'_, T> {
    /// Bytes of an element on devices.
    fn stride(is_ordered: bool) -> usize {
        if is_ordered { numbered(T::layout()).bytes() } else { size_of::<T>() }
    }
}

impl<'a, T: Memory> Argument<'a, &'static Append<T>, kind::Append> for Appended<'a, T> {
    fn bound(self, _: Internal) -> Bound<'a> {
        // More cannot be had.
        let (is_ordered, stride) = (self.is_ordered, Self::stride(self.is_ordered));
        let most = self.most.min(isize::MAX as usize / stride.max(1));
        Bound::Append(Box::new(self), most, stride, is_ordered)
    }
}

/// Elements of a view around each item: as many as a halo says on each side. For a
/// [`Window`](vmarray_kernel::Window) of a kernel; made by [`window`](crate::views::View::window) of a view,
/// or of a view [with a boundary mode](crate::boundary::BoundaryView::window).
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
/// // Without a mode nothing is there beyond the edges.
/// let error = blurred::<1>::run((samples.window(1), &[0.25, 0.5, 0.25], &mut result)).unwrap_err();
/// assert!(error.to_string().contains("2 items of kernel `blurred`"), "{error}");
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Windowed<V, I> {
    pub(crate) of: V,
    pub(crate) halo: I,
}

/// What can be given for a parameter of type `P`, which is of a [kind](Parameter::Kind): see
/// [`RunKernel::run`](super::RunKernel::run).
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
    label = "this is no argument for `{P}`",
    note = "for a value give one of that type, for `&[T; N]` a reference to such an array",
    note = "for `&Own<T>` give `&array`, `&source` or a section, whose elements are `T`",
    note = "for `&Anywhere<T, N>` the same, for `&Window<T, N>` `view.window(halo)` or `view.bounded(mode).window(halo)`",
    note = "for `&Rows<T>` give `&ragged_array`, or `(&starts, &elements)`, whose starts are `u64`",
    note = "for `&mut Own<T>` and `&Shared<T>` give `&mut array`, `&mut source` or `section_mut(..)?`, whose elements are `T`"
)]
pub trait Argument<'a, P, Kind> {
    #[doc(hidden)]
    fn bound(self, _: Internal) -> Bound<'a>;

    /// The same, for all the parameters that devices have in the place of this one.
    #[doc(hidden)]
    fn bounds(self, into: &mut Vec<Bound<'a>>, _: Internal)
    where
        Self: Sized,
    {
        into.push(self.bound(INTERNAL));
    }
}

/// The scalars of a value.
pub(super) fn values(value: impl KernelType) -> Bound<'static> {
    let mut values = Vec::new();
    value.values(&mut values);
    Bound::Values(values)
}

impl<'a, T: KernelType> Argument<'a, T, kind::Value> for T {
    fn bound(self, _: Internal) -> Bound<'a> {
        values(self)
    }
}

impl<'a, T: KernelType, const N: usize> Argument<'a, &'static [T; N], kind::Table> for &[T; N] {
    fn bound(self, _: Internal) -> Bound<'a> {
        values(*self)
    }
}

impl<'a, T: Memory, V> Argument<'a, &'static Own<T>, kind::Own> for V
where
    V: View<'a, Element = T, Store: Store<Device: Device>> + Sync + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        Bound::Own(placed(self, Box::new(Shown(self))))
    }
}

impl<'a, T: Memory, V> Argument<'a, &'static Anywhere<T>, kind::Anywhere> for V
where
    V: View<'a, Element = T, Store: Store<Device: Device>> + Sync + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        Bound::All(placed(self, Box::new(Shown(self))), 1)
    }
}

/// Where rows begin and the last one ends, and all elements.
impl<'a, T: Memory, S, V> Argument<'a, &'static Rows<T>, kind::Rows> for (S, V)
where
    S: Argument<'a, &'static Anywhere<u64>, kind::Anywhere>,
    V: Argument<'a, &'static Anywhere<T>, kind::Anywhere>,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        self.1.bound(INTERNAL)
    }

    fn bounds(self, into: &mut Vec<Bound<'a>>, _: Internal) {
        into.extend([self.0.bound(INTERNAL), self.1.bound(INTERNAL)]);
    }
}

impl<'a, T: Memory, V> Argument<'a, &'static Window<T, 1>, kind::Window> for Windowed<V, usize>
where
    V: View<'a, Element = T, Shape = Linear, Store: Store<Device: Device>> + Sync + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let modes = Some(vec![(Mode::Checked, Vec::new())]);
        Bound::Around(placed(self.of, Box::new(Shown(self.of))), vec![self.halo], modes)
    }
}

/// All elements of a view, to be changed.
pub(crate) fn changed<'a, V>(view: V) -> Bound<'a>
where
    V: View<'a, Element: Memory, Store: StoreMut> + Sync + 'a,
{
    let (store, _) = view.parts();
    let placed = placed(view, Box::new(Shown(view)));
    let operand = Operand::changed(store.as_target(INTERNAL), placed.operand.start);
    Bound::Own(Placed { operand, ..placed })
}

/// The same, where any item changes any of them.
pub(crate) fn shared<'a, S: StoreMut>(store: &'a S, start: usize, len: usize) -> Bound<'a> {
    Bound::Shared(Operand::changed(store.as_target(INTERNAL), start), len)
}

impl<'a, T: Atomic + Element, D: Device> Argument<'a, &'static Shared<T>, kind::Shared>
    for &'a mut VirtualArray<T, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let len = self.len();
        shared(&*self, 0, len).alone()
    }
}

impl<'a, T: Atomic, S: StoreMut<Element = T>> Argument<'a, &'static Shared<T>, kind::Shared>
    for SectionMut<'a, S>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let range = self.range();
        shared(self.store(), range.start, range.len())
    }
}

impl<'a, T: Memory + Element, D: Device> Argument<'a, &'static mut Own<T>, kind::OwnMut>
    for &'a mut VirtualArray<T, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        changed(&*self).alone()
    }
}

impl<'a, T: Memory, S: StoreMut<Element = T> + Sync> Argument<'a, &'static mut Own<T>, kind::OwnMut>
    for SectionMut<'a, S>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        changed(self)
    }
}

/// A tuple of what is given for the parameters of a kernel, whose types are `P`: see
/// [`RunKernel::run`](super::RunKernel::run).
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
    label = "these are other arguments, or not as many",
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
                #[allow(unused_mut, reason = "without arguments there is nothing to push")]
                let mut all = Vec::new();
                $($a.bounds(&mut all, INTERNAL);)*
                all
            }
        }

        impl<$($P: Parameter, $A: SessionArgument<$P, $P::Kind>),*> SessionArguments<($($P,)*)> for ($($A,)*) {
            fn held(self, _: Internal) -> Vec<HeldBound> {
                let ($($a,)*) = self;
                #[allow(unused_mut, reason = "without arguments there is nothing to push")]
                let mut all = Vec::new();
                $($a.all_held(&mut all, INTERNAL);)*
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
