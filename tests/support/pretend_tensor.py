"""A tensor that computes on the CPU and says that it lies on a GPU, and what CUDA refuses to mix it with.

``pretend_gpu`` makes such tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from tests.support.cuda_rules import CPU_SCALARS, INDEXING, SCALAR_ARGUMENTS

if TYPE_CHECKING:
    from tests.support.pretend_gpu import PretendGpu

GPU = torch.device("cuda:0")
HIDDEN = torch.device("meta")  # where C++ believes the tensors to be


class PretendTensor(torch.Tensor):
    """Holds a CPU tensor and says that it lies on the GPU."""

    inner: torch.Tensor
    gpu: PretendGpu

    @staticmethod
    def __new__(cls, inner: torch.Tensor, gpu: PretendGpu) -> PretendTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=HIDDEN, requires_grad=False,
        )  # fmt: skip
        made.inner, made.gpu = inner, gpu
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # reached where the modes are off: in other threads, and after the end
        found = next(value.gpu for value in tensors_in((*args, *(kwargs or {}).values())) if is_pretended(value))
        assert found.on, f"a tensor of a pretended GPU is used after its end, in {func}"
        return found.run(func, args, kwargs or {})

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    @property
    def data(self) -> torch.Tensor:
        return PretendTensor(self.inner, self.gpu)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        assert is_pretended(value), "data of a tensor on the GPU is replaced by some on the CPU"
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or GPU, requires_grad=requires_grad)

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first (pretended)")

    __array__ = numpy

    def as_subclass(self, cls: Any) -> Any:
        kinds = (PretendTensor,) if cls is torch.Tensor else (cls, PretendTensor)
        return type(cls.__name__, kinds, {})(self.inner, self.gpu)

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def __deepcopy__(self, memo: dict[int, Any]) -> PretendTensor:
        if id(self) not in memo:
            memo[id(self)] = copied = PretendTensor(self.inner.clone(), self.gpu).requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                copied._is_param = True
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a tensor of a pretended GPU leaves the process; move it to the CPU first")

    def __repr__(self, **kwargs: Any) -> str:
        return f"pretended_cuda({self.inner})"


def is_pretended(value: Any) -> bool:
    return isinstance(value, PretendTensor)


def tensors_in(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def is_gpu(device: Any) -> bool:
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return isinstance(device, torch.device) and device.type == "cuda"


def refuse_mixtures(about: SimpleNamespace, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
    """Raise where CUDA does."""
    plain = [value for value in tensors if not is_pretended(value)]
    if about.name in INDEXING:
        _refuse_indices(about, args)
        return
    allowed: Any = None
    if about.name in SCALAR_ARGUMENTS:
        name = SCALAR_ARGUMENTS[about.name]
        allowed = kwargs.get(name, args[about.names.index(name)] if name in about.names[: len(args)] else None)
    for value in plain:
        if value.device == HIDDEN:
            raise RuntimeError(f"{about.name}: a meta tensor among tensors on cuda:0 (pretended)")
        if value.dim() == 0 and (about.name in CPU_SCALARS or value is allowed) and value is not about.written(args):
            continue
        shapes = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({about.name} of {shapes}, pretended)"
        )


def _refuse_indices(about: SimpleNamespace, args: Any) -> None:
    self, indices = args[0], args[1]
    if not is_pretended(self) and any(index is not None and is_pretended(index) for index in indices):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu) (pretended)"
        )
    if "put" not in about.name:
        return
    values = args[2]
    if is_pretended(self) != is_pretended(values) and (values.dim() > 0 or is_pretended(values)):
        raise RuntimeError(f"index_put_: self is on {self.device}, values are on {values.device} (pretended)")
