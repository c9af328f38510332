"""A request is one value: of the command line, of Prefect's form and of the run's record."""

from __future__ import annotations

import threading
from pathlib import Path

import cloudpickle
import pytest
import typer
from pteforge.errors import InputError
from pteforge.flows.cli.main import app
from pteforge.flows.run.request import EVERYWHERE, Also, ExportRequest, describe
from pydantic import ValidationError

NAMES = {"models": "--model", "recipes": "--recipe", "overrides": "--set", "places": "--place"}


def test_every_field_is_an_option_and_a_parameter():
    """The docstring of a field is its help, which the documentation has too, and its description in Prefect's form."""
    from pteforge.flows.prefect.zoo_flow import export_model, export_zoo

    commands = typer.main.get_command(app).commands
    for name in ExportRequest.model_fields:
        option, text = NAMES.get(name, f"--{name.replace('_', '-')}"), describe(name)
        for command in ("export", "deploy", "serve"):
            (offered,) = (param for param in commands[command].params if param.name == name)
            assert offered.help == text
            assert name == "zoo" or option in offered.opts
        for flow in (export_zoo, export_model):
            assert flow.parameters.properties[name]["description"] == text


def test_commands_that_start_no_run():
    """They have options for the fields that name them, and no others."""
    commands = typer.main.get_command(app).commands
    offered = {name: {(param.name, param.help) for param in commands[name].params} for name in EVERYWHERE.commands}
    for name, field in ExportRequest.model_fields.items():
        named = {command for extra in field.metadata if isinstance(extra, Also) for command in extra.commands}
        assert named == {command for command, names in offered.items() if (name, field.description) in names}, name


def test_empty_fields_of_a_form():
    """A text that Prefect's form sends empty is as if it was not given: no store in the current folder, no release."""
    empty = dict.fromkeys(("store", "until", "publish"), "")
    assert ExportRequest(zoo="zoo.yaml", **empty) == ExportRequest(zoo="zoo.yaml")


def test_parameters():
    """Parameters are JSON from which the same request is read anywhere: paths are absolute, URLs and blocks stay."""
    asked = ExportRequest(zoo="zoo.yaml", models=["a*", "b"], store="store", publish="s3://models", overrides=["a=1"])
    given = asked.parameters()
    assert given == {
        **dict.fromkeys(("jobs", "until", "on", "toolchain")),
        "zoo": str(Path("zoo.yaml").absolute()),
        "models": "a*,b",
        "recipes": "*",
        "store": str(Path("store").absolute()),
        "out": str(Path("out").absolute()),
        "overrides": ["a=1"],
        "places": [],
        "debug": False,
        "publish": "s3://models",
        "refresh": False,
    }
    assert ExportRequest(**given).parameters() == given
    assert set(asked.parameters(defaults=False)) == {"zoo", "models", "store", "out", "overrides", "publish"}
    placed = ExportRequest(zoo="zoo.yaml", places=["gpu", "library:a.so"]).parameters()["places"]
    assert placed == ["gpu", f"library:{Path('a.so').absolute()}"]
    assert ExportRequest(zoo="zoo.yaml", store="block:forge").parameters()["store"] == "block:forge"


def test_what_makes_no_sense():
    """Unknown fields and stages, no stage at once, results at a URL, and releases of no files are errors."""
    with pytest.raises(ValidationError, match="model\n"):
        ExportRequest(zoo="zoo.yaml", model="a")
    with pytest.raises(ValidationError, match=r"jobs\n.*equal to 1"):
        ExportRequest(zoo="zoo.yaml", jobs=0)
    with pytest.raises(InputError, match="s3://models/out is a URL"):
        ExportRequest(zoo="zoo.yaml", out="s3://models/out")
    with pytest.raises(InputError, match="stage 'egde'; did you mean 'edge'"):
        ExportRequest(zoo="zoo.yaml", until="egde")
    with pytest.raises(InputError, match="--until stops before"):
        ExportRequest(zoo="zoo.yaml", publish="shared", until="edge")


def test_the_flow_travels_without_its_run():
    """Prefect sends the flow along with each task to other processes: without the run, which cannot be pickled."""
    from pteforge.flows.prefect.zoo_flow import _Export

    content = cloudpickle.dumps(_Export(threading.Lock(), opened=True))
    assert cloudpickle.loads(content) == _Export(None)
    assert len(content) < 200
