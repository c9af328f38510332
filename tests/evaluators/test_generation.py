"""What models say: greedily, as `generate` does, and scored as jiwer and sacrebleu do."""

import json
import math
from types import MappingProxyType

import jiwer
import numpy as np
import pytest
import sacrebleu
import soundfile
import torch
from pteforge import evaluators
from pteforge.configs.text_samples import TextOptions, check_text_options, read_samples
from pteforge.errors import SourceError
from pteforge.evaluators.generation import said
from pteforge.tests.evaluators.generating import sound, write_model

WORDS = ["<end>", "the", "cat", "sat", "on", "mat", "dog", "ran", "home", "<image>"]


class Parrot:
    """A language model with a word for each token, whose answer to a word is the text that begins with it."""

    methods = MappingProxyType(dict.fromkeys(("forward", "get_max_seq_len", "get_eos_ids"), ()))

    def __init__(self, *texts: str) -> None:
        self.texts = [[WORDS.index(word) for word in text.split()] for text in texts]
        self.calls = []

    def __call__(self, *inputs, method="forward"):
        assert method in self.methods
        if method.startswith("get_"):
            return {"get_max_seq_len": 12, "get_eos_ids": 0}[method]
        tokens, start = inputs
        self.calls.append((tokens.tolist()[0], start.tolist()))
        if int(start) == 0:
            self.left = iter([*next(text for text in self.texts if text[0] == tokens[0, -1])[1:], 0])
        return torch.nn.functional.one_hot(torch.tensor([next(self.left, 0)]), len(WORDS)).float()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The zoo's folder, with a tokenizer that has a token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    monkeypatch.chdir(tmp_path)
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")  # noqa: S106
    tokenizer.chat_template = "dog {{ messages[0]['content'] }}"
    tokenizer.save_pretrained(tmp_path / "words")
    return tmp_path


def write(folder, *rows, name="samples.jsonl"):
    (folder / name).write_text("\n".join(json.dumps(row) for row in rows))
    return {"file": name, "processor": "words"}


SAMPLES = (
    {"source": "the", "target": "cat sat on the mat", "id": 7},
    {"source": "dog", "target": "ran home"},
)
HEARD = ("the cat sat on cat mat", "dog ran")
TRANSLATED = ["cat sat on cat mat", "ran"]


def test_scores_are_those_of_the_libraries(folder):
    """The word error rate is jiwer's, BLEU and chrF are sacrebleu's."""
    options = write(folder, *SAMPLES)
    wanted = [sample["target"] for sample in SAMPLES]
    assert evaluators.neg_word_error_rate(Parrot(*HEARD), **options) == -jiwer.wer(wanted, TRANSLATED) == -2 / 7
    assert evaluators.bleu(Parrot(*HEARD), **options) == sacrebleu.corpus_bleu(TRANSLATED, [wanted]).score
    assert evaluators.chrf(Parrot(*HEARD), **options) == sacrebleu.corpus_chrf(TRANSLATED, [wanted]).score > 40
    several = [{**SAMPLES[0], "target": [wanted[0], TRANSLATED[0]]}, SAMPLES[1]]
    references = [wanted, [TRANSLATED[0], None]]
    score = evaluators.bleu(Parrot(*HEARD), **write(folder, *several))
    assert score == sacrebleu.corpus_bleu(TRANSLATED, references).score


def test_a_model_with_two_methods(folder):
    """`prefill` takes prompts and tokens."""
    model = Parrot(*HEARD)
    model.methods = {"prefill": (), "decode_step": (), "get_max_seq_len": (), "get_eos_ids": ()}
    options = write(folder, *SAMPLES)
    assert evaluators.bleu(model, **options) == evaluators.bleu(Parrot(*HEARD), **options)


def test_perfect_scores(folder):
    """What is said is what is right; case and punctuation count for a word error rate unless it is normalized."""
    perfect = Parrot("the cat sat on the mat", "dog ran home")
    options = write(folder, *SAMPLES)
    assert math.copysign(1, evaluators.neg_word_error_rate(perfect, **options)) == 1.0
    assert evaluators.bleu(perfect, **options) == pytest.approx(100)
    loud = write(folder, {"source": "dog", "target": "RAN, home!"})
    assert evaluators.neg_word_error_rate(perfect, **loud) == -1.0
    assert evaluators.neg_word_error_rate(perfect, **loud, normalize=True) == 0.0


def test_answers(folder):
    """Any answer is a match, whatever its case, articles and punctuation; VQA leaves out each person once."""
    options = write(
        folder,
        {"question": "the", "answers": ["Dogs", "A cat sat, on the cat mat."]},
        {"question": "dog", "answers": ["home"]},
    )
    assert evaluators.exact_match(Parrot(*HEARD), **options) == 0.5
    ten = ["Ran."] * 3 + ["home"] * 7
    accuracy = evaluators.vqa_accuracy(Parrot(*HEARD), **write(folder, {"question": "dog", "answers": ten}))
    assert accuracy == pytest.approx((3 * 2 / 3 + 7 * 1) / 10)
    assert evaluators.vqa_accuracy(Parrot(*HEARD), **write(folder, {"question": "dog", "answer": "ran"})) == 1.0


def test_greedy_calls(folder):
    """The prompt at once, then token by token, up to an end, the limit, or a full context."""
    model = Parrot("the cat sat on the mat", "dog ran home")
    options = write(folder, {"source": "the", "target": "x"})
    assert [text for text, _ in said(model, TextOptions(**options))] == ["cat sat on the mat"]
    assert model.calls == [([1], [0]), ([2], [1]), ([3], [2]), ([4], [3]), ([1], [4]), ([5], [5])]
    assert [text for text, _ in said(model, TextOptions(**options, tokens=2))] == ["cat sat"]
    prompted = TextOptions(**options, prompt="sat on {source}")
    assert [text for text, _ in said(model, prompted)] == ["cat sat on the mat"]
    model.calls.clear()
    assert next(said(model, TextOptions(**options, chat=True)))[0] == "cat sat on the mat"
    assert model.calls[0] == ([6, 1], [0])
    full = TextOptions(**options, prompt="on " * 9 + "{source}")
    assert [text for text, _ in said(model, full)] == ["cat sat on"]  # 10 tokens, and 2 more; the third is not read
    with pytest.raises(SourceError, match=r"samples.jsonl, line 1: .*13 tokens, .*context of 12"):
        next(said(model, TextOptions(**options, prompt="on " * 12 + "{source}")))


def test_csv(folder):
    """A CSV file has a header; empty cells are left out, and so are lines beyond `samples`."""
    (folder / "samples.csv").write_text('source,target,audio\nthe,"cat sat on cat mat",\ndog,"ran,\nhome",\n,,\n')
    options = {"file": "samples.csv", "processor": "words", "samples": 2}
    assert [sample.answers for _, sample in read_samples(folder / "samples.csv", 2)][1] == ("ran,\nhome",)
    assert evaluators.exact_match(Parrot(*HEARD), **options) == 0.5
    assert check_text_options(options, "bleu", folder) != ()
    with pytest.raises(SourceError, match=r"line 5: answers: Field required"):
        check_text_options({**options, "samples": None}, "bleu", folder)


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ('{"source": "a", "target": "b"}\n{"source": "a"}', {}, "samples.jsonl, line 2: answers: Field required"),
        ('\n{"source": 1', {}, "samples.jsonl, line 2 is not JSON"),
        ('{"target": "b"}', {}, "line 1: there is nothing to generate from"),
        ('{"source": "a", "answers": ["b", " "]}', {}, "line 1: an answer is empty"),
        ('{"source": "a", "answers": []}', {}, "line 1: answers: Tuple should have at least 1 item"),
        ('{"audio": "no.wav", "text": "b"}', {}, "line 1: there is no file .*no.wav"),
        ("[1]", {}, "line 1: Input should be"),
        ("\n\n", {}, "samples.jsonl has no samples"),
        ('{"source": "a", "target": "b"}', {"tokens": 0}, "tokens: Input should be greater than or equal to 1"),
        ('{"source": "a", "target": "b"}', {"promt": "a"}, "promt: Extra inputs are not permitted"),
        ('{"source": "a", "target": "b"}', {"file": "none.jsonl"}, "none.jsonl cannot be read"),
    ],
)
def test_what_is_refused_before_any_work(folder, text, options, problem):
    """Each is an error that names the argument, or the file and the line."""
    (folder / "samples.jsonl").write_text(text)
    with pytest.raises(SourceError, match=problem):
        check_text_options({"file": "samples.jsonl", "processor": "words", **options}, "bleu", folder)


@pytest.mark.parametrize(
    ("package", "metric", "extra"),
    [
        ("jiwer", "neg_word_error_rate", "metrics"),
        ("sacrebleu", "chrf", "metrics"),
        ("transformers", "exact_match", "hf"),
        ("soundfile", "exact_match", "generate"),
        ("PIL", "exact_match", "generate"),
    ],
)
def test_packages_that_are_not_installed(folder, monkeypatch, package, metric, extra):
    """They are reported with the command, before any work, only where they are needed."""
    (folder / "a.wav").touch()
    options = write(folder, {"audio": "a.wav", "image": "a.wav", "text": "x"})
    monkeypatch.setattr("pteforge.configs.text_samples.find_spec", lambda name: None if name == package else object())
    with pytest.raises(SourceError, match=rf"needs {package}, .*pteforge\[{extra}\]"):
        check_text_options(options, metric, folder)
    if extra == "generate":
        check_text_options(write(folder, {"source": "a", "text": "x"}), metric, folder)


def test_files_of_the_key(folder):
    """The files that are scored again when they change: sounds and images, and the processor's, without weights."""
    (folder / "sounds").mkdir()
    sound(folder / "sounds" / "a.wav")
    (folder / "words" / "model.safetensors").touch()
    options = write(folder, {"audio": "a.wav", "text": "x"}, name="sounds/samples.jsonl")
    files = [path.as_posix() for path in check_text_options(options, "bleu", folder)]
    assert files == ["sounds/a.wav", "words/chat_template.jinja", "words/tokenizer.json", "words/tokenizer_config.json"]


def test_models_that_do_not_fit(folder):
    """A model that generates nothing, a processor that is not there, and sounds for a language model."""
    options = write(folder, SAMPLES[0])
    classifier = Parrot()
    classifier.methods = {"forward": (1, 4)}
    with pytest.raises(SourceError, match=r"no text.*it has forward"):
        evaluators.bleu(classifier, **options)
    with pytest.raises(SourceError, match=r"no processor or tokenizer 'nowhere'"):
        evaluators.bleu(Parrot(), **{**options, "processor": "nowhere"})
    sound(folder / "a.wav")
    with pytest.raises(SourceError, match="takes text only"):
        evaluators.bleu(Parrot(), **write(folder, {"audio": "a.wav", "text": "x"}))


def test_eager_models_say_what_generate_does(tmp_path):
    """A translator, a recognizer and a language model say what transformers' `generate` says."""
    from pteforge.tasks.sources import encoder_decoder, text_generation
    from pteforge.tasks.verify.scoring import eager_predict

    for kind, evaluator in (
        ("t5", evaluators.chrf),
        ("whisper", evaluators.neg_word_error_rate),
        ("llama", evaluators.exact_match),
    ):
        wanted = write_model(tmp_path, kind)
        build = text_generation.model if kind == "llama" else encoder_decoder.model
        predict = eager_predict(build(str(tmp_path / kind), sequence=80))
        options = {"file": f"{kind}.jsonl", "processor": kind, "tokens": 12}
        assert [text for text, _ in said(predict, TextOptions(**options))] == wanted
        assert evaluator(predict, **options) == pytest.approx({"t5": 100, "whisper": 0, "llama": 1}[kind])


def test_sounds_at_other_rates(tmp_path):
    """A sound of two channels at another rate is heard as at the model's own."""
    from pteforge.formats.media import read_sound

    seconds = np.arange(44100) / 44100
    tone = np.sin(2 * np.pi * 440 * seconds).astype(np.float32)
    soundfile.write(tmp_path / "a.flac", np.stack([tone, tone], 1) * 0.5, 44100)
    heard = read_sound(tmp_path / "a.flac", 16000)
    assert heard == pytest.approx(0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000), abs=1e-3)
    (tmp_path / "b.wav").write_text("no sound")
    with pytest.raises(SourceError, match=r"b.wav .*as a sound"):
        read_sound(tmp_path / "b.wav", 16000)


class Seeing(Parrot):
    """Says "cat" for each image that is rather bright, and "dog" for another; embeddings are one-hot."""

    methods = MappingProxyType({
        **dict.fromkeys(("get_max_seq_len", "get_eos_ids", "token_embedding", "text_decoder"), ()),
        "vision_encoder": (1, 3, 8, 8),
    })  # fmt: skip
    tokens = 4

    def __call__(self, *inputs, method="forward"):
        if method == "vision_encoder":
            assert inputs[0].shape == (1, 3, 8, 8)
            self.bright = bool(inputs[0].mean() > 0)
            return torch.zeros(1, self.tokens, len(WORDS))
        if method == "token_embedding":
            return torch.nn.functional.one_hot(inputs[0], len(WORDS)).float()
        if method == "text_decoder":
            rows, start = inputs
            self.calls.append((rows[0].sum(-1).tolist(), start.tolist()))
            said = 0 if rows[0, -1, [2, 6]].any() else WORDS.index("cat" if self.bright else "dog")
            return torch.nn.functional.one_hot(torch.tensor([said]), len(WORDS)).float()
        return super().__call__(method=method)


@pytest.mark.parametrize("size", [8, 12], ids=["the processor's", "the file's"])
def test_images(folder, size):
    """Each part of a prompt is embedded and decoded in calls of its own, as ExecuTorch's runner does."""
    from PIL import Image
    from transformers import AutoTokenizer, CLIPImageProcessor, LlavaProcessor

    pictures = CLIPImageProcessor(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
    tokenizer = AutoTokenizer.from_pretrained("words", extra_special_tokens={"image_token": "<image>"})
    LlavaProcessor(
        pictures, tokenizer, patch_size=size // 2, vision_feature_select_strategy="full", chat_template=CHAT
    ).save_pretrained("seeing")
    for name, level in (("white", 255), ("black", 0)):
        Image.new("RGB", (20, 10), (level, level, level)).save(f"{name}.png")
    rows = [{"image": f"{name}.png", "question": "the", "answer": word} for name, word in SEEN]
    options = {**write(folder, *rows), "processor": "seeing", "chat": True}
    model = Seeing()
    assert evaluators.exact_match(model, **options) == 1.0
    assert model.calls[:4] == [([1.0], [0]), ([0.0] * 4, [1]), ([1.0], [5]), ([1.0], [6])]
    with pytest.raises(SourceError, match=r"0 <image> tokens .*1 images.*`chat: true`"):
        evaluators.exact_match(model, **{**options, "chat": False})
    model.tokens = 3
    with pytest.raises(SourceError, match=r"returns \(1, 3, 10\), .*4 image tokens"):
        evaluators.exact_match(model, **options)


SEEN = (("white", "a cat"), ("black", "dog"))
CHAT = "on {% for part in messages[0]['content'] %}{{ part.get('text', '<image>') }} {% endfor %}"
