//! Writes, reads and searches an array of a million square numbers. The array is on all GPUs of the machine,
//! or in RAM if there is no GPU.
//!
//!     cargo run -p vmarray --example 01_first_minute

use vmarray::prelude::*;

fn main() -> vmarray::Result<()> {
    // Print the devices of the machine, and the ones in use.
    println!("{}", vmarray::Discovery::from_env()?.report());

    // A new array is full of zeroes.
    let squares = VirtualArray::<u64>::new(1_000_000)?;
    assert_eq!(squares.get(999_999)?, 0);

    // Access one element at a time.
    for i in 0..1000 {
        squares.set(i, (i * i) as u64)?;
    }
    // Access many elements at once.
    let rest: Vec<u64> = (1000..1_000_000).map(|i| i * i).collect();
    squares.write(1000, &rest)?;

    let value = squares.get(31)?;
    println!("31 squared is {value}");
    assert_eq!(value, 961);
    println!("elements 2 to 4 are {:?}", squares.to_vec(2..5)?);
    assert_eq!(squares.to_vec(2..5)?, [4, 9, 16]);

    // Search on the devices; only the result is copied to the program.
    let roots = squares.find(Field::whole(), &998_001)?;
    println!("998001 is the square of {roots:?}");
    assert_eq!(roots, [999]);

    // A mistake returns an error, whose text ends with advice.
    let error = squares.get(1_000_000).unwrap_err();
    println!("a mistake: {error}");
    assert!(error.to_string().ends_with("use an index below 1000000"));
    Ok(())
}
