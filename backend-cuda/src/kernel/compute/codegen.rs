//! Code generator: translates expression programs to PTX.
//!
//! The generated code replaces marked comments in the PTX text of the hand-written kernels. Each thread
//! computes several elements at once. Short contiguous elements are loaded and stored several at a time: see
//! [`vectors`].
//!
//! Integers of up to 32 bits are in 32-bit registers, sign- or zero-extended; bools are in predicates. The
//! code first loads all elements of a thread, so that many are in flight, then computes each element. The
//! suffix `.rn` prevents the assembler from fusing operations.

mod equality;
mod vectors;

use std::fmt::Write;
use std::ops::{Deref, DerefMut};

use backend_api::expr::{FieldStore, Task, Type, Value};
use backend_api::kernel::{Op, Reg, ScalarFunction};

use super::shape::{ElementDistribution, ProgramKey};
use crate::kernel::launch::codegen::function;
use crate::kernel::text::{LoadSource, Text, emit, is_wide, register, suffix};

/// Number of elements that a thread computes in one splice; `EACH` in `kernels/splice.h`.
const EACH: u64 = 8;

/// Offsets in the kernels' first parameter; `Space` in `kernels/splice.h`.
const LITERALS: u64 = 64;
const FIRST: u64 = 320;
const CHANNEL: u64 = 328;
/// Maximum offset of an address in an instruction: 31 bits, minus the bytes of a field.
const OFFSET_MAX: u64 = i32::MAX as u64 - 8;
pub(super) const SPACE_BYTES: usize = 344;

/// Returns the PTX text of a kernel with generated code in place of its marked comments.
pub(super) fn splice(text: &str, shape: &ProgramKey) -> String {
    let mut out = String::with_capacity(text.len() + (16 << 10));
    let mut entry = "";
    let functions = shape.functions();
    for line in text.trim_end_matches('\0').lines() {
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            entry = rest.trim_end_matches('(');
        }
        match line.trim().strip_prefix("//splice ") {
            Some(words) => {
                let words: Vec<&str> = words.split_whitespace().take_while(|word| *word != ";").collect();
                if let [kind, step, operands @ ..] = &words[..] {
                    let mut code = Code::new(shape, entry, step.parse().unwrap_or(1));
                    code.splice(kind, operands);
                    out.push_str(&code.finish());
                }
            }
            None => {
                out.push_str(line);
                out.push('\n');
                if line.starts_with(".address_size") && text.contains("//splice ") {
                    for (number, one) in functions.iter().enumerate() {
                        out.push_str(&function(&called(number), one));
                    }
                }
            }
        }
    }
    out.push('\0');
    out
}

/// PTX name of function `number` of the program.
fn called(number: usize) -> String {
    format!("call_{number}")
}

/// Name of the register with a value of element `k`. All elements share the registers of literals.
fn name(shape: &ProgramKey, value: Reg, k: u64) -> String {
    match shape.ops[value.at()] {
        Op::Literal { .. } => format!("c{}", value.0),
        _ => format!("v{}_{k}", value.0),
    }
}

/// PTX code of a splice under construction.
struct Code<'a> {
    shape: &'a ProgramKey,
    entry: &'a str,
    /// Distance of two elements of a thread, in elements.
    step: u64,
    /// Grouping of the thread's elements in rows, if the kernel uses rows.
    rows: Option<ElementDistribution>,
    functions: Vec<&'a ScalarFunction>,
    text: Text,
}

impl Deref for Code<'_> {
    type Target = Text;

    fn deref(&self) -> &Text {
        &self.text
    }
}

impl DerefMut for Code<'_> {
    fn deref_mut(&mut self) -> &mut Text {
        &mut self.text
    }
}

/// Keys of a thread's elements: integers in the order of the elements' values.
struct Keys<'a> {
    of: Value,
    /// Names of the predicates that are true for elements with a key.
    kept: &'a [String],
    keys: &'a [String],
    /// Name of the register with the index of the first element.
    number: &'a str,
}

impl<'a> Code<'a> {
    fn new(shape: &'a ProgramKey, entry: &'a str, step: u64) -> Self {
        Self { shape, entry, step, rows: None, functions: shape.functions(), text: Text::default() }
    }

    fn finish(self) -> String {
        format!("\t{{\n{}{}\t}}\n", self.text.declarations, self.text.body)
    }

    /// Distance of element `k` from the thread's first element.
    fn offset(&self, k: u64) -> u64 {
        self.rows.map_or(k * self.step, |rows| rows.offset(k))
    }

    /// Register of a value of element `k`.
    fn name(&self, value: Value, k: u64) -> String {
        name(self.shape, value.into(), k)
    }

    fn splice(&mut self, kind: &str, operands: &[&str]) {
        // The last operands are inputs: first element, elements left and (for `extremes`) the first index.
        let inputs = if kind == "extremes" { 3 } else { 2 };
        let (outputs, inputs) = operands.split_at(operands.len().saturating_sub(inputs));
        let &[first, left, ref rest @ ..] = inputs else { return };
        let (first, left) = (first.to_owned(), left.to_owned());
        if let ("count", Some(comparison), [matches]) = (kind, self.shape.comparison, outputs)
            && let Some(bytes) = comparison.packed
        {
            return self.count_packed(comparison, bytes, (first, left), matches);
        }
        self.rows = self.rows_of(kind);
        let (first, left) = self.neighbours(first, left);
        self.literals();
        for k in 0..EACH {
            self.declare("pred", &format!("valid{k}"));
            emit!(self, "setp.gt.u32 valid{k}, {left}, {}", self.offset(k));
        }
        self.addresses(&first);
        match self.rows {
            Some(rows) => self.load_rows(rows, &left),
            None => self.loads(&first),
        }
        for k in 0..EACH {
            self.compute(&first, k);
        }
        match (kind, &self.shape.task, outputs) {
            ("find", Task::Find { predicate }, [mask]) => self.find(*predicate, mask),
            ("count", Task::Find { predicate }, [matches]) => {
                let mask = self.temporary("b32");
                self.find(*predicate, &mask);
                emit!(self, "popc.b32 {mask}, {mask}");
                emit!(self, "add.u32 {matches}, {matches}, {mask}");
            }
            ("sum", Task::Sum { value, filter }, [low, high, count]) => {
                self.sum(*value, *filter, low, high, count);
            }
            ("sum_floats", Task::Sum { value, filter }, [sum, count]) => {
                self.sum_floats(*value, *filter, sum, count);
            }
            (
                "extremes",
                Task::Extremes { value, filter, least, greatest },
                [least_key, least_at, greatest_key, greatest_at, count],
            ) => {
                let number = rest.first().copied().unwrap_or("0");
                let (kept, keys) = self.keys(*value, *filter, count);
                let keys = Keys { of: *value, kept: &kept, keys: &keys, number };
                if *least {
                    self.extreme(&keys, (least_key, least_at), true);
                }
                if *greatest {
                    self.extreme(&keys, (greatest_key, greatest_at), false);
                }
            }
            ("histogram", Task::Histogram { value, filter }, bins) => {
                for (k, bin) in (0..).zip(bins) {
                    let kept = self.kept(*filter, k);
                    let name = self.name(*value, k);
                    emit!(self, "selp.b32 {bin}, {name}, -1, {kept}");
                }
            }
            ("store", Task::Store { stores, filter }, []) => {
                self.stores(stores, *filter, &left);
            }
            // No launch uses this kernel of the text with the program's task, so write no code for it.
            _ => {}
        }
    }

    fn literals(&mut self) {
        for (at, op) in self.shape.ops.iter().enumerate() {
            let Op::Literal { bits, .. } = *op else { continue };
            let (of, name) = (self.shape.types[at], format!("c{at}"));
            let parameter = self.shape.literals[at];
            self.declare(register(of), &name);
            match parameter {
                Some(place) => {
                    let place = format!("{}_param_0+{}", self.entry, LITERALS + 8 * place as u64);
                    self.parameter(of, &name, &place);
                }
                None => self.literal(of, &name, bits),
            }
        }
    }

    /// Computes the addresses of the first element in all sources.
    fn addresses(&mut self, first: &str) {
        for (source, layout) in self.shape.layouts.iter().enumerate() {
            let (base, at) = (self.temporary("b64"), format!("a{source}"));
            self.declare("b64", &at);
            emit!(self, "ld.param.u64 {base}, [{}_param_0+{}]", self.entry, 8 * source);
            emit!(self, "mad.lo.u64 {at}, {first}, {}, {base}", layout.stride);
        }
    }

    /// Returns the fields that the program needs: for each its value, source, byte offset and type.
    fn fields(&self) -> Vec<(usize, usize, u32, Type)> {
        let ops = self.shape.ops.iter().enumerate().filter(|(at, _)| self.shape.needed[*at]);
        let field = |(at, op): (usize, &Op)| match *op {
            Op::Load { view, offset, of, .. } => Some((at, usize::from(view), offset, of.value())),
            _ => None,
        };
        ops.filter_map(field).collect()
    }

    /// Loads the fields of all elements.
    fn loads(&mut self, first: &str) {
        self.load_compared(first);
        for k in 0..EACH {
            for (at, source, offset, of) in self.fields() {
                let name = format!("v{at}_{k}");
                self.declare(register(of), &name);
                self.load(&name, source, offset, of, k);
            }
        }
    }

    /// Returns the address of a field of element `k`: a register, and an offset of at most 31 bits.
    fn place(&mut self, source: usize, offset: u32, k: u64) -> (String, u64) {
        let first = format!("a{source}");
        // Let the product wrap around: it can overflow only without elements, and then no access happens.
        let distance = self.offset(k).wrapping_mul(self.shape.layouts[source].stride);
        match distance.checked_add(u64::from(offset)) {
            Some(near) if near <= OFFSET_MAX => (first, near),
            _ => {
                let far = self.temporary("b64");
                let distance = distance.wrapping_add(u64::from(offset));
                emit!(self, "add.u64 {far}, {first}, 0x{distance:X}");
                (far, 0)
            }
        }
    }

    fn load(&mut self, name: &str, source: usize, offset: u32, of: Type, k: u64) {
        let layout = self.shape.layouts[source];
        let (at, from) = self.place(source, offset, k);
        let way = if layout.read_only { "ld.global.nc" } else { "ld.global" };
        let align = 1 << (layout.align | u64::from(offset)).trailing_zeros();
        self.text.load(of, name, &format!("@valid{k} "), LoadSource { way, at: &at, from, align });
    }

    fn store(&mut self, value: Value, source: u8, offset: u32, kept: &str, k: u64) {
        let of = self.shape.of(value);
        let layout = self.shape.layouts[usize::from(source)];
        let (at, to) = self.place(usize::from(source), offset, k);
        let align = 1 << (layout.align | u64::from(offset)).trailing_zeros();
        let name = self.name(value, k);
        self.text.store(of, &name, &format!("@{kept} "), (&at, to), align);
    }

    /// Writes code for all operations of element `k` except loads of fields.
    fn compute(&mut self, first: &str, k: u64) {
        let shape = self.shape;
        for (at, op) in shape.ops.iter().enumerate() {
            if !shape.needed[at] || matches!(op, Op::Load { .. } | Op::Literal { .. }) {
                continue;
            }
            let (of, to) = (shape.types[at], format!("v{at}_{k}"));
            self.declare(register(of), &to);
            if self.value(op, &to, |value| shape.types[value.at()], |value| name(shape, value, k)) {
                continue;
            }
            match op {
                Op::Call { function, arguments, .. } => self.call(function, arguments, &to, of, k),
                Op::FieldEquals { .. } => self.field_equals(&to, k),
                _ => self.index(&to, first, k),
            }
        }
    }

    /// Writes a call of a function for element `k`, if the element exists: with undefined arguments the
    /// function might not return.
    fn call(&mut self, function: &ScalarFunction, arguments: &[Reg], name: &str, of: Type, k: u64) {
        let argument = |value: &Reg| (self.shape.types[value.at()], self::name(self.shape, *value, k));
        let arguments: Vec<(Type, String)> = arguments.iter().map(argument).collect();
        let number = self.functions.iter().position(|known| *known == function).unwrap_or(0);
        self.literal(of, name, 0);
        self.temporaries += 1;
        let label = format!("called{}", self.temporaries);
        emit!(self, "@!valid{k} bra {label}");
        self.text.call(&called(number), of, name, &arguments);
        self.label(&label);
    }

    fn index(&mut self, name: &str, first: &str, k: u64) {
        let [at, channel] = ["b64"; 2].map(|kind| self.temporary(kind));
        emit!(self, "ld.param.u64 {at}, [{}_param_0+{FIRST}]", self.entry);
        emit!(self, "ld.param.u64 {channel}, [{}_param_0+{CHANNEL}]", self.entry);
        emit!(self, "add.u64 {at}, {at}, {first}");
        emit!(self, "add.u64 {at}, {at}, {}", self.offset(k));
        let (page_len, channels) = (self.shape.page_len, self.shape.channels);
        self.text.index(name, &at, &channel, page_len, channels);
    }

    /// Writes stores of the values of the elements that pass the filter.
    fn stores(&mut self, stores: &[FieldStore], filter: Option<Value>, left: &str) {
        if let Some(rows) = self.rows {
            return self.store_rows(rows, stores, left);
        }
        for k in 0..EACH {
            let kept = self.kept(filter, k);
            for store in stores {
                self.store(store.value, store.source, store.offset, &kept, k);
            }
        }
    }

    /// Returns the predicate that is true if element `k` exists and passes the filter.
    fn kept(&mut self, filter: Option<Value>, k: u64) -> String {
        let Some(filter) = filter else { return format!("valid{k}") };
        let kept = self.temporary("pred");
        emit!(self, "and.pred {kept}, valid{k}, {}", self.name(filter, k));
        kept
    }

    fn find(&mut self, predicate: Value, mask: &str) {
        emit!(self, "mov.b32 {mask}, 0");
        for k in 0..EACH {
            let kept = self.kept(Some(predicate), k);
            emit!(self, "@{kept} or.b32 {mask}, {mask}, {}", 1 << k);
        }
    }

    fn sum(&mut self, value: Value, filter: Option<Value>, low: &str, high: &str, count: &str) {
        let of = self.shape.of(value);
        for k in 0..EACH {
            let (kept, name) = (self.kept(filter, k), self.name(value, k));
            let part = self.temporary("b64");
            if is_wide(of) {
                emit!(self, "and.b64 {part}, {name}, 0xFFFFFFFF");
                emit!(self, "@{kept} add.u64 {low}, {low}, {part}");
                emit!(self, "shr.{} {part}, {name}, 32", suffix(of));
                emit!(self, "@{kept} add.u64 {high}, {high}, {part}");
            } else {
                self.cast(of, if of.is_signed() { Type::I64 } else { Type::U64 }, &part, &name);
                emit!(self, "@{kept} add.u64 {low}, {low}, {part}");
            }
            emit!(self, "@{kept} add.u32 {count}, {count}, 1");
        }
    }

    fn sum_floats(&mut self, value: Value, filter: Option<Value>, sum: &str, count: &str) {
        let of = self.shape.of(value);
        for k in 0..EACH {
            let (kept, name) = (self.kept(filter, k), self.name(value, k));
            let part = self.temporary("f64");
            self.cast(of, Type::F64, &part, &name);
            emit!(self, "@{kept} add.rn.f64 {sum}, {sum}, {part}");
            emit!(self, "@{kept} add.u32 {count}, {count}, 1");
        }
    }

    /// Writes code that computes the keys of the selected elements, and adds their number to `count`.
    fn keys(&mut self, value: Value, filter: Option<Value>, count: &str) -> (Vec<String>, Vec<String>) {
        let of = self.shape.of(value);
        let (mut all_kept, mut keys) = (Vec::new(), Vec::new());
        for k in 0..EACH {
            let (mut kept, name) = (self.kept(filter, k), self.name(value, k));
            let key = if is_wide(of) { self.temporary("b64") } else { self.temporary("b32") };
            match of {
                Type::F32 | Type::F64 => {
                    let (s, bits, zero, top) = if of == Type::F32 {
                        ("f32", 32, "0f00000000", "0x80000000")
                    } else {
                        ("f64", 64, "0d0000000000000000", "0x8000000000000000")
                    };
                    let [positive, sign, number] =
                        [s, if bits == 32 { "b32" } else { "b64" }, "pred"].map(|kind| self.temporary(kind));
                    // Converts -0 to +0, because both must have the same key.
                    emit!(self, "add.rn.{s} {positive}, {name}, {zero}");
                    emit!(self, "mov.b{bits} {key}, {positive}");
                    emit!(self, "shr.s{bits} {sign}, {key}, {}", bits - 1);
                    emit!(self, "or.b{bits} {sign}, {sign}, {top}");
                    emit!(self, "xor.b{bits} {key}, {key}, {sign}");
                    emit!(self, "setp.num.{s} {number}, {name}, {name}");
                    emit!(self, "and.pred {number}, {number}, {kept}");
                    kept = number;
                }
                Type::I64 => emit!(self, "xor.b64 {key}, {name}, 0x8000000000000000"),
                Type::U64 => emit!(self, "mov.b64 {key}, {name}"),
                Type::I8 | Type::I16 | Type::I32 => {
                    emit!(self, "add.u32 {key}, {name}, {}", 1_u64 << (8 * of.bytes() - 1));
                }
                _ => emit!(self, "mov.b32 {key}, {name}"),
            }
            emit!(self, "@{kept} add.u32 {count}, {count}, 1");
            all_kept.push(kept);
            keys.push(key);
        }
        (all_kept, keys)
    }

    /// Writes code that updates the best key with these elements, and its index only if the key has changed.
    fn extreme(&mut self, candidates: &Keys<'_>, (best, best_at): (&str, &str), least: bool) {
        let &Keys { of, kept, keys, number } = candidates;
        let bits = if is_wide(self.shape.of(of)) { 64 } else { 32 };
        let kind = if bits == 64 { "b64" } else { "b32" };
        let (choose, none, news) = if least { ("min", "-1", "lt") } else { ("max", "0", "gt") };
        let (found, one) = (self.temporary(kind), self.temporary(kind));
        let [better, fresh, some] = ["pred"; 3].map(|kind| self.temporary(kind));
        emit!(self, "mov.{kind} {found}, {none}");
        for (kept, key) in kept.iter().zip(keys) {
            emit!(self, "selp.{kind} {one}, {key}, {none}, {kept}");
            emit!(self, "{choose}.u{bits} {found}, {found}, {one}");
        }
        // A key can equal the initial value of `best`, so also accept the key if no element was found yet.
        emit!(self, "setp.{news}.u{bits} {better}, {found}, {best}");
        emit!(self, "setp.eq.u32 {fresh}, {best_at}, 0xFFFFFFFF");
        emit!(self, "or.pred {better}, {better}, {fresh}");
        self.temporaries += 1;
        let label = format!("same{}", self.temporaries);
        emit!(self, "@!{better} bra {label}");
        for (k, (kept, key)) in kept.iter().zip(keys).enumerate().rev() {
            emit!(self, "setp.eq.u{bits} {some}, {key}, {found}");
            emit!(self, "and.pred {some}, {some}, {kept}");
            emit!(self, "@{some} mov.{kind} {best}, {found}");
            emit!(self, "@{some} add.u32 {best_at}, {number}, {k}");
        }
        let _ = writeln!(self.body, "{label}:");
    }
}
