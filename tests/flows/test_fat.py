"""Fat files from a zoo: what runs again after a change, optional specializations, and targets of other packages."""

from __future__ import annotations

import json

import pytest
from pteforge.errors import InputError
from pteforge.formats.nfat.container import open_fat

END = {"pack/fat", "serialize/fat", "verify/fat", "report/fat"}


def recipe(*specializations, **output):
    """A recipe `fat`; a specialization may be the name of a target."""
    made = [spec if isinstance(spec, dict) else {"target": spec} for spec in specializations]
    return {"fat": {"output": {"form": "fat", **output}, "specializations": made}}


def chain(payload):
    """Steps that lead to a payload."""
    return {f"{stage}/fat.{payload}" for stage in ("edge/forward", "partition/forward", "preprocess", "compile")}


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project({"net": "nets:linear"}, ("fat",), recipe("vulkan", "xnnpack", "portable"))


def test_a_changed_option_runs_one_chain(made, lower):
    """A second run does nothing; an option of how XNNPACK groups operators runs its chain after edge, and the end."""
    assert lower(made).ran("net") == set()
    per_operator = {"target": "xnnpack", "options": {"per_operator": True}}
    made.write_zoo({"net": "nets:linear"}, ("fat",), recipe("vulkan", per_operator, "portable"))
    ran = lower(made).ran("net")
    assert ran - END <= chain("xnnpack") - {"edge/forward/fat.xnnpack"}
    assert {"partition/forward/fat.xnnpack", "preprocess/fat.xnnpack"} <= ran


def test_removing_a_specialization_only_repacks(made, lower, pteforge):
    """Without one of the specializations only the end runs; the file is what `thin` makes of the larger one.

    That includes the checks that payloads carry, which `inspect` shows.
    """
    checked = {"self_check": {"cases": 1}}
    made.write_zoo({"net": "nets:linear"}, ("fat",), recipe("vulkan", "xnnpack", "portable", **checked))
    assert lower(made).ran("net") == END
    said = pteforge(made, "inspect", "out/net/fat.pte").out
    size = "run 3 times with a tolerance of 0.0001\n"
    assert [line.partition(": ")[0] for line in said.splitlines() if size.strip() in line] == [
        f"payload {name} checks itself" for name in ("vulkan", "xnnpack", "portable")
    ]
    assert "payload xnnpack checks itself: 1 golden case, " in said
    before = open_fat(made.out / "net" / "fat.pte").container
    assert pteforge(made, "thin", "out/net/fat.pte", "--keep", "xnnpack,portable", "-o", "thin.pte").code == 0
    made.write_zoo({"net": "nets:linear"}, ("fat",), recipe("xnnpack", "portable", **checked))
    assert lower(made).ran("net") == END
    after = open_fat(made.out / "net" / "fat.pte").container
    assert [payload.sha256 for payload in after.payloads] == [payload.sha256 for payload in before.payloads[1:]]
    assert (made.folder / "thin.pte").read_bytes() == (made.out / "net" / "fat.pte").read_bytes()


def test_payloads_are_completed(made, complete):
    """The shell completes the payloads of a fat file for commands that take some, and methods for `run`."""
    assert complete(made.folder, "extract out/net/fat.pte ") == ["vulkan", "xnnpack", "portable"]
    assert complete(made.folder, "thin out/net/fat.pte --keep vulkan,x") == ["vulkan,xnnpack"]
    assert complete(made.folder, "run out/net/fat.pte --method f") == ["forward"]


def test_plain_and_fat_share_their_stages(made, lower):
    """A plain recipe for one of the targets finds the stages of the fat one up to compile."""
    made.write_zoo({"net": "nets:linear"}, ("portable-fp32",))
    assert lower(made).ran("net") == {"serialize/portable-fp32", "report/portable-fp32", "verify/portable-fp32"}


def test_external_data(made, lower, pteforge):
    """With external data a `.ptd` lies next to the `.pte`; a second run does nothing, and the file verifies."""
    made.write_zoo({"net": "nets:linear"}, ("fat",), recipe("xnnpack", "portable", external_data=True))
    assert lower(made).ran("net") == END
    assert open_fat(made.out / "net" / "fat.pte", [made.out / "net" / "fat.ptd"]).container.payloads
    assert lower(made).ran("net") == set()
    done = pteforge(made, "verify", "out/net/fat.pte", "--json")
    assert (done.code, set(json.loads(done.out)["payloads"])) == (0, {"xnnpack", "portable"})


GROUPED = """
import torch

def grouped():
    layers = torch.nn.Conv2d(4, 4, 1, groups=2), torch.nn.Conv2d(4, 4, 1)
    return torch.nn.Sequential(*layers), (torch.ones(1, 4, 2, 2),)
"""


@pytest.mark.slow
def test_what_stays_on_the_cpu(project, lower, pteforge):
    """The provenance has the calls that limits leave to the CPU; `inspect` and `why` show them, with the reason."""
    project.write("grouped.py", GROUPED)
    project.write_zoo({"net": "grouped:grouped"}, ("fat",), recipe("vulkan", "portable"))
    lower(project)
    works = json.loads((project.out / "net" / "fat.json").read_text())["findings"]["delegation"]
    (kept,) = [calls for work in works if work["payload"] == "vulkan" for calls in work["outside"]]
    assert (kept["operator"], kept["calls"], kept["kept_on_cpu"]) == ("aten.convolution", 1, True)
    assert kept["why"].startswith("groups are ignored")
    for command in (("inspect", "out/net/fat.pte"), ("why", "net/fat")):
        assert f"vulkan leaves 1 aten.convolution to the CPU: {kept['why']}\n" in pteforge(project, *command).out
    assert pteforge(project, "inspect", "out/net/fat.pte", "--json").json["delegation"] == works
    assert pteforge(project, "why", "net", "--json").json["files"]["fat"]["delegation"] == works


def test_the_last_one_must_run_everywhere(project, lower):
    """A fat file without a fallback is an error before any work, with what to add."""
    project.write_zoo({"net": "nets:linear"}, ("fat",), recipe("portable", "xnnpack"))
    with pytest.raises(InputError, match=r"last specialization .*every device falls back"):
        lower(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("licence", "reason", "code"),
    [("1", "the compiler crashed", 1), ("", "not available here: get a licence from Acme", 2)],
    ids=["fails", "unavailable"],
)
def test_specialization_that_is_not_required(project, licence, reason, code):
    """A specialization that fails or is unavailable is left out and named with the reason; the run succeeds."""
    environment = project.install("acme") | ({"ACME_LICENSE": licence} if licence else {})
    crash = 'raise RuntimeError("the compiler crashed")'
    project.edit("site/acme_pteforge/target.py", "return [", f"{crash}\n        return [")
    project.write_zoo(
        {"net": "nets:linear"}, ("fat",), recipe({"target": "acme", "required": False}, "xnnpack", "portable")
    )
    done = project.export(env=environment)
    assert done.code == 0, done.err
    assert "net/fat: without acme: " in done.out
    assert reason in done.out
    container = open_fat(project.out / "net" / "fat.pte").container
    assert [payload.name for payload in container.payloads] == ["xnnpack", "portable"]
    assert json.loads((project.out / "net" / "fat.json").read_text())["left_out"] == ["acme"]

    project.write_zoo({"net": "nets:linear"}, ("fat",), recipe("acme", "xnnpack", "portable"))
    refused = project.export(env=environment)
    assert refused.code == code
    assert reason in " ".join(refused.err.split())


@pytest.fixture
def write_acme(project):
    """Writes a zoo with a recipe for devices with Acme's NPU and for those without."""

    def write(**options):
        specializations = [{"target": "acme", "options": options}, {"target": "portable"}]
        recipe = {"specializations": specializations, "output": {"form": "fat"}}
        project.write_zoo({"linear": "nets:linear"}, ("acme",), {"acme": recipe})

    return write


@pytest.mark.slow
def test_a_target_of_another_package(project, write_acme):
    """It lowers as our own targets do. Its output is random and made once: no stage runs again until it must."""
    environment = {**project.install("acme"), "ACME_LICENSE": "1"}
    write_acme(clock_rate=123)

    def files():
        done = project.export(env=environment)
        assert done.code == 0, done.err
        return project.files()

    first = files()
    (name,) = (name for name in first if name.endswith(".pte"))
    payloads = open_fat(project.out / name).container.payloads
    assert [payload.description.backends for payload in payloads] == [("AcmeBackend",), ()]
    assert b"ACME123" in first[name]
    assert files() == first

    project.edit("zoo.yaml", "123", "456")
    assert b"ACME456" in files()[name]
    project.edit("site/acme_pteforge/backend.py", 'b"ACME"', 'b"ACME-2-"')
    assert b"ACME-2-456" in files()[name]


def test_checked_before_any_work(project, write_acme, pteforge, monkeypatch):
    """Its options and requirements are checked like those of our own targets, with the line of the zoo file."""
    write_acme()
    pteforge(project, "export", "zoo.yaml").refused("unknown target 'acme'")
    monkeypatch.syspath_prepend(project.install("acme")["PYTHONPATH"])
    licence = "target 'acme' is not available here: get a licence from Acme and set ACME_LICENSE"
    for options, parts in (({}, (licence,)), ({"clockrate": 1}, ("clockrate", "its options: clock_rate"))):
        write_acme(**options)
        pteforge(project, "export", "zoo.yaml").refused("zoo.yaml:", "recipes.acme", *parts)
    assert not project.files()
