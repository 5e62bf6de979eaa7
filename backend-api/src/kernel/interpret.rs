//! The interpreter of kernels on the host: the reference for all backends.

mod group_ops;

use std::ops::Range;

use super::arithmetic::{self, binary, binary_lanes, each, pairs};
use super::{
    Access, Binary, Body, Builtin, LoopClock, Memory, Op, Overtime, Place, Reg, Report, Rmw, Space,
    SubgroupOp, TimeLimit, Type, VerifiedKernel,
};
use crate::expr::{Geometry, Number};
use crate::{Result, by_integer};

/// Access of the [interpreter](Interpreter) to the memory of a launch's views.
///
/// The interpreter calls the methods only for existing elements, and for fields inside of them.
///
/// ```
/// use backend_api::kernel::{Slices, Views};
/// let mut bytes = [1, 2, 3, 4, 5, 6];
/// let mut views = Slices::new(vec![(&mut bytes, 3)]);
/// assert_eq!(views.count(0), 2);
/// let mut field = [0; 2];
/// views.read(0, 1, 1, &mut field)?;
/// assert_eq!(field, [5, 6]);
/// views.write(0, 0, 2, &[9])?;
/// assert_eq!(bytes, [1, 2, 9, 4, 5, 6]);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait Views {
    /// Returns the number of elements of the view with the index `view`.
    fn count(&self, view: usize) -> u64;

    /// Reads the field at `offset` bytes in an element.
    ///
    /// # Errors
    /// An error of the access to memory.
    fn read(&mut self, view: usize, element: u64, offset: u32, to: &mut [u8]) -> Result<()>;

    /// Writes the field at `offset` bytes in an element.
    ///
    /// # Errors
    /// An error of the access to memory.
    fn write(&mut self, view: usize, element: u64, offset: u32, from: &[u8]) -> Result<()>;

    /// Changes a number of 4 or 8 bytes in a field atomically, and returns the old bits. `change` maps old to
    /// new bits, and may run more than once. The default is a read and a write, which is not atomic if
    /// several threads use the view.
    ///
    /// # Errors
    /// An error of the access to memory.
    fn change(
        &mut self,
        view: usize,
        element: u64,
        offset: u32,
        bytes: u32,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64> {
        let mut field = [0; 8];
        let field = &mut field[..bytes as usize];
        self.read(view, element, offset, field)?;
        let old = to_bits(field);
        from_bits(field, change(old).to_le_bytes());
        self.write(view, element, offset, field)?;
        Ok(old)
    }
}

/// [`Views`] of byte slices, for a launch on one thread.
///
/// ```
/// use backend_api::kernel::{Slices, Views};
/// assert_eq!(Slices::new(vec![(&mut [0; 9], 4)]).count(0), 2);
/// ```
#[derive(Debug)]
pub struct Slices<'a>(Vec<(&'a mut [u8], usize)>);

impl<'a> Slices<'a> {
    /// Creates a view of each pair of a slice and a stride (bytes from one element to the next). Bytes after
    /// the last whole element are unused.
    ///
    /// # Panics
    /// If a stride is 0.
    #[must_use]
    pub fn new(slices: Vec<(&'a mut [u8], usize)>) -> Self {
        assert!(
            slices.iter().all(|(_, stride)| *stride > 0),
            "a slice has a stride of 0 bytes, but needs at least 1"
        );
        Self(slices)
    }
}

impl Views for Slices<'_> {
    fn count(&self, view: usize) -> u64 {
        let (bytes, stride) = &self.0[view];
        (bytes.len() / stride) as u64
    }

    fn read(&mut self, view: usize, element: u64, offset: u32, to: &mut [u8]) -> Result<()> {
        let (bytes, stride) = &self.0[view];
        let at = element as usize * stride + offset as usize;
        to.copy_from_slice(&bytes[at..at + to.len()]);
        Ok(())
    }

    fn write(&mut self, view: usize, element: u64, offset: u32, from: &[u8]) -> Result<()> {
        let (bytes, stride) = &mut self.0[view];
        let at = element as usize * *stride + offset as usize;
        bytes[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
}

/// A kernel with the arguments of a launch, ready for interpretation.
///
/// ```
/// use backend_api::expr::Geometry;
/// use backend_api::kernel::{
///     Access, Binary, Body, Builtin, Interpreter, VerifiedKernel, Memory, Op, Reg, Slices, Type, ViewDecl,
/// };
/// // out[i] = in[i + 1] + 5
/// let (of, [item, one, zero, value, five]) = (Memory::Value(Type::U8), [0, 1, 2, 3, 4].map(Reg));
/// let view = |access| ViewDecl { access, fields: vec![(0, of)] };
/// let kernel = VerifiedKernel::new(Body {
///     registers: vec![Type::U64, Type::U64, Type::U64, Type::U8, Type::U8],
///     params: vec![Type::U8],
///     views: vec![view(Access::Read), view(Access::Write { tile: 1 })],
///     code: vec![
///         Op::Builtin { to: item, what: Builtin::Item },
///         Op::Literal { to: one, bits: 1 },
///         Op::Literal { to: zero, bits: 0 },
///         Op::Binary { op: Binary::Add, to: item, left: item, right: one },
///         Op::Load { to: value, view: 0, at: item, offset: 0, of },
///         Op::Param { to: five, number: 0 },
///         Op::Binary { op: Binary::Add, to: value, left: value, right: five },
///         Op::Store { view: 1, at: zero, offset: 0, of, value },
///     ],
///     ..Body::default()
/// })?;
/// let interpreter = Interpreter {
///     params: &[5],
///     ..Interpreter::new(&kernel, 3, Geometry::plain(0))
/// };
/// let (mut input, mut output) = ([1, 2, 3], [0; 3]);
/// let mut views = Slices::new(vec![(&mut input, 1), (&mut output, 1)]);
/// let report = interpreter.run(&mut views)?;
/// // The last item reads behind the end.
/// assert_eq!((report.failures, report.site, report.detail, report.item), (1, 4, 3, 2));
/// assert_eq!(output, [7, 8, 5]);
/// // The same in parts.
/// assert_eq!(interpreter.parts(), 3);
/// let mut views = Slices::new(vec![(&mut input, 1), (&mut output, 1)]);
/// assert_eq!(interpreter.run_part(0..2, &mut views)?.failures, 0);
/// // Each failure by itself.
/// let failed = interpreter.reports(0..3, &mut views)?;
/// assert_eq!((failed.len(), failed[0].item), (1, 2));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Interpreter<'a> {
    /// Kernel to interpret.
    pub kernel: &'a VerifiedKernel,
    /// Number of items of the launch.
    pub items: u64,
    /// Mapping from item numbers to element indices.
    pub geometry: Geometry,
    /// Parameters: the value of each as 64 bits, see [`Type`].
    pub params: &'a [u64],
    /// Bytes of the tables; see [`Body::table_offset`](super::Body::table_offset).
    pub table: &'a [u8],
    /// Maximum number of loop iterations (back edges) of an item; `None` for no limit.
    pub budget: Option<u64>,
    /// Maximum running time of an item or a group; `None` for no limit.
    pub limit: Option<&'a TimeLimit>,
    /// Size of an item's private heap in bytes.
    pub private_heap_bytes: u64,
}

impl<'a> Interpreter<'a> {
    /// Creates an interpreter of a kernel without parameters and tables, with no budget, no time limit and no
    /// private heap.
    #[must_use]
    pub fn new(kernel: &'a VerifiedKernel, items: u64, geometry: Geometry) -> Self {
        Self {
            kernel,
            items,
            geometry,
            params: &[],
            table: &[],
            budget: None,
            limit: None,
            private_heap_bytes: 0,
        }
    }

    /// Runs all items one after the other, or all groups one after the other if the kernel has groups.
    ///
    /// # Errors
    /// An error of the access to memory. Some items may have run before it.
    ///
    /// # Panics
    /// If the launch has fewer parameters, table bytes or views than the kernel.
    pub fn run(&self, views: &mut impl Views) -> Result<Report> {
        self.run_part(0..self.parts(), views)
    }

    /// Number of parts that can run independently: groups if the kernel has groups, else items.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.items.div_ceil(u64::from(self.group_len()))
    }

    fn group_len(&self) -> u32 {
        self.kernel.body().group_len.unwrap_or(1)
    }

    /// Runs a range of [parts](Self::parts), one after the other.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// The panics of [`run`](Self::run).
    pub fn run_part(&self, parts: Range<u64>, views: &mut impl Views) -> Result<Report> {
        let mut all = Report::default();
        self.each_report(parts, views, |report| all = all.and(report))?;
        Ok(all)
    }

    /// Calls `run` with a function that runs the code once for given parameters, without views and groups.
    /// Its result is the final value of a register, or the report of a call that the time limit has ended.
    pub(super) fn calls<R>(
        &self,
        result: Reg,
        run: impl FnOnce(&mut dyn FnMut(&[u64]) -> Result<u64, Report>) -> R,
    ) -> R {
        let body = self.kernel.body();
        let flat = Flat::new(body);
        let mut items = [Item::new(body)];
        run(&mut |params| {
            let launch = Interpreter { params, ..*self };
            let mut views = Slices::new(Vec::new());
            let mut state = State::new(&launch, &flat, &mut views);
            state.group(0, &mut items).expect("a kernel without views accesses no memory");
            state.over.map_or_else(|| Ok(items[0].get(result)), Err)
        })
    }

    /// Runs all items of a kernel without groups, one after the other. Calls `visit` after each item, with
    /// its number, the final values of its registers, and the views.
    pub(crate) fn each_item<V: Views>(
        &self,
        views: &mut V,
        mut visit: impl FnMut(u64, &[u64], &mut V) -> Result<()>,
    ) -> Result<()> {
        let flat = Flat::new(self.kernel.body());
        let mut items = [Item::new(self.kernel.body())];
        let mut state = State::new(self, &flat, views);
        (0..self.items).try_for_each(|number| {
            state.group(number, &mut items)?;
            visit(number, &items[0].registers, state.views)
        })
    }

    /// Runs a range of [parts](Self::parts) with the results of [`run_part`](Self::run_part), but faster for
    /// groups: it decodes each operation once for all items of a group that reach the operation together. If
    /// items may wait for one another's atomic changes, it runs one item after the other instead.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// The panics of [`run`](Self::run).
    pub fn run_together(&self, parts: Range<u64>, views: &mut impl Views) -> Result<Report> {
        if !self.runs_together() {
            return self.run_part(parts, views);
        }
        let mut all = Report::default();
        let flat = Flat::new(self.kernel.body());
        let state = State::new(self, &flat, views);
        group_ops::run(state, parts, |report| all = all.and(report))?;
        Ok(all)
    }

    /// Returns true if [`run_together`](Self::run_together) runs the items of a group together.
    #[doc(hidden)]
    #[must_use]
    pub fn runs_together(&self) -> bool {
        group_ops::can(self.kernel.body())
    }

    /// Runs a range of [parts](Self::parts), and returns the report of each failed item, in the order of
    /// items.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// The panics of [`run`](Self::run).
    pub fn reports(&self, parts: Range<u64>, views: &mut impl Views) -> Result<Vec<Report>> {
        let mut all = Vec::new();
        self.each_report(parts, views, |report| all.extend((report.failures > 0).then_some(report)))?;
        Ok(all)
    }

    fn each_report(
        &self,
        parts: Range<u64>,
        views: &mut impl Views,
        mut failed: impl FnMut(Report),
    ) -> Result<()> {
        let flat = Flat::new(self.kernel.body());
        let mut state = State::new(self, &flat, views);
        let mut items: Vec<Item> = (0..self.group_len()).map(|_| Item::new(state.body)).collect();
        for part in parts {
            state.group(part, &mut items)?;
            items.iter().filter_map(Item::report).for_each(&mut failed);
            if let Some(over) = state.over {
                failed(over);
                break;
            }
        }
        Ok(())
    }
}

/// The continuation of an item.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// Continue at the operation of this number.
    At(u32),
    /// Start another iteration of the loop of this number.
    Again(u32),
    /// The end of the item.
    End,
}

/// The operations by number.
struct Flat<'a> {
    ops: Vec<Step<'a>>,
    /// True if items meet, and the loops that they run together.
    meets: bool,
    common: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Step<'a> {
    op: &'a Op,
    /// The continuation after the operation.
    next: Next,
    /// The start of the nested code: both branches of an `If`, the body of a block or loop.
    within: [Next; 2],
}

impl<'a> Flat<'a> {
    fn new(body: &'a Body) -> Self {
        let mut flat = Self { ops: Vec::new(), meets: body.meets(), common: body.common_loops() };
        flat.add(&body.code, Next::End, &mut Vec::new());
        flat
    }

    /// Adds code with the continuation `after`, and returns its start. `labels` holds the targets of
    /// `Break` and `Continue` for each enclosing block and loop.
    fn add(&mut self, code: &'a [Op], after: Next, labels: &mut Vec<(Next, Next)>) -> Next {
        let begin = self.ops.len() as u32;
        let mut at = begin;
        for (number, op) in code.iter().enumerate() {
            let site = at;
            at += op.count() as u32;
            let next = if number + 1 < code.len() { Next::At(at) } else { after };
            let next = match *op {
                Op::Break { out } => labels[labels.len() - 1 - usize::from(out)].0,
                Op::Continue { out } => labels[labels.len() - 1 - usize::from(out)].1,
                _ => next,
            };
            self.ops.push(Step { op, next, within: [next; 2] });
            match op {
                Op::If { then, otherwise, .. } => {
                    let within = [self.add(then, next, labels), self.add(otherwise, next, labels)];
                    self.ops[site as usize].within = within;
                }
                Op::Block { body } => {
                    labels.push((next, next));
                    self.ops[site as usize].within[0] = self.add(body, next, labels);
                    labels.pop();
                }
                Op::Loop { body } => {
                    labels.push((next, Next::Again(site)));
                    self.ops[site as usize].within[0] = self.add(body, Next::Again(site), labels);
                    labels.pop();
                }
                _ => {}
            }
        }
        if code.is_empty() { after } else { Next::At(begin) }
    }
}

/// The state of an item.
struct Item {
    number: u64,
    in_group: u64,
    live: bool,
    registers: Vec<u64>,
    /// The elements of each array of the item.
    arrays: Vec<Vec<u64>>,
    private_heap: Vec<u8>,
    next: Next,
    /// The number of back edges that it took: by itself, and with its group.
    turns: [u64; 2],
    failed: Option<(u32, u64)>,
}

fn arrays_of(body: &Body, space: Space) -> Vec<Vec<u64>> {
    let len = |array: &super::ArrayDecl| if array.space == space { array.len as usize } else { 0 };
    body.arrays.iter().map(|array| vec![0; len(array)]).collect()
}

impl Item {
    fn new(body: &Body) -> Self {
        Self {
            number: 0,
            in_group: 0,
            live: true,
            registers: vec![0; body.registers.len()],
            arrays: arrays_of(body, Space::Item),
            private_heap: Vec::new(),
            next: Next::End,
            turns: [0; 2],
            failed: None,
        }
    }

    fn start(&mut self, number: u64, in_group: u64, live: bool) {
        (self.number, self.in_group, self.live) = (number, in_group, live);
        (self.next, self.turns, self.failed) = (Next::At(0), [0; 2], None);
        self.private_heap.clear();
        // An item that leaves a loop early may read a register before it writes it.
        self.registers.fill(0);
        self.arrays.iter_mut().for_each(|array| array.fill(0));
    }

    fn report(&self) -> Option<Report> {
        self.failed.map(|(site, detail)| Report { failures: 1, site, detail, item: self.number })
    }

    fn get(&self, register: Reg) -> u64 {
        self.registers[register.at()]
    }

    fn set(&mut self, register: Reg, value: u64) {
        self.registers[register.at()] = value;
    }

    fn fail(&mut self, site: u32, detail: u64) {
        if self.live && self.failed.is_none() {
            self.failed = Some((site, detail));
        }
    }
}

/// The state that all items share.
struct State<'s, V> {
    launch: &'s Interpreter<'s>,
    body: &'s Body,
    flat: &'s Flat<'s>,
    views: &'s mut V,
    /// The elements of each array of the group.
    shared: Vec<Vec<u64>>,
    group: u64,
    clock: LoopClock<'s>,
    /// The report of the item that exceeded the time limit; no other item continues.
    over: Option<Report>,
}

impl<'s, V: Views> State<'s, V> {
    fn new(launch: &'s Interpreter<'s>, flat: &'s Flat<'s>, views: &'s mut V) -> Self {
        let (body, clock) = (launch.kernel.body(), LoopClock::new(launch.limit));
        Self { launch, body, flat, views, shared: Vec::new(), group: 0, clock, over: None }
    }

    /// Runs a group: each item up to its next wait for the other items, then all from there.
    fn group(&mut self, group: u64, items: &mut [Item]) -> Result<()> {
        self.group = group;
        self.clock.begin();
        self.shared = arrays_of(self.body, Space::Group);
        let first = group * items.len() as u64;
        for (lane, item) in items.iter_mut().enumerate() {
            let number = first + lane as u64;
            item.start(number, lane as u64, number < self.launch.items);
            if self.body.code.is_empty() {
                item.next = Next::End;
            }
        }
        loop {
            let mut waiting = None;
            for item in items.iter_mut() {
                waiting = self.run(item)?.or(waiting);
                if self.over.is_some() {
                    return Ok(());
                }
            }
            let Some(site) = waiting else { return Ok(()) };
            debug_assert!(items.iter().all(|item| matches!(item.next, Next::At(at) if at == site)));
            let Step { op, next, .. } = self.flat.ops[site as usize];
            if let Op::Subgroup { how, to, of } = *op {
                self.subgroup_op(how, to, of, items);
            }
            items.iter_mut().for_each(|item| item.next = next);
        }
    }

    /// Runs an item until its end, or until the operation at which it waits, which is returned.
    fn run(&mut self, item: &mut Item) -> Result<Option<u32>> {
        loop {
            let site = match item.next {
                Next::End => return Ok(None),
                Next::At(site) => site,
                Next::Again(site) => {
                    let turns = &mut item.turns[usize::from(self.flat.common.contains(&site))];
                    match self.launch.budget.filter(|budget| *turns >= *budget) {
                        None => {
                            *turns += 1;
                            if let Some(overtime) = self.clock.turn() {
                                self.end(overtime, site, item.number);
                                return Ok(None);
                            }
                            site
                        }
                        Some(budget) => {
                            item.fail(site, budget);
                            // Other items may wait for this item at a later barrier.
                            let after = self.flat.ops[site as usize].next;
                            item.next = if self.flat.meets { after } else { Next::End };
                            continue;
                        }
                    }
                }
            };
            let Step { op, next, within: [first, second] } = self.flat.ops[site as usize];
            item.next = next;
            match op {
                Op::If { when, .. } => item.next = if item.get(*when) != 0 { first } else { second },
                Op::Block { .. } | Op::Loop { .. } => item.next = first,
                Op::Break { .. } | Op::Continue { .. } => {}
                Op::Barrier | Op::Subgroup { .. } => {
                    item.next = Next::At(site);
                    return Ok(Some(site));
                }
                _ => {
                    let registers = std::mem::take(&mut item.registers);
                    let value = self.step(item, |register| &registers[register.at()], site, op);
                    item.registers = registers;
                    if let Some(to) = op.written() {
                        item.set(to, value?);
                    } else {
                        value?;
                    }
                }
            }
        }
    }

    /// Ends all items, because one item has exceeded the time limit in the loop `site`.
    fn end(&mut self, overtime: Overtime, site: u32, item: u64) {
        self.over = Some(match overtime {
            Overtime::Own => Report::time_over(site, item),
            Overtime::OfAnother => Report::default(),
        });
    }

    fn of(&self, register: Reg) -> Type {
        self.body.registers[register.at()]
    }

    /// Runs an operation that leads to the next one. Returns its result for the values of registers, or 0
    /// if it has no target register.
    fn step<'r>(&mut self, item: &mut Item, get: impl Fn(Reg) -> &'r u64, site: u32, op: &Op) -> Result<u64> {
        let place = |register| std::array::from_ref(get(register));
        let get = |register| *get(register);
        Ok(match *op {
            Op::Literal { bits, .. } => bits,
            Op::Param { number, .. } => self.launch.params[usize::from(number)],
            Op::Builtin { what, .. } => self.place(item, what),
            Op::Load { view, at, offset, of, .. } => match self.element(item, site, view, get(at)) {
                Some(element) => arithmetic::loaded(of, self.read(view, element, offset, of)?),
                None => 0,
            },
            Op::FieldEquals { view, at, offset, ref bytes, .. } => {
                let mut field = vec![0; bytes.len()];
                if let Some(element) = self.element(item, site, view, get(at)) {
                    self.views.read(view.into(), element, offset, &mut field)?;
                }
                u64::from(field == **bytes)
            }
            Op::Store { view, at, offset, of, value } => {
                if let Some(element) = self.element(item, site, view, get(at)) {
                    self.write(view, element, offset, of, arithmetic::stored(of, get(value)))?;
                }
                0
            }
            Op::Lookup { table, at, .. } => self.lookup(item, site, usize::from(table), get(at)),
            Op::Get { array, at, .. } => self.array(item, site, array, get(at)).map_or(0, |place| *place),
            Op::Put { array, at, value } => {
                let value = get(value);
                if let Some(place) = self.array(item, site, array, get(at)) {
                    *place = value;
                }
                0
            }
            Op::Atomic { op, place, value, .. } => {
                let expected = if let Rmw::CompareExchange { expected } = op { get(expected) } else { 0 };
                let (at, operands) = (get(place.at()), [get(value), expected]);
                self.atomic(item, site, op, (place, at), (self.of(value), operands))?
            }
            Op::PrivateAlloc { bytes, .. } => self.private_heap(item, site, get(bytes)),
            Op::PrivateLoad { to, at } => match private_heap_place(item, site, get(at), self.of(to)) {
                Some(place) => to_bits(place),
                None => 0,
            },
            Op::PrivateStore { at, value } => {
                let bits = get(value).to_le_bytes();
                if let Some(place) = private_heap_place(item, site, get(at), self.of(value)) {
                    from_bits(place, bits);
                }
                0
            }
            Op::Fail { detail, .. } => {
                item.fail(site, get(detail));
                0
            }
            Op::Call { ref function, ref arguments, .. } => {
                function.call(&arguments.iter().map(|argument| get(*argument)).collect::<Vec<_>>())
            }
            // Operations that change the control flow are executed by `run`.
            _ => {
                let mut value = [0];
                let is_value = values(self.body, op, place, &mut value);
                debug_assert!(is_value, "{op:?} does not lead to the next operation");
                value[0]
            }
        })
    }

    fn place(&self, item: &Item, what: Builtin) -> u64 {
        match what {
            Builtin::Item => item.number,
            Builtin::Index => self.launch.geometry.index(item.number),
            Builtin::InGroup => item.in_group,
            Builtin::Group => self.group,
            Builtin::Groups => self.launch.parts(),
            Builtin::Live => item.live.into(),
        }
    }

    /// Returns the element of a view that an item names, if it exists.
    fn element(&self, item: &mut Item, site: u32, view: u16, at: u64) -> Option<u64> {
        let count = self.views.count(view.into());
        let element = match self.body.views[usize::from(view)].access {
            Access::Write { tile } if at < tile.into() => {
                item.number.checked_mul(tile.into()).and_then(|first| first.checked_add(at))
            }
            Access::Write { .. } => None,
            Access::Read | Access::Atomic | Access::Append => Some(at),
        };
        let inside = element.filter(|element| *element < count);
        if inside.is_none() {
            item.fail(site, at);
        }
        inside.filter(|_| item.live)
    }

    fn read(&mut self, view: u16, element: u64, offset: u32, of: Memory) -> Result<u64> {
        let mut bytes = [0; 8];
        let field = &mut bytes[..of.bytes() as usize];
        self.views.read(view.into(), element, offset, field)?;
        Ok(to_bits(field))
    }

    fn write(&mut self, view: u16, element: u64, offset: u32, of: Memory, bits: u64) -> Result<()> {
        let mut bytes = [0; 8];
        let field = &mut bytes[..of.bytes() as usize];
        from_bits(field, bits.to_le_bytes());
        self.views.write(view.into(), element, offset, field)
    }

    fn lookup(&self, item: &mut Item, site: u32, table: usize, at: u64) -> u64 {
        let decl = self.body.tables[table];
        if at >= decl.len.into() {
            item.fail(site, at);
            return 0;
        }
        let begin = self.body.table_offset(table) + at * u64::from(decl.of.bytes());
        let field = &self.launch.table[begin as usize..][..decl.of.bytes() as usize];
        arithmetic::loaded(decl.of, to_bits(field))
    }

    fn array<'i>(&'i mut self, item: &'i mut Item, site: u32, array: u16, at: u64) -> Option<&'i mut u64> {
        let array = usize::from(array);
        if at >= self.body.arrays[array].len.into() {
            item.fail(site, at);
            return None;
        }
        let of = match self.body.arrays[array].space {
            Space::Item => &mut item.arrays,
            Space::Group => &mut self.shared,
        };
        Some(&mut of[array][at as usize])
    }

    fn atomic(
        &mut self,
        item: &mut Item,
        site: u32,
        op: Rmw,
        (place, at): (Place, u64),
        (of, [value, expected]): (Type, [u64; 2]),
    ) -> Result<u64> {
        let changed = |old: u64| match op {
            Rmw::Add => binary(Binary::Add, of, old, value),
            Rmw::Min => binary(Binary::Min, of, old, value),
            Rmw::Max => binary(Binary::Max, of, old, value),
            Rmw::And => binary(Binary::And, of, old, value),
            Rmw::Or => binary(Binary::Or, of, old, value),
            Rmw::Xor => binary(Binary::Xor, of, old, value),
            Rmw::Exchange => value,
            Rmw::CompareExchange { .. } if old == expected => value,
            Rmw::CompareExchange { .. } => old,
        };
        match place {
            Place::View { view, offset, .. } => {
                let Some(element) = self.element(item, site, view, at) else { return Ok(0) };
                self.views.change(view.into(), element, offset, of.bytes(), &mut |old| changed(old))
            }
            Place::Array { array, .. } => Ok(match self.array(item, site, array, at) {
                Some(place) => std::mem::replace(place, changed(*place)),
                None => 0,
            }),
        }
    }

    fn private_heap(&self, item: &mut Item, site: u32, bytes: u64) -> u64 {
        let begin = item.private_heap.len() as u64;
        let end = bytes.checked_next_multiple_of(8).and_then(|bytes| begin.checked_add(bytes));
        match end.filter(|end| *end <= self.launch.private_heap_bytes) {
            Some(end) => {
                item.private_heap.resize(end as usize, 0);
                begin
            }
            None => {
                item.fail(site, bytes);
                u64::MAX
            }
        }
    }

    fn subgroup_op(&self, how: SubgroupOp, to: Reg, of: Reg, items: &mut [Item]) {
        for warp in items.chunks_mut(32) {
            let lanes = |register: Reg| std::array::from_fn(|lane| warp[lane].get(register));
            let chosen = if let SubgroupOp::Shuffle { lane } = how { lanes(lane) } else { [0; 32] };
            let results = subgroup_op(how, self.of(of), &lanes(of), &chosen);
            warp.iter_mut().zip(results).for_each(|(item, result)| item.set(to, result));
        }
    }
}

/// Computes an [operation on values](Op::is_value) for `N` items at once. Returns false for any other
/// operation.
#[inline(always)]
fn values<'r, const N: usize>(
    body: &Body,
    op: &Op,
    get: impl Fn(Reg) -> &'r [u64; N],
    into: &mut [u64; N],
) -> bool {
    let found = |register: Reg| body.registers[register.at()];
    match *op {
        Op::Copy { of, .. } | Op::Bits { of, .. } => *into = *get(of),
        Op::Unary { op, of, .. } => each(get(of), into, |a| arithmetic::unary(op, found(of), a)),
        Op::Binary { op, left, right, .. } => {
            binary_lanes(op, found(left), get(left), get(right), into);
        }
        Op::MulHigh { to, left, right } => {
            let of = found(to);
            pairs(get(left), get(right), into, |a, b| arithmetic::mul_high(of, a, b));
        }
        Op::Fma { to, a, b, c } => {
            let (of, [a, b, c]) = (found(to), [a, b, c].map(get));
            (0..N).for_each(|lane| into[lane] = arithmetic::fma(of, a[lane], b[lane], c[lane]));
        }
        Op::Select { when, yes, no, .. } => {
            let [when, yes, no] = [when, yes, no].map(get);
            (0..N).for_each(|lane| into[lane] = if when[lane] != 0 { yes[lane] } else { no[lane] });
        }
        Op::Cast { to, of } => cast_lanes(found(of), found(to), get(of), into),
        _ => return false,
    }
    true
}

fn cast_lanes<const N: usize>(from: Type, to: Type, a: &[u64; N], into: &mut [u64; N]) {
    if to.is_float() || from.is_float() {
        return each(a, into, |a| arithmetic::cast(from, to, a));
    }
    // Convert through `i128`, which holds every integer, to extend by the sign of the source type.
    let mask = to.mask();
    by_integer!(from, T => each(a, into, |a| T::from_value(a) as i128 as u64 & mask), _ => {});
}

/// Returns the results of 32 lanes for their values, and for the lanes that they have chosen.
fn subgroup_op(how: SubgroupOp, of: Type, values: &[u64; 32], chosen: &[u64; 32]) -> [u64; 32] {
    let ballot = values.iter().rev().fold(0, |bits, value| bits << 1 | value);
    match how {
        SubgroupOp::Shuffle { .. } => chosen.map(|lane| values[lane as usize % 32]),
        SubgroupOp::ShuffleXor(mask) => std::array::from_fn(|lane| values[lane ^ usize::from(mask)]),
        SubgroupOp::Ballot => [ballot; 32],
        SubgroupOp::Any => [u64::from(ballot != 0); 32],
        SubgroupOp::All => [u64::from(ballot == 0xFFFF_FFFF); 32],
        SubgroupOp::Reduce(op) => [16, 8, 4, 2, 1].into_iter().fold(*values, |values, apart| {
            std::array::from_fn(|lane| binary(op, of, values[lane & !apart], values[lane | apart]))
        }),
        SubgroupOp::Scan(op) => [1, 2, 4, 8, 16].into_iter().fold(*values, |values, below| {
            std::array::from_fn(|lane: usize| match lane.checked_sub(below) {
                Some(other) => binary(op, of, values[other], values[lane]),
                None => values[lane],
            })
        }),
    }
}

/// The bits of a field of 1, 2, 4 or 8 bytes; 0 of others.
#[inline(always)]
pub(super) fn to_bits(field: &[u8]) -> u64 {
    match *field {
        [a] => a.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Writes the low bytes, from the lowest on.
#[inline(always)]
pub(super) fn from_bits(field: &mut [u8], bits: [u8; 8]) {
    let len = field.len();
    field.copy_from_slice(&bits[..len]);
    if cfg!(target_endian = "big") {
        field.reverse();
    }
}

fn private_heap_place(item: &mut Item, site: u32, at: u64, of: Type) -> Option<&mut [u8]> {
    let bytes = u64::from(of.bytes());
    let end = at
        .checked_add(bytes)
        .filter(|end| at.is_multiple_of(bytes) && *end <= item.private_heap.len() as u64);
    if end.is_none() {
        item.fail(site, at);
    }
    end.map(|end| &mut item.private_heap[at as usize..end as usize])
}

#[cfg(test)]
mod tests {
    use super::super::{ArrayDecl, Scope, ViewDecl};
    use super::*;

    const OF: Memory = Memory::Value(Type::U64);

    /// A body with `numbers` registers of 64 bits, `bools` bools after them, and one view that items write
    /// to.
    fn body(numbers: usize, bools: usize, code: Vec<Op>) -> Body {
        let registers = [vec![Type::U64; numbers], vec![Type::Bool; bools]].concat();
        let views = vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, OF)] }];
        Body { registers, views, code, ..Body::default() }
    }

    fn literal(to: u32, bits: u64) -> Op {
        Op::Literal { to: Reg(to), bits }
    }

    fn binary_op(op: Binary, to: u32, left: u32, right: u32) -> Op {
        Op::Binary { op, to: Reg(to), left: Reg(left), right: Reg(right) }
    }

    fn place(to: u32, what: Builtin) -> Op {
        Op::Builtin { to: Reg(to), what }
    }

    /// Stores a register, with a 0 in another register.
    fn store(value: u32, zero: u32) -> Vec<Op> {
        vec![literal(zero, 0), Op::Store { view: 0, at: Reg(zero), offset: 0, of: OF, value: Reg(value) }]
    }

    fn run(body: Body, items: u64) -> (Vec<u64>, Report) {
        let kernel = VerifiedKernel::new(body).unwrap();
        let interpreter = Interpreter {
            budget: Some(100),
            private_heap_bytes: 24,
            ..Interpreter::new(&kernel, items, Geometry::plain(0))
        };
        let mut bytes = vec![0; items as usize * 8];
        let report = interpreter.run(&mut Slices::new(vec![(&mut bytes, 8)])).unwrap();
        (bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect(), report)
    }

    #[test]
    fn jumps_lead_where_they_should() {
        // Counts the pairs a, b below 5 with a < b, except for a = 2.
        let leave_if = |when: u32, jump: Op| Op::If { when: Reg(when), then: vec![jump], otherwise: vec![] };
        let [a, b, five, one, sum, two, when] = [0, 1, 2, 3, 4, 5, 6];
        let inner = vec![
            binary_op(Binary::Le, when, five, b),
            leave_if(when, Op::Break { out: 0 }),
            binary_op(Binary::Eq, when, a, two),
            leave_if(when, Op::Continue { out: 1 }),
            binary_op(Binary::Add, b, b, one),
            binary_op(Binary::Le, when, b, a),
            leave_if(when, Op::Continue { out: 0 }),
            binary_op(Binary::Add, sum, sum, one),
        ];
        let outer = vec![
            Op::Block {
                body: vec![
                    binary_op(Binary::Lt, when, a, five),
                    leave_if(when, Op::Break { out: 0 }),
                    Op::Break { out: 1 },
                ],
            },
            binary_op(Binary::Add, a, a, one),
            literal(b, 0),
            Op::Loop { body: inner },
        ];
        let mut code =
            vec![literal(a, 0), literal(five, 5), literal(one, 1), literal(two, 2), literal(sum, 0)];
        code.extend([Op::Loop { body: outer }, Op::If { when: Reg(when), then: vec![], otherwise: vec![] }]);
        code.extend(store(sum, b));
        // The pairs of a and b from 1 to 5 with b > a and a other than 2.
        let truth = (1..=5).flat_map(|a| (1..=5).map(move |b| (a, b))).filter(|(a, b)| b > a && *a != 2);
        assert_eq!(run(body(6, 1, code), 1), (vec![truth.count() as u64], Report::default()));
    }

    #[test]
    fn a_budget_ends_an_item_and_no_other() {
        let forever = Op::Loop { body: vec![] };
        let code = [
            vec![place(0, Builtin::Item), literal(1, 3), binary_op(Binary::Eq, 3, 0, 1)],
            vec![Op::If { when: Reg(3), then: vec![forever], otherwise: vec![] }],
            store(1, 2),
        ];
        let (values, report) = run(body(3, 1, code.concat()), 5);
        assert_eq!(values, [3, 3, 3, 0, 3]);
        assert_eq!(report, Report { failures: 1, site: 4, detail: 100, item: 3 });
    }

    #[test]
    fn items_of_a_group_meet_at_barriers() {
        // Each item passes its number to its mirror image in its group of four.
        let [number, own, other, three] = [0, 1, 2, 3];
        let code = [
            vec![
                place(number, Builtin::Item),
                place(own, Builtin::InGroup),
                Op::Put { array: 0, at: Reg(own), value: Reg(number) },
                Op::Barrier,
                literal(three, 3),
                binary_op(Binary::Sub, other, three, own),
                Op::Get { to: Reg(other), array: 0, at: Reg(other) },
            ],
            store(other, three),
        ];
        let arrays = vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 4 }];
        let body = Body { arrays, group_len: Some(4), ..body(4, 0, code.concat()) };
        // In the last group, two of the four items only fill up the group: their numbers are visible, but
        // they store nothing.
        assert_eq!(run(body, 6), (vec![3, 2, 1, 0, 7, 6], Report::default()));
    }

    #[test]
    fn items_that_meet_leave_loops_when_their_budget_is_used_up() {
        // Odd items do not leave the first loop, and no item leaves the second loop.
        let [number, one, odd, sum] = [0, 1, 2, 3];
        let odd_loop = Op::Loop { body: vec![binary_op(Binary::Add, sum, sum, one)] };
        let code = [
            vec![place(number, Builtin::Item), literal(one, 1), literal(sum, 0)],
            vec![binary_op(Binary::And, odd, number, one), binary_op(Binary::Eq, 4, odd, one)],
            vec![Op::If { when: Reg(4), then: vec![odd_loop], otherwise: vec![] }, Op::Barrier],
            vec![Op::Loop { body: vec![Op::Barrier, binary_op(Binary::Add, sum, sum, one)] }],
            store(sum, odd),
        ];
        let body = Body { group_len: Some(4), ..body(4, 1, code.concat()) };
        assert_eq!(body.common_loops(), [9]);
        // The budget of 100 allows 101 iterations of each loop, counted separately.
        let (values, report) = run(body, 6);
        assert_eq!(values, [101, 202, 101, 202, 101, 202]);
        assert_eq!(report, Report { failures: 6, site: 9, detail: 100, item: 0 });
    }

    #[test]
    fn a_time_limit_ends_all_items_and_names_one() {
        let code = [
            vec![place(0, Builtin::Item), literal(1, 3), binary_op(Binary::Eq, 3, 0, 1)],
            vec![Op::If { when: Reg(3), then: vec![Op::Loop { body: vec![] }], otherwise: vec![] }],
            store(1, 2),
        ];
        let body = body(3, 1, code.concat());
        for group_len in [None, Some(2), Some(8)] {
            let kernel = VerifiedKernel::new(Body { group_len, ..body.clone() }).unwrap();
            let mut out = [0_u8; 6 * 8];
            let limit = TimeLimit::new(std::time::Duration::from_millis(1));
            let interpreter =
                Interpreter { limit: Some(&limit), ..Interpreter::new(&kernel, 6, Geometry::plain(0)) };
            let mut views = Slices::new(vec![(&mut out[..], 8)]);
            let reports = interpreter.reports(0..interpreter.parts(), &mut views).unwrap();
            assert_eq!(reports, [Report::time_over(4, 3)], "{group_len:?}");
            // Items that begin after the time limit end at once, and are not reported separately.
            let part = 3 / u64::from(group_len.unwrap_or(1));
            assert_eq!(interpreter.run_together(part..part + 1, &mut views).unwrap(), Report::default());
            // The items of one group begin together, so either all of them have the old value, or none.
            let is_old = out[40..] == [0; 8] || group_len == Some(8);
            assert!(limit.is_exceeded() && is_old, "item 5 has run: {group_len:?}");
            let again = TimeLimit::new(std::time::Duration::from_millis(1));
            let interpreter = Interpreter { limit: Some(&again), ..interpreter };
            let mut views = Slices::new(vec![(&mut out[..], 8)]);
            let report = interpreter.run_together(0..interpreter.parts(), &mut views).unwrap();
            assert_eq!(report, Report::time_over(4, 3), "{group_len:?}");
        }
    }

    #[test]
    fn operations_go_across_lanes() {
        let result = |how: SubgroupOp, gives: Type| {
            let registers = vec![Type::U64, Type::U64, Type::U64, Type::Bool, gives, Type::U32];
            let of = if matches!(how, SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All) {
                Reg(3)
            } else {
                Reg(0)
            };
            let code = [
                vec![
                    place(0, Builtin::Item),
                    literal(1, 3),
                    literal(5, 7),
                    binary_op(Binary::Lt, 3, 0, 1),
                    Op::Subgroup { how, to: Reg(4), of },
                    Op::Cast { to: Reg(2), of: Reg(4) },
                ],
                store(2, 1),
            ];
            run(Body { registers, group_len: Some(32), ..body(0, 0, code.concat()) }, 40).0
        };
        let all = |value: u64, later: u64| [vec![value; 32], vec![later; 8]].concat();
        assert_eq!(result(SubgroupOp::Ballot, Type::U32), all(7, 0));
        assert_eq!(result(SubgroupOp::Any, Type::Bool), all(1, 0));
        assert_eq!(result(SubgroupOp::All, Type::Bool), all(0, 0));
        assert_eq!(result(SubgroupOp::Reduce(Binary::Add), Type::U64), all(31 * 16, (32..64).sum()));
        assert_eq!(result(SubgroupOp::Shuffle { lane: Reg(5) }, Type::U64), all(7, 39));
        let scanned = result(SubgroupOp::Scan(Binary::Add), Type::U64);
        assert_eq!((scanned[0], scanned[5], scanned[31], scanned[33]), (0, 15, 31 * 16, 65));
        let changed = result(SubgroupOp::ShuffleXor(3), Type::U64);
        assert_eq!((changed[0], changed[1], changed[31], changed[32]), (3, 2, 28, 35));
    }

    #[test]
    fn atomics_and_private_heaps_keep_their_contracts() {
        // All items add their number to the first element of the group's array; the last one sees the sum.
        let [item, zero, old, sum] = [0, 1, 2, 3];
        let add = Op::Atomic {
            op: Rmw::Add,
            to: Some(Reg(old)),
            place: Place::Array { array: 0, at: Reg(zero) },
            value: Reg(item),
            scope: Scope::Group,
        };
        let code = [
            vec![place(item, Builtin::Item), literal(zero, 0), add],
            vec![Op::Barrier, Op::Get { to: Reg(sum), array: 0, at: Reg(zero) }],
            vec![binary_op(Binary::Add, sum, sum, old)],
            store(sum, zero),
        ];
        let arrays = vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 1 }];
        let grouped = Body { arrays, group_len: Some(4), ..body(4, 0, code.concat()) };
        assert_eq!(run(grouped, 4).0, [6, 6, 7, 9]);
        // Each item allocates 16 bytes twice, which exceeds its private heap.
        let [place_of, bytes, first, second, value] = [0, 1, 2, 3, 4];
        let code = [
            vec![place(place_of, Builtin::Item), literal(bytes, 9)],
            vec![Op::PrivateAlloc { to: Reg(first), bytes: Reg(bytes) }],
            vec![Op::PrivateAlloc { to: Reg(second), bytes: Reg(bytes) }],
            vec![Op::PrivateStore { at: Reg(first), value: Reg(place_of) }],
            vec![Op::PrivateStore { at: Reg(second), value: Reg(bytes) }],
            vec![Op::PrivateLoad { to: Reg(value), at: Reg(first) }],
            store(value, bytes),
        ];
        let (values, report) = run(body(5, 0, code.concat()), 3);
        assert_eq!(values, [0, 1, 2]);
        assert_eq!(report, Report { failures: 3, site: 3, detail: 9, item: 0 });
    }
}
