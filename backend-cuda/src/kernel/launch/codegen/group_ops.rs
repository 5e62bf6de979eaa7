//! PTX code of operations that work-items of a group execute together: barriers, subgroup operations,
//! atomics.

use backend_api::kernel::{Binary, Builtin, Op, Place, Reg, Rmw, Scope, Space, SubgroupOp, Type};

use super::known::writes;
use super::{Writer, bytes_of, r};
use crate::kernel::text::{emit, is_wide, memory_suffix, register, suffix};

/// Mask of all lanes of a warp.
const ALL: &str = "0xFFFFFFFF";

impl Writer<'_> {
    /// Writes the loop over the groups of a block.
    pub(super) fn groups(&mut self, len: u32, more: &str, items: &str) {
        for name in ["group", "groups", "step"] {
            self.text.declare("b64", name);
        }
        self.text.declare("pred", "live");
        let rest = self.text.temporary("b64");
        self.text.quotient("groups", items, len.into());
        emit!(self.text, "mul.lo.u64 {rest}, groups, {len}");
        emit!(self.text, "setp.ne.u64 {more}, {rest}, {items}");
        emit!(self.text, "@{more} add.u64 groups, groups, 1");
        emit!(self.text, "cvt.u64.u32 group, block");
        emit!(self.text, "cvt.u64.u32 step, blocks");
        emit!(self.text, "setp.ge.u64 {more}, group, groups");
        emit!(self.text, "@{more} bra finish");
        self.text.label("next");
        let own = self.text.temporary("b64");
        emit!(self.text, "cvt.u64.u32 {own}, thread");
        emit!(self.text, "mad.lo.u64 item, group, {len}, {own}");
        emit!(self.text, "setp.lt.u64 live, item, {items}");
        let bytes = bytes_of(&self.body.arrays, Space::Group);
        if bytes > 0 {
            self.text.declarations.push_str(&format!("\t.shared .align 16 .b8 shared[{bytes}];\n"));
            self.clear_shared(len);
        }
        self.item();
        if bytes > 0 {
            // Wait for all work-items of the group, because the next group uses the same shared memory.
            emit!(self.text, "barrier.sync 0");
        }
        emit!(self.text, "add.u64 group, group, step");
        emit!(self.text, "setp.lt.u64 {more}, group, groups");
        emit!(self.text, "@{more} bra next");
    }

    /// Writes code that clears shared memory, except arrays that the items write first. Each thread clears
    /// words at the stride of the block.
    fn clear_shared(&mut self, len: u32) {
        /// The maximum number of words that a thread clears without a loop.
        const UNROLLED_MAX: u64 = 8;
        let arrays = self.body.arrays.iter().enumerate();
        let cleared: Vec<_> = arrays
            .filter(|(number, array)| array.space == Space::Group && !self.is_written_first(*number, len))
            .map(|(number, array)| (self.array_at(number), array.bytes().next_multiple_of(8)))
            .collect();
        let (at, end, more) =
            (self.text.temporary("b64"), self.text.temporary("b64"), self.text.temporary("pred"));
        if !cleared.is_empty() {
            emit!(self.text, "mov.u64 {end}, shared");
            emit!(self.text, "mul.wide.u32 {at}, thread, 8");
            emit!(self.text, "add.u64 {at}, {at}, {end}");
        }
        for (first, bytes) in &cleared {
            let (step, rounds) = (8 * u64::from(len), bytes / 8 / u64::from(len));
            if rounds <= UNROLLED_MAX {
                for round in 0..rounds {
                    emit!(self.text, "st.shared.u64 [{at}+{}], 0", first + step * round);
                }
                let rest = bytes / 8 % u64::from(len);
                if rest > 0 {
                    emit!(self.text, "setp.lt.u32 {more}, thread, {rest}");
                    emit!(self.text, "@{more} st.shared.u64 [{at}+{}], 0", first + step * rounds);
                }
                continue;
            }
            let own = self.text.temporary("b64");
            emit!(self.text, "mov.u64 {end}, shared");
            emit!(self.text, "add.u64 {end}, {end}, {}", first + bytes);
            emit!(self.text, "add.u64 {own}, {at}, {first}");
            self.text.label(&format!("clear_shared_{first}"));
            emit!(self.text, "setp.lt.u64 {more}, {own}, {end}");
            emit!(self.text, "@{more} st.shared.u64 [{own}], 0");
            emit!(self.text, "add.u64 {own}, {own}, {step}");
            emit!(self.text, "@{more} bra clear_shared_{first}");
        }
        if !cleared.is_empty() && !self.waits_before_group_memory() {
            emit!(self.text, "barrier.sync 0");
        }
    }

    /// Returns true if all items of a group meet at a barrier before any of them accesses an array of the
    /// group that starts with zeroes.
    fn waits_before_group_memory(&self) -> bool {
        let is_cleared = |array: usize| {
            self.body.arrays[array].space == Space::Group && self.shape.kernel.starts_zeroed(array)
        };
        let ends = |op: &&Op| matches!(op, Op::Barrier) || accesses(op, true, &is_cleared);
        matches!(self.body.code.iter().find(ends), Some(Op::Barrier))
    }

    /// Returns true if no item can read an element of a group's array before it is written: the items write
    /// all elements before a barrier that precedes all reads, or never read the array. Counts only writes
    /// outside of branches and loops, at the item's number in the group plus a literal.
    fn is_written_first(&self, array: usize, len: u32) -> bool {
        if !self.shape.kernel.starts_zeroed(array) {
            return true;
        }
        let code = &self.body.code;
        let is_number_in_group = |register: Reg| {
            let in_group =
                |op: &Op| matches!(op, Op::Builtin { to, what: Builtin::InGroup } if *to == register);
            code.iter().any(in_group) && writes(self.body)[register.at()] == 1
        };
        let mut starts = Vec::new();
        for op in code {
            match op {
                Op::Put { array: of, at, .. } if usize::from(*of) == array => {
                    let (part, literal) = self.bounds.sums[at.at()].unwrap_or((*at, 0));
                    starts.extend(is_number_in_group(part).then_some(literal));
                }
                Op::Barrier => {
                    starts.sort_unstable();
                    let ends = starts.iter().try_fold(0, |end: u64, start| {
                        (*start <= end).then(|| end.max(start.saturating_add(len.into())))
                    });
                    return ends.is_some_and(|end| end >= self.body.arrays[array].len.into());
                }
                op if accesses(op, false, &|of| of == array) => return false,
                _ => {}
            }
        }
        true
    }

    /// Writes a subgroup operation on the lanes of a warp. Groups consist of whole warps.
    pub(super) fn subgroup_op(&mut self, how: SubgroupOp, name: &str, of: Reg) {
        let (found, mut value) = (self.of(of), r(of));
        let is_copied =
            matches!(how, SubgroupOp::Shuffle { .. } | SubgroupOp::ShuffleXor(_) | SubgroupOp::Sync);
        if found == Type::Bool && !is_copied {
            value = self.not_known(&value);
        }
        // The instruction that joins lanes also orders their accesses to group memory.
        self.text.lanes_may_be_apart |= how == SubgroupOp::Sync;
        self.join_lanes();
        match how {
            SubgroupOp::Shuffle { lane } => self.shuffle(found, name, &value, "idx", &r(lane)),
            SubgroupOp::ShuffleXor(mask) => self.shuffle(found, name, &value, "bfly", &mask.to_string()),
            SubgroupOp::Sync => emit!(self.text, "mov.{} {name}, {value}", register(found)),
            SubgroupOp::Ballot => emit!(self.text, "vote.sync.ballot.b32 {name}, {value}, {ALL}"),
            SubgroupOp::Alike { bits } => self.alike(name, &value, bits),
            SubgroupOp::Any => emit!(self.text, "vote.sync.any.pred {name}, {value}, {ALL}"),
            SubgroupOp::All => emit!(self.text, "vote.sync.all.pred {name}, {value}, {ALL}"),
            SubgroupOp::Reduce(op) | SubgroupOp::Scan(op) if found == Type::Bool => {
                self.combine_bools(op, matches!(how, SubgroupOp::Scan(_)), name, &value);
            }
            SubgroupOp::Reduce(op) => self.reduce(op, found, name, &value),
            SubgroupOp::Scan(op) => self.scan(op, found, name, &value),
        }
    }

    /// Writes a synchronisation of all lanes of a warp after a branch. All lanes reach the next operation;
    /// without this instruction, the assembler adds code for lanes that arrive separately.
    fn join_lanes(&mut self) {
        if self.text.lanes_may_be_apart {
            emit!(self.text, "bar.warp.sync {ALL}");
            self.text.lanes_may_be_apart = false;
        }
    }

    /// Writes code that finds the lanes with the same lowest bits, by one vote for each bit.
    fn alike(&mut self, name: &str, value: &str, bits: u8) {
        let [own, lanes] = ["b32"; 2].map(|kind| self.text.temporary(kind));
        let is_set = self.text.temporary("pred");
        emit!(self.text, "add.u32 {own}, {value}, zero");
        emit!(self.text, "mov.u32 {name}, {ALL}");
        for bit in 0..bits {
            emit!(self.text, "and.b32 {lanes}, {own}, {}", 1_u32 << bit);
            emit!(self.text, "setp.ne.u32 {is_set}, {lanes}, 0");
            emit!(self.text, "vote.sync.ballot.b32 {lanes}, {is_set}, {ALL}");
            emit!(self.text, "@!{is_set} not.b32 {lanes}, {lanes}");
            emit!(self.text, "and.b32 {name}, {name}, {lanes}");
        }
    }

    /// Copies a bool in a way that hides its value from the assembler.
    ///
    /// The assemblers of CUDA 13.0 to 13.5 for GPUs from 9.0 on let lanes vote for the opposite of a
    /// condition that they have inferred to be true. They cannot infer the number of blocks along the second
    /// axis, which is always one.
    fn not_known(&mut self, value: &str) -> String {
        let [word, one] = ["b32"; 2].map(|kind| self.text.temporary(kind));
        let predicate = self.text.temporary("pred");
        self.text.cast(Type::Bool, Type::U32, &word, value);
        emit!(self.text, "mov.u32 {one}, %nctaid.y");
        emit!(self.text, "setp.eq.u32 {predicate}, {word}, {one}");
        predicate
    }

    /// Writes a read of another lane's value, or of the own one if no such lane exists.
    fn shuffle(&mut self, of: Type, name: &str, value: &str, mode: &str, lane: &str) {
        // `last` is the lane at which the shuffle ends: the first lane if it shuffles up, else the last lane.
        let last = if mode == "up" { 0 } else { 31 };
        if of == Type::Bool {
            let [own, other] = ["b32"; 2].map(|kind| self.text.temporary(kind));
            self.text.cast(of, Type::U32, &own, value);
            emit!(self.text, "shfl.sync.{mode}.b32 {other}, {own}, {lane}, {last}, {ALL}");
            emit!(self.text, "setp.ne.u32 {name}, {other}, 0");
        } else if is_wide(of) {
            let [low, high] = ["b32"; 2].map(|kind| self.text.temporary(kind));
            emit!(self.text, "mov.b64 {{{low}, {high}}}, {value}");
            for half in [&low, &high] {
                emit!(self.text, "shfl.sync.{mode}.b32 {half}, {half}, {lane}, {last}, {ALL}");
            }
            emit!(self.text, "mov.b64 {name}, {{{low}, {high}}}");
        } else {
            emit!(self.text, "shfl.sync.{mode}.b32 {name}, {value}, {lane}, {last}, {ALL}");
        }
    }

    /// Writes `And`, `Or` or `Xor` of the bools of all lanes, or of the own lane and all lower lanes.
    fn combine_bools(&mut self, op: Binary, is_scan: bool, name: &str, value: &str) {
        let [bits, wanted] = ["b32"; 2].map(|kind| self.text.temporary(kind));
        emit!(self.text, "vote.sync.ballot.b32 {bits}, {value}, {ALL}");
        if is_scan {
            emit!(self.text, "mov.u32 {wanted}, %lanemask_le");
        } else {
            emit!(self.text, "mov.u32 {wanted}, {ALL}");
        }
        emit!(self.text, "and.b32 {bits}, {bits}, {wanted}");
        match op {
            Binary::And | Binary::Min => emit!(self.text, "setp.eq.u32 {name}, {bits}, {wanted}"),
            Binary::Or | Binary::Max => emit!(self.text, "setp.ne.u32 {name}, {bits}, 0"),
            _ => {
                emit!(self.text, "popc.b32 {bits}, {bits}");
                emit!(self.text, "and.b32 {bits}, {bits}, 1");
                emit!(self.text, "setp.ne.u32 {name}, {bits}, 0");
            }
        }
    }

    fn reduce(&mut self, op: Binary, of: Type, name: &str, value: &str) {
        if self.capability >= (8, 0) && of.is_integer() && !is_wide(of) {
            let (op, s) = match op {
                Binary::Add => ("add", suffix(of)),
                Binary::Min => ("min", suffix(of)),
                Binary::Max => ("max", suffix(of)),
                Binary::And => ("and", "b32"),
                Binary::Or => ("or", "b32"),
                _ => ("xor", "b32"),
            };
            emit!(self.text, "redux.sync.{op}.{s} {name}, {value}, {ALL}");
            self.text.narrow(of, name);
            return;
        }
        let kind = register(of);
        let mut own = value.to_owned();
        for apart in [16, 8, 4, 2, 1] {
            let [other, both] = [kind; 2].map(|kind| self.text.temporary(kind));
            self.shuffle(of, &other, &own, "bfly", &apart.to_string());
            if of.is_float() && matches!(op, Binary::Min | Binary::Max) {
                // For zeroes and NaNs the result depends on the order of the operands, so order them by lane.
                let (lane, is_low) = (self.text.temporary("b32"), self.text.temporary("pred"));
                let [low, high] = [kind; 2].map(|kind| self.text.temporary(kind));
                emit!(self.text, "and.b32 {lane}, thread, {apart}");
                emit!(self.text, "setp.eq.u32 {is_low}, {lane}, 0");
                self.text.select(of, &low, [&is_low, &own, &other]);
                self.text.select(of, &high, [&is_low, &other, &own]);
                self.text.binary(op, of, &both, &low, &high);
            } else {
                self.text.binary(op, of, &both, &own, &other);
            }
            own = both;
        }
        emit!(self.text, "mov.{kind} {name}, {own}");
    }

    fn scan(&mut self, op: Binary, of: Type, name: &str, value: &str) {
        let kind = register(of);
        let lane = self.text.temporary("b32");
        emit!(self.text, "and.b32 {lane}, thread, 31");
        let mut own = value.to_owned();
        for apart in [1, 2, 4, 8, 16] {
            let [below, both, next] = [kind; 3].map(|kind| self.text.temporary(kind));
            let is_there = self.text.temporary("pred");
            self.shuffle(of, &below, &own, "up", &apart.to_string());
            emit!(self.text, "setp.ge.u32 {is_there}, {lane}, {apart}");
            self.text.binary(op, of, &both, &below, &own);
            self.text.select(of, &next, [&is_there, &both, &own]);
            own = next;
        }
        emit!(self.text, "mov.{kind} {name}, {own}");
    }

    /// Writes an atomic change of a memory location. Returns its old value in a register if one is named.
    pub(super) fn atomic(
        &mut self,
        site: u32,
        name: Option<&str>,
        (op, scope): (Rmw, Scope),
        place: Place,
        value: Reg,
    ) {
        let of = self.of(value);
        let (space, address, inside) = match place {
            Place::View { view, at, offset } => {
                let element = self.element(usize::from(view), at);
                let (address, from, _) = self.address(usize::from(view), &element, offset);
                ("global", format!("{address}+{from}"), element.inside)
            }
            Place::Array { array, at } => {
                let (address, inside) = self.element_of_array(usize::from(array), at);
                ("shared", address, inside)
            }
        };
        // GPUs before compute capability 6.0 have no `.sys` and `.cta` scope.
        let scope = if scope == Scope::System && self.capability >= (6, 0) { ".sys" } else { "" };
        let old = name.map_or_else(|| self.text.temporary(register(of)), str::to_owned);
        if name.is_some() && inside.is_some() {
            self.text.literal(of, &old, 0);
        }
        let value = r(value);
        let plain = memory_suffix(of);
        // Use the unsigned type for operations with the same result for signed and unsigned numbers.
        let (unsigned, bits) = (plain.replace('s', "u"), if is_wide(of) { "b64" } else { "b32" });
        let (step, kind, operands) = match op {
            Rmw::Acquire | Rmw::Release => {
                self.ordered(op, bits, (space, &address), [&old, &value], inside.as_deref());
                ("", "", String::new())
            }
            Rmw::Add if of.is_float() => {
                self.add_float(
                    site,
                    of,
                    &format!("{space}{scope}"),
                    [&old, &address, &value],
                    inside.as_deref(),
                );
                ("", "", String::new())
            }
            Rmw::Add => ("add", unsigned.as_str(), value),
            Rmw::Min => ("min", plain, value),
            Rmw::Max => ("max", plain, value),
            Rmw::And => ("and", bits, value),
            Rmw::Or => ("or", bits, value),
            Rmw::Xor => ("xor", bits, value),
            // Without a result, an exchange is a store.
            Rmw::Exchange if name.is_none() && self.capability >= (7, 0) => {
                let (guard, scope) = (Self::guard(&inside), if space == "shared" { "cta" } else { "gpu" });
                emit!(self.text, "{guard}st.relaxed.{scope}.{space}.{bits} [{address}], {value}");
                ("", "", String::new())
            }
            Rmw::Exchange => ("exch", bits, value),
            Rmw::CompareExchange { expected } => ("cas", bits, format!("{}, {value}", r(expected))),
        };
        if !step.is_empty() {
            let guard = Self::guard(&inside);
            emit!(self.text, "{guard}atom.{space}{scope}.{step}.{kind} {old}, [{address}], {operands}");
        }
        if let Some(inside) = inside {
            self.check(site, &inside, &r(place.at()));
        }
    }

    /// Writes an acquire or release of a value. GPUs before 7.0 have fences only.
    fn ordered(
        &mut self,
        op: Rmw,
        bits: &str,
        (space, address): (&str, &str),
        [old, value]: [&str; 2],
        inside: Option<&str>,
    ) {
        let guard = inside.map_or_else(String::new, |inside| format!("@{inside} "));
        let (scope, fence) = if space == "shared" { ("cta", "membar.cta") } else { ("gpu", "membar.gl") };
        let has_order = self.capability >= (7, 0);
        match (op, has_order) {
            (Rmw::Acquire, true) => {
                emit!(self.text, "{guard}ld.acquire.{scope}.{space}.{bits} {old}, [{address}]");
            }
            (Rmw::Acquire, false) => {
                emit!(self.text, "{guard}ld.volatile.{space}.{bits} {old}, [{address}]");
                emit!(self.text, "{fence}");
            }
            (_, true) => emit!(self.text, "{guard}st.release.{scope}.{space}.{bits} [{address}], {value}"),
            (_, false) => {
                emit!(self.text, "{fence}");
                emit!(self.text, "{guard}st.volatile.{space}.{bits} [{address}], {value}");
            }
        }
    }

    /// Writes an atomic addition to a float: by one instruction if it is correct, else by compare-and-swap.
    ///
    /// Atomic additions of `f32` in global memory treat subnormal numbers as zeroes. That makes no difference
    /// if the operand is at least 2^-101. A subnormal number is then less than half of its last place, and
    /// the difference of two such numbers is zero or at least 2^-125.
    fn add_float(
        &mut self,
        site: u32,
        of: Type,
        space: &str,
        [old, address, value]: [&str; 3],
        inside: Option<&str>,
    ) {
        let (s, bits) = (suffix(of), if is_wide(of) { "b64" } else { "b32" });
        if let Some(inside) = inside {
            emit!(self.text, "@!{inside} bra added_{site}");
        }
        let is_exact =
            (of == Type::F32 && space == "shared") || (of == Type::F64 && self.capability >= (6, 0));
        if is_exact || of == Type::F32 {
            if !is_exact {
                let (size, is_small) = (self.text.temporary("f32"), self.text.temporary("pred"));
                emit!(self.text, "abs.f32 {size}, {value}");
                emit!(self.text, "setp.lt.f32 {is_small}, {size}, 0f0D000000");
                emit!(self.text, "@{is_small} bra small_{site}");
            }
            emit!(self.text, "atom.{space}.add.{s} {old}, [{address}], {value}");
            emit!(self.text, "bra added_{site}");
        }
        if !is_exact {
            self.text.label(&format!("small_{site}"));
            let [seen, before, changed] = [bits; 3].map(|kind| self.text.temporary(kind));
            let (sum, differs) = (self.text.temporary(s), self.text.temporary("pred"));
            let (plain, _) = space.split_once('.').unwrap_or((space, ""));
            emit!(self.text, "ld.volatile.{plain}.{bits} {seen}, [{address}]");
            self.text.label(&format!("exchange_{site}"));
            emit!(self.text, "mov.{bits} {before}, {seen}");
            emit!(self.text, "mov.{bits} {old}, {seen}");
            emit!(self.text, "add.rn.{s} {sum}, {old}, {value}");
            emit!(self.text, "mov.{bits} {changed}, {sum}");
            emit!(self.text, "atom.{space}.cas.{bits} {seen}, [{address}], {before}, {changed}");
            emit!(self.text, "setp.ne.{} {differs}, {seen}, {before}", bits.replace('b', "u"));
            emit!(self.text, "@{differs} bra exchange_{site}");
        }
        self.text.label(&format!("added_{site}"));
    }
}

/// Returns true if an operation, or one inside of it, accesses an array for which `is` returns true. Stores
/// count only with `are_stores_counted`.
fn accesses(op: &Op, are_stores_counted: bool, is: &impl Fn(usize) -> bool) -> bool {
    match op {
        Op::Put { array, .. } => are_stores_counted && is(usize::from(*array)),
        Op::Get { array, .. } | Op::Atomic { place: Place::Array { array, .. }, .. } => {
            is(usize::from(*array))
        }
        _ => op.within().into_iter().flatten().any(|op| accesses(op, are_stores_counted, is)),
    }
}
