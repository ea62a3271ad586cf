"""Text recognition with gradients: PP-OCR's ONNX graph, run by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor

Attributes = Mapping[str, Any]
Operator = Callable[[Sequence[Any], Attributes], Tensor]


class Graph:
    """An ONNX graph of one input and one output with frozen weights. A final softmax is left out.

    Raises:
        KeyError: the graph has an operator that is not supported.
    """

    def __init__(self, path: Path) -> None:
        graph = onnx.load(str(path)).graph
        self._weights = {w.name: _layout(torch.from_numpy(numpy_helper.to_array(w).copy())) for w in graph.initializer}
        self._device = torch.device("cpu")
        self._input = next(i.name for i in graph.input if i.name not in self._weights)
        self._steps: list[tuple[Operator, list[str], str, Attributes]] = []
        same: dict[str, str] = {}  # outputs that are aliases
        output = graph.output[0].name
        for node in graph.node:
            given = [same.get(name, name) for name in node.input]
            if node.op_type == "Identity" or (node.op_type == "Softmax" and node.output[0] == output):
                same[node.output[0]] = given[0]
            else:
                attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
                self._steps.append((OPERATORS[node.op_type], given, node.output[0], attributes))
        self._output = same.get(output, output)
        last = {name: index for index, step in enumerate(self._steps) for name in step[1]}
        self._done = [[name for name in set(step[1]) if last[name] == i] for i, step in enumerate(self._steps)]

    def __call__(self, x: Tensor) -> Tensor:
        """The output (logits) for an input; weights move to its device."""
        if x.device != self._device:
            # shapes are computed on the CPU
            self._weights = {n: w.to(x.device) if w.is_floating_point() else w for n, w in self._weights.items()}
            self._device = x.device
        # kernels are a quarter faster in channels-last layout
        values = self._weights | {self._input: x.contiguous(memory_format=torch.channels_last)}
        for (operator, given, output, attributes), done in zip(self._steps, self._done, strict=True):
            values[output] = operator([values[name] for name in given], attributes)
            for name in done:  # frees what no later step reads
                del values[name]
        return values[self._output]


def _layout(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


def _padded(x: Tensor, a: Attributes, value: float) -> Tensor:
    """With ONNX's SAME_UPPER padding, where that is asked for: inputs / stride outputs, and odd padding at the end."""
    if a.get("auto_pad") != b"SAME_UPPER":
        return x
    sides: list[int] = []
    for length, kernel, stride in zip(x.shape[2:], a["kernel_shape"], a["strides"], strict=True):
        padding = max((-(-length // stride) - 1) * stride + kernel - length, 0)
        sides = [padding // 2, padding - padding // 2, *sides]
    return F.pad(x, sides, value=value)


def _sides(a: Attributes) -> tuple[int, ...]:
    """Padding of height and width, which is the same on both sides in these networks."""
    top, left, bottom, right = a.get("pads", (0, 0, 0, 0))
    assert (top, left) == (bottom, right), "padding on one side is not supported"
    return top, left


def _conv(given: Sequence[Any], a: Attributes) -> Tensor:
    x, weight, *bias = given
    return F.conv2d(
        _padded(x, a, 0.0), weight, bias[0] if bias else None,
        tuple(a["strides"]), _sides(a), tuple(a.get("dilations", (1, 1))), a.get("group", 1),
    )  # fmt: skip


def _average_pool(given: Sequence[Any], a: Attributes) -> Tensor:
    assert not any(a.get("pads", ())), "padding is not supported"
    return F.avg_pool2d(given[0], tuple(a["kernel_shape"]), tuple(a["strides"]))


def _slice(given: Sequence[Any], a: Attributes) -> Tensor:
    x, starts, ends, *axes = given
    for axis, start, end in zip(axes[0].tolist() if axes else range(len(starts)), starts.tolist(), ends.tolist(),
                                strict=True):  # fmt: skip
        x = x[(slice(None),) * axis + (slice(start, end),)]
    return x  # type: ignore[no-any-return]


OPERATORS: dict[str, Operator] = {
    "Add": lambda x, a: x[0] + x[1],
    "AveragePool": _average_pool,
    "BatchNormalization": lambda x, a: F.batch_norm(x[0], x[3], x[4], x[1], x[2], eps=a.get("epsilon", 1e-5)),
    "Concat": lambda x, a: torch.cat(list(x), a["axis"]),
    "Conv": _conv,
    "Div": lambda x, a: x[0].div(x[1], rounding_mode=None if x[0].is_floating_point() else "trunc"),
    "Erf": lambda x, a: x[0].erf(),
    "HardSigmoid": lambda x, a: (x[0] * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp(0, 1),
    "MatMul": lambda x, a: x[0] @ x[1],
    "MaxPool": lambda x, a: F.max_pool2d(
        _padded(x[0], a, -torch.inf), tuple(a["kernel_shape"]), tuple(a["strides"]), _sides(a)
    ),
    "Mul": lambda x, a: x[0] * x[1],
    "Pow": lambda x, a: x[0] ** x[1],
    "ReduceMean": lambda x, a: x[0].mean(tuple(a["axes"]), keepdim=bool(a.get("keepdims", 1))),
    "Relu": lambda x, a: x[0].relu(),
    "Reshape": lambda x, a: x[0].reshape([x[0].shape[i] if n == 0 else n for i, n in enumerate(x[1].tolist())]),
    "Shape": lambda x, a: torch.tensor(x[0].shape),
    "Sigmoid": lambda x, a: x[0].sigmoid(),
    "Slice": _slice,
    "Softmax": lambda x, a: x[0].softmax(a["axis"]),
    "Sqrt": lambda x, a: x[0].sqrt(),
    "Squeeze": lambda x, a: x[0].squeeze(tuple(a["axes"])),
    "Sub": lambda x, a: x[0] - x[1],
    "Transpose": lambda x, a: x[0].permute(a["perm"]),
    "Unsqueeze": lambda x, a: reduce(torch.unsqueeze, sorted(a["axes"]), x[0]),
}


def lines(images: Tensor, height: int) -> Tensor:
    """Images [B, 3, H, W] RGB in [0, 1] as inputs of a recogniser: ``height`` pixels high, BGR in [-1, 1]."""
    width = max(round(images.shape[-1] * height / images.shape[-2]), 1)
    scaled = F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return scaled.flip(1) * 2 - 1


def log_likelihood(images: Tensor, answers: Sequence[Sequence[int]], graph: Graph, height: int) -> Tensor:
    """Log-probability that each image is read as its answer, per character (Graves et al. 2006, eq. 8).

    Args:
        images: [B, 3, H, W] RGB in [0, 1].
        answers: codes of the characters, at least one each; 0 is CTC's blank.
        graph: images [B, 3, height, W] to logits [B, T, C].
        height: of the graph's input, in pixels.

    Returns:
        [B]; -inf where an answer has more characters than the image has columns.
    """
    logits = graph(lines(images.float(), height))
    count, columns, _ = logits.shape
    lengths = torch.tensor([len(answer) for answer in answers])
    loss = F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1),
        torch.tensor([code for answer in answers for code in answer], device=logits.device),
        torch.full((count,), columns),
        lengths,
        reduction="none",
    )
    return -loss / lengths.to(loss)
