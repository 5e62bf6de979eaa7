//! PTX code of stencil kernels, whose work-items read neighbouring elements.
//!
//! Each thread of a warp runs a fixed number of work-items, its *lanes*. The items of a warp are consecutive.
//! The warp tests its first and last item. If both are far enough from the array's edges, each thread loads
//! all elements that its lanes need once, in aligned vectors, without checks. In other warps each thread runs
//! its items one by one, with checks.

use backend_api::kernel::{Memory, Op, Reg, Type};

use super::affine::{Granted, LaneAnalysis, LoadRun};
use super::lanes::lies_as;
use super::warps::{ROWS, WARP, WarpEnd};
use super::{LeadingParameters, Writer, r};
use crate::driver::objects::THREADS;
use crate::kernel::text::{LoadSource, emit, memory_suffix, register, suffix};

/// Name of the register with an element of a run, counted from the lowest element that any lane loads.
fn element(run: usize, number: i64) -> String {
    format!("e{run}_{number}")
}

impl Writer<'_> {
    /// Start and end of a thread's vectors for a run, in elements relative to the first lane's own element.
    fn range(&self, run: &LoadRun) -> (i64, i64) {
        let (low, high) = (run.low.0, run.high.0);
        if !run.follows {
            return (low, high + 1);
        }
        let lanes = i64::from(self.shape.lanes);
        (low.div_euclid(lanes) * lanes, ((high + lanes - 1).div_euclid(lanes) + 1) * lanes)
    }

    /// Returns the number of the thread's group of items. While there are enough rows, the warps of a block
    /// take consecutive rows, because they then share the multiprocessor's cache.
    pub(super) fn piece_of_rows(&mut self, around: &LaneAnalysis) -> String {
        if around.pitch.is_none() {
            return "number".into();
        }
        self.text.declare("b64", "piece");
        let [block, own] = ["b64"; 2].map(|kind| self.text.temporary(kind));
        let [above, column, short, pitch] = ["b32"; 4].map(|kind| self.text.temporary(kind));
        let [factor, shift] = ["b32"; 2].map(|kind| self.text.temporary(kind));
        let is_rest = self.text.temporary("pred");
        let [wide_pitch, reciprocal, even_pieces] =
            [LeadingParameters::Pitch, LeadingParameters::Reciprocal, LeadingParameters::Striped]
                .map(|what| self.given(what));
        emit!(self.text, "mov.b64 piece, number");
        emit!(self.text, "shr.u64 {block}, number, {}", THREADS.ilog2());
        emit!(self.text, "setp.ge.u64 {is_rest}, {block}, {even_pieces}");
        emit!(self.text, "@{is_rest} bra straight");
        emit!(self.text, "cvt.u32.u64 {short}, {block}");
        emit!(self.text, "cvt.u32.u64 {pitch}, {wide_pitch}");
        emit!(self.text, "mov.b64 {{{factor}, {shift}}}, {reciprocal}");
        emit!(self.text, "shl.b32 {above}, {short}, 1");
        emit!(self.text, "mul.hi.u32 {above}, {above}, {factor}");
        emit!(self.text, "shr.u32 {above}, {above}, {shift}");
        emit!(self.text, "mul.lo.u32 {column}, {above}, {pitch}");
        emit!(self.text, "sub.u32 {column}, {short}, {column}");
        // The low bits of a warp's number are the index of the warp's row in its thread block.
        emit!(self.text, "shr.u64 {own}, number, {}", WARP.ilog2());
        emit!(self.text, "and.b64 {own}, {own}, {}", ROWS - 1);
        emit!(self.text, "cvt.u32.u64 {short}, {own}");
        emit!(self.text, "mad.lo.u32 {above}, {above}, {ROWS}, {short}");
        emit!(self.text, "cvt.u64.u32 {own}, {column}");
        emit!(self.text, "mad.wide.u32 {own}, {above}, {pitch}, {own}");
        emit!(self.text, "and.b64 piece, number, {}", WARP - 1);
        emit!(self.text, "mad.lo.u64 piece, {own}, {WARP}, piece");
        self.text.label("straight");
        "piece".into()
    }

    /// Writes a test of the first and the last item of a warp whose items start at `begin`. The code branches
    /// to `apart` unless the assumptions hold, and all elements of the lanes exist in aligned vectors.
    pub(super) fn ask_ends(&mut self, around: &LaneAnalysis, begin: &str) {
        self.text.declare("pred", "bad");
        emit!(self.text, "setp.ne.u32 bad, 0, 0");
        for (number, _) in around.runs.iter().enumerate() {
            for name in ["low", "high", "from"] {
                self.text.declare("b64", &format!("{name}{number}"));
            }
        }
        for (end, last) in [(WarpEnd::First, 0), (WarpEnd::Last, WARP * self.shape.lanes - 1)] {
            emit!(self.text, "add.u64 item, {begin}, {last}");
            (self.lane, self.end, self.site) = (Some(0), Some(end), 0);
            let body = self.body;
            self.code(&body.code);
        }
        (self.lane, self.end) = (None, None);
        let misplaced = self.text.temporary("b64");
        emit!(self.text, "mov.b64 {misplaced}, 0");
        for (number, run) in around.runs.iter().enumerate() {
            self.ask_run(number, run, &misplaced);
        }
        let is_misplaced = self.text.temporary("pred");
        emit!(self.text, "setp.ne.u64 {is_misplaced}, {misplaced}, 0");
        self.is_bad(&is_misplaced);
        emit!(self.text, "@bad bra apart");
    }

    /// Writes a test that a run is contiguous and in bounds, and computes the start of the thread's part.
    fn ask_run(&mut self, number: usize, run: &LoadRun, misplaced: &str) {
        let ((begin, end), bytes) = (self.range(run), u64::from(lies_as(run.of).bytes()));
        let others = if run.follows { i64::from(WARP * self.shape.lanes) - 1 } else { 0 };
        let [far, low, high, count] = ["b64"; 4].map(|kind| self.text.temporary(kind));
        let wrong = self.text.temporary("pred");
        emit!(self.text, "sub.u64 {far}, high{number}, low{number}");
        emit!(self.text, "setp.ne.u64 {wrong}, {far}, {}", run.high.0 - run.low.0 + others);
        self.is_bad(&wrong);
        // Compute the first element that any lane loads, and `all`, the number of elements to the last one.
        let all = end - begin + others / i64::from(self.shape.lanes) * i64::from(self.shape.lanes);
        emit!(self.text, "sub.u64 {low}, low{number}, {}", run.low.0 - begin);
        // Compute the greatest first element for which `all` elements fit. If the view is too short, the
        // subtraction wraps around, and the result exceeds `count`.
        let view = self.shape.view_at(run.view);
        emit!(self.text, "ld.param.u64 {count}, [{}]", self.place(view));
        emit!(self.text, "sub.u64 {high}, {count}, {all}");
        emit!(self.text, "setp.gt.u64 {wrong}, {low}, {high}");
        self.is_bad(&wrong);
        emit!(self.text, "setp.gt.u64 {wrong}, {high}, {count}");
        self.is_bad(&wrong);
        let [base, from] = ["b64"; 2].map(|kind| self.text.temporary(kind));
        emit!(self.text, "ld.param.u64 {base}, [{}]", self.place(view + 8));
        self.text.scaled(&from, &low, bytes, &base);
        let [off, own] = ["b64"; 2].map(|kind| self.text.temporary(kind));
        let piece = if run.follows { bytes * u64::from(self.shape.lanes) } else { bytes };
        emit!(self.text, "and.b64 {off}, {from}, {}", piece - 1);
        emit!(self.text, "or.b64 {misplaced}, {misplaced}, {off}");
        if !run.follows {
            emit!(self.text, "mov.b64 from{number}, {from}");
            return;
        }
        emit!(self.text, "cvt.u64.u32 {own}, thread");
        emit!(self.text, "and.b64 {own}, {own}, {}", WARP - 1);
        emit!(self.text, "mad.lo.u64 from{number}, {own}, {piece}, {from}");
    }

    fn is_bad(&mut self, what: &str) {
        emit!(self.text, "or.pred bad, bad, {what}");
    }

    /// Loads the neighbouring elements of a thread's lanes.
    pub(super) fn load_runs(&mut self, around: &LaneAnalysis) {
        let lanes = i64::from(self.shape.lanes);
        for (number, run) in around.runs.iter().enumerate() {
            let ((begin, end), of) = (self.range(run), lies_as(run.of));
            let own = || around.loads.values().filter(|(at, _)| *at == number).map(|(_, by)| *by - begin);
            let is_read = |at: i64| own().any(|by| by <= at && at < by + if run.follows { lanes } else { 1 });
            (0..end - begin).for_each(|at| self.text.declare(register(of), &element(number, at)));
            let at_once = if run.follows { lanes } else { 1 };
            for first in (0..end - begin).step_by(at_once as usize) {
                let read: Vec<i64> = (first..first + at_once).filter(|at| is_read(*at)).collect();
                if read.len() > 1 && at_once * i64::from(of.bytes()) >= 4 {
                    self.load_piece(number, of, first);
                } else {
                    for at in read {
                        let (name, place) = (element(number, at), at as u64 * u64::from(of.bytes()));
                        let from = format!("from{number}");
                        let align = of.bytes().into();
                        let source = LoadSource { way: "ld.global.nc", at: &from, from: place, align };
                        self.text.load(of, &name, "", source);
                    }
                }
            }
        }
    }

    /// Loads a vector with one element for each lane.
    fn load_piece(&mut self, run: usize, of: Type, first: i64) {
        let (bytes, lanes) = (u64::from(of.bytes()), i64::from(self.shape.lanes));
        let place = first as u64 * bytes;
        let names: Vec<String> = (first..first + lanes).map(|at| element(run, at)).collect();
        if bytes >= 4 {
            let (names, number) = (names.join(", "), lanes);
            let suffix = memory_suffix(of);
            emit!(self.text, "ld.global.nc.v{number}.{suffix} {{{names}}}, [from{run}+{place}]");
            return;
        }
        let words: Vec<String> = (0..lanes as u64 * bytes / 4).map(|_| self.text.temporary("b32")).collect();
        match &words[..] {
            [word] => emit!(self.text, "ld.global.nc.u32 {word}, [from{run}+{place}]"),
            _ => {
                let number = words.len();
                let words = words.join(", ");
                emit!(self.text, "ld.global.nc.v{number}.u32 {{{words}}}, [from{run}+{place}]");
            }
        }
        self.cut(of, &names, &words);
    }

    /// Writes an operation of an item in a tested warp, or in the test itself. Returns `false` for an
    /// operation without special treatment.
    pub(super) fn step_around(&mut self, site: u32, op: &Op) -> bool {
        let (Some(around), Some(_)) = (self.around.clone(), self.lane) else { return false };
        let granted = around.granted.get(&site).copied();
        match (op, granted) {
            (Op::If { when, then, .. }, Some(Granted::Is(is))) => {
                if self.end.is_some() {
                    let when = r(*when);
                    if is {
                        let differs = self.text.temporary("pred");
                        emit!(self.text, "not.pred {differs}, {when}");
                        self.is_bad(&differs);
                    } else {
                        self.is_bad(&when);
                    }
                }
                if is {
                    self.code(then);
                } else {
                    self.site += then.iter().map(Op::count).sum::<usize>() as u32;
                }
                return true;
            }
            (Op::Select { to, when, no, .. }, Some(Granted::Is(_))) => {
                if self.end.is_some() {
                    self.is_bad(&r(*when));
                }
                emit!(self.text, "mov.{} {}, {}", register(self.of(*to)), r(*to), r(*no));
                return true;
            }
            _ => {}
        }
        let Some(end) = self.end else { return false };
        if let (Op::Load { at, .. }, Some((run, _))) = (op, around.loads.get(&site)) {
            if end == WarpEnd::First && around.runs[*run].low.1 == site {
                emit!(self.text, "mov.b64 low{run}, {}", r(*at));
            }
            if end == WarpEnd::Last && around.runs[*run].high.1 == site {
                emit!(self.text, "mov.b64 high{run}, {}", r(*at));
            }
        }
        if !around.places[site as usize] {
            return true;
        }
        if let Some(Granted::Rises(register)) = granted {
            self.compare_ends(site, end, register, "lt");
        }
        self.aside(site, op);
        if let (Some(Granted::Stays), Some(to)) = (granted, op.written()) {
            self.compare_ends(site, end, to, "ne");
        }
        if let Some(to) = op.written() {
            self.keep_word(to);
        }
        true
    }

    /// Writes code that stores a register at the first item. At the last item, the code sets `bad` if
    /// `compare` of both values is true.
    fn compare_ends(&mut self, site: u32, end: WarpEnd, what: Reg, compare: &str) {
        let (of, name) = (self.of(what), format!("first_{site}"));
        if end == WarpEnd::First {
            self.text.declare(register(of), &name);
            emit!(self.text, "mov.{} {name}, {}", register(of), r(what));
        } else {
            let differs = self.text.temporary("pred");
            emit!(self.text, "setp.{compare}.{} {differs}, {}, {name}", suffix(of), r(what));
            self.is_bad(&differs);
        }
    }

    /// Reads a neighbouring element of a lane from its register.
    pub(super) fn read_around(&mut self, site: u32, name: &str, of: Memory) -> bool {
        let (Some(around), Some(lane)) = (&self.around, self.lane) else { return false };
        let Some(&(number, distance)) = around.loads.get(&site) else { return false };
        let run = &around.runs[number];
        let own = if run.follows { i64::from(lane) } else { 0 };
        let element = element(number, distance + own - self.range(run).0);
        self.take_cell(name, &element, of);
        true
    }
}
