"""Names of torch and ExecuTorch that are private, or not in every release."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pteforge
import pytest
from pteforge.errors import ToolchainError
from pteforge.tasks.upstream import compat
from pteforge.tasks.upstream.patches import PATCHES, mends

ROOT = Path(pteforge.__file__).parent
OUTSIDE = {
    ("runtime/host.py", "executorch.exir._serialize.data_serializer"),  # runtime/ does without tasks/
    ("runtime/runners.py", "executorch.extension.pybindings"),  # as above
    ("runtime/selection.py", "executorch.extension.pybindings"),  # as above
}
"""Private imports outside of `compat`."""


def _sources():
    for folder in ("api", "evaluators", "flows", "native", "runtime", "tasks"):
        yield from (ROOT / folder).rglob("*.py")


def test_private_names_come_through_one_module():
    """Nothing else imports what torch and ExecuTorch keep private, at the top of a module or in a function."""
    found = set()
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and (module := node.module):
                names = [f"{module}.{name.name}" for name in node.names]
            elif isinstance(node, ast.Import):
                names = [name.name for name in node.names]
                module = names[0]
            else:
                continue
            parts = {part for name in names for part in name.split(".")}
            ours = module.partition(".")[0] in ("torch", "executorch")
            if ours and any(part.startswith("_") and not part.startswith("__") for part in parts):
                found.add((path.relative_to(ROOT).as_posix(), module))
    assert found == OUTSIDE


@pytest.mark.parametrize("name", sorted(compat.PATHS))
def test_the_supported_release_has_each_name(name):
    """Whatever is looked for in the backends that are installed is there."""
    try:
        value = getattr(compat, name)
    except ImportError as error:  # ExecuTorch's wheel lacks generated modules of MLX
        assert "mlx" in compat.PATHS[name], error  # noqa: PT017 - which names may fail
    else:
        assert not compat.is_missing(value)


class TestMissing:
    """A name that the installed release lacks."""

    @pytest.fixture
    def absent(self):
        return compat.find("executorch.exir.no_such_module.Absent")

    def test_mentioned(self, absent):
        """It can be passed on, subclassed, compared with and asked for attributes."""
        assert compat.is_missing(absent)
        assert compat.is_missing(absent.method.of.something)
        assert not isinstance(3, absent)
        assert {absent: 1}[absent] == 1
        assert list(absent) == []
        assert compat.is_missing(type("Derived", (absent,), {"field": 3}))

    def test_used(self, absent):
        """It raises a sentence with the release and the name where it is called, also as a base, or patched."""
        sentence = r"executorch 1\.\d+\.\d+ has no `executorch\.exir\.no_such_module\.Absent`"
        for use in (absent, absent.method, type("Derived", (absent,), {})):
            with pytest.raises(ToolchainError, match=r"executorch 1\.\d+\.\d+ has no `executorch\.exir"):
                use()
        with pytest.raises(ToolchainError, match=sentence), patch.object(absent, "method", None):
            pass

    @pytest.mark.parametrize(
        "path", ["torch.no_such_name", "torch.nn.no_such_module.Name", "torch.nn.Linear.no_such_method", "pytree.no"]
    )
    def test_where_it_may_be_missing(self, path):
        """A module, an object of one, an attribute of a class, and of a name of `compat`."""
        assert compat.is_missing(compat.find(path))

    def test_of_a_package_that_is_not_installed(self):
        """What a backend needs besides is no fault of ExecuTorch's: the error is Python's."""
        with pytest.raises(ModuleNotFoundError, match="no_such_package"):
            compat.find("no_such_package.name")


def _helper():
    return Absent()


Absent = compat.find("torch.no_such_name")


def _calls_helper():
    _helper()


@pytest.mark.parametrize(
    ("replaces", "function", "lacks"),
    [
        ((), dict, ()),
        (("torch.no_such_name",), dict, ("torch.no_such_name",)),
        (("torch.nn.Linear.forward",), dict, ()),
        ((), lambda: Absent, ("torch.no_such_name",)),
        ((), lambda: [Absent() for _ in range(3)], ("torch.no_such_name",)),
        ((), _calls_helper, ("torch.no_such_name",)),
    ],
)
def test_what_a_patch_lacks(replaces, function, lacks):
    """What it says that it replaces, and what its code and that of its helpers mention."""

    def patch_of_test():
        raise AssertionError("was applied")

    patch_of_test = function if function is not dict else patch_of_test
    with patch.dict(PATCHES):
        apply = mends("nothing", *replaces)(patch_of_test)
        (made,) = [each for each in PATCHES.values() if each.fault == "nothing"]
    assert made.missing() == lacks
    if lacks:
        with apply():
            pass
        assert apply()(len)([1, 2]) == 2  # as a decorator


def test_patches_of_other_releases():
    """A patch for releases that are not installed is not applied."""
    applied = []
    with patch.dict(PATCHES):
        mends("nothing", releases="<1.0")(lambda: applied.append("old"))()
        mends("nothing", releases=">=1.0")(lambda: applied.append("present"))()
    assert applied == ["present"]


def test_all_patches_apply_to_the_supported_release():
    """And each of them is in the table of the documentation."""
    asked = "import json, sys\nfrom pteforge.tasks.lowering.toolchain import describe\n"
    asked += "known = describe()\njson.dump([str(known), [patch.name for patch in known.patches]], sys.stdout)"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    said, names = json.loads(answer.stdout.splitlines()[-1])
    assert f"{len(names)} of {len(names)} patches apply" in said
    assert len(said.splitlines()) == 3  # the last one counts limits
    page = (ROOT / "docs" / "internals" / "upstream.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("part", range(8))
def test_each_name_taken_away(part):
    """Without any one name, each recipe is made, or fails by itself and `doctor` names what is missing."""
    replaced = {path for each in PATCHES.values() for path in each.replaces}
    own = {compat.PATHS["exir_ops"], compat.PATHS["edge_ops"]}  # ExecuTorch itself is built on them
    paths = sorted({*compat.PATHS.values(), *replaced} - own)[part::8]
    script = Path(__file__).with_name("without.py")
    answer = subprocess.run([sys.executable, str(script), *paths], capture_output=True, text=True, check=True)
    tried = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith('{"subject"')]
    assert [each["subject"] for each in tried] == paths
    wrong, refused = {}, 0
    for each in tried:
        said = each["results"].pop("doctor", "")
        failed = {recipe: result for recipe, result in each["results"].items() if not result.startswith("made")}
        refused += len(failed)
        if failed and ("died" in failed.values() or each["subject"] not in said):
            wrong[each["subject"]] = failed
    assert wrong == {}
    assert refused < len(paths)  # of two recipes each
