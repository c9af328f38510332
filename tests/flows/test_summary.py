"""What a run prints at its end: failures with the end of their logs, and then the summary; and ladders as tables."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.runs import RunRecord, StageOutcome
from pteforge.configs.model import Limits
from pteforge.errors import StageFailed
from pteforge.flows.cli import progress
from pteforge.flows.cli.progress import Failures, Lines, print_failures, print_summary
from pteforge.flows.reports.figures_text import ladders_table, table_of
from pteforge.flows.run.outcome import ModelOutcome, ZooOutcome
from pteforge.tasks.backend.stages.edge import Edge
from pteforge.tasks.engine.runner import StageCall, StageId
from pteforge.tasks.results.delivered import Delivered, Failure
from pteforge.tasks.results.figures import Case, Figures, Searched, Worst
from pteforge.tasks.results.numerics import Rung, Rungs
from pteforge.tasks.results.quantization import LeftWeight, Quantization
from pteforge.tasks.results.tables import rungs_of
from rich.console import Console


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Without ``--verbose``, whatever level other tests have left."""
    caplog.set_level(logging.WARNING, "pteforge")


def call():
    """A call of a stage of the model."""
    return StageCall("net", StageId("partition", "forward"), Edge, None, {}, Limits(), Path())


def stages(**counts):
    """So many stages of each status."""
    outcomes = {status: StageOutcome("net/edge", "edge", None, (), status, None) for status in counts}
    return tuple(outcomes[status] for status, count in counts.items() for _ in range(count))


@pytest.fixture
def failed():
    """Makes the outcome of a zoo in which a step of two recipes failed with a log."""

    def make(log, problem="no such operator"):
        failure = Failure("partition/forward", problem, log, bad_input=False)
        recipes = tuple(Delivered("net", name, "failed", failure=failure) for name in ("first", "second"))
        return ZooOutcome("zoo", (ModelOutcome("net", recipes, stages(ran=3, cached=1)),), 2.0)

    return make


def test_long_logs_are_shortened(failed, capsys, tmp_path, monkeypatch):
    """The last 15 lines of a log are printed, once, with where the others are; a short log is printed whole."""
    monkeypatch.chdir(tmp_path)
    outcome = failed("\n".join(f"line {number}" for number in range(40)))
    print_failures(outcome, Failures(tmp_path / "out" / "index.html"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "",
        "net partition/forward: no such operator",
        "... 25 earlier lines are in out/index.html",
        *(f"line {number}" for number in range(25, 40)),
    ]
    print_failures(failed("only line\n"), Failures(tmp_path / "out" / "index.html"))
    assert capsys.readouterr().err.splitlines()[2:] == ["only line"]


def test_failures_are_printed_once(failed, capsys):
    """What was printed as it happened is not printed again at the end, for none of the recipes that share it."""
    failures, outcome = Failures(), failed("")
    lines = Lines(failures)
    lines.failed(call(), StageFailed("no such operator"))
    assert "no such operator" in capsys.readouterr().err
    lines.completed(outcome.models[0])
    print_failures(outcome, failures)
    assert "no such operator" not in capsys.readouterr().err


def test_advice_is_printed_once_found(failed, capsys):
    """Without the problem, which was printed as it happened. Files that are tried to find it fail without a word."""
    failures, outcome = Failures(), failed("", "no such operator; use another")
    lines = Lines(failures)
    lines.failed(call(), StageFailed("no such operator"))
    lines.failed(replace(call(), id=replace(call().id, attempt=1)), StageFailed("nor this one"))
    assert "nor this one" not in capsys.readouterr().err
    lines.completed(outcome.models[0])
    print_failures(outcome, failures)
    printed = capsys.readouterr().err.splitlines()
    assert printed[:2] == ["", "net partition/forward: use another"]
    assert not any("no such operator" in line for line in printed)


def test_the_summary_names_the_page(failed, capsys, tmp_path, monkeypatch):
    """The last line of the summary has the totals, and where the page is if there is one."""
    monkeypatch.chdir(tmp_path)
    for page, end in ((tmp_path / "out" / "index.html", "; see out/index.html"), (None, "")):
        print_summary(failed(""), page)
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"0 files verified, 2 failed; 3 stages run, 1 cached, 2.0 s{end}"


def test_narrow_terminals(failed, capsys, tmp_path, monkeypatch):
    """Where all columns do not fit, those go that matter least, before names and steps are broken."""
    figures = Figures(Worst(3, 1e-7, 1e-7, 140.2), {}, {}, {}, ())
    recipe = Delivered(
        "net", "xnnpack-int8-dynamic", "made", path=tmp_path / "file.pte", size=2048, findings=(figures,)
    )
    outcome = failed("")
    (model,) = outcome.models
    outcome = replace(outcome, models=(replace(model, recipes=(*model.recipes, recipe)),))
    for width, names in ((100, "size max abs error SQNR cases"), (95, "size max abs error SQNR"), (80, "size SQNR")):
        monkeypatch.setattr(progress, "open_console", lambda width=width: Console(width=width))
        print_summary(outcome)
        out = capsys.readouterr().out
        assert out.splitlines()[1].split() == ["model", "recipe", "status", *names.split()]
        assert "failed at partition " in out
        assert "xnnpack-int8-dynamic   verified" in out


@pytest.mark.parametrize(
    ("worst", "differing", "said"),
    [
        (Case("forward", "searched [3, 17], one-hot", 0, 1e-3, 1e-4, 61.2), 0, "worst 61.2 dB at [3, 17], one-hot"),
        (
            Case("forward", "searched [2], zeros", 0, 1, 1, None, counted=8, equal=6),
            0,
            "worst 6 of 8 equal at [2], zeros",
        ),
        (None, 2, "worst exact; 2 returned other bits when they were repeated"),
    ],
)
def test_what_a_search_came_to(worst, differing, said):
    """A line says how many inputs were searched, how long, and which was worst; it stands out where answers differ."""
    searched = Searched(20.0, 214, 3, differing, worst)
    (fact,) = Delivered("net", "int8", "made", findings=(searched,)).notes
    assert (fact.note, fact.telling) == (f"searched 214 inputs in 20 s, {said}", bool(differing))


@pytest.mark.parametrize(("quantized", "style"), [(40, "33"), (60, "2")], ids=["yellow", "dim"])
def test_what_quantization_reached(quantized, style, tmp_path, monkeypatch):
    """A line says the share of the weights, what is left and why, in yellow below half of them."""
    left = (LeftWeight("table.weight", ("aten.embedding",), 100 - quantized, "quantizers leave tables"),)
    reached = Quantization({"float32": 40, "int8": 10}, 100, quantized, left, "forward")
    recipe = Delivered("net", "int8", "made", path=tmp_path / "file.pte", findings=(reached,))
    console = Console(width=200, force_terminal=True, color_system="standard", record=True)
    monkeypatch.setattr(progress, "open_console", lambda: console)
    print_summary(ZooOutcome("zoo", (ModelOutcome("net", (recipe,), stages(ran=1)),), 2.0))
    text = f"{quantized}% of the weights are integers; in floating point: table.weight (quantizers leave tables)"
    assert f"\x1b[{style}mnet/int8: {text}\x1b[0m" in console.export_text(styles=True)


@pytest.fixture
def zoo(tmp_path):
    """The outcome of a run of 150 models, of which a few changed, are new, or failed; and what was made before."""
    figures = Figures(Worst(3, 1e-7, 1e-7, 140.2), {}, {}, {}, ())
    every = [
        Delivered(f"net{number}", recipe, "cached", path=tmp_path / f"net{number}" / f"{recipe}.pte", size=1000,
                  digests={"pte": f"{number:064}"}, findings=(replace(figures, notes=(f"note {number}",)),))
        for number in range(150)
        for recipe in ("fat", "portable-fp32")
    ]  # fmt: skip
    files = {f"net{number}": {} for number in range(150)}
    for made in every:
        files[made.model][made.recipe] = made.to_json()
    before = RunRecord("0", "zoo", "2026-01-02T03:04:05+00:00", 1.0, {}, files=files)

    def make(**changes):
        recipes = [replace(made, **changes.get(made.model, {})) for made in every]
        models = (ModelOutcome(made.model, (made,), stages(cached=6)) for made in recipes)
        return ZooOutcome("zoo", tuple(models), 2.0)

    return make, before


def test_a_good_night_is_short(zoo, capsys):
    """Where all 300 files are as before, the summary says so in one line."""
    make, before = zoo
    print_summary(make(), None, before)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "300 files are as before; `pteforge --verbose export` lists all"
    assert len(rest) == 2
    assert rest[-1].startswith("300 files verified")


def test_long_summaries_list_what_changed(zoo, capsys, monkeypatch):
    """Files that failed, changed or are new have rows, in that order, with what is different; --verbose lists all."""
    make, before = zoo
    del before.files["net9"]["fat"]
    broken = Delivered("net8", "fat", "failed", failure=Failure("edge", "no", "", bad_input=False))
    before.files["net8"]["fat"] = broken.to_json()
    failed = {"status": "failed", "failure": Failure("verify/fat", "no", "", bad_input=False), "path": None}
    changed = {"status": "made", "size": 1100, "digests": {"pte": "0" * 64}}
    outcome = make(net7=failed, net20=changed, net30=changed | {"size": 1000})
    print_summary(outcome, None, before)
    out = capsys.readouterr().out
    rows = [re.split(r" {2,}", line.strip()) for line in out.splitlines() if re.match(r" ?net\d+ ", line)]
    assert [row[0] for row in rows] == ["net7", "net7", "net8", "net20", "net20", "net30", "net30", "net9"]
    assert rows[0][2:] == ["failed at verify", "made before"]
    assert [row[3] for row in rows[2:7]] == ["failed before", *["size +10.0 %"] * 2, *["other bytes"] * 2]
    assert "292 files are as before" in out
    monkeypatch.setattr(progress, "verbose", lambda: True)
    print_summary(outcome, None, before)
    assert len(re.findall(r"^ ?net\d+ ", capsys.readouterr().out, re.MULTILINE)) == 300


def test_the_first_night_fits_a_screen(zoo, capsys):
    """If all is new, some rows and notes stand for all; all failures have rows, as many as there are."""
    make, _ = zoo
    print_summary(make())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 45
    assert any("280 files are new" in line for line in lines)
    assert any("more notes are on the page about the run" in line for line in lines)
    failed = {"status": "failed", "failure": Failure("verify/fat", "no", "", bad_input=False), "path": None}
    print_summary(make(**{f"net{number}": failed for number in range(20)}))
    assert capsys.readouterr().out.count("failed at verify") == 40


def test_quiet_runs(warm, pteforge):
    """--quiet prints one line about a run without failures, and no rows."""
    assert "last run" not in pteforge(warm, "export", "zoo.yaml").out  # nothing differs
    said = pteforge(warm, "export", "zoo.yaml", "--quiet")
    assert said.err == ""
    (line,) = said.out.splitlines()
    assert line.startswith("4 files verified in out; 0 stages run, 26 cached")


def shown(table):
    """Words of the lines of a table, without its rules."""
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    lines = [line.split() for line in text.getvalue().splitlines()]
    return [line for line in lines if line and "─" not in line[0]]


def rung(name, ratio, specializations=(), method="forward", top1=None):
    """A rung with figures; a ratio of None means equal to eager."""
    return Rung(name, specializations, method, Worst(3, 0.5, 0.25, ratio, top1))


PLAIN = Rungs((rung("exported", None), rung("quantized", 34.25, top1=0.875), rung("payload", 33.0, top1=0.75)))
FAT = Rungs(
    (
        rung("exported", None),
        rung("exported", None, method="encode"),
        rung("edge", 140.0, ("a", "b")),
        rung("edge", 130.0, ("a", "b"), "encode"),
        Rung("payload", ("a",), "forward", None, "needs AcmeBackend"),
        rung("payload", 139.0, ("b",)),
        rung("payload", 129.0, ("b",), "encode"),
    )
)


def test_one_ladder():
    """Each rung has all figures, the method if there are several, and the reason if it could not run."""
    assert shown(table_of(rungs_of(PLAIN))) == [
        ["rung", "max", "abs", "error", "relative", "SQNR", "top-1"],
        ["exported", "0.5", "0.25", "exact"],
        ["quantized", "0.5", "0.25", "34.2", "dB", "87.5", "%"],
        ["payload", "0.5", "0.25", "33.0", "dB", "75.0", "%"],
    ]
    lines = shown(table_of(rungs_of(FAT)))
    assert lines[0][:2] == ["rung", "method"]
    assert lines[2][:2] == ["exported", "encode"]
    assert lines[5] == ["payload.a", "forward", "not", "run:", "needs", "AcmeBackend"]


def test_many_ladders():
    """Each path to a payload is a row, with the columns that any of them has; top-1 is that of the last rung."""
    assert shown(ladders_table([("net/int8", PLAIN), ("other/fat", FAT)])) == [
        ["SQNR", "against", "eager", "exported", "quantized", "edge", "payload", "top-1"],
        ["net/int8", "exact", "34.2", "dB", "33.0", "dB", "75.0", "%"],
        ["other/fat.a", "exact", "140.0", "dB", "not", "run"],
        ["other/fat.b", "exact", "140.0", "dB", "139.0", "dB"],
        ["other/fat.b", "encode", "exact", "130.0", "dB", "129.0", "dB"],
    ]


@pytest.mark.parametrize(("size", "advised"), [(1100, False), (2000, True)])
def test_what_fat_costs(size, advised, tmp_path):
    """A line says how many times its largest payload a fat file is, with advice where that is much."""
    sizes = {"vulkan": 1000, "xnnpack": 900}
    (fact,) = Delivered("net", "fat", "made", path=tmp_path / "fat.pte", size=size, payload_sizes=sizes).notes
    assert f"{size / 1000:.2f} times its largest payload (vulkan, 1000 B)" in fact.note
    assert ("ship plain files" in fact.note) == advised
