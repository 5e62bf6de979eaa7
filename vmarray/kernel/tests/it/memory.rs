//! Tests of private memory that items allocate.

use crate::harness::{ITEMS, random};
use vmarray_kernel::{
    Anywhere, At, KernelType, Own, PRIVATE_HEAP_BYTES, PrivateSlice, interpret, kernel, lower, run_on_host,
};

#[kernel(crate = vmarray_kernel)]
fn sort(of: &PrivateSlice<f32>) {
    for i in 1..of.len() {
        let value = of[i];
        let mut k = i;
        while k > 0 && of[k - 1] > value {
            of.set(k, of[k - 1]);
            k -= 1;
        }
        of.set(k, value);
    }
}

#[kernel(crate = vmarray_kernel)]
fn median(at: At<1>, radius: usize, image: &Anywhere<f32>, out: &mut Own<f32>) {
    let window = alloc::<f32>(2 * radius + 1);
    for k in 0..window.len() {
        let place = (at.index() + k).saturating_sub(radius);
        window.set(k, image[place.min(image.len() - 1)]);
    }
    sort(&window);
    out.set(window[radius]);
}

#[test]
fn medians_of_windows_of_any_size() {
    let image: Vec<f32> = (0..300).map(|i| ((i * 7919) % 307) as f32).collect();
    for radius in [0, 1, 6, 20] {
        let (mut host, mut lowered) = (vec![0.0; 300], vec![0.0; 300]);
        run_on_host::<median>(0..300, ((), radius, &image, &mut host)).unwrap();
        let report = interpret::<median>(0..300, ((), radius, &image, &mut lowered)).unwrap();
        assert_eq!((&host, report.failures), (&lowered, 0));
        for (i, found) in host.into_iter().enumerate() {
            let mut window: Vec<f32> =
                (0..=2 * radius).map(|k| image[(i + k).saturating_sub(radius).min(299)]).collect();
            window.sort_by(f32::total_cmp);
            assert_eq!(found, window[radius], "item {i}, radius {radius}");
        }
    }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
#[repr(C)]
struct Entry {
    key: u32,
    rest: [u16; 2],
}

#[kernel(crate = vmarray_kernel)]
fn entries(x: &Own<u32>, out: &mut Own<[u64; 2]>) {
    let x = x.get() as usize;
    let bytes = alloc::<u8>(3);
    let all = alloc::<Entry>(x % 5000);
    bytes.set(x % 4, 9);
    let i = x % 7;
    all.set(i, Entry { key: x as u32, rest: [x as u16, 5] });
    all.set(1, all[i]);
    let one = all[1];
    let sum = one.key as u64 + one.rest[1] as u64 + all[6].rest[0] as u64;
    out.set([sum, all.len() as u64 + bytes[2] as u64]);
}

#[test]
fn structs_are_stored_in_heaps_and_overflow_is_reported() {
    let x: Vec<u32> = random(12, ITEMS);
    let (mut host, mut lowered) = (vec![[0; 2]; ITEMS], vec![[0; 2]; ITEMS]);
    let outside = run_on_host::<entries>(0..ITEMS, (&x, &mut host)).unwrap_err();
    let report = interpret::<entries>(0..ITEMS, (&x, &mut lowered)).unwrap();
    assert_eq!(host, lowered);
    let too_much = x.iter().filter(|x| u64::from(**x % 5000) * 8 + 8 > PRIVATE_HEAP_BYTES).count() as u64;
    assert!(report.failures > too_much && too_much > 100 && outside.count >= report.failures);
    let body = lower::<entries>().unwrap().body;
    assert_eq!((body.arrays.len(), body.views.len()), (0, 2));
}
