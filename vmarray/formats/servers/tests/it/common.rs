//! What tests have in common.

use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::kernel::KernelType;
use vmarray::{Element, NdArray, prelude::*};
use vmarray_formats::Options;
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

/// An array of host RAM whose elements are their places.
pub fn places(shape: [usize; 2]) -> NdArray<u32, 2> {
    let array = NdArray::new(shape).unwrap();
    let values: Vec<u32> = (0..(shape[0] * shape[1]) as u32).collect();
    array.elements().write(0, &values).unwrap();
    array
}

/// Chunks as they are, so that their lengths tell what they have.
pub fn plain<T: Element + KernelType>(chunk: impl Into<Vec<usize>>) -> Encoding<T> {
    Encoding::new().chunk(chunk).compression(Compression::None)
}

/// All elements of a store, read anew.
pub fn read<T: Element + KernelType>(at: Location) -> Vec<T> {
    let store = Zarr::<T>::open(at).unwrap();
    let array = NdArray::<T, 2>::new(store.extents().unwrap()).unwrap();
    store.read(&array, Options::new()).unwrap();
    array.to_vec(..).unwrap()
}
