//! Requests that wait for their turn.

use super::{Action, Compute, Geometry, Program, Store};
use crate::Elements;

/// A [`Compute`] with a program and lists of its own, as a queue keeps it.
///
/// ```
/// use backend_api::expr::OwnedCompute;
/// fn keep(compute: &backend_api::Compute<'_>) -> u64 {
///     OwnedCompute::new(compute).with(|kept| kept.count())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct OwnedCompute {
    program: Program,
    sources: Vec<Elements>,
    geometry: Geometry,
    action: Action<'static>,
    stores: Vec<Store>,
}

impl OwnedCompute {
    /// A copy of a request.
    ///
    /// ```
    /// # use backend_api::{BufferId, Compute, DeviceSpan, Elements, HostId, HostSpan};
    /// # use backend_api::expr::{OwnedCompute, Action, Geometry, Instruction, Program, Store, Type, Value};
    /// # let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])?;
    /// # let sources = [Elements { start: DeviceSpan::new(BufferId::unique(), 0), count: 10, stride: 4 }];
    /// # let answer = HostSpan::new(HostId::unique(), 0);
    /// # let geometry = Geometry::plain(0);
    /// let action = Action::Sum { value: Value(0), filter: None, answer };
    /// let compute = Compute { program: &program, sources: &sources, geometry, action };
    /// let kept = OwnedCompute::new(&compute);
    /// drop(program);
    /// assert_eq!(kept.with(|compute| compute.program.types().to_vec()), [Type::U32]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn new(compute: &Compute<'_>) -> Self {
        let (action, stores) = match compute.action {
            Action::Find { predicate, limit, count_all, answer } => {
                (Action::Find { predicate, limit, count_all, answer }, Vec::new())
            }
            Action::Sum { value, filter, answer } => (Action::Sum { value, filter, answer }, Vec::new()),
            Action::Extremes { value, filter, least, greatest, answer } => {
                (Action::Extremes { value, filter, least, greatest, answer }, Vec::new())
            }
            Action::Histogram { value, filter, bins, answer } => {
                (Action::Histogram { value, filter, bins, answer }, Vec::new())
            }
            Action::Store { stores, filter } => (Action::Store { stores: &[], filter }, stores.to_vec()),
        };
        Self {
            program: compute.program.clone(),
            sources: compute.sources.to_vec(),
            geometry: compute.geometry,
            action,
            stores,
        }
    }

    /// Calls `run` with the request.
    ///
    /// ```
    /// # use backend_api::{BufferId, Compute, DeviceSpan, Elements, HostId, HostSpan};
    /// # use backend_api::expr::{OwnedCompute, Action, Geometry, Instruction, Program, Store, Type, Value};
    /// # let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])?;
    /// # let sources = [Elements { start: DeviceSpan::new(BufferId::unique(), 0), count: 10, stride: 4 }];
    /// # let answer = HostSpan::new(HostId::unique(), 0);
    /// # let geometry = Geometry::plain(0);
    /// let action = Action::Sum { value: Value(0), filter: None, answer };
    /// let compute = Compute { program: &program, sources: &sources, geometry, action };
    /// let kept = OwnedCompute::new(&compute);
    /// kept.with(|again| assert_eq!((again.count(), again.answer()), (10, Some(answer))));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn with<R>(&self, run: impl FnOnce(&Compute<'_>) -> R) -> R {
        let action = match self.action {
            Action::Store { filter, .. } => Action::Store { stores: &self.stores, filter },
            other => other,
        };
        let (program, sources) = (&self.program, &self.sources[..]);
        run(&Compute { program, sources, geometry: self.geometry, action })
    }
}
