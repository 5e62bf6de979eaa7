//! [`LoweredKernel`], the result of lowering a kernel (translating it for devices).

use super::launch_variant::{ScalarSource, place_of_report};
use super::tables::TableSource;
use crate::error::{Error, ErrorKind};
use crate::views::{ParameterInfo, ParameterKind};
use backend_api::kernel::{Body, Op, Report};

/// A lowered kernel: the code that devices run, and the source of each argument that a launch passes.
///
/// ```
/// use vmarray_kernel::{At, Own, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn threes<const N: u64>(at: At<1>, out: &mut Own<u64>) {
///     out.set(at.index() as u64 * N);
/// }
/// let lowered = lower::<threes<3>>()?;
/// assert!(lowered.body.verify().is_ok());
/// assert_eq!((lowered.name, lowered.views, lowered.parameters.len()), ("threes", vec![1], 2));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoweredKernel {
    /// Name of the kernel function.
    pub name: &'static str,
    /// The code that devices run.
    pub body: Body,
    /// Parameters of the kernel function.
    pub parameters: Vec<ParameterInfo>,
    /// The source from which a launch takes each scalar parameter of the code.
    pub scalars: Vec<ScalarSource>,
    /// For each view (array) of the code, the index in [`parameters`](Self::parameters) of the kernel
    /// parameter that it belongs to. For a view of [returned values](crate::lower_returning), the length of
    /// `parameters`.
    pub views: Vec<usize>,
    /// The source from which a launch takes the contents of each constant table of the code.
    pub tables: Vec<TableSource>,
    /// Source locations of operations that may fail, with the numbers of the operations.
    pub(super) places: Vec<(u32, SourcePlace)>,
    /// Source location of the kernel function.
    pub(super) defined: SourcePlace,
}

/// A source location: a file and a line of the program.
///
/// ```
/// use vmarray_kernel::{Anywhere, At, Own, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn next(at: At<1>, of: &Anywhere<u8>, out: &mut Own<u8>) {
///     out.set(of[at.index() + 1]);
/// }
/// let lowered = lower::<next>()?;
/// let place = (0..).find_map(|site| lowered.place_of(site)).expect("an index may be outside");
/// assert!(place.file.ends_with(".rs") && place.line > 0 && place.to_string().contains(".rs:"));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePlace {
    /// Path of the source file, as rustc reports it.
    pub file: &'static str,
    /// Line, counted from 1.
    pub line: u32,
}

impl std::fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl LoweredKernel {
    /// Returns the source location of the operation with the number `site` in a [`Report`], if known.
    #[must_use]
    pub fn place_of(&self, site: u32) -> Option<SourcePlace> {
        let at = self.places.binary_search_by_key(&site, |(site, _)| *site).ok()?;
        Some(self.places[at].1)
    }

    /// Returns the source location of the kernel function.
    #[must_use]
    pub const fn defined_at(&self) -> SourcePlace {
        self.defined
    }

    /// Creates the error for a body that the verifier refuses.
    pub(crate) fn refused(&self, kind: ErrorKind, detail: &str) -> Error {
        let SourcePlace { file, line } = self.defined;
        Error::new(kind, self.name, file, line, detail.to_owned())
    }

    /// Returns the index out of bounds in a report, as the kernel's source computed it. The index may be
    /// negative for a [`Window`](crate::Window), whose elements are read by relative position.
    #[doc(hidden)]
    #[must_use]
    pub fn index_of(&self, report: &Report) -> i128 {
        let view = match self.body.operation(report.site) {
            Some(Op::Load { view, .. }) => Some(usize::from(*view)),
            _ => None,
        };
        let parameter = view.map(|view| self.views[view]);
        let kind = parameter.map(|parameter| &self.parameters[parameter].kind);
        let next = parameter.and_then(|parameter| self.parameters.get(parameter + 1));
        match kind {
            // For row `i`, the kernel first loads the row's end, from index `i + 1` of the starts. So a
            // failed load at `i + 1` means that row `i` does not exist.
            _ if next.is_some_and(|next| matches!(next.kind, ParameterKind::Rows(_))) => {
                let row = if report.detail == u64::MAX { u64::MAX } else { report.detail.wrapping_sub(1) };
                row.into()
            }
            Some(ParameterKind::Window(..) | ParameterKind::Anywhere(_, 2..) | ParameterKind::Rows(_)) => {
                place_of_report(report)
            }
            _ => report.detail.into(),
        }
    }

    /// Returns the contents of all constant tables of a launch, as bytes. `values` returns the bits of all
    /// scalars of the parameter with the given index.
    #[must_use]
    pub fn table_bytes<'v>(&self, values: impl Fn(usize) -> &'v [u64]) -> Vec<u8> {
        let mut bytes = vec![0; self.body.table_bytes() as usize];
        for (number, source) in self.tables.iter().enumerate() {
            let (of, mut at) = (self.body.tables[number].of, self.body.table_offset(number) as usize);
            let len = of.bytes() as usize;
            let mut put = |value: u64| {
                // Take the value's low bytes, in the byte order of this machine.
                let all = value.to_ne_bytes();
                let own = if cfg!(target_endian = "little") { &all[..len] } else { &all[8 - len..] };
                bytes[at..at + len].copy_from_slice(own);
                at += len;
            };
            match source {
                TableSource::Constant(values) => values.iter().copied().for_each(&mut put),
                TableSource::Parameter { parameter, positions } => {
                    let values = values(*parameter);
                    positions.iter().for_each(|position| put(values[*position]));
                }
            }
        }
        bytes
    }
}
