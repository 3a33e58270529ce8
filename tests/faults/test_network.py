"""A network that is cut, in a network namespace: the same rows if it comes back, and one clear error if it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S

from parquetry.common.storage.retries import FEW_ATTEMPTS

UNSHARE = ("unshare", "--map-root-user", "--net")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(UNSHARE[0]) is None
        or subprocess.run([*UNSHARE, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0,
        reason="needs network namespaces",
    ),
]
ROWS = 2000
CUT_S = 2.0
READ = f"""
import fcntl, os, socket, struct, sys, threading
from pathlib import Path
from s3_server import serving
from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.storage import hedged_reads, retries

def loopback(flags):
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", flags))  # SIOCSIFFLAGS

loopback(1)  # IFF_UP
hedged_reads.SILENT_S = 0.5
for_ever = sys.argv[2] == "for ever"
retries.ATTEMPTS = 3 if for_ever else 20
retries._LONGEST_WAIT_S = 0.5
with serving(Path(sys.argv[1])) as store:
    iterator = iter(Pipeline(store.url("lake/rows"), executor="threads", memory_limit=2000))
    found = [int(next(iterator)["id"]) for _ in range(50)]
    loopback(0)
    if not for_ever:
        threading.Timer({CUT_S}, loopback, [1]).start()
    try:
        found += [int(row["id"]) for row in iterator]
    except DatasetError as error:
        print(error)
    else:
        print("the same rows:", found == list(range({ROWS})), "retries:", iterator.stats().retries > 0)
sys.stdout.flush()
os._exit(0)
"""
OPEN = """
import sys
from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.storage import retries
waits = []
retries.pause = waits.append
try:
    len(Pipeline(sys.argv[1]))
except DatasetError as error:
    print(len(waits), error)
"""


def alone(program: str, *arguments: object) -> str:
    """Returns what a program prints in a network namespace of its own, in which even loopback is down."""
    command = [*UNSHARE, sys.executable, "-c", program, *map(str, arguments)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake" / "rows").mkdir(parents=True)
    pq.write_table(pa.table({"id": range(ROWS)}), tmp_path / "lake" / "rows" / "a.parquet", row_group_size=20)
    return tmp_path


def test_a_network_that_comes_back_changes_no_row(lake: Path) -> None:
    assert alone(READ, lake, "for a while") == "the same rows: True retries: True\n"


def test_a_network_that_stays_away_is_one_error(lake: Path) -> None:
    said = alone(READ, lake, "for ever")
    assert "a.parquet, row group" in said
    assert "cannot be read, the store failed 3 times, most recently: the store timed out" in said
    assert "Check the network" in said


@pytest.mark.parametrize("url", ["gs://bucket/rows", "s3://bucket/rows"])
def test_a_store_that_cannot_be_reached_is_an_error_after_a_few_attempts(url: str) -> None:
    """Its client has few attempts, too: by default, that of ``gs`` goes on for longer than `PATIENCE_S`."""
    waits, said = alone(OPEN, url).split(" ", 1)
    assert int(waits) < FEW_ATTEMPTS
    assert f"'{url}'" in said
    assert "Check the network" in said or "Set GOOGLE_APPLICATION_CREDENTIALS" in said
