//! [`Launch`], the request to run a kernel on a device.

use std::time::Duration;

use super::{LaunchView, MatrixProduct, Memory, Type, VerifiedKernel};
use crate::HostSpan;
use crate::expr::Geometry;

/// A request to run a kernel for a number of items (GPU threads).
///
/// At the end of the launch, the device writes a [report](super::Report) about failed items to host memory.
/// The device does not undo the writes of failed items. If the launch fails as a whole, the contents of
/// written views are unspecified.
///
/// ```
/// use backend_api::expr::Geometry;
/// use backend_api::kernel::{
///     Access, Binary, Body, Builtin, Launch, LaunchView, Memory, Op, Reg, Report, Type, VerifiedKernel,
///     ViewDecl,
/// };
/// use backend_api::{
///     Commit, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Request, Transfer,
/// };
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// // x[i] += i
/// let (of, [at, value, index]) = (Memory::Value(Type::U64), [0, 1, 2].map(Reg));
/// let kernel = VerifiedKernel::new(Body {
///     registers: vec![Type::U64; 3],
///     views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
///     code: vec![
///         Op::Literal { to: at, bits: 0 },
///         Op::Load { to: value, view: 0, at, offset: 0, of },
///         Op::Builtin { to: index, what: Builtin::Index },
///         Op::Binary { op: Binary::Add, to: value, left: value, right: index },
///         Op::Store { view: 0, at, offset: 0, of, value },
///     ],
///     ..Body::default()
/// })?;
/// queue.submit(&Fill { to: memory.at(0), bytes: 64, pattern: &100_u64.to_ne_bytes() })?;
/// let views = [LaunchView::Run(Elements { start: memory.at(0), count: 4, stride: 8 })];
/// let launch = Launch { views: &views, ..Launch::new(&kernel, 4, Geometry::plain(7), host.at(32)) };
/// assert!(launch.writes(0) && launch.bytes() == 32);
/// device.prepare(&[Request::Launch(&launch)])?; // From here on nothing waits for a compiler.
/// queue.submit(&launch)?;
/// let result = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 32 };
/// device.wait(queue.submit(&[result])?)?;
/// let mut words = [[0; 8]; 8];
/// host.read(0, words.as_flattened_mut());
/// let words = words.map(u64::from_ne_bytes);
/// assert_eq!((words[..4].to_vec(), words[4]), (vec![107, 108, 109, 110], 0), "no failure");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Kernel to launch.
    pub kernel: &'a VerifiedKernel,
    /// Number of items (GPU threads) to run.
    pub items: u64,
    /// Mapping from an item's (GPU thread's) number to the index of its element.
    pub geometry: Geometry,
    /// The arrays for the views that the kernel declares, in the same order. A written view has at least one
    /// [tile](super::Access) of elements for each item (GPU thread). It overlaps neither with itself nor with
    /// another view.
    pub views: &'a [LaunchView<'a>],
    /// The kernel's parameters, each as 64 bits; see [`Type`](super::Type). The submission copies them.
    pub params: &'a [u64],
    /// The contents of the kernel's constant tables; see [`Body::table_offset`](super::Body::table_offset).
    /// The submitting call copies them before it returns.
    pub table: &'a [u8],
    /// Maximum number of loop iterations (back edges) of an item (GPU thread); `None` for no limit. Without a
    /// limit, an endless loop occupies the device for ever.
    pub budget: Option<u64>,
    /// Time limit of an item (GPU thread), or of a group if there are groups: see [`kernel`](super#failures).
    /// Only devices that compute on the CPU enforce it, because a GPU cannot stop a kernel.
    pub time_limit: Option<Duration>,
    /// Size of the private heap of each item (GPU thread) in bytes, a multiple of 8, for kernels with
    /// [`Op::PrivateAlloc`](super::Op::PrivateAlloc). The device allocates one heap for each item that runs
    /// at the same time. If it cannot allocate them, the call starts nothing and fails with
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub private_heap_bytes: u64,
    /// Host memory for the report: [`Report::BYTES`](super::Report::BYTES) bytes at a multiple of 8.
    pub report: HostSpan<'a>,
}

impl<'a> Launch<'a> {
    /// Creates a launch without views, parameters, tables, limits (of iterations and time) and private heap.
    #[must_use]
    pub const fn new(
        kernel: &'a VerifiedKernel,
        items: u64,
        geometry: Geometry,
        report: HostSpan<'a>,
    ) -> Self {
        let (views, params, table): (&[LaunchView<'_>], &[u64], &[u8]) = (&[], &[], &[]);
        let (budget, time_limit) = (None, None);
        Self {
            kernel,
            items,
            geometry,
            views,
            params,
            table,
            budget,
            time_limit,
            private_heap_bytes: 0,
            report,
        }
    }

    /// Returns the size of the elements of all views together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = self.views.iter().map(|view| view.count().saturating_mul(view.stride()));
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns true if the kernel writes to the view at this index; false if it has no such view.
    #[must_use]
    pub fn writes(&self, view: usize) -> bool {
        self.kernel.body().views.get(view).is_some_and(|view| view.access.is_written())
    }

    /// Returns the matrix product that the launch computes, if its kernel [is one](super::Code::multiply),
    /// and the type of the elements. Returns `None` if a view is not contiguous or has elements of another
    /// type than `f32` or `f64`, if the product is empty, or if an element of it is outside of its view.
    #[must_use]
    pub fn product(&self) -> Option<(MatrixProduct<u64>, Type)> {
        let numbers = self.kernel.code()?.product()?;
        let value = |number: u16| self.params.get(usize::from(number)).copied();
        let values = |[x, y, z]: [u16; 3]| Some([value(x)?, value(y)?, value(z)?]);
        let [a, b] = numbers.factors.map(values);
        let product = MatrixProduct { extents: values(numbers.extents)?, factors: [a?, b?] };
        let [(a, of), (b, of_b), (c, of_c)] = [self.floats(0)?, self.floats(1)?, self.floats(2)?];
        let [rows, columns, depth] = product.extents;
        let is_inside = |[first, along, across]: [u64; 3], lines: u64, len: u64| {
            let last = along.checked_mul(depth.checked_sub(1)?)?.checked_add(first)?;
            Some(across.checked_mul(lines.checked_sub(1)?)?.checked_add(last)? < len)
        };
        let are_inside = is_inside(product.factors[0], rows, a)?
            && is_inside(product.factors[1], columns, b)?
            && rows.checked_mul(columns)? <= c;
        (are_inside && of == of_b && of == of_c).then_some((product, of))
    }

    /// Returns the number and the type of the elements of a view, if they are contiguous floats.
    fn floats(&self, view: usize) -> Option<(u64, Type)> {
        let LaunchView::Run(elements) = self.views.get(view)? else { return None };
        let [(0, Memory::Value(of @ (Type::F32 | Type::F64)))] =
            self.kernel.body().views.get(view)?.fields[..]
        else {
            return None;
        };
        (elements.stride == u64::from(of.bytes())).then_some((elements.count, of))
    }
}

/// Properties of a kernel that a device has compiled. A property is `None` if the driver does not report it.
///
/// ```
/// use backend_api::kernel::KernelFacts;
/// assert_eq!(KernelFacts::default().registers, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFacts {
    /// Number of 32-bit hardware registers that an item (GPU thread) uses.
    pub registers: Option<u32>,
    /// Size of the registers that an item (GPU thread) spills to device memory, in bytes.
    pub spilled_bytes: Option<u64>,
    /// The number of items in a group (thread block).
    pub group_len: Option<u32>,
    /// The name of the vendor's library that the device calls instead of the kernel, such as `cuBLAS`. The
    /// other properties are then `None`.
    pub library: Option<&'static str>,
}
