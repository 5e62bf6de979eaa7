//! Helpers of the tests: folders, arrays of uneven pages, and random values.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::host::HostDevice;
use vmarray::kernel::KernelType;
use vmarray::nd::NdLayout;
use vmarray::ragged::RaggedBuilder;
use vmarray::{AnyDevice, Element, NdArray, RaggedArray, VirtualArray};

/// A folder that is removed with its contents.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("vmarray-formats {} {number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Names of its files.
    pub fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A struct with arrays and a struct as fields.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable, KernelType)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
pub struct Body {
    pub at: [f32; 3],
    pub mass: f32,
    pub spin: Spin,
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable, KernelType)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
pub struct Spin {
    pub of: [[i16; 2]; 2],
    pub id: u64,
}

fn device() -> Arc<AnyDevice> {
    Arc::new(HostDevice::new(8 << 20).unwrap().into())
}

/// An array over host RAM with short pages and few of them in its cache.
pub fn array<T: Element>(len: usize, page_len: usize) -> VirtualArray<T> {
    VirtualArray::builder(len)
        .devices([device(), device()])
        .page_len(page_len)
        .cache_bytes(page_len * size_of::<T>() * 8)
        .build()
        .unwrap()
}

/// Describes rows in host RAM, on any machine.
pub fn rows<T: Element>() -> RaggedBuilder<T, AnyDevice> {
    RaggedArray::builder().devices([device()])
}

/// The same with several axes.
pub fn nd_array<T: Element, const N: usize>(shape: [usize; N], layout: NdLayout<N>) -> NdArray<T, N> {
    NdArray::builder(shape)
        .layout(layout)
        .devices([device()])
        .elements(|elements| elements.page_len(24).cache_bytes(24 * size_of::<T>() * 8))
        .build()
        .unwrap()
}

/// Values whose bytes all differ from their neighbours'.
pub fn values<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut values = vec![T::zeroed(); len];
    let mut state = seed | 1;
    for byte in vmarray::bytemuck::cast_slice_mut::<T, u8>(&mut values) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
    values
}

/// Bytes of values, so that NaNs are comparable.
pub fn bytes<T: Element>(values: &[T]) -> &[u8] {
    vmarray::bytemuck::cast_slice(values)
}
