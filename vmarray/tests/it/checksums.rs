//! Tests of arrays with checksums on devices that flip bits.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vmarray::device::wrap::Fault;
use vmarray::device::{
    Device, DeviceSpan, ErrorKind as DeviceErrorKind, HostAllocation, HostBuffer, HostId, HostMemory, Queue,
    QueueProgress, Request, Ticket, Transfer,
};
use vmarray::host::HostDevice;
use vmarray::kernel::Own;
use vmarray::{AnyDevice, Builder, Error, Placement, Result, VirtualArray, device, prelude::*};
use vmarray_conformance::wrap::Faulty;

use crate::common::executor::block_on;
use crate::common::{Numbers, as_any, host};

const LEN: usize = 10_000;
const PAGE_LEN: usize = 100;
/// The page of the flipped bit, and an element that contains the bit.
const PAGE: usize = 42;
const FLIPPED: usize = PAGE * PAGE_LEN + 77 / 4;

/// A device that flips a bit of pages on command: in its memory, on upload or on download.
#[derive(Debug)]
struct Flipping {
    inner: Arc<HostDevice>,
    hosts: Mutex<HashMap<HostId, usize>>,
    /// Place of its last write of a page.
    newest: Mutex<Option<DeviceSpan<'static>>>,
    /// Number of next copies up, and down, with a flipped bit.
    up: AtomicU64,
    down: AtomicU64,
    /// Places of bits to flip when a copy down is done.
    under_way: Mutex<Vec<(Ticket, usize)>>,
}

impl Flipping {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(HostDevice::new(16 << 20).unwrap()),
            hosts: Mutex::default(),
            newest: Mutex::default(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            under_way: Mutex::default(),
        })
    }

    fn takes(count: &AtomicU64) -> bool {
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
    }

    /// Flips a bit of device memory.
    fn flip_at(&self, at: DeviceSpan<'_>) {
        let (queue, bytes) = (Queue::new(&self.inner).unwrap(), 1);
        let host = HostBuffer::new(&self.inner, 1, HostMemory::Pageable).unwrap();
        let down = Transfer::Download { from: at, to: host.at(0), bytes };
        self.inner.wait(queue.submit(&[down]).unwrap()).unwrap();
        let mut byte = [0];
        host.read(0, &mut byte);
        host.write(0, &[byte[0] ^ 16]);
        let up = Transfer::Upload { from: host.at(0), to: at, bytes };
        self.inner.wait(queue.submit(&[up]).unwrap()).unwrap();
    }

    fn flip_received(&self, done: Ticket) {
        let is_due =
            |(ticket, _): &mut (Ticket, usize)| ticket.queue == done.queue && ticket.value <= done.value;
        for (_, address) in self.under_way.lock().unwrap().extract_if(.., is_due) {
            let at: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: inside the target of the copy, which no code has read yet.
            unsafe { device::racy::change(at, 8, |word| word ^ 4 << 40) };
        }
    }

    fn note(&self, host: &HostAllocation) {
        self.hosts.lock().unwrap().insert(host.id(), host.address().as_ptr().expose_provenance());
    }
}

// SAFETY: every call goes to the inner device; a bit is flipped where the device writes anyway.
unsafe impl Device for Flipping {
    device::forward! { self => self.inner;
        info memory create_queue release_queue allocate allocate_extensible extend release release_host
        routes set_routing routing wipe_on_release sync prepare kernel_facts wake order_after
        reaches
    }
    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> device::Result<HostAllocation> {
        self.inner.allocate_host(bytes, kind).inspect(|host| self.note(host))
    }
    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> device::Result<HostAllocation> {
        // SAFETY: the caller has the same obligations.
        unsafe { self.inner.import_host(address, bytes, kind) }.inspect(|host| self.note(host))
    }
    fn submit(&self, queue: &device::QueueHandle, request: &Request<'_>) -> device::Result<Ticket> {
        let ticket = self.inner.submit(queue, request)?;
        let Request::Copies(transfers, _) = request else { return Ok(ticket) };
        for transfer in *transfers {
            match *transfer {
                Transfer::Upload { to, bytes, .. } if bytes > 100 => {
                    // SAFETY: used only while the array has its memory.
                    *self.newest.lock().unwrap() = Some(unsafe { to.plus(77).detach() });
                    if Self::takes(&self.up) {
                        self.inner.wait(ticket)?;
                        self.flip_at(to.plus(77));
                    }
                }
                Transfer::Download { to, bytes, .. } if bytes > 100 && Self::takes(&self.down) => {
                    let address = self.hosts.lock().unwrap()[&to.host()] + to.offset() as usize + 72;
                    self.under_way.lock().unwrap().push((ticket, address));
                }
                _ => {}
            }
        }
        Ok(ticket)
    }
    fn poll(&self, ticket: Ticket) -> device::Result<QueueProgress> {
        let polled = self.inner.poll(ticket)?;
        if polled == QueueProgress::Done {
            self.flip_received(ticket);
        }
        Ok(polled)
    }
    fn wait(&self, ticket: Ticket) -> device::Result<()> {
        self.inner.wait(ticket).inspect(|()| self.flip_received(ticket))
    }
}

/// An array of its indices with an empty cache, and its devices.
struct Scene {
    devices: Vec<Arc<Flipping>>,
    array: VirtualArray<u32>,
}

impl Scene {
    fn new(shares: &[u32], change: impl FnOnce(Builder<u32, AnyDevice>) -> Builder<u32, AnyDevice>) -> Self {
        let devices: Vec<_> = shares.iter().map(|_| Flipping::new()).collect();
        let builder = VirtualArray::<u32>::builder(PAGE_LEN).max_len(LEN);
        let builder = builder.devices(devices.iter().map(as_any)).page_len(PAGE_LEN).frames_per_channel(8);
        let builder = builder.placement(Placement::Ratios(shares.to_vec()));
        let mut array = change(builder.checksums(true)).build().unwrap();
        array.resize(LEN, 0).unwrap();
        array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
        array.evict(..).unwrap();
        Self { devices, array }
    }

    fn set_all(&self, count: impl Fn(&Flipping) -> &AtomicU64, to: u64) {
        self.devices.iter().for_each(|device| count(device).store(to, Ordering::Relaxed));
    }

    /// Writes the page back; returns its device and place.
    fn write_back(&self) -> (usize, DeviceSpan<'static>) {
        self.array.set(FLIPPED + 1, FLIPPED as u32 + 1).unwrap();
        self.devices.iter().for_each(|device| *device.newest.lock().unwrap() = None);
        self.array.evict(..).unwrap();
        let newest =
            |(number, device): (usize, &Arc<Flipping>)| Some((number, (*device.newest.lock().unwrap())?));
        self.devices.iter().enumerate().find_map(newest).unwrap()
    }

    fn flip(&self, (device, place): (usize, DeviceSpan<'static>)) {
        self.devices[device].flip_at(place);
    }

    /// Flips a bit of the page in device memory.
    fn flip_at_rest(&self) {
        self.flip(self.write_back());
    }

    /// Results of all ways to read the page; panics if a read value is wrong.
    fn ways(&self) -> Vec<(&'static str, Result<()>)> {
        let array = &self.array;
        let (first, value) = (PAGE * PAGE_LEN, FLIPPED as u32);
        let expect = |result: Result<u32>| result.map(|got| assert_eq!(got, value));
        let mut few = [0; 2 * PAGE_LEN];
        let mut ways = vec![
            ("get", expect(array.get(FLIPPED))),
            ("get_async", expect(block_on(array.get_async(FLIPPED)))),
            ("page", array.page(PAGE).map(|page| assert_eq!(page[FLIPPED - first], value))),
            (
                "page_async",
                block_on(array.page_async(PAGE)).map(|page| assert_eq!(page[FLIPPED - first], value)),
            ),
            ("page_mut", array.page_mut(PAGE).map(|page| assert_eq!(page[FLIPPED - first], value))),
            ("set", array.set(FLIPPED, value)),
            ("set_async", block_on(array.set_async(FLIPPED, value))),
            ("update", expect(array.update(FLIPPED, |got| got))),
            ("map", array.map(first..first + 9, |page| assert_eq!(page[0], first as u32))),
            ("cursor", expect(array.cursor().get(FLIPPED))),
            ("iter", array.iter().try_for_each(|got| got.map(drop))),
            ("to_vec", array.to_vec(..).map(|all| assert!(all.into_iter().eq(0..LEN as u32)))),
        ];
        let read = array.read(first - 50, &mut few);
        ways.push(("read", read.map(|()| assert_eq!(few[50 + FLIPPED - first], value))));
        let read = block_on(array.read_async(first - 50, &mut few));
        ways.push(("read_async", read.map(|()| assert_eq!(few[50 + FLIPPED - first], value))));
        let own = (std::process::id(), std::thread::current().id());
        let file = std::env::temp_dir().join(format!("vmarray-checksums-{own:?}"));
        ways.push(("save", array.save(&file)));
        assert_eq!(file.exists(), ways.last().unwrap().1.is_ok(), "a file has its name when it is whole");
        let _ = std::fs::remove_file(file);
        ways
    }
}

fn is_corrupted(error: &Error) -> bool {
    error.device_error().is_some_and(|error| error.kind() == DeviceErrorKind::Corrupted)
}

fn names(error: &Error) -> bool {
    let text = error.to_string();
    is_corrupted(error) && text.contains(&format!("page {PAGE} of the array")) && text.contains("host RAM")
}

fn wrong_pages<D: Device>(array: &VirtualArray<u32, D>) -> Vec<usize> {
    array.check_pages().unwrap().into_iter().map(|(page, _)| page).collect()
}

#[test]
fn without_checksums_a_flipped_bit_is_a_value() {
    let scene = Scene::new(&[1], |builder| builder.checksums(false));
    scene.flip_at_rest();
    assert_eq!(scene.array.get(FLIPPED).unwrap(), FLIPPED as u32 ^ 16 << 8);
}

#[test]
fn a_bit_that_flips_on_the_device_or_on_the_way_there_is_an_error_that_names_the_page() {
    for (shares, read_ahead, is_at_rest) in
        [(&[1_u32][..], false, true), (&[2, 1], true, true), (&[1, 1, 3], false, false), (&[1], true, false)]
    {
        let scene = Scene::new(shares, |builder| builder.read_ahead(read_ahead));
        if is_at_rest {
            scene.flip_at_rest();
        } else {
            scene.set_all(|device| &device.up, 1);
            scene.write_back();
            scene.set_all(|device| &device.up, 0);
        }
        for (way, outcome) in scene.ways() {
            let error = outcome.expect_err(way);
            assert!(names(&error), "{way}: {error}");
        }
        let wrong = scene.array.check_pages().unwrap();
        assert!(wrong.len() == 1 && wrong[0].0 == PAGE && names(&wrong[0].1), "{wrong:?}");
        // Other pages are intact, and a write of the whole page repairs the damaged one.
        for page in [0, PAGE - 1, PAGE + 1, 99] {
            assert_eq!(scene.array.get(page * PAGE_LEN + 5).unwrap(), (page * PAGE_LEN + 5) as u32);
        }
        let range = PAGE * PAGE_LEN..(PAGE + 1) * PAGE_LEN;
        if is_at_rest {
            scene.array.fill(range, 5).unwrap();
        } else {
            scene.array.write(range.start, &[5; PAGE_LEN]).unwrap();
        }
        scene.array.evict(..).unwrap();
        assert_eq!((scene.array.get(FLIPPED).unwrap(), wrong_pages(&scene.array)), (5, vec![]));
    }
}

#[test]
fn a_bit_that_flips_on_the_way_down_is_no_value_and_the_next_fetch_is_sound() {
    let scene = Scene::new(&[1, 2], |builder| builder);
    let mut errors = 0;
    for flips in [u64::MAX, 1, 2] {
        for round in 0..3 {
            scene.array.evict(..).unwrap();
            scene.set_all(|device| &device.down, flips);
            for (way, outcome) in scene.ways() {
                errors += usize::from(outcome.is_err());
                match outcome {
                    Err(error) => assert!(is_corrupted(&error), "{way}, round {round}: {error}"),
                    // A page that failed in a batch is fetched again alone.
                    Ok(()) => assert_ne!(flips, u64::MAX, "{way}"),
                }
            }
            scene.set_all(|device| &device.down, 0);
            for (way, outcome) in scene.ways() {
                outcome.expect(way);
            }
        }
    }
    assert!(errors > 50, "{errors}");
    assert_eq!(wrong_pages(&scene.array), [0_usize; 0]);
}

#[test]
fn scans_fail_at_the_page_alone() {
    let scene = Scene::new(&[1], |builder| builder.read_ahead(true));
    scene.flip_at_rest();
    for index in 0..LEN {
        let got = scene.array.get(index);
        if index / PAGE_LEN == PAGE {
            assert!(names(&got.unwrap_err()));
        } else {
            assert_eq!(got.unwrap(), index as u32);
        }
    }
    scene.array.prefetch(..).unwrap();
    assert_eq!(wrong_pages(&scene.array), [PAGE]);
}

/// While pages come and go, one of a thousand written pages gets a flipped bit.
#[test]
fn no_value_is_wrong_while_pages_come_and_go() {
    for seed in 0..20 {
        let mut random = Numbers::new(seed);
        let scene = Scene::new(&[1, 1], |builder| builder.frames_per_channel(2));
        let mut model: Vec<u32> = (0..LEN as u32).collect();
        let mut errors = 0;
        for step in 0..2000 {
            if step % 200 == 199 {
                scene.devices[random.below(2)].up.store(1, Ordering::Relaxed);
            }
            let (index, value) = (random.below(LEN), random.next() as u32);
            let outcome = match random.below(3) {
                0 => scene.array.set(index, value).map(|()| model[index] = value),
                1 => scene.array.get(index).map(|got| assert_eq!(got, model[index], "seed {seed}")),
                _ => {
                    let page = index / PAGE_LEN * PAGE_LEN;
                    let read = scene.array.to_vec(page..page + PAGE_LEN);
                    read.map(|got| assert_eq!(got, model[page..page + PAGE_LEN], "seed {seed}"))
                }
            };
            if let Err(error) = outcome {
                assert!(is_corrupted(&error), "{error}");
                errors += 1;
            }
        }
        let wrong = wrong_pages(&scene.array);
        assert!(errors == 0 || !wrong.is_empty());
        assert!((1..=10).contains(&wrong.len()), "{wrong:?}");
    }
}

#[vmarray::kernel]
fn plus_one(x: &mut Own<u32>) {
    x.set(x.get() + 1);
}

#[vmarray::kernel]
fn copied_twice(x: &Own<u32>, one: &mut Own<u32>, other: &mut Own<u32>) {
    one.set(x.get());
    other.set(x.get());
}

#[test]
fn device_writes_are_checked_from_the_next_copy_on() {
    type Change = fn(&mut VirtualArray<u32>) -> Result<()>;
    let changes: [(&str, Change); 6] = [
        ("launch", |array| plus_one::run((array,))),
        ("transform", |array| array.transform(.., Field::whole().set(Field::whole() + 1_u32))),
        ("fill", |array| array.fill(.., 3)),
        ("scatter", |array| array.scatter(&[FLIPPED, 17, LEN - 1], &[7, 8, 9])),
        ("sort", |array| array.sort_descending(..)),
        ("copy", |array| {
            let other = VirtualArray::<u32>::builder(LEN).devices([as_any(&Flipping::new())]).build()?;
            other.fill(.., 11)?;
            array.copy_from(0, &other)
        }),
    ];
    for (what, change) in changes {
        let mut scene = Scene::new(&[1, 1], |builder| builder);
        let place = scene.write_back();
        change(&mut scene.array).unwrap();
        assert_eq!(wrong_pages(&scene.array), [0_usize; 0], "{what}");
        // The page was fetched, so it has a checksum now.
        scene.flip(place);
        assert_eq!(wrong_pages(&scene.array), [PAGE], "{what}");
    }
}

/// A scatter keeps the checksums of all pages outside its list.
#[test]
fn a_scatter_takes_no_checksums_from_other_pages() {
    let scene = Scene::new(&[1, 1], |builder| builder);
    scene.flip_at_rest();
    scene.array.scatter(&[17, 4500, LEN - 1], &[1, 2, 3]).unwrap();
    assert_eq!(wrong_pages(&scene.array), [PAGE]);
}

#[test]
fn failed_write_backs_leave_no_wrong_checksum() {
    for later in [false, true] {
        let device = Arc::new(Faulty::new(host()));
        let builder = VirtualArray::<u32>::builder(LEN).devices([as_any(&device)]).page_len(PAGE_LEN);
        let array = builder.frames_per_channel(8).checksums(true).build().unwrap();
        array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
        array.evict(..).unwrap();
        array.update(FLIPPED, |x| x + 1).unwrap();
        let fault = Fault::anywhere(DeviceErrorKind::CopyFailed);
        device.inject(if later { fault.reported_later() } else { fault });
        assert!(array.evict(..).is_err());
        device.clear();
        assert_eq!(array.sum(.., Field::whole()).unwrap(), (0..LEN as i128).sum::<i128>() + 1);
        assert_eq!(array.get(FLIPPED).unwrap(), FLIPPED as u32 + 1);
        assert_eq!(wrong_pages(&array), [0_usize; 0]);
    }
}

/// Copies between arrays with and without checksums, on the same and on different devices.
#[test]
fn arrays_with_checksums_work_with_others() {
    let devices = [as_any(&Flipping::new()), as_any(&Flipping::new())];
    let build = |is_checked, page_len| {
        let builder = VirtualArray::<u32>::builder(LEN).devices(devices.clone()).page_len(page_len);
        let array = builder.frames_per_channel(4).checksums(is_checked).build().unwrap();
        array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
        array.evict(..).unwrap();
        array
    };
    let all = [build(false, 100), build(true, 100), build(true, 64), build(false, 128)];
    let mut random = Numbers::new(3);
    let mut models = vec![(0..LEN as u32).collect::<Vec<_>>(); all.len()];
    for step in 0..60 {
        let (from, to) = (random.below(all.len()), random.below(all.len()));
        let range = random.range(LEN);
        let at = random.below(LEN - range.len() + 1);
        let source = all[from].section(range.clone()).unwrap();
        match random.below(5) {
            0 => {
                all[to].copy_from(at, source).unwrap();
                let values = models[from][range.clone()].to_vec();
                models[to][at..at + range.len()].copy_from_slice(&values);
            }
            1 if from != to => {
                // Use two results, possibly on one device through different device objects.
                let third = (0..all.len()).find(|third| ![from, to].contains(third)).unwrap();
                let target = |number: usize| all[number].section_mut(at..at + range.len()).unwrap();
                copied_twice::run((source, target(to), target(third))).unwrap();
                let values = models[from][range.clone()].to_vec();
                for number in [to, third] {
                    models[number][at..at + range.len()].copy_from_slice(&values);
                    assert_eq!(all[number].to_vec(..).unwrap(), models[number], "step {step}");
                }
            }
            4 if from != to => {
                let joined = all[from].join((&all[to],)).unwrap();
                let (x, y) = joined.rows();
                let rows = range.clone().map(|row| (models[from][row], models[to][row]));
                let expected: i128 = rows.map(|(x, y)| i128::from(x.wrapping_add(y))).sum();
                assert_eq!(
                    joined.sum(range, x.get(Field::whole()) + y.get(Field::whole())).unwrap(),
                    expected,
                    "step {step}"
                );
            }
            2 => {
                let list: Vec<usize> = (0..300).map(|_| random.below(LEN)).collect();
                let expected: Vec<u32> = list.iter().map(|index| models[to][*index]).collect();
                assert_eq!(all[to].gather(&list).unwrap(), expected, "step {step}");
            }
            _ => {
                let value = random.next() as u32;
                all[to].transform(range.clone(), Field::whole().set(value)).unwrap();
                models[to][range.clone()].fill(value);
            }
        }
        assert_eq!(all[to].to_vec(..).unwrap(), models[to], "step {step}");
    }
    for (array, model) in all.iter().zip(models) {
        assert_eq!(wrong_pages(array), [0_usize; 0]);
        assert_eq!(array.to_vec(..).unwrap(), model);
    }
}

/// Pages that are mirrored or moved.
#[test]
fn pages_that_move_or_have_copies_keep_their_checksums() {
    let hosts = || -> Vec<Arc<AnyDevice>> { (0..4).map(|_| Arc::new(host().into())).collect() };
    let values: Vec<u32> = (0..LEN as u32).collect();
    let build = |placement: Placement, movable: bool| {
        let builder = VirtualArray::<u32>::builder(LEN).devices(hosts()).page_len(PAGE_LEN);
        let builder = builder.placement(placement).movable(movable).frames_per_channel(4);
        let array = builder.checksums(true).build().unwrap();
        array.write(0, &values).unwrap();
        array.evict(..).unwrap();
        array
    };
    let moved = build(Placement::Equal, true);
    moved.rebalance(hosts()).unwrap();
    for array in [moved, build(Placement::Mirrored, false)] {
        assert_eq!(wrong_pages(&array), [0_usize; 0]);
        assert_eq!(array.to_vec(..).unwrap(), values);
        array.transform(.., Field::whole().set(Field::whole() * 2_u32)).unwrap();
        assert_eq!(wrong_pages(&array), [0_usize; 0]);
        assert!(array.to_vec(..).unwrap().into_iter().eq(values.iter().map(|value| value * 2)));
    }
}
