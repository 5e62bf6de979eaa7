//! [`Sealed`] and [`Internal`]: prevent other crates from implementing the library's traits and from calling
//! their internal methods.

/// The supertrait of the library's sealed traits, which other crates therefore cannot implement.
pub trait Sealed {}

/// A token argument that restricts calls and implementations of a method to this crate: other crates can
/// neither name its type nor create a value.
#[derive(Clone, Copy, Debug)]
pub struct Internal(());

/// The token that this crate passes to its internal methods.
pub(crate) const INTERNAL: Internal = Internal(());
