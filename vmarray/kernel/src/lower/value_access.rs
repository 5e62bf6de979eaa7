//! Reads, writes and allocations of a kernel's values (scalars, structs, arrays) during lowering.

use super::value::{Allocated, BoundsCheck, ElementIndex, Leaf, LoweredValue, Node, ScalarOperand};
use super::{Lower, Result};
use crate::error::ErrorKind;
use crate::layout::Layout;
use backend_api::kernel::{ArrayDecl, Binary, Memory, Op, Reg, Space, Type};

/// Maximum number of scalars that a copy copies one by one; longer copies are loops.
const WRITTEN_OUT_MAX: usize = 64;

impl Lower {
    /// Returns the type of an operand.
    pub fn type_of(&self, operand: ScalarOperand) -> Type {
        match operand {
            ScalarOperand::Constant(of, _) => of,
            ScalarOperand::Register(register) => self.registers[register.at()],
        }
    }

    /// Returns a register with an operand's value. Writes a constant to a new register.
    pub fn register(&mut self, operand: ScalarOperand) -> Reg {
        match operand {
            ScalarOperand::Register(register) => register,
            ScalarOperand::Constant(of, bits) => self.literal(of, bits),
        }
    }

    /// Returns the scalar of a number or bool, loaded if necessary; returns an error for other values.
    pub fn operand(&mut self, value: &LoweredValue) -> Result<ScalarOperand> {
        let Node::Leaf(leaf) = &value.node else {
            return Err(self.error(
                ErrorKind::Unsupported,
                "this is neither a number nor a `bool`: use one \
                    of them"
                    .into(),
            ));
        };
        let (of, leaf) = match leaf {
            Leaf::Value(operand) => return Ok(*operand),
            Leaf::Variable(register) => return Ok(ScalarOperand::Register(*register)),
            Leaf::Element(of, _) | Leaf::Table(of, _) | Leaf::Field(of, ..) | Leaf::PrivateHeap(of, _) => {
                (*of, leaf.clone())
            }
        };
        let Some(index) = value.index else {
            return Err(self.error(ErrorKind::Unsupported, "an array's element needs an index".into()));
        };
        if let (Leaf::Table(_, table), ScalarOperand::Constant(_, at)) = (&leaf, index.at)
            && let Some(bits) = self.tables.constant(*table, at)
        {
            return Ok(ScalarOperand::Constant(of, bits));
        }
        let is_inside = self.is_checked || self.is_inside(index);
        if let Leaf::PrivateHeap(_, offset) = leaf {
            let at = self.binary(Binary::Add, index.at, ScalarOperand::Constant(Type::U64, offset.into()));
            let (to, at) = (self.new_register(of), self.register(at));
            self.code.push(Op::PrivateLoad { to, at });
            return Ok(ScalarOperand::Register(to));
        }
        let at = self.index_register(index);
        let to = self.new_register(of);
        self.removable[to.at()] = is_inside;
        let there = self.skipped(&leaf, index.at);
        let outer = there.map(|_| std::mem::take(&mut self.code));
        if !is_inside {
            self.mark();
        }
        let op = match leaf {
            Leaf::Element(_, array) => Op::Get { to, array, at },
            Leaf::Table(Type::Bool, table) => {
                let byte = self.new_register(Type::U8);
                self.removable[byte.at()] = is_inside;
                self.code.push(Op::Lookup { to: byte, table, at });
                let zero = self.literal(Type::U8, 0);
                self.removable[to.at()] = true;
                Op::Binary { op: Binary::Ne, to, left: byte, right: zero }
            }
            Leaf::Table(_, table) => Op::Lookup { to, table, at },
            Leaf::Field(of, view, offset) => Op::Load { to, view, at, offset, of: Memory::Value(of) },
            Leaf::Value(_) | Leaf::Variable(_) | Leaf::PrivateHeap(..) => unreachable!(
                "the `match` above has \
                    returned these"
            ),
        };
        self.code.push(op);
        if let (Some(there), Some(outer)) = (there, outer) {
            let (then, when) = (std::mem::replace(&mut self.code, outer), self.register(there));
            self.is_variable[to.at()] = true;
            self.code.push(Op::Literal { to, bits: 0 });
            self.code.push(Op::If { when, then, otherwise: Vec::new() });
        }
        Ok(ScalarOperand::Register(to))
    }

    /// Returns true if lowering knows that an index is within bounds.
    fn is_inside(&self, index: ElementIndex) -> bool {
        match (index.check, index.at) {
            (BoundsCheck::Proven, _) => true,
            (BoundsCheck::ByAccess, ScalarOperand::Constant(_, at)) => at < index.len as u64,
            _ => false,
        }
    }

    /// Returns a register with an index. If the bounds check fails, the index is far out of bounds.
    fn index_register(&mut self, index: ElementIndex) -> Reg {
        let at = match index.check {
            BoundsCheck::Proven | BoundsCheck::ByAccess => index.at,
            BoundsCheck::By(holds) => {
                let outside = ScalarOperand::Constant(Type::U64, u64::MAX);
                self.select(holds, index.at, outside)
            }
        };
        self.register(at)
    }

    /// Lowers a read of element `at` of the array `of`.
    pub fn element(&mut self, of: &LoweredValue, at: ScalarOperand) -> Result<LoweredValue> {
        let (Node::Array(len, element), Layout::Array(layout, _)) = (&of.node, &of.layout) else {
            return Err(self.error(ErrorKind::Unsupported, "only arrays can be indexed".into()));
        };
        let (len, layout) = (*len, (**layout).clone());
        let node = (**element).clone();
        let value = |index, node| LoweredValue {
            layout: layout.clone(),
            node,
            index,
            is_reference: false,
            is_shared: of.is_shared,
            is_fresh: false,
        };
        if let Some(Leaf::Field(..) | Leaf::PrivateHeap(..)) = element.first() {
            if let ScalarOperand::Constant(_, number) = at
                && number < len as u64
            {
                return Ok(value(of.index, node.shifted(number as u32 * layout.bytes() as u32)));
            }
            let copy = self.copied(of)?;
            return self.element(&copy, at);
        }
        let Some(outer) = of.index else {
            return Ok(value(Some(ElementIndex { at, len, check: BoundsCheck::ByAccess }), node));
        };
        let factor = ScalarOperand::Constant(Type::U64, len as u64);
        let row = self.binary(Binary::Mul, outer.at, factor);
        let flat = self.binary(Binary::Add, row, at);
        let outer_holds = match outer.check {
            BoundsCheck::Proven => ScalarOperand::Constant(Type::Bool, 1),
            BoundsCheck::By(holds) => holds,
            BoundsCheck::ByAccess => {
                let len = ScalarOperand::Constant(Type::U64, outer.len as u64);
                self.binary(Binary::Lt, outer.at, len)
            }
        };
        let outer_holds = match self.most(outer.at) {
            Some(most) if most < outer.len as u64 => ScalarOperand::Constant(Type::Bool, 1),
            _ => outer_holds,
        };
        let inner_holds = match self.most(at) {
            Some(most) if most < len as u64 => ScalarOperand::Constant(Type::Bool, 1),
            _ => self.binary(Binary::Lt, at, factor),
        };
        let holds = self.binary(Binary::And, outer_holds, inner_holds);
        let check = match holds {
            ScalarOperand::Constant(_, 1) => BoundsCheck::Proven,
            holds => BoundsCheck::By(holds),
        };
        Ok(value(Some(ElementIndex { at: flat, len: outer.len * len, check }), node))
    }

    /// Lowers a read of an element of nested arrays: `at` has an index for each level, from the outermost in.
    pub fn element_of(&mut self, of: &LoweredValue, at: &[ScalarOperand]) -> Result<LoweredValue> {
        at.iter().try_fold(of.clone(), |of, at| self.element(&of, *at))
    }

    /// Loads the scalars of a value, and returns the value with the loaded scalars. Arrays in the value stay
    /// references unless they are part of an indexed element.
    pub fn settled(&mut self, value: &LoweredValue) -> Result<LoweredValue> {
        match &value.node {
            Node::Leaf(_) => {
                let operand = self.operand(value)?;
                Ok(LoweredValue::scalar(self.type_of(operand), operand))
            }
            Node::Parts(parts) => {
                let (mut nodes, mut is_shared) = (Vec::with_capacity(parts.len()), value.is_shared);
                let is_checked = self.is_checked;
                for number in 0..parts.len() {
                    let Some(part) = value.part(number) else { break };
                    let part = self.settled(&part)?;
                    is_shared |= part.is_shared;
                    nodes.push(part.node);
                    // All scalars have the same index, so only the first access needs the bounds check.
                    self.is_checked |= value.index.is_some();
                }
                self.is_checked = is_checked;
                let is_fresh = value.is_fresh;
                Ok(LoweredValue {
                    is_shared,
                    is_fresh,
                    ..LoweredValue::new(value.layout.clone(), Node::Parts(nodes))
                })
            }
            Node::Array(_, element) => {
                let is_field = matches!(element.first(), Some(Leaf::Field(..) | Leaf::PrivateHeap(..)));
                if value.index.is_some() || is_field { self.copied(value) } else { Ok(value.clone()) }
            }
            Node::View(_) | Node::Allocated(_) => Ok(value.clone()),
        }
    }

    /// Returns a value that later assignments do not change. Copies `value` if necessary.
    pub fn kept(&mut self, value: &LoweredValue) -> Result<LoweredValue> {
        let value = self.settled(value)?;
        self.kept_settled(value)
    }

    fn kept_settled(&mut self, value: LoweredValue) -> Result<LoweredValue> {
        match &value.node {
            Node::Leaf(Leaf::Value(ScalarOperand::Register(register))) if self.is_variable[register.at()] => {
                let of = self.registers[register.at()];
                let to = self.new_register(of);
                self.code.push(Op::Copy { to, of: *register });
                Ok(LoweredValue::scalar(of, ScalarOperand::Register(to)))
            }
            Node::Parts(parts) => {
                let mut nodes = Vec::with_capacity(parts.len());
                for number in 0..parts.len() {
                    let Some(part) = value.part(number) else { break };
                    nodes.push(self.kept_settled(part)?.node);
                }
                let is_fresh = value.is_fresh || value.is_shared;
                Ok(LoweredValue { is_fresh, ..LoweredValue::new(value.layout.clone(), Node::Parts(nodes)) })
            }
            Node::Array(..) if value.is_shared => self.copied(&value),
            _ => Ok(value),
        }
    }

    /// Allocates variables and arrays for a value of the type `layout`. The arrays stay in use until the end
    /// of the block at nesting depth `depth`.
    pub fn place(&mut self, layout: &Layout, depth: usize) -> Result<LoweredValue> {
        let node = self.place_node(layout, None, depth)?;
        Ok(LoweredValue { is_shared: true, ..LoweredValue::new(layout.clone(), node) })
    }

    fn place_node(&mut self, layout: &Layout, len: Option<usize>, depth: usize) -> Result<Node> {
        Ok(match layout {
            Layout::Scalar(of) => Node::Leaf(match len {
                None => Leaf::Variable(self.new_variable(*of)),
                Some(len) => Leaf::Element(*of, self.new_array(*of, len, depth)?),
            }),
            Layout::Array(of, own) => {
                let len = len.unwrap_or(1) * own;
                Node::Array(*own, Box::new(self.place_node(of, Some(len), depth)?))
            }
            Layout::Tuple(_) | Layout::Struct { .. } => {
                let parts = layout.parts().into_iter().map(|part| self.place_node(part, len, depth));
                Node::Parts(parts.collect::<Result<_>>()?)
            }
        })
    }

    /// Returns a local array; reuses a free one if possible.
    fn new_array(&mut self, of: Type, len: usize, depth: usize) -> Result<u16> {
        let len = len.max(1);
        let decl = ArrayDecl { space: Space::Item, of, len: u32::try_from(len).unwrap_or(u32::MAX) };
        let old = (0..self.arrays.len()).find(|number| self.arrays[*number] == (decl, None));
        let number = old.unwrap_or(self.arrays.len());
        if old.is_none() {
            self.arrays.push((decl, None));
        }
        self.arrays[number].1 = Some(depth);
        u16::try_from(number).map_err(|_| {
            self.error(
                ErrorKind::TooLarge,
                "the kernel has more than 65536 \
                    arrays: use fewer"
                    .into(),
            )
        })
    }

    /// Allocates an array of `axes` axes in group memory (shared memory in CUDA).
    pub fn group_place(&mut self, layout: &Layout, axes: usize) -> Result<LoweredValue> {
        let first = self.arrays.len();
        let (mut len, mut of) = (1, layout);
        for _ in 0..axes {
            let Layout::Array(inner, extent) = of else { break };
            (len, of) = (len * extent, inner);
        }
        // Allocate new arrays: arrays that are private to an item (GPU thread) cannot become group memory.
        let place = self.place(layout, 0)?;
        for (array, _) in &mut self.arrays[first..] {
            array.space = Space::Group;
        }
        if let Some(Leaf::Element(_, array)) = place.node.first() {
            self.group_lens.insert(*array, len);
        }
        Ok(LoweredValue { is_reference: true, ..place })
    }

    /// Returns the number of elements of the array `of`: over all axes for group memory, else `len`.
    pub fn len_of(&self, of: &LoweredValue, len: usize) -> usize {
        match of.node.first() {
            Some(Leaf::Element(_, array)) if of.index.is_none() => {
                self.group_lens.get(array).copied().unwrap_or(len)
            }
            _ => len,
        }
    }

    /// Lowers an allocation of `len` elements of a type in the private heap of an item (GPU thread).
    pub fn allocated(&mut self, layout: Layout, len: ScalarOperand) -> Result<LoweredValue> {
        let len = self.kept_operand(len)?;
        let most = ScalarOperand::Constant(Type::U64, u64::from(u32::MAX));
        // Clamp the length, because its byte count must not overflow. Larger lengths exceed the heap anyway.
        let counted = self.binary(Binary::Min, len, most);
        let bytes =
            self.binary(Binary::Mul, counted, ScalarOperand::Constant(Type::U64, layout.bytes() as u64));
        let (to, bytes) = (self.new_register(Type::U64), self.register(bytes));
        self.removable[to.at()] = false;
        self.mark();
        self.code.push(Op::PrivateAlloc { to, bytes });
        let (base, none) = (ScalarOperand::Register(to), ScalarOperand::Constant(Type::U64, u64::MAX));
        let is_none = self.binary(Binary::Eq, base, none);
        let len = self.select(is_none, ScalarOperand::Constant(Type::U64, 0), len);
        let allocated = Allocated { base, len, layout };
        Ok(LoweredValue {
            is_reference: true,
            ..LoweredValue::new(Layout::UNIT, Node::Allocated(Box::new(allocated)))
        })
    }

    /// Lowers an access to element `at` of an allocation in the private heap. For an index out of bounds, the
    /// lowered code reports the error, and computes an address outside of the heap.
    pub fn allocated_element(&mut self, of: &Allocated, at: ScalarOperand) -> Result<LoweredValue> {
        let at = self.kept_operand(at)?;
        let inside = self.binary(Binary::Lt, at, of.len);
        let stride = ScalarOperand::Constant(Type::U64, of.layout.bytes() as u64);
        let before = self.binary(Binary::Mul, at, stride);
        let place = self.binary(Binary::Add, of.base, before);
        let outside = ScalarOperand::Constant(Type::U64, 1 << 62);
        let place = self.select(inside, place, outside);
        let (when, detail) = (self.register(inside), self.register(at));
        let outer = std::mem::take(&mut self.code);
        self.mark();
        self.code.push(Op::Fail { code: 0, detail });
        let otherwise = std::mem::replace(&mut self.code, outer);
        self.code.push(Op::If { when, then: Vec::new(), otherwise });
        let node = Node::in_memory(&of.layout, 0, &Leaf::PrivateHeap);
        let index = Some(ElementIndex { at: place, len: 0, check: BoundsCheck::Proven });
        Ok(LoweredValue { index, is_shared: true, ..LoweredValue::new(of.layout.clone(), node) })
    }

    /// Copies a value to newly allocated variables and arrays.
    pub fn copied(&mut self, value: &LoweredValue) -> Result<LoweredValue> {
        let place = self.place(&value.layout, self.depth)?;
        self.assign(&place, value)?;
        Ok(place.fresh())
    }

    /// Allocates a kernel's variable, and initialises it with `value`. Newly allocated local arrays in
    /// `value` become storage of the variable, without a copy.
    pub fn variable(&mut self, value: &LoweredValue) -> Result<LoweredValue> {
        let value = self.settled(value)?;
        let node = self.variable_node(&value)?;
        Ok(LoweredValue { is_shared: true, ..LoweredValue::new(value.layout, node) })
    }

    fn variable_node(&mut self, value: &LoweredValue) -> Result<Node> {
        match &value.node {
            Node::Parts(parts) => {
                let parts = (0..parts.len()).filter_map(|number| value.part(number));
                let parts = parts.map(|part| self.variable_node(&part));
                Ok(Node::Parts(parts.collect::<Result<_>>()?))
            }
            Node::Array(..) if value.is_fresh => Ok(value.node.clone()),
            _ => {
                let place = self.place(&value.layout, self.depth)?;
                self.assign(&place, value)?;
                Ok(place.node)
            }
        }
    }

    /// Lowers an assignment of `value` to the location `place`. The storage of both must not overlap.
    pub fn assign(&mut self, place: &LoweredValue, value: &LoweredValue) -> Result<()> {
        match &place.node {
            Node::Leaf(leaf) => {
                let leaf = leaf.clone();
                let operand = self.operand(value)?;
                self.assign_leaf(place, &leaf, operand)
            }
            Node::Parts(parts) => {
                for number in 0..parts.len() {
                    let (Some(place), Some(value)) = (place.part(number), value.part(number)) else { break };
                    self.assign(&place, &value)?;
                }
                Ok(())
            }
            Node::Array(len, _) => {
                let len = *len;
                let in_memory =
                    |node: &Node| matches!(node.first(), Some(Leaf::Field(..) | Leaf::PrivateHeap(..)));
                let is_field = in_memory(&value.node) || in_memory(&place.node);
                let is_short = len <= WRITTEN_OUT_MAX && value.layout.scalars() <= WRITTEN_OUT_MAX;
                let assign = |lower: &mut Self, at| {
                    let (to, from) = (lower.element(place, at)?, lower.element(value, at)?);
                    lower.assign(&to, &from)
                };
                if is_short || is_field {
                    (0..len as u64).try_for_each(|at| assign(self, ScalarOperand::Constant(Type::U64, at)))
                } else {
                    self.repeated(len, assign)
                }
            }
            Node::View(_) | Node::Allocated(_) => Ok(()),
        }
    }

    fn assign_leaf(&mut self, place: &LoweredValue, leaf: &Leaf, operand: ScalarOperand) -> Result<()> {
        if let Leaf::Variable(to) = leaf {
            self.code.push(match operand {
                ScalarOperand::Constant(_, bits) => Op::Literal { to: *to, bits },
                ScalarOperand::Register(of) => Op::Copy { to: *to, of },
            });
            return Ok(());
        }
        let Some(index) = place.index else {
            return Err(self.error(ErrorKind::Unsupported, "this assignment needs an index".into()));
        };
        let value = self.register(operand);
        if let Leaf::PrivateHeap(_, offset) = leaf {
            let at = self.binary(Binary::Add, index.at, ScalarOperand::Constant(Type::U64, (*offset).into()));
            let at = self.register(at);
            self.code.push(Op::PrivateStore { at, value });
            return Ok(());
        }
        let at = self.index_register(index);
        if !self.is_inside(index) {
            self.mark();
        }
        match leaf {
            Leaf::Element(_, array) => self.code.push(Op::Put { array: *array, at, value }),
            Leaf::Field(of, view, offset) => {
                self.code.push(Op::Store { view: *view, at, offset: *offset, of: Memory::Value(*of), value });
            }
            _ => {
                return Err(self.error(
                    ErrorKind::Unsupported,
                    "this cannot be assigned: assign to a \
                        variable"
                        .into(),
                ));
            }
        }
        Ok(())
    }

    /// Lowers a loop that runs `body` for each number from 0 to `len - 1`.
    pub fn repeated(
        &mut self,
        len: usize,
        body: impl FnOnce(&mut Self, ScalarOperand) -> Result<()>,
    ) -> Result<()> {
        let counter = self.new_variable(Type::U64);
        let (zero, one) = (ScalarOperand::Constant(Type::U64, 0), ScalarOperand::Constant(Type::U64, 1));
        let last = ScalarOperand::Constant(Type::U64, len as u64 - 1);
        self.code.push(Op::Literal { to: counter, bits: 0 });
        debug_assert_ne!(zero, last, "arrays of one element are written without a loop");
        let outer = std::mem::take(&mut self.code);
        let result = body(self, ScalarOperand::Register(counter));
        let is_last = self.binary(Binary::Eq, ScalarOperand::Register(counter), last);
        let when = self.register(is_last);
        self.code.push(Op::If { when, then: vec![Op::Break { out: 0 }], otherwise: Vec::new() });
        let next = self.binary(Binary::Add, ScalarOperand::Register(counter), one);
        let of = self.register(next);
        self.code.push(Op::Copy { to: counter, of });
        let body = std::mem::replace(&mut self.code, outer);
        self.code.push(Op::Loop { body });
        result
    }
}
