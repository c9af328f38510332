"""Finds where a payload loses quality: the runtime runs parts of it, and torch the rest of the edge program.

A part, a delegate or some of its operators, is lowered by itself, and takes values that torch computed. So other
delegates, kernels and memory planning have no influence on its loss.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ...artifacts.local_store import LocalStore
from ...configs.recipe import CompileOptions
from ...errors import TargetError, VerificationFailed, first_line
from ..backend.delegates import link_delegates, preprocess_all
from ..backend.emission import backend_config, to_executorch
from ..backend.exir import split_compile_specs, to_partitioned_program
from ..programs.graphs import calls_of, lowered_modules, origin_of, state_names
from ..results.figures import Case, Worst, worst_of
from ..results.numerics import CLEAN_DB, DelegateLoss, LosingPart, Operator, PayloadLosses
from ..usercode.inputs import StoredCase
from ..verify.compare import compare_all
from ..verify.running import ExpectedCall, Loadable, TorchProgram
from .node_losses import operator_name

_METHOD = "forward"
_CODING = ("quantize_per", "quantize_affine", "choose_qparams")  # in names of operators that quantize or dequantize


@dataclass(frozen=True)
class Backend:
    """How a part is lowered."""

    id: str = ""  # empty: not delegated, but computed by kernels
    specs: tuple[CompileSpec, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The loss of a part."""

    own: Worst | None = None
    passed_on: Worst | None = None
    problem: str = ""
    comparable: bool = True  # False: it cannot be lowered or run by itself

    def loses(self, least_db: float) -> bool:
        """Whether it passes on less than that, or no numbers."""
        return self.comparable and (self.passed_on is None or decibels(self.passed_on) < least_db)


def decibels(worst: Worst) -> float:
    """The lowest SQNR; `CLEAN_DB` at most for equal outputs, and what that would be for unequal integers."""
    ratio = math.inf if worst.sqnr_db is None else worst.sqnr_db
    if worst.agreement is not None and worst.agreement < 1:
        ratio = min(ratio, -10 * math.log10(1 - worst.agreement))
    return max(ratio, CLEAN_DB) if math.isinf(ratio) else ratio


@dataclass
class PartLowering:
    """Lowers parts, each to a file of one method."""

    scratch: Path
    left: int  # how many more parts of delegates to lower
    refused: bool = False  # whether one was asked for when none was left
    _files: int = 0

    def lower(self, part: ExportedProgram, backend: Backend) -> Loadable:
        """A file that consists of a program, whose graph is not usable afterwards."""
        if backend.id:
            part, _ = split(part, [node.name for node in calls_of(part.graph)], backend)
            delegates = preprocess_all({_METHOD: part}, LocalStore.open(self.scratch / "delegates"))
            link_delegates(part, delegates[_METHOD], external=False)
        manager = EdgeProgramManager({_METHOD: part}, None, EdgeCompileConfig(_check_ir_validity=False))
        path = self.scratch / f"part{self._files}.pte"
        self._files += 1
        with path.open("wb") as file:
            to_executorch(manager, backend_config(CompileOptions(), [_METHOD])).write_to_file(file)
        return Loadable(path)

    def take(self) -> bool:
        """Whether one more lowering is allowed."""
        self.refused = self.refused or not self.left
        self.left = max(self.left - 1, 0)
        return not self.refused


def split(program: ExportedProgram, names: Collection[str], backend: Backend) -> tuple[ExportedProgram, str]:
    """A copy with some nodes as a lowered module without bytes, and its name; raises TargetError if they cannot be."""
    copied = copy_program(program)
    if backend.id:
        names = take_quantization(copied.graph, names)
    before = {name for _, name, _ in lowered_modules(copied)}
    partitioned = to_partitioned_program(copied, [_Tagging(names, backend)])
    new = [name for _, name, _ in lowered_modules(partitioned) if name not in before]
    if len(new) != 1:
        raise TargetError(f"{len(names)} operators make {len(new)} partitions")
    return partitioned, new[0]


class _Tagging(Partitioner):  # type: ignore[misc]  # executorch is untyped here
    """Makes one partition of nodes by name."""

    def __init__(self, names: Collection[str], backend: Backend) -> None:
        super().__init__()
        self._names = frozenset(names)
        self._backend = backend

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        for node in exported_program.graph.nodes:
            if node.name in self._names:
                node.meta["delegation_tag"] = "part"
        tag_constant_data(exported_program)
        spec = DelegationSpec(self._backend.id, list(self._backend.specs))
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={"part": spec})


def copy_program(program: ExportedProgram) -> ExportedProgram:
    """A copy that shares the weights, but not the state, with the original."""
    root = copy.deepcopy(program.graph_module)
    changed = state_names(program)

    def copied(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value.clone() if name in changed else value for name, value in values.items()}

    return ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=copied(program.state_dict),
        range_constraints=dict(program.range_constraints),
        module_call_graph=program.module_call_graph,
        constants=copied(program.constants),
        verifiers=[program.verifier],
    )


@dataclass(frozen=True)
class Call:
    """A call of a delegate."""

    inputs: Sequence[Any]
    expected: Sequence[Any]  # what torch computes
    outputs: Sequence[Any]  # the runtime's, or torch's if the runtime has not run it


def run_hybrid(
    program: TorchProgram, on_runtime: Mapping[str, Loadable], flat: Sequence[Any]
) -> tuple[Sequence[Any], dict[str, Call]]:
    """Flat outputs of a partitioned program that torch runs, except for some delegates, and each delegate's call.

    Raises VerificationFailed if the runtime fails.
    """
    values: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    nodes = [node for node in program.module.graph.nodes if node.target is executorch_call_delegate]
    wanted = {source.name for node in nodes for source in node.all_input_nodes}

    def watch(node: Node, value: Any) -> Any:
        if node.name in wanted:
            values[node.name] = value
        if node.target is not executorch_call_delegate:
            return value
        name = str(node.args[0].target)
        inputs = [values[argument.name] if isinstance(argument, Node) else argument for argument in node.args[1:]]
        outputs = list(value)
        if name in on_runtime:
            call = ExpectedCall(_METHOD, inputs, outputs, name)
            (outputs,) = on_runtime[name].run([call])  # type: ignore[assignment]  # a sequence
        calls[name] = Call(inputs, list(value), outputs)
        return outputs

    return program.run(flat, watch), calls


def measure(
    program: TorchProgram, name: str, lowered: Loadable, inputs: Sequence[Sequence[Any]], expected: Sequence[Any]
) -> tuple[Measured, list[Call]]:
    """The loss of a lowered module, its own and what it passes on to the program's outputs, and its calls."""
    ran = [run_hybrid(program, {name: lowered}, flat) for flat in inputs]
    calls = [own[name] for _, own in ran]
    try:
        own = _compared([call.outputs for call in calls], [call.expected for call in calls])
        return Measured(own, _compared([outputs for outputs, _ in ran], expected)), calls
    except VerificationFailed as error:
        return Measured(problem=str(error).rpartition(": ")[2]), calls


def _compared(outputs: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> Worst:
    """The worst figures over several calls; raises VerificationFailed if an output cannot be compared."""
    cases: list[Case] = []
    for ours, reference in zip(outputs, expected, strict=True):
        cases += compare_all(ours, StoredCase("", (), reference), method=_METHOD)
    return worst_of(cases)


@dataclass
class SmallestParts:
    """The smallest parts of a program that lose quality if they are lowered as a backend does."""

    program: ExportedProgram
    backend: Backend
    inputs: Sequence[Sequence[Any]]  # flat
    least_db: float  # what the program's outputs must reach
    bench: PartLowering
    _measured: dict[tuple[str, ...], Measured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch_program = TorchProgram(lambda: copy_program(self.program))
        self._expected = [torch_program.run(flat) for flat in self.inputs]

    def find(self) -> tuple[LosingPart, ...]:
        """Halves what loses until no half loses by itself, and then leaves out what it can at both ends.

        Operators between delegates are searched from one delegate to the next.
        """
        stretches = groups_of(self.program.graph, delegated=bool(self.backend.id))
        losing = [part for stretch in stretches if self._loses(stretch) for part in self._narrow(stretch)]
        return tuple(map(self._part, losing))

    def _narrow(self, groups: Sequence[tuple[str, ...]]) -> list[Sequence[tuple[str, ...]]]:
        if len(groups) == 1:
            return [groups]
        middle = len(groups) // 2
        losing = [half for half in (groups[:middle], groups[middle:]) if self._loses(half)]
        if losing:
            return [part for half in losing for part in self._narrow(half)]
        groups = groups[self._most(len(groups), lambda count: groups[count:]) :]
        end = len(groups) - self._most(len(groups), lambda count: groups[: len(groups) - count])
        return [groups[:end]]

    def _most(self, size: int, without: Callable[[int], Sequence[tuple[str, ...]]]) -> int:
        """The number of groups to leave out so that the others still lose."""
        return bisect.bisect_left(range(1, size), True, key=lambda count: not self._loses(without(count)))

    def _loses(self, groups: Sequence[tuple[str, ...]]) -> bool:
        return self._measure(groups).loses(self.least_db)

    def _measure(self, groups: Sequence[tuple[str, ...]]) -> Measured:
        names = tuple(itertools.chain.from_iterable(groups))
        if names not in self._measured:
            if not self.bench.take():
                return Measured(comparable=False)
            self._measured[names] = self._lower_and_measure(names)
        return self._measured[names]

    def _lower_and_measure(self, names: tuple[str, ...]) -> Measured:
        try:
            program, name = split(self.program, names, self.backend)
            (lowered,) = (lowered for _, other, lowered in lowered_modules(program) if other == name)
            file = self.bench.lower(copy_program(lowered.original_module), self.backend)
            whole = TorchProgram(lambda: copy_program(program))
            measured, _ = measure(whole, name, file, self.inputs, self._expected)
            file.program.unlink()  # the disk could not hold all of a large model
            return measured  # noqa: TRY300 - what `except` is for is everything above
        except Exception as error:  # noqa: BLE001 - parts that backends or kernels do not take say nothing
            return Measured(problem=first_line(error), comparable=False)

    def _part(self, groups: Sequence[tuple[str, ...]]) -> LosingPart:
        measured, names = self._measure(groups), set(itertools.chain.from_iterable(groups))
        operators = tuple(_operator(node) for node in self.program.graph.nodes if node.name in names)
        return LosingPart(operators, measured.own, measured.passed_on, measured.problem)


def _operator(node: Node) -> Operator:
    origin = origin_of(node)
    inputs = tuple(map(_described, node.all_input_nodes))
    return Operator(node.name, operator_name(node), inputs, _described(node), origin.module, origin.line)


def _described(node: Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {[str(size) for size in value.shape]}".replace("'", "")
    return type(value).__name__


@dataclass
class PayloadSearch:
    """Finds the delegates of a method that lose, and where; if none does, the operators outside of them."""

    program: ExportedProgram  # of the method, in the edge dialect, partitioned
    inputs: Sequence[Sequence[Any]]  # flat
    bench: PartLowering
    least_db: float  # SQNR that the method's outputs must reach, against those of the program in torch
    drop_db: float  # parts also lose that are at most this much better than the payload

    def __post_init__(self) -> None:
        self._whole = TorchProgram(lambda: copy_program(self.program))
        self._expected = [self._whole.run(flat) for flat in self.inputs]
        self._files: dict[str, Loadable] = {}

    def losses(self, payload: Callable[[Sequence[Any]], Sequence[Any]]) -> PayloadLosses:
        """Losses of a payload, which is called with flat inputs."""
        with suppress(VerificationFailed):  # then the given bound has to do
            figures = _compared([payload(flat) for flat in self.inputs], self._expected)
            self.least_db = max(self.least_db, decibels(figures) + self.drop_db)
        graph, modules = self.program.graph, lowered_modules(self.program)
        delegates = [(name, lowered) for owner, name, lowered in modules if owner is self.program.graph_module]
        losses = [self._delegate(position, *delegate) for position, delegate in enumerate(delegates)]
        together = self._together()
        searched = not any(loss.loses for loss in losses) and (together is None or decibels(together) >= self.least_db)
        outside: tuple[LosingPart, ...] = ()
        if searched:
            outside = SmallestParts(self.program, Backend(), self.inputs, self.least_db, self.bench).find()
        losses.sort(
            key=lambda loss: decibels(loss.passed_on) if loss.passed_on else -math.inf if loss.loses else math.inf
        )
        operators = sum(len(group) for stretch in groups_of(graph, delegated=False) for group in stretch)
        return PayloadLosses(tuple(losses), together, operators, searched, outside, self.bench.refused)

    def _delegate(self, position: int, name: str, lowered: LoweredBackendModule) -> DelegateLoss:
        backend_id, specs = split_compile_specs(lowered.compile_specs)
        backend, part = Backend(backend_id, tuple(specs)), lowered.original_module
        parts: tuple[LosingPart, ...] = ()
        try:
            self._files[name] = self.bench.lower(copy_program(part), backend)
            measured, calls = measure(self._whole, name, self._files[name], self.inputs, self._expected)
        except Exception as error:  # noqa: BLE001 - of a backend or the runtime; reported for this delegate
            measured = Measured(problem=first_line(error), comparable=False)
        else:
            if measured.loses(self.least_db):
                least = max(self.least_db, decibels(measured.own) + self.drop_db) if measured.own else self.least_db
                search = SmallestParts(part, backend, [call.inputs for call in calls], least, self.bench)
                operators = tuple(map(_operator, calls_of(part.graph)))
                parts = search.find() or (LosingPart(operators, measured.own, measured.passed_on, measured.problem),)
        count, loses = sum(1 for _ in calls_of(part.graph)), measured.loses(self.least_db)
        figures = measured.own, measured.passed_on, measured.problem
        return DelegateLoss(position, backend_id, count, *figures, loses, parts)

    def _together(self) -> Worst | None:
        """The outputs with all delegates on the runtime; None if there are none, or they cannot be compared."""
        if not self._files:
            return None
        with suppress(VerificationFailed):
            return _compared([run_hybrid(self._whole, self._files, flat)[0] for flat in self.inputs], self._expected)
        return None


def groups_of(graph: Graph, *, delegated: bool = True) -> list[Sequence[tuple[str, ...]]]:
    """Names of nodes that stay together, in an order in which they can be computed; one list between two delegates.

    In delegates, nodes that quantize an output stay with its operator, and nodes that quantize inputs are in no group:
    they belong to every operator that takes the input, see `take_quantization`. Kernels compute one node each.
    """
    owner: dict[Node, Node] = {}  # node -> the last node of its group
    nodes = list(calls_of(graph))
    for node in reversed(nodes):
        if node.target is executorch_call_delegate or _of_delegate(node) or (delegated and _is_free(node)):
            continue
        owner[node] = owner.get(_ends_with(node) if delegated else _last_result(node), node)
    stretches: list[list[tuple[str, ...]]] = [[]]
    members: dict[Node, list[str]] = {}
    for node in nodes:
        if node.target is executorch_call_delegate:
            stretches.append([])
        elif node in owner:
            members.setdefault(owner[node], []).append(node.name)
            if owner[node] is node:
                stretches[-1].append(tuple(members[node]))
    return [stretch for stretch in stretches if stretch]


def take_quantization(graph: Graph, names: Collection[str]) -> set[str]:
    """Adds nodes that quantize inputs of the nodes to their names, copied if other nodes also use them."""
    inside = {node for node in graph.nodes if node.name in names}
    for node in reversed(graph.nodes):
        if not _is_free(node) or node in inside or not inside.intersection(node.users):
            continue
        taken = node
        if not inside.issuperset(node.users):
            with graph.inserting_after(node):
                taken = graph.node_copy(node, lambda argument: argument)
            for user in list(node.users):
                if user in inside:
                    user.replace_input_with(node, taken)
        inside.add(taken)
    return {node.name for node in inside}


def _is_free(node: Node) -> bool:
    """Whether a node quantizes or dequantizes, but not the output of an operator of its own group."""
    return _codes(node) and not (_quantizes(node) and _is_static(node) and _computes(node.args[0]))


def _codes(node: object) -> bool:
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return _codes(node.args[0])
    return any(part in str(getattr(node.target, "__name__", node.target)) for part in _CODING)


def _quantizes(node: Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    return "quantize_" in name and "dequantize_" not in name


def _is_static(node: Node) -> bool:
    """Whether scale and zero point are constants."""
    return not any(map(_codes, node.all_input_nodes[1:]))


def _computes(node: object) -> bool:
    if not isinstance(node, Node) or _codes(node) or node.op != "call_function":
        return False
    return node.target is not executorch_call_delegate and not _of_delegate(node)


def _of_delegate(node: Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and source.target is executorch_call_delegate


def _last_result(node: Node) -> Node:
    """The last node that takes one of several results of an operator, given one of them or the operator."""
    producer = node.args[0] if node.target is operator.getitem else node
    results = [user for user in producer.users if user.target is operator.getitem] if isinstance(producer, Node) else []
    return max(results, default=node)


def _ends_with(node: Node) -> Node:
    """The node that has to end the group: it quantizes the output, or is the operator before that."""
    users = list(node.users)
    if (last := _last_result(node)) is not node or node.target is operator.getitem:
        return last
    if len(users) != 1 or not isinstance(users[0], Node) or users[0].op != "call_function":
        return node
    (user,) = users
    if _quantizes(user) and _codes(user) and _is_static(user):
        return user
    quantized = [following for following in user.users if _codes(following) and _quantizes(following)]
    takes_codes = any(map(_codes, node.all_input_nodes)) and not _codes(user)
    return user if takes_codes and quantized and all(map(_is_static, quantized)) else node
