"""Text from files: the process that generates it, what it streams, and what it refuses."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pteforge
import pytest
from pteforge.errors import InputError, PteforgeError
from pteforge.formats.pte.reader import open_pte
from pteforge.runtime.generation import constants_of, generate, kind_of
from pteforge.tests.conftest import run_process
from pteforge.tests.speaking import CONTEXT, PROMPT, SONG, eager_text, write_listener, write_reader, write_singer


def test_files_that_generate_no_text(lower, tmp_path):
    """The message names the methods that there are, and those that there should be."""
    file = tmp_path / "net.pte"
    file.write_bytes(lower("builders:mlp", {"specializations": [{"target": "portable"}]}).file)
    with pytest.raises(InputError, match=r"no text: .*forward; .*get_max_seq_len.*text_decoder"):
        generate(file, "a")


def test_characters_of_several_tokens():
    """Text is passed on by whole characters, whether it comes as tokens or as bytes."""
    from pteforge.runtime.runners import _Text
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(letters, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    sent: list[str] = []
    text = _Text(tokenizer, sent.append)
    for token in tokenizer("né 🐈!").input_ids:
        text.add_token(token)
    assert sent == ["n", "é", " ", "🐈", "!"]
    text.add_token(tokenizer("é").input_ids[0])
    assert text.end() == "né 🐈!\ufffd"
    sent.clear()
    text = _Text(tokenizer, sent.append)
    for byte in "né 🐈".encode():
        text.add_bytes(bytes([byte]))
    assert (sent, text.end()) == (["n", "é", " ", "🐈"], "né 🐈")


def test_places_of_images():
    """Each run of image tokens becomes as many images as it has tokens for; others are errors."""
    from pteforge.runtime.prompts import _interleaved

    def parts(ids, images):
        made = _interleaved(
            ids, {"vision_encoder": images}, {"vision_encoder": 9, "audio_encoder": 8}, {"vision_encoder": 2}
        )
        return [(part.method, part.values, part.tokens) for part in made]

    assert parts([1, 9, 9, 2, 8, 9, 9, 9, 9], ["a", "b", "c"]) == [
        ("token_embedding", [1], 1),
        ("vision_encoder", "a", 2),
        ("token_embedding", [2, 8], 2),
        ("vision_encoder", "b", 2),
        ("vision_encoder", "c", 2),
    ]
    for ids, images in (([1, 9], ["a"]), ([9, 9], []), ([1], ["a"])):
        with pytest.raises(ValueError, match=r"tokens where|has no place"):
            parts(ids, images)


@pytest.mark.parametrize(("rate", "length"), [(16_000, 1600), (44_100, 1600), (8_000, 1600)])
def test_sounds(tmp_path, rate, length):
    """A sound of two channels at any rate becomes one at the rate of the model, with the same tone."""
    import numpy as np
    import soundfile
    from pteforge.formats.media import read_sound

    tone = np.sin(2 * np.pi * 440 * np.arange(rate // 10) / rate).astype(np.float32)
    soundfile.write(tmp_path / "tone.wav", np.stack([tone, tone], axis=1), rate)
    samples = read_sound(tmp_path / "tone.wav", 16_000)
    assert (len(samples), samples.dtype) == (length, np.float32)
    assert abs(int(np.abs(np.fft.rfft(samples)).argmax()) - 44) <= 1
    (tmp_path / "no.wav").write_text("no sound")
    with pytest.raises(InputError, match=r"no\.wav .*as a sound"):
        read_sound(tmp_path / "no.wav", 16_000)


@pytest.fixture(scope="module")
def singer(tmp_path_factory) -> Path:
    """The folder of a language model that has learned a song with characters of several tokens, and ends with it."""
    return write_singer(tmp_path_factory.mktemp("singer"))


@pytest.fixture(scope="module")
def results(singer, tmp_path_factory) -> dict[str, pteforge.Exported]:
    """The model as a plain file and as a fat one."""
    from pteforge.tasks.sources.text_generation import model

    store = tmp_path_factory.mktemp("store")
    fat = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}
    definition = model(str(singer))
    return {
        form: pteforge.export(definition, recipe=recipe, name="singer", store=store)
        for form, recipe in (("plain", "portable-fp32"), ("fat", fat))
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("form", "runner"), [("plain", "TextLLMRunner"), ("fat", "pteforge")])
def test_results_generate(results, singer, form, runner):
    """The text is eager's, in whole characters; it comes while the model generates, and ends where eager's does."""
    said: list[tuple[str, float]] = []
    generated = results[form].generate(PROMPT, stream=lambda text: said.append((text, time.perf_counter())))
    wanted, tokens = eager_text(singer, PROMPT)
    assert (str(generated), generated.runner) == (wanted, runner)
    assert "🐈" in wanted
    assert "".join(text for text, _ in said) == wanted
    assert not any("\ufffd" in text for text, _ in said)
    assert (generated.prompt_tokens, generated.generated_tokens) == tokens
    assert said[-1][1] - said[0][1] > generated.generation_seconds / 2 > 0
    for prompt in (SONG, SONG[:3]):
        again = results[form].generate(prompt, max_new_tokens=9)
        assert (again.text, again.generated_tokens) == (eager_text(singer, prompt, 9)[0], 1 if prompt == SONG else 9)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command(results, singer, run_here, tmp_path):
    """It prints the text, then figures on standard error; bad input ends it with a message."""
    file = results["plain"].save(tmp_path / "singer.pte")
    wanted, (prompt, count) = eager_text(singer, PROMPT)
    done = run_here(tmp_path, "generate", file.name, PROMPT)
    assert (done.code, done.out) == (0, f"{wanted}\n")
    assert f"prompt: {prompt} tokens" in done.err
    assert f"generated: {count} tokens" in done.err
    assert run_here(tmp_path, "generate", file.name, PROMPT, "--json").json["text"] == wanted
    assert run_here(tmp_path, "generate", file.name, PROMPT, "--quiet").err == ""

    refuse = [
        ((), "there is nothing to generate from"),
        ((PROMPT * CONTEXT,), f"takes 1 to {CONTEXT - 1}"),
        ((PROMPT, "--chat"), "there is no chat template in"),
        ((PROMPT, "--image", "cat.png"), "takes no images: it has no method vision_encoder"),
        ((PROMPT, "--audio", "cat.wav"), "takes no sound"),
        ((PROMPT, "--language", "de"), "only those take a language or timestamps"),
        ((PROMPT, "--tokenizer", "."), "there is no tokenizer in"),
    ]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "else").mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / "else" / name)
    for arguments, problem in refuse:
        named = () if "--tokenizer" in arguments else ("--tokenizer", "else")
        run_here(tmp_path, "generate", file.name, *arguments, *named).refused(problem)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_fails_while_it_generates(results, tmp_path, monkeypatch):
    """A crash of the process is an error with the signal, and an error of the caller's function ends the process."""
    file = results["plain"].save(tmp_path / "singer.pte")
    assert kind_of(file, open_pte(file)) == "language model"
    assert constants_of(open_pte(file))["get_max_context_len"] == CONTEXT

    def stop(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError):
        generate(file, PROMPT, stream=stop)
    content = file.read_bytes().replace(b"aten::embedding", b"aten::embeddong")
    (tmp_path / "other.pte").write_bytes(content)
    with pytest.raises(InputError, match="no kernel for aten::embeddong"):
        generate(tmp_path / "other.pte", PROMPT, tokenizer=tmp_path)
    with pytest.raises(PteforgeError, match="no kernel for aten::embeddong"):
        pteforge.runtime.load(tmp_path / "other.pte").run("forward", _tokens())
    (tmp_path / "sitecustomize.py").write_text(
        "import pteforge.runtime.runners as runners\n"
        "def crash(*_):\n    import os; os.abort()\n"
        "runners._reading = crash\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PteforgeError, match=r"crashed \(SIGABRT\)"):
        generate(file, PROMPT)


def _tokens():
    import torch

    return [torch.ones(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)]


def test_importing_the_command_is_cheap():
    """What the command line imports before a process starts leaves torch and transformers out."""
    modules = "pteforge.flows.cli.main, pteforge.runtime.generation"
    program = f"import sys, {modules}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    assert run_process(sys.executable, "-c", program).stdout.strip() == "set()"


def _exported(folder: Path, store: Path) -> pteforge.Exported:
    from pteforge.tasks.sources.encoder_decoder import model

    return pteforge.export(model(str(folder), sequence=CONTEXT), recipe="portable-fp32", name="net", store=store)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_translations(tmp_path):
    """A T5 says what eager says, also its first token, which is forced."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = write_reader(tmp_path / "t5")
    result = _exported(folder, tmp_path / "store")
    net, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for prompt in (SONG[:3], SONG):
        wanted = net.generate(tokenizer(prompt, return_tensors="pt").input_ids, max_new_tokens=24, do_sample=False)
        said: list[str] = []
        generated = result.generate(prompt, max_new_tokens=24, stream=said.append)
        assert (generated.text, "".join(said)) == (tokenizer.decode(wanted[0, 1:], skip_special_tokens=True),) * 2
        assert generated.generated_tokens > 2
    with pytest.raises(InputError, match="not know the language 'fr'"):
        result.generate(SONG, language="fr")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_speech(tmp_path):
    """A Whisper says what eager says, in a language that is given or found, with timestamps and without."""
    import numpy as np
    import soundfile
    import torch
    from transformers import AutoFeatureExtractor, AutoTokenizer, GenerationMixin, WhisperForConditionalGeneration
    from transformers.generation import logits_process as rules

    folder = write_listener(tmp_path / "whisper")
    result = _exported(folder, tmp_path / "store")
    samples = np.random.default_rng(0).standard_normal(22_050).astype(np.float32) / 10
    soundfile.write(tmp_path / "a.wav", samples, 44_100)
    from pteforge.formats.media import read_sound

    extractor = AutoFeatureExtractor.from_pretrained(folder)
    heard = read_sound(tmp_path / "a.wav", 16_000)
    features = extractor(heard, sampling_rate=16_000, return_tensors="pt").input_features
    net = WhisperForConditionalGeneration.from_pretrained(folder)
    tokenizer, settings = AutoTokenizer.from_pretrained(folder), net.generation_config
    token = tokenizer.convert_tokens_to_ids
    texts: dict[str, str] = {}
    found = tokenizer.decode(net.detect_language(input_features=features))
    for language in ("de", ""):
        prompt = ["<|startoftranscript|>", f"<|{language}|>" if language else found, "<|transcribe|>"]
        ids = [token(name) for name in (*prompt, "<|notimestamps|>")]
        processors = [
            rules.SuppressTokensLogitsProcessor(settings.suppress_tokens),
            rules.SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, len(ids)),
        ]
        made = GenerationMixin.generate(
            net,
            features,
            decoder_input_ids=torch.tensor([ids]),
            logits_processor=rules.LogitsProcessorList(processors),
            max_new_tokens=24,
            do_sample=False,
            num_beams=1,
            begin_suppress_tokens=None,
            suppress_tokens=None,
        )
        wanted = tokenizer.decode(made[0, len(ids) :], skip_special_tokens=True)
        texts[language] = result.generate(audio=tmp_path / "a.wav", language=language, max_new_tokens=24).text
        assert texts[language] == wanted
        assert len(wanted) > 4
    assert result.generate(audio=(heard, 16_000), language="de", max_new_tokens=24).text == texts["de"]
    with pytest.raises(InputError, match=r"transcribes a sound: .*no prompt"):
        result.generate("a", audio=tmp_path / "a.wav")
    for seconds in (0.5, 1.0, 2.6):
        sound = np.random.default_rng(1).standard_normal(int(16_000 * seconds)).astype(np.float32) / 10
        whole = {"truncation": False, "padding": "longest"} if seconds > 1 else {}
        features = extractor(sound, sampling_rate=16_000, return_tensors="pt", **whole).input_features
        made = net.generate(
            features, language="en", return_timestamps=True, return_segments=True, max_new_tokens=24, do_sample=False
        )
        first = settings.no_timestamps_token_id + 1
        wanted = [int(token) for segment in made["segments"][0] for token in segment["tokens"]]
        wanted = tokenizer.decode([token for token in wanted if token < first], skip_special_tokens=True)
        text = result.generate(audio=(sound, 16_000), language="en", timestamps=True, max_new_tokens=24).text
        times = [float(time) for time in re.findall(r"<\|([\d.]+)\|>", text)]
        assert re.sub(r"<\|[\d.]+\|>", "", text) == wanted
        bounds = {round(float(segment[bound]), 2) for segment in made["segments"][0] for bound in ("start", "end")}
        assert times == sorted(times)
        assert bounds <= {*times}
        if seconds > 1:
            assert result.generate(audio=(sound, 16_000), language="en", max_new_tokens=24).text == wanted
