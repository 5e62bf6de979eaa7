//! One array on three simulated devices of different size and speed. The example prints each device's share
//! of the pages, the time of a scan, and the pages that remain after the loss of a device.
//!
//!     cargo run -p vmarray --example 08_several_devices

use std::sync::Arc;
use std::time::Duration;

use vmarray::device::{self, Device};
use vmarray::host::SimulatedDevice;
use vmarray::{Placement, prelude::*, profile::Profile};

const LEN: usize = 5 << 18;

fn main() -> vmarray::Result<()> {
    let mut speeds = Vec::new();
    for placement in [Placement::Equal, Placement::Capacity, Placement::Balanced(Default::default())] {
        // The devices have 11, 8 and 2 MiB, and speeds of 1, 4 and 4 GB/s. Time is virtual, so the figures
        // are the same on all machines.
        let cards = [(11, 1), (8, 4), (2, 4)].map(|(mib, speed)| {
            let speed = speed * 1_000_000_000;
            let card = SimulatedDevice::builder(1).bytes(mib << 20).bandwidth(speed).jitter(0.0);
            let card = Arc::new(card.latency(Duration::from_micros(10)).build());
            // For a real GPU, the library measures this profile (the GPU's speeds) when a placement needs it.
            Profile::new(speed, speed, speed, 65_536).remember(&card.info().identity);
            card
        });
        // The array has 5 MiB of elements, in pages of 16 KiB.
        let array = VirtualArray::<u32>::builder(LEN)
            .devices(cards.clone())
            .placement(placement.clone())
            .page_len(4096)
            .cache_bytes(1 << 20)
            .build()?;
        array.write(0, &(0..LEN as u32).collect::<Vec<_>>())?;
        array.flush(..)?;

        let before = cards.each_ref().map(|card| card.now());
        let values = array.to_vec(..)?;
        let busy = [0, 1, 2].map(|i| (cards[i].now() - before[i]).as_micros());
        let slowest = busy.iter().max().expect("there are three devices");
        let mb_per_second = size_of_val(&*values) as u128 / slowest;
        println!("{placement:?}: a scan keeps the cards busy for {busy:?} us, {mb_per_second} MB/s together");
        assert!((0..LEN as u32).eq(values));
        speeds.push(mb_per_second);
    }
    let [equal, capacity, balanced] = speeds[..] else { unreachable!("three placements") };
    assert!(balanced > 2 * equal && capacity < equal);

    // If a device is lost, only the pages on it are lost.
    let cards = [1, 2, 3].map(|seed| Arc::new(SimulatedDevice::builder(seed).build()));
    let array = VirtualArray::<u32>::builder(3000).devices(cards.clone()).page_len(100).build()?;
    array.fill(.., 7)?;
    array.evict(..)?;
    cards[2].lose();
    let readable = (0..30).filter(|page| array.get(page * 100).is_ok()).count();
    println!("one card of three is lost: {readable} of 30 pages are still there");
    assert_eq!(readable, 20);
    // The lost device stored page 2.
    let error = array.get(299).unwrap_err();
    println!("of the others it is said: {error}");
    assert_eq!(error.device_error().map(device::Error::kind), Some(device::ErrorKind::Lost));
    Ok(())
}
