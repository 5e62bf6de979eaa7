//! Wide memory accesses in generated PTX: one instruction accesses several adjacent fields of an element.

use backend_api::kernel::{Memory, Op, Reg, Type};

use super::{Writer, r};
use crate::kernel::text::{emit, memory_suffix};

#[derive(Clone, Copy, PartialEq, Eq)]
struct FieldAccess {
    is_store: bool,
    view: u16,
    at: Reg,
    of: Type,
    offset: u32,
}

/// Returns the access of a load or store, and the register of the field's value.
fn access(op: &Op) -> Option<(FieldAccess, Reg)> {
    let (is_store, view, at, of, offset, value) = match *op {
        Op::Load { to, view, at, offset, of: Memory::Value(of) } => (false, view, at, of, offset, to),
        Op::Store { view, at, offset, of: Memory::Value(of), value } => (true, view, at, of, offset, value),
        _ => return None,
    };
    let access = FieldAccess { is_store, view, at, of, offset };
    (of.bytes() >= 4 && value != at).then_some((access, value))
}

impl Writer<'_> {
    /// Writes the accesses at the beginning of `code` as one instruction of 8 or 16 bytes. Returns the number
    /// of combined accesses; 0 if there is no such instruction.
    pub(super) fn access_wide(&mut self, site: u32, code: &[Op]) -> usize {
        let Some((first, _)) = code.first().and_then(access) else { return 0 };
        let (view, bytes) = (usize::from(first.view), first.of.bytes());
        if self.shape.lanes > 1 || self.shape.is_around {
            return 0;
        }
        let next = |(number, op): (u32, &Op)| {
            let (found, value) = access(op)?;
            let expected = FieldAccess { offset: first.offset.checked_add(number * bytes)?, ..first };
            (found == expected).then_some(value)
        };
        let mut values: Vec<Reg> = Vec::with_capacity(4);
        for value in (0..4).zip(code).map_while(next) {
            if !first.is_store && values.contains(&value) {
                break;
            }
            values.push(value);
        }
        let align = self.shape.views[view].align | u64::from(first.offset);
        let fits = |count: &usize| {
            let wide = *count as u64 * u64::from(bytes);
            *count <= values.len() && wide <= 16 && align.is_multiple_of(wide)
        };
        let Some(count) = [4, 2].into_iter().find(fits) else { return 0 };
        let element = self.element(view, first.at);
        let (address, from, _) = self.address(view, &element, first.offset);
        let inside = &element.inside;
        let guard = Self::guard(inside);
        let names = values[..count].iter().map(|value| r(*value)).collect::<Vec<_>>();
        let (list, suffix) = (names.join(", "), memory_suffix(first.of).replace('s', "u"));
        if first.is_store {
            emit!(self.text, "{guard}st.global.v{count}.{suffix} [{address}+{from}], {{{list}}}");
        } else {
            if inside.is_some() {
                names.iter().for_each(|name| self.text.literal(first.of, name, 0));
            }
            let way = if self.body.views[view].access.is_written() { "ld.global" } else { "ld.global.nc" };
            emit!(self.text, "{guard}{way}.v{count}.{suffix} {{{list}}}, [{address}+{from}]");
        }
        // All these accesses have the same index, so report the failure for the first access.
        if let Some(inside) = inside {
            self.check(site, inside, &r(first.at));
        }
        count
    }
}
