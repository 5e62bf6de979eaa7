//! Benchmark workloads that run Rust kernels on arrays, compared with CUDA C kernels if `nvcc` exists. The
//! time includes the launch and the wait for its end; runs of the Rust and the CUDA C kernel alternate.

use crate::bench::measure::{Sample, Unit, calls};
use crate::bench::native::{Native, NativeMemory};
use crate::bench::raw::Limit;
use crate::bench::results::{Contender, Role, Row};
use crate::bench::suite::{Bench, size};
use anyhow::{Result, bail, ensure};
use std::sync::Arc;
use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::cuda::{CudaDevice, CudaOptions};
use vmarray::device::wrap::SplitMix64;
use vmarray::device::{Device, DeviceKind};
use vmarray::host::HostDevice;
use vmarray::kernel::{Anywhere, At, Group, KernelType, Own, PrefixSummed, Shared, Window};
use vmarray::matrix::{MatMul as _, MatMulElement};
use vmarray::nd::NdSection;
use vmarray::{AnyDevice, NdArray, VirtualArray, boundary::Mirror, prelude::*};

/// The number of work-items of a kernel in which each work-item processes many elements.
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
fn field(a: f32, record: &mut Own<Record>) {
    let mut new = record.get();
    new.values[2] = new.values[2] * a;
    record.set(new);
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

/// Multiplies square matrices: each group computes a contiguous block of 16 by 16 elements.
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

/// Adds up the elements of tiles of 4096; a group processes every tile whose number it reaches in steps.
#[vmarray::kernel(group = 256)]
fn sum(at: At<1>, x: &Anywhere<u32>, parts: &Group<u64, 8>, total: &Shared<u64>, seen: &mut Own<u32>) {
    let (mut tile, mut sum) = (at.group() * 4096, 0_u64);
    while tile + 4096 <= x.len() {
        let mut read = [0_u32; 16];
        for k in 0..16 {
            read[k] = x[tile + at.in_group() + k * 256];
        }
        for k in 0..16 {
            sum += read[k] as u64;
        }
        tile += at.groups() * 4096;
    }
    let all = vmarray::kernel::group::sum(at, parts, sum);
    if at.in_group() == 0 {
        total.add(0, all);
    }
    seen.set(1);
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
        self.array_on(&self.device, len, values)
    }

    /// Creates an array like [`array`](Self::array) on any device.
    fn array_on<T: Element>(&self, on: &Arc<AnyDevice>, len: usize, values: &[T]) -> Result<VirtualArray<T>> {
        // Choose a page length that is a power of two, so that pages hold whole groups of work-items.
        let page_len = ((1 << 20) / size_of::<T>()).next_power_of_two();
        let builder = VirtualArray::<T>::builder(len).devices([on.clone()]).page_len(page_len);
        let array = builder.cache_bytes((len * size_of::<T>() / 16).max(8 << 20)).build()?;
        if let [value] = values {
            array.fill(.., *value)?;
        } else {
            // Write whole repetitions of `values`, so that each chunk begins with the first value.
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

    /// Returns a function that runs a hand-written kernel, with the addresses of its memory.
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

/// Measures our kernel and the hand-written one alternately, and also copies within the device if the unit
/// counts bytes.
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
            // The limit is twice a copy's speed, because a copy both reads and writes each byte.
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
    let native = Native::new(&setup, include_str!("kernels.cu"))?;
    if native.is_none() {
        println!("no nvcc, or no card of CUDA: ours alone");
    }
    let on_card = device.info().kind == DeviceKind::DiscreteGpu;
    let bytes = if on_card { setup.plain_bytes } else { 32 << 20 };
    let stage = Stage { device, native, bytes, calls: setup.calls() };
    element_wise(bench, &stage)?;
    prefix_sum(bench, &stage, ("u8", 0), |bits| bits as u8)?;
    prefix_sum(bench, &stage, ("u32", 0), |bits| bits as u32)?;
    prefix_sum(bench, &stage, ("u64", 0), |bits| bits)?;
    prefix_sum(bench, &stage, ("f32", 0), |bits| bits as u32 as f32)?;
    prefix_sum(bench, &stage, ("f64", 0), |bits| bits as u32 as f64)?;
    prefix_sum(bench, &stage, ("rows-of-f32", 4096), |bits| bits as u32 as f32)?;
    sums(bench, &stage, on_card)?;
    gathering(bench, &stage)?;
    grouped(bench, &stage, on_card)?;
    let n = if on_card { 8192 } else { 1024 };
    library_product(bench, &stage, n, |value| value)?;
    library_product(bench, &stage, n, f64::from)?;
    small(bench, &stage)
}

/// Measures a sum by a kernel, and by the query.
fn sums(bench: &mut Bench, stage: &Stage, on_card: bool) -> Result<()> {
    let what = format!("kernels/sum-u32/{}", size(stage.bytes));
    if !bench.wants(&what) {
        return Ok(());
    }
    let (len, field) = (stage.bytes / 4, Field::<u32, u32>::whole());
    let x = stage.array(len, &[1_u32])?;
    let mut seen = stage.array(if on_card { 1 << 19 } else { 1 << 12 }, &[0_u32])?;
    let mut total = stage.array(1, &[0_u64])?;
    let (turns, amount) = (stage.calls, stage.bytes as f64);
    bench.row(what, Unit::GigabytesPerSecond, |_, row: &mut Row| {
        row.measure_in_turn(&mut [
            ("ours", Role::Ours, &mut || calls(turns, amount, || Ok(sum::run((&x, &mut total, &mut seen))?))),
            ("query", Role::Alternative, &mut || {
                calls(turns, amount, || {
                    ensure!(x.sum(.., field)? == len as i128);
                    Ok(())
                })
            }),
        ])
    })?;
    ensure!(total.get(0)?.is_multiple_of(len as u64), "the kernel's sum is wrong");
    Ok(())
}

fn element_wise(bench: &mut Bench, stage: &Stage) -> Result<()> {
    let what = format!("axpy-f32/{}", size(stage.bytes));
    if bench.wants(&format!("kernels/{what}")) {
        let len = stage.bytes / 4;
        let (x, y) = (stage.array(len, &[1.0_f32])?, stage.array(len, &[1.0_f32])?);
        let memory = [stage.memory(stage.bytes)?, stage.memory(stage.bytes)?];
        let [far_x, far_y] = memory.each_ref().map(address);
        let amount = (3 * stage.bytes) as f64;
        let words = vec![1e-3_f32.to_bits().into(), far_x, far_y, len as u64];
        let by_hand = stage.by_hand("axpy_f32", (len.div_ceil(1024), 256), amount, words, &[]);
        let ours = || {
            calls(stage.calls, amount, || Ok(axpy_f32::run((1e-3, x.section(0..)?, y.section_mut(0..)?))?))
        };
        compare(bench, &what, Unit::GigabytesPerSecond, stage.native.is_some(), ours, by_hand)?;
        ensure!(y.get(len / 2)? != 1.0, "{what}: the kernel changed no element");
    }
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
    let host = Arc::new(AnyDevice::from(HostDevice::new(64 << 20)?));
    let sums = [&stage.device, &host].map(|device| -> Result<Vec<T>> {
        let x = stage.array_on(device, values.len(), &values)?;
        sum_up(&x)?;
        Ok(x.to_vec(..)?)
    });
    let [ours, of_host] = sums;
    ensure!(ours? == of_host?, "{what}: the results differ from the host's");
    let x = stage.array(stage.bytes / size_of::<T>(), &[value(1)])?;
    // Count one read and one write of each element.
    let amount = (2 * stage.bytes) as f64;
    let ours = || calls(stage.calls, amount, || Ok(sum_up(&x)?));
    let by_hand = || bail!("{what}: there is no kernel written by hand");
    compare(bench, &what, Unit::GigabytesPerSecond, false, ours, by_hand)
}

/// Measures kernels whose work-items read neighbouring elements.
fn gathering(bench: &mut Bench, stage: &Stage) -> Result<()> {
    const WIDTH: usize = 8192;
    let len = stage.bytes / 4 / WIDTH * WIDTH;
    let amount = (8 * len) as f64;
    let what = ["five-points", "taps-17"].map(|name| format!("{name}/{}", size(stage.bytes)));
    if !what.iter().any(|what| bench.wants(&format!("kernels/{what}"))) {
        return Ok(());
    }
    let values: Vec<f32> = (0..1021).map(|i| (i * 7 % 64) as f32 / 64.0).collect();
    let x = stage.array(len, &values)?;
    let memory = stage.memory_of(len, &values)?;
    let far = address(&memory);
    let blocks = (len.div_ceil(256), 256);
    let unit = Unit::GigabytesPerSecond;
    let shape = [len / WIDTH, WIDTH];
    let rows = NdArray::from_elements(stage.array(len, &values)?, shape)?;
    let mut smooth = NdArray::from_elements(stage.array(len, &[0.0_f32])?, shape)?;
    let results = stage.memory(len * 4)?;
    let near = address(&results);
    let by_hand =
        stage.by_hand("five", blocks, amount, vec![far, near, WIDTH as u64, (len / WIDTH) as u64], &[]);
    let ours =
        || calls(stage.calls, amount, || Ok(five::run((rows.bounded(Mirror).window([1, 1]), &mut smooth))?));
    compare(bench, &what[0], unit, stage.native.is_some(), ours, by_hand)?;
    drop((rows, smooth));
    let mut out = stage.array(len, &[0.0_f32])?;
    let weights: [f32; 17] = std::array::from_fn(|k| 1.0 / (k + 3) as f32);
    let by_hand = stage.by_hand("taps", blocks, amount, vec![far, near, len as u64], &weights);
    let ours =
        || calls(stage.calls, amount, || Ok(taps::run((x.bounded(Mirror).window(8), &weights, &mut out))?));
    compare(bench, &what[1], unit, stage.native.is_some(), ours, by_hand)?;
    check(&results, &out, len)
}

/// Measures kernels whose work-items cooperate in groups.
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
    // Use fewer work-items on the host, because the host interprets kernels with groups.
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

/// The product of two square matrices of the library, [`MatMul`](vmarray::matrix::MatMul), after a comparison
/// of some elements with sums in `f64`. If the GPU calls cuBLAS, measures the crate's own kernel, too.
fn library_product<T: MatMulElement + Into<f64>>(
    bench: &mut Bench,
    stage: &Stage,
    n: usize,
    of: fn(f32) -> T,
) -> Result<()> {
    let what = format!("matmul-f{}/{n}", 8 * size_of::<T>());
    if !bench.wants(&format!("kernels/{what}")) {
        return Ok(());
    }
    let mut random = SplitMix64::new(n as u64);
    let values: Vec<T> = (0..n * n + 1).map(|_| of(random.index(2001) as f32 / 1000.0 - 1.0)).collect();
    let matrices = |device: &Arc<AnyDevice>| -> Result<_> {
        let [a, b] = [&values[..n * n], &values[1..]].map(|values| -> Result<_> {
            let array = stage.array_on(device, n * n, values)?;
            array.write(0, values)?;
            Ok(NdArray::from_elements(array, [n, n])?)
        });
        Ok([a?, b?, NdArray::from_elements(stage.array_on(device, n * n, &[of(0.0)])?, [n, n])?])
    };
    let amount = 2.0 * (n as f64).powi(3);
    let multiply = |[a, b, c]: &[NdArray<T, 2>; 3]| calls(1, amount, || Ok(c.assign_matmul(a, b)?));
    let ours = matrices(&stage.device)?;
    println!("{what}: {:?}", ours[2].explain_matmul(&ours[0], &ours[1])?);
    let by_kernel = without_cublas(&stage.device)?.map(|device| matrices(&device)).transpose()?;
    bench.row(format!("kernels/{what}"), Unit::GigaPerSecond, |_, row: &mut Row| {
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        let mut own = || multiply(&ours);
        contenders.push(("ours", Role::Ours, &mut own));
        let mut by_kernel = by_kernel.as_ref().map(|matrices| || multiply(matrices));
        contenders.extend(by_kernel.as_mut().map(|run| ("own-kernel", Role::Alternative, run as _)));
        row.measure_in_turn(&mut contenders)
    })?;
    for c in std::iter::once(&ours).chain(&by_kernel).map(|[.., c]| c) {
        for _ in 0..1000 {
            let [row, column] = [0, 0].map(|_| random.index(n));
            let product =
                |k: usize| -> f64 { values[row * n + k].into() * values[1 + k * n + column].into() };
            let expected: f64 = (0..n).map(product).sum();
            let found: f64 = c.get([row, column])?.into();
            ensure!((found - expected).abs() < 0.02, "{what} [{row}, {column}]: {found}, not {expected}");
        }
    }
    Ok(())
}

/// Opens an NVIDIA GPU a second time, without cuBLAS.
fn without_cublas(device: &AnyDevice) -> Result<Option<Arc<AnyDevice>>> {
    let AnyDevice::Cuda(device) = device else { return Ok(None) };
    let again = CudaDevice::open_with(device.card().index, &CudaOptions::new().without_cublas())?;
    Ok(Some(Arc::new(again.into())))
}

/// Measures the launch of a kernel that does almost no work, and the wait for it.
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

fn address(memory: &Option<NativeMemory>) -> u64 {
    memory.as_ref().map_or(0, |memory| memory.address)
}

/// Checks that a hand-written kernel, if there is one, and ours left the same bits.
fn check<T: Element + PartialEq>(
    memory: &Option<NativeMemory>,
    ours: &VirtualArray<T>,
    len: usize,
) -> Result<()> {
    if let Some(memory) = memory {
        ensure!(memory.read::<T>(len)? == ours.to_vec(..)?, "the results of both kernels differ");
    }
    Ok(())
}
