"""One model without a zoo file: `pteforge export package.module:builder`, and `pteforge init` to start a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pteforge.configs.load import load_zoo, model_name, recipe_names, split_source

ZOOS = Path(__file__).parents[2] / "examples" / "zoo"


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project({"linear": "nets:linear"}, ("xnnpack-fp32",))


def test_same_as_a_zoo(made, pteforge):
    """A builder by name is the zoo that names it: everything is cached, and the files are the same."""
    before = made.files()
    for command in (("nets:linear",), ("nets:linear", "--recipe", "xnnpack-fp32"), (f"{made.folder}/nets:linear",)):
        said = pteforge(made, "export", *command)
        assert (said.code, said.err) == (0, "")
        assert "1 file verified in out; 0 stages run, 8 cached" in said.out
    assert made.files() == before
    assert pteforge(made, "plan", "nets:linear", "--recipe", "portable-*").code == 3
    assert pteforge(made, "plan", "nets:linear", "--set", "models.linear.source.kwargs.width=6").code == 3
    known = pteforge(made, "runs", "--json", "--limit", "1").json["runs"][0]["parameters"]
    assert (known["zoo"], known["recipes"]) == (f"{made.folder}/nets:linear", "xnnpack-fp32")


@pytest.mark.slow
def test_programs(project, pteforge):
    """An exported program is a model by the path of its file, for `init`, too; a file that is not there is an error."""
    import torch

    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),)), project.folder / "small.pt2")
    said = project.run("export", "small.pt2", "--recipe", "portable-fp32")
    assert said.code == 0, said.err
    assert (project.out / "small" / "portable-fp32.pte").exists()
    assert pteforge(project, "init", "small.pt2", "new.yaml", "--recipe", "portable-fp32").code == 0
    assert pteforge(project, "plan", "new.yaml").code == 0
    pteforge(project, "init", "large.pt2", "other.yaml").refused("'large.pt2' is no file")
    pteforge(project, "export", "large.pt2").refused("there is no program file", "large.pt2")


def test_mistakes(project, pteforge):
    """The error for an unknown builder or recipe suggests a close name, and has no position."""
    pteforge(project, "export", "nets:linaer").refused("error: nets:linaer: models.linaer.source: ", "mean 'linear'")
    pteforge(project, "export", "nets:linear", "--recipe", "xnnpack-fp23").refused("mean 'xnnpack-fp32'")
    pteforge(project, "export", "nest.yaml").refused("nest.yaml", "No such file")


def test_init(made, pteforge):
    """The file that `init` writes is a zoo whose files are those that are there; it says what the builder takes."""
    said = pteforge(made, "init", "nets:linear", "new.yaml")
    assert (said.code, said.out) == (0, "wrote new.yaml; lower it with: pteforge export new.yaml\n")
    text = (made.folder / "new.yaml").read_text()
    assert "# Arguments that it takes: width, dtype.\n" in text
    assert "0 stages run, 8 cached" in pteforge(made, "export", "new.yaml").out
    pteforge(made, "init", "nets:conv", "new.yaml").refused("new.yaml is there already")
    assert (made.folder / "new.yaml").read_text() == text


def test_example(project, pteforge):
    """`init --example` writes the starter zoo with its models into a folder, as it is in the repository, or nothing."""
    said = pteforge(project, "init", "--example", "starter", "new/zoo")
    folder = project.folder / "new" / "zoo"
    assert said.out.endswith("wrote new/zoo/starter.yaml; lower it with: pteforge export new/zoo/starter.yaml\n")
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        name: (ZOOS / name).read_text() for name in ("starter.yaml", "starter_models.py")
    }
    assert pteforge(project, "plan", "new/zoo/starter.yaml", "--recipe", "portable-*").code == 3
    (folder / "starter.yaml").unlink()
    pteforge(project, "init", "--example", "starter", "new/zoo").refused("starter_models.py is there already")
    assert not (folder / "starter.yaml").exists()
    pteforge(project, "init").refused("name a builder", "--example starter")


def test_comments_of_init_are_fields(made, pteforge):
    """What the builder needs has a place; without their comment signs, the examples are fields of a zoo."""
    pteforge(made, "init", "nets:conv", "other.yaml")
    made.write("needy.py", "def build(width, depth=1): ...\n")
    pteforge(made, "init", "needy:build", "needy.yaml", "--recipe", "portable-fp32")
    assert yaml.safe_load((made.folder / "needy.yaml").read_text())["models"]["build"]["source"]["kwargs"] == {
        "width": None
    }
    shown = re.sub(r"(?m)^( *)# ( *\w+:(?: .*)?)$", r"\1\2", (made.folder / "other.yaml").read_text())
    assert shown.count("#") < (made.folder / "other.yaml").read_text().count("#") - 6
    made.write("shown.yaml", shown)
    zoo = load_zoo(made.folder / "shown.yaml").zoo
    assert set(zoo.recipes) == {"xnnpack-fp32", "strict"}
    assert zoo.models["conv"].calibration


@pytest.mark.parametrize("builder", ["nets:linaer", "nest:linear", "linear", "nets.py"])
def test_init_of_nothing(project, pteforge, builder):
    """A builder that does not exist is an error, and no file is written."""
    pteforge(project, "init", builder).refused(repr(builder))
    assert not (project.folder / "zoo.yaml").exists()


def test_names():
    """Models are named by their builders; recipes by globs of the shipped ones, and what matches none stays."""
    assert [model_name(f"nets:{name}") for name in ("linear", "Net.small", "_hidden", "größe", "_")] == [
        *("linear", "Net.small", "hidden"),
        *("gr--e", "model"),
    ]
    assert [model_name(name) for name in ("hf:org/small-1.5B", "hf:./models/tiny/", "timm:a.b_c", "net.v2.pt2")] == [
        *("small-1.5B", "tiny", "a.b_c", "net.v2"),
    ]
    assert recipe_names("*") == ("xnnpack-fp32",)
    assert recipe_names("portable-*,mine") == ("portable-fp32", "mine")


@pytest.mark.parametrize(
    ("path", "folder", "source"),
    [
        ("nets:linear", ".", "nets:linear"),
        ("/zoo/nets:linear", "/zoo", "nets:linear"),
        ("hf:org/small", ".", "hf:org/small"),
        ("/zoo/hf:org/small", "/zoo", "hf:org/small"),
        ("/zoo/hf:./models/tiny", "/zoo", "hf:./models/tiny"),
        ("hf:/models/tiny", ".", "hf:/models/tiny"),
        ("torchvision:resnet18", ".", "torchvision:resnet18"),
        ("/zoo/net.pt2", "/zoo", "net.pt2"),
    ],
)
def test_sources_in_place_of_files(path, folder, source):
    """A builder, a model's name or a program's file, after the folder that it is looked up from."""
    assert split_source(Path(path)) == (Path(folder), source)


@pytest.mark.parametrize("path", ["zoo.yaml", "/zoo/zoo.yaml", "hf:", "models/resnet18"])
def test_files(path):
    """Anything else is the path of a zoo file."""
    assert split_source(Path(path)) is None
