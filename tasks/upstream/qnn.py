"""Qualcomm's backend of ExecuTorch 1.5.1; in the keys of stages of the target `qnn`."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from .patches import mends


class _Config(ctypes.Structure):
    """`QnnDevice_Config_t`; a custom one points to an option and its value."""

    _fields_ = [("option", ctypes.c_uint32), ("value", ctypes.POINTER(ctypes.c_uint32))]


_CUSTOM = _SOC = 0  # options
_Configs = ctypes.POINTER(ctypes.POINTER(_Config))
_CreateDevice = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, _Configs, ctypes.c_void_p)
# In a `QnnInterface_t`, the backend's id, name and versions come first, then its functions.
_CREATE_DEVICE = 40 + 40 * ctypes.sizeof(ctypes.c_void_p)

_loaded: list[object] = []  # libraries, and functions that they call: they stay until the process ends


@cache
def load(library: Path) -> None:
    """Loads a `libQnnHtp.so` and the library next to it that ExecuTorch uses; raises OSError.

    ExecuTorch opens both by their names, so it finds those that are loaded. It downloads no SDK if QNN_SDK_ROOT is set.
    """
    os.environ.setdefault("QNN_SDK_ROOT", "")
    _loaded.append(ctypes.CDLL(str(library.with_name("libQnnSystem.so")), ctypes.RTLD_GLOBAL))
    htp = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    _loaded.append(htp)
    name_soc_twice(htp)


@mends("compilers of SDKs after 2.37 read another system on chip, and refuse it: error 14001", releases="<=1.5.1")
def name_soc_twice(htp: ctypes.CDLL) -> None:
    """Has `deviceCreate` of a library get the system on chip where SDK 2.37 has it, and where SDK 2.51 has it.

    A union in `QnnHtpDevice_CustomConfig_t` has become larger and moved by four bytes, and ExecuTorch's wheel is built
    for SDK 2.37. Delete once it is built for a later one.
    """
    providers = ctypes.POINTER(ctypes.c_void_p)()
    htp.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(ctypes.c_uint32()))
    slot = (providers[0] or 0) + _CREATE_DEVICE
    page = slot - slot % mmap.PAGESIZE
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    function = ctypes.c_void_p.from_address(slot)
    create: Callable[[Any, Any, Any], int] = _CreateDevice(function.value or 0)

    def create_device(logger: Any, configs: Any, device: Any) -> int:
        given: list[Any] = []
        while configs and configs[len(given)]:
            config = configs[len(given)].contents
            if config.option == _CUSTOM and config.value[0] == _SOC:
                config = _Config(_CUSTOM, (ctypes.c_uint32 * 4)(_SOC, config.value[1], config.value[1]))
            given.append(ctypes.pointer(config))
        return create(logger, (ctypes.POINTER(_Config) * (len(given) + 1))(*given), device)

    replaced = _CreateDevice(create_device)
    _loaded.append(replaced)
    function.value = ctypes.cast(replaced, ctypes.c_void_p).value
