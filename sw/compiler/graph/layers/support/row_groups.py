"""Which rows of an operand belong to which rows of a tensor: `row_groups`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .layer import Unsupported


def row_groups(
    shape: Sequence[int], operand: Sequence[int] | None, what: str
) -> tuple[int, int, int]:
    """Number of groups, positions, and heads. Positions are the product of the dimensions that
    ``shape`` shares with ``operand``, except the last; groups are the product of the dimensions
    before them, and heads of the dimensions after them. A row of ``operand`` belongs to all groups
    and heads of its position. Raises `Unsupported`; ``what`` names the operand.
    """
    if operand is None or operand[-1:] != shape[-1:] or len(operand) > len(shape):
        raise Unsupported(f"{what} have no fixed shape, or other rows than its input")
    own = [1] * (len(shape) - len(operand)) + list(operand)
    shared = [axis for axis, size in enumerate(own[:-1]) if size > 1]
    begin, end = (shared[0], shared[-1] + 1) if shared else (0, 0)
    if own[begin:end] != list(shape[begin:end]):
        raise Unsupported("rows of one position are not next to each other")
    return prod(shape[:begin]), prod(shape[begin:end]), prod(shape[end:-1])
