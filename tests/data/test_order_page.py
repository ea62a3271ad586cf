"""The page on order: its sampler chooses what it says, and its commands are accepted."""

import pytest

from burnish.data.sets import SETS
from burnish.data.stream import PromptStream
from burnish.types.prompt import Prompt
from tests.support.shown import ROOT, blocks


def test_the_sampler_of_the_page_takes_what_is_half_solved_first(tmp_path):
    (code,) = (block.text for block in blocks(ROOT / "docs" / "data_order.md") if block.title == "mine.py")
    (tmp_path / "mine.py").write_text(code)
    prompts = [Prompt(text=f"prompt {i}") for i in range(4)]
    stream = PromptStream(prompts, 2, seed=0, shuffle=True, sampler=f"{tmp_path / 'mine.py'}:choose")
    past = dict(zip([one.uid for one in prompts], ([1.0], [0.5], [0.0], [0.4]), strict=True))
    stream.sampler.history.of = lambda uids, version: [past[uid] for uid in uids]
    assert [one.text for one in stream.next_batch(2, 1)] == ["prompt 1", "prompt 3"]
    past[prompts[2].uid] = []
    assert stream.next_batch(2, 1)[0].text == "prompt 2", "new ones before all others"


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_on_the_page_of_sets(name):
    page = (ROOT / "docs" / "data_sets.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    for split, source in SETS[name].splits.items():
        assert split in row
        assert source.count is None or f"{split} {source.count:,}" in row
