//! Code generator for kernels with groups on processors: one OpenCL work-item runs a whole group in loops.
//!
//! PoCL itself turns work-groups into loops over their work-items. But if branches in loops with barriers
//! differ, version 3.1 gives wrong results. So this module writes the loops itself, without barriers. It
//! divides the code at barriers and other synchronisation points. The operations between two points, a
//! *region*, become a loop over the group's work-items. The statements around regions (`If`, `Block`, `Loop`,
//! and jumps of all work-items) are written once for the group. The verifier guarantees that their conditions
//! are equal for all work-items of the group.
//!
//! A register that only one region uses is a variable of the region's loop. Other registers are saved between
//! regions: a uniform register in a variable of the group; any other in a row of device memory with an entry
//! for each item, which regions load and store.
//!
//! Some work-items may jump to the end of an enclosing block or loop while others go on. The skipped code has
//! no barrier. So these work-items, which a row marks, only skip whole regions.

use std::collections::{BTreeMap, BTreeSet};

use backend_api::kernel::{Binary, Op, Reg, Rmw, Space, SubgroupOp, Type};

use super::division::{Region, RegisterHome, SavedRow, array_of, uses_private_heap};
use super::{Writer, changed, r};
use crate::kernel::text::{binary, name};

/// Registers and arrays that a region uses.
#[derive(Default)]
struct Uses {
    /// Number of each used register, and true if the region writes it.
    registers: BTreeMap<usize, bool>,
    arrays: BTreeSet<usize>,
    private_heap: bool,
    loops: bool,
    common_loops: bool,
}

impl Writer<'_> {
    /// Returns true if the code being written is executed once for a group.
    pub(super) fn is_of_group(&self) -> bool {
        self.split.is_some() && self.region.is_none()
    }

    /// Returns the number of leading operations that form a region, which needs a loop over the items.
    pub(super) fn items_alone(&self, code: &[Op]) -> usize {
        let (Some(split), None) = (self.split, &self.region) else { return 0 };
        let mut site = self.site as usize;
        let is_of_items = |op: &&Op| {
            let of_items = !split.of_group[site];
            site += op.count();
            of_items
        };
        code.iter().take_while(is_of_items).count()
    }

    fn each(&mut self, lines: &[String]) {
        let len = self.split.map_or(1, |split| split.len);
        self.line(&format!("for (uint own = 0u; own < {len}u; own++) {{"));
        for line in lines {
            self.line(&format!("    {line}"));
        }
        self.line("}");
    }

    /// Writes the loop of a work-item over its groups.
    pub(super) fn groups_by_one(&mut self) {
        let Some(split) = self.split else { return };
        let (body, len) = (self.body, split.len);
        let arrays = self.group_arrays();
        self.line(&format!("const ulong groups = items / {len}ul + (items % {len}ul != 0ul);"));
        self.line("const ulong place = get_group_id(0);");
        self.line("for (ulong group = place; place < width && group < groups; group += width) {");
        self.indent = 2;
        self.begin_time();
        for SavedRow { of, name, offset, .. } in &split.rows {
            let row = format!("kept + place * {}ul + {offset}ul", split.bytes);
            self.line(&format!("__global {of} *const all_{name} = (__global {of} *)({row});"));
        }
        for (number, of) in body.registers.iter().enumerate() {
            if split.registers[number] == RegisterHome::Group {
                self.line(&format!("{} r{number} = 0;", name(*of)));
            }
        }
        if self.shape.has_budget {
            self.line("ulong common_turns = 0ul;");
        }
        for (number, array_len) in &arrays {
            self.line(&format!("for (uint at = 0u; at < {array_len}u; at++)"));
            self.line(&format!("    a{number}[at] = 0;"));
        }
        for SavedRow { name, count, .. } in split.rows.iter().filter(|row| row.is_cleared) {
            self.line(&format!("for (uint at = 0u; at < {}u; at++)", len * count));
            self.line(&format!("    all_{name}[at] = 0;"));
        }
        self.code(&body.code);
        self.each(&[
            format!("const ulong item = group * {len}ul + own;"),
            "if (all_failed[own] && item < items)".into(),
            "    report_failure(report, all_site[own], all_detail[own], item);".into(),
        ]);
        self.indent = 1;
        self.line("}");
    }

    fn uses(&self, run: &[Op]) -> Uses {
        fn walk(code: &[Op], common: &[u32], site: &mut u32, uses: &mut Uses) {
            for op in code {
                op.each_read(|register| {
                    uses.registers.entry(register.at()).or_default();
                });
                if let Some(to) = op.written() {
                    uses.registers.insert(to.at(), true);
                }
                uses.arrays.extend(array_of(op));
                uses.private_heap |= uses_private_heap(op);
                if matches!(op, Op::Loop { .. }) {
                    let is_common = common.contains(site);
                    uses.common_loops |= is_common;
                    uses.loops |= !is_common;
                }
                *site += 1;
                op.within().into_iter().for_each(|within| walk(within, common, site, uses));
            }
        }
        let mut uses = Uses::default();
        walk(run, &self.common, &mut { self.site }, &mut uses);
        uses
    }

    /// Writes a loop over the items of a group.
    pub(super) fn each_item(&mut self, run: &[Op]) {
        let Some(split) = self.split else { return };
        let (body, len, uses) = (self.body, split.len, self.uses(run));
        let (mut before, mut first, mut last, mut after) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The work-items of a group run one after the other. So each starts with the old value of a register
        // that the group shares, and computes the same new value, which is stored after the loop.
        let mut of_group = |of: &str, called: &str| {
            before.push(format!("const {of} old_{called} = {called};"));
            before.push(format!("{of} new_{called} = {called};"));
            first.push(format!("{of} {called} = old_{called};"));
            last.push(format!("new_{called} = {called};"));
            after.push(format!("{called} = new_{called};"));
        };
        let mut in_rows =
            vec![("uint", "failed".to_owned()), ("uint", "site".into()), ("ulong", "detail".into())];
        if self.shape.has_budget && uses.common_loops {
            of_group("ulong", "common_turns");
        }
        if self.shape.has_budget && uses.loops {
            in_rows.push(("ulong", "turns".into()));
        }
        if uses.private_heap {
            in_rows.push(("ulong", "top".into()));
        }
        let mut fetched = Vec::new();
        for (&number, &is_written) in &uses.registers {
            let (of, called) = (name(body.registers[number]), format!("r{number}"));
            match split.registers[number] {
                RegisterHome::Run => fetched.push(format!("{of} {called} = 0;")),
                RegisterHome::Group if is_written => of_group(of, &called),
                RegisterHome::Group => {}
                RegisterHome::Row if is_written => in_rows.push((of, called)),
                RegisterHome::Row => fetched.push(format!("const {of} {called} = all_{called}[own];")),
            }
        }
        first.extend(fetched);
        if uses.private_heap {
            first.push(format!("const ulong slab = place * {len}ul + own;"));
        }
        for (of, called) in in_rows {
            first.push(format!("{of} {called} = all_{called}[own];"));
            last.push(format!("all_{called}[own] = {called};"));
        }
        for number in uses.arrays {
            let array = body.arrays[number];
            let (of, count) = (name(array.of), array.len);
            match array.space {
                Space::Group => {}
                Space::Item if split.arrays[number] => {
                    first.push(format!("__global {of} *const a{number} = all_a{number} + own * {count}u;"));
                }
                Space::Item => first.push(format!("{of} a{number}[{count}] = {{0}};")),
            }
        }
        self.line("{");
        before.iter().for_each(|line| self.line(line));
        self.item_loop(run, &first, &last);
        after.iter().for_each(|line| self.line(line));
        self.line("}");
    }

    /// Writes a loop over the items of a group, with additional lines at the start and the end of its body.
    fn item_loop(&mut self, run: &[Op], first: &[String], last: &[String]) {
        let Some(split) = self.split else { return };
        let len = split.len;
        self.line(&format!("for (uint own = 0u; own < {len}u; own++) {{"));
        self.indent += 1;
        if self.labels.iter().any(|label| split.skipped.contains(&label.site)) {
            self.line("if (all_gone[own])");
            self.line("    continue;");
        }
        self.line(&format!("const ulong item = group * {len}ul + own;"));
        self.line("const uint live = item < items;");
        first.iter().for_each(|line| self.line(line));
        self.region = Some(Region { first: self.site, labels: self.labels.len(), is_left: false });
        self.code(run);
        if let Some(Region { first, is_left: true, .. }) = self.region.take() {
            self.line(&format!("next_{first}:;"));
        }
        if !self.meets && self.text.contains("goto over;") {
            // If the code has a single region (no barrier), a work-item that exceeds its budget of iterations
            // jumps to this label.
            self.line("over:;");
        }
        last.iter().for_each(|line| self.line(line));
        self.indent -= 1;
        self.line("}");
    }

    /// Writes a jump out of the loop over the items, to the end of an enclosing block or the next iteration
    /// of a loop. Returns false for jumps within the region.
    pub(super) fn leaves_region(&mut self, target: usize) -> bool {
        let (Some(split), Some(region)) = (self.split, &mut self.region) else { return false };
        if target >= region.labels {
            return false;
        }
        region.is_left = true;
        let (end, label) = (region.first, self.labels[target].site);
        if split.skipped.contains(&label) {
            self.line(&format!("all_gone[own] = {}u;", label + 1));
        }
        self.line(&format!("goto next_{end};"));
        true
    }

    /// Writes the point at which items continue that skipped regions for the end of this block or the next
    /// iteration of this loop.
    pub(super) fn arrived(&mut self, site: u32) {
        if self.is_of_group() && self.split.is_some_and(|split| split.skipped.contains(&site)) {
            let mark = site + 1;
            self.each(&[format!("if (all_gone[own] == {mark}u)"), "    all_gone[own] = 0u;".into()]);
        }
    }

    /// Writes the check of the budget in a loop that all items run together.
    pub(super) fn group_turns(&mut self, site: u32) {
        self.indent += 1;
        self.line("if (common_turns++ >= budget) {");
        self.indent += 1;
        self.each(&[
            "if (!all_failed[own]) {".into(),
            "    all_failed[own] = 1u;".into(),
            format!("    all_site[own] = {site}u;"),
            "    all_detail[own] = budget;".into(),
            "}".into(),
        ]);
        self.line("break;");
        self.indent -= 1;
        self.line("}");
        self.indent -= 1;
    }

    /// Writes an atomic on an array of the group as a plain access, because no other item runs meanwhile.
    pub(super) fn change(
        &mut self,
        site: u32,
        (op, of): (Rmw, Type),
        to: Option<Reg>,
        (array, at): (u16, &str),
        value: &str,
    ) {
        let array_len = self.body.arrays[usize::from(array)].len;
        let mut then = vec![
            format!("const {} old = a{array}[{at}];", name(of)),
            format!("a{array}[{at}] = {};", changed(op, of, value)),
        ];
        let to = to.map(r);
        then.extend(to.as_ref().map(|to| format!("{to} = old;")));
        self.checked(&format!("{at} < {array_len}ul"), &then, (site, at, to.as_deref()));
    }

    /// Name of a register of the item in a lane of `warp`.
    fn in_lane(&self, register: Reg) -> String {
        match self.split.map(|split| split.registers[register.at()]) {
            Some(RegisterHome::Row) => format!("all_r{}[warp + lane]", register.0),
            _ => r(register),
        }
    }

    /// Writes a subgroup operation as loops over the 32 items of each warp.
    pub(super) fn subgroup_op_in_items(&mut self, how: SubgroupOp, to: Reg, of: Reg) {
        let Some(split) = self.split else { return };
        let (found, value) = (self.of(of), self.in_lane(of));
        let of_type = name(found);
        let lanes = "for (uint lane = 0u; lane < 32u; lane++)";
        let mut lines =
            vec![format!("{of_type} lanes[32];"), lanes.into(), format!("    lanes[lane] = {value};")];
        // Writes a loop that combines the values of the lanes, step by step.
        let mut steps = |apart: &str, step: &str, op: Binary, when: &str, (a, b): (&str, &str)| {
            lines.extend([
                format!("for (uint apart = {apart}; apart = {step}) {{"),
                format!("    {of_type} next[32];"),
                format!("    {lanes} {{"),
                format!("        const {of_type} a = lanes[{a}], b = lanes[{b}];"),
                format!("        next[lane] = {when}({});", binary(op, found, "a", "b")),
                "    }".into(),
                format!("    {lanes}"),
                "        lanes[lane] = next[lane];".into(),
                "}".into(),
            ]);
        };
        match how {
            SubgroupOp::Reduce(op) => {
                let pair = ("lane & ~apart", "lane | apart");
                steps("16u; apart > 0u", "apart >> 1", op, "", pair);
            }
            SubgroupOp::Scan(op) => {
                // If no lane exists at this distance, the lane keeps its value.
                let pair = ("lane < apart ? lane : lane - apart", "lane");
                steps("1u; apart < 32u", "apart << 1", op, "lane < apart ? b : ", pair);
            }
            SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All => {
                lines.extend([
                    "uint bits = 0u;".into(),
                    lanes.into(),
                    "    bits |= lanes[lane] << lane;".into(),
                ]);
            }
            SubgroupOp::Alike { bits } => lines.extend(alike(bits, lanes)),
            SubgroupOp::Shuffle { .. } | SubgroupOp::ShuffleXor(_) | SubgroupOp::Sync => {}
        }
        let result = match how {
            SubgroupOp::Shuffle { lane } => format!("lanes[{} & 31u]", self.in_lane(lane)),
            SubgroupOp::ShuffleXor(mask) => format!("lanes[lane ^ {mask}u]"),
            SubgroupOp::Ballot => "bits".into(),
            SubgroupOp::Alike { .. } => "alike[lane]".into(),
            SubgroupOp::Any => "bits != 0u".into(),
            SubgroupOp::All => "bits == 0xFFFFFFFFu".into(),
            SubgroupOp::Reduce(_) | SubgroupOp::Scan(_) | SubgroupOp::Sync => "lanes[lane]".into(),
        };
        lines.extend([lanes.into(), format!("    {} = {result};", self.in_lane(to))]);
        // If the result is uniform in the group, compute it for one warp only.
        let end = if split.registers[to.at()] == RegisterHome::Group { 32 } else { split.len };
        self.line(&format!("for (uint warp = 0u; warp < {end}u; warp += 32u) {{"));
        for line in lines {
            self.line(&format!("    {line}"));
        }
        self.line("}");
    }
}

/// Returns lines that find, for each lane, the lanes with the same lowest bits.
fn alike(bits: u8, lanes: &str) -> [String; 7] {
    let mask = u32::MAX >> (32 - bits);
    [
        "uint alike[32];".into(),
        format!("{lanes} {{"),
        "    uint mask = 0u;".into(),
        "    for (uint other = 0u; other < 32u; other++)".into(),
        format!("        mask |= (uint)(((lanes[other] ^ lanes[lane]) & {mask}u) == 0u) << other;"),
        "    alike[lane] = mask;".into(),
        "}".into(),
    ]
}
