//! A table of a hundred thousand trades, queried and changed on the devices: searches, counts, sums, and a
//! rule for all elements. Only queries and results cross the bus.
//!
//!     cargo run -p vmarray --example 04_find_and_expressions

use bytemuck::{Pod, Zeroable};
use vmarray::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Trade {
    price: f32,
    amount: u32,
    buyer: u32,
    flags: u32,
}

const LEN: usize = 100_000;

/// A fee with a rate that falls for each further hundred. Expressions call this function for each element.
#[vmarray::kernel]
fn fee(turnover: f32) -> f32 {
    let (mut rest, mut rate, mut sum) = (turnover, 0.01, 0.0);
    while rest > 100.0 {
        sum += 100.0 * rate;
        rest -= 100.0;
        rate *= 0.9;
    }
    sum + rest * rate
}

fn main() -> vmarray::Result<()> {
    let trades = VirtualArray::<Trade>::new(LEN)?;
    let all: Vec<Trade> = (0..LEN as u32)
        .map(|i| Trade {
            price: 10.0 + (i % 100) as f32,
            amount: 1 + i % 7,
            buyer: i * 7919 % 10_007,
            flags: 0,
        })
        .collect();
    trades.write(0, &all)?;
    let (price, amount) = (field!(Trade, price), field!(Trade, amount));

    // Find the indices of all elements with a given value in one field.
    let of_buyer = trades.find(field!(Trade, buyer), &42)?;
    println!("buyer 42 has trades {of_buyer:?}");
    assert!(of_buyer.iter().all(|&i| all[i].buyer == 42) && of_buyer.len() == 10);

    // Count the elements that meet a condition, and sum an expression over them.
    let is_large = price.gt(100.0) & amount.ge(6);
    let large = trades.count_where(.., is_large.clone())?;
    let turnover = trades.sum(.., (price * amount.cast::<f32>()).only_where(is_large))?;
    println!("{large} large trades, of {turnover} in all");
    let expected: Vec<&Trade> = all.iter().filter(|trade| trade.price > 100.0 && trade.amount >= 6).collect();
    assert_eq!(large, expected.len());
    assert_eq!(
        turnover,
        expected.iter().map(|trade| f64::from(trade.price * trade.amount as f32)).sum::<f64>()
    );

    // Evaluate a function of the program on the devices, and find its maximum.
    let (costly, most) =
        trades.arg_max(.., fee::of(price * amount.cast::<f32>()))?.expect("there are trades");
    println!("trade {costly} costs the most, {most}");
    assert_eq!(all.iter().map(|trade| fee(trade.price * trade.amount as f32)).reduce(f32::max), Some(most));

    // Find the maximum of a field and its index.
    let (at, highest) = trades.arg_max(.., price)?.expect("there are trades");
    println!("the highest price is {highest}, first at {at}");
    assert_eq!((at, highest), (99, 109.0));

    // Update all elements that meet a condition. Each update reads all fields of an element before it writes
    // any.
    let flags = field!(Trade, flags);
    trades.assign_where(.., price.lt(11.0), [flags.set(1), price.set(price * 2.0)])?;
    println!("trade 200 was {:?} and is {:?}", all[200], trades.get(200)?);
    assert_eq!(trades.get(200)?, Trade { price: 20.0, flags: 1, ..all[200] });
    assert_eq!(trades.count(.., flags, &1)?, LEN / 100);
    Ok(())
}
