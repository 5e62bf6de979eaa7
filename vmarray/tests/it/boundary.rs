//! Tests of boundary modes, compared with naive padded copies for all sizes and halos, and counts of page
//! visits.

use crate::common::boxes::{self, number, position, random_array, random_box, visits};
use crate::common::{Numbers, Shape, devices};
use proptest::prelude::*;
use vmarray::boundary::{
    Boundary, BoundaryPlace, BoundaryView, BoxShape, Checked, Circular, Clamp, Constant, Ignored, Mirror,
    Symmetric, Unchecked, Zero,
};
use vmarray::prelude::*;
use vmarray::{ErrorKind, nd::Tiles};

/// Definition of a mode, step by step; `None` is an error.
#[derive(Clone, Copy, Debug)]
enum Naive {
    Value(u32),
    Clamp,
    Circular,
    /// True if the edge is repeated.
    Mirrored(bool),
    Checked,
}

impl Naive {
    /// The element shown at an index; the value if the axis has the length of the list.
    fn shown(self, index: isize, extent: usize) -> Result<usize, Option<u32>> {
        if index >= 0 && (index as usize) < extent {
            return Ok(index as usize);
        }
        if let Self::Value(value) = self {
            return Err(Some(value));
        }
        if extent == 0 {
            return Err(None);
        }
        let all = (0..extent).collect::<Vec<_>>();
        let back = all.iter().copied().rev();
        let period: Vec<usize> = match self {
            Self::Clamp => return Ok(if index < 0 { 0 } else { extent - 1 }),
            Self::Circular => all,
            Self::Mirrored(true) => all.iter().copied().chain(back).collect(),
            Self::Mirrored(false) if extent == 1 => all,
            Self::Mirrored(false) => all.iter().copied().chain(back.skip(1).take(extent - 2)).collect(),
            _ => return Err(None),
        };
        Ok(period[index.rem_euclid(period.len() as isize) as usize])
    }
}

type Mode<const N: usize> = (&'static dyn Boundary<u32, N>, Naive);

fn modes<const N: usize>() -> [Mode<N>; 7] {
    [
        (&Checked, Naive::Checked),
        (&Zero, Naive::Value(0)),
        (&Constant(77), Naive::Value(77)),
        (&Clamp, Naive::Clamp),
        (&Circular, Naive::Circular),
        (&Mirror, Naive::Mirrored(false)),
        (&Symmetric, Naive::Mirrored(true)),
    ]
}

/// A boundary mode for each axis.
struct PerAxis<const N: usize>([&'static dyn Boundary<u32, 1>; N]);

impl<const N: usize> Boundary<u32, N> for PerAxis<N> {
    fn place(&self, axis: usize, index: isize, extent: usize) -> BoundaryPlace<u32> {
        self.0[axis].place(0, index, extent)
    }
}

/// Elements shown by a window; none if any of them is an error.
fn naive<const N: usize>(
    model: &[u32],
    shape: [usize; N],
    modes: [Naive; N],
    origin: [isize; N],
    extent: [usize; N],
) -> Option<Vec<u32>> {
    (0..extent.iter().product())
        .map(|number| {
            let at = position(number, extent);
            let (mut index, mut value, mut is_error) = (0, None, false);
            for axis in 0..N {
                match modes[axis].shown(origin[axis] + at[axis] as isize, shape[axis]) {
                    Ok(element) => index = index * shape[axis] + element,
                    Err(Some(outside)) => value = value.or(Some(outside)),
                    Err(None) => is_error = true,
                }
            }
            if is_error { None } else { Some(value.unwrap_or_else(|| model[index])) }
        })
        .collect()
}

fn compare<'a, const N: usize, V: View<'a, Element = u32, Shape: BoxShape<N>>, R: Boundary<u32, N>>(
    view: &BoundaryView<V, N, R>,
    shape: [usize; N],
    model: &[u32],
    modes: [Naive; N],
    random: &mut Numbers,
) {
    for _ in 0..6 {
        // The windows range from inside the array to windows that show the array several times.
        let far = 1 + random.below(3);
        let extent: [usize; N] = shape.map(|n| random.below(far * n + 4));
        let origin: [isize; N] = std::array::from_fn(|axis| {
            let reach = far * (shape[axis] + 2);
            random.below(2 * reach) as isize - reach as isize
        });
        let mut window = vec![9; extent.iter().product()];
        let result = view.read_window(origin, extent, &mut window);
        match naive(model, shape, modes, origin, extent) {
            Some(expected) => {
                result.unwrap();
                assert_eq!(window, expected, "{modes:?} {shape:?} {origin:?} {extent:?}");
            }
            None => {
                let error = result.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::PositionOutside { .. }), "{error}");
            }
        }
        if let Some(expected) = naive(model, shape, modes, origin, [1; N]) {
            assert_eq!(view.get(origin).unwrap(), expected[0]);
        } else {
            assert!(view.get(origin).is_err());
        }
    }
}

fn run<const N: usize>(seed: u64) {
    let mut random = Numbers::new(seed);
    let array = random_array::<u32, N>(&mut random, [20, 9, 6, 4], 12);
    let shape = array.shape();
    let model: Vec<u32> = (0..shape.iter().product::<usize>()).map(|i| i as u32 + 1000).collect();
    array.write_box(.., &model).unwrap();
    for (mode, definition) in modes::<N>() {
        compare(&array.bounded(mode), shape, &model, [definition; N], &mut random);
    }
    let choice: [usize; N] = std::array::from_fn(|_| random.below(7));
    let mixed = PerAxis(choice.map(|number| modes::<1>()[number].0));
    compare(&array.bounded(mixed), shape, &model, choice.map(|number| modes::<1>()[number].1), &mut random);
    parts(&array, &model, &mut random);
    writes(&array, model, &mut random);
}

/// The same for sections.
fn parts<const N: usize>(array: &NdArray<u32, N>, model: &[u32], random: &mut Numbers) {
    let shape = array.shape();
    let of = random_box(random, shape);
    let checked = [Naive::Checked; N];
    let extent = std::array::from_fn(|axis| of.end[axis] - of.start[axis]);
    let inner = naive(model, shape, checked, of.start.map(|at| at as isize), extent).unwrap();
    let section = array.section(of.clone()).unwrap();
    for (mode, definition) in modes::<N>() {
        compare(&section.bounded(mode), extent, &inner, [definition; N], random);
    }
}

fn writes<const N: usize>(array: &NdArray<u32, N>, mut model: Vec<u32>, random: &mut Numbers) {
    let shape = array.shape();
    let ignoring = array.bounded(Zero).with_writes(Ignored);
    for round in 0..8 {
        let extent: [usize; N] = shape.map(|n| random.below(2 * n + 3));
        let origin: [isize; N] = shape.map(|n| random.below(2 * n + 4) as isize - n as isize - 2);
        let fresh: Vec<u32> = (0..extent.iter().product::<usize>()).map(|i| (i + round) as u32).collect();
        let before = array.to_vec(..).unwrap();
        let mut is_outside = false;
        for (i, value) in fresh.iter().enumerate() {
            let at = position(i, extent);
            let signed: [isize; N] = std::array::from_fn(|axis| origin[axis] + at[axis] as isize);
            let is_inside = (0..N).all(|axis| (0..shape[axis] as isize).contains(&signed[axis]));
            is_outside |= !is_inside;
            if is_inside {
                model[number(shape, signed.map(|at| at as usize))] = *value;
            }
        }
        let checked = array.bounded(Clamp).write_window(origin, extent, &fresh);
        if is_outside {
            assert!(matches!(checked.unwrap_err().kind(), ErrorKind::PositionOutside { .. }));
            assert_eq!(array.to_vec(..).unwrap(), before);
        } else {
            checked.unwrap();
        }
        ignoring.write_window(origin, extent, &fresh).unwrap();
        assert_eq!(array.to_vec(..).unwrap(), model);
        let at = origin;
        let is_inside = (0..N).all(|axis| (0..shape[axis] as isize).contains(&at[axis]));
        ignoring.set(at, 5).unwrap();
        assert_eq!(array.bounded(Checked).set(at, 5).is_ok(), is_inside);
        if is_inside {
            model[number(shape, at.map(|at| at as usize))] = 5;
        }
        assert_eq!(array.to_vec(..).unwrap(), model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(backend_api::wrap::random_cases(60)))]

    #[test]
    fn windows_are_as_padded_copies(seed in any::<u64>()) {
        run::<1>(seed);
        run::<2>(seed);
        run::<3>(seed);
        run::<4>(seed);
    }

    #[test]
    fn plain_arrays_have_boundaries_too(len in 0_usize..30, page_len in 1_usize..12, seed in any::<u64>()) {
        let mut random = Numbers::new(seed);
        let array = Shape { page_len, ..Shape::any(&mut random, 1, 2) }.build::<u32>(len);
        let model: Vec<u32> = (0..len as u32).map(|i| i + 50).collect();
        array.write(0, &model).unwrap();
        for (mode, definition) in modes::<1>() {
            compare(&array.bounded(mode), [len], &model, [definition], &mut random);
            let source = Source::new(&model[..]).unwrap();
            compare(&source.bounded(mode), [len], &model, [definition], &mut random);
        }
        let (a, b) = (random.below(len + 1), random.below(len + 1));
        let (start, end) = (a.min(b), a.max(b));
        for (mode, definition) in modes::<1>() {
            let section = array.section(start..end).unwrap();
            compare(&section.bounded(mode), [end - start], &model[start..end], [definition], &mut random);
            let section = array.section_mut(start..end).unwrap();
            compare(&section.bounded(mode), [end - start], &model[start..end], [definition], &mut random);
        }
    }
}

/// An image in tiles of 8 by 8.
fn image(frames: usize) -> NdArray<u32, 2> {
    boxes::image(Some([8, 8]), frames)
}

#[test]
fn a_window_visits_each_of_its_pages_once() {
    // Test with a frame for each page, and with a single frame.
    for frames in [64, 1] {
        let image = image(frames);
        let read = |mode: &'static dyn Boundary<u32, 2>, origin, extent| {
            image.bounded(mode).to_vec(origin, extent).unwrap();
            visits(&image)
        };
        // Inside the image, a tile with its halo covers nine tiles.
        assert_eq!(read(&Zero, [14, 14], [12, 12]), (9, 9));
        // At the corner, four tiles have elements in the window.
        for mode in [&Zero as &dyn Boundary<u32, 2>, &Clamp, &Mirror, &Symmetric] {
            assert_eq!(read(mode, [-2, -2], [12, 12]), (4, 4));
        }
        // `Circular` shows the elements at the opposite edges as well.
        assert_eq!(read(&Circular, [-2, -2], [12, 12]), (9, 9));
        // The window shows the whole image several times.
        for mode in [&Circular as &dyn Boundary<u32, 2>, &Mirror, &Symmetric, &Clamp] {
            assert_eq!(read(mode, [-70, -200], [300, 400]), (64, 64));
        }
        // The window is far outside and in reverse order: the shown elements are in two tiles.
        assert_eq!(read(&Mirror, [-11, -14], [4, 12]), (2, 2));
        assert_eq!(read(&Clamp, [-10, -14], [4, 4]), (1, 1));
        // The window shows no element.
        assert_eq!(read(&Zero, [-10, 0], [4, 64]), (0, 0));
    }
}

#[test]
fn windows_of_tiles_are_fetched_once_where_the_cache_has_room() {
    let image = image(64);
    let mut sum = 0;
    image
        .bounded(Zero)
        .for_each_window(image.tiles(), [3, 3], |of, window| {
            assert_eq!(window.len(), 14 * 14);
            assert_eq!(window[3 * 14 + 3], (of.start[0] * 64 + of.start[1]) as u32);
            sum += u64::from(window[3 * 14 + 3]);
            Ok(())
        })
        .unwrap();
    assert!(sum > 0);
    assert_eq!(visits(&image).1, 64);
}

#[test]
fn blurred_tile_by_tile_is_blurred_at_once() {
    let image = image(64);
    let values = image.to_vec(..).unwrap();
    let blurred = NdArray::<u32, 2>::builder([64, 64]).devices(devices(1)).tile([8, 8]).build().unwrap();
    let (halo, tiles) = ([2, 1], Tiles::new([64, 64], [10, 24]).unwrap());
    let blur = |window: &[u32], rows: usize, columns: usize| -> Vec<u32> {
        let wide = columns + 2;
        let pixel = |number: usize| {
            let (y, x) = (number / columns, number % columns);
            (0..5 * 3).map(|i| window[(y + i / 3) * wide + x + i % 3]).sum()
        };
        (0..rows * columns).map(pixel).collect()
    };
    image
        .bounded(Mirror)
        .for_each_window(tiles, halo, |of, window| {
            let (rows, columns) = (of.end[0] - of.start[0], of.end[1] - of.start[1]);
            blurred.write_box(of, &blur(window, rows, columns))
        })
        .unwrap();
    let mirrored = [Naive::Mirrored(false); 2];
    let padded = naive(&values, [64, 64], mirrored, [-2, -1], [68, 66]).unwrap();
    assert_eq!(blurred.to_vec(..).unwrap(), blur(&padded, 64, 64));
    {
        let again = NdArray::<u32, 2>::builder([64, 64]).devices(devices(1)).build().unwrap();
        image
            .bounded(Mirror)
            .par_for_each_window(image.tiles(), halo, |of, window| again.write_box(of, &blur(window, 8, 8)))
            .unwrap();
        assert_eq!(again.to_vec(..).unwrap(), blurred.to_vec(..).unwrap());
    }
}

#[test]
fn tuples_have_a_mode_for_each_axis() {
    let image = image(64);
    let cylinder = image.bounded((Clamp, Circular));
    assert_eq!(cylinder.get([-5, -1]).unwrap(), 63);
    assert_eq!(cylinder.get([70, 64]).unwrap(), 63 * 64);
    let closed = image.bounded((Checked, Constant(1)));
    assert!(closed.get([-1, 0]).is_err());
    assert!(closed.get([-1, 64]).is_err());
    assert_eq!(closed.get([0, 64]).unwrap(), 1);
    // The first axis with a constant determines the value.
    assert_eq!(image.bounded((Constant(5), Constant(6))).to_vec([-1, -1], [2, 2]).unwrap(), [5, 5, 6, 0]);
}

#[test]
fn unchecked_views_read_and_write_inside() {
    let image = image(64);
    // SAFETY: all positions below are inside.
    let mode = unsafe { Unchecked::new() };
    let view = image.bounded(mode).with_writes(mode);
    view.set([63, 63], 5).unwrap();
    assert_eq!(view.get([63, 63]).unwrap(), 5);
    view.write_window([1, 1], [1, 2], &[7, 8]).unwrap();
    assert_eq!(view.to_vec([1, 0], [1, 3]).unwrap(), [64, 7, 8]);
}

#[test]
fn windows_that_cannot_be_counted_are_errors() {
    let image = image(4);
    let view = image.bounded(Circular);
    let error = view.read_window([isize::MAX, 0], [2, 1], &mut [0; 2]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PositionOutside { axis: 0, .. }));
    assert_eq!(view.get([isize::MIN, isize::MAX]).unwrap(), 63);
    assert_eq!(view.to_vec([isize::MIN, isize::MAX - 1], [1, 1]).unwrap(), [62]);
    assert_eq!(view.to_vec([isize::MIN, isize::MAX - 1], [1, 2]).unwrap(), [62, 63]);
    assert!(view.to_vec([isize::MIN, isize::MAX - 1], [1, 3]).is_err());
    for mode in [&Circular as &dyn Boundary<u32, 2>, &Mirror, &Symmetric, &Clamp, &Zero] {
        let view = image.bounded(mode);
        let far = [isize::MAX, isize::MAX];
        assert_eq!(view.to_vec(far, [1, 1]).unwrap(), [view.get(far).unwrap()]);
    }
    view.with_writes(Ignored).write_window([isize::MAX, 0], [1, 1], &[7]).unwrap();
    assert!(view.write_window([isize::MAX, 0], [1, 1], &[7]).is_err());
    let error = view.to_vec([0, 0], [usize::MAX, 2]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeOverflow { .. }));
    let error = view.read_window([0, 0], [2, 2], &mut [0; 3]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LengthMismatch { of: "the window's slice", expected: 4, got: 3 });
    // This mode returns an index out of bounds.
    struct Wrong;
    impl Boundary<u32, 2> for Wrong {
        fn place(&self, _: usize, index: isize, extent: usize) -> BoundaryPlace<u32> {
            if index < 0 { BoundaryPlace::At(extent) } else { BoundaryPlace::At(index as usize) }
        }
    }
    assert!(image.bounded(Wrong).get([-1, 0]).is_err());
    assert!(image.bounded(Wrong).to_vec([-1, 0], [2, 2]).is_err());
}
