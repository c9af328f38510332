"""Eager runs of a model, which its exported programs and files are compared with."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from ...configs.model import ModelDefinition
from ...configs.verification import VerifyBounds
from ...errors import SourceError, first_line
from ..programs.weights import weights_on_use
from ..results.figures import disagreements, violations
from ..upstream.compat import OpOverload, pytree
from ..usercode.inputs import (
    DRAWS,
    StoredCase,
    check_fits,
    draw_count,
    draw_inputs,
    input_shapes,
    prepend_mutated_inputs,
    same_shapes,
)
from ..usercode.model_source import BuiltModel
from ..usercode.modules import copy_module, copy_modules, for_inference
from ..verify.compare import compare_all
from .state import StateChange, changes, is_of_trace, is_same, left_by_traces, mutable_parts

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


def eager_examples(model: BuiltModel, name: str, program: ExportedProgram, drawn_inputs: int) -> dict[str, Any]:
    """Flat inputs and outputs; each run starts from the state that the model was built with.

    Returns:
        ``inputs`` and ``outputs``, the examples first; ``drawn``, the number of random inputs; ``dynamic``, whether
        sizes may vary; and where there are any: ``rounding`` of a program that computes in a 16-bit dtype, with
        ``exact``, the outputs in float32; ``random``, operators that draw numbers; ``sequences`` of the model, with its
        first method, and `dependent_calls` of a method that they do not call.

    Raises:
        SourceError: an input does not fit the program, eager fails on it, or the program lacks state that eager keeps.
    """
    method = model.definition.methods[name]
    calls: list[Call] = [(example, dict(model.keyword_inputs or {})) for example in method.example_inputs]
    named = [(call, f"example {number} of method {name!r}") for number, call in enumerate(calls)]
    for call, what in named:
        check_fits(program, pytree.tree_leaves(call), what)
    called = copy_module(method.module)
    cases = [
        (pytree.tree_leaves(call), run_eager(method.module, call, what, on=called if call is calls[0] else None))
        for call, what in named
    ]
    dynamic = any(expression.free_symbols for shape in input_shapes(program) for expression in shape or ())
    spec = pytree.tree_structure(calls[0])

    def run(flat: Sequence[Any]) -> list[Any]:
        what = (
            f"inputs drawn for method {name!r} within its dynamic shapes, with values of its examples "
            "(narrow the shapes, or set verify.drawn_inputs to 0)"
        )
        return run_eager(method.module, pytree.tree_unflatten(list(flat), spec), what)

    cases += _drawn_cases(run, program, cases, draw_count(drawn_inputs, dynamic=dynamic))
    stored: dict[str, Any] = {
        "inputs": [inputs for inputs, _ in cases],
        "outputs": [outputs for _, outputs in cases],
        "drawn": len(cases) - len(calls),
        "dynamic": dynamic,
    }
    if rounding := _rounding_of(program):
        stored["rounding"] = rounding
        if exact := outputs_in_float32(method.module, [pytree.tree_unflatten(inputs, spec) for inputs, _ in cases]):
            stored["exact"] = exact
    sequences = []
    if name == next(iter(model.definition.methods)):
        sequences = run_sequences_in_eager(model.definition)
        if not sequences:
            check_state_between(model.definition)
    if drawing := sorted({str(node.target) for node in _calls(program) if _draws(node)}):
        stored["random"] = drawing
    else:
        examples, drawn = cases[: len(calls)], cases[len(calls) :]
        row = dependent_calls(name, (method.module, called), program, examples, drawn, spec)
        is_called = any(call.method == name for sequence in model.definition.sequences for call in sequence)
        sequences += [row] if row and not is_called else []
    if sequences:
        stored["sequences"] = sequences
    return stored


Flat = tuple[list[Any], list[Any]]
"""Flat inputs, and eager's flat outputs."""
_IN_A_ROW = 5  # calls at most


def dependent_calls(
    name: str,
    modules: tuple[torch.nn.Module, torch.nn.Module],
    program: ExportedProgram,
    examples: Sequence[Flat],
    drawn: Sequence[Flat],
    spec: pytree.TreeSpec,
) -> list[tuple[str, list[Any], list[Any]]]:
    """Calls in a row, if the second of two equal calls returns something else than the first; nothing otherwise.

    Takes the module as it was built, and a copy that was called with the first example; and inputs with the outputs of
    a first call, the examples and those that were drawn. Returns method, flat inputs and eager's outputs of each call.

    Raises SourceError if the program does not return what eager returns: it keeps buffers, and no other state.
    """
    first, called = examples[0], modules[1]

    def run(module: torch.nn.Module, flat: list[Any]) -> list[Any]:
        return call_module(module, pytree.tree_unflatten(flat, spec))

    row = [first]
    try:
        row.append((first[0], run(called, first[0])))
        changed, depends = changes(*modules), not _returns_same(*row)
        if not depends and all(change.is_buffer for change in changed):
            return []
        others = [case for case in [*examples[1:], *([] if depends else drawn)] if same_shapes(case[0], first[0])]
        alone = [first, first, *others[: _IN_A_ROW - 3], first]
        for flat, _ in alone[2:]:
            row.append((flat, run(called, flat)))
    except Exception as error:
        raised = f"call {len(row) + 1} raises {type(error).__name__}: {first_line(error)}"
        raise SourceError(f"{_kept_elsewhere(name, changes(*modules))}: {raised}") from error
    if all(map(_returns_same, row, alone)):
        return []
    ours, rounding = with_own_buffers(program), _rounding_of(program)

    def is_wrong(case: Flat) -> bool:
        try:
            return not agrees_with_eager(run(ours, case[0]), *case, rounding)
        except Exception:  # noqa: BLE001 - outputs of other shapes, or an assertion of the program
            return True

    wrong = [number for number, case in enumerate(row, 1) if is_wrong(case)]
    if wrong and (wrong[0] > 1 or not changed):
        raise SourceError(f"{_kept_elsewhere(name, changed)}: call {wrong[0]} is the first that is not eager's")
    return [(name, *case) for case in row] if depends and not wrong else []


def check_state_between(definition: ModelDefinition) -> None:
    """Raises SourceError if a method depends on what other methods leave elsewhere than in buffers."""
    parts = {name: mutable_parts(method.module) for name, method in definition.methods.items()}
    shared = Counter(part for of_method in parts.values() for part in of_method)
    modules = {  # without those that share nothing, whose code this would read
        name: definition.methods[name].module
        for name, of_method in parts.items()
        if any(shared[part] > 1 for part in of_method)
    }
    examples: dict[str, Call] = {name: (definition.methods[name].example_inputs[0], {}) for name in modules}

    def call(called: Mapping[str, torch.nn.Module], name: str) -> list[Any]:
        return run_eager(modules[name], examples[name], f"example 0 of method {name!r}", on=called[name])

    tried = copy_modules(modules)
    for name in modules:
        call(tried, name)
    for name, module in modules.items():
        if all(change.is_buffer for change in changes(module, tried[name])):
            continue
        called = copy_modules(modules)
        for other in modules.keys() - {name}:
            call(called, other)
        left = [change for change in changes(module, called[name]) if not change.is_buffer]
        for path, value in module.named_buffers():  # methods may share these
            owner, _, buffer = path.rpartition(".")
            called[name].get_submodule(owner)._buffers[buffer] = value.clone()  # noqa: SLF001 - as it was
        fresh: list[Flat] = [([], call(copy_modules(modules), name)) for _ in range(2)]
        after: Flat = ([], call(called, name))
        if left and _returns_same(*fresh) and not _returns_same(fresh[0], after):
            kept = ", ".join(change.name for change in left[:_NAMED])
            raise SourceError(
                f"method {name!r} reads what other methods leave in attributes of Python ({kept}), and programs share "
                "buffers only: register a buffer, and write to it with `copy_`"
            )


def _returns_same(one: Flat, other: Flat) -> bool:
    return len(one[1]) == len(other[1]) and all(map(is_same, one[1], other[1]))


def _kept_elsewhere(name: str, changed: Sequence[StateChange]) -> str:
    """Names the state that a method keeps and its program does not, found by what calls change."""
    names = dict.fromkeys(change.name for change in changed if not change.is_buffer)
    kept = ", ".join([*names][:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    where = f"in attributes of Python ({kept})" if names else "in what is no attribute of it, such as a global variable"
    if changed and not names:
        where = f"in buffers, in a way that torch.export does not see ({', '.join(change.name for change in changed)})"
    return f"method {name!r} keeps state {where}, and its program has only what operators write to buffers"


_NAMED = 6


def _drawn_cases(
    run: Callable[[Sequence[Any]], list[Any]], program: ExportedProgram, examples: Sequence[Flat], count: int
) -> Iterator[Flat]:
    """Random inputs with outputs of `run`, with values as different from the examples' as the model allows.

    Leaves out inputs of the examples' sizes that the model does not take; raises SourceError for those of other sizes,
    which its dynamic shapes allow.
    """
    inputs = [flat for flat, _ in examples]
    finite = all(_is_finite(outputs) for _, outputs in examples)
    for number in range(count):
        failure = None
        for values in DRAWS:
            flat = draw_inputs(program, inputs, number, values)
            try:
                outputs = run(flat)
            except SourceError as error:
                failure = error
                continue
            if values != "varied" or _is_finite(outputs) or not finite:
                yield flat, outputs
                break
        else:
            if failure and not same_shapes(flat, inputs[0]):
                raise failure


def _is_finite(outputs: Sequence[Any]) -> bool:
    return all(bool(value.isfinite().all()) for value in outputs if isinstance(value, torch.Tensor))


_ROUNDED = {"torch.bfloat16": "bfloat16", "torch.float16": "float16"}
_ORDER = ("bfloat16", "int8", "float16")  # the coarsest first
_QUANTIZE = "quantized_decomposed.quantize_per_token.default"  # by scales that are computed on the way
_CONVERSIONS = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype, torch.ops.aten.to.dtype_layout)  # noqa: SLF001


def _rounding_of(program: ExportedProgram) -> str:
    """The coarsest of ``bfloat16``, ``int8`` and ``float16`` that an ATen program computes in; empty for none.

    The program may round a value to another int8 than eager, whose value differs in the last digits.
    """
    computed = {
        "int8" if str(node.target) == _QUANTIZE else _ROUNDED.get(str(node.meta["val"].dtype), "")
        for node in _calls(program)
        if node.target not in _CONVERSIONS and isinstance(node.meta.get("val"), torch.Tensor)
    }
    return next((name for name in _ORDER if name in computed), "")


def _calls(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Calls of functions in a program, those in branches and loops included."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node for node in module.graph.nodes if node.op == "call_function")


def _draws(node: torch.fx.Node) -> bool:
    """Whether an operator draws random numbers: dropout, for one, does so in training only."""
    if not isinstance(node.target, OpOverload):
        return False
    arguments = node.target._schema.arguments  # noqa: SLF001 - overloads have no public schema
    values = {argument.name: argument.default_value for argument in arguments}
    values |= {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | node.kwargs
    if "train" in values or "dropout_p" in values:
        return values.get("train") is not False and any(values.get(name) for name in ("p", "dropout", "dropout_p"))
    return torch.Tag.nondeterministic_seeded in node.target.tags


def written_buffers(program: ExportedProgram) -> set[str]:
    """Names of the buffers that a program's operators write to, also through views."""
    return buffers_written_in(program.module(check_guards=False))


def buffers_written_in(module: torch.fx.GraphModule) -> set[str]:
    written = set()
    for node in module.graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):  # noqa: SLF001 - overloads have no public schema
            if argument.alias_info and argument.alias_info.is_write:
                written.add(_viewed(value))
    return {str(node.target) for node in written if isinstance(node, torch.fx.Node) and node.op == "get_attr"}


def _viewed(value: Any) -> Any:
    """What a value is a view of, if it is one."""
    while isinstance(value, torch.fx.Node) and isinstance(value.target, OpOverload):
        if not any(returned.alias_info for returned in value.target._schema.returns):  # noqa: SLF001 - as above
            break
        value = value.args[0]
    return value


def is_like_eager(
    program: ExportedProgram, module: torch.nn.Module, example: tuple[Any, ...], sizes: Mapping[Any, int]
) -> bool | None:
    """Whether a program computes what its module does for sizes, by symbol.

    None if the module takes no inputs of these sizes, or draws random numbers.
    """
    if any(map(_draws, _calls(program))):
        return None
    case = _eager_case(program, module, example, sizes)
    if isinstance(case, str):
        return None
    inputs, expected = case
    call = pytree.tree_unflatten(inputs, pytree.tree_structure((example, {})))
    try:
        outputs = call_module(with_own_buffers(program), call)
        return agrees_with_eager(outputs, inputs, expected, _rounding_of(program))
    except Exception:  # noqa: BLE001 - an assertion of the program, an operator's error, another shape
        return False


def refusal(
    program: ExportedProgram, module: torch.nn.Module, example: tuple[Any, ...], sizes: Mapping[Any, int]
) -> str:
    """Why a module takes no inputs of sizes, by symbol; empty if it takes some."""
    case = _eager_case(program, module, example, sizes)
    return case if isinstance(case, str) else ""


def _eager_case(
    program: ExportedProgram, module: torch.nn.Module, example: tuple[Any, ...], sizes: Mapping[Any, int]
) -> Flat | str:
    """Inputs of sizes, by symbol, that eager takes, with its outputs; or why it takes none."""
    flat, spec = pytree.tree_flatten((example, {}))
    problem = ""
    for values in DRAWS:
        inputs = draw_inputs(program, [flat], 0, values, sizes)
        try:
            return inputs, run_eager(module, pytree.tree_unflatten(inputs, spec), "inputs of other sizes")
        except SourceError as error:
            problem = str(error)
    return problem


def agrees_with_eager(outputs: Sequence[Any], flat: Sequence[Any], expected: Sequence[Any], rounding: str = "") -> bool:
    """Whether outputs are eager's up to rounding; raises VerificationFailed for other shapes."""
    bounds = _EXACT.model_copy(update={"max_relative_error": None}) if rounding else _EXACT
    cases = list(compare_all(outputs, StoredCase("", flat, expected), method="", rounding=rounding))
    return not [*disagreements(cases, bounds), *(line for case in cases for line in violations(case, bounds))]


def with_own_buffers(program: ExportedProgram) -> torch.nn.Module:
    """A program as a module, whose calls leave the program's state as it is."""
    module: torch.nn.Module = program.module(check_guards=False)
    for part in module.modules():
        part._buffers.update({name: value.clone() for name, value in part._buffers.items() if value is not None})  # noqa: SLF001 - `setattr` asks for their names
    return module


def call_module(module: torch.nn.Module, call: Call) -> list[Any]:
    """Flat outputs, preceded by the inputs that the module writes to; the arguments stay as they are."""
    args, kwargs = copy.deepcopy(call)
    with as_traced():
        leaves = pytree.tree_leaves((args, kwargs))
        return prepend_mutated_inputs(leaves, lambda: _kept(module(*args, **kwargs)))


_EXACT = VerifyBounds(min_sqnr_db=60, max_relative_error=0.01)  # of the same kernels in the same order


@contextmanager
def as_traced() -> Iterator[None]:
    """Eager computes what torch.export traces: without gradients, and without the fast path of attention layers.

    The fast path returns zeros for padding (torch.nn.TransformerEncoder).
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), weights_on_use():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


_MOST_IN_FLOAT32 = 1 << 30  # bytes of parameters


def outputs_in_float32(module: torch.nn.Module, calls: Sequence[Call]) -> list[list[Any]]:
    """Flat outputs of each call of a 16-bit module in float32; empty if the copy would be too large, or it fails."""
    if 4 * sum(weight.numel() for weight in module.parameters()) > _MOST_IN_FLOAT32:
        return []
    try:
        wide = copy_module(module, share_parameters=False)
        wide._apply(_widened)  # noqa: SLF001 - `float` would make float64 less exact
        return [run_eager(wide, pytree.tree_map(_widened, call), "its inputs in float32") for call in calls]
    except Exception:  # noqa: BLE001 - whatever a module raises that asks for its own dtype
        return []


def _widened(value: Any) -> Any:
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_narrow else value


def run_eager(module: torch.nn.Module, call: Call, what: str, *, on: torch.nn.Module | None = None) -> list[Any]:
    """Calls a copy of the module, which is `on` if given; see `call_module`.

    Raises SourceError if the module raises; `what` says on which inputs.
    """
    try:
        outputs = call_module(on or copy_module(module), call)  # the module's state must stay what it was built with
    except Exception as error:
        if left := left_by_traces(module):
            raise SourceError(_KEPT.format(what, ", ".join(left))) from error
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves(call)]
        raise SourceError(f"the model does not take {what}: {shapes}: {type(error).__name__}: {error}") from error
    if is_of_trace(outputs):
        raise SourceError(_KEPT.format(what, ", ".join(left_by_traces(module)) or "a global variable"))
    return outputs


_KEPT = (
    "on {}, the model uses a tensor that its trace has left in {}, and its program has only what operators write to "
    "buffers: register a buffer, and write to it with `copy_`"
)


def run_sequences_in_eager(definition: ModelDefinition) -> list[list[tuple[str, list[Any], list[Any]]]]:
    """Method, flat inputs and eager's flat outputs of every call; each sequence starts from the model's first state.

    Raises SourceError if a call names an unknown method, or a method does not take its inputs.
    """
    sequences = []
    for number, sequence in enumerate(definition.sequences):
        fresh = copy_modules({name: for_inference(method.module) for name, method in definition.methods.items()})
        calls = []
        for position, call in enumerate(sequence):
            if call.method not in fresh:
                raise SourceError(f"sequence {number} calls {call.method!r}; the model's methods are {list(fresh)}")
            try:
                outputs = call_module(fresh[call.method], (call.inputs, {}))
            except Exception as error:
                raise SourceError(
                    f"sequence {number}, call {position}: method {call.method!r} does not take its inputs: "
                    f"{type(error).__name__}: {error}"
                ) from error
            calls.append((call.method, pytree.tree_leaves(call.inputs), outputs))
        sequences.append(calls)
    return sequences


def _kept(outputs: Any) -> list[Any]:
    """Flat outputs; tensors are copies, since an output may be the state that the next call changes."""
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(outputs)]
