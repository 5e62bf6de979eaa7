//! Tests of many threads on one array: no torn values, lost writes or hangs.

use backend_api::wrap::random_cases;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vmarray::prelude::*;

use crate::common::{Numbers, POLICIES, Shape, together};
use vmarray::{Element, ErrorKind, Field, VirtualArray, access::MapMode};

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for policy in POLICIES {
        for (channels, frames) in [(1, 1), (1, 2), (2, 3), (3, 1)] {
            shapes.push(Shape {
                page_len: 4,
                channels: vec![channels],
                frames,
                policy,
                read_ahead: frames > 1,
                counts_hits: frames == 2,
                ..Shape::default()
            });
        }
    }
    shapes
}

fn increments<T: Element>(each: u32, add: fn(T) -> T, number: fn(T) -> u64) {
    for shape in shapes() {
        let array = shape.build::<T>(64);
        together(4, |thread| {
            let mut numbers = Numbers::new(thread as u64);
            (0..each).for_each(|_| _ = array.update(numbers.below(64), add).unwrap());
        });
        let sum: u64 = array.iter().map(|x| number(x.unwrap())).sum();
        assert_eq!(sum, 4 * u64::from(each), "{shape:?}");
    }
}

#[test]
fn increments_are_not_lost() {
    increments::<u64>(random_cases(3000), |x| x + 1, |x| x);
    increments::<[u64; 3]>(random_cases(2000), |x| x.map(|x| x + 1), |x| x[1]);
}

/// All elements of a value are equal; a reader that sees different ones has seen a torn value.
#[test]
fn elements_are_never_torn() {
    for shape in shapes() {
        let array = shape.build::<[u32; 11]>(60);
        let writing = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut numbers = Numbers::new(1);
                for n in 0..random_cases(4000) {
                    let at = numbers.below(50);
                    match n % 5 {
                        0 => array.write(at, &[[n; 11]; 10]).unwrap(),
                        1 => array.set_uncached(at + 10, [n; 11]).unwrap(),
                        2 => array.fill(20..45, [n; 11]).unwrap(),
                        3 => array.scatter(&[at, at + 9, at + 4], &[[n; 11]; 3]).unwrap(),
                        _ => array.set(at + 5, [n; 11]).unwrap(),
                    }
                }
                writing.store(false, Ordering::Relaxed);
            });
            for thread in 0..4 {
                let (array, writing) = (&array, &writing);
                scope.spawn(move || {
                    let mut numbers = Numbers::new(10 + thread);
                    let whole = |x: [u32; 11]| assert!(x.iter().all(|&y| y == x[0]), "{x:?}");
                    while writing.load(Ordering::Relaxed) {
                        match thread {
                            0 => whole(array.get(numbers.below(60)).unwrap()),
                            1 => whole(array.get_uncached(numbers.below(60)).unwrap()),
                            2 => {
                                let list: Vec<usize> = (0..30).map(|_| numbers.below(60)).collect();
                                array.gather(&list).unwrap().into_iter().for_each(whole);
                            }
                            _ => array.to_vec(numbers.below(30)..60).unwrap().into_iter().for_each(whole),
                        }
                    }
                });
            }
            writer.join().unwrap();
        });
    }
}

/// One writer increments each element; no reader sees one decrease, by any method.
#[test]
fn a_value_read_once_stays_visible() {
    let last = random_cases(300);
    for shape in shapes() {
        let array = shape.build::<u32>(40);
        let writing = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=last {
                    for i in 0..40 {
                        match (n as usize + i) % 5 {
                            0 => array.set_uncached(i, n).unwrap(),
                            1 => array.write(i, &[n]).unwrap(),
                            2 => drop(array.replace(i, n).unwrap()),
                            3 => array.page_mut(array.page_of(i)).unwrap()[i % 4] = n,
                            _ => array.set(i, n).unwrap(),
                        }
                    }
                }
                writing.store(false, Ordering::Relaxed);
            });
            for thread in 0..2 {
                let (array, writing, shape) = (&array, &writing, &shape);
                scope.spawn(move || {
                    let mut seen = [0; 40];
                    let mut numbers = Numbers::new(thread);
                    while writing.load(Ordering::Relaxed) {
                        let i = numbers.below(40);
                        let now = match numbers.below(5) {
                            0 => array.get_uncached(i).unwrap(),
                            1 => array.to_vec(i..=i).unwrap()[0],
                            2 => array.page(array.page_of(i)).unwrap()[i % 4],
                            3 => array.map_mut(i..=i, MapMode::Read, |slice| slice[0]).unwrap(),
                            _ => array.get(i).unwrap(),
                        };
                        assert!(now >= seen[i], "{i}: {now} after {} {shape:?}", seen[i]);
                        seen[i] = now;
                    }
                });
            }
        });
        assert!(array.iter().all(|x| x.unwrap() == last));
    }
}

/// A thread writes a value, then a flag; a reader that sees the flag sees the value.
#[test]
fn set_and_get_hand_over_other_data() {
    let array = Shape { page_len: 4, channels: vec![1], frames: 8, ..Shape::default() }.build::<u32>(64);
    let data = AtomicU64::new(0);
    for round in 1..200_u32 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                data.store(u64::from(round), Ordering::Relaxed);
                array.set(40, round).unwrap();
            });
            scope.spawn(|| {
                while array.get(40).unwrap() != round {
                    std::hint::spin_loop();
                }
                assert_eq!(data.load(Ordering::Relaxed), u64::from(round));
            });
        });
    }
}

#[test]
fn find_sees_earlier_writes_of_all_threads() {
    for shape in shapes() {
        let array = shape.build::<u32>(90);
        together(3, |thread| {
            for i in (thread..90).step_by(3) {
                array.set(i, 1000 + i as u32).unwrap();
                assert_eq!(array.find(Field::whole(), &(1000 + i as u32)).unwrap(), [i], "{shape:?}");
            }
        });
    }
}

#[test]
fn more_threads_than_frames_all_get_done() {
    for policy in POLICIES {
        let shape = Shape { page_len: 2, channels: vec![1], frames: 1, policy, ..Shape::default() };
        let array = shape.build::<u32>(100);
        together(8, |thread| {
            let mut numbers = Numbers::new(thread as u64);
            for _ in 0..500 {
                let i = numbers.below(100);
                match numbers.below(4) {
                    0 => array.set(i, i as u32).unwrap(),
                    1 => drop(array.page(array.page_of(i)).unwrap()),
                    2 => drop(array.page_mut(array.page_of(i)).unwrap()),
                    _ => drop(array.get(i).unwrap()),
                }
            }
        });
    }
}

#[test]
fn closures_may_use_the_same_array() {
    let array = Shape { page_len: 4, channels: vec![1], frames: 1, ..Shape::default() }.build::<u32>(40);
    let sum = array
        .map_mut(.., MapMode::ReadWrite, |slice| {
            array.set(39, 7).unwrap();
            slice[0] = array.get(39).unwrap();
            array.update(5, |x| x + array.get(39).unwrap()).unwrap();
            slice.iter().sum::<u32>()
        })
        .unwrap();
    assert_eq!(sum, 7);
    // The map operation wrote its whole copy back.
    assert_eq!((array.get(0).unwrap(), array.get(39).unwrap()), (7, 0));
}

#[test]
fn a_panic_in_a_closure_leaves_the_array_usable() {
    let array = Shape { page_len: 4, channels: vec![1], frames: 1, ..Shape::default() }.build::<u32>(40);
    array.fill(.., 1).unwrap();
    let panics: [&dyn Fn(); 4] = [
        &|| array.map_mut(.., MapMode::ReadWrite, |slice| slice[40]).map(drop).unwrap(),
        &|| assert_eq!(array.update(3, |_| panic!("on purpose")).unwrap(), 0),
        &|| array.for_each_mut(.., |i, x| if i == 6 { panic!("on purpose") } else { *x = 2 }).unwrap(),
        &|| {
            let _guard = array.page_mut(5).unwrap();
            panic!("on purpose");
        },
    ];
    for run in panics {
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    }
    together(2, |_| assert_eq!(array.iter().map(Result::unwrap).sum::<u32>(), 40 + 6));
}

#[test]
fn too_many_guards_are_refused_by_name() {
    let array = Shape { page_len: 4, channels: vec![1], frames: 4, ..Shape::default() }.build::<u32>(40);
    let held: Vec<_> = (0..3).map(|page| array.page(page).unwrap()).collect();
    let error = array.page(3).map(drop).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooManyGuards { channel: 0, frames: 3 });
    // One frame remains for all other pages.
    assert_eq!(array.to_vec(12..).unwrap(), [0; 28]);
    drop(held);
    assert!(array.page(3).is_ok());
}

#[test]
fn a_thread_without_guards_waits_for_other_threads_guards() {
    for frames in [1, 2] {
        let array = Shape { page_len: 4, channels: vec![1], frames, ..Shape::default() }.build::<u32>(40);
        std::thread::scope(|scope| {
            let guard = array.page_mut(0).unwrap();
            let other = scope.spawn(|| {
                array.page_mut(1).unwrap()[0] = 5;
                array.get(0).unwrap()
            });
            let mut guard = guard;
            guard[0] = 9;
            drop(guard);
            assert_eq!(other.join().unwrap(), 9);
        });
        assert_eq!(array.get(4).unwrap(), 5);
    }
}

/// Two threads take pairs of pages in opposite orders: one may get an error, none may hang.
#[test]
fn opposite_orders_do_not_deadlock() {
    let array = Shape { page_len: 4, channels: vec![1], frames: 6, ..Shape::default() }.build::<u32>(40);
    let refused = AtomicU64::new(0);
    together(4, |thread| {
        for round in 0..500 {
            let (a, b) = if (thread + round) % 2 == 0 { (1, 2) } else { (2, 1) };
            let first = array.page_mut(a).unwrap();
            match array.page_mut(b) {
                Ok(second) => drop(second),
                Err(error) => {
                    assert!(matches!(
                        error.kind(),
                        ErrorKind::WouldDeadlock { .. } | ErrorKind::TooManyGuards { .. }
                    ));
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            drop(first);
        }
    });
    assert!(array.page_mut(1).is_ok() && array.page_mut(2).is_ok());
}

/// All operations at once; each thread checks its own elements.
#[test]
fn a_storm_of_all_operations() {
    for shape in shapes() {
        storm(&shape.build::<u32>(240), 4, 400);
    }
    let wide = Shape { page_len: 7, channels: vec![2, 1], frames: 3, ..Shape::default() };
    storm(&wide.build::<u32>(1000), 6, 1500);
}

pub fn storm(array: &VirtualArray<u32>, threads: usize, rounds: usize) {
    let share = array.len() / threads;
    together(threads, |thread| {
        let own = thread * share..(thread + 1) * share;
        let mut model = vec![0_u32; share];
        let mut numbers = Numbers::new(thread as u64 + 77);
        for round in 0..rounds as u32 {
            let at = numbers.below(share);
            let len = numbers.below(share - at) + 1;
            let range = own.start + at..own.start + at + len;
            match numbers.below(14) {
                0 => {
                    array.fill(range, round).unwrap();
                    model[at..at + len].fill(round);
                }
                1 => {
                    array.write(range.start, &vec![round; len]).unwrap();
                    model[at..at + len].fill(round);
                }
                2 => assert_eq!(array.to_vec(range).unwrap(), model[at..at + len]),
                3 => array.prefetch(range).unwrap(),
                4 => array.flush(range).unwrap(),
                5 => array.evict(range).unwrap(),
                6 => {
                    array.set_uncached(range.start, round).unwrap();
                    model[at] = round;
                }
                7 => assert_eq!(array.get_uncached(range.start).unwrap(), model[at]),
                8 => {
                    let wanted = model[at..at + len].iter().filter(|&&x| x == round / 2).count();
                    assert_eq!(array.count(range, Field::whole(), &(round / 2)).unwrap(), wanted);
                }
                9 => {
                    array.update(range.start, |x| x ^ 5).unwrap();
                    model[at] ^= 5;
                }
                10 => {
                    array.discard(range).unwrap();
                    model[at..at + len].fill(0);
                }
                11 => {
                    array.set(range.start, round).unwrap();
                    model[at] = round;
                }
                _ => assert_eq!(array.get(range.start).unwrap(), model[at]),
            }
        }
        assert_eq!(array.to_vec(own).unwrap(), model);
    });
}

/// Threads that only use ranges and guards are counted too, also after their end.
#[test]
fn hits_of_all_threads_are_counted() {
    let shape = Shape { page_len: 4, channels: vec![1], frames: 16, counts_hits: true, ..Shape::default() };
    let array = shape.build::<u32>(40);
    together(1, |_| drop(array.to_vec(..).unwrap()));
    array.reset_stats();
    together(3, |_| {
        array.to_vec(..).unwrap();
        drop(array.page(3).unwrap());
    });
    assert_eq!((array.stats().hits, array.stats().total().misses), (Some(33), 0));
}
