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
pub struct OwnedCompute<'a> {
    program: Program,
    sources: Vec<Elements<'a>>,
    geometry: Geometry,
    action: Action<'a>,
    stores: Vec<Store>,
}

impl<'a> OwnedCompute<'a> {
    /// A copy of a request.
    ///
    /// ```
    /// # use backend_api::{BufferHandle, Compute, Elements, HostBuffer, HostMemory};
    /// # use backend_api::expr::{OwnedCompute, Action, Geometry, Instruction, Program, Store, Type, Value};
    /// # let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])?;
    /// # let memory = BufferHandle::unique();
    /// # let sources = [Elements { start: memory.at(0), count: 10, stride: 4 }];
    /// # let device = std::sync::Arc::new(backend_host::HostDevice::new(0)?);
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// # let answer = host.at(0);
    /// # let geometry = Geometry::plain(0);
    /// let action = Action::Sum { value: Value(0), filter: None, answer };
    /// let compute = Compute { program: &program, sources: &sources, geometry, action };
    /// let kept = OwnedCompute::new(&compute);
    /// drop(program);
    /// assert_eq!(kept.with(|compute| compute.program.types().to_vec()), [Type::U32]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn new(compute: &Compute<'a>) -> Self {
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

    /// The same request, its places tied to their owners no longer.
    ///
    /// ```
    /// use backend_api::{Compute, expr::OwnedCompute};
    /// /// # Safety
    /// /// What the places are in is not released before the last use of the request.
    /// unsafe fn queue_up(waiting: &mut Vec<OwnedCompute<'static>>, compute: &Compute<'_>) {
    ///     // SAFETY: the caller's promise.
    ///     waiting.push(unsafe { OwnedCompute::new(compute).detach() });
    /// }
    /// ```
    ///
    /// # Safety
    /// As [`HostSpan::detach`](crate::HostSpan::detach), for all of its places.
    #[must_use]
    pub unsafe fn detach(self) -> OwnedCompute<'static> {
        // SAFETY: the two types differ in a lifetime only, which nothing in memory depends on; that the places may be
        // kept is the caller's promise.
        unsafe { std::mem::transmute::<OwnedCompute<'a>, OwnedCompute<'static>>(self) }
    }

    /// Calls `run` with the request.
    ///
    /// ```
    /// # use backend_api::{BufferHandle, Compute, Elements, HostBuffer, HostMemory};
    /// # use backend_api::expr::{OwnedCompute, Action, Geometry, Instruction, Program, Store, Type, Value};
    /// # let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])?;
    /// # let memory = BufferHandle::unique();
    /// # let sources = [Elements { start: memory.at(0), count: 10, stride: 4 }];
    /// # let device = std::sync::Arc::new(backend_host::HostDevice::new(0)?);
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// # let answer = host.at(0);
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
