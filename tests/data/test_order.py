"""In which order records are drawn: by the seed, in shares, by code of the user; and how a run goes on in it."""

import json
import pickle
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import burnish as package
from burnish.data.prompts import read_prompts
from burnish.types.media import Media
from burnish.types.prompt import Prompt, Prompts
from tests.support.optional import seldom
from tests.support.records import GENERATOR, LANGUAGE, read, write
from tests.support.shown import ROOT, blocks
from tests.support.tiny_run import TinyRun, burnish

# code of users: one that writes what it is told, and by what it does wrong, what is said
SAMPLERS = json.loads(Path(__file__).with_name("wrong_records.json").read_text())["samplers"]
SMALL = ["algorithm=grpo", "rollout={n: 2, max_new_tokens: 1}", "data.train_batch_size=3", "trainer.epochs=1",
         "checkpoint.every=1", "trainer.mini_batch_size=null"]  # fmt: skip


def lists(folder, *sizes):
    """Files of so many records each, whose texts say where they lie."""
    return [
        write(folder / f"{part}.jsonl", *({"prompt": f"{part}-{number}"} for number in range(size)))
        for part, size in enumerate(sizes)
    ]


class Drawn:
    """A run of which the prompts of every update are looked at."""

    def __init__(self, files, paths, *options, name="order"):
        self.run = TinyRun(files, "language", "llama", f"data.train_files={json.dumps(paths)}", *SMALL, *options,
                           name=name)  # fmt: skip

    def after(self, steps):
        self.run.train(f"steps={steps}")
        lines = (self.run.output / "groups.jsonl").read_text().splitlines()
        return [[group["prompt"] for group in json.loads(line)["groups"]] for line in lines]


def flat(batches):
    return [text for batch in batches for text in batch]


def test_every_epoch_has_every_prompt_once_in_a_new_order_of_the_seed(files, tmp_path):
    (path,) = lists(tmp_path, 5)
    batches = Drawn(files, path).after(5)
    assert {len(batch) for batch in batches} == {3}, "batches are always full"
    epochs = [flat(batches)[start : start + 5] for start in (0, 5, 10)]
    assert all(sorted(order) == [f"0-{i}" for i in range(5)] for order in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert Drawn(files, path).after(1) == batches[:1] != Drawn(files, path, "seed=1").after(1)
    assert flat(Drawn(files, path, "data.shuffle=false").after(2)) == ["0-0", "0-1", "0-2", "0-3", "0-4", "0-0"]
    some = set(flat(Drawn(files, path, "data.train_max_samples=2").after(2)))
    assert len(some) == 2
    assert some != set(flat(Drawn(files, path, "data.train_max_samples=2", "seed=2").after(2)))


def test_every_stretch_of_a_mixture_has_the_shares_and_lists_have_epochs_of_their_own(files, tmp_path):
    paths = lists(tmp_path, 5, 2)
    found = flat(Drawn(files, paths, "data.mix=[2, 1]").after(6))
    assert "".join(text[0] for text in found) == "010" * 6
    for part, size in ((0, 5), (1, 2)):
        own = [text for text in found if text[0] == str(part)]
        assert [sorted(own[at : at + size]) for at in (0, size)] == [[f"{part}-{i}" for i in range(size)]] * 2


@pytest.mark.parametrize("options", [["data.sampler={page}:choose"], *seldom([], ["data.mix=[2, 1]"])], ids=str)
def test_a_resumed_run_draws_as_if_nothing_had_happened(files, tmp_path, options):
    """By the order of the seed, in shares, and by the curriculum that the page shows, which sees rewards."""
    (code,) = (block.text for block in blocks(ROOT / "docs" / "data.md") if block.title == "mine.py")
    (tmp_path / "mine.py").write_text(code)
    given = [option.replace("{page}", str(tmp_path / "mine.py")) for option in options]
    whole, parts = (Drawn(files, lists(tmp_path, 5, 3), *given, name=name) for name in ("whole", "parts"))
    expected = whole.after(5)
    parts.after(2)
    assert parts.after(5) == expected
    if "sampler" in str(options):
        assert len(set(flat(expected)[:6])) == 6, "new prompts come before all others"


def without_steps(files, paths):
    given = [f"data.train_files={json.dumps(paths)}", *SMALL, "data.train_batch_size=2"]
    run = TinyRun(files, "language", "llama", *given, name="epochs")
    tree = json.loads(run.recipe.read_text())
    del tree["steps"]
    run.recipe.write_text(json.dumps(tree))
    return run


def test_the_command_line_decides_between_steps_and_epochs(files, tmp_path):
    paths = lists(tmp_path, 5, 3)
    recipe, upper, above = without_steps(files, paths).recipe, tmp_path / "upper.yaml", tmp_path / "above.yaml"
    given = ["algorithm=grpo", f"data.train_files={json.dumps(paths)}"]
    upper.write_text(json.dumps({"extends": str(recipe), "algorithm": "grpo", "data": {"epochs": 3}}))
    above.write_text(json.dumps({"extends": str(upper), "steps": 5}))
    assert package.load(str(upper)).data.epochs == 3
    assert package.load(str(upper), "steps=7").data.epochs is None
    assert (package.load(str(above)).steps, package.load(str(above)).data.epochs) == (5, None)
    for more, said in (
        (["steps=7", "data.epochs=2"], "steps and data.epochs are both given"),
        (["data.mix=[1,2,3]"], "data.mix has 3 weights"),
        (["data.mix=[1,2]", "data.sampler=a:b"], "data.mix and data.sampler"),
        (["data.mix=[1,2]", "data.train_max_samples=1"], "which no record is left"),
    ):
        assert said in burnish("train", recipe, *given, *more, f"output_dir={tmp_path / 'run'}", status=2).message


def test_a_run_does_not_go_on_with_other_data_and_names_records_that_changed(files, tmp_path, caplog):
    (path,) = lists(tmp_path, 6)
    drawn, records = Drawn(files, path), [{"prompt": f"0-{i}"} for i in range(6)]
    drawn.after(1)
    other = [{"prompt": f"other {i}"} for i in range(6)]
    for changed, words in (
        ([*records, {"prompt": "more"}], "had 6 records at the checkpoint and has 7 now"),
        ([*other[:4], *records[4:]], "4 of the former"), (records[4:], "has 2 now, and 4 of the former"),
    ):  # fmt: skip
        write(tmp_path / "0.jsonl", *changed)
        said = drawn.run.train("steps=2", status=2).message
        assert "cannot resume" in said
        assert words in said
    elsewhere = Drawn(files, path, "seed=5", f"resume={drawn.run.output}/checkpoints/00000001", name="elsewhere").run
    assert "data.shuffle, seed, data.mix or data.sampler differ" in elsewhere.train("steps=2", status=2).message
    write(tmp_path / "0.jsonl", *records[:2], {"prompt": "mended"}, *records[3:])
    assert sorted(flat(drawn.after(2))) == sorted([*(f"0-{i}" for i in (0, 1, 3, 4, 5)), "mended"])
    assert f"1 of 6 training records have changed since the checkpoint: {path}:3;" in caplog.text
    write(tmp_path / "0.jsonl", *records[1:2], {"prompt": "mended"}, *records[3:])
    drawn.after(3)
    assert "1 of 6 training records have changed since the checkpoint: record 1; the run" in caplog.text


def test_a_sampler_is_told_the_mean_rewards_of_each_prompt_so_far_and_another_seed_each_time(files, tmp_path):
    (tmp_path / "mine.py").write_text(SAMPLERS["asks"].format(str(tmp_path / "asked")))
    drawn = Drawn(files, lists(tmp_path, 4), f"data.sampler={tmp_path}/mine.py:choose")
    drawn.after(4)
    asked = {line[0]: line for line in map(json.loads, (tmp_path / "asked").read_text().splitlines())}
    assert list(asked) == [1, 2, 3, 4]
    assert len({seed for _, seed, _ in asked.values()}) == 4
    lines, known = (drawn.run.output / "groups.jsonl").read_text().splitlines(), {f"0-{i}": [] for i in range(4)}
    for line, (*_, history) in zip(lines, asked.values(), strict=True):
        assert history == {text: [pytest.approx(value, abs=1e-6) for value in own] for text, own in known.items()}
        for group in json.loads(line)["groups"]:
            known[group["prompt"]].append(sum(group["rewards"]) / 2)


@pytest.mark.parametrize(("body", "words"), SAMPLERS["wrong"].values(), ids=list(SAMPLERS["wrong"]))
def test_what_a_sampler_does_wrong_is_named(files, tmp_path, body, words):
    (tmp_path / "mine.py").write_text(f"def choose(records, history, update, count, seed):\n    {body}\n")
    drawn = Drawn(files, lists(tmp_path, 4), f"data.sampler={tmp_path}/mine.py:choose")
    said = drawn.run.train("steps=1", status=2).message
    assert [word for word in ["mine.py:choose", *words] if word not in said] == [], said


def test_prompts_in_bytes_are_those_that_were_packed():
    given = [
        Prompt(text='a "fox"\n', where="a:1"),
        Prompt(text="b", label="sums", extra='{"n": 1}', record='{"k": 2}', part=1),
        Prompt(text="ü", answer="4", negative="dark", source="web"),
        Prompt(text="c", images=(Media.encoded(b"", "image"),)), Prompt(text="d", where="a:5"),
    ]  # fmt: skip
    found = Prompts.of(given)
    assert [repr(prompt) for prompt in found] == list(map(repr, given))
    assert list(found.uids()) == [prompt.uid for prompt in given]
    assert list(found.take([4, 0])) == [given[4], given[0]] == list(found[4:] + found[:1])


def test_prompts_of_a_file_tell_their_lines_in_another_process(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", {"prompt": "a fox"}, {"prompt": "a cat"})
    sent = pickle.dumps(read_prompts(path))
    monkeypatch.setattr("burnish.types.prompt.PLACES", [])
    assert [prompt.where for prompt in pickle.loads(sent)] == [f"{path}:1", f"{path}:2"]


KEYS = ("question", "text", "answer", "negative_prompt", "data_source", "label", "image", "tools", "input", "note")
VALUES = ("a fox", "4", "", " ", "<image>", 'say "7"', "ü", "\ud800", "1e999", 4, -1.5, float("nan"), None, [1])


@pytest.mark.parametrize("recipe", [LANGUAGE, *seldom(GENERATOR)])
def test_a_record_is_read_as_if_it_were_the_only_one(tmp_path, recipe):
    """Records of the same keys are read alike, but for those whose texts decide how they are read."""
    drawn = Random(0)

    def told(*lines):
        try:
            found = read(recipe, write(tmp_path / "a.jsonl", *lines))
        except ValueError as error:
            return str(error).partition(": ")[2]
        return [repr(one).replace(f"a.jsonl:{len(lines)}'", "a.jsonl:1'") for one in found]

    tried = Counter()
    for _ in range(60):
        keys = ["prompt", *drawn.sample(KEYS, drawn.randint(0, 2))]
        record = json.dumps({key: drawn.choice(VALUES if drawn.random() < 0.3 else ("a fox", 4)) for key in keys})
        like = json.dumps({key: "b" if isinstance(one, str) else one for key, one in json.loads(record).items()})
        if not isinstance(told(like), str):
            alone, behind = told(record), told(like, record)  # of the same keys and types
            assert behind == alone if isinstance(alone, str) else behind[1:] == alone, record
            tried[isinstance(alone, str)] += 1
    assert len(tried) == 2
