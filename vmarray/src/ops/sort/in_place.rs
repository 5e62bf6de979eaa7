//! In-place MSD radix sort, for keys that do not fit twice in device memory. One device does the work, with
//! at most 10 GiB of scratch memory. The device reads and writes the keys of several channels (shares of
//! devices) in place, page by page.
//!
//! 1. The device distributes the keys to buckets by their most significant digit, one piece at a time. A
//!    bucket is a list of *blocks*, in the space of pieces that are already distributed. A bucket has at most
//!    one partial block, which is in scratch memory.
//! 2. The device gathers one bucket after the other, sorts it, and writes it to its final place. Before the
//!    write, blocks of other buckets that occupy this place move to free blocks. Buckets that are longer than
//!    a piece are written unsorted, and distributed again.
//!
//! After M. Axtmann, S. Witt, D. Ferizovic, P. Sanders, "In-Place Parallel Super Scalar Samplesort
//! (IPSSSSo)", 2017, which permutes its blocks before it sorts buckets.

use std::ops::Range;

use super::keys::KeyOrder;
use super::on_device::{KeysMemory, KeysPlace, Sorter};
use super::onesweep::{DIGITS, is_unsupported};
use crate::base::progress::Steps;
use crate::ops::executor::{ChannelShare, DeviceOutcome, Striping};

/// Least and greatest bytes of keys and values in a piece. The sort uses scratch memory for two pieces.
const PIECE_BYTES: Range<u64> = if cfg!(test) { 8 << 10..16 << 10 } else { 64 << 20..4 << 30 };
const BLOCKS_OF_PIECE: u64 = if cfg!(test) { 64 } else { 1024 };
/// Number of spare blocks: a partial one for each bucket, and the blocks at both ends of the range.
const SPARE_BLOCKS: u64 = DIGITS as u64 + 3;
/// Short buckets are sorted together, up to a piece divided by this number.
const TOGETHER: u64 = 16;

pub(super) fn sort(
    shares: &[ChannelShare<'_>],
    dealing: Striping,
    order: KeyOrder,
    steps: &Steps,
) -> DeviceOutcome {
    let sorter = match Sorter::new(&shares[0], order, steps) {
        Ok(sorter) => sorter,
        Err(error) if error.device_error().is_some_and(is_unsupported) => return DeviceOutcome::Unsupported,
        Err(error) => return DeviceOutcome::Failed(error),
    };
    let outcome = with_memory(&sorter, KeyHomes { shares, dealing });
    sorter.end();
    outcome
}

fn with_memory(sorter: &Sorter<'_>, homes: KeyHomes<'_, '_>) -> DeviceOutcome {
    let of_each = sorter.share.bytes_of_each();
    let keys: u64 = homes.shares.iter().map(|share| share.keys.count).sum();
    // Kernels need contiguous memory, so a piece must fit into the device's largest allocation.
    let largest = sorter.share.lane.device().info().largest_allocation_bytes.max(PIECE_BYTES.start);
    let mut piece_bytes = PIECE_BYTES.end.min(1 << largest.ilog2());
    let (block, memory) = loop {
        let block = piece_bytes / of_each / BLOCKS_OF_PIECE;
        let piece = block * BLOCKS_OF_PIECE;
        let wanted = [piece, piece, SPARE_BLOCKS * block];
        let memory: backend_api::Result<Vec<KeysMemory>> =
            wanted.into_iter().map(|keys| sorter.memory_for(keys)).collect();
        match memory {
            Ok(memory) => break (block, memory),
            Err(error) if !is_unsupported(&error) => return DeviceOutcome::Failed(error.into()),
            Err(_) if piece_bytes / 2 < PIECE_BYTES.start => return DeviceOutcome::Unsupported,
            Err(_) => piece_bytes /= 2,
        }
    };
    let [pieces @ .., spare] = &memory[..] else { return DeviceOutcome::Unsupported };
    let mut sort = InPlace {
        sorter,
        homes,
        block,
        piece: block * BLOCKS_OF_PIECE,
        beside: [pieces[0].place(), pieces[1].place()],
        spare: spare.place(),
        has_begun: false,
        failure: None,
    };
    let mut ranges: Vec<Range<u64>> = std::iter::once(0..keys).collect();
    while let Some(range) = ranges.pop() {
        match sort.range(&range) {
            Ok(longer) => ranges.extend(longer),
            Err(error) => return DeviceOutcome::Lost(error.into()),
        }
        match sort.failure {
            Some(error) if is_unsupported(&error) && !sort.has_begun => return DeviceOutcome::Unsupported,
            Some(error) => return DeviceOutcome::Failed(error.into()),
            None => {}
        }
    }
    DeviceOutcome::Done
}

/// The mapping from the number of a key to its address in home slots.
#[derive(Clone, Copy)]
struct KeyHomes<'s, 'a> {
    shares: &'s [ChannelShare<'a>],
    dealing: Striping,
}

impl<'s> KeyHomes<'s, '_> {
    /// Returns the address of key `number`, and the number of contiguous keys from there on, at most `keys`.
    fn first_of(&self, number: u64, keys: u64) -> (KeysPlace<'s>, u64) {
        let (share, own, here) = match self.shares {
            [share] => (share, number, keys),
            shares => {
                let Striping { page_len, channels, start } = self.dealing;
                let page_len = if channels == 1 { u64::MAX } else { page_len as u64 };
                let (channels, at) = (channels as u64, start as u64 + number);
                let (page, within) = (at / page_len, at % page_len);
                let own = page / channels * page_len + within;
                let of_channel = shares.iter().filter(|share| share.channel == page % channels);
                let share = of_channel
                    .rev()
                    .find(|share| share.first <= own)
                    .expect("a share contains the key, since the shares cover all keys");
                let number = own - share.first;
                (share, number, keys.min(page_len - within).min(share.keys.count - number))
            }
        };
        let (of, values) = (share.keys, share.values);
        let values = values.map(|of| of.start.plus(own * of.stride));
        (KeysPlace { keys: of.start.plus(own * of.stride), values }, here)
    }
}

/// The location of consecutive keys.
#[derive(Clone, Copy)]
enum KeysAt<'s> {
    /// In the home slots, from the key with this number on.
    Home(u64),
    Beside(KeysPlace<'s>),
}

struct InPlace<'s, 'a> {
    /// The sorter of the first channel.
    sorter: &'s Sorter<'a>,
    homes: KeyHomes<'s, 'a>,
    /// Number of keys in a block, and in a piece.
    block: u64,
    piece: u64,
    /// Scratch memory of two pieces, and of the spare blocks.
    beside: [KeysPlace<'s>; 2],
    spare: KeysPlace<'s>,
    /// True after the device has accepted the kernels.
    has_begun: bool,
    /// The first failure. Afterwards the sort only gathers the keys, so that none is lost.
    failure: Option<backend_api::Error>,
}

/// The keys of a bucket, in a list of blocks. All blocks are full except the last.
#[derive(Clone, Default)]
struct BlockList {
    blocks: Vec<usize>,
    keys: u64,
}

/// The buckets of a range, and its free blocks. Blocks of the range come first, then the spare blocks.
struct Buckets {
    first: u64,
    of_range: usize,
    all: Vec<BlockList>,
    free: Vec<usize>,
}

impl<'s> InPlace<'s, '_> {
    /// Sorts a range, or divides it into consecutive parts. Returns the parts that are still unsorted.
    ///
    /// # Errors
    /// After an error, some keys are lost.
    fn range(&mut self, range: &Range<u64>) -> backend_api::Result<Vec<Range<u64>>> {
        let keys = range.end - range.start;
        let counts = match self.counts(range) {
            Ok(counts) => counts,
            Err(error) => {
                self.failure = Some(error);
                return Ok(Vec::new());
            }
        };
        self.has_begun = true;
        if keys <= self.piece {
            let from = match self.side_by_side(range.start, keys) {
                Ok(from) => from,
                Err(error) => {
                    self.failure = Some(error);
                    return Ok(Vec::new());
                }
            };
            let sorted = self.sorter.sort(keys, &counts, from, self.beside[0]);
            let at = self.place_of(sorted);
            self.copy(&[(KeysAt::Beside(at), KeysAt::Home(range.start), keys)])?;
            return Ok(Vec::new());
        }
        let digits = counts.chunks_exact(DIGITS).enumerate();
        let Some((digit, counts)) = digits.rev().find(|(_, counts)| !counts.contains(&keys)) else {
            return Ok(Vec::new());
        };
        let mut buckets = Buckets {
            first: range.start,
            of_range: (keys / self.block) as usize,
            all: vec![BlockList::default(); DIGITS],
            free: Vec::new(),
        };
        buckets.free.extend((0..SPARE_BLOCKS as usize).map(|spare| buckets.of_range + spare));
        self.deal(&mut buckets, digit, keys)?;
        self.collect(buckets, counts)
    }

    /// Returns up to a piece of contiguous keys from a number on: in place, or as a copy.
    fn side_by_side(&self, number: u64, keys: u64) -> backend_api::Result<KeysPlace<'s>> {
        let (home, here) = self.homes.first_of(number, keys);
        if here == keys {
            return Ok(home);
        }
        self.copy_once(&[(KeysAt::Home(number), KeysAt::Beside(self.beside[1]), keys)])?;
        Ok(self.beside[1])
    }

    /// Counts the keys with each value of each digit in a range.
    fn counts(&self, range: &Range<u64>) -> backend_api::Result<Vec<u64>> {
        let (home, here) = self.homes.first_of(range.start, range.end - range.start);
        if here == range.end - range.start {
            return self.sorter.counts(home, here);
        }
        let mut all = Vec::new();
        for start in range.clone().step_by(self.piece as usize) {
            let keys = self.piece.min(range.end - start);
            let counts = self.sorter.counts(self.side_by_side(start, keys)?, keys)?;
            all.resize(counts.len(), 0);
            all.iter_mut().zip(counts).for_each(|(all, own)| *all += own);
        }
        Ok(all)
    }

    /// Records a failure that leaves the keys in place, and returns their location.
    fn place_of<'p>(
        &mut self,
        sorted: Result<KeysPlace<'p>, (KeysPlace<'p>, backend_api::Error)>,
    ) -> KeysPlace<'p> {
        sorted.unwrap_or_else(|(at, error)| {
            self.failure.get_or_insert(error);
            at
        })
    }

    /// Copies keys that exist only once. After a failure, tries again.
    fn copy(&mut self, copies: &[(KeysAt<'s>, KeysAt<'s>, u64)]) -> backend_api::Result<()> {
        self.copy_once(copies).or_else(|error| {
            self.failure.get_or_insert(error);
            self.copy_once(copies)
        })
    }

    fn copy_once(&self, copies: &[(KeysAt<'s>, KeysAt<'s>, u64)]) -> backend_api::Result<()> {
        let mut parts = Vec::new();
        for &(from, to, keys) in copies {
            let mut done = 0;
            while done < keys {
                let [(from, here), (to, there)] = [from, to].map(|place| match place {
                    KeysAt::Home(number) => self.homes.first_of(number + done, keys - done),
                    KeysAt::Beside(place) => (self.sorter.further(place, done), keys - done),
                });
                parts.push((from, to, here.min(there)));
                done += here.min(there);
            }
        }
        self.sorter.copy(&parts)
    }

    fn place(&self, buckets: &Buckets, block: usize, key: u64) -> KeysAt<'s> {
        match block.checked_sub(buckets.of_range) {
            Some(spare) => KeysAt::Beside(self.sorter.further(self.spare, spare as u64 * self.block + key)),
            None => KeysAt::Home(buckets.first + block as u64 * self.block + key),
        }
    }

    /// Distributes keys to buckets by a digit. If a step fails, stops early.
    fn deal(&mut self, buckets: &mut Buckets, digit: usize, keys: u64) -> backend_api::Result<()> {
        let mut dealt = 0;
        while dealt < keys && self.failure.is_none() {
            let here = self.piece.min(keys - dealt);
            let counts = self.side_by_side(buckets.first + dealt, here).and_then(|from| {
                let counts = self.sorter.counts(from, here)?;
                let counts = &counts[digit * DIGITS..][..DIGITS];
                self.sorter.pass(digit as u64, counts, (from, self.beside[0])).map(|()| counts.to_vec())
            });
            let counts = match counts {
                Ok(counts) => counts,
                // The device refused before it moved keys, so the keys are unchanged.
                Err(error) => {
                    self.failure.get_or_insert(error);
                    break;
                }
            };
            let freed = (dealt / self.block) as usize..((dealt + here) / self.block) as usize;
            buckets.free.extend(freed.rev());
            let (mut copies, mut at) = (Vec::new(), 0);
            for (number, mut rest) in counts.into_iter().enumerate() {
                while rest > 0 {
                    let filled = buckets.all[number].keys % self.block;
                    if filled == 0 {
                        let block = buckets
                            .free
                            .pop()
                            .expect("a block is free, since the distributed keys have freed as many blocks");
                        buckets.all[number].blocks.push(block);
                    }
                    let bucket = &mut buckets.all[number];
                    let block = bucket.blocks[bucket.blocks.len() - 1];
                    let moved = rest.min(self.block - filled);
                    bucket.keys += moved;
                    let from = KeysAt::Beside(self.sorter.further(self.beside[0], at));
                    copies.push((from, self.place(buckets, block, filled), moved));
                    (at, rest) = (at + moved, rest - moved);
                }
            }
            self.copy(&copies)?;
            dealt += here;
        }
        Ok(())
    }

    /// Sorts the keys of buckets, and writes them to their final positions. Returns the ranges that are still
    /// unsorted. After a failure it writes the keys in an unspecified order.
    fn collect(&mut self, mut buckets: Buckets, counts: &[u64]) -> backend_api::Result<Vec<Range<u64>>> {
        let (mut longer, mut to, mut number) = (Vec::new(), 0, 0);
        while number < DIGITS {
            // Process adjacent short buckets together as one set. A long bucket is a set of its own.
            let (mut keys, first) = (counts[number], number);
            number += 1;
            while number < DIGITS && keys + counts[number] <= self.piece / TOGETHER {
                keys += counts[number];
                number += 1;
            }
            if keys > self.piece || self.failure.is_some() {
                for of in first..number {
                    let mut bucket = std::mem::take(&mut buckets.all[of]);
                    let start = to;
                    to = self.write_unsorted(&mut buckets, &mut bucket, to)?;
                    longer.push(buckets.first + start..buckets.first + to);
                }
                continue;
            }
            if keys == 0 {
                continue;
            }
            let mut at = 0;
            for of in first..number {
                let mut bucket = std::mem::take(&mut buckets.all[of]);
                at += self.bring(&mut buckets, &mut bucket, at)?;
            }
            let home = KeysAt::Home(buckets.first + to);
            self.vacate(&mut buckets, to..to + keys, &mut BlockList::default())?;
            let counted = self.sorter.counts(self.beside[0], keys);
            let sorted = match counted {
                Ok(counts) => self.sorter.sort(keys, &counts, self.beside[0], self.beside[1]),
                Err(error) => Err((self.beside[0], error)),
            };
            let at = KeysAt::Beside(self.place_of(sorted));
            self.copy(&[(at, home, keys)])?;
            to += keys;
        }
        Ok(longer)
    }

    /// Gathers keys of a bucket in scratch memory, after earlier keys there, up to a piece. Returns their
    /// number.
    fn bring(&mut self, buckets: &mut Buckets, bucket: &mut BlockList, at: u64) -> backend_api::Result<u64> {
        let whole = ((self.piece - at) / self.block) as usize;
        let taken = if bucket.keys <= self.piece - at { bucket.blocks.len() } else { whole };
        let (mut copies, mut brought) = (Vec::new(), 0);
        for block in bucket.blocks.drain(..taken) {
            let keys = self.block.min(bucket.keys);
            let to = KeysAt::Beside(self.sorter.further(self.beside[0], at + brought));
            copies.push((self.place(buckets, block, 0), to, keys));
            buckets.free.push(block);
            (brought, bucket.keys) = (brought + keys, bucket.keys - keys);
        }
        self.copy(&copies)?;
        Ok(brought)
    }

    /// Writes the keys of a bucket to their final range, unsorted. Returns the end of the range.
    fn write_unsorted(
        &mut self,
        buckets: &mut Buckets,
        bucket: &mut BlockList,
        mut to: u64,
    ) -> backend_api::Result<u64> {
        while bucket.keys > 0 {
            let keys = self.bring(buckets, bucket, 0)?;
            self.vacate(buckets, to..to + keys, bucket)?;
            self.copy(&[(KeysAt::Beside(self.beside[0]), KeysAt::Home(buckets.first + to), keys)])?;
            to += keys;
        }
        Ok(to)
    }

    /// Moves blocks of all buckets out of the target of the next write. Earlier targets are already written.
    fn vacate(
        &mut self,
        buckets: &mut Buckets,
        keys: Range<u64>,
        bucket: &mut BlockList,
    ) -> backend_api::Result<()> {
        let end = (keys.end.div_ceil(self.block) as usize).min(buckets.of_range);
        buckets.free.retain(|block| *block >= end);
        let mut moves = Vec::new();
        let Buckets { all, free, .. } = buckets;
        for of in all.iter_mut().chain([bucket]) {
            for (at, block) in of.blocks.iter_mut().enumerate().filter(|(_, block)| **block < end) {
                let to = free.pop().expect("there is a free block for each moved block");
                let filled = self.block.min(of.keys - at as u64 * self.block);
                moves.push((std::mem::replace(block, to), to, filled));
            }
        }
        let copies: Vec<_> = moves
            .into_iter()
            .map(|(from, to, keys)| (self.place(buckets, from, 0), self.place(buckets, to, 0), keys))
            .collect();
        self.copy(&copies)
    }
}
