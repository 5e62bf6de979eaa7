//! Uniformity analysis of kernels: refuses barriers that only some items (threads) of a group may reach.

use super::{Body, Builtin, Op, Place, Space, SubgroupOp};
use crate::{Error, ErrorKind, Result};

/// Refuses a body in which items of a group may take different paths to a `Barrier` or `Subgroup` operation.
pub(super) fn check(body: &Body) -> Result<()> {
    let Some(site) = body.divergent_site() else { return Ok(()) };
    let detail =
        format!("operation {site}: items of a group may diverge before this barrier or subgroup operation");
    Err(Error::new(ErrorKind::InvalidArgument, "kernel").with_detail(detail))
}

impl Body {
    /// Returns true if the items (threads) of a group synchronise: if the body has a [`Barrier`](Op::Barrier)
    /// or a [`Subgroup`](Op::Subgroup) operation.
    #[must_use]
    pub fn meets(&self) -> bool {
        let mut meets = false;
        self.operations(|_, op| meets |= matches!(op, Op::Barrier | Op::Subgroup { .. }));
        meets
    }

    /// Returns the number of the first [`Barrier`](Op::Barrier) or [`Subgroup`](Op::Subgroup) operation that
    /// some items (threads) of a group may skip, or reach more often than other items.
    /// [`verify`](Self::verify) refuses such a body. Call this method only on a body whose registers are
    /// declared and whose breaks have targets.
    #[must_use]
    pub fn divergent_site(&self) -> Option<u32> {
        Flow::of(self).and_then(|flow| flow.fault).map(|site| site as u32)
    }

    /// Returns the numbers of the loops that all items (threads) of a group enter, repeat and leave together,
    /// in ascending order. A launch's budget (maximum number of iterations) counts these loops separately.
    /// Returns an empty list if the items do not [synchronise](Self::meets).
    #[must_use]
    pub fn common_loops(&self) -> Vec<u32> {
        let Some(common) = self.common() else { return Vec::new() };
        let mut loops = Vec::new();
        self.operations(|site, op| {
            if matches!(op, Op::Loop { .. }) && common.operations[site as usize] {
                loops.push(site);
            }
        });
        loops
    }

    /// Returns the registers and operations that are uniform in a group (equal for all of its GPU threads),
    /// so that a code generator can emit them once for all threads. Returns `None` if the threads do not
    /// [synchronise](Self::meets). Call this method only on a body whose registers are declared and whose
    /// breaks have targets.
    #[must_use]
    pub fn common(&self) -> Option<Common> {
        let flow = Flow::of(self)?;
        let registers = flow.varying.iter().map(|varies| !varies).collect();
        Some(Common { registers, operations: flow.common })
    }
}

/// The registers and operations that are uniform (equal for all threads of a group): see [`Body::common`].
///
/// ```
/// use backend_api::kernel::{Body, Common, Op};
/// let body = Body { group_len: Some(32), code: vec![Op::Barrier], ..Body::default() };
/// let Some(Common { registers, operations }) = body.common() else { panic!("its items meet") };
/// assert_eq!((registers.len(), operations), (0, vec![true]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Common {
    /// For each register: true if all items (threads) of a group that run together have the same value in it.
    pub registers: Vec<bool>,
    /// For each operation, by number: true if either all items (threads) of a group reach it together, or
    /// none does. For a loop, this holds in all iterations.
    pub operations: Vec<bool>,
}

/// A data-flow analysis of a kernel body. It finds registers whose values may differ among the items of a
/// group, and loops whose numbers of iterations may differ. Both sets grow until a fixed point.
struct Flow<'a> {
    body: &'a Body,
    varying: Vec<bool>,
    /// For each loop, by number: true if its number of iterations may differ among the items.
    loops: Vec<bool>,
    changed: bool,
    site: usize,
    /// For each enclosing block and loop: the number of the loop, or `None` for a block.
    labels: Vec<Option<usize>>,
    /// The index of the label to whose end some items may have jumped. Until there, other items run alone.
    until: Option<usize>,
    /// For each operation, by number: true if the items reach it (or a loop's body) only together.
    common: Vec<bool>,
    /// For each operation, by number: true if it loads from [unchanging](SteadyLoads) group memory.
    steady: Vec<bool>,
    fault: Option<usize>,
}

impl<'a> Flow<'a> {
    /// Analyses a body; returns `None` if the items of a group do not synchronise.
    fn of(body: &'a Body) -> Option<Self> {
        if !body.meets() {
            return None;
        }
        let operations = body.code.iter().map(Op::count).sum();
        let mut flow = Self {
            body,
            varying: vec![false; body.registers.len()],
            loops: vec![false; operations],
            changed: true,
            site: 0,
            labels: Vec::new(),
            until: None,
            common: vec![false; operations],
            steady: SteadyLoads::of(body),
            fault: None,
        };
        while std::mem::take(&mut flow.changed) {
            (flow.site, flow.fault) = (0, None);
            flow.code(&body.code, false);
        }
        Some(flow)
    }

    fn set(list: &mut [bool], at: usize, changed: &mut bool) {
        *changed |= !std::mem::replace(&mut list[at], true);
    }

    fn code(&mut self, code: &[Op], alone: bool) {
        for op in code {
            self.op(op, alone || self.until.is_some());
        }
    }

    fn op(&mut self, op: &Op, alone: bool) {
        let site = self.site;
        self.site += 1;
        self.common[site] = !alone && !self.loops[site];
        let mut differs = false;
        op.each_read(|register| differs |= self.varying[register.at()]);
        match op {
            Op::If { then, otherwise, .. } => {
                self.code(then, alone || differs);
                self.code(otherwise, alone || differs);
            }
            Op::Block { body } | Op::Loop { body } => {
                let is_loop = matches!(op, Op::Loop { .. });
                self.labels.push(is_loop.then_some(site));
                self.code(body, alone || (is_loop && self.loops[site]));
                self.labels.pop();
                if self.until == Some(self.labels.len()) {
                    self.until = None;
                }
            }
            Op::Break { out } | Op::Continue { out } if alone => {
                let at = self.labels.len() - 1 - usize::from(*out);
                self.until = Some(self.until.map_or(at, |until| until.min(at)));
                // An item (thread) that continues a loop meets the other items at the loop's start, so the
                // loop stays uniform.
                let first = if matches!(op, Op::Continue { .. }) { at + 1 } else { at };
                for site in self.labels[first..].iter().flatten() {
                    Self::set(&mut self.loops, *site, &mut self.changed);
                }
            }
            Op::Barrier | Op::Subgroup { .. } if alone => self.fault = self.fault.or(Some(site)),
            _ => {}
        }
        if let Some(to) = op.written()
            && (alone || self.gives_different(op, site, differs))
        {
            Self::set(&mut self.varying, to.at(), &mut self.changed);
        }
    }

    /// Returns true if an operation may write different values in the items of a group.
    fn gives_different(&self, op: &Op, site: usize, differs: bool) -> bool {
        match op {
            Op::Get { .. } if self.steady[site] => differs,
            Op::Builtin { what, .. } => !matches!(what, Builtin::Group | Builtin::Groups),
            Op::Load { .. }
            | Op::Get { .. }
            | Op::Atomic { .. }
            | Op::PrivateAlloc { .. }
            | Op::PrivateLoad { .. } => true,
            Op::Subgroup { how, .. } => match how {
                SubgroupOp::Any | SubgroupOp::All | SubgroupOp::Ballot | SubgroupOp::Reduce(_) => {
                    differs && self.body.group_len != Some(32)
                }
                SubgroupOp::Scan(_) => true,
                SubgroupOp::Shuffle { .. }
                | SubgroupOp::ShuffleXor(_)
                | SubgroupOp::Alike { .. }
                | SubgroupOp::Sync => differs,
            },
            _ => differs,
        }
    }
}

/// Finds loads from group memory between two barriers, if no item writes the array between them. They give
/// all items the same value, even if the kernel has data races elsewhere, so a barrier may depend on it.
struct SteadyLoads<'a> {
    body: &'a Body,
    steady: Vec<bool>,
}

impl<'a> SteadyLoads<'a> {
    /// Returns true for each of these loads, by the number of its operation.
    fn of(body: &'a Body) -> Vec<bool> {
        let mut loads = Self { body, steady: Vec::new() };
        loads.list(&body.code, None);
        loads.steady
    }

    /// Adds the operations of a list. `between` are the operations between the barriers around the list.
    fn list(&mut self, code: &'a [Op], between: Option<&'a [Op]>) {
        let mut parts = code.split(|op| matches!(op, Op::Barrier)).peekable();
        let mut is_first = true;
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            let between = match (is_first, is_last) {
                (true, true) => between,
                (false, false) => Some(part),
                _ => None,
            };
            part.iter().for_each(|op| self.op(op, between));
            if !is_last {
                self.steady.push(false);
            }
            is_first = false;
        }
    }

    fn op(&mut self, op: &'a Op, between: Option<&'a [Op]>) {
        let is_steady = match *op {
            Op::Get { array, .. } if self.body.arrays[usize::from(array)].space == Space::Group => {
                between.is_some_and(|code| !code.iter().any(|op| writes(op, array)))
            }
            _ => false,
        };
        self.steady.push(is_steady);
        let between = between.filter(|_| !has_barrier(op));
        op.within().into_iter().for_each(|code| self.list(code, between));
    }
}

fn has_barrier(op: &Op) -> bool {
    matches!(op, Op::Barrier) || op.within().into_iter().flatten().any(has_barrier)
}

fn writes(op: &Op, to: u16) -> bool {
    let is_written = match *op {
        Op::Put { array, .. } | Op::Atomic { place: Place::Array { array, .. }, .. } => array == to,
        _ => false,
    };
    is_written || op.within().into_iter().flatten().any(|op| writes(op, to))
}

#[cfg(test)]
mod tests {
    use super::super::{ArrayDecl, Binary, Reg, Type};
    use super::*;

    /// Registers: 0 a varying bool, 1 a uniform bool, 2 and 3 `U64`, 4 another bool, 5 `U64`.
    fn verify(group_len: u32, code: Vec<Op>) -> Result<()> {
        let mut all = vec![
            Op::Builtin { to: Reg(2), what: Builtin::InGroup },
            Op::Builtin { to: Reg(3), what: Builtin::Group },
            Op::Binary { op: Binary::Ne, to: Reg(0), left: Reg(2), right: Reg(3) },
            Op::Binary { op: Binary::Ne, to: Reg(1), left: Reg(3), right: Reg(3) },
            Op::Copy { to: Reg(4), of: Reg(1) },
        ];
        all.extend(code);
        let registers = vec![Type::Bool, Type::Bool, Type::U64, Type::U64, Type::Bool, Type::U64];
        let arrays = vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 2 }];
        Body { registers, arrays, group_len: Some(group_len), code: all, ..Body::default() }.verify()
    }

    fn on(when: u32, then: Vec<Op>) -> Op {
        Op::If { when: Reg(when), then, otherwise: vec![] }
    }

    const LEAVE: Op = Op::Break { out: 0 };

    #[test]
    fn barriers_are_where_all_items_of_a_group_come() {
        assert!(verify(64, vec![Op::Barrier, on(1, vec![Op::Barrier])]).is_ok());
        let error = verify(64, vec![on(0, vec![Op::Barrier])]).unwrap_err();
        assert!(
            error.detail().starts_with(
                "operation 6: items of a group may diverge before this barrier or subgroup operation"
            ),
            "{error}"
        );
        // All items of a group are together again after the block that some items leave.
        let some_leave = |then| Op::Block { body: vec![on(0, vec![LEAVE]), then] };
        assert!(verify(64, vec![some_leave(LEAVE), Op::Barrier]).is_ok());
        assert!(verify(64, vec![some_leave(Op::Barrier)]).is_err());
    }

    #[test]
    fn barriers_in_loops_are_met_equally_often() {
        let turns = |when| vec![Op::Loop { body: vec![Op::Barrier, on(when, vec![LEAVE])] }];
        assert!(verify(64, turns(1)).is_ok());
        assert!(verify(64, turns(0)).is_err(), "some have left when the others come again");
        // After `continue`, an item meets the others again at the loop's next turn, unless it continued an
        // outer loop.
        let skip = |out| vec![on(1, vec![LEAVE]), Op::Barrier, on(0, vec![Op::Continue { out }])];
        assert!(verify(64, vec![Op::Loop { body: skip(0) }]).is_ok());
        let leave_late = vec![on(0, vec![Op::Continue { out: 0 }]), on(1, vec![LEAVE]), Op::Barrier];
        assert!(
            verify(64, vec![Op::Loop { body: leave_late }]).is_err(),
            "an item that continues does not leave"
        );
        let nested = Op::Loop { body: vec![Op::Loop { body: skip(1) }, on(1, vec![LEAVE])] };
        assert!(verify(64, vec![nested]).is_err());
        // This register differs between items only after the first iteration.
        let late = Op::Loop {
            body: vec![on(4, vec![Op::Barrier]), Op::Copy { to: Reg(4), of: Reg(0) }, on(1, vec![LEAVE])],
        };
        assert!(verify(64, vec![late]).is_err());
    }

    #[test]
    fn loads_between_barriers_are_uniform() {
        let put = || Op::Put { array: 0, at: Reg(3), value: Reg(2) };
        let get = |at| Op::Get { to: Reg(5), array: 0, at: Reg(at) };
        let differs = || Op::Binary { op: Binary::Ne, to: Reg(4), left: Reg(5), right: Reg(3) };
        let turns = |body: Vec<Op>| {
            let after = [differs(), on(4, vec![LEAVE])];
            verify(64, vec![Op::Loop { body: body.into_iter().chain(after).collect() }])
        };
        let within = |op| Op::Block { body: vec![op] };
        assert!(turns(vec![put(), Op::Barrier, get(3), Op::Barrier]).is_ok());
        assert!(turns(vec![put(), Op::Barrier, within(get(3)), Op::Barrier]).is_ok());
        assert!(turns(vec![put(), Op::Barrier, get(2), Op::Barrier]).is_err(), "the index varies");
        assert!(turns(vec![put(), Op::Barrier, get(3)]).is_err(), "the next iteration may write first");
        assert!(turns(vec![put(), get(3), Op::Barrier]).is_err());
        assert!(turns(vec![Op::Barrier, get(3), within(put()), Op::Barrier]).is_err());
        let block = |body| Op::Block { body };
        assert!(turns(vec![Op::Barrier, block(vec![get(3), Op::Barrier, put()]), Op::Barrier]).is_err());
    }

    #[test]
    fn subgroup_uniform_values_are_group_uniform_for_32_items() {
        let vote = |how| vec![Op::Subgroup { how, to: Reg(4), of: Reg(0) }, on(4, vec![Op::Barrier])];
        assert!(verify(32, vote(SubgroupOp::Any)).is_ok());
        assert!(verify(64, vote(SubgroupOp::Any)).is_err());
        assert!(verify(32, vote(SubgroupOp::ShuffleXor(1))).is_err());
        assert!(verify(48, vote(SubgroupOp::All)).is_err(), "not a multiple of 32");
    }
}
