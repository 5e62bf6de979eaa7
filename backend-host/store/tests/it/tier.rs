//! Tests of the cache on GPUs: reads return the same bytes as the file, and come from the expected place.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use backend_api::wrap::{Fault, Operation, SplitMix64};
use backend_api::{
    Commit, Device, DeviceBuffer, Elements, ErrorKind, Fill, Gather, HostBuffer, HostMemory, Queue,
    QueueHandle, Request, Result, Scatter, Search, Ticket, Transfer,
};
use backend_host::{HostDevice, SimulatedDevice};
use vmarray_conformance::wrap::{Counting, Faulty};
use vmarray_store::{FileDevice, StoreDevice, Tier};

/// Length of cached pages in most tests.
const PAGE: usize = 256;
const HOST_BYTES: usize = 1 << 16;

fn card(bytes: u64) -> Card {
    Arc::new(Counting::new(Faulty::new(HostDevice::builder().bytes(bytes).threads(2).build().unwrap())))
}

/// A device that counts and can be lost.
type Card = Arc<Counting<Faulty<HostDevice>>>;

fn tier<const N: usize>(cards: [&Card; N]) -> Tier {
    Tier::new(cards.map(Arc::clone)).page_bytes(PAGE)
}

fn file(tier: &Tier, bytes: u64) -> FileDevice {
    let builder = FileDevice::builder(env!("CARGO_TARGET_TMPDIR")).threads(2).tier(tier);
    builder.create_temporary(bytes).unwrap()
}

/// Memory of a device, and host memory to copy it to and from.
struct Rig<D: Device> {
    device: Arc<D>,
    queue: Queue<D>,
    host: HostBuffer<D>,
    memory: DeviceBuffer<D>,
}

impl<D: Device> Rig<D> {
    fn new(device: D, bytes: u64) -> Self {
        let device = Arc::new(device);
        Self {
            queue: Queue::new(&device).unwrap(),
            host: HostBuffer::new(&device, HOST_BYTES, HostMemory::Pageable).unwrap(),
            memory: DeviceBuffer::new(&device, bytes, Commit::Lazy).unwrap(),
            device,
        }
    }

    fn done(&self, ticket: Result<Ticket>) -> Result<()> {
        self.device.wait(ticket?)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.host.write(0, bytes);
        let (from, to) = (self.host.at(0), self.memory.at(offset));
        self.done(self.queue.submit(&[Transfer::Upload { from, to, bytes: bytes.len() as u64 }]))
    }

    fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.read_all(&[(offset, bytes)])
    }

    /// Reads ranges by one submission; returns them consecutively.
    fn read_all(&self, ranges: &[(u64, usize)]) -> Result<Vec<u8>> {
        let mut at = 0;
        let copies = ranges.iter().map(|&(offset, bytes)| {
            let copy = Transfer::Download {
                from: self.memory.at(offset),
                to: self.host.at(at),
                bytes: bytes as u64,
            };
            at += bytes as u64;
            copy
        });
        self.done(self.queue.submit(&copies.collect::<Vec<_>>()))?;
        let mut all = vec![0; at as usize];
        self.host.read(0, &mut all);
        Ok(all)
    }

    /// Copies within the memory.
    fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<()> {
        let (from, to) = (self.memory.at(from), self.memory.at(to));
        self.done(self.queue.submit(&[Transfer::Internal { from, to, bytes }]))
    }

    /// Gathers elements of `bytes` bytes.
    fn gather(&self, stride: u64, indices: &[u64]) -> Result<Vec<u8>> {
        let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_ne_bytes()).collect();
        self.host.write(0, &bytes);
        let elements = Elements { start: self.memory.at(0), count: self.memory.bytes() / stride, stride };
        let (indices_at, values) = (self.host.at(0), self.host.at(bytes.len() as u64));
        let count = indices.len() as u64;
        let gather = Gather { elements: elements.into(), indices: indices_at, count, values };
        self.done(self.queue.submit(&gather))?;
        let mut all = vec![0; indices.len() * stride as usize];
        self.host.read(bytes.len(), &mut all);
        Ok(all)
    }
}

fn numbered(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at / 256 * 7 + at) as u8).collect()
}

/// A device with these numbers in its memory, and no cached pages.
fn filled<D: Device>(device: D, bytes: u64) -> Rig<D> {
    let rig = Rig::new(device, bytes);
    let numbers = numbered(bytes);
    for (at, piece) in numbers.chunks(HOST_BYTES / 2).enumerate() {
        rig.write((at * HOST_BYTES / 2) as u64, piece).unwrap();
    }
    rig
}

#[test]
fn a_hit_does_not_read_the_file() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(vmarray_support::private_dir::random_name());
    let card = card(1 << 20);
    let tier = tier([&card]).bytes(4 * PAGE as u64);
    let builder = FileDevice::builder(&path).tier(&tier);
    let rig = filled(builder.create(8 * PAGE as u64).unwrap(), 8 * PAGE as u64);
    let numbers = numbered(8 * PAGE as u64);
    // Four pages fit; the fifth replaces none of them.
    for page in [0, 2, 4, 6, 7] {
        assert_eq!(rig.read(page * PAGE as u64, PAGE).unwrap(), numbers[page as usize * PAGE..][..PAGE]);
    }
    let before = tier.status();
    assert_eq!((before.hits, before.misses, before.admitted, before.evicted), (0, 5, 4, 0));
    assert_eq!((before.bytes, before.capacity_bytes), (4 * PAGE as u64, 4 * PAGE as u64));
    let uploaded = card.counts().work.upload_bytes;
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    let ranges: Vec<(u64, usize)> = [4, 0, 6, 2].map(|page| (page * PAGE as u64 + 3, 50)).into();
    let wanted: Vec<u8> =
        ranges.iter().flat_map(|range| numbers[range.0 as usize..][..50].to_vec()).collect();
    assert_eq!(rig.read_all(&ranges).unwrap(), wanted);
    assert_eq!(rig.read(PAGE as u64 - 1, 1).unwrap(), numbers[PAGE - 1..PAGE]);
    // Bytes outside the GPUs are lost, even next to a cached page.
    assert!(rig.read(5 * PAGE as u64, 1).is_err());
    assert!(rig.read(0, PAGE + 1).is_err());
    // All parts of a request form one submission.
    let work = card.counts().work;
    assert_eq!((work.upload_bytes, work.downloads), (uploaded, 4 + 1 + 1));
    assert_eq!(tier.status().hits, 4 + 1 + 1);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn writes_are_equal_on_the_card_and_in_the_file() {
    let card = card(1 << 20);
    let tier = tier([&card]);
    let rig = filled(file(&tier, 1 << 16), 1 << 16);
    let mut numbers = numbered(1 << 16);
    for page in 0..16 {
        rig.read(page * PAGE as u64, PAGE).unwrap();
    }
    let misses = tier.status().misses;
    // Test a part of a page, several pages, and uncached pages.
    for (offset, bytes) in [(5, 20), (3 * PAGE + 100, 3 * PAGE), (15 * PAGE, 2 * PAGE)] {
        let value: Vec<u8> = (0..bytes).map(|at| (at * 3) as u8).collect();
        rig.write(offset as u64, &value).unwrap();
        numbers[offset..offset + bytes].copy_from_slice(&value);
    }
    let written = card.counts().work.upload_bytes;
    assert_eq!(rig.read(0, 16 * PAGE).unwrap(), numbers[..16 * PAGE]);
    // Pages 0, 3 and 6 were written in part. The read misses them, and the tier caches them again at once.
    assert_eq!(
        (tier.status().misses, card.counts().work.upload_bytes),
        (misses + 3, written + 3 * PAGE as u64)
    );
    assert_eq!(rig.read(0, 16 * PAGE).unwrap(), numbers[..16 * PAGE]);
    assert_eq!(tier.status().misses, misses + 3, "all of it comes from the card");
    // Copy within the device, by kernels, and by lists.
    rig.copy(40 * PAGE as u64 + 7, PAGE as u64, 300).unwrap();
    numbers.copy_within(40 * PAGE + 7..40 * PAGE + 307, PAGE);
    rig.done(rig.queue.submit(&Fill { to: rig.memory.at(1000), bytes: 500, pattern: b"abc" })).unwrap();
    (0..500).for_each(|at| numbers[1000 + at] = b"abc"[at % 3]);
    assert_eq!(rig.read(0, 16 * PAGE).unwrap(), numbers[..16 * PAGE]);
    assert_eq!(rig.read(0, 1 << 15).unwrap(), numbers[..1 << 15]);
}

/// A single scan of a file displaces no page that is read repeatedly.
#[test]
fn a_scan_leaves_hot_pages() {
    const SLOTS: u64 = 128;
    let bytes = 16 * SLOTS * PAGE as u64;
    let tier = tier([&card(1 << 20)]).bytes(SLOTS * PAGE as u64);
    let rig = filled(file(&tier, bytes), bytes);
    let page = |page: u64| rig.read(page * PAGE as u64, 8).map(drop).unwrap();
    // First pages fill free slots; then repeated pages replace them.
    (0..SLOTS).for_each(|at| page(8 * SLOTS + at));
    for _ in 0..4 {
        (0..SLOTS / 4).for_each(|at| page(3 * at));
    }
    let warm = tier.status();
    (0..SLOTS / 4).for_each(|at| page(3 * at));
    assert_eq!(tier.status().misses, warm.misses, "a quarter of the room is for a quarter of the slots");
    // Read in pieces that end within pages, like the reads of kernels.
    for at in (0..bytes).step_by(1000) {
        rig.read(at, 1000.min((bytes - at) as usize)).unwrap();
    }
    assert_eq!((tier.status().admitted, tier.status().evicted), (warm.admitted, warm.evicted));
    let scanned = tier.status();
    (0..SLOTS / 4).for_each(|at| page(3 * at));
    assert_eq!(tier.status().misses, scanned.misses);
}

#[test]
fn lists_are_collected_by_the_card() {
    let card = card(1 << 20);
    let tier = tier([&card]);
    let rig = filled(file(&tier, 1 << 16), 1 << 16);
    let numbers = numbered(1 << 16);
    let mut random = SplitMix64::new(1);
    for stride in [8, 12, 32] {
        let count = (1 << 16) / stride;
        let indices: Vec<u64> = (0..500).map(|_| random.below(count)).collect();
        let wanted = |at: &u64| numbers[(at * stride) as usize..][..stride as usize].to_vec();
        let wanted: Vec<u8> = indices.iter().flat_map(wanted).collect();
        for _ in 0..2 {
            assert_eq!(rig.gather(stride, &indices).unwrap(), wanted);
        }
    }
    // All pages are cached now.
    let (before, misses) = (card.counts().work, tier.status().misses);
    rig.gather(8, &(0..1000).map(|at| at * 8 % 8192).collect::<Vec<_>>()).unwrap();
    let work = card.counts().work;
    assert_eq!((work.gathers - before.gathers, work.downloads), (1, before.downloads));
    assert_eq!(tier.status().misses, misses);
}

/// Elements of one list count as one use of their page: lists that scan a file, with a few elements a page,
/// displace no hot page.
#[test]
fn a_long_list_leaves_hot_pages() {
    const SLOTS: u64 = 128;
    let bytes = 16 * SLOTS * PAGE as u64;
    let tier = tier([&card(1 << 20)]).bytes(SLOTS * PAGE as u64);
    let rig = filled(file(&tier, bytes), bytes);
    (0..SLOTS).for_each(|page| drop(rig.read(page * PAGE as u64, 8).unwrap()));
    let words = PAGE as u64 / 8;
    for first in (SLOTS..16 * SLOTS).step_by(64) {
        let indices: Vec<u64> =
            [0, 7, 20].iter().flat_map(|at| (first..first + 64).map(move |page| page * words + at)).collect();
        rig.gather(8, &indices).unwrap();
    }
    let status = tier.status();
    assert_eq!((status.admitted, status.evicted), (SLOTS, 0));
}

#[test]
fn a_lost_card_loses_nothing() {
    let cards = [card(16 * PAGE as u64), card(16 * PAGE as u64)];
    let tier = tier(cards.each_ref());
    let rig = filled(file(&tier, 1 << 16), 1 << 16);
    let numbers = numbered(1 << 16);
    let all = || {
        (0..32).for_each(|page| {
            let at = page * PAGE;
            assert_eq!(rig.read(at as u64, PAGE).unwrap(), numbers[at..at + PAGE]);
        })
    };
    all();
    all();
    assert_eq!((tier.status().hits, tier.status().bytes), (32, 32 * PAGE as u64));
    cards[0].inner().lose();
    all();
    let one = tier.status();
    assert_eq!((one.lost.len(), one.capacity_bytes), (1, 16 * PAGE as u64));
    assert!(one.lost[0].device.contains("host RAM") && one.lost[0].reason.contains("lost"), "{one:?}");
    rig.write(10, b"written with one card").unwrap();
    assert_eq!(rig.read(10, 21).unwrap(), b"written with one card");
    rig.write(10, &numbers[10..31]).unwrap();
    cards[1].inner().lose();
    all();
    let none = tier.status();
    assert_eq!((none.lost.len(), none.capacity_bytes, none.bytes), (2, 0, 0));
    let hits = none.hits;
    all();
    assert_eq!(tier.status().hits, hits);
}

#[test]
fn a_card_without_room_is_reported() {
    let (full, other) = (card(1 << 20), card(1 << 20));
    let taken = full.allocate((1 << 20) - 10, Commit::Lazy).unwrap();
    let tier = tier([&full, &other]);
    let rig = filled(file(&tier, 1 << 14), 1 << 14);
    let status = tier.status();
    assert_eq!((status.lost.len(), status.capacity_bytes), (1, 1 << 20));
    assert!(status.lost[0].reason.contains("out of memory"), "{status:?}");
    assert_eq!(rig.read(100, 100).unwrap(), numbered(1 << 14)[100..200]);
    full.release(taken);
}

#[test]
fn cards_get_their_memory_back_and_pages_are_wiped() {
    let card = card(1 << 20);
    let tier = tier([&card]).bytes(1 << 14);
    let device = file(&tier, 1 << 16);
    device.wipe_on_release().unwrap();
    let rig = filled(device, 1 << 15);
    (0..64).for_each(|page| drop(rig.read(page * PAGE as u64, PAGE).unwrap()));
    assert_eq!((tier.status().bytes, card.memory().unwrap().free_bytes), (1 << 14, (1 << 20) - (1 << 14)));
    let Rig { device, memory, queue, host } = rig;
    drop(memory);
    assert_eq!(tier.status().bytes, 0);
    assert_eq!(card.counts().work.fill_bytes, 1 << 14);
    drop((queue, host, device));
    assert_eq!(card.memory().unwrap().free_bytes, 1 << 20);
}

/// The last page of memory is never cached, because the memory can grow.
#[test]
fn memory_grows_with_its_last_page() {
    let tier = tier([&card(1 << 20)]);
    let device = Arc::new(file(&tier, 1 << 16));
    let memory = DeviceBuffer::extensible(&device, 300, 1 << 15, Commit::Lazy).unwrap();
    let rig = Rig {
        queue: Queue::new(&device).unwrap(),
        host: HostBuffer::new(&device, HOST_BYTES, HostMemory::Pageable).unwrap(),
        memory,
        device,
    };
    rig.write(0, &[1; 300]).unwrap();
    for _ in 0..3 {
        assert_eq!(rig.read(0, 300).unwrap(), [1; 300]);
    }
    assert_eq!(tier.status().bytes, PAGE as u64);
    rig.memory.extend(2000, Commit::Lazy).unwrap();
    rig.write(300, &[2; 1700]).unwrap();
    for _ in 0..3 {
        assert_eq!(rig.read(290, 20).unwrap(), [[1; 10], [2; 10]].concat());
    }
    assert_eq!(tier.status().bytes, 2 * PAGE as u64);
}

/// A GPU that changes a byte of each copy to it, while enabled.
#[derive(Debug)]
struct Flipping {
    inner: HostDevice,
    flips: AtomicBool,
}

// SAFETY: every call goes to one device, which implements the contract; the added fill writes to memory that
// was a target already.
unsafe impl Device for Flipping {
    backend_api::forward! { self => self.inner;
        info memory create_queue release_queue allocate release allocate_host import_host release_host
        routes set_routing routing prepare
        kernel_facts poll wait wake order_after wipe_on_release
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let ticket = self.inner.submit(queue, request);
        let Request::Copies(transfers, _) = request else { return ticket };
        let uploads = transfers.iter().filter_map(|transfer| match transfer {
            Transfer::Upload { to, .. } => Some(*to),
            _ => None,
        });
        let flips = self.flips.load(Ordering::Relaxed);
        let flipped = uploads.filter(|_| flips).map(|to| Fill { to, bytes: 1, pattern: b"!" });
        flipped
            .fold(ticket, |ticket, fill| ticket.and_then(|_| self.inner.submit(queue, &Request::Fill(&fill))))
    }
}

#[test]
fn pages_damaged_on_a_card_are_read_from_the_file() {
    let inner = HostDevice::new(1 << 20).unwrap();
    let card = Arc::new(Flipping { inner, flips: AtomicBool::new(false) });
    let tier = Tier::new([card.clone()]).bytes(16 * PAGE as u64).page_bytes(PAGE).checksums(true);
    let rig = filled(file(&tier, 1 << 14), 1 << 14);
    let numbers = numbered(1 << 14);
    let all = || {
        for at in (0..16 * PAGE).step_by(PAGE / 2) {
            assert_eq!(rig.read(at as u64, PAGE / 2).unwrap(), numbers[at..at + PAGE / 2]);
        }
        let status = tier.status();
        (status.hits, status.misses, status.damaged)
    };
    assert_eq!(all(), (16, 16, 0));
    card.flips.store(true, Ordering::Relaxed);
    rig.write(5 * PAGE as u64, &numbers[5 * PAGE..6 * PAGE]).unwrap();
    // The page is read from the file and copied to the GPU again, which damages it again.
    assert_eq!(all(), (16 + 31, 16 + 1, 1));
    card.flips.store(false, Ordering::Relaxed);
    let (.., damaged) = all();
    assert_eq!((damaged, all().2, tier.status().bytes), (2, 2, 16 * PAGE as u64));
}

/// GPUs of all kinds, some of them failing.
fn any_tier(random: &mut SplitMix64) -> Tier {
    let count = 1 + random.below(3);
    let one = |random: &mut SplitMix64| -> Arc<dyn Device> {
        let bytes = (1 + random.below(12)) * PAGE as u64;
        match random.below(4) {
            0 => Arc::new(SimulatedDevice::builder(random.next()).bytes(bytes).build()),
            1 => {
                let faulty = Faulty::new(HostDevice::new(bytes).unwrap());
                let operation = random.pick(&[Operation::Submit, Operation::Gather, Operation::AllocateHost]);
                let fault = Fault::new(operation, ErrorKind::CopyFailed).from_call(1 + random.below(40));
                let is_late = random.below(2) == 0 && operation != Operation::AllocateHost;
                faulty.inject(if is_late { fault.reported_later() } else { fault });
                Arc::new(faulty)
            }
            _ => Arc::new(HostDevice::new(bytes).unwrap()),
        }
    };
    let cards: Tier = (0..count).map(|_| one(random)).collect();
    cards.page_bytes(PAGE).checksums(random.below(3) == 0)
}

/// Any program of copies and kernels gives the same results with and without a tier.
fn same_as_plain<D: Device>(tiered: Rig<D>, random: &mut SplitMix64) {
    let bytes = tiered.memory.bytes();
    let plain = FileDevice::builder(env!("CARGO_TARGET_TMPDIR")).create_temporary(bytes).unwrap();
    let plain = Rig::new(plain, bytes);
    plain.write(0, &tiered.read(0, bytes as usize).unwrap()).unwrap();
    // Choose some places more often than others.
    let range = |random: &mut SplitMix64, most: u64| {
        let length = 1 + random.below(most);
        let start = if random.below(2) == 0 { random.below(bytes) / 16 } else { random.below(bytes) };
        (start.min(bytes - length), length)
    };
    for _ in 0..60 {
        match random.below(8) {
            0 => {
                let (offset, length) = range(random, 3 * PAGE as u64);
                let mut value = vec![0; length as usize];
                random.fill(&mut value);
                tiered.write(offset, &value).unwrap();
                plain.write(offset, &value).unwrap();
            }
            1 => {
                let (from, length) = range(random, bytes / 4);
                let to = (from + length + random.below(bytes)) % (bytes - length);
                if from.abs_diff(to) < length {
                    continue;
                }
                tiered.copy(from, to, length).unwrap();
                plain.copy(from, to, length).unwrap();
            }
            2 => {
                let (offset, length) = range(random, 2 * PAGE as u64);
                let pattern = random.next().to_ne_bytes();
                let fill = |to| Fill { to, bytes: length, pattern: &pattern[..3] };
                tiered.done(tiered.queue.submit(&fill(tiered.memory.at(offset)))).unwrap();
                plain.done(plain.queue.submit(&fill(plain.memory.at(offset)))).unwrap();
            }
            3 => {
                let stride = random.pick(&[1, 4, 8, 12, 100, 300]);
                let indices: Vec<u64> = (0..200).map(|_| random.below(bytes / stride)).collect();
                assert_eq!(tiered.gather(stride, &indices).unwrap(), plain.gather(stride, &indices).unwrap());
            }
            4 => {
                let stride = random.pick(&[4, 8, 12]);
                let mut seen = HashSet::new();
                let indices =
                    (0..50).map(|_| random.below(bytes / stride)).filter(|index| seen.insert(*index));
                let indices: Vec<u8> = indices.flat_map(u64::to_ne_bytes).collect();
                scatter(&tiered, stride, &indices);
                scatter(&plain, stride, &indices);
            }
            5 => assert_eq!(count(&tiered, 3), count(&plain, 3)),
            _ => {
                let some = 1 + random.below(6);
                let ranges: Vec<(u64, usize)> = (0..some)
                    .map(|_| range(random, 2 * PAGE as u64))
                    .map(|(offset, length)| (offset, length as usize))
                    .collect();
                assert_eq!(tiered.read_all(&ranges).unwrap(), plain.read_all(&ranges).unwrap());
            }
        }
    }
    assert_eq!(tiered.read(0, bytes as usize).unwrap(), plain.read(0, bytes as usize).unwrap());
}

fn scatter<D: Device>(rig: &Rig<D>, stride: u64, indices: &[u8]) {
    rig.host.write(0, indices);
    let count = indices.len() as u64 / 8;
    let values: Vec<u8> = (0..count * stride).map(|at| at as u8).collect();
    rig.host.write(indices.len(), &values);
    let elements = Elements { start: rig.memory.at(0), count: rig.memory.bytes() / stride, stride };
    let (at, values) = (rig.host.at(0), rig.host.at(indices.len() as u64));
    rig.done(rig.queue.submit(&Scatter { elements: elements.into(), indices: at, count, values })).unwrap();
}

/// Number of bytes equal to `value`.
fn count<D: Device>(rig: &Rig<D>, value: u8) -> u64 {
    let elements = Elements { start: rig.memory.at(0), count: rig.memory.bytes(), stride: 1 };
    let answer = rig.host.at(0);
    let search = Search { elements, field_offset: 0, value: &[value], limit: 0, count_all: true, answer };
    rig.done(rig.queue.submit(&search)).unwrap();
    let mut bytes = [0; 8];
    rig.host.read(0, &mut bytes);
    u64::from_ne_bytes(bytes)
}

#[test]
fn random_programs_match_over_a_tier_and_over_a_file() {
    for seed in 0..40 {
        let mut random = SplitMix64::new(seed);
        let bytes = 20 * PAGE as u64 + random.below(10 * PAGE as u64);
        let tier = any_tier(&mut random);
        same_as_plain(filled(file(&tier, bytes), bytes), &mut random);
    }
}

#[test]
fn random_programs_match_over_checksums_and_over_a_file() {
    for seed in 200..220 {
        let mut random = SplitMix64::new(seed);
        // Each page of 16 KiB is several cached pages.
        let bytes = 30_000 + random.below(30_000);
        let builder = FileDevice::builder(env!("CARGO_TARGET_TMPDIR")).threads(2).checksums(true);
        let tier = any_tier(&mut random);
        let builder = if seed % 2 == 0 { builder.tier(&tier) } else { builder };
        same_as_plain(filled(builder.create_temporary(bytes).unwrap(), bytes), &mut random);
    }
}

#[test]
#[cfg(unix)]
fn random_programs_match_over_a_tier_and_over_a_store() {
    for seed in 100..120 {
        let mut random = SplitMix64::new(seed);
        let page_bytes = random.pick(&[50, 256, 1000]);
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(vmarray_support::private_dir::random_name());
        let store = StoreDevice::create(&path, page_bytes, 40, b"", [0; 3]).unwrap();
        std::fs::remove_file(path).unwrap();
        let tier = any_tier(&mut random);
        let rig = filled(store.with_tier(&tier), 40 * page_bytes as u64 - 7);
        same_as_plain(rig, &mut random);
    }
}

/// Threads read and write few pages through a tier of fewer slots. A reader sees all writes that ended before
/// it began, or later ones.
#[test]
fn no_read_returns_overwritten_contents() {
    const PAGES: u64 = 12;
    const WORDS: usize = PAGE / 8;
    let tier = tier([&card(3 * PAGE as u64), &card(2 * PAGE as u64)]);
    let device = Arc::new(file(&tier, PAGES * PAGE as u64));
    let memory = DeviceBuffer::new(&device, PAGES * PAGE as u64, Commit::Lazy).unwrap();
    let written: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (device, memory, written) = (&device, &memory, &written);
            scope.spawn(move || {
                let queue = Queue::new(device).unwrap();
                let host = HostBuffer::new(device, PAGE, HostMemory::Pageable).unwrap();
                let mut random = SplitMix64::new(thread);
                for step in 1..=3000_u64 {
                    // Each page has one writer.
                    if random.below(3) == 0 {
                        let page = thread + 6 * random.below(PAGES / 6);
                        host.write(0, &[step.to_ne_bytes(); WORDS].concat());
                        let to = memory.at(page * PAGE as u64);
                        let copy = Transfer::Upload { from: host.at(0), to, bytes: PAGE as u64 };
                        device.wait(queue.submit(&[copy]).unwrap()).unwrap();
                        written[page as usize].store(step, Ordering::Release);
                    } else {
                        let page = random.below(PAGES).min(random.below(PAGES));
                        let before = written[page as usize].load(Ordering::Acquire);
                        let (from, to) = (memory.at(page * PAGE as u64), host.at(0));
                        let copy = Transfer::Download { from, to, bytes: PAGE as u64 };
                        device.wait(queue.submit(&[copy]).unwrap()).unwrap();
                        let mut bytes = [0; PAGE];
                        host.read(0, &mut bytes);
                        for word in bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())) {
                            assert!(word >= before, "page {page} had {before}, and {word} was read");
                        }
                    }
                }
            });
        }
    });
    let status = tier.status();
    assert!(status.hits > 100 && status.admitted > 100 && status.evicted > 10, "{status:?}");
    assert!(status.lost.is_empty() && status.bytes <= status.capacity_bytes, "{status:?}");
}
