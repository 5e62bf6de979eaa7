//! Fake cuBLAS: products run on the host at submission. A test decides which calls fail.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::{AddAssign, Mul};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::{Reachable, state};
use crate::cublas::{BlasHandle, Table, WORKSPACE_BYTES};
use crate::driver::StreamHandle;

/// The library's behaviour towards a thread, set by the test, and counts of the thread's calls.
#[derive(Clone, Copy, Default)]
pub(crate) struct FakeBlas {
    /// True if the devices that the thread opens find the library.
    pub(crate) is_installed: bool,
    /// The status of the next creation of a handle, and of the next product; 0 for success.
    pub(crate) creation: u32,
    pub(crate) product: u32,
    /// The number of handles that were created, and of them that were destroyed.
    pub(crate) created: usize,
    pub(crate) destroyed: usize,
}

thread_local! {
    static BLAS: Cell<FakeBlas> = Cell::default();
}

/// Changes the library's behaviour towards this thread; returns the new state.
pub(crate) fn blas(change: impl FnOnce(&mut FakeBlas)) -> FakeBlas {
    let mut blas = BLAS.get();
    change(&mut blas);
    BLAS.set(blas);
    blas
}

/// Returns the library's functions, if the thread has it installed.
pub(super) fn installed() -> Option<&'static Table> {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = || Table {
        create,
        destroy,
        set_stream,
        set_workspace,
        set_math_mode,
        multiply_f32: multiply::<f32>,
        multiply_f64: multiply::<f64>,
    };
    BLAS.get().is_installed.then(|| TABLE.get_or_init(table))
}

/// The state behind a handle.
struct FakeHandle {
    stream: Cell<StreamHandle>,
    has_workspace: Cell<bool>,
    math_mode: Cell<Option<c_int>>,
}

/// # Safety
/// The handle must be alive, and no other thread may use it.
unsafe fn handle<'a>(of: BlasHandle) -> &'a FakeHandle {
    // SAFETY: guaranteed by the caller.
    unsafe { &*of.0.cast::<FakeHandle>() }
}

unsafe extern "C" fn create(to: *mut BlasHandle) -> u32 {
    let mut status = 0;
    blas(|blas| status = std::mem::take(&mut blas.creation));
    if status != 0 {
        return status;
    }
    blas(|blas| blas.created += 1);
    let (stream, has_workspace) = (Cell::new(StreamHandle(null_mut())), Cell::new(false));
    let made = Box::new(FakeHandle { stream, has_workspace, math_mode: Cell::new(None) });
    // SAFETY: the caller provides room for a handle.
    unsafe { to.write(BlasHandle(Box::into_raw(made).cast())) };
    0
}

unsafe extern "C" fn destroy(of: BlasHandle) -> u32 {
    blas(|blas| blas.destroyed += 1);
    // SAFETY: handles come from `create` and are destroyed once.
    drop(unsafe { Box::from_raw(of.0.cast::<FakeHandle>()) });
    0
}

unsafe extern "C" fn set_stream(of: BlasHandle, stream: StreamHandle) -> u32 {
    // SAFETY: the handle is alive, and its users take turns, here and below.
    let own = unsafe { handle(of) };
    own.stream.set(stream);
    own.has_workspace.set(false);
    0
}

unsafe extern "C" fn set_workspace(of: BlasHandle, workspace: *mut c_void, bytes: usize) -> u32 {
    assert_eq!(bytes as u64, WORKSPACE_BYTES);
    Reachable::place(workspace.addr() as u64, bytes);
    // SAFETY: as above.
    unsafe { handle(of) }.has_workspace.set(true);
    0
}

unsafe extern "C" fn set_math_mode(of: BlasHandle, mode: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { handle(of) }.math_mode.set(Some(mode));
    0
}

unsafe extern "C" fn multiply<T: Copy + Default + PartialEq + From<u8> + AddAssign + Mul<Output = T>>(
    of: BlasHandle,
    a_operation: c_int,
    b_operation: c_int,
    m: i64,
    n: i64,
    k: i64,
    alpha: *const c_void,
    a: *const c_void,
    a_distance: i64,
    b: *const c_void,
    b_distance: i64,
    beta: *const c_void,
    c: *mut c_void,
    c_distance: i64,
) -> u32 {
    let mut status = 0;
    blas(|blas| status = std::mem::take(&mut blas.product));
    if status != 0 {
        return status;
    }
    // SAFETY: as above.
    let own = unsafe { handle(of) };
    assert!(own.has_workspace.get() && own.math_mode.get() == Some(0), "the handle is not ready");
    // SAFETY: the stream is alive.
    unsafe { state(own.stream.get().0) }.launches.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller passes numbers of the elements' type.
    let factors = unsafe { (alpha.cast::<T>().read(), beta.cast::<T>().read()) };
    assert!(factors == (T::from(1), T::from(0)));
    let [m, n, k, a_distance, b_distance, c_distance] =
        [m, n, k, a_distance, b_distance, c_distance].map(|number| number as usize);
    // The number of elements in a column, and the number of columns, as they are stored.
    let a_stored = if a_operation == 0 { (m, k) } else { (k, m) };
    let b_stored = if b_operation == 0 { (k, n) } else { (n, k) };
    let place = |start: *const c_void, (rows, columns): (usize, usize), distance: usize| {
        assert!(distance >= rows.max(1), "columns overlap");
        let len = (columns - 1) * distance + rows;
        Reachable::place(start.addr() as u64, len * size_of::<T>()).cast::<T>()
    };
    let (a, b) = (place(a, a_stored, a_distance), place(b, b_stored, b_distance));
    let c = place(c, (m, n), c_distance);
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        let mut sum = T::default();
        for p in 0..k {
            let of_a = if a_operation == 0 { i + p * a_distance } else { p + i * a_distance };
            let of_b = if b_operation == 0 { p + j * b_distance } else { j + p * b_distance };
            // SAFETY: both are in the ranges that were looked up above.
            sum += unsafe { a.add(of_a).read() * b.add(of_b).read() };
        }
        // SAFETY: as above.
        unsafe { c.add(i + j * c_distance).write(sum) };
    }
    0
}
