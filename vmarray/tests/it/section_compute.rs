//! Expressions, gathers and scatters on sections: against slices of a `Vec`, over random sections of
//! sections; bytes moved.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::asked::{Condition, KEY, Pair, VALUE, ask, assign, transform, within};
use crate::common::{POLICIES, Shape, host};
use proptest::prelude::*;
use vmarray::device::Device;
use vmarray::device::wrap::{Fault, Faulty, Operation};
use vmarray::expr::{Expr, index};
use vmarray::{ErrorKind, Field, SectionMut, SharedSection, VirtualArray};

#[derive(Clone, Debug)]
enum Op {
    Set(usize, Pair),
    Ask(usize, usize, Condition, usize),
    Transform(usize, usize, u32),
    Assign(usize, usize, Condition, u32),
    Gather(Vec<usize>),
    Scatter(Vec<(usize, Pair)>),
    Outside(usize),
    Evict,
}

fn ops() -> impl Strategy<Value = Op> {
    let at = || 0..1000_usize;
    let pair = || (0..20_u32, any::<u32>()).prop_map(|(key, value)| [key, value]);
    let condition = || (0..20_u32, 0..3_u64).prop_map(|(key, rest)| Condition { key, rest });
    prop_oneof![
        3 => (at(), pair()).prop_map(|(i, pair)| Op::Set(i, pair)),
        4 => (at(), at(), condition(), 0..20_usize).prop_map(|(a, b, c, limit)| Op::Ask(a, b, c, limit)),
        1 => (at(), at(), any::<u32>()).prop_map(|(a, b, by)| Op::Transform(a, b, by)),
        2 => (at(), at(), condition(), any::<u32>()).prop_map(|(a, b, c, by)| Op::Assign(a, b, c, by)),
        2 => prop::collection::vec(at(), 0..60).prop_map(Op::Gather),
        2 => prop::collection::vec((at(), pair()), 0..60).prop_map(Op::Scatter),
        1 => at().prop_map(Op::Outside),
        1 => Just(Op::Evict),
    ]
}

fn run<D: Device>(section: SectionMut<'_, VirtualArray<Pair, D>>, model: &mut [Pair], op: Op) {
    let len = model.len();
    match op {
        Op::Set(at, pair) if len > 0 => {
            section.set(at % len, pair).unwrap();
            model[at % len] = pair;
        }
        Op::Ask(a, b, condition, limit) => ask!(section, model, within(a, b, len), condition, limit),
        Op::Transform(a, b, by) => transform!(section, model, within(a, b, len), by),
        Op::Assign(a, b, condition, by) => assign!(section, model, within(a, b, len), condition, by),
        Op::Gather(list) if len > 0 => {
            let list: Vec<usize> = list.iter().map(|i| i % len).collect();
            let truth: Vec<Pair> = list.iter().map(|i| model[*i]).collect();
            assert_eq!(section.gather(&list).unwrap(), truth);
            let mut into = vec![[9; 2]; list.len()];
            section.gather_into(&list, &mut into).unwrap();
            assert_eq!(into, truth);
        }
        Op::Scatter(list) if len > 0 => {
            let (indices, pairs): (Vec<usize>, Vec<Pair>) = list.iter().map(|(i, p)| (i % len, *p)).unzip();
            section.scatter(&indices, &pairs).unwrap();
            indices.iter().zip(pairs).for_each(|(i, pair)| model[*i] = pair);
        }
        Op::Outside(by) => {
            let (list, outside) = ([0, len + by], len + by);
            let list = if len == 0 { &list[1..] } else { &list[..] };
            let expected = ErrorKind::ListedIndexOutside { position: list.len() - 1, index: outside, len };
            let mut values = vec![[7; 2]; list.len()];
            assert_eq!(*section.gather(list).unwrap_err().kind(), expected);
            assert_eq!(*section.gather_into(list, &mut values).unwrap_err().kind(), expected);
            assert_eq!(*section.scatter(list, &values).unwrap_err().kind(), expected);
            assert!(section.gather_into(list, &mut []).is_err() && section.scatter(list, &[]).is_err());
            let (start, end) = (0, outside + 1);
            let expected = ErrorKind::RangeOutside { start, end, len };
            assert_eq!(*section.count_where(..end, KEY.eq(1)).unwrap_err().kind(), expected);
            assert_eq!(*section.sum(..end, KEY).unwrap_err().kind(), expected);
            assert_eq!(*section.arg_max(..end, KEY).unwrap_err().kind(), expected);
            assert_eq!(*section.select_where(..end, KEY.eq(1)).unwrap_err().kind(), expected);
            assert_eq!(*section.transform(..end, KEY.set(1)).unwrap_err().kind(), expected);
            assert_eq!(*section.assign_where(..end, KEY.eq(1), KEY.set(1)).unwrap_err().kind(), expected);
        }
        Op::Evict => section.evict(..).unwrap(),
        Op::Set(..) | Op::Gather(_) | Op::Scatter(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sections_compute_gather_and_scatter_as_slices_of_a_vec(
        kind in 0..3_usize,
        len in 1..300_usize,
        steps in prop::collection::vec(((0..1000_usize, 0..1000_usize), (0..1000_usize, 0..1000_usize), ops()), 1..25),
    ) {
        let array = Shape {
            page_len: [8, 7, 64][kind],
            channels: [&[1][..], &[2, 1], &[3]][kind].to_vec(),
            frames: 2 + kind,
            policy: POLICIES[kind],
            read_ahead: kind == 1,
        }.build::<Pair>(len);
        let mut model = vec![[0; 2]; len];
        for (outer, inner, op) in steps {
            let outer = within(outer.0, outer.1, len);
            let inner = within(inner.0, inner.1, outer.len());
            let section = array.section_mut(outer.clone()).unwrap().section_mut(inner.clone()).unwrap();
            run(section, &mut model[outer][inner], op);
            // Not one element beside the section has changed.
            prop_assert_eq!(array.to_vec(..).unwrap(), model.clone());
        }
    }
}

/// 128 elements in 8 pages of a channel, written to, none of them resident.
fn at_home() -> VirtualArray<Pair> {
    let shape = Shape { page_len: 16, channels: vec![1], frames: 8, ..Shape::default() };
    let array = shape.build::<Pair>(128);
    (0..128).for_each(|i| array.set(i, [i as u32 % 8, i as u32]).unwrap());
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

/// Bytes to and from the device that an operation moves.
fn moved<R>(array: &VirtualArray<Pair>, run: impl FnOnce() -> R) -> (u64, u64) {
    let before = array.stats().total();
    run();
    let after = array.stats().total();
    (after.bytes_to_device - before.bytes_to_device, after.bytes_from_device - before.bytes_from_device)
}

#[test]
fn asking_again_moves_the_answer_alone() {
    let array = at_home();
    // In three pages, of which the second one is dirty.
    array.set(40, [7, 7]).unwrap();
    array.set(100, [7, 7]).unwrap();
    let section = array.section(20..60).unwrap();
    let page = 16 * size_of::<Pair>() as u64;
    let condition = || KEY.eq(7) & index().ge(12);
    let first = moved(&array, || assert_eq!(section.count_where(.., condition()).unwrap(), 4));
    assert_eq!(first, (page, 16), "one page, and an answer of two words");
    for _ in 0..3 {
        assert_eq!(moved(&array, || section.count_where(.., condition()).unwrap()), (0, 16));
        assert_eq!(moved(&array, || section.histogram(.., KEY, 8).unwrap()), (0, 8 * 8));
        let found = moved(&array, || assert_eq!(section.find_where(.., condition(), 3).unwrap().total, 4));
        assert_eq!(found.0, 0);
        assert!((16 + 3 * 8..=page).contains(&found.1), "{found:?}");
        let sum = moved(&array, || section.sum(.., VALUE).unwrap());
        assert!(sum.0 == 0 && (8..=page).contains(&sum.1), "{sum:?}");
        let extreme = moved(&array, || section.arg_max(.., VALUE).unwrap());
        assert!(extreme.0 == 0 && (8..=page).contains(&extreme.1), "{extreme:?}");
        let selected = moved(&array, || section.select_where(.., condition()).unwrap().count());
        assert!(selected.0 == 0 && selected.1 >= 4 * 8, "{selected:?}");
    }
}

#[test]
fn gathers_and_scatters_move_indices_and_elements_alone() {
    let array = at_home();
    let section = array.section_mut(20..90).unwrap();
    let list = [65, 3, 40, 3];
    for _ in 0..2 {
        let bytes = moved(&array, || {
            let truth = list.map(|i| [(i as u32 + 20) % 8, i as u32 + 20]);
            assert_eq!(section.gather(&list).unwrap(), truth);
        });
        assert_eq!(bytes, (4 * 8, 4 * 8));
    }
    let bytes = moved(&array, || section.scatter(&list, &[[1; 2], [2; 2], [3; 2], [4; 2]]).unwrap());
    assert_eq!(bytes, (3 * (8 + 8), 0), "of two values for one element the last one");
    assert_eq!(array.gather(&[85, 23, 60]).unwrap(), [[1; 2], [4; 2], [3; 2]]);
}

#[test]
fn an_error_says_what_was_written_by_indices_of_the_section() {
    let device = Arc::new(Faulty::new(host()));
    let array = Shape { page_len: 8, channels: vec![1, 1], ..Shape::default() }
        .describe::<u32, _>(64, vec![device.clone(), device.clone()])
        .build()
        .unwrap();
    let section = array.section_mut(12..50).unwrap();
    let kind = vmarray::device::ErrorKind::KernelFailed;
    let value = Field::<u32, u32>::whole();
    // Of two channels the second one's work is refused after the first one's has begun.
    device.inject(Fault::new(Operation::Compute, kind).on_call(2));
    let error = section.transform(.., value.set(1)).unwrap_err();
    let ErrorKind::Interrupted { written, unspecified, .. } = error.kind() else { panic!("{error}") };
    let listed = written.iter().chain(unspecified).map(ExactSizeIterator::len).sum::<usize>();
    assert!(!unspecified.is_empty() && listed == section.len(), "{error}");
    for i in 0..section.len() {
        let is_listed = written.iter().any(|range| range.contains(&i));
        assert_eq!(section.get(i).unwrap() == 1, is_listed, "{i} of {written:?}");
    }
    assert_eq!(array.sum(.., value).unwrap(), written.iter().map(|range| range.len() as i128).sum::<i128>());
    // It fails after it was accepted.
    device.inject(Fault::new(Operation::Compute, kind).on_call(1).reported_later());
    let error = section.assign_where(.., value.ge(0), value.set(2)).unwrap_err();
    let ErrorKind::Interrupted { unspecified, .. } = error.kind() else { panic!("{error}") };
    assert!(!unspecified.is_empty() && unspecified.iter().all(|range| range.end <= 38), "{error}");
}

#[test]
fn two_instructions_more_can_be_too_many() {
    let array = Shape::default().build::<u64>(64);
    // The index, a constant and a product each: 255 instructions.
    let mut long: Expr<u64, u64> = index();
    for i in 0..127 {
        long = long * (1_000 + i);
    }
    assert!(array.sum(.., &long).is_ok() && array.section(..9).unwrap().sum(.., &long).is_ok());
    let error = array.section(9..).unwrap().sum(.., &long).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ExpressionTooLong { most: 256 });
}

#[test]
fn threads_compute_on_their_sections() {
    let array = Arc::new(Shape::default().build::<u64>(400));
    let parts: Vec<_> = (0..4).map(|i| SharedSection::new(&array, i * 100..i * 100 + 100).unwrap()).collect();
    let threads = parts.into_iter().map(|part| {
        std::thread::spawn(move || {
            part.transform(.., Field::whole().set(index())).unwrap();
            assert_eq!(part.sum(.., Field::whole()).unwrap(), 4950);
            part.scatter(&[99, 0], &[7, 8]).unwrap();
            assert_eq!(part.gather(&[0, 98, 99]).unwrap(), [8, 98, 7]);
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 4 * (4950 - 99 + 7 + 8));
}
