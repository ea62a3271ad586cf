"""The last words of a run: what was reached, where it is, and commands that can be copied."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from burnish.commands.messages import closing_message
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.report.summary import Summary, next_steps
from tests.support.reports import Story, run_folder


def words(path, story: Story, outcome: str, *, width: int = 80) -> str:
    folder = run_folder(path, story)
    out = io.StringIO()
    config = replace(load("quickstart"), steps=story.steps, output_dir=str(path))
    closing_message(folder, config, outcome, console=Console(file=out, width=width))
    return out.getvalue().replace("\N{NO-BREAK SPACE}", " ")


def test_what_was_reached_and_at_what_price(tmp_path):
    text = words(tmp_path / "run", Story(pictures=False), "finished")
    assert "Finished after 30 of 30 updates" in text
    row = next(line for line in text.splitlines() if line.startswith("Validation reward"))
    assert row.split()[2:] == ["0.772", "0.965", "0.978"]
    assert "− Pictures of one prompt became more alike" in text


def test_watched_statistics_are_one_line_and_other_rewards_without_weight_are_rows(tmp_path):
    folder = run_folder(tmp_path / "run", Story(pictures=False))
    rows = folder.read_metrics()
    for row in rows:
        if "val-aux/variety" in row:
            done = row["training/global_step"] / 30
            row |= {"val-aux/default/file_size/mean@6": 17 - done, "val-aux/default/watched_pickscore/mean@6": 0.2}
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = io.StringIO()
    closing_message(folder, replace(load("quickstart"), steps=30), "finished", console=Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert "1 watched statistic; clear change: File size; see the report" in lines
    assert not any(line.startswith("File size") for line in lines)
    assert any(line.startswith("Watched pickscore") for line in lines)
    assert any(line.endswith(f"burnish board {tmp_path}") for line in lines)


def test_a_stopped_run_says_how_to_go_on_first(tmp_path):
    text = words(tmp_path / "run", Story(updates=13, steps=40, pictures=False), "stopped by SIGTERM")
    assert "Stopped by SIGTERM after 13 of 40 updates" in text
    assert text.index("burnish train") < text.index("burnish sample")
    assert "burnish train" not in words(tmp_path / "done", Story(pictures=False), "finished").split("burnish sample")[0]


@pytest.mark.parametrize("width", [40, 200])
def test_commands_and_places_stay_on_one_line(tmp_path, width):
    path = tmp_path / "a folder with a long name and spaces"
    lines = words(path, Story(pictures=False), "finished", width=width).splitlines()
    assert any(line.endswith(f"burnish sample '{path}' \"a prompt\"") for line in lines)
    assert any(line.endswith(f"{path}/metrics.jsonl") for line in lines)


def test_the_verdict_in_one_sentence_comes_first(tmp_path):
    text = words(tmp_path / "run", Story(), "finished", width=200)
    assert text.index("It learned what it was trained for, at a price") < text.index("+ The validation reward")


@pytest.mark.parametrize(
    ("overrides", "more"), [((), ""), (("resume=never", "optimizer.schedule=constant"), " resume=auto")]
)
def test_a_run_can_be_made_longer_by_the_command_that_is_given(tmp_path, overrides, more):
    path = tmp_path / "run"
    assert f"burnish train {path}/config.yaml{more} steps=60\n" in words(path, Story(overrides=overrides), "finished")


def test_a_folder_that_was_moved_is_gone_on_with_where_it_is(tmp_path):
    folder = run_folder(tmp_path / "before", Story(updates=20))
    moved = RunFolder(folder.path.rename(tmp_path / "after"))
    (what, command), *_ = next_steps(moved, Summary.read(moved))
    assert what == "finish the run"
    assert command == f"burnish train {moved.config} output_dir={moved.path}"


def test_a_run_whose_learning_rate_has_ended_is_made_longer_with_its_schedule(tmp_path):
    said = words(tmp_path / "run", Story(overrides=("optimizer.schedule=linear",)), "finished")
    assert "config.yaml steps=60 optimizer.schedule_updates=60" in said


def test_only_places_that_exist_are_named(tmp_path):
    text = words(tmp_path / "run", Story(pictures=False), "finished")
    assert "grid.png" not in text
    assert "checkpoints" not in text


def test_before_the_first_validation_there_are_only_places(tmp_path):
    text = words(tmp_path / "run", Story(updates=0), "stopped by SIGINT")
    assert "Validation reward" not in text
    assert "burnish train" in text


def test_markup_in_a_name_is_text(tmp_path):
    assert "[bold]run" in words(tmp_path / "[bold]run", Story(pictures=False), "finished")
