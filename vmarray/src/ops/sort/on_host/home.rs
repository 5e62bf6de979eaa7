//! Parallel writes to a [`HomeSlice`]: elements of a source in the program's memory, which other threads of
//! the program may read meanwhile.

use bytemuck::Pod;
use parking_lot::Mutex;

use crate::base::racy_slice::HomeSlice;
use crate::base::scoped_threads;

/// Number of elements that are computed before each write.
const BLOCK: usize = 512;

impl<T: Pod> HomeSlice<'_, T> {
    /// Divides the slice into parts of `len` elements; the last part may have fewer.
    pub(in crate::ops::sort) fn chunks_mut(
        &mut self,
        len: usize,
    ) -> impl ExactSizeIterator<Item = HomeSlice<'_, T>> + Send
    where
        T: Send,
    {
        let parts = self.len().div_ceil(len);
        let mut rest = self.reborrow();
        (0..parts).map(move |_| rest.take_first(len.min(rest.len())))
    }

    /// Overwrites all elements: element `i` becomes the result of `made` for `from[i]`.
    pub(in crate::ops::sort) fn write<F>(&mut self, from: &[F], made: impl Fn(&F) -> T)
    where
        T: Send,
    {
        let mut block = [T::zeroed(); BLOCK];
        for (mut part, from) in self.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
            let block = &mut block[..part.len()];
            block.iter_mut().zip(from).for_each(|(to, from)| *to = made(from));
            part.write_bytes(bytemuck::cast_slice(block));
        }
    }

    pub(in crate::ops::sort) fn fill(&mut self, value: T)
    where
        T: Send,
    {
        let block = [value; BLOCK];
        for mut part in self.chunks_mut(BLOCK) {
            part.write_bytes(bytemuck::cast_slice(&block[..part.len()]));
        }
    }

    pub(in crate::ops::sort) fn reverse(&mut self, threads: usize)
    where
        T: Send + Sync,
    {
        /// Number of elements at either end that a thread exchanges at a time.
        const PART: usize = if cfg!(test) { 70 } else { 64 << 10 };
        let half = self.len() / 2;
        let mut rest = self.reborrow();
        let mut parts = Vec::with_capacity(half.div_ceil(PART));
        for at in (0..half).step_by(PART) {
            let len = PART.min(half - at);
            let first = rest.take_first(len);
            let end = rest.len() - len;
            let (others, last) = rest.split_at(end);
            parts.push((first, last));
            rest = others;
        }
        let (threads, parts) = (threads.min(parts.len()), Mutex::new(parts));
        scoped_threads::together(threads, || {
            let mut blocks = [[T::zeroed(); BLOCK]; 2];
            loop {
                let Some((mut first, mut last)) = parts.lock().pop() else { break };
                while first.len() > 0 {
                    let len = BLOCK.min(first.len());
                    let end = last.len() - len;
                    let (others, mut two) = last.split_at(end);
                    let mut one = first.take_first(len);
                    last = others;
                    // Exchange the two blocks of elements, and reverse each of them.
                    let [of_one, of_two] = blocks.each_mut().map(|block| &mut block[..len]);
                    of_one.copy_from_slice(one.as_slice());
                    of_one.reverse();
                    of_two.iter_mut().zip(two.as_slice().iter().rev()).for_each(|(to, from)| *to = *from);
                    one.write_bytes(bytemuck::cast_slice(of_two));
                    two.write_bytes(bytemuck::cast_slice(of_one));
                }
            }
        });
    }
}
