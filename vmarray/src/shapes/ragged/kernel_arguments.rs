//! Ragged arrays as arguments of kernels.

use backend_api::Device;
use vmarray_kernel::{ElementMemory, Rows, kind};

use super::RaggedArray;
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::ops::launch::{Argument, Bound, Shown, placed};
use crate::ops::sealed::Internal;
use crate::ops::view::{INTERNAL, Linear, Section};

/// All rows of an array as a kernel argument.
impl<'a, T: ElementMemory + Element, D: Device> Argument<'a, &'static Rows<T>, kind::RowsKind>
    for &'a RaggedArray<T, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let elements: Section<'a, VirtualArray<T, D>> =
            Section::new(&self.items, Linear { start: 0, len: self.total });
        Bound::Elements(placed(elements, Box::new(Shown(elements))))
    }

    fn bounds(self, into: &mut Vec<Bound<'a>>, _: Internal) {
        let starts: Section<'a, VirtualArray<u64, D>> =
            Section::new(&self.offsets, Linear { start: 0, len: self.rows + 1 });
        into.push(Bound::Elements(placed(starts, Box::new(Shown(starts)))));
        into.push(self.bound(INTERNAL));
    }
}
