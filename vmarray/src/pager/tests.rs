//! Who waits for what while pages are held, and who queues up behind whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use backend_api::wrap::{Fault, Faulty, Operation};
use backend_api::{Device, ErrorKind};
use backend_host::HostDevice;

use crate::array::VirtualArray;
use crate::page::state::{DIRTY, EXCLUSIVE, RESIDENT, WANTED};
use crate::page::{Holder, Refusal};
use crate::placement::Placement;

fn host() -> HostDevice {
    HostDevice::builder().bytes(64 << 20).threads(1).build().unwrap()
}

fn array<D: Device>(device: &Arc<D>, pages: usize, page_len: usize, frames: usize) -> VirtualArray<u32, D> {
    VirtualArray::<u32>::builder(pages * page_len)
        .devices([device.clone()])
        .placement(Placement::Ratios(vec![1]))
        .page_len(page_len)
        .frames_per_channel(frames)
        .read_ahead(false)
        .build()
        .unwrap()
}

/// Readers of a home that follow one another do not keep a writer waiting for ever.
#[test]
fn readers_of_a_home_queue_up_behind_who_wants_the_page() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    array.fill(.., 1).unwrap();
    array.evict(..).unwrap();
    let entry = array.pager().entry(0);
    for write in [VirtualArray::set, VirtualArray::set_uncached] {
        assert_eq!(entry.try_share_home(false), Ok(true));
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(&array, 5, 7).unwrap());
            while !entry.state(Ordering::Acquire).any(WANTED) {
                thread::yield_now();
            }
            assert!(matches!(entry.try_share_home(false), Err(Refusal::Busy(_))));
            // Whoever holds guards must not wait for somebody who might wait for them.
            assert_eq!(entry.try_share_home(true), Ok(true));
            let reader = scope.spawn(|| array.get_uncached(5).unwrap());
            array.pager().unshare(0, Holder::Pin);
            array.pager().unshare(0, Holder::Pin);
            writer.join().unwrap();
            assert!([1, 7].contains(&reader.join().unwrap()));
        });
        assert!(!entry.state(Ordering::Acquire).any(WANTED));
        array.fill(.., 1).unwrap();
        array.evict(..).unwrap();
    }
}

#[test]
fn a_page_whose_home_has_as_many_readers_as_can_be_counted_is_not_loaded() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    let entry = array.pager().entry(0);
    let mut readers = 0;
    while entry.try_share_home(true).is_ok() {
        readers += 1;
    }
    assert!(matches!(entry.try_claim_absent(true), Err(Refusal::Busy(_))));
    array.pager().unshare(0, Holder::Pin);
    assert!(entry.try_claim_absent(true).is_ok());
    array.pager().release_unchanged(0);
    (1..readers).for_each(|_| array.pager().unshare(0, Holder::Pin));
    assert_eq!(entry.state(Ordering::Acquire).guards(), 0);
}
