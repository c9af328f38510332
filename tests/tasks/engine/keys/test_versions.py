"""Versions by distribution, and what the machine computes with."""

import importlib.metadata
import importlib.util

import pytest
from pteforge.tasks.engine.keys import search
from pteforge.tasks.engine.keys.search import distribution_versions

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def dist_info(name, version, record):
    stem = f"{name.replace('-', '_')}-{version}.dist-info"
    return {f"{stem}/METADATA": METADATA.format(name=name, version=version), f"{stem}/RECORD": record}


@pytest.fixture
def site_folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_agrees_with_importlib_for_everything_installed():
    """For each top-level module that importlib knows, the distributions and versions are the same."""
    known = importlib.metadata.packages_distributions()
    modules = (top for top in known if top.isidentifier() and top != "__pycache__")  # which newer Pythons list
    modules = (top for top in modules if importlib.util.find_spec(top))  # wheels may list what is inside a package
    importable = {top: set(known[top]) for top in modules}
    # Of a namespace that several distributions share, importlib also lists those that only say they are part of it.
    ours = {top: set(distribution_versions([top])) for top in importable}
    assert all(ours.values())
    assert {top: names for top, names in importable.items() if not ours[top] <= names} == {}
    shared = {top for top in importable if ours[top] != importable[top]}
    assert not shared & {"torch", "executorch", "yaml", "numpy", "google", "pteforge"}
    # Names of distributions work too, also where files are not listed (editable); what is not installed is left out.
    for names in (["yaml"], ["PyYAML", "nowhere"]):
        assert distribution_versions(names) == {"PyYAML": importlib.metadata.version("PyYAML")}
    assert distribution_versions(["pteforge"]) == {"pteforge": importlib.metadata.version("pteforge")}


def test_build_digest_is_of_the_wheel_and_not_of_its_installation(write_tree, site_folder):
    """Byte code, scripts and the installer's notes do not count; a file of another content does."""
    listing = "torch/__init__.py,sha256=AAA,1\ntorch/lib.so,sha256=BBB,2\n"
    made = "../../../bin/torchrun,sha256=CCC,3\ntorch/__pycache__/a.pyc,,\ntorch-9.dist-info/INSTALLER,sha256=D,4\n"
    found = {}
    records = {"plain": listing, "installed": made + listing, "rebuilt": listing.replace("BBB", "XXX")}
    for case, record in records.items():
        folder = write_tree(
            {"METADATA": METADATA.format(name="torch", version="9"), "RECORD": record}, site_folder / case
        )
        found[case] = search._wheel_digest(folder)
    assert found["plain"] == found["installed"] != found["rebuilt"]
    for name in ("torch", "executorch"):
        version, _, build = distribution_versions([name])[name].partition(" ")
        assert version == importlib.metadata.version(name)
        assert len(build) == len("(0123456789abcdef)")


@pytest.mark.parametrize(
    ("installed", "top", "owners"),
    [
        ({"some-project": "flat.py"}, "flat", {"some-project"}),
        ({"some-project": "flat.cpython-311-x86_64-linux-gnu.so"}, "flat", {"some-project"}),
        ({"some-project": "flat.abi3.so"}, "flat", {"some-project"}),
        ({"some-project": "flat/a.py"}, "flat", {"some-project"}),
        ({"space-one": "space/a.py", "space_two": "space/b.py", "other": "spaceship/c.py"}, "space",
         {"space-one", "space_two"}),  # all distributions with files in a namespace
        ({"attr_": "something_else.py", "real-owner": "attr_/__init__.py"}, "attr_", {"real-owner"}),  # not a namesake
    ],
)  # fmt: skip
def test_modules_belong_to_the_distributions_that_installed_them(write_tree, site_folder, installed, top, owners):
    """The files that a distribution lists decide, whether a module is a folder, one file or compiled."""
    for name, file in installed.items():
        write_tree(dist_info(name, "1.0", f"{file},sha256=A,1\n"))
    old = {"PKG-INFO": METADATA.format(name="old-project", version="3"), "top_level.txt": "older\n_older\n"}
    write_tree(old, site_folder / "old_project-3.egg-info")
    assert distribution_versions([top]) == dict.fromkeys(owners, "1.0")
    assert distribution_versions(["_older"]) == {"old-project": "3"}


@pytest.mark.slow
def test_host_capability_is_what_torch_chooses(run_python):
    """Without torch, the same answer as torch's own; also with the environment variable that overrides it."""
    program = (
        "import json, torch; from pteforge.tasks.engine.keys.search import host_capability; "
        "print(json.dumps([host_capability(), torch.backends.cpu.get_cpu_capability()]))"
    )
    for environment in ({}, {"ATEN_CPU_CAPABILITY": "default"}):
        ours, theirs = run_python(program, **environment)
        # torch tells Arm's vector length too, which is the machine's own.
        assert ours.split()[1] == ("sve" if theirs.startswith("SVE") else theirs.lower())


def test_host_capability_needs_no_torch(run_python):
    """It names machine and instructions, and imports nothing heavy."""
    program = (
        "import json, sys; from pteforge.tasks.engine.keys.search import host_capability; "
        "print(json.dumps([host_capability(), 'torch' in sys.modules]))"
    )
    capability, torch_loaded = run_python(program)
    assert (len(capability.split()), torch_loaded) == (2, False)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        *(("fpu sse2", "default"), ("avx2", "default"), ("fp asimd sve", "sve")),
        *(("avx2 fma", "avx2"), ("avx2 fma avx512f avx512vl", "avx2")),
        ("avx2 fma avx512f avx512vl avx512bw avx512dq", "avx512"),
    ],
)
def test_vector_instructions(flags, expected):
    """A level needs all of its instruction sets."""
    assert search._vector_instructions(frozenset(flags.split())) == expected
