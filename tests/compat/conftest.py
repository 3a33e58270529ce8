"""Programs written for Petastorm, unchanged: ``import petastorm`` imports the distribution in ``compat/petastorm-shim``."""

from __future__ import annotations

import sys
from pathlib import Path

SHIM = Path(__file__).parents[2] / "compat" / "petastorm-shim"
sys.path.insert(0, str(SHIM))
