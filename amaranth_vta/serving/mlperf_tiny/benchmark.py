"""A network of MLPerf Tiny on a device: its inferences, and the time that they take."""

from __future__ import annotations

import time

from amaranth_vta.session import Session

from .tasks import TinyNetwork


class Benchmark:
    """Runs ``network``, whose file the ``session`` has opened.

    With a clock of ``mhz``, time is virtual: it advances by the machine's cycles and by nothing
    else. Without a clock it is real. `stop`, which another thread may call, ends `infer` after the
    inference in progress.
    """

    def __init__(self, network: TinyNetwork, session: Session, mhz: float | None) -> None:
        self.network = network
        self._session, self._mhz = session, mhz
        self._virtual_us, self._stopped = 0.0, False
        self.results: list[float] = []

    @property
    def microseconds(self) -> int:
        """The time, from any origin."""
        return int(time.monotonic() * 1e6 if self._mhz is None else self._virtual_us)

    def infer(self, sent: bytes, count: int) -> None:
        """Run ``count`` inferences of the input that the runner ``sent``, and keep the results of
        the last one.

        In virtual time, and if the network has no variables, a single inference is simulated, since
        all have the same results and cycles. Raises `VtaError`.
        """
        (name, info), *_ = self._session.inputs.items()
        inputs = {name: self.network.quantized(sent).reshape([size or 1 for size in info.shape])}
        repeats = self._mhz is None or self._session.program.has_variables
        before, runs = self._session.cycles or 0, 0
        self._stopped = False
        while runs < (count if repeats else min(count, 1)) and not self._stopped:
            (output,) = self._session.run(inputs).values()
            runs += 1
        if runs:
            self.results = self.network.results(output, sent)
        if runs and self._mhz is not None:
            cycles = (self._session.cycles or 0) - before
            self._virtual_us += cycles * count / runs / self._mhz

    def stop(self) -> None:
        self._stopped = True
