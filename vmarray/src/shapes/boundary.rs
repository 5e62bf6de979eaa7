//! What lies beyond the edges: views of arrays whose positions are signed and may be outside.
//!
//! A [`BoundaryView`] says what is read where an array has no elements, by a mode:
//!
//! | mode | beyond the edges of `a b c d` | |
//! |---|---|---|
//! | [`Checked`] | an error | |
//! | [`Zero`] | `0 0 0 a b c d 0 0 0` | all bytes are zero |
//! | [`Constant`] | `x x x a b c d x x x` | any value |
//! | [`Clamp`] | `a a a a b c d d d d` | the edge goes on |
//! | [`Circular`] | `b c d a b c d a b c` | the other end follows |
//! | [`Mirror`] | `d c b a b c d c b a` | mirrored at the edge elements, which are not repeated |
//! | [`Symmetric`] | `c b a a b c d d c b` | mirrored beyond the edge elements, which are repeated |
//! | [`Unchecked`] | undefined behaviour | for loops that are known to stay inside |
//!
//! and what is written there by another one: [`Checked`], [`Ignored`] or [`Unchecked`]. A mode belongs to the
//! view, so one array can be seen in several ways at once. It is for all axes, or one of a tuple with a mode
//! for each axis; programs can add modes of their own by [`Boundary`].
//!
//! A stencil needs no special case at the edges: it reads a [window](BoundaryView::read_window) that is
//! larger than its tile.
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
mod bounded;
#[forbid(unsafe_code)]
mod each;
mod launched;
mod modes;
#[forbid(unsafe_code)]
mod shifted;
#[forbid(unsafe_code)]
mod view;
#[forbid(unsafe_code)]
mod window;

pub use bounded::{Bounded, BoxShape};
pub use modes::{
    Boundary, Checked, Circular, Clamp, Constant, Ignored, Mirror, Place, Symmetric, Unchecked,
    WriteBoundary, Zero,
};
pub use shifted::Shifted;
pub use view::BoundaryView;
