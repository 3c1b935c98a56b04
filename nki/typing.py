"""Annotations of a kernel's tensor parameters: ``x: nt.tensor[128, 512]``."""  # noqa: A005 (its public name)

from nki.errors import NkiError
from nki.objects import NKIObject

__all__ = ["TensorAnnotation", "mutable_tensor", "tensor"]


class TensorAnnotation(NKIObject):
    """The annotation of a tensor parameter of a kernel.

    ``annotation[128, 512]`` is the same with a shape.

    Attributes:
        shape: the shape that it expects, None if any.
        mutable: the kernel writes to it.
    """

    __slots__ = ("mutable", "shape")

    def __init__(self, shape: tuple[int, ...] | None = None, *, mutable: bool = False) -> None:
        self.shape = shape
        self.mutable = mutable

    def __getitem__(self, shape: int | tuple[int, ...]) -> "TensorAnnotation":
        """Return the annotation with a shape.

        Raises:
            NkiError: it is no shape (NKI003).
        """
        sizes = shape if isinstance(shape, tuple) else (shape,)
        if not sizes or min(sizes) < 1:
            raise NkiError(
                "NKI003",
                f"{shape!r} is no shape of a tensor",
                "a shape is integers of at least 1: tensor[128, 512]",
            )
        return TensorAnnotation(sizes, mutable=self.mutable)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorAnnotation):
            return NotImplemented
        return (self.shape, self.mutable) == (other.shape, other.mutable)

    def __hash__(self) -> int:
        return hash((self.shape, self.mutable))

    def __repr__(self) -> str:
        name = "mutable_tensor" if self.mutable else "tensor"
        sizes = "" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"nki.typing.{name}{sizes}"


tensor = TensorAnnotation()
mutable_tensor = TensorAnnotation(mutable=True)
