//! Properties of a device: constant ones ([`DeviceInfo`]), and its free memory.

use std::fmt;

/// Kind of a device: a GPU, or a substitute for a GPU.
///
/// ```
/// use backend_api::{Device, DeviceKind};
/// let device = backend_host::HostDevice::new(1 << 20)?;
/// let spares_ram = matches!(device.info().kind, DeviceKind::DiscreteGpu | DeviceKind::File);
/// assert!(!spares_ram);
/// assert_eq!(DeviceKind::DiscreteGpu.to_string(), "discrete GPU");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU with its own memory.
    DiscreteGpu,
    /// A GPU that uses the host's RAM as its memory. Moving data there frees no RAM.
    IntegratedGpu,
    /// A CPU that a driver presents as a GPU, such as PoCL does.
    Cpu,
    /// Host RAM that replaces a GPU.
    HostMemory,
    /// A file that replaces a GPU.
    File,
    /// A simulated device, for tests.
    Simulated,
}

impl DeviceKind {
    /// Returns true for a discrete or an integrated GPU.
    #[must_use]
    pub const fn is_gpu(self) -> bool {
        matches!(self, Self::DiscreteGpu | Self::IntegratedGpu)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiscreteGpu => "discrete GPU",
            Self::IntegratedGpu => "integrated GPU",
            Self::Cpu => "CPU",
            Self::HostMemory => "host memory",
            Self::File => "file",
            Self::Simulated => "simulated",
        })
    }
}

/// Language of a kernel's source text (PTX or OpenCL C); see [`Code`](crate::kernel::Code).
/// [`DeviceInfo::code_language`] states a device's language.
///
/// ```
/// use backend_api::{CodeLanguage, Device};
/// let device = backend_host::HostDevice::new(1 << 20)?;
/// assert!(!device.info().takes(CodeLanguage::Ptx));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum CodeLanguage {
    /// PTX, the assembly language of NVIDIA's virtual GPU.
    Ptx,
    /// OpenCL C.
    OpenClC,
}

/// Properties of a device that do not change during its lifetime.
///
/// ```
/// use backend_api::{DeviceInfo, DeviceKind};
/// let mut info = DeviceInfo::new("host", "RAM", DeviceKind::HostMemory, "host:0").with_total_bytes(1 << 30);
/// info.copy_engines = 4;
/// assert_eq!((info.to_string(), info.largest_allocation_bytes), ("RAM (host host:0)".into(), 1 << 30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The backend's name: `"cuda"`, `"opencl"`, `"host"`.
    pub backend: String,
    /// The product's name, as the driver reports it.
    pub name: String,
    /// The vendor's name; empty if it is unknown.
    pub vendor: String,
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Unique name of the device, the same in all runs and backends: `pci:0000:81:00.0`, `uuid:…`, or
    /// `backend:index` if the driver reports neither. Stored measurements of the device use this name.
    pub identity: String,
    /// Other names of the same hardware, formatted like [`identity`](Self::identity). They help to recognise
    /// a GPU that two backends report.
    pub aliases: Vec<String>,
    /// Total memory of the device, in bytes.
    pub total_bytes: u64,
    /// Maximum size of one allocation of the driver, in bytes. [`allocate`](crate::Device::allocate) can
    /// return more, because it joins several allocations.
    pub largest_allocation_bytes: u64,
    /// Number of copies that the device can carry out at once, in different queues; at least 1.
    pub copy_engines: u32,
    /// The host's NUMA node to which the device is attached, if known (on Linux, if the driver reports the
    /// PCI address). Page-locked memory for the device is [allocated](crate::HostBuffer::new) there.
    pub numa_node: Option<u32>,
    /// The driver's version as the driver reports it, or empty.
    pub driver: String,
    /// Language of the kernel source texts that the device accepts; `None` if it accepts no texts.
    pub code_language: Option<CodeLanguage>,
    /// Some drivers split an allocation above [`largest_allocation_bytes`](Self::largest_allocation_bytes)
    /// into pieces, and a kernel text can access only one piece by a view. This is the length of a piece in
    /// bytes; `None` if all allocations are contiguous.
    pub memory_piece_bytes: Option<u64>,
    /// True if a started group of a kernel (a thread block) makes progress while other groups wait for it in
    /// loops. Groups start in any order, so a kernel that waits numbers them by an atomic counter. Devices
    /// without this promise refuse kernels that wait; see [`Needs`](crate::kernel::Needs).
    pub forward_progress: bool,
}

impl DeviceInfo {
    /// Creates the properties of a device with no memory, one copy engine, and all other properties unknown.
    /// The backend then sets the others.
    #[must_use]
    pub fn new(backend: &str, name: &str, kind: DeviceKind, identity: &str) -> Self {
        Self {
            backend: backend.into(),
            name: name.into(),
            vendor: String::new(),
            kind,
            identity: identity.into(),
            aliases: Vec::new(),
            total_bytes: 0,
            largest_allocation_bytes: 0,
            copy_engines: 1,
            numa_node: None,
            driver: String::new(),
            code_language: None,
            memory_piece_bytes: None,
            forward_progress: false,
        }
    }

    /// Returns the same properties with `bytes` bytes of memory, which the driver can allocate in one piece.
    #[must_use]
    pub fn with_total_bytes(mut self, bytes: u64) -> Self {
        self.total_bytes = bytes;
        self.largest_allocation_bytes = bytes;
        self
    }

    /// Returns true if the device accepts kernel texts in this language.
    #[must_use]
    pub fn takes(&self, language: CodeLanguage) -> bool {
        self.code_language == Some(language)
    }
}

impl fmt::Display for DeviceInfo {
    /// Writes `name (backend identity)`, as errors name the device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.name, self.backend, self.identity)
    }
}

/// Access of a device to the memory of another device; see [`Device::reaches`](crate::Device::reaches).
///
/// ```
/// use backend_api::{Device, Reach};
/// # let (one, other) = (backend_host::HostDevice::new(1 << 20)?, backend_host::HostDevice::new(1 << 20)?);
/// assert_eq!(one.reaches(other.info()), Reach::Maps);
/// assert!(Reach::No < Reach::Copies && Reach::Copies < Reach::Maps);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reach {
    /// No access: copies between the devices go through the host.
    No,
    /// The device can copy from and to the other device's memory.
    Copies,
    /// The device can copy from and to the other device's memory, and its kernels can access this memory.
    Maps,
}

/// The amount of memory of a device at the moment of the query.
///
/// ```
/// use backend_api::{Commit, Device, MemoryStatus};
/// let device = backend_host::HostDevice::new(1000)?;
/// device.allocate(300, Commit::Lazy)?;
/// assert_eq!(device.memory()?, MemoryStatus::new(1000, 700, 700));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStatus {
    /// Total memory of the device, in bytes.
    pub total_bytes: u64,
    /// Bytes that no program has allocated, as the driver reports.
    pub free_bytes: u64,
    /// Bytes that [`allocate`](crate::Device::allocate) can probably return now: the free bytes, less
    /// head-room for the display and for the driver.
    pub usable_bytes: u64,
}

impl MemoryStatus {
    /// Creates a status; all arguments are in bytes.
    #[must_use]
    pub fn new(total_bytes: u64, free_bytes: u64, usable_bytes: u64) -> Self {
        Self { total_bytes, free_bytes, usable_bytes }
    }
}
