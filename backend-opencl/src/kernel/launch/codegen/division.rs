//! Analysis for kernels whose groups are each run by one OpenCL work-item: divides the code into regions
//! (parts between barriers).

use std::collections::BTreeSet;

use backend_api::kernel::{Body, Op, Place, Reg, Space};

use crate::kernel::text::name;

/// Division of a kernel's code into regions, and the values that are saved between them.
pub(super) struct Split {
    pub len: u32,
    /// For each statement of the kernel (by its number): true if it runs once for the whole group.
    pub of_group: Vec<bool>,
    pub registers: Vec<RegisterHome>,
    /// For each array of the kernel: true if each work-item has one, which is saved between regions (parts of
    /// the code between barriers).
    pub arrays: Vec<bool>,
    /// Blocks and loops that some work-items leave or continue early. These work-items then skip whole
    /// regions (parts of the code between barriers).
    pub skipped: BTreeSet<u32>,
    pub rows: Vec<SavedRow>,
    pub bytes: u64,
}

/// Storage of a register's value between regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisterHome {
    /// The register is used within one region, so it is a variable of that region's loop.
    Run,
    /// The register is uniform: a variable of the group.
    Group,
    /// The register has a row in device memory, with an entry for each item.
    Row,
}

/// A saved value: its row has a number of entries for each item.
pub(super) struct SavedRow {
    pub of: &'static str,
    pub name: String,
    pub count: u32,
    pub offset: u64,
    pub is_cleared: bool,
}

/// The loop over the items of a group that the generator is writing.
pub(super) struct Region {
    /// Number of the first operation in the region (code between barriers).
    pub first: u32,
    /// Number of blocks and loops that enclose the region (code between barriers).
    pub labels: usize,
    /// True if a jump leads to the end of the region (code between barriers).
    pub is_left: bool,
}

impl Split {
    pub fn new(body: &Body, has_budget: bool) -> Self {
        let operations = body.code.iter().map(Op::count).sum();
        let common = body.common();
        let mut cuts = Cuts { of_group: vec![false; operations], ..Cuts::default() };
        if let Some(common) = &common {
            cuts.common = &common.operations;
            while cuts.mark_all(&body.code) {}
        }
        let mut keeper = Keeper {
            of_group: &cuts.of_group,
            has_budget,
            site: 0,
            run: 0,
            loops: 0,
            labels: Vec::new(),
            registers: vec![Touched::default(); body.registers.len()],
            arrays: vec![Touched::default(); body.arrays.len()],
            skipped: BTreeSet::new(),
        };
        keeper.list(&body.code, 0);
        let Keeper { registers, arrays, skipped, .. } = keeper;
        let same = |register: usize| common.as_ref().is_some_and(|common| common.registers[register]);
        let home = |(number, touched): (usize, &Touched)| match touched.often {
            false => RegisterHome::Run,
            true if same(number) => RegisterHome::Group,
            true => RegisterHome::Row,
        };
        let mut split = Self {
            len: body.group_len.unwrap_or(1),
            of_group: cuts.of_group,
            registers: registers.iter().enumerate().map(home).collect(),
            arrays: arrays
                .iter()
                .zip(&body.arrays)
                .map(|(touched, array)| touched.often && array.space == Space::Item)
                .collect(),
            skipped,
            rows: Vec::new(),
            bytes: 0,
        };
        split.lay_out(body, has_budget);
        split
    }

    /// Assigns a row of device memory to each saved value of items.
    fn lay_out(&mut self, body: &Body, has_budget: bool) {
        let mut private_heap = false;
        body.operations(|_, op| private_heap |= uses_private_heap(op));
        self.row("uint", "failed".into(), 1, true);
        self.row("uint", "site".into(), 1, false);
        self.row("ulong", "detail".into(), 1, false);
        for (is_there, of, called) in [
            (has_budget, "ulong", "turns"),
            (private_heap, "ulong", "top"),
            (!self.skipped.is_empty(), "uint", "gone"),
        ] {
            if is_there {
                self.row(of, called.into(), 1, true);
            }
        }
        for (number, of) in body.registers.iter().enumerate() {
            if self.registers[number] == RegisterHome::Row {
                // If a budget (maximum number of iterations) can end loops early, initialise the register:
                // code may read it before any write.
                self.row(name(*of), format!("r{number}"), 1, has_budget);
            }
        }
        for (number, array) in body.arrays.iter().enumerate() {
            if self.arrays[number] {
                self.row(name(array.of), format!("a{number}"), array.len, true);
            }
        }
    }

    fn row(&mut self, of: &'static str, called: String, count: u32, is_cleared: bool) {
        let width = match of {
            "uchar" | "char" => 1,
            "ushort" | "short" => 2,
            "uint" | "int" | "float" => 4,
            _ => 8,
        };
        self.rows.push(SavedRow { of, name: called, count, offset: self.bytes, is_cleared });
        self.bytes += (u64::from(self.len) * u64::from(count) * width).next_multiple_of(64);
    }

    /// Length in bytes of the device memory that saves the values of a group.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

pub(super) fn uses_private_heap(op: &Op) -> bool {
    matches!(op, Op::PrivateAlloc { .. } | Op::PrivateLoad { .. } | Op::PrivateStore { .. })
}

/// Returns the array that an operation accesses, if any.
pub(super) fn array_of(op: &Op) -> Option<usize> {
    match *op {
        Op::Get { array, .. } | Op::Put { array, .. } => Some(usize::from(array)),
        Op::Atomic { place: Place::Array { array, .. }, .. } => Some(usize::from(array)),
        _ => None,
    }
}

/// Finds the statements that are written once for the group: barriers, enclosing statements, and jumps of all
/// items out of these.
#[derive(Default)]
struct Cuts<'a> {
    common: &'a [bool],
    of_group: Vec<bool>,
    site: usize,
    labels: Vec<usize>,
    has_changed: bool,
}

impl Cuts<'_> {
    /// Marks statements in a list of code. Returns true if it marked more than before.
    fn mark_all(&mut self, code: &[Op]) -> bool {
        (self.site, self.has_changed) = (0, false);
        self.mark(code);
        self.has_changed
    }

    /// Returns true if the code contains a statement that is written once.
    fn mark(&mut self, code: &[Op]) -> bool {
        let mut any = false;
        for op in code {
            let site = self.site;
            self.site += 1;
            let mut once = match *op {
                Op::Barrier | Op::Subgroup { .. } => true,
                Op::Break { out } | Op::Continue { out } => {
                    self.common[site] && self.of_group[self.labels[self.labels.len() - 1 - usize::from(out)]]
                }
                _ => false,
            };
            let is_label = matches!(op, Op::Block { .. } | Op::Loop { .. });
            if is_label {
                self.labels.push(site);
            }
            for within in op.within() {
                once |= self.mark(within);
            }
            if is_label {
                self.labels.pop();
            }
            self.has_changed |= once && !self.of_group[site];
            self.of_group[site] |= once;
            any |= once;
        }
        any
    }
}

/// Uses of a register or array: by one region or several.
#[derive(Clone, Copy, Default)]
struct Touched {
    by: Option<u32>,
    often: bool,
}

impl Touched {
    fn touch(&mut self, run: u32) {
        self.often |= self.by.is_some_and(|by| by != run);
        self.by = Some(run);
    }
}

/// Finds the values that must be saved between regions.
struct Keeper<'a> {
    of_group: &'a [bool],
    has_budget: bool,
    site: usize,
    run: u32,
    /// Number of enclosing loops that the group runs together.
    loops: u32,
    /// Enclosing blocks and loops: their numbers, and the depth of their code if it is written once.
    labels: Vec<(u32, Option<u32>)>,
    registers: Vec<Touched>,
    arrays: Vec<Touched>,
    skipped: BTreeSet<u32>,
}

impl Keeper<'_> {
    /// Processes code that is written once for the group, except its regions.
    fn list(&mut self, code: &[Op], depth: u32) {
        self.run += 1;
        for op in code {
            if !self.of_group[self.site] {
                self.items(op, depth);
                continue;
            }
            let site = self.site as u32;
            self.site += 1;
            op.each_read(|register| self.registers[register.at()].often = true);
            if let Some(to) = op.written() {
                self.registers[to.at()].often = true;
            }
            let is_loop = u32::from(matches!(op, Op::Loop { .. }));
            let is_label = matches!(op, Op::Block { .. } | Op::Loop { .. });
            self.loops += is_loop;
            if is_label {
                self.labels.push((site, Some(depth + 1)));
            }
            op.within().into_iter().for_each(|within| self.list(within, depth + 1));
            if is_label {
                self.labels.pop();
            }
            self.loops -= is_loop;
            self.run += 1;
        }
    }

    /// Processes an operation of a region.
    fn items(&mut self, op: &Op, depth: u32) {
        let (site, run) = (self.site as u32, self.run);
        self.site += 1;
        // If a budget (maximum number of iterations) can end loops early, later code may read values of an
        // earlier iteration. So save the registers of loops at each barrier.
        let often = self.has_budget && self.loops > 0;
        let mut touch = |register: Reg| {
            self.registers[register.at()].touch(run);
            self.registers[register.at()].often |= often;
        };
        op.each_read(&mut touch);
        op.written().into_iter().for_each(touch);
        if let Some(array) = array_of(op) {
            self.arrays[array].touch(run);
            self.arrays[array].often |= self.loops > 0;
        }
        if let Op::Break { out } | Op::Continue { out } = *op {
            let (label, code_depth) = self.labels[self.labels.len() - 1 - usize::from(out)];
            // A jump to the end of the code list that contains the jump skips no operation.
            if code_depth.is_some_and(|code_depth| code_depth != depth) {
                self.skipped.insert(label);
            }
        }
        let is_label = matches!(op, Op::Block { .. } | Op::Loop { .. });
        if is_label {
            self.labels.push((site, None));
        }
        op.within().into_iter().flatten().for_each(|op| self.items(op, depth));
        if is_label {
            self.labels.pop();
        }
    }
}
