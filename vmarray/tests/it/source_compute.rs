//! Tests of expressions on sources and their sections: copied bytes and failures. `views` tests their
//! results.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::counted::{LEN, PAGE, PAGES, counted, described, moved};
use crate::common::{Numbers, as_any, changed_ranges, host, hosts};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::expr::{Expr, index};
use vmarray::{ErrorKind, Field, Placement, Result, Source, device::HostMemory};
use vmarray_conformance::wrap::{Counting, Faulty};

fn value() -> Field<u32, u32> {
    Field::whole()
}

#[test]
fn repeated_questions_move_nothing() {
    let (source, device) = counted((0..LEN as u32).collect());
    let condition = || value().lt(100) | index().ge(1000);
    let ask = |what: usize| match what {
        0 => assert_eq!(source.count_where(.., condition()).unwrap(), 380),
        1 => assert_eq!(source.find_where(.., condition(), 101).unwrap().indices[100], 1000),
        2 => assert!(!source.all(.., condition()).unwrap()),
        3 => assert_eq!(source.sum(.., value()).unwrap(), (LEN as i128 - 1) * LEN as i128 / 2),
        4 => assert_eq!(source.min_max(5.., value()).unwrap(), Some((5, LEN as u32 - 1))),
        5 => assert_eq!(source.arg_max(..77, value()).unwrap(), Some((76, 76))),
        6 => assert_eq!(source.histogram(.., value() / 1000, 2).unwrap(), [1000, 280]),
        7 => assert_eq!(source.select_where(.., condition()).unwrap().count(), 380),
        8 => assert_eq!(source.count(.., value(), &77).unwrap(), 1),
        _ => assert_eq!(source.position(.., value(), &500).unwrap(), Some(500)),
    };
    ask(0);
    assert_eq!(moved(&device), (PAGES as u64 * PAGE, 0));
    for what in (0..10).chain(0..10) {
        ask(what);
        assert_eq!(moved(&device), (0, 0), "question {what}");
    }
    source.reset_stats();
    ask(6);
    assert_eq!(source.stats().hits, Some(PAGES as u64));
    // The launch copies two results, because half of the pages are prepared during the work on the others.
    assert_eq!(source.stats().total().bytes_from_device, 2 * 2 * 8);
}

#[test]
fn selected_elements_come_from_where_they_are_valid() {
    let (source, device) = counted((0..LEN as u32).collect());
    let every = |n: u64| (index() % n).eq(0);
    source.transform(..256, value().set(value() + 1)).unwrap();
    source.prefetch(..).unwrap();
    moved(&device);
    source.reset_stats();
    let found: Vec<_> = source.select_where(.., every(64)).unwrap().map(Result::unwrap).collect();
    let truth = (0..LEN).step_by(64).map(|i| (i, i as u32 + u32::from(i < 256)));
    assert!(found.into_iter().eq(truth));
    assert_eq!(moved(&device), (0, 0), "pages stay where they are");
    // The call copies two results, 20 indices, and the four elements that are newer on the device.
    assert_eq!(source.stats().total().bytes_from_device, 2 * 16 + 20 * 8 + 4 * 4);
    assert_eq!(source.page_state(0).unwrap().newer, 128);
}

#[test]
fn elements_of_others_are_taken_where_the_device_has_them() {
    let (source, device) = counted(vec![1; LEN]);
    let other = described((0..LEN as u32).collect::<Vec<_>>(), &device).build().unwrap();
    source.prefetch(..).unwrap();
    other.prefetch(..).unwrap();
    moved(&device);
    let joined = source.join((&other,)).unwrap();
    let (x, y) = joined.rows();
    let sum = || x.set(value(), x.get(value()) + y.get(value()));
    joined.transform(300..600, sum()).unwrap();
    assert_eq!(moved(&device), (0, 0));
    joined.assign_where(300..600, y.get(value()).ge(450), sum()).unwrap();
    assert_eq!(moved(&device), (0, 0));
    // Newer elements of the other operand stay on the device, too.
    other.fill(300..310, 0).unwrap();
    joined.transform(301..303, sum()).unwrap();
    assert_eq!(moved(&device), (0, 0));
    let times = |i| if !(300..600).contains(&i) { 0 } else { 1 + u32::from(i >= 450) };
    let truth = |i: usize| 1 + i as u32 * times(i);
    assert!(source.into_home().unwrap().into_iter().eq((0..LEN).map(truth)));
}

#[test]
fn data_larger_than_the_device_memory_is_asked_and_changed() {
    for import in [None, Some(HostMemory::Pageable)] {
        let device = Arc::new(Counting::new(host()));
        let mut builder = described((0..LEN as u32).collect::<Vec<_>>(), &device).device_bytes(4 * PAGE);
        if let Some(kind) = import {
            builder = builder.import(kind);
        }
        let source = builder.build().unwrap();
        assert_eq!(source.device_bytes(), 4 * PAGE);
        let all = PAGES as u64 * PAGE;
        assert_eq!(source.find(value(), &777).unwrap(), [777]);
        assert_eq!(moved(&device), (all, 0), "each page once");
        source.evict(..).unwrap();
        assert_eq!(source.sum(.., value()).unwrap(), (LEN as i128 - 1) * LEN as i128 / 2);
        assert_eq!(moved(&device), (all, 0), "each page once");
        assert!(device.counts().held_bytes <= 4 * PAGE);
        source.evict(..).unwrap();
        source.transform(.., value().set(value() * 2)).unwrap();
        assert_eq!(moved(&device), (all, all - 4 * PAGE), "the last pages stay");
        assert_eq!(source.count_where(.., (value() % 2).eq(0)).unwrap(), LEN);
        source.flush(..).unwrap();
        let (up, down) = moved(&device);
        assert_eq!(down, 4 * PAGE);
        assert!(all - 4 * PAGE <= up && up <= all, "{up}");
        source.fill(100..1200, 7).unwrap();
        assert_eq!(
            (source.find(value(), &198).unwrap(), source.count(.., value(), &7).unwrap()),
            (vec![99], 1100)
        );
        let total = source.stats().total();
        assert!(total.evictions > 20 && total.write_backs >= 9, "{total:?}");
        let truth = |i: usize| if (100..1200).contains(&i) { 7 } else { 2 * i as u32 };
        assert!(source.into_home().unwrap().into_iter().eq((0..LEN).map(truth)));
    }
}

#[test]
fn the_first_match_does_not_need_later_elements() {
    let device = Arc::new(Counting::new(host()));
    let source =
        described((0..LEN as u32).collect::<Vec<_>>(), &device).device_bytes(2 * PAGE).build().unwrap();
    type Search = fn(&Source<u32>) -> Result<Option<usize>>;
    let searches: [Search; 2] =
        [|source| source.position_first(.., value().ge(130)), |source| source.position(.., value(), &130)];
    for search in searches {
        assert_eq!(search(&source).unwrap(), Some(130));
        let (up, _) = moved(&device);
        assert!(up <= 4 * PAGE, "two waves of a page are under way at most beyond the match: {up} bytes");
        source.evict(..).unwrap();
    }
    let mut selected = source.select_where(.., value().ge(0)).unwrap();
    assert_eq!(selected.next().unwrap().unwrap(), (0, 0));
    assert_eq!(selected.count(), LEN - 1);
}

/// More matches than one list.
#[test]
fn many_elements_are_selected_in_order() {
    let source = Source::builder((0..100_000_u32).map(|i| i as u8).collect::<Vec<_>>())
        .devices(hosts::<2>())
        .placement(Placement::Ratios(vec![2, 1]))
        .page_len(10_000)
        .device_bytes(60_000)
        .build()
        .unwrap();
    let odd = || (Field::<u8, u8>::whole() & 1).eq(1);
    let selected = source.section(3..).unwrap().select_where(7.., odd()).unwrap();
    let truth = (10..100_000).filter(|i| i % 2 == 1).map(|i| (i - 3, i as u8));
    assert!(selected.map(Result::unwrap).eq(truth));
    let found = source.find_where(.., odd(), 40_000).unwrap();
    assert_eq!((found.total, found.indices.len(), found.indices[39_999]), (50_000, 40_000, 79_999));
    source.fill(.., 5).unwrap();
    assert_eq!(source.find(Field::whole(), &5).unwrap(), (0..100_000).collect::<Vec<_>>());
    let found = source.find_first(7..90_000, Field::whole(), &5, 10_010).unwrap();
    assert_eq!(found.indices, (7..10_017).collect::<Vec<_>>());
    assert_eq!(found.total, 89_993);
}

/// Long enough for one thread for each channel.
#[test]
fn channels_work_at_the_same_time() {
    let len = 1 << 20;
    let source = Source::builder((0..len as u32).collect::<Vec<_>>())
        .devices(hosts::<2>())
        .placement(Placement::Ratios(vec![1, 2]))
        .device_bytes(1 << 20)
        .build()
        .unwrap();
    assert_eq!(source.find(value(), &777_777).unwrap(), [777_777]);
    assert_eq!(source.arg_max(.., value() ^ 0xF_0000).unwrap(), Some((0xFFFF, 0xF_FFFF)));
    source.assign_where(1000..900_001, (value() & 1).eq(1), value().set(3)).unwrap();
    assert_eq!(source.count_where(.., value().eq(3)).unwrap(), 449_500 + 1);
    assert_eq!(source.sum(.., index() * 2).unwrap(), (len as i128 - 1) * len as i128);
    source.fill(901_000..902_001, 4).unwrap();
    assert_eq!(source.count(900_001.., value(), &4).unwrap(), 1001);
    let home = source.into_home().unwrap();
    assert_eq!((home[999], home[1000], home[899_999], home[900_001]), (999, 1000, 3, 900_001));
    assert_eq!((home[900_999], home[901_000], home[902_000], home[902_001]), (900_999, 4, 4, 902_001));
}

#[test]
fn sums_of_floats_are_the_same_each_time() {
    let numbers: Vec<f32> = (0..50_000).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 + 1e6).collect();
    let exact: f64 = numbers.iter().map(|x| f64::from(*x)).sum();
    let build = || Source::builder(numbers.clone()).devices(hosts::<2>()).page_len(1000).build().unwrap();
    let (source, other) = (build(), build());
    // Earlier prefetches do not change the result.
    other.prefetch(..20_000).unwrap();
    other.prefetch(..).unwrap();
    let sum = source.sum(17.., Field::whole()).unwrap();
    assert_eq!(sum, source.sum(17.., Field::whole()).unwrap());
    assert_eq!(sum, other.sum(17.., Field::whole()).unwrap());
    let head: f64 = numbers[..17].iter().map(|x| f64::from(*x)).sum();
    assert!((sum + head - exact).abs() < 1e-3);
}

#[test]
fn failures_in_the_middle_report_the_written_ranges() {
    let device = Arc::new(Faulty::new(host()));
    let kind = DeviceErrorKind::KernelFailed;
    let source = Source::builder(vec![0_u32; 64])
        .devices([as_any(&device)])
        .placement(Placement::Ratios(vec![2]))
        .page_len(8)
        .build()
        .unwrap();
    // The change has two channels and two waves each; the second wave is refused after the first wave is
    // done.
    let section = source.section_mut(4..60).unwrap();
    device.inject(Fault::new(Operation::Compute, kind).on_call(3));
    let error = section.transform(.., value().set(1)).unwrap_err();
    assert_eq!(changed_ranges(&error), (vec![0..4, 12..20, 28..36, 44..52], vec![]), "{error}");
    let mut truth: Vec<u32> = (0..64).map(|i| u32::from((4..60).contains(&i) && i / 8 % 2 == 0)).collect();
    assert_eq!(source.to_vec(..).unwrap(), truth);
    // The first work is refused: no element was written.
    device.inject(Fault::new(Operation::Compute, kind).on_call(1));
    let error = source.transform(.., value().set(value() + 1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
    // The work fails after it was accepted: the home is unchanged.
    device.inject(Fault::new(Operation::Compute, kind).on_call(1).reported_later());
    let error = source.transform(..8, value().set(value() + 1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
    assert_eq!(source.to_vec(..).unwrap(), truth);
    // Elements that are newer on the device become unspecified, even if it refused the work, because a part
    // may be done.
    for later in [true, false] {
        source.transform(16..18, value().set(9)).unwrap();
        let fault = Fault::new(Operation::Compute, kind).on_call(1);
        device.inject(if later { fault.reported_later() } else { fault });
        let error = source.transform(16..24, value().set(value() + 1)).unwrap_err();
        let (written, unspecified) = changed_ranges(&error);
        assert!(written.is_empty() && unspecified.len() == 1 && unspecified[0] == (16..18), "{error}");
        let now = source.to_vec(..).unwrap();
        truth[16..18].copy_from_slice(&now[16..18]);
        assert_eq!(now, truth);
    }
    // If the device does not support the work, it is done in RAM.
    source.transform(16..18, value().set(9)).unwrap();
    truth[16..18].fill(9);
    device.inject(Fault::new(Operation::Compute, DeviceErrorKind::Unsupported).on_call(1));
    source.transform(16..24, value().set(value() + 1)).unwrap();
    truth[16..24].iter_mut().for_each(|value| *value += 1);
    assert_eq!(source.to_vec(..).unwrap(), truth);
    source.transform(.., value().set(3)).unwrap();
    assert_eq!(source.sum(.., value()).unwrap(), 3 * 64);
}

#[test]
fn errors_report_the_state_of_each_element() {
    for (operation, later) in [
        (Operation::Compute, false),
        (Operation::Compute, true),
        (Operation::Submit, false),
        (Operation::Submit, true),
        (Operation::OrderAfter, false),
        (Operation::Allocate, false),
        (Operation::AllocateHost, false),
        (Operation::Gather, true),
        (Operation::Search, true),
        (Operation::Fill, false),
        (Operation::Fill, true),
    ] {
        for seed in 1..50 {
            let device = Arc::new(Faulty::new(host()));
            let source = Source::builder((0..LEN as u32).collect::<Vec<_>>())
                .devices([as_any(&device)])
                .placement(Placement::Ratios(vec![2]))
                .page_len(128)
                .device_bytes(6 * PAGE)
                .build()
                .unwrap();
            let ones = described(vec![1_u32; LEN], &device).build().unwrap();
            let mut model: Vec<u32> = (0..LEN as u32).collect();
            let mut numbers = Numbers::new(seed);
            for step in 0..30 {
                let start = numbers.below(LEN);
                let range = start..start + numbers.below((LEN - start).min(700) + 1);
                let (what, fresh) = (numbers.below(11), 100 + step as u32);
                let fault =
                    Fault::new(operation, DeviceErrorKind::Driver).with_chance(0.15, seed * 100 + step);
                device.inject(if later { fault.reported_later() } else { fault });
                let (result, change): (_, fn(u32) -> u32) = match what {
                    0 => (source.transform(range.clone(), value().set(value() + 1)), |x| x + 1),
                    1 => (source.transform(range.clone(), value().set(5)), |_| 5),
                    2 => {
                        let odd = (value() & 1).eq(1);
                        let result = source.assign_where(range.clone(), odd, value().set(value() * 2));
                        (result, |x| if x % 2 == 1 { x.wrapping_mul(2) } else { x })
                    }
                    3 => {
                        let joined = source.join((&ones,)).unwrap();
                        let (x, y) = joined.rows();
                        let sum = x.set(value(), x.get(value()) + y.get(value()));
                        (joined.transform(range.clone(), sum), |x| x + 1)
                    }
                    4 => {
                        let truth = model[range.clone()].iter().map(|x| i128::from(*x)).sum::<i128>();
                        let sum = source.sum(range.clone(), value());
                        assert!(sum.is_err() || sum == Ok(truth), "{operation:?} seed {seed} step {step}");
                        (Ok(()), |x| x)
                    }
                    5..10 => {
                        let result = match what {
                            5 => source.fill(range.clone(), fresh),
                            6 => source.write(start, &vec![fresh; range.len()]),
                            7 => source.flush(range.clone()).or(Ok(())),
                            8 => {
                                let got = source.to_vec(range.clone());
                                assert!(got.is_err() || got.as_ref() == Ok(&model[range.clone()].to_vec()));
                                Ok(())
                            }
                            _ => {
                                let truth = model[range.clone()].iter().filter(|x| **x == 5).count();
                                let got = source.count(range.clone(), value(), &5);
                                assert!(got.is_err() || got == Ok(truth), "{operation:?} seed {seed}");
                                Ok(())
                            }
                        };
                        device.clear();
                        // After an error only the elements of the range are unspecified.
                        match result {
                            Ok(()) if what < 7 => model[range.clone()].fill(fresh),
                            Ok(()) => {}
                            Err(_) => {
                                model[range.clone()].copy_from_slice(&source.to_vec(range.clone()).unwrap())
                            }
                        }
                        (Ok(()), |x| x)
                    }
                    _ => {
                        let odd: Expr<u32, bool> = (value() & 1).eq(1);
                        let truth = range.clone().filter(|i| model[*i] % 2 == 1).map(|i| (i, model[i]));
                        let selected = source.select_where(range.clone(), odd).unwrap();
                        let selected: Result<Vec<_>> = selected.collect();
                        assert!(
                            selected.is_err() || selected == Ok(truth.collect()),
                            "{operation:?} seed {seed} step {step}"
                        );
                        (Ok(()), |x| x)
                    }
                };
                device.clear();
                let (written, unspecified) = match &result {
                    Ok(()) => (vec![range], vec![]),
                    Err(error) => changed_ranges(error),
                };
                written.into_iter().flatten().for_each(|i| model[i] = change(model[i]));
                for i in unspecified.into_iter().flatten() {
                    model[i] = source.get(i).unwrap();
                }
                // Check only in some rounds, because a check copies elements home.
                if numbers.below(3) == 0 {
                    assert_eq!(source.to_vec(..).unwrap(), model, "{operation:?} seed {seed} step {step}");
                }
            }
            assert_eq!(source.verify(..).unwrap(), None, "{operation:?} seed {seed}");
            assert_eq!(source.into_home().unwrap(), model, "{operation:?} seed {seed}");
        }
    }
}
