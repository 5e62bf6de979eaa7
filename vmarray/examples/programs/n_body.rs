//! N-body simulation (gravity), an example from the article on the C++ predecessor of this library.

use crate::setting::Setting;
use bytemuck::{Pod, Zeroable};
use vmarray::kernel::{Anywhere, KernelType, Own};
use vmarray::{Result, prelude::*};

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable, KernelType)]
#[repr(C)]
struct Body {
    place: [f32; 3],
    speed: [f32; 3],
    mass: f32,
}

/// Acceleration of a body by another one, which has a size, so it stays finite. Kernel and host call it.
#[vmarray::kernel]
fn pull(at: [f32; 3], other: Body) -> [f32; 3] {
    let d = [other.place[0] - at[0], other.place[1] - at[1], other.place[2] - at[2]];
    let square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + 0.0001;
    let by = other.mass / (square * square.sqrt());
    [d[0] * by, d[1] * by, d[2] * by]
}

/// A body after a step of time.
#[vmarray::kernel]
fn moved(body: Body, force: [f32; 3], time: f32) -> Body {
    let mut body = body;
    for axis in 0..3 {
        body.speed[axis] += force[axis] * time;
        body.place[axis] += body.speed[axis] * time;
    }
    body
}

#[vmarray::kernel]
fn step(body: &Own<Body>, all: &Anywhere<Body>, time: f32, next: &mut Own<Body>) {
    let mut force = [0.0; 3];
    for i in 0..all.len() {
        let part = pull(body.get().place, all[i]);
        for axis in 0..3 {
            force[axis] += part[axis];
        }
    }
    next.set(moved(body.get(), force, time));
}

fn run(on: &mut Setting, bodies: &[Body], time: f32, steps: usize) -> Result<Vec<Body>> {
    let (mut now, mut next) = (on.array(bodies)?, on.array(bodies)?);
    for _ in 0..steps {
        step::run((&now, &now, time, &mut next))?;
        std::mem::swap(&mut now, &mut next);
    }
    now.to_vec(..)
}

fn natively(bodies: &[Body], time: f32) -> Vec<Body> {
    let sum = |a: [f32; 3], b: [f32; 3]| std::array::from_fn(|axis| a[axis] + b[axis]);
    let force = |of: &Body| bodies.iter().map(|other| pull(of.place, *other)).fold([0.0; 3], sum);
    bodies.iter().map(|body| moved(*body, force(body), time)).collect()
}

pub fn show(on: &mut Setting) -> Result<()> {
    let body = |place, speed, mass| Body { place, speed, mass };
    let (sun, planet) = (body([0.0; 3], [0.0; 3], 1.0), body([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], 1e-6));
    let [_, half] = run(on, &[sun, planet], 0.0031416, 1000)?[..] else { unreachable!("two bodies") };
    println!("    a planet from (1, 0), half a year later: ({:.2}, {:.2})", half.place[0], half.place[1]);
    assert!((half.place[0] + 1.0).abs() < 0.02 && half.place[1].abs() < 0.02);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let mut body = |_| Body { place: [0; 3].map(|_| on.real()), speed: [0; 3].map(|_| on.real()), mass: 0.5 };
    let bodies: Vec<Body> = (0..400).map(&mut body).collect();
    let bodies = &bodies[..1 + on.below(400)];
    assert_eq!(run(on, bodies, 0.01, 1)?, natively(bodies, 0.01));
    Ok(())
}
