"""What users without pyspark see."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parquetry.common import Unischema, UnischemaField
from parquetry.common.base.errors import CodecUnavailableError
from parquetry.common.compat import spark

SCHEMA = Unischema("s", [UnischemaField("id", np.int64)])


@pytest.mark.parametrize(
    "call",
    [
        lambda: SCHEMA.as_spark_schema(),
        lambda: spark.dict_to_spark_row(SCHEMA, {"id": 1}),
        lambda: spark.encode_dataframe(None, SCHEMA),
        lambda: spark.write_dataframe(None, "u", SCHEMA),
        lambda: spark.spark_converter(None),
        lambda: spark.dataset_as_rdd("u", None),
        lambda: spark.materialize_dataset(None, "u", SCHEMA).__enter__(),
    ],
)
def test_the_error_names_the_extra(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CodecUnavailableError, match=r"needs pyspark, .*pip install 'parquetry\[spark\]'"):
        call()


def test_every_name_of_the_package_is_there() -> None:
    assert [name for name in spark.__all__ if not callable(getattr(spark, name))] == []
    assert spark.__all__ == sorted(spark.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        spark.no_such_name  # noqa: B018
