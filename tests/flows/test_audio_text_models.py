"""Models by name that answer a prompt of sounds and text, run by ExecuTorch's own runner."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pteforge.formats.pte.reader import open_pte
from pteforge.tests.zoo.networks import GRANITE_ENCODER

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

# A Voxtral with random weights, a window of one second, and a tokenizer of letters, in the hub's layout.
VOXTRAL = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor
from transformers import VoxtralConfig, VoxtralForConditionalGeneration

letters = ["<s>", "</s>", "[AUDIO]", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123"]
made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
made.add_special_tokens(letters[:3])
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(sys.argv[1])
WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(sys.argv[1])
layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
text = {"vocab_size": len(letters), "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "initializer_range": 0.4}
torch.manual_seed(0)
sound = {"num_mel_bins": 8, "max_source_positions": 50, "initializer_range": 0.4}
config = VoxtralConfig(audio_config={**layers, **sound}, text_config={"model_type": "llama", **layers, **text},
                       audio_token_id=2)
net = VoxtralForConditionalGeneration(config)
net.lm_head.weight.data[:3] = 0  # no special token is the likeliest
net.save_pretrained(sys.argv[1])
"""

# What the runner says of sounds of one or more windows between two texts, and what eager does: as JSON.
HEAR = """
import json, sys, torch
from executorch.extension.llm.runner import GenerationConfig, MultimodalRunner, make_audio_input, make_token_input
from pteforge.tasks.sources.audio_text import model
from pteforge.tasks.usercode.model_source import seed_everything
from transformers import AutoFeatureExtractor, AutoTokenizer

torch.set_num_threads(1)
MASKS = {"qwen2_audio": "feature_attention_mask", **dict.fromkeys(("audioflamingo3", "glmasr"), "input_features_mask")}
folder, before, after = sys.argv[1], [5, 6, 7], [9, 10, 11]
tokenizer = AutoTokenizer.from_pretrained(folder)
for file, source in json.load(sys.stdin):
    seed_everything(0)
    names = ("task", "config", "sequence", "audio_frames")
    definition = model(source["huggingface"], **{name: source.get(name) for name in names})
    method, token = definition.methods["audio_encoder"], definition.constant_methods["audio_token_id"]
    encoder, net = method.module, method.module.model
    sounds = [torch.randn_like(method.example_inputs[0][0]).split(1) for _ in range(2)]
    if "config" not in source:
        extractor = AutoFeatureExtractor.from_pretrained(folder)
        samples = [torch.randn(length) for length in (9000, 16000)] + [torch.randn(2, 16000)]
        options = {"sampling_rate": 16000, "return_tensors": "pt"}
        parts = [[*map(torch.Tensor.numpy, sound.view(-1, sound.shape[-1]))] for sound in samples]
        sounds = [extractor(part, **options).input_features.split(1) for part in parts]
    runner = MultimodalRunner(file, folder + "/tokenizer.json")
    for windows in sounds:
        count = encoder(windows[0]).shape[1] * len(windows)
        prompt, said = torch.tensor([before + [token] * count + after]), []
        given = {"input_features": torch.cat(windows)}
        if mask := MASKS.get(source["huggingface"]):
            given[mask] = torch.ones(len(windows), windows[0].shape[-1], dtype=torch.int64)
        wanted = net.generate(prompt, **given, max_new_tokens=32, do_sample=False)
        runner.reset()
        parts = [make_token_input(before), *map(make_audio_input, windows), make_token_input(after)]
        runner.generate(parts, GenerationConfig(max_new_tokens=32, temperature=0.0, echo=False), said.append)
        text = tokenizer.decode(wanted[0, prompt.shape[1] :]).removesuffix(tokenizer.eos_token)
        print("\\nRESULT", json.dumps([count, "".join(said).removesuffix(tokenizer.eos_token), text]), flush=True)
"""


def hear(folder, *models):
    """For each file with its source, and each sound: its tokens, what ExecuTorch's runner says, and what eager says."""
    given = json.dumps([[str(file), source] for file, source in models])
    done = subprocess.run(
        [sys.executable, "-c", HEAR, folder], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


@pytest.fixture
def voxtral(project):
    """A folder in the hub's layout."""
    subprocess.run([sys.executable, "-c", VOXTRAL, project.folder / "tiny"], check=True, capture_output=True)
    return project.folder / "tiny"


def test_a_model_hears(project, voxtral):
    """The runner says what eager says of sounds of one and two windows. In int8, the file is within its gate."""
    int8 = {"extends": "xnnpack-int8-dynamic", "quantize": {"methods": ["audio_encoder", "text_decoder"]}}
    project.write_zoo({"tiny": {"source": {"huggingface": "./tiny"}}}, ("xnnpack-fp32", "int8"), {"int8": int8})
    made = project.export()
    assert made.code == 0, made.err
    folder = project.out / "tiny"
    assert {"tokenizer.json", "preprocessor_config.json"} <= {path.name for path in folder.iterdir()}
    methods = {method.name: method for method in open_pte(folder / "xnnpack-fp32.pte").methods}
    assert [tensor.shape for tensor in methods["audio_encoder"].inputs] == [(1, 8, 100)]
    results = hear(folder, (folder / "xnnpack-fp32.pte", {"huggingface": str(voxtral)}))
    assert [count for count, _, _ in results] == [25, 25, 50]
    for _, said, wanted in results:
        assert said == wanted
    assert len({said for _, said, _ in results}) == 3


TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 59}
TEXT |= {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "initializer_range": 0.4}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "hidden_size": 32}
HEARING = {
    "granite_speech": {
        "text_config": {"model_type": "granite", **TEXT},
        "encoder_config": GRANITE_ENCODER,
        "projector_config": {
            "model_type": "blip_2_qformer",
            "encoder_hidden_size": 32,
            "cross_attention_frequency": 1,
            **LAYERS,
        },
        "audio_token_index": 59,  # after the vocabulary, as in its checkpoints
        "initializer_range": 0.4,
        "has_lora_adapter": False,
    },
    "qwen2_audio": {
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 16,
            "max_source_positions": 32,
            "initializer_range": 0.4,
        },
        "text_config": {"model_type": "qwen2", **TEXT},
        "audio_token_index": 2,
    },
}


def test_architectures_hear(project, voxtral):
    """The runner says what eager says, also of frames that no window fits, and of an encoder without an accessor."""
    common = {"task": "audio-text-to-text", "sequence": 96}
    sources = {name: {"huggingface": name, "config": config, **common} for name, config in HEARING.items()}
    sources["granite_speech"]["audio_frames"] = 50
    project.write_zoo({name: {"source": source} for name, source in sources.items()}, ("xnnpack-fp32",))
    done = project.export()
    assert done.code == 0, done.err
    results = hear(voxtral, *((project.out / name / "xnnpack-fp32.pte", source) for name, source in sources.items()))
    assert [count for count, _, _ in results] == [12, 12, 16, 16]
    for _, said, wanted in results:
        assert said == wanted
    assert len({said for _, said, _ in results}) == 4
