"""Compares methods' signatures with each other and with inputs, as far as files describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..formats.pte.contents import Method, ScalarSpec, TensorSpec, ValueSpec, shape_problem


def call_mismatch(method: Method, other: Method) -> str | None:
    """The first argument in which `other` cannot replace `method` in a call; None if it can.

    Compares counts, kinds, dtypes, ranks and dimension orders, as the C++ delegate does once; calls check sizes.
    """
    return next(_differences(method, other, sizes=False), None)


def signature_mismatch(method: Method, other: Method) -> str | None:
    """The first argument in which the signatures of two methods differ; None if they are equal.

    In addition to `call_mismatch`, compares sizes or their bounds, which sizes may change, and the outputs of constant
    methods (numbers and texts, not tensors' contents).
    """
    return next(_differences(method, other, sizes=True), None)


def inputs_problem(method: Method, inputs: Sequence[object]) -> str | None:
    """The first input that does not match a method's signature; None if all do."""
    if len(inputs) != len(method.inputs):
        takes = ", ".join(map(_describe, method.inputs)) or "nothing"
        return f"it takes {_count(len(method.inputs), 'input')} ({takes}), and was given {len(inputs)}"
    for position, (spec, value) in enumerate(zip(method.inputs, inputs, strict=True)):
        shape, dtype = getattr(value, "shape", None), str(getattr(value, "dtype", "")).removeprefix("torch.")
        if not isinstance(spec, TensorSpec) or shape is None:
            continue
        if dtype != spec.dtype:
            return f"input {position} is of {dtype}, the method takes {_describe(spec)}"
        if problem := shape_problem(spec, shape):
            return f"input {position} {problem}"
    return None


def _differences(method: Method, other: Method, *, sizes: bool) -> Iterator[str]:
    yield from _compare("input", method.inputs, other.inputs, sizes=sizes)
    yield from _compare("output", method.outputs, other.outputs, sizes=sizes)
    if sizes and method.constant and other.constant:
        for position, (first, second) in enumerate(zip(method.outputs, other.outputs, strict=True)):
            one, another = _constant(first), _constant(second)
            if one != another:
                yield f"output {position} is {another} instead of {one}"


def _compare(what: str, specs: Sequence[ValueSpec], others: Sequence[ValueSpec], *, sizes: bool) -> Iterator[str]:
    if len(specs) != len(others):
        yield f"it has {_count(len(others), what)} instead of {len(specs)}"
        return
    for position, (spec, other) in enumerate(zip(specs, others, strict=True)):
        if _key(spec, sizes=sizes) != _key(other, sizes=sizes):
            yield f"{what} {position} is {_describe(other)} instead of {_describe(spec)}"


def _key(spec: ValueSpec, *, sizes: bool) -> tuple[object, ...]:
    """The part to compare, without values of scalars, which are those of tracing."""
    if isinstance(spec, ScalarSpec):
        return (spec.kind,)
    if not sizes:
        return spec.dtype, spec.dim_order
    return spec.dtype, spec.dim_order, spec.dynamism, () if spec.dynamism == "unbound" else spec.shape


def _constant(spec: ValueSpec) -> str | None:
    """The constant as text, so that not-a-number equals itself; None for tensors and for lists of indices."""
    if isinstance(spec, TensorSpec) or spec.kind in {"int_list", "tensor_list", "optional_tensor_list"}:
        return None
    return repr(spec.value)


def _describe(spec: ValueSpec) -> str:
    """An argument as text: ``float32 [2, 64]``, ``float32 up to [8, 64] in dimension order [1, 0]``, ``int``."""
    if isinstance(spec, ScalarSpec):
        return spec.kind
    sizes = {
        "static": f"{list(spec.shape)}",
        "bound": f"up to {list(spec.shape)}",
        "unbound": f"of {len(spec.shape)} dimensions of any size",
    }[spec.dynamism]
    is_ordered = spec.dim_order == tuple(range(len(spec.shape)))
    return f"{spec.dtype} {sizes}" + ("" if is_ordered else f" in dimension order {list(spec.dim_order)}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
