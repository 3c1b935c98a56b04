"""Models: NEFFs on a core."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuronxcc.files import read_regular
from neuronxcc.neff.container import MOST_NEFF_BYTES
from neuronxcc.program.interface import TensorInfo
from neuronxcc.status import Status
from nrtpy.dump import dump_inputs, wanted
from nrtpy.errors import NrtpyError
from nrtpy.logs import log
from nrtpy.runtime import Runtime, failed, failing, get_nrtpy_singleton
from nrtpy.tensor import NrtpyTensor, NrtTensor

if TYPE_CHECKING:
    from torch_neuronx.nrt.engine import LoadedNeff
    from torch_neuronx.nrt.memory import Held

MODES: Final = ("device", "host")
_Slot = tuple[str, tuple[int, ...], np.dtype[Any], Any]  # and PyTorch's type of its memory


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output of a model.

    Attributes:
        shape: Extents.
        size: Bytes.
        dtype: NumPy's type of the elements; the documented package does not have it.
    """

    shape: list[int]
    size: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Times of a benchmark, in milliseconds.

    Attributes:
        mean_ms: Mean of `durations_ms`.
        min_ms: Their smallest,
        max_ms: their largest,
        std_dev_ms: and their standard deviation (of a population).
        iterations: How many there are.
        warmup_iterations: Calls before them that were not timed.
        durations_ms: Of each timed call.
    """

    mean_ms: float
    min_ms: float
    max_ms: float
    std_dev_ms: float
    iterations: int
    warmup_iterations: int
    durations_ms: list[float]


class NrtpyModel:
    """A NEFF that is loaded onto a core. Make one with `load_from_neff`.

    Attributes:
        name: For people.
        input_tensors_info: What a call takes, by name.
        output_tensors_info: What it gives, by name.
    """

    def __init__(self, loaded: LoadedNeff, runtime: Runtime, path: Path, name: str) -> None:
        from torch_neuronx.nrt.engine import reports_nan  # noqa: PLC0415 - imports torch
        from torch_neuronx.nrt.memory import reinterpreted  # noqa: PLC0415

        self.name = name
        self.core_id = runtime.devices.index(loaded.core)
        self._runtime, self._loaded, self._path = runtime, loaded, path
        self._run: Callable[[list[Held]], list[Held]] = loaded.run
        self._inputs: list[_Slot] = [_slot(info) for info in loaded.interface.given]
        self._outputs: list[_Slot] = [_slot(info) for info in loaded.interface.outputs]
        self._output_names = [info.name for info in loaded.interface.outputs]
        places = {
            place: number
            for number, place in enumerate(
                p for p in range(len(loaded.interface.inputs)) if p not in loaded.interface.supplied
            )
        }
        self._aliases: list[int | None] = [
            places.get(info.alias) for info in loaded.interface.outputs
        ]
        self._reports_nan = reports_nan()
        self._reinterpreted = reinterpreted
        self.input_tensors_info = {i.name: _metadata(i) for i in loaded.interface.given}
        self.output_tensors_info = {i.name: _metadata(i) for i in loaded.interface.outputs}

    @classmethod
    def load_from_neff(
        cls,
        neff_path: Path | str,
        name: str | None = None,
        core_id: int = 0,
        cc_enabled: bool = False,
        rank_id: int = 0,
        world_size: int = 1,
    ) -> NrtpyModel:
        """Load a NEFF.

        Args:
            neff_path: The file.
            name: For people; None: the file's name without its ending.
            core_id: The core, counted from 0 among the visible ones.
            cc_enabled: Take part in collectives. The ranks meet at NEURON_RT_ROOT_COMM_ID, or as
                torchrun's variables say.
            rank_id: Number of this process among those of the job.
            world_size: How many there are.

        Raises:
            NrtError: 1 the file cannot be read or the others did not come, 2 it is damaged or
                doesn't fit the call, 4 there is no memory for its constants, 9 there is no such
                core, 10 it was made for another machine.
        """
        from torch_neuronx.nrt.engine import LoadedNeff  # noqa: PLC0415 - imports torch

        path = Path(neff_path)
        runtime = get_nrtpy_singleton()
        device = runtime.device(core_id)
        if not 0 <= rank_id < world_size:
            text = f"Failed to load model {path}: there is no rank {rank_id} among {world_size}"
            raise failed(Status.INVALID, "nrt_load_collectives", text)
        function = "nrt_load_collectives" if cc_enabled else "nrt_load"
        with failing(function, f"Failed to load model {path}", Status.FAILURE):
            content = read_regular(path, MOST_NEFF_BYTES, links=True, anyone=True)
            ranks = runtime.join(rank_id, world_size) if cc_enabled else None
            loaded = LoadedNeff(content, device, rank_id, ranks)
        log("INFO", "NRT", function, f"loaded {path} on core {core_id}: {loaded.memory}")
        return cls(loaded, runtime, path, path.stem if name is None else name)

    def __call__(
        self,
        inputs: Mapping[str, NrtpyTensor],
        outputs: Mapping[str, NrtpyTensor] | None = None,
        save_trace: bool = False,
        ntff_name: str | None = None,
    ) -> dict[str, NrtpyTensor] | None:
        """Run the model.

        Args:
            inputs: A tensor for every name in `input_tensors_info`.
            outputs: Tensors that get the results, one for every name in `output_tensors_info`;
                None: new ones are made. The result of an input that the model updates in place
                is that input.
            save_trace: Write what was done when: a Chrome trace, since the format of the vendor's
                NTFF files is not public.
            ntff_name: Where to; None: beside the NEFF, with the ending .ntff.

        Returns:
            The new tensors by name, or None if `outputs` were given.

        Raises:
            NrtpyError: A tensor was freed, or the runtime was closed.
            NrtError: 1002 a tensor is missing, unknown or wrong; 1003 a result is not a number,
                and the environment asks for that error; 1004 and others: the model failed.
        """
        args = self._arguments(inputs)
        if outputs is not None:
            self._check_outputs(outputs)
        results = self._executed(args, inputs, self._trace_path(save_trace, ntff_name))
        return self._given_back(results, inputs, outputs)

    def benchmark(
        self,
        inputs: Mapping[str, NrtpyTensor],
        outputs: Mapping[str, NrtpyTensor] | None = None,
        warmup_iter: int = 5,
        benchmark_iter: int = 5,
        mode: str = "device",
    ) -> BenchmarkResult:
        """Time calls.

        Both modes tell the time of this host. It says nothing about a NeuronCore's.

        Args:
            inputs: As for a call.
            outputs: As for a call.
            warmup_iter: Calls before.
            benchmark_iter: Calls that are timed.
            mode: "device": the program alone, on the emulated core. "host": the whole call, with
                the checks of its arguments and the tensors of its results.

        Raises:
            ValueError: There is no such mode, or a number is too small.
        """
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if benchmark_iter < 1:
            raise ValueError(f"benchmark_iter must be at least 1, got {benchmark_iter}")
        if warmup_iter < 0:
            raise ValueError(f"warmup_iter must not be negative, got {warmup_iter}")
        once = self._timed_program if mode == "device" else self._timed_call
        for _ in range(warmup_iter):
            once(inputs, outputs)
        durations = [once(inputs, outputs) for _ in range(benchmark_iter)]
        return BenchmarkResult(
            statistics.fmean(durations),
            min(durations),
            max(durations),
            statistics.pstdev(durations),
            len(durations),
            warmup_iter,
            durations,
        )

    def _timed_call(
        self, inputs: Mapping[str, NrtpyTensor], outputs: Mapping[str, NrtpyTensor] | None
    ) -> float:
        start = time.perf_counter()
        self(inputs, outputs)
        return 1e3 * (time.perf_counter() - start)

    def _timed_program(
        self, inputs: Mapping[str, NrtpyTensor], outputs: Mapping[str, NrtpyTensor] | None
    ) -> float:
        args = self._arguments(inputs)
        if outputs is not None:
            self._check_outputs(outputs)
        start = time.perf_counter()
        results = self._executed(args, inputs, None)
        elapsed = 1e3 * (time.perf_counter() - start)
        self._given_back(results, inputs, outputs)
        return elapsed

    def _arguments(self, inputs: Mapping[str, NrtpyTensor]) -> list[Held]:
        """The memory of the inputs in their order, checked."""
        if inputs.__class__ is not dict and not isinstance(inputs, Mapping):
            raise TypeError(f"inputs must be tensors by name, got {type(inputs).__name__}")
        args = []
        for name, shape, dtype, held in self._inputs:
            tensor = inputs.get(name)
            if tensor.__class__ is not NrtpyTensor or (
                tensor.shape != shape or tensor.dtype != dtype
            ):
                raise self._wrong("input", inputs, self.input_tensors_info)
            ref = tensor._ref  # noqa: SLF001 - of our own
            data = ref.data if ref.data is not None else ref.memory()
            if data.shape != shape or data.dtype is not held:
                data = self._reinterpreted(data, held, shape)
            args.append(data)
            if ref.core_id != self.core_id:
                raise self._elsewhere("input", name, ref)
        if len(inputs) != len(args):
            raise self._wrong("input", inputs, self.input_tensors_info)
        if self._runtime.closed:
            raise NrtpyError("nrtpy.reset() has closed the model's runtime (NRT_CLOSED(14))")
        return args

    def _check_outputs(self, outputs: Mapping[str, NrtpyTensor]) -> None:
        for name, shape, dtype, _ in self._outputs:
            tensor = outputs.get(name)
            if tensor.__class__ is not NrtpyTensor or (
                tensor.shape != shape or tensor.dtype != dtype
            ):
                raise self._wrong("output", outputs, self.output_tensors_info)
            tensor._ref.memory()  # noqa: SLF001 - says if it was freed
            if tensor._ref.core_id != self.core_id:  # noqa: SLF001
                raise self._elsewhere("output", name, tensor._ref)  # noqa: SLF001
        if len(outputs) != len(self._outputs):
            raise self._wrong("output", outputs, self.output_tensors_info)

    def _executed(
        self,
        args: list[Held],
        inputs: Mapping[str, NrtpyTensor],
        trace: Path | None,
    ) -> list[Held]:
        try:
            if trace is None:
                return self._run(args)
            from torch_neuronx.nrt.engine import traced  # noqa: PLC0415 - imports torch

            return traced(lambda: self._run(args), trace)
        except Exception as error:
            raise self._failed(error, inputs) from error

    def _given_back(
        self,
        results: list[Held],
        inputs: Mapping[str, NrtpyTensor],
        outputs: Mapping[str, NrtpyTensor] | None,
    ) -> dict[str, NrtpyTensor] | None:
        found: dict[str, NrtpyTensor] | None = None
        if outputs is None:
            found = {}
            for (name, shape, dtype, _), alias, data in zip(
                self._outputs, self._aliases, results, strict=True
            ):
                if alias is None:
                    ref = NrtTensor(data, self._runtime, self.core_id)
                else:
                    ref = inputs[self._inputs[alias][0]]._ref  # noqa: SLF001
                found[name] = NrtpyTensor._made(ref, shape, dtype, name)  # noqa: SLF001
        else:
            for name, alias, data in zip(self._output_names, self._aliases, results, strict=True):
                target = outputs[name]._ref  # noqa: SLF001
                if alias is None:
                    target.data = data
                elif target.memory().data_ptr() != data.data_ptr():
                    target.data = data.clone()
        if self._reports_nan:
            self._check_numbers(results, inputs)
        return found

    def _check_numbers(self, results: list[Held], inputs: Mapping[str, NrtpyTensor]) -> None:
        from torch_neuronx.nrt.engine import with_nan  # noqa: PLC0415 - imports torch

        wrong = [self._output_names[number] for number in with_nan(results)]
        if wrong:
            status = Status.EXEC_COMPLETED_WITH_NUM_ERR
            self._loaded.count_failure(status)
            text = f"Failed to execute model {self._path}: NaN in the outputs {', '.join(wrong)}"
            raise self._reported(status, text, inputs)

    def _failed(self, error: Exception, inputs: Mapping[str, NrtpyTensor]) -> Exception:
        from torch_neuronx.nrt.failure import status_of, text_of  # noqa: PLC0415 - imports torch

        status = status_of(error, Status.EXEC_COMPLETED_WITH_ERR, wrong_value=Status.EXEC_BAD_INPUT)
        text = f"Failed to execute model {self._path}: {text_of(error)}"
        return self._reported(status, text, inputs)

    def _reported(self, status: Status, text: str, inputs: Mapping[str, NrtpyTensor]) -> Exception:
        """An error of an execution: logged, and its inputs dumped if that is wanted."""
        log(
            "ERROR", "NMGR", "dlr_infer",
            f"Inference completed with err: {status.value}. start_nc={self.core_id}, nc_count=1",
        )  # fmt: skip
        if wanted(status):
            dump_inputs([inputs[name].numpy() for name, *_ in self._inputs], str(self._path))
        return failed(status, "nrt_execute", text)

    def _elsewhere(self, kind: str, name: str, ref: NrtTensor) -> Exception:
        return failed(
            Status.EXEC_BAD_INPUT,
            "nrt_execute",
            f"Failed to execute model {self._path}: {kind} {name!r} lies on core {ref.core_id}, "
            f"the model on core {self.core_id}",
        )

    def _wrong(
        self, kind: str, given: Mapping[str, Any], wanted: Mapping[str, TensorMetadata]
    ) -> Exception:
        """Says which tensor is missing, unknown or of another type."""
        for name, tensor in given.items():
            if not isinstance(tensor, NrtpyTensor):
                return TypeError(
                    f"{kind} {name!r} must be an NrtpyTensor, got {type(tensor).__name__}; "
                    "NrtpyTensor.from_numpy() makes one of an array"
                )
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted]
        if missing or unknown:
            parts = [f"{kind}s {missing} are missing"] if missing else []
            parts += [f"{unknown} are no {kind}s of it"] if unknown else []
            text = f"{', and '.join(parts)}; they are {list(wanted)}"
        else:
            name, tensor, info = next(
                (name, given[name], info)
                for name, info in wanted.items()
                if (given[name].shape, given[name].dtype) != (tuple(info.shape), info.dtype)
            )
            text = (
                f"{kind} {name!r} must be {info.dtype}{info.shape}, {info.size} bytes, got "
                f"{tensor}, {math.prod(tensor.shape) * tensor.dtype.itemsize} bytes"
            )
        return failed(
            Status.EXEC_BAD_INPUT, "nrt_execute", f"Failed to execute model {self._path}: {text}"
        )

    def _trace_path(self, save_trace: bool, ntff_name: str | None) -> Path | None:
        if not save_trace:
            return None
        return self._path.with_suffix(".ntff") if ntff_name is None else Path(ntff_name)

    def __repr__(self) -> str:
        return f"NrtpyModel({self.name!r}, {self._path}, core {self.core_id})"


def _slot(info: TensorInfo) -> _Slot:
    from torch_neuronx.nrt.memory import device_type  # noqa: PLC0415 - imports torch

    return info.name, info.shape, info.dtype.numpy, device_type(info.dtype.numpy)


def _metadata(info: TensorInfo) -> TensorMetadata:
    return TensorMetadata(list(info.shape), info.nbytes, info.dtype.numpy)
