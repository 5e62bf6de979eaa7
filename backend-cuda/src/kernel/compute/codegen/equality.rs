//! PTX code that compares a field of each element with a value of up to 4096 bytes, for searches.
//!
//! For all its elements a thread loads the first word of the field. Only if it matches, the thread loads the
//! rest of the field. The first 16 bytes of the value are kernel parameters; a longer value is in memory. So
//! searches for different values use the same code.
//!
//! For elements of 1, 2, 4, 8 or 16 bytes the memory bandwidth limits a search. Each thread then loads 64
//! bytes at once, as four vectors of 16 bytes. It compares several short elements together.

use std::fmt::Write;

use super::{Code, EACH, LITERALS};
use crate::driver::objects::THREADS;
use crate::kernel::compute::shape::{ElementDistribution, FieldComparison, VECTOR_BYTES};
use crate::kernel::text::emit;

/// Kind of PTX register for a word of this many bytes.
fn kind(word: u64) -> &'static str {
    if word == 8 { "b64" } else { "b32" }
}

/// Number of 16-byte rows that a thread loads at once.
const ROWS: u64 = 4;

impl Code<'_> {
    /// Loads the 64-bit kernel parameter number `place`, counted from the first literal.
    fn word_parameter(&mut self, place: usize) -> String {
        let word = self.temporary("b64");
        emit!(self, "ld.param.u64 {word}, [{}_param_0+{}]", self.entry, LITERALS + 8 * place as u64);
        word
    }

    /// Loads 8 bytes of the searched value: part 0 is bytes 0..8, part 1 is bytes 8..16.
    fn value_part(&mut self, comparison: FieldComparison, part: usize) -> String {
        self.word_parameter(self.shape.literals[comparison.at].unwrap_or(0) + part)
    }

    /// A label that no other code has.
    fn new_label(&mut self) -> String {
        self.temporaries += 1;
        format!("label{}", self.temporaries)
    }

    /// Computes the address of the compared field of an element.
    fn field_address(&mut self, comparison: FieldComparison, first: &str) -> (String, String) {
        let [field, stride] = [1, 2].map(|place| self.word_parameter(comparison.parameters + place));
        emit!(self, "mad.lo.u64 {field}, {first}, {stride}, {field}");
        (field, stride)
    }

    /// Loads the first words of the compared fields of all elements.
    pub(super) fn load_compared(&mut self, first: &str) {
        let Some(comparison) = self.shape.comparison else { return };
        let (mut field, stride) = self.field_address(comparison, first);
        self.declare("b64", "step");
        emit!(self, "mul.lo.u64 step, {stride}, {}", self.offset(1));
        let way = if comparison.read_only { "ld.global.nc" } else { "ld.global" };
        for k in 0..EACH {
            let (at, name) = (format!("f{k}"), format!("e{k}"));
            self.declare("b64", &at);
            self.declare(kind(comparison.word), &name);
            emit!(self, "mov.b64 {at}, {field}");
            emit!(self, "@valid{k} {way}.u{} {name}, [{at}]", 8 * comparison.word);
            field = self.temporary("b64");
            emit!(self, "add.u64 {field}, {at}, step");
        }
    }

    /// Writes code that compares the field of element `k` with the searched value.
    pub(super) fn field_equals(&mut self, to: &str, k: u64) {
        let Some(comparison) = self.shape.comparison else { return };
        let word = comparison.word;
        let first = self.value_part(comparison, 0);
        if word == 8 {
            emit!(self, "setp.eq.b64 {to}, e{k}, {first}");
        } else {
            let wanted = self.temporary("b32");
            emit!(self, "cvt.u32.u64 {wanted}, {first}");
            emit!(self, "and.b32 {wanted}, {wanted}, {}", u32::MAX >> (32 - 8 * word));
            emit!(self, "setp.eq.b32 {to}, e{k}, {wanted}");
        }
        emit!(self, "and.pred {to}, {to}, valid{k}");
        if !comparison.is_long {
            return;
        }
        let end = self.new_label();
        emit!(self, "@!{to} bra {end}");
        let value = self.word_parameter(comparison.parameters);
        let bytes = self.word_parameter(comparison.parameters + 3);
        let [element, words_end, bytes_end] = ["b64"; 3].map(|kind| self.temporary(kind));
        // Compute the address again instead of keeping the addresses of eight elements in registers.
        emit!(self, "mad.lo.u64 {element}, step, {k}, f0");
        emit!(self, "add.u64 {bytes_end}, {value}, {bytes}");
        emit!(self, "and.b64 {words_end}, {bytes}, {}", -(word as i64));
        emit!(self, "add.u64 {words_end}, {words_end}, {value}");
        emit!(self, "add.u64 {element}, {element}, {word}");
        emit!(self, "add.u64 {value}, {value}, {word}");
        self.compare_rest(to, (&element, &value, &words_end), word, &end);
        if word > 1 {
            self.compare_rest(to, (&element, &value, &bytes_end), 1, &end);
        }
        self.label(&end);
    }

    /// Writes a loop that compares words up to the end of the value, and advances both addresses. Branches to
    /// `end` at the first difference.
    fn compare_rest(&mut self, to: &str, (element, value, stop): (&str, &str, &str), word: u64, end: &str) {
        let [one, other] = [kind(word); 2].map(|kind| self.temporary(kind));
        let [over, more] = ["pred"; 2].map(|kind| self.temporary(kind));
        let (again, done) = (self.new_label(), self.new_label());
        emit!(self, "setp.ge.u64 {over}, {value}, {stop}");
        emit!(self, "@{over} bra {done}");
        // Test for the end in the last instruction of the loop, because NVIDIA's assembler miscompiles the
        // use of a predicate that an earlier iteration wrote.
        let _ = writeln!(self.body, "{again}:");
        emit!(self, "ld.global.u{} {one}, [{element}]", 8 * word);
        emit!(self, "ld.global.u{} {other}, [{value}]", 8 * word);
        emit!(self, "setp.eq.{} {to}, {one}, {other}", kind(word));
        emit!(self, "@!{to} bra {end}");
        emit!(self, "add.u64 {element}, {element}, {word}");
        emit!(self, "add.u64 {value}, {value}, {word}");
        emit!(self, "setp.lt.u64 {more}, {value}, {stop}");
        emit!(self, "@{more} bra {again}");
        let _ = writeln!(self.body, "{done}:");
    }

    /// Writes code that adds the number of elements equal to the value to `matches`.
    pub(super) fn count_packed(
        &mut self,
        comparison: FieldComparison,
        bytes: u64,
        (first, left): (String, String),
        matches: &str,
    ) {
        let len = VECTOR_BYTES / bytes;
        let rows = ElementDistribution { len, step: len * u64::from(THREADS) };
        self.rows = Some(rows);
        let (first, left) = self.neighbours(first, left);
        let value: [String; 4] = std::array::from_fn(|_| self.temporary("b32"));
        for (part, halves) in value.chunks(2).enumerate() {
            let both = self.value_part(comparison, part);
            emit!(self, "mov.b64 {{{}, {}}}, {both}", halves[0], halves[1]);
        }
        let (at, _) = self.field_address(comparison, &first);
        let (full, some, all) = (self.temporary("pred"), self.new_label(), self.new_label());
        emit!(self, "setp.gt.u32 {full}, {left}, {}", rows.offset(ROWS * len - 1));
        emit!(self, "@!{full} bra {some}");
        let vectors: [[String; 4]; ROWS as usize] =
            std::array::from_fn(|_| std::array::from_fn(|_| self.temporary("b32")));
        for (row, vector) in (0..).zip(&vectors) {
            let from = row * rows.step * bytes;
            emit!(self, "ld.global.nc.v4.b32 {{{}}}, [{at}+{from}]", vector.join(", "));
        }
        for vector in &vectors {
            if bytes < 4 {
                self.count_within_words(vector, &value, bytes, matches);
            } else {
                for element in vector.chunks(bytes as usize / 4) {
                    self.count_equal(element, &value, matches);
                }
            }
        }
        emit!(self, "bra {all}");
        // The block's tile (range of elements) extends beyond the last element: compare the existing elements
        // one by one.
        let _ = writeln!(self.body, "{some}:");
        let [number, offset, within] = ["b32"; 3].map(|kind| self.temporary(kind));
        let (far, over, again) = (self.temporary("b64"), self.temporary("pred"), self.new_label());
        emit!(self, "mov.u32 {number}, 0");
        let _ = writeln!(self.body, "{again}:");
        emit!(self, "shr.u32 {offset}, {number}, {}", len.ilog2());
        emit!(self, "and.b32 {within}, {number}, {}", len - 1);
        emit!(self, "mad.lo.u32 {offset}, {offset}, {}, {within}", rows.step);
        emit!(self, "setp.le.u32 {over}, {left}, {offset}");
        emit!(self, "@{over} bra {all}");
        emit!(self, "mul.wide.u32 {far}, {offset}, {bytes}");
        emit!(self, "add.u64 {far}, {far}, {at}");
        let element: Vec<String> = (0..bytes.div_ceil(4)).map(|_| self.temporary("b32")).collect();
        match &element[..] {
            [one] => emit!(self, "ld.global.nc.u{} {one}, [{far}]", 8 * bytes),
            words => {
                emit!(self, "ld.global.nc.v{}.b32 {{{}}}, [{far}]", words.len(), words.join(", "));
            }
        }
        let mut wanted = value;
        if bytes < 4 {
            emit!(self, "and.b32 {}, {}, {}", wanted[1], wanted[0], (1 << (8 * bytes)) - 1);
            wanted.swap(0, 1);
        }
        self.count_equal(&element, &wanted, matches);
        emit!(self, "add.u32 {number}, {number}, 1");
        emit!(self, "bra {again}");
        let _ = writeln!(self.body, "{all}:");
    }

    /// Writes code that adds 1 to `matches` if the words of an element equal the value's words.
    fn count_equal(&mut self, element: &[String], value: &[String], matches: &str) {
        let equal = self.temporary("pred");
        for (at, (word, wanted)) in element.iter().zip(value).enumerate() {
            if at == 0 {
                emit!(self, "setp.eq.u32 {equal}, {word}, {wanted}");
            } else {
                let next = self.temporary("pred");
                emit!(self, "setp.eq.u32 {next}, {word}, {wanted}");
                emit!(self, "and.pred {equal}, {equal}, {next}");
            }
        }
        emit!(self, "@{equal} add.u32 {matches}, {matches}, 1");
    }

    /// Writes code that adds the number of elements of 1 or 2 bytes in four words that equal the value to
    /// `matches`. It sets the top bit of each equal element.
    fn count_within_words(&mut self, words: &[String; 4], value: &[String; 4], bytes: u64, matches: &str) {
        let below = if bytes == 1 { "0x7F7F7F7F" } else { "0x7FFF7FFF" };
        let (all, differs, zero) = (self.temporary("b32"), self.temporary("b32"), self.temporary("b32"));
        for (at, word) in words.iter().enumerate() {
            emit!(self, "xor.b32 {differs}, {word}, {}", value[0]);
            emit!(self, "and.b32 {zero}, {differs}, {below}");
            emit!(self, "add.u32 {zero}, {zero}, {below}");
            emit!(self, "or.b32 {zero}, {zero}, {differs}");
            emit!(self, "or.b32 {zero}, {zero}, {below}");
            emit!(self, "not.b32 {zero}, {zero}");
            if at == 0 {
                emit!(self, "mov.b32 {all}, {zero}");
            } else {
                emit!(self, "shr.u32 {zero}, {zero}, {at}");
                emit!(self, "or.b32 {all}, {all}, {zero}");
            }
        }
        emit!(self, "popc.b32 {all}, {all}");
        emit!(self, "add.u32 {matches}, {matches}, {all}");
    }
}
