"""Buckets: methods of one model with static sizes, from the zoo's words to the file's."""

import re
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from pteforge.configs.model import MethodConfig
from pteforge.errors import InputError, SourceError
from pteforge.formats.pte.buckets import Bucket
from pteforge.formats.pte.reader import read_pte
from pteforge.runtime import load
from pteforge.tasks.lowering.model import PlannedModel, plan_buckets
from pteforge.tasks.results.tables import format_size
from pteforge.tests.lowering import PORTABLE, XNNPACK, recipe


@pytest.fixture
def export(stages):
    """Exports a bucket of a builder's method."""

    def run(builder, sizes, method="forward", **params):
        bucket = Bucket(name="small", method=method, sizes=sizes)
        return stages.export(f"builders:{builder}", method=method, bucket=bucket, **params)

    return run


@pytest.fixture
def exported(export, stages):
    """What the file says of a bucket, and the first example, with the builder's arguments."""

    def run(builder, sizes, **params):
        roles = export(builder, sizes, **params)
        flat = stages.value(roles["examples"])["inputs"][0]
        return Bucket.model_validate_json(stages.json(roles["bucket"])), flat

    return run


@pytest.mark.parametrize(
    ("builder", "sizes", "problem"),
    [
        ("masked_mean", {"lenght": 8}, "no dynamic dimension 'lenght'; did you mean 'length'.*it has .*batch"),
        ("masked_mean", {"length": 65}, "'length' takes 1 to 64, and 65 is not among these sizes"),
        ("heads", {"length": 1}, "'length' takes 2 to 32, and 1 is not"),
        ("neighbors", {"length": 4}, r"no dynamic dimension 'length'; give one a name: Dim\("),
        ("conv_net", {"rows": 4}, "no dynamic dimension 'rows'"),
        ("keeps_count", {"batch": 2}, "cannot have buckets: it keeps state.*prefill and decode.*share_mutable_buffers"),
    ],
)
def test_what_cannot_be_a_bucket(export, builder, sizes, problem):
    """The error says which dimensions or sizes there are, or what to do instead."""
    with pytest.raises(SourceError, match=problem):
        export(builder, sizes)


def test_methods_that_are_none(export):
    """An unknown method, and one that sequences call, are errors."""
    with pytest.raises(SourceError, match=r"method 'encode'; it has \['forward'\]"):
        export("masked_mean", {"length": 8}, method="encode")
    with pytest.raises(SourceError, match="cannot have buckets: `sequences`"):
        export("keeps_count", {"batch": 4}, kwargs={"called": True})


def test_examples_are_cut_or_repeated(stages, export):
    """Every example has the bucket's sizes, tokens over again where they end; other dimensions still vary."""
    roles = export("masked_mean", {"length": 8})
    stored = stages.value(roles["examples"])
    assert [flat[0].shape[1] for flat in stored["inputs"]] == [8] * len(stored["inputs"])
    assert {flat[0].shape[0] for flat in stored["inputs"]} > {2, 3}
    tokens = stored["inputs"][1][0]
    assert torch.equal(tokens[:, 5:], tokens[:, :3])
    assert stages.json(roles["sizes"]) == [[0, 0, 1, 8, 1], [1, 0, 1, 8, 1]]


def test_sizes_of_dimensions_that_derive_from_one(exported):
    """Of multiples alone, sizes are the inputs' own; positions go on counting."""
    bucket, (image,) = exported("skips", {"rows": 24}, kwargs={"step": 8})
    assert (bucket.inputs, image.shape[2]) == (((0, 2, 24, "rows"),), 24)
    with pytest.raises(SourceError, match=r"'rows' takes .*steps of 8, .*20 is not"):
        exported("skips", {"rows": 20}, kwargs={"step": 8})
    bucket, (rows, at) = exported("counted", {"length": 20})
    assert bucket.inputs == ((0, 1, 21, "length"), (1, 0, 20, "length"))
    assert (rows.shape[1], at.tolist()) == (21, list(range(20)))


def test_sizes_of_the_zoo_file(exported):
    """Names in the zoo's dynamic_shapes are dimensions, whose sizes are multiples there, too."""
    shapes = {"forward": [{"2": {"min": 8, "max": 32, "name": "height", "multiple_of": 8}}]}
    bucket, (image,) = exported("skips", {"height": 32}, dynamic_shapes=shapes)
    assert (bucket.inputs, image.shape[2]) == (((0, 2, 32, "height"),), 32)


def test_padding_is_tried(stages, export):
    """What eager proves is in the file, with the outputs to cut; what it disproves is a note."""
    roles = export("masked_mean", {"batch": 4, "length": 16})
    bucket = Bucket.model_validate_json(stages.json(roles["bucket"]))
    assert (bucket.padding, bucket.outputs) == ((0, 0), ((0, 0, 1, 0), (1, 0, 1, 0), (1, 1, 1, 1)))
    roles = export("mean", {"length": 16}, kwargs={"padding": True})
    assert Bucket.model_validate_json(stages.json(roles["bucket"])).padding == ()
    assert "padding changes what eager computes" in stages.value(roles["examples"])["notes"][0]


def test_names():
    """A bucket is named after its method and its sizes, in the order in which the zoo has the dimensions."""
    planned = plan_buckets("run", MethodConfig(buckets={"sequence": [32, 128], "batch": [1, 4]}))
    assert [bucket.name for bucket in planned] == ["run_32_1", "run_32_4", "run_128_1", "run_128_4"]
    assert planned[1].sizes == {"sequence": 32, "batch": 4}
    assert plan_buckets("run", MethodConfig()) == []


def test_methods_of_one_name():
    """A bucket cannot have the name of another method of the file."""
    model = PlannedModel("net", (), 0, None, buckets=(Bucket(name="run_8", method="run", sizes={"length": 8}),))
    assert model.methods_in_file(["encode", "run"]) == ["encode", "run_8"]
    with pytest.raises(SourceError, match="methods would be called 'run_8'"):
        model.methods_in_file(["run", "run_8"])


def buckets(**sizes):
    return {"methods": {"forward": {"buckets": sizes}}}


def saved(lowered, path):
    path.write_bytes(lowered.file)
    return load(path)


@pytest.mark.slow
@pytest.mark.parametrize("made_with", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])
def test_three_sizes_of_images(lower, run_here, tmp_path, made_with):
    """Buckets share weights, plan memory for their own size, and are chosen by it; padding is left to the caller."""
    one = lower("builders:heights", made_with, **buckets(height=[16]))
    three = lower("builders:heights", made_with, **buckets(height=[16, 32, 64]))
    assert len(three.file) / len(one.file) <= 1.05
    pte = read_pte(memoryview(three.file))
    planned = {method.name: sum(method.planned_memory) for method in pte.methods}
    assert planned["forward_16"] < planned["forward_32"] < planned["forward_64"] < 5 * planned["forward_16"]
    assert planned["forward_64"] > 2.5 * planned["forward_16"]
    assert {figures["cases"] > 0 for figures in three.figures["methods"].values()} == {True}
    program = saved(three, tmp_path / "net.pte")
    assert program.methods == ("forward_16", "forward_32", "forward_64")
    for size, name in ((8, "forward_16"), (16, "forward_16"), (17, "forward_32"), (64, "forward_64")):
        assert program.choose_bucket("forward", [torch.randn(1, 3, size, 16)]) == name
    images = [torch.randn(1, 3, 32, 16)]
    assert torch.equal(program.run("forward", images)[0], program.run("forward_32", images)[0])
    with pytest.raises(InputError, match=r"largest is forward_64 \(height 64\): .*size 65"):
        program.run("forward", [torch.randn(1, 3, 65, 16)])
    with pytest.raises(InputError, match="pad them, and run 'forward_32'"):
        program.run("forward", [torch.randn(1, 3, 31, 16)])
    with pytest.raises(InputError, match="has no buckets of 'encode'"):
        program.choose_bucket("encode", images)
    said = run_here(tmp_path, "inspect", "net.pte").out
    for name, size in planned.items():
        assert re.search(rf"{name} \(height {name[8:]}\): planned memory {re.escape(format_size(size))}\n", said)
    assert "smaller inputs are padded by the caller" in said
    assert "forward_16" in run_here(tmp_path, "run", "net.pte").err
    np.savez(tmp_path / "x.npz", *images)
    assert run_here(tmp_path, "run", "net.pte", "--input", "x.npz", "--json").json["method"] == "forward_32"


@pytest.mark.slow
def test_padded_in_a_fat_file(lower, tmp_path):
    """A fat file has buckets, too: in each combination of sizes, padded runs return what eager does for the inputs."""
    from pteforge.tasks.usercode.model_source import seed_everything

    sizes = buckets(batch=[1, 4], length=[8, 32])
    accuracy = {"evaluator": "evaluators:lengths", "max_drop": 1e-3}  # which runs `forward`
    lowered = lower("builders:masked_mean", recipe("xnnpack", "portable", accuracy=accuracy), **sizes)
    program = saved(lowered, tmp_path / "net.pte")
    seed_everything(0)
    net = resolve_name("builders:masked_mean")().methods["forward"].module
    for batch, length, name in ((1, 8, "1_8"), (2, 8, "4_8"), (1, 9, "1_32"), (3, 31, "4_32"), (4, 32, "4_32")):
        inputs = [torch.randint(32, (batch, length)), (torch.rand(batch, length) > 0.3).float()]
        assert program.choose_bucket("forward", inputs) == f"forward_{name}"
        for found, expected in zip(program.run("forward", inputs), net(*inputs), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_what_is_said_of_the_method(lower):
    """Recipes name the model's method for all of its buckets, and a bucket for itself."""
    options = {"target": "xnnpack", "methods": {"forward": {"delegate": False}}}
    quantize = {"quantizer": "xnnpack", "methods": ["forward"]}
    lowered = lower(
        "builders:heights", recipe(options, quantize=quantize, verify={"min_sqnr_db": 20}), **buckets(height=[16, 32])
    )
    assert {step for step in lowered.steps if step.startswith(("quantize", "partition"))} == {
        "quantize/forward_16",
        "quantize/forward_32",
    }


@pytest.mark.slow
def test_a_text_model_by_name(lower, tmp_path):
    """Batch and sequence are its dimensions, and the host pads tokens and mask: outputs are eager's at any length."""
    pytest.importorskip("transformers")
    from pteforge.tasks.sources.huggingface import Model
    from pteforge.tasks.usercode.model_source import seed_everything

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    arguments = {"name": "bert", "config": {**sizes, "vocab_size": 100}}
    source = {"builder": "pteforge.tasks.sources.huggingface:Model", "kwargs": arguments}
    lowered = lower(source, XNNPACK, **buckets(sequence=[32, 128]))
    program = saved(lowered, tmp_path / "bert.pte")
    planned = {method.name: sum(method.planned_memory) for method in read_pte(memoryview(lowered.file)).methods}
    assert 4 * planned["forward_32"] < planned["forward_128"]
    seed_everything(0)
    net = Model(**arguments).get_eager_model().eval()
    for batch, length, size in ((1, 1, 32), (4, 32, 32), (2, 33, 128), (1, 128, 128)):
        inputs = [torch.randint(100, (batch, length)), torch.ones(batch, length, dtype=torch.int64)]
        assert program.choose_bucket("forward", inputs) == f"forward_{size}"
        with torch.no_grad():
            expected = net(*inputs)
        for found, wanted in zip(program.run("forward", inputs), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(InputError, match="no bucket of 'forward'"):
        program.run("forward", [torch.ones(1, 129, dtype=torch.int64)] * 2)
