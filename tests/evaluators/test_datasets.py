"""Datasets for calibration: files in folders, lines, columns of datasets, and the preprocessing of models by name."""

import sys

import numpy as np
import pytest
import torch
from pteforge.errors import SourceError
from pteforge.evaluators import files, hub, lines


def test_files_of_a_folder(tmp_path):
    """They come from all folders below, sorted, each read when it is asked for."""
    for path, value in (("b/2.npy", 2), ("b/a/1.npy", 1), ("a.npy", 0)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / path, np.full((1, 3), value, dtype=np.float32))
    (tmp_path / "b" / ".hidden").touch()
    samples = files(str(tmp_path))
    assert len(samples) == 3
    assert [float(sample[0, 0]) for sample in samples] == [0, 2, 1]
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(SourceError, match=r"a.npy cannot be read"):
        samples[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty has no files"):
        files(str(tmp_path / "empty"))


def test_images_as_a_model_takes_them(tmp_path):
    """Timm's and transformers' preprocessing by name: the size, the channels and the scale of the model."""
    import transformers
    from PIL import Image

    Image.fromarray(np.full((40, 60), 200, dtype=np.uint8)).save(tmp_path / "grey.png")
    folder = tmp_path / "processor"
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(folder)
    (pictures := tmp_path / "pictures").mkdir()
    (tmp_path / "grey.png").rename(pictures / "grey.png")
    ((inputs,),) = files(str(pictures), read=f"hf:{folder}")
    assert inputs.shape == (1, 3, 32, 32)
    torch.testing.assert_close(inputs.unique(), torch.tensor([200 / 127.5 - 1]), atol=1e-4, rtol=0)
    (pictures / "text.png").write_text("no image", encoding="utf-8")
    with pytest.raises(SourceError, match=r"text\.png is no image"):
        files(str(pictures), read=f"hf:{folder}")[1]
    with pytest.raises(SourceError, match=r"read: hf:nowhere/at-all has no preprocessing"):
        files(str(pictures), read="hf:nowhere/at-all")


def test_lines_of_tokens(tmp_path, code):
    """A tokenizer by name gives texts the length that the model has; a function of the user's reads them, too."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "the": 2, "fox": 3}, unk_token="[UNK]"))  # noqa: S106 - no password
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",  # noqa: S106 - no password
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    text = tmp_path / "text"
    text.write_text("the fox\n\nfox fox fox fox\n", encoding="utf-8")
    short, long = lines(str(text), read=f"hf:{tmp_path / 'tokenizer'}", length=3)
    assert [value.tolist() for value in short] == [[[2, 3, 0]], [[1, 1, 0]]]
    assert [value.tolist() for value in long] == [[[3, 3, 3]], [[1, 1, 1]]]
    own = code("def read(text):\n    return {'words': torch.tensor([len(text.split())])}\n")
    assert [int(words) for (words,) in lines(str(text), read=f"{own}:read")] == [2, 4]
    text.write_text("\n", encoding="utf-8")
    with pytest.raises(SourceError, match="has no text"):
        lines(str(text), read=f"{own}:read")


def test_datasets_of_the_hub(tmp_path, monkeypatch, code):
    """A column of one, as `datasets` reads it; without the library, the message says what to install."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "test.csv").write_text("text,label\nabc,0\nde,1\n", encoding="utf-8")
    own = code("def read(text):\n    return torch.tensor([len(text)])\n")
    samples = hub(str(tmp_path / "texts"), column="text", read=f"{own}:read", split="test")
    assert [int(sample) for sample in samples] == [3, 2]
    with pytest.raises(SourceError, match="no column 'words'; it has text, label"):
        hub(str(tmp_path / "texts"), column="words", read=f"{own}:read", split="test")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SourceError, match=r"pip install .pteforge\[data\]"):
        hub("org/texts", column="text", read=f"{own}:read")
