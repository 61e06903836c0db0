"""``recallstream recall``: a file through the engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalog_sync import blob
from consumer.cli.main import main
from consumer.offline import OfflineRecall, answer_schema, recall_file
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.errors import DeviceError, RequestError
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.settings import EngineSettings
from tests.engine.tiny_models import TinyModel, write_model

MODEL = TinyModel(sizes=(6, 5, 4))
ITEMS = 60


def arguments(tmp_path: Path, model: Path, catalog: Path, *flags: str) -> list[str]:
    paths = [f"--input={tmp_path / 'in.parquet'}", f"--output={tmp_path / 'out.parquet'}", f"--catalog={catalog}"]
    small = ["--engine.context_pages=64", "--engine.max_batch=4", "--engine.threads=1"]
    return ["recall", *paths, f"--engine.model={model}", *small, *flags]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(MODEL, tmp_path_factory.mktemp("model"))


def make_catalog(strings: bool = False) -> Catalog:
    random = np.random.default_rng(5)
    sids = np.stack([random.integers(0, size, ITEMS) for size in MODEL.sizes], axis=1).astype(np.int32)
    numbers = np.arange(100, 100 + ITEMS)
    titles = pa.array([f"film {number}" for number in numbers])
    return build_catalog(
        version="v1",
        model=MODEL.name,
        sizes=MODEL.sizes,
        ids=[f"i{number}" for number in numbers] if strings else numbers,
        sids=sids,
        tags={"odd": numbers % 2 == 1},
        fields={"title": titles},
    )


@pytest.fixture(scope="module")
def catalog_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalog") / "items.rsc"
    blob.write_file(path, blob.encode(make_catalog()))
    return path


def run(columns: dict[str, Any], model: Path, catalog: Path, tmp_path: Path, *flags: str) -> list[dict[str, Any]]:
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    code = main(arguments(tmp_path, model, catalog, "--recall.width=8", "--recall.top_k=5", *flags))
    assert code == 0
    rows: list[dict[str, Any]] = pq.read_table(tmp_path / "out.parquet").to_pylist()
    return rows


def test_it_equals_the_engine_on_every_row_and_keeps_the_order(model: Path, catalog_file: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    histories = [random.integers(100, 100 + ITEMS, size).tolist() for size in (0, 1, 3, 5, 12, 30, 2, 7, 1, 4, 9)]
    rows = run({"user_id": [f"u{n}" for n in range(11)], "history": histories}, model, catalog_file, tmp_path)

    engine = RecallEngine(EngineSettings(model=model, context_pages=64, threads=1))
    catalog = blob.decode(blob.read_file(catalog_file))
    engine.catalogs.stage(catalog)
    engine.catalogs.activate(catalog.version)
    policy = BeamPolicy((8, 8, 8))
    for number, (row, history) in enumerate(zip(rows, histories, strict=True)):
        (expected,) = engine.recall([RecallRequest(policy, 5, history=np.array(history, dtype=np.int64))])
        assert isinstance(expected, RecallResult)
        assert row["user_id"] == f"u{number}"
        assert row["items"] == np.asarray(expected.items).tolist()
        np.testing.assert_allclose(row["scores"], expected.scores, atol=1e-4)
        assert (row["error"], row["truncated"]) == (None, len(history) > MODEL.max_history_items)


def test_request_columns_mean_what_the_protocol_says(model: Path, catalog_file: Path, tmp_path: Path) -> None:
    columns = {
        "history": [[100, 101], [100, 101], [100, 101]],
        "top_k": [2, None, 3],
        "exclude": [None, [103, 105], None],
        "exclude_history": [True, None, None],
        "beam": [None, {"width": 6, "margin": None}, {"width": 3, "margin": 0.0}],
        "filter": pa.array(
            [None, {"any": None, "all": ["odd"]}, None],
            pa.struct([("any", pa.list_(pa.string())), ("all", pa.list_(pa.string()))]),
        ),
    }
    two, odd, narrow = run(columns, model, catalog_file, tmp_path)
    assert len(two["items"]) == 2
    assert not {100, 101} & set(two["items"])
    assert odd["items"]
    assert all(item % 2 == 1 and item not in (103, 105) for item in odd["items"])
    assert len(narrow["scores"]) >= 1
    assert len(set(narrow["scores"])) == 1


def test_a_bad_row_gets_its_error_and_its_neighbours_their_items(
    model: Path, catalog_file: Path, tmp_path: Path
) -> None:
    columns = {
        "user_id": [1, 2, 3, 4],
        "history": [[100], None, [100, None], [101]],
        "top_k": [3, 3, 3, 10**6],
    }
    good, without, with_null, greedy = run(columns, model, catalog_file, tmp_path)
    assert (good["user_id"], len(good["items"]), good["error"]) == (1, 3, None)
    for row, message in ((without, "history"), (with_null, "history"), (greedy, "top_k 1000000")):
        assert (row["items"], row["scores"]) == (None, None)
        assert row["error"].startswith("bad_request: ")
        assert message in row["error"]


def test_sids_and_fields_come_if_asked(model: Path, catalog_file: Path, tmp_path: Path) -> None:
    flags = ("--return_sids", "--return_fields=title")
    (row,) = run({"history": [[100, 120]]}, model, catalog_file, tmp_path, *flags)
    assert row["fields"]["title"] == [f"film {item}" for item in row["items"]]
    assert np.array(row["sids"]).shape == (5, 3)
    metadata = pq.read_schema(tmp_path / "out.parquet").metadata
    assert metadata[b"recallstream.model"] == MODEL.name.encode()


def test_string_ids(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "strings.rsc"
    blob.write_file(path, blob.encode(make_catalog(strings=True)))
    known, unknown = run({"history": [["i100", "i101"], ["i100", "nothing"]]}, model, path, tmp_path)
    assert all(item.startswith("i1") for item in known["items"])
    assert (known["unknown_items"], unknown["unknown_items"]) == (0, 1)


@pytest.mark.parametrize(
    ("columns", "flags", "message"),
    [
        ({"user": [1]}, (), "has no column history"),
        ({"history": [[1]]}, ("--return_fields=colour",), "no field colour; it has title"),
        ({"history": [[1]]}, ("--engine.model=absent",), "absent"),
        ({"history": [[1]]}, ("--catalog=absent.rsc",), "absent.rsc"),
        ({"history": [[1]]}, ("--output=absent/out.parquet",), "absent"),
        ({"history": [[1]]}, ("--input=absent.parquet",), "absent.parquet"),
    ],
)
def test_a_failure_is_one_line_and_leaves_no_output(
    columns: dict[str, Any],
    flags: tuple[str, ...],
    message: str,
    model: Path,
    catalog_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    code = main(arguments(tmp_path, model, catalog_file, *flags))
    assert code == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("recallstream recall: ")
    assert message in last
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


class Echo:
    """Counts the requests of each call and refuses them all."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def recall(self, requests: Sequence[RecallRequest]) -> list[RecallResult | RequestError]:
        self.calls.append(len(requests))
        return [RequestError("internal", "an echo")] * len(requests)


def test_rows_go_in_batches_and_progress_is_told_of_each() -> None:
    engine, steps = Echo(), list[int]()
    recall = OfflineRecall(engine, levels=3, max_batch=4, defaults=RecallDefaults(), limits=WireLimits())
    rows = pa.record_batch({"history": [[1], None, [2], [3], [4], [5]]})
    answers = recall.answer(rows, steps.append)
    assert (engine.calls, steps) == ([4, 1], [1, 4, 1])
    assert [answer.code for answer in answers if isinstance(answer, RequestError)][:3] == [
        "internal",
        "bad_request",
        "internal",
    ]


class LostDevice:
    """An engine whose device goes away at the first batch."""

    def recall(self, requests: Sequence[RecallRequest]) -> list[RecallResult | RequestError]:
        raise DeviceError("the device is lost")


def test_a_run_that_ends_half_way_leaves_no_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"history": [[100]]}), tmp_path / "in.parquet")
    recall = OfflineRecall(LostDevice(), levels=3, max_batch=4, defaults=RecallDefaults(), limits=WireLimits())
    schema = answer_schema(pa.schema([]), make_catalog(), return_sids=False, return_fields=())
    with pytest.raises(DeviceError):
        recall_file(recall, tmp_path / "in.parquet", tmp_path / "out.parquet", schema, lambda done: None)
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]
