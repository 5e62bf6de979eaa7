//! Peer access: the open CUDA devices of the process, and direct access to each other's memory.

use std::sync::{Arc, Weak};

use backend_api::{BufferId, DeviceInfo, Error, ErrorKind, Reach, Result, Ticket};
use parking_lot::RwLock;

use crate::core::CudaCore;
use crate::memory::DeviceMemory;
use crate::queue::CudaQueue;

/// All open CUDA devices of the process. The drop of a device removes it, so the list keeps none alive.
static DEVICES: RwLock<Vec<Weak<CudaCore>>> = RwLock::new(Vec::new());

/// Adds a device to the list.
pub(crate) fn add(core: &Arc<CudaCore>) {
    DEVICES.write().push(Arc::downgrade(core));
}

/// Removes a device: from now on no other device finds its memory.
pub(crate) fn remove(core: &Arc<CudaCore>) {
    DEVICES.write().retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(core)));
}

/// Calls `look` for each of the other devices, and returns the first result.
fn find<R>(core: &CudaCore, mut look: impl FnMut(&CudaCore) -> Option<R>) -> Option<R> {
    let devices = DEVICES.read();
    let mut others = devices.iter().filter(|other| !std::ptr::eq(other.as_ptr(), core));
    // An owner removes its device from the list, under the write lock, before it drops the device. So while
    // this list is locked, `other` is never the last reference.
    others.find_map(|other| look(&*other.upgrade()?))
}

/// Returns the access to memory of the device `other`.
pub(crate) fn reach(core: &CudaCore, other: &DeviceInfo) -> Reach {
    let mut all = (core.card.info == *other).then_some(true);
    find(core, |peer| {
        // Compare the drivers too, because tests use several fake drivers in one process.
        if peer.card.info == *other && std::ptr::eq(core.context.driver, peer.context.driver) {
            all = Some(all.unwrap_or(true) && core.context.reaches(&peer.context));
        }
        None::<()>
    });
    if all == Some(true) { Reach::Maps } else { Reach::No }
}

/// Returns memory of another device to which this device has peer access. `queue` is the queue that will
/// submit work on the memory, if any.
pub(crate) fn visit(
    core: &CudaCore,
    id: BufferId,
    queue: Option<&Arc<CudaQueue>>,
) -> Option<Arc<DeviceMemory>> {
    find(core, |peer| peer.memory.visit(id, queue, || core.context.reaches(&peer.context)))
}

/// Returns the queue of another device's ticket; `None` if the ticket is done, or will never be done.
///
/// # Errors
/// [`UnknownHandle`](ErrorKind::UnknownHandle) if no device has issued it.
pub(crate) fn queue_of(
    core: &CudaCore,
    operation: &'static str,
    ticket: Ticket,
) -> Result<Option<Arc<CudaQueue>>> {
    let found = find(core, |peer| {
        let queue = peer.queue_of(operation, ticket).ok().filter(|_| core.context.reaches(&peer.context))?;
        Some(queue.filter(|_| peer.lost().is_none()))
    });
    let unknown = || {
        Error::new(ErrorKind::UnknownHandle, operation).with_detail("the ticket belongs to another device")
    };
    found.ok_or_else(|| core.here(unknown()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use backend_api::{Commit, Device, DeviceBuffer, Queue as OwnedQueue, QueueProgress, Transfer};
    use vmarray_conformance::{Limits, Outcome, run_peers};

    use super::*;
    use crate::fake;

    #[test]
    fn devices_of_one_card_and_of_two_that_reach_each_other_keep_the_contract() {
        let [one, same, second, third] = fake::devices([0, 0, 1, 2]);
        let pairs = [(&one, &same, Reach::Maps), (&one, &second, Reach::Maps), (&one, &third, Reach::No)];
        for (device, peer, reach) in pairs {
            assert_eq!(device.reaches(peer.info()), reach, "{} {}", device.info(), peer.info());
            let report = run_peers(device, peer, &Limits::default());
            // Only GPUs execute the checked-in kernels.
            let mut failed = report.failures().map(|(name, _)| name);
            assert!(
                failed.all(|name| name == "gathers_and_scatters_reach_memory_that_is_mapped"),
                "{report}"
            );
            let skipped = report.outcomes().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_)));
            assert_eq!(skipped.count(), if reach == Reach::No { 4 } else { 1 }, "{report}");
        }
        // The third device can access the memory of the others, but they cannot access its memory.
        assert_eq!(third.reaches(one.info()), Reach::Maps);
        let report = run_peers(&third, &one, &Limits::default());
        assert!(report.failures().count() <= 1, "{report}");
    }

    #[test]
    fn only_copies_between_cards_name_both_contexts() {
        let [one, same, second] = fake::devices([0, 0, 1]);
        let queue = OwnedQueue::new(&one).unwrap();
        let memory = |device| DeviceBuffer::new(device, 100, Commit::Lazy).unwrap();
        let (own, near, far) = (memory(&one), memory(&same), memory(&second));
        let copy = |from, to| Transfer::Internal { from, to, bytes: 10 };
        let copies = [
            copy(own.at(0), near.at(0)),
            copy(own.at(20), far.at(20)),
            copy(far.at(40), own.at(40)),
            copy(own.at(60), own.at(80)),
        ];
        one.wait(queue.submit(&copies).unwrap()).unwrap();
        assert_eq!(fake::stream(&one, queue.id()).between(), 2);
    }

    #[test]
    fn memory_and_devices_stay_until_others_are_done_with_them() {
        for is_dropped in [false, true] {
            let [one, other] = fake::devices([0, 1]);
            let (queue, own) = (OwnedQueue::new(&one).unwrap(), one.allocate(100, Commit::Lazy).unwrap());
            let theirs = other.allocate(100, Commit::Lazy).unwrap();
            let stream = fake::stream(&one, queue.id());
            stream.open(0);
            let copy = Transfer::Internal { from: theirs.at(0), to: own.at(0), bytes: 100 };
            let ticket = queue.submit(&[copy]).unwrap();
            let (sender, receiver) = mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    if is_dropped {
                        drop(other);
                    } else {
                        other.release(theirs);
                    }
                    sender.send(()).unwrap();
                });
                assert!(receiver.try_recv().is_err());
                assert_eq!(one.poll(ticket), Ok(QueueProgress::Pending));
                stream.open(u64::MAX);
                receiver.recv().unwrap();
            });
            assert_eq!(one.poll(ticket), Ok(QueueProgress::Done));
        }
    }
}
