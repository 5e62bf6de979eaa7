//! Tests of kernels and functions that loop forever: on the processor the launch or the expression returns an
//! error, and arrays and devices remain usable.

use std::sync::Arc;
use std::time::Duration;

use vmarray::device::{Device, DeviceKind};
use vmarray::kernel::{Append, Appended, At, Group, Own, Session, Shared};
use vmarray::prelude::*;
use vmarray::{AnyDevice, Error, ErrorKind, Placement};

use crate::common::{devices, hosts};

const LIMIT: Duration = Duration::from_millis(20);
const LEN: usize = 1000;
/// The item that does not end.
const ENDLESS: u32 = 77;

fn array(devices: Vec<Arc<AnyDevice>>) -> VirtualArray<u32> {
    let shares = vec![1; devices.len()];
    let array = VirtualArray::builder(LEN)
        .devices(devices)
        .page_len(64)
        .placement(Placement::Ratios(shares))
        .build()
        .unwrap();
    array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
    array
}

fn endless(x: u32) -> bool {
    x == ENDLESS
}

#[vmarray::kernel]
fn with_loop(x: &mut Own<u32>) {
    let mut sum = x.get();
    if x.get() == 77 {
        loop {
            sum = sum * 3 + 1;
            if sum == 0 {
                sum = 1;
            }
        }
    }
    x.set(sum + 1);
}

#[vmarray::kernel]
fn with_while(x: &mut Own<u32>) {
    let mut twice = 2 * x.get();
    while twice % 154 == 0 && twice > 0 {
        twice = 154;
        continue;
    }
    x.set(x.get() + 1);
}

#[vmarray::kernel]
fn with_for(at: At<1>, x: &mut Own<u32>) {
    let mut sum = 0_u64;
    let last = if x.get() == 77 { 18_446_744_073_709_551_000 } else { at.index() as u64 };
    for i in 0..last {
        sum = sum * 31 + i;
    }
    x.set((sum % 2) as u32 + x.get());
}

#[vmarray::kernel]
fn with_nested(x: &mut Own<u32>) {
    let mut sum = 0_u32;
    let last = if x.get() == 77 { 60_000 } else { 3_u32 };
    for i in 0..last {
        for j in (0..last).rev() {
            'inner: for k in 0..last {
                if k > i + j {
                    break 'inner;
                }
                sum = sum * 5 + k;
            }
        }
    }
    x.set(sum % 2 + x.get());
}

#[vmarray::kernel]
fn endless_function(x: u32) -> u32 {
    let mut y = x;
    while y == 77 {
        y = y * 1;
    }
    y + 1
}

#[vmarray::kernel]
fn with_call(x: &mut Own<u32>) {
    x.set(endless_function(x.get()));
}

#[vmarray::kernel(group = 32)]
fn in_groups(at: At<1>, part: &Group<u32, 32>, x: &mut Own<u32>) {
    part.set(at.in_group(), x.get());
    barrier();
    let mut value = part[31 - at.in_group()];
    while value == 77 {
        value = value / 2 * 2 + 1;
    }
    x.set(value);
}

#[vmarray::kernel(group = 32)]
fn in_groups_together(at: At<1>, part: &Group<u32, 32>, x: &mut Own<u32>) {
    part.set(at.in_group(), x.get());
    barrier();
    // All items of the group of element 77 run this loop, unless each element is its own group.
    let mut group = at.group();
    while group == 2 {
        barrier();
        group = group / 2 * 2;
    }
    x.set(part[31 - at.in_group()]);
}

#[vmarray::kernel]
fn appending(x: &Own<u32>, found: &Append<u32>, sum: &Shared<u32>) {
    found.push(x.get());
    sum.add(0, 1);
    let mut y = x.get();
    while y == 77 {
        y = y * 1;
    }
}

#[vmarray::kernel]
fn returning(x: &Own<u32>) -> u32 {
    let mut y = x.get();
    while y == 77 {
        y = y * 1;
    }
    y
}

#[vmarray::kernel]
fn grown(x: &mut Own<u32>) {
    x.set(x.get() + 1);
}

fn expect_late(error: &Error, name: &str, items: std::ops::Range<usize>) {
    let ErrorKind::KernelTime { kernel, place, limit, item } = error.kind() else { panic!("{error}") };
    assert_eq!((&kernel[..], *limit), (name, LIMIT));
    assert!(place.contains("endless_kernels.rs") && items.contains(item), "{error}");
}

/// All devices that run kernels on the processor, alone and together.
/// The devices to test on, or host RAM if they are GPUs, which never end such a kernel.
fn processors(count: usize) -> Vec<Arc<AnyDevice>> {
    let on_processor =
        |device: &Arc<AnyDevice>| matches!(device.info().kind, DeviceKind::HostMemory | DeviceKind::Cpu);
    let named = devices(count);
    if named.iter().all(on_processor) { named } else { hosts::<2>().into_iter().take(count).collect() }
}

fn all_devices() -> [Vec<Arc<AnyDevice>>; 2] {
    [processors(1), processors(2)]
}

macro_rules! ends {
    ($($kernel:ident $items:expr;)*) => {
        #[test]
        fn items_end_with_their_launch() {
            for on in all_devices() {
                $({
                    let array = array(on.clone());
                    let into = array.section_mut(..).unwrap();
                    let error = $kernel::launch().time_limit(LIMIT).run((into,)).unwrap_err();
                    expect_late(&error, stringify!($kernel), $items);
                    // Each element has its old value, or the value that its item has written.
                    let once = array.to_vec(..).unwrap();
                    // With groups, the element may have the value of its mirror image.
                    assert!([ENDLESS, 82].contains(&once[ENDLESS as usize]));
                    // The device and the array still work.
                    array.fill(.., 1001).unwrap();
                    grown::run((into,)).unwrap();
                    assert_eq!(array.count(.., Field::<u32, u32>::whole(), &1002).unwrap(), LEN);
                    let ended = array.section_mut(..64).unwrap();
                    $kernel::launch().time_limit(LIMIT).run((ended,)).unwrap();
                })*
            }
        }
    };
}
ends! {
    with_loop 77..78;
    with_while 77..LEN;
    with_for 77..78;
    with_nested 77..78;
    with_call 77..78;
    in_groups 64..96;
    in_groups_together 64..96;
}

#[test]
fn elements_before_and_behind_keep_old_or_new_values() {
    for on in all_devices() {
        let array = array(on);
        let launch = with_loop::launch().time_limit(LIMIT);
        launch.run((array.section_mut(..).unwrap(),)).unwrap_err();
        for (at, x) in (0..).zip(array.to_vec(..).unwrap()) {
            assert!(x == at || x == at + 1 && !endless(at), "{at} {x}");
        }
    }
}

#[test]
fn nothing_is_appended_or_returned() {
    let on = processors(1);
    let (array, sums) = (array(on.clone()), array(on));
    sums.fill(.., 5).unwrap();
    let mut found = Vec::new();
    let launch = appending::launch().time_limit(LIMIT);
    let arguments = (&array, Appended::to(&mut found, 5000), sums.section_mut(..10).unwrap());
    expect_late(&launch.run(arguments).unwrap_err(), "appending", 77..78);
    assert_eq!((found.len(), sums.get(0).unwrap()), (0, 5));
    expect_late(&returning::launch().time_limit(LIMIT).sum((&array,)).unwrap_err(), "returning", 77..78);
}

#[test]
fn futures_sessions_and_numbers_end() {
    let on = processors(1);
    let mut array = array(on);
    let launch = with_loop::launch().time_limit(LIMIT).run_async((&mut array,));
    expect_late(&futures::executor::block_on(launch).unwrap_err(), "with_loop", 77..78);
    array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
    let mut session = Session::new();
    let x = session.hold(&mut array).unwrap();
    with_loop::launch().time_limit(LIMIT).run_in(&mut session, (x,)).unwrap();
    expect_late(&session.finish().unwrap_err(), "with_loop", 77..78);
    array.fill(.., 1).unwrap();
    with_loop::run((&mut array,)).unwrap();
    assert_eq!(array.get(LEN - 1).unwrap(), 2);
}

/// Items that each take less than the limit, however long all of them take together.
#[test]
fn the_limit_is_of_each_item() {
    #[vmarray::kernel]
    fn long(x: &mut Own<u32>) {
        for i in 0..100_000_u32 {
            x.set(x.get() * 3 + i);
        }
    }
    let on = processors(1);
    let one = array(on.clone());
    let expected = (0..100_000_u32).fold(9, |x: u32, i| x.wrapping_mul(3).wrapping_add(i));
    one.fill(.., 9).unwrap();
    long::launch().time_limit(Duration::from_secs(20)).run((one.section_mut(..).unwrap(),)).unwrap();
    assert_eq!(one.to_vec(..).unwrap(), vec![expected; LEN]);
    one.fill(.., 9).unwrap();
    long::launch().time_limit(None).run((one.section_mut(..).unwrap(),)).unwrap();
    assert_eq!(one.get(5).unwrap(), expected);
}

#[vmarray::kernel]
fn endless_after_calls(x: u32) -> u32 {
    let mut sum = 0_u32;
    loop {
        // The limit of the loop also covers the time of calls.
        for i in 0..100_000_u32 {
            sum += i * endless_function(76);
        }
        if x != 77 {
            return sum % 2 + x;
        }
    }
}

/// The value of elements under a short limit.
fn limited<T>(x: impl vmarray::expr::IntoExpr<T, u32>) -> vmarray::expr::Expr<T, u32> {
    endless_function::of(x).time_limit(LIMIT)
}

#[test]
fn functions_in_expressions_end() {
    let x = Field::<u32, u32>::whole();
    for on in all_devices() {
        let array = array(on.clone());
        let late = |error: Error| expect_late(&error, "endless_function", 77..78);
        late(array.sum(.., limited(x)).unwrap_err());
        late(array.max(.., limited(x)).unwrap_err());
        late(array.count_where(.., limited(x).gt(3)).unwrap_err());
        late(array.find_where(.., limited(x).gt(3), LEN).unwrap_err());
        late(array.any(.., limited(x).eq(2000)).unwrap_err());
        late(array.sum(.., x.only_where(limited(x).gt(3))).unwrap_err());
        late(array.histogram(.., limited(x), 10).unwrap_err());
        let nested = endless_after_calls::of(x).time_limit(LIMIT);
        expect_late(&array.sum(.., nested).unwrap_err(), "endless_after_calls", 77..78);
        // Test two functions with different limits.
        let long = endless_after_calls::of(x - 1000).time_limit(Duration::from_secs(600));
        late(array.sum(..100, long + limited(x)).unwrap_err());
        // The error has the index within the section.
        let section = array.section(50..).unwrap();
        expect_late(&section.sum(.., limited(x)).unwrap_err(), "endless_function", 27..28);
        let section = array.section_mut(50..).unwrap();
        let change = section.transform(.., x.set(limited(x)));
        expect_late(&change.unwrap_err(), "endless_function", 27..28);
        assert_eq!(array.get(ENDLESS as usize).unwrap(), ENDLESS);
        assert!((0..).zip(array.to_vec(..50).unwrap()).all(|(at, x)| x == at));
        // With another value at this index, the array and the device work as before.
        array.write(0, &(0..LEN as u32).collect::<Vec<_>>()).unwrap();
        array.set(ENDLESS as usize, 5).unwrap();
        assert_eq!(array.sum(.., limited(x)).unwrap(), (1..=LEN as i128).sum::<i128>() - 72);
        array.transform(.., x.set(limited(x))).unwrap();
        assert_eq!(array.get(LEN - 1).unwrap(), LEN as u32);
    }
}

#[test]
fn functions_over_several_arrays_and_copies_end() {
    let on = processors(2);
    let (a, b) = (array(on.clone()), array(on));
    let joined = a.join((&b,)).unwrap();
    let (to, from) = joined.rows();
    let late = |error: Error| expect_late(&error, "endless_function", 77..78);
    let value = || limited(from.get(Field::whole()));
    late(joined.count_where(.., value().gt(to.get(Field::whole()))).unwrap_err());
    late(joined.transform(.., to.set(Field::whole(), value())).unwrap_err());
    let mirrored = VirtualArray::<u32>::builder(LEN).devices(hosts::<2>()).page_len(64);
    let mirrored = mirrored.placement(Placement::Mirrored).build().unwrap();
    mirrored.fill(.., 76).unwrap();
    mirrored.set(77, 77).unwrap();
    let x = Field::<u32, u32>::whole();
    late(mirrored.sum(.., limited(x)).unwrap_err());
    late(mirrored.transform(.., x.set(limited(x))).unwrap_err());
    // Both devices still have their copies.
    mirrored.fill(.., 1).unwrap();
    assert_eq!(mirrored.sum(.., limited(x)).unwrap(), 2 * LEN as i128);
}

/// Calls that each take less than the limit, however long all of them take together.
#[test]
fn the_limit_of_a_function_is_of_each_call() {
    #[vmarray::kernel]
    fn long(x: u32) -> u32 {
        let mut x = x;
        for i in 0..100_000_u32 {
            x = x * 3 + i;
        }
        x
    }
    let array = array(processors(1));
    array.fill(.., 9).unwrap();
    let expected = i128::from(long(9)) * LEN as i128;
    let value = long::of(Field::<u32, u32>::whole());
    assert_eq!(array.sum(.., value.clone().time_limit(Duration::from_secs(20))).unwrap(), expected);
    assert_eq!(array.sum(.., value.time_limit(None)).unwrap(), expected);
}
