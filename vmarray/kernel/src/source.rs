//! Arguments of kernels that run on the host: slices of the program, or memory of a device on the CPU.

use crate::layout::{ElementMemory, Layout};
use crate::lower::{AxisPart, LaunchVariant, ScalarSource, table_values};
use crate::place::{Domain, DomainAxis, PlaceCursor};
use backend_api::kernel::{HostItems, HostView};
use std::ops::Range;

/// One item (simulated GPU thread) of a call that runs a kernel as a Rust function on the host.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Number of the item, counted from the first item of the call.
    pub number: usize,
    /// Index of the item's element.
    pub index: usize,
}

/// The arguments of a launch on a device that computes on the CPU. The parameters of the kernel take their
/// arguments one after the other, in the order of declaration.
pub struct LaunchArguments<'i, 's> {
    items: &'i HostItems<'s>,
    origin: Option<usize>,
    /// The properties of each axis of the result, if it has several axes.
    axes: Vec<DomainAxis>,
    form: Option<LaunchVariant>,
    scalars: usize,
    views: usize,
    table_bytes: usize,
    takes_returned: bool,
}

impl<'i, 's> LaunchArguments<'i, 's> {
    /// Creates the arguments of a launch with `axes` axes.
    pub(crate) fn new(items: &'i HostItems<'s>, axes: usize, takes_returned: bool) -> Self {
        let of_axes = Vec::new();
        let mut given = Self {
            items,
            origin: None,
            axes: of_axes,
            form: None,
            scalars: 0,
            views: 0,
            table_bytes: 0,
            takes_returned,
        };
        if axes > 1 {
            let sources = ScalarSource::of_domain(axes);
            let words: Vec<u64> = sources.iter().map(|_| given.scalar()).collect();
            let word = |source| {
                let known = sources.iter().position(|known| *known == source);
                known.map_or(0, |at| words[at])
            };
            given.form = Some(LaunchVariant::of_number(word(ScalarSource::LaunchVariant)));
            let part = |axis, part| word(ScalarSource::Axis { axis, part }) as usize;
            let axis = |axis| DomainAxis {
                start: part(axis, AxisPart::Start),
                extent: part(axis, AxisPart::Extent),
                tiles: part(axis, AxisPart::Tiles),
                tile: part(axis, AxisPart::Tile),
            };
            given.axes = (0..axes).map(axis).collect();
        }
        given
    }

    /// Returns the domain of a launch with `N` axes.
    pub(crate) fn domain<const N: usize>(&self) -> Domain<N> {
        let axis = |axis| self.axes.get(axis).copied().unwrap_or(DomainAxis::whole(0));
        let (is_tiled, is_part) =
            self.form.as_ref().map_or((false, false), |form| (form.is_tiled, form.is_part));
        Domain::new(std::array::from_fn(axis), is_tiled, is_part)
    }

    /// Returns a test for elements that have an item, in a launch with `axes` axes; `None` if all have.
    pub(crate) fn is_item(&self, axes: usize) -> Option<Box<dyn FnMut(usize) -> bool>> {
        fn of<const N: usize>(domain: Domain<N>) -> Option<Box<dyn FnMut(usize) -> bool>> {
            let (is_part, mut places) = (domain.is_part, PlaceCursor::new(domain));
            is_part.then(|| Box::new(move |number| places.has(number)) as _)
        }
        match axes {
            2 => of::<2>(self.domain()),
            3 => of::<3>(self.domain()),
            4 => of::<4>(self.domain()),
            _ => None,
        }
    }

    /// Returns true if the launch has views for returned values.
    pub(crate) const fn takes_returned(&self) -> bool {
        self.takes_returned
    }

    /// Reads the launch variant from the launch's scalars, unless an earlier call has read it.
    pub(crate) fn form(&mut self) {
        if self.form.is_none() {
            self.form = Some(LaunchVariant::of_number(self.scalar()));
        }
    }

    /// Takes the launch's next scalar.
    pub(crate) fn scalar(&mut self) -> u64 {
        self.scalars += 1;
        self.items.param(self.scalars - 1)
    }

    /// Returns the index of the first element; only the first call takes a scalar of the launch.
    pub(crate) fn origin(&mut self) -> usize {
        let origin = self.origin.unwrap_or_else(|| self.scalar() as usize);
        *self.origin.insert(origin)
    }

    /// Takes the launch's next view.
    pub(crate) fn view(&mut self) -> HostView<'s> {
        self.views += 1;
        self.items.view(self.views - 1).clone()
    }

    /// Takes the launch's next table, and returns the bits of all its scalars.
    pub(crate) fn table(&mut self, layout: &Layout) -> Vec<u64> {
        table_values(layout, self.items.table(), &mut self.table_bytes)
    }
}

/// The memory of an [`Own`](crate::Own) parameter on the host: each item (GPU thread) reads its own element.
pub enum HeldElements<'s, T> {
    /// Memory of the program: the elements of all items that it runs.
    Slice(&'s [T]),
    /// Memory of a device, copied for some items at a time because other code may write to it.
    View { view: HostView<'s>, first: usize, elements: Vec<T> },
}

impl<'s, T: ElementMemory> HeldElements<'s, T> {
    pub(crate) const fn of_view(view: HostView<'s>) -> Self {
        Self::View { view, first: 0, elements: Vec::new() }
    }

    pub(crate) fn begin(&mut self, items: &Range<u64>) {
        if let Self::View { view, first, elements } = self {
            *first = items.start as usize;
            read(view, items, elements);
        }
    }

    #[inline(always)]
    pub(crate) fn element(&self, item: Item) -> &T {
        match self {
            Self::Slice(elements) => &elements[item.number],
            Self::View { first, elements, .. } => &elements[item.number - first],
        }
    }
}

/// The memory of a `&mut` [`Own`](crate::Own) parameter on the host: each item (thread) accesses its element.
pub enum HeldElementsMut<'s, T> {
    /// Memory of the program: the elements of all items that it runs.
    Slice(&'s mut [T]),
    /// Memory of a device. It is copied for some items at a time, in both directions.
    View { view: HostView<'s>, first: usize, elements: Vec<T> },
}

impl<'s, T: ElementMemory> HeldElementsMut<'s, T> {
    pub(crate) const fn of_view(view: HostView<'s>) -> Self {
        Self::View { view, first: 0, elements: Vec::new() }
    }

    pub(crate) fn begin(&mut self, items: &Range<u64>) {
        if let Self::View { view, first, elements } = self {
            *first = items.start as usize;
            read(view, items, elements);
        }
    }

    #[inline(always)]
    pub(crate) fn element(&mut self, item: Item) -> &mut T {
        match self {
            Self::Slice(elements) => &mut elements[item.number],
            Self::View { first, elements, .. } => &mut elements[item.number - *first],
        }
    }

    pub(crate) fn end(&mut self) {
        if let Self::View { view, first, elements } = self {
            let is_written = view.write(*first as u64, size_of::<T>(), bytemuck::cast_slice(elements));
            debug_assert!(is_written, "the writes of an item's own element must succeed");
        }
    }
}

/// Copies the own elements of items from a view to a vector. The launch has been checked, so they exist.
fn read<T: ElementMemory>(view: &HostView<'_>, items: &Range<u64>, elements: &mut Vec<T>) {
    elements.clear();
    elements.resize(items.end.saturating_sub(items.start) as usize, T::zeroed());
    let is_there = view.read(items.start, size_of::<T>(), bytemuck::cast_slice_mut(elements));
    debug_assert!(is_there, "a launch must have an element for each item");
}

/// The memory of an array parameter on the host. Each item (GPU thread) may read all elements.
pub enum AllElements<'s, T> {
    /// Memory of the program, for a kernel that the program runs on the host.
    Slice(&'s [T]),
    /// Memory of a device that computes on the CPU.
    View(HostView<'s>),
}

impl<T: ElementMemory> AllElements<'_, T> {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Slice(elements) => elements.len(),
            Self::View(view) => view.count() as usize,
        }
    }

    #[inline(always)]
    pub(crate) fn element(&self, index: usize) -> Option<T> {
        match self {
            Self::Slice(elements) => elements.get(index).copied(),
            Self::View(view) => {
                let mut element = T::zeroed();
                let is_there = view.read(index as u64, size_of::<T>(), bytemuck::bytes_of_mut(&mut element));
                is_there.then_some(element)
            }
        }
    }
}
