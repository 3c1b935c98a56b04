"""The dispatch mode under which a rank runs without its memory and without its peers.

Tensors on `neuron` are PyTorch's fake tensors: shapes, types and devices without memory. What a
script keeps its books in stays real, so that unmodified scripts run: tensors on the host up to a
size, and small integers on the device (sizes, flags, token counts). `PlanMode._run` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
    _create_work_from_future,
)
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_neuronx._operator_bodies import BODIES
from torch_neuronx.distributed.planning import collectives
from torch_neuronx.distributed.planning.collectives import SPECS, Collective
from torch_neuronx.distributed.planning.errors import PlanError
from torch_neuronx.distributed.planning.progress import Progress

#: Told of an operator that ran: it, its arguments, those by name, what it gave, and the collective
#: that it was.
Watcher = Callable[[Any, Sequence[object], Mapping[str, object], object, Collective | None], None]

_PLAIN = {Tensor, FakeTensor, torch.nn.Parameter, torch.nn.Buffer}
# The largest tensor of floating point that is made for real on the host, and the largest copy of
# the device's contents there: batches and metrics, not models.
REAL_HOST_BYTES = 1 << 20
REAL_COPY_BYTES = 16 << 20
# The largest tensor of integers that is made for real on the device.
REAL_DEVICE_BYTES = 64 << 10

_aten = torch.ops.aten
_wait = torch.ops._c10d_functional.wait_tensor.default
# Operators whose arguments are memory that FSDP frees and restores by resizing.
_FSDP = {"fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat"}


def _exact(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


class PlanMode(TorchDispatchMode):
    """Runs operators on fake tensors, and notes memory and collectives.

    Attributes:
        progress: Where the script is, and its memory.
        issued: The collectives so far, in order.
        watchers: Told of every operator, in order.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.progress = progress
        self.issued: list[Collective] = []
        self.watchers: list[Watcher] = []
        self._groups: set[str] = set()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._memo = self._fake.fake_tensor_converter.meta_converter.tensor_memo

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run one operator; subclasses of tensors (DTensor) take it apart first."""
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if active_fake_mode() is not None:
            return func(*args, **kwargs)  # PyTorch asks itself for shapes, as DTensor does
        body = BODIES.get(func)
        if body is not None:
            with self:  # the operators that it is made of are seen in its place
                return body(*args, **kwargs)
        return self._noted(func, args, kwargs)

    def _noted(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Run an operator, and note what it did."""
        self.progress.notice()
        memory = self.progress.memory
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        memory.look()
        if func is _wait:
            return args[0]
        spec = SPECS.get(func)
        if spec is not None:
            result = self._collective(func, spec, args, kwargs)
            memory.watch(given)
            # What a pipeline sends, and what functional collectives take, are activations.
            if not spec.functional and spec.kind not in {"send", "recv"}:
                memory.communicate(given)
        else:
            result = self._run(func, args, kwargs, given)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                memory.see(leaf, str(func), self.progress.module)
        if func._schema.name in _FSDP:
            memory.watch(given)
            memory.look(given)
        for watcher in self.watchers:
            watcher(func, args, kwargs, result, self.issued[-1] if spec is not None else None)
        return result

    # Operators.

    def _run(
        self, func: Any, args: Sequence[object], kwargs: Mapping[str, object], given: list[Tensor]
    ) -> object:
        if any(isinstance(tensor, FakeTensor) for tensor in given):
            return self._run_fake(func, args, kwargs, given)
        device = _device(kwargs, given)
        if device == "cpu" and not given:
            fake = self._imagine(func, args, kwargs)
            large = sum(leaf.nbytes for leaf in tree_leaves(fake) if isinstance(leaf, Tensor))
            return fake if large > REAL_HOST_BYTES else func(*args, **kwargs)
        if device != "neuron" or func._schema.is_mutable:
            return func(*args, **kwargs)
        try:
            fake = self._imagine(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return func(*args, **kwargs)  # of real integers, which have their values
        made = [leaf for leaf in tree_leaves(fake) if isinstance(leaf, Tensor)]
        keep = all(_exact(leaf.dtype) and leaf.nbytes <= REAL_DEVICE_BYTES for leaf in made)
        on_device = all(leaf.device.type == "neuron" for leaf in made)
        return func(*args, **kwargs) if keep or not on_device else fake

    def _imagine(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        with self._fake:
            result = func(*args, **kwargs)
        # PyTorch remembers by weak references which fake tensor it made of what, and
        # `Module.to`, which swaps fake parameters, refuses tensors that have any.
        self._memo.clear()
        return result

    def _run_fake(
        self, func: Any, args: Sequence[object], kwargs: Mapping[str, object], given: list[Tensor]
    ) -> object:
        """Run an operator of which some input has no values."""
        if func is _aten._local_scalar_dense.default:
            dtype = given[0].dtype
            return False if dtype is torch.bool else 0 if _exact(dtype) else 0.0
        if func is _aten.copy_.default and not isinstance(given[0], FakeTensor):
            return func(given[0], torch.zeros((), dtype=given[0].dtype))
        try:
            result = self._imagine(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            where = f" in module {self.progress.module}" if self.progress.module else ""
            raise PlanError(
                f"the shape of what {func} gives{where} depends on values, and a plan has none; "
                "give it a fixed size (padding, a capacity for each expert) for planning"
            ) from error
        if func is _aten._to_copy.default:
            return tree_map_only(FakeTensor, _brought_to_the_host, result)
        return _kept_identity(func, args, kwargs, result) if func._schema.is_mutable else result

    # Collectives.

    def _collective(
        self,
        func: Any,
        spec: collectives.Spec,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        names = [argument.name for argument in func._schema.arguments]
        arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
        group = collectives.group_of(arguments)
        given = collectives.tensors_in(arguments.get(spec.reads))
        received = collectives.tensors_in(arguments.get(spec.writes))
        if spec.functional and not spec.writes and given and spec.kind != "send":
            result = self._imagine(func, args, kwargs)
            if not any(isinstance(tensor, FakeTensor) for tensor in given):
                result = tree_map_only(Tensor, _real, result)
            received = collectives.tensors_in(result)
        elif spec.functional:
            result = arguments[spec.writes or spec.reads]
        else:
            result = None
        self._note(spec, arguments, group, given, received)
        everything = [*given, *received]
        if not any(isinstance(tensor, FakeTensor) for tensor in everything):
            collectives.imitate(spec.kind, given, received, group.rank())
        if spec.functional:
            return result
        return _returned(func, arguments.get(spec.writes), received)

    def _note(
        self,
        spec: collectives.Spec,
        arguments: Mapping[str, object],
        group: dist.ProcessGroup,
        given: Sequence[Tensor],
        received: Sequence[Tensor],
    ) -> None:
        # `init_process_group()` without a backend says that gloo is the default and makes none, and
        # DDP asks the default for its name.
        if group.group_name not in self._groups:
            self._groups.add(group.group_name)
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        ranks = tuple(dist.get_process_group_ranks(group))
        shown = given or received
        memory = self.progress.memory
        self.issued.append(
            Collective(
                number=len(self.issued),
                kind=spec.kind,
                group=collectives.group_name(group),
                ranks=ranks,
                dtype=collectives.dtype_name(shown),
                shapes=tuple(tuple(tensor.shape) for tensor in shown),
                bytes=collectives.payload(spec, given, received, len(ranks)),
                operation=collectives.operation_of(arguments),
                peer=collectives.peer_of(arguments, ranks, functional=spec.functional),
                phase=memory.phase,
                step=memory.step,
                module=self.progress.module,
            )
        )


def _device(kwargs: Mapping[str, object], given: Iterable[Tensor]) -> str:
    """The type of the device on which an operator's results will be."""
    device = kwargs.get("device")
    if isinstance(device, (torch.device, str)):
        return torch.device(device).type
    kinds = {tensor.device.type for tensor in given} or {"cpu"}
    return "neuron" if "neuron" in kinds else kinds.pop()


def _brought_to_the_host(tensor: FakeTensor) -> Tensor:
    """The copy from the device that a script gets: zeros, unless it is a whole model."""
    if tensor.device.type != "cpu" or tensor.nbytes > REAL_COPY_BYTES:
        return tensor
    return _real(tensor)


def _real(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _kept_identity(
    func: Any, args: Sequence[object], kwargs: Mapping[str, object], result: object
) -> object:
    """Put real arguments that were written to back into the place of their fakes."""
    arguments = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(
        kwargs
    )
    written = {}
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written[frozenset(argument.alias_info.before_set)] = arguments.get(argument.name)
    returns = func._schema.returns
    results = list(result) if len(returns) > 1 and isinstance(result, (tuple, list)) else [result]
    for at, returned in enumerate(returns):
        if returned.alias_info is not None and returned.alias_info.is_write:
            original = written.get(frozenset(returned.alias_info.before_set))
            if original is not None:
                results[at] = original
    return tuple(results) if len(returns) > 1 else results[0]


def _returned(func: Any, written: object, received: list[Tensor]) -> object:
    """The result of an operator of `c10d`: what it wrote, and a work that is done."""
    returns = len(func._schema.returns)
    if not returns:
        return None
    future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
    future.set_result(received)
    work = _create_work_from_future(future).boxed()
    return (written, work) if returns == 2 else work
