"""What every installed target keeps to, whoever brought it: the README of `pteforge.tasks.targets` promises it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from pteforge.tasks.targets import Target, find_target, target_names

BODIES = Path(__file__).parent / "bodies"

every_target = pytest.mark.parametrize("name", target_names())
every_target_that_lowers_here = pytest.mark.parametrize(
    "name", [name for name in target_names() if type(find_target(name)).available() is None]
)


def python(*arguments, **environment):
    """Runs Python; gives the last line of what it printed, as JSON."""
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return json.loads(finished.stdout.splitlines()[-1])


@every_target
def test_imports_no_torch(name):
    """Finding a target, asking whether it is available and what it preserves imports neither torch nor ExecuTorch."""
    program = (
        "import json, sys\n"
        "from pteforge.tasks.targets import find_target\n"
        "target = find_target(sys.argv[1])\n"
        "type(target).available(), target.preserving()\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'executorch'})))"
    )
    assert python("-c", program, name) == []


@every_target
def test_form(name):
    """A target is a frozen dataclass with nothing but options, documented, with the name that it is found by."""
    target = type(find_target(name))
    assert issubclass(target, Target)
    assert target.__dataclass_params__.frozen
    assert [field.name for field in dataclasses.fields(target)] == ["options"]
    assert target.name == name
    assert target.__doc__
    assert isinstance(target.backends, tuple)
    assert isinstance(target.distributions, tuple)
    assert bool(target.backends) == target.delegates


@every_target
def test_options_have_defaults(name):
    """A recipe may name a target without options; each option says what it is."""
    options = find_target(name).options
    assert type(options) is type(find_target(name)).Options
    assert options.model_config["frozen"]
    assert options.model_config["extra"] == "forbid"
    assert type(options).__doc__


@every_target
def test_options_round_trip_through_json(name):
    """Options are the same after JSON, as they travel in stage params."""
    target = find_target(name)
    written = json.loads(json.dumps(target.options.model_dump(mode="json")))
    assert find_target(name, written) == target


@every_target
def test_what_is_preserved_is_options(name):
    """`preserving` gives some of the options as JSON: the edge stage makes the target from just these."""
    target = find_target(name)
    preserving = target.preserving()
    if preserving is not None:
        assert json.loads(json.dumps(preserving)) == preserving
        assert find_target(name, preserving).preserving() == preserving
    assert target.delegates or preserving is None


@every_target
def test_extras_exist(name):
    """The extra that a target names is one of pteforge's."""
    extra = type(find_target(name)).extra
    assert extra is None or extra in metadata("pteforge").get_all("Provides-Extra")


@every_target
def test_unavailable_targets_say_why(name):
    """Where a target cannot lower on this machine, it says so in words."""
    reason = type(find_target(name)).available()
    assert reason is None or len(reason.split()) > 1


@pytest.mark.slow
@every_target_that_lowers_here
def test_lowers_small_networks(name, tmp_path):
    """It lowers in every stage, its payloads need the backends it names, and are what ExecuTorch's public call gives.

    They are the same with other hash seeds. Equal bytes are not asked of a target that says it is not reproducible, and
    backends not of one that takes quantized operators only.
    """
    made = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        path = os.pathsep.join([str(BODIES), *filter(None, [os.environ.get("PYTHONPATH")])])
        made.append(python(BODIES / "lower_network.py", name, folder, PYTHONHASHSEED=seed, PYTHONPATH=path))
    target = type(find_target(name))
    for network in (*made[0], *made[1]):
        assert network["backends"] == ([] if target.quantized_only else sorted(target.backends))
        assert "serialize/recipe" in network["steps"]
    if target.reproducible:
        digests = [[network[by] for network in networks] for networks in made for by in ("sha256", "upstream")]
        assert digests == [digests[0]] * 4


@pytest.mark.slow
@every_target_that_lowers_here
def test_partitioners_are_made_anew(name):
    """A target keeps no state: each call makes new partitioners, and there are some exactly where it delegates."""
    program = (
        "import json, sys\n"
        "from pteforge.tasks.targets import find_target\n"
        "target = find_target(sys.argv[1])\n"
        "one, other = target.partitioners(), target.partitioners()\n"
        "new = all(a is not b for a, b in zip(one, other, strict=True))\n"
        "print(json.dumps([new, bool(one) == type(target).delegates]))"
    )
    assert python("-c", program, name) == [True, True]
