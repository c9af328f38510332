"""Errors of `pteforge.export` for unusable arguments."""

from __future__ import annotations

import pteforge
import pytest
import torch
from pteforge.errors import ConfigError, InputError, SourceError, StageFailed
from pteforge.tests.lowering import checked_recipe

NOT_FOR_NETS = checked_recipe("portable", not_for={"net*": "no kernels"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"recipe": "nowhere.yaml"}, "cannot read nowhere.yaml"),
        ({"recipe": 3}, "recipe: is a int; give the name of a shipped recipe, the path of a YAML file, a mapping"),
        ({"recipe": {"specializations": []}}, "recipe: specializations: is empty"),
        (
            {"recipe": {"extends": "xnnpack-fp33"}},
            "recipe: extends: there is no recipe .*; did you mean 'xnnpack-fp32'",
        ),
        (
            {"recipe": {"extends": "xnnpack-fp32", "verify": {"min_sqnr": 3}}},
            "recipe: verify.min_sqnr: unknown key 'min_sqnr'; did you mean 'min_sqnr_db'",
        ),
        (
            {"recipe": {"specializations": [{"target": "xnnpak"}]}},
            r"recipe: specializations\[0\].target: unknown target",
        ),
        ({"recipe": {"extends": print}}, "recipe: a recipe has texts, numbers, lists and mappings as in YAML"),
        ({"name": "a/b"}, "'a/b' cannot be a model's name"),
        ({"recipe": NOT_FOR_NETS, "name": "net1"}, "the recipe 'recipe' does not apply to 'net1': no kernels"),
        ({"example_inputs": "x"}, "example_inputs of method 'forward' is a str; give a tuple"),
        ({"example_inputs": {"encode": ()}}, r"example_inputs names the methods \['encode'\]; the model has"),
        ({"model": {}}, "the model is an empty mapping"),
        ({"model": 3}, "method 'forward' is a int; give an nn.Module"),
        ({"model": "net.onnx"}, "there is no program file net.onnx"),
        ({"constant_methods": {"a": len}}, r"constant_methods\['a'\] is a function; give the value"),
        ({"constant_methods": {"forward": 1}}, "are methods and constant methods at once"),
    ],
)
def test_bad_input(net, example, tmp_path, arguments, problem):
    """An unusable argument is an error with its name and value, before the store is made."""
    call = {"model": net, "example_inputs": example, "recipe": "portable-fp32", **arguments}
    with pytest.raises(InputError, match=problem):
        pteforge.export(**call, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_inputs_that_do_not_fit(net, tmp_path):
    """Example inputs of a wrong shape are the caller's mistake, and the message has their shapes."""
    with pytest.raises(SourceError, match=r"does not take its own example inputs of method 'forward': \[\(2, 5\)\]"):
        pteforge.export(net, (torch.ones(2, 5),), recipe="portable-fp32", store=tmp_path / "store")


def test_a_mistake_in_a_recipe_file_is_located(net, example, tmp_path):
    """Errors in a recipe file have file, line, column and field."""
    path = tmp_path / "odd.yaml"
    path.write_text("specializations:\n  - target: xnpack\n")
    with pytest.raises(ConfigError, match=r"odd.yaml:2:5: specializations\[0\].target: unknown target 'xnpack'"):
        pteforge.export(net, example, recipe=path, store=tmp_path / "store")


class Undecided(torch.nn.Module):
    """Branches on a value, which cannot be traced, after it has changed a buffer; has a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.layer.weight.requires_grad_(False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls.add_(1)
        return self.layer(x) if x.sum() > 0 else x


def test_a_model_that_cannot_be_exported(store):
    """An error of torch.export is a failed stage with the method's name; the model stays unchanged."""
    module = Undecided()
    with pytest.raises(StageFailed, match="method 'forward' cannot be exported: GuardOnDataDependentSymNode") as caught:
        pteforge.export(module, (torch.ones(3),), recipe="portable-fp32", store=store)
    assert caught.value.__cause__ is not None
    assert module.training
    assert module.calls.tolist() == 0
    assert not module.layer._forward_hooks
    assert not module.layer.weight.requires_grad
