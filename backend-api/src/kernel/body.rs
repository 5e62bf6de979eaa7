//! The parts of kernels: registers, declarations and operations.

use crate::expr::{Binary, Type, Unary};

/// A register: a variable of the item. [`Body::registers`] holds its type under the same number.
///
/// ```
/// use backend_api::kernel::{Op, Reg};
/// assert_eq!((Op::Copy { to: Reg(1), of: Reg(0) }.written(), Reg(7).at()), (Some(Reg(1)), 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

impl Reg {
    /// The index among the registers.
    #[must_use]
    #[inline]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// The items that share an array.
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
    /// All items of a group share one array. A race leaves one of the racing values, and never changes
    /// another element.
    Group,
}

/// A kernel's access to a view.
///
/// ```
/// use backend_api::kernel::{Access, Memory, Type, ViewDecl};
/// let image = ViewDecl { access: Access::Read, fields: vec![(0, Memory::Value(Type::F32))] };
/// let tiles = ViewDecl { access: Access::Write { tile: 4 }, ..image.clone() };
/// assert!(!image.access.is_written() && tiles.access.is_written());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Loads of any element; indices are numbers of elements.
    Read,
    /// Loads and stores of the item's own tile: the `tile` elements from `item * tile` on. Indices are
    /// numbers within the tile, so an item cannot reach another item's tile.
    Write {
        /// Elements of a tile; at least 1.
        tile: u32,
    },
    /// Loads and atomics, of any element.
    Atomic,
    /// Stores to any element, and no loads. An atomic assigns each element to one item, such as a counter
    /// in another view that returns the next number. If two items store to one element, one of the two
    /// values stays.
    Append,
}

impl Access {
    /// Returns true if a launch may change the view.
    #[must_use]
    pub const fn is_written(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// The representation of a value in memory.
///
/// ```
/// use backend_api::kernel::{Memory, Type};
/// assert_eq!((Memory::Value(Type::I16).bytes(), Memory::Value(Type::I16).value()), (2, Type::I16));
/// assert_eq!((Memory::F16.bytes(), Memory::F16.value()), (2, Type::F32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The value's own bits; not a bool.
    Value(Type),
    /// A half-precision float, loaded and stored as `F32`.
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

    /// The type of a register that holds the value.
    #[must_use]
    pub const fn value(self) -> Type {
        match self {
            Self::Value(of) => of,
            Self::F16 => Type::F32,
        }
    }
}

/// A local array, zero at first.
///
/// ```
/// use backend_api::kernel::{ArrayDecl, Space, Type};
/// assert_eq!(ArrayDecl { space: Space::Item, of: Type::U16, len: 9 }.bytes(), 18);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrayDecl {
    /// The items that share the array.
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

/// A row of constant elements that a launch passes: see [`Body::table_offset`].
///
/// ```
/// use backend_api::kernel::{Body, Memory, TableDecl, Type};
/// let weights = TableDecl { of: Memory::Value(Type::F32), len: 17 };
/// let body = Body { tables: vec![weights, weights], ..Body::default() };
/// assert_eq!((weights.bytes(), body.table_offset(1), body.table_bytes()), (68, 72, 144));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableDecl {
    /// The representation of the elements, which are contiguous.
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

/// A row of elements in device memory.
///
/// ```
/// use backend_api::kernel::{Access, Memory, Type, ViewDecl};
/// // Of structures, the `f64` at byte 8 and the half-precision float at byte 16.
/// let fields = vec![(8, Memory::Value(Type::F64)), (16, Memory::F16)];
/// assert_eq!(ViewDecl { access: Access::Read, fields }.extent(), 18);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewDecl {
    /// The kernel's access.
    pub access: Access,
    /// The accessed fields of an element: the offset in bytes, and the representation.
    pub fields: Vec<(u32, Memory)>,
}

impl ViewDecl {
    /// The least number of bytes of an element.
    #[must_use]
    pub fn extent(&self) -> u64 {
        let ends = self.fields.iter().map(|(offset, of)| u64::from(*offset) + u64::from(of.bytes()));
        ends.max().unwrap_or(0)
    }
}

/// A built-in value of an item. All are `U64`, except for `Live`, which is a bool.
///
/// ```
/// use backend_api::kernel::{Builtin, Type};
/// assert_eq!((Builtin::Item.gives(), Builtin::Live.gives()), (Type::U64, Type::Bool));
/// assert!(Builtin::Group.is_of_group() && !Builtin::Index.is_of_group());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// The item's number in the launch.
    Item,
    /// The index of this number; see [`Geometry`](crate::expr::Geometry).
    Index,
    /// The item's number in its group.
    InGroup,
    /// The index of its group.
    Group,
    /// The number of groups.
    Groups,
    /// True if the item belongs to the launch, instead of filling up the last group.
    Live,
}

impl Builtin {
    /// All built-in values.
    pub const ALL: [Self; 6] =
        [Self::Item, Self::Index, Self::InGroup, Self::Group, Self::Groups, Self::Live];

    /// The type of the value.
    #[must_use]
    pub const fn gives(self) -> Type {
        match self {
            Self::Live => Type::Bool,
            _ => Type::U64,
        }
    }

    /// Returns true if the value exists only in kernels that declare the length of a group.
    #[must_use]
    pub const fn is_of_group(self) -> bool {
        matches!(self, Self::InGroup | Self::Group | Self::Groups)
    }
}

/// The target of an atomic: a field of an element, or an element of an array of the group.
///
/// ```
/// use backend_api::kernel::{Place, Reg};
/// let bin = Place::Array { array: 0, at: Reg(2) };
/// assert_eq!(bin.at(), Reg(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A field in a view with [`Access::Atomic`]: at this offset, with the type of the operand.
    View {
        /// The index of the view.
        view: u16,
        /// The index of the element, a `U64`.
        at: Reg,
        /// Bytes from the element's start.
        offset: u32,
    },
    /// An element of an array of the group.
    Array {
        /// The index of the array.
        array: u16,
        /// The index of the element, a `U64`.
        at: Reg,
    },
}

impl Place {
    /// The register with the number of the element.
    #[must_use]
    pub const fn at(self) -> Reg {
        match self {
            Self::View { at, .. } | Self::Array { at, .. } => at,
        }
    }
}

/// The set of items to which an atomic is a single step.
///
/// ```
/// use backend_api::kernel::Scope;
/// assert!(Scope::Group < Scope::Device && Scope::Device < Scope::System);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The group's items.
    Group,
    /// All items on the device.
    Device,
    /// Also items on other devices that map the memory.
    System,
}

/// The operation of an atomic.
///
/// ```
/// use backend_api::kernel::{Reg, Rmw, Type};
/// assert!(Rmw::Add.takes(Type::F32) && !Rmw::Max.takes(Type::F32) && !Rmw::Add.takes(Type::U16));
/// assert!(Rmw::CompareExchange { expected: Reg(0) }.takes(Type::U64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rmw {
    /// Adds.
    Add,
    /// Stores the smaller number.
    Min,
    /// Stores the larger number.
    Max,
    /// Stores the bitwise and.
    And,
    /// Stores the bitwise or.
    Or,
    /// Stores the bitwise exclusive or.
    Xor,
    /// Stores the operand.
    Exchange,
    /// Stores the operand if the old value equals `expected`.
    CompareExchange {
        /// The required old value.
        expected: Reg,
    },
}

impl Rmw {
    /// Returns true if the operation exists for values of this type: of 32 and 64 bits, and floats for
    /// `Add` alone.
    #[must_use]
    pub const fn takes(self, of: Type) -> bool {
        match of {
            Type::U32 | Type::U64 | Type::I32 | Type::I64 => true,
            Type::F32 | Type::F64 => matches!(self, Self::Add),
            _ => false,
        }
    }
}

/// An operation across the 32 lanes of a group's subgroups: an item's lane is its number in the group
/// modulo 32.
///
/// ```
/// use backend_api::kernel::{Binary, SubgroupOp, Type};
/// assert_eq!(SubgroupOp::Ballot.gives(Type::Bool), Some(Type::U32));
/// assert_eq!(SubgroupOp::Reduce(Binary::Add).gives(Type::F32), Some(Type::F32));
/// assert_eq!(SubgroupOp::Scan(Binary::Sub).gives(Type::F32), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubgroupOp {
    /// The value of another lane.
    Shuffle {
        /// The lane, a `U32`, modulo 32.
        lane: Reg,
    },
    /// The value of the lane whose number differs in these bits; the mask is less than 32.
    ShuffleXor(u8),
    /// A mask of bools: a `U32` with one bit for each lane.
    Ballot,
    /// True if a bool is true in any lane.
    Any,
    /// True if it is true in all lanes.
    All,
    /// The combination of all lanes' values: `Add`, `Min`, `Max`, `And`, `Or` or `Xor`.
    Reduce(Binary),
    /// The combination of the values up to the lane's own, which it includes, by the same operations.
    Scan(Binary),
}

impl SubgroupOp {
    /// The type of the result for operands of a type; `None` if the operation does not exist.
    #[must_use]
    pub const fn gives(self, of: Type) -> Option<Type> {
        match self {
            Self::Shuffle { .. } => Some(of),
            Self::ShuffleXor(mask) => {
                if mask < 32 {
                    Some(of)
                } else {
                    None
                }
            }
            Self::Ballot if matches!(of, Type::Bool) => Some(Type::U32),
            Self::Any | Self::All if matches!(of, Type::Bool) => Some(Type::Bool),
            Self::Ballot | Self::Any | Self::All => None,
            Self::Reduce(op) | Self::Scan(op) => {
                use Binary::{Add, And, Max, Min, Or, Xor};
                if matches!(op, Add | Min | Max | And | Or | Xor) && op.takes(of) { Some(of) } else { None }
            }
        }
    }
}

/// One operation. The registers that it names must have the stated types; indices are `U64`.
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
    /// Loads these bits, of the register's type.
    Literal { to: Reg, bits: u64 },
    /// The parameter of this number.
    Param { to: Reg, number: u16 },
    /// A built-in value of the item.
    Builtin { to: Reg, what: Builtin },
    /// The value of another register of the type.
    Copy { to: Reg, of: Reg },
    /// An operation on one value of the type.
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
    /// The bits of a number, reinterpreted as another type of number of the same length.
    Bits { to: Reg, of: Reg },
    /// A declared field of an element of a view. In a view with [`Access::Write`], of an element of the
    /// item's tile.
    Load { to: Reg, view: u16, at: Reg, offset: u32, of: Memory },
    /// A store to a declared field of an element: of the item's tile in a view with [`Access::Write`], of
    /// any element in a view with [`Access::Append`].
    Store { view: u16, at: Reg, offset: u32, of: Memory, value: Reg },
    /// An element of a table.
    Lookup { to: Reg, table: u16, at: Reg },
    /// An element of a local array.
    Get { to: Reg, array: u16, at: Reg },
    /// A store to an element of a local array.
    Put { array: u16, at: Reg, value: Reg },
    /// A change of a place as one step. The result is the old value, or 0 outside of the view or array.
    /// The order of items is unspecified, so a device may merge several changes.
    Atomic { op: Rmw, to: Option<Reg>, place: Place, value: Reg, scope: Scope },
    /// An allocation of `bytes` bytes, a `U64`, of the item's private heap. The result is its start, a `U64`
    /// and a multiple of 8. If the private heap has too few bytes, the item fails, and the result is no valid
    /// place.
    PrivateAlloc { to: Reg, bytes: Reg },
    /// A load of a number, not a bool, from an allocated place of the private heap. The place is a `U64` and
    /// a multiple of the number's length; any other place is outside.
    PrivateLoad { to: Reg, at: Reg },
    /// A store of a number to such a place.
    PrivateStore { at: Reg, value: Reg },
    /// A failure, with a `U64` as detail. The item continues.
    Fail { code: u16, detail: Reg },
    /// One of two pieces of code, selected by a bool.
    If { when: Reg, then: Vec<Op>, otherwise: Vec<Op> },
    /// Code that `Break` can leave.
    Block { body: Vec<Op> },
    /// Code that repeats until `Break` leaves it.
    Loop { body: Vec<Op> },
    /// A jump behind the enclosing block or loop number `out`, the innermost being 0.
    Break { out: u16 },
    /// A jump to the beginning of the enclosing loop number `out`; blocks count.
    Continue { out: u16 },
    /// A wait until all items of the group arrive.
    Barrier,
    /// An operation across lanes.
    Subgroup { how: SubgroupOp, to: Reg, of: Reg },
}

impl Op {
    /// The register that the operation writes.
    #[must_use]
    #[inline]
    pub const fn written(&self) -> Option<Reg> {
        match *self {
            Self::Literal { to, .. }
            | Self::Param { to, .. }
            | Self::Builtin { to, .. }
            | Self::Copy { to, .. }
            | Self::Unary { to, .. }
            | Self::Binary { to, .. }
            | Self::MulHigh { to, .. }
            | Self::Fma { to, .. }
            | Self::Select { to, .. }
            | Self::Cast { to, .. }
            | Self::Bits { to, .. }
            | Self::Load { to, .. }
            | Self::Lookup { to, .. }
            | Self::Get { to, .. }
            | Self::PrivateAlloc { to, .. }
            | Self::PrivateLoad { to, .. }
            | Self::Subgroup { to, .. } => Some(to),
            Self::Atomic { to, .. } => to,
            Self::Store { .. }
            | Self::Put { .. }
            | Self::PrivateStore { .. }
            | Self::Fail { .. }
            | Self::If { .. }
            | Self::Block { .. }
            | Self::Loop { .. }
            | Self::Break { .. }
            | Self::Continue { .. }
            | Self::Barrier => None,
        }
    }

    /// Calls `visit` for each register that the operation itself reads, without nested operations.
    pub fn each_read(&self, mut visit: impl FnMut(Reg)) {
        let mut all = |registers: &[Reg]| registers.iter().for_each(|register| visit(*register));
        match *self {
            Self::Literal { .. }
            | Self::Param { .. }
            | Self::Builtin { .. }
            | Self::Block { .. }
            | Self::Loop { .. }
            | Self::Break { .. }
            | Self::Continue { .. }
            | Self::Barrier => {}
            Self::Copy { of, .. }
            | Self::Unary { of, .. }
            | Self::Cast { of, .. }
            | Self::Bits { of, .. } => {
                all(&[of]);
            }
            Self::Binary { left, right, .. } | Self::MulHigh { left, right, .. } => all(&[left, right]),
            Self::Fma { a, b, c, .. } => all(&[a, b, c]),
            Self::Select { when, yes, no, .. } => all(&[when, yes, no]),
            Self::Load { at, .. }
            | Self::Lookup { at, .. }
            | Self::Get { at, .. }
            | Self::PrivateLoad { at, .. } => all(&[at]),
            Self::Store { at, value, .. }
            | Self::Put { at, value, .. }
            | Self::PrivateStore { at, value } => {
                all(&[at, value]);
            }
            Self::Atomic { op, place, value, .. } => {
                all(&[place.at(), value]);
                if let Rmw::CompareExchange { expected } = op {
                    all(&[expected]);
                }
            }
            Self::PrivateAlloc { bytes, .. } => all(&[bytes]),
            Self::Fail { detail, .. } => all(&[detail]),
            Self::If { when, .. } => all(&[when]),
            Self::Subgroup { how, of, .. } => {
                all(&[of]);
                if let SubgroupOp::Shuffle { lane } = how {
                    all(&[lane]);
                }
            }
        }
    }

    /// The nested code: both branches of an `If`; the body of a `Block` or `Loop` and an empty slice.
    #[must_use]
    pub fn within(&self) -> [&[Self]; 2] {
        match self {
            Self::If { then, otherwise, .. } => [then, otherwise],
            Self::Block { body } | Self::Loop { body } => [body, &[]],
            _ => [&[], &[]],
        }
    }

    /// The number of operations, including nested ones.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.within().into_iter().flatten().map(Self::count).sum::<usize>()
    }
}

/// Code and the declarations that it uses.
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
    /// The views.
    pub views: Vec<ViewDecl>,
    /// The tables.
    pub tables: Vec<TableDecl>,
    /// The local arrays.
    pub arrays: Vec<ArrayDecl>,
    /// The number of items of a group; `None` leaves the groups to the device.
    pub group_len: Option<u32>,
    /// The operations.
    pub code: Vec<Op>,
}

impl Body {
    /// The most operations of a body.
    pub const OPERATIONS_MAX: usize = 65_536;
    /// The most registers of a body.
    pub const REGISTERS_MAX: usize = 65_536;
    /// The greatest depth of nested `If`, `Block` and `Loop`.
    pub const DEPTH_MAX: usize = 128;
    /// The most parameters of a body.
    pub const PARAMS_MAX: usize = 64;
    /// The most views of a body.
    pub const VIEWS_MAX: usize = 16;
    /// The most bytes of all [tables](Self::tables).
    pub const TABLE_BYTES_MAX: u64 = 64 << 10;
    /// The most bytes of all arrays of an item.
    pub const ITEM_BYTES_MAX: u64 = 8 << 10;
    /// The most bytes of all arrays of a group.
    pub const GROUP_BYTES_MAX: u64 = 48 << 10;
    /// The most items of a group.
    pub const GROUP_LEN_MAX: u32 = 1024;

    /// The type of a register; `None` if the body has no register of this number.
    #[must_use]
    pub fn type_of(&self, register: Reg) -> Option<Type> {
        self.registers.get(register.at()).copied()
    }

    /// The offset of a table in the bytes that a launch passes: each is a multiple of 8, in order.
    #[must_use]
    pub fn table_offset(&self, table: usize) -> u64 {
        self.tables.iter().take(table).map(|table| table.bytes().next_multiple_of(8)).sum()
    }

    /// The number of bytes of all tables.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.table_offset(self.tables.len())
    }

    /// Calls `visit` for each operation with its number: in the order of the text, an operation before its
    /// nested code.
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

    /// Returns true if the body has loops. A budget counts their iterations.
    #[must_use]
    pub fn has_loops(&self) -> bool {
        let mut has_loops = false;
        self.operations(|_, op| has_loops |= matches!(op, Op::Loop { .. }));
        has_loops
    }

    /// The operation of this number.
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
