//! Gathers whose index list and values are both in [registered](crate::access::Registered) memory. The
//! devices read the list and write the values directly. Meanwhile the host checks that all indices are in
//! bounds.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_api::{Device, Gather, HostSpan, LaunchView, Ticket};

use super::lanes::Lanes;
use super::{CHECKED_AT_ONCE, all_inside, check_list, workers};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::racy_slice::RacySlice;
use crate::base::registered_memory::RegisteredRange;
use crate::base::scoped_threads;
use crate::engine::channel::Channel;
use crate::engine::guards;

/// Shorter gathers (bytes of indices and values) use stages, because write-backs of dirty pages cost too
/// much.
const BYTES_MIN: usize = if cfg!(test) { 1 } else { 1 << 20 };
/// The most bytes of values that one kernel moves. Other work can run between two kernels.
const KERNEL_BYTES: usize = 64 << 20;

/// Kernels that access the program's memory. A drop waits for them.
struct StartedKernels<'a, 'b> {
    lanes: &'a Lanes<'b>,
    kernels: Vec<(usize, Ticket)>,
}

impl StartedKernels<'_, '_> {
    fn wait(&mut self) -> backend_api::Result<()> {
        let waits = self.kernels.drain(..).map(|(lane, ticket)| self.lanes.channel(lane).queues.wait(ticket));
        waits.fold(Ok(()), backend_api::Result::and)
    }
}

impl Drop for StartedKernels<'_, '_> {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

/// Gathers elements in place, if that is possible and faster, and if no device fails. Returns false if the
/// caller must read the elements in another way.
///
/// First writes back dirty pages of the range. If half of the array fits into the cache, the elements are
/// read there instead.
pub(super) fn gather<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    lanes: &Lanes<'_>,
    range: &Range<usize>,
    indices: &[usize],
    into: &RacySlice<'_, T>,
) -> Result<bool> {
    let pager = array.pager();
    let cached = pager.frames().saturating_mul(2 * pager.page_bytes() as u64);
    let is_long = size_of_val(indices) + into.bytes() >= BYTES_MIN;
    let is_worth_it = is_long && cached < size_of::<T>() as u64 * array.len() as u64;
    if !is_worth_it || guards::is_waited_for() || size_of::<usize>() != size_of::<u64>() {
        return Ok(false);
    }
    let known = |address, bytes| {
        RegisteredRange::find(address, bytes)
            .filter(|range| lanes.devices().all(|device| range.is_known_to(device)))
    };
    let (Some(list), Some(values)) =
        (known(indices.as_ptr().addr(), size_of_val(indices)), known(into.expose(), into.bytes()))
    else {
        return Ok(false);
    };
    let Some(bases) = lanes.bases_from(range.start) else { return Ok(false) };
    let elements = lanes.elements_at(&bases, range.len());
    let mut checked = Ok(());
    let moved = pager.read_settled(&array.touched_pages(range), || {
        let mut under_way = StartedKernels { lanes, kernels: Vec::new() };
        let is_started = start(&mut under_way, elements, (&list, indices), (&values, into));
        // Check the indices while the devices work. The host must check, because a device skips invalid
        // entries without a report.
        checked = check(indices, range.len());
        Ok(is_started && under_way.wait().is_ok())
    });
    checked?;
    match moved {
        // Return false, so that the caller gathers without the lost device. Other devices still work.
        Err(_) if lanes.divide_if_lost() => Ok(false),
        moved => moved,
    }
}

/// Starts kernels for the whole list. Returns false if a device refuses one.
fn start<T: Element>(
    under_way: &mut StartedKernels<'_, '_>,
    elements: LaunchView<'_>,
    (list, indices): (&RegisteredRange, &[usize]),
    (values, into): (&RegisteredRange, &RacySlice<'_, T>),
) -> bool {
    let (lanes, stride) = (under_way.lanes, size_of::<T>());
    let each = (KERNEL_BYTES / stride).clamp(1, indices.len().div_ceil(lanes.any_part().len()).max(1));
    let firsts = (0..indices.len()).step_by(each);
    for (first, lane) in firsts.zip(lanes.any_part().iter().cycle()) {
        let (count, of) = (each.min(indices.len() - first), lanes.channel(*lane));
        let gather = Gather {
            elements,
            indices: place(list, of, indices[first..].as_ptr().addr()),
            count: count as u64,
            values: place(values, of, into.address(first, count).addr()),
        };
        let Ok(ticket) = lanes.read(*lane, &mut |queue| queue.submit(&gather)) else { return false };
        under_way.kernels.push((*lane, ticket));
        of.counters.bytes_to_device.add(8 * count as u64);
        of.counters.bytes_from_device.add((count * stride) as u64);
    }
    true
}

/// Returns the span for an address of memory that a channel's device knows.
fn place<'a>(memory: &'a RegisteredRange, of: &Channel, address: usize) -> HostSpan<'a> {
    memory
        .span(of.device(), address)
        .expect("the memory is registered with the device, since the caller has checked it")
}

/// Checks with several threads that all indices are below a length.
fn check(indices: &[usize], len: usize) -> Result<()> {
    let (pieces, is_outside) = (indices.chunks(CHECKED_AT_ONCE), AtomicBool::new(false));
    scoped_threads::each(workers(size_of_val(indices), usize::MAX), pieces.len(), |piece| {
        if pieces.clone().nth(piece).is_some_and(|piece| !all_inside(piece, len)) {
            is_outside.store(true, Ordering::Relaxed);
        }
    });
    if is_outside.into_inner() { check_list(indices, len) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_api::Reach;
    use backend_api::wrap::SplitMix64;
    use backend_host::{SimulatedDevice, SimulatedFabric};

    use crate::array::testing::{host, one_channel};
    use crate::prelude::*;
    use crate::{ErrorKind, VirtualArray};

    /// Creates an array over two devices that can access each other, with frames for an eighth of the
    /// pages.
    fn array(page_len: usize) -> (VirtualArray<u32, SimulatedDevice>, Vec<Arc<SimulatedDevice>>) {
        let fabric = SimulatedFabric::new(Reach::Maps, 1_000_000_000, std::time::Duration::from_micros(5));
        let device = |seed| Arc::new(SimulatedDevice::builder(seed).bytes(64 << 20).fabric(&fabric).build());
        let devices: Vec<_> = [1, 2].map(device).into();
        let builder = VirtualArray::builder(64 * page_len).devices(devices.clone()).page_len(page_len);
        let array = builder.frames_per_channel(4).build().unwrap();
        for (page, values) in (0..64 * page_len as u32).collect::<Vec<_>>().chunks(page_len).enumerate() {
            array.write(page * page_len, values).unwrap();
        }
        (array, devices)
    }

    #[test]
    #[cfg(unix)]
    fn devices_that_reach_each_other_share_a_list_in_registered_memory() {
        let (array, _devices) = array(100);
        // The newest value of this element is only in a frame.
        array.set(17, 1_000_000).unwrap();
        let mut random = SplitMix64::new(1);
        let list: Vec<usize> = (0..5000).map(|_| random.index(6400)).collect();
        let list = array.register(list).unwrap();
        let mut values = array.register(vec![0; 5000]).unwrap();
        array.reset_stats();
        array.gather_into(&list, &mut values).unwrap();
        for (index, value) in list.iter().zip(&values[..]) {
            assert_eq!(*value, if *index == 17 { 1_000_000 } else { *index as u32 });
        }
        // Each device has moved half of the list.
        let stats = array.stats();
        assert_eq!(
            stats.channels.iter().map(|of| of.bytes_to_device >= 8 * 2500).collect::<Vec<_>>(),
            [true; 2]
        );
        assert_eq!(stats.total().misses, 0);
    }

    /// Short, for Miri: the device writes to memory that the program has borrowed for the call.
    #[test]
    #[cfg(unix)]
    fn one_device_writes_to_registered_memory() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (8, 4), 1).build().unwrap();
        array.write(0, &(0..32).collect::<Vec<_>>()).unwrap();
        let list = array.register(vec![31_usize, 0, 7, 7]).unwrap();
        let mut values = array.register(vec![0; 4]).unwrap();
        array.reset_stats();
        array.gather_into(&list, &mut values).unwrap();
        assert_eq!((&values[..], array.stats().total().misses), (&[31, 0, 7, 7][..], 0));
        // A list that the device does not know.
        array.gather_into(&[1, 30, 2], &mut values[1..]).unwrap();
        assert_eq!(values.into_vec(), [31, 1, 30, 2]);
    }

    #[test]
    #[cfg(unix)]
    fn an_index_outside_of_a_registered_list_is_named() {
        let (array, _devices) = array(64);
        for wrong in [64 * 64, usize::MAX] {
            let mut list = array.register(vec![5_usize; 1000]).unwrap();
            list[700] = wrong;
            let mut values = array.register(vec![0; 1000]).unwrap();
            let error = array.gather_into(&list, &mut values).unwrap_err();
            let kind = ErrorKind::ListedIndexOutside { position: 700, index: wrong, len: 64 * 64 };
            assert_eq!(*error.kind(), kind);
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_section_is_gathered_from_wherever_it_begins() {
        let (array, _devices) = array(50);
        for start in [0, 100, 130] {
            let list = array.register((0..3000).map(|i| i * 7 % 3000).collect::<Vec<usize>>()).unwrap();
            let mut values = array.register(vec![0; 3000]).unwrap();
            array.section(start..start + 3000).unwrap().gather_into(&list, &mut values).unwrap();
            assert!(list.iter().zip(&values[..]).all(|(index, value)| *value as usize == start + index));
        }
    }
}
