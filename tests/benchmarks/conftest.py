"""Lets the tests of the benchmark import it: it is not part of the installed package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
