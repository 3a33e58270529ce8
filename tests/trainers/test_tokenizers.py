"""Tokenizers of Hugging Face and tiktoken, with small vocabularies of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "é", "你好", "<|endoftext|>", "[PAD]"]
TEXTS = [" ".join(WORDS[(n * k) % len(WORDS)] for k in range(n % 23)) for n in range(60)]


def of_tokenizers() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=["[UNK]", "[CLS]", "[PAD]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    return tokenizer


def of_transformers() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=of_tokenizers(), pad_token="[PAD]")


def of_tiktoken() -> tiktoken.Encoding:
    ranks = {**{bytes([value]): value for value in range(256)}, b"th": 256, b"the": 257, b"qu": 258}
    special = {"<|endoftext|>": 259}
    return tiktoken.Encoding("small", pat_str=r"\w+|\s+|[^\w\s]", mergeable_ranks=ranks, special_tokens=special)


CASES = [
    (of_tokenizers, lambda tokenizer, text: tokenizer.encode(text).ids),
    (of_transformers, lambda tokenizer, text: tokenizer(text)["input_ids"]),
    (of_tiktoken, lambda tokenizer, text: tokenizer.encode_ordinary(text)),
]


@pytest.mark.parametrize(("make", "encode"), CASES, ids=["tokenizers", "transformers", "tiktoken"])
@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_texts_become_the_ids_that_the_library_gives_and_are_packed(
    tmp_path: Path, make: Any, encode: Any, executor: Any
) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "texts.parquet", row_group_size=16)
    tokenizer = make()
    expected = [encode(tokenizer, text) for text in TEXTS]
    rows = Pipeline(tmp_path, executor=executor, workers=2).tokenize(tokenizer, "text")
    assert [row["tokens"].tolist() for row in rows] == expected
    joined = [token for item in rows.concat(16, "tokens", separator=-1) for token in item["tokens"].tolist()]
    assert joined == [token for ids in expected for token in (*ids, -1)][: len(joined)]
    packed = rows.shuffle(20, seed=1).pack_rows(64, "tokens")
    assert len(packed) == len(list(packed)) == len(Pipeline.from_json(packed.to_json()))


@pytest.mark.parametrize(("make", "encode"), CASES, ids=["tokenizers", "transformers", "tiktoken"])
def test_what_identifies_a_tokenizer_is_its_content(make: Any, encode: Any) -> None:
    def identity(tokenizer: Any) -> str:
        return Pipeline("nowhere").tokenize(tokenizer, "text").stages[0].identity

    one, other = make(), make()
    encode(other, TEXTS[5])
    assert identity(one) == identity(other)
    assert len({identity(make()) for make, _ in CASES}) == len(CASES)


def test_a_tokenizer_that_pads_is_refused() -> None:
    tokenizer = of_tokenizers()
    tokenizer.enable_padding()
    with pytest.raises(PipelineError, match=r"expected a tokenizer that adds no padding, .*no_padding\(\)"):
        Pipeline("nowhere").tokenize(tokenizer, "text")
