//! Helpers of the tests.

use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::kernel::KernelType;
use vmarray::{Element, NdArray, prelude::*};
use vmarray_formats::FileOptions;
use vmarray_formats::zarr::{Compression, Encoding, Location, Zarr};

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable, KernelType)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
pub struct Pair {
    pub a: u32,
    pub b: [u16; 2],
}

pub fn pair(value: u32) -> Pair {
    Pair { a: value, b: [value as u16; 2] }
}

/// An array in host RAM whose elements are their indices.
pub fn places(shape: [usize; 2]) -> NdArray<u32, 2> {
    let array = NdArray::new(shape).unwrap();
    let values: Vec<u32> = (0..(shape[0] * shape[1]) as u32).collect();
    array.elements().write(0, &values).unwrap();
    array
}

/// Unencoded chunks, whose lengths show their contents.
pub fn plain<T: Element + KernelType>(chunk: impl Into<Vec<usize>>) -> Encoding<T> {
    Encoding::new().chunk(chunk).compression(Compression::None)
}

/// Opens a store again and reads all elements.
pub fn read<T: Element + KernelType>(at: Location) -> Vec<T> {
    let store = Zarr::<T>::open(at).unwrap();
    let array = NdArray::<T, 2>::new(store.extents().unwrap()).unwrap();
    store.read(&array, FileOptions::new()).unwrap();
    array.to_vec(..).unwrap()
}
