"""The key fields of a model's source."""

import hashlib
import json
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_json
from pteforge.configs.sources import BuilderSource, ProgramSource
from pteforge.errors import SourceError
from pteforge.tasks.keys.search import ModuleSearch
from pteforge.tasks.keys.source import source_fields

NOTHING_IMPORTED = """
import json, sys
from pathlib import Path
from pteforge.configs.sources import BuilderSource
from pteforge.tasks.keys.builder import find_builder
from pteforge.tasks.keys.search import ModuleSearch
from pteforge.tasks.keys.source import source_fields
search = ModuleSearch((Path(sys.argv[1]),))
source_fields(BuilderSource(builder="warm_up:build"), search)  # the standard library imports some of its own late
before, path = set(sys.modules), list(sys.path)
find_builder("pkg.model:build", search)
fields = source_fields(BuilderSource(builder="pkg.model:build"), search, ("plugin", "numpy"))
print(json.dumps([sorted(set(sys.modules) - before), path == sys.path, sorted(fields["modules"])]))
"""


def fields_of(folder, builder="pkg.model:build", watched=(), **source):
    """Fields of a builder, found anew."""
    return source_fields(BuilderSource(builder=builder, **source), ModuleSearch((folder,)), watched, folder=folder)


@pytest.fixture
def zoo(write_tree):
    """A small package with a builder, a helper and a checkpoint."""
    return write_tree(
        {
            "pkg/__init__.py": "",
            "pkg/model.py": "import torch\nfrom .helper import width\ndef build(n=1): ...",
            "pkg/helper.py": "import yaml\nwidth = 8",
            "weights/a.bin": b"12",
        }
    )


def test_fields_of_a_builder(zoo):
    """Modules, distributions, arguments and files are there, each under its name."""
    fields = fields_of(zoo, kwargs={"n": 2}, files=(Path("weights/a.bin"),))
    assert fields["builder"] == "pkg.model:build"
    assert set(fields["modules"]) == {"pkg", "pkg.model", "pkg.helper"}
    assert set(fields["distributions"]) == {"torch", "PyYAML"}
    assert fields["kwargs"] == {"n": 2}
    assert fields["files"] == {"weights/a.bin": hashlib.sha256(b"12").hexdigest()}
    assert digest_json(fields) == digest_json(json.loads(json.dumps(fields)))


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"pkg/helper.py": "import yaml\nwidth = 8  # more"}, set()),
        ({"pkg/helper.py": "import yaml\nwidth = 9"}, {"modules"}),
        ({"pkg/helper.py": "import numpy\nwidth = 8"}, {"modules", "distributions"}),
        ({"weights/a.bin": b"13"}, {"files"}),
        ({"unrelated.py": "x = 1"}, set()),
    ],
)
def test_what_is_edited_is_what_differs(zoo, write_tree, changes, differing):
    """Each edit shows in the field that describes it and in no other."""
    before = fields_of(zoo, files=(Path("weights/a.bin"),))
    write_tree(changes)
    after = fields_of(zoo, files=(Path("weights/a.bin"),))
    assert {name for name in before if before[name] != after[name]} == differing


def test_moving_the_builder_changes_names_only(zoo):
    """The moved module's digest is the same under its new name."""
    before = fields_of(zoo)
    (zoo / "pkg" / "model.py").rename(zoo / "pkg" / "moved.py")
    after = fields_of(zoo, "pkg.moved:build")
    assert before["modules"]["pkg.model"] == after["modules"]["pkg.moved"]
    assert {name for name in before if before[name] != after[name]} == {"builder", "modules"}


def test_moving_the_folder_changes_nothing(zoo, tmp_path):
    """No field holds an absolute path, also where files are declared by one."""
    names = ("weights/a.bin",)
    before = fields_of(zoo, files=tuple(zoo / name for name in names))
    assert before == fields_of(zoo, files=tuple(map(Path, names)))
    assert str(tmp_path) not in json.dumps(before)
    (zoo / "elsewhere").mkdir()
    for name in ("pkg", "weights"):
        (zoo / name).rename(zoo / "elsewhere" / name)
    assert fields_of(zoo / "elsewhere", files=tuple(zoo / "elsewhere" / name for name in names)) == before


def test_files_from_elsewhere_go_by_their_names(zoo, write_tree):
    """Files outside the zoo's folder count by base name; two of one name by their order."""
    one, other = write_tree({"x/w.bin": b"1"}), write_tree({"y/w.bin": b"2"})
    files = (one / "x" / "w.bin", other / "y" / "w.bin")
    fields = source_fields(
        BuilderSource(builder="pkg.model:build", files=files), ModuleSearch((zoo,)), folder=zoo / "pkg"
    )
    digests = [hashlib.sha256(content).hexdigest() for content in (b"1", b"2")]
    assert fields["files"] == {"w.bin": digests[0], "w.bin#2": digests[1]}


def test_watched_files_count_by_content(zoo, write_tree):
    """A file that no module name leads to is watched by its path, which is not in the fields."""
    write_tree({"hidden/extra.py": "x = 1"})
    watched = (str(zoo / "hidden" / "extra.py"), str(zoo / "gone.py"))
    before = fields_of(zoo, watched=watched)
    assert set(before["modules"]) == {"pkg", "pkg.model", "pkg.helper", "*/extra.py"}
    write_tree({"hidden/extra.py": "x = 1  # same"})
    assert fields_of(zoo, watched=watched) == before
    write_tree({"hidden/extra.py": "x = 2"})
    assert fields_of(zoo, watched=watched)["modules"] != before["modules"]
    assert str(zoo) not in json.dumps(before)


def test_builder_of_the_executorch_wheel():
    """It has no local code; the wheel's version and build stand for it."""
    source = BuilderSource(builder="executorch.examples.models.mlperf_tiny.resnet8:ResNet8Model")
    fields = source_fields(source, ModuleSearch())
    assert (fields["modules"], list(fields["distributions"])) == ({}, ["executorch"])


def test_program_file_counts_by_content(write_tree):
    """Name and place of a .pt2 do not matter; a relative path is relative to the given folder."""
    folder = write_tree({"a/one.pt2": b"abc", "b/two.pt2": b"abc"})
    one = source_fields(ProgramSource(program=Path("a/one.pt2")), ModuleSearch(), folder=folder)
    two = source_fields(ProgramSource(program=folder / "b" / "two.pt2"), ModuleSearch())
    assert one == two == {"program": hashlib.sha256(b"abc").hexdigest()}


def test_given_digest_function_is_asked_for_files(zoo):
    """A caller that remembers digests of large files is asked instead of reading them."""
    asked = []

    def remembered(path):
        asked.append(path)
        return "0" * 64

    source = BuilderSource(builder="pkg.model:build", files=(Path("weights/a.bin"),))
    fields = source_fields(source, ModuleSearch((zoo,)), folder=zoo, digest=remembered)
    assert (fields["files"], asked) == ({"weights/a.bin": "0" * 64}, [zoo / "weights" / "a.bin"])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (BuilderSource(builder="pkg.model:build", files=(Path("weights/none.bin"),)), "there is no file"),
        (BuilderSource(builder="pkg.model:build", files=(Path("weights"),)), "cannot be read: Is a directory"),
        (ProgramSource(program=Path("none.pt2")), "there is no program file"),
    ],
)
def test_files_that_cannot_be_read_are_refused(zoo, source, problem):
    """A declared file that is not there is an error before any work starts."""
    with pytest.raises(SourceError, match=problem):
        source_fields(source, ModuleSearch((zoo,)), folder=zoo)


def test_nothing_is_imported(write_tree, run_python):
    """Keys are made without running the user's code: no module is loaded, and ``sys.path`` stays."""
    folder = write_tree(
        {
            "zoo/pkg/__init__.py": "raise SystemExit('ran')",
            "zoo/pkg/model.py": "import torch, yaml, executorch.exir\nfrom . import helper\ndef build(): ...",
            "zoo/pkg/helper.py": "raise SystemExit('ran')",
            "zoo/plugin.py": "raise SystemExit('ran')",
            "zoo/warm_up.py": "import torch\ndef build(): ...",
        }
    )
    modules = ["pkg", "pkg.helper", "pkg.model", "plugin"]
    assert run_python(NOTHING_IMPORTED, folder / "zoo") == [[], True, modules]
