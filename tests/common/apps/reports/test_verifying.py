"""`verify` finds nothing in sound data, and locates each kind of damage."""

from __future__ import annotations

import io
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import build, int96_bytes, int96_column, write_int96, write_table
from PIL import Image

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.reports import verify, verifying
from parquetry.common.apps.reports.chain import apply_chain
from parquetry.common.dataset.index import write_index

REAL = Path(__file__).parents[3] / "data" / "petastorm"


@pytest.mark.parametrize("version", ["0.12.1", "0.4.0", "0.7.6"])
def test_old_datasets_are_sound(version: str) -> None:
    found = verify(str(REAL / version))
    assert found.damages == ()
    assert found.round_trips > 0


def test_everything_is_read_and_counted(tmp_path: Path) -> None:
    built = build(tmp_path, [[8, 40], [0, 3]], partition="drive")
    write_index(built.url)
    found = verify(built.url, workers=2, round_trips=4)
    assert (found.files, found.row_groups, found.rows, found.indexed, found.damages) == (2, 4, 51, True, ())
    assert found.bytes > 0


def test_nulls_inside_lists_are_sound_beside_a_column_with_the_name_of_their_mask(tmp_path: Path) -> None:
    lists = pa.array([[1, None], [2]])
    taken = {name: [1, 2] for name in ("l__valid", "l_", "l____valid")}
    assert verify(write_table(tmp_path, pa.table({"l": lists, "l___valid": lists, **taken}))).damages == ()


def test_bytes_that_changed_are_found_where_they_are(tmp_path: Path) -> None:
    url = write_table(
        tmp_path,
        pa.table({"id": np.arange(3000)}),
        row_group_size=1000,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    path = tmp_path / "part.parquet"
    chunk = pq.read_metadata(path).row_group(1).column(0)
    raw = bytearray(path.read_bytes())
    raw[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 255
    path.write_bytes(raw)
    (damage,) = verify(url).damages
    assert (damage.check, damage.row_group, damage.file) == ("bytes", 1, str(path))


def test_images_in_a_column_of_bytes_are_decoded_if_the_pipeline_declares_them(tmp_path: Path) -> None:
    files = [jpeg_bytes(size) for size in (20, 30, 40, 50)]
    odd = pa.array([None] * 4, pa.null())
    photo = [*files[:2], files[2][:-200], files[3]]
    photos = pa.table({"id": range(4), "photo": photo, "odd": odd, "hash": [b"x"] * 4, "parts": [[b"x"]] * 4})
    url = write_table(tmp_path, photos, row_group_size=2)
    found = verify(url)
    assert (found.damages, list(found.undecoded)) == ((), ["odd", "photo", "hash", "parts"])
    assert found.undecoded["parts"] == "It holds bytes."
    advised = verify(apply_chain(Pipeline(url), found.undecoded["photo"].partition(" with ")[2].removesuffix(".")))
    assert [damage.check for damage in advised.damages] == ["decoding"]
    assert list(advised.undecoded) == ["odd", "hash", "parts"]
    image = UnischemaField("photo", np.uint8, (None, None, 3), CompressedImageCodec("jpeg"))
    for pipeline in (
        Pipeline(url, ["id", image]),
        Pipeline(url).where([("id", "<", 1)]).select(image, "id").shuffle(9),
    ):
        found = verify(pipeline)
        (damage,) = found.damages
        assert (damage.check, damage.row_group, found.rows) == ("decoding", 1, 4)
        assert "row 0" in damage.what
        assert found.undecoded.keys() == {"odd", "hash", "parts"}
        assert found.undecoded["hash"] == "The pipeline has no such field."
    assert verify(Pipeline(url).shuffle(9).batch(2)) == verify(url)  # they use all fields that can be read


def jpeg_bytes(size: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(size).integers(0, 255, (size, size, 3), np.uint8)).save(file, "jpeg")
    return file.getvalue()


def test_a_footer_with_wrong_claims_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parquetry.common.apps.reports import verifying as module

    built = build(tmp_path, [[10]], names=("id", "speed"))
    true = module.stated_statistics

    def lie(dataset: object, name: str) -> object:
        found = true(dataset, name)  # type: ignore[arg-type]
        return module.ColumnStatistics(
            minimum=pa.array([3.0]),
            maximum=pa.array([4.0]),
            null_count=found.null_count + 1,
            num_rows=found.num_rows,
            exact=False,
        )

    monkeypatch.setattr(module, "stated_statistics", lie)
    damages = verify(built.url).damages
    assert [damage.check for damage in damages] == ["statistics"] * 6
    assert any("expected 1 nulls as the footer says, got 0" in damage.what for damage in damages)


def test_a_codec_that_loses_something_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field = UnischemaField("a", np.int32, (2,), NdarrayCodec())
    write_dataset(tmp_path / "set", Unischema("s", [field]), [{"a": np.array([1, 2], np.int32)}] * 3)
    encode = NdarrayCodec.encode
    monkeypatch.setattr(NdarrayCodec, "encode", lambda self, field, value: encode(self, field, value + 1))
    damages = verify(str(tmp_path / "set"), round_trips=2).damages
    assert [damage.check for damage in damages] == ["codec"] * 2


def test_a_file_that_is_cut_off_is_found_before_all_else(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_table(tmp_path, pa.table({"id": range(10)}), f"{name}.parquet")
    path = tmp_path / "b.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    (damage,) = verify(str(tmp_path)).damages
    assert (damage.check, damage.file) == ("file", str(path))


def test_lists_of_different_lengths_and_with_nulls_inside_are_sound(tmp_path: Path) -> None:
    lists = {
        "ragged": [[[1, 2], [3]], None, [[4]]],
        "gaps": [[1, None], [], None],
        "both": [[[1, None], None], [[]], None],
        "words": [[None, "a"], None, []],
        "pair": pa.array([[1, None], None, [2, 3]], pa.list_(pa.int64(), 2)),
    }
    assert verify(write_table(tmp_path, pa.table(lists))).damages == ()


def _with_bad_rows(tmp_path: Path, rows: int, bad: Collection[int], row_group_rows: int | None = None) -> str:
    field = UnischemaField("image", np.uint8, (4, 4), CompressedImageCodec("png"))
    url = str(tmp_path / "set")
    write_dataset(url, Unischema("s", [field]), [{"image": np.zeros((4, 4), np.uint8)}] * rows)
    path = next(Path(url).glob("*.parquet"))
    table = pq.read_table(path)
    broken = [value.as_py()[:40] if row in bad else value.as_py() for row, value in enumerate(table["image"])]
    pq.write_table(pa.table({"image": broken}, schema=table.schema), path, row_group_size=row_group_rows)
    return url


@pytest.mark.parametrize("bad", [{3, 129}, {0, 1, 2, 63, 64, 65, 90, 129}, set(range(130))])
def test_each_row_that_does_not_decode_is_found(tmp_path: Path, bad: set[int]) -> None:
    url = _with_bad_rows(tmp_path, 130, bad, row_group_rows=100)
    damages = verify(url).damages
    assert {(damage.check, "image" in damage.what) for damage in damages} == {("decoding", True)}
    found = [int(re.findall(r"row (\d+):", damage.what)[0]) + 100 * (damage.row_group or 0) for damage in damages]
    assert found == sorted(bad)


def test_damage_beyond_the_reporting_limit_is_reported_as_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_MOST_TOLD", 2)
    damages = verify(_with_bad_rows(tmp_path, 130, {3, 5, 8, 64, 65, 66})).damages
    assert len(damages) == 3
    assert damages[-1].what == "4 more rows fail: 8, 64-66."
    monkeypatch.setattr(verifying, "_MOST_RANGES", 1)
    assert verify(str(tmp_path / "set")).damages[-1].what == "4 more rows fail: 8, ...."


@pytest.mark.parametrize("indexed", [False, True])
def test_text_that_is_not_utf8_is_found_once_per_row_group(tmp_path: Path, indexed: bool) -> None:
    table = pa.table({"text": pa.array([b"\xff", b"a", b"b", b"c"]).view(pa.string())})
    write_table(tmp_path, table, row_group_size=2)
    write_table(tmp_path, table.slice(2), "sound.parquet")
    if indexed:
        write_index(tmp_path)
    (damage,) = verify(str(tmp_path)).damages
    assert (damage.check, damage.file, damage.row_group) == ("decoding", str(tmp_path / "part.parquet"), 0)
    assert "row 0: expected text in UTF-8, got b'\\xff'" in damage.what


def test_int96_timestamps_that_int64_cannot_hold_are_found(tmp_path: Path) -> None:
    write_int96(tmp_path / "a.parquet", pa.table({"at": int96_column([-(2**55), 2**55])}))
    write_int96(tmp_path / "b.parquet", pa.table({"at": int96_column([1], "ns")}))
    write_int96(tmp_path / "c.parquet", pa.table({"at": pa.array([int96_bytes(10**9, 0)], pa.binary(12))}))
    damages = verify(str(tmp_path)).damages
    assert [(damage.check, Path(damage.file or "").name) for damage in damages] == [
        ("decoding", "b.parquet"),
        ("decoding", "c.parquet"),
    ]


def test_an_index_that_says_other_places_than_the_footers_is_found(tmp_path: Path) -> None:
    write_table(tmp_path, pa.table({"id": range(6)}), row_group_size=3)
    index = Path(write_index(tmp_path))
    table = pq.read_table(index)
    places = pa.array(table.column("chunk:id").to_pylist()[::-1], pa.binary())
    table = table.set_column(table.schema.get_field_index("chunk:id"), "chunk:id", places)
    pq.write_table(table.replace_schema_metadata(pq.read_metadata(index).metadata), index)
    damages = [damage for damage in verify(str(tmp_path)).damages if damage.check == "index"]
    assert [damage.row_group for damage in damages] == [0, 1]
    assert "expected the places of columns as the footer says, got others" in damages[0].what
