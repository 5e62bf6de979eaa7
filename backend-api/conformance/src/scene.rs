//! [`Scene`], a test helper: executes requests on a device and on a naive model, and compares both memories.

use backend_api::expr::{Action, Geometry, Partial, Program};
use backend_api::{
    Compute, Device, DeviceBuffer, DeviceSpan, Elements, ErrorKind, Fill, Gather, HostBuffer, HostSpan,
    Queue, Request, Result, Route, Scatter, Search, Ticket, Transfer,
};

pub(super) use IndexedKind::{Gathered, Scattered};

use super::context::{assert_bytes, assert_holds};
use super::{Context, reference};

/// The two kinds of requests that access elements by index: gather and scatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexedKind {
    Gathered,
    Scattered,
}

/// A test helper: a queue, a device buffer and a host buffer, with the expected contents of both buffers.
/// Both buffers begin with different random bytes, so that the comparison detects a copy from or to a wrong
/// offset.
pub(super) struct Scene<'a> {
    pub cx: &'a Context<'a>,
    // Rust drops fields in this order. The drop of the queue waits for its work, so the queue must come
    // before the memory.
    pub queue: Queue<dyn Device>,
    pub memory: DeviceBuffer<dyn Device>,
    pub host: HostBuffer<dyn Device>,
    mirror: HostBuffer<dyn Device>,
    /// The expected contents of the device memory, computed by the reference implementation.
    pub expected: Vec<u8>,
    /// The expected contents of the host memory, computed by the reference implementation.
    pub expected_host: Vec<u8>,
    last: Option<Ticket>,
}

impl<'a> Scene<'a> {
    pub fn new(cx: &'a Context<'a>, memory_bytes: usize, host_bytes: usize) -> Self {
        let host = cx.host(host_bytes);
        Self::with_host(cx, memory_bytes, host)
    }

    pub fn with_host(cx: &'a Context<'a>, memory_bytes: usize, host: HostBuffer<dyn Device>) -> Self {
        let mut scene = Self {
            cx,
            queue: cx.queue(),
            memory: cx.memory(memory_bytes as u64),
            mirror: cx.host(memory_bytes),
            expected: cx.noise(1, memory_bytes),
            expected_host: cx.noise(2, host.bytes()),
            host,
            last: None,
        };
        scene.host.write(0, &scene.expected_host);
        scene.mirror.write(0, &scene.expected);
        let from = scene.mirror.at(0);
        let whole = Transfer::Upload { from, to: scene.memory.at(0), bytes: memory_bytes as u64 };
        let ticket = scene.queue.submit(&[whole]);
        scene.settle(ticket.expect("the first upload to the scene's memory must succeed"));
        scene
    }

    /// Returns the position at `offset` bytes in the device memory. The result does not borrow `self`, so the
    /// caller can pass it to methods that change `self`.
    pub fn at(&self, offset: u64) -> DeviceSpan<'static> {
        // SAFETY: the scene owns the memory, and only checks use its places.
        unsafe { self.memory.at(offset).detach() }
    }

    /// Returns the position at `offset` bytes in the host memory. The result does not borrow `self`, so the
    /// caller can pass it to methods that change `self`.
    pub fn host_at(&self, offset: u64) -> HostSpan<'static> {
        // SAFETY: as above.
        unsafe { self.host.at(offset).detach() }
    }

    pub fn upload(&self, from: usize, to: usize, bytes: usize) -> Transfer<'static> {
        let (from, to) = (self.host_at(from as u64), self.at(to as u64));
        Transfer::Upload { from, to, bytes: bytes as u64 }
    }

    pub fn download(&self, from: usize, to: usize, bytes: usize) -> Transfer<'static> {
        let (from, to) = (self.at(from as u64), self.host_at(to as u64));
        Transfer::Download { from, to, bytes: bytes as u64 }
    }

    pub fn internal(&self, from: usize, to: usize, bytes: usize) -> Transfer<'static> {
        let (from, to) = (self.at(from as u64), self.at(to as u64));
        Transfer::Internal { from, to, bytes: bytes as u64 }
    }

    /// Submits copies between this test's device memory and host memory, and applies them to the expected
    /// contents. Does not wait for the device.
    #[track_caller]
    pub fn submit(&mut self, transfers: &[Transfer<'_>]) -> Ticket {
        let ticket = self.queue.submit(transfers).expect("valid copies must succeed");
        self.expect_copies(ticket, transfers)
    }

    /// Submits copies like [`submit`](Self::submit), and requests the copy method `route` for them.
    #[track_caller]
    pub fn submit_by(&mut self, route: Route, transfers: &[Transfer<'_>]) -> Ticket {
        let ticket =
            self.queue.device().submit(self.queue.handle(), &Request::Copies(transfers, Some(route)));
        self.expect_copies(ticket.expect("valid copies by any route must succeed"), transfers)
    }

    fn expect_copies(&mut self, ticket: Ticket, transfers: &[Transfer<'_>]) -> Ticket {
        for transfer in transfers {
            let range = |from: u64, bytes: u64| from as usize..(from + bytes) as usize;
            match *transfer {
                Transfer::Upload { from, to, bytes } => self.expected[range(to.offset(), bytes)]
                    .copy_from_slice(&self.expected_host[range(from.offset(), bytes)]),
                Transfer::Download { from, to, bytes } => self.expected_host[range(to.offset(), bytes)]
                    .copy_from_slice(&self.expected[range(from.offset(), bytes)]),
                Transfer::Internal { from, to, bytes } => {
                    self.expected.copy_within(range(from.offset(), bytes), to.offset() as usize);
                }
            }
        }
        self.last = Some(ticket);
        ticket
    }

    /// Submits a fill of device memory from byte `to` on, and applies it to the expected contents.
    #[track_caller]
    pub fn fill(&mut self, to: usize, bytes: usize, pattern: &[u8]) -> Ticket {
        let at = self.memory.at(to as u64);
        let ticket =
            self.queue.submit(&Fill { to: at, bytes: bytes as u64, pattern }).expect("the fill must succeed");
        reference::fill(&mut self.expected[to..to + bytes], pattern);
        self.last = Some(ticket);
        ticket
    }

    /// Returns `count` elements of `stride` bytes each, from byte `start` of the device memory on.
    pub fn elements(&self, start: usize, count: usize, stride: usize) -> Elements<'static> {
        Elements { start: self.at(start as u64), count: count as u64, stride: stride as u64 }
    }

    fn bytes_of(&self, elements: &Elements<'_>) -> std::ops::Range<usize> {
        let start = elements.start.offset() as usize;
        start..start + (elements.count * elements.stride) as usize
    }

    /// Searches `elements` for `value` at byte `field_offset` of each, and compares the answer at byte
    /// `answer` of host memory with the reference. For `limit` and `count_all`, see [`Search`].
    #[track_caller]
    pub fn search(
        &mut self,
        elements: Elements<'_>,
        (field_offset, value): (usize, &[u8]),
        (limit, count_all): (u64, bool),
        answer: usize,
    ) {
        let size = value.len();
        let what = format!(
            "search for {size} bytes at byte {field_offset} of {elements:?}, limit {limit}, count_all {count_all}"
        );
        let (at, offset) = (self.host.at(answer as u64), field_offset as u64);
        let search = Search { elements, field_offset: offset, value, limit, count_all, answer: at };
        let ticket = self.queue.submit(&search).expect(&what);
        self.settle(ticket);
        let range = self.bytes_of(&elements);
        let stride = elements.stride as usize;
        let truth = reference::search(&self.expected[range], stride, field_offset, value, limit);
        let answer_bytes = Search::answer_bytes(limit.min(elements.count)) as usize;
        // The contract does not specify the bytes after the listed indices, so accept the device's bytes.
        self.host.read(answer, &mut self.expected_host[answer..answer + answer_bytes]);
        let truth = [&[truth.total, truth.indices.len() as u64], &truth.indices[..]].concat();
        assert_found(&what, &self.indices(answer, answer_bytes / 8), &truth, count_all);
    }

    /// Executes a compute request on the device, waits for it, and compares its answer with the reference
    /// implementation's. Returns early if the device does not support a type of the program.
    #[track_caller]
    pub fn compute(
        &mut self,
        program: &Program,
        sources: &[Elements<'_>],
        geometry: Geometry,
        action: Action<'_>,
        what: &str,
    ) {
        let compute = &Compute { program, sources, geometry, action };
        let ticket = match self.queue.submit(compute) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return,
            ticket => ticket.expect(what),
        };
        self.settle(ticket);
        let ranges: Vec<_> = compute.sources.iter().map(|source| self.bytes_of(source)).collect();
        let mut sources: Vec<_> = ranges.iter().map(|range| self.expected[range.clone()].to_vec()).collect();
        let truth = reference::compute(compute, &mut sources);
        for (at, range) in ranges.into_iter().enumerate().filter(|(at, _)| compute.writes(*at)) {
            self.expected[range].copy_from_slice(&sources[at]);
        }
        let Some(answer) = compute.answer() else { return };
        let (at, bytes) = (answer.offset() as usize, compute.answer_bytes() as usize);
        // The contract does not specify the bytes after the answer's end, so accept the device's bytes.
        self.host.read(at, &mut self.expected_host[at..at + bytes]);
        let words = self.indices(at, bytes / 8);
        match compute.action {
            Action::Find { count_all, .. } => assert_found(what, &words, &truth, count_all),
            Action::Histogram { .. } => assert_eq!(words, truth, "{what}"),
            Action::Sum { value, .. } => {
                let [found, truth] = assert_counts(what, &words, &truth);
                if compute.program.types()[value.at()].is_float() {
                    assert_eq!(Partial::sum_of_floats(&found), Partial::sum_of_floats(&truth), "{what}");
                } else {
                    assert_eq!(Partial::sum_of_integers(&found), Partial::sum_of_integers(&truth), "{what}");
                }
            }
            Action::Extremes { least, greatest, .. } => {
                let [found, truth] = assert_counts(what, &words, &truth);
                if least {
                    assert_eq!(Partial::least(&found), Partial::least(&truth), "{what}: the least");
                }
                if greatest {
                    assert_eq!(Partial::greatest(&found), Partial::greatest(&truth), "{what}: the greatest");
                }
            }
            Action::Store { .. } => {}
        }
    }

    /// Returns the partial results that a compute request has written at byte `at` of the host memory.
    pub fn partials(&self, at: usize) -> Vec<Partial> {
        let mut bytes = vec![0; Compute::partials_bytes() as usize];
        self.host.read(at, &mut bytes);
        Partial::list(&words(&bytes))
    }

    /// Writes bytes to device memory by a copy from a separate host buffer, and to the expected contents.
    /// Waits for the copy.
    #[track_caller]
    pub fn put(&mut self, to: usize, bytes: &[u8]) {
        self.mirror.write(0, bytes);
        let (from, at) = (self.mirror.at(0), self.memory.at(to as u64));
        let ticket = self.queue.submit(&[Transfer::Upload { from, to: at, bytes: bytes.len() as u64 }]);
        self.settle(ticket.expect("the upload must succeed"));
        self.expected[to..to + bytes.len()].copy_from_slice(bytes);
    }

    /// Replaces this test's queue by `queue`, and orders new work after all work of the previous queue.
    /// Returns the previous queue.
    #[track_caller]
    pub fn go_on_in(&mut self, queue: Queue<dyn Device>) -> Queue<dyn Device> {
        if let Some(last) = self.last {
            queue.order_after(last).expect("`order_after` must accept a ticket of another queue");
        }
        std::mem::replace(&mut self.queue, queue)
    }

    /// Writes indices to host memory at byte `at`, and to the expected contents.
    pub fn write_indices(&mut self, at: usize, indices: &[u64]) {
        let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_ne_bytes()).collect();
        self.write_host(at, &bytes);
    }

    /// Writes bytes to host memory at byte `at`, and to the expected contents. No work in flight may read
    /// this host memory.
    pub fn write_host(&mut self, at: usize, bytes: &[u8]) {
        self.host.write(at, bytes);
        self.write_host_expected(at, bytes);
    }

    /// Writes bytes only to the expected contents of host memory, for work that the check itself submits.
    pub fn write_host_expected(&mut self, at: usize, bytes: &[u8]) {
        self.expected_host[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Submits a gather or scatter to the device, but does not change the expected contents. `places` are the
    /// offsets in bytes of the indices and of the values in host memory.
    pub fn submit_indexed(
        &self,
        by: IndexedKind,
        elements: Elements<'_>,
        count: usize,
        places: [usize; 2],
    ) -> Result<Ticket> {
        let [indices, values] = places.map(|place| self.host.at(place as u64));
        let count = count as u64;
        match by {
            Gathered => self.queue.submit(&Gather { elements: elements.into(), indices, count, values }),
            Scattered => self.queue.submit(&Scatter { elements: elements.into(), indices, count, values }),
        }
    }

    /// Submits a gather or scatter to the device as [`submit_indexed`](Self::submit_indexed) does, and
    /// applies it to the expected contents. Does not wait for the device.
    #[track_caller]
    pub fn indexed(&mut self, by: IndexedKind, of: Elements<'_>, count: usize, places: [usize; 2]) -> Ticket {
        let ticket =
            self.submit_indexed(by, of, count, places).expect("the gather or scatter must be accepted");
        let (range, list) = (self.bytes_of(&of), self.indices(places[0], count));
        let (stride, device) = (of.stride as usize, &mut self.expected[range]);
        let values = &mut self.expected_host[places[1]..places[1] + count * stride];
        let done = match by {
            Gathered => reference::gather(device, stride, &list).map(|found| values.copy_from_slice(&found)),
            Scattered => reference::scatter(device, stride, &list, values),
        };
        done.expect("a gather or scatter with valid indices must succeed");
        self.last = Some(ticket);
        ticket
    }

    fn indices(&self, at: usize, count: usize) -> Vec<u64> {
        words(&self.expected_host[at..at + count * 8])
    }

    /// Waits for the submission that returned the ticket. Panics if the work failed.
    #[track_caller]
    pub fn settle(&mut self, ticket: Ticket) {
        self.cx.device().wait(ticket).expect("the work must succeed");
        self.last = None;
    }

    /// Waits for all work that this test has submitted.
    #[track_caller]
    pub fn finish(&mut self) {
        if let Some(last) = self.last.take() {
            self.settle(last);
        }
    }

    /// Waits for all work, and compares all memory with the expected contents.
    #[track_caller]
    pub fn assert_as_expected(&mut self, what: &str) {
        self.finish();
        assert_bytes(&format!("{what}: device memory"), &self.contents(), &self.expected);
        if let Some(direct) = self.cx.device().direct_reads() {
            // Read the memory in two parts, so that the second part starts at an arbitrary alignment.
            let mut read = vec![0x5C; self.expected.len()];
            let (first, second) = read.split_at_mut(self.expected.len() / 3);
            let place = self.memory.at(first.len() as u64);
            direct
                .read_directly(self.memory.at(0), first)
                .expect("a direct read of the first third must succeed");
            direct.read_directly(place, second).expect("a direct read of the rest must succeed");
            assert_bytes(&format!("{what}: device memory, read directly"), &read, &self.expected);
            read.fill(0xA3);
            let (first, second) = read.split_at_mut(self.expected.len() / 3);
            let reads = &mut [(place, second), (self.memory.at(0), first)];
            direct.read_all_directly(reads).expect("direct reads of two parts must succeed");
            assert_bytes(&format!("{what}: device memory, read together"), &read, &self.expected);
        }
        assert_holds(&format!("{what}: host memory"), &self.host, 0, &self.expected_host);
    }

    /// Returns the contents of the device memory, read in one copy.
    #[track_caller]
    pub fn contents(&self) -> Vec<u8> {
        let mut contents = vec![0; self.expected.len()];
        // Overwrite the buffer first: if the copy writes nothing, the comparison must fail.
        self.mirror.write(0, &vec![0x5C; contents.len()]);
        let from = self.memory.at(0);
        let whole = Transfer::Download { from, to: self.mirror.at(0), bytes: contents.len() as u64 };
        let ticket = self.queue.submit(&[whole]).expect("a download of the scene's memory must succeed");
        self.cx.wait(ticket);
        self.mirror.read(0, &mut contents);
        contents
    }
}

/// Converts bytes to the 64-bit numbers that they hold.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Compares a search's answer with the expected answer: the two numbers, and the indices.
#[track_caller]
fn assert_found(what: &str, words: &[u64], truth: &[u64], count_all: bool) {
    let (total, listed) = (words[0], words[1]);
    assert_eq!(listed, truth[1], "{what}: wrong number of listed indices");
    if count_all {
        assert_eq!(total, truth[0], "{what}: wrong number of matches");
    } else {
        assert!((listed..=truth[0]).contains(&total), "{what}: {total} matches instead of {}", truth[0]);
    }
    assert_eq!(words[2..2 + listed as usize], truth[2..], "{what}: wrong indices of the matches");
}

/// Returns the partial results of two answers, and asserts that both count the same number of elements.
#[track_caller]
fn assert_counts(what: &str, words: &[u64], truth: &[u64]) -> [Vec<Partial>; 2] {
    let lists = [words, truth].map(Partial::list);
    let [found, truth] = lists.each_ref().map(|list| list.iter().map(|part| part.count).sum::<u64>());
    assert_eq!(found, truth, "{what}: wrong number of counted elements");
    lists
}
