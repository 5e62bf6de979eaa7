//! Tests with failing drivers: a test replaces some functions of the real OpenCL driver by its own.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use backend_api::waker;
use backend_api::{
    BufferHandle, Commit, Device, ErrorKind, HostAllocation, HostMemory, QueueHandle, QueueProgress, Request,
    Ticket, Transfer, racy,
};
use opencl3::error_codes::{CL_INVALID_COMMAND_QUEUE, CL_INVALID_VALUE, CL_OUT_OF_HOST_MEMORY};
use opencl3::types::{cl_bool, cl_command_queue, cl_event, cl_event_info, cl_int, cl_mem, cl_uint};
use parking_lot::{Mutex, MutexGuard};

use crate::OpenClDevice;
use crate::driver::{Sys, sys};
use crate::options::{KernelCache, OpenClOptions};
use crate::retry::{PATIENCE, kept};

/// Faults that a test injects into the driver.
struct Faults {
    /// If true, events report that their commands still run.
    hold: AtomicBool,
    /// The number of calls that the driver refuses, of `clFinish`; the next fields are for other functions.
    finish: AtomicUsize,
    marker: AtomicUsize,
    write: AtomicUsize,
    status: AtomicUsize,
    wait: AtomicUsize,
}

static FAULTS: Faults = Faults {
    hold: AtomicBool::new(false),
    finish: AtomicUsize::new(0),
    marker: AtomicUsize::new(0),
    write: AtomicUsize::new(0),
    status: AtomicUsize::new(0),
    wait: AtomicUsize::new(0),
};
const ALWAYS: usize = usize::MAX;

fn refuses(calls: &AtomicUsize) -> bool {
    let next = |left: usize| if left == ALWAYS { Some(left) } else { left.checked_sub(1) };
    calls.try_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
}

fn real() -> &'static Sys {
    sys().unwrap()
}

unsafe extern "C" fn finish(queue: cl_command_queue) -> cl_int {
    if refuses(&FAULTS.finish) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    // SAFETY: guaranteed by the caller, here and below.
    unsafe { (real().clFinish)(queue) }
}

unsafe extern "C" fn marker(
    queue: cl_command_queue,
    waits: cl_uint,
    list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    if refuses(&FAULTS.marker) {
        // Return a code that does not make the backend treat the device as lost.
        return CL_INVALID_VALUE;
    }
    // SAFETY: as above.
    unsafe { (real().clEnqueueMarkerWithWaitList)(queue, waits, list, event) }
}

unsafe extern "C" fn write(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: cl_bool,
    offset: usize,
    bytes: usize,
    from: *const c_void,
    waits: cl_uint,
    list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    if refuses(&FAULTS.write) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    // SAFETY: as above.
    unsafe { (real().clEnqueueWriteBuffer)(queue, buffer, blocking, offset, bytes, from, waits, list, event) }
}

unsafe extern "C" fn status(
    event: cl_event,
    name: cl_event_info,
    size: usize,
    value: *mut c_void,
    written: *mut usize,
) -> cl_int {
    if refuses(&FAULTS.status) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    // SAFETY: as above.
    let answer = unsafe { (real().clGetEventInfo)(event, name, size, value, written) };
    if answer == 0 && FAULTS.hold.load(Ordering::SeqCst) {
        // SAFETY: only the status is queried.
        unsafe { value.cast::<cl_int>().write(1) };
    }
    answer
}

unsafe extern "C" fn wait(count: cl_uint, events: *const cl_event) -> cl_int {
    if refuses(&FAULTS.wait) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    while FAULTS.hold.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: as above.
    unsafe { (real().clWaitForEvents)(count, events) }
}

/// Guard of the injected faults: it excludes other tests, and its drop removes all faults.
struct Turn(#[expect(dead_code, reason = "holds the lock")] MutexGuard<'static, ()>);

impl Drop for Turn {
    fn drop(&mut self) {
        sound();
    }
}

fn sound() {
    FAULTS.hold.store(false, Ordering::SeqCst);
    for calls in [&FAULTS.finish, &FAULTS.marker, &FAULTS.write, &FAULTS.status, &FAULTS.wait] {
        calls.store(0, Ordering::SeqCst);
    }
}

/// A device with injected faults; with a queue, and memory of both kinds with 7 in each byte.
struct Rig {
    device: OpenClDevice,
    queue: QueueHandle,
    buffer: Option<BufferHandle>,
    host: Option<HostAllocation>,
    address: *mut u8,
    /// Ticket of an upload that is done, or that seems to run if `hold` is set.
    ticket: Ticket,
    _turn: Turn,
}

// SAFETY: one thread at a time uses the address.
unsafe impl Sync for Rig {}

const BYTES: usize = 64 << 10;

impl Rig {
    fn new() -> Option<Self> {
        static TURNS: Mutex<()> = Mutex::new(());
        // Keep all function tables reachable, so leak checkers do not report them.
        static TABLES: Mutex<Vec<&'static Sys>> = Mutex::new(Vec::new());
        let turn = Turn(TURNS.lock());
        let found = crate::devices().into_iter().next()?;
        let table: &'static Sys = Box::leak(Box::new(Sys {
            clFinish: finish,
            clEnqueueMarkerWithWaitList: marker,
            clEnqueueWriteBuffer: write,
            clGetEventInfo: status,
            clWaitForEvents: wait,
            ..*real()
        }));
        TABLES.lock().push(table);
        let options = OpenClOptions::new().with_kernel_cache(KernelCache::Off);
        let device = OpenClDevice::open_by(table, &found, &options).unwrap();
        let queue = device.create_queue().unwrap();
        let buffer = device.allocate(BYTES as u64, Commit::Lazy).unwrap();
        let host = device.allocate_host(BYTES, HostMemory::Pinned).unwrap();
        let address = host.address().as_ptr();
        // SAFETY: the memory has this length, and no work names it yet.
        unsafe { racy::fill(address, 7, BYTES) };
        let upload = Transfer::Upload { from: host.at(0), to: buffer.at(0), bytes: BYTES as u64 };
        let ticket = device.submit(&queue, &Request::Copies(&[upload], None)).unwrap();
        device.wait(ticket).unwrap();
        Some(Self { device, queue, buffer: Some(buffer), host: Some(host), address, ticket, _turn: turn })
    }

    /// Creates a rig whose work seems to run for ever.
    fn busy() -> Option<Self> {
        let mut rig = Self::new()?;
        FAULTS.hold.store(true, Ordering::SeqCst);
        let (from, to) = (rig.host.as_ref()?.at(0), rig.buffer.as_ref()?.at(0));
        let upload = Transfer::Upload { from, to, bytes: BYTES as u64 };
        rig.ticket = rig.device.submit(&rig.queue, &Request::Copies(&[upload], None)).unwrap();
        assert_eq!(rig.device.poll(rig.ticket), Ok(QueueProgress::Pending));
        Some(rig)
    }

    /// Makes the device lost by a lack of resources: the driver refuses a call, and then the probe.
    fn lose_by_shortage(&self) {
        FAULTS.write.store(ALWAYS, Ordering::SeqCst);
        let error = self.device.core().fail("submit", ErrorKind::CopyFailed, CL_OUT_OF_HOST_MEMORY);
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(self.device.create_queue().unwrap_err().kind(), ErrorKind::Lost);
    }

    fn first_byte(&self) -> u8 {
        // SAFETY: the tests that call this know that the memory was not released.
        unsafe { self.address.read_volatile() }
    }
}

#[test]
fn work_that_runs_when_a_shortage_looks_like_a_loss_is_waited_for() {
    let Some(mut rig) = Rig::busy() else { return };
    rig.device.wipe_on_release().unwrap();
    rig.lose_by_shortage();
    assert_eq!(rig.device.poll(rig.ticket), Ok(QueueProgress::Pending));
    let (host, buffer) = (rig.host.take().unwrap(), rig.buffer.take().unwrap());
    let ended = AtomicUsize::new(0);
    let before = kept();
    thread::scope(|threads| {
        let (rig, ended) = (&rig, &ended);
        let end = || _ = ended.fetch_add(1, Ordering::SeqCst);
        threads.spawn(move || {
            rig.device.release_host(host);
            end();
        });
        threads.spawn(move || {
            rig.device.release(buffer);
            end();
        });
        threads.spawn(move || {
            rig.device.wait(rig.ticket).unwrap();
            end();
        });
        thread::sleep(Duration::from_millis(50));
        assert_eq!((ended.load(Ordering::SeqCst), rig.first_byte()), (0, 7));
        FAULTS.hold.store(false, Ordering::SeqCst);
    });
    assert_eq!((rig.device.poll(rig.ticket), kept() - before), (Ok(QueueProgress::Done), 0));
}

#[test]
fn a_waker_is_woken_when_the_work_of_a_lost_device_ends() {
    let Some(rig) = Rig::busy() else { return };
    let (woken, was_woken) = channel();
    rig.device.wake(rig.ticket, waker(move || woken.send(()).unwrap()));
    rig.lose_by_shortage();
    FAULTS.hold.store(false, Ordering::SeqCst);
    was_woken.recv().unwrap();
    rig.device.wait(rig.ticket).unwrap();
}

#[test]
fn memory_in_use_by_a_lost_device_is_neither_wiped_nor_freed() {
    let Some(mut rig) = Rig::busy() else { return };
    rig.device.wipe_on_release().unwrap();
    let done = rig.device.allocate_host(BYTES, HostMemory::Pageable).unwrap();
    let error = rig.device.core().fail("submit", ErrorKind::CopyFailed, CL_INVALID_COMMAND_QUEUE);
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(rig.device.poll(rig.ticket).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(rig.device.wait(rig.ticket).unwrap_err().kind(), ErrorKind::Lost);
    let before = kept();
    rig.device.release_host(rig.host.take().unwrap());
    rig.device.release(rig.buffer.take().unwrap());
    assert_eq!((rig.first_byte(), kept() - before), (7, 2));
    // The device frees this memory at once, because no work has used it.
    rig.device.release_host(done);
    assert_eq!(kept() - before, 2);
}

#[test]
fn so_it_is_when_the_device_is_dropped() {
    let Some(rig) = Rig::busy() else { return };
    rig.device.core().fail("submit", ErrorKind::CopyFailed, CL_INVALID_COMMAND_QUEUE);
    let (before, address) = (kept(), rig.address);
    let Rig { device, queue, buffer, host, _turn, .. } = rig;
    device.release_queue(queue);
    drop((device, buffer, host));
    // SAFETY: it was not released.
    assert_eq!(unsafe { address.read_volatile() }, 7);
    assert!(kept() - before >= 2);
}

#[test]
fn a_refused_event_callback_does_not_fail_the_work() {
    let Some(rig) = Rig::new() else { return };
    FAULTS.status.store(5, Ordering::SeqCst);
    let ticket = rig.device.submit(&rig.queue, &Request::Copies(&[], None)).unwrap();
    while rig.device.poll(ticket).unwrap() == QueueProgress::Pending {}
    assert_eq!(FAULTS.status.load(Ordering::SeqCst), 0);
    let ticket = rig.device.submit(&rig.queue, &Request::Copies(&[], None)).unwrap();
    FAULTS.wait.store(5, Ordering::SeqCst);
    FAULTS.status.store(5, Ordering::SeqCst);
    rig.device.wait(ticket).unwrap();
    rig.device.memory().unwrap();
}

#[test]
fn a_driver_without_answers_has_lost_its_device() {
    for blocks in [false, true] {
        let Some(mut rig) = Rig::busy() else { return };
        FAULTS.status.store(ALWAYS, Ordering::SeqCst);
        FAULTS.wait.store(ALWAYS, Ordering::SeqCst);
        let (start, mut outcome) = (Instant::now(), Ok(QueueProgress::Pending));
        while outcome == Ok(QueueProgress::Pending) {
            let wait = || rig.device.wait(rig.ticket).map(|()| QueueProgress::Done);
            outcome = if blocks { wait() } else { rig.device.poll(rig.ticket) };
        }
        let error = outcome.unwrap_err();
        assert!(error.kind() == ErrorKind::Lost && start.elapsed() >= PATIENCE, "{error}");
        let before = kept();
        rig.device.release_host(rig.host.take().unwrap());
        assert_eq!((rig.first_byte(), kept() - before), (7, 1));
    }
}

#[test]
fn a_queue_is_drained_after_a_failure_although_the_driver_refuses_at_first() {
    let Some(rig) = Rig::new() else { return };
    FAULTS.finish.store(5, Ordering::SeqCst);
    FAULTS.marker.store(1, Ordering::SeqCst);
    let error = rig.device.submit(&rig.queue, &Request::Copies(&[], None)).unwrap_err();
    assert_eq!((error.kind(), FAULTS.finish.load(Ordering::SeqCst)), (ErrorKind::CopyFailed, 0));
    rig.device.wait(rig.device.submit(&rig.queue, &Request::Copies(&[], None)).unwrap()).unwrap();
}

#[test]
fn memory_of_a_queue_that_cannot_be_drained_is_not_freed() {
    let Some(mut rig) = Rig::new() else { return };
    let other = rig.device.create_queue().unwrap();
    FAULTS.hold.store(true, Ordering::SeqCst);
    let running = rig.device.submit(&other, &Request::Copies(&[], None)).unwrap();
    // Make the driver refuse the copy, the probe of the device, and the draining of the queue.
    let (host, buffer) = (rig.host.as_ref().unwrap(), rig.buffer.as_ref().unwrap());
    FAULTS.finish.store(ALWAYS, Ordering::SeqCst);
    FAULTS.write.store(ALWAYS, Ordering::SeqCst);
    let upload = Transfer::Upload { from: host.at(0), to: buffer.at(0), bytes: 8 };
    assert_eq!(
        rig.device.submit(&rig.queue, &Request::Copies(&[upload], None)).unwrap_err().kind(),
        ErrorKind::Lost
    );
    // The state of the other queue's ticket is still known.
    assert_eq!(rig.device.poll(running), Ok(QueueProgress::Pending));
    let before = kept();
    rig.device.release_host(rig.host.take().unwrap());
    assert_eq!((rig.first_byte(), kept() - before), (7, 1));
    FAULTS.hold.store(false, Ordering::SeqCst);
    rig.device.wait(running).unwrap();
}
