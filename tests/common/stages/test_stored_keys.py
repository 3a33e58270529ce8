"""The keys under which stages are stored: pipelines, states, graphs and selections of earlier versions have them."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.stages.base import kinds, stage_from_json

KEYS = {
    "as_tuple": ["form"],
    "batch": ["batch_size", "drop_remainder"],
    "bucket": [
        "batch_size",
        "batch_sizes",
        "boundaries",
        "buckets",
        "field",
        "max_tokens",
        "pad_to",
        "pad_value",
        "padded",
    ],
    "bucketize": ["boundaries", "patterns"],
    "cache": ["directory", "max_bytes"],
    "cast": ["dtype", "patterns"],
    "center_crop": ["patterns", "size"],
    "clip": ["high", "low", "patterns"],
    "concat": ["fields", "length", "pad_value", "positions", "remainder", "separator"],
    "decimals": ["form", "patterns"],
    "encode": ["field", "null", "unknown", "vocabulary"],
    "hash_encode": ["hash_buckets", "patterns", "seed"],
    "nested": ["patterns"],
    "ngram": [
        "edges",
        "field_offsets",
        "group_by",
        "last",
        "length",
        "max_gap",
        "offsets",
        "overlap",
        "single",
        "span_row_groups",
        "stride",
        "timestamp",
    ],
    "normalize": ["dtype", "mean", "patterns", "scale", "std"],
    "nulls": ["elements", "patterns", "policy", "value"],
    "pack": ["dtype", "keep", "name", "patterns"],
    "pack_rows": ["fields", "length", "overlong", "pad_value", "strategy"],
    "pad": ["lengths", "patterns", "shape", "value"],
    "permute": ["dims", "patterns"],
    "random_crop": ["drawn", "patterns", "seed", "size"],
    "random_flip": ["axis", "drawn", "patterns", "probability", "seed"],
    "random_resized_crop": ["antialias", "drawn", "interpolation", "patterns", "ratio", "scale", "seed", "size"],
    "rename": ["names"],
    "repeat": ["count"],
    "resize": ["antialias", "interpolation", "patterns", "size"],
    "select": ["declared", "patterns"],
    "shard": ["canonical_shards", "even", "index", "num_shards", "recut", "resumed_streams"],
    "shard_row_groups": ["canonical_shards", "even", "index", "num_shards", "recut", "resumed_streams"],
    "shuffle": ["buffer_size", "drawn", "reshuffle_each_iteration", "seed"],
    "skip": ["count"],
    "standardize": ["dtype", "mean", "patterns", "std"],
    "take": ["count"],
    "tokenize": ["dtype", "field", "function", "nulls", "to"],
    "transform": ["adds", "batched", "drawn", "drops", "function", "lengths", "output", "remove", "rng", "seed"],
    "weigh": ["drawn", "num_items", "seed", "weights"],
    "where": ["serialised", "text"],
    "where_column": ["predicate"],
    "where_function": ["batched", "fields", "function"],
}


def test_every_kind_of_stage_is_here() -> None:
    assert sorted(KEYS) == sorted(kinds())


@pytest.mark.parametrize("verb", KEYS)
def test_a_stage_keeps_its_keys(verb: str) -> None:
    """A key that is added must have a default in `from_parameters`. Then add it here; never rename one."""
    assert sorted(kinds()[verb].sample().to_json()) == sorted([*KEYS[verb], "verb"])


def test_weights_keep_their_keys() -> None:
    column, expression = (
        Pipeline("x").weigh(weights, seed=1).to_json()["stages"][0]["weights"]
        for weights in ("price", pc.field("price") * 2)
    )
    assert column == {"measure": "FieldWeights", "field": "price"}
    assert sorted(expression) == ["measure", "serialised"]
    assert expression["measure"] == "ExpressionWeights"


@pytest.mark.parametrize(("changed", "problem"), [({"new": 3}, "'new'"), ({"batch_size": None}, "batch_size")])
def test_parameters_of_another_release_are_named(changed: dict[str, int | None], problem: str) -> None:
    stored = {"verb": "batch", "batch_size": 4, "drop_remainder": False, **changed}
    stored = {name: value for name, value in stored.items() if value is not None}
    with pytest.raises(PipelineError, match=rf"stored pipeline: expected batch with .*{problem}.*Update parquetry"):
        stage_from_json(stored)
