"""What a name's fields make of the recipes of its model, and which recipes do not fit its methods."""

import json

import pytest
from pteforge.configs.load import load_source, load_zoo
from pteforge.errors import InputError
from pteforge.flows.run.select import select_models

NAME = {"huggingface": "llama", "task": "text-generation", "config": {}}


def selected(folder, layers, *recipes, **fields):
    """The recipes of a model whose source has these fields."""
    source = {**NAME, "quantize_layers": layers, **fields}
    zoo = {"version": 1, "models": {"net": {"source": source, "recipes": recipes}}}
    (folder / "zoo.yaml").write_text(json.dumps(zoo))
    (model,) = select_models(load_zoo(folder / "zoo.yaml"))
    return [planned.recipe for planned in model.recipes]


def test_fields_of_a_name(tmp_path):
    """They replace those of recipes that quantize layers; other recipes stay as they are."""
    plain, quantizing = selected(tmp_path, {"group_size": 64}, "xnnpack-fp32", "xnnpack-llm-8da4w")
    assert plain.transforms == ()
    (transform,) = quantizing.transforms
    assert transform.params == {"weight_dtype": "int4", "weight_granularity": {"per_group": 64}}


@pytest.mark.parametrize(
    ("fields", "recipe", "problem"),
    [
        ({"group_size": 64}, "xnnpack-fp32", r"no recipe of the model goes by `quantize_layers` \(xnnpack-fp32\)"),
        ({"group_size": 64}, "xnnpack-llm-8da8w", "`group_size` is for int4 weights of linear layers"),
        ({"linear": "8da5w"}, "xnnpack-llm-8da4w", "8da4w"),
    ],
)
def test_fields_that_do_not_fit(tmp_path, fields, recipe, problem):
    """The error names the field of the model's source."""
    with pytest.raises(InputError, match=rf"models.net.source.quantize_layers.*: .*{problem}"):
        selected(tmp_path, fields, recipe)


@pytest.mark.parametrize(
    ("dtype", "recipe", "problem"),
    [
        ("bfloat16", "xnnpack-llm-8da4w", "XNNPACK takes no quantized layers in bfloat16"),
        ("float16", "xnnpack-int8-dynamic", "XNNPACK's quantizer takes float32 only"),
    ],
)
def test_dtypes_that_cannot_be_quantized(tmp_path, dtype, recipe, problem):
    """They are refused before any work; in floating point, XNNPACK takes them."""
    assert len(selected(tmp_path, None, "xnnpack-fp32", dtype=dtype)) == 1
    with pytest.raises(InputError, match=f"models.net.source.dtype: {problem}"):
        selected(tmp_path, None, recipe, dtype=dtype)


SHARING = {"compile": {"share_mutable_buffers": True}}
FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}
BERT = {"huggingface": "bert", "task": "fill-mask", "config": {}}
T5 = {"huggingface": "t5", "task": "text2text-generation", "config": {}}
BUCKETS = {"buckets": {"tokens": [4, 8]}}


def scored(evaluator, **kwargs):
    """A recipe with one of our evaluators, and what it needs."""
    evaluator = f"pteforge.evaluators:{evaluator}"
    return {"accuracy": {"evaluator": evaluator, "kwargs": kwargs, "floor": 0}}


def options_of(method):
    return {"specializations": [{"target": "xnnpack", "methods": {method: {"delegate": False}}}]}


PERPLEXITY = scored("neg_perplexity", text="text.txt", tokenizer="words")
BLEU = scored("bleu", file="samples.jsonl", processor="words")
TOP_1 = scored("top_k", folder="images", method="decode")


@pytest.mark.parametrize(
    ("source", "model", "recipe", "problem"),
    [
        ({"prefill": True}, {}, {}, r"models.net.source.prefill: .*`compile: {share_mutable_buffers: true}`"),
        (
            {"prefill": True},
            {},
            FAT,
            r"models.net.source.prefill: .*share_mutable_buffers: true}`, which makes a plain",
        ),
        ({}, {}, {"quantize": {"quantizer": "xnnpack", "methods": ["decode"]}}, r"recipes.own: `quantize.methods` of"),
        ({}, {}, options_of("decode"), r"recipes.own: .* the methods \['decode'\]; the model has \['forward'\]"),
        ({"prefill": True}, {}, {**options_of("forward"), **SHARING}, r"the model has \['prefill', 'decode_step'\]"),
        ({}, {"methods": {"forward": BUCKETS}}, {}, "models.net.methods.forward.buckets: the method keeps a cache"),
        (
            {"prefill": True},
            {"methods": {"prefill": BUCKETS}},
            SHARING,
            "models.net.methods.prefill.buckets: the method",
        ),
        (T5, {"methods": {"text_decoder": BUCKETS}}, {}, "models.net.methods.text_decoder.buckets: the method keeps"),
        (
            {},
            {"methods": {"prefill": BUCKETS}},
            {},
            r"models.net: buckets are of the methods \['prefill'\]; the model has",
        ),
        (
            BERT,
            {"dynamic_shapes": {"encode": [None]}},
            {},
            r"models.net: dynamic_shapes names the methods \['encode'\]",
        ),
        (BERT, {"calibration": {"encode": {"dataset": "data:rows"}}}, {}, r"models.net: calibration names the methods"),
        (BERT, {}, PERPLEXITY, "recipes.own.accuracy: neg_perplexity needs a method 'forward' that it can run"),
        (BERT, PERPLEXITY, {}, "models.net.accuracy: neg_perplexity needs a method 'forward' that it can run"),
        (
            T5,
            {},
            PERPLEXITY,
            "neg_perplexity needs a method 'forward' that it can run; this model has encoder, text_dec",
        ),
        (
            {"prefill": True},
            {},
            {**PERPLEXITY, **SHARING},
            "neg_perplexity needs a method 'forward' .* has prefill, dec",
        ),
        (BERT, {}, BLEU, "recipes.own.accuracy: bleu needs a model that generates text; this model has forward"),
        (BERT, {}, TOP_1, "recipes.own.accuracy: top_k needs a method 'decode'"),
    ],
)
def test_methods_of_a_named_model(tmp_path, source, model, recipe, problem):
    """They are known before any work: what names others, or does with them what they cannot do, is an error."""
    with pytest.raises(InputError, match=problem):
        select(tmp_path, source, model, recipe)


@pytest.mark.parametrize(
    ("source", "model", "recipe"),
    [
        ({"prefill": True}, {}, {**options_of("decode_step"), **SHARING, **BLEU}),
        ({"prefill": True}, scored("neg_perplexity", text="text.txt", tokenizer="words", method="prefill"), SHARING),
        ({}, {}, PERPLEXITY),
        (T5, {}, {**options_of("text_decoder"), **BLEU}),
        (BERT, {"methods": {"forward": {"buckets": {"sequence": [8, 16]}}}}, options_of("forward_16")),
        ("data:net", {"methods": {"encode": BUCKETS}}, {**options_of("decode"), **PERPLEXITY}),
    ],
)
def test_methods_that_a_model_has(tmp_path, source, model, recipe):
    """Methods of a name, their buckets, and those of a builder, which are not known yet, are accepted."""
    (planned,) = select(tmp_path, source, model, recipe)
    assert len(planned.recipes) == 1


def select(folder, source, model, recipe):
    """A model by a name, or by a builder, with a recipe of its own."""
    (folder / "data.py").write_text("rows = []\ndef net(): ...\n")
    (folder / "text.txt").write_text("text")
    (folder / "samples.jsonl").write_text('{"source": "a", "target": "b"}')
    (folder / "words").mkdir()
    (folder / "images").mkdir()
    (folder / "words" / "tokenizer.json").write_text("{}")
    source = source if isinstance(source, str) else {**NAME, **source}
    models = {"net": {"source": source, "recipes": ["own"], **model}}
    recipes = {"own": {"extends": "xnnpack-fp32", **recipe}}
    (folder / "zoo.yaml").write_text(json.dumps({"version": 1, "models": models, "recipes": recipes}))
    return select_models(load_zoo(folder / "zoo.yaml"))


def test_the_source_of_a_named_model(tmp_path):
    """On the command line, `source` is that of the only model, whatever its name is."""
    (tmp_path / "net.v1").mkdir()
    changes = ["source.dtype=bfloat16", "source.quantize_layers.group_size=64"]
    zoo = load_source(tmp_path, "hf:./net.v1", ["xnnpack-llm-8da4w"], changes).zoo
    source = zoo.models["net.v1"].source
    assert (source.dtype, source.quantize_layers.group_size) == ("bfloat16", 64)
