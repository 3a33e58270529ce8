"""Many cases of one check in one test, because a test of its own for each costs more than most checks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def check_cases(cases: Mapping[str, Any] | Iterable[Any], check: Callable[..., object]) -> None:
    """Calls ``check`` with every case, a tuple as several arguments, and then names all cases that failed.

    Cases without names get their number and their ``repr``. If none failed but some were skipped, so is the test.
    """
    named = [*cases.items()] if isinstance(cases, Mapping) else [(_name(*each), each[1]) for each in enumerate(cases)]
    assert named, "expected at least one case"
    failed: dict[str, BaseException] = {}
    skipped: dict[str, BaseException] = {}
    for name, case in named:
        try:
            check(*case) if isinstance(case, tuple) else check(case)
        except pytest.skip.Exception as error:
            skipped[name] = error
        except (Exception, pytest.fail.Exception) as error:
            if "pytest-timeout" in str(error):
                raise
            failed[name] = error
    if failed:
        message = f"{len(failed)} of {len(named)} cases failed:{_shown(failed)}"
        raise AssertionError(message) from next(iter(failed.values()))
    if skipped:
        pytest.skip(f"{len(skipped)} of {len(named)} cases were skipped:{_shown(skipped)}")


def every_case(
    names: str | Sequence[str], cases: Iterable[Any], ids: Callable[[Any], object] | None = None
) -> Callable[[Test], Test]:
    """Is used like ``pytest.mark.parametrize``, but one test gets all cases.

    Each case gets its own ``tmp_path`` and ``monkeypatch``; all share the other fixtures.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    named: dict[str, tuple[Any, ...]] = {}
    for number, case in enumerate(cases):
        name = ids and not isinstance(case, tuple) and ids(case)
        values = case if len(names) > 1 else (case,)
        if isinstance(case, type(pytest.param())):
            assert not case.marks, "a case with marks needs a test of its own"
            values, name = case.values, case.id
        assert len(values) == len(names), f"expected {names}, got {values}"
        named[f"{number}: {name}" if name else _name(number, tuple(values))] = tuple(values)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            def check(*values: Any) -> None:
                given = {**fixtures, **dict(zip(names, values, strict=True))}
                if "tmp_path" in given:
                    given["tmp_path"] /= str(len([*given["tmp_path"].iterdir()]))
                    given["tmp_path"].mkdir()
                with pytest.MonkeyPatch.context() as patches:
                    if "monkeypatch" in given:
                        given["monkeypatch"] = patches
                    test(**given)

            check_cases(named, check)

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in names]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # for pytest's fixtures
        return run

    return decorate


def _name(number: int, case: Any) -> str:
    shown = [getattr(value, "__name__", repr(value)) for value in (case if isinstance(case, tuple) else (case,))]
    return f"{number}: " + ", ".join(text if len(text) < 100 else f"{text[:97]}..." for text in shown)


def _shown(errors: Mapping[str, BaseException]) -> str:
    texts = (f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
    return "".join("\n- " + text.replace("\n", "\n  ") for text in texts)
