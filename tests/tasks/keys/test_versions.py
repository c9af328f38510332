"""Versions by distribution, and what the machine computes with."""

import importlib.metadata
import shutil
import sys

import pytest
from pteforge.tasks.keys import versions
from pteforge.tasks.keys.versions import distribution_versions, distributions_of

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


@pytest.fixture
def site_folder(tmp_path, monkeypatch):
    """An empty folder at the front of ``sys.path``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_agrees_with_importlib_for_everything_installed():
    """For each top-level module that importlib knows, the distributions and versions are the same."""
    known = importlib.metadata.packages_distributions()
    importable = {top: set(names) for top, names in known.items() if top.isidentifier()}
    # Of a namespace that several distributions share, importlib also lists those that only say they are part of it.
    ours = {top: set(distribution_versions([top])) for top in importable}
    assert all(ours.values())
    assert {top: names for top, names in importable.items() if not ours[top] <= names} == {}
    shared = {top for top in importable if ours[top] != importable[top]}
    assert not shared & {"torch", "executorch", "yaml", "numpy", "google", "pteforge"}
    assert distribution_versions(["yaml"]) == {"PyYAML": importlib.metadata.version("PyYAML")}


def test_names_of_distributions_work_too():
    """`PyYAML` and `yaml` are the same question; what is not installed is left out."""
    assert distribution_versions(["PyYAML", "nowhere"]) == distribution_versions(["yaml"])


def test_editable_pteforge_has_its_version():
    """A distribution whose files are not listed is found by its name."""
    assert distribution_versions(["pteforge"]) == {"pteforge": importlib.metadata.version("pteforge")}


@pytest.mark.parametrize("name", ["torch", "executorch"])
def test_wheels_that_people_build_tell_their_build(name):
    """Beside the version stands a digest of what the wheel installed."""
    version, _, build = distribution_versions([name])[name].partition(" ")
    assert version == importlib.metadata.version(name)
    assert len(build) == len("(0123456789abcdef)")


def test_build_digest_is_of_the_wheel_and_not_of_its_installation(write_tree, site_folder):
    """Byte code, scripts and the installer's notes do not count; a file of another content does."""
    listing = "torch/__init__.py,sha256=AAA,1\ntorch/lib.so,sha256=BBB,2\n"
    made = "../../../bin/torchrun,sha256=CCC,3\ntorch/__pycache__/a.pyc,,\ntorch-9.dist-info/INSTALLER,sha256=D,4\n"
    found = {}
    for case, record in {
        "plain": listing,
        "installed": made + listing,
        "rebuilt": listing.replace("BBB", "XXX"),
    }.items():
        folder = write_tree(
            {"METADATA": METADATA.format(name="torch", version="9"), "RECORD": record}, site_folder / case
        )
        found[case] = versions._wheel_digest(folder)
    assert found["plain"] == found["installed"] != found["rebuilt"]


@pytest.mark.usefixtures("site_folder")
def test_several_distributions_may_share_a_top_level_name(write_tree):
    """All distributions with files in a namespace count."""
    for name in ("space-one", "space_two", "other"):
        stem = f"{name.replace('-', '_')}-1.0.dist-info"
        listing = f"{'space' if name != 'other' else 'spaceship'}/{name}.py,sha256=A,1\n"
        write_tree({f"{stem}/METADATA": METADATA.format(name=name, version="1.0"), f"{stem}/RECORD": listing})
    assert distribution_versions(["space"]) == {"space-one": "1.0", "space_two": "1.0"}


@pytest.mark.usefixtures("site_folder")
@pytest.mark.parametrize("file", ["flat.py", "flat.cpython-311-x86_64-linux-gnu.so", "flat.abi3.so", "flat/a.py"])
def test_single_file_modules_have_a_distribution(write_tree, file):
    """A module may be one file, in Python or compiled."""
    stem = "some_project-2.dist-info"
    write_tree(
        {f"{stem}/METADATA": METADATA.format(name="some-project", version="2"), f"{stem}/RECORD": f"{file},x,1\n"}
    )
    assert distribution_versions(["flat"]) == {"some-project": "2"}


@pytest.mark.usefixtures("site_folder")
def test_module_beside_a_namesake_distribution(write_tree):
    """A distribution that is called like a module of another one is not taken for it."""
    for name, file in (("attr_", "something_else.py"), ("real-owner", "attr_/__init__.py")):
        stem = f"{name.replace('-', '_')}-1.dist-info"
        write_tree({f"{stem}/METADATA": METADATA.format(name=name, version="1"), f"{stem}/RECORD": f"{file},x,1\n"})
    assert distribution_versions(["attr_"]) == {"real-owner": "1"}


@pytest.mark.usefixtures("site_folder")
def test_older_installs_are_known_by_top_level_txt(write_tree):
    """Where no RECORD is kept, as in Debian's packages, ``top_level.txt`` tells."""
    write_tree(
        {
            "old_project-3.egg-info/PKG-INFO": METADATA.format(name="old-project", version="3"),
            "old_project-3.egg-info/top_level.txt": "older\n_older\n",
        }
    )
    assert distribution_versions(["_older"]) == {"old-project": "3"}


def test_upgrade_within_a_path_is_seen_by_the_next_process(write_tree, run_python, tmp_path):
    """Versions are read anew by each process."""
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); "
        "from pteforge.tasks.keys.versions import distribution_versions as d; print(json.dumps(d(['acme'])))"
    )
    seen = []
    for version in ("1", "2"):
        stem = f"acme-{version}.dist-info"
        write_tree(
            {f"{stem}/METADATA": METADATA.format(name="acme", version=version), f"{stem}/RECORD": "acme.py,x,1\n"}
        )
        seen.append(run_python(program, tmp_path))
        shutil.rmtree(tmp_path / stem)
    assert seen == [{"acme": "1"}, {"acme": "2"}]


def test_lookup_is_remembered():
    """The second question costs no reading."""
    distributions_of("yaml")
    hits = versions._distributions_of.cache_info().hits
    distributions_of("yaml")
    assert versions._distributions_of.cache_info().hits == hits + 1


@pytest.mark.slow
def test_host_capability_is_what_torch_chooses(run_python):
    """Without torch, the same answer as torch's own; also with the environment variable that overrides it."""
    program = (
        "import json, torch; from pteforge.tasks.keys.versions import host_capability; "
        "print(json.dumps([host_capability(), torch.backends.cpu.get_cpu_capability()]))"
    )
    for environment in ({}, {"ATEN_CPU_CAPABILITY": "default"}):
        ours, theirs = run_python(program, **environment)
        # torch tells Arm's vector length too, which is the machine's own.
        assert ours.split()[1] == ("sve" if theirs.startswith("SVE") else theirs.lower())


def test_host_capability_needs_no_torch(run_python):
    """It names machine and instructions, and imports nothing heavy."""
    program = (
        "import json, sys; from pteforge.tasks.keys.versions import host_capability; "
        "print(json.dumps([host_capability(), 'torch' in sys.modules]))"
    )
    capability, torch_loaded = run_python(program)
    assert (len(capability.split()), torch_loaded) == (2, False)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse2", "default"),
        ("avx2 fma", "avx2"),
        ("avx2", "default"),
        ("avx2 fma avx512f avx512vl avx512bw avx512dq", "avx512"),
        ("avx2 fma avx512f avx512vl", "avx2"),
        ("fp asimd sve", "sve"),
    ],
)
def test_vector_instructions(flags, expected):
    """A level needs all of its instruction sets."""
    assert versions._vector_instructions(frozenset(flags.split())) == expected


def test_this_python_is_the_one_asked():
    """The folders looked into are those of ``sys.path``."""
    assert all(str(folder.parent) in sys.path for folder in distributions_of("torch"))
