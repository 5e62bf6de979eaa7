//! All operations on views of all kinds, against a vector of what their store holds.

use std::fmt::Debug;
use std::ops::Range;

use proptest::prelude::*;
use vmarray::expr::index;
use vmarray::prelude::*;
use vmarray::{ErrorKind, NdLayout, NdSection, RaggedArray, Result};

use crate::common::{Numbers, Shape, devices};

/// What the elements of a view are called by.
trait Index: Copy + Debug + Ord {
    fn is_in(self, of: &Range<Self>) -> bool;
    fn from(self, start: Self) -> Self;
    fn below(random: &mut Numbers, end: Self) -> Self;
    fn range(random: &mut Numbers, end: Self) -> Range<Self>;
}

impl Index for usize {
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
        let (a, b) = (random.below(end + 1), random.below(end + 1));
        a.min(b)..a.max(b)
    }
}

impl<const N: usize> Index for [usize; N] {
    fn is_in(self, of: &Range<Self>) -> bool {
        (0..N).all(|axis| (of.start[axis]..of.end[axis]).contains(&self[axis]))
    }

    fn from(self, start: Self) -> Self {
        std::array::from_fn(|axis| self[axis] - start[axis])
    }

    fn below(random: &mut Numbers, end: Self) -> Self {
        end.map(|end| random.below(end))
    }

    fn range(random: &mut Numbers, end: Self) -> Range<Self> {
        let ranges = end.map(|end| <usize as Index>::range(random, end));
        ranges.clone().map(|range| range.start)..ranges.map(|range| range.end)
    }
}

/// What a view shows, and what its store holds.
struct Model<'m, I> {
    /// The places of the store, by index, in the order of the indices.
    shown: Vec<(I, usize)>,
    /// One past the last index.
    end: I,
    store: &'m mut Vec<u32>,
}

impl<I: Index> Model<'_, I> {
    fn inside(&self, of: &Range<I>) -> Vec<(I, u32)> {
        let inside = self.shown.iter().filter(|(at, _)| at.is_in(of));
        inside.map(|(at, place)| (*at, self.store[*place])).collect()
    }

    fn change(&mut self, of: &Range<I>, change: impl Fn(u32) -> u32) {
        for (_, place) in self.shown.iter().filter(|(at, _)| at.is_in(of)) {
            self.store[*place] = change(self.store[*place]);
        }
    }

    fn place(&self, at: I) -> usize {
        self.shown[self.shown.binary_search_by_key(&at, |(at, _)| *at).unwrap()].1
    }
}

fn value() -> Field<u32, u32> {
    Field::whole()
}

/// Asks a view all there is to ask about a region.
fn ask<'a, I: Index>(
    view: impl View<'a, Element = u32, Index = I>,
    model: &Model<'_, I>,
    of: &Range<I>,
    random: &mut Numbers,
) {
    let (inside, over) = (model.inside(of), || of.clone());
    assert_eq!(view.to_vec(over()).unwrap(), inside.iter().map(|(_, v)| *v).collect::<Vec<_>>());
    let least = random.below(10) as u32;
    let large: Vec<_> = inside.iter().filter(|(_, v)| *v >= least).copied().collect();
    let indices: Vec<I> = large.iter().map(|(at, _)| *at).collect();
    let condition = || value().ge(least);
    assert_eq!(view.count_where(over(), condition()).unwrap(), large.len());
    for limit in [0, 1, 1 + random.below(large.len() + 2), usize::MAX] {
        let found = view.find_where(over(), condition(), limit).unwrap();
        assert_eq!((&found.indices[..], found.total), (&indices[..limit.min(large.len())], large.len()));
    }
    assert_eq!(view.position_first(over(), condition()).unwrap(), indices.first().copied());
    assert_eq!(view.any(over(), condition()).unwrap(), !large.is_empty());
    assert_eq!(view.all(over(), condition()).unwrap(), large.len() == inside.len());
    let selected = view.select_where(over(), condition()).unwrap();
    assert_eq!(selected.collect::<Result<Vec<_>>>().unwrap(), large);

    let equal: Vec<I> = inside.iter().filter(|(_, v)| *v == least).map(|(at, _)| *at).collect();
    assert_eq!(view.count(over(), value(), &least).unwrap(), equal.len());
    assert_eq!(view.position(over(), value(), &least).unwrap(), equal.first().copied());
    for limit in [0, 1, usize::MAX] {
        let found = view.find_first(over(), value(), &least, limit).unwrap();
        assert_eq!((&found.indices[..], found.total), (&equal[..limit.min(equal.len())], equal.len()));
    }

    let odd = || value().only_where((value() % 2).eq(1));
    let of_odd: Vec<u32> = inside.iter().map(|(_, v)| *v).filter(|v| v % 2 == 1).collect();
    assert_eq!(view.sum(over(), odd()).unwrap(), of_odd.iter().map(|v| i128::from(*v)).sum::<i128>());
    let (min, max) = (of_odd.iter().min().copied(), of_odd.iter().max().copied());
    assert_eq!(view.min_max(over(), odd()).unwrap(), min.zip(max));
    assert_eq!((view.min(over(), odd()).unwrap(), view.max(over(), odd()).unwrap()), (min, max));
    for (found, known) in
        [(view.arg_min(over(), odd()).unwrap(), min), (view.arg_max(over(), odd()).unwrap(), max)]
    {
        assert_eq!(found.map(|(_, value)| value), known);
        assert!(found.is_none_or(|(at, v)| inside.contains(&(at, v))));
    }
    let counts = (0..9).map(|bin| inside.iter().filter(|(_, v)| *v == bin).count() as u64);
    assert_eq!(view.histogram(over(), value(), 9).unwrap(), counts.collect::<Vec<_>>());
}

/// Reads and changes a view in all ways.
fn run<'a, I: Index, V: ViewMut<'a, Element = u32, Index = I>>(
    view: V,
    mut model: Model<'_, I>,
    random: &mut Numbers,
) {
    assert_eq!((view.len(), view.is_empty()), (model.shown.len(), model.shown.is_empty()));
    for _ in 0..3 {
        let of = I::range(random, model.end);
        ask(view, &model, &of, random);
        view.transform(of.clone(), value().set((value() + 5) % 9)).unwrap();
        model.change(&of, |v| (v + 5) % 9);
        view.assign_where(of.clone(), value().eq(4), value().set(0)).unwrap();
        model.change(&of, |v| if v == 4 { 0 } else { v });
        if model.shown.is_empty() {
            continue;
        }
        let list: Vec<I> = (0..random.below(30)).map(|_| I::below(random, model.end)).collect();
        let known: Vec<u32> = list.iter().map(|at| model.store[model.place(*at)]).collect();
        assert_eq!(view.gather(&list).unwrap(), known);
        assert_eq!(view.gather_iter(list.iter().copied()).collect::<Result<Vec<_>>>().unwrap(), known);
        let values: Vec<u32> = list.iter().map(|_| random.below(9) as u32).collect();
        view.scatter(&list, &values).unwrap();
        for (at, value) in list.iter().zip(values) {
            let place = model.place(*at);
            model.store[place] = value;
        }
        let at = I::below(random, model.end);
        let place = model.place(at);
        assert_eq!(view.get(at).unwrap(), model.store[place]);
        assert_eq!(view.replace(at, 7).unwrap(), model.store[place]);
        assert_eq!(view.update(at, |v| v + 1).unwrap(), 7);
        assert_eq!(view.compare_exchange(at, 8, 3).unwrap(), Ok(8));
        assert_eq!(view.compare_exchange(at, 8, 1).unwrap(), Err(3));
        view.set(at, 2).unwrap();
        let other = I::below(random, model.end);
        model.store[place] = 2;
        view.swap(at, other).unwrap();
        let (a, b) = (place, model.place(other));
        model.store.swap(a, b);
        let of = I::range(random, model.end);
        match random.below(4) {
            0 => view.flush(of.clone()).unwrap(),
            1 => view.evict(of.clone()).unwrap(),
            2 => view.prefetch(of.clone()).unwrap(),
            _ => view.fill(of.clone(), 6).map(|()| model.change(&of, |_| 6)).unwrap(),
        }
        let part = view.section_mut(of.clone()).unwrap();
        let shown = model.shown.iter().filter(|(at, _)| at.is_in(&of));
        let shown = shown.map(|(at, place)| (at.from(of.start), *place)).collect();
        let mut inner = Model { shown, end: of.end.from(of.start), store: model.store };
        let some = I::range(random, inner.end);
        ask(part, &inner, &some, random);
        part.fill(some.clone(), 1).unwrap();
        inner.change(&some, |_| 1);
    }
}

/// The positions of a shape, in order.
fn positions<const N: usize>(shape: [usize; N]) -> Vec<[usize; N]> {
    let mut all = vec![[0; N]];
    for (axis, &extent) in shape.iter().enumerate() {
        let along = |at: [usize; N]| {
            (0..extent).map(move |i| std::array::from_fn(|a| if a == axis { i } else { at[a] }))
        };
        all = all.into_iter().flat_map(along).collect();
    }
    all
}

fn linear(start: usize, len: usize, store: &mut Vec<u32>) -> Model<'_, usize> {
    Model { shown: (0..len).map(|at| (at, start + at)).collect(), end: len, store }
}

fn boxed<const N: usize>(
    shape: [usize; N],
    store: &mut Vec<u32>,
    place: impl Fn([usize; N]) -> usize,
) -> Model<'_, [usize; N]> {
    Model { shown: positions(shape).into_iter().map(|at| (at, place(at))).collect(), end: shape, store }
}

fn array(random: &mut Numbers, len: usize, store: &[u32]) -> VirtualArray<u32> {
    let shape = Shape {
        page_len: 1 + random.below(20),
        channels: vec![1 + random.below(3) as u32],
        frames: 1 + random.below(3),
        ..Shape::default()
    };
    let array = shape.build(len);
    array.write(0, store).unwrap();
    array
}

fn source(random: &mut Numbers, store: &[u32]) -> Source<u32> {
    let source = Source::builder(store.to_vec()).devices(devices(1 + random.below(2)));
    source.page_len(64 << random.below(3)).build().unwrap()
}

proptest! {
    #[test]
    fn ranges_of_arrays_and_sources_are_as_vectors(seed in any::<u64>()) {
        let mut random = Numbers::new(seed);
        let len = random.below(400);
        let mut store: Vec<u32> = (0..len).map(|_| random.below(9) as u32).collect();
        let (array, source) = (array(&mut random, len, &store), source(&mut random, &store));
        let part = <usize as Index>::range(&mut random, len);
        run(&array, linear(0, len, &mut store), &mut random);
        run(array.section_mut(part.clone()).unwrap(), linear(part.start, part.len(), &mut store), &mut random);
        prop_assert_eq!(&array.to_vec(..).unwrap(), &store);
        source.write(0, &store).unwrap();
        run(&source, linear(0, len, &mut store), &mut random);
        run(source.section_mut(part.clone()).unwrap(), linear(part.start, part.len(), &mut store), &mut random);
        prop_assert_eq!(source.to_vec(..).unwrap(), store);
    }

    #[test]
    fn boxes_of_arrays_and_sources_are_as_vectors(seed in any::<u64>()) {
        let mut random = Numbers::new(seed);
        let shape: [usize; 3] = std::array::from_fn(|_| 1 + random.below(9));
        let part = <[usize; 3] as Index>::range(&mut random, shape);
        let tile = std::array::from_fn(|_| 1 + random.below(5));
        let layout = if random.below(2) == 0 { NdLayout::RowMajor } else { NdLayout::Tiled(tile) };
        let nd = NdArray::<u32, 3>::builder(shape).layout(layout).devices(devices(1)).build().unwrap();
        let mut store = vec![0; nd.elements().len()];
        let place = |at| nd.index_of(at).unwrap();
        run(&nd, boxed(shape, &mut store, place), &mut random);
        let inner = |at: [usize; 3]| place(std::array::from_fn(|axis| part.start[axis] + at[axis]));
        let extent = part.end.from(part.start);
        run(nd.section_mut(part.clone()).unwrap(), boxed(extent, &mut store, inner), &mut random);
        let (axis, at) = (random.below(3), random.below(*shape.iter().min().unwrap()));
        let around = |place: [usize; 2]| -> [usize; 3] {
            std::array::from_fn(|a| match a.cmp(&axis) {
                std::cmp::Ordering::Less => place[a],
                std::cmp::Ordering::Equal => at,
                std::cmp::Ordering::Greater => place[a - 1],
            })
        };
        let plane = std::array::from_fn(|a| shape[if a < axis { a } else { a + 1 }]);
        run(nd.project_mut::<2>(axis, at).unwrap(), boxed(plane, &mut store, |p| place(around(p))), &mut random);
        prop_assert_eq!(nd.elements().to_vec(..).unwrap(), store);

        let rows = |at: [usize; 3]| (at[0] * shape[1] + at[1]) * shape[2] + at[2];
        let mut store: Vec<u32> = (0..shape.iter().product()).map(|_| random.below(9) as u32).collect();
        let (array, source) = (array(&mut random, store.len(), &store), source(&mut random, &store));
        run(NdSection::over_mut(&array, shape).unwrap(), boxed(shape, &mut store, rows), &mut random);
        prop_assert_eq!(&array.to_vec(..).unwrap(), &store);
        source.write(0, &store).unwrap();
        let view = NdSection::over_mut(&source, shape).unwrap();
        run(view, boxed(shape, &mut store, rows), &mut random);
        run(view.project_mut::<2>(axis, at).unwrap(), boxed(plane, &mut store, |p| rows(around(p))), &mut random);
        prop_assert_eq!(source.to_vec(..).unwrap(), store);
    }

    #[test]
    fn joined_rows_are_as_rows_of_vectors(seed in any::<u64>(), alike in any::<bool>()) {
        let mut random = Numbers::new(seed);
        let (len, shift) = (1 + random.below(300), random.below(50));
        let mut numbers = |count: usize| -> Vec<u32> { (0..count).map(|_| random.below(9) as u32).collect() };
        let (mut a, b, c, d) = (numbers(len), numbers(len + shift), numbers(len), numbers(len));
        let mut random = Numbers::new(seed ^ 1);
        let shape = Shape { page_len: 16, channels: vec![2], ..Shape::default() };
        let rig = devices(1);
        let build = |values: &[u32]| {
            let array = shape.describe::<u32, _>(values.len(), rig.clone()).build().unwrap();
            array.write(0, values).unwrap();
            array
        };
        let (first, second, third) = (build(&a), build(&b), build(&c));
        let fourth = Source::builder(d.clone()).devices(rig.clone()).build().unwrap();
        let b = if alike { &b[..len] } else { &b[shift..] };
        let second = second.section(if alike { 0..len } else { shift..shift + len }).unwrap();
        for _ in 0..4 {
            let of = <usize as Index>::range(&mut random, len);
            macro_rules! check {
                ($joined:expr, |$x:ident, $y:ident, $z:ident| $expr:expr, $number:expr) => {{
                    let joined = $joined;
                    let ($x, $y, $z) = joined.rows();
                    let ($x, $y, $z) = ($x.get(Field::whole()), $y.get(Field::whole()), $z.get(Field::whole()));
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
            let sum = y.get(Field::whole()) + z.get(Field::whole());
            joined.assign_where(of.clone(), x.get(Field::whole()).gt(4), x.set(Field::whole(), sum % 9)).unwrap();
            of.clone().filter(|i| a[*i] > 4).collect::<Vec<_>>().into_iter().for_each(|i| a[i] = (b[i] + c[i]) % 9);
            prop_assert_eq!(first.to_vec(..).unwrap(), a.clone());
        }
    }
}

#[test]
fn rows_of_ragged_arrays_are_views() {
    let rows = RaggedArray::<u32>::builder().from_rows([vec![1, 2, 3], vec![], vec![4, 5]]).unwrap();
    let mut store = vec![1, 2, 3, 4, 5];
    for (row, start, len) in [(0, 0, 3), (1, 3, 0), (2, 3, 2)] {
        run(rows.row(row).unwrap(), linear(start, len, &mut store), &mut Numbers::new(row as u64));
    }
    assert_eq!(rows.items().to_vec(..store.len()).unwrap(), store);
}

#[test]
fn views_refuse_what_does_not_fit() {
    let (array, source) = (VirtualArray::<u32>::new(12).unwrap(), Source::new(vec![0_u8; 11]).unwrap());
    let shape = ErrorKind::ShapeMismatch { shape: vec![3, 5], expected: 15, got: 12 };
    assert_eq!(*NdSection::over(&array, [3, 5]).unwrap_err().kind(), shape);
    let length = ErrorKind::LengthMismatch { of: "what is joined", expected: 12, got: 11 };
    assert_eq!(*array.join((&source,)).unwrap_err().kind(), length);
    assert!(array.section(1..).unwrap().join((&source,)).is_ok());
    let listed = |result: Result<Vec<u8>>| result.unwrap_err().kind().clone();
    let outside = ErrorKind::ListedIndexOutside { position: 1, index: 11, len: 11 };
    assert_eq!(listed(source.gather(&[3, 11, 12])), outside);
    assert_eq!(*source.scatter(&[3, 11], &[1, 1]).unwrap_err().kind(), outside);
    assert_eq!(source.get(3).unwrap(), 0);
}
