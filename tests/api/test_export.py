"""`pteforge.export`: models of every form go in, files that compute what they compute come out, and nothing changes."""

from __future__ import annotations

import copy
import hashlib
import threading
from pathlib import Path

import pteforge
import pteforge.runtime
import pytest
from pteforge.configs import Output, Recipe, Specialization
from pteforge.errors import InputError, SourceError, StageFailed

FAT = Recipe(
    output=Output(form="fat"), specializations=(Specialization(target="xnnpack"), Specialization(target="portable"))
)


def close(outputs, expected):
    """Whether flat outputs are those expected, within float32's rounding."""
    import torch

    return all(torch.allclose(output, wanted, atol=1e-5) for output, wanted in zip(outputs, expected, strict=True))


def state(module):
    """Everything about a module that lowering might change."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "tensors": {
            name: (id(tensor), tensor.requires_grad, tensor.grad, tensor._version) for name, tensor in tensors.items()
        },
        "modules": {name: (id(each), each.training, sorted(vars(each))) for name, each in module.named_modules()},
        "hooks": {name: len(each._forward_hooks) for name, each in module.named_modules()},
    }


def same(before, after):
    """Whether two states are equal, tensors by value."""
    import torch

    values = all(torch.equal(before["values"][name], value) for name, value in after["values"].items())
    return values and all(before[part] == after[part] for part in ("tensors", "modules", "hooks"))


@pytest.mark.parametrize("kind", ["Net", "Counter"])
def test_the_model_stays_as_it_is(nets, store, kind):
    """Values, identity, gradients wanted, modes and hooks are as before, also where the model writes to buffers."""
    import torch

    module = getattr(nets, kind)()
    for parameter in list(module.parameters())[:1]:
        parameter.requires_grad_(False)
    before = state(module)
    given = (torch.ones(2, 4) if kind == "Net" else torch.ones(3),)
    result = pteforge.export(module, given, recipe="portable-fp32", store=store)
    assert same(before, state(module))
    assert torch.equal(given[0], torch.ones_like(given[0]))
    assert close(result.run_method(), [copy.deepcopy(module).eval()(*given)])


def test_the_process_stays_as_it_is(net, example, tmp_path):
    """Threads, default dtype, random numbers, gradient mode and the current folder are the caller's after a run."""
    import torch

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


def test_the_callers_torch_state_does_not_matter(net, example, exported, store):
    """With other threads, without gradients and in another default dtype the same model is the same program: a hit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            again = pteforge.export(net, example, recipe="xnnpack-fp32", name="net", store=store)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert {stage.slot for stage in again.stages if stage.status == "ran"} == {"net/export"}
    assert again.pte == exported.pte


def test_several_methods(nets, store):
    """Methods of a mapping come with their own inputs and shapes; constants with their values; tables are shared."""
    import torch

    table = torch.nn.Embedding(16, 4)
    encoder, decoder = nets.Encoder(table), nets.Decoder(table)
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
    assert close(result.run_method("encode"), [encoder(tokens)])
    assert close(result.run_method("decode", (torch.ones(7, 4),)), [decoder(torch.ones(7, 4))])
    assert result.run_method("vocabulary") == result.load().run("vocabulary") == [16]
    assert len(result.example_inputs("decode")) == 2
    assert result.figures.methods["decode"].cases == 4  # two examples, and one at each bound
    assert {each.method for each in result.delegation()} == {"encode", "decode"}


def test_a_definition(nets, store):
    """A ModelDefinition, as builders give it, says everything by itself."""
    import torch

    method = pteforge.MethodDefinition(nets.Net(), [(torch.ones(2, 4),)])
    definition = pteforge.ModelDefinition({"predict": method}, constant_methods={"classes": 3})
    result = pteforge.export(definition, recipe="portable-fp32", store=store)
    assert close(result.run_method("predict"), [copy.deepcopy(method.module).eval()(torch.ones(2, 4))])
    assert result.load().run("classes") == [3]
    with pytest.raises(SourceError, match="example_inputs stands in the ModelDefinition"):
        pteforge.export(definition, (torch.ones(2, 4),), recipe="portable-fp32", store=store)


def test_an_exported_program_is_the_module(net, example, exported, store, tmp_path):
    """A program, and the `.pt2` file of it, are lowered as the module that they were made from: all is cached."""
    import torch

    program = torch.export.export(copy.deepcopy(net).eval(), example, strict=False)
    torch.export.save(program, tmp_path / "net.pt2")
    for model in (program, tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        result = pteforge.export(model, recipe="xnnpack-fp32", name="net", store=store)
        assert result.pte == exported.pte
        assert {stage.stage for stage in result.stages if stage.status == "ran"} <= {"export", "report"}


def test_a_fat_file(net, example, store):
    """Each payload's artifacts are there by its name; the file says which payload runs."""
    result = pteforge.export(net, example, recipe=FAT, store=store)
    assert result.load().payload == "xnnpack"
    assert result.load(exclude=["xnnpack"]).payload == "portable"
    sizes = [len(result.artifact("compile", specialization=name)) for name in ("xnnpack", "portable")]
    assert all(0 < size < len(result.pte) for size in sizes)
    with pytest.raises(InputError, match="say which; there are specialization='xnnpack', specialization='portable'"):
        result.artifact("compile")
    (delegation,) = result.delegation("xnnpack")
    assert delegation.partitions > 0
    assert [each.partitions for each in result.delegation("portable")] == [0]


@pytest.mark.parametrize("form", ["plain", "fat"])
def test_external_data(form, net, example, store, tmp_path):
    """Where the recipe keeps weights apart, `save` writes both files, and they run."""
    targets = FAT.specializations if form == "fat" else FAT.specializations[:1]
    recipe = FAT.model_copy(
        update={"output": Output.model_validate({"form": form, "external_data": True}), "specializations": targets}
    )
    result = pteforge.export(net, example, recipe=recipe, store=store)
    path = result.save(tmp_path / "there" / "net.pte")
    content = path.with_suffix(".ptd").read_bytes()
    assert content == result.artifact("serialize", role="data")
    assert result.provenance["data"] == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    assert close(result.run_method(), [copy.deepcopy(net).eval()(*example)])
    loaded = pteforge.runtime.load(path, data_files=[path.with_suffix(".ptd")])
    assert close(loaded.run("forward", example), result.run_method())


def test_a_recipe_file(net, example, store, tmp_path):
    """A YAML file may hold one recipe, which is called as the file is and may extend a shipped one."""
    (tmp_path / "paged.yaml").write_text("extends: xnnpack-fp32\ncompile: {segment_alignment: 4096}\n")
    result = pteforge.export(net, example, recipe=tmp_path / "paged.yaml", store=store)
    assert result.recipe == "paged"
    assert result.provenance["recipe"] == "paged"
    assert len(result.pte) > 4096


def test_what_fails_is_chained(nets, tmp_path):
    """A stage that raises is a StageFailed whose cause is the exception itself, and the run is on record."""
    import torch

    bounds = {"verify": {"min_sqnr_db": 400.0}}
    recipe = Recipe.model_validate({"specializations": [{"target": "xnnpack"}], **bounds})
    with pytest.raises(StageFailed, match="does not compute what eager computes") as caught:
        pteforge.export(nets.Net(), (torch.randn(2, 4),), recipe=recipe, name="net", store=tmp_path)
    assert isinstance(caught.value.__cause__, pteforge.PteforgeError)
    again = pteforge.export(nets.Net(), (torch.randn(2, 4),), recipe="xnnpack-fp32", name="net", store=tmp_path)
    assert again.figures.overall.cases == 3


def test_source_transforms(net, example, exported, store):
    """A recipe's transforms are done to a copy of the module, each time, and everything after them is cached."""
    before = state(net)
    transforms = [{"torchao": "int8_weight_only", "filter": ["first"]}]
    written = {
        "specializations": [{"target": "xnnpack"}],
        "source_transforms": transforms,
        "verify": {"min_sqnr_db": 20},
    }
    recipe = Recipe.model_validate(written)
    first, again = [pteforge.export(net, example, recipe=recipe, name="small", store=store) for _ in range(2)]
    assert same(before, state(net))
    assert first.pte == again.pte != exported.pte
    assert "first.weight" not in first.artifact("source_transform").state_dict
    assert {stage.stage for stage in again.stages if stage.status == "ran"} == {"export", "source_transform"}


def test_methods_to_quantize(nets, store):
    """Of several methods those are quantized that the recipe names; one that has nothing to quantize need not be."""
    written = {
        "specializations": [{"target": "xnnpack"}],
        "quantize": {"options": {"dynamic": True}, "methods": ["decode"]},
        "verify": {"min_sqnr_db": 20},
    }
    result = pteforge.export(nets.conversation(), recipe=Recipe.model_validate(written), store=store)
    assert [stage.step for stage in result.stages if stage.stage == "quantize"] == ["quantize/decode/recipe"]
    assert "quantize" in str(result.artifact("edge", method="decode").graph)
    assert result.figures.methods["encode"].max_abs_error == 0
    written["quantize"] = {"methods": ["decod"]}
    with pytest.raises(SourceError, match=r"`quantize.methods` of recipe 'recipe' names the methods \['decod'\]"):
        pteforge.export(nets.conversation(), recipe=Recipe.model_validate(written), store=store)
    del written["quantize"]["methods"]
    with pytest.raises(StageFailed, match=r"name those in the recipe's `quantize.methods`"):
        pteforge.export(nets.conversation(), recipe=Recipe.model_validate(written), store=store)


def test_threads_wait_for_each_other(net, example, store):
    """Two threads that lower at once do so one after the other, since torch cannot: both get their file."""
    results = []
    run = [
        threading.Thread(
            target=lambda: results.append(pteforge.export(net, example, recipe="portable-fp32", store=store))
        )
        for _ in range(2)
    ]
    for thread in run:
        thread.start()
    for thread in run:
        thread.join()
    assert results[0].pte == results[1].pte


def test_the_default_store_is_the_command_lines(net, example, tmp_path, monkeypatch):
    """Without `store`, PTEFORGE_STORE says where, as it does for the command line."""
    monkeypatch.setenv("PTEFORGE_STORE", str(tmp_path / "store"))
    pteforge.export(net, example, recipe="portable-fp32")
    assert list((tmp_path / "store").glob("ledger/stages/*/*"))
