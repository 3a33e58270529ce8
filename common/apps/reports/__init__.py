"""Reports on a dataset, a chain of verbs, or this machine. The functions return values and print nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.process.lazy_names import lazy_names

if TYPE_CHECKING:
    from ...pipeline.statistics import Statistics
    from .benching import Bench, bench
    from .chain import apply_chain
    from .inspecting import DatasetReport, inspect
    from .kept_files import caches, warm
    from .linting import Finding, lint
    from .machine import MachineReport, doctor
    from .page import html_report
    from .pictures import Sheet, contact_sheet
    from .rows import Preview, preview
    from .statistics import stats
    from .values import to_json
    from .verifying import Verification, verify

__all__ = [
    "Bench",
    "DatasetReport",
    "Finding",
    "MachineReport",
    "Preview",
    "Sheet",
    "Statistics",
    "Verification",
    "apply_chain",
    "bench",
    "caches",
    "contact_sheet",
    "doctor",
    "html_report",
    "inspect",
    "lint",
    "preview",
    "stats",
    "to_json",
    "verify",
    "warm",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".benching": ("Bench", "bench"),
        ".chain": ("apply_chain",),
        ".inspecting": ("DatasetReport", "inspect"),
        ".kept_files": ("caches", "warm"),
        ".linting": ("Finding", "lint"),
        ".machine": ("MachineReport", "doctor"),
        ".page": ("html_report",),
        ".pictures": ("Sheet", "contact_sheet"),
        ".rows": ("Preview", "preview"),
        ".statistics": ("Statistics", "stats"),
        ".values": ("to_json",),
        ".verifying": ("Verification", "verify"),
    },
)
