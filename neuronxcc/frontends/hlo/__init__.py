"""XLA's programs: `HloModuleProto`, from JAX, torch_xla or a file, to tensor IR."""

from neuronxcc.frontends.hlo.errors import HloError
from neuronxcc.frontends.hlo.importer import Imported, import_hlo

__all__ = ["HloError", "Imported", "import_hlo"]
