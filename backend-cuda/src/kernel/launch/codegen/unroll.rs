//! Unrolls loops of a kernel that count from one literal to another, before the translation to PTX.
//!
//! Several unrolled iterations test the exit condition once, and load adjacent elements of a group's shared
//! array by one instruction.

use backend_api::kernel::{Op, Reg, Space};

use super::{Writer, register};
use crate::kernel::text::{emit, memory_suffix};

/// Unrolling factor, because this number of 4-byte elements is the widest load.
const TURNS: u64 = 4;
/// Maximum number of operations of an unrolled loop body.
const OPERATIONS_MAX: usize = 64;

impl Writer<'_> {
    /// Writes an unrolled loop; returns `false` if the loop cannot be unrolled.
    pub(super) fn several_turns(&mut self, site: u32, body: &[Op]) -> bool {
        let Some((counter, first)) = self.counted_by(body) else { return false };
        let number = body.iter().map(Op::count).sum::<usize>() as u32;
        self.text.label(&format!("loop_{site}"));
        self.labels.push(site);
        let loaded = self.load_ahead(body, counter, first);
        for turn in 0..TURNS {
            self.site = site + 1;
            self.ahead = loaded.iter().map(|(site, names)| (*site, names[turn as usize].clone())).collect();
            for op in body {
                // All iterations but the last omit the exit condition.
                if matches!(op, Op::If { .. }) && turn + 1 < TURNS {
                    self.site += op.count() as u32;
                } else {
                    self.code(std::slice::from_ref(op));
                }
            }
        }
        self.ahead.clear();
        self.labels.pop();
        self.site = site + 1 + number;
        emit!(self.text, "bra loop_{site}");
        self.text.label(&format!("end_{site}"));
        true
    }

    /// Returns the counter and first value of a short loop whose number of iterations is a multiple of the
    /// factor. The loop's only exit must be the counter's.
    fn counted_by(&self, body: &[Op]) -> Option<(Reg, u64)> {
        let Some(Op::Copy { to: counter, .. }) = body.last() else { return None };
        let &(first, last) = self.bounds.counts.get(counter)?;
        // Accept only operations that need no label. A label contains its operation's number (site), which
        // all copies of the loop's code share, so the labels would collide.
        let is_straight = |op: &Op| {
            op.written().is_some()
                && !matches!(op, Op::Atomic { .. } | Op::PrivateAlloc { .. } | Op::Subgroup { .. })
                || matches!(op, Op::Store { .. } | Op::Put { .. } | Op::If { .. })
        };
        let exits = body.iter().filter(|op| matches!(op, Op::If { .. })).count();
        let is_counted = exits == 1 && body.len() <= OPERATIONS_MAX && body.iter().all(is_straight);
        let leaves = matches!(body.last(), Some(Op::Copy { .. }));
        let is_multiple = (last - first).wrapping_add(1).is_multiple_of(TURNS) && last > first;
        (is_counted && leaves && is_multiple && !self.shape.has_budget).then_some((*counter, first))
    }

    /// Loads elements for the next iterations that are adjacent, from arrays without writes in between.
    /// Returns the registers for each read.
    fn load_ahead(&mut self, body: &[Op], counter: Reg, first: u64) -> Vec<(u32, Vec<String>)> {
        let mut loaded = Vec::new();
        let mut site = self.site;
        for op in body {
            let own = site;
            site += op.count() as u32;
            let Op::Get { array, at, .. } = *op else { continue };
            let is_written = |op: &Op| matches!(op, Op::Put { array: other, .. } if *other == array);
            let decl = self.body.arrays[usize::from(array)];
            let (part, literal) = self.bounds.sums[at.at()].unwrap_or((at, 0));
            let bytes = u64::from(decl.of.bytes());
            let is_inside = self.bounds.most[at.at()] < u64::from(decl.len);
            let begin = self.array_at(array.into()) + (first + literal) * bytes;
            if part != counter
                || !is_inside
                || bytes != 4
                || decl.space == Space::Item
                || !begin.is_multiple_of(4 * bytes)
                || body.iter().any(is_written)
            {
                continue;
            }
            let (place, _) = self.element_of_array(array.into(), at);
            let names: Vec<String> = (0..TURNS).map(|_| self.text.temporary(register(decl.of))).collect();
            let suffix = memory_suffix(decl.of);
            emit!(self.text, "ld.shared.v4.{suffix} {{{}}}, [{place}]", names.join(", "));
            loaded.push((own, names));
        }
        loaded
    }
}
