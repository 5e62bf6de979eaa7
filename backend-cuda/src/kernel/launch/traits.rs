//! Properties of a kernel that every launch needs (such as its memory accesses), computed once.

use backend_api::kernel::{Access, Body, Builtin, Memory, Op};

use super::codegen::affine::{self, LaneAnalysis};
use super::codegen::known::{KnownValue, known};

/// Maximum number of operations of kernels whose threads process several items. Longer kernels compute more
/// than they wait for memory.
const OPERATIONS_SIDE_BY_SIDE: usize = 96;
/// Maximum length in bytes of tables that are kernel parameters, if only constants index the tables.
const TABLE_BYTES_GIVEN: u64 = 512;

#[derive(Debug)]
pub(crate) struct LaunchTraits {
    /// True if the kernel reads the indices of its work-items.
    pub needs_index: bool,
    /// True if the launch passes the contents of the kernel's tables as parameters.
    pub gives_tables: bool,
    /// For each view, the elements that the work-items access.
    pub views: Vec<AccessedElements>,
    /// True if work-items only compute, load and store, so one thread can process several.
    pub is_plain: bool,
    /// For a stencil kernel, whose work-items also read elements next to their own: the plan by which a
    /// thread processes several work-items. `None` if the kernel permits no such plan.
    pub around: Option<LaneAnalysis>,
}

/// Elements of a view that items access, if known before the launch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessedElements {
    /// True if work-items access elements of the view at computed indices.
    pub anywhere: bool,
    /// True if a work-item accesses the view's element with the item's own index.
    pub of_item: bool,
    /// One more than the highest constant index of an access to the view; 0 without such accesses.
    pub constants: u64,
    /// The field that work-items access in their own element. `None` for no field, `Some(None)` for several.
    pub own: Option<Option<Memory>>,
}

impl AccessedElements {
    fn add(&mut self, at: Option<KnownValue>, access: Access, offset: u32, of: Memory) {
        let is_own = match (at, access) {
            (Some(KnownValue::Item), Access::Read) => {
                self.of_item = true;
                true
            }
            (Some(KnownValue::Literal(at)), Access::Read | Access::Write { .. }) => {
                self.constants = self.constants.max(at.saturating_add(1));
                access == Access::Write { tile: 1 }
            }
            _ => {
                self.anywhere = true;
                false
            }
        };
        if is_own {
            let sole = self.own.is_none_or(|known| known == Some(of)) && offset == 0;
            self.own = Some(sole.then_some(of));
        }
    }

    /// Returns true if a view of `count` elements has all elements that `items` work-items access.
    pub fn is_inside(&self, access: Access, count: u64, items: u64) -> bool {
        !self.anywhere
            && match access {
                Access::Write { tile } => {
                    let tile = u64::from(tile);
                    self.constants <= tile && items.checked_mul(tile).is_some_and(|needed| needed <= count)
                }
                _ => self.constants <= count && (!self.of_item || items <= count),
            }
    }
}

impl LaunchTraits {
    pub fn new(body: &Body) -> Self {
        let known = known(body);
        let (mut needs_index, mut constant_lookups, mut is_plain) = (false, true, true);
        let (mut views, mut operations) = (vec![AccessedElements::default(); body.views.len()], 0);
        body.operations(|_, op| {
            operations += 1;
            match *op {
                Op::Builtin { what, .. } => needs_index |= what == Builtin::Index,
                Op::Lookup { table, at, .. } => {
                    let at = known[at.at()];
                    constant_lookups &= matches!(at, Some(KnownValue::Literal(_)));
                    let len = body.tables[usize::from(table)].len.into();
                    is_plain &= matches!(at, Some(KnownValue::Literal(at)) if at < len);
                }
                Op::Load { view, at, offset, of, .. } | Op::Store { view, at, offset, of, .. } => {
                    let view = usize::from(view);
                    views[view].add(known[at.at()], body.views[view].access, offset, of);
                }
                Op::Literal { .. } | Op::Param { .. } => {}
                _ if op.is_value() => {}
                _ => is_plain = false,
            }
        });
        let own_tiles =
            body.views.iter().all(|view| matches!(view.access, Access::Read | Access::Write { tile: 1 }));
        let stands_alone = body.group_len.is_none() && body.arrays.is_empty() && own_tiles;
        let reaches = |view: &AccessedElements| !view.anywhere && view.own != Some(None);
        is_plain &= stands_alone && operations <= OPERATIONS_SIDE_BY_SIDE && views.iter().all(reaches);
        let around = if stands_alone && !is_plain { affine::lanes(body) } else { None };
        let around = around.filter(|around| {
            let is_around = |view: usize| around.runs.iter().any(|run| run.view == view);
            let reaches = |(number, view): (usize, &AccessedElements)| match view.own {
                None => is_around(number) || !view.anywhere,
                own => !view.anywhere && own != Some(None),
            };
            views.iter().enumerate().all(reaches) && views.iter().any(|view| view.own.is_some())
        });
        Self {
            needs_index,
            gives_tables: constant_lookups && body.table_bytes() <= TABLE_BYTES_GIVEN,
            views,
            is_plain,
            around,
        }
    }
}
