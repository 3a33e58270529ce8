"""Reports on a dataset, a chain of verbs, or this machine. The functions return values and print nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .benching import Bench, bench
    from .chain import apply_chain
    from .inspecting import DatasetReport, inspect
    from .kept_files import caches, warm
    from .linting import Finding, lint
    from .machine import MachineReport, doctor
    from .page import html_report
    from .pictures import Sheet, contact_sheet
    from .rows import Preview, preview
    from .simulating import Simulation, describe, described_by, simulate
    from .states import show_state
    from .statistics import Statistics, stats
    from .values import to_json
    from .verifying import Verification, verify

__all__ = [
    "Bench",
    "DatasetReport",
    "Finding",
    "MachineReport",
    "Preview",
    "Sheet",
    "Simulation",
    "Statistics",
    "Verification",
    "apply_chain",
    "bench",
    "caches",
    "contact_sheet",
    "describe",
    "described_by",
    "doctor",
    "html_report",
    "inspect",
    "lint",
    "preview",
    "show_state",
    "simulate",
    "stats",
    "to_json",
    "verify",
    "warm",
]

_HOMES = {
    "Bench": "benching",
    "DatasetReport": "inspecting",
    "Finding": "linting",
    "MachineReport": "machine",
    "Preview": "rows",
    "Sheet": "pictures",
    "Simulation": "simulating",
    "Statistics": "statistics",
    "Verification": "verifying",
    "apply_chain": "chain",
    "bench": "benching",
    "caches": "kept_files",
    "contact_sheet": "pictures",
    "describe": "simulating",
    "described_by": "simulating",
    "doctor": "machine",
    "html_report": "page",
    "inspect": "inspecting",
    "lint": "linting",
    "preview": "rows",
    "show_state": "states",
    "simulate": "simulating",
    "stats": "statistics",
    "to_json": "values",
    "verify": "verifying",
    "warm": "kept_files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
