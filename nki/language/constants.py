"""Names without arguments: data types, memory regions, and operators that instructions take."""

from typing import Final, TypeAlias

from nki.memory import MemoryRegion
from nki.objects import NKIObject

DType: TypeAlias = str

bool_: Final = "bool_"  # one byte
int8: Final = "int8"
int16: Final = "int16"
int32: Final = "int32"
uint8: Final = "uint8"
uint16: Final = "uint16"
uint32: Final = "uint32"
float16: Final = "float16"
float32: Final = "float32"
bfloat16: Final = "bfloat16"
tfloat32: Final = "tfloat32"  # stored as 32 bits
float8_e4m3: Final = "float8_e4m3"  # IEEE-like: infinities, largest finite value 240
float8_e4m3fn: Final = "float8_e4m3fn"  # OCP: no infinities, largest finite value 448
float8_e5m2: Final = "float8_e5m2"
float8_e5m2_x4: Final = "float8_e5m2_x4"  # four in four bytes
float8_e4m3fn_x4: Final = "float8_e4m3fn_x4"  # four in four bytes
float8_e8m0fnu: Final = "float8_e8m0fnu"  # a power of two, 0xFF is NaN
float4_e2m1fn_x4: Final = "float4_e2m1fn_x4"  # four in two bytes

sbuf: Final = MemoryRegion.sbuf
psum: Final = MemoryRegion.psum
hbm: Final = MemoryRegion.hbm
private_hbm: Final = MemoryRegion.private_hbm
shared_hbm: Final = MemoryRegion.shared_hbm

# What kernels write beside the documented names.
bool: Final = bool_  # noqa: A001


class Operator(NKIObject):
    """An operator that exists only as an argument of an instruction, like ``nl.bypass``."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return f"nl.{self.__name__}"

    def __reduce__(self) -> str:
        return self.__name__  # pickle and copy find the one in this module

    def __fingerprint__(self) -> tuple[str]:
        return (self.__name__,)


bypass: Final = Operator("bypass")
average: Final = Operator("average")
prelu: Final = Operator("prelu")
