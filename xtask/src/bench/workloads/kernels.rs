//! Kernels in Rust, run over arrays, compared with hand-written ones in CUDA C if `nvcc` exists. Both are
//! measured in turn, including their start and the wait.

use super::{Bench, size};
use crate::bench::measure::{Sample, Unit, calls};
use crate::bench::native::{Native, NativeMemory};
use crate::bench::raw::Limit;
use crate::bench::results::{Contender, Role, Row};
use anyhow::{Result, bail, ensure};
use std::sync::Arc;
use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::device::wrap::SplitMix64;
use vmarray::device::{Device, DeviceKind};
use vmarray::host::HostDevice;
use vmarray::kernel::{Anywhere, Append, Appended, At, Group, KernelType, Own, PrefixSummed, Shared, Window};
use vmarray::nd::NdSection;
use vmarray::{AnyDevice, NdArray, VirtualArray, boundary::Mirror, prelude::*};

/// The heap of CUDA C's `malloc`.
const HEAP_BYTES: usize = 1 << 30;
/// Items of a kernel in which each processes a part of many elements.
const ITEMS: usize = 1 << 18;

#[derive(Clone, Copy, Pod, Zeroable, KernelType)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
struct Record {
    values: [f32; 11],
}

#[vmarray::kernel]
fn axpy_f32(a: f32, x: &Own<f32>, y: &mut Own<f32>) {
    y.set(a * x.get() + y.get());
}

#[vmarray::kernel]
fn axpy_f64(a: f64, x: &Own<f64>, y: &mut Own<f64>) {
    y.set(a * x.get() + y.get());
}

#[vmarray::kernel]
fn add_u8(x: &Own<u8>, y: &mut Own<u8>) {
    y.set(x.get() + y.get());
}

#[vmarray::kernel]
fn add_u16(x: &Own<u16>, y: &mut Own<u16>) {
    y.set(x.get() + y.get());
}

#[vmarray::kernel]
fn field(a: f32, record: &mut Own<Record>) {
    let mut new = record.get();
    new.values[2] = new.values[2] * a;
    record.set(new);
}

#[vmarray::kernel]
fn sums(at: At<1>, items: usize, x: &Anywhere<f32>, out: &mut Own<f32>) {
    let (mut i, mut sum) = (at.index(), 0.0);
    while i < x.len() {
        sum += x[i];
        i += items;
    }
    out.set(sum);
}

#[vmarray::kernel]
fn five(at: At<2>, x: &Window<f32, 2>, out: &mut Own<f32>) {
    let sides = x[at.plus([0, -1])] + x[at.plus([0, 1])];
    let sum = sides + (x[at.plus([-1, 0])] + x[at.plus([1, 0])]);
    out.set(0.5 * x[at] + 0.125 * sum);
}

#[vmarray::kernel]
fn taps(at: At<1>, x: &Window<f32, 1>, weights: &[f32; 17], out: &mut Own<f32>) {
    let mut sum = 0.0;
    for k in 0..17 {
        sum = weights[k].mul_add(x[at.plus(k as isize - 8)], sum);
    }
    out.set(sum);
}

/// A product of square matrices: each group computes a block of 16 by 16 elements, which is contiguous.
#[vmarray::kernel(group = 256)]
fn product<const N: usize>(
    at: At<1>,
    a: &Anywhere<f32>,
    b: &Anywhere<f32>,
    tile_a: &Group<f32, 256>,
    tile_b: &Group<f32, 256>,
    c: &mut Own<f32>,
) {
    let (tiles, block, i) = (N / 16, at.index() / 256, at.in_group());
    let (row, column, y, x) = (block / tiles, block % tiles, i / 16, i % 16);
    let mut sum = 0.0;
    for t in 0..tiles {
        tile_a.set(i, a[(row * 16 + y) * N + t * 16 + x]);
        tile_b.set(i, b[(t * 16 + y) * N + column * 16 + x]);
        barrier();
        for k in 0..16 {
            sum = tile_a[y * 16 + k].mul_add(tile_b[k * 16 + x], sum);
        }
        barrier();
    }
    c.set(sum);
}

#[vmarray::kernel(group = 256)]
fn bodies(
    at: At<1>,
    all: &Anywhere<[f32; 4]>,
    xs: &Group<f32, 256>,
    ys: &Group<f32, 256>,
    zs: &Group<f32, 256>,
    masses: &Group<f32, 256>,
    pulls: &mut Own<[f32; 4]>,
) {
    let (me, i) = (all[at.index()], at.in_group());
    let mut sum = [0.0; 4];
    for tile in 0..all.len() / 256 {
        let other = all[tile * 256 + i];
        xs.set(i, other[0]);
        ys.set(i, other[1]);
        zs.set(i, other[2]);
        masses.set(i, other[3]);
        barrier();
        for k in 0..256 {
            let (x, y, z) = (xs[k] - me[0], ys[k] - me[1], zs[k] - me[2]);
            let square = x.mul_add(x, y.mul_add(y, z.mul_add(z, 1e-6)));
            let by = masses[k] / (square * square.sqrt());
            sum[0] = by.mul_add(x, sum[0]);
            sum[1] = by.mul_add(y, sum[1]);
            sum[2] = by.mul_add(z, sum[2]);
        }
        barrier();
    }
    pulls.set(sum);
}

#[vmarray::kernel(group = 256)]
fn histogram(
    at: At<1>,
    items: usize,
    x: &Anywhere<u8>,
    own: &Group<u32, 256>,
    bins: &Shared<u32>,
    seen: &mut Own<u32>,
) {
    let (mut i, mut count) = (at.index(), 0);
    while i < x.len() {
        own.add(x[i] as usize, 1);
        count += 1;
        i += items;
    }
    seen.set(count);
    barrier();
    bins.add(at.in_group(), own[at.in_group()]);
}

#[vmarray::kernel]
fn taken(at: At<1>, out: &mut Own<u32>) {
    let words = alloc::<u32>(64);
    words.set(at.index() % 64, at.index() as u32 + 1);
    out.set(words[at.index() % 64]);
}

/// The median of a window of 13 by 13 elements, by quickselect, in the item's private memory.
#[vmarray::kernel]
fn median<const WIDTH: usize>(at: At<1>, height: usize, x: &Anywhere<f32>, out: &mut Own<f32>) {
    let window = alloc::<f32>(169);
    let (row, column) = (at.index() / WIDTH, at.index() % WIDTH);
    for dy in 0..13 {
        let y = (row + dy).saturating_sub(6).min(height - 1);
        for dx in 0..13 {
            let there = (column + dx).saturating_sub(6).min(WIDTH - 1);
            window.set(dy * 13 + dx, x[y * WIDTH + there]);
        }
    }
    let (mut low, mut high) = (0, 168);
    while low < high {
        let pivot = window[84];
        let (mut i, mut j) = (low, high);
        while i <= j {
            while window[i as usize] < pivot {
                i += 1;
            }
            while pivot < window[j as usize] {
                j -= 1;
            }
            if i <= j {
                let swapped = window[i as usize];
                window.set(i as usize, window[j as usize]);
                window.set(j as usize, swapped);
                i += 1;
                j -= 1;
            }
        }
        if j < 84 {
            low = i;
        }
        if 84 < i {
            high = j;
        }
    }
    out.set(window[84]);
}

#[vmarray::kernel]
fn append(x: &Own<u32>, limit: u32, found: &Append<u32>) {
    if x.get() < limit {
        found.push(x.get());
    }
}

/// The state that all rows share.
struct Stage {
    device: Arc<AnyDevice>,
    native: Option<Native>,
    /// The bytes of the largest arrays.
    bytes: usize,
    calls: usize,
}

impl Stage {
    /// Creates an array on the device that repeats these values, with an empty cache.
    fn array<T: Element>(&self, len: usize, values: &[T]) -> Result<VirtualArray<T>> {
        self.array_on(std::slice::from_ref(&self.device), len, values)
    }

    /// Creates the same on any devices.
    fn array_on<T: Element>(
        &self,
        devices: &[Arc<AnyDevice>],
        len: usize,
        values: &[T],
    ) -> Result<VirtualArray<T>> {
        // Each page has whole groups, and the cache has a sixteenth of the pages.
        let page_len = ((1 << 20) / size_of::<T>()).next_power_of_two();
        let builder = VirtualArray::<T>::builder(len).devices(devices.iter().cloned()).page_len(page_len);
        let array = builder.cache_bytes((len * size_of::<T>() / 16).max(8 << 20)).build()?;
        if let [value] = values {
            array.fill(.., *value)?;
        } else {
            // Repeat the values to a length of some MiB, so that the next part begins with the first value
            // again.
            let chunk: Vec<T> = values.repeat(((1 << 20) / values.len()).max(1));
            for start in (0..len).step_by(chunk.len()) {
                array.write(start, &chunk[..chunk.len().min(len - start)])?;
            }
        }
        array.evict(..)?;
        Ok(array)
    }

    /// Allocates memory for hand-written kernels.
    fn memory(&self, bytes: usize) -> Result<Option<NativeMemory>> {
        self.native.as_ref().map(|native| native.memory(bytes)).transpose()
    }

    /// Allocates memory with values in it.
    fn memory_of<T: Element>(&self, len: usize, values: &[T]) -> Result<Option<NativeMemory>> {
        let memory = self.memory(len * size_of::<T>())?;
        if let Some(memory) = &memory {
            memory.write(&values.iter().copied().cycle().take(len).collect::<Vec<_>>())?;
        }
        Ok(memory)
    }

    /// Returns runs of a hand-written kernel, which receives memory by its addresses.
    fn by_hand<'a>(
        &'a self,
        name: &'a str,
        (blocks, threads): (usize, u32),
        amount: f64,
        arguments: Vec<u64>,
        table: &'a [f32],
    ) -> impl FnMut() -> Result<Sample> + 'a {
        move || {
            calls(self.calls, amount, || match &self.native {
                // SAFETY: the rows below pass the arguments that the kernels of `kernels.cu` declare, and
                // memory for the elements that they name.
                Some(native) => unsafe { native.run(name, blocks, threads, &arguments, table) },
                None => Ok(()),
            })
        }
    }
}

/// Measures ours and the hand-written one in turn, next to copies within the device if the unit is that of
/// bytes.
fn compare(
    bench: &mut Bench,
    name: &str,
    unit: Unit,
    has_native: bool,
    mut ours: impl FnMut() -> Result<Sample>,
    mut by_hand: impl FnMut() -> Result<Sample>,
) -> Result<()> {
    bench.row(format!("kernels/{name}"), unit, |bench, row: &mut Row| {
        let mut contenders: Vec<Contender<'_>> = vec![("ours", Role::Ours, &mut ours)];
        if has_native {
            contenders.push(("nvcc", Role::Alternative, &mut by_hand));
        }
        row.measure_in_turn(&mut contenders)?;
        if unit == Unit::GigabytesPerSecond {
            // Count twice the bytes, because a copy reads and writes each byte.
            row.add("internal-copy", Role::Limit, bench.raw.get(Limit::Internal)?.scaled(2.0));
        }
        Ok(())
    })
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let Some(device) = setup.devices.first().cloned().filter(|_| bench.wants_any("kernels/")) else {
        return Ok(());
    };
    let native = Native::new(&setup, include_str!("kernels.cu"), HEAP_BYTES)?;
    if native.is_none() {
        println!("no nvcc, or no card of CUDA: ours alone");
    }
    let on_card = device.info().kind == DeviceKind::DiscreteGpu;
    let bytes = if on_card { setup.plain_bytes } else { 32 << 20 };
    let stage = Stage { device, native, bytes, calls: setup.calls() };
    element_wise(bench, &stage)?;
    let one = std::slice::from_ref(&stage.device);
    prefix_sum(bench, &stage, one, ("u32", 0), |bits| bits as u32)?;
    prefix_sum(bench, &stage, one, ("f32", 0), |bits| bits as u32 as f32)?;
    prefix_sum(bench, &stage, one, ("f64", 0), |bits| bits as u32 as f64)?;
    prefix_sum(bench, &stage, one, ("rows-of-u32", 4096), |bits| bits as u32)?;
    prefix_sum(bench, &stage, one, ("rows-of-f32", 4096), |bits| bits as u32 as f32)?;
    if setup.devices.len() > 1 {
        prefix_sum(bench, &stage, &setup.devices, ("f32-on-all", 0), |bits| bits as u32 as f32)?;
    }
    gathering(bench, &stage, on_card)?;
    grouped(bench, &stage, on_card)?;
    taking(bench, &stage, on_card)?;
    small(bench, &stage)
}

/// A row of `y += a * x` or `y += x`.
macro_rules! pairwise {
    ($bench:expr, $stage:expr, $name:expr, $of:ty, $skip:expr, $lanes:expr,
     $kernel:ident($($given:expr),*), $by_hand:expr, [$($word:expr),*]) => {{
        let (stage, skip, bytes) = ($stage, $skip, size_of::<$of>());
        let len = stage.bytes / bytes - skip;
        let what = format!("{}/{}", $name, size(stage.bytes));
        if $bench.wants(&format!("kernels/{what}")) {
            let x = stage.array::<$of>(len + skip, &[1 as $of])?;
            let y = stage.array::<$of>(len + skip, &[1 as $of])?;
            let memory = [stage.memory((len + skip) * bytes)?, stage.memory((len + skip) * bytes)?];
            let [far_x, far_y] = memory.each_ref().map(|memory| address(memory) + (skip * bytes) as u64);
            let amount = (3 * len * bytes) as f64;
            let by_hand = stage.by_hand(
                $by_hand,
                (len.div_ceil(256 * $lanes), 256),
                amount,
                vec![$($word,)* far_x, far_y, len as u64],
                &[],
            );
            let ours = || {
                calls(stage.calls, amount, || {
                    Ok($kernel::run(($($given,)* x.section(skip..)?, y.section_mut(skip..)?))?)
                })
            };
            compare($bench, &what, Unit::GigabytesPerSecond, stage.native.is_some(), ours, by_hand)?;
            ensure!(y.get(len / 2)? != 1 as $of, "{what}: nothing was computed");
        }
    }};
}

fn element_wise(bench: &mut Bench, stage: &Stage) -> Result<()> {
    let [a32, a64] = [u64::from(1e-3_f32.to_bits()), 1e-3_f64.to_bits()];
    pairwise!(bench, stage, "axpy-f32", f32, 0, 4, axpy_f32(1e-3), "axpy_f32", [a32]);
    pairwise!(bench, stage, "axpy-f32-unaligned", f32, 3, 1, axpy_f32(1e-3), "axpy_f32_singly", [a32]);
    pairwise!(bench, stage, "axpy-f64", f64, 0, 1, axpy_f64(1e-3), "axpy_f64", [a64]);
    pairwise!(bench, stage, "add-u8", u8, 0, 16, add_u8(), "add_u8", []);
    pairwise!(bench, stage, "add-u8-unaligned", u8, 3, 1, add_u8(), "add_u8_singly", []);
    pairwise!(bench, stage, "add-u16", u16, 0, 8, add_u16(), "add_u16", []);
    let what = format!("field-of-44B/{}", size(stage.bytes));
    if bench.wants(&format!("kernels/{what}")) {
        let len = stage.bytes / size_of::<Record>();
        let mut records = stage.array(len, &[Record { values: [1.0; 11] }])?;
        let memory = stage.memory(len * size_of::<Record>())?;
        let amount = (2 * len * size_of::<Record>()) as f64;
        let words = vec![1.001_f32.to_bits().into(), address(&memory), len as u64];
        let by_hand = stage.by_hand("field", (len.div_ceil(256), 256), amount, words, &[]);
        let ours = || calls(stage.calls, amount, || Ok(field::run((1.001, &mut records))?));
        compare(bench, &what, Unit::GigabytesPerSecond, stage.native.is_some(), ours, by_hand)?;
    }
    Ok(())
}

/// Measures prefix sums in place, of all elements or along rows, after comparing some with the host's
/// results.
fn prefix_sum<T: PrefixSummed + PartialEq>(
    bench: &mut Bench,
    stage: &Stage,
    devices: &[Arc<AnyDevice>],
    (of, row): (&str, usize),
    value: impl Fn(u64) -> T,
) -> Result<()> {
    let what = format!("prefix-sum-{of}/{}", size(stage.bytes));
    if !bench.wants(&format!("kernels/{what}")) {
        return Ok(());
    }
    let sum_up = |x: &VirtualArray<T>| match row {
        0 => x.prefix_sum(..).map(drop),
        _ => NdSection::over_mut(x, [x.len() / row, row])?.prefix_sum_axis(1),
    };
    let mut random = SplitMix64::new(1);
    let values: Vec<T> = (0..3 << 20).map(|_| value(random.next())).collect();
    let host = [Arc::new(AnyDevice::from(HostDevice::new(64 << 20)?))];
    let sums = [devices, &host[..]].map(|devices| -> Result<Vec<T>> {
        let x = stage.array_on(devices, values.len(), &values)?;
        sum_up(&x)?;
        Ok(x.to_vec(..)?)
    });
    let [ours, of_host] = sums;
    ensure!(ours? == of_host?, "{what}: the results differ from the host's");
    let x = stage.array_on(devices, stage.bytes / size_of::<T>(), &[value(1)])?;
    // Count one read and one write of each element.
    let amount = (2 * stage.bytes) as f64;
    let ours = || calls(stage.calls, amount, || Ok(sum_up(&x)?));
    let by_hand = || bail!("{what}: there is no kernel written by hand");
    compare(bench, &what, Unit::GigabytesPerSecond, false, ours, by_hand)
}

/// Kernels that read elements of other items.
fn gathering(bench: &mut Bench, stage: &Stage, on_card: bool) -> Result<()> {
    const WIDTH: usize = 8192;
    let len = stage.bytes / 4 / WIDTH * WIDTH;
    let what = [("sum-f32", 4), ("five-points", 8), ("taps-17", 8)];
    let what = what.map(|(name, bytes)| (format!("{name}/{}", size(stage.bytes)), (bytes * len) as f64));
    if !what.iter().any(|(what, _)| bench.wants(&format!("kernels/{what}"))) {
        return Ok(());
    }
    let values: Vec<f32> = (0..1021).map(|i| (i * 7 % 64) as f32 / 64.0).collect();
    let x = stage.array(len, &values)?;
    let memory = stage.memory_of(len, &values)?;
    let far = address(&memory);
    let blocks = (len.div_ceil(256), 256);
    let unit = Unit::GigabytesPerSecond;
    {
        let items = if on_card { ITEMS } else { 1 << 12 };
        let mut out = stage.array(items, &[0.0_f32])?;
        let results = stage.memory(items * 4)?;
        let near = address(&results);
        let words = vec![far, near, len as u64, items as u64];
        let by_hand = stage.by_hand("sums", (items / 256, 256), what[0].1, words, &[]);
        let ours = || calls(stage.calls, what[0].1, || Ok(sums::run((items, &x, &mut out))?));
        compare(bench, &what[0].0, unit, stage.native.is_some(), ours, by_hand)?;
        check(&results, &out, items)?;
    }
    let shape = [len / WIDTH, WIDTH];
    let rows = NdArray::from_elements(stage.array(len, &values)?, shape)?;
    let mut smooth = NdArray::from_elements(stage.array(len, &[0.0_f32])?, shape)?;
    let results = stage.memory(len * 4)?;
    let near = address(&results);
    let by_hand =
        stage.by_hand("five", blocks, what[1].1, vec![far, near, WIDTH as u64, (len / WIDTH) as u64], &[]);
    let ours = || {
        calls(stage.calls, what[1].1, || Ok(five::run((rows.bounded(Mirror).window([1, 1]), &mut smooth))?))
    };
    compare(bench, &what[1].0, unit, stage.native.is_some(), ours, by_hand)?;
    drop((rows, smooth));
    let mut out = stage.array(len, &[0.0_f32])?;
    let weights: [f32; 17] = std::array::from_fn(|k| 1.0 / (k + 3) as f32);
    let by_hand = stage.by_hand("taps", blocks, what[2].1, vec![far, near, len as u64], &weights);
    let ours = || {
        calls(stage.calls, what[2].1, || Ok(taps::run((x.bounded(Mirror).window(8), &weights, &mut out))?))
    };
    compare(bench, &what[2].0, unit, stage.native.is_some(), ours, by_hand)?;
    check(&results, &out, len)
}

/// Kernels whose items meet.
fn grouped(bench: &mut Bench, stage: &Stage, on_card: bool) -> Result<()> {
    if on_card {
        if bench.setup.quick { matrices::<2048>(bench, stage)? } else { matrices::<8192>(bench, stage)? }
    } else {
        matrices::<64>(bench, stage)?;
    }
    let count = if on_card { 1 << if bench.setup.quick { 15 } else { 17 } } else { 512 };
    let what = format!("bodies/{count}");
    if bench.wants(&format!("kernels/{what}")) {
        let values: Vec<[f32; 4]> = (0..count)
            .map(|i| [i * 7 % 1009, i * 11 % 1013, i * 13 % 1019, 1 + i % 3].map(|n| n as f32))
            .collect();
        let all = stage.array(count, &values)?;
        let mut pulls = stage.array(count, &[[0.0_f32; 4]])?;
        let (memory, results) = (stage.memory_of(count, &values)?, stage.memory(count * 16)?);
        let [far, near] = [&memory, &results].map(address);
        let pairs = (count * count) as f64;
        let by_hand = stage.by_hand("bodies", (count / 256, 256), pairs, vec![far, near, count as u64], &[]);
        let ours = || calls(stage.calls, pairs, || Ok(bodies::run((&all, &mut pulls))?));
        compare(bench, &what, Unit::GigaPerSecond, stage.native.is_some(), ours, by_hand)?;
    }
    // Use fewer items on the host, because it interprets groups.
    let (len, items) = if on_card { (stage.bytes, ITEMS) } else { (1 << 18, 1 << 12) };
    let what = format!("histogram/{}", size(len));
    if bench.wants(&format!("kernels/{what}")) {
        let values: Vec<u8> = (0..65_521_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let x = stage.array(len, &values)?;
        let (mut bins, mut seen) = (stage.array(256, &[0_u32])?, stage.array(items, &[0_u32])?);
        let (memory, results) =
            (stage.memory_of(len, &values)?, [stage.memory(1024)?, stage.memory(items * 4)?]);
        let words =
            vec![address(&memory), address(&results[0]), address(&results[1]), len as u64, items as u64];
        let by_hand = stage.by_hand("histogram", (items / 256, 256), len as f64, words, &[]);
        let ours =
            || calls(stage.calls, len as f64, || Ok(histogram::run((items, &x, &mut bins, &mut seen))?));
        compare(bench, &what, Unit::GigabytesPerSecond, stage.native.is_some(), ours, by_hand)?;
        check(&results[0], &bins, 256)?;
    }
    Ok(())
}

fn matrices<const N: usize>(bench: &mut Bench, stage: &Stage) -> Result<()> {
    let what = format!("matrix-product/{N}");
    if !bench.wants(&format!("kernels/{what}")) {
        return Ok(());
    }
    let values: Vec<f32> = (0..1021).map(|i| (i * 7 % 64) as f32 / 64.0).collect();
    let (a, b) = (stage.array(N * N, &values)?, stage.array(N * N, &values[1..])?);
    let mut c = stage.array(N * N, &[0.0_f32])?;
    let (memory, results) =
        ([stage.memory_of(N * N, &values)?, stage.memory_of(N * N, &values[1..])?], stage.memory(N * N * 4)?);
    let words = vec![address(&memory[0]), address(&memory[1]), address(&results), N as u64];
    let amount = 2.0 * (N as f64).powi(3);
    let by_hand = stage.by_hand("product", (N * N / 256, 256), amount, words, &[]);
    let ours = || calls(1, amount, || Ok(product::<N>::run((&a, &b, &mut c))?));
    compare(bench, &what, Unit::GigaPerSecond, stage.native.is_some(), ours, by_hand)?;
    check(&results, &c, N * N)
}

/// Kernels that allocate memory, or append elements.
fn taking(bench: &mut Bench, stage: &Stage, on_card: bool) -> Result<()> {
    const WIDTH: usize = 2048;
    let unit = Unit::MegaPerSecond;
    let items = if on_card { 1 << 26 } else { 1 << 16 };
    // Use fewer items, because the copy by CUDA takes some hundred times as long.
    let few = if on_card { 1 << 17 } else { items };
    let what = format!("alloc-256B/{items}");
    if bench.wants(&format!("kernels/{what}")) {
        let mut out = stage.array(items, &[0_u32])?;
        let results = stage.memory(few * 4)?;
        let near = address(&results);
        let by_hand = stage.by_hand("taken", (few / 256, 256), few as f64, vec![near, few as u64], &[]);
        let ours = || calls(stage.calls, items as f64, || Ok(taken::run((&mut out,))?));
        compare(bench, &what, unit, stage.native.is_some(), ours, by_hand)?;
        ensure!(out.get(items - 1)? == items as u32, "{what}: an item read the memory of another item");
    }
    let height = if on_card { 2048 } else { 16 };
    let what = format!("median-13x13/{WIDTH}x{height}");
    if bench.wants(&format!("kernels/{what}")) {
        let len = WIDTH * height;
        let values: Vec<f32> =
            (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32).collect();
        let x = stage.array(len, &values[..len.min(1 << 20)])?;
        let mut out = stage.array(len, &[0.0_f32])?;
        let (memory, results) = (stage.memory_of(len, &values[..len.min(1 << 20)])?, stage.memory(len * 4)?);
        let [far, near] = [&memory, &results].map(address);
        let words = vec![far, near, WIDTH as u64, height as u64];
        let by_hand = stage.by_hand("median", (len / 256, 256), len as f64, words, &[]);
        let ours = || calls(1, len as f64, || Ok(median::<WIDTH>::run((height, &x, &mut out))?));
        compare(bench, &what, unit, stage.native.is_some(), ours, by_hand)?;
        check(&results, &out, len)?;
    }
    let len = stage.bytes / 16;
    let what = format!("append-an-eighth/{len}");
    if bench.wants(&format!("kernels/{what}")) {
        let values: Vec<u32> = (0..65_521_u32).map(|i| i.wrapping_mul(2_654_435_761) % 1000).collect();
        let x = stage.array(len, &values)?;
        let memory = stage.memory_of(len, &values)?;
        let results = [stage.memory(8)?, stage.memory(len * 4)?];
        let words = vec![address(&memory), 125, address(&results[0]), address(&results[1]), len as u64];
        let mut by_hand = stage.by_hand("append", (len.div_ceil(256), 256), len as f64, words, &[]);
        let mut found = Vec::new();
        // Both contenders store the result in memory of the program.
        let by_hand = || {
            let sample = by_hand()?;
            results[0].as_ref().map_or(Ok(()), |counter| counter.write(&[0_u64]))?;
            Ok(sample)
        };
        let ours = || {
            calls(1, len as f64, || {
                found.clear();
                Ok(append::run((&x, 125, Appended::to(&mut found, len)))?)
            })
        };
        compare(bench, &what, unit, stage.native.is_some(), ours, by_hand)?;
        let truth = values.iter().cycle().take(len).filter(|value| **value < 125).count();
        ensure!(found.len() == truth, "{what}: {} elements instead of {truth}", found.len());
    }
    Ok(())
}

/// Measures the start of a kernel with next to no work, and the wait for it.
fn small(bench: &mut Bench, stage: &Stage) -> Result<()> {
    if !bench.wants("kernels/launch-and-wait") {
        return Ok(());
    }
    let (x, mut y) = (stage.array(256, &[1.0_f32])?, stage.array(256, &[1.0_f32])?);
    let memory = stage.memory(2048)?;
    let far = address(&memory);
    let words = vec![u64::from(2.0_f32.to_bits()), far, far + 1024, 256];
    let mut by_hand = stage.by_hand("axpy_f32", (1, 64), 1.0, words, &[]);
    let by_hand = || {
        let samples = (0..100).map(|_| by_hand()).collect::<Result<Vec<_>>>()?;
        let wall = samples.iter().map(|sample| sample.wall).sum();
        let amount = samples.iter().map(|sample| sample.amount).sum();
        Ok(Sample { wall, amount, ..samples[0] })
    };
    let ours = || calls(100, 1.0, || Ok(axpy_f32::run((1e-3, &x, &mut y))?));
    compare(bench, "launch-and-wait", Unit::Microseconds, stage.native.is_some(), ours, by_hand)
}

/// Returns the address of memory.
fn address(memory: &Option<NativeMemory>) -> u64 {
    memory.as_ref().map_or(0, |memory| memory.address)
}

/// Checks that hand-written kernels and ours have left the same bits, if both must.
fn check<T: Element + PartialEq>(
    memory: &Option<NativeMemory>,
    ours: &VirtualArray<T>,
    len: usize,
) -> Result<()> {
    if let Some(memory) = memory {
        ensure!(memory.read::<T>(len)? == ours.to_vec(..)?, "the results differ");
    }
    Ok(())
}
