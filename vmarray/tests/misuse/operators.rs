//! Comparisons by operators. A comment behind each line has the compiler's message.

use vmarray::prelude::*;
use vmarray::expr::index;
use vmarray::{Field, Result, VirtualArray};

fn main() -> Result<()> {
    let array = VirtualArray::<[u32; 2]>::new(10)?;
    let pair = Field::<[u32; 2], [u32; 2]>::whole();
    let (a, b) = (pair.nth::<0>(), pair.nth::<1>());
    array.count_where(.., a == b)?; //~ comparisons are methods: `a.eq(b)`
    array.assign_where(.., a != b, a.set(7))?; //~ comparisons are methods: `a.eq(b)`
    array.find_where(.., a < 7, 3)?; //~ compared by methods: `a.eq(b)`, `a.ne(b)`, `a.lt(b)`
    array.find_where(.., a + 1 >= b, 3)?; //~ write `.eq(…)`, `.lt(…)`
    array.find_where(.., 7 == a, 3)?; //~ comparisons are methods: `a.eq(b)`
    array.section(..)?.count_where(.., pair == pair)?; //~ comparisons are methods: `a.eq(b)`
    array.any(.., true)?; //~ `Expr::constant(true)`
    array.sum(.., a.only_where(a == 1))?; //~ compared by methods: `a.eq(b)`
    array.sum(.., a.gt(3).select(a == b, true).select(1_u8, 0))?; //~ comparisons are methods: `a.eq(b)`
    let _ = index::<u32>() == 0; //~ compared by methods: `a.eq(b)`
    let _ = a == b; //~ `vmarray::expr::operators::ComparableByOperators` is not implemented
    Ok(())
}
