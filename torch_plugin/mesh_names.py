"""Tells from the name of a device mesh's dimension whether its ranks read different rows or the same.

The parts of the name decide: ``dp_shard_cp`` is data parallel (``dp``, ``shard``) and context parallel (``cp``). The
words are those of PyTorch, torchtitan (``torchtitan/distributed/parallel_dims.py``), Megatron and DeepSpeed.
"""

from __future__ import annotations

import re
from enum import Enum

_DATA = frozenset({"dp", "ddp", "data", "fsdp", "hsdp", "replicate", "shard", "batch"})
_MODEL = frozenset(
    {"tp", "tensor", "cp", "context", "sp", "seq", "sequence", "pp", "pipe", "pipeline", "stage", "mp", "model", "etp"}
)
_EXPERT = frozenset({"ep", "expert", "experts", "moe", "edp", "efsdp"})
_FLATTENED = frozenset({"loss"})  # torchtitan's: the data-parallel dimensions together with cp


class Meaning(Enum):
    """What ranks that differ only in one dimension of a mesh read.

    Attributes:
        DATA: different rows.
        MODEL: the same rows, because each holds a part of one model.
        BOTH: dimensions of both kinds were flattened into this one.
        EXPERT: expert parallel: usually different rows, but that depends on the model.
        UNKNOWN: the name does not say.
    """

    DATA = "data"
    MODEL = "model"
    BOTH = "both"
    EXPERT = "expert"
    UNKNOWN = "unknown"


def role_of(name: str) -> Meaning:
    """Returns the role of a dimension, judging by the parts of its name.

    >>> role_of("dp_replicate"), role_of("tensor_parallel"), role_of("dp_shard_cp"), role_of("ep")
    (<Meaning.DATA: 'data'>, <Meaning.MODEL: 'model'>, <Meaning.BOTH: 'both'>, <Meaning.EXPERT: 'expert'>)
    """
    parts = words_of(name)
    if parts & _EXPERT:
        parts -= {"model"}  # Megatron's expert_model_parallel
        if "tensor" in parts and not parts & _DATA:
            return Meaning.MODEL  # expert_tensor_parallel: an expert is split
    if parts & _FLATTENED or (parts & _MODEL and parts & (_DATA | _EXPERT)):
        return Meaning.BOTH
    if parts & _MODEL:
        return Meaning.MODEL
    if parts & _EXPERT:
        return Meaning.EXPERT
    return Meaning.DATA if parts & _DATA else Meaning.UNKNOWN


def words_of(name: str) -> set[str]:
    """Returns the words in a name, without numbers: ``dp_shard2`` and ``dpShard`` have ``dp`` and ``shard``."""
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
