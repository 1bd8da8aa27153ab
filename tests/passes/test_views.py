"""Views of tensors beside NumPy's."""

from __future__ import annotations

import math

import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike.model.views import View

small = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def seen(view: View, array: np.ndarray) -> np.ndarray:
    flat = array.reshape(-1)
    places = [flat[view.at(*map(int, at))] for at in np.ndindex(view.shape)]
    return np.array(places).reshape(view.shape)


@given(small, st.data())
@examples(60)
def test_a_chain_of_moves(shape: list[int], data: st.DataObject) -> None:
    array = np.arange(math.prod(shape))
    view, wanted = View.of(shape), array.reshape(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        rank = wanted.ndim
        move = data.draw(st.sampled_from(["permute", "slice", "merge", "split", "repeat"]))
        axis = data.draw(st.integers(0, rank - 1))
        size = wanted.shape[axis]
        if move == "permute":
            order = data.draw(st.permutations(range(rank)))
            found, wanted = view.permuted(order), wanted.transpose(order)
        elif move == "slice":
            begin, step = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, 2))
            part = wanted[(slice(None),) * axis + (slice(begin, None, step),)]
            found, wanted = view.sliced(axis, begin, part.shape[axis], step), part
        elif move == "repeat":
            found, wanted = view.repeated(axis, 2), wanted.repeat(2, axis)
        else:
            flat = (wanted.size,) if move == "merge" else (*wanted.shape[:-1], 1, wanted.shape[-1])
            found, wanted = view.reshaped(flat), wanted.reshape(flat)
        if found is None:
            return
        view = found
        assert view.shape == wanted.shape
    np.testing.assert_array_equal(seen(view, array), wanted)


def test_what_cannot_be_cut_is_refused() -> None:
    turned = View.of((2, 3)).permuted((1, 0))
    assert turned.reshaped((2, 3)) is None
    assert turned.reshaped((6,)).axes == (((3, 1), (2, 3)),)
    assert turned.reshaped((6,)).sliced(0, 1, 2) is None


def test_axes_are_joined_where_strides_fit() -> None:
    assert View.of((2, 3, 4)).reshaped((6, 4)) == View.of((6, 4))
    assert View.of((4, 6)).reshaped((4, 2, 3)).permuted((0, 2, 1)).stride(1) == 1
    assert View.of((5,)).broadcast((3, 5)).stride(0) == 0
