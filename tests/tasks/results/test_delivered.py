"""What came of a model and recipe: one record with one JSON, of files, failures and what does not apply."""

from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.artifacts.runs import RunRecord
from pteforge.errors import StageFailed
from pteforge.formats.contract import Contract
from pteforge.tasks.results.delegation import MethodWork, OutsideCalls, format_share
from pteforge.tasks.results.delivered import NO_PROVENANCE, Delivered, Failure, KeptCalls, MethodCalls, delivered_by
from pteforge.tasks.results.diagnosis import Explanation
from pteforge.tasks.results.figures import (
    WHOLE_FILE,
    AccuracyReport,
    Case,
    Figures,
    MemoryUse,
    Proof,
    Score,
    Scores,
    Searched,
    TimeShare,
    Timing,
    Worst,
)
from pteforge.tasks.results.numerics import Attempt, FoundLayers, Ladder, Rung
from pteforge.tasks.results.quantization import LeftWeight, Quantization

BLOB = BlobRef(digest_bytes(b""), 0)
WORST = Worst(3, 1e-7, 1e-6, 40.5, top1=1.0)
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
    figures=Figures(WORST, {"forward": WORST}, {}, {}, drawn=WORST, calibration={"forward": "8 samples"}, notes=("a",)),
    searched=Searched(20.0, 214, 3, 1, Case("forward", "searched [3, 17], one-hot", 0, 1e-3, 1e-4, 61.2)),
    ladder=Ladder((Rung("edge", ("xnnpack",), "forward", WORST),)),
    accuracy=AccuracyReport("nets:score", 0.5, None, None, Scores((Score("", 0.75), Score("", 0.5)), {})),
    search=FoundLayers(("head",), ("head",), 3, (Attempt(1, 0.75, passes=True),), 4000),
    quantization={"forward": Quantization({"int8": 10}, 10, 8, (LeftWeight("w", ("aten.mm",), 2, "because"),))},
    contract=Contract(
        {"aten::add.out": ("v1/6;0|6;0",)}, ("XnnpackBackend",), runtimes={"1.4": "derived", "1.5": "run"}
    ),
    left_out={"vulkan": "it is not there"},
    delegation=(
        MethodWork("", "forward", 990, (OutsideCalls("aten.mean.dim", "mean.dim only supports keepdim=True", 1, 10),)),
    ),
    payload_sizes={"xnnpack": 400, "portable": 300},
    kept_on_cpu=(KeptCalls("", "forward", "aten.convolution", "groups are ignored", 2),),
    memory=(MemoryUse("", "forward", (100, 20), "board", "example", "1x8", 10, 2, 16, 4, 30, 20),),
    timings=(Timing("", "forward", "host", "cpu", 0.1, 0.1, 0.01, 0.02, 9, 5, (TimeShare("aten::mm.out", 0.5, 1),)),),
    seconds=1.5,
)
NOT_RUN = Figures(replace(WORST, sqnr_db=None), {}, {}, {WHOLE_FILE: "needs a GPU; its edge program ran instead"})
PROOF = Proof("gpu", "", "", Figures(replace(WORST, sqnr_db=30.5), {}, {}, {}))
FAILED = Delivered(
    "net",
    "fat",
    "failed",
    failure=Failure("export", "no", "log", bad_input=True, findings=(Explanation("mode", "no", ("yes",)),)),
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
    assert (said["sqnr_db"], said["drawn_sqnr_db"], said["notes"], said["assets"]) == (
        40.5,
        40.5,
        ["a"],
        ["labels.txt"],
    )
    assert said["quantization"]["forward"]["share"] == 0.8
    assert [kept["why"] for kept in said["kept_on_cpu"]] == ["groups are ignored"]
    assert (said["memory"][0]["planned"], said["timings"][0]["shares"][0]["name"]) == ((100, 20), "aten::mm.out")
    assert FAILED.described() == {
        "status": "failed",
        **FAILED.failure.to_json(),
        "rejected": "out/net/fat.rejected.pte",
    }
    assert EVERY[2].described() == {"status": "not applicable", "reason": "none"}
    assert (MADE.score, MADE.verified, FAILED.verified) == (0.5, True, False)
    assert Failure.of("edge", StageFailed("no")).step == "edge"
    assert list(MADE.debugging) == [""]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (MADE, "verified"),
        (replace(MADE, status="cached"), "cached"),
        (replace(MADE, figures=NOT_RUN), "made, not run"),
        (replace(MADE, figures=NOT_RUN, proofs=(PROOF,)), "verified"),
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
    assert (replace(MADE, figures=NOT_RUN).measured, replace(MADE, figures=NOT_RUN).sqnr_db) == (None, None)
    assert replace(MADE, figures=NOT_RUN, proofs=(PROOF,)).sqnr_db == 30.5


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
    kept = (
        KeptCalls("vulkan", "encode", "aten.convolution", "groups", 1),
        KeptCalls("vulkan", "decode", "aten.convolution", "groups", 2),
        KeptCalls("vulkan", "decode", "aten.relu", "groups", 1),
        KeptCalls("", "decode", "aten.relu", "layout", 1),
    )
    assert Delivered("net", "fat", "made", targets=("webgpu",), kept_on_cpu=kept).on_cpu == (
        "vulkan leaves 3 aten.convolution, 1 aten.relu to the CPU: groups",
        "webgpu leaves 1 aten.relu to the CPU: layout",
    )
