//! Operations on the devices, by [expressions](crate::expr): elements are worked on where they lie. The
//! operations themselves are those of [`View`](crate::views::View) and [`ViewMut`](crate::views::ViewMut).

mod array;
mod assign;
mod joined;
mod plan;
mod reduce;
mod select;

pub use joined::{AnyColumn, Column, ColumnElements, Joinable, Joined, Row};
pub use plan::Plan;
pub use select::Selected;

pub(crate) use array::{read_all, unsettled, within_channel};
pub(crate) use plan::Condition;
pub(crate) use reduce::{Extremes, Histogram, Total};
pub(crate) use select::Ordered;
