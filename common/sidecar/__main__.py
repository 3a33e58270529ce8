"""``python -m parquetry.common.sidecar --fd N``: the reader process of a trainer."""

from __future__ import annotations

import gc

from ..base.process.lazy_names import without_collections

with without_collections():
    from .reader import main

    gc.freeze()

if __name__ == "__main__":
    main()
