//! Complete kernels: verified bodies, with a name and optional native code.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::hash::StableHasher;
use super::{Body, Code, HostForm, InBounds, Memory, Op, Place, Rmw, Space, Type};
use crate::{Error, ErrorKind, Result};

/// A kernel: a verified [`Body`], with a name and optional native code. Cheap to clone. Two kernels are equal
/// if their bodies and their native code for devices are equal.
///
/// ```
/// use backend_api::kernel::{Body, VerifiedKernel, Op, Reg, Type};
/// let body = |bits| Body {
///     registers: vec![Type::F64],
///     code: vec![Op::Literal { to: Reg(0), bits }],
///     ..Body::default()
/// };
/// let kernel = VerifiedKernel::new(body(1))?;
/// assert_eq!((kernel.body(), kernel.name()), (&body(1), "kernel"));
/// assert!(kernel == VerifiedKernel::new(body(1))?.named("blur") && kernel != VerifiedKernel::new(body(2))?);
/// assert_ne!(kernel.hash128(), VerifiedKernel::new(body(2))?.hash128());
/// assert!(kernel.needs().f64 && !kernel.needs().atomics && kernel.host().is_none());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct VerifiedKernel(Arc<Verified>);

#[derive(Clone, Debug)]
struct Verified {
    name: String,
    body: Body,
    hash: u128,
    needs: Needs,
    host: Option<HostForm>,
    code: Option<Code>,
    is_unchecked: bool,
}

/// Optional features of devices. A value lists the features that a kernel needs, or that a device has.
///
/// ```
/// use backend_api::kernel::{Body, VerifiedKernel, Needs};
/// assert_eq!(VerifiedKernel::new(Body::default())?.needs(), Needs::default());
/// let grouped = VerifiedKernel::new(Body { group_len: Some(64), ..Body::default() })?.needs();
/// assert!(grouped.check("launch", Needs::ALL).is_ok());
/// let error = grouped.check("launch", Needs { groups: false, ..Needs::ALL }).unwrap_err();
/// assert_eq!(error.kind(), backend_api::ErrorKind::Unsupported);
/// assert_eq!(error.detail(), "the kernel needs groups, which this device does not have");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// True if the kernel has registers, arrays, fields or tables of `F64`.
    pub f64: bool,
    /// True if the kernel uses [`Memory::F16`].
    pub f16: bool,
    /// True if the kernel has groups (thread blocks): its body declares their length.
    pub groups: bool,
    /// True if the kernel uses [`Op::Subgroup`].
    pub subgroup_ops: bool,
    /// True if the kernel uses [`Op::Atomic`].
    pub atomics: bool,
    /// True if the kernel uses [`Op::Atomic`] on 64 bits.
    pub atomics_of_64_bits: bool,
    /// True if the kernel uses [`Op::PrivateAlloc`].
    pub private_heap: bool,
    /// True if the kernel [acquires](Rmw::Acquire) elements of a view in a loop, and so may wait for a group.
    /// See [`DeviceInfo::forward_progress`](crate::DeviceInfo::forward_progress).
    pub forward_progress: bool,
}

impl Needs {
    /// All features, for a device that supports everything.
    pub const ALL: Self = Self {
        f64: true,
        f16: true,
        groups: true,
        subgroup_ops: true,
        atomics: true,
        atomics_of_64_bits: true,
        private_heap: true,
        forward_progress: true,
    };

    /// Checks that `can`, the device's features, has all features that the kernel needs.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported), with the name `operation` and the first missing feature.
    pub fn check(self, operation: &'static str, can: Self) -> Result<()> {
        let all = [
            (self.f64, can.f64, "f64"),
            (self.f16, can.f16, "half-precision floats"),
            (self.groups, can.groups, "groups"),
            (self.subgroup_ops, can.subgroup_ops, "operations across lanes"),
            (self.atomics, can.atomics, "atomics"),
            (self.atomics_of_64_bits, can.atomics_of_64_bits, "atomics of 64 bits"),
            (self.private_heap, can.private_heap, "a private heap"),
            (self.forward_progress, can.forward_progress, "forward progress of groups"),
        ];
        let Some((_, _, missing)) = all.into_iter().find(|(needed, can, _)| *needed && !can) else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, operation)
            .with_detail(format!("the kernel needs {missing}, which this device does not have")))
    }

    fn of(body: &Body) -> Self {
        let fields = body.views.iter().flat_map(|view| view.fields.iter().map(|field| field.1));
        let memory: Vec<Memory> = fields.chain(body.tables.iter().map(|table| table.of)).collect();
        let arrays = body.arrays.iter().map(|array| array.of);
        let types = body.registers.iter().chain(&body.params).copied().chain(arrays);
        let mut needs = Self {
            f64: types.chain(memory.iter().map(|of| of.value())).any(|of| of == Type::F64),
            f16: memory.contains(&Memory::F16),
            groups: body.group_len.is_some(),
            forward_progress: acquires_in_loops(&body.code, false),
            ..Self::default()
        };
        body.operations(|_, op| match op {
            Op::Subgroup { .. } => needs.subgroup_ops = true,
            Op::Atomic { value, .. } => {
                needs.atomics = true;
                needs.atomics_of_64_bits |= body.type_of(*value).is_some_and(|of| of.bytes() == 8);
            }
            Op::PrivateAlloc { .. } | Op::PrivateLoad { .. } | Op::PrivateStore { .. } => {
                needs.private_heap = true
            }
            _ => {}
        });
        needs
    }
}

/// Returns true if a loop of the code acquires elements of views.
fn acquires_in_loops(code: &[Op], in_loop: bool) -> bool {
    code.iter().any(|op| {
        let in_loop = in_loop || matches!(op, Op::Loop { .. });
        let acquires = matches!(op, Op::Atomic { op: Rmw::Acquire, place: Place::View { .. }, .. });
        in_loop && acquires || op.within().into_iter().any(|within| acquires_in_loops(within, in_loop))
    })
}

impl Verified {
    fn hash_again(&mut self) {
        let mut hasher = StableHasher::new();
        (&self.body, &self.code, self.is_unchecked).hash(&mut hasher);
        self.hash = hasher.finish_both();
    }
}

impl VerifiedKernel {
    /// Verifies a body, and creates a kernel from it.
    ///
    /// # Errors
    /// The errors of [`Body::verify`].
    pub fn new(body: Body) -> Result<Self> {
        body.verify()?;
        Ok(Self::of_verified(body))
    }

    /// Creates a kernel from the body of an expression's program. Only the
    /// [`Interpreter`](super::Interpreter) runs such a kernel.
    pub(crate) fn of_program(body: Body) -> Result<Self> {
        body.verify_program()?;
        Ok(Self::of_verified(body))
    }

    fn of_verified(body: Body) -> Self {
        let mut hasher = StableHasher::new();
        body.hash(&mut hasher);
        let (hash, needs) = (hasher.finish_both(), Needs::of(&body));
        Self(Arc::new(Verified {
            name: "kernel".into(),
            body,
            hash,
            needs,
            host: None,
            code: None,
            is_unchecked: false,
        }))
    }

    /// Returns the same kernel with a name, which errors and listings show.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        Arc::make_mut(&mut self.0).name = name.into();
        self
    }

    /// Returns the same kernel with a Rust function for the host, which must have the same effects as the
    /// body. Devices that compute on the CPU call this function, if possible, and do not interpret the body.
    #[must_use]
    pub fn with_host(mut self, form: HostForm) -> Self {
        Arc::make_mut(&mut self.0).host = Some(form);
        self
    }

    /// Returns the kernel's Rust function for the host, if it has one.
    #[must_use]
    pub fn host(&self) -> Option<HostForm> {
        self.0.host
    }

    /// Returns the same kernel with native code for devices. Devices that can run the code use it instead of
    /// compiling the body. Such a launch does not report failed items (GPU threads).
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.code = Some(code);
        inner.hash_again();
        self
    }

    /// Returns the same kernel with a number of [groups that a multiprocessor should hold at
    /// once](Body::resident_groups).
    #[must_use]
    pub fn with_resident_groups(mut self, groups: u32) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.body.resident_groups = Some(groups);
        inner.hash_again();
        self
    }

    /// Returns the same kernel without bounds checks: compiling devices then access the elements that the
    /// kernel names without comparing their indices with lengths. Interpreters still check all indices.
    #[must_use]
    pub fn without_bounds_checks(mut self, _: InBounds) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.is_unchecked = true;
        inner.hash_again();
        self
    }

    /// Returns true if the kernel was created [without bounds checks](Self::without_bounds_checks).
    #[must_use]
    pub fn is_unchecked(&self) -> bool {
        self.0.is_unchecked
    }

    /// Returns true if a device must set an array of a group, by its index, to zero before the items run. A
    /// kernel [without bounds checks](Self::without_bounds_checks) writes each element before it reads it,
    /// except in arrays that it changes by atomics.
    #[must_use]
    pub fn starts_zeroed(&self, array: usize) -> bool {
        let is_changed = || {
            let mut is_changed = false;
            self.body().operations(|_, op| {
                let changes = |place: Place| {
                    matches!(place, Place::Array { array: of, .. } if usize::from(of) == array)
                };
                is_changed |= matches!(op, Op::Atomic { place, .. } if changes(*place));
            });
            is_changed
        };
        !self.is_unchecked() || is_changed()
    }

    /// Returns the native code for devices, if the kernel has any.
    #[must_use]
    pub fn code(&self) -> Option<&Code> {
        self.0.code.as_ref()
    }

    /// Returns the name that errors show; empty if the kernel has none.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the kernel's body: its code and its declarations.
    #[must_use]
    pub fn body(&self) -> &Body {
        &self.0.body
    }

    /// Returns a hash of the body and the native code. With one version of this crate, the hash is the same
    /// in all processes, except for code with a [`submit`](Code::submit) function.
    #[must_use]
    pub fn hash128(&self) -> u128 {
        self.0.hash
    }

    /// Returns the features that a device needs to run the kernel.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.0.needs
    }
}

impl PartialEq for VerifiedKernel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || {
            let [one, two] = [&self.0, &other.0];
            one.hash == two.hash
                && one.is_unchecked == two.is_unchecked
                && one.body == two.body
                && one.code == two.code
        }
    }
}

impl Eq for VerifiedKernel {}

impl Hash for VerifiedKernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.0.hash);
    }
}

impl Body {
    /// Returns the total size in bytes of the arrays of a space, each aligned to a multiple of 8.
    pub(super) fn array_bytes(&self, space: Space) -> u64 {
        let arrays = self.arrays.iter().filter(|array| array.space == space);
        arrays.map(|array| array.bytes().next_multiple_of(8)).sum()
    }
}
