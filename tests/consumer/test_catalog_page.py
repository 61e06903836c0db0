"""The catalog page: its HTML, and in a real browser."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from consumer.service.catalog_page import catalog_page
from consumer.service.http import HttpServer, build_app
from consumer.service.settings import HttpSettings
from tests.consumer.test_status_page import CHROMIUM, LiveSource, browser  # noqa: F401  the fixture
from tests.consumer.test_status_page import pytestmark as needs_a_browser


def version(name: str, standing: str = "", **changes: Any) -> dict[str, Any]:
    known = {"model": "films-1", "version": name, "label": None, "items": 12345, "bytes": 3 << 20, "standing": standing}
    more = {"chain": [], "canaries": 0, "signed": False, "pinned_by": [], "active_on": 0, "resident_on": 0}
    return known | more | {"condemned_by": []} | changes


def instance(name: str, **changes: Any) -> dict[str, Any]:
    known = {"instance": name, "model": "films-1", "group": "g", "version": "v2", "target": "v2", "generation": 7}
    more: dict[str, Any] = {"state": "current", "error": None, "pinned": False, "condemned": {}, "kept": {}}
    return known | more | {"resident": ["v2"], "resident_bytes": 1, "staleness_s": 0.4, "age_s": 2.0} | changes


class Source(LiveSource):
    """A fleet that a test changes."""

    def __init__(self) -> None:
        super().__init__()
        self.here: dict[str, Any] = {
            **{"state": "current", "active": "v2", "previous": "v1", "generation": 7, "staleness_s": 0.4},
            **{"last_refusal": None, "pinned": False, "resident": {"v2": 5 << 20, "v1": 4 << 20}},
            **{"condemned": {}, "kept": {}},
        }
        self.fleet: dict[str, Any] = {
            "versions": [
                version("v2", "current", chain=["v1", "v0"], active_on=2, resident_on=2, signed=True, canaries=3),
                version("v1", "rollback", label="monday", pinned_by=["night"]),
                version("v0"),
            ],
            "instances": [instance("i1"), instance("i2", state="rolled_back", error="empty_rate: 40 % had no items")],
            "pins": {"night": {"serve": "v1", "keep": ["v0"], "generation": 3}},
            "quarantine": {"bad": {"reason": "empty_rate", "message": "<i>empty</i>", "by": "guard", "time_ms": 1}},
            "error": None,
        }

    def catalog(self) -> Mapping[str, Any]:
        return {"instance": "i1", "here": self.here, "fleet": self.fleet}


@pytest.fixture
def source() -> Source:
    return Source()


def test_nothing_from_outside_becomes_markup(source: Source) -> None:
    evil = "<script>alert(1)</script>"
    source.fleet["versions"] = [
        version(evil, label=evil, model=evil, chain=[evil], pinned_by=[evil], condemned_by=[evil])
    ]
    source.fleet["instances"] = [instance(evil, error=evil, state=evil, version=evil, condemned={evil: evil})]
    source.fleet["pins"] = {evil: {"serve": evil, "keep": [evil]}}
    source.fleet["quarantine"] = {evil: {"reason": evil, "message": evil, "by": evil}}
    source.fleet["error"] = evil
    source.here |= {"active": evil, "resident": {evil: 1}, "condemned": {evil: evil}, "state": evil}
    source.here["last_refusal"] = {"version": evil, "reason": evil, "message": evil}
    assert evil not in catalog_page({**source.catalog(), "instance": evil})


def test_a_process_without_a_model_yet_has_a_page() -> None:
    here = dict.fromkeys(("state", "active", "previous", "generation", "staleness_s", "last_refusal"))
    empty = {"instance": "i1", "here": here | {"resident": {}, "condemned": {}, "kept": {}}, "fleet": None}
    page = catalog_page(empty)
    assert "none yet" in page
    assert page.count('class="label">Redis was not read yet<') == 4


def test_what_redis_does_not_have_is_none_once_it_was_read(source: Source) -> None:
    source.fleet = dict.fromkeys(("versions", "instances"), ()) | {"pins": {}, "quarantine": {}, "error": None}
    assert catalog_page(source.catalog()).count('class="label">none<') == 4


@pytest.fixture
def server(source: Source) -> Iterator[HttpServer]:
    server = HttpServer(HttpSettings(port=0), build_app(source))
    server.start()
    yield server
    server.stop()


def test_the_same_is_there_as_json(server: HttpServer, source: Source) -> None:
    assert httpx.get(f"{server.url}/catalog.json").json() == source.catalog()


@pytest.fixture
def page(browser: Browser, server: HttpServer) -> Iterator[Page]:  # noqa: F811
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"{server.url}/catalog")
    yield page
    page.close()
    assert complaints == []


@pytest.mark.usefixtures("source")
class TestInABrowser:
    pytestmark = needs_a_browser

    def test_it_shows_versions_instances_pins_and_the_quarantine(self, page: Page) -> None:
        versions = page.locator("#versions tbody tr")
        expect(versions).to_have_count(3)
        for words in ("v2", "current", "12,345", "3.0 MiB", "5.0 MiB", "2 / 2", "changes v1", "3 canaries", "signed"):
            expect(versions.nth(0)).to_contain_text(words)
        expect(versions.nth(1)).to_contain_text("rollback goes here")
        expect(versions.nth(1)).to_contain_text("pinned by night")
        expect(page.locator("#instances tbody tr")).to_have_count(2)
        expect(page.locator("#instances")).to_contain_text("rolled back")
        expect(page.locator("#instances")).to_contain_text("empty_rate: 40 % had no items")
        expect(page.locator("#pins")).to_contain_text("night")
        expect(page.locator("#quarantine")).to_contain_text("<i>empty</i>")
        expect(page.locator("#quarantine i")).to_have_count(0)

    def test_it_follows_without_a_reload(self, page: Page, source: Source) -> None:
        expect(page.locator("#own")).to_contain_text("v2")
        source.here = source.here | {"active": "v1", "state": "rolled_back", "condemned": {"v2": "empty_rate: worse"}}
        expect(page.locator("#own")).to_contain_text("rolled back")
        expect(page.locator("#quarantine")).to_contain_text("empty_rate: worse")

    def test_it_works_without_scripts(self, browser: Browser, server: HttpServer) -> None:  # noqa: F811
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(f"{server.url}/catalog")
        expect(page.locator("#versions tbody tr")).to_have_count(3)
        context.close()

    def test_it_says_so_when_redis_or_the_service_is_gone(self, page: Page, source: Source, server: HttpServer) -> None:
        expect(page.locator("#notice")).to_be_hidden()
        source.fleet = source.fleet | {"error": "Connection refused"}
        expect(page.locator("#notice")).to_have_text("Connection refused")
        expect(page.locator("#versions tbody tr")).to_have_count(3)

    def test_it_fits_a_narrow_screen_and_is_a_link_away_from_the_status(self, page: Page) -> None:
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.get_by_role("link", name="status").click()
        expect(page.locator("#state")).to_have_text("ready")
        page.get_by_role("link", name="catalog").click()
        expect(page.locator("#versions")).to_be_visible()
