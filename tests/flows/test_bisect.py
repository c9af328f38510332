"""`pteforge bisect`: where a recipe loses quality, from the zoo file to the table, the JSON and the plot."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo
from pteforge.errors import InputError, StageFailed
from pteforge.flows.bisect import bisect
from pteforge.flows.bisect_plot import check_plot, draw
from pteforge.flows.cli.bisect import _print
from pteforge.flows.cli.main import app
from pteforge.flows.select import select_models
from pteforge.flows.session import Session
from pteforge.tasks.executor import Executor
from pteforge.tasks.quality import DROP_DB
from rich.console import Console
from typer.testing import CliRunner

BATCH = {"forward": [{0: {"min": 1, "max": 4}}]}  # as in the rooms that are warm
FLAWED = Path(__file__).parent / "packages" / "flawed"


@pytest.fixture
def look(workers):
    """Finds out where a recipe of a room's zoo loses quality, with the shared workers."""

    def run(room, model, recipe, drop=DROP_DB):
        loaded = load_zoo(room.folder / "zoo.yaml")
        chosen = select_models(loaded, model, recipe)
        with open_store(str(room.store)) as store:
            session = Session(loaded.zoo.name, chosen, Executor(store, workers), workers, room.out, workers.jobs)
            return bisect(session, drop)

    return run


def printed(found):
    """What the command shows."""
    text = io.StringIO()
    _print(Console(file=text, width=200), found)
    return text.getvalue()


@pytest.mark.slow
def test_wrong_pass(room):
    """A file that fails verification for a wrong pass: bisect takes what was made, and names program and operator."""
    shutil.copytree(FLAWED, room.folder / "site", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(room.folder / "site")}
    flawed = {"specializations": [{"target": "flawed", "options": {"flaw": "subtracts"}}], "verify": {"ladder": True}}
    room.zoo({"net": "residual:residual"}, ("flawed",), {"flawed": flawed})
    failed = room.export("--json", env=environment)
    assert failed.code == 1
    told = failed.json["models"]["net"]["flawed"]
    assert told["step"] == "verify/flawed"
    rungs = {rung["name"]: rung["figures"]["sqnr_db"] for rung in told["numerics"]}
    assert rungs["exported"] is None
    assert rungs["edge"] < 20

    done = room.run("bisect", "zoo.yaml", "net/flawed", "--json", env=environment)
    assert done.code == 0, done.err
    loss = done.json["loss"]
    assert (loss["rung"], loss["before"], loss["method"]) == ("edge", "exported", "forward")
    assert loss["reason"].startswith("is outside of the recipe's bounds: SQNR ")
    worst, *others = loss["nodes"]["nodes"]
    assert (worst["sources"], worst["operator"]) == (["add"], "aten.sub.Tensor")
    assert re.fullmatch(r"residual\.py:\d+ in forward", worst["line"])
    assert all(node["own"]["sqnr_db"] is None or node["own"]["sqnr_db"] > 120 for node in others)

    again = room.run("bisect", "zoo.yaml", "net/flawed", "--plot", "net.png", env=environment)
    assert (again.code, again.err) == (0, "")  # nothing is left to run
    assert re.search(r"^edge is outside of the recipe's bounds: SQNR .* dB < 80\.0 dB\.$", again.out, re.MULTILINE)
    assert re.search(r"^ add +aten\.sub\.Tensor +\S+ dB", again.out, re.MULTILINE)
    assert (room.folder / "net.png").read_bytes().startswith(b"\x89PNG")
    assert not room.files()


@pytest.mark.slow
def test_quantized_recipe(room, look):
    """On a right int8 recipe it is quantization that loses; operators come in the order of their loss.

    A looser idea of loss finds nothing. The plot has as many bars as operators lose something.
    """
    own = {"int8": {"extends": "xnnpack-int8-static", "verify": {"min_sqnr_db": 10}}}
    room.zoo({"net": "residual:residual"}, ("int8",), own)
    found = look(room, "net", "int8")
    assert (found.loss.rung.label, found.loss.before.label) == ("quantized", "exported")
    ratios = [node.own.sqnr_db for node in found.nodes.nodes if node.own.sqnr_db is not None]
    assert len(ratios) >= 6
    assert ratios == sorted(ratios)
    assert ("conv2d", "batch_norm") in {node.sources for node in found.nodes.nodes}
    assert re.search(
        r"^ conv2d \+ batch_norm +aten\.conv2d\.default .* first, residual\.py:", printed(found), re.MULTILINE
    )
    assert draw(found).startswith(b"\x89PNG")
    assert look(room, "net", "int8", drop=80.0).loss is None


@pytest.mark.slow
def test_nothing_is_lost(warm, look):
    """On fp32 nothing loses, the payload by XNNPACK included; the ladder is made of what runs have stored."""
    found = look(warm, "conv", "xnnpack-fp32")
    assert found.loss is None
    assert [rung.label for rung in found.ladder.rungs] == ["exported", "edge", "payload"]
    assert "conv/xnnpack-fp32 loses no quality on the way." in printed(found)
    assert draw(found).startswith(b"\x89PNG")


@pytest.mark.slow
def test_lost_inside_the_payload(warm, look):
    """Where only the payload loses, its delegates are named: what they compute within is not to be seen from here."""
    strict = {"strict": {"extends": "xnnpack-fp32", "verify": {"min_sqnr_db": 250}}}
    warm.zoo({"linear": {"source": "nets:linear", "dynamic_shapes": BATCH}}, ("strict",), strict)
    found = look(warm, "linear", "strict")
    assert (found.loss.rung.label, found.nodes) == ("payload", None)
    assert found.delegates == {"XnnpackBackend": 1}
    assert "It is lost inside the payload; delegates: 1 of XnnpackBackend." in printed(found)


def test_model_that_cannot_be_exported(room, look):
    """A stage that the first rung needs and that fails is told as such."""
    room.zoo({"bad": "faulty:raises"}, ("portable-fp32",))
    with pytest.raises((StageFailed, InputError), match="bad export: "):
        look(room, "bad", "portable-fp32")


@pytest.mark.parametrize("name", ["net", "net/", "/int8", "n*/int8", "net/a,b"])
def test_names(name):
    """What is not the name of one model and one recipe is refused before anything is read."""
    refused = CliRunner().invoke(app, ["bisect", "zoo.yaml", name]).exception
    assert isinstance(refused, InputError)
    assert "is not MODEL/RECIPE" in str(refused)


def test_plot_paths(tmp_path):
    """A plot that could not be written is refused before any work: it must be a PNG file, in a folder that is there."""
    check_plot(tmp_path / "loss.PNG")
    with pytest.raises(InputError, match=r"should end in \.png"):
        check_plot(tmp_path / "loss.svg")
    with pytest.raises(InputError, match="there is no folder"):
        check_plot(tmp_path / "nowhere" / "loss.png")
