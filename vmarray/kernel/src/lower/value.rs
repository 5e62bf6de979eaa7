//! Kernel values during lowering: each consists of scalars in constants, registers, local arrays or views.

use crate::layout::Layout;
use backend_api::kernel::{Reg, Type};

/// A scalar operand of an operation: a constant or a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarOperand {
    /// A constant: its type, and its bits.
    Constant(Type, u64),
    /// The current value of a register.
    Register(Reg),
}

/// The storage location of one scalar of a kernel value.
#[derive(Clone, Debug)]
pub enum Leaf {
    /// The scalar is computed, and has no storage location.
    Value(ScalarOperand),
    /// The scalar is in a register that later code may write again.
    Variable(Reg),
    /// The scalar is in a local array, at the value's index.
    Element(Type, u16),
    /// The scalar is in a constant table, at the value's index.
    Table(Type, u16),
    /// The scalar is in a view's element, at the value's index: the type, the view, and the offset in bytes.
    Field(Type, u16, u32),
    /// The scalar is in the private heap, at a distance in bytes from the value's index.
    PrivateHeap(Type, u32),
}

/// The storage locations of all scalars of a kernel value.
#[derive(Clone, Debug)]
pub enum Node {
    /// One scalar.
    Leaf(Leaf),
    /// The parts of a tuple or struct.
    Parts(Vec<Self>),
    /// An array: the number of its elements, and the storage of one element.
    Array(usize, Box<Self>),
    /// A view, by its number; it has no scalars.
    View(usize),
    /// Elements in the private heap; this node has no scalars itself.
    Allocated(Box<Allocated>),
}

/// Elements that an item (GPU thread) has allocated in its private heap.
#[derive(Clone, Debug)]
pub struct Allocated {
    /// Address of the first element in the private heap.
    pub base: ScalarOperand,
    /// The number of allocated elements.
    pub len: ScalarOperand,
    /// The element type.
    pub layout: Layout,
}

/// The kind of bounds check that an index needs.
#[derive(Clone, Copy, Debug)]
pub enum BoundsCheck {
    /// No check, because the index is within bounds.
    Proven,
    /// No separate check, because the access itself checks the index.
    ByAccess,
    /// A bool that is true if the index is within bounds.
    By(ScalarOperand),
}

/// The index of an element in an array, a table, a view or the private heap.
#[derive(Clone, Copy, Debug)]
pub struct ElementIndex {
    pub at: ScalarOperand,
    /// The number of elements of the indexed array.
    pub len: usize,
    pub check: BoundsCheck,
}

/// A kernel value during lowering, or a storage location that holds a value.
#[derive(Clone, Debug)]
pub struct LoweredValue {
    pub layout: Layout,
    pub node: Node,
    /// The index of the element that contains the value, in an array, a table, a view or the private heap;
    /// else `None`.
    pub index: Option<ElementIndex>,
    /// True if this is a reference to a storage location, not a copy of the value there.
    pub is_reference: bool,
    /// True if other code may change the arrays that store the value.
    pub is_shared: bool,
    /// True if no other value uses this value's arrays, so that a variable can take over the arrays.
    pub is_fresh: bool,
}

impl LoweredValue {
    /// Creates a value that is one computed scalar.
    pub fn scalar(of: Type, operand: ScalarOperand) -> Self {
        Self::new(Layout::Scalar(of), Node::Leaf(Leaf::Value(operand)))
    }

    /// Creates a value with all flags false and no index.
    pub const fn new(layout: Layout, node: Node) -> Self {
        Self { layout, node, index: None, is_reference: false, is_shared: false, is_fresh: false }
    }

    /// Returns the value of the type `()`.
    pub const fn unit() -> Self {
        Self::new(Layout::UNIT, Node::Parts(Vec::new()))
    }

    /// Returns the same value, marked as not sharing its storage with another value.
    pub fn fresh(self) -> Self {
        Self { is_shared: false, is_fresh: true, ..self }
    }

    /// Returns part `number` of a tuple or struct; `None` for other values, or if this part does not exist.
    pub fn part(&self, number: usize) -> Option<Self> {
        let Node::Parts(parts) = &self.node else { return None };
        let layout = (*self.layout.parts().get(number)?).clone();
        Some(Self { layout, node: parts.get(number)?.clone(), is_reference: false, ..self.clone() })
    }

    /// Returns true if the value contains arrays.
    pub fn has_arrays(&self) -> bool {
        self.node.has_arrays()
    }
}

impl Node {
    /// Returns the storage location of the first scalar; `None` if the value has no scalars.
    pub fn first(&self) -> Option<&Leaf> {
        match self {
            Self::Leaf(leaf) => Some(leaf),
            Self::Parts(parts) => parts.iter().find_map(Self::first),
            Self::Array(_, element) => element.first(),
            Self::View(_) | Self::Allocated(_) => None,
        }
    }

    /// Returns true if the node contains arrays.
    fn has_arrays(&self) -> bool {
        match self {
            Self::Array(..) => true,
            Self::Parts(parts) => parts.iter().any(Self::has_arrays),
            Self::Leaf(_) | Self::View(_) | Self::Allocated(_) => false,
        }
    }

    /// Adds `by` bytes to the offset of each scalar that is in a view (array) or in the private heap.
    pub fn shifted(self, by: u32) -> Self {
        match self {
            Self::Leaf(Leaf::Field(of, view, offset)) => Self::Leaf(Leaf::Field(of, view, offset + by)),
            Self::Leaf(Leaf::PrivateHeap(of, offset)) => Self::Leaf(Leaf::PrivateHeap(of, offset + by)),
            Self::Leaf(leaf) => Self::Leaf(leaf),
            Self::Parts(parts) => Self::Parts(parts.into_iter().map(|part| part.shifted(by)).collect()),
            Self::Array(len, element) => Self::Array(len, Box::new(element.shifted(by))),
            other @ (Self::View(_) | Self::Allocated(_)) => other,
        }
    }

    /// Returns the storage locations of the scalars of a value, at byte `offset` in an element of `view`.
    pub fn of_element(layout: &Layout, view: u16, offset: usize) -> Self {
        Self::in_memory(layout, offset, &|of, offset| Leaf::Field(of, view, offset))
    }

    /// Returns the storage locations of an element in memory: `leaf` creates the location of each scalar.
    pub fn in_memory(layout: &Layout, offset: usize, leaf: &impl Fn(Type, u32) -> Leaf) -> Self {
        match layout {
            Layout::Scalar(of) => Self::Leaf(leaf(*of, offset as u32)),
            Layout::Array(of, len) => Self::Array(*len, Box::new(Self::in_memory(of, offset, leaf))),
            Layout::Struct { fields, .. } => Self::Parts(
                fields
                    .iter()
                    .map(|field| Self::in_memory(&field.layout, offset + field.offset, leaf))
                    .collect(),
            ),
            Layout::Tuple(_) => Self::Parts(Vec::new()),
        }
    }
}
