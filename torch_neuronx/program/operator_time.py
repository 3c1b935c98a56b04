"""TORCH_NEURONX_CLOCK=model: what operators of eager mode and collectives are predicted to take.

The native core tells kinds of calls apart and counts them (`csrc/dispatch/predicting.h`). A thread
of this module asks, once for a kind, what such a call takes; a process of its own answers, by
`torch_neuronx.estimate` (`torch_neuronx/estimation/answering.py`). Nobody waits for that: what ran
until then is counted when it is known.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from neuronxcc.environment.machine import LOCAL_WORLD_SIZE
from neuronxcc.environment.observation import NEURON_RT_INSPECT_ENABLE, TORCH_NEURONX_FAULTS
from neuronxcc.environment.tools import (
    NEURON_EMULATED_INSTANCE_TYPE,
    TORCH_NEURONX_CLOCK,
    TORCH_NEURONX_REGISTRY_DIR,
)
from torch_neuronx import _C
from torch_neuronx._config import machine
from torch_neuronx.program.model_time import keeper, said

if TYPE_CHECKING:
    from neuron_tools.registry.predicted import Keeper

_LOG = logging.getLogger(__name__)


def settle(seconds: float = 60.0) -> None:
    """Wait until all that ran so far has its prediction.

    Raises:
        TimeoutError: It takes longer.
    """
    until = time.monotonic() + seconds
    while _C.unpredicted_operators():
        if time.monotonic() > until:
            raise TimeoutError(f"operators had no predicted time after {seconds:g} s")
        time.sleep(0.002)


def start() -> None:
    """Count from now on; called by the first use of the device."""
    kept = keeper()
    if kept is None:
        return
    _C.predict_operators(
        executions=kept.executions, unpredicted=kept.unpredicted, stride=kept.stride
    )
    answers = _Answers()
    thread = threading.Thread(
        target=_predict_all, args=(kept, answers), name="neuron-predictions", daemon=True
    )
    thread.start()

    def stop() -> None:
        _C.stop_predicting()
        answers.end()
        thread.join()
        answers.forget()

    atexit.register(stop)


def _predict_all(kept: Keeper, answers: _Answers) -> None:
    while (kind := _C.next_operator()) is not None:
        number, name, about = kind
        places = None
        try:
            ns = round(1000 * answers.us(_question(name, about)))
            places = kept.times(ns, latency=not isinstance(about, tuple))
        except (NoPredictionError, OSError, ValueError) as error:
            if answers.closed:
                return
            # Not a warning: one that is an error would end this thread.
            if text := said("operator", name, str(error)):
                _LOG.warning(text)
        _C.predict_operator(number, places)


class NoPredictionError(ValueError):
    """Nobody can say what a call takes; the text says why."""


# What the process that answers does not do as this one does: be seen by the tools, be profiled,
# fail on demand, import modules from where this one was started.
_OTHERWISE: Final = {
    TORCH_NEURONX_CLOCK.name: "host", TORCH_NEURONX_REGISTRY_DIR.name: "off",
    NEURON_RT_INSPECT_ENABLE.name: "0", TORCH_NEURONX_FAULTS.name: "", "OMP_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",
}  # fmt: skip


_PROGRAM: Final = "from torch_neuronx.estimation.answering import main; main()"


class _Answers:
    """The process that answers, started by the first question."""

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def us(self, question: Mapping[str, Any]) -> float:
        """Ask for microseconds.

        Raises:
            NoPredictionError: There are none.
            OSError: The process cannot be started, or has ended.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            if not self.closed:
                self.forget()  # the next question starts another one
            raise OSError("the process that predicts has ended")
        found = json.loads(line)
        if "error" in found:
            raise NoPredictionError(found["error"])
        return float(found["us"])

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self.closed:
                raise OSError("the process ends")
            if self._process is None:
                self._process = subprocess.Popen(  # noqa: S603 - this Python
                    [sys.executable, "-c", _PROGRAM],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    text=True, env={**os.environ, **_OTHERWISE},
                )  # fmt: skip
            return self._process

    def end(self) -> None:
        """End it, whatever it does; who waits for an answer is told that there is none."""
        with self._lock:
            self.closed = True
            if self._process is not None:
                self._process.kill()

    def forget(self) -> None:
        """Give up what belongs to a process that has ended."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of a question that nobody has read
                pipe.close()


def _question(name: str, about: str | tuple[int, int, list[int]] | list[Any]) -> dict[str, Any]:
    """A kind of calls in words of JSON.

    Args:
        name: Of the operator with its overload, or of a collective.
        about: Why nothing can be predicted; of a collective the bytes that are read and written and
            the ranks of its group; of an operator its arguments.
    """
    here = machine()
    asked: dict[str, Any] = {"target": here.target.name, "lnc": here.lnc}
    if isinstance(about, str):
        raise NoPredictionError(about)
    if isinstance(about, list):
        known: dict[torch.Tensor, int] = {}
        return asked | {"operator": name, "arguments": [_plain(one, known) for one in about]}
    read, written, ranks = about
    return asked | {
        "collective": "recv" if name == "receive" else name, "read": read, "written": written,
        "ranks": ranks, "instance": NEURON_EMULATED_INSTANCE_TYPE.text() or None,
        "world_size": max(dist.get_world_size() if dist.is_initialized() else 1, 1 + max(ranks)),
        "ranks_per_instance": int(LOCAL_WORLD_SIZE.text() or 0) or None,
    }  # fmt: skip


def _plain(value: Any, known: dict[torch.Tensor, int]) -> Any:
    """An argument in words of JSON; a tensor that comes again has its number."""
    if isinstance(value, torch.Tensor):
        number = known.setdefault(value, len(known))
        dtype = str(value.dtype).removeprefix("torch.")
        meta = value.device.type == "meta"
        return {"tensor": [number, list(value.shape), list(value.stride()), dtype, meta]}
    if isinstance(value, (list, tuple)):
        return [_plain(item, known) for item in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NoPredictionError(f"an argument is {type(value).__name__}")
