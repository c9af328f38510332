"""compile: links the delegates in and emits the payload, memory planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from pydantic import Field

from ....artifacts.digest import Digest
from ....artifacts.ref import ArtifactRef
from ....configs.recipe import CompileOptions
from ...engine import kinds, stage
from ...upstream import lean_lowering
from .edge import Edge
from .edge_manager_passes import ManagerPassParams

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

    from ....artifacts.local_store import LocalStore


class EmissionPassParams(stage.CallableParams):
    """A pass of a recipe, or a callable that makes passes."""

    takes_module: bool = False  # it is the pass


class Compile(stage.Stage, name="compile"):
    """The payload of one specialization: a complete `.pte` with all methods."""

    ends_chain = True

    class Params(stage.Params):
        options: CompileOptions
        edge: Edge.Params  # params of the `edge` stage (a pass depends on `skip_dim_order`)
        # memory planning by method, where it is not that of `options`; other fields are equal
        methods: dict[str, CompileOptions] = Field(default={})
        # methods that share their state; the first one that has a buffer initializes it. Empty: none do.
        state_order: tuple[str, ...] = ()
        # weights go to a file of their own: all, or those outside of delegates with names like these
        external_data: bool | tuple[str, ...] = False
        # the recipe's own functions over programs with delegates
        edge_manager_passes: tuple[ManagerPassParams, ...] = ()
        emission_passes: tuple[EmissionPassParams, ...] = ()  # the recipe's own, just before emission

        @property
        def emits_traces(self) -> bool:
            """Whether the payload or its debug outputs hold lines of the model's code."""
            return self.options.emit_stacktrace or self.options.generate_etrecord

    class Inputs(stage.Roles):
        program: Mapping[str, kinds.ToEmit]  # by method, of `partition` or, where nothing is delegated, of `edge`
        constants: kinds.Constants  # of `export`
        delegates: kinds.Delegates | None = None  # of `preprocess`, where anything is delegated
        edge: Mapping[str, kinds.EdgeProgram] = field(default_factory=dict)  # by method, of `edge`; for debugging only

    class Outputs(stage.Roles):
        payload: kinds.PteFile
        data: kinds.PtdFile | None = None  # its weights, where they go to a file of their own
        # the file that `executorch.devtools.Inspector` takes. This and the following are for debugging.
        etrecord: kinds.EtRecord | None = None
        # by method, instruction number to debug handles of the edge program
        debug_handles: kinds.DebugHandles | None = None
        # by method, instruction number to the delegate that it calls, with the map from its own debug handles to those
        # of the edge program, where the backend makes one
        delegate_map: kinds.DelegateMap | None = None
        # by method, debug handle to the operators of the edge program that have it, and where in the model they are
        debug_sources: kinds.DebugSources | None = None

    @classmethod
    def input_digest(cls, params: Params, ref: ArtifactRef) -> Digest:
        """A program's identity excludes stack traces, so where those are emitted its stored bytes count instead."""
        return ref.root.digest if params.emits_traces else ref.identity

    @classmethod
    def shares_process(cls, params: Params) -> bool:
        """Shares a process unless the recipe has passes of its own."""
        return not (params.edge_manager_passes or params.emission_passes)

    @staticmethod
    @lean_lowering()
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Links, plans and emits. TargetError for operators without a kernel; SourceError if a function fails."""
        from ....formats.pte.reader import map_file
        from ...programs.graphs import check_no_affine
        from ...programs.payload import save_payload
        from ..delegates import save_data
        from ..emission import debug_artifacts

        manager = linked_manager(inputs, params, work.store)
        for method in sorted(manager.methods):
            check_no_affine(method, manager.exported_program(method))
        emitted = emit(manager, params)
        debugging = debug_artifacts(inputs.edge, emitted, work) if params.options.generate_etrecord else {}
        path = work.scratch / "model.pte"
        with path.open("wb") as file:
            emitted.write_to_file(file)  # in one piece, it would be in memory twice
        return Compile.Outputs(
            payload=save_payload(map_file(path), kind="payload/pte", store=work.store),
            data=save_data(emitted, work) if params.external_data else None,
            **debugging,
        )


def linked_manager(inputs: Compile.Inputs, params: Compile.Params, store: LocalStore) -> EdgeProgramManager:
    """All methods, delegates linked in and left embeddings fused; as in exir, not verified as edge dialect again."""
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager

    from ...programs.delegates import load_delegates
    from ...programs.embeddings import fuse_embeddings
    from ...programs.graphs import check_control_flow, keep_initial_state, keep_shared_initial_state
    from ...programs.program import load_program
    from ...programs.values import load_value
    from ...upstream.exir import declared_bounds
    from ...usercode.recipe_functions import run_manager_passes
    from ..delegates import check_outputs, keep_inside, link_delegates, rename_clashing_weights

    programs = {method: load_program(ref, store) for method, ref in inputs.program.items()}
    with declared_bounds():
        config = params.edge.config()
        if inputs.delegates:
            delegates = load_delegates(inputs.delegates, store)
            for method, program in programs.items():
                link_delegates(program, delegates.methods.get(method, ()), external=params.external_data is True)
            config = EdgeCompileConfig(_check_ir_validity=False)  # as EdgeProgramManager.to_backend does
        for method, program in programs.items():
            check_control_flow(method, program)
            check_outputs(method, program)
        constants = load_value(inputs.constants, store)
        passes = [(made, made.takes_program) for made in params.edge_manager_passes]
        programs = run_manager_passes(passes, programs, constants)
        for program in programs.values():
            fuse_embeddings(program)
        if params.state_order:
            keep_shared_initial_state(programs, params.state_order)
        else:
            for program in programs.values():
                keep_initial_state(program)
        if params.external_data:
            rename_clashing_weights(programs)
            if not isinstance(params.external_data, bool):
                keep_inside(programs, params.external_data)
        return EdgeProgramManager(programs, dict(constants) or None, config)


def emit(manager: EdgeProgramManager, params: Compile.Params) -> ExecutorchProgramManager:
    """The payload of linked methods. Passes change `manager`, so it is not usable afterwards."""
    from ...usercode.recipe_functions import emission_passes
    from ..emission import backend_config, to_executorch

    config = backend_config(
        params.options,
        manager.methods,
        own=params.methods,
        external_data=bool(params.external_data),
        passes=emission_passes([(made, made.takes_module) for made in params.emission_passes]),
    )
    return to_executorch(manager, config)
