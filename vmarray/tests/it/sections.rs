//! Sections of arrays: every operation against slices of a `Vec`, over random sections of sections; bytes
//! moved.

use crate::common::Shape;
use crate::common::parts::{outside, programs, within};
use proptest::prelude::*;
use vmarray::device::Device;
use vmarray::prelude::*;
use vmarray::{ErrorKind, Field, MapMode, Section, SectionMut, SharedSection, VirtualArray};

#[derive(Clone, Debug)]
enum Op {
    Get(usize),
    GetUncached(usize),
    Set(usize, u32),
    SetUncached(usize, u32),
    Replace(usize, u32),
    Update(usize, u32),
    CompareExchange(usize, u32, u32),
    Swap(usize, usize),
    Read(usize, usize),
    Write(usize, usize, u32),
    Fill(usize, usize, u32),
    CopyWithin(usize, usize, usize),
    Map(usize, usize, bool, u32),
    ForEachMut(usize, usize, u32),
    Discard(usize, usize),
    Evict(usize, usize),
    Flush(usize, usize),
    Prefetch(usize, usize),
    Pages(bool, u32),
    Cursors(Vec<(usize, Option<u32>)>),
    Find(usize, usize, u32, usize),
    Iter,
}

fn ops() -> impl Strategy<Value = Op> {
    let i = || 0_usize..1000;
    let v = || 0_u32..5;
    prop_oneof![
        i().prop_map(Op::Get),
        i().prop_map(Op::GetUncached),
        (i(), v()).prop_map(|(a, b)| Op::Set(a, b)),
        (i(), v()).prop_map(|(a, b)| Op::SetUncached(a, b)),
        (i(), v()).prop_map(|(a, b)| Op::Replace(a, b)),
        (i(), v()).prop_map(|(a, b)| Op::Update(a, b)),
        (i(), v(), v()).prop_map(|(a, b, c)| Op::CompareExchange(a, b, c)),
        (i(), i()).prop_map(|(a, b)| Op::Swap(a, b)),
        (i(), i()).prop_map(|(a, b)| Op::Read(a, b)),
        (i(), i(), v()).prop_map(|(a, b, c)| Op::Write(a, b, c)),
        (i(), i(), v()).prop_map(|(a, b, c)| Op::Fill(a, b, c)),
        (i(), i(), i()).prop_map(|(a, b, c)| Op::CopyWithin(a, b, c)),
        (i(), i(), any::<bool>(), v()).prop_map(|(a, b, c, d)| Op::Map(a, b, c, d)),
        (i(), i(), v()).prop_map(|(a, b, c)| Op::ForEachMut(a, b, c)),
        (i(), i()).prop_map(|(a, b)| Op::Discard(a, b)),
        (i(), i()).prop_map(|(a, b)| Op::Evict(a, b)),
        (i(), i()).prop_map(|(a, b)| Op::Flush(a, b)),
        (i(), i()).prop_map(|(a, b)| Op::Prefetch(a, b)),
        (any::<bool>(), v()).prop_map(|(a, b)| Op::Pages(a, b)),
        prop::collection::vec((i(), prop::option::of(v())), 0..6).prop_map(Op::Cursors),
        (i(), i(), v(), 0_usize..9).prop_map(|(a, b, c, d)| Op::Find(a, b, c, d)),
        Just(Op::Iter),
    ]
}

fn run<D: Device>(section: SectionMut<'_, VirtualArray<u32, D>>, model: &mut [u32], op: Op) {
    let len = model.len();
    let first = section.range().start;
    match op {
        Op::Get(at) | Op::GetUncached(at) | Op::Set(at, _) | Op::SetUncached(at, _) if at >= len => {
            outside(section.get(at), at, len);
            outside(section.get_uncached(at), at, len);
            outside(section.set(at, 1), at, len);
            outside(section.set_uncached(at, 1), at, len);
            outside(section.cursor().get(at), at, len);
            outside(section.cursor_mut().set(at, 1), at, len);
        }
        Op::Get(at) => assert_eq!(section.get(at).unwrap(), model[at]),
        Op::GetUncached(at) => assert_eq!(section.get_uncached(at).unwrap(), model[at]),
        Op::Set(at, value) => {
            section.set(at, value).unwrap();
            model[at] = value;
        }
        Op::SetUncached(at, value) => {
            section.set_uncached(at, value).unwrap();
            model[at] = value;
        }
        Op::Replace(at, _) | Op::Update(at, _) | Op::CompareExchange(at, ..) if at >= len => {
            outside(section.replace(at, 1), at, len);
            outside(section.update(at, |x| x), at, len);
            outside(section.compare_exchange(at, 1, 1), at, len);
        }
        Op::Replace(at, value) => {
            assert_eq!(section.replace(at, value).unwrap(), std::mem::replace(&mut model[at], value));
        }
        Op::Update(at, by) => {
            assert_eq!(section.update(at, |x| x + by).unwrap(), model[at]);
            model[at] += by;
        }
        Op::CompareExchange(at, current, new) => {
            let expected = if model[at] == current { Ok(current) } else { Err(model[at]) };
            assert_eq!(section.compare_exchange(at, current, new).unwrap(), expected);
            if expected.is_ok() {
                model[at] = new;
            }
        }
        Op::Swap(a, b) if a.max(b) >= len => {
            outside(section.swap(a, b), if a >= len { a } else { b }, len);
        }
        Op::Swap(a, b) => {
            section.swap(a, b).unwrap();
            model.swap(a, b);
        }
        Op::Read(a, b) => {
            let range = within(a, b, len);
            let mut into = vec![9; range.len()];
            section.read(range.start, &mut into).unwrap();
            assert_eq!(into, model[range.clone()]);
            assert_eq!(section.to_vec(range.clone()).unwrap(), model[range.clone()]);
            let error = section.read(range.start + 1, &mut vec![9; len]).unwrap_err();
            let end = range.start + 1 + len;
            assert_eq!(*error.kind(), ErrorKind::RangeOutside { start: range.start + 1, end, len });
        }
        Op::Write(a, b, value) => {
            let range = within(a, b, len);
            let from: Vec<u32> = (0..range.len() as u32).map(|i| (i + value) % 5).collect();
            section.write(range.start, &from).unwrap();
            model[range].copy_from_slice(&from);
            assert!(section.write(1, &vec![0; len]).is_err());
        }
        Op::Fill(a, b, value) => {
            let range = within(a, b, len);
            section.fill(range.clone(), value).unwrap();
            model[range].fill(value);
            let error = section.fill(..=len, value).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::RangeOutside { start: 0, end: len + 1, len });
        }
        Op::CopyWithin(a, b, to) => {
            let range = within(a, b, len);
            let to = to % (len - range.len() + 1);
            section.copy_from(to, section.section(range.clone()).unwrap()).unwrap();
            model.copy_within(range, to);
        }
        Op::Map(a, b, writes, value) => {
            let range = within(a, b, len);
            let sum =
                section.section(..).unwrap().map(range.clone(), |slice| slice.iter().sum::<u32>()).unwrap();
            assert_eq!(sum, model[range.clone()].iter().sum::<u32>());
            if writes {
                let change = |slice: &mut [u32]| slice.iter_mut().for_each(|x| *x = (*x + value) % 5);
                section.map_mut(range.clone(), MapMode::ReadWrite, change).unwrap();
                change(&mut model[range]);
            }
        }
        Op::ForEachMut(a, b, value) => {
            let range = within(a, b, len);
            let change = |at: usize, x: &mut u32| *x = (*x + at as u32 + value) % 5;
            section.for_each_mut(range.clone(), change).unwrap();
            range.for_each(|at| change(at, &mut model[at]));
        }
        Op::Discard(a, b) => {
            let range = within(a, b, len);
            section.discard(range.clone()).unwrap();
            model[range].fill(0);
        }
        Op::Evict(a, b) => section.evict(within(a, b, len)).unwrap(),
        Op::Flush(a, b) => section.flush(within(a, b, len)).unwrap(),
        Op::Prefetch(a, b) => section.prefetch(within(a, b, len)).unwrap(),
        Op::Pages(writes, value) => {
            let mut at = 0;
            for page in section.pages() {
                let page = page.unwrap();
                assert_eq!(page.range(), at..at + page.len());
                assert_eq!(*page, model[page.range()]);
                at += page.len();
            }
            assert_eq!(at, len);
            for page in section.pages_mut().rev().take(if writes { usize::MAX } else { 0 }) {
                let mut page = page.unwrap();
                page.iter_mut().for_each(|x| *x = (*x + value) % 5);
                model[page.range()].iter_mut().for_each(|x| *x = (*x + value) % 5);
            }
            outside(section.page(section.page_count()), section.page_count(), section.page_count());
        }
        Op::Cursors(accesses) => {
            let mut cursor = section.cursor_mut();
            for (at, value) in accesses.into_iter().filter(|(at, _)| *at < len) {
                assert_eq!(cursor.get(at).unwrap(), model[at]);
                if let Some(value) = value {
                    cursor.set(at, value).unwrap();
                    model[at] = value;
                }
            }
            cursor.release();
            let mut cursor = section.cursor();
            (0..len).for_each(|at| assert_eq!(cursor.get(at).unwrap(), model[at]));
        }
        Op::Find(a, b, value, limit) => {
            let range = within(a, b, len);
            let all: Vec<usize> = range.clone().filter(|&at| model[at] == value).collect();
            let found = section.find_first(range.clone(), Field::whole(), &value, limit).unwrap();
            assert_eq!((found.indices, found.total), (all[..limit.min(all.len())].to_vec(), all.len()));
            assert_eq!(
                section.position(range.clone(), Field::whole(), &value).unwrap(),
                all.first().copied()
            );
            assert_eq!(section.count(range.clone(), Field::whole(), &value).unwrap(), all.len());
            assert_eq!(section.section(range.clone()).unwrap().find(Field::whole(), &value).unwrap(), {
                all.iter().map(|at| at - range.start).collect::<Vec<_>>()
            });
        }
        Op::Iter => {
            assert_eq!(section.iter().collect::<Result<Vec<_>, _>>().unwrap(), model);
            assert_eq!(section.range(), first..first + len);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sections_behave_as_slices_of_a_vec(program in programs(ops())) {
        program.run(run);
    }
}

const PAGE: u64 = 64;

/// 10 pages of 16 `u32` in one channel of 4 frames, written and not cached.
fn array() -> VirtualArray<u32> {
    let shape = Shape { page_len: 16, channels: vec![1], frames: 4, read_ahead: false, ..Shape::default() };
    let array = shape.build(160);
    array.write(0, &[1; 160]).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

fn moved(array: &VirtualArray<u32>) -> (u64, u64) {
    let total = array.stats().total();
    (total.bytes_to_device, total.bytes_from_device)
}

#[test]
fn a_device_operation_writes_back_the_dirty_pages_of_its_section_only() {
    let array = array();
    for i in [0, 40, 100] {
        array.set(i, 5).unwrap();
    }
    assert_eq!(moved(&array), (0, 3 * PAGE));
    let section = array.section(33..50).unwrap();
    assert_eq!(section.count(.., Field::whole(), &5).unwrap(), 1);
    assert_eq!(moved(&array), (PAGE, 3 * PAGE + 16));
    // Again: all is there.
    assert_eq!(section.count(.., Field::whole(), &1).unwrap(), 16);
    assert_eq!(moved(&array), (PAGE, 3 * PAGE + 2 * 16));
    // An overlapping section needs one more page.
    assert_eq!(array.section(45..101).unwrap().count(.., Field::whole(), &5).unwrap(), 1);
    assert_eq!(moved(&array), (2 * PAGE, 3 * PAGE + 3 * 16));
    // What was written back stays in the cache.
    array.reset_stats();
    assert_eq!(section.get(7).unwrap(), 5);
    assert_eq!(moved(&array), (0, 0));
}

#[test]
fn reading_a_section_fetches_its_pages_only() {
    let array = array();
    assert_eq!(array.section(20..40).unwrap().to_vec(..).unwrap(), [1; 20]);
    assert_eq!(moved(&array), (0, 2 * PAGE));
    assert_eq!(array.section(30..48).unwrap().to_vec(..).unwrap(), [1; 18]);
    assert_eq!(moved(&array), (0, 2 * PAGE), "all of it is there");
}

#[test]
fn dropping_a_view_keeps_what_is_cached() {
    let array = std::sync::Arc::new(array());
    let section = SharedSection::new(&array, 20..40).unwrap();
    assert_eq!(section.to_vec(..).unwrap(), [1; 20]);
    drop(section);
    assert_eq!(SharedSection::new(&array, 20..40).unwrap().to_vec(..).unwrap(), [1; 20]);
    assert_eq!(moved(&array), (0, 2 * PAGE));
}

#[test]
fn a_discarded_section_is_neither_fetched_nor_written_back() {
    let array = array();
    let section = array.section_mut(16..48).unwrap();
    section.set(0, 9).unwrap();
    assert_eq!(moved(&array), (0, PAGE));
    section.discard(..).unwrap();
    section.write(0, &[3; 32]).unwrap();
    assert_eq!(moved(&array), (0, PAGE));
    section.flush(..).unwrap();
    assert_eq!(moved(&array), (2 * PAGE, PAGE));
}

#[test]
fn sections_are_used_by_many_threads_at_once() {
    let shape = Shape { page_len: 16, channels: vec![2], frames: 4, ..Shape::default() };
    let array: VirtualArray<u32> = shape.build(1000);
    std::thread::scope(|threads| {
        for part in 0..4 {
            // They overlap by half.
            let section = array.section_mut(part * 200..part * 200 + 400).unwrap();
            threads.spawn(move || {
                for at in 0..section.len() {
                    section.update(at, |x| x + 1).unwrap();
                }
            });
        }
    });
    let expected = |i: usize| {
        u32::from(i < 800)
            + u32::from((200..600).contains(&i))
            + u32::from((600..800).contains(&i))
            + u32::from((800..1000).contains(&i))
    };
    assert_eq!(array.to_vec(..).unwrap(), (0..1000).map(expected).collect::<Vec<_>>());
}

#[test]
fn views_are_small_copies_for_any_thread() {
    fn is_shared<V: Copy + Send + Sync>() {}
    is_shared::<Section<'static, VirtualArray<u32>>>();
    is_shared::<SectionMut<'static, VirtualArray<u32>>>();
    fn is_owned<V: Clone + Send + Sync + 'static>() {}
    is_owned::<SharedSection<VirtualArray<u32>>>();
    assert_eq!(size_of::<SectionMut<'_, VirtualArray<u32>>>(), 24);
}
