"""The page of several GPUs in a real browser."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from prometheus_client import CollectorRegistry
from starlette.responses import HTMLResponse
from starlette.routing import Route

from consumer.service.http import HttpServer, build_app
from consumer.service.settings import HttpSettings
from tests.consumer.test_status_page import CHROMIUM, FLAGS, NO_VALUE

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).is_file(), reason="no Chromium on PATH and none named by CHROMIUM"),
]

SERVING = {
    "stream": {"partitions": [{}, {}], "lag_messages": 17},
    "replies": {"ok": 1200, "expired": 34},
    "latency_ms": {"p50": 20.0, "p99": 41.6},
}


class TwoGpus:
    """One that serves and one that has gone."""

    registry = CollectorRegistry()

    def refresh(self) -> None: ...

    def faults(self) -> tuple[str, ...]:
        return ()

    def unready(self) -> tuple[str, ...]:
        return ("GPU 5: gone",)

    def catalog(self) -> Mapping[str, Any]:
        return {}

    def status(self) -> Mapping[str, Any]:
        return {
            "service": {"version": "0.1.0", "ready": False},
            "gpus": [
                {"gpu": "2", "restarts": 0, "ready": True, "reasons": [], "status": SERVING},
                {"gpu": "5", "restarts": 3, "ready": False, "reasons": ["<b>gone</b>"], "status": None},
            ],
        }


@pytest.fixture
def page() -> Iterator[Page]:
    below = [Route("/gpus/2/", lambda _: HTMLResponse('<link rel="icon" href="data:,">the page of GPU 2'))]
    server = HttpServer(HttpSettings(port=0), build_app(TwoGpus(), "fleet.html", below))
    server.start()
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 600})
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(server.url)
        yield page
        browser.close()
    server.stop()
    assert complaints == []


def test_every_gpu_is_a_row_that_leads_to_its_page(page: Page) -> None:
    expect(page.locator("#state")).to_have_text("not ready")
    expect(page.locator("#about")).to_contain_text("2 processes")
    serving, gone = page.locator("#gpus tr").all()
    assert serving.locator("th, td").all_inner_texts() == ["2", "ready", "2", "17", "1,234", "42", "0"]
    assert gone.locator("th, td").all_inner_texts() == ["5", "<b>gone</b>", *[NO_VALUE] * 4, "3"]
    serving.locator("a").click()
    expect(page.locator("body")).to_have_text("the page of GPU 2")
