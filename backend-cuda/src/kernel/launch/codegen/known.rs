//! Constant analysis of a kernel: finds registers whose values are known before the launch.

use backend_api::kernel::{Body, Builtin, Op};

/// Value that a register has at all its reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum KnownValue {
    Literal(u64),
    Item,
}

/// Returns for each register the number of operations that write it.
pub(in super::super) fn writes(body: &Body) -> Vec<u32> {
    let mut writes = vec![0; body.registers.len()];
    body.operations(|_, op| {
        if let Some(to) = op.written() {
            writes[to.at()] += 1;
        }
    });
    writes
}

/// Returns the known values of registers that are written once.
pub(in super::super) fn known(body: &Body) -> Vec<Option<KnownValue>> {
    let writes = writes(body);
    let mut known = vec![None; body.registers.len()];
    body.operations(|_, op| {
        let (to, value) = match *op {
            Op::Literal { to, bits } => (to, Some(KnownValue::Literal(bits))),
            Op::Builtin { to, what: Builtin::Item } => (to, Some(KnownValue::Item)),
            Op::Copy { to, of } => (to, known[of.at()]),
            _ => return,
        };
        if writes[to.at()] == 1 {
            known[to.at()] = value;
        }
    });
    known
}
