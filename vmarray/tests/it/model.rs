//! Every operation against a `Vec`, for random programs, over all policies, page lengths, lengths and
//! channels.

use crate::common::{POLICIES, Shape};
use bytemuck::{Pod, Zeroable};
use proptest::prelude::*;
use vmarray::device::Device;
use vmarray::prelude::*;
use vmarray::{Element, ErrorKind, Field, MapBuffer, MapMode, VirtualArray, field};

/// An element type, and how to make values of it.
trait Sample: Element + PartialEq + std::fmt::Debug {
    fn sample(n: u64) -> Self;
}

impl Sample for u8 {
    fn sample(n: u64) -> Self {
        (n % 5) as u8
    }
}

impl Sample for u32 {
    fn sample(n: u64) -> Self {
        (n % 7) as u32
    }
}

impl Sample for u64 {
    fn sample(n: u64) -> Self {
        n % 6
    }
}

impl Sample for [u8; 3] {
    fn sample(n: u64) -> Self {
        [n as u8, (n % 3) as u8, 7]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Record {
    position: [f32; 3],
    kind: u16,
    flags: [u8; 2],
    id: u64,
    tail: [u32; 5],
    end: u32,
}

impl Sample for Record {
    fn sample(n: u64) -> Self {
        let f = n as f32;
        Self {
            position: [f, 1.0, -f],
            kind: (n % 4) as u16,
            flags: [1, 2],
            id: n % 3,
            tail: [n as u32; 5],
            end: 9,
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Get(usize),
    GetUncached(usize),
    Set(usize, u64),
    SetUncached(usize, u64),
    Replace(usize, u64),
    Update(usize, u64),
    CompareExchange(usize, u64, u64),
    Swap(usize, usize),
    Read(usize, usize),
    ToVec(usize, usize),
    Write(usize, usize, u64),
    Fill(usize, usize, u64),
    CopyWithin(usize, usize, usize),
    Map(usize, usize, u8, u64),
    PageMut(usize, u64),
    PageRef(usize),
    Cursor(Vec<usize>),
    CursorMut(Vec<(usize, u64)>),
    Iter(usize, usize),
    ForEachMut(usize, usize, u64),
    Pages,
    Prefetch(usize, usize),
    Flush(usize, usize),
    Evict(usize, usize),
    Discard(usize, usize),
    Find(u64),
    FindFirst(usize, usize, u64, usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let i = || 0_usize..1000;
    let v = || 0_u64..12;
    let op = prop_oneof![
        4 => i().prop_map(Op::Get),
        2 => i().prop_map(Op::GetUncached),
        6 => (i(), v()).prop_map(|(a, b)| Op::Set(a, b)),
        3 => (i(), v()).prop_map(|(a, b)| Op::SetUncached(a, b)),
        1 => (i(), v()).prop_map(|(a, b)| Op::Replace(a, b)),
        1 => (i(), v()).prop_map(|(a, b)| Op::Update(a, b)),
        1 => (i(), v(), v()).prop_map(|(a, b, c)| Op::CompareExchange(a, b, c)),
        1 => (i(), i()).prop_map(|(a, b)| Op::Swap(a, b)),
        2 => (i(), i()).prop_map(|(a, b)| Op::Read(a, b)),
        1 => (i(), i()).prop_map(|(a, b)| Op::ToVec(a, b)),
        3 => (i(), i(), v()).prop_map(|(a, b, c)| Op::Write(a, b, c)),
        2 => (i(), i(), v()).prop_map(|(a, b, c)| Op::Fill(a, b, c)),
        1 => (i(), i(), i()).prop_map(|(a, b, c)| Op::CopyWithin(a, b, c)),
        2 => (i(), i(), 0_u8..8, v()).prop_map(|(a, b, c, d)| Op::Map(a, b, c, d)),
        1 => (i(), v()).prop_map(|(a, b)| Op::PageMut(a, b)),
        1 => i().prop_map(Op::PageRef),
        1 => prop::collection::vec(i(), 0..6).prop_map(Op::Cursor),
        1 => prop::collection::vec((i(), v()), 0..6).prop_map(Op::CursorMut),
        1 => (i(), i()).prop_map(|(a, b)| Op::Iter(a, b)),
        1 => (i(), i(), v()).prop_map(|(a, b, c)| Op::ForEachMut(a, b, c)),
        1 => Just(Op::Pages),
        1 => (i(), i()).prop_map(|(a, b)| Op::Prefetch(a, b)),
        1 => (i(), i()).prop_map(|(a, b)| Op::Flush(a, b)),
        2 => (i(), i()).prop_map(|(a, b)| Op::Evict(a, b)),
        1 => (i(), i()).prop_map(|(a, b)| Op::Discard(a, b)),
        1 => v().prop_map(Op::Find),
        1 => (i(), i(), v(), 0_usize..9).prop_map(|(a, b, c, d)| Op::FindFirst(a, b, c, d)),
    ];
    prop::collection::vec(op, 1..50)
}

fn shapes() -> impl Strategy<Value = Shape> {
    let channels = prop_oneof![
        Just(vec![1]),
        Just(vec![2]),
        Just(vec![1, 1]),
        Just(vec![3, 1]),
        Just(vec![0, 2]),
        Just(vec![1, 2, 1])
    ];
    (1_usize..20, channels, 1_usize..5, 0_usize..3, any::<bool>()).prop_map(
        |(page_len, channels, frames, policy, read_ahead)| Shape {
            page_len,
            channels,
            frames,
            policy: POLICIES[policy],
            read_ahead,
        },
    )
}

/// Lengths around the borders of pages, and none.
fn lengths(page_len: usize) -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(page_len - 1),
        Just(page_len),
        Just(page_len + 1),
        Just(7 * page_len),
        1_usize..200
    ]
}

fn run<T: Sample, D: Device>(array: &VirtualArray<T, D>, ops: &[Op]) {
    let len = array.len();
    let mut model = vec![T::zeroed(); len];
    let between = |a: usize, b: usize| {
        let (a, b) = (a % (len + 1), b % (len + 1));
        a.min(b)..a.max(b)
    };
    for op in ops {
        match op.clone() {
            Op::Get(i) | Op::GetUncached(i) | Op::Set(i, _) if i >= len || len == 0 => {
                let wanted = ErrorKind::IndexOutside { index: i, len };
                assert_eq!(*array.get(i).unwrap_err().kind(), wanted);
                assert_eq!(*array.get_uncached(i).unwrap_err().kind(), wanted);
                assert_eq!(*array.set(i, T::sample(1)).unwrap_err().kind(), wanted);
                assert_eq!(*array.set_uncached(i, T::sample(1)).unwrap_err().kind(), wanted);
            }
            Op::Get(i) => assert_eq!(array.get(i).unwrap(), model[i]),
            Op::GetUncached(i) => assert_eq!(array.get_uncached(i).unwrap(), model[i]),
            Op::Set(i, n) => {
                array.set(i, T::sample(n)).unwrap();
                model[i] = T::sample(n);
            }
            Op::PageMut(..) | Op::PageRef(..) if len == 0 => {
                assert!(array.page(0).is_err() && array.page_mut(0).is_err())
            }
            Op::Cursor(..) | Op::CursorMut(..) if len == 0 => {
                assert!(array.cursor().get(0).is_err() && array.cursor_mut().get(0).is_err());
            }
            Op::SetUncached(..)
            | Op::Replace(..)
            | Op::Update(..)
            | Op::CompareExchange(..)
            | Op::Swap(..)
                if len == 0 => {}
            Op::SetUncached(i, n) => {
                array.set_uncached(i % len, T::sample(n)).unwrap();
                model[i % len] = T::sample(n);
            }
            Op::Replace(i, n) => {
                let old = array.replace(i % len, T::sample(n)).unwrap();
                assert_eq!(old, std::mem::replace(&mut model[i % len], T::sample(n)));
            }
            Op::Update(i, n) => {
                let old = array.update(i % len, |x| if x == T::zeroed() { T::sample(n) } else { x }).unwrap();
                assert_eq!(old, model[i % len]);
                if old == T::zeroed() {
                    model[i % len] = T::sample(n);
                }
            }
            Op::CompareExchange(i, current, new) => {
                let i = i % len;
                let result = array.compare_exchange(i, T::sample(current), T::sample(new)).unwrap();
                if model[i] == T::sample(current) {
                    assert_eq!(result, Ok(model[i]));
                    model[i] = T::sample(new);
                } else {
                    assert_eq!(result, Err(model[i]));
                }
            }
            Op::Swap(a, b) => {
                array.swap(a % len, b % len).unwrap();
                model.swap(a % len, b % len);
            }
            Op::Read(a, b) => {
                let range = between(a, b);
                let mut into = vec![T::sample(3); range.len()];
                array.read(range.start, &mut into).unwrap();
                assert_eq!(into, model[range]);
                assert!(array.read(len, &mut [T::zeroed()]).is_err());
            }
            Op::ToVec(a, b) => {
                let range = between(a, b);
                assert_eq!(array.to_vec(range.clone()).unwrap(), model[range]);
            }
            Op::Write(a, b, n) => {
                let range = between(a, b);
                let from: Vec<T> = range.clone().map(|i| T::sample(n + i as u64)).collect();
                array.write(range.start, &from).unwrap();
                model[range].copy_from_slice(&from);
            }
            Op::Fill(a, b, n) => {
                let range = between(a, b);
                array.fill(range.clone(), T::sample(n)).unwrap();
                model[range].fill(T::sample(n));
            }
            Op::CopyWithin(a, b, to) => {
                let range = between(a, b);
                let to = to % (len - range.len() + 1);
                array.copy_from(to, array.section(range.clone()).unwrap()).unwrap();
                model.copy_within(range, to);
            }
            Op::Map(a, b, kind, n) => {
                let range = between(a, b);
                let mode =
                    [MapMode::Read, MapMode::Write, MapMode::ReadWrite, MapMode::Scratch][kind as usize % 4];
                let mut own = vec![T::sample(5); range.len() + 3];
                let buffer = match kind / 4 {
                    0 => MapBuffer::New,
                    _ if n % 2 == 0 => MapBuffer::Pinned,
                    _ => MapBuffer::Borrowed(&mut own),
                };
                let seen = array
                    .map_in(range.clone(), mode, buffer, |slice| {
                        assert!(slice.as_ptr().is_aligned());
                        let seen = slice.to_vec();
                        slice.fill(T::sample(n));
                        seen
                    })
                    .unwrap();
                if matches!(mode, MapMode::Read | MapMode::ReadWrite) {
                    assert_eq!(seen, model[range.clone()]);
                }
                if matches!(mode, MapMode::Write | MapMode::ReadWrite) {
                    model[range].fill(T::sample(n));
                }
            }
            Op::PageMut(i, n) => {
                let page = i % array.page_count();
                let mut guard = array.page_mut(page).unwrap();
                assert_eq!(guard[..], model[guard.range()]);
                guard[0] = T::sample(n);
                model[guard.range().start] = T::sample(n);
            }
            Op::PageRef(i) => {
                let guard = array.page(i % array.page_count()).unwrap();
                assert_eq!(guard[..], model[guard.range()]);
            }
            Op::Cursor(places) => {
                let mut cursor = array.cursor();
                for i in places {
                    assert_eq!(cursor.get(i % len).unwrap(), model[i % len]);
                }
            }
            Op::CursorMut(places) => {
                let mut cursor = array.cursor_mut();
                for (i, n) in places {
                    assert_eq!(cursor.get(i % len).unwrap(), model[i % len]);
                    cursor.set(i % len, T::sample(n)).unwrap();
                    model[i % len] = T::sample(n);
                }
            }
            Op::Iter(a, b) => {
                let range = between(a, b);
                let mut iter = array.section(range.clone()).unwrap().iter();
                assert_eq!(iter.size_hint().1, Some(range.len()));
                let mut seen: Vec<T> = iter.by_ref().take(range.len() / 2).map(Result::unwrap).collect();
                iter.for_each(|value| seen.push(value.unwrap()));
                assert_eq!(seen, model[range]);
            }
            Op::ForEachMut(a, b, n) => {
                let range = between(a, b);
                array.for_each_mut(range.clone(), |i, x| *x = T::sample(n + i as u64)).unwrap();
                range.for_each(|i| model[i] = T::sample(n + i as u64));
            }
            Op::Pages => {
                let seen: Vec<T> = array.pages().flat_map(|page| page.unwrap().to_vec()).collect();
                assert_eq!(seen, model);
                for page in array.pages_mut().rev() {
                    page.unwrap().reverse();
                }
                model.chunks_mut(array.page_len()).for_each(<[T]>::reverse);
            }
            Op::Prefetch(a, b) => array.prefetch(between(a, b)).unwrap(),
            Op::Flush(a, b) => array.flush(between(a, b)).unwrap(),
            Op::Evict(a, b) => array.evict(between(a, b)).unwrap(),
            Op::Discard(a, b) => {
                let range = between(a, b);
                array.discard(range.clone()).unwrap();
                model[range].fill(T::zeroed());
            }
            Op::Find(n) => {
                let value = T::sample(n);
                let wanted: Vec<usize> = (0..len).filter(|&i| model[i] == value).collect();
                assert_eq!(array.find(Field::whole(), &value).unwrap(), wanted);
            }
            Op::FindFirst(a, b, n, limit) => {
                let (range, value) = (between(a, b), T::sample(n));
                let mut wanted: Vec<usize> = range.clone().filter(|&i| model[i] == value).collect();
                let total = wanted.len();
                let found = array.find_first(range.clone(), Field::whole(), &value, limit).unwrap();
                assert_eq!(
                    array.position(range.clone(), Field::whole(), &value).unwrap(),
                    wanted.first().copied()
                );
                assert_eq!(array.count(range, Field::whole(), &value).unwrap(), total);
                wanted.truncate(limit);
                assert_eq!((found.indices, found.total), (wanted, total));
            }
        }
    }
    assert_eq!(array.to_vec(..).unwrap(), model);
}

macro_rules! models {
    ($($name:ident: $T:ty;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name((shape, len) in shapes().prop_flat_map(|s| { let n = lengths(s.page_len); (Just(s), n) }), ops in ops()) {
                    run(&shape.build::<$T>(len), &ops);
                }
            )*
        }
    };
}

models! {
    bytes: u8;
    words: u32;
    long_words: u64;
    odd_elements: [u8; 3];
    records: Record;
}

#[test]
fn fields_of_records_are_found() {
    let array = Shape { page_len: 16, ..Shape::default() }.build::<Record>(500);
    for i in 0..500 {
        array.set(i, Record::sample(i as u64)).unwrap();
    }
    let wanted = |matches: fn(usize) -> bool| (0..500).filter(|&i| matches(i)).collect::<Vec<_>>();
    assert_eq!(array.find(field!(Record, kind), &2).unwrap(), wanted(|i| i % 4 == 2));
    assert_eq!(array.find(field!(Record, id), &1).unwrap(), wanted(|i| i % 3 == 1));
    assert_eq!(array.find(field!(Record, position), &[7.0, 1.0, -7.0]).unwrap(), [7]);
    assert_eq!(array.find(field!(Record, flags), &[2, 2]).unwrap(), [0_usize; 0]);
}
