"""Fat programs in ExecuTorch's Python runtime, with the library as it is shipped."""

import pytest
from pteforge.formats.nfat.container import open_fat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_DAMAGED = "xnnpack: passed over: it is damaged: "
_FAILED = "xnnpack: passed over: it fails its own check: "
_NESTED = "fat: passed over: it is a fat program itself, and those do not nest"


@pytest.mark.parametrize(
    ("name", "chosen", "reason"),
    [
        ("v1", "XnnpackBackend", ""),
        ("v1-garbage-first", "portable", "XnnpackBackend: passed over: it is not a program that this runtime can load"),
        ("v1-dynamic-portable", "portable", ""),
        ("v2", "xnnpack", ""),
        ("v2-mlx-first", "xnnpack", "mlx: passed over: it needs MLXBackend, which is not registered in this runtime"),
        ("v2-mislabelled-first", "portable", "vulkan: passed over: it needs VulkanBackend, which is not registered"),
        ("v2-damaged-first", "portable", f"{_DAMAGED}what the container says of it has another SHA-256"),
        ("v2-nested", "xnnpack", _NESTED),
        ("v2-nested-and-says-so", "xnnpack", _NESTED),
        ("v2-no-parts-digest", "xnnpack", ""),
        ("v2-no-parts-digest-damaged-first", "portable", f"{_DAMAGED}its SHA-256 is another one"),
        ("v2-method-missing-first", "portable", "encoder: passed over: it has no method forward"),
        ("large", "xnnpack", ""),
        ("large-parsed-damaged", "portable", f"{_DAMAGED}its blob "),
        ("v2-planned", "xnnpack", ""),
        ("v2-dynamic", "xnnpack", ""),
        ("v2-aliases", "xnnpack", ""),
        ("v2-two-methods", "xnnpack", ""),
        ("v2-state", "xnnpack", ""),
        ("transposed", "xnnpack", ""),
        ("transposed-no-parts-digest", "xnnpack", ""),
        ("halves", "xnnpack", ""),
        ("halves-no-parts-digest", "xnnpack", ""),
        ("halves-damaged-first", "portable", f"{_DAMAGED}what the container says of it has another SHA-256"),
        ("checked", "xnnpack", ""),
        ("checked-state", "xnnpack", ""),
        ("checked-other-method", "xnnpack", ""),
        ("checked-wrong-first", "portable", f"{_FAILED}output 0 is off by "),
        ("checked-other-sizes-first", "portable", f"{_FAILED}it fails (Error::"),
        ("transposed-damaged-first", "portable", f"{_DAMAGED}what the container says of it has another SHA-256"),
    ],
)
def test_chosen_payload(outcomes, name, chosen, reason):
    """The first payload that can run is chosen, and outputs bit for bit what it does when it runs directly."""
    outcome = outcomes[name]
    assert (outcome.error, outcome.chosen) == ("", chosen)
    assert outcome.equal
    assert [line.startswith(reason) for line in outcome.report[:-1]] == [True] * bool(reason)


@pytest.mark.parametrize(
    ("name", "payloads"),
    [
        ("v1-none-fits", {"MLXBackend": "needs MLXBackend", "HexagonBackend": "needs HexagonBackend"}),
        ("v2-none-fits", {"mlx": "needs MLXBackend"}),
        ("v2-blobs-missing", {"xnnpack": "is missing", "portable": "is missing"}),
        ("checked-all-wrong", {"xnnpack": "it fails its own check", "portable": "it fails its own check"}),
        ("checked-no-cases", {"xnnpack": "cases are damaged", "portable": "cases are damaged"}),
        ("checked-damaged", {"xnnpack": "it is damaged: its blob", "portable": "it is damaged: its blob"}),
        ("v2-blobs-short", {"xnnpack": "bytes instead of", "portable": "bytes instead of"}),
    ],
)
def test_nothing_fits(outcomes, name, payloads):
    """Where no payload can run, loading fails as incompatible, and the report lists each payload and why."""
    outcome = outcomes[name]
    assert "0x:30" in outcome.error
    assert [line.partition(":")[0] for line in outcome.report] == list(payloads)
    for line, reason in zip(outcome.report, payloads.values(), strict=True):
        assert reason in line


def test_damaged_container(outcomes):
    """A container that is cut short is refused as an invalid program."""
    outcome = outcomes["v2-cut-short"]
    assert "0x:23" in outcome.error
    assert len(outcome.report) == 1
    assert outcome.report[0].startswith("container refused: the container has ")


def test_other_outputs(outcomes):
    """A payload whose outputs are smaller than the program's loads; calling it is an error, not a wrong result."""
    outcome = outcomes["v2-other-outputs"]
    assert outcome.chosen == "xnnpack"
    assert outcome.error.startswith("method->execute() failed")


def test_transposed(outcomes, programs):
    """What is transposed is copied, and nothing else."""
    payload = open_fat(programs / "transposed.pte").container.payload("xnnpack")
    assert outcomes["transposed"].report[-1].endswith(f" bytes in place, {payload.transposed_bytes} copied")


def test_halves(outcomes, programs):
    """What is stored as 32-bit numbers is copied, and nothing else."""
    payload = open_fat(programs / "halves.pte").container.payload("xnnpack")
    halves = sum(payload.extents[index].size for index in payload.halves)
    assert outcomes["halves"].report[-1].endswith(f" bytes in place, {halves} copied")


@pytest.mark.parametrize("name", ["checked", "checked-state"])
def test_checked(outcomes, name):
    """The report says that a payload has passed its own check."""
    assert outcomes[name].report[-1].endswith(" copied; it passed its own check")


_REMEMBERING = """
import sys
from pathlib import Path
import pteforge_nfat
from executorch.runtime import Runtime
library = pteforge_nfat.load(Path(sys.argv[1]))
for device in ("a", "a", "b"):
    library.remember_checks(Path(sys.argv[3]), device)
    Runtime.get().load_program(sys.argv[2]).load_method("forward")
    print(library.report()[-1].rpartition("; ")[2])
library.remember_checks(None)
Runtime.get().load_program(sys.argv[2]).load_method("forward")
print(library.report()[-1].rpartition("; ")[2])
"""


def test_remembered_checks(run_python, build, programs, tmp_path):
    """Python can name a file for passed checks, too; without one, each load checks."""
    said = run_python("-c", _REMEMBERING, build, programs / "checked.pte", tmp_path / "chécks").splitlines()
    passed = "it passed its own check"
    assert said == [passed, f"{passed} before", passed, passed]
    assert len((tmp_path / "chécks").read_text().splitlines()) == 4


@pytest.mark.parametrize("name", ["v2", "v2-damaged-first", "v2-dynamic", "v2-state"])
def test_in_place(outcomes, name):
    """A payload is used where the packer put it: nothing is copied."""
    assert outcomes[name].report[-1].endswith(" bytes in place, 0 copied")
