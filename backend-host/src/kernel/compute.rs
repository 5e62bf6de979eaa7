//! Computations on the processor: evaluates expression programs value by value, in blocks of elements that
//! fit the first-level cache.

mod columns;
#[cfg_attr(not(all(target_arch = "x86_64", not(any(portable_copy, miri)))), path = "compute/not_fused.rs")]
mod fused;
mod interval;
mod machine;
mod reduce;

use backend_api::expr::{Action, OwnedCompute, Partial, Value};
use backend_api::kernel::Op;
use backend_api::{Compute, Result, racy};
use parking_lot::Mutex;

use self::fused::Numbers;
use self::interval::Interval;
use self::machine::{EvaluationPlan, Machine};
use self::reduce::{NumberCounts, Sum, ThreadExtremes};
use super::each_part;
use super::matcher::Matcher;
use super::search::FieldSearch;
use super::waves::{SEARCH_PART_BYTES, WaveMatches, WavePart, Waves};
use crate::handle_table::MemoryPlace;
use crate::host_memory::HostMemoryPiece;
use crate::storage::Storage;
use crate::worker::Crew;

#[derive(Debug)]
pub(crate) struct ComputeJob<M> {
    /// For each operand of the computation: the location of its first element in device memory.
    pub sources: Vec<MemoryPlace<M>>,
    /// Location in host memory for the result, if the computation has one.
    pub answer: Option<MemoryPlace<HostMemoryPiece>>,
    request: OwnedCompute,
}

impl<M: Storage> ComputeJob<M> {
    /// Creates a computation from a request. `sources` and `answer` are the memory of its operands and its
    /// result.
    pub fn new(
        compute: &Compute<'_>,
        sources: Vec<MemoryPlace<M>>,
        answer: Option<MemoryPlace<HostMemoryPiece>>,
    ) -> Self {
        // SAFETY: the job accesses memory through `sources` and `answer`, which keep it alive, and never
        // through the places of the request.
        let request = unsafe { OwnedCompute::new(compute) };
        Self { sources, answer, request }
    }

    /// Number of bytes that the computation processes.
    pub fn bytes(&self) -> u64 {
        self.request.with(|compute| compute.bytes())
    }

    /// Maximum length of the result in bytes.
    pub fn answer_bytes(&self) -> u64 {
        self.request.with(|compute| compute.answer_bytes())
    }

    /// For each operand that the computation writes: its index in `sources`, and its length in bytes.
    pub fn written(&self) -> Vec<(usize, u64)> {
        self.request.with(|compute| {
            let written = (0..compute.sources.len()).filter(|source| compute.writes(*source));
            written.map(|source| (source, compute.count() * compute.sources[source].stride)).collect()
        })
    }

    /// Runs the computation on the threads of `crew`.
    pub fn run(&self, crew: Crew<'_>) -> Result<()> {
        self.request.with(|compute| {
            let plan = EvaluationPlan::new(compute, &self.sources);
            let result = match compute.action {
                Action::Find { predicate, limit, count_all, .. } => {
                    self.find(crew, &plan, predicate, (limit, count_all))
                }
                Action::Sum { value, filter, .. } => self.reduce(crew, &plan, |machine, first, end| {
                    if let Some(numbers) = self.bare(compute, value, filter) {
                        // SAFETY: the elements were checked to be inside the memory, and a part contains only
                        // such elements; the same holds below.
                        let sum = unsafe { numbers.sum(first, end - first) };
                        return Ok(sum.partial(compute.program.types()[value.at()]));
                    }
                    let mut sum = Sum::default();
                    machine.each_block(first, end, |machine, _, lanes| {
                        machine.sum(value, filter, lanes, &mut sum);
                        Ok(true)
                    })?;
                    Ok(sum.partial(compute.program.types()[value.at()]))
                }),
                Action::Extremes { value, filter, least, greatest, .. } => {
                    self.reduce(crew, &plan, |machine, first, end| {
                        let mut extremes = ThreadExtremes::default();
                        if let Some(numbers) = self.bare(compute, value, filter) {
                            // SAFETY: as above.
                            unsafe { numbers.extremes(first, end - first, (least, greatest), &mut extremes) };
                            return Ok(extremes.partial((least, greatest)));
                        }
                        machine.each_block(first, end, |machine, first, lanes| {
                            let wanted = (least, greatest);
                            machine.extremes((value, filter), (first, lanes), wanted, &mut extremes);
                            Ok(true)
                        })?;
                        Ok(extremes.partial((least, greatest)))
                    })
                }
                Action::Histogram { value, filter, bins, .. } => {
                    let total = Mutex::new(vec![0_u64; bins as usize]);
                    each_part(crew, plan.parts(), &|part| {
                        let (first, end) = plan.part(part);
                        let mut counts = NumberCounts::new(bins as usize);
                        Machine::new(&plan).each_block(first, end, |machine, _, lanes| {
                            machine.histogram(value, filter, lanes, &mut counts);
                            Ok(true)
                        })?;
                        counts.add_to(&mut total.lock());
                        Ok(())
                    })
                    .map(|()| self.write_answer(&total.into_inner()))
                }
                Action::Store { .. } => each_part(crew, plan.parts(), &|part| {
                    let (first, end) = plan.part(part);
                    Machine::new(&plan).each_block(first, end, |machine, first, lanes| {
                        machine.store(first, lanes)?;
                        Ok(true)
                    })
                }),
            };
            plan.outcome(result)
        })
    }

    /// Lists or counts the elements for which a predicate is true, in waves (one range after the other).
    fn find(
        &self,
        crew: Crew<'_>,
        plan: &EvaluationPlan<'_, M>,
        predicate: Value,
        (limit, count_all): (u64, bool),
    ) -> Result<()> {
        let compute = plan.compute;
        let waves = Waves {
            count: compute.count(),
            stride: plan.bytes_each,
            limit: limit.min(compute.count()),
            count_all,
        };
        let interval = Interval::of(compute.program, predicate);
        let fused = interval
            .and_then(|interval| Some((Numbers::new(compute, &self.sources, interval.value)?, interval)));
        let search = self.search(compute, predicate, count_all);
        let look = |part: &WavePart<'_>, found: &mut WaveMatches| {
            if let Some(search) = &search {
                return search.part(part, found);
            }
            if let Some((numbers, interval)) = &fused {
                // SAFETY: the elements were checked to be inside the memory, and a part contains only such
                // elements.
                return unsafe { numbers.find(interval, part, count_all, found) };
            }
            let mut machine = Machine::new(plan);
            machine.each_block(part.first, part.end, |machine, first, lanes| {
                machine.find(predicate, first, lanes, part.room, found)?;
                Ok(part.is_needed() && (count_all || (found.listed.len() as u64) < part.room))
            })
        };
        let Some(answer) = &self.answer else { return Ok(()) };
        // SAFETY: the result was checked to have room for `limit` indices.
        unsafe { waves.run_into(crew, answer, &look) }
    }

    /// Returns a search for a value in a field, if the predicate is only that comparison.
    fn search(&self, compute: &Compute<'_>, predicate: Value, count_all: bool) -> Option<FieldSearch<'_, M>> {
        let Op::FieldEquals { view, offset, ref bytes, .. } = compute.program.ops()[predicate.at()] else {
            return None;
        };
        let source = usize::from(view);
        // The cast is exact, because `count` times the stride was checked to be inside of existing memory.
        let stride = compute.sources[source].stride as usize;
        let matcher = Matcher::new(stride, offset as usize, bytes);
        Some(FieldSearch { from: &self.sources[source], count_all, matcher })
    }

    /// Returns the numbers of a value that vector registers can process in place, if no filter applies.
    fn bare(&self, compute: &Compute<'_>, value: Value, filter: Option<Value>) -> Option<Numbers> {
        if filter.is_none() { Numbers::new(compute, &self.sources, value.into()) } else { None }
    }

    /// Computes one partial result for each part. The division into parts does not depend on the threads.
    fn reduce(
        &self,
        crew: Crew<'_>,
        plan: &EvaluationPlan<'_, M>,
        part_of: impl Fn(&mut Machine<'_, '_, M>, u64, u64) -> Result<Partial> + Sync,
    ) -> Result<()> {
        let partials: Vec<Mutex<Partial>> = (0..plan.parts()).map(|_| Mutex::default()).collect();
        each_part(crew, plan.parts(), &|part| {
            let (first, end) = plan.part(part);
            *partials[part].lock() = part_of(&mut Machine::new(plan), first, end)?;
            Ok(())
        })?;
        let partials: Vec<Partial> = partials.into_iter().map(Mutex::into_inner).collect();
        self.write_answer(&Partial::answer(&partials));
        Ok(())
    }

    fn write_answer(&self, words: &[u64]) {
        if let Some(answer) = &self.answer {
            // SAFETY: the result was checked to have room for the maximal output of its action.
            unsafe { racy::write(answer.memory.at(answer.offset), bytemuck::cast_slice(words)) };
        }
    }
}

impl<M: Storage> EvaluationPlan<'_, M> {
    fn per_part(&self) -> u64 {
        let most = self.compute.count().div_ceil(Compute::PARTIALS_MAX);
        (SEARCH_PART_BYTES / self.bytes_each).max(1).max(most)
    }

    fn parts(&self) -> usize {
        self.compute.count().div_ceil(self.per_part()) as usize
    }

    fn part(&self, part: usize) -> (u64, u64) {
        let first = part as u64 * self.per_part();
        (first, (first + self.per_part()).min(self.compute.count()))
    }
}
