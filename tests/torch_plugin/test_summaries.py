"""`log_stats`: writes numbers and the verdict to a writer, from any holder of the dataset."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from parquetry import watch
from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetPipe, log_stats


class Writer:
    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}
        self.texts: list[tuple[str, int | None]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.scalars[tag] = scalar_value

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self.texts.append((tag, global_step))


def test_a_loader_is_logged_and_watched(url: str) -> None:
    loader, writer = DataLoader(ParquetPipe(url, ["id"]).batch(7), batch_size=None), Writer()
    assert len(list(watch(loader))) == 9
    log_stats(writer, loader, 100)
    assert writer.scalars["parquetry/rows"] == 60
    assert writer.texts == [("parquetry/verdict", 100)]
    with pytest.raises(PipelineError, match="log_stats: expected a parquetry dataset"):
        log_stats(writer, [1])
