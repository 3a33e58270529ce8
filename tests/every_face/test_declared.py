"""Fields given without a codec are converted to their own dtype and shape in every face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table
from faces import installed_faces

from parquetry.common import Pipeline, UnischemaField


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_values_have_the_dtype_and_shape_of_the_given_field(tmp_path: Path, face: Any) -> None:
    table = pa.table({"id": [0, 1, 2], "pair": [[1, 2], [3, 4], [5, 6]], "raw": [bytes([n] * 4) for n in range(3)]})
    fields = [
        UnischemaField("id", np.float32),
        UnischemaField("pair", np.int16, (2,)),
        UnischemaField("raw", np.uint8, (2, 2)),
    ]
    pipeline = Pipeline(write_table(tmp_path, table), fields=fields).batch(3)
    assert [(output.dtype, output.shape) for output in pipeline.element.outputs] == [
        (np.float32, ()),
        (np.int16, (2,)),
        (np.uint8, (2, 2)),
    ]
    (rows,) = face.elements(pipeline)
    assert rows == [{"id": float(n), "pair": [2 * n + 1, 2 * n + 2], "raw": [[n, n], [n, n]]} for n in range(3)]
