"""Small models with random weights that generate text, their tokenizers, and samples of what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile
import torch

TEXT = "the cat sat on the mat. the dog ran to the cat. a bird flew over the mat, and the dog sat on it. "
SOURCES = ("the cat sat on a bird", "a bird flew over the mat")
TOKENS = 12
ATTENDED = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}


def sound(path: Path, seed: int = 0) -> None:
    """Writes a second of noise."""
    noise = np.random.default_rng(seed).standard_normal(16000).astype(np.float32) / 10
    soundfile.write(path, noise, 16000)


def write_model(folder: Path, kind: str) -> list[str]:
    """Writes a model below a folder, and samples as ``KIND.jsonl``; returns what transformers' `generate` says."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=80, special_tokens=["<s>", "</s>", "<pad>"]))
    if kind == "t5":
        made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)
    tokens = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = {
        "t5": lambda: transformers.T5Config(
            **tokens, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, initializer_factor=4.0,
            decoder_start_token_id=2,
        ),
        "llama": lambda: transformers.LlamaConfig(
            **tokens, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=96, initializer_range=0.3,
        ),
        "whisper": lambda: transformers.WhisperConfig(
            **tokens, **ATTENDED, d_model=32, encoder_layers=1, decoder_layers=2, init_std=0.4, num_mel_bins=8,
            max_source_positions=50, max_target_positions=80, decoder_start_token_id=0, suppress_tokens=[5, 6],
            begin_suppress_tokens=[1, 7],
        ),
    }[kind]()  # fmt: skip
    auto = {"t5": "Seq2SeqLM", "llama": "CausalLM", "whisper": "SpeechSeq2Seq"}[kind]
    torch.manual_seed(0)
    net = getattr(transformers, f"AutoModelFor{auto}").from_config(config).eval()
    net.generation_config = transformers.GenerationConfig.from_model_config(config)
    for saved in (net, tokenizer):
        saved.save_pretrained(folder / kind)
    rows = []
    settings = {"max_new_tokens": TOKENS, "do_sample": False, "num_beams": 1}
    for number, source in enumerate(SOURCES):
        if kind == "whisper":
            extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
            extractor.save_pretrained(folder / kind)
            sound(folder / f"{number}.wav", number)
            heard, _ = soundfile.read(folder / f"{number}.wav", dtype="float32")
            inputs = extractor(heard, sampling_rate=16000, return_tensors="pt")["input_features"]
            row = {"audio": f"{number}.wav"}
        else:
            inputs, row = tokenizer(source, return_tensors="pt")["input_ids"], {"source": source}
        said = net.generate(inputs, **settings)[0]
        said = said[inputs.shape[1] if kind == "llama" else 0 :]
        rows.append({**row, "text": tokenizer.decode(said, skip_special_tokens=True).strip()})
    (folder / f"{kind}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return [row["text"] for row in rows]
