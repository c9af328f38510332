"""A model's source: its key fields, what a builder was seen to load, and the check of .pt2 files."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_json
from pteforge.configs.sources import BuilderSource, ProgramSource
from pteforge.errors import SourceError
from pteforge.tasks.engine.keys.code import module_closure
from pteforge.tasks.engine.keys.search import ModuleSearch
from pteforge.tasks.engine.keys.source import check_program_file, source_fields

NOTHING_IMPORTED = """
import json, sys
from pathlib import Path
from pteforge.configs.sources import BuilderSource
from pteforge.tasks.engine.keys.builder import find_builder
from pteforge.tasks.engine.keys.search import ModuleSearch
from pteforge.tasks.engine.keys.source import source_fields
finder = ModuleSearch((Path(sys.argv[1]),))
source_fields(BuilderSource(builder="warm_up:build"), finder)  # the standard library imports some of its own late
before, path = set(sys.modules), list(sys.path)
find_builder("pkg.model:build", finder)
fields = source_fields(BuilderSource(builder="pkg.model:build"), finder, ("plugin", "numpy"))
print(json.dumps([sorted(set(sys.modules) - before), path == sys.path, sorted(fields["modules"])]))
"""


def fields_of(folder, builder="pkg.model:build", watched=(), **source):
    return source_fields(BuilderSource(builder=builder, **source), ModuleSearch((folder,)), watched, folder=folder)


@pytest.fixture
def zoo(write_tree):
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


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"datasets/own.py": "size = 3"}, {"modules"}),
        ({"images/cat/b.npy": b"3"}, {"files"}),
        ({"images/dog/a.npy": b"1"}, {"files"}),
        ({"elsewhere/a.npy": b"1"}, set()),
    ],
)
def test_what_arguments_name(zoo, write_tree, changes, differing):
    """Code that an argument names counts as an import, also for pteforge's own evaluators; a folder as its files."""
    write_tree(
        {"datasets/__init__.py": "", "datasets/own.py": "size = 2", "images/cat/a.npy": b"1", "images/cat/b.npy": b"2"}
    )
    given = {
        "builder": "pteforge.evaluators:top_k",
        "kwargs": {"dataset": "datasets.own:data", "read": "not_there:read", "k": 2},
        "files": (Path("images"),),
    }
    before = fields_of(zoo, **given)
    assert {"datasets.own", "pteforge.evaluators.classification", "pteforge.evaluators.samples"} <= set(
        before["modules"]
    )
    assert list(before["files"]) == ["images/cat/a.npy", "images/cat/b.npy"]
    write_tree(changes)
    after = fields_of(zoo, **given)
    assert {name for name in before if before[name] != after[name]} == differing


def test_moving(zoo, tmp_path):
    """No field holds an absolute path, so moving the folder changes nothing, and moving a module only its name."""
    names = ("weights/a.bin",)
    before = fields_of(zoo, files=tuple(zoo / name for name in names))
    assert before == fields_of(zoo, files=tuple(map(Path, names)))
    assert str(tmp_path) not in json.dumps(before)
    moved = zoo / "elsewhere"
    moved.mkdir()
    for name in ("pkg", "weights"):
        (zoo / name).rename(moved / name)
    files = tuple(moved / name for name in names)
    assert fields_of(moved, files=files) == before
    (moved / "pkg" / "model.py").rename(moved / "pkg" / "moved.py")
    after = fields_of(moved, "pkg.moved:build", files=files)
    assert before["modules"]["pkg.model"] == after["modules"]["pkg.moved"]
    assert {name for name in before if before[name] != after[name]} == {"builder", "modules"}


def test_files_from_elsewhere_go_by_their_names(zoo, write_tree):
    """Files outside the zoo's folder count by base name; two of one name by their order."""
    write_tree({"x/w.bin": b"1", "y/w.bin": b"2"})
    source = BuilderSource(builder="pkg.model:build", files=(zoo / "x/w.bin", zoo / "y/w.bin"))
    fields = source_fields(source, ModuleSearch((zoo,)), folder=zoo / "pkg")
    one, two = (hashlib.sha256(content).hexdigest() for content in (b"1", b"2"))
    assert fields["files"] == {"w.bin": one, "w.bin#2": two}
    remembered = {zoo / "x/w.bin": "0" * 64, zoo / "y/w.bin": two}
    fields = source_fields(source, ModuleSearch((zoo,)), folder=zoo / "pkg", digest=remembered.__getitem__)
    assert fields["files"] == {"w.bin": "0" * 64, "w.bin#2": two}


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


def test_sources_without_local_code(write_tree):
    """For a builder of ExecuTorch's wheel stands the wheel; for a .pt2 its content, whatever its name and place are."""
    source = BuilderSource(builder="executorch.examples.models.mlperf_tiny.resnet8:ResNet8Model")
    fields = source_fields(source, ModuleSearch())
    assert (fields["modules"], list(fields["distributions"])) == ({}, ["executorch"])
    folder = write_tree({"a/one.pt2": b"abc", "b/two.pt2": b"abc"})
    one = source_fields(ProgramSource(program=Path("a/one.pt2")), ModuleSearch(), folder=folder)
    two = source_fields(ProgramSource(program=folder / "b" / "two.pt2"), ModuleSearch())
    assert one == two == {"program": hashlib.sha256(b"abc").hexdigest()}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (BuilderSource(builder="pkg.model:build", files=(Path("weights/none.bin"),)), "there is no file"),
        (BuilderSource(builder="pkg.model:build", files=(Path("gone"),)), "there is no file"),
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


OBSERVE = """
import json, sys
from importlib import import_module
from pathlib import Path
from pteforge.tasks.engine.keys.source import observed_distributions, observed_modules
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
before, path = set(sys.modules), list(sys.path)
import_module("model").build()
print(json.dumps([observed_modules(before, (folder,), path), observed_distributions(before, (folder,))]))
"""


@pytest.fixture
def observe(write_tree, run_python):
    """Runs ``model.build`` of a tree in a process of its own; returns the modules and distributions that it loaded."""

    def run(files):
        folder = write_tree(files)
        return folder, *run_python(OBSERVE, folder)

    return run


def test_static_closure_and_what_is_observed(observe, write_tree):
    """For ordinary imports nothing is left to watch; what is imported by a computed name is observed."""
    folder, modules, _ = observe(
        {
            **dict.fromkeys(("zoo/setup.py", "zoo/nets/__init__.py", "late.py"), ""),
            "model.py": "from zoo import nets\nfrom zoo.nets.deep import net\nimport importlib\n"
            "def build():\n    import late\n    importlib.import_module('plug' + 'ins.one')",
            "zoo/__init__.py": "from .setup import *",
            "zoo/nets/deep.py": "from .. import setup\nnet = 1",
            "plugins/one.py": "x = 1",
        }
    )
    static = module_closure("model", ModuleSearch((folder,)))
    assert set(modules) - set(static.modules) == {"plugins.one"}
    assert set(static.modules) == {"model", "late", "zoo", "zoo.setup", "zoo.nets", "zoo.nets.deep"}
    watched = module_closure("model", ModuleSearch((folder,)), ["plugins.one"])
    write_tree({"plugins/one.py": "x = 2"})
    assert module_closure("model", ModuleSearch((folder,))) == static
    assert module_closure("model", ModuleSearch((folder,)), ["plugins.one"]) != watched


# A builder that extends ``sys.path``, and one that loads a file under another name.
PATHS = """
import sys, os, importlib.util
def build():
    here = os.path.dirname(__file__)
    sys.path.append(os.path.join(here, 'third_party'))
    import vendored
    spec = importlib.util.spec_from_file_location('helper', os.path.join(here, 'odd.py'))
    sys.modules['helper'] = importlib.util.module_from_spec(spec)
"""
# Anything may stand in ``sys.modules``; lazily loaded modules must not be loaded by being looked at.
ODD_ENTRIES = """
import sys, importlib.util
class Slots:
    __slots__ = ()
def build():
    sys.modules.update(none=None, number=1, slots=Slots())
    spec = importlib.util.find_spec('lazy')
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules['lazy'] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules['lazy'])
"""
INSTALLED = "import colorsys, pluggy, pteforge.configs.model, pteforge.artifacts.ref\ndef build(): ..."


@pytest.mark.parametrize(
    ("source", "others", "expected"),
    [
        (PATHS, {"helper.py": "", "odd.py": "", "third_party/vendored.py": ""},
         (["/odd.py", "/third_party/vendored.py", "model"], [])),
        (INSTALLED, {}, (["model"], ["pluggy"])),
        (ODD_ENTRIES, {"lazy.py": "raise SystemExit('loaded')"}, (["lazy", "model"], [])),
    ],
    ids=["paths", "installed", "odd entries"],
)  # fmt: skip
def test_observed(observe, source, others, expected):
    """Local code is observed by name, or by path where no name leads to it; installed code by its top-level name."""
    folder, modules, distributions = observe({"model.py": source, **others})
    assert ([name.removeprefix(str(folder)) for name in modules], distributions) == expected


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Files that torch writes: an exported program, a state dict, a scripted module."""
    import torch

    folder = tmp_path_factory.mktemp("saved")
    module = torch.nn.Linear(64, 64)
    program = torch.export.export(module, (torch.ones(1, 64),))
    torch.export.save(program, folder / "linear.pt2", extra_files={"note.txt": "hello"})
    torch.save(module.state_dict(), folder / "weights.pt2")
    torch.jit.save(torch.jit.trace(module, torch.ones(1, 64)), folder / "script.pt2")
    return folder


def refused(path):
    with pytest.raises(SourceError) as caught:
        check_program_file(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.slow  # torch is imported, and exports and traces a module
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # people still have TorchScript files
def test_files_that_torch_writes(saved, tmp_path, run_python):
    """Programs are accepted without importing torch; other kinds of files, and cut or damaged ones, are refused."""
    program = (
        "import json, sys; from pathlib import Path; from pteforge.tasks.engine.keys.source import check_program_file; "
        "check_program_file(Path(sys.argv[1])); print(json.dumps('torch' in sys.modules))"
    )
    assert run_python(program, saved / "linear.pt2") is False
    assert "state dict" in refused(saved / "weights.pt2")
    assert "TorchScript" in refused(saved / "script.pt2")
    path = tmp_path / "renamed.pt2"
    content = bytearray((saved / "linear.pt2").read_bytes())
    path.write_bytes(content)
    check_program_file(path)
    for kept in (0.0, 0.3, 0.9, 0.999):
        path.write_bytes(content[: int(len(content) * kept)])
        assert "damaged or no .pt2 file" in refused(path)
    with zipfile.ZipFile(saved / "linear.pt2") as archive:
        weight = max(archive.infolist(), key=lambda member: member.file_size)
    content[weight.header_offset + 3000] ^= 1
    path.write_bytes(content)
    assert "damaged" in refused(path)
    assert weight.filename in refused(path)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({}, "not one that torch.export.save writes"),
        ({"a/b": "c"}, "not one that torch.export.save writes"),
        # A compiled package has the same form but no program in it.
        ({"p/archive_format": "pt2", "p/data/aotinductor/model/model.so": ""}, "holds no exported program"),
    ],
)
def test_other_archives_are_refused(tmp_path, members, problem):
    """A zip archive that torch.export.save did not write is no program, nor is a path that is no file."""
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert problem in refused(tmp_path / "other.pt2")
    for path in (tmp_path / "missing.pt2", tmp_path):
        assert "there is no program file" in refused(path)
