"""Targets joined by `+`: several backends in one payload, each taking what those before it leave."""

import pytest
from pteforge.configs.recipe import Specialization
from pteforge.errors import TargetError
from pteforge.tasks.lowering.model import params_of
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.find import find_target_class
from pteforge.tasks.targets.xnnpack import XnnpackOptions


def test_links():
    """A chain has the requirements of its links, and takes their options under their names; so is its payload named."""
    assert Specialization(target="coreml+xnnpack").payload == "coreml-xnnpack"
    target = find_target("vulkan+xnnpack", {"xnnpack": {"per_operator": True}})
    assert target.backends == ("VulkanBackend", "XnnpackBackend")
    params = params_of(target)
    assert params.name == "vulkan+xnnpack"
    assert params.options["xnnpack"] == XnnpackOptions(per_operator=True).model_dump(mode="json")
    assert find_target(params.name, params.options) == target
    assert not find_target_class("coreml+xnnpack").reproducible
    openvino, coreml = find_target_class("openvino"), find_target_class("coreml")
    distributions = {*openvino.distributions, *coreml.distributions}
    assert set(find_target_class("openvino+coreml").distributions) == distributions


def test_links_decide():
    """The first target chooses first; options that decide nothing about an Edge program are not in the answer."""
    one, other = (
        [type(partitioner) for partitioner in find_target(name).partitioners()]
        for name in ("vulkan+xnnpack", "xnnpack+vulkan")
    )
    assert one == other[::-1]
    assert len(set(one)) == 2
    expected = {"vulkan": {"limits": True}, "xnnpack": find_target("xnnpack").decomposition_options()}
    for value in (True, False):
        target = find_target("vulkan+xnnpack", {"xnnpack": {"per_operator": value}})
        assert target.decomposition_options() == expected
    assert find_target("vulkan+xnnpack").pass_options() is None


@pytest.mark.parametrize("change", ["before_edge", "after_edge"])
def test_programs_go_through_all_links(change, monkeypatch):
    """One after another."""
    for name in ("vulkan", "xnnpack"):
        monkeypatch.setattr(find_target_class(name), change, lambda self, program: [*program, self.name])
    assert getattr(find_target("vulkan+xnnpack"), change)([]) == ["vulkan", "xnnpack"]


def test_missing_link_is_named(monkeypatch):
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
def test_impossible_chains(name, options, problem):
    """They are errors before any work starts."""
    with pytest.raises(TargetError, match=problem):
        find_target(name, options)
