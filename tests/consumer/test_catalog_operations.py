"""The operator's sub-commands of ``recallstream catalog``."""

# ruff: noqa: F811  a fixture is taken by its name

import json
from pathlib import Path

import msgspec
import pytest

from catalog_sync.connection import connect
from catalog_sync.layout import Ack, Keys
from catalog_sync.publisher import FleetStatus, Publisher
from catalog_sync.settings import CatalogSettings
from catalog_sync.signing import TrustedKeys
from consumer.cli.main import main
from tests.consumer.test_catalog_command import Say, build, server, settings  # noqa: F401  fixtures


def fleet(settings: CatalogSettings) -> FleetStatus:
    with connect(settings) as client:
        return Publisher(client, settings.namespace).status()


def published(tmp_path: Path, *sizes: int) -> list[str]:
    """Versions of so many items, the last one current."""
    versions = []
    for size in sizes:
        path, version = build(tmp_path, list(range(size)))
        assert main(["catalog", "publish", str(path)]) == 0
        versions.append(version)
    return versions


def write_ack(settings: CatalogSettings, name: str, *condemned: str) -> None:
    ack = Ack(name, "m", None, 1, "rolled_back", None, 1, condemned=dict.fromkeys(condemned, "empty_rate: x"))
    with connect(settings) as client:
        client.set(Keys(settings.namespace).ack(name), msgspec.json.encode(ack))


def current(settings: CatalogSettings) -> str:
    return fleet(settings).pointers["m"].version


def test_pin_keep_and_unpin(tmp_path: Path, settings: CatalogSettings, capsys: Say) -> None:
    first, second = published(tmp_path, 1, 2)
    assert main(["catalog", "pin", first, "--group", "g"]) == 0
    assert main(["catalog", "pin", second, "--group", "g", "--keep"]) == 0
    pin = fleet(settings).pins["g"]
    assert pin.versions == (first, second)
    capsys.readouterr()
    assert main(["catalog", "unpin", first, "--group", "g"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "group g follows its model's pointer",
        f"group g still pins {second}",
    ]
    assert main(["catalog", "unpin", "--group", "g"]) == 0
    assert fleet(settings).pins == {}


def test_quarantine_goes_back_and_release_allows_it_again(
    tmp_path: Path,
    settings: CatalogSettings,
    capsys: Say,
) -> None:
    first, second = published(tmp_path, 1, 2)
    assert main(["catalog", "quarantine", second, "--reason", "titles are gone"]) == 0
    assert current(settings) == first
    assert fleet(settings).quarantine[second].message == "titles are gone"
    assert main(["catalog", "activate", second]) == 1
    assert "is quarantined" in capsys.readouterr().err
    assert main(["catalog", "status"]) == 0
    assert "titles are gone" in capsys.readouterr().out
    assert main(["catalog", "quarantine", second, "--release"]) == 0
    assert main(["catalog", "activate", second]) == 0
    assert current(settings) == second


def test_the_only_version_is_quarantined_although_there_is_none_to_go_back_to(
    tmp_path: Path,
    settings: CatalogSettings,
    capsys: Say,
) -> None:
    (only,) = published(tmp_path, 1)
    capsys.readouterr()
    assert main(["catalog", "quarantine", only]) == 1
    said = capsys.readouterr()
    assert f"version {only} is quarantined; instances that serve it serve on" in said.out
    assert "no version to go back to" in said.err
    assert only in fleet(settings).quarantine


def test_guard_acts_once_enough_instances_say_so(
    tmp_path: Path,
    settings: CatalogSettings,
    capsys: Say,
) -> None:
    first, second = published(tmp_path, 1, 2)
    write_ack(settings, "i1", second)
    capsys.readouterr()
    assert main(["catalog", "guard", "--once"]) == 0
    assert (current(settings), capsys.readouterr().out) == (second, "")
    write_ack(settings, "i2", second)
    assert main(["catalog", "guard", "--once", "--share", "0.9"]) == 0
    assert current(settings) == first
    said = capsys.readouterr().out
    assert f"version {second} is quarantined: 2 of 2 instances found it bad" in said
    assert f"version {first} is current for model m" in said


def test_prune_keeps_what_is_needed_and_says_why(
    tmp_path: Path,
    settings: CatalogSettings,
    capsys: Say,
) -> None:
    versions = published(tmp_path, 1, 2, 3, 4)
    capsys.readouterr()
    assert main(["catalog", "prune", "--history", "0", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"would be deleted {versions[0]}" in said
    assert f"kept {versions[2]}: a rollback of model m goes there" in said
    assert len(fleet(settings).manifests) == 4
    assert main(["catalog", "prune", "--history", "0"]) == 0
    assert {manifest.version for manifest in fleet(settings).manifests} == set(versions[2:])


def test_retire_then_prune_removes_a_model(tmp_path: Path, settings: CatalogSettings) -> None:
    published(tmp_path, 1, 2)
    assert main(["catalog", "retire", "m"]) == 0
    assert main(["catalog", "prune"]) == 0
    assert fleet(settings) == FleetStatus({}, (), (), (), {}, {})


def test_canaries_and_a_signature_travel_in_the_manifest(
    tmp_path: Path,
    settings: CatalogSettings,
    capsys: Say,
) -> None:
    path, version = build(tmp_path, [1, 2, 3])
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    assert main(["catalog", "keygen", "--private", str(private), "--public", str(public)]) == 0
    canaries = tmp_path / "canaries.jsonl"
    request = {"history": [1, 2], "top_k": 2, "beam": {"width": 4}}
    canaries.write_text(
        json.dumps({"request": request, "at_least": 2, "must_contain": [3], "name": "home"})
        + "\n\n"
        + json.dumps({"request": request})
        + "\n"
    )
    assert main(["catalog", "publish", str(path), "--canary", str(canaries), "--key", str(private)]) == 0
    [manifest] = fleet(settings).manifests
    assert manifest.version == version
    assert [(canary.name, canary.at_least) for canary in manifest.canaries] == [("home", 2), (None, 1)]
    TrustedKeys([public]).check(manifest)
    capsys.readouterr()
    assert main(["catalog", "status"]) == 0
    assert "2 canaries, signed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("no json", "line 1"),
        ('{"request": {}}', "line 1"),
        ('{"request": {"history": [1]}, "atleast": 3}', "atleast"),
        ('{"request": {"history": [1], "topk": 3}}', "topk is no field"),
        ("", "0 canaries"),
    ],
)
def test_a_canary_file_that_makes_no_sense_is_an_error_before_anything_is_written(
    tmp_path: Path,
    settings: CatalogSettings,
    capsys: Say,
    line: str,
    says: str,
) -> None:
    path, _ = build(tmp_path, [1])
    canaries = tmp_path / "canaries.jsonl"
    canaries.write_text(line + "\n")
    capsys.readouterr()
    assert main(["catalog", "publish", str(path), "--canary", str(canaries)]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1
    assert fleet(settings).manifests == ()


def test_status_as_json_is_one_object_with_the_whole_fleet(
    tmp_path: Path,
    settings: CatalogSettings,
    capsys: Say,
) -> None:
    first, second = published(tmp_path, 1, 2)
    write_ack(settings, "i1", first)
    capsys.readouterr()
    assert main(["catalog", "status", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(each["version"], each["standing"]) for each in shown["versions"]] == [
        (second, "current"),
        (first, "rollback"),
    ]
    assert shown["instances"][0]["condemned"] == {first: "empty_rate: x"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pin", "0123456789abcdef", "--group", "g"], 1, "is not in Redis"),
        (["pin", "0123456789abcdef"], 2, "group"),
        (["pin", "0123456789abcdef", "--group", "a b"], 2, "group"),
        (["unpin", "--group", "g"], 1, "does not pin"),
        (["quarantine", "0123456789abcdef"], 1, "is not in Redis"),
        (["quarantine", "0123456789abcdef", "--release"], 1, "is not quarantined"),
        (["retire", "m"], 1, "has no current version"),
        (["guard", "--once", "--share", "2"], 2, "share"),
        (["prune", "--history", "-1"], 2, "history"),
        (["keygen", "--private", "/absent/a", "--public", "/absent/b"], 1, "/absent/a"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(arguments: list[str], code: int, says: str, capsys: Say) -> None:
    assert main(["catalog", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1
