//! Devices that only store pages: work that they refuse is done in RAM, with the results of host RAM.

use std::sync::Arc;

use futures::executor::block_on;
use vmarray::boundary::Mirror;
use vmarray::kernel::{Anywhere, Append, Appended, At, Own, Session, Shared, Window};
use vmarray::order::Side;
use vmarray::{AnyDevice, NdArray, Result, Source, prelude::*};

use crate::common::own_device::PageDevice;
use crate::common::{as_any, hosts};

const LEN: usize = 1000;

#[vmarray::kernel]
fn squared(x: &Own<u32>, out: &mut Own<u64>) {
    out.set(out.get() + x.get() as u64 * x.get() as u64);
}

#[vmarray::kernel]
fn smoothed(at: At<2>, near: &Window<u32, 2>, out: &mut Own<u32>) {
    out.set(near[at.plus([-1, 0])] + near[at.plus([0, 1])] + at[0] as u32);
}

#[vmarray::kernel]
fn looked_up(at: At<1>, table: &Anywhere<u32>, x: &Own<u32>, found: &Append<u32>) -> u32 {
    let value = table[x.get() as usize % table.len()];
    if value % 3 == 0 {
        found.push(at.index() as u32);
    }
    value
}

#[vmarray::kernel]
fn tallied(x: &Own<u32>, bins: &Shared<u32>) {
    bins.add((x.get() % 7) as usize, 1);
}

#[vmarray::kernel(group = 32)]
fn lane_sums(at: At<1>, x: &Own<u32>) -> u32 {
    let sum = lanes::sum(x.get());
    if at.in_group() == 0 { sum } else { 0 }
}

type Devices = [Arc<AnyDevice>; 2];

fn pages_only() -> Devices {
    std::array::from_fn(|_| as_any(&Arc::new(PageDevice::new(16 << 20))))
}

fn array<T: Element>(on: &[Arc<AnyDevice>], values: &[T]) -> VirtualArray<T> {
    let builder = VirtualArray::builder(values.len()).devices(on.to_vec()).page_len(64);
    let array = builder.frames_per_channel(4).build().unwrap();
    array.write(0, values).unwrap();
    array
}

fn numbers() -> Vec<u32> {
    (0..LEN as u32).map(|i| i * 7919 % 1000).collect()
}

fn value() -> Field<u32, u32> {
    Field::whole()
}

/// The results of work, as text.
type Work = fn(&Devices) -> Result<String>;

fn shown(result: impl std::fmt::Debug) -> Result<String> {
    Ok(format!("{result:?}"))
}

const WORK: [(&str, Work); 14] = [
    ("elements by index", |on| {
        let array = array(on, &numbers());
        let (list, values): (Vec<usize>, Vec<u32>) = (0..300).map(|i| (i * 37 % LEN, i as u32)).unzip();
        array.scatter(&list, &values)?;
        array.evict(..)?;
        shown((array.gather(&list)?, array.to_vec(..)?))
    }),
    ("searches", |on| {
        let array = array(on, &numbers());
        let found = (array.position(.., value(), &5)?, array.find(value(), &3)?);
        let listed = array.find_where(.., value().lt(500), 300)?.indices;
        let selected = array.select_where(.., value().gt(900)).unwrap().collect::<Result<Vec<_>>>()?;
        shown((found, listed, selected, array.count_where(10..900, value().lt(500))?))
    }),
    ("reductions", |on| {
        let array = array(on, &numbers());
        let extremes = (array.min_max(.., value())?, array.arg_max(3..700, value() % 900)?);
        shown((array.sum(.., value())?, extremes, array.histogram(.., value() % 10, 10)?))
    }),
    ("assignments", |on| {
        let array = array(on, &numbers());
        array.transform(10..990, value().set(value() + 1))?;
        array.assign_where(.., value().lt(300), value().set(value() * 2))?;
        shown(array.to_vec(..)?)
    }),
    ("joined arrays", |on| {
        let (x, y) = (array(on, &numbers()), array(&on[..1], &[3_u32; LEN]));
        let joined = x.join((&y,))?;
        let (of_x, of_y) = joined.rows();
        joined.transform(.., of_x.set(value(), of_x.get(value()) * of_y.get(value())))?;
        shown((x.to_vec(..)?, joined.count_where(.., of_x.get(value()).gt(of_y.get(value())))?))
    }),
    ("order", |on| {
        let array = array(on, &numbers());
        let groups = array.group_by(.., value() % 10)?;
        let sums = (groups.keys().to_vec(..)?, groups.sum(&array)?.to_vec(..)?, groups.counts()?.to_vec(..)?);
        let sorted = (array.argsort(.., value())?.to_vec(..)?, array.top_k(.., 5)?);
        array.sort(..)?;
        let places = array.search_sorted(array.section(5..50)?, Side::Left)?.to_vec(..)?;
        shown((sums, sorted, array.to_vec(..)?, places))
    }),
    ("prefix sums", |on| {
        let builder = VirtualArray::<u32>::builder(5000).devices(on.to_vec()).page_len(1024);
        let long = builder.build()?;
        long.write(0, &(0..5000).collect::<Vec<_>>())?;
        let short = array(on, &numbers());
        shown((long.prefix_sum(7..4900)?, long.to_vec(..)?, short.prefix_sum(..)?, short.to_vec(..)?))
    }),
    ("kernels", |on| {
        let (x, mut out) = (array(on, &numbers()), array(on, &[1_u64; LEN]));
        squared::run((&x, &mut out))?;
        // The operand is copied to the device of the result.
        let mut elsewhere = array(&on[..1], &[2_u64; LEN]);
        squared::run((&x, &mut elsewhere))?;
        block_on(squared::run_async((&x, &mut elsewhere)))?;
        shown((out.to_vec(..)?, elsewhere.to_vec(..)?))
    }),
    ("kernels with arguments that all items read or write", |on| {
        let (x, table, mut found) = (array(on, &numbers()), array(on, &numbers()), Vec::new());
        let sum = looked_up::sum((&table, &x, Appended::to(&mut found, LEN)))?;
        found.sort_unstable();
        let (one, mut bins) = (array(&on[..1], &numbers()), array(&on[..1], &[0_u32; 7]));
        let least = looked_up::launch().arg_min((&one, &one, Appended::to(&mut Vec::new(), LEN)))?;
        tallied::run((&one, &mut bins))?;
        shown((sum, found, least, bins.to_vec(..)?))
    }),
    ("kernels with groups", |on| {
        let (x, one) = (array(on, &numbers()), array(&on[..1], &numbers()));
        shown((lane_sums::sum((&x,))?, lane_sums::sum((one.section(5..900)?,))?))
    }),
    ("kernels over boxes", |on| {
        let built = || {
            let builder = NdArray::<u32, 2>::builder([20, 30]).devices(on.to_vec());
            builder.elements(|elements| elements.page_len(40).frames_per_channel(3)).build()
        };
        let (image, mut out) = (built()?, built()?);
        image.write_box(.., &numbers()[..600])?;
        smoothed::run((image.bounded(Mirror).window([1, 1]), &mut out))?;
        image.section_mut([2, 3]..[9, 20])?.transform(.., value().set(value() * 3))?;
        shown((out.to_vec(..)?, image.to_vec(..)?, image.count_where([1, 1]..[15, 25], value().lt(400))?))
    }),
    ("sessions", |on| {
        let (mut x, mut out) = (array(on, &numbers()), array(on, &[1_u64; LEN]));
        let mut session = Session::new();
        let (of, to) = (session.hold(&mut x)?, session.hold(&mut out)?);
        squared::run_in(&mut session, (of, to))?;
        squared::run_in(&mut session, (of, to))?;
        session.finish()?;
        shown(out.to_vec(..)?)
    }),
    ("sources", |on| {
        let source = Source::builder(numbers()).devices(on.to_vec()).page_len(50).build()?;
        source.transform(.., value().set(value() * 2))?;
        let found = (source.sum(.., value())?, source.find(value(), &8)?);
        let gathered = source.gather(&[999, 3, 3, 500])?;
        source.sort(..)?;
        shown((found, gathered, source.to_vec(..)?))
    }),
    ("joined sources", |on| {
        let (x, y) = (array(on, &numbers()), Source::builder(numbers()).devices(on.to_vec()).build()?);
        let joined = y.join((&x,))?;
        let (of_y, of_x) = joined.rows();
        joined.assign_where(5.., of_x.get(value()).lt(500), of_y.set(value(), 7))?;
        shown((y.to_vec(..)?, joined.sum(.., of_y.get(value()) + of_x.get(value()))?))
    }),
];

#[test]
fn work_of_devices_that_only_store_pages_equals_that_of_ram() {
    for (name, work) in WORK {
        let mixed = [&pages_only()[0], &hosts::<1>()[0]].map(Arc::clone);
        let in_ram = work(&hosts()).unwrap();
        assert_eq!(work(&pages_only()).unwrap(), in_ram, "{name}");
        assert_eq!(work(&mixed).unwrap(), in_ram, "{name}");
    }
}
