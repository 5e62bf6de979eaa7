//! Launch variants: versions of a lowered kernel that differ in their code. Properties of a launch, such as
//! boundary modes, select the variant. The launch passes array extents and other numbers as scalars.

use crate::layout::{Layout, LayoutField};
use crate::stencil::Mode;
use backend_api::kernel::{Report, Type};

/// Number of elements below which kernels compute positions with 32 bits. The limit applies to the result,
/// and to each array whose neighbourhoods items (GPU threads) read.
pub const SHORT_MAX: u64 = 1 << 30;
/// Maximum number of scalars in a boundary constant (the value of elements beyond an array's edges). The
/// limit exists because the launch passes each scalar of the constant as a parameter.
pub const VALUES_MAX: usize = 16;

/// The source from which a launch takes a scalar parameter of the lowered kernel.
///
/// ```
/// use vmarray_kernel::{Anywhere, Own, ScalarSource, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn last(by: (f32, f32), of: &Anywhere<f32>, out: &mut Own<f32>) {
///     out.set(of[of.len() - 1] * by.1);
/// }
/// let sources = lower::<last>()?.scalars;
/// assert_eq!(sources[1], ScalarSource::Value { parameter: 0, position: 1 });
/// assert_eq!(sources[2], ScalarSource::Length { parameter: 1 });
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarSource {
    /// One of the [scalars](crate::KernelType::values) of a value parameter of the kernel.
    Value {
        /// Index of the parameter of the kernel function.
        parameter: usize,
        /// Index of the scalar in the value.
        position: usize,
    },
    /// Index of the first item's element, for a result with one axis.
    Origin,
    /// The [number](LaunchVariant::number) of the launch variant.
    LaunchVariant,
    /// A property of one axis of a result with several axes.
    Axis {
        /// Number of the axis.
        axis: usize,
        /// The property of the axis.
        part: AxisPart,
    },
    /// Number of elements of a tile of the result, as the factor and the shift for a division by it.
    TileLen(AxisPart),
    /// A property of an array that items read by position.
    Stencil {
        /// Index of the parameter of the kernel function.
        parameter: usize,
        /// The property of the array.
        part: StencilPart,
    },
    /// Number of elements of a view.
    Length {
        /// Index of the parameter of the kernel function.
        parameter: usize,
    },
    /// A scalar from which the kernel computes the number of its group in the whole launch.
    Groups(GroupPart),
}

/// A scalar from which the kernel computes a group's (thread block's) number in the launch, along one axis.
///
/// A device executes a launch in several runs (parts). The group with the number `g` in its run has the
/// number `q = First + g` in the launch. If the launch variant [is striped](LaunchVariant::is_striped), the
/// number in the launch is instead `q + q / PerPage * Skip + Offset`.
///
/// ```
/// use vmarray_kernel::{At, GroupPart, Own, ScalarSource, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel, group = 4)]
/// fn numbers(at: At<1>, out: &mut Own<u64>) {
///     out.set(at.group() as u64);
/// }
/// assert!(lower::<numbers>()?.scalars.contains(&ScalarSource::Groups(GroupPart::First)));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupPart {
    /// Number of groups of the launch.
    Count,
    /// Number of the run's first group: in the launch, or among the channel's groups if pages are striped
    /// over channels.
    First,
    /// Number of groups of a page.
    PerPage,
    /// Number of groups of other channels between two pages of the run's channel.
    Skip,
    /// Number to add at the end, modulo 2^64.
    Offset,
}

/// A property of one axis of the result, which a launch passes to the kernel as a scalar.
///
/// ```
/// use vmarray_kernel::{At, AxisPart, Own, ScalarSource, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn rows(at: At<2>, out: &mut Own<u64>) {
///     out.set(at[0] as u64);
/// }
/// let extent = ScalarSource::Axis { axis: 1, part: AxisPart::Extent };
/// assert!(lower::<rows>()?.scalars.contains(&extent));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AxisPart {
    /// Index of the first item along the axis.
    Start,
    /// Number of items along the axis.
    Extent,
    /// Number of tiles along the axis.
    Tiles,
    /// Factor for divisions by the number of tiles along the axis.
    TilesFactor,
    /// Shift for divisions by the number of tiles along the axis.
    TilesShift,
    /// Number of elements of a tile along the axis.
    Tile,
    /// Factor for divisions by the number of elements of a tile.
    TileFactor,
    /// Shift for divisions by the number of elements of a tile.
    TileShift,
}

impl AxisPart {
    const ALL: [Self; 8] = [
        Self::Start,
        Self::Extent,
        Self::Tiles,
        Self::TilesFactor,
        Self::TilesShift,
        Self::Tile,
        Self::TileFactor,
        Self::TileShift,
    ];
}

/// A property of an array for reads at an item's (GPU thread's) position; launches pass it as a scalar.
///
/// ```
/// use vmarray_kernel::{At, Own, ScalarSource, StencilPart, Window, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn before(at: At<1>, of: &Window<f32, 1>, out: &mut Own<f32>) {
///     out.set(of[at.plus(-1)]);
/// }
/// let mode = ScalarSource::Stencil { parameter: 1, part: StencilPart::Mode(0) };
/// assert!(lower::<before>()?.scalars.contains(&mode));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StencilPart {
    /// First position along the axis with this number; it may be negative.
    First(usize),
    /// Extent along the axis with this number, in elements.
    Extent(usize),
    /// Boundary mode of the axis with this number.
    Mode(usize),
    /// Stride along the axis with this number, in elements.
    Stride(usize),
    /// Index of the first element in the view.
    Base,
    /// A scalar of the boundary constant of an axis: the number of the axis, and of the
    /// [scalar](crate::KernelType::values).
    Value(usize, usize),
}

impl ScalarSource {
    /// Returns the sources of all scalars that describe a result with at least two axes.
    pub(crate) fn of_domain(axes: usize) -> Vec<Self> {
        let mut sources = vec![Self::LaunchVariant];
        for axis in 0..axes {
            sources.extend(AxisPart::ALL.map(|part| Self::Axis { axis, part }));
        }
        sources.extend([AxisPart::TileFactor, AxisPart::TileShift].map(Self::TileLen));
        sources
    }
}

/// A launch variant: the properties of a launch on which the code of the lowered kernel depends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LaunchVariant {
    /// Number of axes of the result; 0 for the number of axes of the kernel's [`At`](crate::At).
    pub axes: usize,
    /// True if the result is stored in tiles.
    pub is_tiled: bool,
    /// True if the launch covers only a part of the result: some stored elements then have no item (thread).
    pub is_part: bool,
    /// True if 32 bits suffice to compute positions: see [`SHORT_MAX`].
    pub is_short: bool,
    /// True if the pages are striped over several channels (shares of devices), and each run (part of the
    /// launch) has only the groups of one channel. The group numbers in a run then have gaps.
    pub is_striped: bool,
    /// True if the kernel stores the values that items (GPU threads) return.
    pub returns: bool,
    /// True if groups compute tiles, and items (GPU threads) may read an element before they write it.
    pub keeps: bool,
    /// Indices of the `Append` parameters whose elements the launch sorts by the item (GPU thread) that
    /// appended them. The kernel stores the item's index [in front](numbered) of such an element.
    pub ordered: Vec<usize>,
    /// Boundary modes other than [`Mode::Checked`]: the index of the parameter, the axis, and the mode.
    pub modes: Vec<(usize, usize, Mode)>,
}

impl LaunchVariant {
    /// Returns `is_tiled`, `is_part` and `is_short` as bits of a number, which the launch passes as a scalar.
    #[must_use]
    pub fn number(&self) -> u64 {
        u64::from(self.is_tiled) | u64::from(self.is_part) << 1 | u64::from(self.is_short) << 2
    }

    pub(crate) fn of_number(number: u64) -> Self {
        let [is_tiled, is_part, is_short] = [1, 2, 4].map(|bit| number & bit != 0);
        Self { is_tiled, is_part, is_short, ..Self::default() }
    }

    /// Reads the variant of a launch from the launch's scalars.
    pub(crate) fn of_launch(&self, sources: &[ScalarSource], scalar: &dyn Fn(usize) -> u64) -> Self {
        let mut form = self.clone();
        for (number, source) in sources.iter().enumerate() {
            match *source {
                ScalarSource::LaunchVariant => {
                    let Self { is_tiled, is_part, is_short, .. } = Self::of_number(scalar(number));
                    (form.is_tiled, form.is_part, form.is_short) = (is_tiled, is_part, is_short);
                }
                ScalarSource::Stencil { parameter, part: StencilPart::Mode(axis) } => {
                    let mode = Mode::of_number(scalar(number));
                    form.modes.extend((mode != Mode::Checked).then_some((parameter, axis, mode)));
                }
                _ => {}
            }
        }
        form
    }

    pub(super) fn mode(&self, parameter: usize, axis: usize) -> Mode {
        let known = self.modes.iter().find(|known| (known.0, known.1) == (parameter, axis));
        known.map_or(Mode::Checked, |known| known.2)
    }
}

/// Returns the layout of a struct with an item's (GPU thread's) index and an element of the layout `of`. If a
/// launch sorts appended elements in item order, the kernel stores them in this layout.
///
/// The size of the layout is a multiple of 8 bytes.
#[must_use]
pub fn numbered(of: Layout) -> Layout {
    let bytes = 8 + of.bytes().next_multiple_of(8);
    let index = LayoutField { name: "item", offset: 0, layout: Layout::Scalar(PLACE) };
    let value = LayoutField { name: "value", offset: 8, layout: of };
    Layout::Struct { name: "Numbered", fields: vec![index, value], bytes }
}

/// A bit that marks indices out of bounds: with the bit, an index exceeds the number of elements.
pub(super) const OUTSIDE: u64 = 1 << 62;

/// Returns the index of a failed read by position, from the lower 62 bits of the report's detail.
pub(super) fn place_of_report(report: &Report) -> i128 {
    ((report.detail << 2).cast_signed() >> 2).into()
}

/// The type of indices and other scalars that are not values of the program.
pub(super) const PLACE: Type = Type::U64;
