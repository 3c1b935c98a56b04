"""Instructions of XLA that are not compiled: why, and what to do instead.

The rest of XLA's instructions (`xla/hlo/ir/hlo_opcode.h`) have an importer.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronxcc.frontends.hlo.errors import RefusedError, unsupported


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an instruction is refused.

    Attributes:
        why: After its name in the message; "" if there is nothing to say but that it is missing.
        remedy: What to do.
        code: NCC_EMOD025 for what makes shapes dynamic, otherwise that of missing operators.
    """

    why: str
    remedy: str
    code: str = ""

    def error(self, opcode: str) -> RefusedError:
        """The error for an instruction."""
        text = f"{opcode}: {self.why}" if self.why else opcode
        if self.code:
            return RefusedError(self.code, f"Dynamic shape is not supported: {text}", self.remedy)
        return unsupported(text, self.remedy)


_STATIC = "pad to a static size and mask"
_DYNAMIC = "NCC_EMOD025"

REFUSED: dict[str, Refusal] = {
    "cholesky": Refusal("", "factorise on the host"),
    "triangular-solve": Refusal("", "multiply by an inverse instead"),
    "fft": Refusal("", "run this part on the CPU, or multiply by a DFT matrix"),
    "infeed": Refusal("programs take parameters only", "pass the data as a parameter"),
    "outfeed": Refusal("programs give results only", "return the data as a result"),
    "send": Refusal("it has no partner within the module", "use collective-permute"),
    "send-done": Refusal("it has no partner within the module", "use collective-permute"),
    "recv": Refusal("it has no partner within the module", "use collective-permute"),
    "recv-done": Refusal("it has no partner within the module", "use collective-permute"),
    "set-dimension-size": Refusal(
        "its result has a size that only the run knows", _STATIC, _DYNAMIC
    ),
    "dynamic-reshape": Refusal("its sizes are values", "reshape to static sizes", _DYNAMIC),
    "ragged-all-to-all": Refusal(
        "its sizes are values", "use all-to-all of parts that are padded to one size", _DYNAMIC
    ),
    "ragged-dot": Refusal(
        "its groups are values", "lower it to dot and masks (jax.lax.ragged_dot does by default)"
    ),
    "rng-get-and-update-state": Refusal(
        "programs keep no state", "pass the state as a parameter and use rng-bit-generator"
    ),
    "scaled-dot": Refusal(
        "", "use the custom call __op$block_scaled_dot, or multiply the operands by their scales"
    ),
    "scan": Refusal("", "write it as a while loop, as jax.lax.scan does"),
    "shuffle": Refusal("", "use a gather or sort by random keys"),
    "stochastic-convert": Refusal(
        "", "convert, and let NEURON_RT_STOCHASTIC_ROUNDING_EN=1 round by chance when it runs"
    ),
    "collective-reduce": Refusal("", "use all-reduce"),
}
