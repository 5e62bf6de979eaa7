//! Tests of sessions over several devices with access to each other's memory, and over boxes of several
//! dimensions, compared with loops over vectors.

use std::sync::Arc;
use std::time::Duration;

use vmarray::boundary::{Circular, Clamp, Constant, Mirror, Symmetric};
use vmarray::device::{self, Reach};
use vmarray::host::{SimulatedDevice, SimulatedFabric};
use vmarray::kernel::{Anywhere, At, Own, Session, Shared, Window};
use vmarray::{AnyDevice, ErrorKind, NdArray, Placement, Result, prelude::*};
use vmarray_conformance::wrap::Counting;

use crate::common::{Numbers, Shape, as_any, host, hosts};
use crate::peers::{Devices, warm};

type Simulated = Arc<Counting<SimulatedDevice>>;

/// Devices of different speeds, whose virtual times are independent.
fn simulated(count: usize, seed: u64, fabric: &SimulatedFabric) -> Vec<Simulated> {
    let device = |number: u64| {
        let latency = Duration::from_micros(1 + (seed + 7 * number) % 40);
        let settings = SimulatedDevice::builder(seed * 8 + number).bytes(64 << 20).latency(latency);
        Arc::new(Counting::new(settings.jitter(3.0).fabric(fabric).build()))
    };
    (0..count as u64).map(device).collect()
}

fn fabric(reach: Reach) -> SimulatedFabric {
    SimulatedFabric::new(reach, 1_000_000_000, Duration::from_micros(5))
}

/// Devices with access to each other: simulated ones, or threads of the host.
fn together(count: usize, seed: u64) -> Vec<Arc<AnyDevice>> {
    match seed % 4 {
        3 => (0..count).map(|_| Arc::new(host().into())).collect(),
        _ => simulated(count, seed, &fabric(Reach::Maps)).iter().map(as_any).collect(),
    }
}

fn array<T: Element>(
    on: &[Arc<AnyDevice>],
    shares: &[u32],
    page_len: usize,
    values: &[T],
) -> Result<VirtualArray<T>> {
    let shape = Shape { page_len, channels: shares.to_vec(), frames: 3, ..Shape::default() };
    let array = shape.describe(values.len(), on.to_vec()).build()?;
    array.write(0, values)?;
    Ok(array)
}

fn numbers(random: &mut Numbers, len: usize) -> Vec<u32> {
    (0..len).map(|_| random.next() as u32).collect()
}

#[vmarray::kernel]
fn heat(at: At<1>, old: &Window<u32, 1>, new: &mut Own<u32>) {
    new.set(3 * old[at.plus(-1)] + 5 * old[at] + 7 * old[at.plus(1)]);
}

#[test]
fn heat_goes_along_a_rod_over_several_devices() -> Result<()> {
    let cases: [(usize, &[u32], usize); 5] = [
        (2, &[1, 3], 700),
        (3, &[2, 1, 1], 500),
        (4, &[1, 2, 1, 3], 300),
        (4, &[1, 1, 1, 1], 60),
        (2, &[1, 1], 3),
    ];
    for (seed, (count, shares, len)) in
        (0..).zip(cases.into_iter().cycle().take(backend_api::wrap::random_cases(20) as usize))
    {
        let (mut random, turns) =
            (Numbers::new(seed), if seed < 8 { backend_api::wrap::random_cases(1000) } else { 40 });
        let (on, page_len) = (together(count, seed), 1 + random.below(30));
        let mut truth = numbers(&mut random, len);
        let mut one = array(&on, shares, page_len, &truth)?;
        let mut other = array(&on, shares, page_len, &vec![0; len])?;
        let mut session = Session::new();
        let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
        for _ in 0..turns {
            heat::run_in(&mut session, (a.bounded(Circular), b))?;
            heat::run_in(&mut session, (b.bounded(Circular), a))?;
        }
        session.finish()?;
        for _ in 0..2 * turns {
            let at = |i: usize| truth[i % len];
            let new = |i: usize| {
                let sides = at(i + len - 1).wrapping_mul(3).wrapping_add(at(i + 1).wrapping_mul(7));
                at(i).wrapping_mul(5).wrapping_add(sides)
            };
            truth = (0..len).map(new).collect();
        }
        assert!(one.to_vec(..)? == truth, "seed {seed}");
    }
    Ok(())
}

#[vmarray::kernel]
fn scattered(at: At<1>, by: usize, of: &Anywhere<u32>, fixed: &Anywhere<u32>, out: &mut Own<u32>) {
    let i = at.index();
    out.set(out.get() * 3 + of[(i * 7 + by) % of.len()] + fixed[(i + by) % fixed.len()]);
}

#[vmarray::kernel]
fn mixed(x: &Own<u32>, out: &mut Own<u32>) {
    out.set(out.get() * 5 + x.get());
}

#[test]
fn devices_see_earlier_writes_of_others() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let (on, len) = (together(3, seed), 1 + random.below(200));
        let (page_len, shares) = (1 + random.below(20), [1 + random.below(2) as u32, 1, 2]);
        // Three arrays have equal pages, one has other pages, and two have another length and are on one
        // device each.
        let mut truth: Vec<Vec<u32>> = (0..4).map(|_| numbers(&mut random, len)).collect();
        truth.extend((0..2).map(|_| numbers(&mut random, 1 + len / 2)));
        let new = |number: usize, truth: &[u32]| match number {
            0..3 => array(&on, &shares, page_len, truth),
            3 => array(&on[..2], &[1, 1], page_len + 3, truth),
            _ => array(&on[number - 3..number - 2], &[1], page_len, truth),
        };
        let mut arrays: Vec<VirtualArray<u32>> =
            truth.iter().enumerate().map(|(number, truth)| new(number, truth)).collect::<Result<_>>()?;
        let fixed_len = 1 + random.below(50);
        let copied = numbers(&mut random, fixed_len);
        let source = Source::new(copied.clone())?;
        let mut session = Session::new();
        let mut held = Vec::new();
        let mut fixed = None;
        for array in &mut arrays {
            held.push(session.hold(array)?);
            // Create the copy when only some devices are known.
            if fixed.is_none() {
                fixed = Some(session.copy(&source)?);
            }
        }
        let Some(fixed) = fixed else { unreachable!("arrays are held") };
        let mut turns = 10 + random.below(60);
        while turns > 0 {
            turns -= 1;
            let (from, to, by) = (random.below(6), random.below(6), random.below(len));
            if from == to {
                continue;
            }
            let old = truth[from].clone();
            if random.below(3) > 0 {
                scattered::run_in(&mut session, (by, held[from], fixed, held[to]))?;
                for (i, out) in truth[to].iter_mut().enumerate() {
                    let read = old[(i * 7 + by) % old.len()].wrapping_add(copied[(i + by) % copied.len()]);
                    *out = out.wrapping_mul(3).wrapping_add(read);
                }
            } else if from < 3 && to < 3 {
                mixed::run_in(&mut session, (held[from], held[to]))?;
                truth[to]
                    .iter_mut()
                    .zip(&old)
                    .for_each(|(out, x)| *out = out.wrapping_mul(5).wrapping_add(*x));
            }
            if random.below(12) == 0 {
                session.wait()?;
            }
        }
        session.finish()?;
        for (number, (array, truth)) in arrays.iter().zip(&truth).enumerate() {
            assert!(array.to_vec(..)? == *truth, "seed {seed}, array {number}");
        }
    }
    Ok(())
}

#[test]
fn a_launch_costs_each_device_a_submission_and_an_order_after_each_other() -> Result<()> {
    let devices = simulated(3, 1, &fabric(Reach::Maps));
    let on: Vec<_> = devices.iter().map(as_any).collect();
    let (mut one, mut other) = (array(&on, &[1; 3], 16, &[1; 400])?, array(&on, &[1; 3], 16, &[1; 400])?);
    let mut session = Session::new();
    let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
    heat::run_in(&mut session, (a, b))?;
    heat::run_in(&mut session, (b, a))?;
    for device in &devices {
        device.reset();
    }
    for _ in 0..100 {
        heat::run_in(&mut session, (a.bounded(Clamp), b))?;
        heat::run_in(&mut session, (b.bounded(Clamp), a))?;
    }
    for device in devices {
        let work = device.counts().work;
        // Each device translates the first launch of a kernel's variant.
        assert_eq!((work.launches, work.submits, work.waits), (201, 0, 1));
        assert!((398..=400).contains(&work.orders), "{} orders", work.orders);
    }
    assert!(session.finish().is_err(), "the first two read beyond the edges");
    Ok(())
}

#[vmarray::kernel]
fn tallied(of: &Own<u32>, bins: &Shared<u32>) {
    bins.add((of.get() % 4) as usize, 1);
}

#[test]
fn unreachable_memory_is_refused() -> Result<()> {
    for reach in [Reach::No, Reach::Copies] {
        let on: Vec<_> = simulated(2, 0, &fabric(reach)).iter().map(as_any).collect();
        let (mut one, mut other) = (array(&on, &[1, 2], 7, &[1; 40])?, array(&on, &[1, 2], 7, &[2; 40])?);
        let mut session = Session::new();
        let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
        let error = heat::run_in(&mut session, (a.bounded(Clamp), b)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::KernelRefused { .. }), "{error}");
        assert!(error.to_string().contains("cannot reach the memory of"), "{error}");
        mixed::run_in(&mut session, (a, b))?;
        session.finish()?;
        assert_eq!(other.to_vec(..)?, [11; 40]);
    }
    // Elements that any item may change are on one device.
    let on = hosts::<2>();
    let (mut one, mut bins) = (array(&on, &[1, 1], 7, &[1; 40])?, array(&on[..1], &[1], 7, &[0; 4])?);
    let mut session = Session::new();
    let (a, counts) = (session.hold(&mut one)?, session.hold(&mut bins)?);
    let error = tallied::run_in(&mut session, (a, counts)).unwrap_err();
    assert!(error.to_string().contains("any work-item may change any element of `bins`"), "{error}");
    session.finish()
}

#[test]
fn a_device_lost_between_launches_is_reported() -> Result<()> {
    for lost in 0..2 {
        let devices = simulated(2, 5, &fabric(Reach::Maps));
        let on: Vec<_> = devices.iter().map(as_any).collect();
        let (mut one, mut other) = (array(&on, &[1, 1], 16, &[1; 200])?, array(&on, &[1, 1], 16, &[1; 200])?);
        let mut session = Session::new();
        let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
        for _ in 0..3 {
            heat::run_in(&mut session, (a.bounded(Circular), b))?;
            heat::run_in(&mut session, (b.bounded(Circular), a))?;
        }
        devices[lost].inner().lose();
        let launched = heat::run_in(&mut session, (a.bounded(Circular), b));
        let cause = |error: &vmarray::Error| error.device_error().map(device::Error::kind);
        assert_eq!(launched.as_ref().err().and_then(cause), Some(device::ErrorKind::Lost), "{launched:?}");
        let error = session.finish().unwrap_err();
        let ErrorKind::Interrupted { cause, unspecified, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((cause.kind(), unspecified.len()), (device::ErrorKind::Lost, 1));
        assert_eq!(unspecified[0], 0..200);
        // The other device works as before the loss.
        let mut alone = array(&on[1 - lost..2 - lost], &[1], 16, &[1; 200])?;
        let of = Source::new(vec![1; 200])?;
        mixed::run((&of, &mut alone))?;
        assert_eq!(alone.to_vec(..)?, [6; 200]);
    }
    Ok(())
}

#[vmarray::kernel]
fn blurred(
    at: At<2>,
    far: isize,
    image: &Window<u32, 2>,
    table: &Anywhere<u32, 2>,
    all: &Anywhere<u32>,
    out: &mut Own<u32>,
) {
    let (rows, columns) = (table.shape()[0], table.shape()[1]);
    let mut sum = 2 * image[at.plus([far, -far])] + table[[at[1] % rows, at[0] % columns]];
    for k in 0..9 {
        sum = sum * 3 + image[at.plus([k / 3 - 1, k % 3 - 1])];
    }
    out.set(out.get() + sum + all[(at[0] * 5 + at[1]) % all.len()]);
}

#[test]
fn boxes_in_sessions_match_runs() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let on = together(1 + random.below(3), seed);
        let shape = [1 + random.below(9), 1 + random.below(12)];
        let len = shape[0] * shape[1];
        let (page_len, alike) = (1 + random.below(20), random.below(2) == 0);
        let shares: Vec<u32> = on.iter().map(|_| 1 + random.below(2) as u32).collect();
        let new = |values: &[u32], page_len: usize| -> Result<NdArray<u32, 2>> {
            let elements = |elements: vmarray::Builder<u32, AnyDevice>| {
                elements.page_len(page_len).placement(Placement::Ratios(shares.clone())).frames_per_channel(3)
            };
            let array = NdArray::builder(shape).devices(on.clone()).elements(elements).build()?;
            array.write_box(.., values)?;
            Ok(array)
        };
        let (values, table) = (numbers(&mut random, len), numbers(&mut random, 12));
        let other_len = if alike { page_len } else { page_len + 1 };
        let (mut x, mut y) = (new(&values, page_len)?, new(&vec![0; len], other_len)?);
        let (same, other) = (new(&values, page_len)?, new(&vec![0; len], other_len)?);
        let fixed = NdArray::<u32, 2>::builder([5, 4]).devices(hosts::<1>()).build()?;
        fixed.write_box([1, 0]..[4, 4], &table)?;
        let rows = fixed.section([1, 0]..[4, 4])?;
        let mode = (Circular, random.below(4));
        let far = random.below(40) as isize - 20;
        // In some rounds the result is only a part of the array.
        let start = [0, 1].map(|axis| if random.below(2) == 0 { 0 } else { random.below(shape[axis]) });
        let part = if random.below(2) == 0 { [0, 0]..shape } else { start..shape };

        let mut session = Session::new();
        let (a, b) = (session.hold(&mut x)?, session.hold(&mut y)?);
        let copied = session.copy(rows)?;
        for (of, out) in [(a, b), (b, a), (a, b)] {
            let image = match mode.1 {
                0 => of.section(part.clone())?.bounded((mode.0, Mirror)),
                1 => of.section(part.clone())?.bounded((Clamp, mode.0)),
                2 => of.section(part.clone())?.bounded((Symmetric, Constant(9))),
                _ => of.section(part.clone())?.bounded(Constant(3)),
            };
            blurred::run_in(&mut session, (far, image, copied, of, out.section(part.clone())?))?;
        }
        session.finish()?;
        for (of, out) in [(&same, &other), (&other, &same), (&same, &other)] {
            let (image, out) = (of.section(part.clone())?, out.section_mut(part.clone())?);
            let halo = [20, 20];
            match mode.1 {
                0 => blurred::run((far, image.bounded((mode.0, Mirror)).window(halo), rows, of, out))?,
                1 => blurred::run((far, image.bounded((Clamp, mode.0)).window(halo), rows, of, out))?,
                2 => {
                    let window = image.bounded((Symmetric, Constant(9))).window(halo);
                    blurred::run((far, window, rows, of, out))?;
                }
                _ => blurred::run((far, image.bounded(Constant(3)).window(halo), rows, of, out))?,
            }
        }
        assert_eq!(x.to_vec(..)?, same.to_vec(..)?, "seed {seed}");
        assert_eq!(y.to_vec(..)?, other.to_vec(..)?, "seed {seed}");
    }
    Ok(())
}

#[vmarray::kernel]
fn numbered(at: At<2>, out: &mut Own<u32>) {
    out.set(out.get() * 100 + (at[0] * at.shape()[1] + at[1]) as u32);
}

#[vmarray::kernel]
fn first_of(at: At<1>, of: &Anywhere<u32>, out: &mut Own<u32>) {
    out.set(of[0] + (of.len() * 100 + at.index()) as u32);
}

#[test]
fn sections_and_tiles_have_their_own_places() -> Result<()> {
    let device = hosts::<1>();
    let mut tiles = NdArray::<u32, 2>::builder([5, 7]).devices(device.clone()).tile([2, 3]).build()?;
    let mut line = array(&device, &[1], 8, &[7_u32; 30])?;
    let mut session = Session::new();
    let (a, b) = (session.hold(&mut tiles)?, session.hold(&mut line)?);
    numbered::run_in(&mut session, (a,))?;
    numbered::run_in(&mut session, (a.section([1, 2]..[4, 6])?,))?;
    first_of::run_in(&mut session, (b.section(4..9)?, b.section(20..)?))?;
    // The sections overlap, or the kernel reads them in place.
    let overlap = first_of::run_in(&mut session, (b.section(4..21)?, b.section(20..)?)).unwrap_err();
    assert!(matches!(overlap.kind(), ErrorKind::KernelOverlap { .. }), "{overlap}");
    let tiled = first_of::run_in(&mut session, (a, b)).unwrap_err();
    assert!(tiled.to_string().contains("stored row by row"), "{tiled}");
    let outside = b.section(4..31).unwrap_err();
    assert!(matches!(outside.kind(), ErrorKind::RangeOutside { .. }), "{outside}");
    session.finish()?;
    for row in 0..5 {
        for column in 0..7 {
            let number = (row * 7 + column) as u32;
            let is_inside = (1..4).contains(&row) && (2..6).contains(&column);
            let truth = if is_inside { number * 100 + ((row - 1) * 4 + column - 2) as u32 } else { number };
            assert_eq!(tiles.get([row, column])?, truth);
        }
    }
    let truth: Vec<u32> = (0..30).map(|i| if i < 20 { 7 } else { 507 + i - 20 }).collect();
    assert_eq!(line.to_vec(..)?, truth);
    Ok(())
}

#[vmarray::kernel]
fn gathered(index: &Own<u32>, values: &Anywhere<u32>, out: &mut Own<u32>) {
    out.set(values[index.get() as usize]);
}

#[test]
fn values_that_are_gathered_into_arrays_pass_by_the_host() -> Result<()> {
    const LEN: usize = 5000;
    for devices in [Devices::host(3), Devices::simulated(3, Reach::Maps)] {
        warm(&devices, &[0, 1, 2]);
        let mut random = Numbers::new(5);
        let truth = numbers(&mut random, LEN);
        let indices: Vec<u32> = (0..LEN).map(|_| random.below(LEN) as u32).collect();
        let expected: Vec<u32> = indices.iter().map(|index| truth[*index as usize]).collect();
        // In a session the kernel runs on several devices; a direct launch runs on one of them.
        let on: [(&[usize], &[usize]); 2] = [(&[2, 0, 1], &[0, 1, 2]), (&[1], &[1])];
        for (of, to) in on {
            let mut values = devices.array(of, 100, &truth);
            let mut list = devices.array(to, 64, &indices);
            let mut out = devices.array(to, 64, &[7_u32; LEN]);
            if to.len() > 1 {
                let mut session = Session::new();
                let at = session.hold(&mut list)?;
                let (of, to) = (session.hold(&mut values)?, session.hold(&mut out)?);
                gathered::run_in(&mut session, (at, of, to))?;
                session.finish()?;
            } else {
                gathered::run((&list, &values, &mut out))?;
            }
            assert_eq!(devices.through_host(), (0, 0), "{of:?}");
            let stats = [values.stats().total(), list.stats().total(), out.stats().total()];
            assert!(stats.iter().all(|stats| stats.bytes_through_host == 0), "{of:?}");
            assert_eq!(out.to_vec(..)?, expected, "{of:?}");
            devices.through_host();
        }
    }
    Ok(())
}
