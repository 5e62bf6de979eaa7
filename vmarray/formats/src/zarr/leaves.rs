//! Leaves of an element type: its numbers, also in nested structs. Each leaf has its own Zarr array.

use std::path::Path;

use vmarray::Element;
use vmarray::kernel::KernelType;

use crate::data_type::{DataType, NumberKind};
use crate::error::Result;

/// Returns the path of a node's item: the two paths joined by a slash.
pub(super) fn joined(node: &str, path: &str) -> String {
    if node.is_empty() || path.is_empty() { format!("{node}{path}") } else { format!("{node}/{path}") }
}

/// A leaf: numbers of each element that one array of a store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeafArray {
    /// The path of field names, joined by slashes; empty for an element that is not a struct.
    pub(super) path: String,
    pub(super) number: NumberKind,
    /// Additional axes of the array: the lengths of arrays in an element.
    pub(super) axes: Vec<usize>,
    /// Byte offsets of contiguous runs in an element, in array order.
    runs: Vec<usize>,
    run_bytes: usize,
    element_bytes: usize,
}

impl LeafArray {
    pub(super) fn of<T: KernelType + Element>(path: &Path) -> Result<Vec<Self>> {
        let mut leaves = Vec::new();
        add(&DataType::of::<T>(path)?, "", &[], 0, &mut leaves);
        leaves.iter_mut().for_each(|leaf| leaf.element_bytes = size_of::<T>());
        Ok(leaves)
    }

    /// Returns the number of an element's bytes that this leaf stores.
    pub(super) fn bytes(&self) -> usize {
        self.runs.len() * self.run_bytes
    }

    /// Copies this leaf's bytes of each element to `into`, one element after another.
    pub(super) fn take(&self, elements: &[u8], into: &mut Vec<u8>) {
        into.clear();
        if self.bytes() == self.element_bytes && self.runs.len() == 1 {
            into.extend_from_slice(elements);
            return;
        }
        for element in elements.chunks_exact(self.element_bytes) {
            self.runs.iter().for_each(|run| into.extend_from_slice(&element[*run..][..self.run_bytes]));
        }
    }

    /// Copies this leaf's bytes from `from` to the elements. `from` has the bytes of all elements.
    pub(super) fn put(&self, from: &[u8], elements: &mut [u8]) {
        if self.bytes() == self.element_bytes && self.runs.len() == 1 {
            elements.copy_from_slice(from);
            return;
        }
        let mut runs = from.chunks_exact(self.run_bytes);
        for element in elements.chunks_exact_mut(self.element_bytes) {
            for (run, from) in self.runs.iter().zip(&mut runs) {
                element[*run..][..self.run_bytes].copy_from_slice(from);
            }
        }
    }
}

/// Appends the leaves of a part of an element; `within` has the lengths and strides of the arrays around it.
fn add(of: &DataType, path: &str, within: &[(usize, usize)], offset: usize, leaves: &mut Vec<LeafArray>) {
    match of {
        // A store has no array for an empty part.
        DataType::Array(_, 0) => {}
        DataType::Number(number, _) => leaves.push(leaf(path, *number, within, offset)),
        DataType::Array(of, len) => {
            let stride = of.bytes().unwrap_or(0) as usize;
            add(of, path, &[within, &[(*len, stride)]].concat(), offset, leaves);
        }
        DataType::Struct(fields) => {
            let mut offset = offset;
            for (name, of) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                add(of, &path, within, offset, leaves);
                offset += of.bytes().unwrap_or(0) as usize;
            }
        }
    }
}

fn leaf(path: &str, number: NumberKind, within: &[(usize, usize)], offset: usize) -> LeafArray {
    let axes = within.iter().map(|(len, _)| *len).collect();
    // Merge the innermost arrays, whose numbers are contiguous, into one run of bytes.
    let (mut run_bytes, mut outer) = (number.bytes(), within);
    while let [before @ .., (len, stride)] = outer
        && *stride == run_bytes
    {
        run_bytes *= len;
        outer = before;
    }
    let mut runs = vec![offset];
    for (len, stride) in outer {
        runs = runs.iter().flat_map(|at| (0..*len).map(move |i| at + i * stride)).collect();
    }
    LeafArray { path: path.to_owned(), number, axes, runs, run_bytes, element_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmarray::bytemuck::{Pod, Zeroable};

    #[derive(Clone, Copy, Pod, Zeroable, KernelType)]
    #[bytemuck(crate = "vmarray::bytemuck")]
    #[repr(C)]
    struct Pair {
        a: [u8; 2],
        b: u16,
    }

    #[derive(Clone, Copy, Pod, Zeroable, KernelType)]
    #[bytemuck(crate = "vmarray::bytemuck")]
    #[repr(C)]
    struct Outer {
        pairs: [[Pair; 2]; 3],
        last: [[u32; 2]; 2],
    }

    #[test]
    fn structs_are_taken_apart_and_put_together() {
        let leaves = LeafArray::of::<Outer>(Path::new("x")).unwrap();
        let described: Vec<_> =
            leaves.iter().map(|leaf| (&*leaf.path, &leaf.axes[..], leaf.bytes())).collect();
        assert_eq!(
            described,
            [("pairs/a", &[3, 2, 2][..], 12), ("pairs/b", &[3, 2], 12), ("last", &[2, 2], 16)]
        );
        assert_eq!((leaves[0].runs.len(), leaves[2].runs.len()), (6, 1));
        let elements: Vec<u8> = (0..80).collect();
        let (mut again, mut bytes) = (vec![0; 80], Vec::new());
        for leaf in &leaves {
            leaf.take(&elements, &mut bytes);
            assert_eq!(bytes.len(), 2 * leaf.bytes());
            leaf.put(&bytes, &mut again);
        }
        assert_eq!(again, elements);
        leaves[1].take(&elements, &mut bytes);
        assert_eq!(bytes[..4], [2, 3, 6, 7]);
        let numbers = LeafArray::of::<[f32; 3]>(Path::new("x")).unwrap();
        assert_eq!((numbers.len(), &*numbers[0].path, &numbers[0].axes[..]), (1, "", &[3][..]));
    }
}
