//! Conway's Game of Life on a torus: each step reads one array and writes the other one.

use crate::setting::Setting;
use vmarray::boundary::Circular;
use vmarray::kernel::{At, Own, Window};
use vmarray::{Result, prelude::*};

#[vmarray::kernel]
fn step(at: At<2>, cells: &Window<u8, 2>, next: &mut Own<u8>) {
    let mut neighbours = 0;
    for k in 0..9 {
        neighbours += cells[at.plus([k / 3 - 1, k % 3 - 1])];
    }
    let own = cells[at];
    neighbours -= own;
    next.set(if neighbours == 3 || neighbours == 2 && own == 1 { 1 } else { 0 });
}

fn run(on: &mut Setting, shape: [usize; 2], cells: &[u8], steps: usize) -> Result<Vec<u8>> {
    let (mut now, mut next) = (on.image(shape, cells)?, on.image(shape, cells)?);
    for _ in 0..steps {
        step::run((now.bounded(Circular).window([1, 1]), &mut next))?;
        std::mem::swap(&mut now, &mut next);
    }
    now.to_vec(..)
}

fn natively([rows, columns]: [usize; 2], cells: &[u8]) -> Vec<u8> {
    let cell = |i: usize| {
        let (y, x) = (i / columns + rows - 1, i % columns + columns - 1);
        let around = |k: usize| cells[(y + k / 3) % rows * columns + (x + k % 3) % columns];
        let neighbours = (0..9).map(around).sum::<u8>() - cells[i];
        u8::from(neighbours == 3 || neighbours == 2 && cells[i] == 1)
    };
    (0..cells.len()).map(cell).collect()
}

pub fn show(on: &mut Setting) -> Result<()> {
    // The pattern is a glider, which moves one cell down and to the right in four steps.
    let shape = [8, 16];
    let mut cells = vec![0; 128];
    [1, 16 + 2, 32, 32 + 1, 32 + 2].iter().for_each(|at| cells[*at] = 1);
    let later = run(on, shape, &cells, 4 * 5)?;
    for row in later.chunks(16) {
        println!("    {}", row.iter().map(|cell| if *cell == 1 { '#' } else { '.' }).collect::<String>());
    }
    let moved = |at: usize| (at / 16 + 8 - 5) % 8 * 16 + (at % 16 + 16 - 5) % 16;
    assert!((0..128).all(|at| later[at] == cells[moved(at)]));
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let shape = [1 + on.below(30), 1 + on.below(50)];
    let cells: Vec<u8> = (0..shape[0] * shape[1]).map(|_| on.below(2) as u8).collect();
    let truth = (0..3).fold(cells.clone(), |cells, _| natively(shape, &cells));
    assert_eq!(run(on, shape, &cells, 3)?, truth);
    Ok(())
}
