"""Small models that generate text, in folders of Hugging Face's layout. One has learned a text by heart."""

from __future__ import annotations

from pathlib import Path

CONTEXT = 96
SONG = "the cat 🐈 sat. é, 中文, and the cat 🐈 ran."
PROMPT = SONG[:8]


def write_singer(folder: Path) -> Path:
    """Writes the model and its tokenizer, whose tokens are bytes, and which puts a token before each text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    names = {"bos_token": "<s>", "eos_token": "</s>"}
    letters = [*names.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.add_special_tokens(letters[:2])
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    net = LlamaForCausalLM(LlamaConfig(**sizes, **ids, vocab_size=258, max_position_embeddings=CONTEXT))
    tokens = torch.tensor([tokenizer(f"{SONG}</s>").input_ids])
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for _ in range(80):
        net(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    net.save_pretrained(folder)
    return folder


def eager_text(folder: Path, prompt: str, most: int | None = None) -> tuple[str, tuple[int, int]]:
    """What transformers generates, and the numbers of tokens of the prompt and of the text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = AutoModelForCausalLM.from_pretrained(folder).generate(
        ids, max_new_tokens=most or CONTEXT - ids.shape[1], do_sample=False
    )
    tokens = made[0, ids.shape[1] :]
    return tokenizer.decode(tokens, skip_special_tokens=True), (ids.shape[1], len(tokens))


def write_reader(folder: Path) -> Path:
    """Writes a T5 with random weights, and a tokenizer that ExecuTorch's runners cannot load."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    special = ["<pad>", "</s>", "<unk>"]
    names = dict(zip(("pad_token", "eos_token", "unk_token"), special, strict=True))
    pieces = ["at", "an", *sorted({*SONG.replace(" ", "▁")})]  # a trainer would order them by chance
    made = Tokenizer(models.Unigram([*((name, 0.0) for name in special), *((piece, -2.0) for piece in pieces)], 2))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(8)  # of which texts depend on the prompt; larger weights cost up to 50 dB, by the tokens
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    T5ForConditionalGeneration(
        T5Config(**sizes, vocab_size=len(tokenizer), decoder_start_token_id=0, forced_bos_token_id=9)
    ).save_pretrained(folder)
    return folder


def write_listener(folder: Path) -> Path:
    """Writes a Whisper with random weights that knows two languages, and times; its sounds are one second long."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyzĠ")}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(special)
    made.add_tokens([AddedToken(f"<|{number * 0.02:.2f}|>") for number in range(51)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=special[0], pad_token=special[0])
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    end, start, english, german, transcribe, silent = tokenizer.convert_tokens_to_ids(special)
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
    layers = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in sizes.items()}
    positions = {"max_source_positions": 50, "max_target_positions": CONTEXT}
    torch.manual_seed(0)
    net = WhisperForConditionalGeneration(
        WhisperConfig(**layers, **ids, **positions, d_model=32, vocab_size=len(tokenizer), num_mel_bins=8, init_std=0.4)
    )
    net.generation_config = GenerationConfig(
        **ids,
        no_timestamps_token_id=silent,
        begin_suppress_tokens=[end, 0],
        suppress_tokens=[german, start],
        lang_to_id={"<|en|>": english, "<|de|>": german},
        task_to_id={"transcribe": transcribe},
    )
    net.save_pretrained(folder)
    return folder
