//! The intermediate representation of kernels: registers, declarations of memory, and operations.

use std::sync::Arc;

use super::ScalarFunction;
use crate::expr::{Binary, Type, Unary};

/// A register: a mutable variable of an item (a GPU thread). The number is an index into [`Body::registers`],
/// the list of the registers' types.
///
/// ```
/// use backend_api::kernel::{Op, Reg};
/// assert_eq!((Op::Copy { to: Reg(1), of: Reg(0) }.written(), Reg(7).at()), (Some(Reg(1)), 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

impl Reg {
    /// Returns the index in [`Body::registers`].
    #[must_use]
    #[inline]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// The sharing of a local array: each item (GPU thread) has its own, or the items of a group share one.
///
/// ```
/// use backend_api::kernel::{ArrayDecl, Space, Type};
/// let tile = ArrayDecl { space: Space::Group, of: Type::F32, len: 256 };
/// assert_eq!(tile.bytes(), 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Each item has an array of its own.
    Item,
    /// The items of a group share one array. If items race to write an element, the element gets one of their
    /// values; other elements stay unchanged.
    Group,
}

/// The kind of access of a kernel to a view (an array in device memory).
///
/// ```
/// use backend_api::kernel::{Access, Memory, Type, ViewDecl};
/// let image = ViewDecl { access: Access::Read, fields: vec![(0, Memory::Value(Type::F32))] };
/// let tiles = ViewDecl { access: Access::Write { tile: 4 }, ..image.clone() };
/// assert!(!image.access.is_written() && tiles.access.is_written());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Loads of any element, by its index in the view.
    Read,
    /// Loads and stores of the item's own tile: the `tile` elements of the view from index `item * tile` on.
    /// The kernel's indices count from the start of the tile, so an item cannot access another item's tile.
    Write {
        /// Number of elements of a tile; at least 1.
        tile: u32,
    },
    /// Loads, stores and atomics of any element, by its index in the view. If two items store to the same
    /// field of an element, the field gets one of the two values.
    Atomic,
    /// Stores to any element, and no loads. The kernel assigns each element to one item by an atomic, such as
    /// a counter in another view. If two items store to an element, it gets one of the two values.
    Append,
}

impl Access {
    /// Returns true if a launch can change the view.
    #[must_use]
    pub const fn is_written(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// Representation of a value in device memory.
///
/// ```
/// use backend_api::kernel::{Memory, Type};
/// assert_eq!((Memory::Value(Type::I16).bytes(), Memory::Value(Type::I16).value()), (2, Type::I16));
/// assert_eq!((Memory::F16.bytes(), Memory::F16.value()), (2, Type::F32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The value's own bits. The type is not bool.
    Value(Type),
    /// A half-precision float; loads convert it to `F32`, and stores convert it from `F32`.
    F16,
}

impl Memory {
    /// The length in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Value(of) => of.bytes(),
            Self::F16 => 2,
        }
    }

    /// Returns the type of the register that holds a loaded value.
    #[must_use]
    pub const fn value(self) -> Type {
        match self {
            Self::Value(of) => of,
            Self::F16 => Type::F32,
        }
    }
}

/// Declaration of an array of an item (GPU thread) or of a group of items. Elements are initially zero.
///
/// ```
/// use backend_api::kernel::{ArrayDecl, Space, Type};
/// assert_eq!(ArrayDecl { space: Space::Item, of: Type::U16, len: 9 }.bytes(), 18);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrayDecl {
    /// The sharing of the array: by the items (GPU threads) of a group, or not at all.
    pub space: Space,
    /// The type of the elements.
    pub of: Type,
    /// The number of elements; at least 1.
    pub len: u32,
}

impl ArrayDecl {
    /// The length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.len as u64 * self.of.bytes() as u64
    }
}

/// Declaration of a table: an array of constants that a launch passes as bytes; see [`Body::table_offset`].
///
/// ```
/// use backend_api::kernel::{Body, Memory, TableDecl, Type};
/// let weights = TableDecl { of: Memory::Value(Type::F32), len: 17 };
/// let body = Body { tables: vec![weights, weights], ..Body::default() };
/// assert_eq!((weights.bytes(), body.table_offset(1), body.table_bytes()), (68, 72, 144));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableDecl {
    /// Representation of each element; the elements are contiguous.
    pub of: Memory,
    /// The number of elements; at least 1.
    pub len: u32,
}

impl TableDecl {
    /// The length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.len as u64 * self.of.bytes() as u64
    }
}

/// Declaration of a view: an array of elements in device memory that a launch passes.
///
/// ```
/// use backend_api::kernel::{Access, Memory, Type, ViewDecl};
/// // Two fields of a struct: an `f64` at byte 8, and a half-precision float at byte 16.
/// let fields = vec![(8, Memory::Value(Type::F64)), (16, Memory::F16)];
/// assert_eq!(ViewDecl { access: Access::Read, fields }.extent(), 18);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewDecl {
    /// Kind of the kernel's access to the view.
    pub access: Access,
    /// Fields of an element that the kernel accesses: the offset in bytes and the representation of each.
    pub fields: Vec<(u32, Memory)>,
}

impl ViewDecl {
    /// Minimum size of an element in bytes: the end of its last field.
    #[must_use]
    pub fn extent(&self) -> u64 {
        let ends = self.fields.iter().map(|(offset, of)| u64::from(*offset) + u64::from(of.bytes()));
        ends.max().unwrap_or(0)
    }
}

/// A built-in value of an item (a GPU thread), such as its number. `Live` is a bool; all others are `U64`.
///
/// ```
/// use backend_api::kernel::{Builtin, Type};
/// assert_eq!((Builtin::Item.gives(), Builtin::Live.gives()), (Type::U64, Type::Bool));
/// assert!(Builtin::Group.is_of_group() && !Builtin::Index.is_of_group());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// Number of the item in the launch, from 0 on.
    Item,
    /// Index of the item's element, which the launch's [`Geometry`](crate::expr::Geometry) determines.
    Index,
    /// Number of the item in its group, from 0 on.
    InGroup,
    /// Index of the item's group.
    Group,
    /// Number of groups of the launch.
    Groups,
    /// True if the item belongs to the launch; false for an item that only completes the last group.
    Live,
}

impl Builtin {
    /// All built-in values.
    pub const ALL: [Self; 6] =
        [Self::Item, Self::Index, Self::InGroup, Self::Group, Self::Groups, Self::Live];

    /// Returns the type of the value.
    #[must_use]
    pub const fn gives(self) -> Type {
        match self {
            Self::Live => Type::Bool,
            _ => Type::U64,
        }
    }

    /// Returns true if the value exists only in kernels with groups (thread blocks).
    #[must_use]
    pub const fn is_of_group(self) -> bool {
        matches!(self, Self::InGroup | Self::Group | Self::Groups)
    }
}

/// The target of an atomic: a field of a view's element, or an element of an array of a group (thread block).
///
/// ```
/// use backend_api::kernel::{Place, Reg};
/// let bin = Place::Array { array: 0, at: Reg(2) };
/// assert_eq!(bin.at(), Reg(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A field of an element of a view with [`Access::Atomic`]. The field has the operand's type.
    View {
        /// Index of the view.
        view: u16,
        /// Register with the index of the element, a `U64`.
        at: Reg,
        /// Offset of the field in the element, in bytes.
        offset: u32,
    },
    /// An element of an array that the items of a group share.
    Array {
        /// The index of the array.
        array: u16,
        /// Register with the index of the element, a `U64`.
        at: Reg,
    },
}

impl Place {
    /// Returns the register with the index of the element.
    #[must_use]
    pub const fn at(self) -> Reg {
        match self {
            Self::View { at, .. } | Self::Array { at, .. } => at,
        }
    }
}

/// Scope of an atomic: the items (GPU threads) for which the atomic is a single step.
///
/// ```
/// use backend_api::kernel::Scope;
/// assert!(Scope::Group < Scope::Device && Scope::Device < Scope::System);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The items of the same group.
    Group,
    /// All items that run on the device.
    Device,
    /// All items on this device and on other devices that map the memory.
    System,
}

/// The operation of an atomic: a relaxed read-modify-write, an acquiring read, or a releasing write.
///
/// If an item (GPU thread) *acquires* a value that another item has *released*, it then sees all writes that
/// the other item had made or seen before. If the releasing item had passed a barrier, this includes all
/// writes of its group before the barrier.
///
/// ```
/// use backend_api::kernel::{Reg, Rmw, Type};
/// assert!(Rmw::Add.takes(Type::F32) && !Rmw::Max.takes(Type::F32) && !Rmw::Add.takes(Type::U16));
/// assert!(Rmw::Acquire.takes(Type::F64) && Rmw::Exchange.takes(Type::F32));
/// assert!(Rmw::CompareExchange { expected: Reg(0) }.takes(Type::U64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rmw {
    /// Stores the sum of the old value and the operand.
    Add,
    /// Stores the smaller of the old value and the operand.
    Min,
    /// Stores the larger of the old value and the operand.
    Max,
    /// Stores the bitwise and of the old value and the operand.
    And,
    /// Stores the bitwise or of the old value and the operand.
    Or,
    /// Stores the bitwise exclusive or of the old value and the operand.
    Xor,
    /// Stores the operand.
    Exchange,
    /// Stores the operand if the old value equals `expected`.
    CompareExchange {
        /// Register with the required old value.
        expected: Reg,
    },
    /// An acquiring read: returns the value and changes nothing. The operand only determines the type.
    Acquire,
    /// A releasing write: stores the operand. The atomic has no result register.
    Release,
}

impl Rmw {
    /// Returns true if the operation exists for values of this type: 32-bit and 64-bit integers, and floats
    /// only for `Add`, `Exchange`, `Acquire` and `Release`.
    #[must_use]
    pub const fn takes(self, of: Type) -> bool {
        match of {
            Type::U32 | Type::U64 | Type::I32 | Type::I64 => true,
            Type::F32 | Type::F64 => {
                matches!(self, Self::Add | Self::Exchange | Self::Acquire | Self::Release)
            }
            _ => false,
        }
    }
}

/// An operation across the items of a subgroup: 32 consecutive items (GPU threads) of a group (a warp in
/// CUDA). An item's *lane* is its number in the group modulo 32.
///
/// ```
/// use backend_api::kernel::{Binary, SubgroupOp, Type};
/// assert_eq!(SubgroupOp::Ballot.gives(Type::Bool), Some(Type::U32));
/// assert_eq!(SubgroupOp::Reduce(Binary::Add).gives(Type::F32), Some(Type::F32));
/// assert_eq!(SubgroupOp::Scan(Binary::Sub).gives(Type::F32), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubgroupOp {
    /// Returns the value of another lane.
    Shuffle {
        /// Register with the lane, a `U32`, taken modulo 32.
        lane: Reg,
    },
    /// Returns the value of the lane `own lane ^ mask`; the mask is less than 32.
    ShuffleXor(u8),
    /// Returns a `U32` with one bit for each lane: the lane's bool.
    Ballot,
    /// Returns a `U32` with one bit for each lane: 1 if the lowest bits of the lane's `U32` equal the lowest
    /// bits of the item's own `U32`.
    Alike {
        /// Number of bits that are compared, 1 to 32.
        bits: u8,
    },
    /// Returns the item's own value, after all lanes have reached the operation. Accesses of the lanes to the
    /// group's arrays before the operation take effect before all accesses after it.
    Sync,
    /// Returns true if a bool is true in any lane.
    Any,
    /// Returns true if a bool is true in all lanes.
    All,
    /// Combines the values of all lanes by `Add`, `Min`, `Max`, `And`, `Or` or `Xor`.
    Reduce(Binary),
    /// Prefix combination: combines the values of the lanes up to and including the item's own lane, by the
    /// operations of `Reduce`.
    Scan(Binary),
}

impl SubgroupOp {
    /// Type of the result for operands of this type; `None` if the operation does not exist for the type.
    #[must_use]
    pub const fn gives(self, of: Type) -> Option<Type> {
        match self {
            Self::Shuffle { .. } | Self::Sync => Some(of),
            Self::ShuffleXor(mask) => {
                if mask < 32 {
                    Some(of)
                } else {
                    None
                }
            }
            Self::Ballot if matches!(of, Type::Bool) => Some(Type::U32),
            Self::Alike { bits: 1..=32 } if matches!(of, Type::U32) => Some(Type::U32),
            Self::Any | Self::All if matches!(of, Type::Bool) => Some(Type::Bool),
            Self::Ballot | Self::Alike { .. } | Self::Any | Self::All => None,
            Self::Reduce(op) | Self::Scan(op) => {
                use Binary::{Add, And, Max, Min, Or, Xor};
                if matches!(op, Add | Min | Max | And | Or | Xor) && op.takes(of) { Some(of) } else { None }
            }
        }
    }
}

/// An operation of a kernel. `to` is the register for the result; "the type" is the type of this register.
/// Indices have the type `U64`.
///
/// ```
/// use backend_api::kernel::{Op, Reg};
/// let step = Op::Copy { to: Reg(0), of: Reg(1) };
/// let looped = Op::Loop { body: vec![step, Op::Break { out: 0 }] };
/// assert_eq!((looped.count(), looped.written(), looped.within()[0].len()), (3, None, 2));
/// let mut read = Vec::new();
/// Op::Fma { to: Reg(3), a: Reg(0), b: Reg(1), c: Reg(2) }.each_read(|reg| read.push(reg.0));
/// assert_eq!(read, [0, 1, 2]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields: `to` is the written register; the operation describes the others")]
pub enum Op {
    /// A constant, given by its bits.
    Literal { to: Reg, bits: u64 },
    /// The launch's parameter with the index `number`.
    Param { to: Reg, number: u16 },
    /// A built-in value of the item.
    Builtin { to: Reg, what: Builtin },
    /// A copy of another register of the same type.
    Copy { to: Reg, of: Reg },
    /// An operation on the value of one register, `of`.
    Unary { op: Unary, to: Reg, of: Reg },
    /// An operation on two values of one type. The result has the same type, or is a bool for a
    /// comparison.
    Binary { op: Binary, to: Reg, left: Reg, right: Reg },
    /// The upper half of the product of two integers of the type.
    MulHigh { to: Reg, left: Reg, right: Reg },
    /// `a * b + c` of floats of the type, rounded once.
    Fma { to: Reg, a: Reg, b: Reg, c: Reg },
    /// One of two values of the type: `yes` if the bool `when` is true, else `no`.
    Select { to: Reg, when: Reg, yes: Reg, no: Reg },
    /// A value converted to another type of number. Bools become 0 and 1; no value becomes a bool.
    Cast { to: Reg, of: Reg },
    /// The bits of a number, reinterpreted as a number of another type of the same length.
    Bits { to: Reg, of: Reg },
    /// A load of a declared field of a view's element. In a view with [`Access::Write`], the index `at`
    /// counts from the start of the item's tile.
    Load { to: Reg, view: u16, at: Reg, offset: u32, of: Memory },
    /// True if `bytes` equals the bytes of an element from `offset` on; 1 to
    /// [`Search::VALUE_MAX_BYTES`](crate::Search::VALUE_MAX_BYTES) bytes. Only bodies of expression
    /// [programs](crate::expr::Program) have this operation, each at most once.
    FieldEquals { to: Reg, view: u16, at: Reg, offset: u32, bytes: Arc<[u8]> },
    /// A store to a declared field of a view's element: in the item's tile if the view has [`Access::Write`],
    /// and anywhere if it has [`Access::Append`] or [`Access::Atomic`].
    Store { view: u16, at: Reg, offset: u32, of: Memory, value: Reg },
    /// A load of an element of a constant table.
    Lookup { to: Reg, table: u16, at: Reg },
    /// A load of an element of a local array.
    Get { to: Reg, array: u16, at: Reg },
    /// A store to an element of a local array.
    Put { array: u16, at: Reg, value: Reg },
    /// An atomic change of one element. The result is the old value, or 0 if the index is out of bounds. The
    /// order of items is unspecified, so a device may merge several changes.
    Atomic { op: Rmw, to: Option<Reg>, place: Place, value: Reg, scope: Scope },
    /// An allocation of `bytes` bytes (a `U64`) from the item's private heap. The result is the offset of the
    /// allocated bytes, a `U64` and a multiple of 8. If the private heap has too few bytes left, the item
    /// fails, and every access to the result is out of bounds.
    PrivateAlloc { to: Reg, bytes: Reg },
    /// A load of a number, not a bool, from allocated bytes of the private heap. `at` is a `U64` and a
    /// multiple of the number's length; any other value is out of bounds.
    PrivateLoad { to: Reg, at: Reg },
    /// A store of a number to allocated bytes of the private heap, by the rules of `PrivateLoad`.
    PrivateStore { at: Reg, value: Reg },
    /// Marks the item as failed, with a `U64` as detail for the launch's report. The item continues.
    Fail { code: u16, detail: Reg },
    /// Runs `then` if the bool `when` is true, else `otherwise`.
    If { when: Reg, then: Vec<Op>, otherwise: Vec<Op> },
    /// A block: code that `Break` can leave.
    Block { body: Vec<Op> },
    /// A loop: code that repeats until `Break` leaves it.
    Loop { body: Vec<Op> },
    /// A jump to the end of the enclosing block or loop number `out`, counted from 0 for the innermost.
    Break { out: u16 },
    /// A jump to the next iteration of the enclosing loop number `out`, counted from 0 for the innermost
    /// block or loop.
    Continue { out: u16 },
    /// A barrier: the item waits until all items of its group arrive.
    Barrier,
    /// An operation across the lanes of a subgroup (32 items).
    Subgroup { how: SubgroupOp, to: Reg, of: Reg },
    /// A call of a scalar function. Only bodies of expression [programs](crate::expr::Program) have calls;
    /// kernels contain the code of their functions.
    Call { to: Reg, function: ScalarFunction, arguments: Vec<Reg> },
}

/// Calls `$visit` with a reference to each register that an operation reads, without nested operations. If
/// `$op` is a shared reference, so are the references to registers; else all are exclusive.
macro_rules! each_read {
    ($op:expr, $visit:ident) => {
        match $op {
            Op::Literal { .. }
            | Op::Param { .. }
            | Op::Builtin { .. }
            | Op::Block { .. }
            | Op::Loop { .. }
            | Op::Break { .. }
            | Op::Continue { .. }
            | Op::Barrier => {}
            Op::Copy { of: at, .. }
            | Op::Unary { of: at, .. }
            | Op::Cast { of: at, .. }
            | Op::Bits { of: at, .. }
            | Op::Load { at, .. }
            | Op::FieldEquals { at, .. }
            | Op::Lookup { at, .. }
            | Op::Get { at, .. }
            | Op::PrivateLoad { at, .. }
            | Op::PrivateAlloc { bytes: at, .. }
            | Op::Fail { detail: at, .. }
            | Op::If { when: at, .. } => $visit(at),
            Op::Binary { left: a, right: b, .. }
            | Op::MulHigh { left: a, right: b, .. }
            | Op::Store { at: a, value: b, .. }
            | Op::Put { at: a, value: b, .. }
            | Op::PrivateStore { at: a, value: b } => {
                $visit(a);
                $visit(b);
            }
            Op::Fma { a, b, c, .. } | Op::Select { when: a, yes: b, no: c, .. } => {
                $visit(a);
                $visit(b);
                $visit(c);
            }
            Op::Atomic { op, place, value, .. } => {
                let (Place::View { at, .. } | Place::Array { at, .. }) = place;
                $visit(at);
                $visit(value);
                if let Rmw::CompareExchange { expected } = op {
                    $visit(expected);
                }
            }
            Op::Subgroup { how, of, .. } => {
                $visit(of);
                if let SubgroupOp::Shuffle { lane } = how {
                    $visit(lane);
                }
            }
            Op::Call { arguments, .. } => {
                for register in arguments {
                    $visit(register);
                }
            }
        }
    };
}

/// Returns a reference to the register that an operation writes, if any. `$as` is `as_ref` or `as_mut`.
macro_rules! written {
    ($op:expr, $as:ident) => {
        match $op {
            Op::Literal { to, .. }
            | Op::Param { to, .. }
            | Op::Builtin { to, .. }
            | Op::Copy { to, .. }
            | Op::Unary { to, .. }
            | Op::Binary { to, .. }
            | Op::MulHigh { to, .. }
            | Op::Fma { to, .. }
            | Op::Select { to, .. }
            | Op::Cast { to, .. }
            | Op::Bits { to, .. }
            | Op::Load { to, .. }
            | Op::FieldEquals { to, .. }
            | Op::Lookup { to, .. }
            | Op::Get { to, .. }
            | Op::PrivateAlloc { to, .. }
            | Op::PrivateLoad { to, .. }
            | Op::Subgroup { to, .. }
            | Op::Call { to, .. } => Some(to),
            Op::Atomic { to, .. } => to.$as(),
            Op::Store { .. }
            | Op::Put { .. }
            | Op::PrivateStore { .. }
            | Op::Fail { .. }
            | Op::If { .. }
            | Op::Block { .. }
            | Op::Loop { .. }
            | Op::Break { .. }
            | Op::Continue { .. }
            | Op::Barrier => None,
        }
    };
}

impl Op {
    /// Returns the register that the operation writes, if any.
    #[must_use]
    #[inline]
    pub const fn written(&self) -> Option<Reg> {
        match written!(self, as_ref) {
            Some(to) => Some(*to),
            None => None,
        }
    }

    /// Calls `visit` for each register that this operation reads; does not visit nested operations.
    pub fn each_read(&self, mut visit: impl FnMut(Reg)) {
        let mut visit = |register: &Reg| visit(*register);
        each_read!(self, visit);
    }

    /// Calls `visit` with each register of this operation; `visit` may replace the register. First come the
    /// registers that the operation reads, with `false`, then the register that it writes, with `true`. Does
    /// not visit nested operations.
    pub fn each_register_mut(&mut self, mut visit: impl FnMut(&mut Reg, bool)) {
        let mut read = |register: &mut Reg| visit(register, false);
        each_read!(&mut *self, read);
        if let Some(to) = written!(self, as_mut) {
            visit(to, true);
        }
    }

    /// Returns true if the operation computes its result from registers alone, and has no other effect.
    #[must_use]
    pub const fn is_value(&self) -> bool {
        matches!(
            self,
            Self::Copy { .. }
                | Self::Unary { .. }
                | Self::Binary { .. }
                | Self::MulHigh { .. }
                | Self::Fma { .. }
                | Self::Select { .. }
                | Self::Cast { .. }
                | Self::Bits { .. }
        )
    }

    /// Returns the nested code: both branches of an `If`, or the body of a `Block` or `Loop` and an empty
    /// slice.
    #[must_use]
    pub fn within(&self) -> [&[Self]; 2] {
        match self {
            Self::If { then, otherwise, .. } => [then, otherwise],
            Self::Block { body } | Self::Loop { body } => [body, &[]],
            _ => [&[], &[]],
        }
    }

    /// Returns the number of operations: this operation and all nested ones.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.within().into_iter().flatten().map(Self::count).sum::<usize>()
    }
}

/// The body of a kernel: its operations, and the declarations of the registers and memory that they use.
///
/// ```
/// use backend_api::kernel::{Access, Body, Builtin, Memory, Op, Reg, Type, ViewDecl};
/// // out[i] = i
/// let of = Memory::Value(Type::U64);
/// let body = Body {
///     registers: vec![Type::U64, Type::U64],
///     views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
///     code: vec![
///         Op::Builtin { to: Reg(0), what: Builtin::Item },
///         Op::Literal { to: Reg(1), bits: 0 },
///         Op::Store { view: 0, at: Reg(1), offset: 0, of, value: Reg(0) },
///     ],
///     ..Body::default()
/// };
/// assert!(body.verify().is_ok());
/// let mut sites = Vec::new();
/// body.operations(|site, op| sites.push((site, op.written())));
/// assert_eq!(sites, [(0, Some(Reg(0))), (1, Some(Reg(1))), (2, None)]);
/// assert!(body.operation(1) == Some(&body.code[1]) && !body.has_loops());
/// assert_eq!((body.type_of(Reg(0)), body.table_offset(0), body.table_bytes()), (Some(Type::U64), 0, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Body {
    /// The type of each register.
    pub registers: Vec<Type>,
    /// The type of each parameter of the launch.
    pub params: Vec<Type>,
    /// Views: the arrays in device memory that the kernel accesses.
    pub views: Vec<ViewDecl>,
    /// Tables of constants that the kernel reads.
    pub tables: Vec<TableDecl>,
    /// Arrays that are local to an item (GPU thread) or to a group of items.
    pub arrays: Vec<ArrayDecl>,
    /// Number of items (GPU threads) of a group; `None` for a kernel without groups.
    pub group_len: Option<u32>,
    /// Number of groups that a multiprocessor of a GPU should hold at once, 1 to 32; `None` for the device's
    /// choice. A compiler limits the registers of the items for it. The results do not depend on it.
    pub resident_groups: Option<u32>,
    /// Operations, in the order of execution.
    pub code: Vec<Op>,
}

impl Body {
    /// Maximum number of operations of a kernel body, including nested ones.
    pub const OPERATIONS_MAX: usize = 65_536;
    /// Maximum number of registers of a kernel body.
    pub const REGISTERS_MAX: usize = 65_536;
    /// Maximum nesting depth of `If`, `Block` and `Loop`.
    pub const DEPTH_MAX: usize = 128;
    /// Maximum number of parameters of a kernel body.
    pub const PARAMS_MAX: usize = 64;
    /// Maximum number of views of a kernel body.
    pub const VIEWS_MAX: usize = 16;
    /// Maximum size of all [tables](Self::tables) together, in bytes.
    pub const TABLE_BYTES_MAX: u64 = 64 << 10;
    /// Maximum size of all [arrays](Self::arrays) of one item (GPU thread) together, in bytes.
    pub const ITEM_BYTES_MAX: u64 = 8 << 10;
    /// Maximum size of all [arrays](Self::arrays) of one group (thread block) together, in bytes.
    pub const GROUP_BYTES_MAX: u64 = 48 << 10;
    /// Maximum number of items (GPU threads) of a group.
    pub const GROUP_LEN_MAX: u32 = 1024;

    /// Returns the type of a register; `None` if the body does not have the register.
    #[must_use]
    pub fn type_of(&self, register: Reg) -> Option<Type> {
        self.registers.get(register.at()).copied()
    }

    /// Returns the offset of a table in bytes, in the table contents that a launch passes. The tables follow
    /// one another in the order of declaration, each at a multiple of 8.
    #[must_use]
    pub fn table_offset(&self, table: usize) -> u64 {
        self.tables.iter().take(table).map(|table| table.bytes().next_multiple_of(8)).sum()
    }

    /// Returns the size in bytes of all tables together, as a launch passes them.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.table_offset(self.tables.len())
    }

    /// Calls `visit` for each operation with its number (*site*). Operations are numbered in the order of the
    /// code; an operation precedes its nested code.
    pub fn operations(&self, mut visit: impl FnMut(u32, &Op)) {
        fn walk(code: &[Op], site: &mut u32, visit: &mut impl FnMut(u32, &Op)) {
            for op in code {
                visit(*site, op);
                *site += 1;
                op.within().into_iter().for_each(|within| walk(within, site, visit));
            }
        }
        walk(&self.code, &mut 0, &mut visit);
    }

    /// Returns true if the body has loops.
    #[must_use]
    pub fn has_loops(&self) -> bool {
        let mut has_loops = false;
        self.operations(|_, op| has_loops |= matches!(op, Op::Loop { .. }));
        has_loops
    }

    /// Returns the operation with the number `site`; `None` if the body has fewer operations.
    #[must_use]
    pub fn operation(&self, site: u32) -> Option<&Op> {
        fn find(code: &[Op], mut left: usize) -> Option<&Op> {
            for op in code {
                if left == 0 {
                    return Some(op);
                }
                let count = op.count();
                if left >= count {
                    left -= count;
                    continue;
                }
                left -= 1;
                let [first, second] = op.within();
                let first_count = first.iter().map(Op::count).sum();
                return if left < first_count { find(first, left) } else { find(second, left - first_count) };
            }
            None
        }
        find(&self.code, site as usize)
    }
}
