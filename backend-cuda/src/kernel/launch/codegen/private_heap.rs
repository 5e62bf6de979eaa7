//! PTX code of the private heap: memory that a work-item allocates for itself while it runs.
//!
//! Each thread has a slab for its current work-item. The slabs of a block's threads are interleaved by words,
//! so threads access adjacent words at equal offsets. A word has the length of the longest number that the
//! kernel stores in the heap.

use backend_api::kernel::{Body, Memory, Op, Reg, Type};

use super::{LeadingParameters, Writer, r};
use crate::kernel::text::{LoadSource, emit};

/// Length in bytes of a word of the private heap.
fn word_bytes(body: &Body) -> u32 {
    let mut bytes = None;
    body.operations(|_, op| {
        if let Op::PrivateLoad { to: value, .. } | Op::PrivateStore { value, .. } = op {
            bytes = bytes.max(Some(body.registers[value.at()].bytes()));
        }
    });
    bytes.unwrap_or(8)
}

impl Writer<'_> {
    /// Computes the address of the thread's slab, at its first word.
    pub(super) fn find_slab(&mut self) {
        let (threads, word) = (self.shape.threads(), word_bytes(self.body));
        let [slabs, bytes] =
            [LeadingParameters::Slabs, LeadingParameters::SlabBytes].map(|what| self.given(what));
        let [before, own] = ["b64"; 2].map(|kind| self.text.temporary(kind));
        self.text.declare("b64", "slab");
        self.text.declare("b64", "taken");
        emit!(self.text, "mul.wide.u32 {before}, block, {threads}");
        emit!(self.text, "mad.lo.u64 slab, {before}, {bytes}, {slabs}");
        emit!(self.text, "mul.wide.u32 {own}, thread, {word}");
        emit!(self.text, "add.u64 slab, slab, {own}");
    }

    /// Writes code that allocates and clears memory of the private heap.
    pub(super) fn take(&mut self, site: u32, name: &str, bytes: Reg) {
        let (threads, word) = (self.shape.threads(), word_bytes(self.body));
        let [left, at, end, whole] = ["b64"; 4].map(|kind| self.text.temporary(kind));
        let [fits, more] = ["pred"; 2].map(|kind| self.text.temporary(kind));
        let (all, wanted) = (self.given(LeadingParameters::SlabBytes), r(bytes));
        emit!(self.text, "sub.u64 {left}, {all}, taken");
        // The length of the free memory is a multiple of 8, so a size that fits also fits when rounded up.
        emit!(self.text, "setp.le.u64 {fits}, {wanted}, {left}");
        emit!(self.text, "selp.b64 {name}, taken, 0xFFFFFFFFFFFFFFFF, {fits}");
        self.check(site, &fits, &wanted);
        emit!(self.text, "@!{fits} bra taken_{site}");
        emit!(self.text, "add.u64 {whole}, {wanted}, 7");
        emit!(self.text, "and.b64 {whole}, {whole}, 0xFFFFFFFFFFFFFFF8");
        emit!(self.text, "mad.lo.u64 {at}, taken, {threads}, slab");
        emit!(self.text, "mad.lo.u64 {end}, {whole}, {threads}, {at}");
        emit!(self.text, "add.u64 taken, taken, {whole}");
        emit!(self.text, "setp.ge.u64 {more}, {at}, {end}");
        emit!(self.text, "@{more} bra taken_{site}");
        self.text.label(&format!("clear_{site}"));
        for part in 0..8 / word {
            emit!(self.text, "st.global.u{} [{at}+{}], 0", 8 * word, part * word * threads);
        }
        emit!(self.text, "add.u64 {at}, {at}, {}", 8 * threads);
        emit!(self.text, "setp.lt.u64 {more}, {at}, {end}");
        emit!(self.text, "@{more} bra clear_{site}");
        self.text.label(&format!("taken_{site}"));
    }

    /// Returns the address of a number in the thread's slab, and the predicate that it is allocated.
    fn in_slab(&mut self, at: Reg, of: Type) -> (String, String) {
        let (threads, word, bytes) = (self.shape.threads(), word_bytes(self.body), of.bytes());
        let (mut place, mut inside) = (self.text.temporary("b32"), self.text.temporary("pred"));
        // It suffices that the start is below `taken`, the allocated length: `taken` is a multiple of 8, so
        // an aligned access also ends below it. The index fits 32 bits, because `taken` is less than 4 GiB.
        emit!(self.text, "setp.lt.u64 {inside}, {}, taken", r(at));
        emit!(self.text, "cvt.u32.u64 {place}, {}", r(at));
        if bytes > 1 {
            let (rest, both) = (self.text.temporary("b32"), self.text.temporary("pred"));
            emit!(self.text, "and.b32 {rest}, {place}, {}", bytes - 1);
            emit!(self.text, "setp.eq.and.u32 {both}, {rest}, 0, {inside}");
            inside = both;
        }
        let mut begin = "slab".to_owned();
        if bytes < word {
            // Compute the byte offset of a short element in its aligned word.
            let [part, whole] = ["b32"; 2].map(|kind| self.text.temporary(kind));
            let [far, word_begin] = ["b64"; 2].map(|kind| self.text.temporary(kind));
            emit!(self.text, "and.b32 {part}, {place}, {}", word - 1);
            emit!(self.text, "sub.u32 {whole}, {place}, {part}");
            emit!(self.text, "cvt.u64.u32 {far}, {part}");
            emit!(self.text, "add.u64 {word_begin}, slab, {far}");
            (begin, place) = (word_begin, whole);
        }
        let address = self.text.temporary("b64");
        emit!(self.text, "mad.wide.u32 {address}, {place}, {threads}, {begin}");
        (address, inside)
    }

    pub(super) fn load_taken(&mut self, site: u32, name: &str, at: Reg, of: Type) {
        let (address, inside) = self.in_slab(at, of);
        let align = of.bytes().into();
        let source = LoadSource { way: "ld.global", at: &address, from: 0, align };
        self.fetch(Memory::Value(of), name, Some(&inside), source);
        self.check(site, &inside, &r(at));
    }

    pub(super) fn store_taken(&mut self, site: u32, at: Reg, value: Reg) {
        let of = self.of(value);
        let (address, inside) = self.in_slab(at, of);
        let guard = format!("@{inside} ");
        self.text.store(of, &r(value), &guard, (&address, 0), of.bytes().into());
        self.check(site, &inside, &r(at));
    }
}
