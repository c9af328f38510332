"""A Prefect server that fails at any one kind of call: files are made every time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pteforge.tests.faults.prefect_server import Exporter, Spoiler, make_scored_project
from pteforge.tests.faulty_proxy import Proxy, run_proxy

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

FAULTS = ("unavailable", "lost reply", "reset", "stall")


@pytest.fixture
def proxy(server) -> Iterator[tuple[Spoiler, str]]:
    """What a proxy does, and the URL of the API behind it."""
    made = Spoiler()
    with run_proxy(Proxy(server, made.choose)) as url:
        yield made, f"{url}/api"


def test_every_kind_of_call(tmp_path: Path, proxy):
    """Whatever kind of call is answered with 503 or in vain, reset, or never answered, in turn: all files are there.

    The campaign in `tests/faults` pairs kinds and faults at random, with parts of the calls.
    """
    made, url = proxy
    exporter = Exporter(make_scored_project(tmp_path / "project"), url)
    try:
        assert not exporter.export()
        kinds = sorted(made.kinds)
        assert {"POST /api/flow_runs/", "POST /api/flow_runs/ID/set_state", "POST /api/logs/"} <= set(kinds)
        lost, met = set(), set()
        for made.kind, made.fault in zip(kinds, itertools.cycle(FAULTS), strict=False):
            made.spoilt = 0
            if exporter.export():
                lost.add(made.kind)
            if made.spoilt:
                met.add(made.kind)
    finally:
        exporter.close()
    assert "Traceback" not in exporter.said
    assert "POST /api/flow_runs/" in lost
    assert set(kinds) - met <= {"GET /api/admin/version", "GET /api/flows/ID"}  # asked for once per process
