//! Memory layout of the external sort. The memory consists of *areas*, each as long as a piece (the elements
//! that a GPU sorts at once). Each area consists of strips. An area has as many strips as there are areas
//! with elements.
//!
//! ```text
//! | spare areas | elements: area by area, filled up with padding | spare strips |
//!   0 .. lanes    lanes .. lanes + strips                          as many as the spare areas have
//! ```

use std::iter::{once, successors};
use std::ops::Range;

/// Preferred number of pieces, if strips are then long enough. A power of two.
const STRIPS: usize = if cfg!(test) { 8 } else { 128 };
/// The least number of pieces for each GPU. The two additional pieces of RAM for each GPU are then at most a
/// sixteenth of its elements.
const STRIPS_OF_LANE: usize = if cfg!(test) { 4 } else { 32 };
const STRIPS_MIN: usize = 4;
/// The most pieces. With more, the search for the cuts would take too long.
const STRIPS_MAX: usize = if cfg!(test) { 64 } else { 512 };
/// Preferred least length of a strip in bytes, because each copy costs some microseconds on the bus.
const STRIP_BYTES: usize = if cfg!(test) { 64 } else { 512 << 10 };
/// Alignment of strips, in bytes.
const ALIGN: usize = if cfg!(test) { 1 } else { 64 };
/// Number of pieces in the memory of a GPU: one during upload, two for the sort, one during download.
pub(super) const PIECES_ON_CARD: usize = 4;

/// A job for a GPU: the elements of one piece, uploaded, sorted, and downloaded to another place in RAM.
#[derive(Clone, Debug)]
pub(super) struct PieceJob {
    pub from: Vec<Range<usize>>,
    pub to: Vec<Range<usize>>,
}

/// A copy within RAM: the source range, and the start of the target.
pub(super) type PlannedCopy = (Range<usize>, usize);

#[derive(Clone, Copy, Debug)]
pub(crate) struct AreaLayout {
    /// Number of areas with elements, of strips in an area, and of pieces.
    pub(super) strips: usize,
    pub(super) strip: usize,
    /// Number of lanes: GPUs, or channels of GPUs. Lane `n % lanes` runs job `n`.
    pub(super) lanes: usize,
}

/// Elements of a bucket that the second pass would overwrite, because they are in another bucket's area.
struct Stray {
    bucket: usize,
    at: Range<usize>,
}

impl AreaLayout {
    /// Returns the layout for `len` elements of `stride` bytes. It uses the first lanes, whose GPUs have
    /// memory for `rooms` elements.
    pub(super) fn new(len: usize, stride: usize, rooms: &[usize]) -> Option<Self> {
        let most = STRIPS.max((STRIPS_OF_LANE * rooms.len()).next_power_of_two());
        let wanted = (len * stride / STRIP_BYTES).isqrt().max(1);
        let first = (1 << wanted.ilog2()).clamp(STRIPS_MIN, most);
        let lanes = rooms.len().min(first / STRIPS_OF_LANE).max(1);
        let room = *rooms[..lanes].iter().min()?;
        let layout = |strips: usize| {
            let strip = len.div_ceil(strips * strips).next_multiple_of((ALIGN / stride).max(1));
            Self { strips, strip, lanes }
        };
        let numbers = successors(Some(first), |strips| Some(2 * strips)).take_while(|of| *of <= STRIPS_MAX);
        numbers.map(layout).find(|layout| PIECES_ON_CARD * layout.piece() <= room)
    }

    /// Number of elements in a piece, which is also the length of an area.
    pub(super) fn piece(&self) -> usize {
        self.strips * self.strip
    }

    /// Positions of the elements, and of the padding behind them.
    pub(super) fn home(&self) -> Range<usize> {
        self.lanes * self.piece()..(self.lanes + self.strips) * self.piece()
    }

    /// Number of positions in the layout.
    pub(super) fn end(&self) -> usize {
        self.home().end + self.lanes * self.piece()
    }

    fn at(&self, area: usize, strip: usize) -> Range<usize> {
        let start = area * self.piece() + strip * self.strip;
        start..start + self.strip
    }

    /// Returns the strip of an area that belongs to a piece. The strips of a piece are at different, evenly
    /// spread places of their areas. Each piece therefore has about equally many elements of each bucket,
    /// even if the elements consist of consecutive sorted runs.
    fn strip_of(&self, area: usize, piece: usize) -> usize {
        (piece + area * ((self.strips * 5 / 8) | 1)) % self.strips
    }

    /// Returns the jobs of the first pass. A piece consists of one strip of each area. The sorted piece
    /// replaces the previous piece of its lane. Its least elements go to the first area, and so on. The areas
    /// are shifted by `lanes` to the front, so that an element is about where the second pass reads its
    /// bucket.
    pub(super) fn first_pass(&self) -> Vec<PieceJob> {
        let &Self { strips, lanes, .. } = self;
        let to = |piece: usize, bucket: usize| match piece.checked_sub(lanes) {
            None => self.at(self.home().end / self.piece() + piece, bucket),
            Some(before) if bucket < lanes => self.at(bucket, before),
            Some(before) => self.at(bucket, self.strip_of(bucket - lanes, before)),
        };
        let job = |piece| PieceJob {
            from: (0..strips).map(|area| self.at(lanes + area, self.strip_of(area, piece))).collect(),
            to: (0..strips).map(|bucket| to(piece, bucket)).collect(),
        };
        (0..strips).map(job).collect()
    }

    /// Returns the jobs of the second pass, given the cuts of the sorted pieces. A bucket has the length of
    /// an area. It moves from the area of its number to a later area, which the previous bucket of its lane
    /// has left. The last bucket is therefore first. Before each job, `copy` moves elements of other buckets
    /// out of its target.
    pub(super) fn second_pass(
        &self,
        runs: &[PieceJob],
        cuts: &[Vec<usize>],
        copy: impl FnMut(&[PlannedCopy]),
    ) -> Vec<PieceJob> {
        let &Self { strips, lanes, .. } = self;
        let (mut own, mut strays) = (vec![Vec::new(); strips], Vec::new());
        for (bucket, cuts) in cuts.windows(2).enumerate() {
            for (run, PieceJob { to, .. }) in runs.iter().enumerate() {
                let (mut number, end) = (cuts[0][run], cuts[1][run]);
                while number < end {
                    let within = number % self.strip;
                    let len = (self.strip - within).min(end - number);
                    let start = to[number / self.strip].start + within;
                    self.sort_out(bucket, start..start + len, &mut own[bucket], &mut strays);
                    number += len;
                }
            }
        }
        self.gather(&mut own, strays, copy);
        let job = |bucket: usize| {
            let mut from = std::mem::take(&mut own[bucket]);
            from.sort_unstable_by_key(|range| range.start);
            from.dedup_by(|next, before| {
                let touch = before.end == next.start;
                if touch {
                    before.end = next.end;
                }
                touch
            });
            PieceJob { from, to: once(self.whole(bucket + lanes)).collect() }
        };
        (0..strips).rev().map(job).collect()
    }

    fn whole(&self, area: usize) -> Range<usize> {
        area * self.piece()..(area + 1) * self.piece()
    }

    fn area(&self, range: &Range<usize>) -> usize {
        range.start / self.piece()
    }

    fn sort_out(
        &self,
        bucket: usize,
        at: Range<usize>,
        own: &mut Vec<Range<usize>>,
        strays: &mut Vec<Stray>,
    ) {
        let area = self.area(&at);
        if area == bucket || area >= self.strips + self.lanes {
            own.push(at);
        } else {
            strays.push(Stray { bucket, at });
        }
    }

    /// Moves elements in areas of other buckets to the area of their own bucket.
    fn gather(
        &self,
        own: &mut [Vec<Range<usize>>],
        mut strays: Vec<Stray>,
        mut copy: impl FnMut(&[PlannedCopy]),
    ) {
        let &Self { strips, lanes, .. } = self;
        let mut free = self.free_after_first_pass();
        for area in 0..strips {
            let (mut moves, mut others) = (Vec::new(), Vec::new());
            for Stray { bucket, at } in strays.extract_if(.., |stray| self.area(&stray.at) == area) {
                let mut left = at.clone();
                while !left.is_empty() {
                    let rooms = once(bucket).chain(strips..strips + lanes).chain(area + 1..strips);
                    let to = rooms.into_iter().find(|room| !free[*room].is_empty());
                    let to = to.expect("the free places of other areas have room for an area");
                    let to = place(&mut left, &mut free[to], &mut moves);
                    self.sort_out(bucket, to, &mut own[bucket], &mut others);
                }
                free[area].push(at);
            }
            copy(&moves);
            strays.append(&mut others);
            moves.clear();
            for Stray { bucket, at } in strays.extract_if(.., |stray| stray.bucket == area) {
                let mut left = at.clone();
                while !left.is_empty() {
                    own[bucket].push(place(&mut left, &mut free[area], &mut moves));
                }
                free[self.area(&at)].push(at);
            }
            copy(&moves);
        }
    }

    /// Returns the free positions of each area after the first pass: the strips of each lane's last piece.
    fn free_after_first_pass(&self) -> Vec<Vec<Range<usize>>> {
        let &Self { strips, lanes, .. } = self;
        let last = strips - lanes..strips;
        let free = |area: usize| -> Vec<Range<usize>> {
            match area.checked_sub(lanes) {
                Some(of_home) if area < strips => {
                    last.clone().map(|piece| self.at(area, self.strip_of(of_home, piece))).collect()
                }
                Some(_) => once(self.whole(area)).collect(),
                None => last.clone().map(|piece| self.at(area, piece)).collect(),
            }
        };
        (0..strips + lanes).map(free).collect()
    }

    /// Returns copies that move all elements to their own memory, in any order.
    pub(super) fn back_home(&self, mut live: Vec<Range<usize>>) -> Vec<PlannedCopy> {
        let home = self.home();
        live.sort_unstable_by_key(|range| range.start);
        let (inside, outside): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|range| home.contains(&range.start));
        let (mut free, mut next) = (Vec::new(), home.start);
        for range in inside.into_iter().chain(once(home.end..home.end)) {
            if next < range.start {
                free.push(next..range.start);
            }
            next = range.end;
        }
        let mut moves = Vec::new();
        for mut range in outside {
            while !range.is_empty() {
                place(&mut range, &mut free, &mut moves);
            }
        }
        moves
    }
}

/// Moves as many elements from the start of a range as fit into the last free range. Returns where.
fn place(
    left: &mut Range<usize>,
    free: &mut Vec<Range<usize>>,
    moves: &mut Vec<PlannedCopy>,
) -> Range<usize> {
    let room = free.last_mut().expect("the free ranges have room for all moved elements");
    let len = left.len().min(room.len());
    let to = room.start..room.start + len;
    moves.push((left.start..left.start + len, to.start));
    (left.start, room.start) = (left.start + len, room.start + len);
    if room.start == room.end {
        free.pop();
    }
    to
}

/// Cuts sorted runs of equal length such that exactly `rank` keys are before the cuts. Returns the cut of
/// each run. `rank` is a positive multiple of the number of runs. Equal keys are divided about evenly.
pub(super) fn cut(runs: usize, len: usize, rank: usize, key: impl Fn(usize, usize) -> u64) -> Vec<usize> {
    // Search for the least key such that at least `rank` keys are less than or equal to it. If each run is
    // cut after `rank / runs` keys, the wanted key is between the last keys before these cuts. In each run,
    // keys before `low` are less than the wanted key, and keys from `high` on are greater.
    let (mut low, mut high) = (vec![0; runs], vec![len; runs]);
    let last = || (0..runs).map(|run| key(run, rank / runs - 1));
    let (mut least, mut most) = (last().min().unwrap_or(0), last().max().unwrap_or(0));
    while least < most {
        let middle = least.midpoint(most);
        let ends: Vec<usize> = (0..runs)
            .map(|run| {
                let (mut start, mut end) = (low[run], high[run]);
                while start < end {
                    let at = start.midpoint(end);
                    if key(run, at) <= middle { start = at + 1 } else { end = at }
                }
                start
            })
            .collect();
        if ends.iter().sum::<usize>() >= rank {
            (most, high) = (middle, ends);
        } else {
            (least, low) = (middle + 1, ends);
        }
    }
    // Divide the keys that equal the found key. Each run is cut at the same `level`, limited to the run's
    // equal keys. Some runs get one more key, until `rank` keys are before the cuts.
    let bounds = || low.iter().zip(&high);
    let before = |level: usize| bounds().map(|(low, high)| level.clamp(*low, *high)).sum::<usize>();
    let (mut level, mut above) = (0, len);
    while level < above {
        let middle = (level + above).div_ceil(2);
        if before(middle) <= rank { level = middle } else { above = middle - 1 }
    }
    let mut rest = rank - before(level);
    bounds()
        .map(|(low, high)| {
            let is_one_more = rest > 0 && (*low..*high).contains(&level);
            rest -= usize::from(is_one_more);
            level.clamp(*low, *high) + usize::from(is_one_more)
        })
        .collect()
}
