"""What learned rewards load of the Hugging Face hub: fetched before a run, no more than needed, recorded by commits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.config import load
from burnish.config.disk import disk_problems
from burnish.config.hub import missing_scorers, with_models
from burnish.utils.errors import UserError
from tests.support.scorers import checkpoint, pictures, prompts, values

RELEASE = "HPS_v2.1_compressed.pt"


def files(name: str) -> dict[str, bytes]:
    folder = checkpoint(name)
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def config(**options):
    given = {"path": "makers/pick", "tokenizer": "makers/words"} | options
    return load("quickstart", [f"rewards={json.dumps({'pickscore': given})}", "output_dir=run"])


def test_networks_and_tokenizers_are_fetched_and_recorded_by_their_commits(hub):
    network = hub.publish("makers/pick", files("pickscore") | {"pytorch_model.bin": b"a pickle", "notes.md": b"words"})
    words = hub.publish("makers/words", files("clip"))
    assert [one.name for one in missing_scorers(config())] == ["makers/pick", "makers/words"]
    reward = with_models(config()).rewards["pickscore"]
    assert (reward.revision, reward.tokenizer_revision) == (network, words)
    assert list(missing_scorers(config())) == []
    assert not {"pytorch_model.bin", "notes.md"} & {one.name for one in reward.folder().iterdir()}
    vocabulary = {one.name for one in reward.vocabulary.iterdir()}
    assert "tokenizer.json" in vocabulary
    assert "model.safetensors" not in vocabulary, "of a tokenizer's repository, its words alone are fetched"
    reward.check(prompts())
    assert len(values(reward, pictures(), prompts())) == 4


def test_a_recorded_commit_stays_though_a_branch_moves(hub):
    first = hub.publish("makers/pick", files("pickscore"))
    hub.publish("makers/words", files("clip"))
    pinned = with_models(config()).rewards["pickscore"]
    hub.publish("makers/pick", files("pickscore") | {"README.txt": b"newer"})
    again = config(revision=first)
    assert with_models(again).rewards["pickscore"].revision == pinned.revision == first


def watched(*overrides: str, weight: float = 0):
    given = {"name": "pickscore", "path": "makers/pick", "tokenizer": "makers/words", "if_cached": True}
    given["weight"] = weight
    return load("quickstart", [f"rewards.second={json.dumps(given)}", "output_dir=run", *overrides])


def test_what_is_watched_where_its_weights_are_at_hand_is_left_out_elsewhere(hub):
    hub.publish("makers/pick", files("pickscore"))
    hub.publish("makers/words", files("clip"))
    assert list(missing_scorers(watched())) == []
    assert "second" not in with_models(watched()).rewards
    assert hub.asked == [], "nothing is asked of a network"
    with_models(config())  # fetches both
    assert "second" in with_models(watched()).rewards
    counted = "{name: pickscore, path: makers/pick, tokenizer: makers/words}"
    assert set(with_models(watched(f"rewards.first={counted}")).rewards) >= {"first"}
    assert "second" not in with_models(watched(f"rewards.first={counted}")).rewards
    Path("run").mkdir()
    Path("run/config.yaml").write_text("rewards: {ocr: {weight: 1}}\n")
    assert "second" not in with_models(watched()).rewards, "the run began without it"
    with pytest.raises(UserError, match="if_cached is true, but weight is 1"):
        watched(weight=1)


def test_a_published_file_is_fetched_alone(hub):
    hub.publish("makers/hps", {RELEASE: files("hpsv2")[RELEASE], "HPS_v2_compressed.pt": b"another"})
    hub.publish("makers/words", files("clip"))
    found = with_models(load("quickstart", ["rewards={hpsv2: {path: makers/hps, tokenizer: makers/words}}"]))
    assert [one.name for one in found.rewards["hpsv2"].folder(found.rewards["hpsv2"].weights).iterdir()] == [RELEASE]


def test_what_is_not_there_yet_is_said_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (problem,) = (one for one in disk_problems(config(tokenizer=None)) if "pickscore" in one)
    assert "rewards.pickscore.path is makers/pick, which is not on this machine yet" in problem
    assert "hf download makers/pick --local-dir DIR" in problem
    assert "set rewards.pickscore.path=DIR" in problem


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"path": ".", "revision": "main"},
            "rewards.pickscore.revision is main, but rewards.pickscore.path is ., which",
        ),
        ({"tokenizer": ".", "tokenizer_revision": "main"}, "rewards.pickscore.tokenizer_revision is main, but"),
        ({"tokenizer": None, "tokenizer_revision": "main"}, "tokenizer_revision is given without tokenizer"),
        ({"tokenizer_revision": "--odd"}, "rewards.pickscore.tokenizer_revision is '--odd'"),
    ],
)
def test_a_revision_belongs_to_a_name_of_the_hub(options, said):
    with pytest.raises(UserError, match=said):
        list(missing_scorers(config(**options)))
