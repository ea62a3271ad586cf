"""Recipes that are no recipes, or more than anybody asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.cases import Case, Expect, Place
from tests.hostile.damage import ANY, TEXT, Damage

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
TEXTS: dict[str, tuple[str, Expect]] = {
    "aliases without end": (BOMB, "refused"),
    "an alias of itself": ("steps: &x [*x]", "refused"),
    "an object of Python": ("steps: !!python/object/apply:os.system ['touch hacked']", "refused"),
    "a tag": ("steps: !ruby/object:Gem::Installer {i: x}", "refused"),
    "a merge key": ("x: &x {steps: 1}\n<<: *x", "refused"),
    "binary": ("steps: !!binary aGVsbG8=", "refused"),
    "a set": ("steps: !!set {a, b}", "refused"),
    "a date": ("steps: 2026-01-01", "refused"),
    "several documents": ("steps: 1\n---\nsteps: 2", "refused"),
    "a huge whole number": (f"steps: {'9' * 5000}", "refused"),
    "a huge fraction": ("steps: 1e999", "refused"),
    "deep brackets": ("[" * 20_000, "refused"),
    "deep braces": ("{a: " * 5_000 + "1" + "}" * 5_000, "refused"),
    "deep options": ("".join("  " * i + "a:\n" for i in range(300)), "refused"),
    "a key that is a list": ("? [a, b]\n: 1", "refused"),
    "a key that is null": ("~: 1", "refused"),
    "an empty key": ("'': 1", "refused"),
    "a tab": ("model:\n\tpath: x", "refused"),
    "extends itself": ("extends: recipe.yaml", "refused"),
    "extends nothing": ("extends: nothing.yaml", "refused"),
    "extends a folder": ("extends: .", "refused"),
    "extends a device": ("extends: /dev/null", "refused"),
    "extends a list": ("extends: [drawing.yaml]", "refused"),
    "extends a control character": ('extends: "\\e[31m.yaml"', "refused"),
    "extends out of the package": ("extends: ../../../../etc/passwd", "refused"),
    "an algorithm that is a number": ("algorithm: 3", "refused"),
    "an algorithm without a name": ("algorithm: {clip: 1}", "refused"),
    "a reward that is a list": ("rewards: {brightness: [1]}", "refused"),
    "a reward without a name": ("rewards: {'': {weight: 1}}", "refused"),
    "a label with control characters": ('rewards: {"\\e[31m": {name: function}}', "refused"),
    "a thousand rewards": ("rewards: {" + ", ".join(f"r{i}: {{name: nothing}}" for i in range(1000)) + "}", "refused"),
    "a thousand options": ("\n".join(f"option{i}: {i}" for i in range(1000)), "refused"),
    "variants of everything": ("variants: {flow_grpo: {variants: {flow_grpo: {}}}}", "refused"),
    "a task that is a list": ("task: [text-to-image]", "refused"),
    "a task that is a number": ("task: 3", "refused"),
    "sections that are lists": ("model: []\ndata: []\nrollout: []\ntrainer: []", "refused"),
    "sections that are null": ("model: null\ndata: null\nrollout: null\ntrainer: null", "refused"),
    "comments alone": ("# nothing\n# at all\n", "refused"),
    "words": ("train my model please", "refused"),
    "a percent sign": ("%YAML 9.9\n---\nsteps: 1", "refused"),
    "an odd name of an option": ('"steps\\u202e": 1', "refused"),
}


def cases() -> Iterator[Case]:
    """Texts of our own, and damaged copies of a recipe that is right."""
    for name, (text, expect) in TEXTS.items():
        yield _written(name, text, expect)
    for name, damage in (ANY | TEXT).items():
        if name != "twice":
            yield _damaged(name, damage)
    for seed in range(40):
        yield _damaged(f"flipped bits, {seed}", ANY["flipped bits"], seed)
        yield _damaged(f"cut short, {seed}", ANY["cut short"], seed)


def _written(name: str, text: str, expect: Expect) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        (scratch / "recipe.yaml").write_text(text)
        return ["train", "recipe.yaml"]

    return Case(kind="recipes", name=name, make=make, expect=expect)


def _damaged(name: str, damage: Damage, seed: int = 0) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        (scratch / "recipe.yaml").write_bytes(place.drawing.read_bytes())
        damage(scratch / "recipe.yaml", random.Random(seed))
        return ["train", "recipe.yaml"]

    return Case(kind="recipes", name=f"damaged, {name}", make=make, expect="either")
