"""Tables of Neuron Explorer's schema: their fields, and Parquet files of them.

What a profile holds of a device that ran (`neuron_tools.explorer`) and of a kernel that was
predicted (`neuronxcc.perf.explorer`) has one form. Parquet is written and read by pyarrow, an
optional package, which is imported when a table is.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from neuronxcc import extras
from neuronxcc.files import read_regular, write_whole

__all__ = ["MOST_BYTES", "VERSION", "Field", "TableError", "fields_of", "read_table", "save_table"]

VERSION: Final = "7.4.0"
#: Of a file of a profile; larger ones are refused, as documented.
MOST_BYTES: Final = 5 << 30


class TableError(ValueError):
    """A file is no table of the schema; the text says why."""


class Field(NamedTuple):
    """A column.

    Attributes:
        name: of the reference.
        kind: "i64", "i32", "f32", "f64", "str" or "bool".
        nullable: it may be null.
    """

    name: str
    kind: str
    nullable: bool


def fields_of(text: str) -> tuple[Field, ...]:
    """Return the columns that a text names, as in "id:i64 session_id:i64?"; "?": it may be null."""
    pairs = (word.split(":") for word in text.split())
    return tuple(Field(name, kind.rstrip("?"), kind.endswith("?")) for name, kind in pairs)


def save_table(
    path: Path,
    fields: Sequence[Field],
    columns: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a table to a Parquet file; return its path. Folders that are missing are made.

    Args:
        path: Where the file is to be.
        fields: The columns, in order.
        columns: The values of each column by its name, as a list or a NumPy array.
        metadata: What the file says of itself.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the text says how it is.
    """
    arrow, parquet = _arrow("writing")
    kinds = _kinds(arrow)
    schema = arrow.schema(
        [arrow.field(f.name, kinds[f.kind], nullable=f.nullable) for f in fields],
        metadata=metadata,
    )
    arrays = [arrow.array(columns[f.name], kinds[f.kind], from_pandas=False) for f in fields]
    content = io.BytesIO()
    parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.getvalue())
    return path


def read_table(path: Path, fields: Sequence[Field]) -> dict[str, list[Any]]:
    """Read columns of a Parquet file.

    Args:
        path: The file. Who wrote it does not matter: it is checked.
        fields: The columns that are wanted. One that may be null and is not there is all null.

    Returns:
        The values of each column by its name; null is None.

    Raises:
        TableError: It is no Parquet file, or a column is missing, has another type, or has null
            where there is none.
        ModuleNotFoundError: pyarrow is not installed; the text says how it is.
        OSError: It cannot be read.
    """
    arrow, parquet = _arrow("reading")
    content = arrow.BufferReader(read_regular(path, MOST_BYTES, links=True, anyone=True))
    try:
        file = parquet.ParquetFile(content)
        there = set(file.schema_arrow.names)
        table = file.read([field.name for field in fields if field.name in there])
        # A file may claim more values than anybody has memory for.
    except (arrow.ArrowException, OSError, MemoryError) as error:
        raise TableError(f"{path} is no Parquet file: {str(error).partition(chr(10))[0]}") from None
    kinds = _kinds(arrow)
    found: dict[str, list[Any]] = {}
    for field in fields:
        if field.name not in there and field.nullable:
            found[field.name] = [None] * table.num_rows
            continue
        if field.name not in there or table.schema.field(field.name).type != kinds[field.kind]:
            raise TableError(f"{path} has no column {field.name} of type {field.kind}")
        column = table.column(field.name)
        if column.null_count and not field.nullable:
            raise TableError(f"{path} has null in the column {field.name}")
        found[field.name] = column.to_pylist()
    return found


def _arrow(what: str) -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} Parquet needs pyarrow: {extras.install_command('explorer')}"
        ) from error


def _kinds(arrow: Any) -> dict[str, Any]:
    """The types by the names that fields have."""
    return {
        "i64": arrow.int64(), "i32": arrow.int32(), "f32": arrow.float32(),
        "f64": arrow.float64(), "str": arrow.string(), "bool": arrow.bool_(),
    }  # fmt: skip
