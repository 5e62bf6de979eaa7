//! Tests of all operations on views of all kinds, compared with a vector of the store's elements.

use std::fmt::Debug;
use std::ops::Range;

use proptest::prelude::*;
use vmarray::expr::{Expr, index};
use vmarray::prelude::*;
use vmarray::{ErrorKind, RaggedArray, Result, device::HostMemory, nd::NdSection};

use crate::common::boxes::{assert_padding_is_zero, is_inside, positions, random_array, random_box};
use crate::common::{KEY, Numbers, POLICIES, Pair, Shape, VALUE, devices, uneven_devices};

/// Index of the elements of a view.
trait Index: Copy + Debug + Ord {
    /// True if a search among equal elements finds the first.
    const IS_IN_ORDER: bool;

    fn is_in(self, of: &Range<Self>) -> bool;
    fn from(self, start: Self) -> Self;
    fn below(random: &mut Numbers, end: Self) -> Self;
    fn range(random: &mut Numbers, end: Self) -> Range<Self>;
    /// Number of an element for expressions, which also index by it.
    fn number(self) -> u32;
    fn numbers() -> Expr<Pair, u32>;
    /// An index just out of bounds, a range with such indices, and their errors, also in a list.
    fn outside(end: Self) -> (Self, Range<Self>, [ErrorKind; 3]);
}

impl Index for usize {
    const IS_IN_ORDER: bool = true;

    fn is_in(self, of: &Range<Self>) -> bool {
        of.contains(&self)
    }

    fn from(self, start: Self) -> Self {
        self - start
    }

    fn below(random: &mut Numbers, end: Self) -> Self {
        random.below(end)
    }

    fn range(random: &mut Numbers, end: Self) -> Range<Self> {
        random.range(end)
    }

    fn number(self) -> u32 {
        self as u32
    }

    fn numbers() -> Expr<Pair, u32> {
        index().cast()
    }

    fn outside(len: Self) -> (Self, Range<Self>, [ErrorKind; 3]) {
        let range = ErrorKind::RangeOutside { start: 0, end: len + 1, len };
        let listed = ErrorKind::ListedIndexOutside { position: 0, index: len, len };
        (len, 0..len + 1, [ErrorKind::IndexOutside { index: len, len }, listed, range])
    }
}

impl<const N: usize> Index for [usize; N] {
    const IS_IN_ORDER: bool = false;

    fn is_in(self, of: &Range<Self>) -> bool {
        is_inside(of, &self)
    }

    fn from(self, start: Self) -> Self {
        std::array::from_fn(|axis| self[axis] - start[axis])
    }

    fn below(random: &mut Numbers, end: Self) -> Self {
        end.map(|end| random.below(end))
    }

    fn range(random: &mut Numbers, end: Self) -> Range<Self> {
        random_box(random, end)
    }

    fn number(self) -> u32 {
        0
    }

    fn numbers() -> Expr<Pair, u32> {
        KEY * 0
    }

    fn outside(extents: Self) -> (Self, Range<Self>, [ErrorKind; 3]) {
        let (mut at, mut beyond) = ([0; N], extents);
        let (axis, extent) = (N - 1, extents[N - 1]);
        (at[axis], beyond[axis]) = (extent, extent + 1);
        let position = ErrorKind::PositionOutside { axis, index: extent as i128, extent };
        let range = ErrorKind::BoxOutside { axis, start: 0, end: extent + 1, extent };
        (at, [0; N]..beyond, [position.clone(), position, range])
    }
}

/// Elements shown by a view, and contents of its store.
struct Model<'m, I> {
    /// Places in the store, by index, in the order of the indices.
    shown: Vec<(I, usize)>,
    /// One past the last index.
    end: I,
    store: &'m mut Vec<Pair>,
}

impl<I: Index> Model<'_, I> {
    fn inside(&self, of: &Range<I>) -> Vec<(I, Pair)> {
        let inside = self.shown.iter().filter(|(at, _)| at.is_in(of));
        inside.map(|(at, place)| (*at, self.store[*place])).collect()
    }

    fn change(&mut self, of: &Range<I>, change: impl Fn(I, Pair) -> Pair) {
        for (at, place) in self.shown.iter().filter(|(at, _)| at.is_in(of)) {
            self.store[*place] = change(*at, self.store[*place]);
        }
    }

    fn place(&self, at: I) -> usize {
        self.shown[self.shown.binary_search_by_key(&at, |(at, _)| *at).unwrap()].1
    }
}

/// A condition on the element and its number.
#[derive(Clone, Copy, Debug)]
struct Condition {
    least: u32,
    rest: u32,
}

impl Condition {
    fn new(random: &mut Numbers) -> Self {
        Self { least: random.below(10) as u32, rest: random.below(3) as u32 }
    }

    fn expr<I: Index>(self) -> Expr<Pair, bool> {
        KEY.ge(self.least) & (I::numbers() % 3).ne(self.rest) | I::numbers().eq(self.rest + 4)
    }

    fn holds<I: Index>(self, at: I, [key, _]: Pair) -> bool {
        key >= self.least && at.number() % 3 != self.rest || at.number() == self.rest + 4
    }
}

/// Runs all queries on a region of a view.
fn ask<'a, I: Index>(
    view: impl View<'a, Element = Pair, Index = I>,
    model: &Model<'_, I>,
    of: &Range<I>,
    random: &mut Numbers,
) {
    let (inside, over) = (model.inside(of), || of.clone());
    assert_eq!(view.to_vec(over()).unwrap(), inside.iter().map(|(_, v)| *v).collect::<Vec<_>>());
    let condition = Condition::new(random);
    let found: Vec<_> = inside.iter().filter(|(at, pair)| condition.holds(*at, *pair)).copied().collect();
    let indices: Vec<I> = found.iter().map(|(at, _)| *at).collect();
    let condition = || condition.expr::<I>();
    assert_eq!(view.count_where(over(), condition()).unwrap(), found.len());
    for limit in [0, 1, 1 + random.below(found.len() + 2), usize::MAX] {
        let answer = view.find_where(over(), condition(), limit).unwrap();
        assert_eq!((&answer.indices[..], answer.total), (&indices[..limit.min(found.len())], found.len()));
    }
    assert_eq!(view.position_first(over(), condition()).unwrap(), indices.first().copied());
    assert_eq!(view.any(over(), condition()).unwrap(), !found.is_empty());
    assert_eq!(view.all(over(), condition()).unwrap(), found.len() == inside.len());
    let selected = view.select_where(over(), condition()).unwrap();
    assert_eq!(selected.collect::<Result<Vec<_>>>().unwrap(), found);

    let key = random.below(9) as u32;
    let equal: Vec<I> = inside.iter().filter(|(_, pair)| pair[0] == key).map(|(at, _)| *at).collect();
    assert_eq!(view.count(over(), KEY, &key).unwrap(), equal.len());
    assert_eq!(view.position(over(), KEY, &key).unwrap(), equal.first().copied());
    for limit in [0, 1, usize::MAX] {
        let found = view.find_first(over(), KEY, &key, limit).unwrap();
        assert_eq!((&found.indices[..], found.total), (&equal[..limit.min(equal.len())], equal.len()));
    }

    // Both the value and the condition use the number of the element.
    let value = || ((VALUE % 100) * 8 + I::numbers()).only_where(condition());
    let truth: Vec<_> = found.iter().map(|(at, pair)| (*at, pair[1] % 100 * 8 + at.number())).collect();
    let sum: i128 = truth.iter().map(|(_, value)| i128::from(*value)).sum();
    assert_eq!(view.sum(over(), value()).unwrap(), sum);
    let least = truth.iter().min_by_key(|(_, value)| *value).copied();
    let greatest = truth.iter().rev().max_by_key(|(_, value)| *value).copied();
    let (min, max) = (least.map(|least| least.1), greatest.map(|greatest| greatest.1));
    assert_eq!(view.min_max(over(), value()).unwrap(), min.zip(max));
    assert_eq!((view.min(over(), value()).unwrap(), view.max(over(), value()).unwrap()), (min, max));
    for (found, known) in
        [(view.arg_min(over(), value()).unwrap(), least), (view.arg_max(over(), value()).unwrap(), greatest)]
    {
        if I::IS_IN_ORDER {
            assert_eq!(found, known);
        } else {
            assert_eq!(found.map(|(_, value)| value), known.map(|(_, value)| value));
            assert!(found.is_none_or(|found| truth.contains(&found)));
        }
    }
    let counts = |of: &dyn Fn(I, Pair) -> u32, bins: u32| -> Vec<u64> {
        let in_bin = |bin| inside.iter().filter(|(at, pair)| of(*at, *pair) == bin).count() as u64;
        (0..bins).map(in_bin).collect()
    };
    assert_eq!(view.histogram(over(), KEY, 5).unwrap(), counts(&|_, pair| pair[0], 5));
    assert_eq!(view.histogram(over(), I::numbers() % 4, 4).unwrap(), counts(&|at, _| at.number() % 4, 4));
}

/// Queries and writes out of bounds.
fn refuse<'a, I: Index>(view: impl ViewMut<'a, Element = Pair, Index = I>, end: I) {
    let (index, range, [of_index, of_list, of_range]) = I::outside(end);
    let over = || range.clone();
    let condition = || KEY.eq(1);
    let is = |result: Result<()>, kind: &ErrorKind| assert_eq!(result.expect_err("outside").kind(), kind);
    is(view.get(index).map(drop), &of_index);
    is(view.set(index, [1; 2]), &of_index);
    is(view.swap(index, index), &of_index);
    is(view.gather(&[index]).map(drop), &of_list);
    is(view.scatter(&[index], &[[1; 2]]), &of_list);
    let results = [
        view.to_vec(over()).map(drop),
        view.section(over()).map(drop),
        view.count(over(), KEY, &1).map(drop),
        view.count_where(over(), condition()).map(drop),
        view.find_where(over(), condition(), 1).map(drop),
        view.any(over(), condition()).map(drop),
        view.select_where(over(), condition()).map(drop),
        view.sum(over(), KEY).map(drop),
        view.arg_max(over(), KEY).map(drop),
        view.histogram(over(), KEY, 2).map(drop),
        view.transform(over(), KEY.set(1)),
        view.assign_where(over(), condition(), KEY.set(1)),
        view.fill(over(), [1; 2]),
        view.flush(over()),
        view.evict(over()),
        view.prefetch(over()),
    ];
    results.into_iter().for_each(|result| is(result, &of_range));
}

/// Changes elements in place by expressions.
fn assign<'a, I: Index>(
    view: impl ViewMut<'a, Element = Pair, Index = I>,
    model: &mut Model<'_, I>,
    of: &Range<I>,
    random: &mut Numbers,
) {
    let (by, condition) = (random.below(1000) as u32, Condition::new(random));
    match random.below(4) {
        // This case assigns the whole element.
        0 => {
            let both = [VALUE.set(I::numbers() * by), KEY.set(I::numbers() % 9)];
            view.transform(of.clone(), both).unwrap();
            model.change(of, |at, _| [at.number() % 9, at.number() * by]);
        }
        1 => {
            view.assign_where(of.clone(), condition.expr::<I>(), VALUE.set(I::numbers() * 3 + by)).unwrap();
            let change = |at: I, pair: Pair| [pair[0], at.number() * 3 + by];
            model.change(of, |at, pair| if condition.holds(at, pair) { change(at, pair) } else { pair });
        }
        _ => {
            let both = [VALUE.set(VALUE + I::numbers()), KEY.set((VALUE + by) % 9)];
            view.transform(of.clone(), both).unwrap();
            let number = |at: I, value: u32| value.wrapping_add(at.number());
            model.change(of, |at, [_, value]| [value.wrapping_add(by) % 9, number(at, value)]);
        }
    }
}

fn pair(random: &mut Numbers) -> Pair {
    [random.below(9) as u32, random.next() as u32]
}

/// Reads and changes a view by all operations.
fn run<'a, I: Index, V: ViewMut<'a, Element = Pair, Index = I>>(
    view: V,
    mut model: Model<'_, I>,
    random: &mut Numbers,
) {
    assert_eq!((view.len(), view.is_empty()), (model.shown.len(), model.shown.is_empty()));
    for _ in 0..3 {
        let of = I::range(random, model.end);
        ask(view, &model, &of, random);
        assign(view, &mut model, &of, random);
        if model.shown.is_empty() {
            continue;
        }
        refuse(view, model.end);
        let list: Vec<I> = (0..random.below(30)).map(|_| I::below(random, model.end)).collect();
        let known: Vec<Pair> = list.iter().map(|at| model.store[model.place(*at)]).collect();
        assert_eq!(view.gather(&list).unwrap(), known);
        assert_eq!(view.gather_iter(list.iter().copied()).collect::<Result<Vec<_>>>().unwrap(), known);
        let values: Vec<Pair> = list.iter().map(|_| pair(random)).collect();
        view.scatter(&list, &values).unwrap();
        for (at, value) in list.iter().zip(values) {
            let place = model.place(*at);
            model.store[place] = value;
        }
        let at = I::below(random, model.end);
        let place = model.place(at);
        assert_eq!(view.get(at).unwrap(), model.store[place]);
        assert_eq!(view.replace(at, [7; 2]).unwrap(), model.store[place]);
        assert_eq!(view.update(at, |[key, value]| [key + 1, value]).unwrap(), [7; 2]);
        assert_eq!(view.compare_exchange(at, [8, 7], [3; 2]).unwrap(), Ok([8, 7]));
        assert_eq!(view.compare_exchange(at, [8, 7], [1; 2]).unwrap(), Err([3; 2]));
        view.set(at, [2; 2]).unwrap();
        let other = I::below(random, model.end);
        model.store[place] = [2; 2];
        view.swap(at, other).unwrap();
        let (a, b) = (place, model.place(other));
        model.store.swap(a, b);
        let of = I::range(random, model.end);
        match random.below(4) {
            0 => view.flush(of.clone()).unwrap(),
            1 => view.evict(of.clone()).unwrap(),
            2 => view.prefetch(of.clone()).unwrap(),
            _ => view.fill(of.clone(), [6; 2]).map(|()| model.change(&of, |_, _| [6; 2])).unwrap(),
        }
        let part = view.section_mut(of.clone()).unwrap();
        let shown = model.shown.iter().filter(|(at, _)| at.is_in(&of));
        let shown = shown.map(|(at, place)| (at.from(of.start), *place)).collect();
        let mut inner = Model { shown, end: of.end.from(of.start), store: model.store };
        let some = I::range(random, inner.end);
        ask(part, &inner, &some, random);
        assign(part, &mut inner, &some, random);
    }
}

fn linear(start: usize, len: usize, store: &mut Vec<Pair>) -> Model<'_, usize> {
    Model { shown: (0..len).map(|at| (at, start + at)).collect(), end: len, store }
}

fn boxed<const N: usize>(
    shape: [usize; N],
    store: &mut Vec<Pair>,
    place: impl Fn([usize; N]) -> usize,
) -> Model<'_, [usize; N]> {
    let shown = positions(&([0; N]..shape)).into_iter().map(|at| (at, place(at))).collect();
    Model { shown, end: shape, store }
}

fn pairs(random: &mut Numbers, len: usize) -> Vec<Pair> {
    (0..len).map(|_| pair(random)).collect()
}

fn array(random: &mut Numbers, store: &[Pair]) -> VirtualArray<Pair> {
    let shape = Shape::any(random, 20, 3);
    let array = shape.build(store.len());
    array.write(0, store).unwrap();
    array
}

/// A source with few or many slots, in imported or copied memory.
fn source(random: &mut Numbers, store: &[Pair]) -> Source<Pair> {
    let page_len = [7, 8, 64, 130][random.below(4)];
    let (devices, placement) = uneven_devices(random);
    let source = Source::builder(store.to_vec())
        .devices(devices)
        .placement(placement)
        .page_len(page_len)
        .device_bytes(((1 + random.below(40)) * page_len * 8) as u64)
        .eviction(POLICIES[random.below(3)]);
    let source = if random.below(2) == 0 { source.import(HostMemory::Pageable) } else { source };
    let source = source.build().unwrap();
    if random.below(2) == 0 {
        // Write in reverse order, so that adjacent pages are not in adjacent slots.
        for page in (0..source.len().div_ceil(page_len)).rev() {
            source.prefetch(page * page_len..(page * page_len + page_len).min(store.len())).unwrap();
        }
    }
    source
}

/// Runs on boxes of a whole array, in rows or tiles, and tests operations that only such arrays have.
fn nd<const N: usize>(random: &mut Numbers) -> (NdArray<Pair, N>, Vec<Pair>) {
    let array = random_array::<Pair, N>(random, [40, 12, 7, 5], 6);
    let (shape, mut store) = (array.shape(), vec![[0; 2]; array.elements().len()]);
    let place = |at| array.index_of(at).unwrap();
    run(&array, boxed(shape, &mut store, place), random);
    for _ in 0..3 {
        let of = random_box(random, shape);
        let places: Vec<usize> = positions(&of).into_iter().map(place).collect();
        let fresh = pairs(random, places.len());
        array.write_box(of, &fresh).unwrap();
        places.into_iter().zip(fresh).for_each(|(place, fresh)| store[place] = fresh);
    }
    assert_eq!(array.elements().to_vec(..).unwrap(), store);
    assert_padding_is_zero(&array);
    (array, store)
}

/// Extents of a box without one of its axes.
fn without(axis: usize, shape: [usize; 3]) -> [usize; 2] {
    std::array::from_fn(|a| shape[if a < axis { a } else { a + 1 }])
}

/// Position in the box of a position in one of its planes.
fn around(axis: usize, at: usize, place: [usize; 2]) -> [usize; 3] {
    std::array::from_fn(|a| match a.cmp(&axis) {
        std::cmp::Ordering::Less => place[a],
        std::cmp::Ordering::Equal => at,
        std::cmp::Ordering::Greater => place[a - 1],
    })
}

/// Fewer cases on devices, because most translate each kind of box and operation, which is slow.
fn cases(most: u32) -> u32 {
    if std::env::var_os("VMARRAY_TEST_DEVICES").is_some() {
        1 + most / 32
    } else {
        backend_api::wrap::random_cases(most)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(256)))]

    #[test]
    fn ranges_of_arrays_and_sources_are_as_vectors(seed in any::<u64>()) {
        let mut random = Numbers::new(seed);
        let len = random.below(400);
        let mut store = pairs(&mut random, len);
        let (array, source) = (array(&mut random, &store), source(&mut random, &store));
        let part = random.range(len);
        run(&array, linear(0, len, &mut store), &mut random);
        run(array.section_mut(part.clone()).unwrap(), linear(part.start, part.len(), &mut store), &mut random);
        prop_assert_eq!(&array.to_vec(..).unwrap(), &store);
        source.write(0, &store).unwrap();
        run(&source, linear(0, len, &mut store), &mut random);
        prop_assert_eq!(source.verify(..).unwrap(), None);
        run(source.section_mut(part.clone()).unwrap(), linear(part.start, part.len(), &mut store), &mut random);
        prop_assert_eq!(source.verify(..).unwrap(), None);
        prop_assert_eq!(&source.to_vec(..).unwrap(), &store);
        prop_assert_eq!(source.into_home().unwrap(), store);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100)))]

    #[test]
    fn boxes_of_arrays_and_sources_are_as_vectors(seed in any::<u64>()) {
        let mut random = Numbers::new(seed);
        nd::<1>(&mut random);
        nd::<2>(&mut random);
        nd::<4>(&mut random);
        let (nd, mut store) = nd::<3>(&mut random);
        let shape = nd.shape();
        let place = |at| nd.index_of(at).unwrap();
        let part = random_box(&mut random, shape);
        let inner = |at: [usize; 3]| place(std::array::from_fn(|axis| part.start[axis] + at[axis]));
        let extent = part.end.from(part.start);
        let section = nd.section_mut(part.clone()).unwrap();
        run(section, boxed(extent, &mut store, inner), &mut random);
        let axis = random.below(3);
        if extent[axis] > 0 {
            let at = random.below(extent[axis]);
            let (plane, place) = (section.project_mut::<2>(axis, at).unwrap(), |place| inner(around(axis, at, place)));
            run(plane, boxed(without(axis, extent), &mut store, place), &mut random);
            for row in 0..without(axis, extent)[0] {
                let line = plane.project_mut::<1>(0, row).unwrap();
                let of = (0..line.len()).map(|column| place([row, column]));
                prop_assert!(line.to_vec(..).unwrap().into_iter().eq(of.clone().map(|place| store[place])));
                line.fill(.., [3, 4]).unwrap();
                of.for_each(|place| store[place] = [3, 4]);
            }
        }
        prop_assert_eq!(nd.elements().to_vec(..).unwrap(), store);
        assert_padding_is_zero(&nd);

        let rows = |at: [usize; 3]| (at[0] * shape[1] + at[1]) * shape[2] + at[2];
        let mut store = pairs(&mut random, shape.iter().product());
        let (array, source) = (array(&mut random, &store), source(&mut random, &store));
        run(NdSection::over_mut(&array, shape).unwrap(), boxed(shape, &mut store, rows), &mut random);
        prop_assert_eq!(&array.to_vec(..).unwrap(), &store);
        source.write(0, &store).unwrap();
        let view = NdSection::over_mut(&source, shape).unwrap();
        run(view, boxed(shape, &mut store, rows), &mut random);
        if shape[axis] > 0 {
            let plane = view.project_mut::<2>(axis, 0).unwrap();
            let place = |place| rows(around(axis, 0, place));
            run(plane, boxed(without(axis, shape), &mut store, place), &mut random);
        }
        prop_assert_eq!(source.to_vec(..).unwrap(), store);
    }

    #[test]
    fn joined_rows_are_as_rows_of_vectors(seed in any::<u64>(), alike in any::<bool>()) {
        let mut random = Numbers::new(seed);
        let (len, shift) = (1 + random.below(300), random.below(50));
        let mut numbers = |count: usize| -> Vec<u32> { (0..count).map(|_| random.below(9) as u32).collect() };
        let (mut a, b, c, mut d) = (numbers(len), numbers(len + shift), numbers(len), numbers(len));
        let mut random = Numbers::new(seed ^ 1);
        let shape = Shape { page_len: 16, channels: vec![2], ..Shape::default() };
        let rig = devices(1);
        let build = |values: &[u32]| {
            let array = shape.describe::<u32, _>(values.len(), rig.clone()).build().unwrap();
            array.write(0, values).unwrap();
            array
        };
        let (first, second) = (build(&a), build(&b));
        let third = if alike { build(&c) } else { Shape { page_len: 13, ..Shape::default() }.build(len) };
        third.write(0, &c).unwrap();
        let fourth = Source::builder(d.clone()).devices(rig.clone()).page_len(24).device_bytes(400).build().unwrap();
        // This source is borrowed, read-only, and on other devices.
        let bytes: Vec<u8> = (0..len).map(|i| (i % 5) as u8).collect();
        let fifth = Source::builder(&bytes[..]).devices(devices(1)).build().unwrap();
        let b = if alike { &b[..len] } else { &b[shift..] };
        let second = second.section(if alike { 0..len } else { shift..shift + len }).unwrap();
        let whole = Field::<u32, u32>::whole;
        for _ in 0..4 {
            let of = random.range(len);
            macro_rules! check {
                ($joined:expr, |$x:ident, $y:ident, $z:ident| $expr:expr, $number:expr) => {{
                    let joined = $joined;
                    let ($x, $y, $z) = joined.rows();
                    let ($x, $y, $z) = ($x.get(whole()), $y.get(whole()), $z.get(whole()));
                    let product = $expr;
                    let rows: Vec<(usize, u32)> = of.clone().map(|i| (i, $number(i))).collect();
                    let sum: u32 = rows.iter().map(|(_, v)| *v).sum();
                    prop_assert_eq!(joined.sum(of.clone(), product.clone()).unwrap(), i128::from(sum));
                    let large: Vec<usize> = rows.iter().filter(|(_, v)| *v > 20).map(|(i, _)| *i).collect();
                    prop_assert_eq!(joined.count_where(of.clone(), product.clone().gt(20)).unwrap(), large.len());
                    let found = joined.find_where(of.clone(), product.clone().gt(20), 3).unwrap();
                    prop_assert_eq!(&found.indices[..], &large[..large.len().min(3)]);
                    prop_assert_eq!(found.total, large.len());
                    let first = joined.position_first(of.clone(), product.clone().gt(20)).unwrap();
                    prop_assert_eq!(first, large.first().copied());
                    let greatest = rows.iter().max_by_key(|(i, v)| (*v, std::cmp::Reverse(*i))).copied();
                    prop_assert_eq!(joined.arg_max(of.clone(), product.clone()).unwrap(), greatest);
                    let weighted = (product.cast::<u64>() * index()).only_where(index().ge(7));
                    let sum: u64 = rows.iter().filter(|(i, _)| *i >= 7).map(|(i, v)| u64::from(*v) * *i as u64).sum();
                    prop_assert_eq!(joined.sum(of.clone(), weighted).unwrap(), i128::from(sum));
                }};
            }
            check!(first.join((second, &third)).unwrap(), |x, y, z| x * y + z, |i: usize| a[i] * b[i] + c[i]);
            check!(third.join((&fourth, second)).unwrap(), |x, y, z| x * y + z, |i: usize| c[i] * d[i] + b[i]);
            check!(fourth.join((second, &first)).unwrap(), |x, y, z| x + y * z, |i: usize| d[i] + b[i] * a[i]);
            let joined = first.join((second, &third, &fourth, &third, second, &fourth, &third)).unwrap();
            let (x, y, z, ..) = joined.rows();
            let sum = y.get(whole()) + z.get(whole());
            joined.assign_where(of.clone(), x.get(whole()).gt(4), x.set(whole(), sum % 9)).unwrap();
            of.clone().filter(|i| a[*i] > 4).collect::<Vec<_>>().into_iter().for_each(|i| a[i] = (b[i] + c[i]) % 9);
            prop_assert_eq!(first.to_vec(..).unwrap(), a.clone());
            let joined = fourth.join((&fifth, &first, &fourth)).unwrap();
            let (x, y, z, again) = joined.rows();
            let sum = y.get(Field::whole()).cast::<u32>() + z.get(whole()) + again.get(whole());
            let holds = x.get(whole()).lt(4) | (index() % 3).eq(1);
            joined.assign_where(of.clone(), holds, x.set(whole(), sum % 9)).unwrap();
            for i in of.clone().filter(|i| d[*i] < 4 || i % 3 == 1).collect::<Vec<_>>() {
                d[i] = (u32::from(bytes[i]) + a[i] + d[i]) % 9;
            }
            prop_assert_eq!(fourth.verify(..).unwrap(), None);
            prop_assert_eq!(fourth.to_vec(..).unwrap(), d.clone());
            let joined = first.join((&fourth,)).unwrap();
            let (x, y) = joined.rows();
            joined.transform(of.clone(), x.set(whole(), (y.get(whole()) + x.get(whole())) % 9)).unwrap();
            of.for_each(|i| a[i] = (a[i] + d[i]) % 9);
        }
        prop_assert_eq!(first.to_vec(..).unwrap(), a);
    }
}

#[test]
fn rows_of_ragged_arrays_are_views() {
    let mut store = pairs(&mut Numbers::new(5), 5);
    let rows = RaggedArray::<Pair>::builder().from_rows([&store[..3], &[], &store[3..]]).unwrap();
    for (row, start, len) in [(0, 0, 3), (1, 3, 0), (2, 3, 2)] {
        run(rows.row(row).unwrap(), linear(start, len, &mut store), &mut Numbers::new(row as u64));
    }
    assert_eq!(rows.items().to_vec(..store.len()).unwrap(), store);
}

#[test]
fn views_refuse_mismatched_layouts() {
    let (array, source) = (VirtualArray::<u32>::new(12).unwrap(), Source::new(vec![0_u8; 11]).unwrap());
    let shape = ErrorKind::ShapeMismatch { shape: vec![3, 5], expected: 15, got: 12 };
    assert_eq!(*NdSection::over(&array, [3, 5]).unwrap_err().kind(), shape);
    let view = NdSection::over(&array, [3, 4]).unwrap();
    let position = ErrorKind::PositionOutside { axis: 1, index: 4, extent: 4 };
    assert_eq!(*view.project::<1>(1, 4).unwrap_err().kind(), position);
    assert_eq!(*view.project::<1>(2, 0).unwrap_err().kind(), ErrorKind::NoSuchAxis { axis: 2, axes: 2 });
    let length = ErrorKind::LengthMismatch { of: "the other view of the join", expected: 12, got: 11 };
    assert_eq!(*array.join((&source,)).unwrap_err().kind(), length);
    assert!(array.section(1..).unwrap().join((&source,)).is_ok());
    let listed = |result: Result<Vec<u8>>| result.unwrap_err().kind().clone();
    let outside = ErrorKind::ListedIndexOutside { position: 1, index: 11, len: 11 };
    assert_eq!(listed(source.gather(&[3, 11, 12])), outside);
    assert_eq!(*source.scatter(&[3, 11], &[1, 1]).unwrap_err().kind(), outside);
    assert_eq!(source.get(3).unwrap(), 0);
}
