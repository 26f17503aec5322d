"""Parameters of a machine, their limits, and derived quantities.

Hardware, compiler, runtime and simulators take every width, depth and size from a `Config`. Its
JSON form uses the keys of the published ``vta_config.json``.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from amaranth_vta.errors import VtaError

from . import isa
from .index_widths import fitting_widths
from .tiles import TileMemory


class ConfigError(VtaError, ValueError):
    """An invalid configuration, or one that does not fit the instruction encoding."""


class _SizeError(ConfigError):
    """Scratchpads of ``config`` that are too small or too large; all other parameters are legal."""

    def __init__(self, text: str, config: Config | None = None) -> None:
        super().__init__(text)
        self.config = config


def _log2(low: int, high: int, default: int, doc: str, later: bool = False) -> Any:
    """A size or width; ``later`` as for an extension."""
    text = f"log2 of the {doc}"
    return field(default=default, metadata={"low": low, "high": high, "doc": text, "later": later})


def _extension(doc: str, later: bool = False) -> Any:
    """A configuration flag that enables an extension. A ``later`` extension, newer than the first
    release of the configuration format, has a key and a register only where it is enabled.
    """
    return field(
        default=0,
        metadata={
            **{"low": 0, "high": 1, "doc": f"1 for {doc}"},
            **{"extension": True, "later": later},
        },
    )


# Per tile, the fields with log2 of its rows, columns and scalar width. Micro-ops have a fixed size.
_TILES = {
    "inp": ("batch", "block_in", "inp_width"),
    "wgt": ("block_out", "block_in", "wgt_width"),
    "acc": ("batch", "block_out", "acc_width"),
    "out": ("batch", "block_out", "out_width"),
}
_SCRATCHPADS = ("uop", "inp", "wgt", "acc")


@dataclass(frozen=True)
class Config:
    """Parameters of one machine. Sizes and widths are base-2 logarithms, as in the JSON file.

    Raises `ConfigError` if a value is out of range, or if a micro-op or an instruction cannot
    encode the resulting indices; the message names the key and the largest buffer that fits.
    """

    log_inp_width: int = _log2(2, 3, 3, "bits of an input scalar")
    log_wgt_width: int = _log2(2, 3, 3, "bits of a weight scalar")
    log_acc_width: int = _log2(4, 5, 5, "bits of an accumulator scalar")
    log_out_width: int = _log2(2, 5, -1, "bits of a stored scalar; as LOG_INP_WIDTH if not given")
    log_batch: int = _log2(0, 4, 0, "rows of the GEMM intrinsic")
    log_block_in: int = _log2(2, 5, 4, "columns that the GEMM intrinsic reduces")
    log_block_out: int = _log2(2, 5, 4, "columns that the GEMM intrinsic produces")
    log_uop_buff_size: int = _log2(3, 18, 15, "bytes of the micro-op buffer")
    log_inp_buff_size: int = _log2(2, 24, 15, "bytes of the input scratchpad")
    log_wgt_buff_size: int = _log2(2, 24, 18, "bytes of the weight scratchpad")
    log_acc_buff_size: int = _log2(2, 24, 17, "bytes of the accumulator scratchpad")
    log_bus_width: int = _log2(6, 9, 6, "bits of the memory bus")
    overwrite: int = _extension("GEMM instructions that set accumulators instead of adding")
    overlap: int = _extension("GEMM and ALU instructions that overlap")
    requantize: int = _extension("an ALU operation that requantizes as ONNX Runtime does")
    pad_value: int = _extension("LOADs that pad with a value that the program sets")
    lookup: int = _extension("an ALU operation that maps bytes through a table of 256")
    counters: int = field(default=1, metadata={"low": 0, "high": 1, "doc": "1 for counters"})
    log_dram_size: int = _log2(12, 46, 46, "bytes of DRAM that the machine can address")
    depthwise: int = _extension("GEMM instructions that take several taps of each channel", True)
    forward: int = _extension("STOREs that write inputs instead of DRAM", True)
    multiply_add: int = _extension("an ALU operation that multiplies and adds", True)
    round_twice: int = _extension("a REQUANTIZE that can round as TensorFlow Lite does", True)
    wgt_4bit: int = _extension("LOADs that expand weights of 4 bits to 8", True)
    log_lane_columns: int = _log2(0, 2, 0, "columns that share a lane of the ALU", later=True)
    log_word_cycles: int = _log2(0, 4, 0, "cycles of the memory per word of the bus", later=True)

    def __post_init__(self) -> None:
        if self.log_out_width == -1:
            object.__setattr__(self, "log_out_width", self.log_inp_width)
        for item in fields(self):
            value, low, high = getattr(self, item.name), item.metadata["low"], item.metadata["high"]
            if type(value) is not int or not low <= value <= high:
                raise ConfigError(
                    f"{item.name.upper()} = {value!r} is not a whole number from {low} to {high} "
                    f"({item.metadata['doc']})"
                )
        if self.log_out_width > self.log_acc_width:
            raise ConfigError(
                f"LOG_OUT_WIDTH = {self.log_out_width} is wider than LOG_ACC_WIDTH = "
                f"{self.log_acc_width}, from which stored scalars are cut"
            )
        if self.requantize and (self.log_acc_width != 5 or self.log_out_width > 3):
            raise ConfigError(
                f"REQUANTIZE makes 8-bit results of 32-bit accumulators: LOG_ACC_WIDTH = "
                f"{self.log_acc_width} and LOG_OUT_WIDTH = {self.log_out_width} must be 5, and at "
                "most 3"
            )
        if self.multiply_add > self.requantize:
            raise ConfigError("MULTIPLY_ADD needs the multipliers of REQUANTIZE, which must be 1")
        if self.round_twice > self.requantize:
            raise ConfigError("ROUND_TWICE is a flag of REQUANTIZE, which must be 1")
        if self.log_lane_columns and not self.requantize:
            raise ConfigError("LOG_LANE_COLUMNS shares lanes with REQUANTIZE, which must be 1")
        if self.wgt_4bit and self.log_wgt_width != 3:
            raise ConfigError(
                f"WGT_4BIT expands weights to 8 bits: LOG_WGT_WIDTH = {self.log_wgt_width} must be "
                "3"
            )
        for name in _SCRATCHPADS:
            self._check_depth(name)
        self._check_encoding()
        if self.lookup and self.acc.depth < self.table_elements:
            raise _SizeError(
                f"LOOKUP reads tables of {self.table_elements} accumulators, and LOG_ACC_BUFF_SIZE "
                f"= {self.log_acc_buff_size} holds {self.acc.depth}",
                self,
            )
        if self.forward and self.inp.element_bits != self.out.element_bits:
            raise ConfigError(
                f"FORWARD makes inputs of {self.inp.element_bits} bits of results of "
                f"{self.out.element_bits}: with blocks or widths that differ it must be 0"
            )
        if self.inp.depth < self.taps:
            raise _SizeError(
                f"DEPTHWISE reads {self.taps} inputs at once, and LOG_INP_BUFF_SIZE = "
                f"{self.log_inp_buff_size} holds {self.inp.depth}",
                self,
            )

    def _log_tile(self, name: str) -> tuple[int, int, int]:
        """log2 of the rows, columns and scalar width of a tile."""
        if name == "uop":
            return 0, 0, (isa.UOP_WIDTH - 1).bit_length()
        rows, columns, width = (getattr(self, f"log_{part}") for part in _TILES[name])
        return rows, columns, width

    @cached_property
    def _packed_wgt(self) -> TileMemory:
        return replace(self.wgt, scalar_width=4)

    def _tile_memory(self, name: str) -> TileMemory:
        rows, columns, width = (1 << log for log in self._log_tile(name))
        depth = 1 << self._index_widths()["acc" if name == "out" else name]
        return TileMemory(name.upper(), rows, columns, width, depth)

    def _log_element_bytes(self, name: str) -> int:
        return sum(self._log_tile(name)) - 3

    def _check_depth(self, name: str) -> None:
        key = f"log_{name}_buff_size"
        size, element = getattr(self, key), self._log_element_bytes(name)
        most = element + isa.SRAM_BASE_WIDTH
        if not element < size <= most:
            raise _SizeError(
                f"{key.upper()} = {size} does not fit: with elements of {1 << element} bytes it "
                f"can be {element + 1} to {most} (2 to {1 << isa.SRAM_BASE_WIDTH} elements)",
                self,
            )

    def _check_encoding(self) -> None:
        problem = isa.encoding_problem(self._index_widths())
        if problem is None:
            return
        # Every buffer that can be reduced alone until the encoding fits, smallest reduction first.
        ways = []
        for name in _SCRATCHPADS:
            key = f"log_{name}_buff_size"
            widths = self._index_widths()
            while widths[name] > 1 and isa.encoding_problem(widths) is not None:
                widths[name] -= 1
            if isa.encoding_problem(widths) is None:
                size, most = getattr(self, key), widths[name] + self._log_element_bytes(name)
                ways.append((size - most, f"{key.upper()} = {size} (at most {most} fits)"))
        if ways:
            choices = [text for _, text in sorted(ways)]
            if min(ways)[0] > 1:
                choices += self._reduced_together()
            raise _SizeError(f"{problem}; reduce {' or '.join(choices)}", self)
        together = "".join(f"; reduce {choice}" for choice in self._reduced_together())
        raise _SizeError(
            f"{problem}: LOG_UOP_BUFF_SIZE = {self.log_uop_buff_size}, LOG_INP_BUFF_SIZE = "
            f"{self.log_inp_buff_size}, LOG_WGT_BUFF_SIZE = {self.log_wgt_buff_size} and "
            f"LOG_ACC_BUFF_SIZE = {self.log_acc_buff_size} are too large together; reducing one "
            f"is not enough{together}",
            self,
        )

    def _reduced_together(self) -> list[str]:
        """One choice of several buffers to reduce together until the encoding fits, by the fewest
        bits in total; empty if reducing a single buffer takes no more.
        """
        widths = self._index_widths()
        fitting = fitting_widths(widths, dict.fromkeys(widths, 1), dict.fromkeys(widths, 0))
        reduced = [name for name in fitting or {} if fitting and fitting[name] < widths[name]]
        if fitting is None or len(reduced) < 2:
            return []
        sizes = [
            f"LOG_{name.upper()}_BUFF_SIZE to {fitting[name] + self._log_element_bytes(name)}"
            for name in reduced
        ]
        return [f"{', '.join(sizes[:-1])} and {sizes[-1]} together"]

    def _sizes_that_fit(
        self, fixed: Container[str], wanted: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Buffer sizes, by key, with which the other parameters are legal and index widths are
        close to ``wanted``; sizes in ``fixed`` are kept. None if there are none.
        """
        least = dict.fromkeys(_SCRATCHPADS, 1)
        least["inp"] = max(1, (self.taps - 1).bit_length())
        if self.lookup:
            table = isa.TABLE_BYTES >> self._log_element_bytes("acc")
            least["acc"] = max(1, (table - 1).bit_length())
        widths = self._index_widths()
        keys = {name: f"LOG_{name.upper()}_BUFF_SIZE" for name in _SCRATCHPADS}
        for name in _SCRATCHPADS:
            if keys[name] not in fixed:
                widths[name] = min(max(widths[name], least[name]), isa.SRAM_BASE_WIDTH)
            elif not least[name] <= widths[name] <= isa.SRAM_BASE_WIDTH:
                return None
            else:
                least[name] = widths[name]
        fitting = fitting_widths(widths, least, wanted)
        if fitting is None:
            return None
        return {keys[name]: fitting[name] + self._log_element_bytes(name) for name in keys}

    def _index_widths(self) -> dict[str, int]:
        return {
            name: getattr(self, f"log_{name}_buff_size") - self._log_element_bytes(name)
            for name in _SCRATCHPADS
        }

    @cached_property
    def extensions(self) -> frozenset[str]:
        """Names of the enabled extensions."""
        return frozenset(name for name in EXTENSIONS if getattr(self, name))

    @cached_property
    def batch(self) -> int:
        """Rows of the GEMM intrinsic: of INP, ACC and OUT tiles."""
        return 1 << self.log_batch

    @cached_property
    def block_in(self) -> int:
        """Columns that the GEMM intrinsic reduces: of INP and WGT tiles."""
        return 1 << self.log_block_in

    @cached_property
    def block_out(self) -> int:
        """Columns that the GEMM intrinsic produces: of ACC and OUT tiles, rows of WGT tiles."""
        return 1 << self.log_block_out

    @cached_property
    def inp_width(self) -> int:
        """Bits of an input scalar."""
        return 1 << self.log_inp_width

    @cached_property
    def wgt_width(self) -> int:
        """Bits of a weight scalar."""
        return 1 << self.log_wgt_width

    @cached_property
    def acc_width(self) -> int:
        """Bits of an accumulator scalar."""
        return 1 << self.log_acc_width

    @cached_property
    def out_width(self) -> int:
        """Bits of a stored scalar."""
        return 1 << self.log_out_width

    @cached_property
    def dram_bytes(self) -> int:
        """Bytes of DRAM that the machine can address."""
        return 1 << self.log_dram_size

    @cached_property
    def uop(self) -> TileMemory:
        """Shape of the micro-op buffer."""
        return self._tile_memory("uop")

    @cached_property
    def inp(self) -> TileMemory:
        """Shape of the input scratchpad."""
        return self._tile_memory("inp")

    @cached_property
    def wgt(self) -> TileMemory:
        """Shape of the weight scratchpad."""
        return self._tile_memory("wgt")

    @cached_property
    def acc(self) -> TileMemory:
        """Shape of the accumulator scratchpad."""
        return self._tile_memory("acc")

    @cached_property
    def out(self) -> TileMemory:
        """Shape of the stored low bits of the accumulators."""
        return self._tile_memory("out")

    @property
    def bus_bytes(self) -> int:
        """Bytes per beat of the memory bus."""
        return (1 << self.log_bus_width) // 8

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates of one GEMM micro-op, the peak rate per cycle."""
        return self.batch * self.block_in * self.block_out

    @property
    def lane_columns(self) -> int:
        """Columns that share a lane of the ALU: the cycles of an ALU micro-op."""
        return 1 << self.log_lane_columns

    @property
    def alu_lanes(self) -> int:
        """Lanes of the ALU."""
        return self.batch * self.block_out // self.lane_columns

    @property
    def table_elements(self) -> int:
        """Accumulator elements occupied by a LOOKUP table."""
        return max(1, isa.TABLE_BYTES // self.acc.element_bytes)

    @property
    def taps(self) -> int:
        """Consecutive inputs read by a DEPTHWISE micro-op; 1 without that extension."""
        return min(isa.MOST_TAPS, self.block_in // 2) if self.depthwise else 1

    def alu_sources(self, operation: isa.AluOp) -> int:
        """Consecutive accumulator elements that ``operation`` reads as its second operand."""
        match operation:
            case isa.AluOp.REQUANTIZE:
                return isa.REQUANTIZE_PARAMETERS
            case isa.AluOp.LOOKUP:
                return self.table_elements
        return 1

    def memory(self, memory: isa.Memory) -> TileMemory:
        """Shape of ``memory`` on the DRAM side of a LOAD or STORE."""
        match memory:
            case isa.Memory.ACC_8BIT:
                return self.out
            case isa.Memory.WGT_4BIT:
                return self._packed_wgt
        tile: TileMemory = getattr(self, memory.name.lower())
        return tile

    def to_dict(self) -> dict[str, int]:
        """All parameters by the keys of ``vta_config.json``; later ones only if not 0."""
        values = {item: getattr(self, item.name) for item in fields(self)}
        return {
            item.name.upper(): value
            for item, value in values.items()
            if value or not item.metadata.get("later")
        }

    def to_json(self) -> str:
        """The text of a ``vta_config.json`` with all parameters."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """Build a configuration from the keys of ``vta_config.json``, with defaults for missing
        keys.

        ``LOG_BLOCK`` sets both blocks. Published keys that do not affect the machine are ignored.
        Raises `ConfigError` for unknown keys and invalid values.
        """
        known = {item.name.upper(): item.name for item in fields(cls)}
        arguments: dict[str, Any] = {}
        for key, value in values.items():
            if key in known:
                arguments[known[key]] = value
            elif key != "LOG_BLOCK" and key not in _KEYS_WITHOUT_MEANING:
                raise ConfigError(
                    f"{key!r} is not a configuration key; the keys are {', '.join(known)} and "
                    "LOG_BLOCK"
                )
        if "LOG_BLOCK" in values:
            block = values["LOG_BLOCK"]
            for name in ("log_block_in", "log_block_out"):
                if arguments.setdefault(name, block) != block:
                    raise ConfigError(
                        f"LOG_BLOCK = {block!r} contradicts {name.upper()} = {arguments[name]!r}"
                    )
        return cls(**arguments)

    def changed(self, values: Mapping[str, int]) -> Config:
        """Copy of this configuration with ``values`` replaced, by the keys of ``vta_config.json``.

        A scratchpad not named in ``values`` keeps its size in bytes if possible. Otherwise it grows
        to the minimum that the machine supports, or these scratchpads shrink until instructions and
        micro-ops can encode their indices: by the fewest bits in total, with depths close to the
        old ones. Raises `ConfigError` as `from_dict` does.
        """
        merged = {key: value for key, value in self.to_dict().items() if key not in values}
        if "LOG_BLOCK" in values:
            merged = {key: merged[key] for key in merged if not key.startswith("LOG_BLOCK_")}
        merged |= values
        try:
            return Config.from_dict(merged)
        except _SizeError as error:
            refused = error.config
            assert refused is not None
            sizes = refused._sizes_that_fit(values, self._index_widths())
            if sizes is None:
                raise
        return Config.from_dict(merged | sizes)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Parse the text of a ``vta_config.json``; raises `ConfigError` as `from_dict` does."""
        try:
            values = json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the configuration is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("the configuration is not a JSON object of keys and whole numbers")
        return cls.from_dict(values)

    @classmethod
    def load(cls, name_or_path: str) -> Config:
        """Load a preset by name, or else a file by path; raises `ConfigError`."""
        if name_or_path in PRESETS:
            return PRESETS[name_or_path]
        path = Path(name_or_path)
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise ConfigError(f"{path} is too long for a configuration")
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not a text file of JSON") from None
        except OSError as error:
            raise ConfigError(
                f"{name_or_path} is neither a preset ({', '.join(PRESETS)}) nor a file that can be "
                f"read: {error.strerror}"
            ) from None
        try:
            return cls.from_json(text)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """``object_pairs_hook`` of `json.loads` that raises `ValueError` for a duplicate key, where
    `json` would silently keep only one value.
    """
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"it has the key {key!r} twice")
        values[key] = value
    return values


# Read limit for a configuration file, since files such as /dev/zero never end.
_MAX_BYTES = 1 << 20

# Keys of published configuration files that do not affect the machine or follow from other keys.
_KEYS_WITHOUT_MEANING = frozenset(
    {"TARGET", "HW_VER", "HW_FREQ", "HW_CLK_TARGET", "LOG_OUT_BUFF_SIZE"}
)

PYNQ = Config()
_TINY = Config(
    log_block_in=2,
    log_block_out=2,
    log_uop_buff_size=10,
    log_inp_buff_size=9,
    log_wgt_buff_size=10,
    log_acc_buff_size=11,
)
EXTENSIONS = tuple(item.name for item in fields(Config) if item.metadata.get("extension"))
_ALL = dict.fromkeys(EXTENSIONS, 1)
# The extensions that quantized networks need on a small machine.
_FOR_NETWORKS = dict.fromkeys(
    ("overwrite", "requantize", "pad_value", "lookup", "depthwise", "round_twice"), 1
)

PRESETS: dict[str, Config] = {
    # A few dozen elements per scratchpad: for tests and for reading waveforms.
    "tiny": _TINY,
    # More inputs than outputs per tile, and two rows, so that no square shape hides a swapped axis.
    "batch2": Config(
        log_batch=1,
        log_block_in=3,
        log_block_out=2,
        log_uop_buff_size=12,
        log_inp_buff_size=12,
        log_wgt_buff_size=13,
        log_acc_buff_size=13,
    ),
    # Four-bit inputs and weights, packed two per byte.
    "int4": Config(
        log_inp_width=2,
        log_wgt_width=2,
        log_uop_buff_size=12,
        log_inp_buff_size=12,
        log_wgt_buff_size=14,
        log_acc_buff_size=15,
    ),
    # VTA's published configuration, without extensions: 1 x 16 x 16 on a Zynq-7020.
    "pynq": PYNQ,
    "pynq-extended": replace(PYNQ, **_ALL),
    # A small machine for tests of the extensions.
    "tiny-extended": replace(_TINY, **_ALL),
    # For an ECP5-25F: scratchpads fill block RAMs; parts that networks can do without are missing.
    "ecp5-25f": Config(
        log_block_in=2,
        log_block_out=2,
        log_uop_buff_size=11,
        log_inp_buff_size=11,
        log_wgt_buff_size=13,
        log_acc_buff_size=13,
        counters=0,
        log_dram_size=25,
        **_FOR_NETWORKS,
    ),
    # For an ECP5-85F with SDRAM, which FORWARD relieves. Decision records 59, 85 and 87.
    "ecp5-85f": Config(
        log_block_in=3,
        log_block_out=3,
        log_uop_buff_size=12,
        log_inp_buff_size=14,
        log_wgt_buff_size=15,
        log_acc_buff_size=15,
        log_dram_size=25,
        overlap=1,
        forward=1,
        log_lane_columns=1,
        log_word_cycles=2,
        **_FOR_NETWORKS,
    ),
    # 1,024 multiply-accumulates per cycle on a 128-bit bus.
    "block32": replace(
        PYNQ, log_block_in=5, log_block_out=5, log_inp_buff_size=16, log_bus_width=7
    ),
}

# Preset used where no configuration is named; decision record 17.
DEFAULT = "pynq-extended"
