"""What torch, ExecuTorch and OpenVINO's packages import and lowering does not use.

Part of the keys of OpenVINO's stages only: `without_unused_imports` is for the server of the workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_INSPECTOR = "executorch.devtools.inspector"
_REMOVAL = "torch.export._remove_auto_functionalized_pass"


def disable_openvino_telemetry() -> None:
    """Makes openvino_telemetry fail to import in this process; call it before openvino or nncf is imported.

    Both report use to Intel by it, and work without. For openvino 2025, nncf 3.2; delete once it is off by default.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: importing it fails


@contextmanager
def without_unused_imports() -> Iterator[None]:
    """Imports of torch and ExecuTorch in the context do without these packages, for the rest of the process.

    Together they take a quarter of the seconds until the first stage starts:

    - `executorch.devtools` imports the Inspector, and with it pandas, where `exir` needs only ETRecords. Delete once
      `devtools/__init__.py` imports it on demand.
    - `torch/export/_remove_auto_functionalized_pass.py` imports Inductor's pattern matcher, and with it Inductor's
      lowerings. Only graphs with `auto_functionalized` need it. Delete once torch imports it in the function.
    - `torch/_inductor/remote_cache.py` imports redis, if installed. Delete once only torch's Redis backend does.
    """
    inspector = _INSPECTOR not in sys.modules
    if inspector:
        sys.modules[_INSPECTOR] = ModuleType(_INSPECTOR)
        vars(sys.modules[_INSPECTOR])["Inspector"] = None
    if _REMOVAL not in sys.modules:
        sys.modules[_REMOVAL] = _DeferredPass(_REMOVAL)
    redis = _NoRedis()
    sys.meta_path.insert(0, redis)
    try:
        yield
    finally:
        sys.meta_path.remove(redis)
        if inspector:
            del sys.modules[_INSPECTOR]
            _import_inspector_on_demand()


class _NoRedis:
    """Finds no redis, unless Inductor is to use one."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "redis" and "TORCHINDUCTOR_REDIS_URL" not in os.environ:
            raise ModuleNotFoundError("No module named 'redis'", name=name)


def _import_inspector_on_demand() -> None:
    """Replaces what `executorch.devtools` has imported of the placeholder, if that package has been imported."""
    devtools = sys.modules.get(_INSPECTOR.rpartition(".")[0])
    if devtools is None:
        return

    def find(name: str) -> Any:
        if name not in {"Inspector", "inspector"}:
            raise AttributeError(f"module {devtools.__name__!r} has no attribute {name!r}")
        module = import_module(_INSPECTOR)
        return module if name == "inspector" else vars(module)[name]

    for name in ("Inspector", "inspector"):
        vars(devtools).pop(name, None)
    vars(devtools)["__getattr__"] = find


class _DeferredPass(ModuleType):
    """The module of the pass, imported for graphs that need it, and for the other function that it has.

    Asked for anything else, it has nothing: pickle looks for functions in all modules.
    """

    def __getattr__(self, name: str) -> Any:
        if name != "remove_self_clone":
            raise AttributeError(name)
        return getattr(_import_pass(), name)

    @staticmethod
    def unsafe_remove_auto_functionalized_pass(ep: Any) -> Any:
        """Calls upstream's function for graphs with `auto_functionalized`; for others, does all it would do."""
        import torch  # noqa: PLC0415 - what this module is about

        from .compat import auto_functionalized, auto_functionalized_v2  # noqa: PLC0415

        modules = [module for module in ep.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
        nodes = [node for module in modules for node in module.graph.nodes if node.op == "call_function"]
        if any(node.target in {auto_functionalized, auto_functionalized_v2} for node in nodes):
            return _import_pass().unsafe_remove_auto_functionalized_pass(ep)
        with ep.graph_module._set_replace_hook(ep.graph_signature.get_replace_hook()):  # noqa: SLF001 - as upstream does
            for node in ep.graph.nodes:
                if node.target is torch.ops.aten.copy_.default and node.args[0] is node.args[1]:
                    node.replace_all_uses_with(node.args[0])
                    ep.graph.erase_node(node)
            ep.graph.eliminate_dead_code()
        return ep


def _import_pass() -> ModuleType:
    """The real module. From then on, it is the one that imports find."""
    if isinstance(sys.modules.get(_REMOVAL), _DeferredPass):
        del sys.modules[_REMOVAL]
    return import_module(_REMOVAL)
