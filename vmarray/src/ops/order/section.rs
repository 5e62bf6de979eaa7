//! [`section`]: converts a view and a range to a section of the view's array or source (program memory).

use std::ops::RangeBounds;

use crate::base::error::Result;
use crate::ops::view::{Linear, Section, Shape as _, View};

pub(super) fn section<'a, V>(view: V, bounds: impl RangeBounds<usize>) -> Result<Section<'a, V::Store>>
where
    V: View<'a, Shape = Linear>,
{
    let (store, shape) = view.parts();
    Ok(Section::new(store, shape.cut(&shape.checked(bounds)?)))
}
