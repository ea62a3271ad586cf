import json
import os
import signal
import sys
import threading
import time

import pytest

from burnish import cli
from burnish.commands import sweep
from burnish.config import load
from burnish.utils.errors import ConfigError


def test_every_combination_in_the_order_of_the_options():
    members = sweep.expand(["seed=0,1", "algorithm.beta=0.5,1", "steps=3", "output_dir=runs/s"], "runs/s")
    assert [str(member.folder) for member in members] == [
        "runs/s/seed=0,algorithm.beta=0.5",
        "runs/s/seed=0,algorithm.beta=1",
        "runs/s/seed=1,algorithm.beta=0.5",
        "runs/s/seed=1,algorithm.beta=1",
    ]
    folder = 'output_dir="runs/s/seed=0,algorithm.beta=0.5"'
    assert members[0].overrides == ["steps=3", "seed=0", "algorithm.beta=0.5", folder]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0,1", ["0", "1"]),
        ("[a,b]", ["[a,b]"]),
        ("[a,b],[c]", ["[a,b]", "[c]"]),
        ("{a: 1, b: 2},null", ["{a: 1, b: 2}", "null"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("1", ["1"]),
    ],
)
def test_commas_inside_brackets_and_quotes_do_not_separate(text, parts):
    assert sweep.split(text) == parts


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=1"], ["--sweep", "seed=0,1,2"]),
        (["seed=0,0"], ["seed is 0,0", "repeated"]),
        (["seed=0,,1"], ["seed is 0,,1", "is empty"]),
        (["seed=0,1", "seed=2,3"], ["seed", "twice"]),
        (["output_dir=a,b"], ["output_dir is a,b"]),
        (["seed=0,x"], ["seed is x", "a whole number"]),
        (["seed=0,1", "rollout.n=1"], ["rollout.n is 1", ">= 2"]),
        (["seed=0,1", "data.train_files=gone.txt"], ["data.train_files is gone.txt"]),
        (["model.path=a/b,a_b"], ["share the folder"]),
    ],
)
def test_a_bad_value_in_any_member_is_refused_before_the_first_starts(recipe, overrides, words, capsys, monkeypatch):
    monkeypatch.setattr(sweep.subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a run was started"))
    assert cli.main(["train", recipe, "--sweep", *overrides]) == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message


def test_members_are_whole_configurations_in_folders_of_their_own(recipe, tmp_path):
    members = sweep.checked(recipe, ["algorithm=diffusion_nft,flow_grpo", "model.lora=null,{rank: 4}"])
    configs = [load(recipe, member.overrides) for member in members]
    assert [config.algorithm.name for config in configs] == ["diffusion_nft"] * 2 + ["flow_grpo"] * 2
    assert [config.model.lora is None for config in configs] == [True, False] * 2
    assert len({config.output_dir for config in configs}) == 4
    assert all(config.output_dir.startswith(str(tmp_path / "run") + "/") for config in configs)


def pretend(folder, code):
    """A process that writes what a run writes, or stops as a run stops."""
    lines = [
        {"step": 0, "val-core/all/reward/mean@4": 0.1},
        {"step": 1, "val-core/all/reward/mean@4": 0.875},
        {"step": 2},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 3, "torn'
    program = (
        f"import pathlib, sys; p = pathlib.Path({str(folder)!r}); p.mkdir(parents=True); "
        f"(p / 'metrics.jsonl').write_text({text!r}); sys.exit({code})"
    )
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(("codes", "ended", "runs"), [((0, 0), 0, 2), ((1, 0), 1, 2), ((75, 0), 75, 1)])
def test_the_runs_of_a_sweep_and_their_table(recipe, tmp_path, capsys, monkeypatch, codes, ended, runs):
    popen, started = sweep.subprocess.Popen, []

    def start(command, **kwargs):
        assert command[1:5] == ["-m", "burnish.cli", "train", recipe]
        folder = json.loads(command[-1].removeprefix("output_dir="))
        started.append(folder)
        return popen(pretend(folder, codes[len(started) - 1]), **kwargs)

    monkeypatch.setattr(sweep.subprocess, "Popen", start)
    assert cli.main(["train", recipe, "seed=0,1", "--sweep", f"output_dir={tmp_path}/s"]) == ended
    assert started == [f"{tmp_path}/s/seed=0", f"{tmp_path}/s/seed=1"][:runs]
    table = capsys.readouterr().out
    assert table.count("0.1 → 0.875") == runs
    assert "reward" in table
    assert ("0.875 ± 0" in table) == (runs == 2)
    assert ("failed (1)" in table) == (1 in codes)


def test_a_signal_stops_the_run_and_the_sweep(recipe, tmp_path, monkeypatch):
    popen, started = sweep.subprocess.Popen, []

    def start(command, **kwargs):
        started.append(command)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        wait = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); time.sleep(60)"
        return popen([sys.executable, "-c", wait], **kwargs)

    monkeypatch.setattr(sweep.subprocess, "Popen", start)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["train", recipe, "seed=0,1", "--sweep"]) == 75
    assert len(started) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_lists_are_shown_as_they_were_given(tmp_path, capsys):
    sweep.show([sweep.Member({"model.lora.targets": "[a,b]"}, [], tmp_path)], [0])
    assert "[a,b]" in capsys.readouterr().out


def finished(folder, *validations):
    folder.mkdir()
    lines = [{"training/global_step": update} | one for update, one in enumerate(validations)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_table_fits_whatever_data_sources_are_called(tmp_path, capsys):
    """A row for each data source: many of them, or long names, make no column."""
    core = {
        f"val-core/{source}/reward/{name}": value
        for source in ("default", "a/step_0", "a/step_1")
        for name, value in (("mean@16", 0.5), ("best@16/mean", 0.75), ("best@16/std", 0.01))
    }
    folder = finished(tmp_path / "run", {key: value / 2 for key, value in core.items()}, core, {"actor/x/step_0": 1.0})
    sweep.show([sweep.Member({"algorithm.beta": "0.5"}, [], folder)], [0])
    title, *table = capsys.readouterr().out.strip().split("\n")
    assert title.strip() == "first validation → last"
    text = " ".join(" ".join(table).split())
    assert text.startswith("algorithm.beta data reward best of 16 run 0.5 default 0.25 → 0.5 0.375 → 0.75 done")
    assert all(f"0.5 a/step_{i} 0.25 → 0.5 0.375 → 0.75 done" in text for i in range(2))
    assert all(len(line) <= 80 for line in table)


def test_seeds_have_a_mean_and_a_standard_deviation(tmp_path, capsys):
    key, members = "val-core/default/reward/mean@4", []
    for beta in ("0.1", "1"):
        for seed, reward in ((0, 0.5), (1, 0.75)):
            folder = finished(tmp_path / f"{beta}-{seed}", {key: 0.25}, {key: reward + float(beta)})
            members.append(sweep.Member({"algorithm.beta": beta, "seed": str(seed)}, [], folder))
    sweep.show(members, [0] * 4)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "1", "0.25", "→", "1.75", "done"] in rows
    assert ["0.1", "mean", "±", "std", "0.725", "±", "0.18", "2", "seeds"] in rows
    assert ["1", "mean", "±", "std", "1.625", "±", "0.18", "2", "seeds"] in rows


def test_a_run_without_validation_has_no_rewards(tmp_path):
    assert sweep.rewards(tmp_path) == ({}, {})


def test_the_first_values_decide_nothing_but_the_base_folder(recipe):
    with pytest.raises(ConfigError, match="seed is x"):
        sweep.checked(recipe, ["seed=x,1"])


def test_a_member_stops_when_the_sweep_is_killed(tmp_path):
    member = (
        "import os, signal, sys, time; from burnish import cli;"
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + '/stopped', 'w'), os._exit(0)));"
        "cli.StopRequest = lambda: (open(sys.argv[1] + '/begun', 'w'), time.sleep(60));"
        "cli.main(['train', 'quickstart'])"
    )
    code = (
        "import sys; from burnish.commands import sweep\n"
        f"with sweep._forwarding() as run: run([sys.executable, '-c', {member!r}, {str(tmp_path)!r}])"
    )
    parent = sweep.subprocess.Popen([sys.executable, "-c", code])
    awaited(tmp_path / "begun")
    parent.kill()
    parent.wait()
    awaited(tmp_path / "stopped")


def awaited(file):
    until = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < until, file
        time.sleep(0.05)
