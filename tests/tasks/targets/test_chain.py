"""Targets joined by `+`: several backends in one payload, each taking what those before it leave."""

from __future__ import annotations

import pytest
from pteforge.configs import Recipe
from pteforge.errors import TargetError
from pteforge.tasks.model import params_of
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.find import find_target_class
from pteforge.tasks.targets.xnnpack import XnnpackOptions


def test_links():
    """A chain needs what its links need, and takes their options under their names."""
    target = find_target("vulkan+xnnpack", {"xnnpack": {"per_operator": True}})
    assert target.backends == ("VulkanBackend", "XnnpackBackend")
    params = params_of(target)
    assert params.name == "vulkan+xnnpack"
    assert params.options["xnnpack"] == XnnpackOptions(per_operator=True).model_dump(mode="json")
    assert find_target(params.name, params.options) == target
    assert not find_target_class("coreml+xnnpack").reproducible
    assert set(find_target_class("openvino+coreml").distributions) == {
        *find_target_class("openvino").distributions,
        *find_target_class("coreml").distributions,
    }


def test_order_counts():
    """Who chooses first is who stands first."""
    names = [
        [type(each).__name__ for each in find_target(name).partitioners()]
        for name in ("vulkan+xnnpack", "xnnpack+vulkan")
    ]
    assert names[0] == names[1][::-1]
    assert len(set(names[0])) == 2


def test_edge_programs_are_shared_by_what_matters():
    """Options that decide nothing about an Edge program are not in the answer."""
    one, other = (find_target("vulkan+xnnpack", {"xnnpack": {"per_operator": each}}) for each in (True, False))
    assert one.preserving() == other.preserving() == {"vulkan": {}, "xnnpack": find_target("xnnpack").preserving()}
    assert one.transforming() is None


def test_what_a_link_lacks_is_named(monkeypatch):
    """A chain is available where all links are."""
    assert find_target("vulkan+xnnpack").available() is None
    monkeypatch.setattr(find_target_class("vulkan"), "available", classmethod(lambda _: "buy one"))
    assert find_target("xnnpack+vulkan").available() == "vulkan: buy one"


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("xnnpack+portable", {}, "'portable' delegates nothing"),
        ("xnnpack+xnnpack", {}, "more than once"),
        ("xnnpack+vulcan", {}, "did you mean 'vulkan'"),
        ("xnnpack+", {}, "unknown target ''"),
        ("vulkan+xnnpack", {"xnnpack": {"per_op": True}}, "xnnpack.per_op: Extra inputs"),
        ("vulkan+xnnpack", {"per_operator": True}, r"its options: vulkan, xnnpack"),
    ],
)
def test_what_makes_no_sense(name, options, problem):
    """It is said before any work starts."""
    with pytest.raises(TargetError, match=problem):
        find_target(name, options)


def test_name_of_the_payload():
    """A payload is called after its target, in letters that names may have."""
    (specialization,) = Recipe.model_validate({"specializations": [{"target": "coreml+xnnpack"}]}).specializations
    assert specialization.payload == "coreml-xnnpack"
