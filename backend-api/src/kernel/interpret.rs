//! The interpreter of kernels on the host. Tests compare the results of all backends with its results.

mod group_ops;
mod interpreter;
mod state;
mod views;

pub use interpreter::Interpreter;
pub use views::{Slices, Views};
pub(super) use views::{from_bits, to_bits};

use std::ops::Range;

use super::{Reg, Report};
use crate::Result;
use state::{FlatBody, ItemState, LaunchState};

impl Interpreter<'_> {
    /// Runs all items (threads) of the launch one after the other; if the kernel has groups, group by group.
    ///
    /// # Errors
    /// An error of `views`. Some items may have run before the error.
    ///
    /// # Panics
    /// If the launch has fewer parameters, table bytes or views than the kernel.
    pub fn run(&self, views: &mut impl Views) -> Result<Report> {
        self.run_part(0..self.parts(), views)
    }

    /// Runs a range of the launch's [parts](Self::parts) (groups, or single threads) one after the other.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// The panics of [`run`](Self::run).
    pub fn run_part(&self, parts: Range<u64>, views: &mut impl Views) -> Result<Report> {
        let mut all = Report::default();
        self.each_report(parts, views, |report| all = all.and(report))?;
        Ok(all)
    }

    /// Prepares a body without views and groups for many calls. Calls `run` with a function that executes the
    /// body once for given parameters. This function returns the final value of a register, or the report of
    /// a call that the time limit has ended.
    pub(super) fn calls<R>(
        &self,
        result: Reg,
        run: impl FnOnce(&mut dyn FnMut(&[u64]) -> Result<u64, Report>) -> R,
    ) -> R {
        let body = self.kernel.body();
        let flat = FlatBody::new(body);
        let mut items = [ItemState::new(body)];
        run(&mut |params| {
            let launch = Interpreter { params, ..*self };
            let mut views = Slices::new(Vec::new());
            let mut state = LaunchState::new(&launch, &flat, &mut views);
            state.group(0, &mut items).expect("a kernel without views accesses no memory");
            state.over.map_or_else(|| Ok(items[0].get(result)), Err)
        })
    }

    /// Runs all items of a kernel without groups, one after the other. Calls `visit` after each item, with
    /// its number, the final values of its registers, and the views.
    pub(crate) fn each_item<V: Views>(
        &self,
        views: &mut V,
        mut visit: impl FnMut(u64, &[u64], &mut V) -> Result<()>,
    ) -> Result<()> {
        let flat = FlatBody::new(self.kernel.body());
        let mut items = [ItemState::new(self.kernel.body())];
        let mut state = LaunchState::new(self, &flat, views);
        (0..self.items).try_for_each(|number| {
            state.group(number, &mut items)?;
            visit(number, &items[0].registers, state.views)
        })
    }

    /// Gives the results of [`run_part`](Self::run_part), but faster for groups: it decodes each operation
    /// once for all items (threads) of a group that reach the operation together. If items may wait for one
    /// another's atomic changes, it runs one item after the other instead.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// The panics of [`run`](Self::run).
    pub fn run_together(&self, parts: Range<u64>, views: &mut impl Views) -> Result<Report> {
        if !self.runs_together() {
            return self.run_part(parts, views);
        }
        let mut all = Report::default();
        let flat = FlatBody::new(self.kernel.body());
        let state = LaunchState::new(self, &flat, views);
        group_ops::run(state, parts, |report| all = all.and(report))?;
        Ok(all)
    }

    /// Returns true if [`run_together`](Self::run_together) runs the items (threads) of a group together.
    #[doc(hidden)]
    #[must_use]
    pub fn runs_together(&self) -> bool {
        group_ops::can(self.kernel.body())
    }

    /// Runs a range of the launch's [parts](Self::parts), and returns a report for each failed item (thread),
    /// in order.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// The panics of [`run`](Self::run).
    pub fn reports(&self, parts: Range<u64>, views: &mut impl Views) -> Result<Vec<Report>> {
        let mut all = Vec::new();
        self.each_report(parts, views, |report| all.extend((report.failures > 0).then_some(report)))?;
        Ok(all)
    }

    fn each_report(
        &self,
        parts: Range<u64>,
        views: &mut impl Views,
        mut failed: impl FnMut(Report),
    ) -> Result<()> {
        let flat = FlatBody::new(self.kernel.body());
        let mut state = LaunchState::new(self, &flat, views);
        let mut items: Vec<ItemState> = (0..self.group_len()).map(|_| ItemState::new(state.body)).collect();
        for part in parts {
            state.group(part, &mut items)?;
            items.iter().filter_map(ItemState::report).for_each(&mut failed);
            if let Some(over) = state.over {
                failed(over);
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Geometry;
    use crate::kernel::{
        Access, ArrayDecl, Binary, Body, Builtin, Memory, Op, Place, Rmw, Scope, Space, SubgroupOp,
        TimeLimit, Type, VerifiedKernel, ViewDecl,
    };

    const OF: Memory = Memory::Value(Type::U64);

    /// A body with `numbers` registers of 64 bits, `bools` bools after them, and one view that items write
    /// to.
    fn body(numbers: usize, bools: usize, code: Vec<Op>) -> Body {
        let registers = [vec![Type::U64; numbers], vec![Type::Bool; bools]].concat();
        let views = vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, OF)] }];
        Body { registers, views, code, ..Body::default() }
    }

    fn literal(to: u32, bits: u64) -> Op {
        Op::Literal { to: Reg(to), bits }
    }

    fn binary_op(op: Binary, to: u32, left: u32, right: u32) -> Op {
        Op::Binary { op, to: Reg(to), left: Reg(left), right: Reg(right) }
    }

    fn place(to: u32, what: Builtin) -> Op {
        Op::Builtin { to: Reg(to), what }
    }

    /// Stores a register, with a 0 in another register.
    fn store(value: u32, zero: u32) -> Vec<Op> {
        vec![literal(zero, 0), Op::Store { view: 0, at: Reg(zero), offset: 0, of: OF, value: Reg(value) }]
    }

    fn run(body: Body, items: u64) -> (Vec<u64>, Report) {
        let kernel = VerifiedKernel::new(body).unwrap();
        let interpreter = Interpreter {
            budget: Some(100),
            private_heap_bytes: 24,
            ..Interpreter::new(&kernel, items, Geometry::plain(0))
        };
        let mut bytes = vec![0; items as usize * 8];
        let report = interpreter.run(&mut Slices::new(vec![(&mut bytes, 8)])).unwrap();
        (bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect(), report)
    }

    #[test]
    fn jumps_lead_where_they_should() {
        // Counts the pairs a, b below 5 with a < b, except for a = 2.
        let leave_if = |when: u32, jump: Op| Op::If { when: Reg(when), then: vec![jump], otherwise: vec![] };
        let [a, b, five, one, sum, two, when] = [0, 1, 2, 3, 4, 5, 6];
        let inner = vec![
            binary_op(Binary::Le, when, five, b),
            leave_if(when, Op::Break { out: 0 }),
            binary_op(Binary::Eq, when, a, two),
            leave_if(when, Op::Continue { out: 1 }),
            binary_op(Binary::Add, b, b, one),
            binary_op(Binary::Le, when, b, a),
            leave_if(when, Op::Continue { out: 0 }),
            binary_op(Binary::Add, sum, sum, one),
        ];
        let outer = vec![
            Op::Block {
                body: vec![
                    binary_op(Binary::Lt, when, a, five),
                    leave_if(when, Op::Break { out: 0 }),
                    Op::Break { out: 1 },
                ],
            },
            binary_op(Binary::Add, a, a, one),
            literal(b, 0),
            Op::Loop { body: inner },
        ];
        let mut code =
            vec![literal(a, 0), literal(five, 5), literal(one, 1), literal(two, 2), literal(sum, 0)];
        code.extend([Op::Loop { body: outer }, Op::If { when: Reg(when), then: vec![], otherwise: vec![] }]);
        code.extend(store(sum, b));
        // The pairs of a and b from 1 to 5 with b > a and a other than 2.
        let truth = (1..=5).flat_map(|a| (1..=5).map(move |b| (a, b))).filter(|(a, b)| b > a && *a != 2);
        assert_eq!(run(body(6, 1, code), 1), (vec![truth.count() as u64], Report::default()));
    }

    #[test]
    fn a_budget_ends_an_item_and_no_other() {
        let forever = Op::Loop { body: vec![] };
        let code = [
            vec![place(0, Builtin::Item), literal(1, 3), binary_op(Binary::Eq, 3, 0, 1)],
            vec![Op::If { when: Reg(3), then: vec![forever], otherwise: vec![] }],
            store(1, 2),
        ];
        let (values, report) = run(body(3, 1, code.concat()), 5);
        assert_eq!(values, [3, 3, 3, 0, 3]);
        assert_eq!(report, Report { failures: 1, site: 4, detail: 100, item: 3 });
    }

    #[test]
    fn items_of_a_group_meet_at_barriers() {
        // Each item passes its number to its mirror image in its group of four.
        let [number, own, other, three] = [0, 1, 2, 3];
        let code = [
            vec![
                place(number, Builtin::Item),
                place(own, Builtin::InGroup),
                Op::Put { array: 0, at: Reg(own), value: Reg(number) },
                Op::Barrier,
                literal(three, 3),
                binary_op(Binary::Sub, other, three, own),
                Op::Get { to: Reg(other), array: 0, at: Reg(other) },
            ],
            store(other, three),
        ];
        let arrays = vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 4 }];
        let body = Body { arrays, group_len: Some(4), ..body(4, 0, code.concat()) };
        // In the last group, two of the four items only fill up the group: their numbers are visible, but
        // they store nothing.
        assert_eq!(run(body, 6), (vec![3, 2, 1, 0, 7, 6], Report::default()));
    }

    #[test]
    fn items_that_meet_leave_loops_when_their_budget_is_used_up() {
        // Odd items do not leave the first loop, and no item leaves the second loop.
        let [number, one, odd, sum] = [0, 1, 2, 3];
        let odd_loop = Op::Loop { body: vec![binary_op(Binary::Add, sum, sum, one)] };
        let code = [
            vec![place(number, Builtin::Item), literal(one, 1), literal(sum, 0)],
            vec![binary_op(Binary::And, odd, number, one), binary_op(Binary::Eq, 4, odd, one)],
            vec![Op::If { when: Reg(4), then: vec![odd_loop], otherwise: vec![] }, Op::Barrier],
            vec![Op::Loop { body: vec![Op::Barrier, binary_op(Binary::Add, sum, sum, one)] }],
            store(sum, odd),
        ];
        let body = Body { group_len: Some(4), ..body(4, 1, code.concat()) };
        assert_eq!(body.common_loops(), [9]);
        // The budget of 100 allows 101 iterations of each loop, counted separately.
        let (values, report) = run(body, 6);
        assert_eq!(values, [101, 202, 101, 202, 101, 202]);
        assert_eq!(report, Report { failures: 6, site: 9, detail: 100, item: 0 });
    }

    #[test]
    fn a_time_limit_ends_all_items_and_names_one() {
        let code = [
            vec![place(0, Builtin::Item), literal(1, 3), binary_op(Binary::Eq, 3, 0, 1)],
            vec![Op::If { when: Reg(3), then: vec![Op::Loop { body: vec![] }], otherwise: vec![] }],
            store(1, 2),
        ];
        let body = body(3, 1, code.concat());
        for group_len in [None, Some(2), Some(8)] {
            let kernel = VerifiedKernel::new(Body { group_len, ..body.clone() }).unwrap();
            let mut out = [0_u8; 6 * 8];
            let limit = TimeLimit::new(std::time::Duration::from_millis(1));
            let interpreter =
                Interpreter { limit: Some(&limit), ..Interpreter::new(&kernel, 6, Geometry::plain(0)) };
            let mut views = Slices::new(vec![(&mut out[..], 8)]);
            let reports = interpreter.reports(0..interpreter.parts(), &mut views).unwrap();
            assert_eq!(reports, [Report::time_over(4, 3)], "{group_len:?}");
            // Items that begin after the time limit end at once, and are not reported separately.
            let part = 3 / u64::from(group_len.unwrap_or(1));
            assert_eq!(interpreter.run_together(part..part + 1, &mut views).unwrap(), Report::default());
            // The items of one group begin together, so either all of them have the old value, or none.
            let is_old = out[40..] == [0; 8] || group_len == Some(8);
            assert!(limit.is_exceeded() && is_old, "item 5 has run: {group_len:?}");
            let again = TimeLimit::new(std::time::Duration::from_millis(1));
            let interpreter = Interpreter { limit: Some(&again), ..interpreter };
            let mut views = Slices::new(vec![(&mut out[..], 8)]);
            let report = interpreter.run_together(0..interpreter.parts(), &mut views).unwrap();
            assert_eq!(report, Report::time_over(4, 3), "{group_len:?}");
        }
    }

    #[test]
    fn operations_go_across_lanes() {
        let result = |how: SubgroupOp, gives: Type| {
            let registers = vec![Type::U64, Type::U64, Type::U64, Type::Bool, gives, Type::U32, Type::U32];
            let of = match how {
                SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All => Reg(3),
                SubgroupOp::Alike { .. } => Reg(6),
                _ => Reg(0),
            };
            let code = [
                vec![
                    place(0, Builtin::Item),
                    literal(1, 3),
                    literal(5, 7),
                    binary_op(Binary::Lt, 3, 0, 1),
                    Op::Cast { to: Reg(6), of: Reg(0) },
                    Op::Subgroup { how, to: Reg(4), of },
                    Op::Cast { to: Reg(2), of: Reg(4) },
                ],
                store(2, 1),
            ];
            run(Body { registers, group_len: Some(32), ..body(0, 0, code.concat()) }, 40).0
        };
        let all = |value: u64, later: u64| [vec![value; 32], vec![later; 8]].concat();
        assert_eq!(result(SubgroupOp::Ballot, Type::U32), all(7, 0));
        assert_eq!(result(SubgroupOp::Any, Type::Bool), all(1, 0));
        assert_eq!(result(SubgroupOp::All, Type::Bool), all(0, 0));
        assert_eq!(result(SubgroupOp::Reduce(Binary::Add), Type::U64), all(31 * 16, (32..64).sum()));
        assert_eq!(result(SubgroupOp::Shuffle { lane: Reg(5) }, Type::U64), all(7, 39));
        let scanned = result(SubgroupOp::Scan(Binary::Add), Type::U64);
        assert_eq!((scanned[0], scanned[5], scanned[31], scanned[33]), (0, 15, 31 * 16, 65));
        let alike = result(SubgroupOp::Alike { bits: 2 }, Type::U32);
        assert_eq!((alike[0], alike[7], alike[34]), (0x1111_1111, 0x8888_8888, 0x4444_4444));
        let changed = result(SubgroupOp::ShuffleXor(3), Type::U64);
        assert_eq!((changed[0], changed[1], changed[31], changed[32]), (3, 2, 28, 35));
    }

    #[test]
    fn atomics_and_private_heaps_keep_their_contracts() {
        // All items add their number to the first element of the group's array; the last one sees the sum.
        let [item, zero, old, sum] = [0, 1, 2, 3];
        let add = Op::Atomic {
            op: Rmw::Add,
            to: Some(Reg(old)),
            place: Place::Array { array: 0, at: Reg(zero) },
            value: Reg(item),
            scope: Scope::Group,
        };
        let code = [
            vec![place(item, Builtin::Item), literal(zero, 0), add],
            vec![Op::Barrier, Op::Get { to: Reg(sum), array: 0, at: Reg(zero) }],
            vec![binary_op(Binary::Add, sum, sum, old)],
            store(sum, zero),
        ];
        let arrays = vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 1 }];
        let grouped = Body { arrays, group_len: Some(4), ..body(4, 0, code.concat()) };
        assert_eq!(run(grouped, 4).0, [6, 6, 7, 9]);
        // Each item allocates 16 bytes twice, which exceeds its private heap.
        let [place_of, bytes, first, second, value] = [0, 1, 2, 3, 4];
        let code = [
            vec![place(place_of, Builtin::Item), literal(bytes, 9)],
            vec![Op::PrivateAlloc { to: Reg(first), bytes: Reg(bytes) }],
            vec![Op::PrivateAlloc { to: Reg(second), bytes: Reg(bytes) }],
            vec![Op::PrivateStore { at: Reg(first), value: Reg(place_of) }],
            vec![Op::PrivateStore { at: Reg(second), value: Reg(bytes) }],
            vec![Op::PrivateLoad { to: Reg(value), at: Reg(first) }],
            store(value, bytes),
        ];
        let (values, report) = run(body(5, 0, code.concat()), 3);
        assert_eq!(values, [0, 1, 2]);
        assert_eq!(report, Report { failures: 3, site: 3, detail: 9, item: 0 });
    }
}
