//! Private heaps of a launch: computes their length, and limits the number of concurrent work-items to fit.

use backend_api::kernel::{Body, Op, Reg, arithmetic};

use super::codegen::known::writes;

/// Returns the maximum number of bytes that a work-item allocates, if it is known before the launch. It is
/// known if all sizes follow from constants and parameters, and no allocation is in a loop. The kernel must
/// write registers before it reads them.
pub(super) fn most_taken(body: &Body, params: &[u64]) -> Option<u64> {
    let mut values = Values { body, params, writes: writes(body), known: vec![None; body.registers.len()] };
    values.taken(&body.code, false)
}

struct Values<'a> {
    body: &'a Body,
    params: &'a [u64],
    writes: Vec<u32>,
    /// For each register that is written once: its value, if it is equal for all items.
    known: Vec<Option<u64>>,
}

impl Values<'_> {
    fn taken(&mut self, code: &[Op], is_turned: bool) -> Option<u64> {
        let mut all = 0_u64;
        for op in code {
            if let Op::PrivateAlloc { bytes, .. } = op {
                let bytes = self.known[bytes.at()].filter(|_| !is_turned)?;
                all = all.checked_add(bytes.checked_next_multiple_of(8)?)?;
            }
            if let Some(to) = op.written().filter(|to| self.writes[to.at()] == 1) {
                self.known[to.at()] = self.value(op);
            }
            for within in op.within() {
                all = all.checked_add(self.taken(within, is_turned || matches!(op, Op::Loop { .. }))?)?;
            }
        }
        Some(all)
    }

    fn value(&self, op: &Op) -> Option<u64> {
        let (of, known) =
            (|register: Reg| self.body.registers[register.at()], |register: Reg| self.known[register.at()]);
        match *op {
            Op::Literal { bits, .. } => Some(bits),
            Op::Param { number, .. } => self.params.get(usize::from(number)).copied(),
            Op::Copy { of, .. } => known(of),
            Op::Cast { to, of: from } => Some(arithmetic::cast(of(from), of(to), known(from)?)),
            Op::Binary { op, left, right, .. } => {
                Some(arithmetic::binary(op, of(left), known(left)?, known(right)?))
            }
            Op::Select { when, yes, no, .. } => known(if known(when)? != 0 { yes } else { no }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use backend_api::kernel::{Binary, Builtin, Type};

    use super::*;

    #[test]
    fn heap_sizes_are_known_unless_they_depend_on_items() {
        let [len, bytes, place, item] = [0, 1, 2, 3].map(Reg);
        let taken = |code: Vec<Op>| {
            let all = [
                vec![
                    Op::Param { to: len, number: 0 },
                    Op::Binary { op: Binary::Add, to: bytes, left: len, right: len },
                    Op::Builtin { to: item, what: Builtin::Item },
                ],
                code,
            ];
            most_taken(&Body { registers: vec![Type::U64; 4], code: all.concat(), ..Body::default() }, &[10])
        };
        let take = |bytes| Op::PrivateAlloc { to: place, bytes };
        assert_eq!(taken(vec![]), Some(0));
        let in_block = Op::Block { body: vec![take(len)] };
        assert_eq!(taken(vec![take(bytes), in_block]), Some(24 + 16));
        assert_eq!(taken(vec![take(item)]), None);
        assert_eq!(taken(vec![Op::Loop { body: vec![take(len), Op::Break { out: 0 }] }]), None);
        // With two writes to a register, either value is possible.
        assert_eq!(taken(vec![Op::Literal { to: len, bits: 8 }, take(len)]), None);
        assert_eq!(taken(vec![Op::Copy { to: bytes, of: item }, take(bytes)]), None);
    }
}
