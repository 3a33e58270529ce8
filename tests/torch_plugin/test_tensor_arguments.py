"""Tensors of one number as arguments: they become plain Python values."""

from __future__ import annotations

import torch

from parquetry.common import Pipeline


def test_a_tensor_of_one_number_makes_the_same_pipeline() -> None:
    def chain(four: object) -> Pipeline:
        pipeline = Pipeline("x", workers=four, memory_limit=four)  # type: ignore[arg-type]
        pipeline = (
            pipeline.shuffle(four, four).shard(5, four, "none", four).take(four).pad("a", shape=[four], value=four)
        )  # type: ignore[arg-type,list-item]
        return pipeline.resize("a", (four, four)).random_crop("a", four, seed=four).batch(four)  # type: ignore[arg-type]

    made, plain = chain(torch.tensor(4)), chain(4)
    assert made == plain
    assert hash(made) == hash(plain)
    assert made.to_json() == plain.to_json()
