//! [`Sealed`] and [`Internal`]: prevent other crates from implementing the library's traits and from calling
//! their internal methods.

/// A trait that prevents other crates from implementing the library's sealed traits.
pub trait Sealed {}

/// A token for methods that only this crate may call or implement: other crates can neither name it
/// nor create one.
#[derive(Clone, Copy, Debug)]
pub struct Internal(());

/// The token that this crate passes to internal methods.
pub(crate) const INTERNAL: Internal = Internal(());
