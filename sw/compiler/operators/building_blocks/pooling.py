"""Max pooling fused with a product.

Tiles of non-overlapping windows share no results. Rows shared by two rows of windows are computed
once and carried to the next tile; columns shared by two tiles are recomputed.

If each window has a result that no other window reads, its maximum replaces that result. Results
are then computed in phases: the phase that maxima replace is a tensor with their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import TypeVar

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor

_Item = TypeVar("_Item")
# Row and column of a window; None for the maximum of all its columns.
_Tap = tuple[int, int | None]
# Each phase is a separate product, which takes more instructions.
_MOST_PHASES = 4


@dataclass(frozen=True)
class Phases:
    """An image of ``size`` (rows, columns), divided by the positions of its pixels modulo ``steps``
    (rows, columns): ``parts[r, c]``, (…, rows, columns, BATCH, BLOCK_OUT), has the pixels of rows
    r, r + steps[0], … and columns c, c + steps[1], ….
    """

    size: tuple[int, int]
    steps: tuple[int, int]
    parts: Mapping[tuple[int, int], Tensor]

    @classmethod
    def whole(cls, image: Tensor) -> Phases:
        """An image in one tensor."""
        return cls((image.shape[-4], image.shape[-3]), (1, 1), {(0, 0): image})

    @property
    def divided(self) -> bool:
        """Whether there are steps, even if only one phase is read."""
        return self.steps != (1, 1)

    def row(self, row: int) -> Phases:
        """The image that consists of the rows of one phase."""
        parts = {(0, place[1]): part for place, part in self.parts.items() if place[0] == row}
        height = next(iter(parts.values())).shape[-4]
        return Phases((height, self.size[1]), (1, self.steps[1]), parts)


@dataclass(frozen=True)
class Pooled:
    """The ``stages`` of a pooling, the last of which holds the maxima. Rows of the stages in
    ``carried`` are computed once; those in ``kept`` are read by two tiles.
    """

    stages: list[Tensor]
    carried: list[Tensor]
    kept: list[Tensor]


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

    def steps(self, size: tuple[int, int]) -> tuple[int, int]:
        """The steps of `Phases` in which results of ``size`` (rows, columns) are computed: the
        strides if maxima can then replace results, otherwise (1, 1).
        """
        few = len(self.phases(self.strides)) <= _MOST_PHASES
        return self.strides if few and self._own_tap(size) is not None else (1, 1)

    def phases(self, steps: tuple[int, int]) -> list[tuple[int, int]]:
        """The positions modulo ``steps`` (rows, columns) of the results that windows read."""
        rows, columns = (
            sorted({tap % step for tap in self._taps(d)}) for d, step in enumerate(steps)
        )
        return list(product(rows, columns))

    def operations(self, steps: tuple[int, int]) -> tuple[int, int]:
        """ALU micro-ops per maximum of an image in `Phases`: clears of accumulators, none if maxima
        replace results, and comparisons of two accumulators.
        """
        (height, width), rows, own = self.kernel, self.strides[0], steps != (1, 1)
        if not self.columns_first:
            return 1 - own, height * width - own
        return (rows + 1) * (1 - own), rows * (width - own) + height - own

    def accumulators(self, rows: int, columns: int, steps: tuple[int, int]) -> int:
        """Accumulators, per channel tile, of ``rows`` · ``columns`` maxima, and of the results in
        `Phases` that they are computed from. Carried rows have twice as many copies. ``columns``
        may be an array.
        """
        own = steps != (1, 1)
        found = rows * columns * (1 - own)
        for row, column in self.phases(steps):
            height = self._extent(0, row, steps[0], rows)
            if self.carries:
                first = -(-(self.end(0, 1) - row) // steps[0])
                height = max(self.strides[0] // steps[0], first)
            width = self._extent(1, column, steps[1], columns)
            kept = self.carries and self._is_kept(row, steps[0])
            found = found + height * width
            if not self.columns_first:
                found = found + height * width * kept
            elif not own:
                found = found + 2 * height * columns
            elif self._extent(1, column, steps[1], 1) == 1:
                # Maxima over columns replace one of these phases.
                found = found + height * columns * kept
        return found

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

    def stages(self, image: Phases, env: Environment) -> Pooled:
        """The stages from ``image`` to the maxima. Carried rows hold maxima over the columns of
        each window.
        """
        rows = {row for row, _ in image.parts}
        kept = {row for row in rows if self.carries and self._is_kept(row, image.steps[0])}
        if not self.columns_first:
            parts = [part for (row, _), part in image.parts.items() if row in kept]
            return Pooled(self._of_taps(image, env, "pool", {}), [], parts)
        stages, reduced = list[Tensor](), dict[int, Tensor]()
        own = self._own_tap(image.size) if image.divided else None
        if own is not None:
            # Maxima replace results of these rows, and begin with the carried rows.
            rows.remove((own[0] - self.pads[0]) % image.steps[0])
        for row in sorted(rows):
            part = image.row(row)
            along = Pooling(
                (part.size[0], self.output[1]),
                (1, self.kernel[1]),
                (1, self.strides[1]),
                (0, self.pads[1]),
            )
            name = f"pool_columns{row}" if image.divided else "pool_columns"
            stages += along._of_taps(part, env, name, {})
            reduced[row] = stages[-1]
        whole = self._of_taps(image, env, "pool", reduced)
        return Pooled([*stages, *whole], stages, [reduced[row] for row in sorted(kept)])

    def _of_taps(
        self, image: Phases, env: Environment, name: str, reduced: Mapping[int, Tensor]
    ) -> list[Tensor]:
        """Reduce first the taps that lie within the image for all windows, then the others, so that
        only the latter need separate ALU operations. ``reduced`` are maxima over the columns of
        windows, by the phases of their rows. A window begins with the result that its maximum
        replaces, if there is one, then with the carried row.
        """
        part = next(iter(image.parts.values()))
        shape = (*part.shape[:-4], *self.output, *part.shape[-2:])
        ranges = [self._ranges(dimension, image.size[dimension]) for dimension in (0, 1)]
        inside = [sorted(self._common_taps(d, image.size[d])) for d in (0, 1)]
        names = [name + end for end in self.STAGES]

        def taps(rows: Iterable[int], columns: Iterable[int]) -> list[_Tap]:
            def within(row: int) -> Iterable[int | None]:
                return (None,) if (row - self.pads[0]) % image.steps[0] in reduced else columns

            return [(row, column) for row in rows for column in within(row)]

        own = self._own_tap(image.size) if image.divided else None
        row, column = own or (inside[0][0], inside[1][0])
        # First taps, per range of rows.
        begins = []
        for _, rows in ranges[0]:
            carried = rows[0] if self.carries else row
            begins.append(list(dict.fromkeys(taps([row, carried] if own else [carried], [column]))))
        begun = {tap for some_taps in begins for tap in some_taps}
        middle = [tap for tap in taps(*inside) if tap not in begun]
        # Last taps, per range of rows and range of columns.
        ends = [
            [
                [tap for tap in taps(rows, columns) if tap not in (*some_taps, *middle)]
                for _, columns in ranges[1]
            ]
            for some_taps, (_, rows) in zip(begins, ranges[0], strict=True)
        ]

        def greatest(taps: Iterable[_Tap], i: Sequence[Expr], value: Expr | None = None) -> Expr:
            for tap in taps:
                pixel = self._read(image, reduced, tap, i)
                value = pixel if value is None else te.max(value, pixel)
            assert value is not None
            return value

        first = te.compute(
            shape,
            lambda *i: _chosen(i[-4], ranges[0], begins, lambda some: greatest(some, i)),
            names[0],
        )
        inner = te.compute(shape, lambda *i: greatest(middle, i, first(*i)), names[1])

        def whole(*i: Expr) -> Expr:
            def of_row(taps: Sequence[Sequence[_Tap]]) -> Expr:
                return _chosen(i[-3], ranges[1], taps, lambda some: greatest(some, i, inner(*i)))

            return _chosen(i[-4], ranges[0], ends, of_row)

        return [first, inner, te.compute(shape, whole, names[2])]

    def _read(
        self, image: Phases, reduced: Mapping[int, Tensor], tap: _Tap, i: Sequence[Expr]
    ) -> Expr:
        *channel, h, w, b, k = i
        (down, across), (row, column) = image.steps, tap
        above, place = divmod(row - self.pads[0], down)
        h = h * (self.strides[0] // down) + above
        if column is None:
            return reduced[place](*channel, h, w, b, k)
        left, beside = divmod(column - self.pads[1], across)
        return image.parts[place, beside](*channel, h, w * (self.strides[1] // across) + left, b, k)

    def _taps(self, dimension: int) -> range:
        """The positions that the first window reads, relative to the first result."""
        first = -self.pads[dimension]
        return range(first, first + self.kernel[dimension])

    def _of_phase(self, dimension: int, place: int, step: int) -> int:
        """Distance from the first to the last result of a window among those at positions ``place``
        modulo ``step``.
        """
        taps = [tap for tap in self._taps(dimension) if tap % step == place]
        return max(taps) - min(taps)

    def _extent(self, dimension: int, place: int, step: int, windows: int) -> int:
        """Number of results at positions ``place`` modulo ``step`` that ``windows`` read."""
        distance = (windows - 1) * self.strides[dimension]
        return (distance + self._of_phase(dimension, place, step)) // step + 1

    def _is_kept(self, row: int, step: int) -> bool:
        """Whether two rows of windows read the same results among rows ``row`` modulo ``step``."""
        return self._of_phase(0, row, step) >= self.strides[0]

    def _own_tap(self, size: tuple[int, int]) -> tuple[int, int] | None:
        """The row and column in each window of a result that no other window reads; None if a
        window has none within ``size`` (rows, columns) results.
        """
        found = []
        for dimension in (0, 1):
            step, taps = self.strides[dimension], self.kernel[dimension]
            inside = self._common_taps(dimension, size[dimension])
            found.append(next((tap for tap in range(taps - step, step) if tap in inside), None))
        row, column = found
        return None if row is None or column is None else (row, column)

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


def _chosen(
    index: Expr,
    ranges: Sequence[tuple[int, object]],
    items: Sequence[_Item],
    value: Callable[[_Item], Expr],
) -> Expr:
    """The ``value`` of the item whose range contains ``index``; a range is given by its end."""
    if all(item == items[0] for item in items):
        return value(items[0])
    found = value(items[-1])
    for (end, _), item in reversed(list(zip(ranges[:-1], items[:-1], strict=True))):
        found = te.if_then_else(index < end, value(item), found)
    return found
