"""The catalogue and the contenders' modules agree, without any peer being installed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.catalog import CONTENDERS, ENVIRONMENTS, LIMIT, ROOT
from benchmarks.profiles import PROFILES
from benchmarks.workloads import ROW_GROUP_ROWS, WORKLOADS, Case

MODULES = ROOT / "benchmarks" / "contenders"


def settings(module: str) -> set[str]:
    """The variants that a module's ``SETTINGS`` knows."""
    for node in ast.parse((MODULES / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SETTINGS":
            return set(ast.literal_eval(node.value))
    return set()


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_contender_has_its_module_variant_and_workloads(name: str) -> None:
    contender = CONTENDERS[name]
    assert contender.variant in settings(contender.module)
    assert set(contender.workloads) <= set(WORKLOADS)
    assert contender.environment in ENVIRONMENTS


def test_every_environment_of_peers_has_its_requirements_and_its_target() -> None:
    peers = [name for name in ENVIRONMENTS if name.startswith(".venv-bench")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in peers:
        requirements = f"benchmarks/peers/{name.removeprefix('.venv-bench').lstrip('-') or 'bench'}.txt"
        assert (ROOT / requirements).exists()
        assert f"{name}/.installed: {requirements}" in makefile
    assert f"BENCH_PEERS := {' '.join(peers)}\n" in makefile


def test_every_workload_has_a_limit_and_every_profile_its_data() -> None:
    measured = {key for key, workload in WORKLOADS.items() if workload.kind == "rate"}
    assert measured <= set(CONTENDERS[LIMIT].workloads)
    for profile in PROFILES.values():
        assert {workload.data for workload in WORKLOADS.values()} <= set(profile.rows)


def test_every_buffer_holds_whole_row_groups() -> None:
    shuffled = [each for each in WORKLOADS.values() if each.buffer_rows and each.data in ROW_GROUP_ROWS]
    assert [each.key for each in shuffled if each.buffer_rows % ROW_GROUP_ROWS[each.data]] == []


def test_a_case_travels_as_text() -> None:
    case = Case(workload=WORKLOADS["g"], variant="x", data=Path("d"), scratch=Path("s"), rows=300, workers=2, url="u")
    assert Case.from_json(case.to_json()) == case
    assert case.delivered == 3
