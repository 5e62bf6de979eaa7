//! Every operation against a naive answer.

use std::error::Error;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, Elements, ErrorKind, Fill, Gather, HostBuffer, HostMemory, Queue, Scatter,
    Search, Transfer,
};
use backend_cuda::{Completion, CudaDevice, Options, Route};

type Outcome = Result<(), Box<dyn Error>>;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

struct Bench {
    device: Arc<CudaDevice>,
    queue: Queue<CudaDevice>,
    random: Random,
}

pub fn run(index: u32) -> Outcome {
    for completion in [Completion::Counter, Completion::Event] {
        for route in [None, Some(Route::Single), Some(Route::Batch), Some(Route::Kernel)] {
            let mut options = Options::new().with_completion(completion);
            if let Some(route) = route {
                options = options.with_route(route);
            }
            let device = Arc::new(CudaDevice::open_with(index, &options)?);
            let queue = Queue::new(&device)?;
            let mut bench = Bench { device, queue, random: Random(7) };
            println!("smoke: {completion:?} {route:?}");
            bench.copies(HostMemory::Pinned)?;
            bench.copies(HostMemory::Pageable)?;
            if route.is_none() {
                bench.fills()?;
                for kind in [HostMemory::Pinned, HostMemory::Pageable] {
                    bench.searches(kind)?;
                    bench.indexed(kind)?;
                }
                bench.order()?;
                bench.refusals()?;
            }
        }
    }
    adopted(index)?;
    println!("smoke: ok");
    Ok(())
}

fn same(what: &str, got: &[u8], wanted: &[u8]) -> Outcome {
    if got == wanted {
        return Ok(());
    }
    let at = got.iter().zip(wanted).position(|(a, b)| a != b);
    let wrong = got.iter().zip(wanted).filter(|(a, b)| a != b).count();
    Err(format!("{what}: {wrong} of {} bytes differ, first at {at:?}", wanted.len()).into())
}

impl Bench {
    fn put(&self, memory: &DeviceBuffer<CudaDevice>, bytes: &[u8]) -> Outcome {
        let host = HostBuffer::new(&self.device, bytes.len(), HostMemory::Pinned)?;
        host.write(0, bytes);
        let transfer = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: bytes.len() as u64 };
        self.device.wait(self.queue.submit(&[transfer])?)?;
        Ok(())
    }

    fn get(&self, memory: &DeviceBuffer<CudaDevice>) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut bytes = vec![0; memory.bytes() as usize];
        let host = HostBuffer::new(&self.device, bytes.len(), HostMemory::Pinned)?;
        let transfer = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: bytes.len() as u64 };
        self.device.wait(self.queue.submit(&[transfer])?)?;
        host.read(0, &mut bytes);
        Ok(bytes)
    }

    /// Pieces of all lengths and alignments there, around and back.
    fn copies(&mut self, kind: HostMemory) -> Outcome {
        const ROOM: usize = 3 << 20;
        for (pieces, longest) in
            [(1, 1 << 20), (3, 200_000), (40, 60), (100, 20_000), (300, 3000), (9000, 200)]
        {
            let first = DeviceBuffer::new(&self.device, ROOM as u64, Commit::Lazy)?;
            let second = DeviceBuffer::new(&self.device, ROOM as u64, Commit::Lazy)?;
            let from = HostBuffer::new(&self.device, ROOM, kind)?;
            let back = HostBuffer::new(&self.device, ROOM, kind)?;
            let source = self.random.bytes(ROOM);
            from.write(0, &source);
            let mut model = vec![0; ROOM];
            let (mut up, mut over, mut down) = (Vec::new(), Vec::new(), Vec::new());
            let mut at = 0;
            for _ in 0..pieces {
                let bytes = 1 + self.random.below(longest);
                at += self.random.below(40);
                if at + bytes > ROOM as u64 {
                    break;
                }
                let source_at = self.random.below(ROOM as u64 - bytes);
                up.push(Transfer::Upload { from: from.at(source_at), to: first.at(at), bytes });
                over.push(Transfer::Internal { from: first.at(at), to: second.at(at), bytes });
                down.push(Transfer::Download { from: second.at(at), to: back.at(at), bytes });
                let (a, s, n) = (at as usize, source_at as usize, bytes as usize);
                model[a..a + n].copy_from_slice(&source[s..s + n]);
                at += bytes;
            }
            for transfer in &mut over {
                if let Transfer::Internal { to, .. } = transfer {
                    *to = to.plus(ROOM as u64 - at);
                }
            }
            for transfer in &mut down {
                if let Transfer::Download { from, .. } = transfer {
                    *from = from.plus(ROOM as u64 - at);
                }
            }
            self.queue.submit(&up)?;
            self.queue.submit(&over)?;
            let ticket = self.queue.submit(&down)?;
            self.device.wait(ticket)?;
            let mut got = vec![0; ROOM];
            back.read(0, &mut got);
            same(&format!("{} copies, {kind:?}", up.len()), &got, &model)?;
        }
        Ok(())
    }

    fn fills(&mut self) -> Outcome {
        let room = 300_000_usize;
        let memory = DeviceBuffer::new(&self.device, room as u64, Commit::Proven)?;
        let mut model = self.random.bytes(room);
        self.put(&memory, &model)?;
        for length in [1, 2, 3, 4, 5, 8, 12, 16, 44, 1000, 4095, 4096] {
            for _ in 0..6 {
                let pattern = self.random.bytes(length);
                let start = self.random.below(room as u64);
                let longest = 1 << self.random.below(19);
                let bytes = self.random.below((room as u64 - start).min(longest));
                self.queue.fill(&Fill { to: memory.at(start), bytes, pattern: &pattern })?;
                let end = (start + bytes) as usize;
                for (to, from) in model[start as usize..end].iter_mut().zip(pattern.iter().cycle()) {
                    *to = *from;
                }
            }
        }
        same("fills", &self.get(&memory)?, &model)
    }

    fn searches(&mut self, kind: HostMemory) -> Outcome {
        let room = 3_000_000_usize;
        let memory = DeviceBuffer::new(&self.device, room as u64, Commit::Lazy)?;
        let shapes = [
            (1, 0, 1),
            (2, 0, 2),
            (4, 0, 4),
            (8, 0, 8),
            (16, 0, 16),
            (3, 0, 3),
            (44, 8, 4),
            (44, 7, 4),
            (44, 0, 44),
            (45, 3, 6),
            (48, 16, 16),
            (48, 8, 24),
            (64, 1, 1),
            (1000, 996, 4),
            (4096, 0, 4096),
            (5000, 9, 4000),
        ];
        for (stride, field, length) in shapes {
            for (start, rare) in [(0_u64, 3), (16, 400), (5, 3000), (4, 1 << 40)] {
                let count = match self.random.below(3) {
                    0 => (room as u64 - start) / stride,
                    1 => self.random.below((room as u64 - start) / stride),
                    _ => self.random.below(40),
                };
                let mut data = self.random.bytes(room);
                let value = self.random.bytes(length as usize);
                for i in 0..count {
                    if self.random.below(rare) == 0 {
                        let at = (start + i * stride + field) as usize;
                        data[at..at + length as usize].copy_from_slice(&value);
                    }
                }
                self.put(&memory, &data)?;
                let matches: Vec<u64> = (0..count)
                    .filter(|i| {
                        let at = (start + i * stride + field) as usize;
                        data[at..at + length as usize] == value[..]
                    })
                    .collect();
                for (limit, count_all) in
                    [(0, true), (1, false), (7, true), (7, false), (count, true), (u64::MAX, false)]
                {
                    let listed = limit.min(count);
                    let answer =
                        HostBuffer::new(&self.device, Search::answer_bytes(listed) as usize + 8, kind)?;
                    let search = Search {
                        elements: Elements { start: memory.at(start), count, stride },
                        field_offset: field,
                        value: &value,
                        limit,
                        count_all,
                        answer: answer.at(8),
                    };
                    self.device.wait(self.queue.search(&search)?)?;
                    let mut bytes = vec![0; answer.bytes()];
                    answer.read(0, &mut bytes);
                    let words: Vec<u64> = bytes
                        .chunks(8)
                        .map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default()))
                        .collect();
                    let expected = &matches[..matches.len().min(listed as usize)];
                    let what = format!(
                        "search {kind:?}: stride {stride} field {field} length {length} start {start} count {count} \
                         limit {limit} all {count_all}"
                    );
                    let total_is_right = words[1] == matches.len() as u64
                        || !count_all
                            && words[1] >= expected.len() as u64
                            && words[1] <= matches.len() as u64;
                    if !total_is_right || words[2] != expected.len() as u64 {
                        return Err(format!(
                            "{what}: {} matches, {} listed; expected {} and {}",
                            words[1],
                            words[2],
                            matches.len(),
                            expected.len()
                        )
                        .into());
                    }
                    if &words[3..3 + expected.len()] != expected {
                        return Err(format!("{what}: wrong indices").into());
                    }
                }
            }
        }
        Ok(())
    }

    fn indexed(&mut self, kind: HostMemory) -> Outcome {
        let room = 6_000_000_usize;
        let memory = DeviceBuffer::new(&self.device, room as u64, Commit::Lazy)?;
        for stride in [1_u64, 2, 3, 4, 6, 8, 12, 16, 44, 45, 127, 128, 1024, 4096, 5000, 100_000, 1_000_001] {
            for (start, values_at) in [(0_u64, 0_u64), (16, 4), (5, 3), (8, 1), (2, 2)] {
                let mut model = self.random.bytes(room);
                self.put(&memory, &model)?;
                let count = (room as u64 - start) / stride;
                let wanted = 1 + self.random.below(count.min(20_000));
                // Distinct indices in random order.
                let mut indices: Vec<u64> = (0..wanted).map(|k| k * (count / wanted)).collect();
                for i in (1..indices.len()).rev() {
                    indices.swap(i, self.random.below(i as u64 + 1) as usize);
                }
                let list: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
                let index_memory = HostBuffer::new(&self.device, list.len() + 8, kind)?;
                index_memory.write(8, &list);
                let bytes = (wanted * stride) as usize;
                let values = HostBuffer::new(&self.device, bytes + values_at as usize + 9, kind)?;
                values.write(0, &vec![0xEE; values.bytes()]);
                let elements = Elements { start: memory.at(start), count, stride };
                let what = format!(
                    "{kind:?}: stride {stride} start {start} values at {values_at}, {wanted} indices"
                );
                let ticket = self.queue.gather(&Gather {
                    elements,
                    indices: index_memory.at(8),
                    count: wanted,
                    values: values.at(values_at),
                })?;
                self.device.wait(ticket)?;
                let mut got = vec![0; values.bytes()];
                values.read(0, &mut got);
                let mut expected = vec![0xEE; values.bytes()];
                for (k, &i) in indices.iter().enumerate() {
                    let (a, b) = ((start + i * stride) as usize, values_at as usize + k * stride as usize);
                    expected[b..b + stride as usize].copy_from_slice(&model[a..a + stride as usize]);
                }
                same(&format!("gather {what}"), &got, &expected)?;

                let new = self.random.bytes(bytes);
                values.write(values_at as usize, &new);
                let ticket = self.queue.scatter(&Scatter {
                    elements,
                    indices: index_memory.at(8),
                    count: wanted,
                    values: values.at(values_at),
                })?;
                self.device.wait(ticket)?;
                for (k, &i) in indices.iter().enumerate() {
                    let (a, b) = ((start + i * stride) as usize, k * stride as usize);
                    model[a..a + stride as usize].copy_from_slice(&new[b..b + stride as usize]);
                }
                same(&format!("scatter {what}"), &self.get(&memory)?, &model)?;

                // One index too far: this ticket fails, the next one does not.
                index_memory.write(8 + (wanted as usize - 1) * 8, &count.to_le_bytes());
                let gather = Gather {
                    elements,
                    indices: index_memory.at(8),
                    count: wanted,
                    values: values.at(values_at),
                };
                let failing = self.queue.gather(&gather)?;
                let fine = self.queue.submit(&[])?;
                self.device.wait(fine)?;
                match self.device.wait(failing) {
                    Err(error) if error.kind() == ErrorKind::KernelFailed => {}
                    other => return Err(format!("an index outside: {other:?}").into()),
                }
            }
        }
        Ok(())
    }

    fn order(&mut self) -> Outcome {
        let bytes = 64_u64 << 20;
        let memory = DeviceBuffer::new(&self.device, bytes, Commit::Lazy)?;
        let host = HostBuffer::new(&self.device, 64, HostMemory::Pinned)?;
        let other = Queue::new(&self.device)?;
        for round in 0..200_u32 {
            let filled = self.queue.fill(&Fill { to: memory.at(0), bytes, pattern: &round.to_le_bytes() })?;
            other.order_after(filled)?;
            let from = memory.at(bytes - 64);
            let ticket = other.submit(&[Transfer::Download { from, to: host.at(0), bytes: 64 }])?;
            // The next fill must not overtake the download.
            self.queue.order_after(ticket)?;
            self.device.wait(ticket)?;
            let mut got = [0; 64];
            host.read(0, &mut got);
            same("order_after", &got, &round.to_le_bytes().repeat(16))?;
        }
        Ok(())
    }

    fn refusals(&mut self) -> Outcome {
        let status = self.device.memory()?;
        let expect = |what: &str, result: backend_api::Result<()>, kind: ErrorKind| -> Outcome {
            match result {
                Err(error) if error.kind() == kind => {
                    println!("   {what}: {error}");
                    Ok(())
                }
                other => Err(format!("{what}: {other:?}").into()),
            }
        };
        let allocate =
            |bytes| self.device.allocate(bytes, Commit::Lazy).map(|memory| self.device.release(memory));
        expect("too large", allocate(status.total_bytes + 1), ErrorKind::TooLarge)?;
        expect("more than free", allocate(status.usable_bytes + (64 << 20)), ErrorKind::OutOfMemory)?;
        let pin = |bytes| {
            self.device.allocate_host(bytes, HostMemory::Pinned).map(|host| self.device.release_host(host))
        };
        expect("pinned", pin(1 << 50), ErrorKind::PinRefused)?;
        allocate(0)?;
        pin(0)?;
        Ok(())
    }
}

/// The device in a context that is not its own; and the same primary context opened again.
fn adopted(index: u32) -> Outcome {
    let outer = CudaDevice::open(index)?;
    // SAFETY: the outer device keeps its context alive until the end of this function.
    let inner = Arc::new(unsafe { CudaDevice::adopt(outer.context(), &Options::new()) }?);
    let queue = Queue::new(&inner)?;
    let mut bench = Bench { device: inner, queue, random: Random(9) };
    bench.copies(HostMemory::Pinned)?;
    println!("smoke: adopted context");
    Ok(())
}
