"""What trackers are sent: rows as they are told of them, samples of validations, names."""

from __future__ import annotations

import json

import pytest

from burnish.config import load
from burnish.config.disk import disk_problems
from burnish.config.run_folder import RunFolder
from burnish.trackers.names import renamed
from burnish.trackers.reading import Notices, Progress, Rows, read_samples
from burnish.utils.secrets import redacted
from tests.support.tracked import validate


def line(step, **values):
    return json.dumps({"training/global_step": step} | values) + "\n"


def test_rows_come_once_and_only_as_far_as_is_told(tmp_path):
    file = tmp_path / "metrics.jsonl"
    rows = Rows(file, after=0)
    assert list(rows.upto(5)) == []  # before there is a file
    file.write_text(line(0, a=1) + line(1, a=2, b=None) + "damaged\n" + line(2, a=3) + line(3, a=4)[:-5])
    assert list(rows.upto(1)) == [(1, {"a": 2})]
    assert list(rows.upto(9)) == [(2, {"a": 3})]  # the last line is still being written
    with file.open("a") as lines:
        lines.write(line(3, a=4)[-5:] + line(4))
    assert list(rows.upto(9)) == [(3, {"a": 4}), (4, {})]


def test_rows_that_a_resumed_run_repeats_are_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(line(1) + line(2) + line(3))
    assert [step for step, _ in Rows(file, after=2).upto(9)] == [3]


def test_alarms_come_once_with_what_was_said_when_they_were_raised(tmp_path):
    file = tmp_path / "alarms.jsonl"
    notices = Notices(file, after=1)
    assert list(notices.upto(5)) == []
    lines = [
        {"update": 1, "name": "a", "text": "x"}, {"update": 2, "over": "a"}, {"update": 2, "over": "never raised"},
        {"update": 3, "name": "b" * 300, "text": "y" * 9000}, {"update": 3, "name": 4, "text": "z"}, {"update": "4"},
        {"update": 5, "name": "a", "text": "w"},
    ]  # fmt: skip
    file.write_text("[]\ndamaged\n" + "".join(json.dumps(one) + "\n" for one in lines)[:-4])
    first, second = notices.upto(4)
    assert (first.update, first.title, first.said) == (2, "alarm a is over", "over since update 2; raised because x")
    assert (second.update, len(second.name), len(second.said)) == (3, 200, 4000)
    assert list(notices.upto(9)) == []  # the last line is still being written
    file.write_text(file.read_text() + 'w"}\n')
    assert [(one.update, one.said) for one in notices.upto(9)] == [(5, "w")]


def test_progress_outlives_the_process_and_a_damaged_file(tmp_path):
    file = tmp_path / "wandb.json"
    Progress(file).write("ab12", 7)
    assert (Progress(file).id, Progress(file).step) == ("ab12", 7)
    for content in ("", "[]", '{"id": 3, "step": 4}', '{"step": 4}'):
        file.write_text(content)
        assert (Progress(file).id, Progress(file).step) == (None, -1)


def test_samples_are_the_first_of_each_of_the_first_prompts(tmp_path):
    folder = RunFolder(tmp_path)
    validate(folder, 9)
    place = folder.validation(9)
    records = [json.loads(text) for text in (place / "samples.jsonl").read_text().splitlines()]
    records = [records[0], records[0] | {"sample": 1, "response": "another"}, records[1] | {"images": ["../../x.png"]}]
    (tmp_path / "x.png").write_bytes(b"secret")
    (place / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    first, second = read_samples(place, 8)
    assert (first.text, first.caption, [file.name for file in first.shown]) == (
        "**five** <b>0</b>", "2.25 | prompt 0", ["000-0.png"],
    )  # fmt: skip
    assert second.shown == []
    assert len(read_samples(place, 1)) == 1
    assert read_samples(place, 0) == read_samples(folder.validation(1), 8) == []


def test_names_of_lightrft():
    values = {
        "actor/pg_loss": 1.0, "critic/rewards/mean": 2.0, "val-core/a/reward/mean@4": 3.0,
        "val-core/b/reward/mean@4": 5.0, "val-aux/a/format/mean@4": 6.0, "perf/throughput": 7.0,
        "val-aux/num_samples": 8.0, "response/reflections/mean": 0.5,
    }  # fmt: skip
    assert renamed(9, values, "verl") == values
    assert renamed(9, values, "lightrft") == {
        "train/policy_loss": 1.0, "train/step_reward_mean": 2.0, "eval/reward_mean": 4.0, "eval/format_reward": 6.0,
        "eval/num_samples": 8.0, "trajectory/reflection_pattern_score_mean": 0.5,
        "perf/throughput": 7.0, "train/global_step": 9.0, "eval/global_step": 9.0,
    }  # fmt: skip


def test_messages_without_secrets():
    environment = {"WANDB_API_KEY": "abcdefgh", "SHORT_KEY": "ab", "HOME": "/home/me", "MY_PASSWORD": "abcdefgh-long"}
    text = "abcdefgh-long, abcdefgh at /home/me, ab, http://me:word@host/x?write_token=abc&step=1"
    assert redacted(text, environment) == "***, *** at /home/me, ab, http://***@host/x?write_token=***&step=1"


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow", "trackio", "clearml"])
def test_a_library_that_is_missing_is_named_with_its_command(name, monkeypatch, tmp_path):
    monkeypatch.setattr("burnish.utils.installed.find_spec", lambda module: None if module == name else object())
    config = load("quickstart", [f"trackers.{name}={{}}", f"output_dir={tmp_path}"])
    (problem,) = disk_problems(config)
    assert problem == f"trackers.{name} needs {name}, which is not installed: pip install 'burnish[{name}]'"
