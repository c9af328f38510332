"""What methods have in common is in a payload once: by a backend that looks at all of them, and by shipped targets."""

from __future__ import annotations

import pytest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.tasks.catalog import StageName
from pteforge.tasks.params import (
    CompileOptions,
    CompileParams,
    EdgeParams,
    PartitionParams,
    PreprocessParams,
    TargetParams,
)


@pytest.fixture
def payload(stages, install_target):
    """The payload of `method_models:scales` by one of the backends of the target `sharing`, found as installed."""
    install_target({"sharing": "sharing_target:Sharing"})

    def made(backend):
        from pteforge.artifacts.pte.pieces import read_payload

        target = TargetParams(name="sharing", options={"backend": backend})
        programs = {}
        for method in ("forward", "encode"):
            exported = stages.export("method_models:scales", method=method)
            edge = stages.run(StageName.EDGE, EdgeParams(), {"program": exported["program"]})
            partition = PartitionParams(target=target, edge=EdgeParams())
            programs[f"program/{method}"] = stages.run(StageName.PARTITION, partition, edge)["program"]
        delegates = stages.run(StageName.PREPROCESS, PreprocessParams(targets=(target,)), programs)
        inputs = {**programs, **delegates, "constants": exported["constants"]}
        compiled = stages.run(StageName.COMPILE, CompileParams(options=CompileOptions(), edge=EdgeParams()), inputs)
        return read_payload(compiled["payload"], stages.store)

    return made


@pytest.fixture
def weights(stages):
    """Bytes of the weights of `method_models:scales`: the shared one, and those of one method each."""
    states = [
        stages.program(stages.export("method_models:scales", method=method)["program"]).state_dict.values()
        for method in ("forward", "encode")
    ]
    forward, encode = ([tensor.detach().numpy().tobytes() for tensor in state] for state in states)
    (shared,) = set(forward) & set(encode)
    return shared, sorted((set(forward) | set(encode)) - {shared})


def test_preprocess_multimethod_factors_out_what_methods_share(payload, weights):
    """The weight that both methods use is in the file once, as named data that two delegates name."""
    shared, own = weights
    content = payload("FactoringBackend")
    pte = read_pte(content)

    assert content.count(shared) == 1
    assert [content.count(weight) for weight in own] == [1, 1]
    (named,) = pte.named_data
    assert content.count(named.key.encode()) == 3  # in the file's table, and in each of the two delegates that need it
    assert {method.name: len(method.delegates) for method in pte.methods} == {"forward": 2, "encode": 2}


def test_a_backend_without_it_gets_its_partitions_one_by_one(payload, weights):
    """By the default of `preprocess_multimethod` every delegate has its own copy, and nothing is named data."""
    shared, own = weights
    content = payload("AloneBackend")

    assert content.count(shared) == 2
    assert [content.count(weight) for weight in own] == [1, 1]
    assert not read_pte(content).named_data


@pytest.mark.slow
@pytest.mark.parametrize("targets", [("portable",), ("xnnpack",), ("xnnpack", "portable")], ids="+".join)
def test_two_methods_are_as_large_as_one(targets, stages):
    """All weights shared, both methods together take at most 1.05 of the larger one, and far less than both apart.

    So it is in a fat file, too, where payloads share them besides.
    """
    form = "fat" if len(targets) > 1 else "plain"
    recipe = {"output": {"form": form}, "specializations": [{"target": target} for target in targets]}

    def size(*methods):
        source = {"builder": "method_models:readers_and_writers", "kwargs": {"methods": list(methods)}}
        return len(stages.lower(source, recipe).file)

    apart = [size("encode"), size("decode")]
    together = size("encode", "decode")
    assert together <= 1.05 * max(apart)
    assert together <= 0.6 * sum(apart)


@pytest.mark.slow
def test_a_weight_of_a_backend_and_of_the_portable_kernels(stages):
    """ExecuTorch keeps constants and backends' named data apart: it is in a payload twice, and in a fat file once."""
    recipe = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}
    made = stages.lower("method_models:tied", recipe)
    (weight,) = stages.program(made.outputs["export"]["program"]).state_dict.values()
    found = {name: content.count(weight.detach().numpy().tobytes()) for name, content in made.payloads.items()}
    assert found == {"xnnpack": 2, "portable": 1}
    assert made.file.count(weight.detach().numpy().tobytes()) == 1
