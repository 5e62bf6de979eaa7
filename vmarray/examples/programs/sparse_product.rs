//! The product of a sparse matrix and a vector. The rows of the matrix differ in length, so they are rows of
//! a ragged array, in the compressed sparse row format (CSR): start of each row, columns and values.

use crate::setting::Setting;
use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::kernel::{Anywhere, At, KernelType, Own, Rows};
use vmarray::{Result, prelude::*};

#[derive(Clone, Copy, Pod, Zeroable, KernelType)]
#[repr(C)]
struct Entry {
    column: u64,
    value: f64,
}

/// Computes one element of the product for each row of the matrix.
#[vmarray::kernel]
fn product(at: At<1>, matrix: &Rows<Entry>, x: &Anywhere<f64>, y: &mut Own<f64>) {
    let mut sum = 0.0;
    for k in 0..matrix.row_len(at.index()) {
        let entry = matrix[[at.index(), k]];
        sum += entry.value * x[entry.column as usize];
    }
    y.set(sum);
}

fn natively(matrix: &[Vec<Entry>], x: &[f64]) -> Vec<f64> {
    let term = |entry: &Entry| entry.value * x[entry.column as usize];
    matrix.iter().map(|row| row.iter().map(term).fold(0.0, |sum, term| sum + term)).collect()
}

fn run(on: &mut Setting, matrix: &[Vec<Entry>], x: &[f64]) -> Result<Vec<f64>> {
    let mut y = on.array(&vec![0.0; matrix.len()])?;
    let (matrix, x) = (on.ragged(matrix)?, on.array(x)?);
    product::run((&matrix, &x, &mut y))?;
    y.to_vec(..)
}

pub fn show(on: &mut Setting) -> Result<()> {
    // The matrix computes second differences, which are 2 for all square numbers.
    let entries =
        |row| [(row - 1, 1.0), (row, -2.0), (row + 1, 1.0)].map(|(column, value)| Entry { column, value });
    let matrix: Vec<Vec<Entry>> = (1..999).map(|row| entries(row).to_vec()).collect();
    let squares: Vec<f64> = (0..1000).map(|i| f64::from(i * i)).collect();
    let differences = run(on, &matrix, &squares)?;
    println!("    second differences of squares: {:?} …", &differences[..4]);
    assert_eq!(differences, vec![2.0; 998]);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let (rows, width) = (1 + on.below(2000), 1 + on.below(3000));
    let mut row = |_| {
        let len = if on.below(50) == 0 { on.below(500) } else { on.below(8) };
        (0..len).map(|_| Entry { column: on.below(width) as u64, value: f64::from(on.real()) }).collect()
    };
    let matrix: Vec<Vec<Entry>> = (0..rows).map(&mut row).collect();
    let x: Vec<f64> = (0..width).map(|_| f64::from(on.real())).collect();
    assert_eq!(run(on, &matrix, &x)?, natively(&matrix, &x));
    Ok(())
}
