"""What custom operators are made of: functions that plans and estimates look into.

Whoever registers an operator that is a function of others (`torch_neuronx.nki_op`) enters it here.
Nothing is imported, so that no mode loads the kernel language, and no kernel the modes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

#: By operator (`torch._ops.OpOverload`): its function, whose operators stand for it.
BODIES: Final[dict[Any, Callable[..., Any]]] = {}
