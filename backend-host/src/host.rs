//! [`HostDevice`]: host RAM as a device, with queues that threads of this process execute.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{
    Addresses, BufferHandle, Commit, Device, DeviceInfo, DeviceKind, DirectReads, Error, ErrorKind,
    MemoryStatus, QueueHandle, Reach, Request, Result, Ticket,
};
use vmarray_support::backends::ram::SystemMemory;

use crate::engine::{Engine, EnginePeers};
use crate::error;
use crate::memory;
use crate::ram::{Capacity, Ram};
use crate::storage::Storage;

/// A device whose memory is host RAM, in place of a GPU.
///
/// The device has the features of a GPU: memory of a fixed size with a count of free bytes, asynchronous
/// queues, page-locked host memory, kernels. Its threads sleep when they have no work. A thread that waits
/// for a ticket executes the work itself if no other thread has begun it. So a copy with an immediate wait
/// costs little more than a plain copy.
///
/// All devices of this type in a process can access each other's memory: see [`reaches`](Device::reaches).
///
/// Short work (below 128 KiB) without a waiting thread starts within about 0.2 ms; long work starts at once.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
/// use backend_host::HostDevice;
///
/// let device = Arc::new(HostDevice::new(1 << 20)?);
/// assert!(device.threads() >= 1 && HostDevice::builder().threads(1).build()?.threads() == 1);
/// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 4096, Commit::Proven)?);
/// let host = HostBuffer::new(&device, 4096, HostMemory::Pageable)?;
/// host.write(0, b"there");
/// queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(7), bytes: 5 }])?;
/// let back = queue.submit(&[Transfer::Download { from: memory.at(7), to: host.at(100), bytes: 5 }])?;
/// backend_api::Device::wait(&*device, back)?;
/// let mut bytes = [0; 5];
/// host.read(100, &mut bytes);
/// assert_eq!(&bytes, b"there");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct HostDevice {
    pub(crate) engine: Engine<Ram>,
    capacity: Capacity,
    bounded: bool,
}

/// Builder of a [`HostDevice`].
///
/// ```
/// use backend_api::{Device, ErrorKind, HostMemory};
/// use backend_host::HostDevice;
/// let device = HostDevice::builder().name("slow card").bytes(64 << 20).threads(2).pinned_max_bytes(4096).build()?;
/// assert_eq!((&*device.info().name, device.info().copy_engines, device.threads()), ("slow card", 2, 2));
/// assert_eq!(device.memory()?.free_bytes, 64 << 20);
/// assert_eq!(device.allocate_host(8192, HostMemory::Pinned).unwrap_err().kind(), ErrorKind::PinRefused);
/// // The default is the RAM of the machine.
/// let device = HostDevice::builder().build()?;
/// assert_eq!(device.info().total_bytes, backend_host::devices()[0].total_bytes);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct HostDeviceBuilder {
    bytes: Option<u64>,
    threads: Option<usize>,
    name: String,
    pinned_max_bytes: u64,
}

impl HostDeviceBuilder {
    /// Sets the size of the device memory in bytes. The size may exceed the machine's RAM: memory that is
    /// allocated [lazily](Commit::Lazy) takes RAM when it is first used. The default is all RAM of the
    /// machine; RAM that other programs use then counts as used.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Sets the maximum number of worker threads, at least 1. Threads start when there is work. The default
    /// is the number of processors for this program.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Sets the device's name, which appears in messages.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the maximum of page-locked host memory in bytes; no limit by default. Beyond this limit, or the
    /// system's own limit, the device returns [`PinRefused`](ErrorKind::PinRefused).
    pub fn pinned_max_bytes(mut self, bytes: u64) -> Self {
        self.pinned_max_bytes = bytes;
        self
    }

    /// Builds the device.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the builder has no size and the system does not report the size of its RAM.
    pub fn build(self) -> Result<HostDevice> {
        let bytes = match self.bytes {
            Some(bytes) => bytes,
            None => system_memory("build")?.total_bytes,
        };
        let threads = self.threads.unwrap_or_else(default_threads);
        let info = describe(&self.name, next_index(), bytes);
        let engine = Engine::with_peers(info, threads, self.pinned_max_bytes, &PEERS);
        let capacity = Capacity::new(bytes, engine.wiping());
        Ok(HostDevice { engine, capacity, bounded: self.bytes.is_none() })
    }
}

/// Returns the devices of this backend: the RAM of the machine as one device, or no device if the system does
/// not report the size of the RAM.
///
/// ```
/// for info in backend_host::devices() {
///     assert!(info.total_bytes > 0);
///     println!("{info}: {} bytes", info.total_bytes);
/// }
/// ```
#[must_use]
pub fn devices() -> Vec<DeviceInfo> {
    let describe = |memory: SystemMemory| {
        let mut info = describe(DEFAULT_NAME, 0, memory.total_bytes);
        info.copy_engines = u32::try_from(default_threads()).unwrap_or(u32::MAX);
        info
    };
    memory::system_memory().map(describe).into_iter().collect()
}

/// All host devices of the process, which can access each other's memory.
static PEERS: EnginePeers<Ram> = EnginePeers::new();

const DEFAULT_NAME: &str = "host RAM";

fn describe(name: &str, index: u64, bytes: u64) -> DeviceInfo {
    let mut info = DeviceInfo::new("host", name, DeviceKind::HostMemory, &format!("host:{index}"));
    info.forward_progress = true;
    info.with_total_bytes(bytes)
}

/// Returns the number of a new device; the first device of the process has number 0, as in discovery.
fn next_index() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Number of processors that the system allots to this program: the default number of threads.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn system_memory(operation: &'static str) -> Result<SystemMemory> {
    memory::system_memory().map_err(|cause| error::system(ErrorKind::System, operation, &cause))
}

impl HostDevice {
    /// Creates a device with `bytes` bytes of memory and default settings.
    ///
    /// # Errors
    /// The errors of [`HostDeviceBuilder::build`].
    pub fn new(bytes: u64) -> Result<Self> {
        Self::builder().bytes(bytes).build()
    }

    /// Returns a builder with default settings.
    pub fn builder() -> HostDeviceBuilder {
        HostDeviceBuilder {
            bytes: None,
            threads: None,
            name: DEFAULT_NAME.to_owned(),
            pinned_max_bytes: u64::MAX,
        }
    }

    /// Returns the maximum number of worker threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Refuses more memory than the machine has free, unless the device's budget already excludes that.
    fn expect_ram(&self, operation: &'static str, bytes: u64, commit: Commit) -> Result<()> {
        // Check the free RAM. The system would return addresses without memory, and kill the program when it
        // writes to them.
        if self.bounded || commit == Commit::Proven {
            let available = system_memory(operation)?.usable_bytes();
            if bytes > available && bytes <= self.capacity.total_bytes() {
                return Err(Error::new(ErrorKind::OutOfMemory, operation)
                    .with_bytes(bytes)
                    .with_available_bytes(available)
                    .with_detail("the request exceeds the free RAM"));
            }
        }
        Ok(())
    }

    fn add(&self, bytes: u64, commit: Commit, make: impl FnOnce() -> Result<Ram>) -> Result<BufferHandle> {
        let ram = self.expect_ram("allocate", bytes, commit).and_then(|()| make());
        Ok(self.engine.add_buffer(Arc::new(self.engine.named(ram)?)))
    }
}

// SAFETY: `Engine` meets the contract: it checks names and looks up memory before it queues work; work keeps
// its memory alive, and a release waits for the work.
unsafe impl Device for HostDevice {
    fn memory(&self) -> Result<MemoryStatus> {
        let (total, free) = (self.capacity.total_bytes(), self.capacity.free_bytes());
        if !self.bounded {
            return Ok(MemoryStatus::new(total, free, free));
        }
        let system = self.engine.named(system_memory("memory"))?;
        Ok(MemoryStatus::new(total, free.min(system.available_bytes), free.min(system.usable_bytes())))
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.add(bytes, commit, || Ram::new(&self.capacity, bytes, commit))
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        self.add(bytes, commit, || Ram::extensible(&self.capacity, bytes, most, commit))
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        self.engine.extend(buffer, |ram| {
            self.expect_ram("extend", bytes.saturating_sub(ram.bytes()), commit)?;
            ram.extend(&self.capacity, bytes, commit).map(drop)
        })
    }

    fn reaches(&self, other: &DeviceInfo) -> Reach {
        let is_alike = other.backend == self.info().backend && other.kind == DeviceKind::HostMemory;
        if is_alike { Reach::Maps } else { Reach::No }
    }

    fn direct_reads(&self) -> Option<&dyn DirectReads> {
        Some(&self.engine)
    }

    fn addresses(&self) -> Option<&dyn Addresses> {
        Some(&self.engine)
    }

    backend_api::forward! { self => self.engine;
        info create_queue release_queue release allocate_host import_host release_host wipe_on_release
        poll wait wake order_after
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.engine.start(queue, request)
    }
}
