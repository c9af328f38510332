"""Fat files from a zoo: what runs again after a change, what a recipe may do without, and what is told of it."""

from __future__ import annotations

import json
import shutil

import pytest
from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.errors import InputError

pytestmark = pytest.mark.timeout(600)

END = {"pack/fat", "serialize/fat", "verify/fat", "report/fat"}


def recipe(*specializations, **output):
    """A recipe `fat`: names of targets, or whole specializations."""
    given = [each if isinstance(each, dict) else {"target": each} for each in specializations]
    return {"fat": {"output": {"form": "fat", **output}, "specializations": given}}


def chain(payload):
    """Steps that lead to a payload."""
    return {f"{stage}/fat.{payload}" for stage in ("edge/forward", "partition/forward", "preprocess", "compile")}


@pytest.fixture(scope="module")
def lowered(lower_room):
    """A room in which a fat file was made; tests take copies of it."""
    return lower_room({"net": "nets:linear"}, ("fat",), recipe("vulkan", "xnnpack", "portable"))[0]


@pytest.fixture
def made(lowered, tmp_path):
    """A copy of that room."""
    return lowered.copy(tmp_path / "copy")


def test_a_second_run_runs_nothing(made, lower):
    """All of a fat file is cached."""
    assert lower(made).ran("net") == set()


def test_a_changed_option_runs_one_chain(made, lower):
    """An option of XNNPACK's that does not concern edge runs the rest of XNNPACK's chain, pack and what comes after."""
    per_operator = {"target": "xnnpack", "options": {"per_operator": True}}
    made.zoo({"net": "nets:linear"}, ("fat",), recipe("vulkan", per_operator, "portable"))
    ran = lower(made).ran("net")
    assert ran - END <= chain("xnnpack") - {"edge/forward/fat.xnnpack"}
    assert {"partition/forward/fat.xnnpack", "preprocess/fat.xnnpack"} <= ran


def test_removing_one_runs_no_chain(made, lower):
    """Without one of the specializations only pack and what comes after it run; the payloads are those there were."""
    before = open_fat(made.out / "net" / "fat.pte").container
    made.zoo({"net": "nets:linear"}, ("fat",), recipe("xnnpack", "portable"))
    assert lower(made).ran("net") == END
    after = open_fat(made.out / "net" / "fat.pte").container
    assert [payload.sha256 for payload in after.payloads] == [payload.sha256 for payload in before.payloads[1:]]


def test_thin_is_what_export_gives(made, lower):
    """A fat file cut down to some payloads has the bytes of the file that a recipe with just those makes."""
    done = made.run("thin", "out/net/fat.pte", "--keep", "xnnpack,portable", "-o", "thin.pte")
    assert done.code == 0, done.err
    made.zoo({"net": "nets:linear"}, ("fat",), recipe("xnnpack", "portable"))
    assert lower(made).outcome.exit_code == 0
    assert (made.folder / "thin.pte").read_bytes() == (made.out / "net" / "fat.pte").read_bytes()


def test_plain_and_fat_share_their_stages(made, lower):
    """A plain recipe for one of the targets finds all of the fat one's stages up to compile."""
    made.zoo({"net": "nets:linear"}, ("portable-fp32",))
    assert lower(made).ran("net") == {"serialize/portable-fp32", "report/portable-fp32", "verify/portable-fp32"}


def test_weights_beside_the_file(made, lower):
    """With external data a `.ptd` lies beside the `.pte`, which is small; a second run does nothing."""
    made.zoo({"net": "nets:linear"}, ("fat",), recipe("xnnpack", "portable", external_data=True))
    assert lower(made).ran("net") == END
    assert open_fat(made.out / "net" / "fat.pte", [made.out / "net" / "fat.ptd"]).container.payloads
    assert lower(made).ran("net") == set()
    done = made.run("verify", "out/net/fat.pte", "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["payloads"]) == {"xnnpack", "portable"}


def test_the_last_one_must_run_everywhere(room, lower):
    """A fat file without a fallback is refused before any work, with what to add."""
    room.zoo({"net": "nets:linear"}, ("fat",), recipe("portable", "xnnpack"))
    with pytest.raises(InputError, match="the last specialization of a fat file is what every device falls back to"):
        lower(room)


def install_target(folder, name, body):
    """A package with a target, as pip would install it; gives the environment in which it is found."""
    site = folder / "site"
    (site / f"acme_{name}-1.0.dist-info").mkdir(parents=True)
    (site / f"acme_{name}-1.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: acme_{name}\nVersion: 1.0\n"
    )
    (site / f"acme_{name}-1.0.dist-info" / "entry_points.txt").write_text(
        f"[pteforge.targets]\n{name} = acme_{name}:Acme\n"
    )
    (site / f"acme_{name}.py").write_text(body)
    return {"PYTHONPATH": str(site)}


_ACME = """
from dataclasses import dataclass
from pteforge.tasks.targets.base import Target

@dataclass(frozen=True)
class Acme(Target):
    name = "{name}"
    backends = ("AcmeBackend",)

    @classmethod
    def available(cls):
        return {available!r}

    def partitioners(self):
        raise RuntimeError("the Acme compiler has no licence")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("available", "reason"),
    [(None, "the Acme compiler has no licence"), ("install the Acme SDK", "not available here: install the Acme SDK")],
)
def test_what_a_recipe_does_not_require(room, available, reason):
    """A specialization that fails, or cannot be made here, is left out and named with the reason; the run succeeds."""
    room.zoo({"net": "nets:linear"}, ("fat",), recipe({"target": "acme", "required": False}, "xnnpack", "portable"))
    environment = install_target(room.folder, "acme", _ACME.format(name="acme", available=available))
    done = room.export(env=environment)
    assert done.code == 0, done.err
    assert "net/fat is without acme: " in done.out
    assert reason in done.out
    container = open_fat(room.out / "net" / "fat.pte").container
    assert [payload.name for payload in container.payloads] == ["xnnpack", "portable"]
    assert json.loads((room.out / "net" / "fat.json").read_text())["left_out"] == ["acme"]

    room.zoo({"net": "nets:linear"}, ("fat",), recipe("acme", "xnnpack", "portable"))
    refused = room.export(env=environment)
    assert refused.code == (1 if available is None else 2)
    assert reason in refused.err


@pytest.mark.slow
def test_fat_files_are_the_same_everywhere(made, lowered, tmp_path):
    """Lowered anew, in another folder and with another hash seed, the file has the same bytes."""
    fresh = lowered.copy(tmp_path / "fresh")
    shutil.rmtree(fresh.store)
    done = fresh.export(env={"PYTHONHASHSEED": "7"})
    assert done.code == 0, done.err
    assert (fresh.out / "net" / "fat.pte").read_bytes() == (made.out / "net" / "fat.pte").read_bytes()
