//! Tests of sessions: kernel launches in order, over arrays that the session holds.

use std::sync::Arc;

use vmarray::boundary::{Circular, Clamp, Constant, Mirror, Symmetric};
use vmarray::device;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::host::SimulatedDevice;
use vmarray::kernel::{Anywhere, At, Own, Session, Shared, Window};
use vmarray::{ErrorKind, Result, prelude::*};
use vmarray_conformance::wrap::{Counting, Faulty};

use crate::common::{Numbers, Shape, as_any, devices, host, hosts};

#[vmarray::kernel]
fn mixed(at: At<1>, by: u32, table: &[u32; 3], x: &Own<u32>, out: &mut Own<u32>) {
    out.set(out.get() * by + x.get() + table[at.index() % 3]);
}

#[vmarray::kernel]
fn shifted(at: At<1>, by: usize, of: &Anywhere<u32>, out: &mut Own<u64>) {
    out.set(out.get() + of[(at.index() + by) % of.len()] as u64);
}

#[vmarray::kernel]
fn narrowed(of: &Own<u64>, out: &mut Own<u32>) {
    out.set((of.get() % 1000) as u32);
}

#[vmarray::kernel]
fn tallied(of: &Own<u32>, bins: &Shared<u32>) {
    bins.add((of.get() % 4) as usize, 1);
}

/// Vectors with the expected contents of the arrays.
struct Truth {
    x: Vec<u32>,
    y: Vec<u32>,
    wide: Vec<u64>,
    bins: Vec<u32>,
}

#[test]
fn launches_see_earlier_writes() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let mut random = Numbers::new(seed);
        let len = random.below(300);
        let device = devices(1);
        let mut shape =
            || Shape { read_ahead: true, ..Shape::random(&mut random, 30, &[&[1], &[2], &[3]], 3) };
        let shapes = [shape(), shape(), shape(), shape()];
        let new = |number: usize| shapes[number].describe::<u32, _>(len, device.clone()).build();
        let (mut x, mut y, mut bins) = (new(0)?, new(1)?, shapes[3].describe(4, device.clone()).build()?);
        let mut wide = shapes[2].describe::<u64, _>(len, device.clone()).build()?;
        let values: Vec<u32> = (0..len).map(|_| random.next() as u32).collect();
        // Some pages are dirty in the cache.
        x.write(0, &values)?;
        let mut truth = Truth { x: values, y: vec![0; len], wide: vec![0; len], bins: vec![0; 4] };
        let copied = Source::new((0..len as u32).collect::<Vec<_>>())?;

        let mut session = Session::new();
        let (a, b, c) = (session.hold(&mut x)?, session.hold(&mut y)?, session.hold(&mut wide)?);
        let (counts, fixed) = (session.hold(&mut bins)?, session.copy(&copied)?);
        for _ in 0..1 + random.below(30) {
            let by = random.below(100);
            match random.below(5) {
                0 => {
                    mixed::run_in(&mut session, (by as u32, &[1, 20, 300], a, b))?;
                    let both = truth.x.iter().zip(&mut truth.y).enumerate();
                    both.for_each(|(i, (x, y))| {
                        *y = y.wrapping_mul(by as u32).wrapping_add(*x).wrapping_add([1, 20, 300][i % 3]);
                    });
                }
                1 => {
                    mixed::run_in(&mut session, (by as u32, &[7, 7, 7], fixed, a))?;
                    let all = truth.x.iter_mut().enumerate();
                    all.for_each(|(i, x)| *x = x.wrapping_mul(by as u32).wrapping_add(i as u32 + 7));
                }
                2 => {
                    shifted::run_in(&mut session, (by, b, c))?;
                    let at = |i: usize| u64::from(truth.y[(i + by) % len]);
                    truth.wide.iter_mut().enumerate().for_each(|(i, wide)| *wide += at(i));
                }
                3 => {
                    narrowed::run_in(&mut session, (c, a))?;
                    truth.x.iter_mut().zip(&truth.wide).for_each(|(x, wide)| *x = (wide % 1000) as u32);
                }
                _ => {
                    tallied::run_in(&mut session, (a, counts))?;
                    truth.x.iter().for_each(|x| truth.bins[(x % 4) as usize] += 1);
                }
            }
            if random.below(8) == 0 {
                session.wait()?;
            }
        }
        session.finish()?;
        assert_eq!((x.to_vec(..)?, y.to_vec(..)?), (truth.x, truth.y), "seed {seed}");
        assert_eq!((wide.to_vec(..)?, bins.to_vec(..)?), (truth.wide, truth.bins), "seed {seed}");
        // After the session, the arrays are ordinary arrays again.
        x.fill(.., 5)?;
        assert!(x.to_vec(..)?.into_iter().all(|x| x == 5));
    }
    Ok(())
}

#[test]
fn own_elements_may_be_on_several_devices() -> Result<()> {
    for seed in 0..20 {
        let mut random = Numbers::new(seed);
        let len = 1 + random.below(300);
        let on: [_; 2] = std::array::from_fn(|_| Arc::new(SimulatedDevice::builder(seed).build()));
        let on = on.each_ref().map(as_any).to_vec();
        let shape = Shape::random(&mut random, 30, &[&[1, 1], &[1, 2]], 3);
        let new = || shape.describe::<u32, _>(len, on.clone()).build();
        let (mut x, mut y) = (new()?, new()?);
        let mut wide = shape.describe::<u64, _>(len, on.clone()).build()?;
        let values: Vec<u32> = (0..len as u32).collect();
        x.write(0, &values)?;
        let mut session = Session::new();
        let (a, b, c) = (session.hold(&mut x)?, session.hold(&mut y)?, session.hold(&mut wide)?);
        for _ in 0..3 {
            mixed::run_in(&mut session, (2, &[0, 1, 2], a, b))?;
        }
        // The devices cannot access each other.
        let error = shifted::run_in(&mut session, (1, b, c)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::KernelRefused { .. }), "{error}");
        assert!(error.to_string().contains("cannot reach the memory of"), "{error}");
        session.finish()?;
        let truth: Vec<u32> = (0..len as u32).map(|i| 7 * (i + i % 3)).collect();
        assert_eq!(y.to_vec(..)?, truth, "seed {seed}");
        assert_eq!(wide.to_vec(..)?, vec![0; len]);
    }
    Ok(())
}

#[vmarray::kernel]
fn increment(x: &mut Own<u32>) {
    x.set(x.get() + 1);
}

#[test]
fn a_launch_is_one_submission() -> Result<()> {
    let card = Arc::new(Counting::new(SimulatedDevice::builder(3).build()));
    let shape = Shape { channels: vec![3], page_len: 16, frames: 4, ..Shape::default() };
    let mut array = shape.describe::<u32, _>(1000, vec![as_any(&card)]).build()?;
    let mut session = Session::new();
    let x = session.hold(&mut array)?;
    increment::run_in(&mut session, (x,))?;
    card.reset();
    for _ in 0..1000 {
        increment::run_in(&mut session, (x,))?;
    }
    let work = card.counts().work;
    assert_eq!((work.launches, work.submits, work.orders, work.waits), (1000, 0, 0, 0));
    // Launch more often than the limit of concurrent launches.
    for _ in 0..1500 {
        increment::run_in(&mut session, (x,))?;
    }
    session.finish()?;
    assert_eq!(array.to_vec(..)?, [2501; 1000]);
    Ok(())
}

#[vmarray::kernel]
fn looked_up(at: At<1>, by: usize, of: &Anywhere<u32>, out: &mut Own<u32>) {
    out.set(of[at.index() + by]);
}

#[test]
fn failures_are_reported_once_and_all_launches_run() -> Result<()> {
    let (mut x, mut y) = (Shape::one(10, 2).build::<u32>(50), Shape::one(7, 2).build::<u32>(50));
    // On one device, kernels can read all elements.
    let on = hosts::<1>();
    for array in [&mut x, &mut y] {
        *array = Shape::one(10, 2).describe(50, on.to_vec()).build()?;
    }
    x.write(0, &(0..50).collect::<Vec<u32>>())?;
    let mut session = Session::new();
    let (a, b) = (session.hold(&mut x)?, session.hold(&mut y)?);
    looked_up::run_in(&mut session, (3, a, b))?;
    looked_up::run_in(&mut session, (40, a, b))?;
    increment::run_in(&mut session, (b,))?;
    let error = session.wait().unwrap_err();
    let ErrorKind::KernelOutside { kernel, place, index, item, items: 3 } = error.kind() else {
        panic!("{error}")
    };
    assert!(kernel == "looked_up" && place.contains("launch_sessions.rs") && *index == *item as i128 + 3);
    session.wait()?;
    increment::run_in(&mut session, (a,))?;
    session.finish()?;
    assert_eq!((x.get(49)?, y.get(0)?, y.get(9)?, y.get(10)?), (50, 41, 50, 1));
    Ok(())
}

#[test]
fn invalid_launches_are_refused_before_the_start() -> Result<()> {
    let on = hosts::<1>();
    let new = |len| Shape::one(10, 2).describe::<u32, _>(len, on.to_vec()).build();
    let (mut x, mut y, mut short) = (new(50)?, new(50)?, new(49)?);
    let mut late = Shape::one(10, 2).describe::<u32, _>(50, hosts::<1>().to_vec()).build()?;
    let mut other = Session::new();
    let strange = other.hold(&mut short)?;
    let mut session = Session::new();
    let early = session.copy(&Source::new(vec![1_u32; 50])?).unwrap_err();
    assert!(matches!(early.kind(), ErrorKind::KernelRefused { .. }), "{early}");
    let (a, b) = (session.hold(&mut x)?, session.hold(&mut y)?);
    let fixed = session.copy(&Source::new(vec![1_u32; 7])?)?;
    let refused = [
        mixed::run_in(&mut session, (1, &[1; 3], a, a)).unwrap_err(),
        mixed::run_in(&mut session, (1, &[1; 3], fixed, b)).unwrap_err(),
        mixed::run_in(&mut session, (1, &[1; 3], strange, b)).unwrap_err(),
    ];
    assert!(matches!(refused[0].kind(), ErrorKind::KernelOverlap { .. }), "{}", refused[0]);
    assert!(matches!(refused[1].kind(), ErrorKind::LengthMismatch { .. }), "{}", refused[1]);
    assert!(matches!(refused[2].kind(), ErrorKind::KernelRefused { .. }), "{}", refused[2]);
    // A device that joins later receives the earlier copies.
    let copied = session.copy(&Source::new(vec![1_u32; 50])?)?;
    let c = session.hold(&mut late)?;
    mixed::run_in(&mut session, (1, &[1; 3], copied, c))?;
    session.finish()?;
    other.finish()?;
    assert_eq!((x.to_vec(..)?, y.to_vec(..)?), (vec![0; 50], vec![0; 50]));
    assert_eq!(late.to_vec(..)?, [2; 50]);
    Ok(())
}

#[test]
fn the_session_reports_a_failing_device() -> Result<()> {
    for (kind, later) in [(device::ErrorKind::KernelFailed, true), (device::ErrorKind::Driver, false)] {
        let faulty = Arc::new(Faulty::new(host()));
        let mut array = Shape::one(10, 2).describe::<u32, _>(50, vec![as_any(&faulty)]).build()?;
        let mut session = Session::new();
        let x = session.hold(&mut array)?;
        increment::run_in(&mut session, (x,))?;
        let fault = Fault::new(Operation::Launch, kind).on_call(1);
        faulty.inject(if later { fault.reported_later() } else { fault });
        let launched = increment::run_in(&mut session, (x,));
        assert_eq!(launched.is_ok(), later, "{launched:?}");
        increment::run_in(&mut session, (x,))?;
        let finished = session.finish();
        match later {
            true => {
                let error = finished.unwrap_err();
                let ErrorKind::Interrupted { unspecified, .. } = error.kind() else { panic!("{error}") };
                assert_eq!(*unspecified, std::iter::once(0..50).collect::<Vec<_>>());
            }
            false => {
                finished?;
                assert_eq!(array.to_vec(..)?, [2; 50], "the one that was refused has done nothing");
            }
        }
        // The array is usable after the error.
        array.fill(.., 7)?;
        assert_eq!(array.get(49)?, 7);
    }
    Ok(())
}

#[test]
fn a_device_that_cannot_launch_works_in_ram() -> Result<()> {
    let unable = Arc::new(Faulty::new(host()));
    unable.inject(Fault::new(Operation::Launch, device::ErrorKind::Unsupported).from_call(1));
    let shape = Shape { channels: vec![1, 1], page_len: 5, ..Shape::default() };
    let mut array =
        shape.describe::<u32, _>(100, vec![as_any(&Arc::new(host())), as_any(&unable)]).build()?;
    let mut session = Session::new();
    let x = session.hold(&mut array)?;
    increment::run_in(&mut session, (x,))?;
    drop(session);
    assert_eq!(array.to_vec(..)?, [1; 100]);
    Ok(())
}

#[test]
fn tasks_wait_for_sessions_on_one_thread() -> Result<()> {
    let on = hosts::<2>();
    let new = |device: usize| Shape::one(100, 2).describe::<u32, _>(5000, vec![on[device].clone()]).build();
    let (mut x, mut y, mut z) = (new(0)?, new(1)?, new(0)?);
    // One array is over both devices, two arrays are on one device each.
    let shape = Shape { channels: vec![1, 1], page_len: 100, ..Shape::default() };
    let mut both = shape.describe::<u32, _>(5000, on.to_vec()).build()?;
    async fn count(array: &mut VirtualArray<u32>, to: usize) -> Result<()> {
        let mut session = Session::new();
        let x = session.hold(array)?;
        for turn in 0..to {
            increment::run_in(&mut session, (x,))?;
            if turn % 7 == 0 {
                session.wait_async().await?;
            }
        }
        session.wait_async().await
    }
    let tasks = async { futures::join!(count(&mut x, 30), count(&mut y, 20), count(&mut both, 10)) };
    let (one, two, three) = futures::executor::block_on(tasks);
    one.and(two).and(three)?;
    assert_eq!((x.get(0)?, y.get(4999)?, both.to_vec(..)?), (30, 20, vec![10; 5000]));
    // A cancelled task has completed its started launches.
    let mut given_up = Box::pin(count(&mut z, 30));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut polls = 0;
    while polls < 3 && given_up.as_mut().poll(&mut context)?.is_pending() {
        polls += 1;
    }
    drop(given_up);
    let found = z.to_vec(..)?;
    assert!(found[0] >= 1 && found.iter().all(|x| *x == found[0]), "{}", found[0]);
    Ok(())
}

#[test]
fn a_sessions_future_reports_its_failures() -> Result<()> {
    let on = hosts::<1>();
    let new = || Shape::one(10, 2).describe::<u32, _>(50, on.to_vec()).build();
    let (mut x, mut y) = (new()?, new()?);
    let mut session = Session::new();
    let (a, b) = (session.hold(&mut x)?, session.hold(&mut y)?);
    looked_up::run_in(&mut session, (49, a, b))?;
    let error = futures::executor::block_on(session.wait_async()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelOutside { items: 49, .. }), "{error}");
    futures::executor::block_on(session.wait_async())?;
    session.finish()
}

#[test]
fn the_session_reports_a_lost_device() -> Result<()> {
    let card = Arc::new(SimulatedDevice::builder(3).build());
    let mut array = Shape::one(16, 4).describe::<u32, _>(100, vec![as_any(&card)]).build()?;
    let mut session = Session::new();
    let x = session.hold(&mut array)?;
    increment::run_in(&mut session, (x,))?;
    session.wait()?;
    increment::run_in(&mut session, (x,))?;
    card.lose();
    let later = increment::run_in(&mut session, (x,)).unwrap_err();
    assert_eq!(later.device_error().unwrap().kind(), device::ErrorKind::Lost);
    let error = session.finish().unwrap_err();
    let ErrorKind::Interrupted { cause, unspecified, .. } = error.kind() else { panic!("{error}") };
    assert_eq!((cause.kind(), unspecified.len()), (device::ErrorKind::Lost, 1));
    Ok(())
}

#[vmarray::kernel]
fn smoothed(at: At<1>, of: &Window<i32, 1>, reach: isize, out: &mut Own<i32>) {
    out.set(3 * of[at.plus(-reach)] - 2 * of[at] + of[at.plus(reach + 1)]);
}

#[test]
fn windows_of_sessions_follow_their_mode() -> Result<()> {
    for seed in 0..20 {
        let mut random = Numbers::new(seed);
        let (len, on) = (1 + random.below(80), hosts::<1>());
        let mut shape = || Shape::random(&mut random, 30, &[&[1], &[3]], 3);
        let (one, two) = (shape(), shape());
        let new = |shape: &Shape| shape.describe::<i32, _>(len, on.to_vec()).build();
        let (mut x, mut y, mut same) = (new(&one)?, new(&two)?, new(&one)?);
        let values: Vec<i32> = (0..len).map(|_| random.next() as i32 >> 12).collect();
        let reach = 1 + random.below(2 * len) as isize;
        let mode = random.below(5);
        for array in [&mut x, &mut same] {
            array.write(0, &values)?;
        }
        let mut session = Session::new();
        let (a, b) = (session.hold(&mut x)?, session.hold(&mut y)?);
        for (of, out) in [(a, b), (b, a)] {
            let window = match mode {
                0 => of.bounded(Circular),
                1 => of.bounded(Mirror),
                2 => of.bounded(Clamp),
                3 => of.bounded(Constant(-7)),
                _ => of.bounded(Symmetric),
            };
            smoothed::run_in(&mut session, (window, reach, out))?;
        }
        session.finish()?;
        let (mut other, halo) = (new(&two)?, reach as usize + 1);
        for to_other in [true, false] {
            let (of, out) = if to_other { (&same, &mut other) } else { (&other, &mut same) };
            match mode {
                0 => smoothed::run((of.bounded(Circular).window(halo), reach, out))?,
                1 => smoothed::run((of.bounded(Mirror).window(halo), reach, out))?,
                2 => smoothed::run((of.bounded(Clamp).window(halo), reach, out))?,
                3 => smoothed::run((of.bounded(Constant(-7)).window(halo), reach, out))?,
                _ => smoothed::run((of.bounded(Symmetric).window(halo), reach, out))?,
            }
        }
        assert_eq!(
            (x.to_vec(..)?, y.to_vec(..)?),
            (same.to_vec(..)?, other.to_vec(..)?),
            "seed {seed}, {mode}"
        );
    }
    // Without a boundary mode, positions beyond the edges are an error.
    let on = hosts::<1>();
    let new = || Shape::one(9, 2).describe::<i32, _>(30, on.to_vec()).build();
    let (mut x, mut y) = (new()?, new()?);
    let mut session = Session::new();
    let (a, b) = (session.hold(&mut x)?, session.hold(&mut y)?);
    smoothed::run_in(&mut session, (a, 1, b))?;
    let error = session.finish().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::KernelOutside { items: 3, index: -1 | 30 | 31, .. }),
        "{error}"
    );
    Ok(())
}

#[test]
fn an_array_on_too_many_channels_is_named() -> Result<()> {
    let shape = Shape { channels: vec![9], page_len: 4, ..Shape::default() };
    let device = devices(1);
    let mut of = shape.describe::<u32, _>(100, device.clone()).build()?;
    let mut out = shape.describe::<u64, _>(100, device).build()?;
    let mut session = Session::new();
    let (of, out) = (session.hold(&mut of)?, session.hold(&mut out)?);
    let error = shifted::run_in(&mut session, (1, of, out)).unwrap_err();
    assert!(error.to_string().contains("9 channels, but a kernel reads from at most 8"), "{error}");
    session.finish()
}
