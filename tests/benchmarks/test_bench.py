"""The benchmarks run, small and on the CPU, and what is made of their results is right."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import card
from benchmarks.ablation import ablations
from benchmarks.breakdown import IDLE, Kernel, breakdown
from benchmarks.cases import Case, table
from benchmarks.check import EXIT_SLOWER, EXIT_USAGE, compare, match
from benchmarks.engine_run import EngineRun, engine_settings
from benchmarks.flattened import fastest_flattened
from benchmarks.floor import FloorBench, heads, layer_products
from benchmarks.measure import Timing, WallLimit
from benchmarks.offline import Offline, OfflineOptions
from benchmarks.plots import PLOTS, plots, write_plots
from benchmarks.results import RESULTS, ReportFile, default_path, find, load
from benchmarks.rivals import load_transformers, transformers_ms
from benchmarks.shapes import SHAPES, write_model
from benchmarks.summary import best_load, best_rates, lines
from consumer.cli.main import main
from consumer.demo.run import MODEL as DEMO
from docs.performance import performance_page
from engine.model.spec import ModelSpec
from engine.settings import EngineSettings
from kernels import backend
from tests.consumer.waiting import eventually

TINY = SHAPES["tiny"]
CPU = torch.device("cpu")


def bench(flags: str, out: Path | None = None) -> int:
    return main(["bench", *flags.split(), *([] if out is None else ["--device", "cpu", "--out", str(out)])])


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with everything but transformers."""
    out = tmp_path_factory.mktemp("offline") / "offline-tiny.json"
    flags = "--models tiny --beams 4 --contexts 20,30 --batches 1,2 --items 500 --runs 2 --no-transformers"
    assert bench(f"offline {flags}", out) == 0
    return out


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load(path)["rows"]
    return rows


def test_an_offline_run_times_engine_floors_rivals_and_ablations_of_every_case(offline: Path) -> None:
    rows = rows_of(offline)
    whats = {row["what"] for row in rows}
    assert whats == {
        "engine",
        "engine, two batches in flight",
        "engine, no constraint",
        "floor",
        "chained floor",
        "flattened beams",
        "same alone",
        "engine without the level head",
    }
    for what in whats - {"same alone", "engine without the level head"}:
        assert sum(row["what"] == what for row in rows) == 4
    assert all(row["ms"] > 0 for row in rows if row["what"] != "same alone")
    assert [row["batch"] for row in rows if row["what"] == "same alone"] == [2, 2]


def test_a_run_says_what_it_ran_on(offline: Path) -> None:
    report = load(offline)
    assert report["device"].startswith("CPU")
    assert report["torch"] == torch.__version__.partition("+")[0] or report["torch"] == torch.__version__
    assert report["kind"] == "offline"
    assert report["commit"]
    assert report["items"] == 500


def test_what_does_not_run_is_said_in_its_row_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory\n for this")

    monkeypatch.setattr(FloorBench, "floor", full)
    report = ReportFile(tmp_path / "r.json", {})
    options = OfflineOptions([Case(TINY, 4, 20, 1)], items=500, transformers=False, free=False, ablate=False, runs=1)
    rows = list(Offline(options, CPU, report, WallLimit(None)).run())
    assert [(row["what"], row.get("error")) for row in rows] == [
        ("engine", None),
        ("engine, two batches in flight", None),
        ("floor", "no memory for this"),
        ("chained floor", "no memory for this"),
        ("flattened beams", "no memory for this"),
    ]
    (line,) = lines(rows)
    assert line.over_floor is None


def test_a_wall_limit_ends_a_run_between_two_cases_and_keeps_what_there_is(tmp_path: Path) -> None:
    out = tmp_path / "cut.json"
    flags = "--models tiny --beams 4 --contexts 20 --batches 1,2 --items 500 --runs 2 --no-floors --wall-s 1e-9"
    assert bench(f"offline {flags}", out) == 0
    assert not out.exists() or rows_of(out) == []


def test_an_unknown_model_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("offline --models qwen9") == 2
    assert "no model 'qwen9'" in capsys.readouterr().err


def test_kernels_need_a_cuda_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("kernels --device cpu") == 1
    assert "CUDA" in capsys.readouterr().err


def test_an_online_run_answers_every_request_through_kafka(tmp_path: Path) -> None:
    out = tmp_path / "online.json"
    flags = "--contexts 40,80 --beams 8 --items 2000 --requests 8 --rounds 2 --outstanding 2,3"
    assert bench(f"online --model {DEMO} {flags}", out) == 0
    rows = rows_of(out)
    for outstanding in (2, 3):
        offline, *rounds, whole = [row for row in rows if row["outstanding"] == outstanding]
        assert [row["what"] for row in (offline, *rounds, whole)] == ["offline", "round 1", "round 2", "online"]
        assert [row["requests"] for row in rounds] == [8, 8]
        assert whole["of_offline"] == pytest.approx(whole["requests_per_s"] / offline["requests_per_s"], abs=1e-3)
        assert whole["p99_ms"] >= whole["ms"]
    assert f"### {rows[0]['case']}" in performance_page(tmp_path)


def test_random_arrivals_are_all_answered(tmp_path: Path) -> None:
    out = tmp_path / "online.json"
    flags = "--contexts 40 --beams 8 --items 2000 --requests 8 --rounds 1 --rates 200"
    assert bench(f"online --model {DEMO} {flags}", out) == 0
    offline, first, _ = rows_of(out)
    assert offline["case"] == "beam 8, context 40, 200 arrivals a second"
    assert first["requests"] == 8


def test_transformers_load_the_same_model_directory(tmp_path: Path) -> None:
    model = load_transformers(write_model(TINY, tmp_path / "tiny", CPU), CPU)
    timing = transformers_ms(model, Case(TINY, 3, 12, 2), runs=1)
    assert (timing.runs, timing.median_ms > 0) == (1, True)


def test_the_model_directories_have_the_shapes_of_qwen3(tmp_path: Path) -> None:
    spec = ModelSpec.load(write_model(TINY, tmp_path / "tiny", CPU))
    assert spec.level_sizes == (64, 64, 64)
    assert spec.levels[-1].token_base + 64 == spec.decoder.vocab_size
    billions = {"qwen3-0.6b": 0.596, "qwen3-1.7b": 1.721, "qwen3-4b": 4.022}  # as published, embeddings counted once
    for name, published in billions.items():
        shape = SHAPES[name]
        assert shape.parameters / 1e9 == pytest.approx(published, abs=1e-3)


def test_the_floor_counts_every_product_of_prefill_decode_and_heads() -> None:
    case = Case(SHAPES["qwen3-1.7b"], 256, 1000, 2)
    assert list(layer_products(case)) == [
        *[(2000, out, inputs) for out, inputs in ((4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144))],
        *[(512, out, inputs) for out, inputs in ((4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144))],
    ]
    assert heads(case) == [(2, 8192, 2048), (512, 8192, 2048), (512, 8192, 2048)]
    vocab = Case(SHAPES["qwen3-1.7b"], 256, 1000, 2, "vocab")
    assert [out for _, out, _ in heads(vocab)] == [151_936] * 3


def test_the_floor_is_the_sum_of_its_parts() -> None:
    floor = FloorBench(CPU).floor(Case(TINY, 4, 16, 1))
    parts = floor.prefill_products + floor.prefill_attention + floor.decode_products + floor.decode_attention
    assert floor.total == pytest.approx(parts + floor.head + floor.elementwise)
    assert set(floor.kinds.values()) == {"bf16"}


def test_every_way_to_flatten_beams_is_right_before_it_is_timed() -> None:
    found = fastest_flattened(Case(TINY, 3, 20, 2), CPU, torch.float32)
    assert all(isinstance(time, float) for time in found.tried.values()), found.tried
    assert found.tried[found.name] == min(found.tried.values(), key=float)


def test_a_table_is_every_combination_and_names_differ() -> None:
    cases = list(table(["tiny"], [4, 8], [20, 30], [1, 2], ["level", "vocab"]))
    assert len({case.name for case in cases}) == len(cases) == 16


def test_a_beam_may_have_a_width_for_every_level() -> None:
    case = Case(SHAPES["qwen3-0.6b"], (20, 200, 900), 1000, 4)
    assert case.name == "qwen3-0.6b, beam 20/200/900, context 1000, batch 4"
    assert case.step_rows == (80, 800)  # the last level's beams are not decoded
    assert [rows for rows, _, _ in heads(case)] == [4, 80, 800]
    with pytest.raises(ValueError, match="3 levels"):
        Case(TINY, (1, 2), 10, 1)


@pytest.mark.parametrize("beams", ["20/x/900", "1/2"])
def test_beams_that_make_no_sense_are_a_usage_error(beams: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(f"offline --models tiny --beams {beams}") == 2
    assert "beams or margins: " in capsys.readouterr().err


def test_scheduled_beams_run_over_their_own_floor(tmp_path: Path) -> None:
    out = tmp_path / "scheduled.json"
    flags = "--models tiny --beams 2/4/8 --margins 1.5 --contexts 20 --batches 1 --items 500 --runs 1 --no-transformers"
    assert bench(f"offline {flags} --no-ablate --no-free", out) == 0
    assert [row["what"] for row in rows_of(out)] == [
        "engine", "engine, two batches in flight", "floor", "chained floor",
    ]  # fmt: skip
    assert all("error" not in row and "beam 2/4/8 margin 1.5" in row["case"] for row in rows_of(out))


def test_the_engine_is_set_up_for_every_case_of_a_run(tmp_path: Path) -> None:
    cases = [Case(TINY, 4, 300, 2), Case(TINY, (2, 4, 9), 20, 5), Case(TINY, 4, 20, 1, "vocab")]
    settings = engine_settings(tmp_path, cases, CPU)
    assert (settings.max_batch, settings.max_width, settings.max_top_k, settings.max_batch_rows) == (5, 9, 9, 45)
    assert settings.context_pages == 2 * 2 * 3  # two batches in flight of two contexts of three pages
    assert settings.graph_beams == ((2, 4, 9),)
    assert settings.graph_vocab


def test_the_wall_limit_passes_with_the_clock() -> None:
    now = 10.0
    limit = WallLimit(5.0, lambda: now)
    assert not limit.passed
    now = 15.0
    assert limit.passed
    assert not WallLimit(None).passed


def test_results_are_on_disk_after_every_row(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "r.json", {"kind": "offline"})
    for number in range(2):
        report.add({"what": "engine", "ms": number})
        assert [row["ms"] for row in rows_of(report.path)] == list(range(number + 1))
    report.note(items=3)
    assert load(report.path)["items"] == 3
    assert find(report.rows, what="engine") == {"what": "engine", "ms": 1}


def test_results_are_named_after_the_device() -> None:
    assert default_path("offline", "NVIDIA H200").name == "offline-h200.json"


def report_of(ms: float, min_ms: float, floor: float = 1.0, device: str = "NVIDIA H200") -> dict[str, Any]:
    case = Case(SHAPES["qwen3-1.7b"], 256, 1000, 1).fields()
    rows = [
        {"what": "engine", **case, **EngineRun(1, Timing(ms, min_ms, ms, 9), ms, ms / 2, ms / 2, 0, 0, 0, None).row()},
        {"what": "floor", **case, "ms": floor},
    ]
    return {"kind": "offline", "device": device, "rows": rows}


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (report_of(10.4, 10.3), 0),
        (report_of(10.6, 10.3), EXIT_SLOWER),
        (report_of(10.6, 9.9), 0),  # one repetition was as fast: noise
        (report_of(10.0, 9.9, floor=1.2), 0),  # a slower floor is the card's
        (report_of(20.0, 20.0, device="CPU"), EXIT_USAGE),
    ],
)
def test_the_check_names_what_got_slower(now: dict[str, Any], code: int) -> None:
    console = Console(record=True, width=200)
    assert compare(now, report_of(10.0, 9.9), 0.05, console) == code
    assert ("slower: engine, qwen3-1.7b, beam 256, context 1000, batch 1: 1.060" in console.export_text()) == (
        code == EXIT_SLOWER
    )


def test_the_check_finds_the_committed_run_of_the_same_kind_and_device(tmp_path: Path) -> None:
    for name, device in (("offline-a.json", "CPU"), ("offline-b.json", "NVIDIA H200")):
        (tmp_path / name).write_text(json.dumps(report_of(10.0, 9.9, device=device)))
    assert match(report_of(11.0, 11.0), tmp_path) == tmp_path / "offline-b.json"
    assert match({**report_of(11.0, 11.0), "kind": "online"}, tmp_path) is None


def test_the_check_compares_kernels_by_their_microseconds() -> None:
    def run(us: float) -> dict[str, Any]:
        attention = {"kernel": "decode attention", "case": "c", "gluon_us": us}
        checked = {"kernel": "gluon_decode", "case": "against float64", "error": 0.002}
        return {"kind": "kernels", "device": "NVIDIA H200", "rows": [checked, attention]}

    console = Console(record=True, width=200)
    assert compare(run(20.0), run(20.0), 0.05, console) == 0
    assert compare(run(22.0), run(20.0), 0.05, console) == EXIT_SLOWER
    assert "slower: kernel: decode attention, c: 1.100" in console.export_text()


def test_the_best_rate_is_taken_among_batches_that_are_fast_enough() -> None:
    rows: list[dict[str, Any]] = []
    for batch, engine, floor in ((1, 30.0, 20.0), (4, 90.0, 60.0), (8, 170.0, 99.0)):
        case = Case(SHAPES["qwen3-0.6b"], 900, 1000, batch).fields()
        rows += [{"what": "engine", **case, "ms": engine}, {"what": "floor", **case, "ms": floor}]
    (best,) = best_rates(list(lines(rows)))
    assert (best.engine_batch, best.floor_batch) == (4, 8)
    assert best.ratio == pytest.approx((4 / 90) / (8 / 99))


def test_the_best_load_is_the_fastest_whose_tail_is_short_enough() -> None:
    loads = [(4, 30.0, 150.0), (8, 50.0, 190.0), (16, 60.0, 240.0)]
    rows: list[dict[str, Any]] = [
        {"what": "online", "case": f"{load} outstanding", "requests_per_s": rate, "p99_ms": p99}
        for load, rate, p99 in loads
    ]
    best = best_load(rows)
    assert best is not None
    assert best["case"] == "8 outstanding"
    assert best_load(rows[2:]) is None


def test_the_breakdown_splits_at_each_selection_and_counts_gaps_once() -> None:
    times = [
        ("nvjet_tst_128x64", 0, 10), ("_attend_causal_0", 10, 14), ("expand", 16, 18), ("rank", 18, 19),
        ("attend_beams", 20, 25), ("merge", 25, 26), ("expand", 26, 28), ("mystery", 28, 29),
    ]  # fmt: skip
    found = breakdown([Kernel(name, 1000.0 * start, 1000.0 * end) for name, start, end in times])
    assert found == {
        "prefill": {"products": 10.0, "prefill attention": 4.0, IDLE: 0.0},
        "level 1": {"selection": 3.0, IDLE: 3.0, "decode attention": 6.0},
        "level 2": {"selection": 2.0, IDLE: 0.0, "other": 1.0},
    }


def test_plots_and_page_show_every_case_of_a_run(offline: Path, tmp_path: Path) -> None:
    names = write_plots(offline.parent, tmp_path)
    assert names == ["offline-tiny-beam4.svg", "offline-tiny-rates.svg", "offline-tiny-ablation.svg"]
    first = [(tmp_path / name).read_bytes() for name in names]
    write_plots(offline.parent, tmp_path)
    assert [(tmp_path / name).read_bytes() for name in names] == first  # nothing of the clock in them
    page = performance_page(offline.parent)
    for context, batch in ((20, 1), (20, 2), (30, 1), (30, 2)):
        assert f"| {context} | {batch} | **" in page
        assert f"- context {context}, batch {batch}: " in page  # a CPU meets no target


def test_the_page_says_when_every_target_is_met(tmp_path: Path) -> None:
    report = {**report_of(1.02, 1.0), "items": 10, "commit": "abc"}
    floor = report["rows"][1]
    floor |= dict.fromkeys(("prefill_products", "prefill_attention", "elementwise"), 0.1)
    report["rows"].append({**floor, "what": "chained floor"})
    (tmp_path / "offline-x.json").write_text(json.dumps(report))
    assert "The targets are met by every case." in performance_page(tmp_path)


def test_the_page_names_the_runs_that_are_not_recorded(tmp_path: Path) -> None:
    assert "**Not recorded yet:** `recallstream bench offline` and `recallstream bench online` and" in performance_page(
        tmp_path
    )


class FakeNvml:
    """A card at one clock, told by nvidia-ml-py's functions."""

    NVML_CLOCK_SM = 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return 1980 if (handle, clock) == (0, 1) else 0

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 650_000


def test_the_clock_and_power_of_the_card_are_watched_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "_nvml", FakeNvml)
    with card.CardWatch(torch.device("cuda")) as watch:
        eventually(lambda: (watch.summary() or {}).get("samples", 0) >= 2)
    summary = watch.summary()
    assert summary is not None
    assert (summary["sm_mhz"], summary["watts"]) == (1980, 650.0)
    with card.CardWatch(CPU) as quiet:
        pass
    assert quiet.summary() is None


@pytest.mark.parametrize(("visible", "card_of_0"), [(None, 0), ("3,1", 3), ("GPU-abc", "GPU-abc")])
def test_the_card_that_is_watched_is_the_one_that_the_process_sees(
    visible: str | None, card_of_0: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked: list[int | str] = []
    nvml = SimpleNamespace(nvmlDeviceGetHandleByIndex=asked.append, nvmlDeviceGetHandleByUUID=asked.append)
    card._handle(nvml, 0)  # noqa: SLF001  (needs no thread and no card this way)
    assert asked == [card_of_0]


def test_an_ablation_replaces_the_kernel_only_while_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def kernel(*_: object, **more: object) -> None:
        asked.append(more)

    monkeypatch.setattr(backend, "expand_select", kernel)
    (early_end,) = [each for each in ablations(cuda=True) if each.name == "early end"]
    with early_end.patch():
        backend.expand_select()  # type: ignore[call-arg]
    assert asked == [{"early_end": False}]
    assert backend.expand_select is kernel  # type: ignore[comparison-overlap]


def test_the_committed_plots_are_those_of_the_committed_results() -> None:
    assert sorted(path.name for path in PLOTS.glob("*.svg")) == sorted(name for name, _ in plots(RESULTS))


def test_settings_that_the_ablations_change_exist() -> None:
    for ablation in ablations(cuda=True):
        assert set(ablation.settings) <= set(EngineSettings.model_fields)
