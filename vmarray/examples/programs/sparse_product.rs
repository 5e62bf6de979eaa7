//! A sparse matrix times a vector. Each row has as many elements as it has, so that they are kept as ragged
//! rows, which are the compressed rows (CSR) of the textbooks: where each row begins, columns, values.

use crate::setting::{Setting, starts_of};
use vmarray::kernel::{Anywhere, At, Own};
use vmarray::{Result, prelude::*};

/// One element of the product for each row.
#[vmarray::kernel]
fn product(
    at: At<1>,
    starts: &Anywhere<u64>,
    columns: &Anywhere<u32>,
    values: &Anywhere<f64>,
    x: &Anywhere<f64>,
    y: &mut Own<f64>,
) {
    let row = at.index();
    let mut sum = 0.0;
    for k in starts[row] as usize..starts[row + 1] as usize {
        sum += values[k] * x[columns[k] as usize];
    }
    y.set(sum);
}

fn natively(starts: &[u64], columns: &[u32], values: &[f64], x: &[f64]) -> Vec<f64> {
    let row = |range: &[u64]| {
        let elements = range[0] as usize..range[1] as usize;
        elements.map(|k| values[k] * x[columns[k] as usize]).fold(0.0, |sum, term| sum + term)
    };
    starts.windows(2).map(row).collect()
}

fn run(on: &mut Setting, starts: &[u64], columns: &[u32], values: &[f64], x: &[f64]) -> Result<Vec<f64>> {
    let mut y = on.array(&vec![0.0; starts.len() - 1])?;
    let (starts, columns) = (on.array(starts)?, on.array(columns)?);
    let (values, x) = (on.array(values)?, on.array(x)?);
    product::run((&starts, &columns, &values, &x, &mut y))?;
    y.to_vec(..)
}

pub fn show(on: &mut Setting) -> Result<()> {
    // Second differences of the squares: 2 everywhere.
    let n = 1000;
    let columns: Vec<u32> = (1..n - 1).flat_map(|row| [row - 1, row, row + 1]).collect();
    let values: Vec<f64> = (1..n - 1).flat_map(|_| [1.0, -2.0, 1.0]).collect();
    let starts: Vec<u64> = (0..u64::from(n) - 1).map(|row| 3 * row).collect();
    let squares: Vec<f64> = (0..n).map(|i| f64::from(i * i)).collect();
    let differences = run(on, &starts, &columns, &values, &squares)?;
    println!("    second differences of squares: {:?} …", &differences[..4]);
    assert_eq!(differences, vec![2.0; 998]);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let (rows, width) = (1 + on.below(2000), 1 + on.below(3000));
    let mut len = |_| if on.below(50) == 0 { on.below(500) } else { on.below(8) } as u64;
    let starts = starts_of((0..rows).map(&mut len));
    let count = starts[rows] as usize;
    let columns: Vec<u32> = (0..count).map(|_| on.below(width) as u32).collect();
    let values: Vec<f64> = (0..count).map(|_| f64::from(on.real())).collect();
    let x: Vec<f64> = (0..width).map(|_| f64::from(on.real())).collect();
    assert_eq!(run(on, &starts, &columns, &values, &x)?, natively(&starts, &columns, &values, &x));
    Ok(())
}
