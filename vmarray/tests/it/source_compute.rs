//! Expressions on sources and their sections: against slices of a `Vec`, bytes moved, failures.

use std::ops::Range;
use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::asked::{Condition, KEY, Pair, VALUE, ask, assign, transform, within};
use crate::common::counted::{BLOCK, LEN, PAGE, PAGES, counted, described, moved};
use crate::common::{Numbers, POLICIES, Shape, devices, host};
use proptest::prelude::*;
use vmarray::device::wrap::{Counting, Fault, Faulty, Operation};
use vmarray::device::{Device, ErrorKind as DeviceErrorKind};
use vmarray::expr::{Expr, index};
use vmarray::{AnyDevice, Error, ErrorKind, Field, HostMemory, Placement, SectionMut, Source, VirtualArray};

fn value() -> Field<u32, u32> {
    Field::whole()
}

#[derive(Clone, Debug)]
enum Op {
    Set(usize, Pair),
    Look(usize, usize),
    Ask(usize, usize, Condition, usize),
    Transform(usize, usize, u32),
    Overwrite(usize, usize, u32),
    Assign(usize, usize, Condition, u32),
    Fill(usize, usize, Pair),
    Join(usize, usize, Condition),
    JoinAway(usize, usize),
    Outside(usize),
    Evict(usize, usize),
    Flush(usize, usize),
}

fn ops() -> impl Strategy<Value = Op> {
    let at = || 0..1000_usize;
    let pair = || (0..20_u32, any::<u32>()).prop_map(|(key, value)| [key, value]);
    let condition = || (0..20_u32, 0..3_u64).prop_map(|(key, rest)| Condition { key, rest });
    prop_oneof![
        3 => (at(), pair()).prop_map(|(i, pair)| Op::Set(i, pair)),
        1 => (at(), at()).prop_map(|(a, b)| Op::Look(a, b)),
        4 => (at(), at(), condition(), 0..20_usize).prop_map(|(a, b, c, limit)| Op::Ask(a, b, c, limit)),
        2 => (at(), at(), any::<u32>()).prop_map(|(a, b, by)| Op::Transform(a, b, by)),
        1 => (at(), at(), any::<u32>()).prop_map(|(a, b, by)| Op::Overwrite(a, b, by)),
        3 => (at(), at(), condition(), any::<u32>()).prop_map(|(a, b, c, by)| Op::Assign(a, b, c, by)),
        1 => (at(), at(), pair()).prop_map(|(a, b, pair)| Op::Fill(a, b, pair)),
        1 => (at(), at(), condition()).prop_map(|(a, b, c)| Op::Join(a, b, c)),
        1 => (at(), at()).prop_map(|(a, b)| Op::JoinAway(a, b)),
        1 => at().prop_map(Op::Outside),
        1 => (at(), at()).prop_map(|(a, b)| Op::Evict(a, b)),
        1 => (at(), at()).prop_map(|(a, b)| Op::Flush(a, b)),
    ]
}

fn run<D: Device>(section: SectionMut<'_, Source<Pair, Vec<Pair>, D>>, model: &mut [Pair], op: Op) {
    let len = model.len();
    match op {
        Op::Set(at, pair) if len > 0 => {
            section.set(at % len, pair).unwrap();
            model[at % len] = pair;
        }
        Op::Look(a, b) => {
            let range = within(a, b, len);
            assert_eq!(section.to_vec(range.clone()).unwrap(), model[range]);
        }
        Op::Ask(a, b, condition, limit) => ask!(section, model, within(a, b, len), condition, limit),
        Op::Transform(a, b, by) => transform!(section, model, within(a, b, len), by),
        Op::Overwrite(a, b, by) => {
            let range = within(a, b, len);
            let at = || index().cast::<u32>();
            section.transform(range.clone(), [VALUE.set(at() * by), KEY.set(at() % 20)]).unwrap();
            range.for_each(|i| model[i] = [i as u32 % 20, (i as u32).wrapping_mul(by)]);
        }
        Op::Assign(a, b, condition, by) => assign!(section, model, within(a, b, len), condition, by),
        Op::Fill(a, b, pair) => {
            let range = within(a, b, len);
            section.fill(range.clone(), pair).unwrap();
            model[range].fill(pair);
        }
        Op::Outside(by) => {
            let (start, end) = (0, len + by + 1);
            let expected = ErrorKind::RangeOutside { start, end, len };
            assert_eq!(*section.count_where(..end, KEY.eq(1)).unwrap_err().kind(), expected);
            assert_eq!(*section.sum(..end, KEY).unwrap_err().kind(), expected);
            assert_eq!(*section.arg_max(..end, KEY).unwrap_err().kind(), expected);
            assert_eq!(*section.select_where(..end, KEY.eq(1)).unwrap_err().kind(), expected);
            assert_eq!(*section.transform(..end, KEY.set(1)).unwrap_err().kind(), expected);
            assert_eq!(*section.assign_where(..end, KEY.eq(1), KEY.set(1)).unwrap_err().kind(), expected);
        }
        Op::Evict(a, b) => section.evict(within(a, b, len)).unwrap(),
        Op::Flush(a, b) => section.flush(within(a, b, len)).unwrap(),
        Op::Set(..) | Op::Join(..) | Op::JoinAway(..) => {}
    }
}

/// Joins take sources as a whole.
fn join(
    source: &Source<Pair, Vec<Pair>>,
    (array, numbers): (&VirtualArray<u32>, &[u32]),
    model: &mut [Pair],
    op: Op,
) {
    let len = model.len();
    match op {
        Op::Join(a, b, condition) => {
            let range = within(a, b, len);
            let bytes: Vec<u8> = (0..len).map(|i| (i % 5) as u8).collect();
            // Borrowed, for reading alone, on the same devices or others.
            let other = Source::new(&bytes[..]).unwrap();
            let joined = source.join((&other, array, source)).unwrap();
            let (x, y, z, again) = joined.rows();
            let sum = y.get(Field::whole()).cast::<u32>() + z.get(Field::whole()) + again.get(VALUE);
            let holds = x.get(KEY).lt(condition.key) | (index() % 3).eq(condition.rest);
            joined.assign_where(range.clone(), holds, x.set(VALUE, sum)).unwrap();
            for i in range {
                if model[i][0] < condition.key || i as u64 % 3 == condition.rest {
                    model[i][1] = model[i][1].wrapping_add(numbers[i]).wrapping_add(i as u32 % 5);
                }
            }
        }
        Op::JoinAway(a, b) => {
            let range = within(a, b, len);
            let joined = array.join((source,)).unwrap();
            let (x, y) = joined.rows();
            joined.transform(range.clone(), x.set(value(), y.get(VALUE) + x.get(value()))).unwrap();
            let truth = (0..len).map(|i| match range.contains(&i) {
                true => numbers[i].wrapping_add(model[i][1]),
                false => numbers[i],
            });
            assert!(array.to_vec(..).unwrap().into_iter().eq(truth));
            array.write(0, numbers).unwrap();
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sources_compute_as_slices_of_a_vec(
        kind in 0..3_usize,
        len in 1..300_usize,
        slots in 1..40_usize,
        import in any::<bool>(),
        scattered in any::<bool>(),
        steps in prop::collection::vec(((0..1000_usize, 0..1000_usize), (0..1000_usize, 0..1000_usize), ops()), 1..25),
    ) {
        let (page_len, channels) = ([8, 7, 130][kind], [vec![1], vec![2, 1], vec![3]][kind].clone());
        let devices: Vec<Arc<AnyDevice>> = devices(channels.len());
        let start: Vec<Pair> = (0..len as u32).map(|i| [i % 20, i * 77]).collect();
        let mut model = start.clone();
        let mut builder = Source::builder(start)
            .devices(devices)
            .placement(Placement::Ratios(channels.clone()))
            .page_len(page_len)
            .device_bytes((slots * page_len * 8) as u64)
            .eviction(POLICIES[kind]);
        if import {
            builder = builder.import(HostMemory::Pageable);
        }
        let source = builder.build().unwrap();
        if scattered {
            // Neighbouring pages do not lie side by side.
            for page in (0..len.div_ceil(page_len)).rev() {
                source.prefetch(page * page_len..(page * page_len + 1).min(len)).unwrap();
            }
        }
        let numbers: Vec<u32> = (0..len as u32).map(|i| i * 3).collect();
        let array = Shape { page_len: 9, ..Shape::default() }.build::<u32>(len);
        array.write(0, &numbers).unwrap();
        for (outer, inner, op) in steps {
            match op {
                Op::Join(..) | Op::JoinAway(..) => join(&source, (&array, &numbers), &mut model, op),
                op => {
                    let outer = within(outer.0, outer.1, len);
                    let inner = within(inner.0, inner.1, outer.len());
                    let section = source.section_mut(outer.clone()).unwrap().section_mut(inner.clone()).unwrap();
                    run(section, &mut model[outer][inner], op);
                }
            }
            prop_assert_eq!(source.verify(..).unwrap(), None);
        }
        prop_assert_eq!(source.into_home().unwrap(), model);
    }
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
        _ => assert_eq!(source.select_where(.., condition()).unwrap().count(), 380),
    };
    ask(0);
    assert_eq!(moved(&device), (PAGES as u64 * PAGE, 0));
    for what in (0..8).chain(0..8) {
        ask(what);
        assert_eq!(moved(&device), (0, 0), "question {what}");
    }
    source.reset_stats();
    ask(6);
    assert_eq!(source.stats().hits, PAGES as u64);
    // Two answers, since half of the pages are prepared while the others are worked on.
    assert_eq!(source.stats().total().bytes_from_device, 2 * 2 * 8);
}

#[test]
fn a_section_is_asked_alone() {
    let (source, device) = counted((0..LEN as u32).collect());
    let section = source.section(641..654).unwrap();
    assert_eq!(section.sum(.., index()).unwrap(), 12 * 13 / 2);
    // Rounded to blocks of two elements.
    assert_eq!(moved(&device), (14 * 4, 0));
    assert_eq!(section.arg_min(3.., value()).unwrap(), Some((3, 644)));
    assert_eq!(moved(&device), (0, 0));
    // The rest of two pages.
    assert_eq!(source.section(640..896).unwrap().count_where(.., value().ge(0)).unwrap(), 256);
    assert_eq!(moved(&device), (2 * PAGE - 14 * 4, 0));
}

#[test]
fn what_is_changed_is_newer_on_the_device_until_it_is_looked_at() {
    let (source, device) = counted(vec![1; LEN]);
    source.prefetch(..256).unwrap();
    moved(&device);
    source.transform(..512, value().set(value() + 1)).unwrap();
    assert_eq!(moved(&device), (2 * PAGE, 0), "what is not there yet");
    assert_eq!(source.page_state(3).unwrap().newer, 128);
    for _ in 0..3 {
        source.transform(..512, value().set(value() + 1)).unwrap();
        source.assign_where(100..200, value().eq(5), value().set(6)).unwrap();
        source.transform(100..200, value().set(value() - 1)).unwrap();
        source.transform(100..200, value().set(value() + 1)).unwrap();
        assert_eq!(moved(&device), (0, 0));
    }
    assert_eq!(source.count_where(.., value().ge(5)).unwrap(), 512);
    assert_eq!(moved(&device), (6 * PAGE, 0));
    assert_eq!(source.get(99).unwrap(), 5);
    assert_eq!(moved(&device), (0, BLOCK));
    assert_eq!(source.to_vec(100..200).unwrap(), [6; 100]);
    assert_eq!(moved(&device), (0, 400));
    source.set(100, 9).unwrap();
    assert_eq!(source.max(.., value()).unwrap(), Some(9));
    assert_eq!(moved(&device), (BLOCK, 0));
    source.flush(..).unwrap();
    assert_eq!(moved(&device), (0, 4 * PAGE - BLOCK - 400));
}

#[test]
fn what_is_overwritten_whole_is_not_fetched() {
    let (source, device) = counted(vec![1; LEN]);
    source.transform(.., value().set(index().cast::<u32>() * 2)).unwrap();
    assert_eq!(moved(&device), (0, 0));
    source.evict(..).unwrap();
    assert_eq!(moved(&device), (0, PAGES as u64 * PAGE));
    // Blocks of two elements at both ends are overwritten in part.
    source.transform(129..600, value().set(7)).unwrap();
    assert_eq!(moved(&device), (BLOCK, 0));
    // What depends on a condition or on what was there needs it.
    source.assign_where(640..768, index().ge(0), value().set(3)).unwrap();
    assert_eq!(moved(&device), (PAGE, 0));
    source.transform(768..896, value().set(value().eq(5).select(1, 2))).unwrap();
    assert_eq!(moved(&device), (PAGE, 0));
    let truth = |i: usize| match i {
        129..600 => 7,
        640..768 => 3,
        768..896 => 2,
        i => 2 * i as u32,
    };
    assert!(source.into_home().unwrap().into_iter().eq((0..LEN).map(truth)));
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
    // Two answers, 20 indices, and of the elements those four that are newer on the device.
    assert_eq!(source.stats().total().bytes_from_device, 2 * 16 + 20 * 8 + 4 * 4);
    assert_eq!(source.page_state(0).unwrap().newer, 128);
}

#[test]
fn elements_of_others_are_copied_and_no_more() {
    let (source, device) = counted(vec![1; LEN]);
    let other = described((0..LEN as u32).collect::<Vec<_>>(), &device).build().unwrap();
    source.prefetch(..).unwrap();
    other.prefetch(..).unwrap();
    moved(&device);
    let joined = source.join((&other,)).unwrap();
    let (x, y) = joined.rows();
    let sum = || x.set(value(), x.get(value()) + y.get(value()));
    joined.transform(300..600, sum()).unwrap();
    assert_eq!(moved(&device), (300 * 4, 0));
    joined.assign_where(300..600, y.get(value()).ge(450), sum()).unwrap();
    assert_eq!(moved(&device), (300 * 4, 0));
    // What is newer of the other one is brought home first.
    other.fill(300..310, 0).unwrap();
    joined.transform(301..303, sum()).unwrap();
    assert_eq!(moved(&device), (2 * 4, 2 * BLOCK));
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
        let all = PAGES as u64 * PAGE;
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
        assert!(source.into_home().unwrap().into_iter().eq((0..LEN as u32).map(|i| 2 * i)));
    }
}

#[test]
fn the_first_match_does_not_need_what_comes_after() {
    let device = Arc::new(Counting::new(host()));
    let source =
        described((0..LEN as u32).collect::<Vec<_>>(), &device).device_bytes(2 * PAGE).build().unwrap();
    assert_eq!(source.position_first(.., value().ge(130)).unwrap(), Some(130));
    let (up, _) = moved(&device);
    assert!(up <= 4 * PAGE, "two waves of a page are under way at most beyond the match: {up} bytes");
    let mut selected = source.select_where(.., value().ge(0)).unwrap();
    assert_eq!(selected.next().unwrap().unwrap(), (0, 0));
    assert_eq!(selected.count(), LEN - 1);
}

/// More of them than are listed at once.
#[test]
fn many_elements_are_selected_in_order() {
    let source = Source::builder((0..100_000_u32).map(|i| i as u8).collect::<Vec<_>>())
        .devices([Arc::new(host()), Arc::new(host())])
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
}

/// Long enough for a thread a channel.
#[test]
fn channels_compute_at_the_same_time() {
    let len = 1 << 20;
    let source = Source::builder((0..len as u32).collect::<Vec<_>>())
        .devices([Arc::new(host()), Arc::new(host())])
        .placement(Placement::Ratios(vec![1, 2]))
        .device_bytes(1 << 20)
        .build()
        .unwrap();
    assert_eq!(source.arg_max(.., value() ^ 0xF_0000).unwrap(), Some((0xFFFF, 0xF_FFFF)));
    source.assign_where(1000..900_001, (value() & 1).eq(1), value().set(3)).unwrap();
    assert_eq!(source.count_where(.., value().eq(3)).unwrap(), 449_500 + 1);
    assert_eq!(source.sum(.., index() * 2).unwrap(), (len as i128 - 1) * len as i128);
    let home = source.into_home().unwrap();
    assert_eq!((home[999], home[1000], home[899_999], home[900_001]), (999, 1000, 3, 900_001));
}

#[test]
fn sums_of_floats_are_the_same_each_time() {
    let numbers: Vec<f32> = (0..50_000).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 + 1e6).collect();
    let exact: f64 = numbers.iter().map(|x| f64::from(*x)).sum();
    let build = || {
        Source::builder(numbers.clone())
            .devices([Arc::new(host()), Arc::new(host())])
            .page_len(1000)
            .build()
            .unwrap()
    };
    let (source, other) = (build(), build());
    // It does not matter what was fetched before.
    other.prefetch(..20_000).unwrap();
    other.prefetch(..).unwrap();
    let sum = source.sum(17.., Field::whole()).unwrap();
    assert_eq!(sum, source.sum(17.., Field::whole()).unwrap());
    assert_eq!(sum, other.sum(17.., Field::whole()).unwrap());
    let head: f64 = numbers[..17].iter().map(|x| f64::from(*x)).sum();
    assert!((sum + head - exact).abs() < 1e-3);
}

#[test]
fn adding_on_devices_and_at_home_at_once_loses_nothing() {
    let device = Arc::new(host());
    let source = described(vec![0_u32; LEN], &device).device_bytes(3 * PAGE).build().unwrap();
    std::thread::scope(|threads| {
        for seed in 0..2 {
            let source = &source;
            threads.spawn(move || {
                let mut numbers = Numbers::new(seed);
                for _ in 0..2000 {
                    source.update(numbers.below(LEN), |x| x + 1).unwrap();
                }
            });
        }
        for _ in 0..2 {
            threads.spawn(|| {
                (0..60).for_each(|_| source.transform(.., value().set(value() + 1)).unwrap());
            });
        }
        threads.spawn(|| (0..60).for_each(|_| assert!(source.any(.., value().ge(0)).unwrap())));
    });
    assert_eq!(source.sum(.., value()).unwrap(), 2 * 2000 + 2 * 60 * LEN as i128);
}

/// What an operation that failed says of the elements of a range.
fn told(error: &Error) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    match error.kind() {
        ErrorKind::Interrupted { written, unspecified, .. } => (written.clone(), unspecified.clone()),
        _ => (Vec::new(), Vec::new()),
    }
}

#[test]
fn trouble_in_the_middle_is_reported_with_what_was_written() {
    let device = Arc::new(Faulty::new(host()));
    let kind = DeviceErrorKind::KernelFailed;
    let source = Source::builder(vec![0_u32; 64])
        .devices([Arc::clone(&device)])
        .placement(Placement::Ratios(vec![2]))
        .page_len(8)
        .build()
        .unwrap();
    // Of two channels, with two waves each, the second one's work is refused after the first one's is done.
    let section = source.section_mut(4..60).unwrap();
    device.inject(Fault::new(Operation::Compute, kind).on_call(3));
    let error = section.transform(.., value().set(1)).unwrap_err();
    assert_eq!(told(&error), (vec![0..4, 12..20, 28..36, 44..52], vec![]), "{error}");
    let mut truth: Vec<u32> = (0..64).map(|i| u32::from((4..60).contains(&i) && i / 8 % 2 == 0)).collect();
    assert_eq!(source.to_vec(..).unwrap(), truth);
    // The first one's is refused: nothing was written.
    device.inject(Fault::new(Operation::Compute, kind).on_call(1));
    let error = source.transform(.., value().set(value() + 1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
    // It fails after it was accepted: what the home has is as it was.
    device.inject(Fault::new(Operation::Compute, kind).on_call(1).reported_later());
    let error = source.transform(..8, value().set(value() + 1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
    assert_eq!(source.to_vec(..).unwrap(), truth);
    // What only the device has may be anything, also if it was refused: a part may have been carried out.
    for later in [true, false] {
        source.transform(16..18, value().set(9)).unwrap();
        let fault = Fault::new(Operation::Compute, kind).on_call(1);
        device.inject(if later { fault.reported_later() } else { fault });
        let error = source.transform(16..24, value().set(value() + 1)).unwrap_err();
        let (written, unspecified) = told(&error);
        assert!(written.is_empty() && unspecified.len() == 1 && unspecified[0] == (16..18), "{error}");
        let now = source.to_vec(..).unwrap();
        truth[16..18].copy_from_slice(&now[16..18]);
        assert_eq!(now, truth);
    }
    // Unless the device says that it cannot do it at all.
    source.transform(16..18, value().set(9)).unwrap();
    truth[16..18].fill(9);
    device.inject(Fault::new(Operation::Compute, DeviceErrorKind::Unsupported).on_call(1));
    let error = source.transform(16..24, value().set(value() + 1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
    assert_eq!(source.to_vec(..).unwrap(), truth);
    source.transform(.., value().set(3)).unwrap();
    assert_eq!(source.sum(.., value()).unwrap(), 3 * 64);
}

#[test]
fn errors_say_what_has_become_of_each_element() {
    for (operation, later) in [
        (Operation::Compute, false),
        (Operation::Compute, true),
        (Operation::Submit, false),
        (Operation::Submit, true),
        (Operation::OrderAfter, false),
        (Operation::Allocate, false),
        (Operation::AllocateHost, false),
        (Operation::Gather, true),
    ] {
        for seed in 1..50 {
            let device = Arc::new(Faulty::new(host()));
            let source = Source::builder((0..LEN as u32).collect::<Vec<_>>())
                .devices([Arc::clone(&device)])
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
                let what = numbers.below(6);
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
                    _ => {
                        let odd: Expr<u32, bool> = (value() & 1).eq(1);
                        let truth = range.clone().filter(|i| model[*i] % 2 == 1).map(|i| (i, model[i]));
                        let selected = source.select_where(range.clone(), odd).unwrap();
                        let selected: Result<Vec<_>, _> = selected.collect();
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
                    Err(error) => told(error),
                };
                written.into_iter().flatten().for_each(|i| model[i] = change(model[i]));
                for i in unspecified.into_iter().flatten() {
                    model[i] = source.get(i).unwrap();
                }
                // Not always: what is looked at comes home.
                if numbers.below(3) == 0 {
                    assert_eq!(source.to_vec(..).unwrap(), model, "{operation:?} seed {seed} step {step}");
                }
            }
            assert_eq!(source.verify(..).unwrap(), None, "{operation:?} seed {seed}");
            assert_eq!(source.into_home().unwrap(), model, "{operation:?} seed {seed}");
        }
    }
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let (source, device) = counted(vec![0; LEN]);
    let mut long: Expr<u32, u32> = value() + 1;
    for i in 0..300 {
        long = long * i;
    }
    assert_eq!(*source.sum(.., &long).unwrap_err().kind(), ErrorKind::ExpressionTooLong { most: 256 });
    assert!(source.transform(.., value().set(long)).is_err());
    for bins in [0, 4097] {
        let error = source.histogram(.., value(), bins).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::BinCount { bins, most: 4096 });
    }
    let error = source.transform(.., Vec::new()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::AssignmentCount { assignments: 0, most: 8 });
    let (one, two) = (described(vec![0; LEN + 1], &device).build().unwrap(), Shape::default().build::<u8>(7));
    let error = source.join((&source, &one)).unwrap_err();
    assert_eq!(
        *error.kind(),
        ErrorKind::LengthMismatch { of: "what is joined", expected: LEN, got: LEN + 1 }
    );
    let error = two.join((&Source::new(vec![0_u8; 8]).unwrap(),)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LengthMismatch { of: "what is joined", expected: 7, got: 8 });
    assert_eq!(moved(&device), (0, 0));
    // Two to one field.
    let error = source.transform(.., [value().set(1), value().set(2)]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(cause)
        if cause.kind() == DeviceErrorKind::InvalidArgument));
    assert_eq!(source.sum(.., value()).unwrap(), 0);
    // Nothing is asked of no elements.
    assert_eq!(source.min(0..0, value()).unwrap(), None);
    assert_eq!(source.sum(9..9, Field::whole().cast::<f32>()).unwrap(), 0.0);
    assert_eq!(source.histogram(..0, value(), 2).unwrap(), [0, 0]);
    assert!(source.all(..0, value().eq(1)).unwrap());
    source.transform(5..5, value().set(1)).unwrap();
    assert_eq!(source.into_home().unwrap(), [0; LEN]);
}
