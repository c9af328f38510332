"""Speech by transcripts and by reference recordings."""

import json
import wave

import numpy as np
import pytest
from pteforge.errors import SourceError
from pteforge.evaluators import character_accuracy, neg_log_spectral_distance

TOKENS = ["<pad>", "|", "a", "b", "c"]


def frames(numbers, method="forward"):
    """A model that recognizes a token in each frame of its input."""
    import torch

    del method
    return torch.nn.functional.one_hot(numbers.long().reshape(1, -1), len(TOKENS)).float()


def test_recordings(tmp_path):
    """Repeated tokens are one unless a blank is between them; the error rate is that of all transcripts together."""
    for name, heard, said in (("one", [2, 2, 0, 2, 1, 3, 0], "aa b"), ("two", [2, 3, 0], "ac")):
        np.save(tmp_path / f"{name}.npy", np.array(heard))
        (tmp_path / f"{name}.txt").write_text(f"{said}\n", encoding="utf-8")
    assert character_accuracy(frames, tokens=TOKENS, folder=str(tmp_path)) == pytest.approx(1 - 1 / 6)
    (tmp_path / "three.npy").touch()
    with pytest.raises(SourceError, match=r"three.npy has no transcript"):
        character_accuracy(frames, tokens=TOKENS, folder=str(tmp_path))


@pytest.mark.parametrize("kind", ["txt", "json"])
def test_tokens_in_a_file(kind, code, tmp_path):
    """Tokens come from lines, or from JSON as transformers writes it; insertions and deletions are errors."""
    path = tmp_path / f"tokens.{kind}"
    by_number = {token: number for number, token in reversed(list(enumerate(TOKENS)))}
    path.write_text("\n".join(TOKENS) if kind == "txt" else json.dumps(by_number), encoding="utf-8")
    module = code("data = [(torch.tensor([2, 3, 4]), 'ac'), (torch.tensor([2]), 'abc')]\n")
    assert character_accuracy(frames, tokens=str(path), dataset=f"{module}:data") == pytest.approx(1 - 3 / 5)


def test_what_no_recognizer_returns(code, tmp_path):
    """Outputs that do not fit the tokens, missing tokens and empty transcripts are named."""
    module = code("data = [(torch.tensor([2]), 'a')]\nsilent = [(torch.tensor([2]), '')]\n")
    with pytest.raises(SourceError, match=r"\(1, 1, 5\); .*takes \[1, frames, 2\]"):
        character_accuracy(frames, tokens=["a", "b"], dataset=f"{module}:data")
    with pytest.raises(SourceError, match="has no tokens: FileNotFoundError"):
        character_accuracy(frames, tokens=str(tmp_path / "gone.txt"), dataset=f"{module}:data")
    with pytest.raises(SourceError, match="all transcripts are empty"):
        character_accuracy(frames, tokens=TOKENS, dataset=f"{module}:silent")


def test_recorded_sound(tmp_path):
    """PCM of 16 bits becomes floats from -1 to 1; other recordings are refused."""
    from pteforge.evaluators.samples import read_tensor

    for name, channels in (("mono", 1), ("stereo", 2)):
        with wave.open(str(tmp_path / f"{name}.wav"), "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(np.array([0, 2**14, -(2**15), 2**15 - 1], dtype="<i2").tobytes())
    assert read_tensor(tmp_path / "mono.wav").tolist() == [[0, 0.5, -1, 1 - 2**-15]]
    with pytest.raises(SourceError, match="not mono with 16 bits"):
        read_tensor(tmp_path / "stereo.wav")


def test_spectral_distance(code):
    """The same sound has no distance, upside down or not; half the amplitude is 6 dB away at all frequencies."""
    module = code("torch.manual_seed(0)\nsound = torch.randn(1, 4000)\ndata = [(sound, sound), (sound, -sound)]\n")

    def louder(factor):
        return lambda sound, method: factor * sound  # noqa: ARG005 - the protocol's

    assert neg_log_spectral_distance(louder(1.0), dataset=f"{module}:data") == 0
    assert neg_log_spectral_distance(louder(0.5), dataset=f"{module}:data") == pytest.approx(-6.02, abs=0.01)
    with pytest.raises(SourceError, match=r"3999 samples .*reference 4000"):
        neg_log_spectral_distance(lambda sound, method: sound[:, 1:], dataset=f"{module}:data")  # noqa: ARG005 - the protocol's
