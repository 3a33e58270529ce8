"""Token lists joined into items are the same in every face and in loader workers, also from a state."""

from __future__ import annotations

import importlib.util

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faces import Face, MapFace, NodeFace, TorchFace, import_framework, installed_faces, plain_element

from parquetry.common import Pipeline

OTHERS = [TorchFace(kind="ParquetPipe"), TorchFace(2), NodeFace(), MapFace()]
FACES = [*installed_faces(), *(OTHERS if importlib.util.find_spec("torch") is not None else [])]


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    path = tmp_path_factory.mktemp("tokens") / "t.parquet"
    random = np.random.default_rng(0)
    rows = [random.integers(0, 100, size).tolist() for size in random.integers(0, 20, 60)]
    texts = [" ".join(map(str, row)) for row in rows]
    table = pa.table({"tokens": pa.array(rows, pa.list_(pa.int32())), "text": texts})
    pq.write_table(table, path, row_group_size=9)
    base = Pipeline(path, workers=1).shuffle(16, seed=1)
    return {
        "concat": base.concat(32, "tokens", separator=-1, positions=True, remainder="pad"),
        "pack_rows": base.pack_rows(32, "tokens"),
        "tokenize": base.select("text").tokenize(_numbers_in, "text").pack_rows(32, "tokens"),
    }


def _numbers_in(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def test_made_tokens_are_packed_as_stored_ones(joined: dict[str, Pipeline]) -> None:
    made, stored = ([row["tokens"].tolist() for row in joined[verb]] for verb in ("tokenize", "pack_rows"))
    assert made == stored


@pytest.mark.parametrize("verb", ["concat", "pack_rows", "tokenize"])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_every_face_gives_the_same_items_and_continues_from_a_state(
    joined: dict[str, Pipeline], verb: str, face: Face
) -> None:
    batched = joined[verb].batch(3)
    expected = [{name: values.tolist() for name, values in row.items()} for row in joined[verb].at_epoch(0)]
    assert list(expected[0]) == ["tokens", "segment_ids", "position_ids"]
    assert [row for batch in face.elements(batched) for row in batch] == expected
    if hasattr(face, "resumed") and getattr(face, "workers", None) is None:
        rest = [plain_element(batched.element, batch) for batch in face.resumed(batched, 2)]
        assert [row for batch in rest for row in batch] == expected[6:]


def test_tensors_of_items_have_a_fixed_shape(joined: dict[str, Pipeline]) -> None:
    tf = import_framework("tensorflow")
    from parquetry.tf_plugin import ParquetDataset

    for pipeline in joined.values():
        dataset = ParquetDataset.from_pipeline(pipeline.batch(4, drop_remainder=True))
        names = ("tokens", "segment_ids", "position_ids")
        assert dataset.element_spec == {name: tf.TensorSpec((4, 32), tf.int32) for name in names}
        assert len(dataset) == len(list(dataset))


def test_pipes_are_still_put_end_to_end(joined: dict[str, Pipeline]) -> None:
    import_framework("torch")
    from parquetry.torch_plugin import ParquetPipe

    pipe = ParquetPipe(joined["concat"].urls).concat(32, "tokens")
    assert len(list(pipe.take(2).concat(pipe.take(1), pipe.take(3)))) == 6
