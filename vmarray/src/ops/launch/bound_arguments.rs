//! Arguments of a launch, each assigned to its kernel parameter. Both [`run`](super::execution::run) and
//! launches in a [`Session`](super::Session) use them.

use std::ops::Range;

use vmarray_kernel::{ParameterInfo, ParameterKind};

use crate::base::error::Result;

/// The location of an argument's elements: in a store, or in a session.
pub(super) trait ArgumentPlaces {
    fn extents(&self) -> &[usize];
    fn range(&self) -> Range<usize>;
    fn is_in_store_of(&self, other: &Self) -> bool;
}

/// A launch argument with elements, and its kernel parameter.
pub(super) struct BoundElements<'p, P> {
    /// Index of the kernel parameter that the argument belongs to.
    pub number: usize,
    pub info: &'p ParameterInfo,
    pub places: P,
}

impl<P> BoundElements<'_, P> {
    /// Returns true if each work-item (GPU thread) reads or writes exactly one element of the argument.
    pub fn is_own(&self) -> bool {
        matches!(self.info.kind, ParameterKind::Own(_) | ParameterKind::OwnMut(_))
    }

    pub fn is_result(&self) -> bool {
        matches!(self.info.kind, ParameterKind::OwnMut(_) | ParameterKind::Shared(_))
    }

    /// Returns true if work-items (GPU threads) only read the argument, and each may read several elements.
    pub fn is_around(&self) -> bool {
        !self.is_own() && !self.is_result()
    }

    /// Returns true if the kernel reads the elements by one index, although the view may have several axes.
    pub fn is_counted(&self) -> bool {
        matches!(self.info.kind, ParameterKind::Anywhere(_, 1) | ParameterKind::Rows(_))
    }
}

pub(super) enum BoundArgument<P> {
    /// The scalars of an argument passed by value.
    Values(Vec<u64>),
    Elements(P),
    /// Memory for appended elements, which belong to no store.
    Appended,
}

pub(super) struct BoundArguments<'p, P> {
    /// Scalars of the arguments passed by value, for each kernel parameter.
    pub values: Vec<Vec<u64>>,
    /// Arguments with elements. A result with one element for each work-item (GPU thread) comes first if
    /// there is one, because the launch runs on the devices of the first argument.
    pub elements: Vec<BoundElements<'p, P>>,
}

impl<'p, P> BoundArguments<'p, P> {
    /// Binds arguments to the kernel's parameters, in the same order. `bound` converts an argument for the
    /// parameter with an index. Parameters for the position and for memory of work-groups have no argument.
    pub fn new<A>(
        parameters: &'p [ParameterInfo],
        arguments: Vec<A>,
        mut bound: impl FnMut(usize, &ParameterInfo, A) -> Result<BoundArgument<P>>,
    ) -> Result<Self> {
        let (mut values, mut elements) = (vec![Vec::new(); parameters.len()], Vec::new());
        let is_given =
            |of: &ParameterInfo| !matches!(of.kind, ParameterKind::At(_) | ParameterKind::Group(..));
        let numbered = parameters.iter().enumerate().filter(|(_, parameter)| is_given(parameter));
        for ((number, info), argument) in numbered.zip(arguments) {
            match bound(number, info, argument)? {
                BoundArgument::Values(of) => values[number] = of,
                BoundArgument::Elements(places) => elements.push(BoundElements { number, info, places }),
                BoundArgument::Appended => {}
            }
        }
        let is_first = |of: &BoundElements<'_, P>| of.is_own() && of.is_result();
        if let Some(first) = elements.iter().position(is_first) {
            elements[..=first].rotate_right(1);
        }
        Ok(Self { values, elements })
    }

    /// Returns the arguments with one element for each work-item (GPU thread).
    pub fn own(&self) -> impl Iterator<Item = &BoundElements<'p, P>> {
        self.elements.iter().filter(|of| of.is_own())
    }

    pub fn has_result(&self) -> bool {
        self.elements.iter().any(BoundElements::is_result)
    }

    /// Returns the argument of the parameter with index `parameter`, if the argument has elements.
    pub fn of(&self, parameter: usize) -> Option<&BoundElements<'p, P>> {
        self.elements.iter().find(|of| of.number == parameter)
    }
}
