"""What `pteforge.export` refuses, and how it says so."""

from __future__ import annotations

import pteforge
import pytest
from pteforge.configs import Recipe, Specialization
from pteforge.errors import ConfigError, InputError, SourceError, StageFailed

NOT_FOR_NETS = Recipe(specializations=(Specialization(target="portable"),), not_for={"net*": "no kernels"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"recipe": "xnnpack-fp23"}, "there is no recipe 'xnnpack-fp23'; did you mean 'xnnpack-fp32'"),
        ({"recipe": "nowhere.yaml"}, "cannot read nowhere.yaml"),
        ({"recipe": {"specializations": []}}, "recipe: is a dict; give the name of a shipped recipe"),
        ({"name": "a/b"}, "'a/b' cannot be a model's name"),
        ({"recipe": NOT_FOR_NETS, "name": "net1"}, "the recipe 'recipe' does not apply to 'net1': no kernels"),
        ({"example_inputs": None}, "example_inputs of method 'forward' are missing"),
        ({"example_inputs": "x"}, "example_inputs of method 'forward' is a str; give a tuple"),
        ({"example_inputs": []}, "example_inputs of method 'forward' is a list; give a tuple"),
        ({"example_inputs": {"encode": ()}}, r"example_inputs names the methods \['encode'\]; the model has"),
        ({"model": {}}, "the model is an empty mapping"),
        ({"model": 3}, "method 'forward' is a int; give an nn.Module"),
        ({"model": "net.onnx"}, "there is no program file net.onnx"),
        ({"constant_methods": {"a": len}}, r"constant_methods\['a'\] is a function; give the value"),
        ({"constant_methods": {"forward": 1}}, "are methods and constant methods at once"),
    ],
)
def test_bad_input(net, example, tmp_path, arguments, problem):
    """What cannot be used is refused in words, before the store is even made."""
    call = {"model": net, "example_inputs": example, "recipe": "portable-fp32", **arguments}
    with pytest.raises(InputError, match=problem):
        pteforge.export(**call, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_inputs_that_do_not_fit(net, tmp_path):
    """Example inputs of another shape than the model takes are the caller's mistake, and the message shows them."""
    import torch

    with pytest.raises(SourceError, match=r"does not take its own example inputs of method 'forward': \[\(2, 5\)\]"):
        pteforge.export(net, (torch.ones(2, 5),), recipe="portable-fp32", store=tmp_path / "store")


def test_a_mistake_in_a_recipe_file_is_located(net, example, tmp_path):
    """Errors in a recipe's file name file, line, column and field."""
    path = tmp_path / "odd.yaml"
    path.write_text("specializations:\n  - target: xnpack\n")
    with pytest.raises(ConfigError, match=r"odd.yaml:2:5: specializations\[0\].target: unknown target 'xnpack'"):
        pteforge.export(net, example, recipe=path, store=tmp_path / "store")


def test_a_model_that_cannot_be_exported(nets, store):
    """What torch raises comes as a failed stage that says which method it is; the model is as it was before."""
    import torch

    module = nets.Undecided()
    with pytest.raises(StageFailed, match="method 'forward' cannot be exported: GuardOnDataDependentSymNode") as caught:
        pteforge.export(module, (torch.ones(3),), recipe="portable-fp32", store=store)
    assert caught.value.__cause__ is not None
    assert module.training
    assert module.calls.tolist() == 0
    assert not module.layer._forward_hooks
    assert not module.layer.weight.requires_grad
