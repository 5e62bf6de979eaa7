//! Tables: parameters of kernels, and constant arrays.

use super::value::{Leaf, Node};
use crate::layout::Layout;
use backend_api::kernel::{Memory, TableDecl, Type};

/// Where a launch takes a table of the representation from: a number of elements, one after the other.
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
/// // The second parts of two tuples.
/// assert_eq!(tables[1], TableSource::Parameter { parameter: 1, positions: vec![1, 3] });
/// assert_eq!(tables[2], TableSource::Constant(vec![1, 3, 5]));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableSource {
    /// Some [values](crate::KernelType::values) of a parameter, by their positions.
    Parameter {
        /// The number of the parameter.
        parameter: usize,
        /// Which of its values.
        positions: Vec<usize>,
    },
    /// These bits.
    Constant(Vec<u64>),
}

/// The tables of a kernel.
#[derive(Default)]
pub struct Tables {
    tables: Vec<(Type, TableSource)>,
}

impl Tables {
    /// The tables of a parameter, one for each scalar of an element.
    pub fn parameter(&mut self, parameter: usize, layout: &Layout) -> Node {
        self.node(layout, (0..layout.scalars()).collect(), &mut |positions| TableSource::Parameter {
            parameter,
            positions,
        })
    }

    /// The tables of a constant array, the same ones if it has been there before.
    pub fn of_constant(&mut self, layout: &Layout, values: &[u64]) -> Node {
        self.node(layout, (0..layout.scalars()).collect(), &mut |positions| {
            TableSource::Constant(positions.into_iter().map(|position| values[position]).collect())
        })
    }

    /// Positions are those of the first scalar of `layout` in all elements, followed by the others of each.
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

    /// The element of a table whose contents are known.
    pub fn constant(&self, table: u16, at: u64) -> Option<u64> {
        match &self.tables.get(usize::from(table))?.1 {
            TableSource::Constant(values) => values.get(usize::try_from(at).ok()?).copied(),
            TableSource::Parameter { .. } => None,
        }
    }

    /// The declarations.
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

    /// Where they come from.
    pub fn sources(self) -> Vec<TableSource> {
        self.tables.into_iter().map(|(_, source)| source).collect()
    }
}
