//! Tests of vectorised reductions of contiguous 4-byte numbers, compared with plain loops.

use std::sync::Arc;

use backend_api::expr::{
    Action, Binary, Geometry, Instruction, Partial, Program, Type, Unary, Value, evaluate_all,
};
use backend_api::wrap::has_all_cases;
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue, Search, Transfer,
};
use backend_host::HostDevice;

struct Asked {
    device: Arc<HostDevice>,
    queue: Queue<HostDevice>,
    memory: DeviceBuffer<HostDevice>,
    host: HostBuffer<HostDevice>,
    words: Vec<u32>,
}

impl Asked {
    fn new(words: Vec<u32>) -> Self {
        let device = Arc::new(HostDevice::new(1 << 20).unwrap());
        let queue = Queue::new(&device).unwrap();
        let bytes = (words.len() * 4) as u64;
        let memory = DeviceBuffer::new(&device, bytes, Commit::Proven).unwrap();
        let host = HostBuffer::new(&device, 1 << 20, HostMemory::Pageable).unwrap();
        host.write(0, bytemuck::cast_slice(&words));
        let upload = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes };
        device.wait(queue.submit(&[upload]).unwrap()).unwrap();
        Self { device, queue, memory, host, words }
    }

    /// Result for the numbers from number `first` on.
    fn ask(&self, program: &Program, first: usize, action: Action<'_>) -> Vec<u64> {
        let count = (self.words.len() - first) as u64;
        let sources = [Elements { start: self.memory.at(first as u64 * 4), count, stride: 4 }];
        let compute = Compute { program, sources: &sources, geometry: Geometry::plain(0), action };
        self.device.wait(self.queue.submit(&compute).unwrap()).unwrap();
        let mut answer = vec![0; compute.answer_bytes() as usize / 8];
        self.host.read(0, bytemuck::cast_slice_mut(&mut answer));
        answer
    }
}

/// Special values and ordinary ones.
fn words(count: usize) -> Vec<u32> {
    let special = [0, 1 << 31, 1, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0x7F80_0001, u32::MAX, 0x7FFF_FFFF];
    let hashed = |i: usize| (i as u32).wrapping_mul(2_654_435_761);
    let word = |i: usize| if i % 5 == 2 { special[hashed(i) as usize % special.len()] } else { hashed(i) };
    (0..count).map(word).collect()
}

fn field(of: Type) -> Instruction {
    Instruction::Field { source: 0, offset: 0, of }
}

#[test]
fn matches_equal_a_loops() {
    let asked = Asked::new(words(9001));
    let literals = [0, 1 << 31, 1, 0x8000_0001, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, u32::MAX, 0x4000_0000];
    let comparisons = [Binary::Lt, Binary::Le, Binary::Eq, Binary::Ne];
    for of in [Type::F32, Type::U32, Type::I32] {
        for (round, bits) in literals.into_iter().map(u64::from).enumerate() {
            let tests = comparisons.into_iter().flat_map(|op| [(op, false), (op, true)]).enumerate();
            let tests = tests.filter(|(number, _)| has_all_cases() || (number + round) % 4 == 0);
            for (_, (op, is_swapped)) in tests {
                let (left, right) = if is_swapped { (Value(1), Value(0)) } else { (Value(0), Value(1)) };
                let other = u64::from(literals[(round + 4) % literals.len()]);
                let code = vec![
                    field(of),
                    Instruction::Literal { of, bits },
                    Instruction::Binary { op, left, right },
                    Instruction::Literal { of, bits: other },
                    Instruction::Binary { op: Binary::Le, left: Value(3), right: Value(0) },
                    Instruction::Binary { op: Binary::And, left: Value(2), right: Value(4) },
                    Instruction::Unary { op: Unary::Not, of: Value(2) },
                ];
                let program = Program::new(code).unwrap();
                for (predicate, first, limit) in [(2, 0, 9001), (5, 3, 50), (6, 8990, 9001), (6, 1, 0)] {
                    let holds =
                        |word: &u32| evaluate_all(&program, 0, &[&word.to_ne_bytes()])[predicate] != 0;
                    let words = asked.words[first..].iter().enumerate();
                    let expected: Vec<u64> =
                        words.filter(|(_, word)| holds(word)).map(|(at, _)| at as u64).collect();
                    let action = Action::Find {
                        predicate: Value(predicate as u16),
                        limit,
                        count_all: true,
                        answer: asked.host.at(0),
                    };
                    let answer = asked.ask(&program, first, action);
                    let listed = expected.len().min(limit as usize);
                    let header = Search::HEADER_BYTES as usize / 8;
                    assert_eq!(
                        answer[..2],
                        [expected.len() as u64, listed as u64],
                        "{of:?} {op:?} {bits:#x}"
                    );
                    assert_eq!(answer[header..][..listed], expected[..listed]);
                }
            }
        }
    }
}

#[test]
fn sums_and_extremes_equal_a_loops() {
    for count in [1, 7, 16, 4095, 9001] {
        let asked = Asked::new(words(count));
        for of in [Type::F32, Type::U32, Type::I32] {
            let program = Program::new(vec![field(of)]).unwrap();
            let is_nan = |bits: u32| of == Type::F32 && f32::from_bits(bits).is_nan();
            let keys = asked.words.iter().enumerate().filter(|(_, bits)| !is_nan(**bits));
            let keys: Vec<(u64, u64)> =
                keys.map(|(at, bits)| (of.key(u64::from(*bits)), at as u64)).collect();
            let (value, filter, answer) = (Value(0), None, asked.host.at(0));
            let action = Action::Extremes { value, filter, least: true, greatest: true, answer };
            let extremes = Partial::list(&asked.ask(&program, 0, action));
            assert_eq!(Partial::least(&extremes), keys.iter().copied().min(), "{of:?} {count}");
            let greatest = keys.iter().copied().max_by_key(|&(key, at)| (key, std::cmp::Reverse(at)));
            assert_eq!(Partial::greatest(&extremes), greatest);
            assert_eq!(extremes.iter().map(|part| part.count).sum::<u64>(), keys.len() as u64);
            let sums = Partial::list(&asked.ask(&program, 0, Action::Sum { value, filter, answer }));
            if of == Type::F32 {
                // Expect sixteen partial sums, added in pairs.
                let mut lanes = [0.0_f64; 16];
                let floats = asked.words.iter().map(|bits| f64::from(f32::from_bits(*bits)));
                floats.enumerate().for_each(|(at, float)| lanes[at % 16] += float);
                for half in [8, 4, 2, 1] {
                    (0..half).for_each(|lane| lanes[lane] += lanes[lane + half]);
                }
                let sum = Partial::sum_of_floats(&sums);
                assert!(sum == lanes[0] || (sum.is_nan() && lanes[0].is_nan()), "{sum} {}", lanes[0]);
            } else {
                let number =
                    |bits: &u32| if of == Type::I32 { i128::from(*bits as i32) } else { i128::from(*bits) };
                assert_eq!(Partial::sum_of_integers(&sums), asked.words.iter().map(number).sum::<i128>());
            }
        }
    }
}
