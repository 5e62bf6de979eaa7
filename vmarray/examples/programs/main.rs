//! Runs well-known programs as kernels; each program is one module, which can be read alone. A program that
//! the command line names prints its result. Then all chosen programs are compared with plain Rust
//! implementations, on data of random sizes.
//!
//!     cargo run -p vmarray --example programs                         # all, on the devices of the machine
//!     cargo run -p vmarray --example programs -- --on cuda --rounds 1000 n_body

mod breadth_first;
mod conditional;
mod filters;
mod function_values;
mod game_of_life;
mod k_means;
mod mandelbrot;
mod matrix_product;
mod median;
mod monte_carlo;
mod n_body;
mod overlapping;
mod prefix_sum;
mod ragged_matrices;
mod seed_lookup;
mod setting;
mod sparse_product;

use setting::Setting;
use vmarray::{Discovery, ErrorKind, Result};

/// A program: its name, its demonstration, and its check on random data.
type Program = (&'static str, fn(&mut Setting) -> Result<()>, fn(&mut Setting) -> Result<()>);

const PROGRAMS: [Program; 16] = [
    ("breadth_first", breadth_first::show, breadth_first::check),
    ("conditional", conditional::show, conditional::check),
    ("filters", filters::show, filters::check),
    ("function_values", function_values::show, function_values::check),
    ("game_of_life", game_of_life::show, game_of_life::check),
    ("k_means", k_means::show, k_means::check),
    ("mandelbrot", mandelbrot::show, mandelbrot::check),
    ("matrix_product", matrix_product::show, matrix_product::check),
    ("median", median::show, median::check),
    ("monte_carlo", monte_carlo::show, monte_carlo::check),
    ("n_body", n_body::show, n_body::check),
    ("overlapping", overlapping::show, overlapping::check),
    ("prefix_sum", prefix_sum::show, prefix_sum::check),
    ("ragged_matrices", ragged_matrices::show, ragged_matrices::check),
    ("seed_lookup", seed_lookup::show, seed_lookup::check),
    ("sparse_product", sparse_product::show, sparse_product::check),
];

fn main() -> Result<()> {
    let (mut filters, mut rounds, mut names) = (None, 10, Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--on" => filters = words.next(),
            "--rounds" => rounds = words.next().and_then(|n| n.parse().ok()).expect("`--rounds NUMBER`"),
            _ => names.push(word),
        }
    }
    let discovery = Discovery::new().allow_duplicates(true);
    let devices = discovery.select(filters.as_deref().unwrap_or("host"))?.open()?;
    for (name, show, check) in PROGRAMS {
        if !names.is_empty() && !names.iter().any(|of| of == name) {
            continue;
        }
        println!("{name}:");
        let mut setting = Setting::new(&devices, 0);
        let run = |setting: &mut Setting| {
            show(setting)?;
            (1..=rounds).try_for_each(|seed| check(&mut Setting::new(&devices, seed)))
        };
        match run(&mut setting) {
            Ok(()) => println!("    as its native form, {rounds} times"),
            Err(error) if matches!(error.kind(), ErrorKind::Device { .. }) => {
                println!("    not here: {error}")
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
