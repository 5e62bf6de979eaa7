//! Expressions, gathers and scatters on sections: bytes moved, failures, threads. What they do is in `views`.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::{KEY, Pair, Shape, VALUE, host};
use vmarray::device::wrap::{Fault, Faulty, Operation};
use vmarray::expr::{Expr, index};
use vmarray::{ErrorKind, Field, SharedSection, VirtualArray};

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
