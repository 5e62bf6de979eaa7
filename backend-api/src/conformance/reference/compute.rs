//! Computations, one element after the other.

use crate::Compute;
use crate::expr::{Action, Partial, Type, evaluate_all};

/// Carries a computation out on the bytes of its sources, and gives the words of the answer: all partial
/// results in one. A store, which has no answer, changes the bytes of its sources; those that begin at the
/// same place are kept alike.
///
/// ```
/// use backend_api::{BufferHandle, Compute, Elements, HostBuffer, HostMemory};
/// use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
/// use backend_api::conformance::reference;
///
/// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U8 }])?;
/// let memory = BufferHandle::unique();
/// let device = std::sync::Arc::new(reference::ReferenceDevice::new(100));
/// let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// let compute = Compute {
///     program: &program,
///     sources: &[Elements { start: memory.at(0), count: 3, stride: 1 }],
///     geometry: Geometry::plain(0),
///     action: Action::Sum { value: Value(0), filter: None, answer: host.at(0) },
/// };
/// assert_eq!(reference::compute(&compute, &mut [vec![3, 4, 5]]), [1, 3, 12, 0, 0, 0]);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// # Panics
/// If a source is shorter than the request says.
#[must_use]
pub fn compute(compute: &Compute<'_>, sources: &mut [Vec<u8>]) -> Vec<u64> {
    let mut answer = Answer::new(compute);
    for number in 0..compute.count() {
        let place = |source: usize| {
            let stride = compute.sources[source].stride as usize;
            number as usize * stride..(number as usize + 1) * stride
        };
        let elements: Vec<&[u8]> =
            sources.iter().enumerate().map(|(source, bytes)| &bytes[place(source)]).collect();
        let values = evaluate_all(compute.program, compute.geometry.index(number), &elements);
        if let Action::Store { stores, filter } = compute.action {
            if filter.is_some_and(|filter| values[filter.at()] == 0) {
                continue;
            }
            for store in stores {
                let of = compute.program.types()[store.value.at()];
                let bytes = values[store.value.at()].to_ne_bytes();
                let width = of.bytes() as usize;
                let bytes =
                    if cfg!(target_endian = "little") { &bytes[..width] } else { &bytes[8 - width..] };
                let same = compute.sources[usize::from(store.source)].start;
                for source in (0..sources.len()).filter(|source| compute.sources[*source].start == same) {
                    let at = place(source).start + store.offset as usize;
                    sources[source][at..at + width].copy_from_slice(bytes);
                }
            }
        } else {
            answer.take(compute, number, &values);
        }
    }
    answer.words(compute)
}

/// What has been found so far.
#[derive(Default)]
struct Answer {
    count: u64,
    listed: Vec<u64>,
    integers: i128,
    floats: f64,
    least: Option<(u64, u64)>,
    greatest: Option<(u64, u64)>,
    bins: Vec<u64>,
}

impl Answer {
    fn new(compute: &Compute<'_>) -> Self {
        let bins = if let Action::Histogram { bins, .. } = compute.action { bins } else { 0 };
        Self { bins: vec![0; bins as usize], ..Self::default() }
    }

    fn take(&mut self, compute: &Compute<'_>, number: u64, values: &[u64]) {
        let (value, filter) = match compute.action {
            Action::Find { predicate, limit, .. } => {
                if values[predicate.at()] != 0 {
                    if self.count < limit {
                        self.listed.push(number);
                    }
                    self.count += 1;
                }
                return;
            }
            Action::Sum { value, filter, .. }
            | Action::Extremes { value, filter, .. }
            | Action::Histogram { value, filter, .. } => (value, filter),
            Action::Store { .. } => return,
        };
        if filter.is_some_and(|filter| values[filter.at()] == 0) {
            return;
        }
        let (bits, of) = (values[value.at()], compute.program.types()[value.at()]);
        let float = match of {
            Type::F32 => f64::from(f32::from_bits(bits as u32)),
            _ => f64::from_bits(bits),
        };
        if matches!(compute.action, Action::Extremes { .. }) && of.is_float() && float.is_nan() {
            return;
        }
        self.count += 1;
        if let Some(bin) = self.bins.get_mut(bits as usize) {
            *bin += 1;
        }
        if of.is_float() {
            self.floats += float;
        } else if of.is_signed() {
            let unused = 64 - 8 * of.bytes();
            self.integers += i128::from((bits << unused) as i64 >> unused);
        } else {
            self.integers += i128::from(bits);
        }
        let key = of.key(bits);
        if self.least.is_none_or(|(least, _)| key < least) {
            self.least = Some((key, number));
        }
        if self.greatest.is_none_or(|(greatest, _)| key > greatest) {
            self.greatest = Some((key, number));
        }
    }

    fn words(self, compute: &Compute<'_>) -> Vec<u64> {
        match compute.action {
            Action::Find { .. } => {
                [self.count, self.listed.len() as u64].into_iter().chain(self.listed).collect()
            }
            Action::Sum { value, .. } if compute.program.types()[value.at()].is_float() => {
                Partial::answer(&[Partial::of_floats(self.count, self.floats)])
            }
            Action::Sum { .. } => Partial::answer(&[Partial::of_integers(self.count, self.integers)]),
            Action::Extremes { .. } => {
                let (least, greatest) = (self.least.unwrap_or_default(), self.greatest.unwrap_or_default());
                Partial::answer(&[Partial::of_extremes(self.count, least, greatest)])
            }
            Action::Histogram { .. } => self.bins,
            Action::Store { .. } => Vec::new(),
        }
    }
}
