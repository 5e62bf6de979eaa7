//! Lazy expressions: trees of pending operations whose leaves are views, scalars and other operands.

use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};

use pyo3::Python;
use vmarray::device::expr::Type;

use crate::copies;
use crate::element::{Kind, Unit};
use crate::elements::{Asked, Elements, Reduced};
use crate::fault::{Result, interrupted, raised};
use crate::geometry::Geometry;
use crate::handle::{Handle, lock};
use crate::lower::{Lowering, Root};
use crate::operations::Operation;
use crate::store::{Options, Place};

/// Maximum approximate number of instructions of a pending expression; a device program may have 256.
const INSTRUCTIONS_MAX: usize = 216;
/// Maximum number of views in a pending expression, equal to the inputs of a device program.
const LEAVES_MAX: usize = 7;
/// Maximum number of selected items that are copied at once.
const SELECTED: usize = 1 << 22;

/// An array, and the pending expressions that read it.
pub struct Source {
    handle: Arc<Handle>,
    /// Expressions that read the array and are not yet computed.
    pending: Mutex<Vec<Weak<Lazy>>>,
}

/// A view: items of an array, with their offset, shape and strides.
#[derive(Clone)]
pub struct View {
    pub handle: Arc<Source>,
    pub geometry: Geometry,
    pub kind: Kind,
}

/// Expression tree: an operand of an operation, or the operation itself.
pub enum Node {
    View(View),
    Lazy(Arc<Lazy>),
    /// One number for all items.
    Literal {
        kind: Kind,
        bytes: Vec<u8>,
    },
    /// 64 random bits for each item, computed from the index of the written item. Only for expressions that
    /// are written to a new array at once.
    Random {
        start: u64,
        options: Options,
    },
    Apply {
        operation: Operation,
        /// Operands, each with the kind that it is converted to.
        operands: Vec<(Arc<Node>, Kind)>,
        kind: Kind,
    },
}

/// Size of an expression. An expression that is too large is computed at once, and does not stay pending.
#[derive(Clone, Copy, Default)]
pub struct Size {
    instructions: usize,
    leaves: usize,
}

/// A selection: values, the mask that selects some of them, and the shape of both.
pub type Selection = (Arc<Node>, Arc<Node>, Vec<usize>);

/// A pending expression, computed when its items are needed.
pub struct Lazy {
    shape: Vec<usize>,
    pub kind: Kind,
    unit: Unit,
    itemsize: usize,
    size: Size,
    state: Mutex<State>,
}

enum State {
    Pending(Arc<Node>),
    /// The items of the first node at which the second node is true, as a contiguous array of one axis.
    Selection {
        value: Arc<Node>,
        mask: Arc<Node>,
        of: Vec<usize>,
    },
    Done(View),
}

impl Deref for Source {
    type Target = Arc<Handle>;

    fn deref(&self) -> &Arc<Handle> {
        &self.handle
    }
}

impl Source {
    /// Creates an array as [`Handle::new`] does. Blocks.
    pub fn new(unit: Unit, len: usize, options: Options, place: &Place) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { handle: Handle::new(unit, len, options, place)?, pending: Mutex::default() }))
    }

    /// Creates a `Source` for an existing array, without pending expressions.
    pub fn of(unit: Unit, elements: Box<dyn Elements>, options: Options, is_on_cards: bool) -> Arc<Self> {
        let handle = Handle::of(unit, elements, options, is_on_cards, &Place::Memory);
        Arc::new(Self { handle, pending: Mutex::default() })
    }

    /// Closes the array as [`Handle::close`] does. Before that, computes the pending expressions that read
    /// the array.
    pub fn close(&self) -> Result<()> {
        if self.is_closed() {
            return Ok(());
        }
        self.settle(None)?;
        self.handle.close()
    }

    /// Registers an expression that reads the array.
    pub fn is_read_by(&self, lazy: &Arc<Lazy>) {
        let mut pending = lock(&self.pending);
        if pending.len() == pending.capacity() {
            pending.retain(|one| one.strong_count() > 0);
        }
        pending.push(Arc::downgrade(lazy));
    }

    /// Computes the pending expressions that read the array. Call this before a write to the array. Skips
    /// `unwanted`, and expressions that the program dropped. After an error the remaining expressions stay
    /// pending.
    pub fn settle(&self, unwanted: Option<&Lazy>) -> Result<()> {
        // `open` fails in a forked process, in which a mutex of a parent's thread would stay locked.
        self.open()?;
        loop {
            let Some(one) = lock(&self.pending).last().cloned() else { return Ok(()) };
            match one.upgrade() {
                Some(lazy) if !unwanted.is_some_and(|unwanted| std::ptr::eq(unwanted, &*lazy)) => {
                    lazy.view()?;
                }
                _ => {}
            }
            lock(&self.pending).retain(|other| !other.ptr_eq(&one));
        }
    }
}

impl Node {
    pub fn size(&self) -> Size {
        match self {
            Self::View(_) => Size { instructions: 0, leaves: 1 },
            Self::Lazy(lazy) => lazy.current_size(),
            Self::Literal { .. } => Size::default(),
            Self::Random { .. } => Size { instructions: 14, leaves: 0 },
            Self::Apply { operation, operands, .. } => {
                let own = Size {
                    instructions: operation
                        .instructions(operands.last().map_or(Kind::Bool, |(_, kind)| *kind)),
                    leaves: 0,
                };
                operands.iter().fold(own, |size, (operand, _)| size.with(operand.size()))
            }
        }
    }

    /// Registers a pending expression with all arrays that it reads; they compute it before a change.
    fn announce(&self, lazy: &Arc<Lazy>) {
        match self {
            Self::View(view) => view.handle.is_read_by(lazy),
            Self::Lazy(inner) => inner.each_source(|node| node.announce(lazy)),
            Self::Literal { .. } | Self::Random { .. } => {}
            Self::Apply { operands, .. } => operands.iter().for_each(|(operand, _)| operand.announce(lazy)),
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::View(view) => view.kind,
            Self::Lazy(lazy) => lazy.kind,
            Self::Literal { kind, .. } | Self::Apply { kind, .. } => *kind,
            Self::Random { .. } => Kind::Number(Type::U64),
        }
    }

    /// Options for arrays that are computed from the expression.
    fn options(&self) -> Option<Options> {
        match self {
            Self::View(view) => Some(view.handle.options.clone()),
            Self::Lazy(lazy) => lazy.options(),
            Self::Literal { .. } => None,
            Self::Random { options, .. } => Some(options.clone()),
            Self::Apply { operands, .. } => operands.iter().find_map(|(operand, _)| operand.options()),
        }
    }

    /// Returns this node as an operand of another expression. A computed expression becomes a view of its
    /// result. A selection, or an expression that is not `is_small_enough`, is computed first.
    /// Later changes of the node's array do not affect the operand.
    pub fn settled(self: &Arc<Self>, is_small_enough: bool) -> Result<Arc<Self>> {
        let Self::Lazy(lazy) = &**self else { return Ok(Arc::clone(self)) };
        match lazy.node() {
            Some(node) if is_small_enough => Ok(node),
            _ => Ok(Arc::new(Self::View(lazy.view()?))),
        }
    }
}

impl Size {
    /// Returns the size of an expression that combines two others by one operation.
    pub fn with(self, other: Self) -> Self {
        Self { instructions: self.instructions + other.instructions, leaves: self.leaves + other.leaves }
    }

    pub fn is_too_large(self) -> bool {
        self.instructions > INSTRUCTIONS_MAX || self.leaves > LEAVES_MAX
    }
}

impl Lazy {
    /// Creates a pending expression with a value for each item of a shape.
    pub fn new(node: Arc<Node>, shape: Vec<usize>, unit: Unit, itemsize: usize) -> Arc<Self> {
        let (kind, size) = (node.kind(), node.size());
        let state = Mutex::new(State::Pending(Arc::clone(&node)));
        let lazy = Arc::new(Self { shape, kind, unit, itemsize, size, state });
        node.announce(&lazy);
        lazy
    }

    /// Creates a pending selection: the items of `value` at which `mask` is true, both of the shape `of`.
    pub fn selection(
        value: Arc<Node>,
        mask: Arc<Node>,
        of: Vec<usize>,
        unit: Unit,
        itemsize: usize,
    ) -> Arc<Self> {
        let kind = value.kind();
        let (first, second) = (Arc::clone(&value), Arc::clone(&mask));
        let state = Mutex::new(State::Selection { value, mask, of });
        let size = Size { instructions: 0, leaves: 1 };
        let lazy = Arc::new(Self { shape: Vec::new(), kind, unit, itemsize, size, state });
        first.announce(&lazy);
        second.announce(&lazy);
        lazy
    }

    /// True if the expression has a value for each item of this shape.
    pub fn has_shape(&self, shape: &[usize]) -> bool {
        self.shape == shape
    }

    fn current_size(&self) -> Size {
        match self.state.try_lock().as_deref() {
            Ok(State::Done(_)) => Size { instructions: 0, leaves: 1 },
            // The value is not computed, or another thread holds the lock and computes it.
            _ => self.size,
        }
    }

    fn each_source(&self, mut visit: impl FnMut(&Node)) {
        let nodes = match &*lock(&self.state) {
            State::Pending(node) => vec![Arc::clone(node)],
            State::Selection { value, mask, .. } => vec![Arc::clone(value), Arc::clone(mask)],
            State::Done(view) => vec![Arc::new(Node::View(view.clone()))],
        };
        nodes.iter().for_each(|node| visit(node));
    }

    /// Options for arrays that are computed from the expression.
    pub fn options(&self) -> Option<Options> {
        let mut found = None;
        self.each_source(|node| found = found.take().or_else(|| node.options()));
        found
    }

    pub fn is_pending(&self) -> bool {
        !matches!(*lock(&self.state), State::Done(_))
    }

    /// Returns values, mask and shape of a selection that is not yet computed. If the expressions of values
    /// and mask are too large for one program, computes one of them first.
    pub fn parts_of_selection(&self) -> Result<Option<Selection>> {
        let (value, mask, of) = match &*lock(&self.state) {
            State::Selection { value, mask, of } => (Arc::clone(value), Arc::clone(mask), of.clone()),
            _ => return Ok(None),
        };
        let is_small = !value.size().with(mask.size()).is_too_large();
        Ok(Some((value.settled(is_small)?, mask.settled(is_small)?, of)))
    }

    /// Returns the expression, or a view of its result if the result is computed; `None` for a selection.
    pub fn node(&self) -> Option<Arc<Node>> {
        match &*lock(&self.state) {
            State::Pending(node) => Some(Arc::clone(node)),
            State::Done(view) => Some(Arc::new(Node::View(view.clone()))),
            State::Selection { .. } => None,
        }
    }

    /// Number of items. For a selection, counts the true values of the mask.
    pub fn len(&self) -> Result<usize> {
        let (mask, of) = match &*lock(&self.state) {
            State::Selection { mask, of, .. } => (Arc::clone(mask), of.clone()),
            State::Done(view) => return Ok(view.geometry.count()),
            State::Pending(_) => return Ok(self.shape.iter().product()),
        };
        count(&mask, &of)
    }

    /// Returns a view of the result, and computes the result if necessary. Meanwhile other callers wait.
    pub fn view(&self) -> Result<View> {
        let mut state = lock(&self.state);
        let view = match &*state {
            State::Done(view) => return Ok(view.clone()),
            State::Pending(node) => self.computed(node)?,
            State::Selection { value, mask, of } => self.selected(value, mask, of)?,
        };
        *state = State::Done(view.clone());
        Ok(view)
    }

    fn made(&self, shape: &[usize], options: Options) -> Result<View> {
        let len = shape.iter().product::<usize>() * (self.itemsize / self.unit.bytes());
        let handle = Source::new(self.unit, len, options, &Place::Memory)?;
        Ok(View { handle, geometry: Geometry::contiguous(shape, self.itemsize), kind: self.kind })
    }

    fn computed(&self, node: &Arc<Node>) -> Result<View> {
        let view = self.made(&self.shape, node.options().unwrap_or_default())?;
        assign(&view, node)?;
        Ok(view)
    }

    fn selected(&self, value: &Arc<Node>, mask: &Arc<Node>, of: &[usize]) -> Result<View> {
        let options = value.options().unwrap_or_default();
        let view = self.made(&[count(mask, of)?], options)?;
        let value = as_row(value, of)?;
        let all: usize = of.iter().product();
        let mut done = 0;
        for start in (0..all).step_by(SELECTED) {
            let range = start..all.min(start + SELECTED);
            let found = Lowering::new(of, None).find(mask, range, usize::MAX)?;
            let starts: Vec<i64> = found
                .iter()
                .map(|place| (value.geometry.offset + (start + place) * self.itemsize) as i64)
                .collect();
            let list = copies::Listed::of(&starts, self.itemsize, value.handle.unit.bytes());
            let mut items = vec![0; found.len() * self.itemsize];
            list.read(&**value.handle.open()?, &mut items)?;
            let part = Geometry {
                offset: done * self.itemsize,
                ..Geometry::contiguous(&[found.len()], self.itemsize)
            };
            copies::write(&view.handle, &part, &items)?;
            done += found.len();
            interrupted()?;
        }
        Ok(view)
    }
}

/// Counts the items of a shape for which a mask is true.
pub fn count(mask: &Arc<Node>, of: &[usize]) -> Result<usize> {
    match Lowering::new(of, None).ask(mask, None, Asked::Count)? {
        Reduced::Int(count) => Ok(count as usize),
        _ => unreachable!("counts are always numbers"),
    }
}

/// Returns the items of a node as a contiguous view: the node's own view if that is contiguous, else a copy.
pub fn as_row(node: &Arc<Node>, shape: &[usize]) -> Result<View> {
    if let Node::View(view) = &**node {
        let geometry = view.geometry.broadcast(shape);
        if geometry.in_a_row(geometry.itemsize) && geometry.count() == shape.iter().product::<usize>() {
            return Ok(View { geometry, ..view.clone() });
        }
        return copied(view, shape);
    }
    if let Node::Lazy(lazy) = &**node
        && lazy.shape == shape
    {
        return lazy.view();
    }
    let unit = unit_of(node.kind());
    Lazy::new(Arc::clone(node), shape.to_vec(), unit, unit.bytes()).view()
}

/// A contiguous copy of a view, broadcast to a shape.
pub fn copied(view: &View, shape: &[usize]) -> Result<View> {
    let from = view.geometry.broadcast(shape);
    let (itemsize, unit) = (
        from.itemsize,
        match view.kind {
            Kind::Bytes => view.handle.unit,
            kind => unit_of(kind),
        },
    );
    let unit = if itemsize % unit.bytes() == 0 { unit } else { Unit::U8 };
    let options = view.handle.options.clone();
    let handle = Source::new(unit, from.bytes() / unit.bytes(), options, &Place::Memory)?;
    let geometry = Geometry::contiguous(shape, itemsize);
    copies::copy((&handle, &geometry), (&view.handle, &from))?;
    Ok(View { handle, geometry, kind: view.kind })
}

/// Returns the element type that stores values of a kind.
fn unit_of(kind: Kind) -> Unit {
    match kind {
        Kind::Bool | Kind::Bytes | Kind::Number(Type::U8 | Type::Bool) => Unit::U8,
        Kind::Half => Unit::F16,
        Kind::Number(Type::U16) => Unit::U16,
        Kind::Number(Type::U32) => Unit::U32,
        Kind::Number(Type::U64) => Unit::U64,
        Kind::Number(Type::I8) => Unit::I8,
        Kind::Number(Type::I16) => Unit::I16,
        Kind::Number(Type::I32) => Unit::I32,
        Kind::Number(Type::I64) => Unit::I64,
        Kind::Number(Type::F32) => Unit::F32,
        Kind::Number(Type::F64) => Unit::F64,
    }
}

/// Writes the values of an expression to the items of a view of the same kind. The caller has called `settle`
/// on the view's array.
pub fn assign(to: &View, node: &Arc<Node>) -> Result<()> {
    let shape = to.geometry.shape.clone();
    if to.geometry.count() == 0 {
        return Ok(());
    }
    if to.kind == Kind::Bytes {
        let Node::View(from) = &**node else {
            let text =
                "items of this dtype can be copied, not computed; use numpy.asarray on parts of the array";
            return Err(Python::attach(|py| raised(py, "InvalidError", text)).into());
        };
        let from = separate(from, to, &shape)?;
        return copies::copy((&to.handle, &to.geometry), (&from.handle, &from.geometry));
    }
    if let Some(root) = Root::of(to) {
        return Lowering::new(&shape, Some(root)).change(node);
    }
    let from = match &**node {
        Node::View(from) if from.kind == to.kind => separate(from, to, &shape)?,
        _ => {
            let unit = unit_of(to.kind);
            let node = Arc::new(Node::Apply {
                operation: Operation::Positive,
                operands: vec![(Arc::clone(node), to.kind)],
                kind: to.kind,
            });
            Lazy::new(node, shape, unit, unit.bytes()).view()?
        }
    };
    copies::copy((&to.handle, &to.geometry), (&from.handle, &from.geometry))
}

/// Broadcasts the view `from` to a shape; returns a copy if it overlaps the view `to`.
fn separate(from: &View, to: &View, shape: &[usize]) -> Result<View> {
    let geometry = from.geometry.broadcast(shape);
    let ((first, end), (start, stop)) = (geometry.span(), to.geometry.span());
    let is_apart = !Arc::ptr_eq(&from.handle, &to.handle) || end <= start || stop <= first;
    if is_apart { Ok(View { geometry, ..from.clone() }) } else { copied(from, shape) }
}
