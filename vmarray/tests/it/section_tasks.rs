//! Futures and long lists of sections, against slices of a `Vec`, over random sections of sections.

use crate::common::Shape;
use crate::common::executor::{all, block_on};
use crate::common::parts::{outside, programs, within};
use proptest::prelude::*;
use vmarray::prelude::*;
use vmarray::{ErrorKind, SectionMut, SharedSection, VirtualArray};

#[derive(Clone, Debug)]
enum Op {
    Get(usize),
    Set(usize, u32),
    GetAll,
    Read(usize, usize),
    Gather(Vec<usize>),
    Scatter(Vec<(usize, u32)>),
    Page(usize),
    PageMut(usize, u32),
    Prefetch(usize, usize),
    Flush(usize, usize),
}

fn ops() -> impl Strategy<Value = Op> {
    let i = || 0_usize..1000;
    let v = || 0_u32..5;
    prop_oneof![
        i().prop_map(Op::Get),
        (i(), v()).prop_map(|(a, b)| Op::Set(a, b)),
        Just(Op::GetAll),
        (i(), i()).prop_map(|(a, b)| Op::Read(a, b)),
        prop::collection::vec(i(), 0..20).prop_map(Op::Gather),
        prop::collection::vec((i(), v()), 0..20).prop_map(Op::Scatter),
        (0_usize..20).prop_map(Op::Page),
        (0_usize..20, v()).prop_map(|(a, b)| Op::PageMut(a, b)),
        (i(), i()).prop_map(|(a, b)| Op::Prefetch(a, b)),
        (i(), i()).prop_map(|(a, b)| Op::Flush(a, b)),
    ]
}

fn run(section: SectionMut<'_, VirtualArray<u32>>, model: &mut [u32], op: Op) {
    let len = model.len();
    match op {
        Op::Get(at) | Op::Set(at, _) if at >= len => {
            outside(block_on(section.get_async(at)), at, len);
            outside(block_on(section.set_async(at, 1)), at, len);
        }
        Op::Get(at) => assert_eq!(block_on(section.get_async(at)).unwrap(), model[at]),
        Op::Set(at, value) => {
            block_on(section.set_async(at, value)).unwrap();
            model[at] = value;
        }
        Op::GetAll => {
            let values = all((0..len).map(|at| section.get_async(at)));
            assert_eq!(values.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), model);
        }
        Op::Read(a, b) => {
            let range = within(a, b, len);
            let mut into = vec![9; range.len()];
            block_on(section.read_async(range.start, &mut into)).unwrap();
            assert_eq!(into, model[range.clone()]);
            let (start, end) = (range.start + 1, range.start + 1 + len);
            let error = block_on(section.read_async(start, &mut vec![9; len])).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::RangeOutside { start, end, len });
        }
        Op::Gather(mut list) => {
            let first_outside = list.iter().position(|at| *at >= len);
            let got = [
                block_on(section.gather_async(&list)),
                section.gather_iter(list.iter().copied()).collect::<Result<Vec<_>, _>>(),
            ];
            if let Some(position) = first_outside {
                let kind = ErrorKind::ListedIndexOutside { position, index: list[position], len };
                got.into_iter().for_each(|got| assert_eq!(*got.unwrap_err().kind(), kind));
            }
            list.retain(|at| *at < len);
            let expected: Vec<u32> = list.iter().map(|at| model[*at]).collect();
            assert_eq!(block_on(section.gather_async(&list)).unwrap(), expected);
            assert_eq!(section.gather_iter(list).collect::<Result<Vec<_>, _>>().unwrap(), expected);
        }
        Op::Scatter(mut list) => {
            if let Some(position) = list.iter().position(|(at, _)| *at >= len) {
                let error = section.scatter_iter(list.iter().copied()).unwrap_err();
                let kind = ErrorKind::ListedIndexOutside { position, index: list[position].0, len };
                assert_eq!(*error.kind(), kind);
            }
            list.retain(|(at, _)| *at < len);
            assert_eq!(section.scatter_iter(list.iter().copied()).unwrap(), list.len());
            list.into_iter().for_each(|(at, value)| model[at] = value);
        }
        Op::Page(page) | Op::PageMut(page, _) if page >= section.page_count() => {
            outside(block_on(section.page_async(page)), page, section.page_count());
            outside(block_on(section.page_mut_async(page)), page, section.page_count());
        }
        Op::Page(page) => {
            let page = block_on(section.page_async(page)).unwrap();
            assert_eq!(*page, model[page.range()]);
        }
        Op::PageMut(page, by) => {
            let mut page = block_on(section.page_mut_async(page)).unwrap();
            let range = page.range();
            page.iter_mut().zip(&mut model[range]).for_each(|(x, y)| {
                *x = (*x + by) % 5;
                *y = (*y + by) % 5;
            });
        }
        Op::Prefetch(a, b) => block_on(section.prefetch_async(within(a, b, len))).unwrap(),
        Op::Flush(a, b) => {
            block_on(section.flush_async(within(a, b, len))).unwrap();
            let error = block_on(section.flush_async(..=len)).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::RangeOutside { start: 0, end: len + 1, len });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tasks_see_sections_as_slices_of_a_vec(program in programs(ops())) {
        program.run(run);
    }
}

/// Pages of 16 `u32`, half of them in the cache.
fn array() -> VirtualArray<u32> {
    let shape = Shape { page_len: 16, channels: vec![1], frames: 32, read_ahead: false, ..Shape::default() };
    let array = shape.build(64 * 16);
    array.write(0, &(0..1024).collect::<Vec<u32>>()).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

#[test]
fn only_the_pages_of_the_section_are_fetched_and_written_back() {
    let array = array();
    let section = array.section_mut(20..100).unwrap();
    block_on(section.prefetch_async(..)).unwrap();
    assert_eq!(array.stats().total().bytes_from_device, 6 * 64);
    all((0..80).map(|at| section.set_async(at, 1))).into_iter().for_each(|set| set.unwrap());
    array.set(200, 1).unwrap();
    array.reset_stats();
    block_on(section.flush_async(12..44)).unwrap();
    let total = array.stats().total();
    assert_eq!((total.write_backs, total.bytes_to_device), (2, 2 * 64), "elements 32 to 63 of the array");
}

#[test]
fn futures_outlive_their_section() {
    let array = array();
    let (coming, page) = {
        let section = array.section(100..200).unwrap();
        (section.get_async(5), section.page_async(1))
    };
    assert_eq!(block_on(coming).unwrap(), 105);
    assert_eq!(block_on(page).unwrap()[0], 112);
}

#[test]
fn an_owned_section_goes_with_its_task_to_another_thread() {
    let array = std::sync::Arc::new(array());
    let sections = [0..500, 500..1000].map(|range| SharedSection::new(&array, range).unwrap());
    drop(array);
    let threads = sections.map(|section| {
        std::thread::spawn(move || {
            block_on(async move {
                let mut sum = 0;
                for at in 0..section.len() {
                    sum += section.get_async(at).await?;
                }
                Ok::<u32, vmarray::Error>(sum)
            })
        })
    });
    let sums = threads.map(|thread| thread.join().unwrap().unwrap());
    assert_eq!(sums, [499 * 500 / 2, (500 + 999) * 500 / 2]);
}
