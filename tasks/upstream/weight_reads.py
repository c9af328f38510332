"""torch 2.13 lets code read fake tensors: `item` returns a symbol, `data_ptr` zero. With this patch, that ends a stage.

Stages that run without weights (see `tasks.codecs.binding`) have fake tensors in their place. Code that needs the bytes
of one must neither go on with something else nor catch the error: `WeightRead` is no `Exception`. Code may compute with
weights, as MLX's partitioner does to see what it supports, but it cannot read what comes out.
`copy.deepcopy` of a weight, by which exir's duplicate_constant_node_pass copies constants, makes another fake weight
with the same bytes; upstream cannot copy fake tensors. Tests of each target compare results with those made with
weights; no part of this goes upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._ops import OpOverload
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import _DISPATCH_META_HANDLERS, FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._pytree import tree_leaves

from ..codecs.program import fake_on
from ..codecs.storages import AbsentWeights, storage_address

_READERS = ("__array__", "data_ptr", "numpy", "tolist")  # methods that do not dispatch an operator
_READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class WeightRead(BaseException):
    """Code needs the bytes of a weight that is absent."""


@contextmanager
def no_weight_reads(absent: AbsentWeights) -> Iterator[None]:
    """While the context is open, raises WeightRead where code reads or writes absent weights."""
    dispatch, copy, address = FakeTensorMode.dispatch, FakeTensor.__deepcopy__, torch.UntypedStorage.data_ptr
    guard = _Guard(absent)

    def checked_dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DISPATCH_META_HANDLERS or not guard.depends(args, kwargs):
            return dispatch(mode, func, types, args, kwargs)
        return guard.call(func, args, kwargs, lambda: dispatch(mode, func, types, args, kwargs))

    def checked_copy(tensor: Any, memo: dict[Any, Any]) -> Any:
        return _copied(absent, tensor, memo) if guard.stands_for_weight(tensor) else copy(tensor, memo)

    def checked_address(storage: Any) -> int:
        if absent.slot(storage) is not None:
            raise WeightRead("the address of a weight was taken")
        place: int = address(storage)
        return place

    with ExitStack() as patches:
        patches.enter_context(patch.object(FakeTensorMode, "dispatch", checked_dispatch))
        patches.enter_context(patch.object(FakeTensor, "__deepcopy__", checked_copy))
        patches.enter_context(patch.object(torch.UntypedStorage, "data_ptr", checked_address))
        for name in _READERS:
            reader = guard.reader(name, getattr(FakeTensor, name))
            patches.enter_context(patch.object(FakeTensor, name, reader))
        yield


class _Guard:
    """Follows what is computed from absent weights."""

    def __init__(self, absent: AbsentWeights) -> None:
        self._absent = absent
        self._computed: dict[int, torch.UntypedStorage] = {}

    def stands_for_weight(self, tensor: torch.Tensor) -> bool:
        return self._absent.slot(tensor.untyped_storage()) is not None

    def depends(self, *values: Any) -> bool:
        """Whether a weight, or something computed from one, is among nested arguments."""
        for value in values:
            if isinstance(value, FakeTensor):
                if self._depends(value):
                    return True
            elif isinstance(value, (list, tuple)):
                if self.depends(*value):
                    return True
            elif isinstance(value, dict) and self.depends(*value.values()):
                return True
        return False

    def call(self, func: Any, args: Any, kwargs: Any, dispatch: Callable[[], Any]) -> Any:
        """Calls an operator on such arguments."""
        if not isinstance(func, OpOverload) or not _READING.isdisjoint(func.tags):
            raise WeightRead(f"{func} reads a weight")
        if func._schema.is_mutable and any(map(self._is_weight, tree_leaves((args, kwargs)))):  # noqa: SLF001 - not public
            raise WeightRead(f"{func} changes a weight")
        try:
            results = dispatch()
        except Exception as error:
            raise WeightRead(f"{func} fails on a weight that is absent: {error}") from error
        if get_proxy_mode() is None:
            self._follow(func, results)
        return results

    def reader(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of fake tensors that raises for these."""

        def checked(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depends(tensor):
                raise WeightRead(f"`{name}` reads a weight")
            return method(tensor, *args, **kwargs)

        return checked

    def _depends(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        return storage_address(storage) in self._computed or self._absent.slot(storage) is not None

    def _is_weight(self, value: Any) -> bool:
        return isinstance(value, FakeTensor) and self.stands_for_weight(value)

    def _follow(self, func: Any, results: Any) -> None:
        for result in tree_leaves(results):
            if not isinstance(result, FakeTensor):
                raise WeightRead(f"{func} reads a weight")
            if not self.stands_for_weight(result):
                storage = result.untyped_storage()
                self._computed[storage_address(storage)] = storage


def _copied(absent: AbsentWeights, tensor: Any, memo: dict[Any, Any]) -> Any:
    """As torch copies real tensors: a parameter's own bytes, and for other tensors the storage with all in it."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    storage = tensor.untyped_storage()
    if isinstance(tensor, torch.nn.Parameter):
        if not is_non_overlapping_and_dense_or_false(tensor) or tensor.nbytes != storage.nbytes():
            raise WeightRead("a parameter that is part of a larger storage is copied")
        copied = absent.add_copy(storage)
    else:
        storages = memo.setdefault("torch", {})  # where torch keeps them
        copied = storages.get(storage_address(storage)) or absent.add_copy(storage)
        storages[storage_address(storage)] = copied
    memo[id(tensor)] = fake_on(copied, tensor, tensor.fake_mode)
    return memo[id(tensor)]
