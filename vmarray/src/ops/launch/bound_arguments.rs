//! Arguments of a launch, each assigned to its kernel parameter; used by launches over stores and by
//! sessions.

use std::ops::Range;

use vmarray_kernel::{ParameterInfo, ParameterKind};

use crate::base::error::Result;

/// Places of an argument's elements: in a store, or in a session.
pub(super) trait ArgumentPlaces {
    /// Number of elements along each axis.
    fn extents(&self) -> &[usize];
    /// The range of the store that contains the elements.
    fn range(&self) -> Range<usize>;
    fn is_in_store_of(&self, other: &Self) -> bool;
}

/// Elements that a launch uses for a parameter.
pub(super) struct BoundElements<'p, P> {
    /// The index of the parameter.
    pub number: usize,
    pub info: &'p ParameterInfo,
    pub places: P,
}

impl<P> BoundElements<'_, P> {
    /// Returns true if each item has an element of its own.
    pub fn is_own(&self) -> bool {
        matches!(self.info.kind, ParameterKind::Own(_) | ParameterKind::OwnMut(_))
    }

    pub fn is_result(&self) -> bool {
        matches!(self.info.kind, ParameterKind::OwnMut(_) | ParameterKind::Shared(_))
    }

    /// Returns true if any item may read it, and none writes it.
    pub fn is_around(&self) -> bool {
        !self.is_own() && !self.is_result()
    }

    /// Returns true if items read it by one index, for any number of axes.
    pub fn is_counted(&self) -> bool {
        matches!(self.info.kind, ParameterKind::Anywhere(_, 1) | ParameterKind::Rows(_))
    }
}

/// An argument of one parameter.
pub(super) enum BoundArgument<P> {
    /// The scalars of a value.
    Values(Vec<u64>),
    Elements(P),
    /// Memory for appended elements, in no store.
    Appended,
}

/// The arguments of a launch.
pub(super) struct BoundArguments<'p, P> {
    /// Scalars of values, by parameter.
    pub values: Vec<Vec<u64>>,
    /// The first result with an element for each item is in front, because it determines the devices.
    pub elements: Vec<BoundElements<'p, P>>,
}

impl<'p, P> BoundArguments<'p, P> {
    /// Binds arguments, which are in the order of the parameters, without positions and groups.
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

    /// Elements that belong to one item each.
    pub fn own(&self) -> impl Iterator<Item = &BoundElements<'p, P>> {
        self.elements.iter().filter(|of| of.is_own())
    }

    pub fn has_result(&self) -> bool {
        self.elements.iter().any(BoundElements::is_result)
    }

    /// The elements of a parameter.
    pub fn of(&self, parameter: usize) -> Option<&BoundElements<'p, P>> {
        self.elements.iter().find(|of| of.number == parameter)
    }
}
