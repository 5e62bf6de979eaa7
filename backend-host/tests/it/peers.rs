//! Tests of devices with access to each other's memory: drop, loss and broken links.

use std::sync::Arc;
use std::time::Duration;

use backend_api::{
    Commit, Device, DeviceBuffer, ErrorKind, Fill, HostBuffer, HostMemory, Queue, QueueProgress, Reach,
    Request, Transfer,
};
use backend_host::{HostDevice, SimulatedDevice, SimulatedFabric};

const BYTES: u64 = 4 << 20;

fn simulated<const N: usize>(reach: Reach) -> (SimulatedFabric, [Arc<SimulatedDevice>; N]) {
    let fabric = SimulatedFabric::new(reach, 1_000_000_000, Duration::from_micros(5));
    let device = |seed| SimulatedDevice::builder(seed as u64).bytes(64 << 20).fabric(&fabric).build();
    let devices = std::array::from_fn(|seed| Arc::new(device(seed)));
    (fabric, devices)
}

fn memory<D: Device>(device: &Arc<D>, value: u8) -> DeviceBuffer<D> {
    let memory = DeviceBuffer::new(device, BYTES, Commit::Lazy).unwrap();
    let fill = Fill { to: memory.at(0), bytes: BYTES, pattern: &[value] };
    device.wait(Queue::new(device).unwrap().submit(&fill).unwrap()).unwrap();
    memory
}

fn contents<D: Device>(memory: &DeviceBuffer<D>, device: &Arc<D>) -> Vec<u8> {
    let host = HostBuffer::new(device, BYTES as usize, HostMemory::Pageable).unwrap();
    let download = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: BYTES };
    device.wait(Queue::new(device).unwrap().submit(&[download]).unwrap()).unwrap();
    let mut bytes = vec![0; BYTES as usize];
    host.read(0, &mut bytes);
    bytes
}

/// Drops a device while another one copies from its memory: the drop waits for the copy.
fn a_device_goes<D: Device>(stays: Arc<D>, goes: Arc<D>) {
    let (own, queue) = (memory(&stays, 0), Queue::new(&stays).unwrap());
    let theirs = goes.allocate(BYTES, Commit::Lazy).unwrap();
    let their_queue = goes.create_queue().unwrap();
    let filled = goes
        .submit(&their_queue, &Request::Fill(&Fill { to: theirs.at(0), bytes: BYTES, pattern: &[9] }))
        .unwrap();
    queue.order_after(filled).unwrap();
    let copy = Transfer::Internal { from: theirs.at(0), to: own.at(0), bytes: BYTES };
    let ticket = queue.submit(&[copy]).unwrap();
    drop(goes);
    assert_eq!(stays.poll(ticket), Ok(QueueProgress::Done));
    assert!(contents(&own, &stays).iter().all(|byte| *byte == 9));
    assert_eq!(queue.submit(&[copy]).unwrap_err().kind(), ErrorKind::UnknownHandle);
    assert_eq!(queue.order_after(filled).unwrap_err().kind(), ErrorKind::UnknownHandle);
}

#[test]
fn a_device_that_goes_waits_for_the_work_of_others() {
    let (_, [one, other]) = simulated(Reach::Copies);
    a_device_goes(one, other);
    for _ in 0..20 {
        let device = || Arc::new(HostDevice::builder().bytes(64 << 20).threads(1).build().unwrap());
        a_device_goes(device(), device());
    }
}

#[test]
fn a_lost_device_leaves_its_peers_usable() {
    let (_, [one, other]) = simulated(Reach::Maps);
    let (own, theirs, queue) = (memory(&one, 1), memory(&other, 2), Queue::new(&one).unwrap());
    other.lose();
    let copy = Transfer::Internal { from: theirs.at(0), to: own.at(0), bytes: BYTES };
    let error = queue.submit(&[copy]).unwrap_err();
    assert_eq!((error.kind(), error.detail().contains("is lost")), (ErrorKind::CopyFailed, true), "{error}");
    assert!(contents(&own, &one).iter().all(|byte| *byte == 1));
    drop(theirs);
}

#[test]
fn a_broken_link_brings_wrong_bytes_and_no_error() {
    let (fabric, [one, other, third]) = simulated(Reach::Copies);
    fabric.break_link(other.info(), one.info());
    let (own, queue) = (memory(&one, 1), Queue::new(&one).unwrap());
    for (peer, is_right) in [(&other, false), (&third, true)] {
        let theirs = memory(peer, 5);
        let copy = Transfer::Internal { from: theirs.at(0), to: own.at(0), bytes: BYTES };
        one.wait(queue.submit(&[copy]).unwrap()).unwrap();
        assert_eq!(contents(&own, &one).iter().all(|byte| *byte == 5), is_right);
    }
}

#[test]
fn threads_copy_in_both_directions_while_memory_comes_and_goes() {
    let device = || Arc::new(HostDevice::builder().bytes(256 << 20).threads(2).build().unwrap());
    let devices = [device(), device(), device()];
    std::thread::scope(|scope| {
        for own in 0..3 {
            let devices = &devices;
            scope.spawn(move || {
                let (device, peer) = (&devices[own], &devices[(own + 1) % 3]);
                let queue = Queue::new(device).unwrap();
                for round in 1..20 {
                    let (here, there) = (memory(device, round), memory(peer, 0));
                    let copy = Transfer::Internal { from: here.at(0), to: there.at(0), bytes: BYTES };
                    let copied = queue.submit(&[copy]).unwrap();
                    let theirs = Queue::new(peer).unwrap();
                    theirs.order_after(copied).unwrap();
                    let back = Transfer::Internal { from: there.at(0), to: here.at(0), bytes: BYTES };
                    let ticket = theirs.submit(&[back]).unwrap();
                    drop(there);
                    peer.wait(ticket).unwrap();
                    assert!(contents(&here, device).iter().all(|byte| *byte == round));
                }
            });
        }
    });
}
