"""Blocks of text on pages, beside what the code makes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

from burnish.commands.fitting import conclusion
from burnish.config.run_folder import RunFolder
from burnish.registry import lookup
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from tests.support.reward_service import get, post, served
from tests.support.shown import ROOT, blocks


def shown(page: str) -> str:
    """The only block of text of a page."""
    (text,) = [block.text for block in blocks(ROOT / "docs" / page) if block.kind == "text"]
    return text


def test_the_files_of_a_run_are_those_that_a_run_has():
    folder = RunFolder("runs/quickstart")
    places = [place for place in vars(folder).values() if isinstance(place, Path)] + [folder.validation(1)]
    has = {place.relative_to(folder.path).parts[0] for place in places if place != folder.path}
    lines = shown("loop.md").splitlines()[1:]
    named = {re.match(r"  ([\w.]+)", line)[1] for line in lines} | set(re.findall(r"(\w+)/ those", "\n".join(lines)))
    assert named - has == {"earlier"}
    assert has <= named


def test_the_conclusion_of_a_forecast_has_this_form():
    needs = re.findall(r"(\w+) needs (\S+) GiB of (\S+) GiB in '([^']+)'", shown("plan.md"))
    pools = [
        SimpleNamespace(
            name=name, highest=[phase], can_fit=lambda memory: True,
            needs_of=lambda memory, needed=needed: round(float(needed) * 2**30),
        )
        for name, needed, _, phase in needs
    ]  # fmt: skip
    memory = {name: round(float(there) * 2**30) for name, _, there, _ in needs}
    assert conclusion(SimpleNamespace(pools=pools, left_out=()), memory) == shown("plan.md").strip()


def test_a_reward_service_answers_so():
    asked, answered, health, _ = shown("reward_service.md").splitlines()
    body, reply = (json.loads(line[line.index("{") :].replace(", ...", "")) for line in (asked, answered))
    with served("numeric") as service:
        assert post(f"{service.url}/score", body)[:2] == (200, reply)
        status, said = get(f"{service.url}/health")
        assert (status, json.loads(said)) == (200, json.loads(re.search(r"\{.*\}", health)[0]))


def test_lightrfts_protocol_has_these_keys():
    asked, answered = shown("rewards_language.md").splitlines()
    remote = lookup("language reward", "remote")(url="http://127.0.0.1:1")
    content = remote._lightrft([Response("yes")], [Prompt(text="why?", answer="2")])
    assert set(content) <= set(re.findall(r'"(\w+)":', asked)) == {*content, "images"}
    assert json.loads(answered.removeprefix("<- ")) == {"rewards": [0.5, None]}
