"""What came of a model and recipe: one record with one JSON, of files, failures and what does not apply."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.artifacts.runs import RunRecord
from pteforge.errors import StageFailed
from pteforge.formats.contract import Contract
from pteforge.tasks.file import stages
from pteforge.tasks.results import finding
from pteforge.tasks.results.accuracy import AccuracyReport, FoundQuantization, Score, ScoredFile, Scores
from pteforge.tasks.results.costs import MemoryUse, TimeShare, Timing
from pteforge.tasks.results.delegation import NOT_TAKEN, MethodWork, OutsideCalls, format_share
from pteforge.tasks.results.delivered import NO_PROVENANCE, Delivered, Failure, MethodCalls, delivered_by
from pteforge.tasks.results.diagnosis import Cause
from pteforge.tasks.results.figures import WHOLE_FILE, Case, Figures, Proof, Searched, Worst
from pteforge.tasks.results.numerics import Rung
from pteforge.tasks.results.quantization import LeftWeight, Quantization

BLOB = BlobRef(digest_bytes(b""), 0)
WORST = Worst(3, 1e-7, 1e-6, 40.5, top1=1.0)
FIGURES = Figures(WORST, {"forward": WORST}, {}, {}, drawn=WORST, calibration={"forward": "8 samples"}, notes=("a",))
MADE = Delivered(
    "net",
    "int8",
    "made",
    Path("out/net/int8.pte"),
    1000,
    digests={"pte": BLOB.digest, "ptd": BLOB.digest, "json": BLOB.digest},
    assets={"labels.txt": BLOB.digest},
    parts={
        "file": ArtifactRef("payload/pte", BLOB, BLOB.digest),
        "etrecord": ArtifactRef("etrecord", BLOB, BLOB.digest),
    },
    backends=("XnnpackBackend",),
    methods=("forward",),
    targets=("xnnpack",),
    toolchain={"torch": "2"},
    delegated=(MethodCalls("", "forward", 1, 0),),
    contract=Contract(
        {"aten::add.out": ("v1/6;0|6;0",)}, ("XnnpackBackend",), runtimes={"1.4": "derived", "1.5": "run"}
    ),
    left_out={"vulkan": "it is not there"},
    payload_sizes={"xnnpack": 400, "portable": 300},
    findings=(
        AccuracyReport("nets:score", 0.5, None, None, Scores((Score("", 0.75), Score("", 0.5)), {})),
        MethodWork("", "forward", 990, (OutsideCalls("aten.mean.dim", "only supports keepdim=True", 1, 10, True),)),
        FIGURES,
        MemoryUse("", "forward", (100, 20), "board", "example", "1x8", 10, 2, 16, 4, 30, 20),
        Rung("edge", ("xnnpack",), "forward", WORST),
        Quantization({"int8": 10}, 10, 8, (LeftWeight("w", ("aten.mm",), 2, "because"),), "forward"),
        FoundQuantization(("head",), ("head",), 3, (ScoredFile(1, 0.75, passes=True),), 4000),
        Searched(20.0, 214, 3, 1, Case("forward", "searched [3, 17], one-hot", 0, 1e-3, 1e-4, 61.2)),
        Timing("", "forward", "host", "cpu", 0.1, 0.1, 0.01, 0.02, 9, 5, (TimeShare("aten::mm.out", 0.5, 1),)),
    ),
    seconds=1.5,
)
NOT_RUN = Figures(replace(WORST, sqnr_db=None), {}, {}, {WHOLE_FILE: "needs a GPU; its edge program ran instead"})
PROOF = Proof("gpu", "", "", Figures(replace(WORST, sqnr_db=30.5), {}, {}, {}))
FAILED = Delivered(
    "net",
    "fat",
    "failed",
    failure=Failure("export", "no", "log", bad_input=True, findings=(Cause("mode", "no", ("yes",)),)),
    rejected=Path("out/net/fat.rejected.pte"),
)
EVERY = (
    MADE,
    FAILED,
    Delivered("net", "gpu", "not applicable", reason="none"),
    Delivered("net", "x", "cached", until="edge"),
)


@pytest.mark.parametrize("made", EVERY, ids=lambda made: made.status)
def test_the_record_survives_its_json(made):
    """Whoever reads what a run recorded, or what the ledger's index has, gets what was delivered."""
    assert Delivered.decode(made.encode()) == made
    run = RunRecord("run", "zoo", "2026-01-01T00:00:00+00:00", 1.0, {}, files={"net": {made.recipe: made.to_json()}})
    assert delivered_by(RunRecord.decode(run.encode())) == {"net": {made.recipe: made}}


def test_what_cannot_be_understood():
    """An entry of a run that is no such record is left out; JSON that is no provenance is refused by known errors."""
    files = {"net": {"int8": MADE.to_json(), "odd": {"status": "made"}, "worse": {**MADE.to_json(), "size": "x"}}}
    run = RunRecord("run", "zoo", "2026-01-01T00:00:00+00:00", 1.0, {}, files=files)
    assert delivered_by(run) == {"net": {"int8": MADE}}
    for value in (
        {},
        [],
        None,
        1,
        "text",
        {"file": {"sha256": "x", "size": 1}, "data": None},
        {"file": [], "data": []},
    ):
        with pytest.raises(NO_PROVENANCE):
            Delivered.of_provenance(value)


def test_what_users_get():
    """The JSON of the command line says of each status what applies to it."""
    said = MADE.described()
    assert (said["file"], said["data"], said["sha256"]) == ("out/net/int8.pte", "out/net/int8.ptd", BLOB.digest)
    assert (said["sqnr_db"], said["figures"]["drawn"]["sqnr_db"], said["figures"]["notes"]) == (40.5, 40.5, ("a",))
    assert said["assets"] == ["labels.txt"]
    assert [(reached["method"], reached["share"]) for reached in said["quantization"]] == [("forward", 0.8)]
    assert [calls["kept_on_cpu"] for calls in said["delegation"][0]["outside"]] == [True]
    assert (said["memory"][0]["planned"], said["timings"][0]["shares"][0]["name"]) == ((100, 20), "aten::mm.out")
    assert FAILED.described() == {
        "status": "failed",
        **FAILED.failure.to_json(),
        "rejected": "out/net/fat.rejected.pte",
    }
    assert EVERY[2].described() == {"status": "not applicable", "reason": "none"}
    assert (MADE.value("score"), MADE.verified, FAILED.verified) == (0.5, True, False)
    assert Failure.of("edge", StageFailed("no")).step == "edge"
    assert list(MADE.debugging) == [""]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (MADE, "verified"),
        (replace(MADE, status="cached"), "cached"),
        (replace(MADE, findings=(NOT_RUN,)), "made, not run"),
        (replace(MADE, findings=(NOT_RUN, PROOF)), "verified"),
        (FAILED, "failed at export"),
        (replace(FAILED, failure=replace(FAILED.failure, step="")), "failed"),
        (Delivered("net", "x", "cached", until="edge"), "cached"),
    ],
)
def test_status_in_words(made, said):
    """A file is verified if it was run; where no stage has failed, none is named."""
    assert made.standing == said


def test_figures_are_those_of_what_was_run():
    """Those of edge programs are not the file's; where only a place ran it, those of the place are."""
    assert (replace(MADE, findings=(NOT_RUN,)).measured, replace(MADE, findings=(NOT_RUN,)).sqnr_db) == (None, None)
    assert replace(MADE, findings=(NOT_RUN, PROOF)).sqnr_db == 30.5


def test_facts_of_a_ladder():
    """Each rung has its SQNR, unless it was not run; the one that loses most is named. Every finding has facts."""
    exact, quantized = replace(WORST, sqnr_db=None), replace(WORST, sqnr_db=30.5)
    rungs = (
        Rung("exported", (), "forward", exact),
        Rung("quantized", (), "forward", quantized),
        Rung("edge", (), "forward", replace(quantized, sqnr_db=29.0)),
        Rung("payload", ("xnnpack",), "forward", None, "no backend"),
        Rung("exported", (), "encode", exact),
    )
    made = Delivered("net", "int8", "made", findings=rungs)
    assert [(fact.name, fact.value, fact.text) for fact in made.facts() if fact.name] == [
        ("exported: SQNR against eager", "exact", "exact"),
        ("quantized: SQNR against eager", 30.5, "30.5 dB"),
        ("edge: SQNR against eager", 29.0, "29.0 dB"),
        ("exported encode: SQNR against eager", "exact", "exact"),
    ]
    assert [fact.note for fact in made.notes if fact.listed] == [
        "payload.xnnpack was not run: no backend",
        "quantized loses most: 59.5 dB below exported",
    ]
    assert replace(made, findings=rungs[:1]).notes == ()
    assert all("facts" in vars(type(found)) for found in (*MADE.findings, PROOF))


def test_roles_that_are_taken():
    """A finding cannot have the name of something else in the JSON that findings are shown in."""
    for made in (MADE, FAILED):
        assert made.described().keys() - {found.role for found in made.findings} <= set(finding.TAKEN)
    with pytest.raises(TypeError, match="'kernels'"):
        type("Kernels", (finding.Finding,), {"role": "kernels"})


def test_shares():
    """A share is 0 or 100 % only if nothing is missing."""
    assert [format_share(share) for share in (0.0, 0.001, 0.5, 0.999, 1.0)] == [
        "0 %",
        "below 1 %",
        "50 %",
        "above 99 %",
        "100 %",
    ]


def test_what_stays_on_the_cpu_in_words():
    """A line for each payload and reason, with the calls of all methods by operator; a plain file is its target's."""
    outside = (OutsideCalls("aten.relu", "layout", 1, 1, True), OutsideCalls("aten.mm", NOT_TAKEN, 1, 1))
    fat = (
        MethodWork("vulkan", "encode", 0, (OutsideCalls("aten.convolution", "groups", 1, 1, True),)),
        MethodWork("vulkan", "decode", 0, (OutsideCalls("aten.convolution", "groups", 2, 1, True), *outside)),
        MethodWork("", "decode", 0, outside),
    )
    made = Delivered("net", "fat", "made", targets=("webgpu",), findings=fat)
    assert [fact.note for fact in made.notes if not fact.listed] == [
        "vulkan leaves 3 aten.convolution to the CPU: groups",
        "vulkan leaves 1 aten.relu to the CPU: layout",
        "webgpu leaves 1 aten.relu to the CPU: layout",
    ]


@pytest.mark.parametrize("written", ["provenance.json", "run.json"])
def test_what_earlier_versions_wrote(written):
    """Provenance of 0.1.0, and what a run recorded, have the findings that today's have."""
    value = json.loads((Path(__file__).with_name("format_1") / written).read_text())
    made = Delivered.of_provenance(value) if "file" in value else Delivered.from_json(value)
    assert Counter(finding.role for finding in made.findings) == {
        **dict.fromkeys(("accuracy", "delegation", "figures", "quantization", "searched"), 1),
        **dict.fromkeys(("memory", "proofs", "timings"), 2),
        "numerics": 6,
    }
    (reached,), figures = made.every(Quantization), made.figures
    assert (reached.method, reached.share, figures.cases) == ("forward", 1.0, ())
    assert {name: fact.text for name, fact in replace(made, path=Path("fat.pte")).columns.items()} == {
        "size": "11.4 KiB",
        "max abs error": "0.0034",
        "SQNR": "39.8 dB",
        "cases": "6",
        "score": "0.75",
        "delegated": "xnnpack 99 %",
        "latency": "6.08 us",
    }
    assert Delivered.from_json(made.to_json()).to_json() == made.to_json()


def test_findings_of_later_versions():
    """A finding that this version does not know is left out, whatever it is called; what is no finding is refused."""
    value = MADE.to_json()
    later = {"later": [1], "os.path": {}, "..stages": {}, "delivered": {}}
    assert Delivered.from_json({**value, "findings": {**value["findings"], **later}}) == MADE
    for wrong in (1, [], {"figures": 1}, {"figures": [1]}, {"figures": {"overall": 1}}, {"memory": {"a": 1}}):
        with pytest.raises(ValueError, match=r"."):
            Delivered.from_json({**value, "findings": wrong})


OF_A_STAGE = """
from dataclasses import dataclass
from typing import ClassVar

from ...results.finding import Fact, Finding


@dataclass(frozen=True, slots=True)
class Counted(Finding):
    role: ClassVar = "counted"

    calls: int

    @classmethod
    def facts(cls, findings, file):
        yield from (Fact("operators", "calls", counted.calls, column=1) for counted in findings)
"""


def test_a_finding_in_the_file_of_its_stage(tmp_path, monkeypatch):
    """A finding with the name of its stage may be in the stage's file; it is found there by its JSON."""
    folder = tmp_path / "file" / "stages"
    folder.mkdir(parents=True)
    (folder / "counted.py").write_text(OF_A_STAGE)
    monkeypatch.setattr(finding, "_TASKS", tmp_path)
    monkeypatch.setattr(stages, "__path__", [str(folder)])
    value = MADE.to_json()
    delivered = Delivered.from_json({**value, "findings": {"counted": {"calls": 3}, "unknown": 1}})
    monkeypatch.delitem(sys.modules, f"{stages.__name__}.counted")
    assert (delivered.to_json()["findings"], delivered.value("calls")) == ({"counted": {"calls": 3}}, 3)
