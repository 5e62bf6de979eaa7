//! Tests that call public operations in a thread that holds guards, or that runs a function for the library.
//!
//! Each operation returns its result without guards, or an error that the thread must not wait. Another
//! thread waits for each case, and reports the names of cases that do not end.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

use backend_api::wrap::{has_all_cases, random_cases};
use futures::executor::block_on;
use rayon::prelude::*;
use vmarray::access::{MapBuffer, MapMode};
use vmarray::expr::index;
use vmarray::file::SaveOptions;
use vmarray::host::SimulatedDevice;
use vmarray::index_set::{Combine, PagedIndexSet, Tuples};
use vmarray::kernel::{At, Own, Session};
use vmarray::matrix::{MatMul, Matrix};
use vmarray::nd::{Accumulation, NdSection};
use vmarray::order::{Descending, MatchKind, Side};
use vmarray::progress::with_progress;
use vmarray::{
    AnyDevice, ErrorKind, IndexSet, NdArray, Placement, RaggedArray, Result, Source, VirtualArray, prelude::*,
};

use crate::common::host;

/// Time after which a case counts as hanging: far longer than any case takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The device of all cases.
static DEVICE: LazyLock<Arc<AnyDevice>> = LazyLock::new(|| Arc::new(host().into()));

type Array = VirtualArray<u32>;

const INSTANT: SaveOptions = SaveOptions::new().point_in_time(true);

/// An array for an operation, and other objects for some operations.
struct Place {
    array: Array,
    other: Array,
    wide: VirtualArray<u64>,
    page_len: usize,
}

impl Place {
    fn new(pages: usize, page_len: usize, frames: usize) -> Self {
        let len = pages * page_len;
        let builder = |len: usize| Array::builder(len).devices([DEVICE.clone()]).page_len(page_len);
        let array = builder(len).max_len(2 * len).frames_per_channel(frames).build().unwrap();
        array.write(0, &values(len)).unwrap();
        array.flush(..).unwrap();
        let other = builder(len).frames_per_channel(4).build().unwrap();
        other.write(0, &values(len)).unwrap();
        let wide = VirtualArray::<u64>::builder(len).devices([DEVICE.clone()]).page_len(page_len);
        let wide = wide.frames_per_channel(4).build().unwrap();
        Self { array, other, wide, page_len }
    }

    fn len(&self) -> usize {
        self.other.len()
    }

    /// A copy of the array, which the operation changes.
    fn copy(&self, devices: &[Arc<AnyDevice>], placement: Placement, movable: bool) -> Result<Array> {
        let copy = Array::builder(self.len()).devices(devices.iter().cloned()).page_len(self.page_len);
        let copy = copy.max_len(4 * self.len()).placement(placement).movable(movable).build()?;
        copy.copy_from(0, self.array.section(..self.len())?)?;
        Ok(copy)
    }

    /// A set of the values and indices of the array, and one in RAM to join it with.
    fn index_sets(&self) -> Result<(PagedIndexSet, IndexSet)> {
        let values = self.array.to_vec(..)?;
        let tuples: Vec<u64> = (0..).zip(values).flat_map(|(at, value)| [u64::from(value), at]).collect();
        let array = VirtualArray::<u64>::builder(tuples.len()).devices([DEVICE.clone()]);
        let array = array.page_len(self.page_len).build()?;
        array.write(0, &tuples)?;
        let numbers: Vec<u64> = (0..500).collect();
        Ok((PagedIndexSet::new([0, 1], array)?, IndexSet::from_columns([(0, &numbers), (2, &numbers)])?))
    }

    /// An index in a page.
    fn at(&self, page: usize) -> usize {
        page * self.page_len + 5
    }
}

/// A file that is removed at the end.
struct TestFile(PathBuf);

impl TestFile {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("vmarray-guarded-{}-{number}", std::process::id())))
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn values(len: usize) -> Vec<u32> {
    // The period is prime, so that pages differ.
    const PERIOD: usize = 4093;
    let period: Vec<u32> = (0..PERIOD as u32).map(|i| i.wrapping_mul(2_654_435_761) % 1000).collect();
    let mut values = period.repeat(len.div_ceil(PERIOD));
    values.truncate(len);
    values
}

/// Hash of a result, to compare results. Without optimisation, this loop is much faster than an iterator.
fn number_of(values: impl AsRef<[u32]>) -> u64 {
    let (values, mut sum, mut at) = (values.as_ref(), 0xcbf2_9ce4_8422_2325_u64, 0);
    while at < values.len() {
        sum = (sum ^ values[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    sum
}

/// [`number_of`] of indices.
fn number_of_wide(values: &[u64]) -> u64 {
    number_of(values.iter().map(|value| *value as u32).collect::<Vec<_>>())
}

fn simulated(seed: u64) -> (Arc<SimulatedDevice>, Arc<AnyDevice>) {
    let device = Arc::new(SimulatedDevice::builder(seed).build());
    let any = AnyDevice::Own(device.clone() as Arc<dyn vmarray::device::Device>);
    (device, Arc::new(any))
}

fn whole() -> Field<u32, u32> {
    Field::<u32, u32>::whole()
}

#[vmarray::kernel]
fn twice(_at: At<1>, out: &mut Own<u32>) {
    out.set(out.get() * 2);
}

type Operation = (&'static str, fn(&Place) -> Result<u64>);

/// Operations that read.
const READS: &[Operation] = &[
    ("get", |p| p.array.get(p.at(3)).map(u64::from)),
    ("get guarded", |p| p.array.get(p.at(1)).map(u64::from)),
    ("get_uncached", |p| p.array.get_uncached(p.at(1)).map(u64::from)),
    ("read", |p| {
        let mut into = vec![0; p.len()];
        p.array.read(0, &mut into).map(|()| number_of(into))
    }),
    ("to_vec", |p| p.array.to_vec(..).map(number_of)),
    ("find", |p| Ok(p.array.find(whole(), &7)?.len() as u64)),
    ("find_first", |p| Ok(p.array.find_first(.., whole(), &7, 3)?.indices.len() as u64)),
    ("position", |p| Ok(p.array.position(.., whole(), &7)?.unwrap_or(0) as u64)),
    ("count", |p| Ok(p.array.count(.., whole(), &7)? as u64)),
    ("select_where", |p| {
        Ok(p.array.select_where(.., whole().lt(7))?.collect::<Result<Vec<_>>>()?.len() as u64)
    }),
    ("gather", |p| p.array.gather(&every_seventh(p)).map(number_of)),
    ("gather_iter", |p| {
        let values: Result<Vec<u32>> = p.array.gather_iter(every_seventh(p)).collect();
        values.map(number_of)
    }),
    ("gather_into", |p| {
        let mut into = vec![0; p.len()];
        p.array.gather_into(&every_seventh(p), &mut into).map(|()| number_of(into))
    }),
    ("gather_rows", |p| {
        let mut into = vec![0; 2 * p.len()];
        let starts: Vec<usize> = every_seventh(p).into_iter().map(|start| start.min(p.len() - 2)).collect();
        p.array.gather_rows(&starts, 2, &mut into[..2 * starts.len()]).map(|()| number_of(into))
    }),
    ("join", |p| {
        let joined = p.array.join((&p.other,))?;
        let (own, other) = joined.rows();
        Ok(joined.count_where(.., own.get(whole()).eq(other.get(whole())))? as u64)
    }),
    ("prefetch", |p| p.array.prefetch(..).map(|()| 0)),
    ("flush", |p| p.array.flush(..).map(|()| 0)),
    ("evict", |p| p.array.evict(..).map(|()| 0)),
    ("page", |p| p.array.page(5).map(|page| number_of(&*page))),
    ("page guarded", |p| p.array.page(1).map(|page| number_of(&*page))),
    ("pages", |p| p.array.pages().try_fold(0, |sum, page| Ok(sum ^ number_of(&*page?)))),
    ("iter", |p| p.array.iter().collect::<Result<Vec<u32>>>().map(number_of)),
    ("iter().rev()", |p| p.array.iter().rev().collect::<Result<Vec<u32>>>().map(number_of)),
    ("cursor", |p| {
        let mut cursor = p.array.cursor();
        (0..p.len()).step_by(7).try_fold(0, |sum, at| Ok(sum + u64::from(cursor.get(at)?)))
    }),
    ("map", |p| p.array.map(.., |slice| number_of(slice))),
    ("par_for_each_slice", |p| {
        let sum = AtomicUsize::new(0);
        let add = |_, slice: &[u32]| {
            sum.fetch_add(slice.iter().map(|x| *x as usize).sum::<usize>(), Ordering::Relaxed);
        };
        p.array.par_for_each_slice(.., add)?;
        Ok(sum.into_inner() as u64)
    }),
    ("par_fold_slices", |p| {
        p.array.par_fold_slices(.., || 0, |sum, _, slice| sum ^ number_of(slice), |a, b| a ^ b)
    }),
    ("par_iter", |p| p.array.par_iter().map(|x| x.map(u64::from)).sum::<Result<u64>>()),
    ("par_iter().enumerate()", |p| {
        let values = p.array.par_iter().enumerate().map(|(i, x)| x.map(|x| i as u64 * u64::from(x)));
        values.sum::<Result<u64>>()
    }),
    ("get_async", |p| block_on(p.array.get_async(p.at(4))).map(u64::from)),
    ("read_async", |p| {
        let mut into = vec![0; p.len()];
        block_on(p.array.read_async(0, &mut into)).map(|()| number_of(into))
    }),
    ("gather_async", |p| block_on(p.array.gather_async(&every_seventh(p))).map(number_of)),
    ("prefetch_async", |p| block_on(p.array.prefetch_async(..)).map(|()| 0)),
    ("flush_async", |p| block_on(p.array.flush_async(..)).map(|()| 0)),
    ("page_async", |p| block_on(p.array.page_async(6)).map(|page| number_of(&*page))),
    ("count_where", |p| Ok(p.array.count_where(.., whole().lt(7))? as u64)),
    ("find_where", |p| Ok(p.array.find_where(.., whole().lt(7), 50)?.total as u64)),
    ("position_first", |p| Ok(p.array.position_first(.., whole().lt(7))?.unwrap_or(0) as u64)),
    ("any", |p| Ok(u64::from(p.array.any(.., whole().gt(5000))?))),
    ("all", |p| Ok(u64::from(p.array.all(.., whole().lt(5000))?))),
    ("sum", |p| Ok(p.array.sum(.., whole())? as u64)),
    ("min_max", |p| Ok(u64::from(p.array.min_max(.., whole())?.unwrap().1))),
    ("arg_max", |p| Ok(p.array.arg_max(.., whole())?.unwrap().0 as u64)),
    ("histogram", |p| Ok(p.array.histogram(.., whole() / 100, 10)?[3])),
    ("arg_min", |p| Ok(p.array.arg_min(.., whole())?.unwrap().0 as u64)),
    ("min", |p| Ok(u64::from(p.array.min(.., whole())?.unwrap()))),
    ("max", |p| Ok(u64::from(p.array.max(.., whole())?.unwrap()))),
    ("argsort", |p| p.array.argsort(.., Descending(whole()))?.get(9)),
    ("is_sorted", |p| Ok(u64::from(p.array.is_sorted(..)?))),
    ("partition_point", |p| Ok(p.array.partition_point(.., |x| x < 500)? as u64)),
    ("search_sorted", |p| p.array.search_sorted(&p.other, Side::Left)?.get(3)),
    ("merged", |p| p.array.merged(&p.other)?.to_vec(..).map(number_of)),
    ("select_nth", |p| p.array.select_nth(.., 77).map(u64::from)),
    ("quantiles", |p| p.array.quantiles(.., &[0.3, 0.9]).map(number_of)),
    ("top_k", |p| p.array.top_k(.., 9).map(number_of)),
    ("unique", |p| p.array.unique(..)?.to_vec(..).map(number_of)),
    ("group_by", |p| {
        let groups = p.array.group_by(.., whole() % 10)?;
        groups.sum(&p.other)?.get(3)
    }),
    ("matches", |p| {
        Ok(p.array.section(..50)?.matches(&p.other, whole(), whole(), MatchKind::Inner)?.left.len() as u64)
    }),
    ("sample", |p| p.array.sample(.., 20, 3).map(number_of)),
    ("take", |p| {
        p.wide.write(0, &[1, 2, 700])?;
        p.array.take(p.wide.section(..3)?)?.to_vec(..).map(number_of)
    }),
    ("save", |p| {
        let file = TestFile::new();
        p.array.save(&file.0)?;
        Array::open(&file.0)?.to_vec(..p.len()).map(number_of)
    }),
    ("save at an instant", |p| {
        let file = TestFile::new();
        p.array.save_with(&file.0, INSTANT, |_| ControlFlow::Continue(()))?;
        Array::open(&file.0)?.to_vec(..p.len()).map(number_of)
    }),
    ("save to another and load", |p| {
        let file = TestFile::new();
        p.other.save(&file.0)?;
        Array::builder(0).page_len(64).load(&file.0)?.to_vec(..).map(number_of)
    }),
    ("check_pages", |p| Ok(p.array.check_pages()?.len() as u64)),
    ("copy_from it", |p| {
        p.other.copy_from(0, p.array.section(..p.len())?)?;
        p.other.to_vec(..).map(number_of)
    }),
    ("source", |p| {
        let source = Source::builder(values(p.len())).devices([DEVICE.clone()]).build()?;
        source.section_mut(..)?.copy_from(0, p.array.section(..p.len())?)?;
        source.to_vec(..).map(number_of)
    }),
    ("rows", |p| {
        let rows = RaggedArray::<u32>::builder().elements(|elements| elements.devices([DEVICE.clone()]));
        let rows = rows.from_rows([p.array.to_vec(..100)?, p.array.to_vec(100..p.len())?])?;
        rows.save(&TestFile::new().0)?;
        rows.to_vecs().map(|vecs| number_of(vecs.concat()))
    }),
    ("boxes", |p| {
        let image = NdArray::<u32, 2>::builder([30, 40]).devices([DEVICE.clone()]).build()?;
        let values = p.array.to_vec(..1200)?;
        image.write_box([0, 0]..[30, 40], &values)?;
        image.read_box(.., &mut vec![0; 1200])?;
        image.find(whole(), &7).map(|found| found.len() as u64)
    }),
    ("lines along an axis", |p| {
        let of = NdSection::over(&p.array, [1, p.array.len()])?;
        let best = Array::builder(1).devices([DEVICE.clone()]).build()?;
        let place = VirtualArray::<u64>::builder(1).devices([DEVICE.clone()]).build()?;
        let mut found = 0;
        of.min_axis_or_nan(1, &best)?;
        found += u64::from(best.get(0)?);
        of.max_axis_or_nan(1, &best)?;
        found += u64::from(best.get(0)?);
        of.arg_min_axis(1, &place)?;
        found += place.get(0)?;
        of.arg_max_axis(1, &place)?;
        of.accumulate_axis(1, Accumulation::Sum, NdSection::over_mut(&p.other, [1, p.array.len()])?)?;
        Ok(found + place.get(0)? + u64::from(p.other.get(p.array.len() - 1)?))
    }),
    ("tiles", |p| {
        let image = NdArray::<u32, 2>::builder([30, 40]).tile([8, 8]).devices([DEVICE.clone()]).build()?;
        image.write_box([0, 0]..[30, 40], &p.array.to_vec(..1200)?)?;
        let sum = AtomicUsize::new(0);
        image.par_for_each_tile(image.tiles(), MapMode::Read, |_, tile| {
            sum.fetch_add(tile.iter().map(|x| *x as usize).sum(), Ordering::Relaxed);
        })?;
        Ok(sum.into_inner() as u64)
    }),
    ("joins of index sets", |p| {
        let (paged, set) = p.index_sets()?;
        let mut joined = paged.to_index_set(..)?.combine(&set)?.project([1, 2])?.relabel([3, 4])?;
        joined.sort()?;
        joined.dedup();
        Ok(number_of_wide(joined.values()) ^ number_of_wide(&paged.combine(&set)?.array().to_vec(..)?))
    }),
    ("joins of index sets on demand", |p| {
        let (paged, set) = p.index_sets()?;
        let joined = Combine::new(&paged, &set).threads(4).memory_bytes(1 << 16).run()?;
        let columns = joined.to_columns()?;
        joined.write_to(&p.wide, 0).or_else(|error| match error.kind() {
            ErrorKind::RangeOutside { .. } => Ok(()),
            _ => Err(error),
        })?;
        let on_devices = Combine::new(&paged, &set).run_on_devices_of(&p.array)?;
        Ok(number_of_wide(columns.column(1)?) ^ on_devices.len() as u64)
    }),
    ("groups of index tuples", |p| {
        let groups = p.index_sets()?.0.group_by([0])?;
        let firsts = groups.tuples().column(0)?.to_vec(..)?;
        Ok(number_of_wide(&firsts) ^ groups.tuples().len() as u64 ^ groups.by_number().counts()?.get(3)?)
    }),
    ("stats", |p| {
        _ = (p.array.stats(), p.array.footprint(), p.array.homes(), p.array.watch().report());
        Ok(0)
    }),
];

fn every_seventh(p: &Place) -> Vec<usize> {
    (0..p.len()).map(|i| i * 7 % p.len()).collect()
}

/// Operations that write.
const WRITES: &[Operation] = &[
    ("set", |p| p.array.set(p.at(3), 1).map(|()| 0)),
    ("set guarded", |p| p.array.set(p.at(1), 1).map(|()| 0)),
    ("set_uncached", |p| p.array.set_uncached(p.at(1), 1).map(|()| 0)),
    ("replace", |p| p.array.replace(p.at(1), 9).map(u64::from)),
    ("compare_exchange", |p| p.array.compare_exchange(p.at(1), 1, 2).map(|was| u64::from(was.is_ok()))),
    ("update", |p| p.array.update(p.at(4), |x| x + 1).map(u64::from)),
    ("swap", |p| p.array.swap(p.at(2), p.at(6)).map(|()| 0)),
    ("write", |p| p.array.write(0, &vec![4; p.len()]).map(|()| 0)),
    ("fill", |p| p.array.fill(.., 4).map(|()| 0)),
    ("fill a part", |p| p.array.fill(100..p.len() - 7, 4).map(|()| 0)),
    ("discard", |p| p.array.discard(..).map(|()| 0)),
    ("copy_from", |p| p.array.copy_from(0, &p.other).map(|()| 0)),
    ("copy_from within", |p| {
        let half = p.len() / 2;
        p.array.copy_from(0, p.array.section(half..2 * half)?).map(|()| 0)
    }),
    ("scatter", |p| p.array.scatter(&every_seventh(p), &values(p.len())).map(|()| 0)),
    ("scatter_iter", |p| Ok(p.array.scatter_iter(every_seventh(p).into_iter().zip(values(p.len())))? as u64)),
    ("page_mut", |p| p.array.page_mut(5).map(|mut page| page[3] = 4).map(|()| 0)),
    ("page_mut guarded", |p| p.array.page_mut(1).map(|mut page| page[3] = 4).map(|()| 0)),
    ("pages_mut", |p| p.array.pages_mut().try_for_each(|page| page.map(|mut page| page[3] = 4)).map(|()| 0)),
    ("cursor_mut", |p| {
        let mut cursor = p.array.cursor_mut();
        (0..p.len()).step_by(7).try_for_each(|at| cursor.set(at, 3)).map(|()| 0)
    }),
    ("for_each_mut", |p| p.array.for_each_mut(.., |i, x| *x += i as u32).map(|()| 0)),
    ("map_mut", |p| p.array.map_mut(.., MapMode::ReadWrite, |slice| slice[0] += 1).map(|()| 0)),
    ("map_in", |p| p.array.map_in(.., MapMode::Write, MapBuffer::New, |slice| slice.fill(6)).map(|()| 0)),
    ("par_for_each_slice_mut", |p| {
        p.array.par_for_each_slice_mut(.., |first, slice| slice[0] = first as u32).map(|()| 0)
    }),
    ("set_async", |p| block_on(p.array.set_async(p.at(4), 1)).map(|()| 0)),
    ("page_mut_async", |p| block_on(p.array.page_mut_async(6)).map(|mut page| page[0] = 7).map(|()| 0)),
    ("transform", |p| p.array.transform(.., whole().set(whole() + 1)).map(|()| 0)),
    ("transform by index", |p| p.array.transform(.., whole().set(index().cast::<u32>())).map(|()| 0)),
    ("assign_where", |p| p.array.assign_where(.., whole().lt(500), whole().set(3)).map(|()| 0)),
    ("prefix_sum", |p| p.array.prefix_sum(..).map(u64::from)),
    ("exclusive_prefix_sum", |p| p.array.exclusive_prefix_sum(..).map(u64::from)),
    ("assign_matmul", |p| {
        let (of, len) = (NdSection::over(&p.other, [p.len(), 1])?, p.len());
        let one = Matrix::strided(&p.other, [1, 1], 1, [1, 1])?;
        let array = NdArray::from_elements(
            p.copy(std::slice::from_ref(&DEVICE), Placement::Equal, false)?,
            [len, 1],
        )?;
        array.assign_matmul(of, one)?;
        p.array.copy_from(0, array.elements().section(..len)?).map(|()| 0)
    }),
    ("sort", |p| p.array.sort(..).map(|()| 0)),
    ("sort_descending", |p| p.array.sort_descending(..).map(|()| 0)),
    ("sort_with", |p| p.other.sort_with(.., p.array.section_mut(..p.len())?).map(|()| 0)),
    ("sort_by_key", |p| p.array.sort_by_key(.., Descending(whole())).map(|()| 0)),
    ("shuffle", |p| p.array.shuffle(.., 3).map(|()| 0)),
    ("kernel", |p| twice::run((p.array.section_mut(..)?,)).map(|()| 0)),
    ("session", |p| {
        let mut held = Array::builder(p.len()).devices([DEVICE.clone()]).page_len(p.page_len).build()?;
        held.copy_from(0, &p.other)?;
        let mut session = Session::new();
        let place = session.hold(&mut held)?;
        twice::run_in(&mut session, (place,))?;
        session.finish()?;
        p.array.copy_from(0, &held).map(|()| 0)
    }),
    ("launch", |p| block_on(twice::run_async((p.array.section_mut(..)?,))).map(|()| 0)),
    ("growth and shifts", |p| {
        let mut own = p.copy(std::slice::from_ref(&DEVICE), Placement::Equal, false)?;
        own.insert(3, &[1, 2, 3])?;
        own.remove(100..200)?;
        own.append(&p.other)?;
        own.extend_from_slice(&values(70))?;
        own.try_extend(values(70))?;
        own.truncate(own.len() - 9)?;
        own.resize(own.len() + 40, 7)?;
        own.pop()?;
        own.to_vec(..).map(number_of)
    }),
    ("byte_stream", |p| {
        let own = VirtualArray::<u8>::builder(p.len()).devices([DEVICE.clone()]).page_len(p.page_len);
        let (mut own, mut bytes) = (own.build()?, Vec::new());
        own.fill(.., 7)?;
        own.byte_stream().read_to_end(&mut bytes).unwrap();
        Ok(number_of(bytes.into_iter().map(u32::from).collect::<Vec<_>>()))
    }),
    ("export", |p| {
        let mut own = p.copy(std::slice::from_ref(&DEVICE), Placement::Equal, false)?;
        own.export(..).map(drop).or_else(|error| match error.kind() {
            ErrorKind::WouldDeadlock { .. } => Err(error),
            _ => Ok(()),
        })?;
        own.to_vec(..).map(number_of)
    }),
    ("rows", |p| {
        let mut own = p.copy(std::slice::from_ref(&DEVICE), Placement::Equal, false)?;
        own.rows(.., 3).map(drop).or_else(|error| match error.kind() {
            ErrorKind::WouldDeadlock { .. } => Err(error),
            _ => Ok(()),
        })?;
        own.to_vec(..).map(number_of)
    }),
    ("rebalance", |p| {
        let own = p.copy(std::slice::from_ref(&DEVICE), Placement::Equal, true)?;
        own.rebalance([simulated(1).1])?;
        own.to_vec(..).map(number_of)
    }),
    ("rebuild", |p| {
        let cards = [1, 2].map(simulated);
        let own = p.copy(&cards.each_ref().map(|(_, any)| any.clone()), Placement::Mirrored, false)?;
        own.flush(..)?;
        cards[0].0.lose();
        own.rebuild(simulated(3).1)?;
        own.to_vec(..).map(number_of)
    }),
    ("create and sync", |p| {
        let file = TestFile::new();
        let own = Array::create(&file.0, p.len())?;
        own.copy_from(0, p.array.section(..p.len())?)?;
        own.sync()?;
        drop(own);
        Array::builder(0).open_read_only([&file.0])?.to_vec(..).map(number_of)
    }),
    ("push", |p| p.array.push(7).map(|at| at as u64)),
    ("reserve", |p| p.array.reserve(100).map(|()| 0)),
];

/// Guards that a case holds during the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guards {
    None,
    Shared,
    Exclusive,
    Both,
}

/// Result of a case, and a hash of the array afterwards.
type Outcome = (std::result::Result<u64, ErrorKind>, u64);

/// Runs an operation on a new place, with guards.
fn with_guards(place: &Place, run: fn(&Place) -> Result<u64>, guards: Guards) -> Outcome {
    let is = |any: &[Guards]| any.contains(&guards);
    let exclusive = is(&[Guards::Exclusive, Guards::Both]).then(|| place.array.page_mut(1).unwrap());
    let shared = is(&[Guards::Shared]).then(|| place.array.page(1).unwrap());
    let second = is(&[Guards::Both]).then(|| place.array.page(4).unwrap());
    let outcome = run(place).map_err(|error| error.kind().clone());
    drop((exclusive, shared, second));
    (outcome, number_of(place.array.to_vec(..).unwrap()))
}

/// Runs cases, each on its own thread; reports the ones that hang or have a forbidden outcome.
fn run_all<R: Send + 'static>(
    cases: impl IntoIterator<Item = (String, Box<dyn FnOnce() -> R + Send>)>,
    mut is_wrong: impl FnMut(&str, R) -> Option<String>,
) {
    let mut failures = Vec::new();
    for (name, run) in cases {
        let (done, ended) = mpsc::channel();
        let case = std::thread::spawn(move || _ = done.send(run()));
        match ended.recv_timeout(PATIENCE) {
            Ok(result) => failures.extend(is_wrong(&name, result)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let panic = case.join().unwrap_err();
                let text = panic.downcast_ref::<String>().cloned();
                failures.push(format!("{name} panicked: {}", text.unwrap_or_default()));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => failures.push(format!("{name} did not end")),
        }
    }
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

fn says_why(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldDeadlock { .. } | ErrorKind::TooManyGuards { .. })
}

fn compare_with_and_without_guards(
    operations: &[Operation],
    (pages, page_len): (usize, usize),
    frames: &[usize],
) {
    for &frames in frames {
        let case = |run: fn(&Place) -> Result<u64>, guards| -> Box<dyn FnOnce() -> Outcome + Send> {
            Box::new(move || with_guards(&Place::new(pages, page_len, frames), run, guards))
        };
        let mut expected = Vec::new();
        let alone = operations
            .iter()
            .map(|(name, run)| (format!("{name}, {frames} frames"), case(*run, Guards::None)));
        run_all(alone, |name, outcome| {
            let failure = outcome.0.as_ref().err().map(|error| format!("{name}: {error}"));
            expected.push(outcome);
            failure
        });
        let mut allowed = Guards::ALL.iter().flat_map(|_| &expected);
        let cases =
            Guards::ALL.iter().flat_map(|guards| operations.iter().map(move |operation| (guards, operation)));
        let cases = cases.filter(|(guards, _)| frames > 2 || **guards != Guards::Both);
        let cases = cases.map(|(guards, (name, run))| {
            (format!("{name}, {frames} frames, {guards:?}"), case(*run, *guards))
        });
        run_all(cases, |name, outcome| {
            let allowed = allowed.next().unwrap();
            match &outcome.0 {
                Err(kind) if says_why(kind) => None,
                _ if outcome == *allowed => None,
                _ => Some(format!("{name}: {outcome:?} instead of {allowed:?}")),
            }
        });
    }
}

impl Guards {
    const ALL: [Self; 3] = [Self::Shared, Self::Exclusive, Self::Both];
}

#[test]
fn reads_with_guards_end() {
    compare_with_and_without_guards(READS, (24, 64), &[1, 2, 8]);
}

#[test]
fn writes_with_guards_end() {
    compare_with_and_without_guards(WRITES, (24, 64), &[1, 2, 8]);
}

/// Operations that other threads help with when they are long.
const LONG: &[&str] = &[
    "read",
    "to_vec",
    "gather",
    "par_for_each_slice",
    "par_fold_slices",
    "par_iter",
    "read_async",
    "count_where",
    "find_where",
    "sum",
    "save",
    "save at an instant",
    "copy_from it",
    "write",
    "fill",
    "copy_from",
    "scatter",
    "par_for_each_slice_mut",
    "transform",
    "sort",
    "sort_with",
    "argsort",
    "prefix_sum",
    "kernel",
];

#[test]
fn long_ones_with_guards_end() {
    compare_with_and_without_guards(&long_operations(), (80, 64 << 10), &[2]);
}

/// A library function that calls a function of the program.
type Caller = (&'static str, fn(&Place, &(dyn Fn() + Sync)) -> Result<()>);

const CALLERS: &[Caller] = &[
    ("for_each_mut", |p, call| p.array.for_each_mut(.., |_, _| call())),
    ("par_for_each_slice", |p, call| p.array.par_for_each_slice(.., |_, _| call())),
    ("par_for_each_slice_mut", |p, call| p.array.par_for_each_slice_mut(.., |_, _| call())),
    ("par_fold_slices", |p, call| p.array.par_fold_slices(.., call, |(), _, _| call(), |(), ()| call())),
    ("par_iter", |p, call| p.array.par_iter().try_for_each(|x| x.map(|_| call()))),
    ("map", |p, call| p.array.map(.., |_| call())),
    ("map_mut", |p, call| p.array.map_mut(.., MapMode::ReadWrite, |_| call())),
    ("update", |p, call| {
        let change = |x| {
            call();
            x
        };
        p.array.update(p.at(1), change).map(drop)
    }),
    ("save_with", |p, call| p.array.save_with(&TestFile::new().0, SaveOptions::new(), |_| goes_on(call))),
    ("save_with at an instant", |p, call| p.array.save_with(&TestFile::new().0, INSTANT, |_| goes_on(call))),
    ("rows.save_with at an instant", |p, call| {
        let rows = RaggedArray::<u32>::builder().from_rows([p.array.to_vec(..100)?])?;
        rows.save_with(&TestFile::new().0, INSTANT, |_| goes_on(call))
    }),
    ("load_with", |p, call| {
        let file = TestFile::new();
        p.other.save(&file.0)?;
        Array::builder(0).load_with(&file.0, |_| goes_on(call)).map(drop)
    }),
    ("with_progress sort", |p, call| with_progress(|_| goes_on(call), || p.array.sort(..))),
    ("with_progress sort_with", |p, call| {
        with_progress(|_| goes_on(call), || p.array.section_mut(..p.len())?.sort_with(.., &p.other))
    }),
    ("with_progress argsort", |p, call| {
        with_progress(|_| goes_on(call), || p.array.argsort(.., Descending(whole()))).map(drop)
    }),
    ("with_progress sort_by_key", |p, call| {
        with_progress(|_| goes_on(call), || p.array.sort_by_key(.., Descending(whole())))
    }),
    ("with_progress sort of a source", |p, call| {
        let source = Source::builder(values(p.len())).devices([DEVICE.clone()]).build()?;
        with_progress(
            |_| {
                _ = source.get(3);
                _ = source.sum(.., whole());
                goes_on(call)
            },
            || source.sort(..),
        )
    }),
    ("gather_iter", |p, call| {
        p.array.gather_iter(every_seventh(p).into_iter().inspect(|_| call())).try_for_each(|x| x.map(drop))
    }),
    ("scatter_iter", |p, call| {
        let elements = every_seventh(p).into_iter().inspect(|_| call()).map(|at| (at, 3));
        p.array.scatter_iter(elements).map(drop)
    }),
    ("partition_point", |p, call| {
        let holds = |x| {
            call();
            x < 500
        };
        p.array.partition_point(.., holds).map(drop)
    }),
    ("iter", |p, call| p.array.iter().try_for_each(|x| x.map(|_| call()))),
    ("pages", |p, call| p.array.pages().try_for_each(|page| page.map(|_page| call()))),
    ("pages_mut", |p, call| p.array.pages_mut().try_for_each(|page| page.map(|_page| call()))),
    ("cursor", |p, call| {
        let mut cursor = p.array.cursor();
        cursor.get(p.at(1))?;
        call();
        Ok(())
    }),
    ("cursor_mut", |p, call| {
        let mut cursor = p.array.cursor_mut();
        cursor.set(p.at(1), 3)?;
        call();
        Ok(())
    }),
];

fn goes_on(call: &(dyn Fn() + Sync)) -> ControlFlow<()> {
    call();
    ControlFlow::Continue(())
}

/// Number of runs of an operation, at the first calls.
const CALLS: usize = 3;

/// Runs all operations inside each library function with a callback. Without [`has_all_cases`], each
/// operation runs inside a quarter of the functions, and each function runs a quarter of the operations.
fn within_callers(operations: &'static [Operation], frames: usize) {
    type Within = Vec<std::result::Result<(), ErrorKind>>;
    let callers = CALLERS.iter().enumerate();
    let cases = callers.flat_map(|(at, caller)| {
        let chosen = (at..).zip(operations).filter(|(number, _)| has_all_cases() || number % 4 == 0);
        chosen.map(move |(_, operation)| (caller, operation))
    });
    let cases = cases.map(|((caller, run_caller), (name, run))| {
        let case: Box<dyn FnOnce() -> Within + Send> = Box::new(move || {
            let place = Place::new(24, 64, frames);
            let (calls, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
            let call = || {
                if calls.fetch_add(1, Ordering::Relaxed) < CALLS {
                    let outcome = run(&place).map(drop).map_err(|error| error.kind().clone());
                    outcomes.lock().unwrap().push(outcome);
                }
            };
            let outcome = run_caller(&place, &call);
            assert!(calls.into_inner() > 0, "the function was called");
            let mut outcomes = outcomes.into_inner().unwrap();
            outcomes.push(outcome.map_err(|error| error.kind().clone()));
            outcomes
        });
        (format!("{name} within {caller}, {frames} frames"), case)
    });
    run_all(cases, |name, outcomes| {
        let wrong = outcomes.into_iter().filter_map(std::result::Result::err).find(|kind| !says_why(kind));
        wrong.map(|kind| format!("{name}: {kind}"))
    });
}

#[test]
fn reads_within_functions_that_are_called_end() {
    within_callers(READS, 2);
    if has_all_cases() {
        within_callers(READS, 8);
    }
}

#[test]
fn writes_within_functions_that_are_called_end() {
    within_callers(WRITES, 2);
    if has_all_cases() {
        within_callers(WRITES, 8);
    }
}

fn kind_of<R>(result: Result<R>) -> ErrorKind {
    result.err().expect("it is refused").kind().clone()
}

fn would_deadlock<R>(result: Result<R>) -> bool {
    matches!(kind_of(result), ErrorKind::WouldDeadlock { .. })
}

/// A point-in-time snapshot inside another one: of the same array it would wait for itself; of another array
/// it need not wait.
#[test]
fn a_snapshot_within_a_snapshot_does_not_wait_for_itself() {
    let (place, file, inner) = (Place::new(24, 64, 8), TestFile::new(), TestFile::new());
    let mut calls = 0;
    let save = |array: &Array| array.save_with(&inner.0, INSTANT, |_| ControlFlow::Continue(()));
    let within = |_| {
        calls += 1;
        // The error must not depend on other threads or on work in progress.
        assert!(would_deadlock(save(&place.array)));
        save(&place.other).unwrap();
        ControlFlow::Continue(())
    };
    place.array.save_with(&file.0, INSTANT, within).unwrap();
    assert!(calls > 0);
    save(&place.array).unwrap();
}

/// Two threads save an array each and, meanwhile, each other's array: at most one waits.
#[test]
fn snapshots_of_each_others_arrays_do_not_wait_for_each_other() {
    let (one, two) = (Place::new(24, 64, 8), Place::new(24, 64, 8));
    let both = std::sync::Barrier::new(2);
    let run = |own: &Place, other: &Place| {
        let mut is_first = true;
        let within = |_| {
            if std::mem::take(&mut is_first) {
                both.wait();
                let saved = other.array.save_with(&TestFile::new().0, INSTANT, |_| ControlFlow::Continue(()));
                assert!(saved.is_ok() || would_deadlock(saved));
            }
            ControlFlow::Continue(())
        };
        own.array.save_with(&TestFile::new().0, INSTANT, within).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(&one, &two));
        run(&two, &one);
    });
}

/// A snapshot's progress function waits for tasks that change pages. The snapshot's threads have yet to save
/// these pages, and wait for the function.
#[test]
fn tasks_within_a_snapshot_do_not_wait_for_its_threads() {
    const PAGE: usize = 1 << 20;
    let array = VirtualArray::<u8>::builder(48 * PAGE).devices([DEVICE.clone()]).page_len(PAGE);
    let array = array.frames_per_channel(8).build().unwrap();
    array.fill(.., 1).unwrap();
    let file = TestFile::new();
    let mut is_first = true;
    let within = |_| {
        if std::mem::take(&mut is_first) {
            (0..48).for_each(|page| block_on(array.set_async(page * PAGE, 2)).unwrap());
        }
        ControlFlow::Continue(())
    };
    array.save_with(&file.0, INSTANT, within).unwrap();
    let saved = VirtualArray::<u8>::open(&file.0).unwrap();
    assert_eq!(saved.count(.., Field::whole(), &1_u8).unwrap(), 48 * PAGE);
    assert_eq!(array.count(.., Field::whole(), &2_u8).unwrap(), 48);
}

/// A thread with guards does the work itself that rayon's threads would do.
#[test]
fn threads_of_another_library_do_not_wait_for_guards() {
    let place = Place::new(24, 64, 8);
    let thread = std::thread::current().id();
    let is_here = || assert_eq!(std::thread::current().id(), thread);
    let reads = |p: &Place| -> Result<()> {
        p.array.par_for_each_slice(.., |_, _| is_here())?;
        p.array.par_fold_slices(.., is_here, |(), _, _| is_here(), |(), ()| is_here())?;
        p.array.par_iter().with_max_len(1).try_for_each(|item| item.map(|_| is_here()))?;
        p.array.par_iter().zip(0..p.len()).try_for_each(|(item, _)| item.map(|_| is_here()))?;
        // Rayon may run one of the two iterators on another thread, which must not wait for this thread.
        let both = p.array.par_iter().chain(p.array.par_iter()).filter_map(Result::err).map(kind_of_error);
        assert!(both.all(|kind| says_why(&kind)));
        Ok(())
    };
    let writes = |p: &Place| p.array.par_for_each_slice_mut(.., |_, _| is_here());
    let guard = place.array.page(3).unwrap();
    reads(&place).unwrap();
    assert_eq!(kind_of(writes(&place)), ErrorKind::WouldDeadlock { page: 3 });
    drop(guard);
    let guard = place.other.page_mut(3).unwrap();
    reads(&place).unwrap();
    writes(&place).unwrap();
    drop(guard);
    place.array.for_each_mut(..1, |_, _| assert!(would_deadlock(reads(&place)))).unwrap();
    assert!(!vmarray::access::must_work_alone());
    place.array.par_for_each_slice(.., |_, _| assert!(vmarray::access::must_work_alone())).unwrap();
}

fn kind_of_error(error: vmarray::Error) -> ErrorKind {
    error.kind().clone()
}

/// Runs on each number of rayon's threads, with 1 to 3 frames, in a thread that may hang.
fn on_pools(run: fn(&Place) -> Result<()>) {
    let numbers = [1, 2, 16, 64].into_iter().flat_map(|threads| [1, 2, 3].map(|frames| (threads, frames)));
    let cases = numbers.map(|(threads, frames)| {
        let case: Box<dyn FnOnce() -> Result<()> + Send> = Box::new(move || {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            (0..random_cases(10)).try_for_each(|_| {
                let place = Place::new(24, 1024, frames);
                pool.install(|| run(&place))
            })
        });
        (format!("{threads} threads, {frames} frames"), case)
    });
    run_all(cases, |name, outcome| outcome.err().map(|error| format!("{name}: {error}")));
}

#[test]
fn any_number_of_threads_gets_along_with_few_frames() {
    on_pools(|p| {
        let pages = AtomicUsize::new(0);
        p.array.par_for_each_slice_mut(.., |first, slice| {
            slice.iter_mut().zip(first as u32..).for_each(|(x, at)| *x = at);
            pages.fetch_add(1, Ordering::Relaxed);
        })?;
        assert_eq!(pages.into_inner(), 24);
        let all = p.array.par_fold_slices(
            ..,
            Vec::new,
            |all, _, slice| [&all[..], slice].concat(),
            |a, b| [a, b].concat(),
        );
        assert!(all? == (0..p.len() as u32).collect::<Vec<_>>(), "in the order of the pages");
        let sum = p.array.par_iter().enumerate().map(|(at, x)| x.map(|x| at as u64 - u64::from(x)));
        assert_eq!(sum.sum::<Result<u64>>()?, 0);
        Ok(())
    });
}

/// A thread of rayon that waits within the closure runs other jobs meanwhile: also jobs of the same call.
#[test]
fn closures_that_hold_pages_may_use_rayon() {
    on_pools(|p| {
        p.array.fill(.., 1)?;
        p.array.par_for_each_slice_mut(.., |_, slice| {
            slice.par_iter_mut().with_max_len(16).for_each(|x| *x += 1);
        })?;
        let sum = AtomicUsize::new(0);
        p.array.par_for_each_slice(.., |_, slice| {
            let part: u32 = slice.par_iter().with_max_len(16).sum();
            sum.fetch_add(part as usize, Ordering::Relaxed);
            _ = p
                .array
                .par_iter()
                .enumerate()
                .with_max_len(1)
                .map(|(at, x)| x.map(|_| at))
                .sum::<Result<usize>>();
        })?;
        assert_eq!(sum.into_inner(), 2 * p.len());
        Ok(())
    });
}

fn long_operations() -> Vec<Operation> {
    READS.iter().chain(WRITES).filter(|(name, _)| LONG.contains(name)).copied().collect()
}

/// Long operations without guards. Another process with other numbers of threads runs it, too.
#[test]
fn few_frames_suffice() {
    let cases = [1, 2, 3].into_iter().flat_map(|frames| {
        long_operations().into_iter().map(move |(name, run)| {
            let case: Box<dyn FnOnce() -> Outcome + Send> =
                Box::new(move || with_guards(&Place::new(40, 16 << 10, frames), run, Guards::None));
            (format!("{name}, {frames} frames"), case)
        })
    });
    run_all(cases, |name, outcome| outcome.0.err().map(|error| format!("{name}: {error}")));
}

#[test]
fn few_frames_suffice_for_any_number_of_threads() {
    let counts = if has_all_cases() { &["1", "16", "64"][..] } else { &["64"] };
    for threads in counts {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "guarded_calls::few_frames_suffice"]);
        let output =
            child.env("VMARRAY_THREADS", threads).env("RAYON_NUM_THREADS", threads).output().unwrap();
        assert!(output.status.success(), "{threads} threads: {output:?}");
    }
}

/// Functions that neither hold nor await pages, or are no operations of a program.
const WITHOUT_PAGES: &[&str] = &[
    "annotation",
    "array",
    "builder",
    "capacity",
    "commit",
    "dimensions",
    "explain",
    "explain_sort",
    "from_index_set",
    "host_memory",
    "into_array",
    "max_len",
    "new",
    "page_count",
    "page_len",
    "parts",
    "of_parts",
    "of_parts_mut",
    "region",
    "ask",
    "assign",
    "reset_stats",
    "synchronize",
    "tier",
    "window",
    "product",
    "chunks",
    "to_paged",
    "format",
    "scales",
    "out_of_range",
    "cache_bytes",
    "over",
];

/// Each public function of arrays, views and index sets is in the tables, or among the exceptions.
#[test]
fn the_tables_have_all_operations() {
    const SOURCES: &[&str] = &[
        include_str!("../../src/array.rs"),
        include_str!("../../src/array/growth.rs"),
        include_str!("../../src/array/homes.rs"),
        include_str!("../../src/array/export.rs"),
        include_str!("../../src/ops/row_table/builder.rs"),
        include_str!("../../src/array/byte_stream.rs"),
        include_str!("../../src/array/stored.rs"),
        include_str!("../../src/array/check.rs"),
        include_str!("../../src/ops/shift.rs"),
        include_str!("../../src/ops/saved.rs"),
        include_str!("../../src/ops/view.rs"),
        include_str!("../../src/ops/join.rs"),
        include_str!("../../src/ops/paged.rs"),
        include_str!("../../src/ops/query.rs"),
        include_str!("../../src/ops/query/select.rs"),
        include_str!("../../src/ops/scan/view.rs"),
        include_str!("../../src/ops/matmul.rs"),
        include_str!("../../src/ops/sort/view.rs"),
        include_str!("../../src/ops/order.rs"),
        include_str!("../../src/index_sets/edit.rs"),
        include_str!("../../src/index_sets/paged.rs"),
        include_str!("../../src/index_sets/combine.rs"),
        include_str!("../../src/index_sets/combination.rs"),
        include_str!("../../src/index_sets/tuple_groups.rs"),
    ];
    let table = include_str!("guarded_calls.rs");
    let is_missing = |name: &&str| {
        let is_called = [".", "::"].iter().any(|dot| table.contains(&format!("{dot}{name}(")));
        !is_called && !WITHOUT_PAGES.contains(name)
    };
    let mut missing: Vec<&str> = SOURCES.iter().flat_map(|text| functions(text)).filter(is_missing).collect();
    missing.dedup();
    assert!(missing.is_empty(), "add to a table, or to the exceptions: {missing:?}");
}

/// The public methods in a source text, and the methods of its public traits, without methods that only the
/// library can call.
fn functions(text: &str) -> Vec<&str> {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
    let mut is_trait = false;
    let mut names = Vec::new();
    for line in text.lines().filter(|line| !line.contains("_: Internal")) {
        is_trait = line.starts_with("pub trait ") || is_trait && !line.starts_with('}');
        let method =
            line.strip_prefix("    pub fn ").or_else(|| line.strip_prefix("    fn ").filter(|_| is_trait));
        names.extend(method.and_then(|method| method.split(['(', '<']).next()));
    }
    names
}

/// A sort holds its pages; its progress function gets an error instead of a wait.
#[test]
fn a_progress_callback_does_not_wait_for_the_sort() {
    let place = Place::new(24, 64, 2);
    let mut refusals = 0;
    let callback = |_| {
        refusals += usize::from(would_deadlock(place.array.get(place.at(7))));
        refusals += usize::from(would_deadlock(place.array.fill(.., 3)));
        assert_eq!(place.other.get(3).unwrap(), values(4)[3]);
        ControlFlow::Continue(())
    };
    with_progress(callback, || place.array.sort(..)).unwrap();
    assert!(refusals >= 2);
    assert!(place.array.is_sorted(..).unwrap());
}
