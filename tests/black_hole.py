"""A TCP proxy that can stop answering without closing anything: a half-open peer. For Redis and for Kafka."""

import selectors
import socket
import threading
from contextlib import suppress


class BlackHole:
    """Forwards to a loopback port. ``swallow()`` freezes every connection of this moment; later ones work."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peer: dict[socket.socket, socket.socket] = {}
        self._frozen = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def forward_to(self, port: int) -> None:
        """Later connections go to another port."""
        self._target = port

    def swallow(self) -> None:
        self._frozen.set()
        while self._frozen.is_set():
            self._stop.wait(0.005)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for end in (*self._peer, self._listener):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._frozen.is_set():
                for end in self._peer:
                    with suppress(KeyError):
                        self._selector.unregister(end)
                self._frozen.clear()
            for key, _ in self._selector.select(0.01):
                self._accept() if key.fileobj is self._listener else self._forward(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # as if nobody listened here
            client.close()
            return
        self._peer |= {client: server, server: client}
        for end in (client, server):
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: object) -> None:
        assert isinstance(end, socket.socket)
        with suppress(OSError):
            if data := end.recv(1 << 16):
                self._peer[end].sendall(data)
                return
        for side in (end, self._peer[end]):
            with suppress(KeyError, ValueError):
                self._selector.unregister(side)
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
