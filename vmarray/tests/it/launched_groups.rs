//! Tests of kernels with groups and with private memory, over arrays in host RAM.

use vmarray::kernel::{Anywhere, At, Group, Own};
use vmarray::prelude::*;
use vmarray::{ErrorKind, Result};

use crate::common::devices;

#[vmarray::kernel(group = 32)]
fn turned(at: At<1>, part: &Group<u32, 32>, x: &mut Own<u32>) {
    let i = at.in_group();
    part.set(i, x.get());
    barrier();
    x.set(1000 * part[31 - i] + lanes::sum(1));
}

#[test]
fn items_of_a_group_meet() -> Result<()> {
    // The pages have whole groups and are striped over two devices.
    let array = VirtualArray::<u32>::builder(1000).page_len(64).devices(devices(2)).build()?;
    let values: Vec<u32> = (0..1000).collect();
    array.write(0, &values)?;
    turned::run((array.section_mut(..)?,))?;
    let mut found = vec![0; 1000];
    array.read(0, &mut found)?;
    for (i, found) in found.into_iter().enumerate() {
        let other = i / 32 * 32 + 31 - i % 32;
        // Items past the end do not exist, so their value is 0.
        let value = if other < 1000 { other as u32 } else { 0 };
        assert_eq!(found, 1000 * value + 32, "element {i}");
    }
    Ok(())
}

#[vmarray::kernel]
fn median(at: At<1>, radius: usize, of: &Anywhere<u16>, out: &mut Own<u16>) {
    let window = alloc::<u16>(2 * radius + 1);
    for k in 0..window.len() {
        let value = of[(at.index() + k).saturating_sub(radius).min(of.len() - 1)];
        let mut at = k;
        while at > 0 && window[at - 1] > value {
            window.set(at, window[at - 1]);
            at -= 1;
        }
        window.set(at, value);
    }
    out.set(window[radius]);
}

#[test]
fn items_take_memory_for_themselves() -> Result<()> {
    let values: Vec<u16> = (0..500_u32).map(|i| (i * 7919 % 509) as u16).collect();
    let [of, mut out] = [(); 2]
        .map(|()| VirtualArray::<u16>::builder(500).page_len(100).devices(devices(1)).build().unwrap());
    of.write(0, &values)?;
    median::run((6, &of, &mut out))?;
    let mut found = vec![0; 500];
    out.read(0, &mut found)?;
    for (i, found) in found.into_iter().enumerate() {
        let mut window: Vec<u16> = (0..13).map(|k| values[(i + k).saturating_sub(6).min(499)]).collect();
        window.sort_unstable();
        assert_eq!(found, window[6], "element {i}");
    }
    // The items ask for more than their private memory.
    let error = median::run((10_000, &of, &mut out)).unwrap_err();
    let ErrorKind::KernelPrivateHeap { asked, private_heap_bytes, items, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((*asked, *private_heap_bytes, *items), (40_002, 16_384, 500));
    let error = median::launch().private_heap_bytes(20).run((6, &of, &mut out)).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::KernelPrivateHeap { asked: 26, private_heap_bytes: 24, .. }),
        "{error}"
    );
    Ok(())
}
