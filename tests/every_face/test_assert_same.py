"""`assert_same` compares tensors of both frameworks by value."""

from __future__ import annotations

import pytest
from faces import import_framework

from parquetry.common.apps.testing import assert_same


def test_tensors_of_both_frameworks_compare_by_value() -> None:
    torch = import_framework("torch")
    assert_same({"t": torch.arange(3)}, {"t": torch.arange(3)})
    with pytest.raises(AssertionError, match=r"expected \[0, 1, 2\], got \[1, 2, 3\]"):
        assert_same(torch.arange(3) + 1, torch.arange(3))
    nested = [torch.nested.nested_tensor([torch.ones(n), torch.ones(2)], layout=torch.jagged) for n in (1, 1, 3)]
    assert_same(nested[0], nested[1])
    with pytest.raises(AssertionError, match=r"\[0\]: expected shape \(1,\), got \(3,\)"):
        assert_same(nested[2], nested[0])


def test_ragged_tensors_of_tensorflow_compare_by_value() -> None:
    tf = import_framework("tensorflow")
    assert_same(tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(AssertionError, match=r"\[1\]"):
        assert_same(tf.ragged.constant([[1], [2]]), tf.ragged.constant([[1], [2, 3]]))
    assert_same(tf.constant(["a"]), tf.constant(["a"]))
