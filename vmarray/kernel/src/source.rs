//! Where items of a kernel's host form take their elements, values and tables from: slices of a program, or
//! the memory of a device that computes with the processor.

use crate::layout::Layout;
use crate::lower::table_values;
use crate::views::{Item, Memory};
use backend_api::kernel::{HostItems, HostView};
use std::ops::Range;

/// What a device gives for the parameters of a kernel, taken in their order.
pub struct Given<'i, 's> {
    items: &'i HostItems<'s>,
    origin: Option<usize>,
    scalars: usize,
    views: usize,
    table_bytes: usize,
    takes_returned: bool,
}

impl<'i, 's> Given<'i, 's> {
    pub(crate) const fn new(items: &'i HostItems<'s>, takes_returned: bool) -> Self {
        Self { items, origin: None, scalars: 0, views: 0, table_bytes: 0, takes_returned }
    }

    /// Whether there are views for what items return.
    pub(crate) const fn takes_returned(&self) -> bool {
        self.takes_returned
    }

    /// The next scalar.
    pub(crate) fn scalar(&mut self) -> u64 {
        self.scalars += 1;
        self.items.param(self.scalars - 1)
    }

    /// Which index the first element has. It is one scalar, however often it is asked for.
    pub(crate) fn origin(&mut self) -> usize {
        let origin = self.origin.unwrap_or_else(|| self.scalar() as usize);
        *self.origin.insert(origin)
    }

    /// The next view.
    pub(crate) fn view(&mut self) -> HostView<'s> {
        self.views += 1;
        self.items.view(self.views - 1).clone()
    }

    /// The bits of all scalars of the next table.
    pub(crate) fn table(&mut self, layout: &Layout) -> Vec<u64> {
        table_values(layout, self.items.table(), &mut self.table_bytes)
    }
}

/// The elements of items, which are read.
pub enum HeldElements<'s, T> {
    /// Of all that run.
    Slice(&'s [T]),
    /// Of some at a time, copied: others may write to a device's memory.
    View { view: HostView<'s>, first: usize, elements: Vec<T> },
}

impl<'s, T: Memory> HeldElements<'s, T> {
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

/// The elements of items, which are read and written.
pub enum HeldElementsMut<'s, T> {
    /// Of all that run.
    Slice(&'s mut [T]),
    /// Of some at a time, copied to and fro.
    View { view: HostView<'s>, first: usize, elements: Vec<T> },
}

impl<'s, T: Memory> HeldElementsMut<'s, T> {
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
            debug_assert!(is_written, "they are the items' own");
        }
    }
}

/// Has the elements of items in a vector. A launch was checked to have them.
fn read<T: Memory>(view: &HostView<'_>, items: &Range<u64>, elements: &mut Vec<T>) {
    elements.clear();
    elements.resize(items.end.saturating_sub(items.start) as usize, T::zeroed());
    let is_there = view.read(items.start, size_of::<T>(), bytemuck::cast_slice_mut(elements));
    debug_assert!(is_there, "a launch has an element for each item");
}

/// All elements of an array.
pub enum AllElements<'s, T> {
    /// Of a program.
    Slice(&'s [T]),
    /// Of a device.
    View(HostView<'s>),
}

impl<T: Memory> AllElements<'_, T> {
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

/// Elements around the places of items.
pub struct WindowElements<'s, T, const N: usize> {
    /// The place of the first one.
    pub first: [isize; N],
    pub elements: AllElements<'s, T>,
}
