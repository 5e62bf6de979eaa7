//! A table of 50 000 embeddings of 64 numbers, as in the training of a model. The program gathers batches of
//! rows by their row numbers, changes them, and scatters them back. The bus carries only rows, not pages.
//!
//!     cargo run -p vmarray --example 05_embedding_rows

use vmarray::prelude::*;

const ROWS: usize = 50_000;
const WIDTH: usize = 64;
type Row = [f32; WIDTH];

fn main() -> vmarray::Result<()> {
    // The table has 12.8 MB of rows, and uses 1 MiB of RAM.
    let table = VirtualArray::<Row>::builder(ROWS).cache_bytes(1 << 20).build()?;
    table.fill(.., [1.0; WIDTH])?;

    let mut expected = vec![1.0_f32; ROWS];
    let mut state = 7_usize;
    for _batch in 0..20 {
        // Draw a batch of distinct row numbers: for equal numbers, `scatter` would keep only the last row.
        let mut words: Vec<usize> = (0..256)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % ROWS
            })
            .collect();
        words.sort_unstable();
        words.dedup();

        let mut rows = table.gather(&words)?;
        // The learning step; here each number shrinks by a tenth.
        rows.iter_mut().flatten().for_each(|weight| *weight -= 0.1 * *weight);
        table.scatter(&words, &rows)?;
        words.iter().for_each(|&word| expected[word] -= 0.1 * expected[word]);
    }
    let stats = table.stats().total();
    println!("gathered and scattered 20 batches of 256 rows of {} bytes", size_of::<Row>());
    println!("{} pages were fetched into the cache for it", stats.misses);

    // An expression on one number of each row counts the changed rows.
    let first = Field::<Row, Row>::whole().nth::<0>();
    let changed = table.count_where(.., first.lt(1.0))?;
    println!("{changed} of {ROWS} rows have changed");
    assert_eq!(changed, expected.iter().filter(|weight| **weight < 1.0).count());
    for word in (0..ROWS).step_by(997) {
        assert_eq!(table.get(word)?, [expected[word]; WIDTH]);
    }
    Ok(())
}
