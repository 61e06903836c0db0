"""The HTTP endpoints over a real socket."""

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from consumer.service.http import HttpServer, build_app
from consumer.service.settings import HttpSettings

ON_A_FREE_PORT = HttpSettings(port=0)


class Source:
    """A status source that a test sets by hand."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.gauge = Gauge("recallstream_test_gauge", "a gauge", registry=self.registry)
        self.refreshed = 0
        self.wrong: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()

    def refresh(self) -> None:
        self.refreshed += 1
        self.gauge.set(self.refreshed)

    def faults(self) -> tuple[str, ...]:
        return self.wrong

    def unready(self) -> tuple[str, ...]:
        return self.missing

    def status(self) -> Mapping[str, Any]:
        return {"service": {"ready": not self.missing}}

    def catalog(self) -> Mapping[str, Any]:
        return {}


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def client(source: Source) -> Iterator[httpx.Client]:
    server = HttpServer(ON_A_FREE_PORT, build_app(source))
    server.start()
    with httpx.Client(base_url=server.url) as client:
        yield client
    server.stop()


def test_it_binds_to_loopback_unless_told_otherwise(client: httpx.Client) -> None:
    assert HttpSettings().host == "127.0.0.1"
    assert client.base_url.host == "127.0.0.1"


def test_healthz_fails_with_the_reason(client: httpx.Client, source: Source) -> None:
    assert client.get("/healthz").json() == {"healthy": True, "reasons": []}
    source.wrong = ("the intake loop stands still for 130 s",)
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, list(source.wrong))


def test_readyz_gives_its_reasons_and_turns(client: httpx.Client, source: Source) -> None:
    source.missing = ("no catalog is active", "no partition is assigned")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "reasons": list(source.missing)})
    source.missing = ()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})


def test_not_ready_is_still_alive(client: httpx.Client, source: Source) -> None:
    source.missing = ("the model is loading",)
    assert client.get("/healthz").status_code == 200


def test_metrics_are_refreshed_at_each_scrape(client: httpx.Client) -> None:
    assert "recallstream_test_gauge 1.0" in client.get("/metrics").text
    answer = client.get("/metrics")
    assert "recallstream_test_gauge 2.0" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_metrics_speak_openmetrics_to_whoever_asks(client: httpx.Client) -> None:
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize("version", ["abc", "1.x", "1=", "", "\xb2"])
def test_a_scraper_that_asks_for_no_version_that_exists_gets_text(client: httpx.Client, version: str) -> None:
    accept = f"application/openmetrics-text; version={version},text/plain; version={version}"
    answer = client.get("/metrics", headers={b"accept": accept.encode("latin-1")})
    assert answer.status_code == 200
    assert "recallstream_test_gauge" in answer.text


def test_status_is_json_that_nobody_caches(client: httpx.Client) -> None:
    answer = client.get("/status")
    assert answer.json() == {"service": {"ready": True}}
    assert answer.headers["cache-control"] == "no-store"


def test_the_page_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    answer = client.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")


def test_only_reading_is_possible(client: httpx.Client) -> None:
    assert client.post("/status").status_code == 405


def test_a_port_in_use_is_named_when_the_server_is_made(source: Source) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"http.port {port}"):
            HttpServer(HttpSettings(port=port), build_app(source))


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_that_can_be_none_is_named_when_the_server_is_made(source: Source, host: str) -> None:
    with pytest.raises(OSError, match=f"http.host {host}"):
        HttpServer(HttpSettings(host=host, port=0), build_app(source))


def test_a_stopped_server_has_given_its_port_back(source: Source) -> None:
    server = HttpServer(ON_A_FREE_PORT, build_app(source))
    server.start()
    httpx.get(server.url + "/healthz")
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/healthz")
