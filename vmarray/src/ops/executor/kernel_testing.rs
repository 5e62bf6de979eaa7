//! Test support: runs a kernel of the library over copies of columns, in RAM.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{
    Commit, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Launch, LaunchView, Queue, Transfer,
};

use super::LibraryKernel;
use crate::host::HostDevice;

/// Elements of a view: their bytes, and the bytes of each.
#[derive(Clone, Debug)]
pub(crate) struct Column(pub Vec<u8>, pub usize);

impl Column {
    pub(crate) fn of(words: &[u64], stride: usize) -> Self {
        Self(words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(stride)).collect(), stride)
    }

    pub(crate) fn zeroed(len: usize, stride: usize) -> Self {
        Self(vec![0; len * stride], stride)
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        self.0.chunks_exact(self.1).map(word).collect()
    }
}

/// Runs a kernel over copies of columns in a device's memory, and copies them back.
pub(crate) fn run(
    device: &Arc<HostDevice>,
    kernel: &LibraryKernel,
    items: u64,
    columns: &mut [Column],
    values: &[u64],
) {
    let (queue, host) = (
        Queue::new(device).unwrap(),
        HostBuffer::new(device, Report::BYTES as usize, HostMemory::Pageable).unwrap(),
    );
    let memory = |column: &Column| {
        let bytes = column.0.len();
        let memory = DeviceBuffer::new(device, bytes as u64, Commit::Lazy).unwrap();
        (memory, HostBuffer::new(device, bytes, HostMemory::Pageable).unwrap())
    };
    let memory: Vec<_> = columns.iter().map(memory).collect();
    let mut views = Vec::new();
    for (column, (there, here)) in columns.iter().zip(&memory) {
        here.write(0, &column.0);
        let copy = Transfer::Upload { from: here.at(0), to: there.at(0), bytes: column.0.len() as u64 };
        device.wait(queue.submit(&[copy]).unwrap()).unwrap();
        let count = (column.0.len() / column.1) as u64;
        views.push(LaunchView::from(Elements { start: there.at(0), count, stride: column.1 as u64 }));
    }
    let params = kernel.params(values, &views, items);
    let new = Launch::new(kernel.kernel(), items, Geometry::plain(0), host.at(0));
    let launch = Launch { views: &views, params: &params, ..new };
    device.wait(queue.submit(&launch).unwrap()).unwrap();
    let mut report = [0_u64; Report::BYTES as usize / 8];
    host.read(0, bytemuck::cast_slice_mut(&mut report));
    assert_eq!(Report::from_words(report).failures, 0, "{}", kernel.kernel().name());
    for (column, (there, here)) in columns.iter_mut().zip(&memory) {
        let copy = Transfer::Download { from: there.at(0), to: here.at(0), bytes: column.0.len() as u64 };
        device.wait(queue.submit(&[copy]).unwrap()).unwrap();
        here.read(0, &mut column.0);
    }
}
