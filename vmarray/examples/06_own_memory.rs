//! A `Vec` of the program, worked on by devices where it is: searched, changed by a rule, and used by the
//! program again. Where an array lives on devices and is cached in RAM, a `Source` lives in RAM and is cached
//! on devices.
//!
//!     cargo run -p vmarray --example 06_own_memory

use vmarray::prelude::*;

fn main() -> vmarray::Result<()> {
    let mut samples: Vec<f32> = (0..1_000_000).map(|i| (i % 1000) as f32).collect();

    // Borrowed, with a budget of 1 MiB of device memory for 4 MB of elements: more is brought there in turns.
    let source = Source::builder(&mut samples[..]).device_bytes(1 << 20).build()?;
    let value = Field::whole();
    let loud = source.count_where(.., value.ge(900.0))?;
    println!("{loud} samples of {} are loud", source.len());
    assert_eq!(loud, 100_000);

    // Changed on the devices. The program's copy is old now, and nobody sees it: the samples are borrowed.
    source.transform(.., value.set(value * 0.5))?;
    // What the program asks for is brought home; the rest stays where it is.
    println!("sample 999 is {}", source.get(999)?);
    assert_eq!(source.get(999)?, 499.5);
    let moved = source.stats().total();
    println!(
        "{} KB went to the devices, {} KB came back",
        moved.bytes_to_device / 1000,
        moved.bytes_from_device / 1000
    );

    // Dropping it brings home all that is newer on a device; an error then could only be logged, so ask
    // first.
    source.flush(..)?;
    drop(source);
    assert_eq!(samples[999_999], 499.5);

    // A source can own the vector, too, and gives it back.
    let source = Source::new(samples)?;
    source.fill(..10, 7.0)?;
    let samples = source.into_home().map_err(|unfinished| unfinished.error)?;
    println!("the vector is back: {:?} …", &samples[8..12]);
    assert_eq!(samples[8..12], [7.0, 7.0, 5.0, 5.5]);
    Ok(())
}
