//! Matrices of different sizes, each a row of one ragged array. The program adds one to another, `d[0] +=
//! d[1]`, because a row is a view like any other.

use crate::setting::Setting;
use vmarray::kernel::Own;
use vmarray::{RaggedArray, Result, prelude::*};

#[vmarray::kernel]
fn add(other: &Own<f32>, sum: &mut Own<f32>) {
    sum.set(sum.get() + other.get());
}

/// Adds one row to another one of the same length.
fn add_row(matrices: &RaggedArray<f32>, to: usize, from: usize) -> Result<()> {
    let (to, from) = (matrices.row(to)?.range(), matrices.row(from)?.range());
    let elements = matrices.items();
    add::run((elements.section(from)?, elements.section_mut(to)?))
}

pub fn show(on: &mut Setting) -> Result<()> {
    let matrices = on.ragged(&[vec![1.0, 2.0, 3.0, 4.0], vec![10.0, 20.0, 30.0, 40.0], vec![0.5; 6]])?;
    add_row(&matrices, 0, 1)?;
    println!("    {:?}", matrices.to_vecs()?);
    assert_eq!(matrices.row(0)?.to_vec(..)?, [11.0, 22.0, 33.0, 44.0]);
    // Both calls fail: in a kernel, no work-item (GPU thread) may write elements that other work-items read.
    assert!(add_row(&matrices, 0, 0).is_err() && add_row(&matrices, 0, 2).is_err());
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let lengths: Vec<usize> = (0..2 + on.below(6)).map(|_| on.below(600)).collect();
    // Create two matrices of each length, so that the program can add them.
    let mut truth: Vec<Vec<f32>> = Vec::new();
    for len in lengths.iter().chain(&lengths) {
        truth.push((0..*len).map(|_| on.real()).collect());
    }
    let matrices = on.ragged(&truth)?;
    for _ in 0..5 {
        let (to, half) = (on.below(truth.len()), lengths.len());
        let from = (to + half) % (2 * half);
        if !truth[to].is_empty() {
            add_row(&matrices, to, from)?;
        }
        let other = truth[from].clone();
        truth[to].iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
    }
    assert_eq!(matrices.to_vecs()?, truth);
    Ok(())
}
