"""Where the stages of a zoo run: on this machine, as runs on a Prefect work pool, or on a Dask or Ray cluster."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from .base import Bytes, FrozenModel

Place = Literal["local", "pool", "dask", "ray"]
PLACES: tuple[str, ...] = get_args(Place)


class RunConfig(FrozenModel):
    """Where stages run. Nothing here changes a file, or a stage key.

    Fields that the place does not use are ignored, so that ``--on`` can choose between several that a zoo prepares.
    """

    on: Place = Field(
        "local",
        description="`local`: worker processes of this machine. `pool`: a flow run for each model, on a Prefect work "
        "pool. `dask`, `ray`: stages as tasks of a cluster.",
    )
    pool: str | None = Field(None, min_length=1, description="With `pool`: name of the work pool.")
    address: str | None = Field(
        None,
        min_length=1,
        examples=["tcp://scheduler:8786", "ray://head:10001"],
        description="With `dask` and `ray`: address of a running cluster; left out: a cluster on this machine, for "
        "this run only.",
    )
    workers: int | None = Field(
        None, ge=1, description="With `dask` and `ray`: processes of the cluster on this machine; left out: 2."
    )

    memory: Bytes | None = Field(
        None,
        examples=["12GiB"],
        description="Memory that stages may need together, as predicted; others wait. Processes of a cluster that the "
        "run starts share it, those of a cluster at `address` and runs on a work pool have it each. Left out: 80 % of "
        "the machine's or the container's.",
    )

    @property
    def processes(self) -> int | None:
        """How many processes run stages; None where that is the cluster's or the pool's to decide."""
        if self.on == "local":
            return 1
        return None if self.on == "pool" or self.address else self.workers or 2

    @field_validator("address")
    @classmethod
    def _has_scheme(cls, address: str | None) -> str | None:
        if address is not None and "://" not in address:
            raise ValueError(f"{address!r} has no scheme; write tcp://HOST:8786 for Dask, ray://HOST:10001 for Ray")
        return address

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.on == "pool" and self.pool is None:
            raise ValueError("'on: pool' needs the name of the work pool, such as `pool: forge`")
        if self.address and self.workers:
            raise ValueError("the cluster at 'address' has workers of its own; leave out one of 'address', 'workers'")
        return self
