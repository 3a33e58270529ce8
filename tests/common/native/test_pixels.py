"""Normalized pixels: the compiled core and numpy give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.engine.steps import image_kernels
from parquetry.common.native.kernels import normalize


@examples(200)
@given(st.data())
def test_the_core_and_numpy_give_the_same_bits(data: st.DataObject) -> None:
    draw = data.draw
    height, width, channels = draw(st.integers(1, 20)), draw(st.integers(1, 70)), draw(st.sampled_from([1, 2, 3, 4]))
    noise = np.random.default_rng(draw(st.integers(0, 99)))
    wide = noise.integers(0, 256, (height, width + 3, channels), np.uint8)
    image = wide[:, 1 : width + 1] if draw(st.booleans()) else np.ascontiguousarray(wide[:, :width])
    if draw(st.booleans()):
        image = image[::-1]
    multiply, subtract = (noise.normal(0, draw(st.sampled_from([0.01, 1, 1e30])), channels) for _ in range(2))
    factors = multiply.astype(np.float32), subtract.astype(np.float32)
    first = draw(st.booleans())
    shape = (channels, height, width) if first else (height, width, channels)
    found, expected = np.full(shape, 7, np.float32), np.zeros(shape, np.float32)
    out, wanted = (each.transpose(1, 2, 0) if first else each for each in (found, expected))
    assert normalize(image, out, *factors)
    for channel in range(channels):
        wanted[..., channel] = np.float32(image[..., channel]) * factors[0][channel] - factors[1][channel]
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    found[...] = 7
    image_kernels.normalize_into(image, out, *factors)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("image", "out"),
    [
        (np.zeros((4, 5, 3), np.uint16), np.zeros((4, 5, 3), np.float32)),
        (np.zeros((4, 5, 3), np.uint8), np.zeros((4, 5, 3), np.float16)),
        (np.zeros((4, 10, 3), np.uint8)[:, ::2], np.zeros((4, 5, 3), np.float32)),
        (np.zeros((3, 4, 5), np.uint8).transpose(1, 2, 0), np.zeros((4, 5, 3), np.float32)),
        (np.zeros((4, 5, 3), np.uint8), np.zeros((5, 4, 3), np.float32)),
    ],
)
def test_other_layouts_are_left_to_numpy(image: np.ndarray, out: np.ndarray) -> None:
    ones = np.ones(3, np.float32)
    assert not normalize(image, out, ones, ones)
    assert not out.any()
