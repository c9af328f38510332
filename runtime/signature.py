"""Whether two programs take and return the same, as far as their files say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..artifacts.pte.contents import Method, ScalarSpec, TensorSpec, ValueSpec


def call_mismatch(method: Method, other: Method) -> str | None:
    """Why `other` cannot be called in place of `method`: the first argument that differs; None if none does.

    Compared are numbers of arguments, kinds, dtypes, ranks and orders of dimensions: what the C++ delegate compares in
    the first call. Sizes belong to each call.
    """
    return next(_differences(method, other, sizes=False), None)


def signature_mismatch(method: Method, other: Method) -> str | None:
    """Where the signatures of two methods differ: the first argument that does; None if none does.

    Compared are, besides what `call_mismatch` compares, sizes or their bounds, which sizes may change, and what
    constant methods return (numbers and texts; tensors' contents are not looked at).
    """
    return next(_differences(method, other, sizes=True), None)


def inputs_problem(method: Method, inputs: Sequence[object]) -> str | None:
    """Why values are not what a method takes, as far as its file says: the first that is not; None if all are."""
    if len(inputs) != len(method.inputs):
        takes = ", ".join(map(_full, method.inputs)) or "nothing"
        return f"it takes {_count(len(method.inputs), 'input')} ({takes}), and was given {len(inputs)}"
    for position, (spec, value) in enumerate(zip(method.inputs, inputs, strict=True)):
        shape, dtype = getattr(value, "shape", None), str(getattr(value, "dtype", "")).removeprefix("torch.")
        if not isinstance(spec, TensorSpec) or shape is None:
            continue
        if dtype != spec.dtype:
            return f"input {position} is of {dtype}, the method takes {_full(spec)}"
        if problem := shape_problem(spec, shape):
            return f"input {position} {problem}"
    return None


def shape_problem(spec: TensorSpec, shape: Sequence[int], does: str = "takes") -> str | None:
    """Why a tensor of `shape` is not what a method takes or gives, as `spec` says; None if it is.

    The runtime resizes within the bounds of what may vary.
    """
    if len(shape) != len(spec.shape):
        return f"has {len(shape)} dimensions, the method {does} {len(spec.shape)}"
    if spec.dynamism == "static" and tuple(shape) != spec.shape:
        return f"has the shape {list(shape)}, the method {does} {list(spec.shape)}"
    if spec.dynamism == "bound" and any(size > most for size, most in zip(shape, spec.shape, strict=True)):
        return f"has the shape {list(shape)}, the method {does} at most {list(spec.shape)}"
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
            yield f"{what} {position} is {_full(other)} instead of {_full(spec)}"


def _key(spec: ValueSpec, *, sizes: bool) -> tuple[object, ...]:
    """What has to be equal. The value of a scalar is the one it was traced with."""
    if isinstance(spec, ScalarSpec):
        return (spec.kind,)
    if not sizes:
        return spec.dtype, spec.dim_order
    return spec.dtype, spec.dim_order, spec.dynamism, () if spec.dynamism == "unbound" else spec.shape


def _constant(spec: ValueSpec) -> str | None:
    """By text, so that not-a-number equals itself; None for what holds indices and not content."""
    if isinstance(spec, TensorSpec) or spec.kind in {"int_list", "tensor_list", "optional_tensor_list"}:
        return None
    return repr(spec.value)


def _full(spec: ValueSpec) -> str:
    if isinstance(spec, ScalarSpec) or spec.dim_order == tuple(range(len(spec.shape))):
        return _show(spec)
    return f"{_show(spec)} in dimension order {list(spec.dim_order)}"


def _show(spec: ValueSpec) -> str:
    """An argument for people: ``float32 [2, 64]``, ``float32 up to [8, 64]``, ``int``."""
    if isinstance(spec, ScalarSpec):
        return spec.kind
    match spec.dynamism:
        case "static":
            return f"{spec.dtype} {list(spec.shape)}"
        case "bound":
            return f"{spec.dtype} up to {list(spec.shape)}"
        case "unbound":
            return f"{spec.dtype} of {len(spec.shape)} dimensions of any size"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
