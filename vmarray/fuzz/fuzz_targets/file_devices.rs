//! Fuzz target: an array in a new file, with any sizes of the file, the pages and the cache. The array must
//! read as zeroes, and return the elements that the program writes.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use vmarray::prelude::*;
use vmarray::store::FileDevice;

fuzz_target!(|data: (u32, u8, u8, u16)| {
    let (bytes, page_len, frames, len) = data;
    let path = std::env::temp_dir().join(format!("vmarray-fuzz-{}", std::process::id()));
    // An earlier process with the same number may have left its file.
    let _ = std::fs::remove_file(&path);
    let device = FileDevice::create(&path, u64::from(1 + bytes % (1 << 20))).expect("the file is new");
    // Some arrays do not fit into the file.
    if let Ok(array) = VirtualArray::<u32>::builder(len.into())
        .devices([Arc::new(device)])
        .page_len(1 + usize::from(page_len))
        .frames_per_channel(1 + usize::from(frames))
        .build()
    {
        for index in 0..array.len() {
            assert_eq!(array.get(index).expect("the index is in the array"), 0);
            array.set(index, index as u32).expect("the index is in the array");
        }
        array.flush(..).expect("the file takes the elements");
        let all = array.to_vec(..).expect("the file has the elements");
        assert!(all.into_iter().eq(0..u32::from(len)));
    }
    let _ = std::fs::remove_file(&path);
});
