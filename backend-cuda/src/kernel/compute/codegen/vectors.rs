//! Vectorised access to short contiguous elements: each thread loads or stores a *row* of adjacent elements,
//! up to 16 bytes, by one instruction. Adjacent threads access adjacent rows.
//!
//! Accesses of 8 or 16 bits, and 32-bit stores, keep too few bytes in flight: they reach only half of the
//! memory bandwidth. The generator uses rows if all fields are whole elements of at most 4 bytes, and all
//! operands start at multiples of 16 bytes. Without rows, a thread's elements lie at a constant stride.
//!
//! Reductions and searches that read only 4-byte elements do not need rows. The kernels for minimum and
//! maximum assign elements to threads by their own code, and do not use rows. If fewer elements remain than a
//! row has, a thread loads them one by one.

use std::fmt::Write;

use backend_api::expr::{FieldStore, Task, Type};

use super::{Code, EACH};
use crate::driver::objects::THREADS;
use crate::kernel::compute::shape::{ElementDistribution, VECTOR_BYTES};
use crate::kernel::text::{emit, is_wide, register};

impl Code<'_> {
    /// Returns the rows (adjacent elements) of a thread for this kind of code; `None` if rows are not faster.
    pub(super) fn rows_of(&self, kind: &str) -> Option<ElementDistribution> {
        let shape = self.shape;
        let mut parts: Vec<(usize, u32, Type)> =
            self.fields().into_iter().map(|(_, source, offset, of)| (source, offset, of)).collect();
        // Rows (adjacent elements of one thread) are faster if the shortest field has at most `enough` bytes.
        let enough = match (kind, &shape.task) {
            ("store", Task::Store { stores, filter: None }) => {
                let part =
                    |store: &FieldStore| (usize::from(store.source), store.offset, shape.of(store.value));
                parts.extend(stores.iter().map(part));
                4
            }
            ("count" | "find" | "sum" | "sum_floats" | "histogram", _) => 2,
            _ => return None,
        };
        let fits = |&(source, offset, of): &(usize, u32, Type)| {
            let layout = &shape.layouts[source];
            layout.in_vectors && offset == 0 && layout.stride == u64::from(of.bytes()) && !is_wide(of)
        };
        let widths = || parts.iter().map(|(_, _, of)| u64::from(of.bytes()));
        if shape.comparison.is_some() || !parts.iter().all(fits) || widths().min()? > enough {
            return None;
        }
        let len = (VECTOR_BYTES / widths().max()?).min(EACH);
        // `step` is the distance between a thread's rows of `len` elements. If `self.step` is 1, these rows
        // are adjacent; otherwise adjacent threads take adjacent rows.
        let step = if self.step == 1 { len } else { len * u64::from(THREADS) };
        Some(ElementDistribution { len, step })
    }

    /// Converts the index of a thread's first element, and the number of later elements, to units of rows.
    pub(super) fn neighbours(&mut self, first: String, left: String) -> (String, String) {
        let Some(rows) = self.rows.filter(|_| self.step != 1) else { return (first, left) };
        let [thread, skipped, rest] = ["b32"; 3].map(|kind| self.temporary(kind));
        let [far, mine] = ["b64"; 2].map(|kind| self.temporary(kind));
        // For thread `t`, `first` is element `t` of the tile, but with rows of `len` elements the thread
        // starts at element `len * t`. So add `(len - 1) * t`.
        emit!(self, "mov.u32 {thread}, %tid.x");
        emit!(self, "mul.lo.u32 {skipped}, {thread}, {}", rows.len - 1);
        emit!(self, "cvt.u64.u32 {far}, {skipped}");
        emit!(self, "add.u64 {mine}, {first}, {far}");
        emit!(self, "min.u32 {skipped}, {skipped}, {left}");
        emit!(self, "sub.u32 {rest}, {left}, {skipped}");
        (mine, rest)
    }

    /// Loads the fields of all elements.
    pub(super) fn load_rows(&mut self, rows: ElementDistribution, left: &str) {
        let fields = self.fields();
        for (at, _, _, of) in &fields {
            for k in 0..EACH {
                self.declare(register(*of), &format!("v{at}_{k}"));
            }
        }
        let (some, all) = self.if_all(left);
        let bytes = fields.iter().find(|(_, _, _, of)| of.bytes() == 1);
        if let (Task::Find { .. }, Some((_, source, ..))) = (&self.shape.task, bytes) {
            self.branch_if_unaligned(*source, rows.len, &some);
        }
        let words: Vec<Vec<String>> =
            fields.iter().map(|&(_, source, _, of)| self.load_words(rows, source, of)).collect();
        for (&(at, _, _, of), words) in fields.iter().zip(&words) {
            let width = u64::from(of.bytes());
            let sign = if of.is_signed() { "s32" } else { "u32" };
            for k in 0..EACH {
                let (name, word) = (format!("v{at}_{k}"), &words[(k * width / 4) as usize]);
                if width == 4 {
                    emit!(self, "mov.b32 {name}, {word}");
                } else {
                    emit!(self, "bfe.{sign} {name}, {word}, {}, {}", k * width % 4 * 8, 8 * width);
                }
            }
        }
        emit!(self, "bra {all}");
        let _ = writeln!(self.body, "{some}:");
        for &(at, source, _, of) in &fields {
            for k in 0..EACH {
                self.load(&format!("v{at}_{k}"), source, 0, of, k);
            }
        }
        let _ = writeln!(self.body, "{all}:");
    }

    pub(super) fn store_rows(&mut self, rows: ElementDistribution, stores: &[FieldStore], left: &str) {
        let (some, all) = self.if_all(left);
        for store in stores {
            let of = self.shape.of(store.value);
            let width = u64::from(of.bytes());
            let per_word = 4 / width;
            let names: Vec<String> = (0..EACH).map(|k| self.name(store.value, k)).collect();
            let mut words = Vec::new();
            for names in names.chunks(per_word as usize) {
                let word = self.temporary("b32");
                emit!(self, "mov.b32 {word}, {}", names[0]);
                for (part, name) in (0_u64..).zip(names).skip(1) {
                    let bits = 8 * width;
                    emit!(self, "bfi.b32 {word}, {name}, {word}, {}, {bits}", part * bits);
                }
                words.push(word);
            }
            for (row, words) in (0_u64..).zip(words.chunks((rows.len / per_word) as usize)) {
                let (form, list) = vector(words);
                let to = row * rows.step * width;
                emit!(self, "st.global{form}.b32 [a{}+{to}], {list}", store.source);
            }
        }
        emit!(self, "bra {all}");
        let _ = writeln!(self.body, "{some}:");
        for k in 0..EACH {
            for store in stores {
                self.store(store.value, store.source, 0, &format!("valid{k}"), k);
            }
        }
        let _ = writeln!(self.body, "{all}:");
    }

    /// Writes a branch to the first label if some of the thread's elements do not exist; the second marks the
    /// end.
    fn if_all(&mut self, left: &str) -> (String, String) {
        let full = self.temporary("pred");
        emit!(self, "setp.gt.u32 {full}, {left}, {}", self.offset(EACH - 1));
        self.temporaries += 1;
        let (some, all) = (format!("some{}", self.temporaries), format!("all{}", self.temporaries));
        emit!(self, "@!{full} bra {some}");
        (some, all)
    }

    /// Writes a branch to a label if the thread's first byte of a source is not at a multiple of `len`, the
    /// length of a row in bytes. Then no row of the source is aligned. That happens before the end of a
    /// search's head, which has up to 15 bytes.
    fn branch_if_unaligned(&mut self, source: usize, len: u64, label: &str) {
        let (at, off) = (self.temporary("b32"), self.temporary("pred"));
        emit!(self, "cvt.u32.u64 {at}, a{source}");
        emit!(self, "and.b32 {at}, {at}, {}", len - 1);
        emit!(self, "setp.ne.u32 {off}, {at}, 0");
        emit!(self, "@{off} bra {label}");
    }

    /// Writes loads of all elements of a source as 32-bit words; returns their registers.
    fn load_words(&mut self, rows: ElementDistribution, source: usize, of: Type) -> Vec<String> {
        let way = if self.shape.layouts[source].read_only { "ld.global.nc" } else { "ld.global" };
        let width = u64::from(of.bytes());
        let words: Vec<String> = (0..EACH * width / 4).map(|_| self.temporary("b32")).collect();
        for (row, words) in (0_u64..).zip(words.chunks((rows.len * width / 4) as usize)) {
            let (form, list) = vector(words);
            emit!(self, "{way}{form}.b32 {list}, [a{source}+{}]", row * rows.step * width);
        }
        words
    }
}

/// Returns the PTX vector suffix and the operand for one, two or four words.
fn vector(words: &[String]) -> (String, String) {
    match words {
        [one] => (String::new(), one.clone()),
        _ => (format!(".v{}", words.len()), format!("{{{}}}", words.join(", "))),
    }
}
