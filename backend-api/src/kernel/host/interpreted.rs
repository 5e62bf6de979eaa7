//! Runs a launch on the host, by a native kernel or the interpreter, and reports failed items (GPU threads).

use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use super::{HostItems, HostView};
use crate::Result;
use crate::kernel::{Access, Interpreter, Report, VerifiedKernel, ViewDecl, Views};

impl<'a> HostItems<'a> {
    /// Creates the argument of a native kernel for the range `items` of the items (threads) of a launch. For
    /// backends. `views` has for each view: the address of each contiguous sequence of pages, the number of
    /// elements of a page, the size of an element in bytes, and the number of elements.
    ///
    /// # Safety
    /// The elements of each view are in the memory that [`LaunchView`](crate::LaunchView) describes. If the
    /// kernel writes to them, they are writable while this argument lives. Other threads may race within the
    /// rules of [`racy`](crate::racy).
    #[must_use]
    pub unsafe fn new(
        launch: &Interpreter<'a>,
        items: Range<u64>,
        views: impl Iterator<Item = (&'a [NonNull<u8>], u64, u64, u64)>,
    ) -> Self {
        let view = |((bases, page_len, stride, count), decl): ((_, _, _, u64), &ViewDecl)| {
            let (readable, writable) = match decl.access {
                Access::Write { tile } => {
                    let tile = u64::from(tile);
                    let own = items.start.saturating_mul(tile)..items.end.saturating_mul(tile).min(count);
                    (own.clone(), own)
                }
                Access::Append => (0..0, 0..count),
                Access::Atomic => (0..count, 0..count),
                Access::Read => (0..count, 0..0),
            };
            let is_atomic = decl.access == Access::Atomic;
            HostView { bases, page_len, stride, count, readable, writable, is_atomic, memory: PhantomData }
        };
        let views = views.zip(&launch.kernel.body().views).map(view).collect();
        let Interpreter {
            items: launched, geometry, params, table, budget, limit, private_heap_bytes, ..
        } = *launch;
        Self { items, launched, geometry, params, table, budget, limit, private_heap_bytes, views }
    }

    /// Interprets the kernel's body for one item (thread) on the current memory, without writes to views. The
    /// report shows the [operation](Report::site) at which an item of a native kernel failed.
    ///
    /// # Panics
    /// If the kernel lacks parameters, tables or views of the launch.
    #[must_use]
    pub fn report_of(&self, kernel: &VerifiedKernel, item: u64) -> Report {
        self.report_within(kernel, item, self.budget)
    }

    /// Does the same as [`report_of`](Self::report_of), but ends after `budget` loop iterations. A native
    /// kernel calls it to find the loop in which a thread exceeded the [time limit](Self::time_limit).
    ///
    /// # Panics
    /// The panics of [`report_of`](Self::report_of).
    #[must_use]
    pub fn report_within(&self, kernel: &VerifiedKernel, item: u64, budget: Option<u64>) -> Report {
        let interpreter = Interpreter {
            params: self.params,
            table: self.table,
            budget,
            private_heap_bytes: self.private_heap_bytes,
            ..Interpreter::new(kernel, item + 1, self.geometry)
        };
        let mut views = Unwritten { views: &self.views, written: HashMap::new() };
        interpreter.run_part(item..item + 1, &mut views).unwrap_or_default()
    }
}

/// Views for interpretation without effects: written bytes go to a map, not to the memory.
struct Unwritten<'a> {
    views: &'a [HostView<'a>],
    /// The written bytes, by view, element and offset.
    written: HashMap<(usize, u64, u32), u8>,
}

impl Views for Unwritten<'_> {
    fn count(&self, view: usize) -> u64 {
        self.views[view].count()
    }

    fn read(&mut self, view: usize, element: u64, offset: u32, to: &mut [u8]) -> Result<()> {
        for (at, to) in (offset..).zip(to) {
            let written = self.written.get(&(view, element, at)).copied();
            *to = written.or_else(|| self.views[view].load(element, at)).unwrap_or(0);
        }
        Ok(())
    }

    fn write(&mut self, view: usize, element: u64, offset: u32, from: &[u8]) -> Result<()> {
        self.written.extend((offset..).zip(from).map(|(at, byte)| ((view, element, at), *byte)));
        Ok(())
    }
}
