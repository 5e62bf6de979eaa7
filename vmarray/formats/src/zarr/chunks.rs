//! Zarr arrays as targets of chunk writes, and the number of threads that write.

use zarrs::array::{Array, ArrayBytes, ArrayError, CodecOptions};
use zarrs::storage::ReadableWritableStorageTraits;

use super::leaves::LeafArray;
use crate::options::FileOptions;

/// Approximate limit in bytes for all chunks in RAM at a time.
const IN_RAM: usize = 1 << 30;

/// An array whose description is not written yet, so readers do not find it.
pub(super) type Undescribed = (LeafArray, Array<dyn ReadableWritableStorageTraits>);

/// The arrays to which chunks are written.
pub(super) struct ChunkArrays(pub(super) Vec<Undescribed>);

impl ChunkArrays {
    /// Writes the chunk with index `place` in each array; `bytes` is scratch memory.
    pub(super) fn store(
        &self,
        place: &[u64],
        elements: &[u8],
        bytes: &mut Vec<u8>,
        codecs: &CodecOptions,
    ) -> Result<(), ArrayError> {
        self.0.iter().try_for_each(|(leaf, array)| {
            leaf.take(elements, bytes);
            let place = [place, &vec![0; leaf.axes.len()]].concat();
            array.store_chunk_opt(&place, ArrayBytes::new_flen(&bytes[..]), codecs)
        })
    }
}

/// Reduces the number of threads for long chunks, because each needs RAM for several copies of a chunk.
pub(super) fn limit_threads<T>(chunk_len: usize, options: &mut FileOptions<'_>) {
    let bytes = chunk_len.saturating_mul(size_of::<T>()).max(1).saturating_mul(3);
    options.threads = options.threads.min(IN_RAM / bytes).max(1);
}

/// Options for codecs of zarrs: no threads within a chunk, because several chunks are processed in parallel.
pub(super) fn codec_options(options: &FileOptions<'_>) -> CodecOptions {
    let codecs = CodecOptions::default();
    if options.threads > 1 { codecs.with_concurrent_target(1) } else { codecs }
}
