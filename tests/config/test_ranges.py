"""Every number has a range: what no machine could do, and what float32 can't hold, is refused with the way out."""

from __future__ import annotations

import typing

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from burnish.config import load, machine
from burnish.config.complaints import section_class
from burnish.config.disk import check_disk
from burnish.config.flow import FlowConfig
from burnish.config.language import LanguageConfig
from burnish.config.text import fields
from burnish.registry import lookup, names
from burnish.utils.errors import ConfigError

REFUSED = {
    "drawing": {
        "rollout.n=100000000000": "rollout.n is 100000000000; it must be <= 1e9",
        "rollout.n=900000000": "machine has",
        "threads=100000": "threads is 100000",
        "threads=1000": "cores; set it to",
        "scoring.processes=100000": "scoring.processes is 100000",
        "scoring.processes=1000": "cores; set it to",
        "model.lora.rank=100000000": "model.lora.rank is 100000000; it must be <= 65536",
        "rollout.num_inference_steps=100000000": "rollout.num_inference_steps is 100000000; it must be <= 1000",
        "rollout.guidance_scale=1e300": "rollout.guidance_scale is 1.0e+300; it must be <= 1000",
        "rollout.guidance_scale=.inf": "rollout.guidance_scale is .inf",
        "rollout.guidance_scale=.nan": "rollout.guidance_scale is .nan",
        "optimizer.lr=1e30": "optimizer.lr is 1.0e+30; it must be <= 10",
        "optimizer.eps=1e-300": "too small: it underflows in float32",
        "scoring.timeout=1e10": "scoring.timeout is 10000000000.0; it must be <= 2e6",
        "seed=9223372036854775808": "seed is 9223372036854775808",
        "validation.n=900000000": "validation.n",
        "rollout={height: 32768, width: 32768, n: 1000}": "rollout.height 32768",
        "rewards.ocr.threads=1000": "rewards.ocr.threads is 1000",
    },
    "vlm_quickstart": {
        "rollout.temperature=1e-300": "logits would overflow",
        "rollout.max_new_tokens=100000000000": "rollout.max_new_tokens",
        "rollout={max_new_tokens: 4000000, n: 100000}": "rollout.max_new_tokens",
        "data.train_batch_size=1000000000": "data.train_batch_size",
        "trainer.epochs=1000000": "trainer.epochs is 1000000",
    },
}
CASES = [(task, given, words) for task, some in REFUSED.items() for given, words in some.items()]
LARGE = [
    "threads=16", "scoring.processes=16", "rollout.n=10000", "optimizer.max_grad_norm=1e9",
    "trainer.micro_batch_size=1000000", "steps=1000000000",
]  # fmt: skip


@pytest.mark.parametrize(("task", "given", "words"), CASES)
def test_what_is_out_of_range_is_refused_before_anything_is_loaded(recipe, task, given, words):
    with pytest.raises(ConfigError) as refused:
        check_disk(load(recipe if task == "drawing" else task, [given]))
    assert words in str(refused.value)


@pytest.mark.parametrize("given", LARGE)
def test_what_is_large_but_sane_is_not(recipe, given):
    check_disk(load(recipe, [given]))


def test_on_a_cluster_nothing_is_known_of_the_machines(recipe):
    there = ["runtime=ray", "pools.train.processes=2", "pools.rollout.processes=2"]
    assert not list(machine.machine_complaints(load(recipe, ["threads=1000", *there])))


def classes():
    kinds = ("flow algorithm", "language algorithm", "flow reward", "language reward", "environment")
    found = [FlowConfig, LanguageConfig, *(lookup(kind, name) for kind in kinds for name in names(kind))]
    for cls in found:
        found += [inner for field in fields(cls).values()
                  if (inner := section_class(field.annotation)) is not None and inner not in found]  # fmt: skip
    return found


def numbers(annotation, metadata=()):
    """The bounds of every number that an annotation allows."""
    if annotation in (int, float):
        yield [bound for one in metadata for bound in (one.metadata if isinstance(one, FieldInfo) else [one])]
    elif typing.get_origin(annotation) is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        yield from numbers(inner, [*metadata, *more])
    elif typing.get_origin(annotation) is not typing.Literal:
        for inner in typing.get_args(annotation):
            yield from numbers(inner)


FREE = {"expires_at", "controller", "worker"}  # a moment, and options of a program that knows them


def test_every_number_has_a_range():
    options = [(cls, name, field) for cls in classes() for name, field in fields(cls).items() if name not in FREE]
    for cls, name, field in options:
        for bounds in numbers(field.annotation, field.metadata):
            assert any(isinstance(bound, Ge | Gt) for bound in bounds), f"{cls.__name__}.{name} has no lower end"
            assert any(isinstance(bound, Le | Lt) for bound in bounds), f"{cls.__name__}.{name} has no upper end"
