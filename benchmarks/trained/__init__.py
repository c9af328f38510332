"""Networks whose packages contain their weights, and samples for their tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

from . import images, sequences, sounds
from .network import Network

NETWORKS: dict[str, tuple[str, Callable[[], Network]]] = {
    "torchcrepe": ("torchcrepe, tiny", sounds.torchcrepe),
    "pesto": ("PESTO", sounds.pesto),
    "torchfcpe": ("FCPE", sounds.torchfcpe),
    "resemblyzer": ("Resemblyzer", sounds.resemblyzer),
    "silero_vad": ("Silero VAD", sounds.silero_vad),
    "nsnet2": ("NSNet2", sounds.nsnet2),
    "mtcnn_pnet": ("MTCNN's PNet", lambda: images.mtcnn("PNet", 24)),
    "mtcnn_rnet": ("MTCNN's RNet", lambda: images.mtcnn("RNet", 24)),
    "mtcnn_onet": ("MTCNN's ONet", lambda: images.mtcnn("ONet", 48)),
    "efficientnet_lite0": ("EfficientNet-lite0", images.efficientnet_lite0),
    "easyocr": ("EasyOCR's recognizer", images.easyocr),
    "digit_recognizer": ("digit-recognizer-py", images.digit_recognizer),
    "g2p_en": ("g2p_en", sequences.g2p_en),
    "g2pm": ("g2pM", sequences.g2pm),
    "attacut": ("AttaCut", sequences.attacut),
    "fracast": ("Fracast-0", sequences.fracast),
}
"""What a table calls each network, and how it is made."""


@cache
def network(name: str) -> Network:
    """The network, in inference mode."""
    made = NETWORKS[name][1]()
    made.module.eval()
    return made


def built(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The module and an example, for a zoo."""
    trained = network(name)
    return trained.module, trained.samples[0]


def calibration(name: str) -> Sequence[tuple[torch.Tensor, ...]]:
    """What quantizers observe."""
    trained = network(name)
    return trained.samples[: trained.calibration]


def score(predict: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], name: str, *, tuning: bool = False) -> float:
    """The score of a network's file, for accuracy gates, or for a search."""

    def run(sample: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        outputs = predict(*sample)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return network(name).score(run, tuning=tuning)
