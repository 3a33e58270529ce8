"""One module per library, each with the same two names.

``SETTINGS`` describes the settings of each variant. ``batches(case)`` yields the row count of each batch after building
and touching it (see `benchmarks.touch`). Modules import their library at the top, so a peer that is not installed
raises ``ImportError`` and gets an empty cell. Optionally, ``prepare(folder, target)`` writes the peer's own format
before any measurement, and ``steps(case)`` and ``resume_steps(case)`` serve the workloads that time single steps.
"""

import sys

from ..catalog import ROOT

sys.path.append(str(ROOT / "compat" / "petastorm-shim"))  # in environments without Petastorm itself
