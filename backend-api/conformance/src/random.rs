//! Random kernels with random arguments, and the results that the kernel interpreter computes for them. The
//! suite runs a few of them; a backend's own tests can run more.

use backend_api::Result;
use backend_api::expr::Geometry;
use backend_api::kernel::{
    Access, ArrayDecl, Binary, Body, Builtin, Interpreter, Memory, Op, Place, Reg, Report, Rmw, Scope,
    Slices, Space, SubgroupOp, TableDecl, Type, Unary, VerifiedKernel, ViewDecl,
};
use backend_api::wrap::SplitMix64;

pub use super::launches::launch_all;

/// A random kernel with the arguments of a launch and the contents of its views. In some cases the items (GPU
/// threads) of a group exchange values by group arrays, barriers and subgroup operations. In some cases items
/// execute atomics whose result does not depend on the order of the items.
///
/// ```
/// use vmarray_conformance::random::Case;
/// let case = Case::new(7, true);
/// assert_eq!(case.kernel, Case::new(7, true).kernel, "a seed always gives the same");
/// let (views, report) = case.expected()?;
/// assert!(case.check(&views, report).is_ok());
/// let mut wrong = report;
/// wrong.failures += 1;
/// assert!(case.check(&views, wrong).is_err());
/// let small = case.shrink(|case| !case.kernel.body().code.is_empty());
/// assert!(small.kernel.body().code.len() < case.kernel.body().code.len());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Case {
    /// The kernel to launch.
    pub kernel: VerifiedKernel,
    /// Number of items (GPU threads) of the launch.
    pub items: u64,
    /// Mapping from an item's (GPU thread's) number in the launch to an index in the program's array.
    pub geometry: Geometry,
    /// The kernel's parameters, each as 64 bits.
    pub params: Vec<u64>,
    /// Contents of the kernel's constant tables, one table after the other.
    pub table: Vec<u8>,
    /// Views of the launch, in the order of the kernel's declarations.
    pub views: Vec<CaseView>,
    /// Maximum number of loop iterations of an item (GPU thread); `None` for no limit.
    pub budget: Option<u64>,
    /// Length of the private heap of each item (GPU thread), in bytes.
    pub private_heap_bytes: u64,
}

/// A view of a [`Case`]: the elements of one argument of the kernel.
///
/// ```
/// use vmarray_conformance::random::Case;
/// let case = Case::new(1, false);
/// assert!(case.views.iter().all(|view| view.bytes.len() as u64 == view.count * view.stride));
/// ```
#[derive(Clone, Debug)]
pub struct CaseView {
    /// Distance from the start of an element to the start of the next, in bytes.
    pub stride: u64,
    /// Number of elements of the view.
    pub count: u64,
    /// Contents of the view before the launch.
    pub bytes: Vec<u8>,
    /// Alignment of the first element: its byte offset modulo 8.
    pub shift: u64,
}

impl Case {
    /// Creates the case of a seed; the same arguments always create the same case. The kernel uses the type
    /// `F64` only if `doubles` is true.
    #[must_use]
    pub fn new(seed: u64, doubles: bool) -> Self {
        let mut rng = SplitMix64::new(seed ^ 0x6B65_726E_656C);
        let mut maker = Maker::new(&mut rng, doubles);
        let is_plain = Self::is_plain(seed);
        if is_plain {
            maker.declare_dense()
        } else {
            maker.declare()
        }
        maker.begin();
        let code = if is_plain { maker.straight() } else { maker.program() };
        maker.body.code.extend(code);
        let (body, counts) = (maker.body, maker.counts);
        let tiles = |view: &ViewDecl| if let Access::Write { tile } = view.access { tile } else { 1 };
        let items = [1, 7, 64, 100, 257][rng.index(5)];
        let views = body.views.iter().zip(counts).map(|(view, count)| {
            let mut stride = view.extent() + rng.pick(&[0, 0, 1, 3, 8]);
            let mut shift = rng.pick(&[0, 0, 4, 1, 2, 3]);
            if is_plain {
                (stride, shift) = (view.extent() + u64::from(rng.below(20) == 0), rng.below(4) * shift);
            }
            if view.access == Access::Atomic {
                (stride, shift) = (stride.next_multiple_of(8), 0);
            }
            let tile = u64::from(tiles(view));
            let count = match view.access {
                // In some cases the view ends within the tile (the elements to write) of the last thread.
                Access::Write { .. } => items * tile - rng.below(tile),
                _ => count,
            };
            let mut bytes = vec![0; (stride * count) as usize];
            rng.fill(&mut bytes);
            CaseView { stride, count, bytes, shift }
        });
        let views = views.collect();
        let params = body.params.iter().map(|of| number(&mut rng, *of)).collect();
        let mut table = vec![0; body.table_bytes() as usize];
        rng.fill(&mut table);
        let first = rng.below(1 << 40);
        let geometry = match rng.below(3) {
            0 => Geometry { first, page_len: 1 + rng.below(50), channel: rng.below(3), channels: 3 },
            1 => Geometry { first: 0, page_len: 16, channel: 1, channels: 2 },
            _ => Geometry::plain(first),
        };
        let budget = rng.pick(&[None, None, Some(0), Some(7), Some(1000)]);
        let kernel = VerifiedKernel::new(body)
            .expect("the generator makes valid bodies only")
            .named(&format!("case {seed}"));
        let private_heap_bytes = rng.pick(&[0, 16, 64, 200]);
        Self { kernel, items, geometry, params, table, views, budget, private_heap_bytes }
    }

    /// Returns true if each item (GPU thread) of the kernel of `seed` accesses only its own elements.
    ///
    /// ```
    /// use vmarray_conformance::random::Case;
    /// assert_eq!((0..80).filter(|seed| Case::is_plain(*seed)).count(), 10);
    /// ```
    #[must_use]
    pub const fn is_plain(seed: u64) -> bool {
        seed % 8 == 6
    }

    fn interpreter(&self) -> Interpreter<'_> {
        let (params, table) = (&self.params[..], &self.table[..]);
        let Self { budget, private_heap_bytes, .. } = *self;
        Interpreter {
            params,
            table,
            budget,
            private_heap_bytes,
            ..Interpreter::new(&self.kernel, self.items, self.geometry)
        }
    }

    /// Runs the case in the interpreter. Returns the contents of each view after the launch, and the report.
    ///
    /// # Errors
    /// The interpreter returns no error here, because accesses to slices do not fail.
    pub fn expected(&self) -> Result<(Vec<Vec<u8>>, Report)> {
        let mut views: Vec<Vec<u8>> = self.views.iter().map(|view| view.bytes.clone()).collect();
        let slices =
            views.iter_mut().zip(&self.views).map(|(bytes, view)| (&mut bytes[..], view.stride as usize));
        let report = self.interpreter().run(&mut Slices::new(slices.collect()))?;
        Ok((views, report))
    }

    /// Compares a device's results of the launch with the interpreter's: the contents of all views, and the
    /// report. NaNs may have any bits. The report may name any failed item (GPU thread).
    ///
    /// # Errors
    /// A text that describes the first difference.
    pub fn check(&self, views: &[Vec<u8>], report: Report) -> Result<(), String> {
        let (expected, truth) = self.expected().map_err(|error| error.to_string())?;
        for (number, (found, expected)) in views.iter().zip(&expected).enumerate() {
            self.check_view(number, found, expected)?;
        }
        if report.failures != truth.failures {
            return Err(format!("{} items failed instead of {}", report.failures, truth.failures));
        }
        if report.failures == 0 {
            return if report == truth {
                Ok(())
            } else {
                Err(format!("the report must be empty because no item failed: {report:?}"))
            };
        }
        // A launch's report has only its first failure. So interpret the group (thread block) of the reported
        // item alone, to find this item's first failure.
        let mut views: Vec<Vec<u8>> = self.views.iter().map(|view| view.bytes.clone()).collect();
        let slices =
            views.iter_mut().zip(&self.views).map(|(bytes, view)| (&mut bytes[..], view.stride as usize));
        let mut slices = Slices::new(slices.collect());
        if report.item >= self.items {
            return Err(format!(
                "the report names item {}, but the launch has {} items",
                report.item, self.items
            ));
        }
        let part = report.item / u64::from(self.kernel.body().group_len.unwrap_or(1));
        let own = self.interpreter().reports(part..part + 1, &mut slices);
        let own = own.map_err(|error| error.to_string())?;
        let own = own.into_iter().find(|own| own.item == report.item);
        let found = Report { failures: 1, ..report };
        if Some(found) == own {
            Ok(())
        } else {
            Err(format!("the report has the failure {found:?} instead of {own:?}"))
        }
    }

    fn check_view(&self, number: usize, found: &[u8], expected: &[u8]) -> Result<(), String> {
        if found == expected {
            return Ok(());
        }
        let (view, decl) = (&self.views[number], &self.kernel.body().views[number]);
        let elements = found.chunks(view.stride as usize).zip(expected.chunks(view.stride as usize));
        for (at, (found, expected)) in elements.enumerate() {
            let mut found = found.to_vec();
            for (offset, of) in &decl.fields {
                let range = *offset as usize..(*offset + of.bytes()) as usize;
                if is_nan(*of, &found[range.clone()]) && is_nan(*of, &expected[range.clone()]) {
                    found[range.clone()].copy_from_slice(&expected[range]);
                }
            }
            if found != expected {
                return Err(format!(
                    "element {at} of view {number} is {found:02x?} instead of {expected:02x?}"
                ));
            }
        }
        Ok(())
    }

    /// Shrinks a failing case: removes operations of the kernel one by one while `fails` returns true for the
    /// remaining case. Returns the shortest case that still fails. Calls `fails` for each attempt.
    #[must_use]
    pub fn shrink(&self, mut fails: impl FnMut(&Self) -> bool) -> Self {
        let mut best = self.clone();
        let count = |case: &Self| case.kernel.body().code.iter().map(Op::count).sum::<usize>() as u32;
        // Remove operations from the end to the start, because later operations may read the registers that
        // earlier ones write. After each success, begin again at the end.
        let (mut site, mut shrunk) = (count(&best), false);
        loop {
            if site == 0 {
                if !std::mem::take(&mut shrunk) {
                    return best;
                }
                site = count(&best);
            }
            site -= 1;
            let Some(op) = best.kernel.body().operation(site) else { continue };
            // Keep barriers: without a barrier the items (threads) may race.
            if *op == Op::Barrier {
                continue;
            }
            // First try to remove the operation with its nested code, then try to keep only the nested code.
            let attempts = if op.count() > 1 { 2 } else { 1 };
            let shorter = (0..attempts).find_map(|keep_within| {
                let mut body = best.kernel.body().clone();
                remove(&mut body.code, site as usize, keep_within == 1);
                let kernel = VerifiedKernel::new(body).ok()?.named(best.kernel.name());
                let attempt = Self { kernel, ..best.clone() };
                fails(&attempt).then_some(attempt)
            });
            if let Some(shorter) = shorter {
                (best, shrunk) = (shorter, true);
                site = site.min(count(&best));
            }
        }
    }
}

/// Removes an operation, or replaces it by its nested code.
fn remove(code: &mut Vec<Op>, mut left: usize, keep_within: bool) {
    for at in 0..code.len() {
        let count = code[at].count();
        if left >= count {
            left -= count;
            continue;
        }
        if left == 0 {
            let op = code.remove(at);
            if keep_within {
                let within = op.within().concat();
                code.splice(at..at, within);
            }
            return;
        }
        left -= 1;
        return match &mut code[at] {
            Op::If { then, otherwise, .. } => {
                let first: usize = then.iter().map(Op::count).sum();
                if left < first {
                    remove(then, left, keep_within);
                } else {
                    remove(otherwise, left - first, keep_within);
                }
            }
            Op::Block { body } | Op::Loop { body } => remove(body, left, keep_within),
            _ => {}
        };
    }
}

fn is_nan(of: Memory, bytes: &[u8]) -> bool {
    match (of, bytes) {
        (Memory::F16, [a, b]) => backend_api::kernel::f16_to_f32(u16::from_ne_bytes([*a, *b])).is_nan(),
        (Memory::Value(Type::F32), [a, b, c, d]) => f32::from_ne_bytes([*a, *b, *c, *d]).is_nan(),
        (Memory::Value(Type::F64), _) => {
            bytes.try_into().is_ok_and(|bytes| f64::from_ne_bytes(bytes).is_nan())
        }
        _ => false,
    }
}

/// Returns the bits of a random value of a type, often an edge case.
fn number(rng: &mut SplitMix64, of: Type) -> u64 {
    let top = 1 << (8 * of.bytes() - 1);
    let bits = match rng.below(6) {
        0 => rng.pick(&[0, 1, 2, top, top - 1, u64::MAX]),
        1 => rng.below(20),
        2 if of == Type::F32 => {
            rng.pick(&[-0.0_f32, 0.5, 2.5, 1e-40, f32::INFINITY, -7.0, 3e9]).to_bits().into()
        }
        2 if of == Type::F64 => rng.pick(&[-0.0_f64, 0.5, -2.5, 1e-310, f64::INFINITY, 7.0, 1e19]).to_bits(),
        3 if of == Type::F32 => ((rng.below(2001) as f32 - 1000.0) / 8.0).to_bits().into(),
        3 if of == Type::F64 => ((rng.below(2001) as f64 - 1000.0) / 8.0).to_bits(),
        _ => rng.next(),
    };
    bits & of.mask()
}

/// Number of registers of each type that random statements use as operands and results.
const EACH: usize = 3;
/// Maximum number of statements of a random program.
const STATEMENTS: usize = 40;

/// A block or loop that encloses the generated statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Block,
    Loop,
    /// A loop that all items of a group leave in the same iteration. An item may skip the rest of an
    /// iteration.
    Common,
}

struct Maker<'r> {
    rng: &'r mut SplitMix64,
    types: Vec<Type>,
    body: Body,
    /// For each type in [`Self::types`], the first of its [`EACH`] consecutive registers.
    pools: Vec<u32>,
    left: usize,
    /// Number of elements of each view that the kernel only reads, or changes by atomics.
    counts: Vec<u64>,
    /// Number of views without atomics. They precede the views with atomics.
    plain: usize,
    /// The single atomic operation for each field of each view with atomics, and for the group's array.
    /// Different atomics on one field would make the result depend on their order.
    changes: Vec<Vec<Rmw>>,
    /// The arrays of the group: one for exchange between items, and one for atomics.
    shared: Option<[u16; 2]>,
    /// Register with the offset of the last allocation from the private heap, if the program has any.
    taken: Option<Reg>,
    /// The enclosing blocks and loops.
    labels: Vec<Label>,
    loops: usize,
}

impl<'r> Maker<'r> {
    fn new(rng: &'r mut SplitMix64, doubles: bool) -> Self {
        let mut types = vec![Type::Bool, Type::U64];
        let all = Type::NUMBERS.into_iter().filter(|of| *of != Type::U64 && (doubles || *of != Type::F64));
        let others: Vec<Type> = all.collect();
        // Use only five types in a program: with few types, operations find operands of equal types.
        while types.len() < 5 {
            let of = rng.pick(&others);
            if !types.contains(&of) {
                types.push(of);
            }
        }
        let left = 5 + rng.index(STATEMENTS);
        let (body, pools, counts, labels, changes) = Default::default();
        let (plain, shared, taken, loops) = (0, None, None, 0);
        Self { rng, types, body, pools, left, counts, plain, changes, shared, taken, labels, loops }
    }

    fn fresh(&mut self, of: Type) -> Reg {
        self.body.registers.push(of);
        Reg(self.body.registers.len() as u32 - 1)
    }

    fn reg(&mut self, of: Type) -> Reg {
        let pool =
            self.types.iter().position(|known| *known == of).expect("the type is one of the program's types");
        Reg(self.pools[pool] + self.rng.index(EACH) as u32)
    }

    fn any_type(&mut self) -> Type {
        let types = self.types.clone();
        self.rng.pick(&types)
    }

    fn number_type(&mut self) -> Type {
        let types = self.types.clone();
        self.rng.pick(&types[1..])
    }

    fn memory(&mut self) -> Memory {
        match self.number_type() {
            Type::F32 if self.rng.below(3) == 0 => Memory::F16,
            of => Memory::Value(of),
        }
    }

    fn declare(&mut self) {
        for of in self.types.clone() {
            let first = self.body.registers.len() as u32;
            self.pools.push(first);
            self.body.registers.extend([of; EACH]);
        }
        for number in 0..2 + self.rng.index(3) {
            let tile = [1, 1, 3][self.rng.index(3)];
            let access = if number % 2 == 0 { Access::Write { tile } } else { Access::Read };
            let mut fields = Vec::new();
            let mut offset: u32 = self.rng.pick(&[0, 0, 1, 4]);
            for _ in 0..1 + self.rng.index(3) {
                let of = self.memory();
                if self.rng.below(3) > 0 {
                    offset = offset.next_multiple_of(of.bytes());
                }
                fields.push((offset, of));
                offset += of.bytes();
            }
            self.body.views.push(ViewDecl { access, fields });
            let count = self.rng.pick(&[1, 5, 40, 300]);
            self.counts.push(count);
        }
        for _ in 0..self.rng.index(3) {
            let table = TableDecl { of: self.memory(), len: 1 + self.rng.below(20) as u32 };
            self.body.tables.push(table);
        }
        for _ in 0..self.rng.index(3) {
            let array =
                ArrayDecl { space: Space::Item, of: self.any_type(), len: 1 + self.rng.below(20) as u32 };
            self.body.arrays.push(array);
        }
        for _ in 0..self.rng.index(4) {
            let of = self.any_type();
            self.body.params.push(of);
        }
        self.plain = self.body.views.len();
        if self.rng.below(3) == 0 {
            self.declare_atomics();
        }
        if self.rng.below(3) == 0 {
            self.declare_group();
        }
        if self.rng.below(5) == 0 {
            self.taken = Some(self.fresh(Type::U64));
        }
    }

    /// Declares views whose elements are single, contiguous numbers; and parameters.
    fn declare_dense(&mut self) {
        for of in self.types.clone() {
            let first = self.body.registers.len() as u32;
            self.pools.push(first);
            self.body.registers.extend([of; EACH]);
        }
        for number in 0..2 + self.rng.index(3) {
            let access = if number % 2 == 0 { Access::Write { tile: 1 } } else { Access::Read };
            let of = self.memory();
            self.body.views.push(ViewDecl { access, fields: vec![(0, of)] });
            // In some cases the view has too few elements for all items (threads).
            let count = self.rng.pick(&[257, 300, 300, 300, 300, 40]);
            self.counts.push(count);
        }
        for _ in 0..self.rng.index(4) {
            let of = self.any_type();
            self.body.params.push(of);
        }
    }

    /// Returns statements without branches on the item's own elements, and a store to each written view.
    fn straight(&mut self) -> Vec<Op> {
        let [item, zero] = [Type::U64; 2].map(|of| self.fresh(of));
        let mut code = vec![Op::Builtin { to: item, what: Builtin::Item }, Op::Literal { to: zero, bits: 0 }];
        for _ in 0..self.left {
            let view = self.rng.index(self.body.views.len());
            let (offset, of) = self.body.views[view].fields[0];
            let is_written = self.body.views[view].access.is_written();
            let (register, view) = (self.reg(of.value()), view as u16);
            match self.rng.below(5) {
                0 if is_written => {
                    code.push(Op::Store { view, at: zero, offset, of, value: register });
                }
                0 | 1 => {
                    let mut at = if is_written { zero } else { item };
                    if !is_written && self.rng.below(8) == 0 {
                        at = self.fresh(Type::U64);
                        code.push(Op::Literal { to: at, bits: self.rng.pick(&[0, 3, 39, 40]) });
                    }
                    code.push(Op::Load { to: register, view, at, offset, of });
                }
                _ => self.arithmetic(&mut code),
            }
        }
        for view in (0..self.body.views.len()).step_by(2) {
            let (offset, of) = self.body.views[view].fields[0];
            let value = self.reg(of.value());
            code.push(Op::Store { view: view as u16, at: zero, offset, of, value });
        }
        code
    }

    /// Returns a random type that supports all atomics.
    fn atomic_type(&mut self) -> Type {
        let has = |of: &Type| of.is_integer() && of.bytes() >= 4;
        let types: Vec<Type> = self.types.iter().copied().filter(has).collect();
        self.rng.pick(&types)
    }

    /// Returns a random atomic operation whose result does not depend on the order of the items.
    fn change(&mut self) -> Rmw {
        self.rng.pick(&[Rmw::Add, Rmw::Min, Rmw::Max, Rmw::And, Rmw::Or, Rmw::Xor])
    }

    fn declare_atomics(&mut self) {
        let (mut fields, mut changes, mut offset) = (Vec::new(), Vec::new(), 0_u32);
        for _ in 0..1 + self.rng.index(2) {
            let of = self.atomic_type();
            offset = offset.next_multiple_of(of.bytes());
            fields.push((offset, Memory::Value(of)));
            changes.push(self.change());
            offset += of.bytes();
        }
        self.changes.push(changes);
        self.body.views.push(ViewDecl { access: Access::Atomic, fields });
        let count = self.rng.pick(&[1, 5, 40]);
        self.counts.push(count);
    }

    fn declare_group(&mut self) {
        let len = self.rng.pick(&[1, 5, 32, 32, 64, 64, 128]);
        self.body.group_len = Some(len);
        let first = self.body.arrays.len() as u16;
        let (of, changed) = (self.any_type(), self.atomic_type());
        let array = |of, len| ArrayDecl { space: Space::Group, of, len };
        self.body.arrays.extend([array(of, len), array(changed, 1 + self.rng.below(9) as u32)]);
        let change = self.change();
        self.changes.push(vec![change]);
        self.shared = Some([first, first + 1]);
    }

    /// Returns code that writes every register before the program reads it.
    fn begin(&mut self) {
        // Write all registers first, including the register with the private heap's offset, because code may
        // read this offset before the first allocation.
        for at in 0..self.body.registers.len() {
            let (to, of) = (Reg(at as u32), self.body.registers[at]);
            let params: Vec<u16> = (0..self.body.params.len() as u16)
                .filter(|number| self.body.params[usize::from(*number)] == of)
                .collect();
            let op = match self.rng.below(3) {
                0 if !params.is_empty() => Op::Param { to, number: self.rng.pick(&params) },
                1 if of == Type::U64 && self.shared.is_some() => Op::Builtin {
                    to,
                    what: self.rng.pick(&[Builtin::InGroup, Builtin::Group, Builtin::Groups]),
                },
                1 if of == Type::U64 => {
                    Op::Builtin { to, what: self.rng.pick(&[Builtin::Item, Builtin::Index]) }
                }
                1 if of == Type::Bool => Op::Builtin { to, what: Builtin::Live },
                _ => Op::Literal { to, bits: number(self.rng, of) },
            };
            self.body.code.push(op);
        }
    }

    /// Returns the random program: blocks with early exits, barriers between them, and stores of the results.
    fn program(&mut self) -> Vec<Op> {
        let mut code = Vec::new();
        while self.left > 0 {
            if self.shared.is_some() {
                self.together(&mut code, 0);
            } else {
                self.block(&mut code, 0);
            }
        }
        for _ in 0..4 {
            self.store(&mut code);
        }
        code
    }

    /// Appends code that all items of a group execute in uniform control flow. At its end an item may leave
    /// or continue one of the innermost `open` enclosing blocks and loops. This is valid because no barrier
    /// follows before their end.
    fn together(&mut self, code: &mut Vec<Op>, open: usize) {
        for later in (0..1 + self.rng.index(2)).rev() {
            let end = self.left.saturating_sub(8);
            self.block(code, end);
            let open = if later == 0 { open } else { 0 };
            let deep = self.left == 0 || self.labels.len() > 2;
            match self.rng.below(9) {
                0 | 1 if !deep && self.loops == 0 => self.common_loop(code),
                2 if !deep => {
                    self.labels.push(Label::Block);
                    let mut body = Vec::new();
                    self.together(&mut body, open + 1);
                    self.labels.pop();
                    code.push(Op::Block { body });
                }
                3 if !deep => {
                    let when = self.same(code);
                    let (mut then, mut otherwise) = (Vec::new(), Vec::new());
                    self.together(&mut then, 0);
                    self.together(&mut otherwise, open);
                    code.push(Op::If { when, then, otherwise });
                }
                4 if !self.labels.is_empty() => {
                    let when = self.same(code);
                    let out = self.rng.index(self.labels.len());
                    let is_block = self.labels[self.labels.len() - 1 - out] == Label::Block;
                    let again = !is_block && self.rng.below(2) == 0;
                    let out = out as u16;
                    let jump = if again { Op::Continue { out } } else { Op::Break { out } };
                    code.push(Op::If { when, then: vec![jump], otherwise: vec![] });
                }
                _ => self.meeting(code),
            }
        }
        if open > 0 {
            let around = self.labels.split_off(self.labels.len() - open);
            let all = std::mem::replace(&mut self.labels, around);
            code.extend(self.statements(5));
            let around = std::mem::replace(&mut self.labels, all);
            self.labels.extend(around);
        }
    }

    /// Returns a bool that is equal in all items of a group.
    fn same(&mut self, code: &mut Vec<Op>) -> Reg {
        let [group, bound] = [Type::U64; 2].map(|of| self.fresh(of));
        let to = self.fresh(Type::Bool);
        code.extend([
            Op::Builtin { to: group, what: Builtin::Group },
            Op::Literal { to: bound, bits: self.rng.below(3) },
            Op::Binary { op: Binary::Le, to, left: group, right: bound },
        ]);
        to
    }

    /// Appends a loop whose few iterations all items of a group run in uniform control flow.
    fn common_loop(&mut self, code: &mut Vec<Op>) {
        let [turn, last, one] = [Type::U64; 3].map(|of| self.fresh(of));
        let done = self.fresh(Type::Bool);
        for (to, bits) in [(last, 1 + self.rng.below(3)), (one, 1), (turn, 0)] {
            code.push(Op::Literal { to, bits });
        }
        let mut body = vec![
            Op::Binary { op: Binary::Le, to: done, left: last, right: turn },
            Op::If { when: done, then: vec![Op::Break { out: 0 }], otherwise: vec![] },
            Op::Binary { op: Binary::Add, to: turn, left: turn, right: one },
        ];
        self.loops += 1;
        self.labels.push(Label::Common);
        self.together(&mut body, 1);
        self.labels.pop();
        self.loops -= 1;
        code.push(Op::Loop { body });
    }

    /// Appends a block of random statements until only `end` of the program's statements remain. Its
    /// statements do not leave outer blocks.
    fn block(&mut self, code: &mut Vec<Op>, end: usize) {
        let labels = std::mem::replace(&mut self.labels, vec![Label::Block]);
        let mut body = Vec::new();
        while self.left > end {
            self.statement(&mut body);
        }
        self.labels = labels;
        code.push(Op::Block { body });
    }

    /// Appends an operation that all items of a group execute together, such as a barrier.
    fn meeting(&mut self, code: &mut Vec<Op>) {
        let Some([left, changed]) = self.shared else { return };
        let lanes = self.body.group_len.is_some_and(|len| len.is_multiple_of(32));
        match self.rng.below(6) {
            0..3 if lanes => self.subgroup_op(code),
            3 => {
                // After the barrier, read the elements that the atomics have changed.
                let ArrayDecl { of, len, .. } = self.body.arrays[usize::from(changed)];
                code.push(Op::Barrier);
                let (at, to) = (self.index(code, len.into()), self.reg(of));
                code.extend([Op::Get { to, array: changed, at }, Op::Barrier]);
            }
            _ => {
                let ArrayDecl { of, len, .. } = self.body.arrays[usize::from(left)];
                let (own, value) = (self.fresh(Type::U64), self.reg(of));
                code.extend([
                    Op::Builtin { to: own, what: Builtin::InGroup },
                    Op::Put { array: left, at: own, value },
                    Op::Barrier,
                ]);
                let (at, to) = (self.index(code, len.into()), self.reg(of));
                code.extend([Op::Get { to, array: left, at }, Op::Barrier]);
            }
        }
    }

    fn subgroup_op(&mut self, code: &mut Vec<Op>) {
        let found = self.any_type();
        let (lane, number) = (self.fresh(Type::U32), self.reg(Type::U64));
        let op =
            self.rng.pick(&[Binary::Add, Binary::Min, Binary::Max, Binary::And, Binary::Or, Binary::Xor]);
        let all = [
            SubgroupOp::Shuffle { lane },
            SubgroupOp::ShuffleXor(self.rng.below(32) as u8),
            SubgroupOp::Ballot,
            SubgroupOp::Any,
            SubgroupOp::All,
            SubgroupOp::Reduce(op),
            SubgroupOp::Scan(op),
            SubgroupOp::Alike { bits: 1 + self.rng.below(32) as u8 },
            SubgroupOp::Sync,
        ];
        let possible: Vec<SubgroupOp> = all.into_iter().filter(|how| how.gives(found).is_some()).collect();
        let (how, of) = (self.rng.pick(&possible), self.reg(found));
        if let SubgroupOp::Shuffle { .. } = how {
            code.push(Op::Cast { to: lane, of: number });
        }
        if matches!(how, SubgroupOp::Ballot | SubgroupOp::Alike { .. }) {
            let bits = self.fresh(Type::U32);
            code.extend([Op::Subgroup { how, to: bits, of }, Op::Cast { to: number, of: bits }]);
        } else {
            let to = how.gives(found).map_or(of, |gives| self.reg(gives));
            code.push(Op::Subgroup { how, to, of });
        }
    }

    /// Appends an atomic without a result, on a view or on the group's array.
    fn atomic(&mut self, code: &mut Vec<Op>) {
        let views = self.body.views.len() - self.plain;
        let on_view = views > 0 && (self.shared.is_none() || self.rng.below(2) == 0);
        let (place, of, op) = if on_view {
            let at = self.index(code, self.counts[self.plain]);
            let fields = &self.body.views[self.plain].fields;
            let field = self.rng.index(fields.len());
            let (offset, of) = fields[field];
            (Place::View { view: self.plain as u16, at, offset }, of.value(), self.changes[0][field])
        } else if let Some([_, array]) = self.shared {
            let ArrayDecl { of, len, .. } = self.body.arrays[usize::from(array)];
            (Place::Array { array, at: self.index(code, len.into()) }, of, self.changes[views][0])
        } else {
            return self.arithmetic(code);
        };
        let scope = if on_view { Scope::Device } else { Scope::Group };
        code.push(Op::Atomic { op, to: None, place, value: self.reg(of), scope });
    }

    /// Appends an allocation from the private heap, or an access to the last one.
    fn private_heap(&mut self, code: &mut Vec<Op>) {
        let Some(taken) = self.taken else { return };
        if self.rng.below(3) == 0 {
            let bytes = self.fresh(Type::U64);
            code.push(Op::Literal { to: bytes, bits: self.rng.pick(&[0, 1, 8, 24, 24, 300]) });
            return code.push(Op::PrivateAlloc { to: taken, bytes });
        }
        let of = self.number_type();
        let (value, length, at) = (self.reg(of), self.fresh(Type::U64), self.fresh(Type::U64));
        let place = self.index(code, 24 / u64::from(of.bytes()));
        code.push(Op::Literal { to: length, bits: of.bytes().into() });
        code.push(Op::Binary { op: Binary::Mul, to: at, left: place, right: length });
        code.push(Op::Binary { op: Binary::Add, to: at, left: at, right: taken });
        code.push(match self.rng.below(2) {
            0 => Op::PrivateLoad { to: value, at },
            _ => Op::PrivateStore { at, value },
        });
    }

    fn statements(&mut self, most: usize) -> Vec<Op> {
        let mut code = Vec::new();
        for _ in 0..self.rng.index(most + 1) {
            if self.left > 0 {
                self.statement(&mut code);
            }
        }
        code
    }

    fn statement(&mut self, code: &mut Vec<Op>) {
        self.left -= 1;
        let deep = self.labels.len() > 5;
        match self.rng.below(20) {
            0 | 1 if !deep => {
                let when = self.reg(Type::Bool);
                let then = self.statements(5);
                let otherwise = self.statements(4);
                code.push(Op::If { when, then, otherwise });
            }
            2 if !deep => {
                self.labels.push(Label::Block);
                let body = self.statements(6);
                self.labels.pop();
                code.push(Op::Block { body });
            }
            3 | 4 if !deep && self.loops < 3 => self.looped(code),
            5 => {
                // Make the jump conditional; otherwise no item (thread) would reach the code after it.
                let out = self.rng.index(self.labels.len());
                let again = match self.labels[self.labels.len() - 1 - out] {
                    Label::Block => false,
                    Label::Loop => self.rng.below(2) == 0,
                    Label::Common => true,
                };
                let out = out as u16;
                let jump = if again { Op::Continue { out } } else { Op::Break { out } };
                let when = self.condition(code);
                code.push(Op::If { when, then: vec![jump], otherwise: vec![] });
            }
            6 => {
                let when = self.condition(code);
                let detail = self.reg(Type::U64);
                if self.rng.below(3) > 0 {
                    return;
                }
                let then = vec![Op::Fail { code: self.rng.below(9) as u16, detail }];
                code.push(Op::If { when, then, otherwise: vec![] });
            }
            7 | 8 => self.load(code),
            9 | 10 => self.store(code),
            11 | 12 => self.local(code),
            13 => self.atomic(code),
            14 | 15 if self.taken.is_some() => self.private_heap(code),
            _ => self.arithmetic(code),
        }
    }

    /// Appends a loop of a few iterations.
    fn looped(&mut self, code: &mut Vec<Op>) {
        let [turn, last, one] = [Type::U64; 3].map(|of| self.fresh(of));
        let done = self.fresh(Type::Bool);
        if self.rng.below(3) == 0 {
            let (of, most) = (self.reg(Type::U64), 7);
            code.push(Op::Literal { to: last, bits: most });
            code.push(Op::Binary { op: Binary::And, to: last, left: last, right: of });
        } else {
            code.push(Op::Literal { to: last, bits: self.rng.below(6) });
        }
        code.push(Op::Literal { to: one, bits: 1 });
        code.push(Op::Literal { to: turn, bits: 0 });
        self.labels.push(Label::Loop);
        self.loops += 1;
        let mut body = vec![
            Op::Binary { op: Binary::Le, to: done, left: last, right: turn },
            Op::If { when: done, then: vec![Op::Break { out: 0 }], otherwise: vec![] },
            Op::Binary { op: Binary::Add, to: turn, left: turn, right: one },
        ];
        body.extend(self.statements(6));
        self.loops -= 1;
        self.labels.pop();
        code.push(Op::Loop { body });
    }

    fn condition(&mut self, code: &mut Vec<Op>) -> Reg {
        if self.rng.below(2) == 0 {
            return self.reg(Type::Bool);
        }
        let (to, of) = (self.reg(Type::Bool), self.number_type());
        let op = self.rng.pick(&[Binary::Lt, Binary::Le, Binary::Ne, Binary::Eq]);
        let (left, right) = (self.reg(of), self.reg(of));
        code.push(Op::Binary { op, to, left, right });
        to
    }

    /// Returns a register with a random index, which is mostly below `len`.
    fn index(&mut self, code: &mut Vec<Op>, len: u64) -> Reg {
        if self.rng.below(60) == 0 {
            return self.reg(Type::U64);
        }
        let (at, bound) = (self.fresh(Type::U64), self.fresh(Type::U64));
        let left = self.reg(Type::U64);
        let more = u64::from(self.rng.below(40) == 0);
        code.push(Op::Literal { to: bound, bits: len + more });
        code.push(Op::Binary { op: Binary::Rem, to: at, left, right: bound });
        at
    }

    fn load(&mut self, code: &mut Vec<Op>) {
        let view = self.rng.index(self.plain);
        let count = self.counts[view];
        let len = if let Access::Write { tile } = self.body.views[view].access { tile.into() } else { count };
        let at = self.index(code, len);
        let fields = self.body.views[view].fields.clone();
        let (offset, of) = self.rng.pick(&fields);
        let to = self.reg(of.value());
        code.push(Op::Load { to, view: view as u16, at, offset, of });
    }

    fn store(&mut self, code: &mut Vec<Op>) {
        // Views with even numbers are the views that the kernel writes.
        let view = self.rng.index(self.plain) & !1;
        let Access::Write { tile } = self.body.views[view].access else { return };
        let at = self.index(code, tile.into());
        let fields = self.body.views[view].fields.clone();
        let (offset, of) = self.rng.pick(&fields);
        let value = self.reg(of.value());
        code.push(Op::Store { view: view as u16, at, offset, of, value });
    }

    fn local(&mut self, code: &mut Vec<Op>) {
        if !self.body.tables.is_empty() && self.rng.below(3) == 0 {
            let table = self.rng.index(self.body.tables.len());
            let TableDecl { of, len } = self.body.tables[table];
            let at = self.index(code, len.into());
            let to = self.reg(of.value());
            return code.push(Op::Lookup { to, table: table as u16, at });
        }
        let own = self.shared.map_or(self.body.arrays.len(), |[first, _]| usize::from(first));
        if own == 0 {
            return self.arithmetic(code);
        }
        let array = self.rng.index(own);
        let ArrayDecl { of, len, .. } = self.body.arrays[array];
        let at = self.index(code, len.into());
        let (value, array) = (self.reg(of), array as u16);
        code.push(match self.rng.below(2) {
            0 => Op::Get { to: value, array, at },
            _ => Op::Put { array, at, value },
        });
    }

    fn arithmetic(&mut self, code: &mut Vec<Op>) {
        let of = self.any_type();
        let (to, a, b) = (self.reg(of), self.reg(of), self.reg(of));
        match self.rng.below(12) {
            0 => code.push(Op::Literal { to, bits: number(self.rng, of) }),
            1 => code.push(Op::Copy { to, of: a }),
            2 => {
                let when = self.reg(Type::Bool);
                code.push(Op::Select { to, when, yes: a, no: b });
            }
            3 if of != Type::Bool => {
                let from = self.any_type();
                let from = self.reg(from);
                code.push(Op::Cast { to, of: from });
            }
            4 if of.is_float() => {
                let c = self.reg(of);
                code.push(Op::Fma { to, a, b, c });
            }
            4 if of.is_integer() => code.push(Op::MulHigh { to, left: a, right: b }),
            5 if of != Type::Bool => self.bits(code, of),
            6 if matches!(of, Type::U16 | Type::F32) && self.rng.below(2) == 0 => self.half(code, of),
            6 | 7 => {
                let ops: Vec<Unary> = Unary::ALL.into_iter().filter(|op| op.takes(of)).collect();
                code.push(Op::Unary { op: self.rng.pick(&ops), to, of: a });
            }
            _ => {
                let ops: Vec<Binary> = Binary::ALL.into_iter().filter(|op| op.takes(of)).collect();
                let op = self.rng.pick(&ops);
                let to = if op.is_comparison() { self.reg(Type::Bool) } else { to };
                code.push(Op::Binary { op, to, left: a, right: b });
            }
        }
    }

    /// Appends a conversion between `F32` and the bits of a 16-bit float; a NaN becomes another value.
    fn half(&mut self, code: &mut Vec<Op>, from: Type) {
        let ops: Vec<Unary> = Unary::CONVERSIONS.into_iter().filter(|op| op.takes(from)).collect();
        let op = self.rng.pick(&ops);
        let of = self.reg(from);
        if !self.types.contains(&op.gives(from)) {
            return;
        }
        let to = self.reg(op.gives(from));
        if from == Type::U16 {
            return code.push(Op::Unary { op, to, of });
        }
        let (same, bits, zero) = (self.fresh(Type::Bool), self.fresh(Type::U16), self.fresh(Type::U16));
        code.push(Op::Binary { op: Binary::Eq, to: same, left: of, right: of });
        code.push(Op::Unary { op, to: bits, of });
        code.push(Op::Literal { to: zero, bits: 0 });
        code.push(Op::Select { to, when: same, yes: bits, no: zero });
    }

    /// Appends a reinterpretation of a number's bits; skips NaNs, because their bits are unspecified.
    fn bits(&mut self, code: &mut Vec<Op>, from: Type) {
        let types: Vec<Type> = self.types.iter().copied().filter(|of| of.bytes() == from.bytes()).collect();
        let of = self.rng.pick(&types);
        if of == Type::Bool {
            return;
        }
        let (source, to) = (self.reg(from), self.reg(of));
        if !from.is_float() || of.is_float() {
            return code.push(Op::Bits { to, of: source });
        }
        let (same, bits, zero) = (self.fresh(Type::Bool), self.fresh(of), self.fresh(of));
        code.push(Op::Binary { op: Binary::Eq, to: same, left: source, right: source });
        code.push(Op::Bits { to: bits, of: source });
        code.push(Op::Literal { to: zero, bits: 0 });
        code.push(Op::Select { to, when: same, yes: bits, no: zero });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too long for an interpreter")]
    fn random_cases_are_sound_and_do_many_things() {
        let (mut failing, mut clean, mut changed, mut operations, mut meeting) = (0, 0, 0, 0, 0);
        for seed in 0..2000 {
            let case = Case::new(seed, seed % 2 == 0);
            assert!(seed % 2 == 0 || !case.kernel.needs().f64);
            let (views, report) = case.expected().unwrap();
            case.check(&views, report).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            *if report.failures > 0 { &mut failing } else { &mut clean } += 1;
            changed +=
                usize::from(views.iter().zip(&case.views).any(|(after, before)| *after != before.bytes));
            meeting += usize::from(case.kernel.body().meets());
            operations += case.kernel.body().code.iter().map(Op::count).sum::<usize>();
        }
        assert!(failing > 500 && clean > 500 && changed > 1500, "{failing} {clean} {changed}");
        assert!(operations > 2000 * 40 && meeting > 400, "{operations} {meeting}");
    }

    #[test]
    fn a_case_shrinks_to_its_failing_part() {
        let has_sqrt = |case: &Case| {
            let mut found = false;
            case.kernel.body().operations(|_, op| found |= matches!(op, Op::Unary { op: Unary::Sqrt, .. }));
            found
        };
        let case = (0..).map(|seed| Case::new(seed, true)).find(has_sqrt).unwrap();
        let small = case.shrink(has_sqrt);
        // Two operations remain: the square root, and the operation that computes its operand.
        assert_eq!(small.kernel.body().code.len(), 2, "{:?}", small.kernel.body().code);
    }
}
