"""The output of an evaluation, as metric functions take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, overload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import SupportsIndex

    import numpy.typing as npt


EvalValue: TypeAlias = "npt.NDArray[Any] | tuple[EvalValue, ...]"
"""An array, or a tuple of them where a model has several outputs; tuples may nest."""


# eq=False: comparing arrays gives an array, not a bool. Not frozen: metric code assigns (-100 labels replaced, say).
@dataclass(eq=False)
class EvalPrediction:
    """Evaluation output, always with labels, for computing metrics.

    It iterates, unpacks, indexes and slices like the tuple of what is present, in the order
    ``(predictions, label_ids, inputs, losses)``. What is None is left out and what follows moves up: with losses and
    no inputs the tuple is ``(predictions, label_ids, losses)``, so index 2 is the losses. Use the attributes where it
    matters which one is meant.

    Example:
        ``predictions, labels = EvalPrediction(logits, labels)``

    Raises:
        TypeError: ``predictions`` or ``label_ids`` is None.
    """

    predictions: EvalValue
    """The model's outputs: an array of any shape (its first axis usually the examples), or a tuple of arrays."""
    label_ids: EvalValue
    """The labels: an array or a tuple of arrays."""
    inputs: EvalValue | None = None
    """The inputs, if kept."""
    losses: EvalValue | None = None
    """The loss of each example or batch, if kept."""

    def __post_init__(self) -> None:
        for name in ("predictions", "label_ids"):
            if getattr(self, name) is None:
                raise TypeError(f"EvalPrediction needs {name}: got None (leave out only inputs and losses)")

    @property
    def elements(self) -> tuple[EvalValue, ...]:
        """The tuple of what is present; it follows later assignments to the attributes."""
        optional = (value for value in (self.inputs, self.losses) if value is not None)
        return (self.predictions, self.label_ids, *optional)

    def __iter__(self) -> Iterator[EvalValue]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    @overload
    def __getitem__(self, index: SupportsIndex) -> EvalValue: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[EvalValue, ...]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> EvalValue | tuple[EvalValue, ...]:
        return self.elements[index]
