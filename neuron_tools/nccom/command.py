"""The command `nccom-test`.

    nccom-test -r 4 -b 1kb -e 1MB -f 8 -d fp32 -c random allr

The ranks are real: processes on emulated cores, joined by the process group that programs use, and
their times are measured on this computer. `--predict INSTANCE` prints another table, of what is
predicted for hardware. Exit codes: 0 done, 1 something failed, 2 wrong words.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from neuron_tools.machine import ToolError
from neuron_tools.nccom import options as words_of
from neuron_tools.nccom.operations import BY_NAME, DTYPES, GIB, elements
from neuronxcc.files import write_whole
from neuronxcc.unread import ends_quietly

_TIME_SOURCE, _NOTHING = "measured on this host", "nothing was measured"
_PREDICTED_TIME = "time:predicted(us)"
if TYPE_CHECKING:
    from neuron_tools.nccom.predicted import Place

Row = dict[str, Any]
Document = dict[str, Any]


def _task(options: argparse.Namespace) -> dict[str, Any]:
    """What the ranks are to do."""
    if options.nnodes != 1:
        raise ToolError(f"--nnodes {options.nnodes}: {words_of.REFUSED['-s', '--hosts']}")
    operation = BY_NAME[options.operation]
    groups = words_of.groups(options)
    in_group = len(groups[0])
    itemsize = DTYPES[options.datatype]
    counts = [elements(operation, size, itemsize, in_group) for size in words_of.sizes(options)]
    table = words_of.metadata(options, in_group)
    if table is not None:
        # Its counts say how much there is; one line.
        received = max(sum(of["recv_counts"]) for of in table)
        counts = [received]
    return {
        "operation": operation.name,
        "ranks": options.nworkers,
        "groups": groups,
        "pairs": words_of.pairs(options) if operation.bus == "one" else [],
        "metadata": table,
        "ratios": words_of.ratios(options),
        "dtype": options.datatype,
        "counts": list(dict.fromkeys(counts)),
        "iterations": [options.warmup_iters, options.iters],
        "operations": [options.neff_warmup_iters, options.neff_iters],
        "check": options.check,
        "seed": options.seed,
        "unique": options.unique_buff,
    }


def _statistic(name: str, seconds: Sequence[float]) -> float:
    """A statistic of times, in microseconds; percentiles are of the nearest rank."""
    ordered = sorted(seconds)
    if name == "avg":
        return 1e6 * sum(ordered) / len(ordered)
    place = {"min": 0, "max": len(ordered) - 1}.get(name)
    if place is None:
        place = max(0, -(-len(ordered) * int(name[1:]) // 100) - 1)
    return 1e6 * ordered[place]


def _row(options: argparse.Namespace, ranks: int, count: int, times: Row, more: Row) -> Row:
    """A line of a table: microseconds by column, the first of which the bandwidths are of."""
    size = count * DTYPES[options.datatype]
    first = next(iter(times.values()))
    bandwidth = size / GIB / (first / 1e6) if first > 0 else 0.0
    return {
        "size(B)": size,
        "count(elems)": count,
        **more,
        "type": options.datatype,
        **times,
        "algbw(GB/s)": bandwidth,
        "busbw(GB/s)": bandwidth * BY_NAME[options.operation].bus_factor(ranks),
    }


def _measured(options: argparse.Namespace, task: dict[str, Any], said: Row) -> Row:
    """A line of what the ranks have measured."""
    times = {f"time:{stat}(us)": _statistic(stat, said["seconds"]) for stat in options.stats}
    more = {}
    if options.show_input_output_size:
        more = {"total_input_size(B)": said["input"], "total_output_size(B)": said["output"]}
    return _row(options, len(task["groups"][0]), said["count"], times, more)


def _predicted(options: argparse.Namespace, task: dict[str, Any], place: Place) -> list[Row]:
    """The lines of what an instance is predicted to take."""
    operation = BY_NAME[options.operation]
    rows = []
    for count in task["counts"]:
        size = count * DTYPES[options.datatype]
        us = place.us(operation, size, task["pairs"] or task["groups"])
        rows.append(_row(options, len(task["groups"][0]), count, {_PREDICTED_TIME: us}, {}))
    return rows


def _predict(options: argparse.Namespace, task: dict[str, Any]) -> Document | None:
    """What is to be printed and reported of a prediction; None: nobody asked for one.

    Raises:
        ToolError: There is no such instance, or the operation is not one that is predicted.
    """
    if options.predict is None:
        if options.predict_only:
            raise ToolError("--predict-only needs --predict INSTANCE")
        return None
    if task["metadata"] is not None or len(task["ratios"]) > 1:
        raise ToolError("--predict is of one operation with equal counts for all ranks")
    # It needs NumPy, which takes longer to import than all else here.
    from neuron_tools.nccom.predicted import on  # noqa: PLC0415

    place = on(options.predict, options.nworkers)
    return {"time_source": place.source, "results": _predicted(options, task, place)}


def _text(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _columns(options: argparse.Namespace) -> list[str]:
    """Names of the columns of what is measured."""
    more = ["total_input_size(B)", "total_output_size(B)"] * options.show_input_output_size
    times = [f"time:{stat}(us)" for stat in options.stats]
    return ["size(B)", "count(elems)", *more, "type", *times, "algbw(GB/s)", "busbw(GB/s)"]


def _print(names: Sequence[str], cells: Sequence[str]) -> None:
    """Print a line of a table whose columns have these names."""
    wide = (max(len(name) + 4, 10) for name in names)
    line = "".join(cell.rjust(width) for cell, width in zip(cells, wide, strict=True))
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _average(rows: Sequence[Row]) -> str:
    return f"{sum(row['busbw(GB/s)'] for row in rows) / len(rows):.4f}GB/s"


def _print_predicted(predicted: Document) -> None:
    """Print a table of its own, whose columns and last line nobody takes for measured ones."""
    rows = predicted["results"]
    sys.stdout.write(f"# {predicted['time_source']}\n")
    _print(list(rows[0]), list(rows[0]))
    for row in rows:
        _print(list(row), [_text(value) for value in row.values()])
    sys.stdout.write(f"Predicted avg bus bandwidth:\t{_average(rows)}\n")


def _run(
    options: argparse.Namespace, task: dict[str, Any], log: IO[bytes]
) -> tuple[list[Row], str]:
    """Run the ranks and print what they say, line by line; the rows, and what went wrong."""
    columns = _columns(options)
    sys.stdout.write(f"# {_TIME_SOURCE}: {task['ranks']} ranks on emulated NeuronCores\n")
    _print(columns, columns)
    command = [sys.executable, "-m", "torch_neuronx.tools.nccom"]
    environ = {**os.environ, "LOCAL_WORLD_SIZE": str(task["ranks"])}
    ranks = subprocess.Popen(  # noqa: S603 - ourselves
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if options.debug else log,
        env=environ,
    )
    assert ranks.stdin is not None
    assert ranks.stdout is not None
    rows: list[Row] = []
    wrong = ""
    try:
        ranks.stdin.write(json.dumps(task).encode())
        ranks.stdin.close()
        progress = not options.non_interactive and sys.stderr.isatty()
        for line in ranks.stdout:
            said = json.loads(line)
            if "starting" in said:
                if progress:
                    sys.stderr.write(f"\r{said['starting']} elements ...\x1b[K\r")
                continue
            if "error" in said:
                wrong = said["error"]
                continue
            row = _measured(options, task, said)
            rows.append(row)
            _print(columns, [_text(row[name]) for name in columns])
        code = ranks.wait()
        if code != 0 and not wrong:
            wrong = f"the ranks ended with {code}"
    finally:
        if ranks.poll() is None:
            ranks.terminate()
            ranks.wait()
    return rows, wrong


def _measure(options: argparse.Namespace, task: dict[str, Any]) -> list[Row]:
    """Run the ranks and print their table; no rows if something failed, which is printed."""
    descriptor, name = tempfile.mkstemp(prefix="nccom_test_log_", suffix=".log")
    log_path = Path(name)
    with os.fdopen(descriptor, "wb") as log:
        rows, wrong = _run(options, task, log)
    if wrong:
        sys.stdout.write(f"Failure running neuron-bench - log file {log_path}\n{wrong}\n")
        sys.stdout.write("1 errors found - test failed\n")
        return []
    log_path.unlink()
    sys.stdout.write(f"Avg bus bandwidth:\t{_average(rows)}\n")
    return rows


@ends_quietly
def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = words_of.read(sys.argv[1:] if words is None else words)
    try:
        task = _task(options)
        predicted = _predict(options, task)
    except ToolError as error:
        sys.stderr.write(f"nccom-test: {error}\n")
        return 1
    document: Document = {"time_source": _NOTHING, "results": []}
    if not options.predict_only:
        document = {"time_source": _TIME_SOURCE, "results": _measure(options, task)}
        if not document["results"]:
            return 1
    if predicted is not None:
        _print_predicted(predicted)
        document["predicted"] = predicted
    if options.report_to_json_file is not None:
        try:
            write_whole(options.report_to_json_file, json.dumps(document, indent=4).encode())
        except OSError as error:
            sys.stderr.write(f"nccom-test: the report cannot be written: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
