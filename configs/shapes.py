"""Dynamic shapes as users write them: which dimensions of which inputs vary, and within what bounds."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, RootModel, StrictInt, Tag, model_validator

from .base import FrozenModel


class DimRange(FrozenModel):
    """A dimension that varies. Dimensions of the same name are always equal."""

    min: StrictInt = Field(ge=0, description="Least size.")
    max: StrictInt = Field(ge=1, description="Greatest size.")
    name: str | None = Field(
        default=None,
        description="Dimensions of one name are always equal; a Python identifier. null: a dimension of its own.",
    )

    @model_validator(mode="after")
    def _bounds_and_name(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        if self.name is not None and not self.name.isidentifier():
            raise ValueError(f"name {self.name!r} is not a Python identifier")
        return self


def _kind(value: object) -> str | None:
    if value is None:
        return "<static>"
    if isinstance(value, dict):
        return "<dims>"
    return "<nested>" if isinstance(value, list | tuple) else None


DimIndex = Annotated[int, Field(ge=0)]


class InputShape(RootModel[object]):
    """One positional input.

    Attributes:
        root: the varying dimensions by index, for a tensor; None where all is static; or the shapes of the parts, for
            an input that is a tuple or a list.
    """

    model_config = ConfigDict(frozen=True)

    root: Annotated[
        Annotated[None, Tag("<static>")]
        | Annotated[dict[DimIndex, DimRange], Tag("<dims>")]
        | Annotated[tuple[InputShape, ...], Tag("<nested>")],
        Discriminator(
            _kind,
            custom_error_type="input_shape",
            custom_error_message="must be a mapping of dimension index to {min, max, name}, null for a static input, "
            "or a list of these for an input that is a tuple",
        ),
    ]

    def ranges(self) -> list[DimRange]:
        """Every varying dimension, in order."""
        if isinstance(self.root, dict):
            return list(self.root.values())
        return [dim for part in self.root or () for dim in part.ranges()]


def _method_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a method name; it must be a Python identifier, such as forward")
    return name


MethodName = Annotated[str, AfterValidator(_method_name)]

DynamicShapes = dict[MethodName, tuple[InputShape, ...]]
"""Method name to one entry per positional input."""


def check_names(shapes: DynamicShapes) -> DynamicShapes:
    """Raises ValueError where two dimensions of one name have different bounds in the same method."""
    for method, inputs in shapes.items():
        bounds: dict[str, tuple[int, int]] = {}
        for dim in (dim for shape in inputs for dim in shape.ranges()):
            if dim.name and bounds.setdefault(dim.name, (dim.min, dim.max)) != (dim.min, dim.max):
                raise ValueError(f"the dimension {dim.name!r} of {method} has different bounds in two places")
    return shapes
