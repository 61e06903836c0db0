"""The example of the README runs as it stands."""

import re
from pathlib import Path

import numpy as np
import pytest

from consumer.stream.mock_cluster import MockCluster
from consumer.wire.reply import encode_reply
from consumer.wire.request import decode
from consumer.wire.settings import WireLimits
from engine.request import RecallResult
from tests.consumer.echo_service import echo_service

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "localhost:9092"


def same_history(value: bytes, key: bytes | None) -> list[bytes]:
    wire = decode(value, key=key, limits=WireLimits())
    assert isinstance(wire.history, np.ndarray)
    result = RecallResult(
        items=wire.history,
        scores=np.zeros(len(wire.history), np.float32),
        sids=None,
        fields={},
        model="m1",
        catalog="c1",
        beam_widths=(4,),
        exhausted=False,
    )
    return [encode_reply(wire, result, queue_ms=1.0, total_ms=2.0)]


def test_the_python_example_prints_items_and_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert ADDRESS in example
    with MockCluster({"recall.requests": 1, "recall.replies": 1}) as cluster:
        here = example.replace(ADDRESS, cluster.bootstrap_servers)
        with echo_service(cluster.bootstrap_servers, "recall.requests", same_history):
            exec(compile(here, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page
    assert capsys.readouterr().out == "[1193  661  914] c1\n"
