"""fold_batch_norms: which norms are folded, that outputs stay those of eager, and that fat files share the weights."""

import pytest
import torch
from pteforge.tests.lowering import PORTABLE, recipe
from pteforge.tests.zoo.networks import FunctionOfLayers
from torch import nn

FOLD = "fold_batch_norms/forward"


def program_of(module, shape, dtype=None, **options):
    """A module in evaluation mode, with norms that do something, and its exported program."""
    from torch.nn.modules.batchnorm import _BatchNorm

    torch.manual_seed(0)
    for norm in (norm for norm in module.modules() if isinstance(norm, _BatchNorm)):
        for tensor in (norm.running_mean, norm.weight, norm.bias):
            if tensor is not None:
                torch.nn.init.normal_(tensor)
        if norm.running_var is not None:
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)
    example = torch.randn(shape, dtype=dtype)
    return module.eval(), example, torch.export.export(module, (example,), **options)


def norms_left(program):
    return sum("batch_norm" in str(node.target) for node in program.graph.nodes)


def folds():
    image = (2, 4, 8, 8)
    return {
        "bias": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()), image),
        "no bias": (nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), image),
        "no scale": (nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, affine=False)), image),
        "depthwise": (nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, padding="same"), nn.BatchNorm2d(8)), image),
        "1d": (nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (2, 4, 8)),
        "3d": (nn.Sequential(nn.Conv3d(4, 6, 3), nn.BatchNorm3d(6)), (2, 4, 8, 8, 8)),
        "transposed": (nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6)), image),
        "linear": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (2, 4)),
    }


@pytest.mark.parametrize("name", list(folds()))
@pytest.mark.parametrize("decomposed", [False, True])
def test_outputs_are_those_of_eager(name, decomposed):
    """Norms after layers of every kind are gone, with their parameters, also where they are the program's output."""
    from pteforge.tasks.export.batch_norms import fold_batch_norms

    module, example, program = program_of(*folds()[name])
    if decomposed and name != "linear":  # that becomes a permutation and `addmm`
        program = program.run_decompositions()
    before = len(program.graph_signature.input_specs)
    fold_batch_norms(program)
    program.validate()
    assert norms_left(program) == 0
    assert len(program.graph_signature.input_specs) < before
    torch.testing.assert_close(program.module()(example), module(example), rtol=1e-5, atol=1e-5)


def left_alone():
    def net(function):
        return FunctionOfLayers(function, conv=nn.Conv2d(4, 6, 3), norm=nn.BatchNorm2d(6)), image

    def change_the_mean(net, image):
        net.norm.running_mean.mul_(0.5)
        return net.norm(net.conv(image))

    image = (2, 4, 8, 8)
    return {
        "two users": net(lambda net, image: net.norm(found := net.conv(image)) + found),
        "shared weight": net(lambda net, image: net.norm(net.conv(image)) + net.conv(image + 1)),
        "state": net(change_the_mean),
        "grouped transposed": (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), image),
        "no batch": (nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (4, 8)),
        "sequence": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(3)), (2, 3, 4)),
        "no statistics": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, track_running_stats=False)), image),
        "no layer": (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)), image),
    }


@pytest.mark.parametrize("name", list(left_alone()))
def test_left_alone(name):
    """Where folding would change results, or copy weights, the norm stays."""
    from pteforge.tasks.export.batch_norms import foldable_norms

    _, _, program = program_of(*left_alone()[name])
    assert norms_left(program) > 0
    assert list(foldable_norms(program)) == []


def test_training_is_left_alone():
    """A norm in training mode normalizes by the batch."""
    from pteforge.tasks.export.batch_norms import foldable_norms

    module, shape = folds()["bias"]
    program = torch.export.export(module.train(), (torch.randn(shape),))
    assert norms_left(program) == 1
    assert list(foldable_norms(program)) == []


def test_mixed_precision_is_left_alone():
    """A norm in fp32 after a layer in fp16 would be rounded."""
    from pteforge.tasks.export.batch_norms import foldable_norms

    module, shape = folds()["bias"]
    module[0].half()
    _, _, program = program_of(module, shape, torch.float16)
    assert list(foldable_norms(program)) == []


def test_only_where_there_are_norms(stages):
    """The stage runs for models that have norms, and not for others nor where a recipe turns it off."""
    folded = stages.lower("builders:conv_net", PORTABLE)
    kept = stages.lower("builders:conv_net", PORTABLE | {"fold_batch_norms": False})
    without = stages.lower("builders:mlp", PORTABLE)
    assert norms_left(folded.program("export")) == norms_left(kept.program("edge/forward")) == 1
    assert norms_left(folded.program(FOLD)) == norms_left(folded.program("edge/forward")) == 0
    assert FOLD not in kept.steps
    assert FOLD not in without.steps
    assert len(folded.file) < len(kept.file)


def test_fat_files_share(stages):
    """XNNPACK and the portable kernels read one copy of the weights of a layer that a norm followed."""
    fat = recipe("xnnpack", "portable")
    folded, kept = (stages.lower("builders:conv_net", fat | {"fold_batch_norms": fold}).file for fold in (True, False))
    assert len(folded) < len(kept)
