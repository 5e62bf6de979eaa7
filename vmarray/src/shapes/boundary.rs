//! Boundary modes: views of arrays that also accept positions beyond the edges.
//!
//! The mode of a [`BoundaryView`] defines the value of a read outside of the array:
//!
//! | mode | outside the edges of `a b c d` | |
//! |---|---|---|
//! | [`Checked`] | an error | |
//! | [`Zero`] | `0 0 0 a b c d 0 0 0` | all bytes are zero |
//! | [`Constant`] | `x x x a b c d x x x` | any value |
//! | [`Clamp`] | `a a a a b c d d d d` | the edge element is repeated |
//! | [`Circular`] | `b c d a b c d a b c` | the array is repeated |
//! | [`Mirror`] | `d c b a b c d c b a` | mirrored at the edge elements, which are not repeated |
//! | [`Symmetric`] | `c b a a b c d d c b` | mirrored beyond the edge elements, which are repeated |
//! | [`Unchecked`] | undefined behaviour | for loops whose indices are always inside |
//!
//! A second mode is for writes outside: [`Checked`], [`Ignored`] or [`Unchecked`]. A mode belongs to the
//! view, so one array can have views with different modes at once. A view has one mode for all axes, or a
//! tuple with a mode for each axis; programs can add modes by [`Boundary`].
//!
//! A filter needs no special case at the edges. There are three ways to read neighbours:
//!
//! - A [kernel](mod@crate::kernel) runs on the devices, and takes a view's [`window`](BoundaryView::window).
//! - An [expression](crate::expr) takes [`shifted`](BoundaryView::shifted) views.
//! - The host [reads a window](BoundaryView::read_window) larger than its tile.
//!
//! ```
//! use vmarray::prelude::*;
//! use vmarray::boundary::{Circular, Clamp, Zero};
//! let image = NdArray::<u8, 2>::new([3, 3])?;
//! image.write_box(.., &[1, 2, 3, 4, 5, 6, 7, 8, 9])?;
//! let mut window = [0; 5 * 5];
//! image.bounded(Zero).read_window([-1, -1], [5, 5], &mut window)?;
//! assert_eq!(window[..10], [0, 0, 0, 0, 0, 0, 1, 2, 3, 0]);
//! // A cylinder: rows are closed, columns end.
//! let cylinder = image.bounded((Clamp, Circular));
//! assert_eq!(cylinder.get([-1, -1])?, 3);
//! # Ok::<(), vmarray::Error>(())
//! ```
//!
//! # Pictures
//!
#![doc = include_str!("../../docs/boundary/pictures.md")]

#[forbid(unsafe_code)]
mod box_shape;
#[forbid(unsafe_code)]
mod each;
mod kernel_arguments;
mod modes;
#[forbid(unsafe_code)]
mod shifted;
#[forbid(unsafe_code)]
mod view;
#[forbid(unsafe_code)]
mod window;

pub use box_shape::BoxShape;
pub use modes::{
    Boundary, BoundaryPlace, Checked, Circular, Clamp, Constant, Ignored, Mirror, Symmetric, Unchecked,
    WriteBoundary, Zero,
};
pub use shifted::Shifted;
pub use view::{BoundaryView, Bounded};
