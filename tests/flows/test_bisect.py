"""`pteforge bisect`: where a recipe loses quality, from the zoo file to the table, the JSON and the plot."""

from __future__ import annotations

import io
import re

import pytest
from pteforge.errors import InputError, StageFailed
from pteforge.flows.cli.examine import _print_bisection
from pteforge.flows.cli.main import app
from pteforge.flows.run.examine import bisect, check_plot, draw
from pteforge.tasks.results.numerics import DROP_DB
from pteforge.tests.flows.conftest import BATCH, open_run
from rich.console import Console
from typer.testing import CliRunner


@pytest.fixture
def look(workers):
    """Bisects a recipe of a project's zoo, with the shared workers."""

    def run(project, model, recipe, drop=DROP_DB):
        with open_run(project, workers, models=model, recipes=recipe) as session:
            return bisect(session, drop)

    return run


def printed(found):
    text = io.StringIO()
    _print_bisection(Console(file=text, width=200, markup=False, emoji=False, highlight=False), found)
    return text.getvalue()


@pytest.mark.slow
def test_wrong_pass(project):
    """For a file that a wrong pass makes fail verification, bisect names program and operator without new work."""
    environment = project.install("flawed")
    flawed = {"specializations": [{"target": "flawed", "options": {"flaw": "subtracts"}}], "verify": {"ladder": True}}
    project.write_zoo({"net": "residual:residual"}, ("flawed",), {"flawed": flawed})
    failed = project.export("--json", env=environment)
    assert failed.code == 1
    recipe = failed.json["models"]["net"]["flawed"]
    assert recipe["step"] == "verify/flawed"
    rungs = {rung["name"]: rung["figures"]["sqnr_db"] for rung in recipe["numerics"]}
    assert rungs["exported"] is None
    assert rungs["edge"] < 20

    done = project.run("bisect", "zoo.yaml", "net/flawed", "--json", env=environment)
    assert done.code == 0, done.err
    loss = done.json["loss"]
    assert (loss["rung"], loss["before"], loss["method"]) == ("edge", "exported", "forward")
    assert loss["reason"].startswith("is outside of the recipe's bounds: SQNR ")
    worst, *others = loss["nodes"]["nodes"]
    assert (worst["sources"], worst["operator"]) == (["add"], "aten.sub.Tensor")
    assert re.fullmatch(r"residual\.py:\d+ in forward", worst["line"])
    assert all(node["own"]["sqnr_db"] is None or node["own"]["sqnr_db"] > 120 for node in others)

    again = project.run("bisect", "zoo.yaml", "net/flawed", "--plot", "net.png", env=environment)
    assert (again.code, again.err) == (0, "")  # nothing is left to run
    assert re.search(r"^edge is outside of the recipe's bounds: SQNR .* dB < 80\.0 dB\.$", again.out, re.MULTILINE)
    assert re.search(r"^ add +aten\.sub\.Tensor +\S+ dB", again.out, re.MULTILINE)
    assert (project.folder / "net.png").read_bytes().startswith(b"\x89PNG")
    assert not project.files()


@pytest.mark.slow
def test_quantized_recipe(project, look):
    """A correct int8 recipe loses by quantization; operators are in the order of their loss."""
    own = {"int8": {"extends": "xnnpack-int8-static", "verify": {"min_sqnr_db": 10}}}
    project.write_zoo({"net": "residual:residual"}, ("int8",), own)
    found = look(project, "net", "int8")
    assert (found.loss.rung.label, found.loss.before.label) == ("quantized", "exported")
    ratios = [node.own.sqnr_db for node in found.nodes.nodes if node.own.sqnr_db is not None]
    assert len(ratios) >= 6
    assert ratios == sorted(ratios)
    assert ("conv2d", "batch_norm") in {node.sources for node in found.nodes.nodes}
    assert re.search(
        r"^ conv2d \+ batch_norm +aten\.conv2d\.default .* first, residual\.py:", printed(found), re.MULTILINE
    )
    assert draw(found).startswith(b"\x89PNG")
    assert look(project, "net", "int8", drop=80.0).loss is None


@pytest.mark.slow
def test_nothing_is_lost(warm, look):
    """An fp32 recipe loses nothing, its XNNPACK payload included."""
    found = look(warm, "conv", "xnnpack-fp32")
    assert found.loss is None
    assert [rung.label for rung in found.ladder.rungs] == ["exported", "edge", "payload"]
    assert "conv/xnnpack-fp32 loses no quality on the way." in printed(found)
    assert draw(found).startswith(b"\x89PNG")


@pytest.mark.slow
def test_lost_inside_the_payload(warm, look):
    """If only the payload loses, delegates are run one at a time, and the operators of those that lose are named."""
    strict = {"strict": {"extends": "xnnpack-fp32", "verify": {"min_sqnr_db": 250}}}
    warm.write_zoo({"linear": {"source": "nets:linear", "dynamic_shapes": BATCH}}, ("strict",), strict)
    found = look(warm, "linear", "strict")
    assert (found.loss.rung.label, found.nodes) == ("payload", None)
    (delegate,) = found.payload.delegates
    assert (delegate.backend, delegate.loses) == ("XnnpackBackend", True)
    assert any("aten.linear.default" in operator.operator for part in delegate.parts for operator in part.operators)
    text = printed(found)
    assert "It is lost in 1 of 1 delegates (0)." in text
    assert re.search(r"= aten\.linear\.default\(float32 \[.*nets\.py:\d+", text)
    assert found.to_json()["loss"]["payload"]["delegates"][0]["loses"] is True


def test_model_that_cannot_be_exported(project, look):
    """A failure of a stage that the first rung needs is reported."""
    project.write_zoo({"bad": "faulty:raises"}, ("portable-fp32",))
    with pytest.raises((StageFailed, InputError), match="bad export: "):
        look(project, "bad", "portable-fp32")


@pytest.mark.parametrize("name", ["net", "net/", "/int8", "n*/int8", "net/a,b"])
def test_names(name):
    """An argument that does not name one model and one recipe is an error before anything is read."""
    refused = CliRunner().invoke(app, ["bisect", "zoo.yaml", name]).exception
    assert isinstance(refused, InputError)
    assert "is not MODEL/RECIPE" in str(refused)


def test_plot_paths(tmp_path):
    """A plot must be a PNG file in an existing folder: this is checked before any work."""
    check_plot(tmp_path / "loss.PNG")
    with pytest.raises(InputError, match=r"should end in \.png"):
        check_plot(tmp_path / "loss.svg")
    with pytest.raises(InputError, match="there is no folder"):
        check_plot(tmp_path / "nowhere" / "loss.png")
