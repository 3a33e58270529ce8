"""The list of faults put back: every patch fits the sources, names tests that exist, and stands in the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import check_cases
from faults_put_back import __main__ as faults_put_back

ROOT = Path(__file__).resolve().parents[1]


def test_every_patch_fits_the_sources() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a copy, perhaps with one of the faults")
    faults = faults_put_back.read_faults()
    check_cases(
        {fault.name: (fault, ROOT) for fault in faults}, lambda *each: faults_put_back.apply_patch(*each, check=True)
    )


def test_there_are_at_least_thirty_and_the_tests_that_notice_them_exist() -> None:
    faults = faults_put_back.read_faults()
    assert len(faults) >= 30
    for test in (test for fault in faults for test in fault.tests):
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_the_table_is_up_to_date() -> None:
    assert faults_put_back.table() in (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
