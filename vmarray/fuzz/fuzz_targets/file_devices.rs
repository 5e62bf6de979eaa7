//! Fuzz target: an array in a file. The file may exist before, with arbitrary contents. The new array must
//! read as zeroes, and return the elements that the program writes.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use vmarray::store::FileDevice;
use vmarray::prelude::*;

fuzz_target!(|data: (&[u8], u8, u8, u16)| {
    let (bytes, page_len, frames, len) = data;
    let path = std::env::temp_dir().join(format!("vmarray-fuzz-{}", std::process::id()));
    std::fs::write(&path, bytes).expect("the temporary folder is writable");
    // Both calls may fail: some arrays do not fit, and the file may exist already.
    if let Ok(device) = FileDevice::create(&path, bytes.len() as u64)
        && let Ok(array) = VirtualArray::<u32>::builder(len.into())
            .devices([Arc::new(device)])
            .page_len(1 + usize::from(page_len))
            .frames_per_channel(1 + usize::from(frames))
            .build()
    {
        for index in 0..array.len() {
            assert_eq!(array.get(index).expect("the index is in the array"), 0);
            array.set(index, index as u32).expect("the index is in the array");
        }
        array.flush(..).expect("the flush succeeds");
        let all = array.to_vec(..).expect("the read succeeds");
        assert!(all.into_iter().eq(0..u32::from(len)));
    }
    let _ = std::fs::remove_file(&path);
});
