//! [`Interpreter`]: a kernel with the arguments of a launch, ready for interpretation on the host.

use crate::expr::Geometry;
use crate::kernel::{TimeLimit, VerifiedKernel};

/// An interpreter of one launch: a kernel with the launch's arguments.
///
/// ```
/// use backend_api::expr::Geometry;
/// use backend_api::kernel::{
///     Access, Binary, Body, Builtin, Interpreter, VerifiedKernel, Memory, Op, Reg, Slices, Type, ViewDecl,
/// };
/// // out[i] = in[i + 1] + 5
/// let (of, [item, one, zero, value, five]) = (Memory::Value(Type::U8), [0, 1, 2, 3, 4].map(Reg));
/// let view = |access| ViewDecl { access, fields: vec![(0, of)] };
/// let kernel = VerifiedKernel::new(Body {
///     registers: vec![Type::U64, Type::U64, Type::U64, Type::U8, Type::U8],
///     params: vec![Type::U8],
///     views: vec![view(Access::Read), view(Access::Write { tile: 1 })],
///     code: vec![
///         Op::Builtin { to: item, what: Builtin::Item },
///         Op::Literal { to: one, bits: 1 },
///         Op::Literal { to: zero, bits: 0 },
///         Op::Binary { op: Binary::Add, to: item, left: item, right: one },
///         Op::Load { to: value, view: 0, at: item, offset: 0, of },
///         Op::Param { to: five, number: 0 },
///         Op::Binary { op: Binary::Add, to: value, left: value, right: five },
///         Op::Store { view: 1, at: zero, offset: 0, of, value },
///     ],
///     ..Body::default()
/// })?;
/// let interpreter = Interpreter {
///     params: &[5],
///     ..Interpreter::new(&kernel, 3, Geometry::plain(0))
/// };
/// let (mut input, mut output) = ([1, 2, 3], [0; 3]);
/// let mut views = Slices::new(vec![(&mut input, 1), (&mut output, 1)]);
/// let report = interpreter.run(&mut views)?;
/// // The last item reads beyond the end of the view.
/// assert_eq!((report.failures, report.site, report.detail, report.item), (1, 4, 3, 2));
/// assert_eq!(output, [7, 8, 5]);
/// // The same launch, run in parts.
/// assert_eq!(interpreter.parts(), 3);
/// let mut views = Slices::new(vec![(&mut input, 1), (&mut output, 1)]);
/// assert_eq!(interpreter.run_part(0..2, &mut views)?.failures, 0);
/// // A report for each failed item.
/// let failed = interpreter.reports(0..3, &mut views)?;
/// assert_eq!((failed.len(), failed[0].item), (1, 2));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Interpreter<'a> {
    /// Kernel to interpret.
    pub kernel: &'a VerifiedKernel,
    /// Number of items (threads) of the launch.
    pub items: u64,
    /// Mapping from an item's (thread's) number to the index of its element.
    pub geometry: Geometry,
    /// The kernel's parameters, each as 64 bits; see [`Type`](crate::kernel::Type).
    pub params: &'a [u64],
    /// Contents of the kernel's constant tables; see
    /// [`Body::table_offset`](crate::kernel::Body::table_offset).
    pub table: &'a [u8],
    /// Maximum number of loop iterations (back edges) of an item (thread); `None` for no limit.
    pub budget: Option<u64>,
    /// Maximum running time of an item (thread), or of a group if the kernel has groups; `None` for no limit.
    pub limit: Option<&'a TimeLimit>,
    /// Size of the private heap of an item (thread), in bytes.
    pub private_heap_bytes: u64,
}

impl<'a> Interpreter<'a> {
    /// Creates an interpreter without parameters, tables, limits (of iterations and time) and private heap.
    /// The caller sets the fields that its launch needs.
    #[must_use]
    pub fn new(kernel: &'a VerifiedKernel, items: u64, geometry: Geometry) -> Self {
        Self {
            kernel,
            items,
            geometry,
            params: &[],
            table: &[],
            budget: None,
            limit: None,
            private_heap_bytes: 0,
        }
    }

    /// Returns the number of independent parts of the launch: groups, or else single items (threads).
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.items.div_ceil(u64::from(self.group_len()))
    }

    pub(super) fn group_len(&self) -> u32 {
        self.kernel.body().group_len.unwrap_or(1)
    }
}
