"""Inputs and outputs of the field's reference implementations, computed on CPU in float32: numbers only.

Tensors are ``{dtype, shape, data}`` or nested lists; NaN and infinities are strings, which ``float`` reads.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    id: str
    inputs: dict
    expected: dict
    rtol: float
    atol: float

    def close(self, actual, expected) -> None:
        """Both are tensors, numbers or nested lists of them."""
        actual, expected = _tensor(actual), _tensor(expected)
        options = {"rtol": self.rtol, "atol": self.atol, "equal_nan": True}
        torch.testing.assert_close(actual.double(), expected.double().expand_as(actual), **options)


def cases(file: str, *prefixes: str) -> list[Case]:
    """The cases of a file whose ids start with one of the prefixes; there must be some for each."""
    raw = json.loads((Path(__file__).parent / f"{file}.json").read_text())
    found = [case for case in raw if case["id"].startswith(prefixes)]
    for prefix in prefixes:
        assert any(case["id"].startswith(prefix) for case in found), f"no case {prefix}"
    bounds = [[case["tolerance"].get(name, 0.0) for name in ("rtol", "atol")] for case in found]
    decoded = [[_decode(case[name]) for name in ("inputs", "expected")] for case in found]
    return [Case(case["id"], *values, *given) for case, values, given in zip(found, decoded, bounds, strict=True)]


def case(file: str, name: str) -> Case:
    return next(case for case in cases(file, name) if case.id == name)


def labels(names) -> Tensor:
    """Numbers [B] of groups by their names, in order of appearance."""
    known = list(dict.fromkeys(names))
    return torch.tensor([known.index(name) for name in names])


def _decode(value):
    if isinstance(value, dict) and "data" in value:
        data = [float(v) if isinstance(v, str) else v for v in value["data"]]
        return torch.tensor(data, dtype=getattr(torch, value["dtype"])).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [_decode(item) for item in value]
    return float(value) if isinstance(value, str) and _is_number(value) else value


def _is_number(text: str) -> bool:
    return text.lower() in ("nan", "inf", "-inf", "infinity", "-infinity")


def _tensor(value) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
