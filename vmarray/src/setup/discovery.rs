//! Discovery: finds the machine's GPUs and other devices, and selects the ones for an array.

use std::fmt;
use std::sync::Arc;

use backend_api::{Absence, AbsenceKind, CardHealth, Device, DeviceInfo, DeviceKind};
use parking_lot::Mutex;

use crate::base::error::{ErrorKind, Result, Unmet};
use crate::setup::any::AnyDevice;
use crate::setup::inherited;
use crate::setup::open_devices::{self, CardKey};

/// The environment variable that overrides the choice of [`devices`].
const VARIABLE: &str = "VMARRAY_DEVICES";

/// Returns the devices of the machine: all discrete GPUs, each once, or host RAM if there is no GPU. If the
/// environment variable `VMARRAY_DEVICES` is set, returns the devices that it selects, in the syntax of
/// [`Discovery::select`]. The program can [set other devices](crate::discovery::set_devices).
///
/// Arrays, sources and index sets without a list of devices use these devices. The process opens each GPU
/// once, so every call returns the same devices: see [`Discovery::open`]. The first call loads the drivers
/// and opens the GPUs, which can take a second.
///
/// # Errors
/// The errors of [`Discovery::open`].
///
/// ```
/// use std::sync::Arc;
/// use vmarray::device::Device;
/// let devices = vmarray::devices()?;
/// assert!(!devices.is_empty());
/// for (device, again) in devices.iter().zip(vmarray::devices()?) {
///     println!("{}", device.info());
///     assert!(Arc::ptr_eq(device, &again));
/// }
/// # Ok::<(), vmarray::Error>(())
/// ```
pub fn devices() -> Result<Vec<Arc<AnyDevice>>> {
    inherited::expect_own_process("devices")?;
    match open_devices::set_by_program() {
        Some(devices) => Ok(devices),
        None => Discovery::from_env()?.open(),
    }
}

/// The search for devices of the machine, with filters.
///
/// By default, discovery chooses all discrete GPUs, each once, or host RAM if there is no GPU. If CUDA and
/// OpenCL both support a GPU, it uses CUDA. Integrated GPUs and CPUs have no memory of their own, so
/// discovery chooses them only if a filter selects them.
///
/// If the [health](CardHealth) of a GPU recommends replacement, the library warns. Discovery then chooses the
/// GPU only if a filter has its number (`cuda:0`) or its identity (`pci:0000:81:00.0`). This rule applies to
/// all backends.
///
/// The [report](Self::report) has a row for each device, and a row with the reason for each backend without
/// devices. If discovery uses host RAM because an installed driver does not work, the library warns once:
/// through `tracing` with the feature of that name, otherwise on standard error.
///
/// ```
/// use vmarray::{device::Device, discovery::Choice, Discovery};
/// // All devices, the used ones, and the reasons for the others. A machine without a GPU still has its RAM.
/// let report = Discovery::new().report();
/// println!("{report}");
/// let used = report.devices.iter().filter(|(_, choice)| *choice == Choice::Used).count();
/// assert!(used > 0);
/// let devices = Discovery::new().select("host")?.allow_duplicates(true).open()?;
/// assert!(devices.len() == 1 && devices[0].info().backend == "host");
/// assert!(Discovery::new().select("no such device")?.open().is_err());
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    filters: Vec<DeviceFilter>,
    duplicates: bool,
    separate: bool,
}

/// One device filter, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceFilter {
    text: String,
    term: Term,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    All,
    Kind(DeviceKind),
    /// The discrete GPUs of a backend; all its devices if it has no discrete GPU.
    Backend(String),
    /// One device of a backend, by its index.
    Number(String, usize),
    /// All devices of a backend (`None`: of any backend) whose name, vendor or identity contains the text.
    Text(Option<String>, String),
}

/// The names of the backends, in the order of the report, each with true if it is compiled in.
const BACKENDS: [(&str, bool); 3] = [
    ("cuda", cfg!(feature = "cuda")),
    ("opencl", cfg!(feature = "opencl")),
    ("host", cfg!(feature = "host")),
];

/// Returns the index of a backend in `BACKENDS`.
fn backend_place(backend: &str) -> Option<usize> {
    BACKENDS.iter().position(|(name, _)| *name == backend)
}

fn is_built(backend: &str) -> bool {
    backend_place(backend).is_some_and(|place| BACKENDS[place].1)
}

impl Term {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_lowercase();
        let (backend, rest) = match text.split_once(':') {
            Some((backend, rest)) if backend_place(backend).is_some() => (Some(backend.to_owned()), rest),
            _ => (None, &*text),
        };
        Some(match (backend, rest) {
            (_, "") => return None,
            (None, "all") => Self::All,
            (None, "gpu") => Self::Kind(DeviceKind::DiscreteGpu),
            (None, "integrated") => Self::Kind(DeviceKind::IntegratedGpu),
            (None, "cpu") => Self::Kind(DeviceKind::Cpu),
            (None, name) if backend_place(name).is_some() => Self::Backend(name.to_owned()),
            (Some(backend), rest) => match rest.parse() {
                Ok(number) => Self::Number(backend, number),
                Err(_) => Self::Text(Some(backend), rest.to_owned()),
            },
            (None, rest) => Self::Text(None, rest.to_owned()),
        })
    }

    /// Returns true if the filter selects the device at an index of the list.
    fn matches(&self, infos: &[DeviceInfo], at: usize) -> bool {
        let info = &infos[at];
        let is_of = |backend: &str| info.backend == backend;
        match self {
            Self::All => true,
            Self::Kind(kind) => info.kind == *kind,
            Self::Backend(backend) => {
                let is_first =
                    |info: &DeviceInfo| matches!(info.kind, DeviceKind::DiscreteGpu | DeviceKind::HostMemory);
                let has_first = infos.iter().any(|other| other.backend == *backend && is_first(other));
                is_of(backend) && (is_first(info) || !has_first)
            }
            Self::Number(backend, wanted) => {
                is_of(backend) && infos[..at].iter().filter(|other| is_of(&other.backend)).count() == *wanted
            }
            Self::Text(backend, text) => {
                let holds = |field: &str| field.to_lowercase().contains(text);
                backend.as_deref().is_none_or(is_of)
                    && (holds(&info.name) || holds(&info.vendor) || holds(&info.identity))
            }
        }
    }

    /// Returns true if the filter selects exactly this device, by number or identity.
    fn names(&self, infos: &[DeviceInfo], at: usize) -> bool {
        let is_name = match self {
            Self::Number(..) => true,
            Self::Text(_, text) => {
                let holds = |info: &DeviceInfo| info.identity.to_lowercase().contains(text);
                let is_alone = |other| !holds(other) || is_same_hardware(other, &infos[at]);
                holds(&infos[at]) && infos.iter().all(is_alone)
            }
            _ => false,
        };
        is_name && self.matches(infos, at)
    }

    /// Returns the reason why the filter selects no device.
    fn reason(&self, infos: &[DeviceInfo], absences: &[Absence]) -> String {
        let count = |backend: &str| infos.iter().filter(|info| info.backend == backend).count();
        let of_backend = |backend: &str| {
            let absences = absences.iter().filter(|absence| absence.backend == backend);
            let reasons: Vec<String> = absences.map(|a| format!("{}: {}", a.kind, a.reason)).collect();
            match (count(backend), reasons.is_empty(), is_built(backend)) {
                (_, _, false) => format!("this build lacks the feature `{backend}`"),
                (0, false, _) => reasons.join("; "),
                (0, true, _) => format!("{backend} has no devices"),
                (1, ..) => format!("the only device of {backend} is number 0"),
                (count, ..) => format!("{backend} has devices 0 to {}", count - 1),
            }
        };
        match self {
            Self::All => "there is no device at all".into(),
            Self::Kind(kind) => format!("there is no device of kind {kind}"),
            Self::Backend(backend) | Self::Number(backend, _) => of_backend(backend),
            Self::Text(Some(backend), _) if count(backend) == 0 => of_backend(backend),
            Self::Text(backend, text) => {
                let whose =
                    backend.as_ref().map_or("no device".into(), |backend| format!("no device of {backend}"));
                format!("{whose} has {text:?} in its name, vendor or identity")
            }
        }
    }
}

/// A report on all devices of the machine: for each one, if [`Discovery`] uses it, and the reason.
///
/// ```
/// use vmarray::{discovery::Choice, Discovery};
/// let report = Discovery::new().select("host").unwrap().report();
/// let used: Vec<_> = report.devices.iter().filter(|(_, choice)| *choice == Choice::Used).collect();
/// assert!(used.len() == 1 && used[0].0.backend == "host");
/// // A table for people.
/// assert!(report.to_string().contains("not selected") || report.devices.len() == 1);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiscoveryReport {
    /// All devices that discovery found, each with its decision.
    pub devices: Vec<(DeviceInfo, Choice)>,
    /// Memory health of each device, in the order of `devices`. Only NVIDIA GPUs report it, with the feature
    /// `cuda`; for other devices it is unknown.
    pub health: Vec<CardHealth>,
    /// Reasons for missing devices, one for each compiled-in backend that found no device.
    pub absences: Vec<Absence>,
    /// Filters that selected no device.
    pub unmet: Vec<Unmet>,
}

/// The decision of [`Discovery`] on a device: used, or left out for a reason.
///
/// ```
/// use vmarray::{discovery::Choice, Discovery};
/// let report = Discovery::new().select("no such device").unwrap().report();
/// for (info, choice) in report.devices {
///     let Choice::LeftOut(reason) = choice else { panic!("{info} is used") };
///     assert_eq!(reason, "not selected");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The device is used.
    Used,
    /// The device is not used, for this reason.
    LeftOut(String),
}

impl DiscoveryReport {
    /// Returns the indices of the devices to use.
    fn used(&self) -> impl Iterator<Item = usize> {
        (0..self.devices.len()).filter(|&at| self.devices[at].1 == Choice::Used)
    }

    /// Returns the GPUs that are left out because of their health, with the reason.
    fn unsound(&self) -> impl Iterator<Item = (&DeviceInfo, &str)> {
        let devices = self.devices.iter().zip(&self.health);
        devices.filter_map(|((info, choice), health)| match choice {
            // The search left out a GPU with damaged memory. Report this only for requested devices.
            Choice::LeftOut(reason) if reason.starts_with(health.wants_replacement()?) => {
                Some((info, &**reason))
            }
            _ => None,
        })
    }

    /// Returns a short list of all devices, for an error message.
    fn found(&self) -> Vec<String> {
        let unsound = |info: &DeviceInfo| self.unsound().find(|(other, _)| *other == info);
        let devices = self.devices.iter().map(|(info, _)| match unsound(info) {
            Some((info, reason)) => format!("{info}, {reason}"),
            None => info.to_string(),
        });
        devices.chain(self.absences.iter().map(Absence::to_string)).collect()
    }
}

impl fmt::Display for DiscoveryReport {
    /// Writes a table of all devices and reasons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["backend", "device", "kind", "memory", "node", "health", "identity", "used"];
        let row = |((info, choice), health): (&(DeviceInfo, Choice), &CardHealth)| {
            let used = match choice {
                Choice::Used => "yes".to_owned(),
                Choice::LeftOut(reason) => format!("no: {reason}"),
            };
            let memory = format!("{:.1} GiB", info.total_bytes as f64 / f64::from(1 << 30));
            [
                info.backend.clone(),
                info.name.clone(),
                info.kind.to_string(),
                memory,
                info.numa_node.map_or_else(|| "-".into(), |node| node.to_string()),
                health.to_string(),
                info.identity.clone(),
                used,
            ]
        };
        let absent = |Absence { backend, kind, reason, .. }: &Absence| {
            let [none, no] = ["-".to_owned(), format!("no: {kind}: {reason}")];
            [backend.clone(), none.clone(), none.clone(), none.clone(), none.clone(), none.clone(), none, no]
        };
        let mut rows: Vec<[String; 8]> = self.devices.iter().zip(&self.health).map(row).collect();
        rows.extend(self.absences.iter().map(absent));
        rows.sort_by_key(|row| backend_place(&row[0]));
        rows.insert(0, header.map(String::from));
        for row in &rows {
            for (column, text) in row.iter().enumerate() {
                let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
                if column + 1 == row.len() { writeln!(f, "{text}")? } else { write!(f, "{text:width$}  ")? }
            }
        }
        self.unmet.iter().try_for_each(|unmet| writeln!(f, "{unmet}"))
    }
}

/// A device that was found but not opened yet.
struct Candidate {
    info: DeviceInfo,
    key: CardKey,
    health: CardHealth,
    open: Box<dyn Fn() -> Result<AnyDevice, backend_api::Error>>,
}

impl Candidate {
    /// Opens the device: the shared device of the process, or a new one if `separate`.
    fn open(&self, separate: bool) -> Result<Arc<AnyDevice>, backend_api::Error> {
        let (device, is_new) = match separate {
            true => (Arc::new((self.open)()?), true),
            false => open_devices::shared(&self.key, &self.open)?,
        };
        #[cfg(feature = "opencl")]
        if let AnyDevice::OpenCl(device) = &*device
            && let Some(error) = device.kernel_cache_error().filter(|_| is_new)
        {
            crate::base::trace::not_kept("built kernels", device.info(), error);
        }
        let _ = is_new;
        Ok(device)
    }

    fn facts(&self) -> (DeviceInfo, CardHealth) {
        (self.info.clone(), self.health)
    }
}

impl Discovery {
    /// Creates a discovery with the default choice of devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a discovery with the filters of the environment variable `VMARRAY_DEVICES`, or with the
    /// default choice if the variable is unset or empty.
    ///
    /// # Errors
    /// [`DeviceFilter`](ErrorKind::DeviceFilter) if a filter in the variable is empty, or if the variable is
    /// not UTF-8.
    ///
    /// ```
    /// use vmarray::{discovery::Choice, Discovery};
    /// let report = Discovery::from_env()?.report();
    /// if std::env::var("VMARRAY_DEVICES").is_err() {
    ///     assert_eq!(report.devices, Discovery::new().report().devices);
    /// }
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        match std::env::var_os(VARIABLE).unwrap_or_default().into_string() {
            Ok(text) if text.trim().is_empty() => Ok(Self::new()),
            Ok(text) => Self::new().select(&text),
            Err(text) => Err(ErrorKind::DeviceFilter { filter: text.to_string_lossy().into_owned() }.into()),
        }
    }

    /// Adds a list of filters, separated by commas. Discovery chooses devices that any filter selects.
    ///
    /// If no filter selects a device, [`open`](Self::open) fails. If only some filters select no device, the
    /// library warns, and lists these filters [in the report](DiscoveryReport::unmet).
    ///
    /// | filter | devices |
    /// |---|---|
    /// | `cuda`, `opencl`, `host` | the discrete GPUs of a backend, all its devices if it has none; host RAM |
    /// | `cuda:0` | the first device of a backend |
    /// | `opencl:radeon`, `nvidia` | devices whose name, vendor or identity contains the text, in any case |
    /// | `gpu`, `integrated`, `cpu` | devices of a kind |
    /// | `all` | all devices |
    ///
    /// # Errors
    /// [`DeviceFilter`](ErrorKind::DeviceFilter) for an empty filter.
    pub fn select(mut self, filters: &str) -> Result<Self> {
        for filter in filters.split(',') {
            let term = Term::parse(filter)
                .ok_or_else(|| ErrorKind::DeviceFilter { filter: filter.trim().to_owned() })?;
            self.filters.push(DeviceFilter { text: filter.trim().to_owned(), term });
        }
        Ok(self)
    }

    /// If `allow` is true, opens a GPU once for each backend that supports the GPU. These devices share the
    /// GPU's memory. For tests.
    #[must_use]
    pub fn allow_duplicates(mut self, allow: bool) -> Self {
        self.duplicates = allow;
        self
    }

    /// Opens new devices for the caller instead of the shared devices of the process. Use this in tests that
    /// lose a device, count its work or wipe its memory, so that other arrays are not affected. Copies and
    /// kernels between an array on a separate device and an array on a shared device go directly from device
    /// to device.
    ///
    /// To open a device with other options, such as a memory limit, use the type of its backend, for example
    /// [`HostDevice`](crate::host::HostDevice).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::Discovery;
    /// let host = Discovery::new().select("host")?;
    /// let (shared, again) = (host.open()?, host.open()?);
    /// assert!(Arc::ptr_eq(&shared[0], &again[0]));
    /// let own = host.separate(true).open()?;
    /// assert!(!Arc::ptr_eq(&shared[0], &own[0]));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn separate(mut self, separate: bool) -> Self {
        self.separate = separate;
        self
    }

    /// Searches for devices without opening them. Returns the decision and its reason for each device, and
    /// the reason for each backend without devices.
    #[must_use]
    pub fn report(&self) -> DiscoveryReport {
        let (candidates, absences) = candidates();
        self.report_of(candidates.iter().map(Candidate::facts).collect(), absences)
    }

    fn report_of(&self, facts: Vec<(DeviceInfo, CardHealth)>, absences: Vec<Absence>) -> DiscoveryReport {
        let (infos, statuses): (Vec<_>, Vec<_>) = facts.into_iter().unzip();
        let health: Vec<_> = infos.iter().map(|info| health_of(info, &infos, &statuses)).collect();
        let is_unmet = |filter: &&DeviceFilter| !(0..infos.len()).any(|at| filter.term.matches(&infos, at));
        let unmet =
            |filter: &DeviceFilter| Unmet::new(filter.text.clone(), filter.term.reason(&infos, &absences));
        let unmet = self.filters.iter().filter(is_unmet).map(unmet).collect();
        let choices = self.choose(&infos, &health);
        DiscoveryReport { devices: infos.into_iter().zip(choices).collect(), health, absences, unmet }
    }

    /// Searches for devices and opens the chosen ones. If this process knows the
    /// [profile](crate::profile::Profile) of a device, copies use the routes of the profile.
    ///
    /// The process opens each GPU once, and host RAM once: all calls that choose a GPU return the same
    /// device. Arrays, sources and index sets without a list of devices share this device with its compiled
    /// kernels, threads and page-locked memory. A device stays open until the process ends or calls
    /// [`close_unused`](crate::discovery::close_unused). After the loss of a device the next call opens the
    /// GPU again, as another device; operations on arrays of the lost device still fail.
    /// [`separate`](Self::separate) opens devices that are not shared.
    ///
    /// A second call with the same filters does not search again.
    ///
    /// # Errors
    /// [`NoneFound`](ErrorKind::NoneFound) if there is no device, or if the filters choose none; the error
    /// lists the filters and all devices. [`Device`](ErrorKind::Device) if a device that a filter selects
    /// cannot be opened. The call omits other devices that cannot be opened, and warns.
    pub fn open(&self) -> Result<Vec<Arc<AnyDevice>>> {
        inherited::expect_own_process("open")?;
        let known = if self.separate { None } else { chosen_before(self) };
        let devices = match known {
            Some(devices) => devices,
            None => self.look_and_open()?,
        };
        // Apply known profiles (measured speeds) here too, for programs that use a device without an array.
        crate::setup::profile::apply_known(&devices);
        Ok(devices)
    }

    fn look_and_open(&self) -> Result<Vec<Arc<AnyDevice>>> {
        let (candidates, absences) = candidates();
        let report = self.report_of(candidates.iter().map(Candidate::facts).collect(), absences);
        let is_default = self.filters.is_empty();
        let (mut devices, mut cards, mut all_opened) = (Vec::new(), Vec::new(), true);
        for candidate in report.used().map(|at| &candidates[at]) {
            match candidate.open(self.separate) {
                Ok(device) => {
                    devices.push(device);
                    cards.push(candidate.key.clone());
                }
                Err(error) if is_default => {
                    all_opened = false;
                    crate::base::trace::device_left_out(&candidate.info, &error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        report.unsound().for_each(|(info, reason)| crate::base::trace::card_left_out(info, reason));
        if devices.is_empty() && is_default {
            // No GPU could be opened, so try host RAM.
            for candidate in candidates.iter().filter(|c| c.info.kind == DeviceKind::HostMemory) {
                devices.push(candidate.open(self.separate)?);
            }
        }
        if devices.is_empty() {
            let found = report.found();
            return Err(ErrorKind::NoneFound { asked: report.unmet, found }.into());
        }
        report.unmet.iter().for_each(crate::base::trace::filter_unmet);
        if is_default && devices.iter().all(|device| device.info().kind == DeviceKind::HostMemory) {
            let broken = report.absences.iter().filter(|absence| absence.kind == AbsenceKind::Unusable);
            broken.for_each(crate::base::trace::host_ram_instead);
        }
        // Remember the choice only if all GPUs were opened, so that the next call tries the others again.
        if all_opened && !self.separate {
            remember_choice(self, cards);
        }
        Ok(devices)
    }

    /// Returns the choice for each device; devices are in the order of preference.
    fn choose(&self, infos: &[DeviceInfo], health: &[CardHealth]) -> Vec<Choice> {
        let is_gpu = |(info, health): (&DeviceInfo, &CardHealth)| {
            info.kind == DeviceKind::DiscreteGpu && health.wants_replacement().is_none()
        };
        let has_gpu = infos.iter().zip(health).any(is_gpu);
        let mut used: Vec<&DeviceInfo> = Vec::new();
        let mut choices = Vec::new();
        for (at, info) in infos.iter().enumerate() {
            let wanted = if !self.filters.is_empty() {
                if self.filters.iter().any(|filter| filter.term.matches(infos, at)) {
                    Ok(())
                } else {
                    Err("not selected".into())
                }
            } else {
                match info.kind {
                    DeviceKind::DiscreteGpu => Ok(()),
                    DeviceKind::HostMemory if has_gpu => {
                        Err("host RAM is used only without a usable GPU".into())
                    }
                    DeviceKind::HostMemory => Ok(()),
                    kind => Err(format!("a device of kind {kind} is used only if a filter names it")),
                }
            };
            let is_named = || self.filters.iter().any(|filter| filter.term.names(infos, at));
            let wanted = match health[at].wants_replacement() {
                Some(reason) if wanted.is_ok() && !is_named() => {
                    Err(format!("{reason}, or name it by number or identity to use it nevertheless"))
                }
                _ => wanted,
            };
            let twin = used.iter().find(|other| is_same_hardware(other, info)).filter(|_| !self.duplicates);
            choices.push(match (wanted, twin) {
                (Err(reason), _) => Choice::LeftOut(reason),
                (Ok(()), Some(twin)) => {
                    Choice::LeftOut(format!("the same card is used through {}", twin.backend))
                }
                (Ok(()), None) => {
                    used.push(info);
                    Choice::Used
                }
            });
        }
        choices
    }
}

/// The GPUs that earlier discoveries chose. A forked process does not take the lock, because `inherited`
/// returns an error from its calls first.
pub(super) static CHOICES: Mutex<Vec<(Discovery, Vec<CardKey>)>> = Mutex::new(Vec::new());

/// Returns the devices that an equal discovery chose before, if all are open and none is lost.
fn chosen_before(discovery: &Discovery) -> Option<Vec<Arc<AnyDevice>>> {
    let (_, cards) = CHOICES.lock().iter().find(|(known, _)| known == discovery)?.clone();
    open_devices::all_open(&cards)
}

/// Stores the GPUs that a discovery chose, for [`chosen_before`].
fn remember_choice(discovery: &Discovery, cards: Vec<CardKey>) {
    let mut choices = CHOICES.lock();
    choices.retain(|(known, _)| known != discovery);
    choices.push((discovery.clone(), cards));
}

fn is_same_hardware(a: &DeviceInfo, b: &DeviceInfo) -> bool {
    let names = |info: &DeviceInfo| std::iter::once(info.identity.clone()).chain(info.aliases.clone());
    names(a).any(|name| names(b).any(|other| name == other))
}

/// Returns the health of a GPU, which any of its backends may report.
fn health_of(info: &DeviceInfo, infos: &[DeviceInfo], health: &[CardHealth]) -> CardHealth {
    let is_known = |(other, health): &(&DeviceInfo, &CardHealth)| {
        **health != CardHealth::default() && is_same_hardware(other, info)
    };
    infos.iter().zip(health).find(is_known).map(|(_, health)| *health).unwrap_or_default()
}

/// Returns all devices of all compiled-in backends, preferred backends first, and reasons for missing ones.
fn candidates() -> (Vec<Candidate>, Vec<Absence>) {
    #[allow(unused_mut, reason = "depends on the features")]
    let (mut candidates, mut absences): (Vec<Candidate>, Vec<Absence>) = Default::default();
    if let Err(error) = inherited::expect_own_process("survey") {
        let absent = |(name, _): &(&str, _)| Absence::new(name, AbsenceKind::Unusable, error.to_string());
        return (candidates, BACKENDS.iter().filter(|(_, is_built)| *is_built).map(absent).collect());
    }
    #[cfg(feature = "cuda")]
    {
        let (cards, why) = backend_cuda::survey();
        absences.extend(why);
        candidates.extend(cards.into_iter().map(|card| Candidate {
            info: card.info.clone(),
            key: key("cuda", String::new(), &card.info),
            health: card.health(),
            open: Box::new(move || backend_cuda::CudaDevice::open(card.index).map(AnyDevice::from)),
        }));
    }
    #[cfg(feature = "opencl")]
    {
        let (devices, why) = backend_opencl::survey();
        absences.extend(why);
        candidates.extend(devices.into_iter().map(|found| Candidate {
            info: found.info().clone(),
            key: key("opencl", found.platform().to_owned(), found.info()),
            health: CardHealth::default(),
            open: Box::new(move || {
                let options = backend_opencl::OpenClOptions::new();
                backend_opencl::OpenClDevice::open(&found, &options).map(AnyDevice::from)
            }),
        }));
    }
    #[cfg(feature = "host")]
    {
        let infos = backend_host::devices();
        if infos.is_empty() {
            let reason = "the system does not say how much RAM there is; make a `HostDevice` of a given size";
            absences.push(Absence::new("host", AbsenceKind::Unusable, reason));
        }
        candidates.extend(infos.into_iter().map(|info| Candidate {
            info,
            key: CardKey::host_ram(),
            health: CardHealth::default(),
            open: Box::new(|| backend_host::HostDevice::builder().build().map(AnyDevice::from)),
        }));
    }
    for at in (0..candidates.len()).rev() {
        candidates[at].key.number =
            candidates[..at].iter().filter(|one| one.key == candidates[at].key).count();
    }
    (candidates, absences)
}

#[cfg(any(feature = "cuda", feature = "opencl"))]
fn key(backend: &'static str, platform: String, info: &DeviceInfo) -> CardKey {
    CardKey { backend, platform, identity: info.identity.clone(), number: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(backend: &str, name: &str, kind: DeviceKind, identity: &str) -> DeviceInfo {
        DeviceInfo::new(backend, name, kind, identity)
    }

    /// Two NVIDIA GPUs, each in two backends, an AMD GPU, an integrated GPU, PoCL, and host RAM.
    fn rig() -> Vec<DeviceInfo> {
        let mut twin = device("opencl", "NVIDIA B", DeviceKind::DiscreteGpu, "uuid:b");
        twin.aliases = vec!["pci:2".into()];
        vec![
            device("cuda", "NVIDIA A", DeviceKind::DiscreteGpu, "pci:1"),
            device("cuda", "NVIDIA B", DeviceKind::DiscreteGpu, "pci:2"),
            device("opencl", "NVIDIA A", DeviceKind::DiscreteGpu, "pci:1"),
            twin,
            device("opencl", "Radeon", DeviceKind::DiscreteGpu, "pci:3"),
            device("opencl", "Iris", DeviceKind::IntegratedGpu, "pci:4"),
            device("opencl", "pocl-cpu", DeviceKind::Cpu, "opencl:4"),
            device("host", "RAM", DeviceKind::HostMemory, "host:0"),
        ]
    }

    fn unknown(infos: &[DeviceInfo]) -> Vec<CardHealth> {
        vec![CardHealth::default(); infos.len()]
    }

    fn of_unknown_health(infos: &[DeviceInfo]) -> Vec<(DeviceInfo, CardHealth)> {
        infos.iter().cloned().zip(unknown(infos)).collect()
    }

    fn used(discovery: &Discovery, infos: &[DeviceInfo]) -> Vec<usize> {
        let choices = discovery.choose(infos, &unknown(infos));
        (0..infos.len()).filter(|&i| choices[i] == Choice::Used).collect()
    }

    fn selected(filters: &str) -> Vec<usize> {
        used(&Discovery::new().select(filters).unwrap(), &rig())
    }

    #[test]
    fn every_card_is_used_once_and_through_cuda_if_possible() {
        assert_eq!(used(&Discovery::new(), &rig()), [0, 1, 4]);
        let choices = Discovery::new().choose(&rig(), &unknown(&rig()));
        assert_eq!(choices[3], Choice::LeftOut("the same card is used through cuda".into()));
        assert!(matches!(&choices[6], Choice::LeftOut(reason) if reason.contains("CPU")));
    }

    #[test]
    fn host_ram_is_used_if_there_is_no_card() {
        assert_eq!(used(&Discovery::new(), &rig()[5..]), [2]);
        assert!(used(&Discovery::new(), &[]).is_empty());
    }

    #[test]
    fn filters_are_parsed() {
        assert_eq!(selected("cuda"), [0, 1]);
        assert_eq!(selected("cuda:1"), [1]);
        assert_eq!(selected("opencl"), [2, 3, 4]);
        assert_eq!(selected("opencl:4, host"), [6, 7]);
        assert_eq!(selected("Radeon"), [4]);
        assert_eq!(selected("opencl:nvidia"), [2, 3]);
        assert_eq!(selected("nvidia"), [0, 1]);
        assert_eq!(selected("cpu,integrated"), [5, 6]);
        assert_eq!(selected("all"), [0, 1, 4, 5, 6, 7]);
        assert_eq!(selected("pci:3"), [4]);
        assert!(selected("nothing").is_empty() && selected("cuda:2").is_empty());
        let both = Discovery::new().select("nvidia").unwrap().allow_duplicates(true);
        assert_eq!(used(&both, &rig()), [0, 1, 2, 3]);
    }

    #[test]
    #[cfg(feature = "host")]
    fn a_choice_holds_while_its_devices_work() {
        let discovery = Discovery::new().select("a filter of this test").unwrap();
        assert!(chosen_before(&discovery).is_none());
        let card = |number| CardKey { number, ..CardKey::host_ram() };
        let keys = [card(1), card(2)];
        let simulated = || Ok(backend_host::SimulatedDevice::builder(1).build().into());
        let open = || keys.each_ref().map(|key| open_devices::shared(key, simulated).unwrap().0);
        let devices = open();
        remember_choice(&discovery, keys.to_vec());
        let chosen = chosen_before(&discovery).unwrap();
        assert!(chosen.iter().zip(&devices).all(|(one, other)| Arc::ptr_eq(one, other)));
        let AnyDevice::Simulated(device) = &*devices[1] else {
            unreachable!("this test opens simulated devices")
        };
        device.lose();
        assert!(chosen_before(&discovery).is_none());
        open();
        assert!(chosen_before(&discovery).is_some());
    }

    #[test]
    fn an_empty_filter_is_an_error() {
        for filters in ["", "cuda,", " , host"] {
            let error = Discovery::new().select(filters).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::DeviceFilter { .. }), "{filters}");
        }
    }

    #[test]
    fn the_report_is_a_table() {
        let broken = Absence::new("cuda", AbsenceKind::Unusable, "it is old; update it");
        let text = Discovery::new().report_of(of_unknown_health(&rig()), vec![broken]).to_string();
        assert_eq!(text.lines().count(), 10);
        // The report lists all rows of a backend together.
        assert!(text.lines().nth(3).unwrap().ends_with("no: unusable: it is old; update it"), "{text}");
        assert!(text.lines().nth(4).unwrap().ends_with("no: the same card is used through cuda"), "{text}");
    }

    #[test]
    fn a_card_that_wants_to_be_replaced_is_used_only_if_it_is_named() {
        let rig = |bad: &[usize]| {
            let mut facts = of_unknown_health(&rig());
            for at in bad {
                facts[*at].1.remap_failed = Some(true);
            }
            facts
        };
        let used = |filters: &str, bad: &[usize]| {
            let discovery = Discovery::new();
            let discovery = if filters.is_empty() { discovery } else { discovery.select(filters).unwrap() };
            let report = discovery.report_of(rig(bad), Vec::new());
            (report.used().collect::<Vec<_>>(), report)
        };
        let (chosen, report) = used("", &[0]);
        // The GPU is not used through OpenCL either, although OpenCL lists it as its first device.
        assert_eq!(chosen, [1, 4]);
        let reason = "a row of its memory has errors and no spare row is left: replace the GPU, or name it by \
                      number or identity to use it nevertheless";
        assert_eq!(report.devices[0].1, Choice::LeftOut(reason.into()));
        assert_eq!(report.devices[2].1, Choice::LeftOut(reason.into()));
        assert_eq!(report.unsound().count(), 2);
        assert!(report.to_string().contains("remapping failed"), "{report}");
        assert!(report.found()[0].ends_with("nevertheless"), "{:?}", report.found());
        for (filters, chosen) in [
            ("cuda", &[1][..]),
            ("gpu", &[1, 4]),
            ("all", &[1, 4, 5, 6, 7]),
            ("nvidia a", &[]),
            ("cuda:0", &[0]),
            ("pci:1", &[0]),
            ("opencl:0", &[2]),
            ("pci", &[1, 4, 5]),
            ("cuda:0, gpu", &[0, 1, 4]),
        ] {
            assert_eq!(used(filters, &[0]).0, chosen, "{filters}");
        }
        assert_eq!(used("", &[0, 1, 4]).0, [7], "host RAM, as where there is no card");
        // A GPU is used even if its next reset will replace rows of its memory.
        let mut facts = rig(&[]);
        facts[0].1.remap_pending = Some(true);
        assert_eq!(Discovery::new().report_of(facts, Vec::new()).used().next(), Some(0));
    }

    #[test]
    fn a_backend_without_discrete_cards_means_all_that_it_has() {
        let pocl = &rig()[6..];
        assert_eq!(used(&Discovery::new().select("opencl").unwrap(), pocl), [0]);
        assert_eq!(used(&Discovery::new().select("cuda").unwrap(), pocl), [0; 0]);
    }

    #[test]
    #[cfg(all(feature = "cuda", feature = "opencl"))]
    fn the_report_says_why_a_filter_matches_no_device() {
        let missing = Absence::new("cuda", AbsenceKind::NotInstalled, "there is no libcuda; install it");
        let filters = "cuda, CUDA:1, gpu, Nonsense, opencl:radeon, opencl:7, host:99, host";
        let facts = of_unknown_health(&rig()[6..]);
        let report = Discovery::new().select(filters).unwrap().report_of(facts, vec![missing]);
        let unmet: Vec<_> = report.unmet.iter().map(|unmet| (&*unmet.filter, &*unmet.reason)).collect();
        let not_installed = "not installed: there is no libcuda; install it";
        assert_eq!(
            unmet,
            [
                ("cuda", not_installed),
                ("CUDA:1", not_installed),
                ("gpu", "there is no device of kind discrete GPU"),
                ("Nonsense", "no device has \"nonsense\" in its name, vendor or identity"),
                ("opencl:radeon", "no device of opencl has \"radeon\" in its name, vendor or identity"),
                ("opencl:7", "the only device of opencl is number 0"),
                ("host:99", "the only device of host is number 0"),
            ]
        );
        assert_eq!(report.used().collect::<Vec<_>>(), [1]);
        assert_eq!(report.found().len(), 3);
    }
}
