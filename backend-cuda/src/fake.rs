//! Fake CUDA driver, which needs no GPU, for tests of tickets, waiting, wakers and loss of a device.
//!
//! Device memory is host memory. Copies, and kernels of the program, run at submission; the backend's own
//! kernels do nothing. The test decides when events complete.

pub(crate) mod cublas;
pub(crate) mod emulator;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use backend_api::{Commit, DeviceBuffer, HostBuffer, HostMemory, Queue, QueueId, Ticket, Transfer};

use crate::CudaDevice;
use crate::context::CudaContext;
use crate::discovery::Card;
use crate::driver::{
    AccessDescription, AllocationProperties, BatchAttributes, ContextHandle, Driver, EventHandle, Function,
    ModuleHandle, StreamHandle, Table,
};
use crate::options::CudaOptions;

const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;
const LAUNCH_FAILED: u32 = 719;
const FREE_BYTES: usize = 1 << 40;

/// The start and the length in bytes of all device memory and page-locked host memory of the fake driver.
static RANGES: parking_lot::Mutex<BTreeMap<u64, u64>> = parking_lot::Mutex::new(BTreeMap::new());

/// Access of emulated kernels to allocated memory only.
struct Reachable;

impl Reachable {
    fn place(address: u64, bytes: usize) -> *mut u8 {
        let end = address + bytes as u64;
        let ranges = RANGES.lock();
        let found = ranges.range(..=address).next_back();
        assert!(
            found.is_some_and(|(start, len)| end <= start + len),
            "a kernel accesses {bytes} bytes at {address:#x}, which are not allocated"
        );
        std::ptr::with_exposed_provenance_mut(address as usize)
    }
}

impl emulator::EmulatedMemory for Reachable {
    fn read(&self, address: u64, bytes: &mut [u8]) {
        let place = Self::place(address, bytes.len());
        // SAFETY: the range is allocated, and the test keeps it so until the work is done.
        unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        let place = Self::place(address, bytes.len());
        // SAFETY: as above.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// The state behind a stream handle.
#[derive(Debug, Default)]
pub(crate) struct FakeStream {
    recorded: AtomicU64,
    /// Number of events that may complete; `u64::MAX` until the test holds the stream.
    open: AtomicU64,
    /// The driver code that every later query of the stream returns, if not 0.
    failure: AtomicU64,
    queries: AtomicUsize,
    launches: AtomicUsize,
    batches: AtomicUsize,
    singles: AtomicUsize,
    betweens: AtomicUsize,
}

/// The state behind an event handle.
#[derive(Debug)]
struct FakeEvent {
    stream: AtomicUsize,
    place: AtomicU64,
}

/// Behaviour of the fake driver towards a thread, set by the test, and counts of the thread's calls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Driven {
    /// The number of calls that fail for lack of resources: recording an event, and querying a stream.
    pub(crate) short_records: usize,
    pub(crate) short_questions: usize,
    /// The number of queries that report an event as pending, independent of its stream.
    pub(crate) late_events: usize,
    /// True if the GPU is too full for a stream. The next field is the length above which allocations fail.
    pub(crate) no_streams: bool,
    pub(crate) no_bytes_above: Option<usize>,
    /// The number of calls that fail for lack of resources: mapping memory, and giving GPUs access to it.
    pub(crate) short_maps: usize,
    pub(crate) short_accesses: usize,
    /// True if the GPU lacks virtual memory management.
    pub(crate) is_old: bool,
    /// The number of streams that were created and not destroyed.
    pub(crate) streams: usize,
    /// True if only a 64th of the GPU's memory is free.
    pub(crate) is_full: bool,
    /// The bytes of device memory that were freed, and the number of zeroes among them.
    pub(crate) freed: (usize, usize),
}

thread_local! {
    /// The compute capability of the GPUs that this thread opens.
    pub(crate) static CAPABILITY: Cell<c_int> = const { Cell::new(9) };
    static DRIVEN: Cell<Driven> = const {
        Cell::new(Driven {
            short_records: 0,
            short_questions: 0,
            late_events: 0,
            no_streams: false,
            no_bytes_above: None,
            short_maps: 0,
            short_accesses: 0,
            is_old: false,
            streams: 0,
            is_full: false,
            freed: (0, 0),
        })
    };
}

/// Changes the driver's behaviour towards this thread; returns the new state.
pub(crate) fn driven(change: impl FnOnce(&mut Driven)) -> Driven {
    let mut driven = DRIVEN.get();
    change(&mut driven);
    DRIVEN.set(driven);
    driven
}

unsafe extern "C" fn stream_create(stream: *mut StreamHandle, _: c_uint) -> u32 {
    if DRIVEN.get().no_streams {
        return OUT_OF_MEMORY;
    }
    driven(|driven| driven.streams += 1);
    let made = Box::new(FakeStream { open: AtomicU64::new(u64::MAX), ..FakeStream::default() });
    // SAFETY: the caller provides room for a handle.
    unsafe { stream.write(StreamHandle(Box::into_raw(made).cast())) };
    0
}

unsafe extern "C" fn stream_destroy(stream: StreamHandle) -> u32 {
    driven(|driven| driven.streams = driven.streams.wrapping_sub(1));
    // SAFETY: handles come from `stream_create` and are destroyed once.
    drop(unsafe { Box::from_raw(stream.0.cast::<FakeStream>()) });
    0
}

/// # Safety
/// The stream must be alive.
unsafe fn state<'a>(stream: *mut c_void) -> &'a FakeStream {
    // SAFETY: guaranteed by the caller.
    unsafe { &*stream.cast::<FakeStream>() }
}

impl FakeStream {
    fn answer(&self, place: u64) -> u32 {
        self.queries.fetch_add(1, Ordering::Relaxed);
        match self.failure.load(Ordering::Acquire) {
            0 if self.open.load(Ordering::Acquire) >= place => 0,
            0 => NOT_READY,
            failure => failure as u32,
        }
    }

    /// Lets events complete only up to the one recorded as number `count`.
    pub(crate) fn open(&self, count: u64) {
        self.open.store(count, Ordering::Release);
    }

    /// Makes all calls fail as after a crashed kernel.
    pub(crate) fn fail(&self) {
        self.failure.store(LAUNCH_FAILED.into(), Ordering::Release);
    }

    pub(crate) fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }

    /// The number of copies between host and device that were started singly, of batches, and of kernels.
    pub(crate) fn started(&self) -> [usize; 3] {
        [&self.singles, &self.batches, &self.launches].map(|count| count.load(Ordering::Relaxed))
    }
}

impl FakeStream {
    /// The number of copies between contexts.
    pub(crate) fn between(&self) -> usize {
        self.betweens.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn stream_query(stream: StreamHandle) -> u32 {
    if is_short_for_stream() {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the stream is alive, here and below.
    let stream = unsafe { state(stream.0) };
    stream.answer(stream.recorded.load(Ordering::Acquire))
}

fn is_short_for_stream() -> bool {
    let before = DRIVEN.get().short_questions;
    driven(|driven| driven.short_questions = before.saturating_sub(1));
    before > 0
}

unsafe extern "C" fn stream_synchronize(stream: StreamHandle) -> u32 {
    if is_short_for_stream() {
        return OUT_OF_MEMORY;
    }
    loop {
        // SAFETY: as above.
        let stream = unsafe { state(stream.0) };
        match stream.answer(stream.recorded.load(Ordering::Acquire)) {
            NOT_READY => std::thread::yield_now(),
            answer => return answer,
        }
    }
}

unsafe extern "C" fn event_create(event: *mut EventHandle, _: c_uint) -> u32 {
    let made = Box::new(FakeEvent { stream: AtomicUsize::new(0), place: AtomicU64::new(0) });
    // SAFETY: the caller provides room for a handle.
    unsafe { event.write(EventHandle(Box::into_raw(made).cast())) };
    0
}

unsafe extern "C" fn event_destroy(event: EventHandle) -> u32 {
    // SAFETY: handles come from `event_create` and are destroyed once.
    drop(unsafe { Box::from_raw(event.0.cast::<FakeEvent>()) });
    0
}

unsafe extern "C" fn event_record(event: EventHandle, stream: StreamHandle) -> u32 {
    if DRIVEN.get().short_records > 0 {
        driven(|driven| driven.short_records -= 1);
        return OUT_OF_MEMORY;
    }
    // SAFETY: both are alive.
    let (event, state) = unsafe { (&*event.0.cast::<FakeEvent>(), state(stream.0)) };
    event.stream.store(stream.0.expose_provenance(), Ordering::Release);
    event.place.store(state.recorded.fetch_add(1, Ordering::AcqRel) + 1, Ordering::Release);
    0
}

unsafe extern "C" fn event_query(event: EventHandle) -> u32 {
    if DRIVEN.get().late_events > 0 {
        driven(|driven| driven.late_events -= 1);
        return NOT_READY;
    }
    // SAFETY: the event is alive, and so is the stream in which it was recorded.
    let event = unsafe { &*event.0.cast::<FakeEvent>() };
    let stream = std::ptr::with_exposed_provenance_mut(event.stream.load(Ordering::Acquire));
    // SAFETY: as above.
    unsafe { state(stream) }.answer(event.place.load(Ordering::Acquire))
}

unsafe extern "C" fn event_synchronize(event: EventHandle) -> u32 {
    loop {
        // SAFETY: as above.
        match unsafe { event_query(event) } {
            NOT_READY => std::thread::yield_now(),
            answer => return answer,
        }
    }
}

unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize) -> u32 {
    // SAFETY: the caller provides room for two numbers.
    unsafe {
        free.write(if DRIVEN.get().is_full { FREE_BYTES / 64 } else { FREE_BYTES });
        total.write(FREE_BYTES);
    }
    0
}

unsafe extern "C" fn device_total_mem(total: *mut usize, _: c_int) -> u32 {
    // SAFETY: the caller provides room for a number.
    unsafe { total.write(FREE_BYTES) };
    0
}

/// Bytes before each allocation for its length.
const HEADER: usize = 256;

unsafe extern "C" fn mem_alloc(address: *mut u64, bytes: usize) -> u32 {
    if DRIVEN.get().no_bytes_above.is_some_and(|most| bytes > most) {
        return OUT_OF_MEMORY;
    }
    let Ok(layout) = Layout::from_size_align(bytes + HEADER, HEADER) else { return OUT_OF_MEMORY };
    // SAFETY: the layout is not empty; the header has room for a number; the caller provides room for an
    // address.
    unsafe {
        let start = alloc_zeroed(layout);
        if start.is_null() {
            return 2;
        }
        start.cast::<usize>().write(bytes);
        let start = start.add(HEADER).expose_provenance() as u64;
        RANGES.lock().insert(start, bytes as u64);
        address.write(start);
    }
    0
}

unsafe extern "C" fn mem_free(address: u64) -> u32 {
    let start = std::ptr::with_exposed_provenance_mut::<u8>(address as usize - HEADER);
    RANGES.lock().remove(&address);
    // SAFETY: from `mem_alloc`, with the same layout.
    unsafe {
        let bytes = start.cast::<usize>().read();
        let zeroes =
            std::slice::from_raw_parts(start.add(HEADER), bytes).iter().filter(|&&byte| byte == 0).count();
        driven(|driven| driven.freed = (driven.freed.0 + bytes, driven.freed.1 + zeroes));
        dealloc(start, Layout::from_size_align_unchecked(bytes + HEADER, HEADER));
    }
    0
}

/// Reserved address ranges by their start: total bytes, mapped bytes, and mapped bytes that GPUs can access.
static RESERVED: parking_lot::Mutex<BTreeMap<u64, [usize; 3]>> = parking_lot::Mutex::new(BTreeMap::new());
const GRANULARITY: usize = 2 << 20;

/// The number of mapped bytes in address ranges that this thread reserved.
pub(crate) fn mapped_bytes() -> u64 {
    MAPPED.get()
}

thread_local! {
    static MAPPED: Cell<u64> = const { Cell::new(0) };
}

unsafe extern "C" fn granularity(bytes: *mut usize, _: *const AllocationProperties, _: c_uint) -> u32 {
    // SAFETY: the caller provides room for a number.
    unsafe { bytes.write(GRANULARITY) };
    0
}

unsafe extern "C" fn address_reserve(address: *mut u64, bytes: usize, _: usize, _: u64, _: u64) -> u32 {
    assert!(bytes > 0 && bytes.is_multiple_of(GRANULARITY));
    let Ok(layout) = Layout::from_size_align(bytes, GRANULARITY) else { return OUT_OF_MEMORY };
    // SAFETY: the layout is not empty; the caller provides room for an address.
    unsafe {
        let start = alloc_zeroed(layout);
        if start.is_null() {
            return OUT_OF_MEMORY;
        }
        let start = start.expose_provenance() as u64;
        RESERVED.lock().insert(start, [bytes, 0, 0]);
        address.write(start);
    }
    0
}

unsafe extern "C" fn address_free(address: u64, bytes: usize) -> u32 {
    let reserved = RESERVED.lock().remove(&address);
    assert_eq!(
        reserved,
        Some([bytes, 0, 0]),
        "the freed addresses are no whole reservation, or still have memory"
    );
    // SAFETY: from `address_reserve`, with the same layout.
    unsafe {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        dealloc(start, Layout::from_size_align_unchecked(bytes, GRANULARITY));
    }
    0
}

unsafe extern "C" fn mem_create(
    handle: *mut u64,
    bytes: usize,
    _: *const AllocationProperties,
    _: u64,
) -> u32 {
    assert!(bytes > 0 && bytes.is_multiple_of(GRANULARITY));
    if DRIVEN.get().no_bytes_above.is_some_and(|most| bytes > most) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the caller provides room for a handle, which is just the length.
    unsafe { handle.write(bytes as u64) };
    MAPPED.set(MAPPED.get() + bytes as u64);
    0
}

unsafe extern "C" fn mem_release(handle: u64) -> u32 {
    MAPPED.set(MAPPED.get() - handle);
    0
}

unsafe extern "C" fn mem_map(address: u64, bytes: usize, _: usize, handle: u64, _: u64) -> u32 {
    let before = DRIVEN.get().short_maps;
    driven(|driven| driven.short_maps = before.saturating_sub(1));
    if before > 0 {
        return OUT_OF_MEMORY;
    }
    let mut all = RESERVED.lock();
    let (start, [reserved, mapped, _]) =
        all.range_mut(..=address).next_back().expect("the address must be in a reserved range");
    assert_eq!(
        (handle, address),
        (bytes as u64, start + *mapped as u64),
        "the new memory is not mapped directly after the mapped range"
    );
    *mapped += bytes;
    assert!(*mapped <= *reserved);
    RANGES.lock().insert(*start, *mapped as u64);
    0
}

unsafe extern "C" fn mem_unmap(address: u64, bytes: usize) -> u32 {
    let mut all = RESERVED.lock();
    let (start, [_, mapped, reached]) =
        all.range_mut(..=address).next_back().expect("the address must be in a reserved range");
    assert_eq!(
        address + bytes as u64,
        start + *mapped as u64,
        "the unmapped range does not end at the end of the mapped range"
    );
    *mapped -= bytes;
    *reached = (*reached).min(*mapped);
    RANGES.lock().insert(*start, *mapped as u64);
    if *mapped == 0 {
        RANGES.lock().remove(start);
    }
    0
}

unsafe extern "C" fn set_access(
    address: u64,
    bytes: usize,
    cards: *const AccessDescription,
    count: usize,
) -> u32 {
    let before = DRIVEN.get().short_accesses;
    driven(|driven| driven.short_accesses = before.saturating_sub(1));
    if before > 0 {
        return OUT_OF_MEMORY;
    }
    assert!(!cards.is_null() && count > 0);
    let mut all = RESERVED.lock();
    let (start, [_, mapped, reached]) =
        all.range_mut(..=address).next_back().expect("the address must be in a reserved range");
    assert_eq!(
        (address, bytes),
        (start + *reached as u64, *mapped - *reached),
        "GPUs get access to other memory than the newly mapped one"
    );
    *reached = *mapped;
    0
}

unsafe extern "C" fn memset(address: u64, byte: u8, bytes: usize, _: StreamHandle) -> u32 {
    // SAFETY: the caller passes an allocated range.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address as usize).write_bytes(byte, bytes) };
    0
}

unsafe extern "C" fn host_register(start: *mut c_void, bytes: usize, _: c_uint) -> u32 {
    RANGES.lock().insert(start.expose_provenance() as u64, bytes as u64);
    0
}

unsafe extern "C" fn host_unregister(start: *mut c_void) -> u32 {
    RANGES.lock().remove(&(start.addr() as u64));
    0
}

unsafe extern "C" fn host_pointer(mapped: *mut u64, start: *mut c_void, _: c_uint) -> u32 {
    // SAFETY: the caller provides room for an address.
    unsafe { mapped.write(start.expose_provenance() as u64) };
    0
}

/// # Safety
/// Both ranges must be allocated.
unsafe fn copy(to: *mut c_void, from: *const c_void, bytes: usize) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    0
}

unsafe extern "C" fn upload(to: u64, from: *const c_void, bytes: usize, stream: StreamHandle) -> u32 {
    // SAFETY: the stream is alive, here and below.
    unsafe { state(stream.0) }.singles.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the backend checked the ranges, here and below.
    unsafe { copy(std::ptr::with_exposed_provenance_mut(to as usize), from, bytes) }
}

unsafe extern "C" fn download(to: *mut c_void, from: u64, bytes: usize, stream: StreamHandle) -> u32 {
    // SAFETY: as above.
    unsafe { state(stream.0) }.singles.fetch_add(1, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { copy(to, std::ptr::with_exposed_provenance(from as usize), bytes) }
}

unsafe extern "C" fn internal(to: u64, from: u64, bytes: usize, _: StreamHandle) -> u32 {
    let to = std::ptr::with_exposed_provenance_mut(to as usize);
    // SAFETY: as above.
    unsafe { copy(to, std::ptr::with_exposed_provenance(from as usize), bytes) }
}

unsafe extern "C" fn between(
    to: u64,
    to_context: ContextHandle,
    from: u64,
    from_context: ContextHandle,
    bytes: usize,
    stream: StreamHandle,
) -> u32 {
    assert_ne!(to_context, from_context, "a copy between contexts names one context twice");
    // SAFETY: the stream is alive.
    unsafe { state(stream.0) }.betweens.fetch_add(1, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { internal(to, from, bytes, stream) }
}

/// Each GPU has a context of its own.
unsafe extern "C" fn primary_retain(context: *mut ContextHandle, ordinal: c_int) -> u32 {
    // SAFETY: the caller provides room for a handle, which is only a name here.
    unsafe { context.write(ContextHandle(std::ptr::without_provenance_mut(ordinal as usize + 1))) };
    0
}

/// GPUs can access the memory of all other GPUs except GPU 2.
unsafe extern "C" fn can_access_peer(answer: *mut c_int, from: c_int, to: c_int) -> u32 {
    // SAFETY: the caller provides room for a number.
    unsafe { answer.write((from != to && to != 2).into()) };
    0
}

unsafe extern "C" fn batch(
    to: *mut u64,
    from: *mut u64,
    bytes: *mut usize,
    count: usize,
    _: *mut BatchAttributes,
    _: *mut usize,
    _: usize,
    stream: StreamHandle,
) -> u32 {
    // SAFETY: the stream is alive.
    unsafe { state(stream.0) }.batches.fetch_add(1, Ordering::Relaxed);
    for i in 0..count {
        // SAFETY: the caller passes three lists of `count` entries, and the backend checked the ranges.
        unsafe {
            let to = std::ptr::with_exposed_provenance_mut(to.add(i).read() as usize);
            copy(to, std::ptr::with_exposed_provenance(from.add(i).read() as usize), bytes.add(i).read());
        }
    }
    0
}

unsafe extern "C" fn launch(
    kernel: Function,
    blocks: c_uint,
    _: c_uint,
    _: c_uint,
    threads: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    stream: StreamHandle,
    arguments: *mut *mut c_void,
    _: *mut *mut c_void,
) -> u32 {
    // SAFETY: the stream is alive.
    unsafe { state(stream.0) }.launches.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the module is loaded, and owns the kernel, if the kernel is known here.
    if let Some(kernel) = unsafe { kernel.0.cast::<emulator::EmulatedKernel>().as_ref() } {
        // SAFETY: the kernel has one argument of `param_bytes` bytes.
        let params = unsafe { std::slice::from_raw_parts(arguments.read().cast::<u8>(), kernel.param_bytes) };
        kernel.run(&Reachable, blocks, threads, params);
    }
    0
}

/// The state behind a module handle: a PTX text, and the kernels that were looked up in it.
#[derive(Debug)]
struct FakeModule {
    text: String,
    kernels: parking_lot::Mutex<Vec<Arc<emulator::EmulatedKernel>>>,
}

unsafe extern "C" fn module_load(module: *mut ModuleHandle, text: *const c_void) -> u32 {
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(text.cast()) }.to_str().expect("PTX text must be UTF-8").to_owned();
    let loaded = Box::new(FakeModule { text, kernels: parking_lot::Mutex::default() });
    // SAFETY: the caller provides room for a handle.
    unsafe { module.write(ModuleHandle(Box::into_raw(loaded).cast())) };
    0
}

unsafe extern "C" fn module_unload(module: ModuleHandle) -> u32 {
    // SAFETY: handles come from `module_load` and are unloaded once.
    drop(unsafe { Box::from_raw(module.0.cast::<FakeModule>()) });
    0
}

unsafe extern "C" fn module_function(found: *mut Function, module: ModuleHandle, name: *const c_char) -> u32 {
    // SAFETY: the module is loaded.
    let module = unsafe { &*module.0.cast::<FakeModule>() };
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().expect("a kernel's name must be UTF-8");
    let mut function = Function::NULL;
    if name.starts_with("launch_") {
        let kernel = Arc::new(
            emulator::EmulatedKernel::parse(&module.text, name)
                .expect("the module must contain a kernel of this name"),
        );
        function.0 = std::ptr::from_ref(&*kernel).cast_mut().cast();
        module.kernels.lock().push(kernel);
    }
    // SAFETY: the caller provides room for a handle.
    unsafe { found.write(function) };
    0
}

unsafe extern "C" fn device_attribute(value: *mut c_int, which: c_int, _: c_int) -> u32 {
    let number = match which {
        which if which == Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as c_int => {
            CAPABILITY.get()
        }
        which if which == Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as c_int => 2,
        which if which == Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int => {
            c_int::from(!DRIVEN.get().is_old)
        }
        _ => 0,
    };
    // SAFETY: the caller provides room for a number.
    unsafe { value.write(number) };
    0
}

unsafe extern "C" fn occupancy(blocks: *mut c_int, _: Function, _: c_int, _: usize) -> u32 {
    // SAFETY: the caller provides room for a number.
    unsafe { blocks.write(1) };
    0
}

fn driver(has_batches: bool) -> &'static Driver {
    let table = Table {
        memcpy_batch_async_v2: has_batches.then_some(batch as _),
        mem_address_reserve: Some(address_reserve),
        mem_address_free: Some(address_free),
        mem_create: Some(mem_create),
        mem_release: Some(mem_release),
        mem_map: Some(mem_map),
        mem_unmap: Some(mem_unmap),
        mem_set_access: Some(set_access),
        mem_get_allocation_granularity: Some(granularity),
        stream_create,
        stream_destroy,
        stream_query,
        stream_synchronize,
        event_create,
        event_destroy,
        event_record,
        event_query,
        event_synchronize,
        mem_get_info,
        device_total_mem,
        mem_alloc,
        mem_free,
        mem_host_get_device_pointer: host_pointer,
        memset_d8_async: memset,
        memcpy_htod_async: upload,
        memcpy_dtoh_async: download,
        memcpy_dtod_async: internal,
        memcpy_peer_async: between,
        device_can_access_peer: can_access_peer,
        mem_host_register: host_register,
        mem_host_unregister: host_unregister,
        launch_kernel: launch,
        module_load_data: module_load,
        module_unload,
        module_get_function: module_function,
        device_get_attribute: device_attribute,
        occupancy,
        ..Table::inert()
    };
    leaked(table)
}

fn leaked(table: Table) -> &'static Driver {
    // Keep the tables of all drivers reachable, so leak checkers do not report them.
    static TABLES: parking_lot::Mutex<Vec<&'static Driver>> = parking_lot::Mutex::new(Vec::new());
    let driver: &'static Driver = Box::leak(Box::new(Driver::with(table)));
    TABLES.lock().push(driver);
    driver
}

/// Creates a device with its own fake driver, which has no batch copies.
pub(crate) fn device(options: &CudaOptions) -> Arc<CudaDevice> {
    device_on(driver(false), options)
}

/// Opens another device of the same GPU.
pub(crate) fn again(device: &CudaDevice) -> Arc<CudaDevice> {
    card_on(device.core.context.driver, device.core.context.ordinal(), &CudaOptions::new())
}

/// Creates a device with a fake driver that has batch copies.
pub(crate) fn device_with_batches(options: &CudaOptions) -> Arc<CudaDevice> {
    device_on(driver(true), options)
}

fn device_on(driver: &'static Driver, options: &CudaOptions) -> Arc<CudaDevice> {
    card_on(driver, 0, options)
}

fn card_on(driver: &'static Driver, ordinal: c_int, options: &CudaOptions) -> Arc<CudaDevice> {
    let mut card = Card::describe(driver, ordinal).unwrap();
    card.info.identity = format!("fake:{ordinal}");
    let context = CudaContext::primary(driver, ordinal).unwrap();
    let device = CudaDevice::new(card, context, options);
    device.core.cublas.use_library(cublas::installed());
    Arc::new(device)
}

/// Creates devices of one fake driver, for these GPUs. Other GPUs cannot access GPU 2's memory.
pub(crate) fn devices<const N: usize>(ordinals: [c_int; N]) -> [Arc<CudaDevice>; N] {
    let driver = leaked(Table { primary_retain, ..driver(false).table });
    // The copy kernels do nothing in this fake driver, so force single copies.
    let options = CudaOptions::new().with_route(crate::options::Route::Single);
    ordinals.map(|ordinal| card_on(driver, ordinal, &options))
}

/// Returns the stream of a queue, which the test can hold. The stream lives as long as the queue.
pub(crate) fn stream(device: &CudaDevice, queue: QueueId) -> &FakeStream {
    let queue = device.core.queue("test", queue).unwrap();
    // SAFETY: the stream lives as long as the queue, which the device keeps.
    unsafe { state(queue.stream.raw().0) }
}

/// A device of the fake driver with a queue, and memory of each kind.
pub(crate) struct FakeScene {
    pub device: Arc<CudaDevice>,
    pub queue: Queue<CudaDevice>,
    pub memory: DeviceBuffer<CudaDevice>,
    pub host: HostBuffer<CudaDevice>,
}

impl FakeScene {
    /// Creates a scene with its own fake driver, and `bytes` bytes of each kind of memory.
    pub(crate) fn new(bytes: usize) -> Self {
        Self::on(device(&CudaOptions::new()), bytes)
    }

    pub(crate) fn on(device: Arc<CudaDevice>, bytes: usize) -> Self {
        let queue = Queue::new(&device).unwrap();
        let memory = DeviceBuffer::new(&device, bytes as u64, Commit::Lazy).unwrap();
        let host = HostBuffer::new(&device, bytes, HostMemory::Pinned).unwrap();
        Self { device, queue, memory, host }
    }

    /// The queue's stream, for the test to hold.
    pub(crate) fn stream(&self) -> &FakeStream {
        stream(&self.device, self.queue.id())
    }

    /// An upload of `bytes` bytes between the starts of the two memories.
    pub(crate) fn upload(&self, bytes: u64) -> Transfer<'_> {
        Transfer::Upload { from: self.host.at(0), to: self.memory.at(0), bytes }
    }

    /// Submits an empty upload.
    pub(crate) fn submit(&self) -> Ticket {
        self.queue.submit(&[]).unwrap()
    }
}
