"""Fake tensors for weights in stages that run without them, and code that reads them; in all keys of such stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from . import compat


@dataclass
class AbsentWeights:
    """Storages without bytes that replace a program's weights, and the slot of the weight each stands for."""

    _slots: dict[int, tuple[torch.UntypedStorage, int]] = field(default_factory=dict)

    def add(self, slot: int, size: int) -> torch.UntypedStorage:
        """A new storage, which takes no memory."""
        storage = torch.UntypedStorage(size, device="meta")
        self._slots[storage_address(storage)] = storage, slot
        return storage

    def add_copy(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """A new storage for the same bytes as an absent one."""
        replaced, slot = self._slots[storage_address(storage)]
        return self.add(slot, replaced.nbytes())

    def __bool__(self) -> bool:
        return bool(self._slots)

    def slot(self, storage: torch.UntypedStorage) -> int | None:
        """The slot that a storage stands for; None for all others."""
        entry = self._slots.get(storage_address(storage))
        return entry[1] if entry else None


def storage_address(storage: torch.UntypedStorage) -> int:
    address: int = storage._cdata  # noqa: SLF001 - the address of the StorageImpl, the only identity storages have
    return address


def fake_on(storage: torch.UntypedStorage, like: torch.Tensor, mode: compat.FakeTensorMode | None) -> torch.Tensor:
    """A fake tensor on an absent weight's storage that is otherwise like another tensor."""
    with compat.no_dispatch(), torch.no_grad():
        meta = torch.empty(0, dtype=like.dtype, device="meta")
        meta.set_(storage, like.storage_offset(), like.size(), like.stride())
    fake: torch.Tensor = compat.FakeTensor(mode, meta, torch.device("cpu"))
    if isinstance(like, torch.nn.Parameter):
        fake = torch.nn.Parameter(fake, requires_grad=like.requires_grad)
    elif like.requires_grad:
        fake.requires_grad_()
    vars(fake).update(plain_attributes(like))
    return fake


_PLAIN = (bool, int, float, str)


def plain_attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor's own attributes that are kept: `torch.nn.Buffer` marks its tensors with some."""
    return {name: value for name, value in vars(tensor).items() if type(value) in _PLAIN and name != "_is_param"}


_READERS = ("__array__", "data_ptr", "numpy", "tolist")  # methods that do not dispatch an operator
_READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class WeightRead(BaseException):
    """Code needs the bytes of a weight that is absent."""


@contextmanager
def no_weight_reads(absent: AbsentWeights) -> Iterator[None]:
    """Raises WeightRead where code reads or writes absent weights, while the context is open.

    Stages that run without weights (see `programs.binding`) have fake tensors in their place, which torch lets code
    read: `item` returns a symbol, `data_ptr` zero. Code that needs the bytes must neither continue with something else
    nor catch the error: `WeightRead` is no `Exception`. Code may compute with weights, as MLX's partitioner does to see
    what it supports, but it cannot read the results. `copy.deepcopy` of a weight, by which exir's
    duplicate_constant_node_pass copies constants, makes another fake weight with the same bytes; torch cannot copy fake
    tensors. Tests of each target compare results with those made with weights; no part of this goes upstream.
    """
    dispatch, copy = compat.FakeTensorMode.dispatch, compat.FakeTensor.__deepcopy__
    address = torch.UntypedStorage.data_ptr
    guard = _Guard(absent)

    def checked_dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in compat.DISPATCH_META_HANDLERS or not guard.depends(args, kwargs):
            return dispatch(mode, func, types, args, kwargs)
        return guard.call(func, args, kwargs, lambda: dispatch(mode, func, types, args, kwargs))

    def checked_copy(tensor: Any, memo: dict[Any, Any]) -> Any:
        return _copied(absent, tensor, memo) if guard.is_weight(tensor) else copy(tensor, memo)

    def checked_address(storage: Any) -> int:
        if absent.slot(storage) is not None:
            raise WeightRead("the address of a weight was taken")
        return int(address(storage))

    with ExitStack() as patches:
        patches.enter_context(patch.object(compat.FakeTensorMode, "dispatch", checked_dispatch))
        patches.enter_context(patch.object(compat.FakeTensor, "__deepcopy__", checked_copy))
        patches.enter_context(patch.object(torch.UntypedStorage, "data_ptr", checked_address))
        for name in _READERS:
            reader = guard.reader(name, getattr(compat.FakeTensor, name))
            patches.enter_context(patch.object(compat.FakeTensor, name, reader))
        yield


@dataclass
class _Guard:
    """Follows values that are computed from absent weights."""

    _absent: AbsentWeights
    _computed: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def is_weight(self, value: Any) -> bool:
        return isinstance(value, compat.FakeTensor) and self._absent.slot(value.untyped_storage()) is not None

    def depends(self, *values: Any) -> bool:
        """Whether a weight, or something computed from one, is among nested arguments."""
        fakes = (leaf for leaf in compat.tree_leaves(values) if isinstance(leaf, compat.FakeTensor))
        return any(self.is_weight(fake) or storage_address(fake.untyped_storage()) in self._computed for fake in fakes)

    def call(self, func: Any, args: Any, kwargs: Any, dispatch: Callable[[], Any]) -> Any:
        """Calls an operator on such arguments."""
        if not isinstance(func, compat.OpOverload) or not _READING.isdisjoint(func.tags):
            raise WeightRead(f"{func} reads a weight")
        if func._schema.is_mutable and any(map(self.is_weight, compat.tree_leaves((args, kwargs)))):  # noqa: SLF001 - not public
            raise WeightRead(f"{func} changes a weight")
        try:
            results = dispatch()
        except Exception as error:
            raise WeightRead(f"{func} fails on a weight that is absent: {error}") from error
        for result in compat.tree_leaves(results) if get_proxy_mode() is None else ():
            if not isinstance(result, compat.FakeTensor):
                raise WeightRead(f"{func} reads a weight")
            if not self.is_weight(result):
                storage = result.untyped_storage()
                self._computed[storage_address(storage)] = storage
        return results

    def reader(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of fake tensors that raises for these."""

        def checked(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depends(tensor):
                raise WeightRead(f"`{name}` reads a weight")
            return method(tensor, *args, **kwargs)

        return checked


def _copied(absent: AbsentWeights, tensor: Any, memo: dict[Any, Any]) -> Any:
    """Copies like torch does real tensors: a parameter's own bytes, and for other tensors the whole storage."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    storage = tensor.untyped_storage()
    if isinstance(tensor, torch.nn.Parameter):
        if not compat.is_non_overlapping_and_dense_or_false(tensor) or tensor.nbytes != storage.nbytes():
            raise WeightRead("a parameter that is part of a larger storage is copied")
        copied = absent.add_copy(storage)
    else:
        storages = memo.setdefault("torch", {})  # where torch keeps them
        copied = storages.get(storage_address(storage)) or absent.add_copy(storage)
        storages[storage_address(storage)] = copied
    memo[id(tensor)] = fake_on(copied, tensor, tensor.fake_mode)
    return memo[id(tensor)]
