//! Direct access of a device to another device's memory (a link). Each link is tested before its first use.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use backend_api::wrap::SplitMix64;
use backend_api::{
    Commit, Device, DeviceBuffer, Error, HostBuffer, HostMemory, Queue, Reach, Result, Transfer,
};

/// Number of bytes that the test of a link copies, enough to use every engine and lane of the link.
const PATTERN_BYTES: usize = 256 << 10;

/// The tested links: for the identities of two devices, true if the link works.
static TRIED: Mutex<Option<HashMap<[String; 2], bool>>> = Mutex::new(None);

/// Returns true if both `Arc`s point to the same device object.
#[must_use]
pub fn is_same(one: &Arc<dyn Device>, other: &Arc<dyn Device>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Returns true if a list contains the same device twice.
#[must_use]
pub fn has_twice(devices: &[Arc<dyn Device>]) -> bool {
    let is_twice = |(at, device)| devices[..at].iter().any(|other| is_same(other, device));
    devices.iter().enumerate().any(is_twice)
}

/// Returns the access of the device `from` to the memory of the device `to`. The first call tests the link
/// between the devices. If the test fails, the call returns [`Reach::No`], and calls `report` with the
/// reason.
///
/// The first call for a link copies a pattern to the other device and back, which takes about 0.1 ms. Each
/// link is tested once in a process. The test may run wakers: hold no lock that a waker takes.
pub fn reach(
    from: &Arc<dyn Device>,
    to: &Arc<dyn Device>,
    report: impl FnOnce(&dyn Device, &dyn Device, Option<&Error>),
) -> Reach {
    if is_same(from, to) {
        return Reach::Maps;
    }
    let reach = from.reaches(to.info());
    if reach == Reach::No {
        return Reach::No;
    }
    let key = [from.info().identity.clone(), to.info().identity.clone()];
    let known = TRIED.lock().as_ref().and_then(|tried| tried.get(&key).copied());
    let is_sound = known.unwrap_or_else(|| {
        // Hold no lock here, because the test may run wakers. Two threads may therefore test one link at
        // once.
        match copies_arrive_whole(from, to) {
            Ok(is_sound) => {
                let is_news = TRIED.lock().get_or_insert_default().insert(key, is_sound).is_none();
                if is_news && !is_sound {
                    report(&**from, &**to, None);
                }
                is_sound
            }
            Err(error) => {
                // A lack of memory for the test says nothing about the link, so do not store this result.
                report(&**from, &**to, Some(&error));
                false
            }
        }
    });
    if is_sound { reach } else { Reach::No }
}

/// Copies random bytes, then their complement, to the other device and back. Returns true if all are right.
fn copies_arrive_whole(from: &Arc<dyn Device>, to: &Arc<dyn Device>) -> Result<bool> {
    let bytes = PATTERN_BYTES as u64;
    let (queue, theirs) = (Queue::new(from)?, Queue::new(to)?);
    let own = DeviceBuffer::new(from, 2 * bytes, Commit::Lazy)?;
    // Write each part only once. A target that stores checksums may not notice writes by another device, and
    // would compare a second write with the first one's checksum.
    let other = DeviceBuffer::new(to, 2 * bytes, Commit::Lazy)?;
    let host = HostBuffer::new(from, PATTERN_BYTES, HostMemory::Pageable)?;
    let their_host = HostBuffer::new(to, PATTERN_BYTES, HostMemory::Pageable)?;
    let mut pattern = vec![0; PATTERN_BYTES];
    let mut found = vec![0; PATTERN_BYTES];
    SplitMix64::new(0).fill(&mut pattern);
    for there in [other.at(0), other.at(bytes)] {
        pattern.iter_mut().for_each(|byte| *byte = !*byte);
        host.write(0, &pattern);
        queue.submit(&[Transfer::Upload { from: host.at(0), to: own.at(0), bytes }])?;
        from.wait(queue.submit(&[Transfer::Internal { from: own.at(0), to: there, bytes }])?)?;
        let down = Transfer::Download { from: there, to: their_host.at(0), bytes };
        to.wait(theirs.submit(&[down])?)?;
        their_host.read(0, &mut found);
        let is_there = found == pattern;
        queue.submit(&[Transfer::Internal { from: there, to: own.at(bytes), bytes }])?;
        from.wait(queue.submit(&[Transfer::Download { from: own.at(bytes), to: host.at(0), bytes }])?)?;
        host.read(0, &mut found);
        if !is_there || found != pattern {
            return Ok(false);
        }
    }
    Ok(true)
}
