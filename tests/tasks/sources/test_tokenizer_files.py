"""The tokenizers of language models: whatever a repository has, files that ExecuTorch's tokenizers read."""

import json

import pytest
import sentencepiece
from pteforge.tasks.sources.processors import tokenizer_files
from pytorch_tokenizers import CppHFTokenizer, CppSPTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = "the cat sat on the mat. the dog ran to the cat. a bird flew over the mat, and the dog sat on it. "
SAID = "the dog sat on the mat"


def trained(*, begins: bool = False) -> Tokenizer:
    """A byte-level BPE tokenizer; `begins`: it puts a token before every text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=80, special_tokens=["<s>", "</s>"]))
    if begins:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


@pytest.fixture
def folder(tmp_path):
    """A folder of a model without its tokenizer."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path / "model"


@pytest.fixture
def sentence_piece(tmp_path) -> bytes:
    (tmp_path / "text.txt").write_text("\n".join([TEXT] * 20))
    arguments = {"model_prefix": str(tmp_path / "made"), "vocab_size": 28, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(tmp_path / "text.txt"), **arguments)
    return (tmp_path / "made.model").read_bytes()


def files_of(folder):
    return tokenizer_files({"pretrained_model_name_or_path": str(folder), "revision": None, "local_files_only": True})


def read_back(files, tmp_path, kind, name=""):
    """ExecuTorch's tokenizer of the delivered files."""
    (tmp_path / "out").mkdir()
    for file, content in files.items():
        (tmp_path / "out" / file).write_bytes(content)
    tokenizer = kind()
    tokenizer.load(str(tmp_path / "out" / name))
    return tokenizer


@pytest.mark.parametrize("begins", [False, True])
def test_bpe(begins, folder, sentence_piece, tmp_path):
    """A `tokenizer.json` with BPE and its settings, as they are; SentencePiece's file is not needed then."""
    wanted = trained(begins=begins)
    wanted.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer.model").write_bytes(sentence_piece)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    files = files_of(folder)
    assert files == {name: (folder / name).read_bytes() for name in files}
    assert sorted(files) == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    tokenizer = read_back(files, tmp_path, CppHFTokenizer)
    assert (tokenizer.bos_tok(), tokenizer.eos_tok()) == (0, 1)
    assert tokenizer.encode(SAID, int(begins), 0) == wanted.encode(SAID).ids


def test_sentence_piece(folder, sentence_piece, tmp_path):
    """`tokenizer.model` as it is, where there is nothing else, or a `tokenizer.json` that ExecuTorch cannot read."""
    (folder / "tokenizer.model").write_bytes(sentence_piece)
    files = files_of(folder)
    assert sorted(files) == ["tokenizer.model", "tokenizer_config.json"]
    wanted = sentencepiece.SentencePieceProcessor(model_proto=sentence_piece)
    tokenizer = read_back(files, tmp_path, CppSPTokenizer, "tokenizer.model")
    assert tokenizer.encode(SAID, 0, 0) == wanted.encode(SAID)
    Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)).save(str(folder / "tokenizer.json"))
    assert sorted(files_of(folder)) == ["tokenizer.json", "tokenizer.model", "tokenizer_config.json"]


def test_vocabulary_and_merges(folder, tmp_path):
    """Files of older repositories become a `tokenizer.json`."""
    wanted = trained()
    wanted.model.save(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    assert {"vocab.json", "merges.txt"} <= {path.name for path in folder.iterdir()}
    files = files_of(folder)
    assert sorted(files) == ["tokenizer.json", "tokenizer_config.json"]
    assert read_back(files, tmp_path, CppHFTokenizer).encode(SAID, 0, 0) == wanted.encode(SAID).ids


def test_no_tokenizer(folder):
    """A model without one, and a type of a configuration, have no files."""
    assert files_of(folder) == {}
    assert files_of("llama") == {}
