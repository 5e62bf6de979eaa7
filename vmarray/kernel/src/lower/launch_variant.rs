//! Inputs of a launch besides values, and their part that is known during lowering.

use super::Lowered;
use crate::layout::{Layout, LayoutField};
use crate::stencil::Mode;
use backend_api::kernel::{Report, Type};

/// Places have 32 bits if the result, and all operands read by places, have fewer elements.
pub const SHORT_MAX: u64 = 1 << 30;
/// Maximum number of scalars in an element type whose boundary constant is passed as kernel parameters.
pub const VALUES_MAX: usize = 16;

/// The source of a scalar parameter of the lowered kernel.
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
    /// One of the [values](crate::KernelType::values) of a parameter of the kernel.
    Value {
        /// The index of the parameter.
        parameter: usize,
        /// The index of the value.
        position: usize,
    },
    /// The index of the first element of a result with one axis; kernels see indices from it on.
    Origin,
    /// The storage of a result with several axes, and the width of place computations.
    LaunchVariant,
    /// One of several axes of the result.
    Axis {
        /// The axis.
        axis: usize,
        /// The property.
        part: AxisPart,
    },
    /// Elements of a tile of the result, as a factor and a shift for divisions.
    TileLen(AxisPart),
    /// A parameter read by places.
    Stencil {
        /// The index of the parameter.
        parameter: usize,
        /// The property.
        part: StencilPart,
    },
    /// The length of a view in elements.
    Length {
        /// The index of the parameter.
        parameter: usize,
    },
    /// The groups of the launch, which are numbered over all of its runs.
    Groups(GroupPart),
}

/// A scalar about groups along one axis, for the run that a device executes.
///
/// A run is a part of the launch. The kernel computes the number of a group from the number `g` that the
/// group has in its run: `q = First + g`, and `q + q / PerPage * Skip + Offset` if the form
/// [is striped](LaunchVariant::is_striped).
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
    /// The number of groups of the launch.
    Count,
    /// The index of the run's first group: in the launch, or in the channel if pages are striped.
    First,
    /// The number of groups of a page.
    PerPage,
    /// The number of groups of other channels between two pages of this one.
    Skip,
    /// The number that is added at last, modulo 2^64.
    Offset,
}

/// Property of an axis of the result, whose elements are stored in tiles of at least one element.
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
    /// The first index of the items.
    Start,
    /// The number of items.
    Extent,
    /// The number of tiles.
    Tiles,
    /// The factor for a division by that number.
    TilesFactor,
    /// The shift for that division.
    TilesShift,
    /// Elements of a tile.
    Tile,
    /// The factor for a division by that number.
    TileFactor,
    /// The shift for that division.
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

/// Property of elements read by places.
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
    /// The first place along an axis, possibly negative.
    First(usize),
    /// The extent along an axis.
    Extent(usize),
    /// The boundary mode of an axis.
    Mode(usize),
    /// The stride along an axis, in elements.
    Stride(usize),
    /// The index of the first element.
    Base,
    /// One of the [values](crate::KernelType::values) of the boundary constant of an axis.
    Value(usize, usize),
}

impl ScalarSource {
    /// The scalars of a result with at least two axes.
    pub(crate) fn of_domain(axes: usize) -> Vec<Self> {
        let mut sources = vec![Self::LaunchVariant];
        for axis in 0..axes {
            sources.extend(AxisPart::ALL.map(|part| Self::Axis { axis, part }));
        }
        sources.extend([AxisPart::TileFactor, AxisPart::TileShift].map(Self::TileLen));
        sources
    }
}

/// Properties of a launch that are known during lowering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LaunchVariant {
    /// The number of axes of the result; 0 for the number of the kernel's place.
    pub axes: usize,
    /// True for tiled storage.
    pub is_tiled: bool,
    /// True if some elements of the store have no item.
    pub is_part: bool,
    /// True for place computations in 32 bits.
    pub is_short: bool,
    /// True if a run of groups has pages of only one of several channels, so that group numbers have gaps.
    pub is_striped: bool,
    /// True if returned values are stored.
    pub returns: bool,
    /// True if items of tiled groups can read the old elements of results.
    pub keeps: bool,
    /// Parameters whose appended elements are [preceded](numbered) by the index of the item.
    pub ordered: Vec<usize>,
    /// Boundary modes by parameter and axis; none if an access outside fails.
    pub modes: Vec<(usize, usize, Mode)>,
}

impl LaunchVariant {
    /// The form as a scalar.
    #[must_use]
    pub fn number(&self) -> u64 {
        u64::from(self.is_tiled) | u64::from(self.is_part) << 1 | u64::from(self.is_short) << 2
    }

    pub(crate) fn of_number(number: u64) -> Self {
        let [is_tiled, is_part, is_short] = [1, 2, 4].map(|bit| number & bit != 0);
        Self { is_tiled, is_part, is_short, ..Self::default() }
    }

    /// The form of a launch, from its scalars.
    pub(crate) fn of_launch(&self, like: &Lowered, scalar: &dyn Fn(usize) -> u64) -> Self {
        let mut form = self.clone();
        for (number, source) in like.scalars.iter().enumerate() {
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

/// The layout of appended elements with the item's index before each, for sorting in item order.
///
/// They take a multiple of 8 bytes.
#[must_use]
pub fn numbered(of: Layout) -> Layout {
    let bytes = 8 + of.bytes().next_multiple_of(8);
    let index = LayoutField { name: "item", offset: 0, layout: Layout::Scalar(PLACE) };
    let value = LayoutField { name: "value", offset: 8, layout: of };
    Layout::Struct { name: "Numbered", fields: vec![index, value], bytes }
}

/// A bit that marks reported indices outside, so that they equal the number of no element.
pub(super) const OUTSIDE: u64 = 1 << 62;

/// The index of a reported access by places, from its lower 62 bits.
pub(super) fn place_of_report(report: &Report) -> i128 {
    ((report.detail << 2).cast_signed() >> 2).into()
}

/// The type of a scalar other than a value.
pub(super) const PLACE: Type = Type::U64;
