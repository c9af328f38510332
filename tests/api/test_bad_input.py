"""Errors of `pteforge.export` for unusable arguments."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import random
import signal
import sys
import warnings

import numpy as np
import pteforge
import pytest
import torch
from pteforge.errors import ConfigError, InputError, SourceError, StageFailed
from pteforge.tests.lowering import checked_recipe
from torch._logging._internal import LazyTraceHandler

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
        (
            {"recipe": NOT_FOR_NETS, "name": "net1"},
            "the recipe 'portable-own' does not apply to 'net1': no kernels",
        ),
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
    with pytest.raises(SourceError, match=r"its own example inputs .*'forward': \[\(2, 5\)\]"):
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
    with pytest.raises(StageFailed, match="'forward' cannot be exported: GuardOnDataDependentSymNode") as caught:
        pteforge.export(module, (torch.ones(3),), recipe="portable-fp32", store=store)
    assert caught.value.__cause__ is not None
    assert module.training
    assert module.calls.tolist() == 0
    assert not module.layer._forward_hooks
    assert not module.layer.weight.requires_grad


_CONFIGS = ("torch._dynamo.config", "torch._functorch.config", "torch.fx.experimental._config")


def global_state():
    """All switches of the process that can be read, by name: torch's with its backends, Python's and NumPy's."""
    found = {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch.seed": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy.random": np.random.get_state()[1].tolist(),  # noqa: NPY002 - the global generator
        "warnings": ([*warnings.filters], warnings.showwarning, torch.is_warn_always_enabled()),
        "distributions": torch.distributions.Distribution._validate_args,
        "device": torch.get_default_device(),
        "streams": (
            sys.stdout,
            sys.stderr,
            sys.excepthook,
            sys.getrecursionlimit(),
            gc.get_threshold(),
            gc.isenabled(),
        ),
        "environment": (dict(os.environ), os.getcwd(), [*sys.path]),  # noqa: PTH109 - as a text
        "numpy": np.geterr(),
        "printing": dict(vars(torch._tensor_str.PRINT_OPTS)),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
    }
    owners = [torch._C, torch.backends, *(value for value in vars(torch.backends).values() if hasattr(value, "flags"))]
    for owner in (*owners, torch.backends.mha, torch.backends.cuda):
        for name in dir(owner):
            value = getattr(owner, name)
            getter = name.lstrip("_").startswith(("get_", "is_")) or name.endswith("_enabled")
            if callable(value) and getter and "nvfuser" not in name:
                try:
                    value = value()
                except Exception:  # noqa: BLE001, S112 - it takes arguments, or needs a GPU
                    continue
            if isinstance(value, bool | int | str | None) or type(value) is torch.dtype:
                found[f"{owner.__name__}.{name}"] = value
    for name in _CONFIGS:
        found |= {
            f"{name}.{key}": repr(value) for key, value in importlib.import_module(name).get_config_copy().items()
        }
    loggers = [logging.getLogger(name) for name in [None, *logging.root.manager.loggerDict]]
    found |= {f"log {log.name}": (log.level, log.disabled, log.propagate, [*log.handlers]) for log in loggers}
    return found


def test_nothing_outlives_a_diagnosis(store, monkeypatch):
    """A failed export and its diagnosis, which uses Dynamo and draft_export, leave all global switches as they were."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [LazyTraceHandler(None)])
    torch._dynamo.eval_frame.TorchPatcher.patch.cache_clear()  # as in a process that has compiled nothing yet
    module = Undecided()
    before = global_state()
    with pytest.raises(StageFailed) as caught:
        pteforge.export(module, (torch.ones(3),), recipe="portable-fp32", store=store)
    assert caught.value.findings
    after = global_state()
    assert len(before) > 500
    assert {name: (value, after[name]) for name, value in before.items() if after[name] != value} == {}


class Distributed(torch.nn.Module):
    """Returns probabilities of two distributions, one of which is to check its arguments."""

    def forward(self, x):
        normal = torch.distributions.Normal(x, x.exp(), validate_args=True)
        return normal.log_prob(x + 1) + torch.distributions.Categorical(logits=x).entropy()


def test_distributions(store):
    """Distributions in `forward` are lowered without their checks of values, the first time as the second."""
    for _ in range(2):
        result = pteforge.export(Distributed(), (torch.ones(3),), recipe="portable-fp32", store=store)
    (output,) = result.run_method()
    torch.testing.assert_close(output, Distributed()(torch.ones(3)))
