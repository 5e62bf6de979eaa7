//! Tests of kernel launches as futures.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::executor::block_on;
use vmarray::boundary::{Circular, Clamp};
use vmarray::device;
use vmarray::device::Reach;
use vmarray::host::{SimulatedDevice, SimulatedFabric};
use vmarray::kernel::{Anywhere, Append, Appended, At, Own, Shared, Window};
use vmarray::{AnyDevice, ErrorKind, NdArray, Result, prelude::*};
use vmarray_conformance::wrap::Counting;

use crate::common::executor::Executor;
use crate::common::{Numbers, Shape, as_any, hosts};

#[vmarray::kernel]
fn combined(
    at: At<1>,
    by: u32,
    table: &[u32; 3],
    near: &Window<u32, 1>,
    far: &Anywhere<u32>,
    x: &Own<u32>,
    out: &mut Own<u32>,
) {
    let i = at.index();
    let sum = near[at.plus(-1)] + 3 * near[at.plus(2)] + 5 * far[i * 7 % far.len()] + 7 * x.get();
    out.set(out.get() * by + sum + table[i % 3]);
}

#[vmarray::kernel]
fn increment(x: &mut Own<u32>) {
    x.set(x.get() + 1);
}

fn card(seed: u64) -> Arc<Counting<SimulatedDevice>> {
    let settings = SimulatedDevice::builder(seed).latency(Duration::from_micros(20)).jitter(5.0);
    Arc::new(Counting::new(settings.manual_wakes(true).build()))
}

#[test]
fn futures_match_runs() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let (len, count) = (1 + random.below(200), 1 + random.below(2));
        let fabric = SimulatedFabric::new(Reach::Maps, 1_000_000_000, Duration::from_micros(3));
        let device = |number: usize| match seed % 3 {
            0 => Arc::new(crate::common::host().into()),
            1 => as_any(&Arc::new(SimulatedDevice::builder(seed + number as u64).fabric(&fabric).build())),
            _ => as_any(&Arc::new(SimulatedDevice::builder(seed + number as u64).build())),
        };
        let on: Vec<Arc<AnyDevice>> = (0..count).map(device).collect();
        let shape = |random: &mut Numbers| {
            let shares: &[&[u32]] = if count == 1 { &[&[1], &[3]] } else { &[&[1, 1], &[1, 2]] };
            Shape { read_ahead: true, ..Shape::random(random, 30, shares, 3) }
        };
        let first = shape(&mut random);
        let (mut all, mut values) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let shape = if random.below(2) == 0 { first.clone() } else { shape(&mut random) };
            let array = shape.describe::<u32, _>(len, on.clone()).build()?;
            let of: Vec<u32> = (0..len).map(|_| random.next() as u32).collect();
            array.write(0, &of)?;
            all.push(array);
            values.push(of);
        }
        let [near, far, x, mut out, mut same] = <[_; 5]>::try_from(all).unwrap();
        same.write(0, &values[3])?;
        let (by, kind) = (random.below(9) as u32, random.below(4));
        let table = [1, 20, 300];
        let window = near.bounded(Circular).window(2);
        combined::run((by, &table, window, &far, &x, &mut same))?;
        match kind {
            0 => {
                let source = Source::new(values[2].clone())?;
                block_on(combined::run_async((by, &table, window, &far, &source, &mut out)))?;
            }
            1 => {
                let out = out.section_mut(..)?;
                block_on(combined::run_async((by, &table, window, &far, &x, out)))?;
            }
            _ => block_on(combined::run_async((by, &table, window, &far, &x, &mut out)))?,
        }
        assert!(out.to_vec(..)? == same.to_vec(..)?, "seed {seed}, {kind}");
        assert_eq!((near.to_vec(..)?, x.to_vec(..)?), (values[0].clone(), values[2].clone()));
    }
    Ok(())
}

#[test]
fn a_future_is_pending_until_the_launch_is_done_and_others_go_on() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let card = card(seed);
        let new = || Shape::one(16, 4).describe::<u32, _>(100, vec![as_any(&card)]).build();
        let (of, mut out) = (new()?, new()?);
        of.fill(.., 1)?;
        let mut context = Context::from_waker(Waker::noop());
        {
            let (table, window) = ([0; 3], of.bounded(Clamp).window(2));
            let mut future = pin!(combined::run_async((0, &table, window, &of, &of, &mut out)));
            card.reset();
            assert!(future.as_mut().poll(&mut context).is_pending());
            assert_eq!(card.counts().work.launches, 1);
            // This write happens after the launch, although it is flushed now.
            of.fill(.., 9)?;
            of.set(50, 8)?;
            of.flush(..)?;
            while future.as_mut().poll(&mut context)?.is_pending() {}
        }
        assert_eq!(out.to_vec(..)?, [16; 100], "seed {seed}");
        assert_eq!((of.get(50)?, of.get(99)?), (8, 9));
    }
    Ok(())
}

#[test]
fn a_future_can_be_dropped_at_any_time() -> Result<()> {
    for polls in 0..6 {
        let card = card(polls);
        let mut array = Shape::one(16, 4).describe::<u32, _>(100, vec![as_any(&card)]).build()?;
        array.fill(.., 5)?;
        let mut context = Context::from_waker(Waker::noop());
        let mut future = Box::pin(increment::run_async((&mut array,)));
        for _ in 0..polls {
            if future.as_mut().poll(&mut context)?.is_ready() {
                break;
            }
        }
        drop(future);
        assert_eq!(array.to_vec(..)?, [5 + u32::from(polls > 0); 100]);
    }
    Ok(())
}

#[test]
fn many_are_under_way_on_one_thread() -> Result<()> {
    let (one, other) = (card(1), card(2));
    let mut arrays = Vec::new();
    for number in 0..20 {
        let on = as_any(if number % 2 == 0 { &one } else { &other });
        arrays.push(Shape::one(16, 4).describe::<u32, _>(100, vec![on]).build()?);
    }
    let mut executor = Executor::default();
    for (number, array) in arrays.iter_mut().enumerate() {
        executor.spawn(async move {
            for _ in 0..=number {
                increment::run_async((&mut *array,)).await?;
            }
            Ok::<(), vmarray::Error>(())
        });
    }
    let ends = executor.run(|| {
        one.inner().advance(Duration::from_micros(15));
        other.inner().advance(Duration::from_micros(10));
    });
    ends.into_iter().collect::<Result<Vec<()>>>()?;
    for (number, array) in arrays.iter().enumerate() {
        assert_eq!(array.to_vec(..)?, [number as u32 + 1; 100]);
    }
    Ok(())
}

#[vmarray::kernel]
fn odd(at: At<1>, x: &Own<u32>, found: &Append<u64>) {
    if x.get() % 2 == 1 {
        found.push(at.index() as u64);
    }
}

#[vmarray::kernel]
fn tallied(of: &Own<u32>, bins: &Shared<u32>) {
    bins.add((of.get() % 4) as usize, 1);
}

#[vmarray::kernel]
fn turned(at: At<2>, of: &Anywhere<u32, 2>, out: &mut Own<u32>) {
    out.set(of[[at[1], at[0]]]);
}

#[test]
fn futures_take_the_arguments_of_runs() -> Result<()> {
    let on = hosts::<1>();
    let new = |len| Shape::one(7, 2).describe::<u32, _>(len, on.to_vec()).build();
    let (x, mut bins) = (new(50)?, new(4)?);
    x.write(0, &(0..50).collect::<Vec<u32>>())?;
    let mut found = vec![1];
    block_on(odd::run_async((&x, Appended::in_order(&mut found, 30))))?;
    assert_eq!(found, [1].into_iter().chain((1..50).step_by(2)).collect::<Vec<u64>>());
    bins.fill(.., 1)?;
    block_on(tallied::run_async((&x, &mut bins)))?;
    assert_eq!(bins.to_vec(..)?, [14, 14, 13, 13]);
    let of = NdArray::<u32, 2>::builder([3, 2]).devices(on.clone()).build()?;
    of.write_box(.., &[1, 2, 3, 4, 5, 6])?;
    let mut out = NdArray::<u32, 2>::builder([2, 3]).devices(on.clone()).build()?;
    block_on(turned::run_async((&of, &mut out)))?;
    assert_eq!(out.to_vec(..)?, [1, 3, 5, 2, 4, 6]);
    block_on(turned::run_async((&of, out.section_mut([1, 0]..[2, 3])?)))?;
    assert_eq!(out.to_vec([1, 0]..)?, [1, 3, 5]);
    Ok(())
}

#[vmarray::kernel]
fn looked_up(at: At<1>, by: usize, of: &Anywhere<u32>, out: &mut Own<u32>) {
    out.set(of[at.index() + by]);
}

#[test]
fn a_future_reports_its_errors() -> Result<()> {
    let awake = Arc::new(SimulatedDevice::builder(3).build());
    let new = |len| Shape::one(16, 4).describe::<u32, _>(len, vec![as_any(&awake)]).build();
    let (of, mut out, mut short) = (new(100)?, new(100)?, new(99)?);
    of.fill(.., 3)?;
    let error = block_on(looked_up::run_async((40, &of, &mut out))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelOutside { items: 40, .. }), "{error}");
    assert_eq!((out.get(59)?, out.get(60)?), (3, 0));
    let error =
        block_on(combined::run_async((1, &[1; 3], of.bounded(Clamp).window(2), &of, &of, &mut short)))
            .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LengthMismatch { .. }), "{error}");
    let card = card(3);
    let mut out = Shape::one(16, 4).describe::<u32, _>(100, vec![as_any(&card)]).build()?;
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut future = pin!(increment::run_async((&mut out,)));
        let first = future.as_mut().poll(&mut context)?;
        assert!(first.is_pending());
        card.inner().lose();
        let Poll::Ready(Err(error)) = future.as_mut().poll(&mut context) else { panic!("it is lost") };
        let ErrorKind::Interrupted { cause, .. } = error.kind() else { panic!("{error}") };
        assert_eq!(cause.kind(), device::ErrorKind::Lost);
    }
    let error = block_on(increment::run_async((&mut out,))).unwrap_err();
    assert_eq!(error.device_error().map(device::Error::kind), Some(device::ErrorKind::Lost), "{error}");
    Ok(())
}
