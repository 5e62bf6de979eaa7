//! Tests of all operations on elements, ranges, pages and lists of random sections of arrays, by threads and
//! by tasks, compared with slices of a `Vec`.

use std::fmt::Debug;

use crate::common::executor::{all, block_on};
use crate::common::{Numbers, Shape};
use bytemuck::{Pod, Zeroable};
use proptest::prelude::*;
use vmarray::access::{MapBuffer, MapMode};
use vmarray::prelude::*;
use vmarray::{Element, ErrorKind, Field, Result, VirtualArray, field, views::SectionMut};

/// One of six values with distinct bytes.
fn sample<T: Element>(n: u64) -> T {
    let mut value = T::zeroed();
    bytemuck::bytes_of_mut(&mut value)
        .iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = (n % 6) as u8 + i as u8);
    value
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

/// Lengths near multiples of a page, and zero.
fn length(random: &mut Numbers, page_len: usize) -> usize {
    match random.below(12) {
        0 => 0,
        1 => 1,
        2 => page_len - 1,
        3 => page_len,
        4 => page_len + 1,
        5 => 7 * page_len,
        _ => 1 + random.below(199),
    }
}

/// Runs steps on random sections of sections of an array, and on the same parts of a `Vec`.
fn program<T: Element + PartialEq + Debug>(
    seed: u64,
    steps: usize,
    step: impl Fn(SectionMut<'_, VirtualArray<T>>, &mut [T], &mut Numbers),
) {
    let mut random = Numbers::new(seed);
    let shape = Shape::any(&mut random, 19, 4);
    let len = length(&mut random, shape.page_len);
    let array = shape.build::<T>(len);
    let mut model = vec![T::zeroed(); len];
    for _ in 0..steps {
        let mut section = array.section_mut(..).unwrap();
        let mut part = 0..len;
        for _ in 0..random.below(3) {
            let range = random.range(part.len());
            section = section.section_mut(range.clone()).unwrap();
            part = part.start + range.start..part.start + range.end;
        }
        assert_eq!(section.range(), part);
        step(section, &mut model[part], &mut random);
    }
    assert_eq!(array.to_vec(..).unwrap(), model);
}

fn refused<R>(result: Result<R>, kind: &ErrorKind) {
    assert_eq!(result.err().expect("outside").kind(), kind);
}

/// All operations with an element, a range or a page out of bounds.
fn outside<T: Element + PartialEq + Debug>(
    section: SectionMut<'_, VirtualArray<T>>,
    index: usize,
    len: usize,
) {
    let value = sample::<T>(1);
    let element = ErrorKind::IndexOutside { index, len };
    refused(section.get(index), &element);
    refused(section.get_uncached(index), &element);
    refused(section.set(index, value), &element);
    refused(section.set_uncached(index, value), &element);
    refused(section.replace(index, value), &element);
    refused(section.update(index, |x| x), &element);
    refused(section.compare_exchange(index, value, value), &element);
    refused(section.swap(index, 0), &element);
    refused(section.cursor().get(index), &element);
    refused(section.cursor_mut().set(index, value), &element);
    let (start, mut values) = (index / 2, vec![value; index + 1 - index / 2]);
    let ends = ErrorKind::RangeOutside { start, end: index + 1, len };
    refused(section.read(start, &mut values), &ends);
    refused(section.write(start, &values), &ends);
    refused(section.to_vec(start..=index), &ends);
    refused(section.fill(start..=index, value), &ends);
    refused(section.discard(start..=index), &ends);
    let list: Vec<usize> = (0..len.min(2)).chain([index]).collect();
    let listed = ErrorKind::ListedIndexOutside { position: list.len() - 1, index, len };
    let mut values = vec![value; list.len()];
    refused(section.gather(&list), &listed);
    refused(section.gather_into(&list, &mut values), &listed);
    refused(section.gather_iter(list.iter().copied()).collect::<Result<Vec<_>>>(), &listed);
    refused(section.scatter(&list, &values), &listed);
    assert!(section.gather_into(&list, &mut []).is_err() && section.scatter(&list, &[]).is_err());
    refused(section.scatter_iter([(index, value)]), &listed_first(index, len));
    let pages = section.page_count();
    let page = ErrorKind::PageOutside { page: pages, pages };
    refused(section.page(pages), &page);
    refused(section.page_mut(pages), &page);
}

fn listed_first(index: usize, len: usize) -> ErrorKind {
    ErrorKind::ListedIndexOutside { position: 0, index, len }
}

fn list(random: &mut Numbers, len: usize) -> Vec<usize> {
    (0..random.below(40)).map(|_| random.below(len)).collect()
}

/// One operation of a thread.
fn step<T: Element + PartialEq + Debug>(
    section: SectionMut<'_, VirtualArray<T>>,
    model: &mut [T],
    random: &mut Numbers,
) {
    let len = model.len();
    let at = random.below(len + len / 8 + 1);
    if at >= len {
        return outside(section, at, len);
    }
    let (range, other, n) = (random.range(len), random.below(len), random.next() % 12);
    let value = sample::<T>(n);
    match random.below(40) {
        0..3 => assert_eq!(section.get(at).unwrap(), model[at]),
        3 => assert_eq!(section.get_uncached(at).unwrap(), model[at]),
        4..9 => {
            section.set(at, value).unwrap();
            model[at] = value;
        }
        9..12 => {
            section.set_uncached(at, value).unwrap();
            model[at] = value;
        }
        12 => {
            let old = section.replace(at, value).unwrap();
            assert_eq!(old, std::mem::replace(&mut model[at], value));
        }
        13 => {
            let change = |x| if x == T::zeroed() { value } else { x };
            assert_eq!(section.update(at, change).unwrap(), model[at]);
            model[at] = change(model[at]);
        }
        14 => {
            let current = if n % 2 == 0 { model[at] } else { sample::<T>(n / 2) };
            let expected = if model[at] == current { Ok(current) } else { Err(model[at]) };
            assert_eq!(section.compare_exchange(at, current, value).unwrap(), expected);
            if expected.is_ok() {
                model[at] = value;
            }
        }
        15 => {
            section.swap(at, other).unwrap();
            model.swap(at, other);
        }
        16 | 17 => {
            let mut into = vec![sample::<T>(3); range.len()];
            section.read(range.start, &mut into).unwrap();
            assert_eq!(into, model[range.clone()]);
            assert_eq!(section.to_vec(range.clone()).unwrap(), into);
        }
        18 | 19 => {
            let from: Vec<T> = range.clone().map(|i| sample::<T>(n + i as u64)).collect();
            section.write(range.start, &from).unwrap();
            model[range].copy_from_slice(&from);
        }
        20 => {
            section.fill(range.clone(), value).unwrap();
            model[range].fill(value);
        }
        21 => {
            section.discard(range.clone()).unwrap();
            model[range].fill(T::zeroed());
        }
        22 => {
            let to = other % (len - range.len() + 1);
            section.copy_from(to, section.section(range.clone()).unwrap()).unwrap();
            model.copy_within(range, to);
        }
        23 | 24 => map(section, model, range, random),
        25 => {
            let change = |at: usize, x: &mut T| *x = sample::<T>(n + at as u64);
            section.for_each_mut(range.clone(), change).unwrap();
            range.for_each(|at| change(at, &mut model[at]));
        }
        26 => pages(section, model),
        27 => cursors(section, model, random),
        28 => {
            let part = section.section(range.clone()).unwrap();
            let mut iter = part.iter();
            let mut expected = model[range.clone()].iter();
            for turn in 0..range.len() / 2 {
                assert_eq!(iter.len(), expected.len());
                let skip = random.below(3) * (turn % 7 / 6);
                let (seen, known) = match random.below(2) {
                    0 => (iter.nth(skip), expected.nth(skip)),
                    _ => (iter.nth_back(skip), expected.nth_back(skip)),
                };
                assert_eq!(seen.transpose().unwrap(), known.copied());
            }
            let mut seen = Vec::new();
            if n % 2 == 0 {
                iter.for_each(|value| seen.push(value.unwrap()));
                assert!(seen.iter().eq(expected));
            } else {
                iter.rev().for_each(|value| seen.push(value.unwrap()));
                assert!(seen.iter().eq(expected.rev()));
            }
        }
        29 => section.prefetch(range).unwrap(),
        30 => section.flush(range).unwrap(),
        31..34 => section.evict(range).unwrap(),
        34 | 35 => {
            let found: Vec<usize> = range.clone().filter(|&i| model[i] == value).collect();
            let limit = random.below(9);
            let first = section.find_first(range.clone(), Field::whole(), &value, limit).unwrap();
            assert_eq!((&first.indices[..], first.total), (&found[..limit.min(found.len())], found.len()));
            let position = section.position(range.clone(), Field::whole(), &value).unwrap();
            assert_eq!(position, found.first().copied());
            assert_eq!(section.count(range.clone(), Field::whole(), &value).unwrap(), found.len());
            let inner = section.section(range.clone()).unwrap().find(Field::whole(), &value).unwrap();
            assert!(inner.into_iter().eq(found.iter().map(|at| at - range.start)));
        }
        36 | 37 => {
            let list = list(random, len);
            let expected: Vec<T> = list.iter().map(|at| model[*at]).collect();
            assert_eq!(section.gather(&list).unwrap(), expected);
            let mut into = vec![sample::<T>(5); list.len()];
            section.gather_into(&list, &mut into).unwrap();
            assert_eq!(into, expected);
            assert_eq!(section.gather_iter(list).collect::<Result<Vec<_>>>().unwrap(), expected);
        }
        _ => {
            let list = list(random, len);
            let values: Vec<T> = list.iter().map(|_| sample::<T>(random.next() % 12)).collect();
            if n % 2 == 0 {
                section.scatter(&list, &values).unwrap();
            } else {
                let pairs = list.iter().copied().zip(values.iter().copied());
                assert_eq!(section.scatter_iter(pairs).unwrap(), list.len());
            }
            list.into_iter().zip(values).for_each(|(at, value)| model[at] = value);
        }
    }
}

fn map<T: Element + PartialEq + Debug>(
    section: SectionMut<'_, VirtualArray<T>>,
    model: &mut [T],
    range: std::ops::Range<usize>,
    random: &mut Numbers,
) {
    section
        .section(..)
        .unwrap()
        .map(range.clone(), |slice| assert_eq!(*slice, model[range.clone()]))
        .unwrap();
    let mode = [MapMode::Read, MapMode::Write, MapMode::ReadWrite, MapMode::Scratch][random.below(4)];
    let value = sample::<T>(random.next() % 12);
    let mut own = vec![sample::<T>(5); range.len() + 3];
    let buffer = match random.below(3) {
        0 => MapBuffer::New,
        1 => MapBuffer::Pinned,
        _ => MapBuffer::Borrowed(&mut own),
    };
    let seen = section.map_in(range.clone(), mode, buffer, |slice| {
        assert!(slice.as_ptr().is_aligned());
        let seen = slice.to_vec();
        slice.fill(value);
        seen
    });
    let seen = seen.unwrap();
    if matches!(mode, MapMode::Read | MapMode::ReadWrite) {
        assert_eq!(seen, model[range.clone()]);
    }
    if matches!(mode, MapMode::Write | MapMode::ReadWrite) {
        model[range].fill(value);
    }
}

fn pages<T: Element + PartialEq + Debug>(section: SectionMut<'_, VirtualArray<T>>, model: &mut [T]) {
    let mut at = 0;
    for page in section.pages() {
        let page = page.unwrap();
        assert_eq!(page.range(), at..at + page.len());
        assert_eq!(*page, model[page.range()]);
        at += page.len();
    }
    assert_eq!(at, model.len());
    for page in section.pages_mut().rev() {
        let mut page = page.unwrap();
        page.reverse();
        model[page.range()].reverse();
    }
}

fn cursors<T: Element + PartialEq + Debug>(
    section: SectionMut<'_, VirtualArray<T>>,
    model: &mut [T],
    random: &mut Numbers,
) {
    let mut cursor = section.cursor_mut();
    for at in list(random, model.len()) {
        assert_eq!(cursor.get(at).unwrap(), model[at]);
        if random.below(2) == 0 {
            model[at] = sample::<T>(random.next() % 12);
            cursor.set(at, model[at]).unwrap();
        }
    }
    cursor.release();
    let mut cursor = section.cursor();
    (0..model.len()).for_each(|at| assert_eq!(cursor.get(at).unwrap(), model[at]));
}

/// One operation of a task, or of a thread between two operations of tasks.
fn task_step(section: SectionMut<'_, VirtualArray<u32>>, model: &mut [u32], random: &mut Numbers) {
    let len = model.len();
    let at = random.below(len + len / 8 + 1);
    if at >= len {
        let element = ErrorKind::IndexOutside { index: at, len };
        refused(block_on(section.get_async(at)), &element);
        refused(block_on(section.set_async(at, 1)), &element);
        let ends = ErrorKind::RangeOutside { start: at / 2, end: at + 1, len };
        refused(block_on(section.read_async(at / 2, &mut vec![9; at + 1 - at / 2])), &ends);
        refused(block_on(section.flush_async(at / 2..=at)), &ends);
        refused(block_on(section.gather_async(&[at])), &listed_first(at, len));
        let pages = section.page_count();
        let page = ErrorKind::PageOutside { page: pages, pages };
        refused(block_on(section.page_async(pages)), &page);
        refused(block_on(section.page_mut_async(pages)), &page);
        return;
    }
    let (range, page, value) =
        (random.range(len), random.below(section.page_count()), random.below(5) as u32);
    match random.below(10) {
        0 => assert_eq!(block_on(section.get_async(at)).unwrap(), model[at]),
        1 => {
            block_on(section.set_async(at, value)).unwrap();
            model[at] = value;
        }
        2 => {
            let values = all((0..len).map(|at| section.get_async(at)));
            assert_eq!(values.into_iter().collect::<Result<Vec<_>>>().unwrap(), model);
        }
        3 => {
            let mut into = vec![9; range.len()];
            block_on(section.read_async(range.start, &mut into)).unwrap();
            assert_eq!(into, model[range]);
        }
        4 => {
            let list = list(random, len);
            let expected: Vec<u32> = list.iter().map(|at| model[*at]).collect();
            assert_eq!(block_on(section.gather_async(&list)).unwrap(), expected);
        }
        5 => {
            let page = block_on(section.page_async(page)).unwrap();
            assert_eq!(*page, model[page.range()]);
        }
        6 => {
            let mut page = block_on(section.page_mut_async(page)).unwrap();
            page.iter_mut().for_each(|x| *x = (*x + value) % 5);
            model[page.range()].iter_mut().for_each(|x| *x = (*x + value) % 5);
        }
        7 => block_on(section.prefetch_async(range)).unwrap(),
        8 => block_on(section.flush_async(range)).unwrap(),
        _ => step(section, model, random),
    }
}

macro_rules! models {
    ($($name:ident: $step:expr;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig { failure_persistence: None, cases: backend_api::wrap::random_cases(500), ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name(seed in any::<u64>(), steps in 1..60_usize) {
                    program(seed, steps, $step);
                }
            )*
        }
    };
}

models! {
    bytes: step::<u8>;
    words: step::<u32>;
    long_words: step::<u64>;
    odd_elements: step::<[u8; 3]>;
    records: step::<Record>;
    tasks: task_step;
}

#[test]
fn fields_of_packed_records_are_found() {
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C, packed)]
    struct Packed {
        tag: u8,
        key: u64,
        position: [f32; 3],
    }
    let array = Shape { channels: vec![2, 1], ..Shape::default() }.build::<Packed>(1000);
    let number = |i: usize, x: &mut Packed| {
        *x = Packed { tag: i as u8, key: 0x0101 + i as u64 % 500, position: [i as f32, 1.0, -(i as f32)] };
    };
    array.for_each_mut(.., number).unwrap();
    assert_eq!(array.find(field!(Packed, tag), &7).unwrap(), [7, 263, 519, 775]);
    assert_eq!(array.find(field!(Packed, key), &0x0103).unwrap(), [2, 502]);
    assert_eq!(array.find(field!(Packed, position), &[7.0, 1.0, -7.0]).unwrap(), [7]);
    assert_eq!(array.count(.., field!(Packed, position).nth::<1>(), &1.0).unwrap(), 1000);
}
