"""The run history of every store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pteforge.artifacts import runs
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.runs import FieldChange, RunRecord, StageOutcome
from pteforge.errors import InputError

START = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
OUTCOME = StageOutcome(
    slot="resnet8/export/forward",
    stage="export",
    method="forward",
    recipes=("portable-fp32", "xnnpack-fp32"),
    status="ran",
    key=digest_bytes(b"key"),
    differs=(FieldChange("versions.torch", "2.12.0", "2.13.0"), FieldChange("params.strict", None, True)),
    seconds=2,
)
FAILURE = StageOutcome("lstm/preprocess", "preprocess", None, ("xnnpack-fp32",), "failed", None, message="it broke")


def _run(number: int, *models: str) -> RunRecord:
    started = (START + timedelta(seconds=number)).isoformat()
    return RunRecord(f"run-{number}", "starter.yaml", started, 12.5, dict.fromkeys(models, (OUTCOME, FAILURE)))


def test_latest_run(place):
    """Runs of any host come in the order in which they started, the latest first."""
    with place.open("a") as store, place.open("b") as writer:
        assert list(store.runs) == []
        for number, model in ((2, "lstm"), (0, "resnet8"), (1, "resnet8")):
            writer.runs.write(_run(number, model))
        assert next(iter(store.runs)) == _run(2, "lstm")
        assert [run.id for run in store.runs] == ["run-2", "run-1", "run-0"]


def test_old_runs_go(place, monkeypatch):
    """Old runs of a zoo are dropped, and those of others stay, however many there are of this one."""
    monkeypatch.setattr(runs, "RETAINED", 3)
    with place.open() as store:
        other = replace(_run(0, "lstm"), zoo="other")
        store.runs.write(other)
        for number in range(1, 6):
            store.runs.write(_run(number, "resnet8"))
        assert [run.id for run in store.runs] == ["run-5", "run-4", "run-3", "run-0"]
        assert list(store.runs.of_zoo("other")) == [other]
        assert [run.id for run in store.runs.of_zoo("starter.yaml")] == ["run-5", "run-4", "run-3"]
        assert store.runs.find("run-4") == store.runs.take("run-4") == _run(4, "resnet8")
        assert store.runs.find("run-4") is None
        assert [run.id for run in store.runs] == ["run-5", "run-3", "run-0"]


def test_names(place):
    """Names are unique in the store, ambiguous ones are refused with the candidates, and attempts have numbers."""
    nights = ["01a220c0b1d27a10", "01a220c0b1d27b22", "01a220c0b1e27c33", "77"]  # scheduled runs' begin with one time
    with place.open() as store:
        for number, run in enumerate([*nights, nights[1]]):
            store.runs.write(replace(_run(number, "resnet8"), id=run))
        named = {str(name): record for name, record in store.runs.with_names()}
        assert list(named) == ["01a220c0b1d27b@2", "77", "01a220c0b1e", "01a220c0b1d27b@1", "01a220c0b1d27a"]
        for name, record in named.items():
            assert store.runs.named(name)[1] == record
        assert store.runs.named(nights[1])[1] == store.runs.named("01a220c0b1d27b")[1] == named["01a220c0b1d27b@2"]
        assert store.runs.named("") is store.runs.named("02") is None
        with pytest.raises(InputError, match=r"'01a2' .*3 runs: 01a220c0b1d27b \(2026-01-02 03:04 UTC\)"):
            store.runs.named("01a2")
        for wrong in ("@0", "@3", "@x", "@²"):
            with pytest.raises(InputError, match="had attempts 1 to 2"):
                store.runs.named(nights[1] + wrong)


def test_namesakes(place):
    """The newest run of each other file whose zoo has the same name is found."""

    def run(number, file, zoo="starter.yaml"):
        return replace(_run(number, "resnet8"), zoo=zoo, parameters={"zoo": file})

    with place.open() as store:
        for number, (file, zoo) in enumerate(
            [("/a/z.yaml", "z"), ("/a/z.yaml", "z"), ("/b/z.yaml", "z"), ("/c/z.yaml", "other"), ("/d/z.yaml", "z")]
        ):
            store.runs.write(run(number, file, zoo))
        assert [found.id for found in store.runs.namesakes(run(9, "/d/z.yaml", "z"))] == ["run-2", "run-1"]
        assert list(store.runs.namesakes(run(9, "/c/z.yaml", "other"))) == []


def test_unreadable_runs_are_left_out(place, caplog):
    """Damaged runs do not hide others, and each is reported once."""
    contents = (b"", b"{", b"{}", b"[]", b"\xff", b'{"id": 1}', b"[" * 100_000, b" " * 5000)
    with place.open() as store:
        store.runs.write(_run(0, "resnet8"))
        for number, content in enumerate(contents):
            store.runs._files.write(f"runs/20990101T000000.000000-bad{number}.json", content)
        for _ in range(2):
            assert next(iter(store.runs)) == _run(0, "resnet8")
        for number in range(len(contents)):
            assert caplog.text.count(f"20990101T000000.000000-bad{number}.json") == 1


def test_run_without_a_seal(place, caplog):
    """It counts as absent."""
    run = _run(0, "resnet8")
    with place.open() as store:
        store.runs._files.write("runs/20260101T000000.000000-run-0.json", run.encode())
        assert list(store.runs) == []
        assert "not a record" in caplog.text


def test_changed_run(place, caplog):
    """A run in which a number has changed counts as absent."""
    with place.open() as store:
        store.runs.write(_run(0, "resnet8"))
        (name,) = store.runs._files.names("runs")
        written = store.runs._files.read(name)
        assert b'"seconds":' in written
        store.runs._files.write(name, written.replace(b'"seconds":', b'"seconds":1', 1))
        assert list(store.runs) == []
        assert "seal" in caplog.text or "not used" in caplog.text
