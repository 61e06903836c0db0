"""What lies under deploy/ agrees with the code: settings, ports, probes, times."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from consumer.service.settings import ServiceSettings, settings_of

yaml: Any = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLES = {"RECALLSTREAM_" + "__".join(path).upper() for path, _ in settings_of(ServiceSettings)}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def load(name: str) -> dict[str, Any]:
    (document,) = documents(name)
    return document


def settings_in_the_config_map() -> ServiceSettings:
    text = load("kubernetes/settings.yaml")["data"]["recallstream.toml"]
    return ServiceSettings.model_validate(tomllib.loads(text))


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = load("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    return spec


def test_the_example_file_is_valid_and_shows_the_defaults() -> None:
    data = tomllib.loads((DEPLOY / "recallstream.toml").read_text())
    settings = ServiceSettings.model_validate(data)
    defaults = ServiceSettings.model_validate({"engine": {"model": "model"}})
    assert settings.model_copy(update={"kafka": defaults.kafka, "catalog": defaults.catalog}) == defaults


def test_what_the_example_file_has_commented_out_are_settings_too() -> None:
    text = (DEPLOY / "recallstream.toml").read_text()
    commented = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    named = [
        f"RECALLSTREAM_{section}__{name}".upper()
        for section, values in tomllib.loads(commented).items()
        for name in values
    ]
    assert len(named) > len(re.findall(r"^\w+ = ", text, flags=re.MULTILINE))
    assert [name for name in named if not any(each == name or each.startswith(f"{name}__") for each in VARIABLES)] == []


@pytest.mark.parametrize("text", [(DEPLOY / "compose.yaml").read_text(), (DEPLOY / "Dockerfile").read_text()])
def test_variables_are_settings(text: str) -> None:
    named = {word.strip("\"'") for word in text.replace(":", " ").replace("=", " ").split() if "RECALLSTREAM_" in word}
    assert named
    assert named <= VARIABLES


def test_variables_of_the_manifests_are_settings() -> None:
    secret = load("kubernetes/secret.yaml")["stringData"]
    (container,) = pod()["containers"]
    assert set(secret) | {entry["name"] for entry in container["env"]} <= VARIABLES


def test_probes_ask_the_port_that_is_served() -> None:
    (container,) = pod()["containers"]
    settings = settings_in_the_config_map()
    assert container["ports"] == [{"name": "http", "containerPort": settings.http.port}]
    assert settings.http.host == "0.0.0.0"  # noqa: S104
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_the_drain_fits_into_the_grace_period() -> None:
    settings = settings_in_the_config_map()
    needed = settings.batch.drain_s + settings.batch.close_s
    assert needed + 5 <= pod()["terminationGracePeriodSeconds"]
    compose = load("compose.yaml")["services"]["recallstream"]["stop_grace_period"]
    assert needed + 5 <= float(compose.removesuffix("s"))


def test_the_scaler_watches_the_group_and_topic_that_are_served() -> None:
    kafka = settings_in_the_config_map().kafka
    trigger = load("kubernetes/scaledobject.yaml")["spec"]["triggers"][0]["metadata"]
    assert (trigger["topic"], trigger["consumerGroup"]) == (kafka.request_topic, kafka.group_id)
    assert trigger["bootstrapServers"] == kafka.bootstrap_servers


def test_every_manifest_is_in_the_kustomization_but_the_secret() -> None:
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    listed = set(load("kubernetes/kustomization.yaml")["resources"])
    assert there - {"kustomization.yaml", "secret.yaml"} == listed


def test_compose_publishes_on_loopback_only() -> None:
    for service in load("compose.yaml")["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_keeps_what_kafka_and_the_service_write_in_volumes() -> None:
    services = load("compose.yaml")["services"]
    assert "kafka:" + services["kafka"]["environment"]["KAFKA_LOG_DIRS"] in services["kafka"]["volumes"]
    recallstream = services["recallstream"]
    assert "state:" + recallstream["environment"]["RECALLSTREAM_CATALOG__DISK"] in recallstream["volumes"]


def test_all_that_the_package_is_made_of_is_sent_to_the_image() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    packages = {each.removesuffix("*") for each in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    sent = {
        line.removeprefix("!") for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    assert packages | {project["project"]["readme"], *project["project"]["license-files"]} <= sent
    assert sent <= {path.name for path in DEPLOY.parent.iterdir()}


def test_compose_makes_the_topics_that_are_served() -> None:
    kafka = ServiceSettings.model_validate({"engine": {"model": "m"}}).kafka
    (script,) = load("compose.yaml")["services"]["topics"]["command"]
    for topic in (kafka.request_topic, kafka.reply_topic, kafka.dead_letter_topic):
        assert topic in script


def test_every_alert_has_a_severity_and_says_what_is_wrong() -> None:
    (group,) = load("alerts.yaml")["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_the_dashboard_places_every_panel_within_the_grid() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
