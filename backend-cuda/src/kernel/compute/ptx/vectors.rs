//! Short elements that lie without gaps: each thread takes neighbours, and loads and stores them together.
//!
//! One load for each byte or 16-bit number keeps too little in flight: half of the bandwidth. So where all fields are
//! whole elements of at most 4 bytes, some of them of at most 2, and all sources begin at multiples of 16, a
//! thread's elements are not every so many-th of the tile but eight in a row, 8 or 16 bytes to an instruction. Kernels
//! whose own code knows which elements a thread has (those of extremes) keep theirs. At the end of the elements, where
//! there are less than eight, they are loaded one by one.

use std::fmt::Write;

use backend_api::expr::{Instruction, Store, Type};

use super::{Code, EACH, is_wide, register};
use crate::kernel::compute::shape::Task;

impl Code<'_> {
    /// Whether elements are taken in rows of neighbours.
    pub(super) fn is_packed(&self, kind: &str) -> bool {
        let shape = self.shape;
        let fits = |source: usize, offset: u32, of: Type| {
            let layout = &shape.layouts[source];
            layout.in_vectors && offset == 0 && layout.stride == u64::from(of.bytes()) && !is_wide(of)
        };
        let mut parts: Vec<(usize, u32, Type)> = Vec::new();
        for (instruction, _) in shape.instructions.iter().zip(&shape.needed).filter(|(_, needed)| **needed) {
            if let Instruction::Field { source, offset, of } = *instruction {
                parts.push((usize::from(source), offset, of));
            }
        }
        match (kind, &shape.task) {
            ("store", Task::Store { stores, filter: None }) => {
                let part = |store: &Store| (usize::from(store.source), store.offset, shape.of(store.value));
                parts.extend(stores.iter().map(part));
            }
            ("find" | "sum" | "sum_floats" | "histogram", _) => {}
            _ => return false,
        }
        parts.iter().all(|&(source, offset, of)| fits(source, offset, of))
            && parts.iter().any(|(_, _, of)| of.bytes() <= 2)
    }

    /// From here on each thread has neighbours. Takes the number of the first of those that are far apart, and how many
    /// there are from it on, and gives the same of the neighbours.
    pub(super) fn neighbours(&mut self, first: String, left: String) -> (String, String) {
        if self.step == 1 {
            return (first, left);
        }
        self.step = 1;
        let [thread, skipped, rest] = ["b32"; 3].map(|kind| self.temporary(kind));
        let [far, mine] = ["b64"; 2].map(|kind| self.temporary(kind));
        // Thread t has elements 8 t and so on of the tile, and not t and so on.
        self.emit(&format!("mov.u32 {thread}, %tid.x"));
        self.emit(&format!("mul.lo.u32 {skipped}, {thread}, {}", EACH - 1));
        self.emit(&format!("cvt.u64.u32 {far}, {skipped}"));
        self.emit(&format!("add.u64 {mine}, {first}, {far}"));
        self.emit(&format!("min.u32 {skipped}, {skipped}, {left}"));
        self.emit(&format!("sub.u32 {rest}, {left}, {skipped}"));
        (mine, rest)
    }

    /// The fields of all elements.
    pub(super) fn load_packed(&mut self, left: &str) {
        let fields: Vec<(usize, usize, Type)> = (self.shape.instructions.iter().enumerate())
            .filter(|(at, _)| self.shape.needed[*at])
            .filter_map(|(at, instruction)| match *instruction {
                Instruction::Field { source, of, .. } => Some((at, usize::from(source), of)),
                _ => None,
            })
            .collect();
        for (at, _, of) in &fields {
            for k in 0..EACH {
                self.declare(register(*of), &format!("v{at}_{k}"));
            }
        }
        let (some, all) = self.if_all(left);
        let words: Vec<Vec<String>> =
            fields.iter().map(|&(_, source, of)| self.load_words(source, of)).collect();
        for (&(at, _, of), words) in fields.iter().zip(&words) {
            let width = u64::from(of.bytes());
            for k in 0..EACH {
                let (name, word) = (format!("v{at}_{k}"), &words[(k * width / 4) as usize]);
                let sign = if of.is_signed() { "s32" } else { "u32" };
                if width == 4 {
                    self.emit(&format!("mov.b32 {name}, {word}"));
                } else {
                    self.emit(&format!("bfe.{sign} {name}, {word}, {}, {}", k * width % 4 * 8, 8 * width));
                }
            }
        }
        self.emit(&format!("bra {all}"));
        let _ = writeln!(self.body, "{some}:");
        for &(at, source, of) in &fields {
            for k in 0..EACH {
                self.load(&format!("v{at}_{k}"), source, 0, of, k);
            }
        }
        let _ = writeln!(self.body, "{all}:");
    }

    /// Stores to all elements.
    pub(super) fn store_packed(&mut self, stores: &[Store], left: &str) {
        let (some, all) = self.if_all(left);
        for store in stores {
            let of = self.shape.of(store.value);
            let per_word = 4 / u64::from(of.bytes());
            let names: Vec<String> = (0..EACH).map(|k| self.name(store.value, k)).collect();
            let source = store.source;
            let words: Vec<String> = names
                .chunks(per_word as usize)
                .map(|names| {
                    let word = self.temporary("b32");
                    self.emit(&format!("mov.b32 {word}, {}", names[0]));
                    for (part, name) in (0..).zip(names).skip(1) {
                        let bits = 32 / per_word;
                        self.emit(&format!("bfi.b32 {word}, {name}, {word}, {}, {bits}", part * bits));
                    }
                    word
                })
                .collect();
            for (number, list) in (0_u64..).zip(words.chunks(4)) {
                let (count, list) = (list.len(), list.join(", "));
                self.emit(&format!("st.global.v{count}.b32 [a{source}+{}], {{{list}}}", 16 * number));
            }
        }
        self.emit(&format!("bra {all}"));
        let _ = writeln!(self.body, "{some}:");
        for k in 0..EACH {
            for store in stores {
                self.store(store.value, store.source, 0, &format!("valid{k}"), k);
            }
        }
        let _ = writeln!(self.body, "{all}:");
    }

    /// Goes to the first label if not all elements exist. The second one is for the end.
    fn if_all(&mut self, left: &str) -> (String, String) {
        let full = self.temporary("pred");
        self.emit(&format!("setp.ge.u32 {full}, {left}, {EACH}"));
        self.temporaries += 1;
        let (some, all) = (format!("some{}", self.temporaries), format!("all{}", self.temporaries));
        self.emit(&format!("@!{full} bra {some}"));
        (some, all)
    }

    /// Loads all elements of a source, as words of 32 bits; gives their names.
    fn load_words(&mut self, source: usize, of: Type) -> Vec<String> {
        let way = if self.shape.layouts[source].read_only { "ld.global.nc" } else { "ld.global" };
        let count = EACH * u64::from(of.bytes()) / 4;
        let words: Vec<String> = (0..count).map(|_| self.temporary("b32")).collect();
        for (number, list) in (0_u64..).zip(words.chunks(4)) {
            let (count, list) = (list.len(), list.join(", "));
            self.emit(&format!("{way}.v{count}.b32 {{{list}}}, [a{source}+{}]", 16 * number));
        }
        words
    }

    fn emit(&mut self, instruction: &str) {
        let _ = writeln!(self.body, "\t{instruction};");
    }
}
