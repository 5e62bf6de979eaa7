//! Lowers a lazy expression of Python to a device program of the library and the views that it reads.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use vmarray::compute::AnyColumn;
use vmarray::device::expr::{Binary, Type, Value};

use crate::copies;
use crate::element::Kind;
use crate::elements::{self, Asked, Bins, Elements, Reduced};
use crate::fault::Result;
use crate::node::{Node, Source, View, as_row, copied};
use crate::operations::Code;

/// Bytes of work on devices between two checks for signals.
const WORK_BYTES: usize = 4 << 30;

/// One input of a device program: contiguous elements of an array, and the field with the item in each.
#[derive(Clone)]
pub struct Root {
    handle: Arc<Source>,
    first: usize,
    count: usize,
    /// Offset of the item in its element.
    field: usize,
    kind: Kind,
}

impl Root {
    /// Returns the elements that hold a view's items; `None` unless they are contiguous and each holds one
    /// item.
    pub fn of(view: &View) -> Option<Self> {
        let (unit, geometry) = (view.handle.unit.bytes(), &view.geometry);
        let field = geometry.offset % unit;
        let is_so = geometry.in_a_row(unit) && field + geometry.itemsize <= unit;
        let (first, count) = (geometry.offset / unit, geometry.count());
        is_so.then(|| Self { handle: Arc::clone(&view.handle), first, count, field, kind: view.kind })
    }

    fn is_at(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle) && self.first == other.first
    }

    fn overlaps(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
            && self.first < other.first + other.count
            && other.first < self.first + self.count
    }
}

/// Builder of a device program for an expression, which runs once for each item of a shape.
pub struct Lowering<'s> {
    shape: &'s [usize],
    code: Code,
    /// The inputs of the expression; for a write, the first one is the destination.
    columns: Vec<Root>,
    is_change: bool,
    /// Lowered nodes by address. The map keeps the nodes alive, so that no other node gets the same address.
    known: HashMap<*const Node, (Value, Arc<Node>)>,
    /// True if a view of a single item is read on the host and becomes a constant.
    has_literals: bool,
}

impl<'s> Lowering<'s> {
    pub fn new(shape: &'s [usize], changed: Option<Root>) -> Self {
        let (is_change, columns) = (changed.is_some(), changed.into_iter().collect());
        let (code, known) = (Code::default(), HashMap::new());
        Self { shape, code, columns, is_change, known, has_literals: true }
    }

    fn node(&mut self, node: &Arc<Node>) -> Result<Value> {
        if let Some((value, _)) = self.known.get(&Arc::as_ptr(node)) {
            return Ok(*value);
        }
        let value = match &**node {
            Node::View(view) => self.view(view)?,
            Node::Lazy(lazy) => match lazy.node() {
                Some(inner) => self.node(&inner)?,
                None => self.view(&lazy.view()?)?,
            },
            Node::Literal { kind, bytes } => self.literal(*kind, bytes),
            Node::Random { start, .. } => self.code.random(*start),
            Node::Apply { operation, operands, .. } => {
                let mut values = Vec::with_capacity(operands.len());
                for (operand, kind) in operands {
                    let value = self.node(operand)?;
                    values.push(self.code.cast(value, operand.kind(), *kind));
                }
                let kind = operands.last().map_or(Kind::Bool, |(_, kind)| *kind);
                self.code.operation(*operation, kind, &values)?
            }
        };
        self.known.insert(Arc::as_ptr(node), (value, Arc::clone(node)));
        Ok(value)
    }

    fn literal(&mut self, kind: Kind, bytes: &[u8]) -> Value {
        let bits = match *bytes {
            [byte] => byte.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => unreachable!("a number has 1, 2, 4 or 8 bytes"),
        };
        match kind {
            Kind::Bool | Kind::Bytes => self.code.literal(Type::Bool, (bits != 0).into()),
            Kind::Half => {
                let value = vmarray::half::f16::from_bits(bits as u16).to_f32();
                self.code.literal(Type::F32, value.to_bits().into())
            }
            Kind::Number(of) => self.code.literal(of, bits),
        }
    }

    fn view(&mut self, view: &View) -> Result<Value> {
        if self.has_literals && view.geometry.count() == 1 {
            let mut item = vec![0; view.geometry.itemsize];
            copies::read(&view.handle, &view.geometry, &mut item)?;
            return Ok(self.literal(view.kind, &item));
        }
        let broadcast = View { geometry: view.geometry.broadcast(self.shape), ..view.clone() };
        let root = Root::of(&broadcast).filter(|root| {
            // Copy a view that overlaps the destination at another offset: devices write the destination
            // while they read the view.
            !self.is_change || root.is_at(&self.columns[0]) || !root.overlaps(&self.columns[0])
        });
        let root = match root {
            Some(root) => root,
            None => Root::of(&copied(view, self.shape)?).expect("a copy has contiguous items"),
        };
        let at = self.columns.iter().position(|column| column.is_at(&root)).unwrap_or_else(|| {
            self.columns.push(root.clone());
            self.columns.len() - 1
        });
        Ok(self.code.loaded(at as u8, root.field as u32, root.kind))
    }

    /// Runs the program, and writes the values of `node` to the destination, the first column (operand).
    pub fn change(mut self, node: &Arc<Node>) -> Result<()> {
        let root = self.columns[0].clone();
        let value = self.node(node)?;
        let value = self.code.cast(value, node.kind(), root.kind);
        let value = self.code.stored(value, root.kind);
        let code = elements::Code { program: self.code.program()?, value, filter: None };
        self.run(|handle, range, others| handle.change(range, others, &code, root.field))
    }

    /// Runs `work` piece by piece: on a range of the first column, and the same range of all others.
    fn run(
        &self,
        mut work: impl for<'a> FnMut(&'a dyn Elements, Range<usize>, &[AnyColumn<'a>]) -> vmarray::Result<()>,
    ) -> Result<()> {
        let first = &self.columns[0];
        let open = self.columns.iter().map(|column| column.handle.open()).collect::<Result<Vec<_>>>()?;
        let range = first.first..first.first + first.count;
        first.handle.in_pieces_of(WORK_BYTES, range.clone(), |part| {
            let others = self.columns.iter().zip(&open).skip(1).map(|(column, open)| {
                let start = column.first + part.start - range.start;
                open.column(start..start + part.len())
            });
            let others = others.collect::<vmarray::Result<Vec<_>>>()?;
            Ok(work(&**open[0], part, &others)?)
        })
    }

    /// Lowers a reduction: the value to reduce, and the condition.
    fn question(
        &mut self,
        node: &Arc<Node>,
        mask: Option<&Arc<Node>>,
        asked: Asked,
    ) -> Result<elements::Code> {
        let (value, kind) = (self.node(node)?, node.kind());
        let value = match asked {
            Asked::Count | Asked::First => self.code.cast(value, kind, Kind::Bool),
            Asked::IntSum => self.code.cast(value, kind, Kind::Number(Type::I64)),
            Asked::FloatSum => self.code.cast(value, kind, Kind::Number(Type::F64)),
            Asked::IntExtreme { .. } => self.integer_to_compare(value, kind),
            Asked::FloatExtreme { is_least } => self.float_to_compare(value, kind, is_least),
            Asked::FirstNan => {
                let number = self.code.cast(value, kind, Kind::Number(Type::F64));
                self.code.is_nan(number)
            }
        };
        let filter = match mask {
            Some(mask) => {
                let value = self.node(mask)?;
                Some(self.code.cast(value, mask.kind(), Kind::Bool))
            }
            None => None,
        };
        if self.columns.is_empty() {
            // All operands became constants. But the program needs a column (an operand read from memory),
            // because columns determine the number of items. So lower again, with all operands as columns.
            let mut again = Self { has_literals: false, ..Self::new(self.shape, None) };
            let of_view = |node: &Arc<Node>| as_row(node, self.shape).map(|view| Arc::new(Node::View(view)));
            let (node, mask) = (of_view(node)?, mask.map(of_view).transpose()?);
            let code = again.question(&node, mask.as_ref(), asked)?;
            *self = again;
            return Ok(code);
        }
        Ok(elements::Code { program: self.code.program()?, value, filter })
    }

    /// Adds the conversion of an integer to a signed one of 32 bits, or of 64 if it has 64.
    fn integer_to_compare(&mut self, value: Value, kind: Kind) -> Value {
        let is_long = matches!(kind, Kind::Number(Type::I64 | Type::U64));
        let to = if is_long { Type::I64 } else { Type::I32 };
        let number = self.code.cast(value, kind, Kind::Number(to));
        if !matches!(kind, Kind::Number(Type::U32 | Type::U64)) {
            return number;
        }
        // Flip the highest bit, so that signed comparisons order unsigned items.
        let sign = self.code.literal(to, 1 << (to.bytes() * 8 - 1));
        self.code.binary(Binary::Xor, number, sign)
    }

    /// Adds the replacement of NaNs by the infinity that is the least or the greatest float. A reduction to
    /// the least or the greatest float would ignore NaNs.
    fn float_to_compare(&mut self, value: Value, kind: Kind, is_least: bool) -> Value {
        let infinity = if is_least { f64::NEG_INFINITY } else { f64::INFINITY };
        let (to, bits) = match kind {
            Kind::Half | Kind::Number(Type::F32) => (Type::F32, (infinity as f32).to_bits().into()),
            _ => (Type::F64, infinity.to_bits()),
        };
        let number = self.code.cast(value, kind, Kind::Number(to));
        let (is_nan, infinity) = (self.code.is_nan(number), self.code.literal(to, bits));
        self.code.select(is_nan, infinity, number)
    }

    /// Runs the program: reduces the values of an expression. If there is a condition `filter`, reduces only
    /// the values of items that meet the condition.
    pub fn ask(mut self, node: &Arc<Node>, filter: Option<&Arc<Node>>, asked: Asked) -> Result<Reduced> {
        let code = self.question(node, filter, asked)?;
        // The program computes `is NaN` for each value, so search for the first true value.
        let asked = if asked == Asked::FirstNan { Asked::First } else { asked };
        let (mut whole, mut first) = (None, None);
        self.run(|elements, range, others| {
            let before = range.start - *first.get_or_insert(range.start);
            if asked == Asked::First && matches!(whole, Some(Reduced::IntAt(Some(_)))) {
                return Ok(());
            }
            let part = elements.ask(range, others, &code, asked)?;
            whole = Some(match whole.take() {
                None => part,
                Some(whole) => together(whole, part, before, asked),
            });
            Ok(())
        })?;
        if let (Some(Reduced::IntAt(Some((_, value)))), Asked::IntExtreme { .. }) = (&mut whole, asked)
            && node.kind() == Kind::Number(Type::U32)
        {
            *value -= i64::from(i32::MIN);
        }
        Ok(whole.unwrap_or(match asked {
            Asked::Count | Asked::IntSum => Reduced::Int(0),
            Asked::FloatSum => Reduced::Float(0.0),
            Asked::FloatExtreme { .. } => Reduced::FloatAt(None),
            Asked::IntExtreme { .. } | Asked::First | Asked::FirstNan => Reduced::IntAt(None),
        }))
    }

    /// Runs the program: returns the number of values of an expression in each bin.
    pub fn histogram(mut self, node: &Arc<Node>, bins: Bins) -> Result<Vec<u64>> {
        let code = self.question(node, None, Asked::FloatSum)?;
        let mut counts = vec![0; bins.count];
        self.run(|elements, range, others| {
            let part = elements.histogram(range, others, &code, bins)?;
            counts.iter_mut().zip(part).for_each(|(count, more)| *count += more);
            Ok(())
        })?;
        Ok(counts)
    }

    /// Runs the program: returns the first `limit` items in a range for which `node` is true, as distances
    /// from the range's start.
    pub fn find(mut self, node: &Arc<Node>, range: Range<usize>, limit: usize) -> Result<Vec<usize>> {
        let code = self.question(node, None, Asked::First)?;
        for column in &mut self.columns {
            (column.first, column.count) = (column.first + range.start, range.len());
        }
        let (mut found, mut first) = (Vec::new(), None);
        self.run(|elements, range, others| {
            let before = range.start - *first.get_or_insert(range.start);
            let more = elements.find(range, others, &code, limit - found.len())?;
            if found.is_empty() && before == 0 {
                found = more;
            } else {
                found.extend(more.into_iter().map(|place| before + place));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Combines the reductions of two parts; the second part begins `before` items after the first. If their
/// minima or maxima are equal, the first one counts.
fn together(one: Reduced, other: Reduced, before: usize, asked: Asked) -> Reduced {
    let is_least =
        matches!(asked, Asked::IntExtreme { is_least: true } | Asked::FloatExtreme { is_least: true });
    match (one, other) {
        (Reduced::Int(a), Reduced::Int(b)) => Reduced::Int(a.wrapping_add(b)),
        (Reduced::Float(a), Reduced::Float(b)) => Reduced::Float(a + b),
        (Reduced::IntAt(one), Reduced::IntAt(other)) => Reduced::IntAt(extreme(one, other, before, is_least)),
        (Reduced::FloatAt(one), Reduced::FloatAt(other)) => {
            Reduced::FloatAt(extreme(one, other, before, is_least))
        }
        (one, _) => one,
    }
}

fn extreme<N: PartialOrd>(
    one: Option<(usize, N)>,
    other: Option<(usize, N)>,
    before: usize,
    is_least: bool,
) -> Option<(usize, N)> {
    let other = other.map(|(place, value)| (before + place, value));
    match (one, other) {
        (Some(one), Some(other)) => {
            let is_other = if is_least { other.1 < one.1 } else { other.1 > one.1 };
            Some(if is_other { other } else { one })
        }
        (one, other) => one.or(other),
    }
}
