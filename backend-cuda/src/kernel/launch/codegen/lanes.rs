//! PTX code for threads that each run several consecutive work-items ("lanes").
//!
//! A thread loads the elements of all its items at once, in the longest vectors that the alignment permits.
//! It computes one item after the other in registers, and then stores all results. A work-item before the
//! first whole vector, or after the last one, has a thread of its own.

use std::rc::Rc;

use backend_api::kernel::{Access, Memory, Op, Reg, Type};

use super::known::KnownValue;
use super::warps::WARP;
use super::{LeadingParameters, Writer, affine};
use crate::kernel::text::{LoadSource, Text, emit, memory_suffix, register};

/// Name of the register with a lane's element of a view.
fn cell(view: usize, lane: u32) -> String {
    format!("c{view}_{lane}")
}

/// Type in which a field is stored in memory.
pub(super) fn lies_as(of: Memory) -> Type {
    match of {
        Memory::Value(of) => of,
        Memory::F16 => Type::U16,
    }
}

impl Writer<'_> {
    /// Writes the code of a thread that processes several items.
    pub(super) fn side_by_side(&mut self) {
        let (lanes, body) = (self.shape.lanes, self.body);
        let [pieces, head] =
            [LeadingParameters::Pieces, LeadingParameters::Head].map(|what| self.given(what));
        let is_single = self.text.temporary("pred");
        self.text.declare("b64", "first");
        emit!(self.text, "setp.ge.u64 {is_single}, number, {pieces}");
        emit!(self.text, "@{is_single} bra single");
        let around = if self.shape.is_around { affine::lanes(body).map(Rc::new) } else { None };
        let begin = self.text.temporary("b64");
        let mut piece = "number".to_owned();
        if let Some(around) = &around {
            piece = self.piece_of_rows(around);
            emit!(self.text, "and.b64 {begin}, {piece}, 0x{:X}", !u64::from(WARP - 1));
            emit!(self.text, "mad.lo.u64 {begin}, {begin}, {lanes}, {head}");
            self.around = Some(Rc::clone(around));
            self.ask_ends(around, &begin);
        }
        emit!(self.text, "mad.lo.u64 first, {piece}, {lanes}, {head}");
        let cells: Vec<(usize, Type, bool, bool)> =
            (0..body.views.len()).filter_map(|at| self.cells(at)).collect();
        for &(view, of, is_loaded, _) in &cells {
            (0..lanes).for_each(|lane| self.text.declare(register(of), &cell(view, lane)));
            if is_loaded {
                self.load_cells(view, of);
            }
        }
        if let Some(around) = &around {
            self.load_runs(around);
        }
        for lane in 0..lanes {
            emit!(self.text, "add.u64 item, first, {lane}");
            (self.lane, self.site) = (Some(lane), 0);
            self.code(&body.code);
        }
        (self.lane, self.around) = (None, None);
        for &(view, of, _, is_stored) in &cells {
            if is_stored {
                self.store_cells(view, of);
            }
        }
        emit!(self.text, "bra done");
        if around.is_some() {
            self.text.declare("b32", "left");
            let own = self.text.temporary("b64");
            self.text.label("apart");
            emit!(self.text, "cvt.u64.u32 {own}, thread");
            emit!(self.text, "and.b64 {own}, {own}, {}", WARP - 1);
            emit!(self.text, "add.u64 item, {begin}, {own}");
            emit!(self.text, "mov.u32 left, {lanes}");
            emit!(self.text, "bra again");
        }
        self.single(around.is_some(), &pieces, &head);
        self.text.label("done");
    }

    /// Writes code that runs items one after the other: the items outside of the vectors and, if `around`,
    /// the items of warps that fail the test.
    fn single(&mut self, around: bool, pieces: &str, head: &str) {
        let lanes = self.shape.lanes;
        self.text.label("single");
        let behind = self.text.temporary("pred");
        emit!(self.text, "sub.u64 item, number, {pieces}");
        emit!(self.text, "setp.ge.u64 {behind}, item, {head}");
        emit!(self.text, "@{behind} mad.lo.u64 item, {pieces}, {lanes}, item");
        self.site = 0;
        if !around {
            self.item();
        } else {
            emit!(self.text, "mov.u32 left, 1");
            self.text.label("again");
            self.item();
            let more = self.text.temporary("pred");
            emit!(self.text, "add.u64 item, item, {WARP}");
            emit!(self.text, "sub.u32 left, left, 1");
            emit!(self.text, "setp.ne.u32 {more}, left, 0");
            emit!(self.text, "@{more} bra again");
        }
    }

    /// Returns the type of the items' own elements of a view, and if they are loaded and stored.
    fn cells(&self, view: usize) -> Option<(usize, Type, bool, bool)> {
        let (mut of, mut is_loaded, mut is_stored) = (None, false, false);
        // Visit nested operations too, because a store may be inside a test that the work-item exists.
        self.body.operations(|_, op| {
            let (Op::Load { view: at_view, at, of: memory, .. }
            | Op::Store { view: at_view, at, of: memory, .. }) = *op
            else {
                return;
            };
            if usize::from(at_view) == view && self.is_own(view, at) {
                of = Some(lies_as(memory));
                is_stored |= matches!(op, Op::Store { .. });
                is_loaded |= matches!(op, Op::Load { .. });
            }
        });
        Some((view, of?, is_loaded, is_stored))
    }

    /// Returns true if an access is to the item's own element.
    fn is_own(&self, view: usize, at: Reg) -> bool {
        self.body.views[view].access.is_written() || self.known[at.at()] == Some(KnownValue::Item)
    }

    /// Reads the lane's own element of a view from its register. Returns false for other accesses.
    pub(super) fn read_cell(&mut self, name: &str, (view, at): (usize, Reg), of: Memory) -> bool {
        let Some(lane) = self.lane.filter(|_| self.is_own(view, at)) else { return false };
        self.take_cell(name, &cell(view, lane), of);
        true
    }

    /// Converts a loaded value from its type in memory to its type in registers.
    pub(super) fn take_cell(&mut self, name: &str, cell: &str, of: Memory) {
        match of {
            Memory::Value(of) => emit!(self.text, "mov.{} {name}, {cell}", register(of)),
            Memory::F16 => {
                let half = self.text.temporary("b16");
                emit!(self.text, "cvt.u16.u32 {half}, {cell}");
                emit!(self.text, "cvt.f32.f16 {name}, {half}");
            }
        }
    }

    /// Writes the lane's own element of a view to its register. Returns false for other accesses.
    pub(super) fn write_cell(&mut self, view: usize, value: &str, of: Memory) -> bool {
        let Some(lane) = self.lane else { return false };
        let cell = cell(view, lane);
        match of {
            Memory::Value(of) => emit!(self.text, "mov.{} {cell}, {value}", register(of)),
            Memory::F16 => {
                let half = self.text.temporary("b16");
                emit!(self.text, "cvt.rn.f16.f32 {half}, {value}");
                emit!(self.text, "cvt.u32.u16 {cell}, {half}");
            }
        }
        true
    }

    /// Computes the address of the first lane's element.
    fn first_cell(&mut self, view: usize) -> String {
        let (base, address) = (self.text.temporary("b64"), self.text.temporary("b64"));
        let place = self.place(self.shape.view_at(view) + 8);
        emit!(self.text, "ld.param.u64 {base}, [{place}]");
        self.text.scaled(&address, "first", self.shape.views[view].stride, &base);
        address
    }

    /// Returns the length of one vector access, and of the elements of all lanes, in bytes.
    fn piece(&self, view: usize, of: Type) -> (u64, u64) {
        let all = u64::from(self.shape.lanes * of.bytes());
        (all.min(self.shape.views[view].ahead), all)
    }

    fn load_cells(&mut self, view: usize, of: Type) {
        let way = if self.body.views[view].access == Access::Read { "ld.global.nc" } else { "ld.global" };
        let (address, (piece, all), bytes) =
            (self.first_cell(view), self.piece(view, of), u64::from(of.bytes()));
        if bytes >= 4 && piece >= bytes {
            return self.each_piece(all, piece, bytes, |text, at, number, vector, from| {
                let cells: Vec<String> = (from..from + number).map(|lane| cell(view, lane)).collect();
                let (cells, suffix) = (cells.join(", "), memory_suffix(of));
                match number {
                    1 => emit!(text, "{way}.{suffix} {cells}, [{address}+{at}]"),
                    _ => emit!(text, "{way}.{vector}.{suffix} {{{cells}}}, [{address}+{at}]"),
                }
            });
        }
        if bytes < 4 && piece >= 4 {
            let words: Vec<String> = (0..all / 4).map(|_| self.text.temporary("b32")).collect();
            self.each_piece(all, piece, 4, |text, at, number, vector, from| {
                let words = words[from as usize..][..number as usize].join(", ");
                match number {
                    1 => emit!(text, "{way}.u32 {words}, [{address}+{at}]"),
                    _ => emit!(text, "{way}.{vector}.u32 {{{words}}}, [{address}+{at}]"),
                }
            });
            let cells: Vec<String> = (0..self.shape.lanes).map(|lane| cell(view, lane)).collect();
            self.cut(of, &cells, &words);
            return;
        }
        for lane in 0..self.shape.lanes {
            let at = u64::from(lane) * bytes;
            let source = LoadSource { way, at: &address, from: at, align: self.shape.views[view].ahead };
            self.text.load(of, &cell(view, lane), "", source);
        }
    }

    /// Writes code that splits words into numbers shorter than a word.
    pub(super) fn cut(&mut self, of: Type, names: &[String], words: &[String]) {
        let (sign, bytes) = (if of.is_signed() { "s32" } else { "u32" }, of.bytes() as usize);
        for (number, name) in names.iter().enumerate() {
            let at = number * bytes;
            emit!(self.text, "bfe.{sign} {name}, {}, {}, {}", words[at / 4], at % 4 * 8, 8 * bytes);
        }
    }

    fn store_cells(&mut self, view: usize, of: Type) {
        let (address, (piece, all), bytes) =
            (self.first_cell(view), self.piece(view, of), u64::from(of.bytes()));
        if bytes >= 4 && piece >= bytes {
            let suffix = memory_suffix(of).replace('s', "u");
            return self.each_piece(all, piece, bytes, |text, at, number, vector, from| {
                let cells: Vec<String> = (from..from + number).map(|lane| cell(view, lane)).collect();
                let cells = cells.join(", ");
                match number {
                    1 => emit!(text, "st.global.{suffix} [{address}+{at}], {cells}"),
                    _ => emit!(text, "st.global.{vector}.{suffix} [{address}+{at}], {{{cells}}}"),
                }
            });
        }
        if bytes < 4 && piece >= 4 {
            let words: Vec<String> = (0..all / 4).map(|word| self.packed(view, word as u32, of)).collect();
            return self.each_piece(all, piece, 4, |text, at, number, vector, from| {
                let words = words[from as usize..][..number as usize].join(", ");
                match number {
                    1 => emit!(text, "st.global.u32 [{address}+{at}], {words}"),
                    _ => emit!(text, "st.global.{vector}.u32 [{address}+{at}], {{{words}}}"),
                }
            });
        }
        for lane in 0..self.shape.lanes {
            let at = u64::from(lane) * bytes;
            self.text.store(of, &cell(view, lane), "", (&address, at), self.shape.views[view].ahead);
        }
    }

    /// Writes code that packs numbers shorter than a word into a word.
    fn packed(&mut self, view: usize, word: u32, of: Type) -> String {
        let whole = self.text.temporary("b32");
        if of.bytes() == 2 {
            let [low, high] = [0, 1].map(|lane| cell(view, 2 * word + lane));
            emit!(self.text, "prmt.b32 {whole}, {low}, {high}, 0x5410");
            return whole;
        }
        let halves = [self.text.temporary("b32"), self.text.temporary("b32")];
        for (half, name) in (0..).zip(&halves) {
            let [low, high] = [0, 1].map(|lane| cell(view, 4 * word + 2 * half + lane));
            emit!(self.text, "prmt.b32 {name}, {low}, {high}, 0x0040");
        }
        emit!(self.text, "prmt.b32 {whole}, {}, {}, 0x5410", halves[0], halves[1]);
        whole
    }

    /// Writes an instruction for each vector, from its address, number of units, PTX suffix and first unit.
    fn each_piece(
        &mut self,
        all: u64,
        piece: u64,
        unit: u64,
        mut write: impl FnMut(&mut Text, u64, u32, &str, u32),
    ) {
        let number = (piece / unit) as u32;
        for at in (0..all).step_by(piece as usize) {
            write(&mut self.text, at, number, &format!("v{number}"), (at / unit) as u32);
        }
    }
}
