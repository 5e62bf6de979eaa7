//! cuBLAS, NVIDIA's library for matrix products: loads it at run time, and multiplies matrices by it.
//!
//! The first large product loads the library, which stays loaded. If no file is found, or if the library
//! refuses to start, GPUs multiply by the kernels of the program. The variable `VMARRAY_CUBLAS` names the
//! file, or is `off`. Sums of `f32` are computed in `f32`, not in TF32.

mod search;

use std::ffi::{OsString, c_int, c_void};
use std::fmt;
use std::num::NonZeroU32;
use std::ptr::{null_mut, without_provenance, without_provenance_mut};
use std::sync::{Arc, OnceLock};

use backend_api::expr::Type;
use backend_api::{Error, ErrorKind, Launch};
use libloading::Library;
use parking_lot::Mutex;
use vmarray_support::warn;

use crate::context::CudaContext;
use crate::driver::objects::Stream;
use crate::driver::{self, Missing, StreamHandle};

/// The variable of the environment that names the library's file.
const VARIABLE: &str = "VMARRAY_CUBLAS";
/// Length in bytes of the device memory for the library's temporary data, which NVIDIA recommends for Hopper.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;
/// The least number of multiplications for which the library is loaded and called. The kernels of the program
/// are as fast for smaller products, because these take as long as a launch.
const MULTIPLICATIONS_MIN: u64 = 1 << 20;
/// `CUBLAS_DEFAULT_MATH`: sums of `f32` use no TF32.
const DEFAULT_MATH: c_int = 0;
/// `CUBLAS_OP_N`: an operand as it is.
const UNCHANGED: c_int = 0;
/// `CUBLAS_OP_T`.
const TRANSPOSED: c_int = 1;

/// A `cublasHandle_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct BlasHandle(pub(crate) *mut c_void);

// SAFETY: a handle is a name that the library looks up. Any thread may pass it, one at a time: see `Cublas`.
unsafe impl Send for BlasHandle {}

driver::table! {
    required {
        create = "cublasCreate_v2" (*mut BlasHandle);
        destroy = "cublasDestroy_v2" (BlasHandle);
        set_stream = "cublasSetStream_v2" (BlasHandle, StreamHandle);
        set_workspace = "cublasSetWorkspace_v2" (BlasHandle, *mut c_void, usize);
        set_math_mode = "cublasSetMathMode" (BlasHandle, c_int);
        multiply_f32 = "cublasSgemm_v2_64" (
            BlasHandle, c_int, c_int, i64, i64, i64, *const c_void, *const c_void, i64, *const c_void, i64,
            *const c_void, *mut c_void, i64
        );
        multiply_f64 = "cublasDgemm_v2_64" (
            BlasHandle, c_int, c_int, i64, i64, i64, *const c_void, *const c_void, i64, *const c_void, i64,
            *const c_void, *mut c_void, i64
        );
    }
    optional {}
}

/// Returns the functions of the machine's library, loaded at the first call; `None` if there is none.
fn installed() -> Option<&'static Table> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    static TABLE: OnceLock<Option<Table>> = OnceLock::new();
    let find = || {
        let library =
            LIBRARY.get_or_init(|| load(std::env::var_os(VARIABLE).filter(|name| !name.is_empty())));
        let missing = |name| warn::warn(format!("cuBLAS has no function {name}; install cuBLAS 12 or later"));
        Table::find(library.as_ref()?).inspect_err(|name| missing(*name)).ok()
    };
    TABLE.get_or_init(find).as_ref()
}

/// Loads the file that the program's environment names, else the first one that the search finds.
fn load(named: Option<OsString>) -> Option<Library> {
    if named.as_ref().is_some_and(|name| name == "off") {
        return None;
    }
    let mapped = || std::fs::read("/proc/self/maps").unwrap_or_default();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let files = match &named {
        Some(file) => vec![file.into()],
        None => search::candidates(&variable, &String::from_utf8_lossy(&mapped())),
    };
    let names: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
    let mut found = None;
    let opened = driver::first_of(&names, |name| {
        found = Some(name.to_owned());
        open(name)
    });
    match opened {
        Ok(library) => {
            tracing::debug!(file = found, "cuBLAS loaded");
            return Some(library);
        }
        Err(Missing::Broken(reason)) => {
            warn::warn(format!("cannot load cuBLAS ({reason}); name another file, or off, in {VARIABLE}"));
        }
        Err(_) if named.is_some() => {
            warn::warn(format!("cannot load cuBLAS: there is no file {names:?}, which {VARIABLE} names"));
        }
        Err(_) => tracing::debug!("there is no cuBLAS, so kernels multiply matrices"),
    }
    None
}

#[cfg(not(windows))]
fn open(name: &str) -> Result<Library, libloading::Error> {
    driver::open(name)
}

#[cfg(windows)]
fn open(name: &str) -> Result<Library, libloading::Error> {
    use libloading::os::windows::{
        LOAD_LIBRARY_SEARCH_DEFAULT_DIRS, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, Library,
    };
    let flags = LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR;
    // SAFETY: loading a library runs its initialisers. The user who installed CUDA, or who named the file in
    // the environment, is responsible for the file.
    unsafe { Library::load_with_flags(name, flags) }.map(libloading::Library::from)
}

/// A status of cuBLAS other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlasStatus(NonZeroU32);

impl BlasStatus {
    const ALLOC_FAILED: u32 = 3;
    const ARCH_MISMATCH: u32 = 8;
    const NOT_SUPPORTED: u32 = 15;

    fn check(status: u32) -> Result<(), Self> {
        NonZeroU32::new(status).map_or(Ok(()), |status| Err(Self(status)))
    }

    /// Returns true if the library refused a product, without an error of the GPU.
    pub(crate) fn is_refusal(self) -> bool {
        [Self::ALLOC_FAILED, Self::ARCH_MISMATCH, Self::NOT_SUPPORTED].contains(&self.0.get())
    }

    fn name(self) -> String {
        let name = match self.0.get() {
            1 => "NOT_INITIALIZED",
            Self::ALLOC_FAILED => "ALLOC_FAILED",
            7 => "INVALID_VALUE",
            Self::ARCH_MISMATCH => "ARCH_MISMATCH",
            11 => "MAPPING_ERROR",
            13 => "EXECUTION_FAILED",
            14 => "INTERNAL_ERROR",
            Self::NOT_SUPPORTED => "NOT_SUPPORTED",
            16 => "LICENSE_ERROR",
            other => return format!("CUBLAS_STATUS_{other}"),
        };
        format!("CUBLAS_STATUS_{name}")
    }

    /// The error of a launch whose product failed with this status.
    pub(crate) fn error(self, operation: &'static str) -> Error {
        Error::new(ErrorKind::KernelFailed, operation)
            .with_driver(i64::from(self.0.get()), self.name())
            .with_detail("cuBLAS failed to multiply matrices")
            .with_advice("set VMARRAY_CUBLAS=off to multiply by kernels")
    }
}

/// cuBLAS on one device. The handle is created at the first product. The mutex orders its uses, because a
/// handle has one current stream.
#[derive(Default)]
pub(crate) struct Cublas {
    library: OnceLock<Option<&'static Table>>,
    handle: Mutex<HandleState>,
}

#[derive(Default)]
enum HandleState {
    #[default]
    Untried,
    Refused,
    Created(OwnedHandle),
}

/// A handle in a context; the drop destroys it.
struct OwnedHandle {
    context: Arc<CudaContext>,
    table: &'static Table,
    handle: BlasHandle,
}

impl Cublas {
    /// Sets the functions of the library, or `None` to turn the library off. Has no effect after the first
    /// product.
    pub(crate) fn use_library(&self, table: Option<&'static Table>) {
        let _ = self.library.set(table);
    }

    /// Returns true if the library is ready to multiply. The first call loads the library and creates a
    /// handle, which takes some tenths of a second. The context must be current.
    pub(crate) fn is_ready(&self, context: &Arc<CudaContext>) -> bool {
        self.with_handle(context, |_| ()).is_some()
    }

    /// Enqueues a product on a stream of a context, with the parts at these addresses: factors, then result.
    ///
    /// # Safety
    /// The elements of the product and the [workspace](WORKSPACE_BYTES) must stay allocated until the work is
    /// done, and no other work may use them meanwhile. The context must be current.
    pub(crate) unsafe fn multiply(
        &self,
        (context, stream): (&Arc<CudaContext>, &Stream),
        workspace: u64,
        product: &BlasProduct,
        addresses: [u64; 3],
    ) -> Result<(), BlasStatus> {
        let done = self.with_handle(context, |OwnedHandle { table, handle, .. }| {
            let workspace = without_provenance_mut(workspace as usize);
            // SAFETY: handle and stream are alive. The new stream resets the workspace, so it is set again.
            // The caller guarantees the workspace.
            unsafe {
                BlasStatus::check((table.set_stream)(*handle, stream.raw()))?;
                BlasStatus::check((table.set_workspace)(*handle, workspace, WORKSPACE_BYTES as usize))?;
            }
            // SAFETY: guaranteed by the caller.
            unsafe { product.enqueue(table, *handle, addresses) }
        });
        done.unwrap_or_else(|| BlasStatus::check(BlasStatus::NOT_SUPPORTED))
    }

    fn with_handle<R>(&self, context: &Arc<CudaContext>, run: impl FnOnce(&OwnedHandle) -> R) -> Option<R> {
        let table = (*self.library.get_or_init(installed))?;
        let mut state = self.handle.lock();
        if matches!(*state, HandleState::Untried) {
            match OwnedHandle::new(context, table) {
                Ok(created) => *state = HandleState::Created(created),
                Err(status) => {
                    tracing::debug!(status = status.name(), "cuBLAS refuses to start");
                    // Try again after a shortage of memory.
                    if status.0.get() != BlasStatus::ALLOC_FAILED {
                        *state = HandleState::Refused;
                    }
                }
            }
        }
        let HandleState::Created(handle) = &*state else { return None };
        Some(run(handle))
    }
}

impl OwnedHandle {
    fn new(context: &Arc<CudaContext>, table: &'static Table) -> Result<Self, BlasStatus> {
        let mut handle = BlasHandle(null_mut());
        // SAFETY: writes one handle, for the current context.
        BlasStatus::check(unsafe { (table.create)(&raw mut handle) })?;
        let created = Self { context: Arc::clone(context), table, handle };
        // SAFETY: the handle is alive.
        BlasStatus::check(unsafe { (table.set_math_mode)(handle, DEFAULT_MATH) })?;
        Ok(created)
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // If the device is lost, its context cannot become current, and the handle leaks.
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: the handle is alive, and this was its only owner.
        if let Err(status) = BlasStatus::check(unsafe { (self.table.destroy)(self.handle) }) {
            tracing::debug!(status = status.name(), "cannot destroy a handle of cuBLAS");
        }
    }
}

impl fmt::Debug for Cublas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cublas").finish_non_exhaustive()
    }
}

/// A matrix product in the library's terms. The library stores matrices by columns, so it computes the
/// transposed product: its first operand is the transposed second factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlasProduct {
    of: Type,
    /// The numbers of columns and of rows of the result, and the depth.
    extents: [i64; 3],
    /// The first element of each factor, `a` first, its operation, and the distance of its lines.
    factors: [(u64, c_int, i64); 2],
}

impl BlasProduct {
    /// Returns the product that a launch computes, if the library can compute it and is worth its start.
    pub(crate) fn of_launch(launch: &Launch<'_>) -> Option<Self> {
        let (product, of) = launch.product()?;
        let [rows, columns, depth] = product.extents;
        let multiplications = rows.saturating_mul(columns).saturating_mul(depth);
        if multiplications < MULTIPLICATIONS_MIN {
            return None;
        }
        let [(a, a_along, a_across), (b, b_along, b_across)] = product.factors.map(<[u64; 3]>::into);
        // A factor is stored line by line, and a line is contiguous: along the depth, or across it.
        let (a_lines, b_lines) = ((a_across, rows), (b_across, columns));
        let of_a = (line_distance((a_along, depth), a_lines).map(|distance| (a, UNCHANGED, distance)))
            .or_else(|| Some((a, TRANSPOSED, line_distance(a_lines, (a_along, depth))?)))?;
        let of_b = (line_distance(b_lines, (b_along, depth)).map(|distance| (b, UNCHANGED, distance)))
            .or_else(|| Some((b, TRANSPOSED, line_distance((b_along, depth), b_lines)?)))?;
        let extents = [columns.try_into().ok()?, rows.try_into().ok()?, depth.try_into().ok()?];
        Some(Self { of, extents, factors: [of_a, of_b] })
    }

    /// Returns the addresses of the factors and of the result, whose views start at `bases`. Returns `None`
    /// if an address is not aligned.
    pub(crate) fn addresses(&self, bases: &[u64]) -> Option<[u64; 3]> {
        let [a, b, c] = *bases.first_chunk()?;
        let (bytes, [(of_a, ..), (of_b, ..)]) = (u64::from(self.of.bytes()), self.factors);
        let addresses = [a + of_a * bytes, b + of_b * bytes, c];
        addresses.iter().all(|address| address.is_multiple_of(bytes)).then_some(addresses)
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The requirements of [`Cublas::multiply`].
    unsafe fn enqueue(
        &self,
        table: &Table,
        handle: BlasHandle,
        [a, b, c]: [u64; 3],
    ) -> Result<(), BlasStatus> {
        let (multiply, [one, zero]): (_, [*const c_void; 2]) = match self.of {
            Type::F64 => (table.multiply_f64, [(&raw const ONE_F64).cast(), (&raw const ZERO_F64).cast()]),
            _ => (table.multiply_f32, [(&raw const ONE_F32).cast(), (&raw const ZERO_F32).cast()]),
        };
        let [columns, rows, depth] = self.extents;
        let [(_, a_operation, a_distance), (_, b_operation, b_distance)] = self.factors;
        let [a, b] = [a, b].map(|address| without_provenance(address as usize));
        let c = without_provenance_mut(c as usize);
        // SAFETY: the handle is alive. `one` and `zero` have the type of the elements. `Launch::product` has
        // checked that the elements which these extents and distances name are inside their views. The caller
        // guarantees the views' memory.
        BlasStatus::check(unsafe {
            multiply(
                handle,
                b_operation,
                a_operation,
                columns,
                rows,
                depth,
                one,
                b,
                b_distance,
                a,
                a_distance,
                zero,
                c,
                columns,
            )
        })
    }
}

static ONE_F32: f32 = 1.0;
static ZERO_F32: f32 = 0.0;
static ONE_F64: f64 = 1.0;
static ZERO_F64: f64 = 0.0;

/// Returns the distance of lines, each of which is contiguous, if the library supports it. Both arguments are
/// the distance of neighbours and their number: within a line, and of lines.
fn line_distance((step, len): (u64, u64), (distance, lines): (u64, u64)) -> Option<i64> {
    let distance = if lines == 1 { len } else { distance };
    ((step == 1 || len == 1) && distance >= len).then_some(distance)?.try_into().ok()
}
#[cfg(test)]
mod tests;
