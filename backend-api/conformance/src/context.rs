//! The context of a check: a device, limits, and short forms of the device's calls.

use std::cell::RefCell;
use std::sync::Arc;

use backend_api::wrap::SplitMix64;
use backend_api::{
    Commit, Device, DeviceBuffer, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Result, Ticket, Transfer,
};

use super::Limits;

/// The device that is checked, with the limits of the check.
///
/// ```
/// # use std::sync::Arc;
/// use backend_api::Device;
/// use vmarray_conformance::{Context, Limits, reference::ReferenceDevice};
/// // A check is a function of a context.
/// fn a_queue_can_be_had<D: Device>(context: &Context<'_, D>) {
///     assert!(context.device().create_queue().is_ok());
///     context.skip("there is nothing else to check");
/// }
/// let device = Arc::new(ReferenceDevice::new(20 << 20));
/// let context = Context::new(&device, Limits::default());
/// a_queue_can_be_had(&context);
/// assert_eq!((context.limits().bytes, &*context.skipped().unwrap()), (20 << 20, "there is nothing else to check"));
/// ```
#[derive(Debug)]
pub struct Context<'a, D: Device> {
    device: &'a Arc<D>,
    limits: Limits,
    skipped: RefCell<Option<String>>,
}

impl<'a, D: Device> Context<'a, D> {
    /// Creates the context of one run of one check.
    #[must_use]
    pub fn new(device: &'a Arc<D>, limits: Limits) -> Self {
        Self { device, limits, skipped: RefCell::new(None) }
    }

    /// Returns the device that the check tests.
    #[must_use]
    pub fn device(&self) -> &'a Arc<D> {
        self.device
    }

    /// Returns the limits of the check. Its [`bytes`](Limits::bytes) are at most the device's memory, and at
    /// least [`Limits::LEAST_BYTES`].
    #[must_use]
    pub fn limits(&self) -> Limits {
        let bytes = self.limits.bytes.min(self.device.info().total_bytes);
        self.limits.with_bytes(bytes.max(Limits::LEAST_BYTES))
    }

    /// Records the reason why the check, or a part of it, cannot run on this device. Later calls have no
    /// effect.
    pub fn skip(&self, why: impl Into<String>) {
        self.skipped.borrow_mut().get_or_insert_with(|| why.into());
    }

    /// Returns the reason of the first call of [`skip`](Self::skip), or `None` without such a call.
    #[must_use]
    pub fn skipped(&self) -> Option<String> {
        self.skipped.borrow().clone()
    }

    pub(super) fn queue(&self) -> Queue<D> {
        Queue::new(self.device).expect("a queue")
    }

    pub(super) fn memory(&self, bytes: u64) -> DeviceBuffer<D> {
        DeviceBuffer::new(self.device, bytes, Commit::Lazy).expect("device memory")
    }

    /// Allocates pinned memory if the system allows it, else pageable memory.
    pub(super) fn host(&self, bytes: usize) -> HostBuffer<D> {
        self.host_of(HostMemory::Pinned, bytes).unwrap_or_else(|| {
            HostBuffer::new(self.device, bytes, HostMemory::Pageable).expect("host memory")
        })
    }

    /// Allocates host memory of a kind; returns `None` if the system refuses pinned memory.
    pub(super) fn host_of(&self, kind: HostMemory, bytes: usize) -> Option<HostBuffer<D>> {
        match HostBuffer::new(self.device, bytes, kind) {
            Err(error) if (error.kind(), kind) == (ErrorKind::PinRefused, HostMemory::Pinned) => None,
            other => Some(other.expect("host memory, or its refusal")),
        }
    }

    pub(super) fn wait(&self, ticket: Ticket) {
        self.device.wait(ticket).expect("work that is done");
    }

    /// Submits a fill of the first `bytes` bytes of device memory, without a wait for its end.
    #[track_caller]
    pub(super) fn fill(
        &self,
        queue: &Queue<D>,
        memory: &DeviceBuffer<D>,
        bytes: u64,
        pattern: &[u8],
    ) -> Ticket {
        queue.fill(&Fill { to: memory.at(0), bytes, pattern }).expect("a fill")
    }

    /// Submits a copy of the first `bytes` bytes of host memory to the start of device memory, without a wait
    /// for its end.
    #[track_caller]
    pub(super) fn upload(
        &self,
        queue: &Queue<D>,
        from: &HostBuffer<D>,
        to: &DeviceBuffer<D>,
        bytes: u64,
    ) -> Ticket {
        queue.submit(&[Transfer::Upload { from: from.at(0), to: to.at(0), bytes }]).expect("an upload")
    }

    /// Submits a copy of the first `bytes` bytes of device memory to the start of host memory, without a wait
    /// for its end.
    #[track_caller]
    pub(super) fn download(
        &self,
        queue: &Queue<D>,
        from: &DeviceBuffer<D>,
        to: &HostBuffer<D>,
        bytes: u64,
    ) -> Ticket {
        queue.submit(&[Transfer::Download { from: from.at(0), to: to.at(0), bytes }]).expect("a download")
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
        other => panic!("{what}: expected a refusal as {kind:?}, found {other:?}"),
    }
}

/// Asserts that host memory holds the bytes `expected` from the offset `at` on.
#[track_caller]
pub(super) fn assert_holds<D: Device>(what: &str, host: &HostBuffer<D>, at: usize, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    host.read(at, &mut found);
    assert_bytes(what, &found, expected);
}

/// Asserts that the bytes `found` and `expected` are equal. The panic message states the first difference.
#[track_caller]
pub(super) fn assert_bytes(what: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let Some(first) = (0..found.len()).find(|&i| found[i] != expected[i]) else { return };
    let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let end = (first + 16).min(found.len());
    panic!(
        "{what}: {wrong} of {} bytes are wrong, the first at {first}: expected {:02x?}, found {:02x?}",
        found.len(),
        &expected[first..end],
        &found[first..end]
    );
}
