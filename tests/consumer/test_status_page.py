"""The status page in a real browser."""

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from prometheus_client import CollectorRegistry

from consumer.service.http import HttpServer, build_app
from consumer.service.settings import HttpSettings

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NO_VALUE = "\N{EN DASH}"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).is_file(), reason="no Chromium on PATH and none named by CHROMIUM"),
]


class LiveSource:
    """A service whose numbers grow with every look at it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.looks = itertools.count(1)
        self.missing: tuple[str, ...] = ()
        self.active = "films-7f3a"

    def refresh(self) -> None: ...

    def faults(self) -> tuple[str, ...]:
        return ()

    def unready(self) -> tuple[str, ...]:
        return self.missing

    def catalog(self) -> Mapping[str, Any]:
        return {}

    def status(self) -> Mapping[str, Any]:
        n = next(self.looks)
        partitions = [
            {"topic": "recall.requests", "partition": p, "lag_messages": n * p, "lag_seconds": n * p / 10}
            | {"position": 1000 * n, "committed": 1000 * n - 8}
            for p in range(4)
        ]
        return {
            "service": {
                "version": "0.1.0",
                "ready": not self.missing,
                "reasons": list(self.missing),
                "uptime_s": n / 2,
                "model": "films-1",
                "device": "cpu",
            },
            "stream": {
                "lag_messages": 6 * n,
                "lag_seconds": 0.3 * n,
                "in_flight": 12,
                "dead_letters": 3,
                "partitions": partitions,
            },
            "replies": {"ok": 100 * n + n % 7 * 9, "expired": n, "rejected": 0, "error": 2},
            "batch": {"requests": 11.5, "max_requests": 16, "fill": 0.72},
            "load": {
                "answers_in_time": 100 * n,
                "turned_away": {"late": 4, "quota": 0},
                "degraded": {"beam": 7, "history": 0, "last_reply": 2},
            },
            "histories": {"store": "write-behind", "users": 1234, "bytes": 5 << 20, "unsaved": 3, "lag": 0.1}
            | {"trouble": None, "counts": {"applied": 777, "duplicates": 5, "needed": 6}},
            "latency_ms": {"p50": 20 + n % 5, "p99": 1061 + 3 * (n % 4)},
            "catalog": {
                "state": "current",
                "active": self.active,
                "previous": "films-0c21",
                "generation": 1_780_000_000_000 + n,
                "staleness_s": 0.4,
                "last_refusal": {"version": "<b>films-bad</b>", "reason": "checksum", "message": "chunk 3 differs"},
            },
            "engine": {"pages_used": 120, "pages_total": 2048, "pages_high_water": 340},
            "settings": {"kafka": {"password": "**********"}},
        }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def source() -> LiveSource:
    return LiveSource()


@pytest.fixture
def page(browser: Browser, source: LiveSource) -> Iterator[Page]:
    server = HttpServer(HttpSettings(port=0), build_app(source))
    server.start()
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(server.url)
    yield page
    page.close()
    server.stop()
    assert complaints == []


def test_it_shows_live_values_that_change(page: Page) -> None:
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#catalog")).to_contain_text("films-7f3a")
    expect(page.locator("#p50")).not_to_have_text(NO_VALUE)
    expect(page.locator("#p99-unit")).to_have_text("s")
    expect(page.locator("#fill")).to_have_text("72")
    lag = page.locator("#lag-messages")
    first = lag.inner_text()
    expect(lag).not_to_have_text(first)
    expect(page.locator("#rate")).not_to_have_text(NO_VALUE)
    expect(page.locator("#partitions tr")).to_have_count(4)


def test_it_shows_overload_and_held_histories(page: Page) -> None:
    expect(page.locator("#replies")).to_contain_text("turned away4 late")
    expect(page.locator("#replies")).to_contain_text("7 beam, 2 last reply")
    expect(page.locator("#histories")).to_contain_text("1,234 users, 5 MiB")
    expect(page.locator("#histories")).to_contain_text("777 applied, 5 came again")


def test_it_follows_readiness_and_a_catalog_swap(page: Page, source: LiveSource) -> None:
    expect(page.locator("#state")).to_have_text("ready")
    source.missing = ("no partition is assigned",)
    source.active = "films-9d00"
    expect(page.locator("#state")).to_have_text("not ready")
    expect(page.locator("#notice")).to_have_text("no partition is assigned")
    expect(page.locator("#catalog")).to_contain_text("films-9d00")


def test_text_from_outside_stays_text(page: Page) -> None:
    expect(page.locator("#catalog")).to_contain_text("<b>films-bad</b>: checksum, chunk 3 differs")
    expect(page.locator("#catalog b")).to_have_count(0)


def test_it_follows_the_colour_scheme_and_fits_a_narrow_screen(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) != light
    page.set_viewport_size({"width": 360, "height": 700})
    expect(page.locator("#partitions tr")).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_it_says_so_when_the_service_is_gone(browser: Browser, source: LiveSource) -> None:
    server = HttpServer(HttpSettings(port=0), build_app(source))
    server.start()
    page = browser.new_page()
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("ready")
    server.stop()
    expect(page.locator("#state")).to_have_text("no answer")
    expect(page.locator("#notice")).to_be_visible()
    page.close()
