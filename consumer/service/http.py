"""The HTTP side: metrics, probes, status and its page, served by a thread of their own."""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from threading import Thread
from typing import Any, Protocol

import uvicorn
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from consumer.service.catalog_page import catalog_page, styled
from consumer.service.settings import HttpSettings

STOP_WAIT_S = 5.0

_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_NOT_STORED = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class StatusSource(Protocol):
    """What the endpoints show. Called from the HTTP thread."""

    @property
    def registry(self) -> CollectorRegistry: ...

    def refresh(self) -> None:
        """Bring the gauges of ``registry`` up to date."""

    def faults(self) -> tuple[str, ...]:
        """Why this process should be restarted; empty when it lives."""

    def unready(self) -> tuple[str, ...]:
        """Why it takes no work; empty when it is ready."""

    def status(self) -> Mapping[str, Any]:
        """All that an operator may see, as JSON, secrets redacted."""

    def catalog(self) -> Mapping[str, Any]:
        """Versions, instances, pins and quarantine as JSON; see ``catalog_page.py``."""


def build_app(source: StatusSource, page: str = "status.html", below: Sequence[BaseRoute] = ()) -> Starlette:
    """The endpoints of ``source``: ``page`` is the file that shows /status at /, ``below`` are more routes."""
    html = styled(files("consumer.service").joinpath(page).read_text(encoding="utf-8"))

    def metrics(request: Request) -> Response:
        source.refresh()
        encode, content_type = _encoder(request.headers.get("accept", ""))
        return Response(encode(source.registry), headers=_NOT_STORED | {"content-type": content_type})

    def healthz(request: Request) -> Response:
        faults = source.faults()
        return _json({"healthy": not faults, "reasons": faults}, 503 if faults else 200)

    def readyz(request: Request) -> Response:
        reasons = source.unready()
        return _json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    def status(request: Request) -> Response:
        return _json(source.status())

    def index(request: Request) -> Response:
        return HTMLResponse(html, headers=_PAGE_HEADERS)

    def catalog(request: Request) -> Response:
        return HTMLResponse(catalog_page(source.catalog()), headers=_PAGE_HEADERS | {"cache-control": "no-store"})

    def catalog_json(request: Request) -> Response:
        return _json(source.catalog())

    endpoints: dict[str, Callable[[Request], Response]] = {
        "/": index,
        "/metrics": metrics,
        "/healthz": healthz,
        "/readyz": readyz,
        "/status": status,
        "/catalog": catalog,
        "/catalog.json": catalog_json,
    }
    return Starlette(routes=[*(Route(path, _on_the_loop(endpoint)) for path, endpoint in endpoints.items()), *below])


class HttpServer:
    """Serves ``app`` from :meth:`start` to :meth:`stop`; binds the port at once and raises OSError if it is in use."""

    def __init__(self, settings: HttpSettings, app: Starlette) -> None:
        try:
            family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((settings.host, settings.port), family=family)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            reason = getattr(error, "strerror", None) or error
            raise OSError(f"http.host {settings.host}, http.port {settings.port}: {reason}") from error
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        )
        self._thread = Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(STOP_WAIT_S)
        self._socket.close()


def _json(content: Mapping[str, Any], status_code: int = 200) -> JSONResponse:
    return JSONResponse(content, status_code, headers=_NOT_STORED)


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        return choose_encoder("")


def _on_the_loop(endpoint: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Endpoints take well under a millisecond: run where they are, without a hop to a thread pool."""

    async def run(request: Request) -> Response:
        return endpoint(request)

    return run
