//! The argument of every conformance check: the device under test, limits, and shorthands for calls.

use std::cell::RefCell;
use std::sync::Arc;

use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
use backend_api::kernel::{Body, VerifiedKernel};
use backend_api::wrap::SplitMix64;
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, Elements, ErrorKind, Fill, Gather, HostBuffer, HostMemory, Launch,
    Queue, Request, Result, Scatter, Search, Ticket, Transfer,
};

use super::limits::Limits;

/// Operations of the requests that every device must support.
const ALWAYS_KNOWN: [&str; 2] = ["submit", "fill"];

/// The argument of every check: the device under test, and the limits of the check.
///
/// ```
/// # use std::sync::Arc;
/// use backend_api::Device;
/// use vmarray_conformance::{Context, Limits, reference::ReferenceDevice};
/// // A check is a function of a context.
/// fn a_queue_can_be_had(context: &Context<'_>) {
///     assert!(context.device().create_queue().is_ok());
///     context.skip("there is nothing else to check");
/// }
/// let device: Arc<dyn Device> = Arc::new(ReferenceDevice::new(20 << 20));
/// let context = Context::new(&device, Limits::default());
/// a_queue_can_be_had(&context);
/// assert_eq!((context.limits().bytes, &*context.skipped().unwrap()), (20 << 20, "there is nothing else to check"));
/// ```
#[derive(Debug)]
pub struct Context<'a> {
    device: &'a Arc<dyn Device>,
    limits: Limits,
    skipped: RefCell<Option<String>>,
}

impl<'a> Context<'a> {
    /// Creates the context for one run of one check on `device`.
    #[must_use]
    pub fn new(device: &'a Arc<dyn Device>, limits: Limits) -> Self {
        Self { device, limits, skipped: RefCell::new(None) }
    }

    /// Returns the device under test.
    #[must_use]
    pub fn device(&self) -> &'a Arc<dyn Device> {
        self.device
    }

    /// Returns the limits of the check. Their [`bytes`](Limits::bytes) are at most the device's memory, and
    /// at least [`Limits::LEAST_BYTES`].
    #[must_use]
    pub fn limits(&self) -> Limits {
        let bytes = self.limits.bytes.min(self.device.info().total_bytes);
        self.limits.with_bytes(bytes.max(Limits::LEAST_BYTES))
    }

    /// Records why this device cannot run the check, or a part of it. Only the first call has an effect.
    pub fn skip(&self, why: impl Into<String>) {
        self.skipped.borrow_mut().get_or_insert_with(|| why.into());
    }

    /// Returns the reason of the first call of [`skip`](Self::skip), or `None` without such a call.
    #[must_use]
    pub fn skipped(&self) -> Option<String> {
        self.skipped.borrow().clone()
    }

    /// Returns true if the device supports these kinds of requests, named by their
    /// [operations](Request::operation). Otherwise records that the check skips a part.
    pub(super) fn knows(&self, operations: &[&str]) -> bool {
        let (memory, host) = (self.memory(64), self.host(64));
        let (elements, place) = (Elements { start: memory.at(0), count: 0, stride: 8 }, host.at(0));
        let search =
            Search { elements, field_offset: 0, value: &[1], limit: 0, count_all: true, answer: place };
        let (indices, values) = (place, place);
        let gather = Gather { elements: elements.into(), indices, count: 0, values };
        let scatter = Scatter { elements: elements.into(), indices, count: 0, values };
        let field = Instruction::Field { source: 0, offset: 0, of: Type::U32 };
        let program = Program::new(vec![field]).expect("the program must be valid");
        let action = Action::Histogram { value: Value(0), filter: None, bins: 2, answer: place };
        let geometry = Geometry::plain(0);
        let compute = Compute { program: &program, sources: &[elements], geometry, action };
        let kernel = VerifiedKernel::new(Body::default()).expect("the kernel's body must be valid");
        let launch = Launch::new(&kernel, 0, geometry, place);
        let requests: [Request<'_>; 5] =
            [(&search).into(), (&gather).into(), (&scatter).into(), (&compute).into(), (&launch).into()];
        let queue = self.queue();
        operations.iter().all(|operation| {
            if ALWAYS_KNOWN.contains(operation) {
                return true;
            }
            let mut requests = requests.iter();
            let request = requests.find(|request| request.operation() == *operation);
            let request =
                request.unwrap_or_else(|| panic!("add a request `{operation}` to `Context::knows`"));
            match queue.submit(request) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    self.skip(format!("the device does not support the request `{operation}`"));
                    false
                }
                _ => true,
            }
        })
    }

    pub(super) fn queue(&self) -> Queue<dyn Device> {
        Queue::new(self.device).expect("the creation of a queue must succeed")
    }

    pub(super) fn memory(&self, bytes: u64) -> DeviceBuffer<dyn Device> {
        DeviceBuffer::new(self.device, bytes, Commit::Lazy)
            .expect("the allocation of device memory must succeed")
    }

    /// Allocates pinned memory if the system allows it, else pageable memory.
    pub(super) fn host(&self, bytes: usize) -> HostBuffer<dyn Device> {
        self.host_of(HostMemory::Pinned, bytes).unwrap_or_else(|| {
            HostBuffer::new(self.device, bytes, HostMemory::Pageable)
                .expect("the allocation of host memory must succeed")
        })
    }

    /// Allocates host memory of a kind; returns `None` if the system refuses pinned memory.
    pub(super) fn host_of(&self, kind: HostMemory, bytes: usize) -> Option<HostBuffer<dyn Device>> {
        match HostBuffer::new(self.device, bytes, kind) {
            Err(error) if (error.kind(), kind) == (ErrorKind::PinRefused, HostMemory::Pinned) => None,
            other => Some(other.expect("the allocation of host memory must succeed or return `PinRefused`")),
        }
    }

    pub(super) fn wait(&self, ticket: Ticket) {
        self.device.wait(ticket).expect("the submitted work must succeed");
    }

    /// Submits a fill of the first `bytes` bytes of device memory; does not wait.
    #[track_caller]
    pub(super) fn fill(
        &self,
        queue: &Queue<dyn Device>,
        memory: &DeviceBuffer<dyn Device>,
        bytes: u64,
        pattern: &[u8],
    ) -> Ticket {
        queue.submit(&Fill { to: memory.at(0), bytes, pattern }).expect("the fill must succeed")
    }

    /// Submits a copy of the first `bytes` bytes of host memory to the start of device memory; does not wait.
    #[track_caller]
    pub(super) fn upload(
        &self,
        queue: &Queue<dyn Device>,
        from: &HostBuffer<dyn Device>,
        to: &DeviceBuffer<dyn Device>,
        bytes: u64,
    ) -> Ticket {
        queue
            .submit(&[Transfer::Upload { from: from.at(0), to: to.at(0), bytes }])
            .expect("the upload must succeed")
    }

    /// Submits a copy of the first `bytes` bytes of device memory to the start of host memory; does not wait.
    #[track_caller]
    pub(super) fn download(
        &self,
        queue: &Queue<dyn Device>,
        from: &DeviceBuffer<dyn Device>,
        to: &HostBuffer<dyn Device>,
        bytes: u64,
    ) -> Ticket {
        queue
            .submit(&[Transfer::Download { from: from.at(0), to: to.at(0), bytes }])
            .expect("the download must succeed")
    }

    /// Returns `bytes` pseudorandom bytes. Equal seeds give equal bytes.
    pub(super) fn noise(&self, seed: u64, bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        SplitMix64::new(seed).fill(&mut noise);
        noise
    }
}

/// Asserts that a call returned an error of the kind `kind`.
#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(what: &str, result: Result<T>, kind: ErrorKind) {
    match result {
        Err(error) if error.kind() == kind => {}
        other => panic!("{what}: expected an error of kind {kind:?}, found {other:?}"),
    }
}

/// Asserts that host memory holds the bytes `expected` from the offset `at` on.
#[track_caller]
pub(super) fn assert_holds(what: &str, host: &HostBuffer<dyn Device>, at: usize, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    host.read(at, &mut found);
    assert_bytes(what, &found, expected);
}

/// Asserts that the bytes `found` and `expected` are equal. The panic message states the first difference.
#[track_caller]
pub(super) fn assert_bytes(what: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if found == expected {
        return;
    }
    let first = found.iter().zip(expected).position(|(found, expected)| found != expected);
    let first = first.expect("a byte must differ in slices that differ");
    let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let end = (first + 16).min(found.len());
    panic!(
        "{what}: {wrong} of {} bytes are wrong, the first at {first}: expected {:02x?}, found {:02x?}",
        found.len(),
        &expected[first..end],
        &found[first..end]
    );
}
