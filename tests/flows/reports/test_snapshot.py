"""What two versions of a file are compared by."""

from __future__ import annotations

from io import StringIO

from pteforge.flows.cli.release import print_differences
from pteforge.flows.releases.difference import FileDifference
from pteforge.flows.reports.snapshot import latencies
from pteforge.formats.contract import Contract
from pteforge.tasks.results.costs import Timing
from pteforge.tasks.results.delivered import Delivered
from rich.console import Console


def timed(seconds, machine="Cortex-A76"):
    timing = Timing(
        "", "forward", "phone", machine, load=1.0, first=1.0, median=seconds, p95=1.0, calls=5, peak_memory=0
    )
    return Delivered("net", "plain", "made", findings=(timing,))


def test_latencies():
    """Times in one place on machines of one kind are compared; they are shown, and make no file a changed one."""
    before, after = timed(0.2), timed(0.15)
    assert latencies(before, timed(0.15, "Cortex-A53")) == ()
    file = FileDifference("net/plain", before, after, times=latencies(before, after))
    print_differences(Console(file=(said := StringIO()), width=120), [file])
    assert file.status == "equal"
    assert file.to_json()["times"] == [
        {"area": "times", "name": "latency of method 'forward' on phone (Cortex-A76), s", "before": 0.2, "after": 0.15}
    ]
    assert "-25.0 %" in said.getvalue()
    assert "no differences" in said.getvalue()


def test_what_a_runtime_must_have():
    """The oldest runtime that opens a file, and the libraries that an app links for it, are facts of the file."""
    contract = Contract({"aten::add.out": ("",)}, ("NfatBackend",), runtimes={"1.4": "derived", "1.5": "run"})
    facts = {fact.name: fact.value for fact in Delivered("net", "fat", "made", contract=contract).facts()}
    assert facts["oldest runtime"] == "1.4"
    assert facts["libraries to link"] == "portable_ops_lib, nfat_backend"
