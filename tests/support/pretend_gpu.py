"""A GPU for tests on machines without one: tensors that compute on the CPU, say that they lie on ``cuda:0``, and raise
where devices mix as CUDA does.

    with PretendGpu() as gpu:
        x = torch.ones(3, device="cuda")
        x + torch.ones(3)           # RuntimeError, as on a GPU
        float(x.sum())              # counted: the CPU would wait for the GPU here
    gpu.count("sync"), gpu.bytes("to host")

What it stands in for:

* *Devices.* A CPU tensor among GPU tensors is refused, but for 0-dim ones in pointwise operators and for indices of a
  GPU tensor. So are a CPU generator, ``.numpy()``, and a GPU tensor as the index of a CPU tensor.
* *Waiting.* ``.item()``, ``.cpu()``, ``bool()``, ``nonzero``, boolean indices, ``equal``, and copies that are not
  ``non_blocking`` are counted, with the line of the package that asked for them; so are the bytes that are copied.
* *Graphs.* What is captured is recorded and not run, and what waits is refused then. A replay runs the operators on the
  tensors that they were recorded with, whatever has become of the program's variables since.
* *Precision.* ``torch.autocast("cuda")`` casts by CUDA's lists, which differ from the CPU's: norms, softmax, exp and
  sums come out in float32. Kernels are the CPU's.

What it can't show: CUDA's kernels and their rounding, speed, memory, streams (everything is over when it returns, so a
copy that is ``non_blocking`` where it must not be goes unnoticed), several GPUs, and autocast's cache of cast weights.
To C++ a pretended tensor lies on the meta device.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.cuda_rules import INDEXING, WAITING, autocast_rule, operator_name
from tests.support.pretend_kernels import STAND_INS
from tests.support.pretend_tensor import HIDDEN, PretendTensor, is_gpu, is_pretended, refuse_mixtures, tensors_in

PACKAGE = str(Path(__file__).parents[2] / "burnish")


class PretendGpu:
    """Makes a GPU appear for the length of a ``with`` block, and counts what would have crossed to it."""

    def __init__(self) -> None:
        self.on = False
        self.counts: Counter[tuple[str, str]] = Counter()  # by kind and line of the package
        self.draws: Counter[str] = Counter()  # operators that drew from the GPU's own generator
        self.graph: PretendGraph | None = None  # that is being captured: operators are recorded, and not run
        self.inside = False  # a call that a pretended tensor takes part in: its meta tensors are pretended ones
        self._functions, self._operators = _Functions(self), _Operators(self)
        self._stack = ExitStack()

    def __enter__(self) -> PretendGpu:
        self._stack = ExitStack()
        ours = {
            "synchronize": lambda *_: self.note("sync"), "CUDAGraph": partial(PretendGraph, self),
            "graph": self._capture,
        }  # fmt: skip
        for name, value in (_CUDA | ours).items():
            self._stack.enter_context(mock.patch.object(torch.cuda, name, value))
        self._stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", self._run_backward))
        flash = mock.patch.object(torch.backends.cuda, "is_flash_attention_available", return_value=True)
        self._stack.enter_context(flash)
        # a module's parameter stays the same object when it moves to the GPU, weights that are tied stay so
        before = torch.__future__.get_swap_module_params_on_conversion()
        self._stack.callback(torch.__future__.set_swap_module_params_on_conversion, before)
        torch.__future__.set_swap_module_params_on_conversion(True)
        self._stack.enter_context(self._operators)
        self._stack.enter_context(self._functions)
        self.on = True
        return self

    def __exit__(self, *error: Any) -> None:
        self.on = False
        self._stack.close()

    @contextmanager
    def _capture(self, graph: PretendGraph, **_: Any) -> Iterator[None]:
        self.graph = graph
        try:
            yield
        finally:
            self.graph = None

    def _run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """The modes rest while a function is handled, but backward passes call functions of their own."""
        with self._functions:
            return _engine_run_backward(*args, **kwargs)

    def count(self, kind: str) -> int:
        """How often something happened: sync, to device, to host (or ``bytes to ...``)."""
        return sum(n for (k, _), n in self.counts.items() if k == kind)

    def bytes(self, direction: str) -> int:
        """Bytes copied, ``to device`` or ``to host``."""
        return self.count(f"bytes {direction}")

    def lines(self, kind: str) -> str:
        """The lines that did it, the most frequent first: for the message of a test that fails."""
        found = Counter({line: n for (k, line), n in self.counts.items() if k == kind})
        return "\n".join(f"{n:6d} {line}" for line, n in found.most_common(12))

    def note(self, kind: str, size: int | None = None, *, waits: bool = True) -> None:
        """Something crossed between CPU and GPU, or the CPU waited."""
        line = _line()
        if self.graph is not None:
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing ({kind}, {line}, pretended)"
            )
        if size is not None:
            self.counts[kind, line] += 1
            self.counts[f"bytes {kind}", line] += size
        if waits:
            self.counts["sync", line] += 1

    def put(self, value: torch.Tensor) -> PretendTensor:
        """A CPU tensor on the GPU, not counted."""
        return PretendTensor(value.detach(), self)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operator, as a GPU would."""
        tensors = list(tensors_in((*args, *kwargs.values())))
        some = any(map(is_pretended, tensors))
        device = kwargs.get("device")
        asked = device is not None and (is_gpu(device) or (self.inside and torch.device(device) == HIDDEN))
        if not some and not asked:
            return func(*args, **kwargs)
        about = _about(func)
        if about.composite:
            with self._operators:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if about.name in ("_to_copy", "copy", "_foreach_copy"):
            return self._copy(about, func, args, kwargs)
        if some:
            refuse_mixtures(about, args, kwargs, tensors)
        target = some if device is None else asked
        if target and about.random:
            generator = kwargs.get("generator")
            if generator is not None:
                raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' ({func}, pretended)")
            self.draws[f"{about.name} {_line()}"] += 1
        self._note_waiting(about, args, kwargs)
        plain = _bare(args)
        named = {name: _bare(value) for name, value in kwargs.items()}
        if device is not None:
            named["device"] = torch.device("cpu")
        named.pop("pin_memory", None)
        if about.name == "histc" and not plain[0].is_floating_point():
            result = func(plain[0].float(), *plain[1:], **named).to(plain[0].dtype)  # the CPU has none of integers
        else:
            result = self._computed(about, partial(STAND_INS.get(about.name, func), *plain, **named))
        if about.writes:
            return _written(about, args, kwargs)
        if not target:
            return result
        if about.views and torch.is_inference_mode_enabled() and not args[0].is_inference():
            with torch.inference_mode(False):  # what shows a part of a weight is no tensor of inference mode
                return self._dressed(result)
        return self._dressed(result)

    def _computed(self, about: SimpleNamespace, call: Callable[[], Any]) -> Any:
        """What an operator gives; while a graph is captured, values that replays will fill in."""
        if self.graph is None or about.views:
            return call()
        result = None if about.writes else call()
        self.graph.calls.append((call, result))
        return result

    def _dressed(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return PretendTensor(value, self)
        if isinstance(value, list | tuple):
            return type(value)(self._dressed(one) for one in value)
        return value

    def _copy(self, about: SimpleNamespace, func: Any, args: Any, kwargs: Any) -> Any:
        if about.name != "_to_copy":
            pairs = [args[:2]] if about.name == "copy" else zip(args[0], args[1], strict=True)
            waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            for target, source in pairs:
                self._note_move(source, is_pretended(target), target.dtype, waits=waits)
            self._computed(about, partial(func, *_bare(args), **kwargs))
            return args[0] if about.name == "copy" else None
        source, device = args[0], kwargs.get("device")
        target = is_pretended(source) if device is None else torch.device(device) != torch.device("cpu")
        dtype = kwargs.get("dtype") or source.dtype
        self._note_move(source, target, dtype, waits=not kwargs.get("non_blocking"))
        plain = {name: value for name, value in kwargs.items() if name in ("dtype", "layout", "memory_format")}
        copied = self._computed(about, partial(func, *_bare(args), **plain))
        return PretendTensor(copied, self) if target else copied

    def _note_move(self, source: torch.Tensor, target: bool, dtype: torch.dtype, *, waits: bool) -> None:
        """CUDA converts on the CPU: what goes up has its new dtype already, and what comes down still its old one."""
        if is_pretended(source) and not target:
            self.note("to host", source.numel() * source.element_size(), waits=waits)
        elif target and not is_pretended(source):
            self.note("to device", source.numel() * dtype.itemsize, waits=waits)

    def _note_waiting(self, about: SimpleNamespace, args: Any, kwargs: Any) -> None:
        if about.name in WAITING:
            if about.name == "repeat_interleave" and kwargs.get("output_size") is not None:
                return
            size = args[0].element_size() if about.name == "_local_scalar_dense" else 8
            self.note("to host", size)
        elif about.name in INDEXING and is_pretended(args[0]):
            number = "put" in about.name and not is_pretended(args[2])  # a 0-dim one, the others were refused
            filled = number and any(index is not None and index.dtype == torch.bool for index in args[1])
            if number and not filled:
                self.note("to device", args[2].element_size())
            for index in args[1]:
                if index is None:
                    continue
                if not is_pretended(index):
                    self.note("to device", 8 * index.numel())
                elif index.dtype in (torch.bool, torch.uint8) and not filled:
                    self.note("to host", 8)  # how many are true


class PretendGraph:
    """Operators with the tensors that they were captured with: a replay runs them, and nothing else of a program."""

    def __init__(self, gpu: PretendGpu) -> None:
        self.gpu = gpu
        self.calls: list[tuple[Callable[[], Any], Any]] = []  # with what they gave, where that was not in place

    def replay(self) -> None:
        self.gpu.counts["replay", _line()] += 1
        for call, result in self.calls:
            new = call()
            for target, source in zip(tensors_in([result]), tensors_in([new]), strict=False):  # none, if in place
                target.copy_(source)

    def pool(self) -> None:
        """Memory for what is computed on the way: it stays with the graph."""


def _bare(value: Any) -> Any:
    if is_pretended(value):
        return value.inner
    if isinstance(value, list | tuple):
        return type(value)(_bare(one) for one in value)
    return value


def _written(about: SimpleNamespace, args: Any, kwargs: Any) -> Any:
    """What an operator that writes into its arguments returns: those very arguments."""
    found = [args[i] if i is not None and i < len(args) else kwargs[name] for i, name in about.writes]
    for one in tensors_in(found):
        assert not is_pretended(one) or one.shape == one.inner.shape, f"{about.name} changed the shape of a tensor"
    if not about.returns:
        return None
    return found[0] if about.returns == 1 else tuple(found)


_ABOUT: dict[Any, SimpleNamespace] = {}


def _about(func: Any) -> SimpleNamespace:
    if func not in _ABOUT:
        schema = func._schema
        names = [argument.name for argument in schema.arguments]
        kinds = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
        writes = [(None if schema.arguments[i].kwarg_only else i, names[i]) for i, kind in enumerate(kinds) if kind]
        first = writes[0][0] if writes else None
        _ABOUT[func] = SimpleNamespace(
            name=operator_name(schema.name.split("::")[1]), names=names, writes=writes,
            written=lambda args: args[first] if first is not None else None, returns=len(schema.returns),
            views=any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns),
            random=torch.Tag.nondeterministic_seeded in func.tags,
            composite=torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
        )  # fmt: skip
    return _ABOUT[func]


def _line() -> str:
    """The line of the package that the present call comes from."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"


class _Operators(TorchDispatchMode):
    """Sees every operator, below autograd."""

    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()
        self.gpu = gpu

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and what keeps the compiler away takes longer than an operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.gpu.run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Sees every call of torch's Python interface: who asks for the GPU, and what autocast makes of it."""

    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if name in ("__get__", "__set__", "_parse_to") or func is torch.device:
            return func(*args, **kwargs)
        if name == "pin_memory":
            return args[0].clone()
        asks = any(is_gpu(value) for value in (*args, *kwargs.values())) or name == "cuda"
        if not asks and not any(map(is_pretended, tensors_in((*args, *kwargs.values())))):
            return func(*args, **kwargs)
        before, self.gpu.inside = self.gpu.inside, True
        try:
            return self._call(func, name, args, kwargs, asks)
        finally:
            self.gpu.inside = before

    def _call(self, func: Any, name: str, args: Any, kwargs: Any, asks: bool) -> Any:
        if name == "cuda":
            return args[0].to(HIDDEN, non_blocking=bool(kwargs.get("non_blocking")))
        if asks:
            if func in (torch.tensor, torch.as_tensor, torch.asarray):
                return self._from_data(func, *args, **kwargs)
            args = [HIDDEN if is_gpu(value) else value for value in args]
            kwargs = {key: HIDDEN if is_gpu(value) else value for key, value in kwargs.items()}
        if name in ("__getitem__", "__setitem__"):
            args = [args[0], self._index(args[0], args[1]), *args[2:]]
            if name == "__setitem__" and isinstance(args[2], int | float):
                args[2] = torch.tensor(args[2], dtype=args[0].dtype)
        rule = autocast_rule(name) if torch.is_autocast_enabled("cuda") else None
        if rule is not None and not (rule == "told" and kwargs.get("dtype") is not None):
            args, kwargs = _cast(rule, args, kwargs)
        return func(*args, **kwargs)

    def _from_data(self, func: Any, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        """Made on the CPU and copied."""
        if isinstance(data, torch.Tensor) and func is not torch.tensor:
            return data.to(HIDDEN, dtype) if dtype is not None else data.to(HIDDEN)
        made = torch.tensor(_numbers(data), dtype=dtype).to(HIDDEN)
        return made.requires_grad_() if kwargs.get("requires_grad") else made

    def _index(self, indexed: Any, index: Any) -> Any:
        """Lists and arrays among indices, which go up to the GPU."""
        if not is_pretended(indexed):
            return index
        if isinstance(index, tuple):
            return tuple(self._index(indexed, one) for one in index)
        return torch.as_tensor(index).to(HIDDEN) if isinstance(index, list | np.ndarray) else index


def _numbers(data: Any) -> Any:
    """Lists of numbers, of which those on the GPU are waited for one by one."""
    if isinstance(data, list | tuple):
        return [_numbers(one) for one in data]
    return data.item() if isinstance(data, torch.Tensor) and is_pretended(data) and not data.ndim else data


def _cast(rule: str, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in the precision that CUDA's autocast gives them."""
    floats = [t.dtype for t in tensors_in((*args, *kwargs.values())) if _castable(t)]
    if not floats:
        return args, kwargs
    dtype = torch.get_autocast_dtype("cuda") if rule == "lower" else torch.float32
    if rule == "widest" and torch.float32 not in floats:
        return args, kwargs

    def cast(value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(one, torch.Tensor) for one in value):
            return type(value)(cast(one) for one in value)
        return value.to(dtype) if _castable(value) and value.dtype != dtype else value

    return [cast(value) for value in args], {name: cast(value) for name, value in kwargs.items()}


def _castable(value: Any) -> bool:
    return is_pretended(value) and value.is_floating_point() and value.dtype != torch.float64


_CUDA: dict[str, Any] = {
    "_lazy_init": lambda: None,
    "is_available": lambda: True,
    "is_initialized": lambda: False,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda _: None,
    **{name: getattr(torch.cpu, name) for name in ("Stream", "Event", "stream", "current_stream")},  # without effect
    "is_bf16_supported": lambda *_, **__: True,
    "get_device_name": lambda *_: "a pretended GPU",
    "get_device_capability": lambda *_: (9, 0),
    "get_device_properties": lambda *_: SimpleNamespace(total_memory=80 * 10**9),
    "is_current_stream_capturing": lambda: False,
    "empty_cache": lambda: None,
    "memory_allocated": lambda *_: 0,
    "max_memory_allocated": lambda *_: 0,
}
