"""Tables of Neuron Explorer's schema: their fields, and Parquet files of them.

What a profile holds of a device that ran (`neuron_tools.explorer`) and of a kernel that was
predicted (`neuronxcc.perf.explorer`) has one form. Parquet is written by pyarrow, an optional
package, which is imported when a table is.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from neuronxcc import extras
from neuronxcc.files import write_whole

__all__ = ["VERSION", "Field", "fields_of", "save_table"]

VERSION: Final = "7.4.0"


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
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"writing Parquet needs pyarrow: {extras.install_command('explorer')}"
        ) from error
    kinds = {
        "i64": arrow.int64(), "i32": arrow.int32(), "f32": arrow.float32(),
        "f64": arrow.float64(), "str": arrow.string(), "bool": arrow.bool_(),
    }  # fmt: skip
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
