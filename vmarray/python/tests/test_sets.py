"""Index sets compared with loops, and ragged arrays compared with lists of arrays."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm

tuples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


def loops(one, other, on):
    """The natural join by nested loops, of tuples of two."""
    pairs = itertools.product(one, other)
    return [(*first, second[1]) for first, second in pairs if first[on] == second[0]]


@given(tuples, tuples, st.integers(0, 1), st.integers(1, 5))
def test_joins_match_nested_loops(one, other, on, piece):
    labels = [5, 2]
    ours, others = vm.IndexSet.from_rows(labels, one), vm.IndexSet.from_rows([labels[on], 9], other)
    expected = loops(one, other, on)
    joined = ours.combine(others)
    assert joined.dimensions == (5, 2, 9) and [*joined] == expected and len(joined) == len(expected)
    pieces = list(ours.combine_pieces(others, piece))
    assert [row for part in pieces for row in part] == expected and all(0 < len(part) <= piece for part in pieces)
    assert ours.combine_count(others) == len(expected)
    dimensions, array = ours.combine_to_array(others, devices="host")
    assert dimensions == (5, 2, 9) and np.asarray(array).tolist() == [list(row) for row in expected]
    pairs = ours.product(others.relabel([0, 1]))
    assert [*pairs] == [(*first, *second) for first, second in itertools.product(one, other)]


@given(tuples, st.permutations([0, 1]), st.integers(1, 5))
def test_sets_are_lists_of_tuples(rows, order, piece):
    ours = vm.IndexSet.from_rows([7, 4], rows)
    assert [*ours] == rows and len(ours) == len(rows) and ours == vm.IndexSet(ours.to_columns())
    assert np.concatenate([np.zeros((0, 2)), *ours.pieces(piece)]).tolist() == [list(row) for row in rows]
    assert [*ours.project([[7, 4][at] for at in order])] == [tuple(row[at] for at in order) for row in rows]
    assert ours.column(4).tolist() == [row[1] for row in rows]
    assert [*ours.sorted()] == sorted(rows) and [*ours.unique()] == sorted(set(rows))
    keys, counts = ours.group([4])
    assert dict(zip((key for (key,) in keys), counts)) == collections.Counter(row[1] for row in rows)
    assert [*keys] == sorted(set(keys)) and ours.relabel([1, 0]).dimensions == (1, 0)
    assert (ours == ours.sorted()) == (rows == sorted(rows))


def test_sets_in_files_and_wrong_ones(tmp_path):
    ours = vm.IndexSet({3: np.arange(1000), 1: np.arange(1000) ** 2})
    ours.save(tmp_path / "set")
    assert vm.IndexSet.load(tmp_path / "set") == ours and ours != 3
    assert ours.rows(-2).tolist() == [[998, 998**2], [999, 999**2]] and ours.rows(5, 2).shape == (0, 2)
    left = ours.combine_pieces(ours, 10)
    assert len(next(left)) == 10
    del left
    for wrong, error in [
        (lambda: vm.IndexSet({0: [-1]}), ValueError),
        (lambda: vm.IndexSet({0: [1.5]}), TypeError),
        (lambda: vm.IndexSet({0: [1], 1: [1, 2]}), vm.InvalidError),
        (lambda: vm.IndexSet.from_rows([0, 0], [[1, 2]]), vm.InvalidError),
        (lambda: vm.IndexSet.from_rows([0], [[1, 2]]), ValueError),
        (lambda: ours.project([8]), vm.InvalidError),
        (lambda: ours.relabel([8]), vm.InvalidError),
        (lambda: ours.combine(ours.relabel([8, 9])), vm.InvalidError),
        (lambda: next(ours.combine_pieces(ours.relabel([8, 9]))), vm.InvalidError),
        (lambda: ours.product(ours), vm.InvalidError),
        (lambda: ours.pieces(0), ValueError),
        (lambda: vm.IndexSet.load(tmp_path / "none"), FileNotFoundError),
        (lambda: vm.IndexSet({-1: [0]}), OverflowError),
        (lambda: hash(ours), TypeError),
    ]:
        with pytest.raises(error):
            wrong()


@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=6), max_size=9),
    st.lists(st.lists(st.integers(-9, 9), max_size=6), max_size=3),
    st.slices(9),
    st.data(),
)
def test_ragged_arrays_are_lists_of_arrays(rows, more, part, data):
    ours = vm.Ragged(rows, "i4", devices="host")
    ours.extend(more)
    rows = rows + more
    assert [row.tolist() for row in ours] == rows and len(ours) == len(rows) and ours.dtype == "i4"
    assert ours.lengths().tolist() == [len(row) for row in rows]
    assert np.asarray(ours.values).tolist() == sum(rows, [])
    assert [row.tolist() for row in ours[part]] == rows[part]
    if rows:
        some = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=5))
        assert [row.tolist() for row in ours[some]] == [rows[at] for at in some]
        at = data.draw(st.integers(-len(rows), len(rows) - 1))
        assert ours[at].tolist() == rows[at]
        ours[at] = 7
        rows[at] = [7] * len(rows[at])
        assert [row.tolist() for row in ours] == rows
        own = [number for number, row in enumerate(rows) for _ in row]
        assert ours.row_of(np.arange(len(own))).tolist() == own
    same = vm.Ragged.from_lengths(ours.values, ours.lengths(), devices="host")
    assert [row.tolist() for row in same] == rows


def test_ragged_arrays_in_files_and_wrong_ones(tmp_path):
    path = tmp_path / "rows"
    with vm.Ragged.create(path, "f4") as rows:
        rows.extend(np.full(n, n / 2) for n in range(100))
    rows = vm.Ragged.open(path, "f4")
    assert len(rows) == 100 and rows[99].sum() == 99 * 49.5
    rows.append([1, 2])
    # Append items of a row that was not finished, as after a crash.
    rows.values.append([8, 8, 8])
    rows.append([3, 4, 5, 6])
    rows.sync()
    rows.close()
    with vm.Ragged.open(path, "f4", mode="r") as rows:
        assert [row.tolist() for row in rows[-2:]] == [[1, 2], [3, 4, 5, 6]]
        assert len(rows.values) == 4950 + 6
        for wrong, error in [
            (lambda: rows[102], IndexError),
            (lambda: rows[[102]], IndexError),
            (lambda: rows[[1.5]], IndexError),
            (lambda: rows.row_of(len(rows.values)), IndexError),
            (lambda: rows[1:3].append([1]), vm.InvalidError),
            (lambda: rows.append([[1]]), ValueError),
            (lambda: vm.Ragged([[1], [1.5]]), TypeError),
            (lambda: vm.Ragged.from_lengths([1, 2], [1]), ValueError),
            (lambda: vm.Ragged.from_lengths([1], [-1, 2]), ValueError),
            (lambda: vm.Ragged.create(path), FileExistsError),
        ]:
            with pytest.raises(error):
                wrong()
