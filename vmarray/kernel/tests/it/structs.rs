//! Tests of structs as values and as elements.

use crate::harness::{Arbitrary, ITEMS, Random, map, random, same};
use bytemuck::{Pod, Zeroable};
use vmarray_kernel::{Anywhere, At, KernelType, Own, interpret, kernel, run_on_host};

#[derive(Clone, Copy, Debug, Pod, Zeroable, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
#[repr(C)]
struct Point {
    x: f32,
    y: f32,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
#[repr(C)]
struct Particle {
    mass: f64,
    at: Point,
    trail: [Point; 2],
    kind: u16,
    flags: [u8; 6],
}

#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct Pair<T>(T, bool);

impl Arbitrary for Point {
    fn arbitrary(random: &mut Random) -> Self {
        Self { x: f32::arbitrary(random), y: f32::arbitrary(random) }
    }

    fn alike(self) -> Self {
        Self { x: self.x.alike(), y: self.y.alike() }
    }
}

impl Arbitrary for Particle {
    fn arbitrary(random: &mut Random) -> Self {
        Self {
            mass: f64::arbitrary(random),
            at: Point::arbitrary(random),
            trail: [Point::arbitrary(random), Point::arbitrary(random)],
            kind: u16::arbitrary(random),
            flags: std::array::from_fn(|_| u8::arbitrary(random)),
        }
    }

    fn alike(self) -> Self {
        Self { mass: self.mass.alike(), at: self.at.alike(), trail: self.trail.map(Point::alike), ..self }
    }
}

#[kernel(crate = vmarray_kernel)]
fn moved(point: Point, by: Point) -> Point {
    Point { x: point.x + by.x, ..by }
}

#[kernel(crate = vmarray_kernel)]
fn simulate(before: &Own<Particle>, after: &mut Own<Particle>) {
    let mut p = before.get();
    p.trail[1] = p.trail[0];
    p.trail[p.kind as usize % 3] = p.at;
    p.at = moved(p.at, Point { x: 0.5, y: p.at.x });
    p.flags[p.kind as usize % 6] += 1;
    let Point { x, y: other } = p.at;
    let pair = Pair(x, other > 1.0);
    p.mass = if pair.1 { pair.0 as f64 } else { p.mass / 2.0 };
    let old = after.get();
    p.kind ^= old.kind;
    after.set(p);
}

#[kernel(crate = vmarray_kernel)]
fn nearest(at: At<1>, all: &Anywhere<Particle>, out: &mut Own<Point>) {
    let mut best = Pair(f32::MAX, false);
    let mut found = Point { x: 0.0, y: 0.0 };
    let own = all[at.index()].at;
    for k in 0..5 {
        let i = at.index() + k;
        if k == 0 || i >= all.len() + 1 {
            continue;
        }
        let other = all[i];
        let distance = (other.at.x - own.x).abs() + (all[i].trail[k % 2].y - own.y).abs();
        if distance < best.0 {
            best = Pair(distance, true);
            found = other.at;
        }
    }
    if best.1 {
        out.set(found);
    }
}

#[test]
fn structs_are_values_with_fields() {
    map::<simulate, Particle, Particle>();
}

#[test]
fn elements_of_structs_are_read_anywhere() {
    let input: Vec<Particle> = random(5, ITEMS);
    let before: Vec<Point> = random(6, ITEMS);
    let (mut host, mut lowered) = (before.clone(), before);
    let outside = run_on_host::<nearest>(0..ITEMS, ((), &input, &mut host)).unwrap_err();
    let report = interpret::<nearest>(0..ITEMS, ((), &input, &mut lowered)).unwrap();
    same(&host, &lowered);
    // For the last four items the index is one too large.
    assert_eq!((outside.index, report.failures), (ITEMS as u64, 4));
    assert_eq!((report.detail, report.item), (ITEMS as u64, ITEMS as u64 - 4));
}
