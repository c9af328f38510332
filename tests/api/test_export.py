"""`pteforge.export` lowers models of every form to files that compute the same, and changes nothing else."""

from __future__ import annotations

import copy
import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pteforge
import pteforge.runtime
import pytest
import torch
from pteforge.configs.verification import Verification
from pteforge.errors import InputError, SourceError, StageFailed, VerificationFailed
from pteforge.tests.lowering import checked_recipe

FAT = checked_recipe("xnnpack", "portable")


close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)


def state(module):
    """All of a module that lowering might change."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        "values": {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()},
        "tensors": {
            name: (id(tensor), tensor.requires_grad, tensor.grad, tensor._version) for name, tensor in tensors.items()
        },
        "modules": {name: (id(part), part.training, sorted(vars(part))) for name, part in module.named_modules()},
        "hooks": {name: len(part._forward_hooks) for name, part in module.named_modules()},
    }


@pytest.mark.parametrize("kind", ["Normed", "Counter"])
def test_the_model_stays_as_it_is(nets, store, kind):
    """Values, identity, requires_grad, modes and hooks stay, even if the model writes to buffers."""
    module = getattr(nets, kind)()
    for parameter in list(module.parameters())[:1]:
        parameter.requires_grad_(False)
    before = state(module)
    given = (torch.ones(2, 4),)
    result = pteforge.export(module, given, recipe="portable-fp32", store=store)
    assert state(module) == before
    assert torch.equal(given[0], torch.ones_like(given[0]))
    close(result.run_method(), [copy.deepcopy(module).eval()(*given)])


def test_the_process_stays_as_it_is(net, example, tmp_path):
    """Threads, default dtype, random state, gradient mode and current folder stay the caller's."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    threads, folder = torch.get_num_threads(), Path.cwd()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            pteforge.export(net, example, recipe="portable-fp32", store=tmp_path / "store")
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_default_dtype() == torch.float32
    assert Path.cwd() == folder


def test_the_callers_torch_state_does_not_matter(net, example, exported, store, ran):
    """Threads, gradient mode and default dtype of the caller do not change the program: a cache hit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            again = pteforge.export(net, example, recipe="xnnpack-fp32", name="net", store=store)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert ran(again) == {"export"}
    assert again.pte == exported.pte


def test_models_of_inference_mode(net, example, exported, store):
    """Parameters that were made there cannot be traced; copies of them are, and the caller's model stays as it was."""
    with torch.inference_mode():
        made = copy.deepcopy(net)
    again = pteforge.export(made, example, recipe="xnnpack-fp32", name="net", store=store)
    assert again.pte == exported.pte
    assert all(weight.is_inference() for weight in made.parameters())


def test_several_methods(nets, store):
    """Methods of a mapping have inputs and shapes of their own; constants keep their values."""
    encoder = torch.nn.Embedding(16, 4)
    decoder = nets.Head(encoder)
    tokens, hidden = torch.tensor([1, 2, 3]), torch.randn(2, 4)
    result = pteforge.export(
        {"encode": encoder, "decode": decoder},
        {"encode": (tokens,), "decode": [(hidden,), (hidden + 1,)]},
        recipe="xnnpack-fp32",
        dynamic_shapes={"decode": ({0: torch.export.Dim("n", min=1, max=8)},)},
        constant_methods={"vocabulary": 16, "scale": 0.5},
        store=store,
    )
    assert result.methods == ("encode", "decode")
    close(result.run_method("encode"), [encoder(tokens)])
    close(result.run_method("decode", (torch.ones(7, 4),)), [decoder(torch.ones(7, 4))])
    assert result.run_method("vocabulary") == result.load().run("vocabulary") == [16]
    assert len(result.example_inputs("decode")) == 2
    assert result.figures.methods["decode"].cases == 5  # two examples, one at each bound, and one between
    assert {report.method for report in result.delegation()} == {"encode", "decode"}


def test_a_definition(nets, store):
    """A ModelDefinition, as builders return it, needs no further arguments, and takes none."""
    method = pteforge.MethodDefinition(nets.Normed(), [(torch.ones(2, 4),)])
    definition = pteforge.ModelDefinition({"predict": method}, constant_methods={"classes": 3})
    result = pteforge.export(definition, recipe="portable-fp32", store=store)
    close(result.run_method("predict"), [copy.deepcopy(method.module).eval()(torch.ones(2, 4))])
    assert result.load().run("classes") == [3]
    with pytest.raises(SourceError, match=r"example_inputs .*ModelDefinition"):
        pteforge.export(definition, (torch.ones(2, 4),), recipe="portable-fp32", store=store)


def test_an_exported_program_is_the_module(net, example, exported, store, tmp_path, ran):
    """A program and its `.pt2` file are lowered like the module that they were made from: all is cached."""
    program = torch.export.export(copy.deepcopy(net).eval(), example, strict=False)
    torch.export.save(program, tmp_path / "net.pt2")
    for model in (program, tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        result = pteforge.export(model, recipe="xnnpack-fp32", name="net", store=store)
        assert result.pte == exported.pte
        assert ran(result) <= {"export", "report"}


def test_a_fat_file(net, example, store):
    """Artifacts are available by the payload's name; the loaded file says which payload runs."""
    result = pteforge.export(net, example, recipe=FAT, store=store)
    assert result.load().payload == "xnnpack"
    assert result.load(exclude=["xnnpack"]).payload == "portable"
    sizes = [len(result.artifact("compile", specialization=name)) for name in ("xnnpack", "portable")]
    assert all(0 < size < len(result.pte) for size in sizes)
    with pytest.raises(InputError, match="there are specialization='xnnpack', specialization='portable'"):
        result.artifact("compile")
    (delegation,) = result.delegation("xnnpack")
    assert delegation.partitions > 0
    assert [report.partitions for report in result.delegation("portable")] == [0]


def test_places(net, example, store, tmp_path):
    """A command is one, and required; libraries, which may crash, are for other processes, and names for zoos."""
    host = tmp_path / "host"
    host.write_text("#!/bin/sh\ntest $1 = --about && echo backend: XnnpackBackend && exit\necho no phone >&2\nexit 1\n")
    host.chmod(0o700)
    with pytest.raises(StageFailed, match="no phone"):
        pteforge.export(net, example, recipe=FAT, store=store, places=[f"command:{host}"])
    host.write_text("#!/bin/sh\necho no phone >&2\nexit 1\n")
    with pytest.raises(VerificationFailed, match=r"'host' .*cannot be reached: .*: no phone"):
        pteforge.export(net, example, recipe=FAT, store=store, places=[f"command:{host}"])
    with pytest.raises(InputError, match="libraries are loaded by"):
        pteforge.export(net, example, recipe=FAT, store=store, places=["library:gpu.so"])
    with pytest.raises(InputError, match=r"recipe.verify.on: 'gpu' is a place"):
        pteforge.export(net, example, recipe=FAT.model_copy(update={"verify": Verification(on=("gpu",))}), store=store)


@pytest.mark.parametrize("form", ["plain", "fat"])
def test_external_data(form, net, example, store, tmp_path):
    """With external data `save` writes both files, and they run."""
    targets = ("xnnpack", "portable") if form == "fat" else ("xnnpack",)
    recipe = checked_recipe(*targets, output={"form": form, "external_data": True})
    result = pteforge.export(net, example, recipe=recipe, store=store)
    path = result.save(tmp_path / "there" / "net.pte")
    content = path.with_suffix(".ptd").read_bytes()
    assert content == result.artifact("serialize", role="data")
    assert result.provenance["data"] == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    close(result.run_method(), [copy.deepcopy(net).eval()(*example)])
    loaded = pteforge.runtime.load(path, data_files=[path.with_suffix(".ptd")])
    close(loaded.run("forward", example), result.run_method())


def test_a_recipe_file(net, example, store, tmp_path):
    """A YAML file may hold one recipe, which has the file's name and may extend a shipped one."""
    (tmp_path / "paged.yaml").write_text("extends: xnnpack-fp32\ncompile: {segment_alignment: 4096}\n")
    result = pteforge.export(net, example, recipe=tmp_path / "paged.yaml", store=store)
    assert result.recipe == "paged"
    assert result.provenance["recipe"] == "paged"
    assert len(result.pte) > 4096


def test_failures_are_chained(nets, tmp_path):
    """A stage that raises is a StageFailed whose cause is the exception itself; the store stays usable."""
    recipe = checked_recipe("xnnpack", verify={"max_abs_error": 0.0})
    with pytest.raises(StageFailed, match="not compute what eager computes") as caught:
        pteforge.export(nets.Normed(), (torch.randn(2, 4),), recipe=recipe, name="net", store=tmp_path)
    assert isinstance(caught.value.__cause__, pteforge.PteforgeError)
    again = pteforge.export(nets.Normed(), (torch.randn(2, 4),), recipe="xnnpack-fp32", name="net", store=tmp_path)
    assert again.figures.overall.cases == 3


def test_source_transforms(net, example, exported, store, ran):
    """Source transforms change a copy of the module, and run each time; all later stages are cached."""
    before = state(net)
    transforms = [{"torchao": "int8_weight_only", "filter": ["first"]}]
    recipe = checked_recipe("xnnpack", source_transforms=transforms, verify={"min_sqnr_db": 20})
    first, again = [pteforge.export(net, example, recipe=recipe, name="small", store=store) for _ in range(2)]
    assert state(net) == before
    assert first.pte == again.pte != exported.pte
    assert "first.weight" not in first.artifact("source_transform").state_dict
    assert ran(again) == {"export", "source_transform"}


def test_methods_to_quantize(builders, store):
    """`quantize.methods` names the methods to quantize; one that only looks tokens up stays in float anyway."""

    def quantized(**quantize):
        recipe = checked_recipe("xnnpack", quantize=quantize, verify={"min_sqnr_db": 20})
        return pteforge.export(builders.tied(), recipe=recipe, store=store)

    result = quantized(options={"dynamic": True}, methods=["decode"])
    assert [stage.step for stage in result.stages if stage.stage == "quantize"] == ["quantize/decode/xnnpack-own"]
    assert "quantize" in str(result.artifact("edge", method="decode").graph)
    assert result.figures.methods["encode"].max_abs_error == 0
    with pytest.raises(SourceError, match=r"`quantize.methods` of .*'xnnpack-own' .*\['decod'\]"):
        quantized(methods=["decod"])
    result = quantized(options={"dynamic": True})
    assert "quantize" in str(result.artifact("edge", method="decode").graph)
    assert result.figures.methods["encode"].max_abs_error == 0


def test_threads_wait_for_each_other(net, example, store):
    """Two threads that lower at once both get their file: torch can only lower one at a time."""
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(pteforge.export, net, example, recipe="portable-fp32", store=store) for _ in range(2)]
    assert runs[0].result().pte == runs[1].result().pte


def test_the_default_store(net, example, tmp_path, monkeypatch):
    """Without `store`, PTEFORGE_STORE names the store, as on the command line."""
    monkeypatch.setenv("PTEFORGE_STORE", str(tmp_path / "store"))
    pteforge.export(net, example, recipe="portable-fp32")
    assert list((tmp_path / "store").glob("ledger/stages/*/*"))
