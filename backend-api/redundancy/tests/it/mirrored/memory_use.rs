//! Use of a mirror's memory by threads, with a check of all results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backend_api::expr::{Action, FieldStore, Geometry, Instruction, Partial, Program, Type, Unary, Value};
use backend_api::wrap::SplitMix64;
use backend_api::{
    Compute, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue, Scatter, Search,
    Transfer,
};
use backend_host::SimulatedDevice;
use vmarray_conformance::wrap::Faulty;

pub(super) type Card = Arc<Faulty<SimulatedDevice>>;

/// The bytes of each thread's part.
pub(super) const PART: usize = 64 << 10;

pub(super) fn card(seed: u64) -> Card {
    let slow = SimulatedDevice::builder(seed).bytes(16 << 20).latency(Duration::from_micros(50));
    Arc::new(Faulty::new(slow.build()))
}

/// Reads all of a buffer.
pub(super) fn bytes<D: Device>(queue: &Queue<D>, memory: &DeviceBuffer<D>) -> Vec<u8> {
    let bytes = memory.bytes();
    let host = HostBuffer::new(queue.device(), bytes as usize, HostMemory::Pageable).unwrap();
    let ticket = queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes }]).unwrap();
    queue.device().wait(ticket).unwrap();
    let mut read = vec![0; bytes as usize];
    host.read(0, &mut read);
    read
}

/// A program that inverts the bits of each number of 64 bits.
fn inverted() -> Program {
    let number = Instruction::Field { source: 0, offset: 0, of: Type::U64 };
    Program::new(vec![number, Instruction::Unary { op: Unary::Not, of: Value(0) }]).unwrap()
}

/// Writes, reads, moves, computes with and searches bytes of an exclusive part of some memory. Compares
/// all results with a vector, until the test is over and for a minimum number of rounds.
pub(super) fn use_memory<D: Device>(
    device: &Arc<D>,
    memory: &DeviceBuffer<D>,
    base: usize,
    seed: u64,
    is_over: &AtomicBool,
) {
    let queue = Queue::new(device).unwrap();
    let host = HostBuffer::new(device, 4 * PART, HostMemory::Pageable).unwrap();
    let base = base as u64;
    let mut random = SplitMix64::new(seed);
    let mut expected = vec![0; PART];
    let fill = Fill { to: memory.at(base), bytes: PART as u64, pattern: &[0] };
    device.wait(queue.submit(&fill).unwrap()).unwrap();
    let numbers = Elements { start: memory.at(base), count: PART as u64 / 8, stride: 8 };
    let program = inverted();
    let mut rounds = 0;
    while !is_over.load(Ordering::Relaxed) || rounds < 20 {
        rounds += 1;
        let (at, len) = (random.index(PART / 2), 1 + random.index(PART / 4));
        let place = memory.at(base + at as u64);
        let ticket = match random.below(5) {
            0 => {
                let byte = random.next() as u8;
                expected[at..at + len].fill(byte);
                queue.submit(&Fill { to: place, bytes: len as u64, pattern: &[byte] })
            }
            1 => {
                let from = PART / 2 + random.index(PART / 8);
                let len = len.min(PART / 8);
                expected.copy_within(from..from + len, 0);
                queue.submit(&[Transfer::Internal {
                    from: memory.at(base + from as u64),
                    to: memory.at(base),
                    bytes: len as u64,
                }])
            }
            2 => {
                let index = random.index(PART / 8);
                let value = random.next().to_ne_bytes();
                expected[index * 8..][..8].copy_from_slice(&value);
                host.write(PART, &(index as u64).to_ne_bytes());
                host.write(PART + 8, &value);
                let (indices, values) = (host.at(PART as u64), host.at(PART as u64 + 8));
                queue.submit(&Scatter { elements: numbers.into(), indices, count: 1, values })
            }
            3 => {
                let (first, count) = (random.index(PART / 16), 1 + random.index(PART / 16));
                expected[first * 8..(first + count) * 8].iter_mut().for_each(|byte| *byte = !*byte);
                let start = memory.at(base + first as u64 * 8);
                let sources = [Elements { start, count: count as u64, stride: 8 }];
                let stores = [FieldStore { value: Value(1), source: 0, offset: 0 }];
                let action = Action::Store { stores: &stores, filter: None };
                let geometry = Geometry::plain(0);
                queue.submit(&Compute { program: &program, sources: &sources, geometry, action })
            }
            _ => {
                let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                host.write(2 * PART, &bytes);
                expected[at..at + len].copy_from_slice(&bytes);
                let from = host.at(2 * PART as u64);
                queue.submit(&[Transfer::Upload { from, to: place, bytes: len as u64 }])
            }
        };
        let read = Transfer::Download { from: memory.at(base), to: host.at(0), bytes: PART as u64 };
        let read = queue.submit(&[read]).unwrap();
        device.wait(ticket.unwrap()).unwrap();
        device.wait(read).unwrap();
        let mut seen = vec![0; PART];
        host.read(0, &mut seen);
        assert!(seen == expected, "seed {seed}, round {rounds}");
        let index = random.index(PART / 8);
        let value = expected[index * 8..][..8].to_vec();
        match random.below(3) {
            0 => {
                host.write(PART, &(index as u64).to_ne_bytes());
                let (indices, values) = (host.at(PART as u64), host.at(PART as u64 + 8));
                let gathered = queue.submit(&Gather { elements: numbers.into(), indices, count: 1, values });
                device.wait(gathered.unwrap()).unwrap();
                let mut seen = [0; 8];
                host.read(PART + 8, &mut seen);
                assert_eq!(seen, *value, "seed {seed}, round {rounds}");
            }
            1 => {
                let answer = host.at(3 * PART as u64);
                let search = Search {
                    elements: numbers,
                    field_offset: 0,
                    value: &value,
                    limit: 3,
                    count_all: true,
                    answer,
                };
                device.wait(queue.submit(&search).unwrap()).unwrap();
                let mut words = [[0; 8]; 5];
                host.read(3 * PART, words.as_flattened_mut());
                let places = expected.chunks(8).enumerate().filter(|(_, number)| **number == value);
                let places: Vec<u64> = places.map(|(place, _)| place as u64).collect();
                let words = words.map(u64::from_ne_bytes);
                assert_eq!((words[0], words[1]), (places.len() as u64, places.len().min(3) as u64));
                assert_eq!(words[2..2 + words[1] as usize], places[..words[1] as usize]);
            }
            _ => {
                let answer = host.at(0);
                let action = Action::Sum { value: Value(1), filter: None, answer };
                let (sources, geometry) = ([numbers], Geometry::plain(0));
                let sum = Compute { program: &program, sources: &sources, geometry, action };
                device.wait(queue.submit(&sum).unwrap()).unwrap();
                let mut bytes = vec![0; Compute::partials_bytes() as usize];
                host.read(0, &mut bytes);
                let words: Vec<u64> =
                    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
                let numbers = expected.as_chunks().0.iter().map(|number| !u64::from_ne_bytes(*number));
                let sum: i128 = numbers.map(i128::from).sum();
                assert_eq!(Partial::sum_of_integers(&Partial::list(&words)), sum);
            }
        }
    }
}
