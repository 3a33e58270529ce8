"""`migrate_code`: changes Python programs from Petastorm to ``parquetry.petastorm``.

It changes what it is sure of: imports, reader arguments that do nothing, and names that numpy 2
removed. What else names Petastorm is listed, with the reason. Comments and formatting stay as they are.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ...base.errors import CodecUnavailableError, DatasetError, missing_package
from ...base.process.dataclass import dataclass

try:
    import libcst as cst
    from libcst.helpers import get_full_name_for_node
    from libcst.metadata import MetadataWrapper, PositionProvider
except ImportError as error:
    raise CodecUnavailableError(f"migrate-code: {missing_package(error, 'libcst', 'migrate')}") from error

_HOME = "parquetry.petastorm"
_READERS = ("make_reader", "make_batch_reader")
_PLAIN_VALUES = (cst.Name, cst.Attribute, cst.SimpleString, cst.Integer, cst.Float)  # leaving these out loses no call
_REMOVED_BY_NUMPY = {"unicode_": "str_", "string_": "bytes_"}
_FRAMEWORKS = ("petastorm.pytorch", "petastorm.tf_utils")  # which may not be installed here, so their names are taken


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """What changes in a file.

    Attributes:
        path: the file.
        before, after: its text.
        left: ``(line, text)`` for what was left, and why, by line.
    """

    path: str
    before: str
    after: str
    left: tuple[tuple[int, str], ...]

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty if nothing changes."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, fromfile=self.path, tofile=self.path))


def migrate_code(paths: Sequence[str | os.PathLike[str]], dry_run: bool = False) -> list[CodeChange]:
    """Changes Python files from Petastorm to ``parquetry.petastorm``, in place.

    All files are read before one is written, so an error changes nothing.

        >>> [change] = migrate_code(["train.py"], dry_run=True)  # doctest: +SKIP
        >>> print(change.diff)  # doctest: +SKIP

    Args:
        paths: Python files, or directories, whose ``.py`` files are taken, except hidden and installed ones.
        dry_run: whether to write nothing.

    Returns:
        A `CodeChange` for each file that names Petastorm.

    Raises:
        CodecUnavailableError: libcst is not installed.
        DatasetError: a file does not exist, is a notebook, is not UTF-8, or is not Python.
    """
    changes = [change for path in _files(paths) if (change := _change_of(path)) is not None]
    for change in changes:
        if change.after != change.before and not dry_run:
            Path(change.path).write_text(change.after, encoding="utf-8", newline="")
    return changes


def _files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*.py") if not _is_installed(file.relative_to(path)))
        elif path.suffix == ".ipynb":
            raise DatasetError(
                f"migrate-code: expected a Python file or a directory, got the notebook '{path}'. Export it as a "
                "program first (jupyter nbconvert --to script)."
            )
        elif path.is_file():
            yield path
        else:
            raise DatasetError(f"migrate-code: expected a Python file or a directory, got '{path}'. There is none.")


def _is_installed(file: Path) -> bool:
    """Whether a file below a directory belongs to an environment, or is hidden."""
    return any(part == "site-packages" or part.startswith(".") for part in file.parts)


def _change_of(path: Path) -> CodeChange | None:
    try:
        before = path.read_bytes().decode()
    except ValueError as error:
        raise DatasetError(f"migrate-code, file '{path}': expected UTF-8 ({error}). Save it as UTF-8.") from error
    if "petastorm" not in before:
        return None
    mark = "\ufeff" if before.startswith("\ufeff") else ""  # which libcst drops
    try:
        module = cst.parse_module(before)
    except cst.ParserSyntaxError as error:
        raise DatasetError(
            f"migrate-code, file '{path}', line {error.raw_line}: expected Python 3 ({error.message}). Leave it out, "
            "or mend it."
        ) from error
    rewriter = _Rewriter()
    after = mark + MetadataWrapper(module, unsafe_skip_copy=True).visit(rewriter).code
    return CodeChange(path=os.fspath(path), before=before, after=after, left=tuple(sorted(rewriter.left)))


def _home_of(module: str) -> str | None:
    """Returns the new name of a module of Petastorm, or ``None`` if there is none."""
    name = module.replace("petastorm", _HOME, 1)
    try:
        return name if find_spec(name) is not None else None
    except ModuleNotFoundError:
        return None


def _is_petastorm(name: str | None) -> bool:
    return name is not None and name.partition(".")[0] == "petastorm"


def _of_numpy(alias: cst.ImportAlias) -> cst.ImportAlias:
    """Imports a name that numpy 2 removed by its other name; the name that it binds stays."""
    name = alias.evaluated_name
    if name not in _REMOVED_BY_NUMPY:
        return alias
    return alias.with_changes(name=cst.Name(_REMOVED_BY_NUMPY[name]), asname=alias.asname or _bound_as(name))


def _bound_as(name: str) -> cst.AsName:
    return cst.AsName(whitespace_before_as=cst.SimpleWhitespace(" "), name=cst.Name(name))


class _Rewriter(cst.CSTTransformer):
    """Changes a module, and lists in ``left`` what it leaves."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[int, str]] = []
        self._unused: frozenset[str] = frozenset(import_module(f"{_HOME}.reader").UNUSED_ARGUMENTS)
        self._readers: set[str] = set()
        self._packages: set[str] = set()
        self._numpy: set[str] = set()

    def _leave(self, node: cst.CSTNode, text: str) -> None:
        self.left.append((self.get_metadata(PositionProvider, node).start.line, text))

    def _new_name(self, node: cst.CSTNode, module: str) -> str | None:
        home = _home_of(module)
        if home is None:
            self._leave(node, f"{module}: an internal module of Petastorm, which parquetry does not have")
        return home

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom:
        """Changes ``from petastorm.x import y``, and names that numpy 2 removed."""
        name = None if original_node.module is None else get_full_name_for_node(original_node.module)
        if name == "numpy" and not isinstance(updated_node.names, cst.ImportStar):
            return updated_node.with_changes(names=[_of_numpy(alias) for alias in updated_node.names])
        if name is None or original_node.relative or not _is_petastorm(name):
            return updated_node
        home = self._new_name(original_node, name)
        if home is None:
            return updated_node
        if not isinstance(original_node.names, cst.ImportStar):
            module = None if name in _FRAMEWORKS else import_module(home)
            for alias in original_node.names:
                attribute = alias.evaluated_name
                if module is not None and not hasattr(module, attribute) and _home_of(f"{name}.{attribute}") is None:
                    self._leave(original_node, f"{name}.{attribute}: parquetry has no such name")
                if attribute in _READERS:
                    self._readers.add(alias.evaluated_alias or attribute)
        return updated_node.with_changes(module=cst.parse_expression(home))

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        """Changes ``import petastorm.x``; the name that it binds stays."""
        return updated_node.with_changes(names=[self._alias(original_node, alias) for alias in updated_node.names])

    def _alias(self, node: cst.Import, alias: cst.ImportAlias) -> cst.ImportAlias:
        name, bound = alias.evaluated_name, alias.evaluated_alias
        if name == "numpy":
            self._numpy.add(bound or name)
        home = self._new_name(node, name) if _is_petastorm(name) else None
        if home is None:
            return alias
        self._packages.add(bound or "petastorm")
        if bound is None:  # the package imports its modules when they are used, so ``petastorm.pytorch`` works, too
            return alias.with_changes(name=cst.parse_expression(_HOME), asname=_bound_as("petastorm"))
        return alias.with_changes(name=cst.parse_expression(home))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        """Changes names that numpy 2 removed."""
        name = _REMOVED_BY_NUMPY.get(original_node.attr.value)
        if name is None or get_full_name_for_node(original_node.value) not in self._numpy:
            return updated_node
        return updated_node.with_changes(attr=cst.Name(name))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Leaves out arguments of readers that do nothing."""
        owner, _, function = (get_full_name_for_node(original_node.func) or "").rpartition(".")
        is_reader = owner in self._packages and function in _READERS if owner else function in self._readers
        arguments = updated_node.args
        kept = [argument for argument in arguments if not (is_reader and self._does_nothing(argument))]
        if not kept or len(kept) == len(arguments):
            return updated_node
        if kept[-1] is not arguments[-1]:  # the list ends as it did
            end = arguments[-1]
            kept[-1] = kept[-1].with_changes(comma=end.comma, whitespace_after_arg=end.whitespace_after_arg)
        return updated_node.with_changes(args=kept)

    def _does_nothing(self, argument: cst.Arg) -> bool:
        name = argument.keyword
        return name is not None and name.value in self._unused and isinstance(argument.value, _PLAIN_VALUES)

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        """Lists text that may name a module of Petastorm."""
        value = original_node.evaluated_value
        if isinstance(value, str) and _is_petastorm(value) and _home_of(value.rpartition(".")[0] or value) is not None:
            self._leave(original_node, f"{original_node.value}: if this text names a module, change it by hand")
        return updated_node
