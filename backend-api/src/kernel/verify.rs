//! The verifier of kernel bodies: checks structure, types, and that a register is written before it is read.

use super::{Access, Body, Memory, Op, Place, Reg, Rmw, ScalarFunction, Space, SubgroupOp, Type};
use crate::{Error, ErrorKind, Result, Search};

impl Body {
    /// Verifies the body: every launch of a verified body is well-defined.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) with the number of the operation:
    ///
    /// - a declaration or a count above its limit;
    /// - a register, view, table, array, parameter or field that is not declared;
    /// - a type that does not fit, such as a field or a table of bools, which memory cannot hold;
    /// - a `Break` or `Continue` without a target;
    /// - a read of a register that some path has not written before;
    /// - a `Barrier` or `Subgroup` that some items (threads) of a group may skip;
    /// - a `Call` or a `FieldEquals`, which only [programs](crate::expr::Program) have.
    pub fn verify(&self) -> Result<()> {
        check_depth(&self.code, Self::DEPTH_MAX)?;
        self.check_declarations()?;
        let mut check = Check { body: self, site: 0, labels: Vec::new(), has_calls: false };
        check.code(&self.code, Some(Written::none(self.registers.len())))?;
        super::uniform::check(self)
    }

    /// Verifies the body of an expression's program. Operation 0 writes the item's number. The following
    /// operations, which errors count from 0, may be calls.
    pub(crate) fn verify_program(&self) -> Result<()> {
        self.check_memory_types()?;
        let mut check = Check { body: self, site: 0, labels: Vec::new(), has_calls: true };
        let (item, values) = self.code.split_at(1);
        let written = check.code(item, Some(Written::none(self.registers.len())))?;
        check.site = 0;
        check.code(values, written).map(drop)
    }

    fn check_declarations(&self) -> Result<()> {
        let operations: usize = self.code.iter().map(Op::count).sum();
        most("operations", operations as u64, Self::OPERATIONS_MAX as u64)?;
        most("registers", self.registers.len() as u64, Self::REGISTERS_MAX as u64)?;
        most("parameters", self.params.len() as u64, Self::PARAMS_MAX as u64)?;
        most("views", self.views.len() as u64, Self::VIEWS_MAX as u64)?;
        most("tables", self.tables.len() as u64, u16::MAX.into())?;
        most("arrays", self.arrays.len() as u64, u16::MAX.into())?;
        most("bytes of tables", self.table_bytes(), Self::TABLE_BYTES_MAX)?;
        most("bytes of item arrays", self.array_bytes(Space::Item), Self::ITEM_BYTES_MAX)?;
        most("bytes of group arrays", self.array_bytes(Space::Group), Self::GROUP_BYTES_MAX)?;
        if let Some(len) = self.group_len {
            most("items of a group", len.into(), Self::GROUP_LEN_MAX.into())?;
        }
        if self.group_len == Some(0) {
            return Err(invalid("a group has 0 items, but needs at least one".into()));
        }
        if self.tables.iter().any(|table| table.len == 0) || self.arrays.iter().any(|array| array.len == 0) {
            return Err(invalid("a table or an array has 0 elements, but needs at least one".into()));
        }
        if self.group_len.is_none() && self.arrays.iter().any(|array| array.space == Space::Group) {
            return Err(invalid(
                "an array of the group needs groups, but the body has no group length".into(),
            ));
        }
        for view in &self.views {
            if matches!(view.access, Access::Write { tile: 0 }) {
                return Err(invalid("a tile has 0 elements, but needs at least one".into()));
            }
            if view.extent() > u64::from(u32::MAX) {
                return Err(invalid(format!("a field ends at byte {}, beyond 4 GiB", view.extent())));
            }
        }
        self.check_memory_types()
    }

    fn check_memory_types(&self) -> Result<()> {
        let fields = self.views.iter().flat_map(|view| view.fields.iter().map(|field| field.1));
        if fields.chain(self.tables.iter().map(|table| table.of)).any(|of| of.value() == Type::Bool) {
            return Err(invalid("a field or a table has the type bool, which memory cannot hold".into()));
        }
        Ok(())
    }
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "kernel").with_detail(detail)
}

fn most(what: &str, number: u64, most: u64) -> Result<()> {
    if number <= most { Ok(()) } else { Err(invalid(format!("{number} {what} exceed the limit of {most}"))) }
}

/// Refuses code that is nested too deeply. It runs first, because all other checks recurse without a limit.
fn check_depth(code: &[Op], left: usize) -> Result<()> {
    for op in code {
        let within = op.within();
        if within.iter().all(|code| code.is_empty()) {
            continue;
        }
        if left == 0 {
            return Err(invalid(format!("code is nested more than {} levels deep", Body::DEPTH_MAX)));
        }
        within.into_iter().try_for_each(|code| check_depth(code, left - 1))?;
    }
    Ok(())
}

/// The set of registers that all paths to a point of the code have written.
#[derive(Clone)]
struct Written(Vec<u64>);

impl Written {
    fn none(registers: usize) -> Self {
        Self(vec![0; registers.div_ceil(64)])
    }

    fn has(&self, register: Reg) -> bool {
        self.0[register.at() / 64] >> (register.at() % 64) & 1 == 1
    }

    fn add(&mut self, register: Reg) {
        self.0[register.at() / 64] |= 1 << (register.at() % 64);
    }

    fn meet(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, other)| *mine &= other);
    }
}

/// Merges the sets of written registers of two paths; `None` stands for an unreachable path.
fn meet(one: Option<Written>, other: Option<Written>) -> Option<Written> {
    match (one, other) {
        (Some(mut one), Some(other)) => {
            one.meet(&other);
            Some(one)
        }
        (one, other) => one.or(other),
    }
}

/// A block or loop that encloses the current operation.
struct Label {
    is_loop: bool,
    /// The registers that all paths out of the block or loop have written so far.
    left: Option<Written>,
}

struct Check<'a> {
    body: &'a Body,
    site: u32,
    labels: Vec<Label>,
    /// True for the body of an expression's program, which may call functions.
    has_calls: bool,
}

impl Check<'_> {
    fn error(&self, detail: String) -> Error {
        invalid(format!("operation {}: {detail}", self.site))
    }

    fn code(&mut self, code: &[Op], mut written: Option<Written>) -> Result<Option<Written>> {
        for op in code {
            written = self.op(op, written)?;
        }
        Ok(written)
    }

    fn op(&mut self, op: &Op, written: Option<Written>) -> Result<Option<Written>> {
        self.types(op)?;
        let mut unwritten = None;
        if let Some(written) = &written {
            op.each_read(|register| {
                if !written.has(register) {
                    unwritten = Some(register);
                }
            });
        }
        if let Some(register) = unwritten {
            return Err(self.error(format!("register {} is read before it is written", register.0)));
        }
        self.flow(op, written)
    }

    fn flow(&mut self, op: &Op, mut written: Option<Written>) -> Result<Option<Written>> {
        let label = match *op {
            Op::Break { out } | Op::Continue { out } => Some(usize::from(out)),
            _ => None,
        };
        if let Some(out) = label {
            let Some(at) = self.labels.len().checked_sub(out + 1) else {
                let detail =
                    format!("a jump leaves {} blocks, but {} enclose it", out + 1, self.labels.len());
                return Err(self.error(detail));
            };
            if matches!(op, Op::Continue { .. }) {
                if !self.labels[at].is_loop {
                    return Err(
                        self.error("`Continue` names a block, but only loops can be continued".into())
                    );
                }
            } else {
                let left = self.labels[at].left.take();
                self.labels[at].left = meet(left, written);
            }
            self.site += 1;
            return Ok(None);
        }
        self.site += 1;
        match op {
            Op::If { then, otherwise, .. } => {
                let yes = self.code(then, written.clone())?;
                let no = self.code(otherwise, written)?;
                Ok(meet(yes, no))
            }
            Op::Block { body } | Op::Loop { body } => {
                let is_loop = matches!(op, Op::Loop { .. });
                self.labels.push(Label { is_loop, left: None });
                let end = self.code(body, written)?;
                let left = self.labels.pop().and_then(|label| label.left);
                Ok(if is_loop { left } else { meet(left, end) })
            }
            _ => {
                if let (Some(written), Some(to)) = (&mut written, op.written()) {
                    written.add(to);
                }
                Ok(written)
            }
        }
    }

    fn of(&self, register: Reg) -> Result<Type> {
        let found = self.body.type_of(register);
        found.ok_or_else(|| self.error(format!("register {} does not exist", register.0)))
    }

    fn want(&self, register: Reg, wanted: Type) -> Result<()> {
        let found = self.of(register)?;
        if found == wanted {
            return Ok(());
        }
        Err(self
            .error(format!("register {} has the type {found}, but the operation needs {wanted}", register.0)))
    }

    fn fits(&self, fits: bool, what: &str, of: Type) -> Result<()> {
        if fits { Ok(()) } else { Err(self.error(format!("{what} does not support the type {of}"))) }
    }

    fn declared<'d, T>(&self, list: &'d [T], number: u16, what: &str) -> Result<&'d T> {
        list.get(usize::from(number)).ok_or_else(|| self.error(format!("{what} {number} does not exist")))
    }

    fn field(&self, view: u16, offset: u32, of: Memory) -> Result<Access> {
        let declared = self.declared(&self.body.views, view, "view")?;
        if declared.fields.contains(&(offset, of)) {
            return Ok(declared.access);
        }
        Err(self.error(format!("view {view} has no field {of:?} at byte {offset}")))
    }

    fn types(&self, op: &Op) -> Result<()> {
        let body = self.body;
        match *op {
            Op::Literal { to, bits } => {
                let of = self.of(to)?;
                if bits & !of.mask() == 0 {
                    return Ok(());
                }
                Err(self.error(format!("the literal {bits:#x} has bits beyond the width of {of}")))
            }
            Op::Param { to, number } => self.want(to, *self.declared(&body.params, number, "parameter")?),
            Op::Builtin { to, what } => {
                if what.is_of_group() && body.group_len.is_none() {
                    return Err(
                        self.error(format!("{what:?} needs groups, but the body has no group length"))
                    );
                }
                self.want(to, what.gives())
            }
            Op::Copy { to, of } => self.want(of, self.of(to)?),
            Op::Unary { op, to, of } => {
                let found = self.of(of)?;
                self.fits(op.takes(found), &format!("{op:?}"), found)?;
                self.want(to, op.gives(found))
            }
            Op::Binary { op, to, left, right } => {
                let found = self.of(left)?;
                self.want(right, found)?;
                self.fits(op.takes(found), &format!("{op:?}"), found)?;
                self.want(to, if op.is_comparison() { Type::Bool } else { found })
            }
            Op::MulHigh { to, left, right } => {
                let found = self.of(to)?;
                self.fits(found.is_integer(), "MulHigh", found)?;
                self.want(left, found)?;
                self.want(right, found)
            }
            Op::Fma { to, a, b, c } => {
                let found = self.of(to)?;
                self.fits(found.is_float(), "Fma", found)?;
                [a, b, c].into_iter().try_for_each(|register| self.want(register, found))
            }
            Op::Select { to, when, yes, no } => {
                self.want(when, Type::Bool)?;
                let found = self.of(to)?;
                self.want(yes, found)?;
                self.want(no, found)
            }
            Op::Cast { to, of } => {
                self.of(of)?;
                let found = self.of(to)?;
                self.fits(found != Type::Bool, "the result of a cast", found)
            }
            Op::Bits { to, of } => {
                let (to, of) = (self.of(to)?, self.of(of)?);
                self.fits(to != Type::Bool && of != Type::Bool, "a reinterpretation of bits", Type::Bool)?;
                self.fits(to.bytes() == of.bytes(), &format!("a reinterpretation of bits as {to}"), of)
            }
            Op::Load { to, view, at, offset, of } => {
                if self.field(view, offset, of)? == Access::Append {
                    return Err(self.error(format!("view {view} has the access Append, and cannot be read")));
                }
                self.want(at, Type::U64)?;
                self.want(to, of.value())
            }
            Op::FieldEquals { to, view, at, ref bytes, .. } => {
                if !self.has_calls || !(1..=Search::VALUE_MAX_BYTES).contains(&bytes.len()) {
                    return Err(self.error(
                        "`FieldEquals` is not in an expression, or its value is empty or too long".into(),
                    ));
                }
                self.declared(&body.views, view, "view")?;
                self.want(at, Type::U64)?;
                self.want(to, Type::Bool)
            }
            Op::Store { view, at, offset, of, value } => {
                let access = self.field(view, offset, of)?;
                if !access.is_written() {
                    return Err(
                        self.error(format!("view {view} has the access {access:?}, and cannot be written"))
                    );
                }
                self.want(at, Type::U64)?;
                self.want(value, of.value())
            }
            Op::Lookup { to, table, at } => {
                self.want(at, Type::U64)?;
                self.want(to, self.declared(&body.tables, table, "table")?.of.value())
            }
            Op::Get { to, array, at } => {
                self.want(at, Type::U64)?;
                self.want(to, self.declared(&body.arrays, array, "array")?.of)
            }
            Op::Put { array, at, value } => {
                self.want(at, Type::U64)?;
                self.want(value, self.declared(&body.arrays, array, "array")?.of)
            }
            Op::Atomic { op, to, place, value, .. } => self.atomic(op, to, place, value),
            Op::PrivateAlloc { to, bytes } => {
                self.want(to, Type::U64)?;
                self.want(bytes, Type::U64)
            }
            Op::PrivateLoad { to: value, at } | Op::PrivateStore { at, value } => {
                self.want(at, Type::U64)?;
                let found = self.of(value)?;
                self.fits(found != Type::Bool, "a value in the private heap", found)
            }
            Op::Fail { detail, .. } => self.want(detail, Type::U64),
            Op::If { when, .. } => self.want(when, Type::Bool),
            Op::Block { .. } | Op::Loop { .. } | Op::Break { .. } | Op::Continue { .. } => Ok(()),
            Op::Barrier => {
                let no_groups =
                    || self.error("a barrier needs groups, but the body has no group length".into());
                body.group_len.map(drop).ok_or_else(no_groups)
            }
            Op::Subgroup { how, to, of } => self.subgroup_op(how, to, of),
            Op::Call { to, ref function, ref arguments } => self.call(to, function, arguments),
        }
    }

    fn call(&self, to: Reg, function: &ScalarFunction, arguments: &[Reg]) -> Result<()> {
        if !self.has_calls {
            return Err(self.error("a kernel calls a scalar function, which only expressions can do".into()));
        }
        let given = arguments.iter().map(|argument| self.of(*argument)).collect::<Result<Vec<_>>>()?;
        if given != function.params() {
            let wanted = function.params();
            return Err(self.error(format!("the arguments are {given:?}, but the function takes {wanted:?}")));
        }
        self.want(to, function.gives())
    }

    fn atomic(&self, op: Rmw, to: Option<Reg>, place: Place, value: Reg) -> Result<()> {
        let found = self.of(value)?;
        self.fits(op.takes(found), &format!("the atomic {op:?}"), found)?;
        if op == Rmw::Release && to.is_some() {
            return Err(self.error("an atomic release has no result register".into()));
        }
        self.want(place.at(), Type::U64)?;
        match place {
            Place::View { view, offset, .. } => {
                let access = self.field(view, offset, Memory::Value(found))?;
                if access != Access::Atomic {
                    let detail = format!(
                        "view {view} has the access {access:?}, but an atomic needs the access Atomic"
                    );
                    return Err(self.error(detail));
                }
            }
            Place::Array { array, .. } => {
                let declared = self.declared(&self.body.arrays, array, "array")?;
                if declared.space != Space::Group {
                    let detail =
                        format!("array {array} belongs to one item, but atomics need an array of the group");
                    return Err(self.error(detail));
                }
                self.want(value, declared.of)?;
            }
        }
        if let Rmw::CompareExchange { expected } = op {
            self.want(expected, found)?;
        }
        to.map_or(Ok(()), |to| self.want(to, found))
    }

    fn subgroup_op(&self, how: SubgroupOp, to: Reg, of: Reg) -> Result<()> {
        if !self.body.group_len.is_some_and(|len| len.is_multiple_of(32)) {
            let len = self.body.group_len.unwrap_or(1);
            return Err(self.error(format!(
                "{how:?} needs a group length that is a multiple of 32, but the length is {len}"
            )));
        }
        let found = self.of(of)?;
        if let SubgroupOp::Shuffle { lane } = how {
            self.want(lane, Type::U32)?;
        }
        let Some(gives) = how.gives(found) else {
            return Err(self.error(format!("{how:?} does not support the type {found}")));
        };
        self.want(to, gives)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ArrayDecl, Binary, Builtin, Scope, Unary, ViewDecl};
    use super::*;

    /// Registers 0 and 1 are bools, 2 and 3 `U64`, 4 `F32`, 5 `U32`; the item's number is in 2, 0 is
    /// false.
    fn body(code: Vec<Op>) -> Body {
        let mut all = vec![
            Op::Builtin { to: Reg(2), what: Builtin::Item },
            Op::Binary { op: Binary::Ne, to: Reg(0), left: Reg(2), right: Reg(2) },
        ];
        all.extend(code);
        Body {
            registers: vec![Type::Bool, Type::Bool, Type::U64, Type::U64, Type::F32, Type::U32],
            views: vec![
                ViewDecl { access: Access::Read, fields: vec![(4, Memory::F16)] },
                ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, Memory::Value(Type::U64))] },
            ],
            arrays: vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 4 }],
            group_len: Some(64),
            code: all,
            ..Body::default()
        }
    }

    #[track_caller]
    fn refused(code: Vec<Op>, why: &str) {
        let error = body(code).verify().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.detail().contains(why), "{error}");
    }

    const WRITE_3: Op = Op::Literal { to: Reg(3), bits: 1 };
    const READ_3: Op = Op::Fail { code: 0, detail: Reg(3) };

    fn on(when: u32, then: Vec<Op>, otherwise: Vec<Op>) -> Op {
        Op::If { when: Reg(when), then, otherwise }
    }

    #[test]
    fn registers_are_written_on_every_way_to_where_they_are_read() {
        assert!(body(vec![on(0, vec![WRITE_3], vec![WRITE_3]), READ_3]).verify().is_ok());
        refused(vec![on(0, vec![WRITE_3], vec![]), READ_3], "operation 4: register 3 is read before");
        // The code path with the `break` does not reach the read.
        let leave = |out| Op::Break { out };
        assert!(
            body(vec![Op::Block { body: vec![on(0, vec![WRITE_3], vec![leave(0)]), READ_3] }])
                .verify()
                .is_ok()
        );
        let block = Op::Block { body: vec![on(0, vec![WRITE_3], vec![leave(0)]), WRITE_3] };
        refused(vec![block, READ_3], "register 3");
        let looped = |body| Op::Loop { body };
        assert!(body(vec![looped(vec![WRITE_3, on(0, vec![leave(0)], vec![])]), READ_3]).verify().is_ok());
        refused(vec![looped(vec![on(0, vec![leave(0)], vec![]), WRITE_3]), READ_3], "register 3");
        refused(vec![looped(vec![READ_3, WRITE_3])], "register 3");
        assert!(body(vec![looped(vec![]), READ_3]).verify().is_ok(), "nothing comes there");
    }

    #[test]
    fn jumps_lead_somewhere() {
        refused(vec![Op::Break { out: 0 }], "a jump leaves 1 blocks, but 0 enclose it");
        refused(
            vec![Op::Block { body: vec![Op::Break { out: 1 }] }],
            "a jump leaves 2 blocks, but 1 enclose it",
        );
        refused(
            vec![Op::Block { body: vec![Op::Continue { out: 0 }] }],
            "`Continue` names a block, but only loops can be continued",
        );
        let inner = Op::Block { body: vec![Op::Continue { out: 1 }] };
        assert!(body(vec![Op::Loop { body: vec![inner] }]).verify().is_ok());
        let mut deep = Op::Barrier;
        (0..=Body::DEPTH_MAX)
            .for_each(|_| deep = Op::Block { body: vec![std::mem::replace(&mut deep, Op::Barrier)] });
        refused(vec![deep], "nested more than 128 levels deep");
    }

    #[test]
    fn types_fields_and_declarations_fit() {
        let (to, at) = (Reg(4), Reg(2));
        refused(vec![Op::Copy { to: Reg(9), of: Reg(2) }], "register 9 does not exist");
        refused(
            vec![Op::Copy { to: Reg(4), of: Reg(2) }],
            "register 2 has the type u64, but the operation needs f32",
        );
        refused(vec![Op::Literal { to: Reg(5), bits: 1 << 32 }], "bits beyond the width");
        refused(vec![Op::Unary { op: Unary::Sqrt, to: at, of: at }], "Sqrt does not support the type u64");
        refused(vec![Op::Cast { to: Reg(1), of: at }], "the result of a cast does not support the type bool");
        refused(
            vec![Op::Bits { to, of: at }],
            "a reinterpretation of bits as f32 does not support the type u64",
        );
        refused(vec![Op::Load { to, view: 0, at, offset: 2, of: Memory::F16 }], "no field F16 at byte 2");
        refused(vec![Op::Load { to, view: 7, at, offset: 4, of: Memory::F16 }], "view 7 does not exist");
        assert!(body(vec![Op::Load { to, view: 0, at, offset: 4, of: Memory::F16 }]).verify().is_ok());
        let value = Memory::Value(Type::U64);
        assert!(body(vec![Op::Store { view: 1, at, offset: 0, of: value, value: at }]).verify().is_ok());
        let load = Op::Load { to, view: 0, at, offset: 4, of: Memory::F16 };
        refused(
            vec![load, Op::Store { view: 0, at, offset: 4, of: Memory::F16, value: to }],
            "cannot be written",
        );
        let place = Place::View { view: 1, at, offset: 0 };
        let atomic = Op::Atomic { op: Rmw::Add, to: None, place, value: at, scope: Scope::Device };
        refused(vec![atomic], "but an atomic needs the access Atomic");
        let place = Place::Array { array: 0, at };
        let release = |to| Op::Atomic { op: Rmw::Release, to, place, value: at, scope: Scope::Group };
        refused(vec![release(Some(at))], "an atomic release has no result register");
        assert!(body(vec![release(None)]).verify().is_ok());
        let append = ViewDecl { access: Access::Append, fields: vec![(0, value)] };
        let reading = vec![Op::Load { to: at, view: 2, at, offset: 0, of: value }];
        let mut with_append = body(reading);
        with_append.views.push(append);
        assert!(
            with_append
                .verify()
                .unwrap_err()
                .detail()
                .contains("view 2 has the access Append, and cannot be read")
        );
        let bools = ViewDecl { access: Access::Read, fields: vec![(0, Memory::Value(Type::Bool))] };
        assert!(Body { views: vec![bools], ..Body::default() }.verify().is_err());
        let large = ArrayDecl { space: Space::Item, of: Type::F64, len: 1025 };
        let error = Body { arrays: vec![large], ..Body::default() }.verify().unwrap_err();
        assert!(error.detail().contains("8200 bytes of item arrays exceed the limit of 8192"), "{error}");
    }
}
