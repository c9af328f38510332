"""Builders of modules that PT2E has prepared."""

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from pteforge.configs.model import MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim
from torchao.quantization.pt2e import move_exported_model_to_train
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e, prepare_qat_pt2e

BATCH = Dim("batch", min=1, max=12)


def network(*, norm: bool = False) -> nn.Module:
    """Convolution, perhaps batch norm, ReLU, dropout, linear."""
    norms = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norms, nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 2))


def prepared(*, qat: bool, norm: bool = False):
    """The network prepared for XNNPACK, and the images that it takes, of any batch."""
    images = torch.randn(8, 1, 6, 6)
    exported = torch.export.export(network(norm=norm).train(qat), (images,), dynamic_shapes=({0: BATCH},)).module()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True, is_qat=qat))
    return (prepare_qat_pt2e if qat else prepare_pt2e)(exported, quantizer), images


def trained(*, steps: int = 20, norm: bool = False):
    """Trained with fake quantization to tell whether an image is bright, and left as the last step leaves it."""
    module, images = prepared(qat=True, norm=norm)
    move_exported_model_to_train(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        batch = torch.randn(8, 1, 6, 6)
        nn.functional.cross_entropy(module(batch), (batch.mean((1, 2, 3)) > 0).long()).backward()
        optimizer.step()
    return ModelDefinition({"forward": MethodDefinition(module, [(images,), (images[:3],)], ({0: BATCH},))})


def untrained():
    """Prepared for training, but not trained."""
    return trained(steps=0)


def calibrated():
    """Observed by its builder, on samples of its own choice."""
    module, images = prepared(qat=False)
    for batch in torch.randn(4, 8, 1, 6, 6):
        module(batch)
    return ModelDefinition({"forward": MethodDefinition(module, [(images,)], ({0: BATCH},))})
