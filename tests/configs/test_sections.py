"""Sections of models, recipes and zoos: quantizers and transforms, accuracy gates, metadata, and where stages run."""

from pathlib import Path

import pytest
from pteforge.configs import Quantize, QuantizerChoice
from pteforge.configs.metadata import KEYS, PROVENANCE, Metadata, merged_metadata
from pteforge.configs.quantize import CallableTransform, TorchaoTransform
from pteforge.configs.verification import Accuracy, resolve_gate
from pteforge.errors import ConfigError

ONE = QuantizerChoice(quantizer="xnnpack", options={"dynamic": True})
OTHER = QuantizerChoice(quantizer="vulkan")
TRANSFORMS = "source_transforms"
ZOO = "version: 1\nmodels: {net: {source: 'p:net', recipes: [mine]}}\nrecipes:\n  mine:\n    extends: portable-fp32\n"


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        ({}, (QuantizerChoice(quantizer="xnnpack"),)),
        ({"quantizer": "vulkan"}, (OTHER,)),
        (ONE.model_dump(exclude_unset=True), (ONE,)),
        ({"quantizers": [ONE.model_dump()]}, (ONE,)),
        ({"quantizers": [{"quantizer": "vulkan"}, ONE.model_dump()]}, (OTHER, ONE)),
    ],
)
def test_both_forms(written, chosen):
    """One quantizer is written by itself or as a list of one, several as a list, and the order is kept."""
    assert Quantize.model_validate(written).chosen == chosen


def test_both_kinds_of_transforms(load):
    """A list may have both kinds; one pattern stands for a list of one; paths are relative to their file."""
    loaded = load(
        ZOO + "    source_transforms:\n"
        "      - {torchao: int8_weight_only, filter: encoder.*, exclude: [a, b]}\n"
        "      - {callable: 'p.q:fold', kwargs: {deep: true}, files: [scales.txt]}\n"
    )
    first, second = loaded.zoo.recipes["mine"].source_transforms
    assert first == TorchaoTransform(torchao="int8_weight_only", filter=("encoder.*",), exclude=("a", "b"))
    assert second == CallableTransform(
        callable="p.q:fold", kwargs={"deep": True}, files=(loaded.files[0].parent / "scales.txt",)
    )
    assert (first.layers, TorchaoTransform(torchao="x").filter) == (("linear",), ("*",))


LIST = "quantizers: [{quantizer: xnnpack}]"


@pytest.mark.parametrize(
    ("field", "written", "message"),
    [
        ("quantize", f"{{quantizer: xnnpack, {LIST}}}", "6:5: recipes.mine.quantize: has `quantizers` as well as"),
        ("quantize", f"{{options: {{dynamic: true}}, {LIST}}}", "6:5: recipes.mine.quantize: has `quantizers` as well"),
        (
            TRANSFORMS,
            "[{filter: a}]",
            rf"6:25: .*{TRANSFORMS}\[0\]: must be a mapping with either `torchao`.*`call",
        ),
        (TRANSFORMS, "[{torchao: a, callable: 'p:q'}]", rf"{TRANSFORMS}\[0\]: must be a mapping with either"),
        (TRANSFORMS, "[{torchao: a, param: {}}]", r"unknown key 'param'; did you mean 'params'"),
        (TRANSFORMS, "[{torchao: a, filter: []}]", rf"{TRANSFORMS}\[0\].filter: is empty; leave it out to take every"),
        (TRANSFORMS, "[{torchao: a, layers: [conv]}]", r"\[0\].layers\[0\]: Input should be 'linear' or 'embedding'"),
        (TRANSFORMS, "[{callable: p.q}]", rf"{TRANSFORMS}\[0\].callable: 'p.q' is neither"),
    ],
)
def test_mistakes_in_quantizers_and_transforms(load, field, written, message):
    """A mistake is reported with its place; a list of quantizers and a single one contradict each other."""
    with pytest.raises(ConfigError, match=message):
        load(f"{ZOO}    {field}: {written}\n")


GATED = """
    version: 1
    models:
      a: {source: 'p:a', recipes: [plain, gated], accuracy: %s}
    recipes:
      plain: {specializations: [{target: portable}]}
      gated: {specializations: [{target: portable}], accuracy: %s}
"""
WHOLE = "{evaluator: 'p:score', kwargs: {n: 3}, files: [x.csv], floor: 0.9, max_drop: 0.1}"


def gate(load, model, recipe, name="gated"):
    """The gate of model `a` with a recipe, where the model's and recipe `gated`'s parts are given as YAML."""
    return load(GATED % (model, recipe)).zoo.accuracy_gate("a", name)


@pytest.mark.parametrize(
    ("model", "recipe", "expected"),
    [
        ("null", WHOLE, ("p:score", {"n": 3}, 0.9, 0.1)),
        ("{evaluator: 'p:score'}", "{max_drop: 0.01}", ("p:score", {}, None, 0.01)),
        ("{floor: null}", WHOLE, ("p:score", {"n": 3}, None, 0.1)),
        ("{evaluator: 'p:other'}", WHOLE, ("p:other", {}, 0.9, 0.1)),
        ("{evaluator: null, floor: null, max_drop: null}", WHOLE, None),
    ],
)
def test_a_recipe_and_a_model_make_a_gate(load, model, recipe, expected):
    """Fields that the model writes replace the recipe's, null included; another evaluator has its own arguments."""
    made = gate(load, model, recipe)
    assert (made and (made.evaluator.builder, made.evaluator.kwargs, made.floor, made.max_drop)) == expected
    if made and made.evaluator.builder == "p:other":
        assert made.evaluator.files == ()
    assert gate(load, "{evaluator: 'p:score'}", recipe, "plain") is None


def test_files_lie_beside_the_zoo_file(load, tmp_path):
    """Relative paths are those from the zoo file, in recipes, in models, and in what all models get."""
    made = gate(load, "null", "{evaluator: 'p:score', files: [labels.csv], floor: 1}")
    assert made.evaluator.files == (tmp_path / "labels.csv",)
    made = gate(load, "{files: [own.csv]}", "{evaluator: 'p:score', files: [labels.csv], floor: 1}")
    assert made.evaluator.files == (tmp_path / "own.csv",)
    default = "{accuracy: {evaluator: 'p:score', files: [all.csv], floor: 1}}"
    text = f"version: 1\ndefaults: {{recipes: [xnnpack-fp32], model: {default}}}\nmodels: {{a: {{source: 'p:a'}}}}\n"
    assert load(text).zoo.accuracy_gate("a", "xnnpack-fp32").evaluator.files == (Path(tmp_path / "all.csv"),)


@pytest.mark.parametrize(
    ("recipe", "model", "problem"),
    [
        (Accuracy(floor=0.9), None, "neither the recipe nor the model names an `evaluator`"),
        (None, Accuracy(max_drop=0.1), "neither the recipe nor the model names an `evaluator`"),
        (Accuracy(evaluator="p:score"), None, "add `floor`, `max_drop` or `keep`"),
    ],
)
def test_half_a_gate_is_an_error(recipe, model, problem):
    """A bound without an evaluator, or a recipe's evaluator without a bound, is not silently left out."""
    with pytest.raises(ValueError, match=problem):
        resolve_gate(recipe, model)


DESCRIBED = """\
version: 1
models:
  net:
    source: nets:net
    recipes: [xnnpack-fp32]
    metadata: {%s}
"""


def test_entries():
    """Each field is an entry under namespace.field, in the proposal's names where it has some; others follow."""
    metadata = Metadata.model_validate(
        {
            "name": "Small",
            "architecture": "llama",
            "license": "mit",
            "labels": ["cat", "dog"],
            "image": {"size": [8, 9], "mean": [0.5], "rescale": 0.25},
            "audio": {"sampling_rate": 16000},
            "tokenizer": {"vocab_size": 10, "bos_token_id": 1, "eos_token_ids": [2, 3]},
            "context_length": 64,
            "extra": {"acme.build": 7, "acme.sizes": [1, 2]},
        }
    )
    assert metadata.entries() == {
        "general.name": "Small",
        "general.architecture": "llama",
        "general.license": "mit",
        "output.labels": ("cat", "dog"),
        "image.size": (8, 9),
        "image.rescale": 0.25,
        "image.mean": (0.5,),
        "audio.sampling_rate": 16000,
        "tokenizer.vocab_size": 10,
        "tokenizer.bos_token_id": 1,
        "tokenizer.eos_token_id": 2,
        "tokenizer.eos_token_ids": (2, 3),
        "context.length": 64,
        "acme.build": 7,
        "acme.sizes": (1, 2),
    }
    assert metadata.entries().keys() - {"acme.build", "acme.sizes"} <= KEYS - {PROVENANCE}


def test_what_replaces_what():
    """The first one's fields come first, those of sections too; null takes away what the other has."""
    first = Metadata.model_validate({"name": "mine", "license": None, "image": {"mean": [0.5]}, "extra": {"a.b": 1}})
    second = Metadata.model_validate(
        {"name": "its", "license": "mit", "image": {"mean": [0.1], "size": [4, 4]}, "extra": {"c.d": 2}}
    )
    merged = merged_metadata(first.written(), second.written())
    assert merged.entries() == {"general.name": "mine", "image.size": (4, 4), "image.mean": (0.5,), "a.b": 1, "c.d": 2}


def test_a_file_of_labels(load, tmp_path):
    """Its path is relative to the zoo; lines without text are left out. It replaces labels, as labels replace it."""
    (tmp_path / "labels.txt").write_text("cat\n\n dög \n", encoding="utf-8")
    metadata = load(DESCRIBED % "labels_file: labels.txt").zoo.models["net"].metadata
    assert metadata.labels_file == tmp_path / "labels.txt"
    read = metadata.with_labels()
    assert read.written() == {"labels": ["cat", "dög"]}
    assert merged_metadata(read.written(), {"labels": ["other"]}).labels == ("cat", "dög")
    (tmp_path / "labels.txt").write_text("\n")
    with pytest.raises(ValueError, match="has no labels"):
        metadata.with_labels()


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("licence: mit", "did you mean 'license'"),
        ("labels: []", "labels"),
        ("labels: [a], labels_file: a.txt", "write one of them"),
        ("image: {size: [0, 4]}", "greater than or equal to 1"),
        ("image: {interpolation: cubic}", "bicubic"),
        ("extra: {build: 7}", "must be namespace.field"),
        ("extra: {image.mean: 7}", "it has a field of its own"),
        ("extra: {general.build: 7}", "its namespace is pteforge's"),
        ("extra: {a.b: 9223372036854775808}", "more than 64 bits"),
        ("extra: {a.b: true}", "a.b"),
    ],
)
def test_mistakes_in_metadata(failure, written, problem):
    """Each is an error at its line that says what is wrong."""
    message = str(failure(DESCRIBED % written))
    assert "zoo.yaml:6" in message
    assert problem in message


RUN = "version: 1\ndefaults: {recipes: [portable-fp32]}\nmodels: {net: {source: nets:net}}\nrun: "


@pytest.fixture
def load_run(load):
    """Loads a zoo with this section `run`."""
    return lambda run, *overrides: load(RUN + run, overrides=overrides).zoo.run


def test_one_place_is_chosen_of_those_prepared(load_run):
    """A zoo may prepare several places; a cluster on this machine has two processes by default."""
    prepared = "{on: dask, pool: forge}"
    assert (load_run(prepared).on, load_run(prepared).processes) == ("dask", 2)
    assert (load_run(prepared, "run.on=pool").pool, load_run(prepared, "run.on=pool").processes) == ("forge", None)
    assert load_run("{}").on == "local"
    assert (load_run("{}").memory, load_run("{memory: 1GiB}", "run.memory=2GiB").memory) == (None, 2 * 2**30)


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ("{on: dusk}", "run.on"),
        ("{on: pool}", "needs the name of the work pool"),
        ("{on: dask, address: 'scheduler:8786'}", "has no scheme"),
        ("{on: dask, address: 'tcp://a:1', workers: 2}", "leave out one of"),
    ],
)
def test_places_that_cannot_be_used(load_run, run, problem):
    """The message names the file, the line and what to write."""
    with pytest.raises(ConfigError, match=problem) as raised:
        load_run(run)
    assert "zoo.yaml:4:" in str(raised.value)
