"""The key of an imported graph in the compile cache."""

from __future__ import annotations

from collections.abc import Mapping

from neuronxcc.cache.key import CacheKey, layouts_of, make_key
from neuronxcc.options import Options
from torch_neuronx.dynamo.importer import Imported


def key_of(
    imported: Imported, settings: Options, parts: Mapping[str, str] | None = None
) -> CacheKey:
    """The key of a graph; `parts` as for `native.compile_imported`."""
    layouts = layouts_of(imported.param_strides, imported.result_strides, imported.constant_params)
    return make_key(imported.graph, settings, layouts=layouts, **(parts or {}))
