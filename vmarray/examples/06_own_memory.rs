//! Devices search and update a `Vec` of the program; then the program uses the `Vec` again. An array stores
//! its elements on devices and caches them in RAM; a `Source` stores them in RAM and caches them on devices.
//!
//!     cargo run -p vmarray --example 06_own_memory

use vmarray::prelude::*;

fn main() -> vmarray::Result<()> {
    let mut samples: Vec<f32> = (0..1_000_000).map(|i| (i % 1000) as f32).collect();

    // Borrow the samples. The device has 1 MiB of memory for 4 MB of elements, so it processes them piece by
    // piece.
    let source = Source::builder(&mut samples[..]).device_bytes(1 << 20).build()?;
    let value = Field::whole();
    let loud = source.count_where(.., value.ge(900.0))?;
    println!("{loud} samples of {} are loud", source.len());
    assert_eq!(loud, 100_000);

    // The devices change their copies of elements. Meanwhile the program cannot read the borrowed vector.
    source.transform(.., value.set(value * 0.5))?;
    // A read copies only the requested elements back to RAM; the other changed elements stay on the device.
    println!("sample 999 is {}", source.get(999)?);
    assert_eq!(source.get(999)?, 499.5);
    let moved = source.stats().total();
    println!(
        "{} KB went to the devices, {} KB came back",
        moved.bytes_to_device / 1000,
        moved.bytes_from_device / 1000
    );

    // Copy changed elements to the vector. `drop` does so too, but can only log an error.
    source.flush(..)?;
    drop(source);
    assert_eq!(samples[999_999], 499.5);

    // A source can also own the vector, and return it later.
    let source = Source::new(samples)?;
    source.fill(..10, 7.0)?;
    let samples = source.into_home()?;
    println!("the vector is back: {:?} …", &samples[8..12]);
    assert_eq!(samples[8..12], [7.0, 7.0, 5.0, 5.5]);
    Ok(())
}
