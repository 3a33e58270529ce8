"""`Options`: how a pipeline is read. No option changes the order; only ``on_error`` can leave rows out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from ..base.errors import PipelineError
from ..base.other_names import did_you_mean
from ..base.platform.processes import usable_processors
from ..base.process.dataclass import dataclass
from ..parquet.checksums import VERIFY, Verify
from ..schema.plain import integer, plain

if TYPE_CHECKING:
    from typing import Self

EXECUTORS = ("threads", "sidecar")
DEFAULT_MEMORY_BYTES = 1 << 30
"""The default of `Options.memory_limit`."""
RESTARTS = 3
"""The default of `Options.restarts`."""
_INTEGERS = {"workers": 1, "memory_limit": 1, "restarts": 0, "max_value_bytes": 1}
"""The integer options, with the minimum of each."""
ON_ERROR = ("raise", "skip")
_CHOICES = {"executor": EXECUTORS, "verify": VERIFY, "on_error": ON_ERROR}
_LONGEST_S = 1_000_000


class OptionArguments(TypedDict, total=False):
    """The options as keyword arguments. ``None`` means the default."""

    workers: int | None
    memory_limit: int | None
    executor: str | None
    verify: Verify | None
    restarts: int | None
    max_value_bytes: int | None
    on_error: str | None
    max_errors: int | float | None
    stall_timeout: float | None


@dataclass(frozen=True, slots=True)
class Options:
    """How a pipeline is read.

    Attributes:
        workers: the number of threads or processes that decode; ``None`` = one per processor that this process may use.
        memory_limit: the bytes of fetched data in flight; ``None`` = 1 GiB. Larger row groups and blocks are read in
            slices, into temporary files.
        executor: ``"threads"`` (this process) or ``"sidecar"`` (separate processes); ``None`` = the sidecar for
            pipelines with user functions, threads otherwise.
        verify: which page checksums to verify: ``"written"``, those that exist; ``"always"``, all, and a page without
            a checksum is an error; ``"never"``, none. ``None`` = ``"written"``.
        restarts: how many times in a row, without yielding an element in between, a sidecar that died is restarted. The
            iteration then continues with the next element. ``None`` = 3. With 0, a sidecar's death ends the iteration.
        max_value_bytes: the size limit of one value: an array, image, text, byte string or list. Arrays and images of
            variable shape may use 16 times this per field and batch; for other limits, see ``docs/damaged-files.md``.
            ``None`` = 1 GiB.
        on_error: what to do with rows that cannot be decoded, contain a null that the consumer cannot represent, or
            make a function fail. ``"raise"`` raises an error in their place. ``"skip"`` leaves them out and counts
            them; see ``docs/bad-rows.md``. ``None`` = ``"raise"``.
        max_errors: with ``"skip"``, how many rows of an epoch may fail: an integer, or a float from 0.0 to 1.0 as a
            fraction of its rows. One more failure ends the epoch with an error. ``None`` = any number. Each rank and
            each worker of a ``DataLoader`` counts its own rows.
        stall_timeout: seconds without progress after which a sidecar process that blocks others is killed and replaced.
            Choose more than any single wait in your functions; computing, and many short waits in a row, count as
            progress. ``None`` = never; a warning is logged after 30 s. Threads cannot be replaced, so with them, even
            in loader workers, you only get the warning. With ``address=``: the time after which a server that has sent
            nothing is asked whether it is alive. If it does not answer, the iteration ends with an error.
    """

    workers: int | None = None
    memory_limit: int | None = None
    executor: str | None = None
    verify: Verify | None = None
    restarts: int | None = None
    stall_timeout: float | None = None
    max_value_bytes: int | None = None
    on_error: str | None = None
    max_errors: int | float | None = None

    def __post_init__(self) -> None:
        if self.max_errors is not None and not self.skips:
            raise PipelineError(
                f"Pipeline: expected max_errors together with on_error='skip', got max_errors={self.max_errors!r} and "
                f"on_error={self.on_error!r}. Without 'skip', the first row that fails raises an error."
            )

    @property
    def skips(self) -> bool:
        """Whether failing rows are left out."""
        return self.on_error == "skip"

    @property
    def memory_bytes(self) -> int:
        """The memory limit, which is the default if none was given."""
        return self.memory_limit or DEFAULT_MEMORY_BYTES

    @property
    def parallelism(self) -> int:
        """The number of threads or processes that decode."""
        return self.workers or usable_processors()

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Returns options from keyword arguments. Checks them, and converts numpy numbers to Python numbers.

        Raises:
            PipelineError: a value is out of range.
            TypeError: an argument is not an option.
        """
        unknown = [name for name in arguments if name not in _NAMES]
        if unknown:
            hint = did_you_mean(unknown[0], {*_NAMES, *_ARGUMENTS})
            takes = hint or f" The options are {', '.join(_NAMES)}."
            raise TypeError(f"Pipeline() got an unexpected keyword argument {unknown[0]!r}.{takes}")
        values = {name: value for name, value in arguments.items() if value is not None}
        for name, least in _INTEGERS.items():
            if name in values and integer(values[name], least=least) is None:
                raise PipelineError(
                    f"Pipeline: expected {name} to be an integer >= {least} or None, got {values[name]!r}."
                )
        seconds = plain(values.get("stall_timeout", 1))
        if type(seconds) not in (int, float) or not 0.1 <= seconds <= _LONGEST_S:
            raise PipelineError(
                f"Pipeline: expected stall_timeout to be 0.1 to {_LONGEST_S} seconds or None, got {seconds!r}."
            )
        for name, choices in _CHOICES.items():
            choice = plain(values.get(name, choices[0]))
            if not isinstance(choice, str) or choice not in choices:
                raise PipelineError(f"Pipeline: expected {name} to be one of {choices} or None, got {choice!r}.")
        most = plain(values.get("max_errors", 0))
        if integer(most, least=0) is None and not (isinstance(most, float) and 0 <= most <= 1):
            raise PipelineError(
                "Pipeline: expected max_errors to be an integer >= 0, a share from 0.0 to 1.0, or None, got "
                f"{values['max_errors']!r}."
            )
        return cls(**{name: plain(value) for name, value in values.items()})

    def given(self) -> dict[str, Any]:
        """Returns the options that are not ``None``, as keyword arguments."""
        return {name: value for name in _NAMES if (value := getattr(self, name)) is not None}

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Returns a copy with other values. ``None`` restores the default.

        Raises:
            PipelineError: a name is not an option, or a value is out of range.
        """
        unknown = sorted(changes.keys() - set(_NAMES))
        if unknown:
            near = did_you_mean(unknown[0], _NAMES)
            raise PipelineError(f"with_options: expected {sorted(_NAMES)}, got {unknown}.{near}")
        checked = type(self).of({**self.given(), **changes})
        return replace(self, **{name: getattr(checked, name) for name in changes})


_NAMES = tuple(field.name for field in fields(Options))
_ARGUMENTS = ("fields", "filesystem", "storage_options")
"""The other keywords of everything that takes options."""
