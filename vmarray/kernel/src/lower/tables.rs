//! Tables of a lowered kernel: its array parameters and constant arrays, which kernels cannot change.

use super::value::{Leaf, Node};
use crate::layout::Layout;
use backend_api::kernel::{Memory, TableDecl, Type};

/// The source of the values in a constant table of a lowered kernel.
///
/// ```
/// use vmarray_kernel::{At, Own, TableSource, kernel, lower};
/// const ODD: [u8; 3] = [1, 3, 5];
///
/// #[kernel(crate = vmarray_kernel)]
/// fn pick(at: At<1>, table: &[(f32, f32); 2], out: &mut Own<f32>) {
///     let i = at.index();
///     out.set(table[i].1 + ODD[i % 3] as f32);
/// }
/// let tables = lower::<pick>()?.tables;
/// // The scalars 1 and 3 are the second fields of the two tuples.
/// assert_eq!(tables[1], TableSource::Parameter { parameter: 1, positions: vec![1, 3] });
/// assert_eq!(tables[2], TableSource::Constant(vec![1, 3, 5]));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableSource {
    /// Some of the [scalars](crate::KernelType::values) of a kernel parameter.
    Parameter {
        /// Index of the kernel parameter.
        parameter: usize,
        /// Indices of the scalars, in the order of the table.
        positions: Vec<usize>,
    },
    /// Constants of the kernel, each as 64 bits.
    Constant(Vec<u64>),
}

/// The constant tables of a kernel while lowering builds it.
#[derive(Default)]
pub struct Tables {
    tables: Vec<(Type, TableSource)>,
}

impl Tables {
    /// Adds a table for each scalar in an element of the array parameter `parameter`, and returns the tables.
    pub fn parameter(&mut self, parameter: usize, layout: &Layout) -> Node {
        self.node(layout, (0..layout.scalars()).collect(), &mut |positions| TableSource::Parameter {
            parameter,
            positions,
        })
    }

    /// Returns the tables of a constant array of the type `layout`; equal arrays share their tables.
    pub fn of_constant(&mut self, layout: &Layout, values: &[u64]) -> Node {
        self.node(layout, (0..layout.scalars()).collect(), &mut |positions| {
            TableSource::Constant(positions.into_iter().map(|position| values[position]).collect())
        })
    }

    /// Adds tables for an array type. `positions` has the index of the first scalar of `layout` in each
    /// element; the element's other scalars follow it.
    fn node(
        &mut self,
        layout: &Layout,
        positions: Vec<usize>,
        source: &mut impl FnMut(Vec<usize>) -> TableSource,
    ) -> Node {
        match layout {
            Layout::Scalar(of) => {
                let source = source(positions);
                let old = self.tables.iter().position(|(known, table)| known == of && *table == source);
                let number = old.unwrap_or(self.tables.len());
                if old.is_none() {
                    self.tables.push((*of, source));
                }
                Node::Leaf(Leaf::Table(*of, number as u16))
            }
            Layout::Array(of, len) => Node::Array(*len, Box::new(self.node(of, positions, source))),
            Layout::Tuple(_) | Layout::Struct { .. } => {
                let (mut parts, mut before) = (Vec::new(), 0);
                let all = layout.scalars();
                for part in layout.parts() {
                    let own = part.scalars();
                    let chosen = positions.chunks(all).flat_map(|element| &element[before..before + own]);
                    parts.push(self.node(part, chosen.copied().collect(), source));
                    before += own;
                }
                Node::Parts(parts)
            }
        }
    }

    /// Returns element `at` of a table; `None` if a launch provides the table, or the index is too large.
    pub fn constant(&self, table: u16, at: u64) -> Option<u64> {
        match &self.tables.get(usize::from(table))?.1 {
            TableSource::Constant(values) => values.get(usize::try_from(at).ok()?).copied(),
            TableSource::Parameter { .. } => None,
        }
    }

    /// Returns the declarations of the tables.
    pub fn decls(&self) -> Vec<TableDecl> {
        let decl = |(of, source): &(Type, TableSource)| {
            let len = match source {
                TableSource::Parameter { positions, .. } => positions.len(),
                TableSource::Constant(values) => values.len(),
            };
            let of = if *of == Type::Bool { Type::U8 } else { *of };
            TableDecl { of: Memory::Value(of), len: len as u32 }
        };
        self.tables.iter().map(decl).collect()
    }

    /// Returns the source of the contents of each table.
    pub fn sources(self) -> Vec<TableSource> {
        self.tables.into_iter().map(|(_, source)| source).collect()
    }
}

/// Returns the bits of all scalars of an array parameter with the type `layout`. Reads them at `offset` from
/// `bytes`, the contents of a launch's constant tables, and moves `offset` behind them. The tables of
/// parameters come first, in the order of the parameters.
pub fn table_values(layout: &Layout, bytes: &[u8], offset: &mut usize) -> Vec<u64> {
    let mut tables = Tables::default();
    tables.parameter(0, layout);
    let mut values = vec![0; layout.scalars()];
    for (decl, source) in tables.decls().into_iter().zip(tables.sources()) {
        let TableSource::Parameter { positions, .. } = source else { continue };
        let len = decl.of.bytes() as usize;
        for (position, from) in positions.iter().zip(bytes[*offset..].chunks(len)) {
            let mut bits = [0; 8];
            // Write the value's low bytes, in the byte order of this machine.
            let own = if cfg!(target_endian = "little") { &mut bits[..len] } else { &mut bits[8 - len..] };
            own.copy_from_slice(from);
            values[*position] = u64::from_ne_bytes(bits);
        }
        *offset += (positions.len() * len).next_multiple_of(8);
    }
    values
}
