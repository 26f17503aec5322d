"""Max pooling fused with a product.

Tiles of non-overlapping windows share no results. Rows shared by two rows of windows are computed
once and carried to the next tile; columns shared by two tiles are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor


@dataclass(frozen=True)
class Pooling:
    """Max pooling to ``output`` (rows, columns), with windows ``strides`` apart. The first windows
    begin ``pads`` (rows, columns) before the image; positions outside the image are ignored.
    """

    output: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int] = (0, 0)

    # Suffixes of the stage names; columns that are reduced before rows have the same suffixes.
    STAGES = ("_first", "_inner", "")

    @property
    def operations(self) -> int:
        """ALU micro-ops per maximum: one clears an accumulator, and each tap takes one."""
        height, width = self.kernel
        if self.columns_first:
            return self.strides[0] * (width + 1) + height + 1
        return height * width + 1

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns up to the end of the last window, gaps between windows included."""
        ends = (self.end(dimension, self.output[dimension]) for dimension in (0, 1))
        return next(ends), next(ends)

    @property
    def carries(self) -> bool:
        """Whether a row of windows reads rows of its predecessor."""
        return self.kernel[0] > self.strides[0]

    @property
    def columns_first(self) -> bool:
        """Whether windows are reduced over their columns first and these maxima are carried."""
        return self.carries and self.kernel[1] > 1

    @property
    def rows_without_carry(self) -> int:
        """Rows of results that the first tile computes in addition to those of later tiles."""
        return max(self.end(0, 1) - self.strides[0], 0) if self.carries else 0

    def is_possible(self, size: tuple[int, int]) -> bool:
        """Whether pooling can be fused with a product of ``size`` (rows, columns) results. Carried
        rows must come from the directly preceding tile, of one row of maxima, and all windows must
        have a common tap within the results.
        """
        carried = self.kernel[0] - self.strides[0]
        near = carried <= min(self.strides[0], self.kernel[0] - self.pads[0])
        return near and all(self._common_taps(d, size[d]) for d in (0, 1))

    def end(self, dimension: int, windows: int) -> int:
        """End of the first ``windows`` windows in a dimension."""
        return (
            (windows - 1) * self.strides[dimension] + self.kernel[dimension] - self.pads[dimension]
        )

    def rows(self, rows: int) -> int:
        """Rows of results that a tile of ``rows`` rows of maxima computes."""
        step = self.strides[0]
        return rows * step if self.carries else (rows - 1) * step + self.kernel[0]

    def columns(self, columns: int) -> int:
        return (columns - 1) * self.strides[1] + self.kernel[1]

    def stages(self, image: Tensor, env: Environment) -> list[Tensor]:
        """The stages from ``image`` (…, rows, columns, BATCH, BLOCK_OUT) to the maxima, which the
        last stage holds. Carried rows hold maxima over the columns of each window.
        """
        if not self.columns_first:
            return self._of_taps(image, env, "pool")
        (height, width), (down, across) = self.kernel, self.strides
        columns = Pooling(
            (image.shape[-4], self.output[1]), (1, width), (1, across), (0, self.pads[1])
        )
        rows = Pooling(self.output, (height, 1), (down, 1), (self.pads[0], 0))
        stages = columns._of_taps(image, env, "pool_columns")
        return [*stages, *rows._of_taps(stages[-1], env, "pool")]

    def _of_taps(self, image: Tensor, env: Environment, name: str) -> list[Tensor]:
        """Reduce first the taps that lie within the image for all windows, then the others, so that
        only the latter need separate ALU operations. A window begins with the carried row.
        """
        shape = (*image.shape[:-4], *self.output, *image.shape[-2:])
        ranges = [self._ranges(dimension, image.shape[dimension - 4]) for dimension in (0, 1)]
        inside = (sorted(self._common_taps(d, image.shape[d - 4])) for d in (0, 1))
        common = list(product(next(inside), next(inside)))
        names = [name + end for end in self.STAGES]
        row, column = common[0]
        # First tap, per range of rows.
        begins = [(rows[0] if self.carries else row, column) for _, rows in ranges[0]]
        middle = [tap for tap in common if tap not in begins]

        def begin(*i: Expr) -> Expr:
            if len(set(begins)) == 1:
                return self._read(image, begins[0], i)
            by_row = zip(begins, ranges[0], strict=True)
            return _chosen(i[-4], [(end, self._read(image, tap, i)) for tap, (end, _) in by_row])

        def greatest(value: Expr, taps: Iterable[tuple[int, int]], i: Sequence[Expr]) -> Expr:
            for tap in taps:
                value = te.max(value, self._read(image, tap, i))
            return value

        first = te.compute(shape, begin, names[0])
        inner = te.compute(shape, lambda *i: greatest(first(*i), middle, i), names[1])

        def whole(*i: Expr) -> Expr:
            def of(begun: tuple[int, int], rows: Sequence[int], columns: Sequence[int]) -> Expr:
                done = {begun, *middle}
                others = (tap for tap in product(rows, columns) if tap not in done)
                return greatest(inner(*i), others, i)

            def by_column(begun: tuple[int, int], rows: Sequence[int]) -> Expr:
                return _chosen(i[-3], [(end, of(begun, rows, taps)) for end, taps in ranges[1]])

            by_row = zip(begins, ranges[0], strict=True)
            return _chosen(i[-4], [(end, by_column(begun, taps)) for begun, (end, taps) in by_row])

        return [first, inner, te.compute(shape, whole, names[2])]

    def _read(self, image: Tensor, tap: Sequence[int], i: Sequence[Expr]) -> Expr:
        *channel, h, w, b, k = i
        row, column = (
            index * step + (at - pad)
            for index, step, at, pad in zip((h, w), self.strides, tap, self.pads, strict=True)
        )
        return image(*channel, row, column, b, k)

    def _common_taps(self, dimension: int, size: int) -> set[int]:
        """The taps that are within ``size`` results for all windows."""
        return set.intersection(*(set(taps) for _, taps in self._ranges(dimension, size)))

    def _ranges(self, dimension: int, size: int) -> list[tuple[int, tuple[int, ...]]]:
        """Ranges of windows, each with its end and the taps that are within ``size`` results."""
        begins = [
            window * self.strides[dimension] - self.pads[dimension]
            for window in range(self.output[dimension])
        ]
        taps = [
            tuple(tap for tap in range(self.kernel[dimension]) if 0 <= begin + tap < size)
            for begin in begins
        ]
        found, end = [], 0
        for inside, windows in groupby(taps):
            end += len(list(windows))
            found.append((end, inside))
        return found


def _chosen(index: Expr, ranges: Sequence[tuple[int, Expr]]) -> Expr:
    """The value for the range that contains ``index``; each range is given by its end."""
    *others, (_, value) = ranges
    for end, before in reversed(others):
        value = te.if_then_else(index < end, before, value)
    return value
