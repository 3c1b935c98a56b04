"""Programs of JAX for several devices: their modules per device, arguments and results, as files.

Run in a process of its own, because the number of XLA's devices is fixed when it starts:

    XLA_FLAGS=... python -m tests.nrtpy.jax_ranks FOLDER RANKS     (the flags: `flags`)

For every case FOLDER gets `case.pb`, the module that XLA's partitioner made, and `case.npz` with
`in<rank>_<number>` and `out<rank>_<number>`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

Case = tuple[Callable[..., Any], tuple[Any, ...], Any, Any]  # function, arguments, specs


def _normal(*shape: int) -> Any:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def cases(ranks: int) -> dict[str, Case]:
    """Functions of one rank with the partitions of their arguments and results."""
    ring = [(i, (i + 1) % ranks) for i in range(ranks)]

    def everything(x: Any) -> Any:
        return (
            lax.psum(x, ("a", "b")), lax.pmax(x, ("a", "b")), lax.pmean(x * 3, "b"),
            lax.all_gather(x, ("a", "b"), tiled=True), lax.ppermute(x, ("a", "b"), ring),
            lax.ppermute(x, ("a", "b"), ring[:1]),
            lax.psum_scatter(x, ("a", "b"), scatter_dimension=1, tiled=True),
            lax.all_to_all(x, ("a", "b"), 1, 0, tiled=True),
        )  # fmt: skip

    def groups(x: Any) -> Any:
        return lax.psum(x, "a"), lax.psum(x, "b"), lax.all_gather(x, "a", axis=1)

    def training_step(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return ((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(w)
        gradient = lax.pmean(gradient, ("a", "b"))
        return lax.pmean(value, ("a", "b")), jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)

    def in_a_loop(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: jnp.sin(lax.psum(y, ("a", "b"))), x)

    rows = P(("a", "b"))
    x = _normal(2 * ranks, 4 * ranks)
    weights = (_normal(8, 16), _normal(16, 4))
    batch = (_normal(4 * ranks, 8), _normal(4 * ranks, 4))
    return {
        "everything": (everything, (x,), rows, rows),
        "rank": (lambda x: x + lax.axis_index(("a", "b")), (x,), rows, rows),
        "groups": (groups, (x,), rows, rows),
        "training": (training_step, (weights, *batch), (P(), rows, rows), P()),
        "loop": (in_a_loop, (x,), rows, rows),
    }


def flags(folder: Path, ranks: int) -> str:
    """XLA_FLAGS for the process that runs this file."""
    return (
        f"--xla_force_host_platform_device_count={ranks} --xla_dump_to={folder / 'xla'} "
        "--xla_dump_hlo_as_proto --xla_dump_hlo_pass_re=spmd-partitioning"
    )


def main(folder: Path, ranks: int) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(ranks // 2, 2), ("a", "b"))
    for name, (function, args, in_specs, out_specs) in cases(ranks).items():
        function.__name__ = name  # which the dumped files have
        mapped: Any = jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        specs = in_specs if isinstance(in_specs, tuple) else (in_specs,)
        placed = [
            jax.tree.map(lambda a, spec=spec: jax.device_put(a, NamedSharding(mesh, spec)), arg)
            for arg, spec in zip(args, specs, strict=True)
        ]
        results = jax.jit(mapped)(*placed)
        arrays: dict[str, Any] = {}
        for kind, tree in (("in", placed), ("out", results)):
            for number, leaf in enumerate(jax.tree.leaves(tree)):
                for shard in leaf.addressable_shards:
                    arrays[f"{kind}{shard.device.id}_{number}"] = np.asarray(shard.data)
        np.savez(folder / f"{name}.npz", **arrays)
        (found,) = (folder / "xla").glob(f"*.jit_{name}.*.after_spmd-partitioning.*.hlo.pb")
        found.rename(folder / f"{name}.pb")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
