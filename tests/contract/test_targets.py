"""The contract of every installed target and its quantizer, whoever provides it (see tasks/targets/README.md)."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import metadata
from typing import Any

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import Target, find_target, target_names
from pteforge.tasks.targets.find import find_quantizer_options, find_target_class

AVAILABLE = [name for name in target_names() if type(find_target(name)).available() is None]

# ExecuTorch's public call, which files are compared with, has no place for what the others do to programs.
PARTITIONING = [name for name in AVAILABLE if find_target(name).pass_options() is None]

WITH_QUANTIZER = [name for name in target_names() if find_target_class(name).QuantizerOptions]
QUANTIZING = [name for name in WITH_QUANTIZER if find_target_class(name).available() is None]

# An inherited quantizer is tested with the target that defines it.
OWN = [name for name in QUANTIZING if "quantizer" in vars(find_target_class(name))]

every_target = pytest.mark.parametrize("name", target_names())


def test_no_target_imports_torch(run_python):
    """Finding a target, `available` and `decomposition_options` import neither torch nor ExecuTorch."""
    program = (
        "import json, sys\n"
        "from pteforge.tasks.targets import find_target, target_names\n"
        "def loaded(target):\n"
        "    type(target).available(), target.decomposition_options()\n"
        "    return {'torch', 'executorch'} & {name.partition('.')[0] for name in sys.modules}\n"
        "print(json.dumps([name for name in target_names() if loaded(find_target(name))]))"
    )
    assert run_python("-c", program) == []  # or else the first one is to blame


@every_target
def test_form(name):
    """A target is a documented frozen dataclass of its options, found by its name."""
    made = find_target(name)
    target, options = type(made), made.options
    assert issubclass(target, Target)
    assert target.__dataclass_params__.frozen
    assert [field.name for field in dataclasses.fields(target)] == ["options"]
    assert target.name == name
    assert target.__doc__
    assert isinstance(target.backends, tuple)
    assert isinstance(target.distributions, tuple)
    assert bool(target.backends or target.operators) == target.delegates
    assert not (target.backends and target.operators)
    assert type(options) is target.Options
    assert options.model_config["frozen"]
    assert options.model_config["extra"] == "forbid"
    assert type(options).__doc__
    assert find_target(name, json.loads(json.dumps(options.model_dump(mode="json")))) == made
    assert target.extra is None or target.extra in metadata("pteforge").get_all("Provides-Extra")
    reason = target.available()
    assert reason is None or len(reason.split()) > 1


@every_target
def test_decomposition_options(name):
    """`decomposition_options` returns some of the options as JSON: the edge stage makes the target from these."""
    target = find_target(name)
    decomposition_options = target.decomposition_options()
    if decomposition_options is not None:
        assert json.loads(json.dumps(decomposition_options)) == decomposition_options
        assert find_target(name, decomposition_options).decomposition_options() == decomposition_options
    assert target.delegates or decomposition_options is None


@pytest.fixture(scope="module")
def lowered(lower_for_targets) -> list[dict[str, dict[str, Any]]]:
    return lower_for_targets(PARTITIONING, "compare", "lower")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PARTITIONING)
def test_lowers_small_networks(name, lowered):
    """Payloads use exactly the target's backends, and equal those of ExecuTorch's public call, with any hash seed."""
    target = type(find_target(name))
    results = [made[name] for made in lowered]
    for result in results:
        assert result["backends"] == [[] if target.quantized_only else sorted(target.backends)] * 2
        assert result["new partitioners"]
        assert bool(result["partitioners"]) == target.delegates
    if target.reproducible:
        assert results[0]["files"] == results[0]["upstream"] == results[1]["files"]


@pytest.mark.parametrize("name", WITH_QUANTIZER)
def test_quantizer_options(name):
    """Quantizers have documented options, all with defaults, which survive JSON; others are an error with the list."""
    kind = find_target_class(name).QuantizerOptions
    options = kind()
    assert options.model_config["frozen"]
    assert options.model_config["extra"] == "forbid"
    assert kind.model_validate(json.loads(json.dumps(options.model_dump(mode="json")))) == options
    assert all(f" {field}: " in kind.__doc__ for field in kind.model_fields)
    with pytest.raises(TargetError, match=rf"quantizer options .*'{name}': bitz: .*\(its options: \w+"):
        find_quantizer_options(name, {"bitz": 4})


@pytest.mark.parametrize("name", [name for name in WITH_QUANTIZER if name not in QUANTIZING])
def test_unavailable_quantizers(name):
    """A quantizer whose packages are not installed is an error before any work, with what to do."""
    reason = find_target_class(name).available()
    with pytest.raises(TargetError, match=f"quantizer of .*'{name}' is not available") as raised:
        find_quantizer_options(name)
    assert str(raised.value).endswith(reason)


@pytest.fixture(scope="module")
def quantized(lower_for_targets) -> list[dict[str, dict[str, Any]]]:
    return lower_for_targets(OWN, "quantize", "quantize")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OWN)
def test_quantizes_and_lowers(name, quantized):
    """The target delegates the quantized program, and quantizing again produces the same program and file."""
    target = find_target_class(name)
    one, other = (results[name] for results in quantized)
    assert one["quantized"] > 0
    assert one["backends"] == sorted(target.backends)
    assert one["program"] == other["program"]
    if target.reproducible:
        assert one == other
