"""Writes and reads with an installed distribution and its base requirements alone: ``try_base.py DISTRIBUTION [VERSION]``.

`make check-dist` runs it for each file in ``dist/``, in an environment without variables, and without a compiler on the path.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from importlib.util import find_spec

import numpy as np

import parquetry
from parquetry import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.__main__ import main
from parquetry.common.base.native.library import is_compiled

distribution = sys.argv[1]
assert "site-packages" in parquetry.__file__, f"expected the installed package, got {parquetry.__file__}"
assert parquetry.__version__ == (sys.argv[2:] or [parquetry.__version__])[0], parquetry.__version__
assert not [name for name in ("fsspec", "pandas", "rich", "tenacity", "typer") if find_spec(name)]
schema = Unischema(
    "tiles",
    [UnischemaField("id", np.int64), UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("png"))],
)
with tempfile.TemporaryDirectory() as url:
    write_dataset(url, schema, ({"id": n, "image": np.full((8, 8, 3), n, np.uint8)} for n in range(100)))
    batches = list(Pipeline(url).where([("id", "<", 90)]).shuffle(30, seed=1).batch(8))
assert all((batch["image"][:, 0, 0, 0] == batch["id"]).all() for batch in batches)
assert sorted(number for batch in batches for number in batch["id"].tolist()) == list(range(90))
with contextlib.redirect_stderr(io.StringIO()) as shown, contextlib.suppress(SystemExit):
    main()
assert "pip install 'parquetry[cli]'" in shown.getvalue(), shown.getvalue()
if "manylinux" in distribution:
    assert is_compiled(), "expected the compiled core of the wheel"
print(f"{distribution}: reads by {'the compiled core' if is_compiled() else 'numpy'}")
