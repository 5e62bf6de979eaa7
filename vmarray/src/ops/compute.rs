//! Operations with [expressions](crate::expr) on elements in place, by the devices. Their methods are in
//! [`View`](crate::views::View) and [`ViewMut`](crate::views::ViewMut).

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
