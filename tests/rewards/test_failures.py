"""Rewards that hang, crash, raise, lie or give nonsense: what is missing is never zero, nor another sample's value."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.failing_rewards import until
from tests.support.processes import alive, gone
from tests.support.reward_service import post, served
from tests.support.scoring import LIMIT, chosen, evaluated, function, written
from tests.support.tiny_run import TinyRun

HERE = "tests.support.failing_rewards"
NEVER = json.loads(Path(__file__).with_name("answers.json").read_text())["never work"]


def failing(name: str, **options):
    return function(f"{HERE}:{name}", **options)


def asked(*texts: str) -> list[dict]:
    return [{"prompt": text} for text in texts]


def rewards_of(rows) -> list[float | None]:
    return [row["reward"] for row in rows]


def updates_of(run, label: str = "it") -> list[dict]:
    return [row for row in run.metrics if f"reward/{label}/failed" in row]


@pytest.fixture
def train(files):
    """Train with such rewards; by prompts that are not random."""

    def run(rewards, records, *options, status=0):
        made = TinyRun(files, "language", "llama", "algorithm=grpo", *chosen(rewards), written(files, records),
                       "validation.every=null", "validation.before=false", *options, name="failing")  # fmt: skip
        return made, made.train(status=status).message

    return run


def test_one_that_hangs_in_c_is_missing_soon_after_its_deadline_and_is_ended(files, tmp_path, caplog):
    hanging = {"it": failing("hangs", arguments={"file": str(tmp_path / "pid")})}
    rows, _ = evaluated(files, hanging, asked("ok", "hang bad"), "scoring.processes=1", "scoring.timeout=2", status=2)
    assert rewards_of(rows) == [None, None]
    assert "(scoring.timeout)" in rows[1]["note"]
    assert "reward it is missing" in caplog.text
    assert gone(int((tmp_path / "pid").read_text()))


def test_one_that_kills_its_processes_loses_the_samples_that_did_it_and_no_sample_gets_anothers_reward(files):
    texts = ["x" * number + " bad" * (number in (5, 11)) for number in range(1, 17)]
    rewards = {"it": failing("reads_nowhere"), "light": failing("is_light_and_quiet", weight=0.0)}
    rows, _ = evaluated(files, rewards, asked(*texts), "scoring.processes=2", "rollout.batch_size=4")
    assert rewards_of(rows) == [None if "bad" in text else len(text) for text in texts]
    assert "died (signal " in rows[4]["note"]
    assert {row["components"]["light"] for row in rows} == {1.0}


@pytest.mark.parametrize("processes", [0, 1])
def test_a_failed_sample_is_tried_again_as_often_as_it_says(files, tmp_path, processes):
    options = f"scoring.processes={processes}"
    retried = failing("recovers", retries=2, arguments={"folder": str(tmp_path), "times": 3})
    rows, _ = evaluated(files, {"it": retried}, asked("a", "bad"), options)
    assert rewards_of(rows) == [1.0, 3.0]
    # the batch raises, the sample alone raises, and so does the first retry
    assert len(list(tmp_path.iterdir())) == 4
    once = failing("recovers", retries=1, arguments={"folder": str(tmp_path), "times": 99})
    assert rewards_of(evaluated(files, {"it": once}, asked("a", "bad"), options)[0]) == [1.0, None]


def test_a_group_is_left_out_as_a_whole_and_counted_or_the_run_ends_with_the_cause(train):
    asks = [*asked("bad", "good"), "data.shuffle=false", "scoring.probe=false"]
    run, _ = train({"it": failing("raises_on_bad", on_failure="drop_group")}, asks[:2], *asks[2:])
    assert len(updates_of(run)) == 3
    for row in updates_of(run):
        assert row["reward/it/failed"] == row["reward/it/dropped"] == row["critic/missing_count"] == 4
        assert row["critic/it/mean"] == 4
    _, said = train({"it": failing("raises_on_bad", on_failure="raise")}, asks[:2], *asks[2:], status=2)
    for words in ("reward it", "prompt 'bad'", "on_failure", "RuntimeError: no bad"):
        assert words in said


def test_too_many_failures_in_a_row_end_the_run(train, monkeypatch, caplog):
    monkeypatch.setattr("burnish.rewards.scoring.FAILURES", 3)
    monkeypatch.setenv("JUDGE_API_KEY", "no bad")
    _, said = train({"it": failing("raises_on_bad")}, asked("bad", "bad"), "scoring.probe=false", status=2)
    assert "3 samples in a row" in said
    assert "RuntimeError: ***" in caplog.text, "an error that quotes a token"


def test_equal_responses_to_equal_prompts_are_scored_once_by_a_model(files, train):
    judge = {"path": str(files / "llama"), "least": 0.0}
    run, _ = train({"judge": judge}, asked("a", "b"), "rollout.temperature=1e-3")
    assert [row["reward/judge/repeated"] for row in updates_of(run, "judge")] == [6.0] * 3


@pytest.mark.parametrize("processes", [0, 1])
def test_one_whose_child_comes_back_gives_no_sample_anothers_reward(files, processes, tmp_path):
    own, texts = os.getpid(), ["a", "bb", "ccc"]
    rows, _ = evaluated(files, {"it": failing("forks")}, asked(*texts), f"scoring.processes={processes}")
    if os.getpid() != own:
        (tmp_path / "came back").touch()
        os._exit(0)
    assert rewards_of(rows) == [1.0, 2.0, 3.0]
    assert not list(tmp_path.iterdir()), "the child goes on with the run as well"


def test_processes_follow_a_parent_that_is_killed(tmp_path):
    file, pid = tmp_path / "pid", None
    options = [f"function.path={HERE}:hangs", f"function.arguments={{file: '{file}', in_c: false}}"]
    body = {"samples": [{"text": "a"}], "prompts": [{"text": "bad"}]}
    with served("function", *options, "--task", "image-text-to-text") as service, ThreadPoolExecutor(1) as pool:
        try:
            asked = pool.submit(post, f"{service.url}/score", body)
            assert until(lambda: file.exists() and file.read_text())
            pid = int(file.read_text())
            assert alive(pid)
            service.kill()
            assert gone(pid)
            assert asked.exception(LIMIT) is not None
        finally:
            service.kill()
            if pid is not None and alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    NEVER,
)
def test_a_reward_that_can_never_work_is_refused_before_the_run(train, name, options, why):
    records = [{"prompt": "a", "label": "words"}, {"prompt": "b", "label": "numbers"}]
    mine = function(f"tests.support.bad_rewards:{name}", weight=0.0, labels=["numbers"])
    run, said = train({"format": {}, "mine": mine}, records, *options, status=2)
    for words in ("reward mine: ", why, "'b' (", "scoring.probe=false"):
        assert words in said, said
    assert said.isprintable()
    assert len(said) < 1500
    assert not run.output.exists()
