//! What a launch gives beside values, and what of it is known when a kernel is lowered.

use super::Lowered;
use crate::around::Mode;
use crate::layout::{Field, Layout};
use backend_api::kernel::{Report, Type};

/// Places are computed with 32 bits where results, and what is read by places, have fewer elements.
pub const SHORT_MAX: u64 = 1 << 30;
/// Constants of boundary modes are scalars of a launch if an element has at most so many.
pub const VALUES_MAX: usize = 16;

/// Where a launch takes a scalar of the representation from.
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
    /// A parameter of the kernel: which of its [values](crate::KernelType::values).
    Value {
        /// The number of the parameter.
        parameter: usize,
        /// Which of its values.
        position: usize,
    },
    /// Which index the first element has, if the result has one axis: indices that kernels see are counted
    /// from it.
    Origin,
    /// How the elements of a result with several axes are stored, and with how many bits places are computed.
    Form,
    /// One of the axes of the result, if it has several.
    Axis {
        /// Which axis.
        axis: usize,
        /// What of it.
        part: AxisPart,
    },
    /// Elements of a tile of the result, as a factor and a shift for divisions.
    TileLen(AxisPart),
    /// A parameter of the kernel that is read by places.
    Around {
        /// The number of the parameter.
        parameter: usize,
        /// What of it.
        part: AroundPart,
    },
    /// How many elements a view has.
    Length {
        /// The number of the parameter.
        parameter: usize,
    },
}

/// What is said of an axis of the result: its elements are stored in tiles, of one element perhaps.
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
    /// The first index of the elements that the kernel runs for.
    Start,
    /// How many those are.
    Extent,
    /// How many tiles there are.
    Tiles,
    /// The factor by which to divide by that.
    TilesFactor,
    /// The shift.
    TilesShift,
    /// Elements of a tile.
    Tile,
    /// The factor by which to divide by that.
    TileFactor,
    /// The shift.
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

/// What is said of elements that are read by places.
///
/// ```
/// use vmarray_kernel::{At, AroundPart, Own, ScalarSource, Window, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn before(at: At<1>, of: &Window<f32, 1>, out: &mut Own<f32>) {
///     out.set(of[at.plus(-1)]);
/// }
/// let mode = ScalarSource::Around { parameter: 1, part: AroundPart::Mode(0) };
/// assert!(lower::<before>()?.scalars.contains(&mode));
/// # Ok::<_, vmarray_kernel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AroundPart {
    /// The first place along an axis; it may be negative.
    First(usize),
    /// How many places there are along an axis.
    Extent(usize),
    /// Which boundary mode an axis has.
    Mode(usize),
    /// From one element to the next along an axis, in elements.
    Stride(usize),
    /// The number of the first element.
    Base,
    /// What is outside of an axis: which of its [values](crate::KernelType::values).
    Value(usize, usize),
}

impl ScalarSource {
    /// What is given of a result with so many axes, of at least two.
    pub(crate) fn of_domain(axes: usize) -> Vec<Self> {
        let mut sources = vec![Self::Form];
        for axis in 0..axes {
            sources.extend(AxisPart::ALL.map(|part| Self::Axis { axis, part }));
        }
        sources.extend([AxisPart::TileFactor, AxisPart::TileShift].map(Self::TileLen));
        sources
    }
}

/// What is known of a launch when a kernel is lowered for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// How many axes the result has; 0 for as many as the kernel's place has.
    pub axes: usize,
    /// Whether it is stored in tiles.
    pub is_tiled: bool,
    /// Whether some elements of the store are not the kernel's.
    pub is_part: bool,
    /// Whether places are computed with 32 bits.
    pub is_short: bool,
    /// Whether what items return is written down.
    pub returns: bool,
    /// Whether items of groups that are tiles find in results what was there before.
    pub keeps: bool,
    /// Parameters whose appended elements are [preceded](numbered) by the index of the item.
    pub ordered: Vec<usize>,
    /// By parameter and axis, how what lies outside is read where that is no failure.
    pub modes: Vec<(usize, usize, Mode)>,
}

impl Form {
    /// As a scalar.
    #[must_use]
    pub fn number(&self) -> u64 {
        u64::from(self.is_tiled) | u64::from(self.is_part) << 1 | u64::from(self.is_short) << 2
    }

    pub(crate) fn of_number(number: u64) -> Self {
        let [is_tiled, is_part, is_short] = [1, 2, 4].map(|bit| number & bit != 0);
        Self { is_tiled, is_part, is_short, ..Self::default() }
    }

    /// That of a launch like this one, by the scalars that it is given.
    pub(crate) fn of_launch(&self, like: &Lowered, scalar: &dyn Fn(usize) -> u64) -> Self {
        let mut form = self.clone();
        for (number, source) in like.scalars.iter().enumerate() {
            match *source {
                ScalarSource::Form => {
                    let Self { is_tiled, is_part, is_short, .. } = Self::of_number(scalar(number));
                    (form.is_tiled, form.is_part, form.is_short) = (is_tiled, is_part, is_short);
                }
                ScalarSource::Around { parameter, part: AroundPart::Mode(axis) } => {
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

/// Appended elements of a type as they are when they are put in the order of items: behind the item's index.
///
/// They take a multiple of 8 bytes.
#[must_use]
pub fn numbered(of: Layout) -> Layout {
    let bytes = 8 + of.bytes().next_multiple_of(8);
    let index = Field { name: "item", offset: 0, layout: Layout::Scalar(PLACE) };
    let value = Field { name: "value", offset: 8, layout: of };
    Layout::Struct { name: "Numbered", fields: vec![index, value], bytes }
}

/// A bit that indices outside are told with, so that no element has their number, however far outside.
pub(super) const OUTSIDE: u64 = 1 << 62;

/// The index that a report of an access by places has, as far as its lower 62 bits say.
pub(super) fn place_of_report(report: &Report) -> i128 {
    ((report.detail << 2).cast_signed() >> 2).into()
}

/// The type of a scalar that is no value.
pub(super) const PLACE: Type = Type::U64;
