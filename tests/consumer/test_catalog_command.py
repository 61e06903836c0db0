import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from consumer.cli.main import main

Say = pytest.CaptureFixture[str]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


@pytest.fixture(autouse=True)
def settings(server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> CatalogSettings:
    """The address comes from the environment, a namespace per test from there too; tables are wide enough."""
    namespace = f"test{next(_numbers)}"
    monkeypatch.setenv("RECALLSTREAM_CATALOG__URL", server.url)
    monkeypatch.setenv("RECALLSTREAM_CATALOG__NAMESPACE", namespace)
    monkeypatch.setenv("COLUMNS", "200")
    return CatalogSettings.model_validate({"url": server.url, "namespace": namespace})


def source(tmp_path: Path, ids: list[int], name: str = "items.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps({"item_id": i, "sid": [i % 4, 0], "title": f"T{i}"}) + "\n" for i in ids))
    return path


def build(tmp_path: Path, ids: list[int]) -> tuple[Path, str]:
    """A built file and its version."""
    output = tmp_path / f"{len(ids)}.rsc"
    options = ["--model", "m", "--levels", "4,4", "--output", str(output)]
    assert main(["catalog", "build", str(source(tmp_path, ids)), *options]) == 0
    return output, blob.version_of(output.read_bytes())


def test_build_writes_a_readable_file_and_says_what_is_in_it(tmp_path: Path, capsys: Say) -> None:
    output, version = build(tmp_path, [1, 5, 2])
    catalog = blob.decode(output.read_bytes())
    assert (catalog.model, catalog.trie.sizes, catalog.trie.items, catalog.trie.leaves) == ("m", (4, 4), 3, 2)
    said = capsys.readouterr().out
    assert version in said
    rows = [re.split(" *│ *", line)[1:3] for line in said.splitlines() if "│" in line]
    assert ["SIDs of several items", "1"] in rows
    assert ["most items on one SID", "2"] in rows


def test_build_takes_model_and_levels_from_a_model_directory(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    sid = {
        "id": "from-dir",
        "levels": [{"token_base": 0, "size": 4}, {"token_base": 4, "size": 4}],
        "prompts": {"default": {}},
        "max_history_items": 8,
        "history_drop": 2,
    }
    (model / "sid.json").write_text(json.dumps(sid))
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    more = {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 8, "rope_theta": 1e4}
    (model / "config.json").write_text(json.dumps(config | shape | more))
    output = tmp_path / "c.rsc"
    items = str(source(tmp_path, [1]))
    assert main(["catalog", "build", items, "--model-dir", str(model), "--output", str(output)]) == 0
    assert blob.decode(output.read_bytes()).model == "from-dir"


def test_publish_status_activate_and_rollback(tmp_path: Path, settings: CatalogSettings, capsys: Say) -> None:
    (one, first), (two, second), (three, third) = (build(tmp_path, list(range(n))) for n in (1, 2, 3))

    def current() -> str | None:
        with connect(settings) as client:
            pointer = Publisher(client, settings.namespace).pointer("m")
        return pointer.version if pointer else None

    capsys.readouterr()
    assert main(["catalog", "status"]) == 0
    assert "there is no version" in capsys.readouterr().out
    assert main(["catalog", "publish", str(one), "--label", "[monday]"]) == 0
    assert main(["catalog", "publish", str(two)]) == 0
    assert current() == second
    assert main(["catalog", "publish", str(three), "--no-activate"]) == 0
    assert current() == second
    assert main(["catalog", "activate", third]) == 0
    assert current() == third
    assert f"version {third} is current for model m (generation " in capsys.readouterr().out
    assert main(["catalog", "rollback"]) == 0
    assert current() == second
    capsys.readouterr()
    assert main(["catalog", "status"]) == 0
    rows = {
        version: line
        for line in capsys.readouterr().out.splitlines()
        for version in (first, second, third)
        if version in line
    }
    assert "[monday]" in rows[first]
    assert "rollback goes here" in rows[first]
    assert "generation" in rows[second]
    assert "generation" not in rows[third]
    assert main(["catalog", "rollback", "--model", "m"]) == 0
    assert current() == first
    assert main(["catalog", "rollback"]) == 1


def test_flags_name_another_redis_than_the_settings(tmp_path: Path, server: EmbeddedRedis, capsys: Say) -> None:
    file, version = build(tmp_path, [1])
    assert main(["catalog", "publish", str(file), "--namespace", "elsewhere", "--url", server.url]) == 0
    capsys.readouterr()
    assert main(["catalog", "status", "--namespace", "elsewhere"]) == 0
    assert version in capsys.readouterr().out
    assert main(["catalog", "status"]) == 0
    assert version not in capsys.readouterr().out


def test_an_output_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, capsys: Say) -> None:
    made = source(tmp_path, [1, 2])
    output = tmp_path / "absent" / "items.rsc"
    assert main(["catalog", "build", str(made), "--model", "m", "--levels", "4,4", "--output", str(output)]) == 1
    assert f"{output}: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["build", "absent.jsonl", "--model", "m", "--levels", "4,4", "--output", "o.rsc"], 1, "absent.jsonl"),
        (["build", "absent.jsonl", "--model", "m", "--levels", "4,x", "--output", "o.rsc"], 2, "--levels 4,x"),
        (["build", "absent.jsonl", "--model", "m", "--levels", "0,4", "--output", "o.rsc"], 2, "--levels 0,4: level 0"),
        (["build", "absent.jsonl", "--model", "m", "--levels", "", "--output", "o.rsc"], 2, "--levels"),
        (["build", "absent.jsonl", "--model", "m", "--output", "o.rsc"], 2, "--model-dir"),
        (["build", "absent.jsonl", "--model-dir", "absent", "--output", "o.rsc"], 1, "sid.json"),
        (["build", "absent.jsonl"], 2, "output"),
        (["publish", "absent.rsc"], 1, "absent.rsc"),
        (["publish", __file__], 1, "not a catalog"),
        (["activate", "0123456789abcdef"], 1, "is not in Redis"),
        (["rollback"], 1, "no model has a current version"),
        (["rollback", "--model", "m"], 1, "no version to go back to"),
        (["status", "--url", "redis://127.0.0.1:1/0"], 1, "Redis"),
        (["status", "--url", "ftp://secret@host"], 1, "Redis URL"),
        (["status", "--url", "redis://a..b:1"], 1, "Redis URL"),
        (["status", "--namespace", "with space"], 2, "namespace"),
        (["status", "--surprise"], 2, "--surprise"),
        ([], 2, "sub-command is missing"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, says: str, capsys: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["catalog", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_names_are_shown_as_they_are_and_command_no_terminal(tmp_path: Path, capsys: Say) -> None:
    path, output = source(tmp_path, [1]), tmp_path / "out.rsc"
    path.write_text(path.read_text().replace("title", "[/red]"))
    options = ["--model", "[bold]\x1b[31mm", "--levels", "4,4", "--output", str(output)]
    assert main(["catalog", "build", str(path), *options]) == 0
    assert main(["catalog", "publish", str(output)]) == 0
    assert main(["catalog", "status"]) == 0
    said = capsys.readouterr().out
    assert said.count("[bold]\ufffd[31mm") == 3
    assert "[/red]" in said
    assert "\x1b" not in said


def test_a_bad_line_of_the_source_is_named(tmp_path: Path, capsys: Say) -> None:
    path = source(tmp_path, [1, 2, 1])
    assert (
        main(["catalog", "build", str(path), "--model", "m", "--levels", "4,4", "--output", str(tmp_path / "o")]) == 1
    )
    assert "line 3: item id 1 is already on line 1" in capsys.readouterr().err
