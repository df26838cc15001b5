"""The configuration of a proteus checkpoint: what `config.json` says under `quantization_config`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from transformers.utils.quantization_config import QuantizationConfigMixin

from assay.errors import InputError
from assay.methods.proteus.incoherence import Kind
from assay.methods.proteus.trellis import BITS, Trellis

METHOD = "proteus"
# Raised when a checkpoint is written that an older reader would misunderstand.
FORMAT = 1
TILE = 16
LAYOUT = "le-window"
GENERATOR = "mulbal-v1"
DEFAULT_WINDOW = 12
# With some ten thousand tokens of calibration text, errors on other text are lower than at the usual 0.01.
DEFAULT_DAMP = 0.03
# A trellis step of `bits` must fit in the window, and a state in the 16 bits that the kernels load.
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 16
_KINDS = ("auto", *get_args(Kind))


class ProteusConfig(QuantizationConfigMixin):
    """How the linear layers of a model are, or are to be, quantized.

    Args:
        bits: bits a weight: 2, 3 or 4.
        window: bits of a trellis state. The encoder's time doubles with every bit; 12 takes minutes for a
            model of 10^8 weights, and 16 gives the lowest error (about 5% below 12). The decoder does not
            care.
        rht: the kind of orthogonal transform, or "auto" for the best that fits each dimension.
        pool: the generators that layers choose from: "v1", the vetted pool, or "single", its first member.
        damp: share of the mean diagonal that is added to a layer's second moment.
        compensate: fit channel scales after encoding.
        distill: what was, or is to be, distilled: None, "block", "e2e" or "both".
        modules_to_not_convert: paths of the linear modules that stay as they are.
        seed: of the random signs and samples.
        format: version of the checkpoint format.
        tile: rows and columns of a tile.
        layout: how the bits of a tile are laid out.
        generator: the family of generators that the layers' records belong to.

    Raises:
        InputError: a value is not supported; the message says what is.
    """

    def __init__(
        self,
        bits: int = 2,
        window: int = DEFAULT_WINDOW,
        *,
        rht: Literal["auto"] | Kind = "auto",
        pool: str = "v1",
        damp: float = DEFAULT_DAMP,
        compensate: bool = True,
        distill: str | None = None,
        modules_to_not_convert: Iterable[str] | None = None,
        seed: int = 0,
        format: int = FORMAT,
        tile: Iterable[int] = (TILE, TILE),
        layout: str = LAYOUT,
        generator: str = GENERATOR,
        quant_method: str = METHOD,
        **unknown: Any,
    ) -> None:
        self.quant_method = quant_method  # pyright: ignore[reportAttributeAccessIssue]
        self.format = format
        self.bits = bits
        self.window = window
        self.tile = list(tile)
        self.layout = layout
        self.generator = generator
        self.rht: Literal["auto"] | Kind = rht
        self.pool = pool
        self.damp = damp
        self.compensate = compensate
        self.distill = distill
        self.modules_to_not_convert = None if modules_to_not_convert is None else list(modules_to_not_convert)
        self.seed = seed
        self._check(unknown)

    @property
    def trellis(self) -> Trellis:
        """The trellis of a tile."""
        return Trellis(window=self.window, bits=self.bits, length=TILE * TILE)

    def _check(self, unknown: dict[str, Any]) -> None:
        if self.quant_method != METHOD:
            raise InputError(f"quant_method {self.quant_method!r} is not {METHOD!r}")
        # The version is looked at first: the other fields may mean something else in another one.
        if self.format != FORMAT:
            raise InputError(
                f"this checkpoint has proteus format {self.format!r}; this assay reads format {FORMAT}: "
                "upgrade assay (pip install --upgrade assay), or quantize the model again"
            )
        if self.generator != GENERATOR:
            raise InputError(
                f"this checkpoint uses generators {self.generator!r}; this assay knows {GENERATOR!r}: "
                "upgrade assay (pip install --upgrade assay)"
            )
        if self.layout != LAYOUT or self.tile != [TILE, TILE]:
            raise InputError(
                f"tiles {self.tile} in layout {self.layout!r} are not supported; only [{TILE}, {TILE}] in "
                f"{LAYOUT!r}"
            )
        if unknown:
            raise InputError(
                f"the proteus configuration has unknown fields {', '.join(sorted(unknown))}: upgrade assay, "
                "or remove them"
            )
        if self.bits not in BITS:
            raise InputError(f"bits={self.bits!r} is not supported; use {', '.join(map(str, BITS))}")
        if isinstance(self.window, bool) or not isinstance(self.window, int):
            raise InputError(f"window={self.window!r} is not a whole number")
        if not SHORTEST_WINDOW <= self.window <= LONGEST_WINDOW:
            raise InputError(
                f"window={self.window} is not supported; use {SHORTEST_WINDOW} to {LONGEST_WINDOW} bits"
            )
        if self.rht not in _KINDS:
            raise InputError(f"rht={self.rht!r} is not a kind of transform; use one of {', '.join(_KINDS)}")
        if self.pool not in ("v1", "single"):
            raise InputError(f"pool={self.pool!r} is unknown; use 'v1' or 'single'")
        if not 0 < self.damp < 1:
            raise InputError(f"damp={self.damp} is out of range; use a small positive number such as 0.03")
        if self.distill not in (None, "block", "e2e", "both"):
            raise InputError(f"distill={self.distill!r} is unknown; use None, 'block', 'e2e' or 'both'")
