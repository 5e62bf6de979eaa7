//! Tests of the return values of kernels' items, and of the options of launches.

use std::sync::Arc;

use vmarray::boundary::Clamp;
use vmarray::device;
use vmarray::kernel::{Anywhere, Append, Appended, At, Own, Session, Shared, Window};
use vmarray::{ErrorKind, Result, prelude::*};

use crate::common::{Numbers, Shape, as_any, changed_ranges, devices, host, hosts};

#[vmarray::kernel]
fn compared(at: At<1>, x: &Own<i32>, y: &Own<f64>, changed: &mut Own<u64>) -> (i64, f64, bool) {
    changed.set(changed.get() + 1);
    if x.get() % 3 == 0 {
        return (-7, 0.5, false);
    }
    (x.get() as i64 * 5, y.get() * 0.25, at.index() % 2 == 1)
}

/// Returns the expected value of each item.
fn compared_natively(x: &[i32], y: &[f64]) -> Vec<(i64, f64, bool)> {
    let one = |(i, (x, y)): (usize, (&i32, &f64))| match x % 3 {
        0 => (-7, 0.5, false),
        _ => (i64::from(*x) * 5, y * 0.25, i % 2 == 1),
    };
    x.iter().zip(y).enumerate().map(one).collect()
}

#[test]
fn returned_values_are_summed_for_elements_anywhere() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let len = random.below(500);
        let x: Vec<i32> = (0..len).map(|_| random.next() as i32 >> 8).collect();
        // Sums of these values are exact in any order.
        let y: Vec<f64> = (0..len).map(|_| random.below(1000) as f64 - 300.0).collect();
        let mut shape = || Shape::any(&mut random, 40, 3);
        let (xs, changed) = (shape().build::<i32>(len.max(1)), shape().build::<u64>(len.max(1)));
        xs.write(0, &x)?;
        let ys = Source::new(y.clone())?;
        let (sum, halves, odd) = compared::sum((xs.section(..len)?, &ys, changed.section_mut(..len)?))?;
        let all = compared_natively(&x, &y);
        assert_eq!(sum, all.iter().map(|one| i128::from(one.0)).sum(), "seed {seed}");
        assert_eq!(halves, all.iter().map(|one| one.1).sum::<f64>(), "seed {seed}");
        assert_eq!(odd, all.iter().filter(|one| one.2).count(), "seed {seed}");
        assert_eq!(changed.to_vec(..len)?, vec![1; len], "seed {seed}");
    }
    Ok(())
}

#[vmarray::kernel]
fn slope(at: At<1>, of: &Window<f32, 1>, steps: &Own<u8>) -> f32 {
    (of[at.plus(1)] - of[at]) / steps.get() as f32
}

#[test]
fn extremes_belong_to_the_first_items_that_return_them() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let len = random.below(300);
        let values: Vec<f32> = (0..len).map(|_| random.below(20) as f32).collect();
        // Steps of 0 give a NaN or an infinity.
        let steps: Vec<u8> = (0..len).map(|_| random.below(6) as u8).collect();
        let shape = Shape::any(&mut random, 40, 3);
        let (of, over) = (shape.build::<f32>(len.max(1)), shape.build::<u8>(len.max(1)));
        of.write(0, &values)?;
        over.write(0, &steps)?;
        let at = |i: usize| values[i.min(len - 1)];
        let all: Vec<f32> = (0..len).map(|i| (at(i + 1) - at(i)) / f32::from(steps[i])).collect();
        let counted = || all.iter().copied().enumerate().filter(|(_, value)| !value.is_nan());
        let arguments =
            || (of.section(..len).unwrap().bounded(Clamp).window(1), over.section(..len).unwrap());
        let least = counted().reduce(|a, b| if b.1 < a.1 { b } else { a });
        let greatest = counted().reduce(|a, b| if b.1 > a.1 { b } else { a });
        assert_eq!(slope::launch().arg_min(arguments())?, least, "seed {seed}");
        assert_eq!(slope::launch().arg_max(arguments())?, greatest, "seed {seed}");
        assert_eq!(slope::min(arguments())?, least.map(|found| found.1), "seed {seed}");
        assert_eq!(slope::max(arguments())?, greatest.map(|found| found.1), "seed {seed}");
    }
    Ok(())
}

#[vmarray::kernel]
fn numbered(at: At<1>, x: &Own<u8>) -> u64 {
    at.index() as u64 * x.get() as u64
}

#[test]
fn items_are_reduced_a_piece_at_a_time() -> Result<()> {
    // The items return 32 MiB of values.
    let len = 5 << 20;
    let ones = VirtualArray::<u8>::new(len)?;
    ones.fill(.., 1)?;
    assert_eq!(numbered::sum((&ones,))?, (len as i128 - 1) * len as i128 / 2);
    assert_eq!(numbered::launch().arg_max((&ones,))?, Some((len - 1, len as u64 - 1)));
    assert_eq!(numbered::launch().arg_max((ones.section(7..)?,))?, Some((len - 8, len as u64 - 8)));
    Ok(())
}

#[vmarray::kernel(group = 32)]
fn lane_sums(at: At<1>, x: &Own<u32>) -> u32 {
    let sum = lanes::sum(x.get());
    if at.in_group() == 0 { sum } else { 0 }
}

#[test]
fn items_of_groups_return_values() -> Result<()> {
    let array = VirtualArray::<u32>::builder(1000).page_len(64).devices(hosts::<2>()).build()?;
    array.write(0, &(0..1000).collect::<Vec<u32>>())?;
    assert_eq!(lane_sums::sum((&array,))?, 999 * 500);
    Ok(())
}

#[vmarray::kernel]
fn looked_up(key: &Own<u8>, table: &Anywhere<u16>, found: &Append<u16>) -> bool {
    let value = table[key.get() as usize];
    if value > 3 {
        found.push(value);
    }
    value % 2 == 1
}

#[test]
fn failing_items_are_reported_and_not_reduced() -> Result<()> {
    let (keys, table) = (Source::new(vec![0_u8, 3, 1, 9])?, Source::new(vec![5_u16, 7, 2, 1])?);
    let mut found = Vec::new();
    let count = looked_up::count((keys.section(..3)?, &table, Appended::to(&mut found, 10)))?;
    found.sort_unstable();
    assert_eq!((count, found), (3, vec![5, 7]));
    let error = looked_up::count((&keys, &table, Appended::to(&mut Vec::new(), 10))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelOutside { index: 9, item: 3, .. }), "{error}");
    Ok(())
}

#[vmarray::kernel]
fn halved(x: &mut Own<u32>) -> u32 {
    let mut steps = 0;
    while x.get() % 2 == 0 {
        x.set(x.get() / 2);
        steps += 1;
    }
    steps
}

#[test]
fn a_budget_ends_loops_without_an_end() -> Result<()> {
    let line = line!() - 9; // The line of the loop.
    for seed in 0..10 {
        let shape = Shape::any(&mut Numbers::new(seed), 40, 3);
        let array = shape.build::<u32>(100);
        array.write(0, &(0..100).map(|i| i * 8 % 100).collect::<Vec<_>>())?;
        let launch = || halved::launch().budget(20);
        // The elements of items 0, 25, 50 and 75 are zero, so halving them never ends.
        let error = launch().run((array.section_mut(..)?,)).unwrap_err();
        let ErrorKind::KernelBudget { kernel, place, turns: 20, item, items: 4 } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!((&kernel[..], item % 25), ("halved", 0));
        assert_eq!(*place, format!("{}:{line}", file!()));
        assert!((1..100).filter(|i| i % 25 != 0).all(|i| array.get(i).unwrap() % 2 == 1));
        assert_eq!(halved::launch().budget(3).sum((array.section_mut(1..25)?,))?, 0);
    }
    Ok(())
}

#[test]
fn a_device_without_facts_refuses_and_runs_nothing() -> Result<()> {
    let array = VirtualArray::<u32>::builder(100).devices(hosts::<1>()).build()?;
    array.fill(.., 8)?;
    let error = halved::launch().facts((array.section_mut(..)?,)).unwrap_err();
    let ErrorKind::Device(cause) = error.kind() else { panic!("{error}") };
    assert_eq!(cause.kind(), device::ErrorKind::Unsupported);
    assert_eq!(array.get(0)?, 8, "it was not run");
    // The call uses no device, so there are no facts.
    assert_eq!(halved::launch().facts((array.section_mut(..0)?,))?.registers, None);
    Ok(())
}

#[test]
fn a_failed_reduction_names_the_unspecified_elements() {
    use device::wrap::{Fault, Operation};
    use vmarray_conformance::wrap::Faulty;
    let faults = [
        (Operation::Launch, false, device::ErrorKind::Driver),
        (Operation::Launch, true, device::ErrorKind::KernelFailed),
        (Operation::Compute, false, device::ErrorKind::Driver),
        (Operation::Compute, true, device::ErrorKind::KernelFailed),
        (Operation::Allocate, false, device::ErrorKind::OutOfMemory),
    ];
    for ((operation, later, kind), call) in
        faults.into_iter().flat_map(|fault| (1..4).map(move |call| (fault, call)))
    {
        let faulty = Arc::new(Faulty::new(host()));
        let shape = || Shape::one(10, 3).describe::<i32, _>(100, vec![as_any(&faulty)]).build().unwrap();
        let (x, y) = (shape(), Source::new(vec![1.0_f64; 100]).unwrap());
        let changed = Shape::one(10, 3).describe::<u64, _>(100, vec![as_any(&faulty)]).build().unwrap();
        x.write(0, &[2; 100]).unwrap();
        changed.fill(.., 5).unwrap();
        let fault = Fault::new(operation, kind).on_call(call);
        faulty.inject(if later { fault.reported_later() } else { fault });
        let result = compared::sum((&x, &y, changed.section_mut(..).unwrap()));
        faulty.clear();
        let (written, unspecified) = result.as_ref().err().map_or_else(Default::default, changed_ranges);
        let found = changed.to_vec(..).unwrap();
        for (i, found) in found.into_iter().enumerate() {
            let is_in = |ranges: &[std::ops::Range<usize>]| ranges.iter().any(|range| range.contains(&i));
            if !is_in(&unspecified) {
                let truth = if result.is_ok() || is_in(&written) { 6 } else { 5 };
                assert_eq!(found, truth, "{operation:?} {later} {kind:?} {call}: {result:?}");
            }
        }
        let (sum, ..) = compared::sum((&x, &y, changed.section_mut(..).unwrap())).unwrap();
        assert_eq!(sum, 1000);
    }
}

#[vmarray::kernel]
fn digits(x: &Own<u32>, bins: &Shared<u32>, found: &Append<[u32; 2]>, even: &Append<u8>) -> u32 {
    let (mut rest, mut count) = (x.get(), 0);
    while rest > 0 {
        found.push([x.get(), rest % 10]);
        if rest % 2 == 0 {
            even.push((rest % 10) as u8);
        }
        bins.add((rest % 10) as usize, 1);
        rest /= 10;
        count += 1;
    }
    count
}

#[test]
fn launches_that_change_nothing_yet_are_repeated_with_more_room() -> Result<()> {
    // The kernel appends more than the initial capacity.
    let x = Shape::one(1000, 3).describe::<u32, _>(70_000, hosts::<1>().to_vec()).build()?;
    x.write(0, &(0..70_000).collect::<Vec<u32>>())?;
    let mut bins = Shape::default().build::<u32>(10);
    let (mut found, mut even) = (vec![[1, 1]], vec![9]);
    let all = 9 + 90 * 2 + 900 * 3 + 9000 * 4 + 60_000 * 5;
    let run = |bins: &mut VirtualArray<u32>, found: &mut Vec<_>, even: &mut Vec<u8>, most| {
        digits::sum((&x, bins, Appended::to(found, most), Appended::to(even, 1 << 20)))
    };
    let error = run(&mut bins, &mut found, &mut even, all - 1).unwrap_err();
    let ErrorKind::KernelAppend { argument, asked, .. } = error.kind() else { panic!("{error}") };
    assert_eq!((&argument[..], *asked, found.len(), even.len()), ("found", all as u64, 1, 1));
    assert_eq!(bins.to_vec(..)?, [0; 10]);
    assert_eq!(run(&mut bins, &mut found, &mut even, all)?, all as i128);
    assert_eq!((found.len(), found[0], even[0]), (all + 1, [1, 1], 9));
    let count = |digit: u32| found[1..].iter().filter(|found| found[1] == digit).count() as u32;
    assert_eq!(bins.to_vec(..)?, (0..10).map(count).collect::<Vec<_>>());
    assert_eq!(even.len() as u32 - 1, [0, 2, 4, 6, 8].into_iter().map(count).sum::<u32>());
    Ok(())
}

#[vmarray::kernel]
fn repeated(x: &Own<u32>, found: &Append<u32>) {
    for _ in 0..x.get() {
        found.push(x.get());
    }
}

#[test]
fn each_device_gets_the_room_that_it_asks_for() -> Result<()> {
    let shape = Shape { channels: vec![1, 1], page_len: 5, ..Shape::default() };
    let x = shape.describe::<u32, _>(10, hosts::<2>().to_vec()).build()?;
    x.set(2, 70_000)?;
    x.set(7, 66_000)?;
    let mut found = Vec::new();
    let error = repeated::run((&x, Appended::to(&mut found, 130_000))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelAppend { asked: 136_000, most: 130_000, .. }), "{error}");
    repeated::run((&x, Appended::to(&mut found, 136_000)))?;
    // The appended elements are in the order of the devices.
    assert!(found[..70_000].iter().all(|x| *x == 70_000) && found[70_000..].iter().all(|x| *x == 66_000));
    assert_eq!(found.len(), 136_000);
    Ok(())
}

#[vmarray::kernel]
fn weighed(at: At<1>, by: u64, of: &Anywhere<u32>, seen: &Append<u64>) -> u64 {
    let i = at.index();
    if i % 3 == 0 {
        seen.push(i as u64);
    }
    of[i % of.len()] as u64 * by + i as u64
}

#[test]
fn numbers_are_run_over_where_the_arguments_lie() -> Result<()> {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let mut random = Numbers::new(seed);
        let len = 1 + random.below(100);
        let values: Vec<u32> = (0..len).map(|_| random.next() as u32 >> 4).collect();
        let array = Shape::any(&mut random, 30, 3).build::<u32>(len);
        array.write(0, &values)?;
        let source = Source::new(values.clone())?;
        let range = random.range(5000);
        let one = |i: usize| u64::from(values[i % len]) * 3 + i as u64;
        for is_array in [true, false] {
            let mut seen = Vec::new();
            let launch = weighed::launch().over(range.clone());
            let appended = Appended::to(&mut seen, 5000);
            let found = match is_array {
                true => launch.arg_max((3, &array, appended))?,
                false => launch.arg_max((3, &source, appended))?,
            };
            let truth = range.clone().max_by_key(|i| (one(*i), std::cmp::Reverse(*i)));
            assert_eq!(found, truth.map(|i| (i, one(i))), "seed {seed}");
            seen.sort_unstable();
            assert!(
                seen.into_iter().eq(range.clone().filter(|i| i % 3 == 0).map(|i| i as u64)),
                "seed {seed}"
            );
        }
    }
    Ok(())
}

#[vmarray::kernel]
fn divisors(at: At<1>, counts: &Shared<u32>) {
    let n = at.index() + 1;
    let mut multiple = n;
    while multiple <= counts.len() {
        counts.add(multiple - 1, 1);
        multiple += n;
    }
}

#[vmarray::kernel]
fn prime(at: At<1>) -> (bool, u32) {
    let n = at.index();
    let mut divisor = 2;
    while divisor * divisor <= n && n % divisor != 0 {
        divisor += 1;
    }
    (n > 1 && divisor * divisor > n, 1)
}

#[test]
fn numbers_are_run_over_on_the_device_that_is_named() -> Result<()> {
    let device = devices(1).remove(0);
    assert_eq!(prime::launch().over(0..1000).on(&device).sum(())?, (168, 1000));
    assert_eq!(prime::launch().on(&device).over(7..7).sum(())?, (0, 0));
    let error = prime::launch().over(0..10).sum(()).unwrap_err();
    assert!(error.to_string().contains("choose a device by `launch().on(device)`"), "{error}");
    assert!(prime::sum(()).unwrap_err().to_string().contains("over(range)"));
    let mut counts = Shape::one(9, 3).describe::<u32, _>(60, vec![device]).build()?;
    divisors::launch().over(0..60).run((&mut counts,))?;
    assert_eq!((counts.get(0)?, counts.get(11)?, counts.get(59)?, counts.get(58)?), (1, 6, 12, 2));
    // In this kernel, the elements of the argument determine the number of items.
    let error = numbered::launch().over(0..3).sum((&Source::new(vec![1_u8; 9])?,)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelRefused { .. }), "{error}");
    // The error names the number of the failed item.
    let table = Source::new(vec![0_u16; 7])?;
    let error = outside::launch().over(5..9).sum((&table,)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelOutside { index: 7 | 8, items: 2, .. }), "{error}");
    Ok(())
}

#[vmarray::kernel]
fn outside(at: At<1>, table: &Anywhere<u16>) -> u16 {
    table[at.index()]
}

#[vmarray::kernel]
fn beside_and_anywhere(a: &Own<u32>, b: &Own<u32>, table: &Anywhere<u32>) -> u32 {
    a.get() + b.get() + table[0]
}

#[test]
fn cached_elements_are_read_anywhere() {
    let device = devices(1);
    let new = || Shape::one(10, 3).describe::<u32, _>(100, device.clone()).build().unwrap();
    let (a, table) = (new(), new());
    table.set(0, 7).unwrap();
    let b = Source::new(vec![1; 100]).unwrap();
    assert_eq!(beside_and_anywhere::sum((&a, &b, &table)).unwrap(), 800);
    assert_eq!(beside_and_anywhere::sum((&a, &a, &table)).unwrap(), 700);
}

#[vmarray::kernel]
fn odd_part(x: &Own<u64>, out: &mut Own<u64>) {
    let mut n = x.get();
    while n % 2 == 0 {
        n /= 2;
    }
    out.set(n);
}

#[test]
fn launches_ended_by_a_budget_leave_elements_unchanged() {
    let x: Vec<u64> = (0..200).collect();
    let mut out = Source::builder(vec![9_u64; 200]).page_len(10).device_bytes(400).build().unwrap();
    out.fill(100.., 8).unwrap();
    out.flush(..).unwrap();
    // The kernel halves zero forever.
    let error = odd_part::launch().budget(20).run((&Source::new(x).unwrap(), &mut out)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelBudget { .. }), "{error}");
    let found = out.to_vec(..).unwrap();
    assert_eq!((found[0], found[1], found[12], found[160]), (9, 1, 3, 5));
    // In a session, the kernel runs over elements only.
    let (mut a, mut b) = (Shape::default().build::<u64>(10), Shape::default().build::<u64>(10));
    let mut session = Session::new();
    let (a, b) = (session.hold(&mut a).unwrap(), session.hold(&mut b).unwrap());
    let error = odd_part::launch().over(0..3).run_in(&mut session, (a, b)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelRefused { .. }), "{error}");
    session.finish().unwrap();
}
