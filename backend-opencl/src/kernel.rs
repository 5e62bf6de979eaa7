//! OpenCL kernels of this backend: builds and caches them, and creates the kernel objects of each queue.

#[forbid(unsafe_code)]
pub(crate) mod cache;
pub(crate) mod compute;
pub(crate) mod fill;
pub(crate) mod indexed;
pub(crate) mod launch;
mod listing;
#[forbid(unsafe_code)]
mod text;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{ErrorKind, Result};
use opencl3::types::cl_device_id;

use self::cache::CacheFile;
use crate::discovery::{DeviceTraits, Discovered};
use crate::driver::objects::{Context, DriverArgument, Kernel, Program, Status};
use crate::error;
use crate::options::OpenClOptions;

const COMMON: &str = include_str!("../kernels/common.cl");
const CHUNKS: &str = include_str!("../kernels/chunks.cl");
const COMPUTE: &str = include_str!("../kernels/compute.cl");
const DIVIDE: &str = include_str!("../kernels/divide.cl");
const ROOT: &str = include_str!("../kernels/root.cl");
const CONTRACT_OFF: &str = "#pragma OPENCL FP_CONTRACT OFF\n";
const LAUNCH: &str = include_str!("../kernels/launch.cl");
const SOURCES: [&str; 6] = [
    COMMON,
    include_str!("../kernels/fill.cl"),
    include_str!("../kernels/indexed.cl"),
    CHUNKS,
    include_str!("../kernels/search.cl"),
    include_str!("../kernels/copy.cl"),
];

/// Built kernels of a device, and the sizes of their launches.
#[derive(Debug)]
pub(crate) struct BuiltKernels {
    program: Program,
    /// Number of work-items in a work-group of this backend's kernels.
    pub group: usize,
    /// Number of work-groups that fill the device.
    pub groups: usize,
    /// True if each launch has the same number of work-groups, even for little work.
    steady: bool,
    division: Division,
    /// True if the device loaded the built kernels from disk.
    pub cached: bool,
    /// The error that prevented loading or storing the built kernels on disk, if any.
    pub cache_error: Option<io::Error>,
    /// Number of OpenCL programs built for expressions and kernels of the user's program.
    pub translations: AtomicU64,
}

impl BuiltKernels {
    /// Loads this backend's kernels from disk, or builds and stores them.
    ///
    /// # Errors
    /// `KernelFailed` with the compiler's output.
    pub fn new(context: &Context, found: &Discovered, with: &OpenClOptions) -> Result<Self> {
        let cpu = found.info().kind == backend_api::DeviceKind::Cpu;
        // On a GPU, 8 work-groups of 256 work-items fill a multiprocessor of 2048 threads. A processor runs
        // the work-items of a group one after the other: short groups suffice, and two per core balance the
        // load.
        let (most, each) = if cpu { (64, 2) } else { (256, 8) };
        let limit = found.traits.max_group.min(most);
        let group = 1_usize << limit.ilog2();
        let groups = found.traits.compute_units as usize * each;
        let options = options(group);
        let division = if with.integer_division { Division::Integers } else { Division::on(&found.traits) };

        let info = found.info();
        let mut cache_error = None;
        let mut or_warn = |error: io::Error| {
            tracing::debug!(%error, device = %info, "built kernels could not be read from disk or stored \
                there");
            cache_error.get_or_insert(error);
        };
        let entry = CacheFile::new(&with.kernel_cache, key(found, &options)).unwrap_or_else(|error| {
            or_warn(error);
            None
        });
        let device = found.handles.device;
        let kept = entry.as_ref().map(CacheFile::load).transpose().unwrap_or_else(|error| {
            or_warn(error);
            None
        });
        if let Some(binary) = kept.flatten() {
            let loaded = context.program_from_binary(device, &binary).and_then(|program| {
                program.build(device, &options)?;
                // Create one kernel as a test: some drivers accept any binary, and fail only at this call.
                program.kernel("search_scan")?;
                Ok(program)
            });
            match loaded {
                Ok(program) => {
                    return Ok(Self {
                        program,
                        group,
                        groups,
                        steady: cpu,
                        division,
                        cached: true,
                        cache_error,
                        translations: AtomicU64::new(0),
                    });
                }
                Err(status) => {
                    tracing::debug!(status, "the driver rejected kernels that it had built itself");
                }
            }
        }
        let built_with = match &entry {
            Some(entry) if cpu => options_of_its_own(&options, entry),
            _ => options,
        };
        let program = build(context, found.handles.device, &SOURCES, &built_with, "open")?;
        if let Some(entry) = &entry {
            match program.binary() {
                Ok(binary) if !binary.is_empty() => entry.store(&binary).unwrap_or_else(or_warn),
                Ok(_) => {}
                Err(status) => tracing::debug!(status, "the driver does not return built kernels"),
            }
        }
        let (cached, translations) = (false, AtomicU64::new(0));
        Ok(Self { program, group, groups, steady: cpu, division, cached, cache_error, translations })
    }

    /// Builds the kernels of a computation: `text`, the generated code of its expressions, followed by the
    /// text of this crate's kernels.
    ///
    /// # Errors
    /// `KernelFailed` with the compiler's output.
    pub fn build_more(&self, target: (&Context, cl_device_id), text: &str) -> Result<Program> {
        // `-w` suppresses warnings about unused variables and labels of generated functions.
        let options = format!("{}{} -w", options(self.group), self.division.option());
        let sources = [COMMON, self.division.text(), self.division.root(), LAUNCH, CHUNKS, text, COMPUTE];
        self.translations.fetch_add(1, Ordering::Relaxed);
        build(target.0, target.1, &sources, &options, "compute")
    }

    /// Builds kernels of the user's program from their generated text.
    ///
    /// # Errors
    /// `KernelFailed` with the compiler's output.
    pub fn build_kernels(&self, target: (&Context, cl_device_id), text: &str) -> Result<Program> {
        let options = format!("{}{} -w", options(self.group), self.division.option());
        let sources = [CONTRACT_OFF, COMMON, self.division.text(), self.division.root(), LAUNCH, text];
        self.translations.fetch_add(1, Ordering::Relaxed);
        build(target.0, target.1, &sources, &options, "launch")
    }

    /// Builds foreign code: OpenCL C that the user's program provides.
    pub fn build_foreign(&self, target: (&Context, cl_device_id), text: &str) -> Result<Program> {
        self.translations.fetch_add(1, Ordering::Relaxed);
        build(target.0, target.1, &[text], "", "launch")
    }

    /// Returns true if the device supports `f64`.
    pub fn has_doubles(&self, target: (&Context, cl_device_id)) -> bool {
        let text = "__kernel void doubles(__global double *x) { x[0] += 1.0; }";
        build(target.0, target.1, &[text], &options(self.group), "compute").is_ok()
    }

    /// Returns the number of work-groups to launch for `items` work-items.
    pub fn groups_for(&self, items: u64) -> usize {
        self.groups_up_to(items.div_ceil(self.group as u64))
    }

    /// Returns the number of work-groups to launch for a kernel that has work for `enough` groups. Kernels
    /// that run in several work-groups work with any number of groups.
    ///
    /// On a CPU the result is constant, to avoid a bug of PoCL up to 5.0. PoCL loads a kernel's code for each
    /// global size, but selects the code to release only by the kernel's name and the size of the groups. So
    /// after concurrent launches of different global sizes its reference counts are wrong. PoCL then ends the
    /// process (`pocl_release_dlhandle_cache`) or unloads code that still runs.
    pub fn groups_up_to(&self, enough: u64) -> usize {
        if self.steady { self.groups } else { enough.clamp(1, self.groups as u64) as usize }
    }
}

/// The method for correctly rounded `f32` division, which not all devices support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// The compiler option for correct rounding.
    Exact,
    /// Integer arithmetic in kernels of this crate.
    Integers,
}

impl Division {
    fn on(traits: &DeviceTraits) -> Self {
        if traits.rounds_quotients { Self::Exact } else { Self::Integers }
    }

    /// Returns the compiler option. Programs with divisions are not cached on disk; otherwise the cache key
    /// would have to contain it.
    fn option(self) -> &'static str {
        match self {
            Self::Exact => " -cl-fp32-correctly-rounded-divide-sqrt",
            Self::Integers => "",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Exact => "#define quotient(a, b) ((a) / (b))\n",
            Self::Integers => DIVIDE,
        }
    }

    /// Returns the text of a square root, which uses the same method as a quotient.
    fn root(self) -> &'static str {
        match self {
            Self::Exact => "#define root(x) sqrt(x)\n",
            Self::Integers => ROOT,
        }
    }
}

/// Returns the cache key of a built program: all properties that must match.
fn key(found: &Discovered, options: &str) -> String {
    let (info, version) = (found.info(), env!("CARGO_PKG_VERSION"));
    let device = [&info.name, &info.identity, &info.driver, found.platform()].join("\n");
    format!("{device}\n{version}\n{options}\n{}", SOURCES.concat())
}

fn options(group: usize) -> String {
    format!("-cl-std=CL1.2 -D GROUP={group}")
}

/// Returns options with the same effect that no other program of this process was built with.
///
/// To return a program's binary, PoCL up to 5.0 loads all of its kernels. It then confuses them with running
/// kernels of any program with the same text and options: see [`BuiltKernels::groups_up_to`]. So the backend
/// reads the binary of a program before any of its kernels runs, and builds it with options that differ from
/// all other programs, including cached ones.
fn options_of_its_own(options: &str, entry: &CacheFile) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{options} -D KEPT_{:x}_{number}", entry.number())
}

/// # Errors
/// `KernelFailed` with the compiler's output.
fn build(
    context: &Context,
    device: cl_device_id,
    sources: &[&str],
    options: &str,
    operation: &'static str,
) -> Result<Program> {
    let refused = |status| error::driver(operation, ErrorKind::KernelFailed, status);
    let program = context.program_from_source(sources).map_err(refused)?;
    program.build(device, options).map_err(|status| {
        let log = program.build_log(device);
        refused(status).with_detail(if log.is_empty() {
            "the compiler reported no reason".into()
        } else {
            log
        })
    })?;
    Ok(program)
}

/// The kernel objects of one queue, not shared, because setting arguments is not safe between threads.
#[derive(Debug, Default)]
pub(crate) struct KernelSet(Vec<(String, Kernel)>);

impl KernelSet {
    /// Returns a kernel object of the queue with these arguments set.
    pub fn prepare(
        &mut self,
        kernels: &BuiltKernels,
        name: &str,
        arguments: &[DriverArgument<'_>],
    ) -> Status<&Kernel> {
        let at = match self.0.iter().position(|(known, _)| known == name) {
            Some(at) => at,
            None => {
                self.0.push((name.to_owned(), kernels.program.kernel(name)?));
                self.0.len() - 1
            }
        };
        let kernel = &mut self.0[at].1;
        kernel.set(arguments)?;
        Ok(kernel)
    }
}

#[cfg(test)]
mod tests {
    use vmarray_support::private_dir;

    use super::*;
    use crate::driver::sys;
    use crate::options::KernelCache;

    #[test]
    fn processors_get_launches_of_one_width_and_programs_that_differ() {
        let folder = std::env::temp_dir().join(private_dir::random_name());
        let entry_in =
            |name| CacheFile::new(&KernelCache::Folder(folder.join(name)), "key".into()).unwrap().unwrap();
        let (entry, other) = (entry_in("here"), entry_in("elsewhere"));
        std::fs::remove_dir_all(&folder).unwrap();
        let all = [&entry, &entry, &other].map(|entry| options_of_its_own("-D GROUP=64", entry));
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "{all:?}");
        for found in crate::devices() {
            let context = Context::new(sys().unwrap(), found.handles.platform, found.handles.device).unwrap();
            let kernels = BuiltKernels::new(&context, &found, &OpenClOptions::new()).unwrap();
            let widths = [1, 1000, u64::MAX].map(|items| kernels.groups_for(items));
            let cpu = found.info().kind == backend_api::DeviceKind::Cpu;
            assert_eq!(widths, [if cpu { kernels.groups } else { 1 }, widths[1], kernels.groups]);
            assert!(!cpu || widths[1] == kernels.groups, "{widths:?}");
        }
    }

    #[test]
    fn kernels_that_the_driver_refuses_are_built_anew() {
        let folder = std::env::temp_dir().join(private_dir::random_name());
        let with = OpenClOptions::new().with_kernel_cache(KernelCache::Folder(folder.clone()));
        for found in crate::devices() {
            let context = Context::new(sys().unwrap(), found.handles.platform, found.handles.device).unwrap();
            let group = BuiltKernels::new(&context, &found, &OpenClOptions::new()).unwrap().group;
            let entry = CacheFile::new(&with.kernel_cache, key(&found, &options(group))).unwrap().unwrap();
            entry.store(b"no program").unwrap();
            let kernels = BuiltKernels::new(&context, &found, &with).unwrap();
            assert!(!kernels.cached && kernels.cache_error.is_none());
            assert_eq!(kernels.group, group);
            assert_ne!(entry.load().unwrap().unwrap(), b"no program", "what was built is kept instead");
        }
        let _ = std::fs::remove_dir_all(folder);
    }

    /// Edge cases of division, and other numbers.
    fn numbers() -> Vec<f32> {
        let edges = [0, 1, 2, 3, 0x7F_FFFF, 0x80_0000, 0x80_0001, 0x3F80_0000, 0x3F80_0001, 0x3F7F_FFFF];
        let more =
            [0x4040_0000, 0x7F7F_FFFF, 0x7F00_0000, 0x7F80_0000, 0x7FC0_0001, 0x0040_0000, 0x34FF_FFFF];
        let mut state = 1_u64;
        let random = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        });
        let all = edges.into_iter().chain(more).chain(random.take(1007));
        all.flat_map(|bits| [f32::from_bits(bits), f32::from_bits(bits | 1 << 31)]).collect()
    }

    #[test]
    fn quotients_are_rounded_correctly_either_way() {
        let numbers = numbers();
        let bits: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let text = "__kernel void divide(__global const float *x, __global float *all, uint row) {
            uint i = get_global_id(0); all[i] = quotient(x[row], x[i]); }";
        for found in crate::devices() {
            let context = Context::new(sys().unwrap(), found.handles.platform, found.handles.device).unwrap();
            let device = found.handles.device;
            let queue = context.queue(device).unwrap();
            let flags = opencl3::memory::CL_MEM_READ_WRITE;
            let [x, all] = [(); 2].map(|()| context.buffer(flags, bits.len()).unwrap());
            for division in [Division::Exact, Division::Integers] {
                if division == Division::Exact && !found.traits.rounds_quotients {
                    continue;
                }
                let options = format!("{}{}", options(1), division.option());
                let program = build(&context, device, &[division.text(), text], &options, "open").unwrap();
                let mut kernel = program.kernel("divide").unwrap();
                // SAFETY: both buffers have the length of the list, and it outlives the copy.
                unsafe { queue.write(bits.as_ptr(), &x, 0, bits.len(), None).unwrap() };
                for (row, dividend) in numbers.iter().enumerate() {
                    let mut answer = vec![0_f32; numbers.len()];
                    let arguments = [
                        DriverArgument::Buffer(&x),
                        DriverArgument::Buffer(&all),
                        DriverArgument::U32(row as u32),
                    ];
                    kernel.set(&arguments).unwrap();
                    // SAFETY: one item for each number; `answer` outlives the copy to it.
                    unsafe {
                        queue.launch(&kernel, numbers.len(), 1).unwrap();
                        queue.read(&all, 0, answer.as_mut_ptr().cast(), bits.len(), None).unwrap();
                    }
                    queue.finish().unwrap();
                    for (divisor, got) in numbers.iter().zip(answer) {
                        let expected = dividend / divisor;
                        assert!(
                            got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                            "{division:?} on {}: {dividend:e} / {divisor:e} is {expected:e}, not {got:e}",
                            found.info()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn roots_are_rounded_correctly_either_way() {
        let mut numbers = numbers();
        // Perfect squares, and the next smaller and greater floats.
        let squares = (1..400_u32).flat_map(|root| {
            let square = ((root * 10_487) as f32).powi(2);
            [square.next_down(), square, square.next_up()]
        });
        numbers.extend(squares);
        let text = "__kernel void roots(__global float *x) { uint i = get_global_id(0); x[i] = root(x[i]); }";
        for found in crate::devices() {
            let context = Context::new(sys().unwrap(), found.handles.platform, found.handles.device).unwrap();
            let device = found.handles.device;
            let queue = context.queue(device).unwrap();
            let buffer = context.buffer(opencl3::memory::CL_MEM_READ_WRITE, numbers.len() * 4).unwrap();
            for division in [Division::Exact, Division::Integers] {
                if division == Division::Exact && !found.traits.rounds_quotients {
                    continue;
                }
                let options = format!("{}{}", options(1), division.option());
                let sources = [division.text(), division.root(), text];
                let program = build(&context, device, &sources, &options, "open").unwrap();
                let mut kernel = program.kernel("roots").unwrap();
                kernel.set(&[DriverArgument::Buffer(&buffer)]).unwrap();
                let (mut answer, bytes) = (numbers.clone(), numbers.len() * 4);
                // SAFETY: the buffer has the length of the lists, which outlive the copies. The launch has
                // one item for each number.
                unsafe {
                    queue.write(numbers.as_ptr().cast(), &buffer, 0, bytes, None).unwrap();
                    queue.launch(&kernel, numbers.len(), 1).unwrap();
                    queue.read(&buffer, 0, answer.as_mut_ptr().cast(), bytes, None).unwrap();
                }
                queue.finish().unwrap();
                for (number, got) in numbers.iter().zip(answer) {
                    let expected = number.sqrt();
                    assert!(
                        got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                        "{division:?} on {}: the root of {number:e} is {expected:e}, not {got:e}",
                        found.info()
                    );
                }
            }
        }
    }

    #[test]
    fn the_compilers_words_are_in_the_error() {
        for found in crate::devices() {
            let context = Context::new(sys().unwrap(), found.handles.platform, found.handles.device).unwrap();
            let text = "__kernel void broken(int x) { undeclared_name = x; }";
            let program = build(&context, found.handles.device, &[text], "", "open");
            let error = program.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::KernelFailed);
            assert!(error.detail().contains("undeclared_name"), "{error}");
            assert_eq!(error.driver().unwrap().name, "CL_BUILD_PROGRAM_FAILURE");
        }
    }
}
