"""Every option with a value that README and documents name in their text or tables is composed with a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from burnish.config import load
from burnish.config.complaints import every_option
from burnish.config.hardware import WORDS
from burnish.config.load import context_of, recipe_names
from burnish.utils.errors import UserError
from tests.support.command_lines import accept
from tests.support.shown import BESIDE, ROOT, blocks, forgotten, spans

# other trainers' options, which test_foreign.py composes; what its own examples register; titles of blocks
ELSEWHERE = ("coming_from.md", "extending.md", "CONTRIBUTING.md")
PAGES = [page for page in (*BESIDE, *sorted((ROOT / "docs").rglob("*.md"))) if page.name not in ELSEWHERE]
OPTION = r"[a-z_]+(?:\.\w+)*="
SHOWN = re.compile(rf"{OPTION}(?:[^`\s]+(?: {OPTION}[^`\s]+)*|[\[{{][^`]*[\]}}])")
PLACEHOLDER = re.compile(r"\bNAME\b|=(DIR|PATH|N|\.\.\.)$")  # for a value of the reader's
RAY = ("runtime=ray", "pools.train.processes=2")
SAMPLERS = (*RAY, "pools.rollout.processes=1")
VLLM = ("vlm_quickstart", "rollout.engine=vllm", "rollout.vllm.python=vllm-env/bin/python")
GAME = ("vlm_quickstart", "algorithm=reinforce", "rewards.environment.weight=1", "environment.name=function")
TOOLS = (*GAME[:-1], "environment.name=tools", "environment.functions.add=tools.py:add")
BASES = (
    ("quickstart",), ("vlm_quickstart",), ("quickstart", "algorithm=flow_grpo"), ("vlm_quickstart", "algorithm=ppo"),
    ("video_quickstart",), ("vlm_quickstart", "rewards.numeric.weight=1"), ("qwen25_vl/grpo",),
    ("qwen25_vl_3b/distill",),
)  # fmt: skip
ADDED = {  # what options that begin so need beside them
    "algorithm.advantage=group_steps": [
        ("vlm_quickstart", "algorithm=grpo", "rewards.reward_model={path: prm, steps: each}"),
    ],
    "algorithm.turn_rewards": [(*GAME, "environment.path=own.py:Game")],
    "data.fit": [("sd35/diffusion_dpo",)],
    "detach": [("vlm_quickstart", "algorithm=ppo", "critic.trunk=shared")],
    "environment.calls": [TOOLS],
    "environment.": [(*GAME, "environment.path=own.py:Game")],
    "high_entropy_": [("vlm_quickstart", "algorithm.high_entropy_fraction=0.5")],
    "leaf_pruning": [("sd35/branch_grpo", "algorithm.keep_leaves=4")],
    "model.offload=true rewards.watched": [("flux/tdm_r1",)],
    "old_decay_counts": [("quickstart", "algorithm.old_decay=linear_to_0_5")],
    "old_decay=ema": [("quickstart", "algorithm=crd", "algorithm.old_ema=0.5")],
    "pipeline.": [("quickstart", *SAMPLERS), ("vlm_quickstart", *SAMPLERS)],
    "pools.": [("quickstart", *SAMPLERS), ("vlm_quickstart", *SAMPLERS)],
    "profiler.": [
        ("quickstart", *RAY, "profiler.steps=[1]"),
        ("quickstart", *RAY, "profiler.steps=[1]", "profiler.tool=nsys"),
    ],
    "ray.": [("quickstart", *RAY)],
    "rollout.vllm.adapter": [(*VLLM, *SAMPLERS, "model.lora.rank=4")],
    "rollout.vllm.": [VLLM, (*VLLM, *SAMPLERS)],
    "sharding.": [("quickstart", *RAY), ("vlm_quickstart", *RAY)],
    "sleep": [VLLM],
}
COMMANDS = {"suite.": "burnish eval runs/a --suite parti", "service.": "burnish serve-reward ocr"}
MISSING = ("model.attention=flash",)  # needs a library that is not installed here


def shown(page: Path) -> list[str]:
    """Options with values in a page's text and tables, each as it stands there, without its blocks."""
    return [span for span in spans(page.read_text()) if SHOWN.fullmatch(span)]


def contexts(page: Path, text: str) -> Iterator[tuple[str, ...]]:
    """Recipes that an option may belong to, with what it needs beside it."""
    for start, needed in ADDED.items():
        if text.startswith(start):
            yield from needed
    if "algorithms" in page.parts:
        yield from ((name,) for name in recipe_names() if name.endswith(f"/{page.stem}"))
        yield from ((recipe, f"algorithm={page.stem}") for recipe in ("quickstart", "vlm_quickstart"))
    yield from BASES


@cache
def known(*context: str) -> list[str]:
    """Options of a recipe; none where it is refused."""
    try:
        return every_option(context_of(context[0], context[1:]))
    except UserError:
        return []


def refused(page: Path, text: str) -> str:
    """Why no recipe accepts what is shown; nothing if one does. An option may be called by the end of its name."""
    options = re.split(rf" (?={OPTION})", text.replace("rewards.NAME.", "rewards.format."))
    for start, command in COMMANDS.items():
        if text.startswith(start):
            accept(f"{command} {text}")
            return ""
    name, why = options[0].partition("=")[0], ""
    for context in contexts(page, text):
        own = known(*context)
        names = [name] if name in own or name in WORDS else [one for one in own if one.endswith(f".{name}")]
        for full in names or [name]:
            if PLACEHOLDER.search(text):
                if full in own or full in WORDS:
                    return ""
                continue
            try:
                load(context[0], [*context[1:], full + options[0].removeprefix(name), *options[1:]])
            except UserError as error:
                why = why or str(error)
            else:
                return ""
    return f"{text}: {why or 'there is no such option'}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_option_that_a_page_shows_with_a_value_is_accepted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.title:  # which an option may name
            (tmp_path / block.title).write_text(block.text)
    with forgotten():
        complaints = [why for text in shown(page) if text not in MISSING and (why := refused(page, text))]
    assert complaints == []


@pytest.mark.parametrize("text", ["rollout.m=3", "runtime=rey", "kl_cof=0.1", "algorithm.nothing=NAME"])
def test_a_value_that_no_recipe_takes_is_found(text):
    assert refused(ROOT / "docs" / "faster.md", text).startswith(f"{text}: ")
