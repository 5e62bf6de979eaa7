//! Lowering: translates the syntax trees of a kernel and its callees, with the types that rustc inferred, to
//! the code that devices run.
//!
//! Lowering inlines calls, types expressions bottom-up, folds constants, resolves branches with constant
//! conditions, and unrolls loops with a small constant number of iterations. [`simplify`] then turns arrays
//! with constant indices into registers, and removes unused results.

mod call;
mod expr;
mod flow;
mod fold;
mod foreign;
mod frame;
mod launch_variant;
mod lowered_kernel;
mod neighborhood;
mod pattern;
mod positions;
mod rows;
mod simplify;
mod tables;
mod tiles;
mod value;
mod value_access;

use crate::error::{Error, ErrorKind};
use crate::host::Kernel;
use crate::inferred_types::Definition;
use crate::layout::Layout;
use crate::returned::{Returned as _, stored};
use crate::tree::Tree;
use crate::views::{ParameterInfo, ParameterKind};
use backend_api::kernel::arithmetic;
use backend_api::kernel::{Access, ArrayDecl, Binary, Body, Builtin, Memory, Op, Reg, Type, Unary, ViewDecl};
use frame::InlineFrame;
pub use launch_variant::{
    AxisPart, GroupPart, LaunchVariant, SHORT_MAX, ScalarSource, StencilPart, VALUES_MAX, numbered,
};
pub use lowered_kernel::{LoweredKernel, SourcePlace};
use neighborhood::Neighborhood;
use std::collections::HashMap;
pub use tables::TableSource;
use tables::Tables;
pub(crate) use tables::table_values;
pub use tiles::lower_placing;
use value::{BoundsCheck, ElementIndex, LoweredValue, Node, ScalarOperand};

/// Reason why the lowering of an expression ends early.
#[derive(Debug)]
enum Exit {
    /// The code after this expression is unreachable.
    Diverges,
    Error(Box<Error>),
}

type Result<T, E = Exit> = std::result::Result<T, E>;

/// A parameter of the kernel that is a view.
struct View {
    parameter: usize,
    layout: Layout,
    access: Access,
    /// True if each item accesses only its own element of the view.
    is_own: bool,
    /// For a view that items read by position: its extents and strides.
    around: Option<Neighborhood>,
    /// For a [`Rows`](crate::Rows) parameter: the index of the view with the starts of the rows.
    starts: Option<usize>,
}

/// The state of lowering for one kernel.
struct Lower {
    registers: Vec<Type>,
    /// For each register, true if several operations write it.
    is_variable: Vec<bool>,
    /// For each register, true if simplification may remove its operation when no operation reads it.
    removable: Vec<bool>,
    /// Code that runs before all other code, such as writes of literals.
    prelude: Vec<Op>,
    code: Vec<Op>,
    literals: HashMap<(Type, u64), Reg>,
    questions: HashMap<Builtin, Reg>,
    scalars: Vec<(ScalarSource, Type, Reg)>,
    /// Local arrays, and the nesting depth of the block that uses each; `None` for a free array.
    arrays: Vec<(ArrayDecl, Option<usize>)>,
    /// Group arrays, and their numbers of elements.
    group_lens: HashMap<u16, usize>,
    tables: Tables,
    views: Vec<View>,
    form: LaunchVariant,
    /// The index of the item's element along each axis of the result.
    at: Vec<ScalarOperand>,
    /// The same indices, in the width of the arithmetic on positions (32 or 64 bits).
    own: Vec<ScalarOperand>,
    /// Registers that hold the item's index plus a constant: the axis and the constant.
    away: HashMap<Reg, (usize, i64)>,
    frames: Vec<InlineFrame>,
    /// The extents of a group in items, if groups are tiles of the result.
    tile: Vec<u32>,
    /// True if items run in groups.
    has_group: bool,
    /// If tiles have padding items: the register that is true for items with an element.
    is_inside: Option<ScalarOperand>,
    /// Upper bounds of the values in registers.
    most: HashMap<Reg, u64>,
    /// The nesting depth of calls and unrolled iterations.
    depth: usize,
    /// The nesting depth of blocks and loops in the lowered code.
    nesting: usize,
    /// True if lowering unrolls loops.
    is_unrolled: bool,
    /// The number of copies of the current code, because of unrolled loops.
    turns: usize,
    /// True if an earlier access has checked the same index.
    is_checked: bool,
    /// Source locations, and the register `marker`: a literal written to it is the index of the next
    /// operation's location.
    places: Vec<SourcePlace>,
    marker: Option<Reg>,
}

/// Lowers a kernel: translates its syntax tree to the code that devices run.
///
/// # Errors
/// [`Error`], for errors that depend on the kernel's type and const parameters; see [`ErrorKind`].
pub fn lower<K: Kernel>() -> std::result::Result<LoweredKernel, Error> {
    lower_for::<K>(&LaunchVariant::default())
}

/// Lowers a kernel like [`lower`], to code that also stores the value that each item (GPU thread) returns.
/// The code has an additional view (array) for each scalar of the value, with one element for each item.
/// These views follow the views of the parameters. They store a bool as `u8`.
///
/// # Errors
/// The errors of [`lower`].
pub fn lower_returning<K: Kernel>() -> std::result::Result<LoweredKernel, Error> {
    lower_for::<K>(&LaunchVariant { returns: true, ..LaunchVariant::default() })
}

/// Lowers a kernel to the code for launches of the variant `form`.
///
/// # Errors
/// The errors of [`lower`].
pub fn lower_for<K: Kernel>(form: &LaunchVariant) -> std::result::Result<LoweredKernel, Error> {
    let returned = if form.returns { K::Returned::types() } else { Vec::new() };
    lowered(form, &|lower| lower.kernel(K::parameters(), &returned, &K::group(), K::define()))
}

/// Lowers a function of scalars. The last operation of the body writes the result, a scalar.
pub(crate) fn lower_function(
    parameters: &[Type],
    define: impl Fn() -> Definition + Sync,
) -> std::result::Result<LoweredKernel, Error> {
    lowered(&LaunchVariant::default(), &|lower| lower.function(parameters, define()))
}

/// Stack bytes of the lowering thread: nested calls, at most 64 deep, take some MiB in unoptimised builds.
const STACK_BYTES: usize = 32 << 20;

/// Lowers a kernel on a thread with a large stack. Unrolls loops, or lowers again without unrolling if the
/// code is too long.
fn lowered(
    form: &LaunchVariant,
    with: &(dyn Fn(Lower) -> Result<LoweredKernel> + Sync),
) -> std::result::Result<LoweredKernel, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("lowering".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, || lowered_here(form, with)) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // The system refused a thread with a large stack. The caller's stack suffices for most kernels.
            Err(_) => lowered_here(form, with),
        }
    })
}

fn lowered_here(
    form: &LaunchVariant,
    with: &dyn Fn(Lower) -> Result<LoweredKernel>,
) -> std::result::Result<LoweredKernel, Error> {
    let attempt = |is_unrolled| {
        with(Lower::new(is_unrolled, form.clone())).map_err(|exit| match exit {
            Exit::Error(error) => *error,
            Exit::Diverges => unreachable!("kernels return, and `function` refuses code that does not"),
        })
    };
    match attempt(true) {
        Err(error) if error.kind() == ErrorKind::TooLarge => attempt(false),
        result => result,
    }
}

impl Lower {
    fn new(is_unrolled: bool, form: LaunchVariant) -> Self {
        Self {
            registers: Vec::new(),
            is_variable: Vec::new(),
            removable: Vec::new(),
            prelude: Vec::new(),
            code: Vec::new(),
            literals: HashMap::new(),
            questions: HashMap::new(),
            scalars: Vec::new(),
            arrays: Vec::new(),
            group_lens: HashMap::new(),
            tables: Tables::default(),
            views: Vec::new(),
            form,
            at: Vec::new(),
            own: Vec::new(),
            away: HashMap::new(),
            tile: Vec::new(),
            has_group: false,
            is_inside: None,
            most: HashMap::new(),
            frames: Vec::new(),
            depth: 0,
            nesting: 0,
            is_unrolled,
            turns: 1,
            is_checked: false,
            places: Vec::new(),
            marker: None,
        }
    }

    fn kernel(
        mut self,
        parameters: Vec<ParameterInfo>,
        returned: &[Type],
        group: &[u32],
        definition: Definition,
    ) -> Result<LoweredKernel> {
        let tree = definition.tree;
        self.has_group = !group.is_empty();
        let own_axes = parameters.iter().find_map(ParameterInfo::axes);
        if self.form.axes == 0 {
            self.form.axes = own_axes.unwrap_or(1);
        }
        if group.len() > 1 {
            if own_axes != Some(group.len()) {
                let detail = format!(
                    "the kernel's groups have {0} axes: declare its position with as many axes, `At<{0}>`",
                    group.len()
                );
                let error = Error::new(ErrorKind::Unsupported, tree.name, tree.file, tree.line, detail);
                return Err(Exit::Error(Box::new(error)));
            }
            (self.tile, self.form.is_tiled) = (group.to_vec(), true);
        }
        let form = self.form.clone();
        let mut inside = if form.axes > 1 { self.domain(&form) } else { None };
        if !self.tile.is_empty() {
            // If groups compute tiles, items (GPU threads) beyond the edges run too: a branch skips their
            // writes.
            self.is_inside = inside.take();
        }
        let mut arguments = Vec::with_capacity(parameters.len());
        for (number, parameter) in parameters.iter().enumerate() {
            if matches!(parameter.kind, ParameterKind::Rows(_)) {
                // The kernel function has no parameter for the start of each row, so remove this argument.
                arguments.pop();
            }
            if matches!(parameter.kind, ParameterKind::Group(..)) && !self.has_group {
                let name = parameter.name;
                let detail = format!(
                    "`{name}` needs groups of items: set their length, `#[kernel(group = \
                                      64)]`"
                );
                let error = Error::new(ErrorKind::Unsupported, tree.name, tree.file, tree.line, detail);
                return Err(Exit::Error(Box::new(error)));
            }
            arguments.push(self.parameter(number, &parameter.kind)?);
        }
        let value = self.returned(definition, &arguments)?;
        self.write_returned(&value, parameters.len(), returned)?;
        let mut code = self.edges();
        code.append(&mut self.code);
        if let Some(ScalarOperand::Register(when)) = inside {
            code = vec![Op::If { when, then: code, otherwise: Vec::new() }];
        }
        self.code = code;
        let group_len = group.iter().copied().reduce(u32::saturating_mul);
        self.finished(tree, parameters, group_len)
    }

    fn function(mut self, parameters: &[Type], definition: Definition) -> Result<LoweredKernel> {
        let tree = definition.tree;
        let mut arguments = Vec::with_capacity(parameters.len());
        for (parameter, of) in parameters.iter().enumerate() {
            let register = self.scalar(ScalarSource::Value { parameter, position: 0 }, *of);
            arguments.push(LoweredValue::scalar(*of, ScalarOperand::Register(register)));
        }
        let value = self.returned(definition, &arguments)?;
        let operand = self.operand(&value)?;
        let (of, to) = (self.register(operand), self.new_register(self.type_of(operand)));
        self.removable[to.at()] = false;
        self.code.push(Op::Copy { to, of });
        self.finished(tree, Vec::new(), None)
    }

    /// Lowers the whole kernel or function, and returns its value. Code that never returns is an error.
    fn returned(&mut self, definition: Definition, arguments: &[LoweredValue]) -> Result<LoweredValue> {
        let tree = definition.tree;
        self.inline(definition, arguments).map_err(|exit| match exit {
            Exit::Diverges => {
                let detail = "it never returns: end its loop";
                let error =
                    Error::new(ErrorKind::Unsupported, tree.name, tree.file, tree.line, detail.into());
                Exit::Error(Box::new(error))
            }
            error => error,
        })
    }

    /// Simplifies and verifies the lowered code, and returns the kernel.
    fn finished(
        self,
        tree: &'static Tree,
        parameters: Vec<ParameterInfo>,
        group_len: Option<u32>,
    ) -> Result<LoweredKernel> {
        let (name, defined) = (tree.name, SourcePlace { file: tree.file, line: tree.line });
        let mut body = Body {
            params: self.scalars.iter().map(|scalar| scalar.1).collect(),
            tables: self.tables.decls(),
            arrays: self.arrays.iter().map(|array| array.0).collect(),
            views: self
                .views
                .iter()
                .map(|view| ViewDecl { access: view.access, fields: Vec::new() })
                .collect(),
            code: self.prelude.iter().chain(&self.code).cloned().collect(),
            registers: self.registers.clone(),
            group_len,
            resident_groups: None,
        };
        let marked = simplify::simplify(&mut body, self.removable.clone(), self.marker);
        let places: Vec<(u32, SourcePlace)> =
            marked.into_iter().map(|(site, number)| (site, self.places[number as usize])).collect();
        if let Err(refused) = body.verify() {
            let detail = refused.detail().to_owned();
            let error = match body.divergent_site() {
                Some(site) => {
                    let place = places.iter().find(|place| place.0 == site).map(|place| place.1);
                    let SourcePlace { file, line } = place.unwrap_or(defined);
                    let detail = "some items of a group may skip this or run it more often than others: \
                                  move it out of conditions and loops that differ between items";
                    Error::new(ErrorKind::Divergent, name, file, line, detail.into())
                }
                None => Error::new(ErrorKind::TooLarge, name, defined.file, defined.line, detail),
            };
            return Err(Exit::Error(Box::new(error)));
        }
        Ok(LoweredKernel {
            name,
            body,
            parameters,
            scalars: self.scalars.iter().map(|scalar| scalar.0).collect(),
            views: self.views.iter().map(|view| view.parameter).collect(),
            places,
            defined,
            tables: self.tables.sources(),
        })
    }

    /// Stores each scalar of a returned value in its own view.
    fn write_returned(&mut self, value: &LoweredValue, parameter: usize, types: &[Type]) -> Result<()> {
        for (number, of) in types.iter().enumerate() {
            let part = value.part(number).unwrap_or_else(|| value.clone());
            let (operand, of) = (self.operand(&part)?, stored(*of));
            let operand = self.cast(operand, of);
            let (value, at) = (self.register(operand), self.literal(Type::U64, 0));
            let view = self.views.len() as u16;
            let (layout, access) = (Layout::Scalar(of), Access::Write { tile: 1 });
            self.views.push(View { parameter, layout, access, is_own: true, around: None, starts: None });
            self.code.push(Op::Store { view, at, offset: 0, of: Memory::Value(of), value });
        }
        Ok(())
    }

    /// Records the source location of the next operation.
    fn mark(&mut self) {
        let Some(frame) = self.frames.last() else { return };
        let place = SourcePlace { file: frame.definition.tree.file, line: frame.line };
        if self.places.last() != Some(&place) {
            self.places.push(place);
        }
        let to = self.marker.unwrap_or_else(|| self.new_variable(Type::U64));
        self.removable[to.at()] = false;
        self.marker = Some(to);
        self.code.push(Op::Literal { to, bits: self.places.len() as u64 - 1 });
    }

    /// Returns the value of a parameter of the launched kernel.
    fn parameter(&mut self, number: usize, kind: &ParameterKind) -> Result<LoweredValue> {
        let element;
        let (layout, access, is_own) = match kind {
            ParameterKind::At(1) => {
                self.line();
                return Ok(Self::place_value(&self.at.clone()));
            }
            ParameterKind::At(_) => return Ok(Self::place_value(&self.at.clone())),
            ParameterKind::Value(layout) => {
                let source = |position| ScalarSource::Value { parameter: number, position };
                return self.given(layout, &mut 0, &source);
            }
            ParameterKind::Table(layout) => {
                let node = self.tables.parameter(number, layout);
                return Ok(LoweredValue { is_reference: true, ..LoweredValue::new(layout.clone(), node) });
            }
            ParameterKind::Own(layout) | ParameterKind::OwnMut(layout) if !self.tile.is_empty() => {
                let is_result = matches!(kind, ParameterKind::OwnMut(_));
                return self.of_tiles(number, layout, is_result);
            }
            ParameterKind::Own(layout) => (layout, Access::Read, true),
            ParameterKind::OwnMut(layout) => (layout, Access::Write { tile: 1 }, true),
            ParameterKind::Anywhere(layout, _)
            | ParameterKind::Window(layout, _)
            | ParameterKind::Rows(layout) => (layout, Access::Read, false),
            ParameterKind::Shared(layout) => (layout, Access::Atomic, false),
            ParameterKind::Append(layout) => {
                let counter = Layout::Scalar(Type::U64);
                let access = Access::Atomic;
                self.views.push(View {
                    parameter: number,
                    layout: counter,
                    access,
                    is_own: false,
                    around: None,
                    starts: None,
                });
                let is_numbered = self.form.ordered.contains(&number);
                element = if is_numbered { numbered(layout.clone()) } else { layout.clone() };
                (&element, Access::Append, false)
            }
            ParameterKind::Group(layout, axes) => return self.group_place(layout, *axes),
        };
        let around = match kind {
            ParameterKind::Window(_, axes) | ParameterKind::Anywhere(_, axes @ 2..) => {
                Some(self.around(number, layout, *axes, true)?)
            }
            _ => None,
        };
        let starts = matches!(kind, ParameterKind::Rows(_)).then(|| self.views.len().saturating_sub(1));
        let view = View { parameter: number, layout: layout.clone(), access, is_own, around, starts };
        self.views.push(view);
        Ok(LoweredValue {
            is_reference: true,
            ..LoweredValue::new(Layout::UNIT, Node::View(self.views.len() - 1))
        })
    }

    /// Returns a value whose scalars the launch passes as scalar parameters.
    fn given(
        &mut self,
        layout: &Layout,
        position: &mut usize,
        source: &impl Fn(usize) -> ScalarSource,
    ) -> Result<LoweredValue> {
        match layout {
            Layout::Scalar(of) => {
                let register = self.scalar(source(*position), *of);
                *position += 1;
                Ok(LoweredValue::scalar(*of, ScalarOperand::Register(register)))
            }
            Layout::Array(of, len) => {
                let place = self.place(layout, 0)?;
                for at in 0..*len as u64 {
                    let value = self.given(of, position, source)?;
                    let to = self.element(&place, ScalarOperand::Constant(Type::U64, at))?;
                    self.assign(&to, &value)?;
                }
                Ok(place.fresh())
            }
            Layout::Tuple(_) | Layout::Struct { .. } => {
                let mut nodes = Vec::new();
                for part in layout.parts() {
                    nodes.push(self.given(part, position, source)?.node);
                }
                Ok(LoweredValue::new(layout.clone(), Node::Parts(nodes)))
            }
        }
    }

    /// Returns the register of a scalar that the launch passes.
    fn scalar(&mut self, source: ScalarSource, of: Type) -> Reg {
        if let Some((.., register)) = self.scalars.iter().find(|(known, ..)| *known == source) {
            return *register;
        }
        let to = self.new_register(of);
        self.prelude.push(Op::Param { to, number: self.scalars.len() as u16 });
        self.scalars.push((source, of, to));
        to
    }

    /// Returns the element of a view at an index, or the item's own element.
    fn view_element(&mut self, view: usize, at: Option<ScalarOperand>) -> LoweredValue {
        let View { layout, access, is_own, .. } = &self.views[view];
        let (layout, access, is_own) = (layout.clone(), *access, *is_own);
        let at = match at {
            Some(at) if !is_own => at,
            _ if access.is_written() => ScalarOperand::Constant(Type::U64, 0),
            _ => ScalarOperand::Register(self.question(Builtin::Item)),
        };
        let check = if is_own { BoundsCheck::Proven } else { BoundsCheck::ByAccess };
        let node = Node::of_element(&layout, view as u16, 0);
        // The view's length is unknown during lowering, so even constant indices need a bounds check.
        LoweredValue {
            index: Some(ElementIndex { at, len: 0, check }),
            is_shared: true,
            ..LoweredValue::new(layout, node)
        }
    }

    fn new_register(&mut self, of: Type) -> Reg {
        self.registers.push(of);
        self.is_variable.push(false);
        self.removable.push(true);
        Reg((self.registers.len() - 1) as u32)
    }

    fn new_variable(&mut self, of: Type) -> Reg {
        let register = self.new_register(of);
        self.is_variable[register.at()] = true;
        register
    }

    /// Returns the register of a literal, which all uses share.
    fn literal(&mut self, of: Type, bits: u64) -> Reg {
        if let Some(register) = self.literals.get(&(of, bits)) {
            return *register;
        }
        let to = self.new_register(of);
        self.prelude.push(Op::Literal { to, bits });
        self.literals.insert((of, bits), to);
        to
    }

    /// Returns a register with a built-in value of the item.
    fn question(&mut self, what: Builtin) -> Reg {
        if let Some(register) = self.questions.get(&what) {
            return *register;
        }
        let to = self.new_register(what.gives());
        self.prelude.push(Op::Builtin { to, what });
        self.questions.insert(what, to);
        to
    }

    fn unary(&mut self, op: Unary, of: ScalarOperand) -> ScalarOperand {
        let found = self.type_of(of);
        if let ScalarOperand::Constant(of, bits) = of {
            return ScalarOperand::Constant(op.gives(of), arithmetic::unary(op, of, bits));
        }
        let (to, of) = (self.new_register(op.gives(found)), self.register(of));
        self.code.push(Op::Unary { op, to, of });
        ScalarOperand::Register(to)
    }

    fn binary(&mut self, op: Binary, left: ScalarOperand, right: ScalarOperand) -> ScalarOperand {
        let of = self.type_of(left);
        if let ScalarOperand::Constant(_, by) = right
            && let Some((op, by)) = fold::without_division(op, of, by)
        {
            return self.binary(op, left, ScalarOperand::Constant(of, by));
        }
        let gives = if op.is_comparison() { Type::Bool } else { of };
        match (left, right) {
            (ScalarOperand::Constant(_, a), ScalarOperand::Constant(_, b)) => {
                return ScalarOperand::Constant(gives, arithmetic::binary(op, of, a, b));
            }
            (_, ScalarOperand::Constant(_, b)) if fold::is_neutral(op, of, b) => return left,
            (ScalarOperand::Constant(_, a), _)
                if fold::is_neutral(op, of, a)
                    && matches!(op, Binary::Add | Binary::Mul | Binary::And | Binary::Or | Binary::Xor) =>
            {
                return right;
            }
            (ScalarOperand::Constant(_, 0), _) | (_, ScalarOperand::Constant(_, 0))
                if !of.is_float() && matches!(op, Binary::Mul | Binary::And) =>
            {
                return ScalarOperand::Constant(of, 0);
            }
            (ScalarOperand::Constant(_, 1), _) | (_, ScalarOperand::Constant(_, 1))
                if of == Type::Bool && op == Binary::Or =>
            {
                return ScalarOperand::Constant(of, 1);
            }
            _ => {}
        }
        let to = self.new_register(gives);
        let (left, right) = (self.register(left), self.register(right));
        self.code.push(Op::Binary { op, to, left, right });
        ScalarOperand::Register(to)
    }

    fn select(&mut self, when: ScalarOperand, yes: ScalarOperand, no: ScalarOperand) -> ScalarOperand {
        match when {
            ScalarOperand::Constant(_, 0) => return no,
            ScalarOperand::Constant(..) => return yes,
            ScalarOperand::Register(_) if yes == no => return yes,
            ScalarOperand::Register(_) => {}
        }
        let to = self.new_register(self.type_of(yes));
        let (when, yes, no) = (self.register(when), self.register(yes), self.register(no));
        self.code.push(Op::Select { to, when, yes, no });
        ScalarOperand::Register(to)
    }

    fn cast(&mut self, of: ScalarOperand, to: Type) -> ScalarOperand {
        let from = self.type_of(of);
        if from == to {
            return of;
        }
        if let ScalarOperand::Constant(from, bits) = of {
            return ScalarOperand::Constant(to, arithmetic::cast(from, to, bits));
        }
        let (to, of) = (self.new_register(to), self.register(of));
        self.code.push(Op::Cast { to, of });
        ScalarOperand::Register(to)
    }

    fn bits(&mut self, of: ScalarOperand, to: Type) -> ScalarOperand {
        if let ScalarOperand::Constant(_, bits) = of {
            return ScalarOperand::Constant(to, bits);
        }
        let (to, of) = (self.new_register(to), self.register(of));
        self.code.push(Op::Bits { to, of });
        ScalarOperand::Register(to)
    }

    /// Creates an error at the current source location.
    fn error(&self, kind: ErrorKind, detail: String) -> Exit {
        let (name, file, line) = match self.frames.last() {
            Some(frame) => (frame.definition.tree.name, frame.definition.tree.file, frame.line),
            None => ("", "", 0),
        };
        Exit::Error(Box::new(Error::new(kind, name, file, line, detail)))
    }

    /// Returns an error if a kernel without groups uses a group operation.
    fn expect_group(&self, what: &str) -> Result<()> {
        if self.has_group {
            return Ok(());
        }
        let detail =
            format!("{what} needs groups of items: set their length at the kernel, `#[kernel(group = 64)]`");
        Err(self.error(ErrorKind::Unsupported, detail))
    }

    /// Creates the error for a case that should be impossible, because rustc has checked the function.
    fn unexpected(&self, what: &str) -> Exit {
        self.error(ErrorKind::Unsupported, format!("kernels do not support {what}"))
    }
}
