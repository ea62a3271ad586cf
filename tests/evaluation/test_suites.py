"""Suites: what is refused, which scorers are found out by checks, what a number is worth, and what is compared."""

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from burnish.types.prompt import Message, Part, Prompt
from tests.support.tiny_run import TinyRun, burnish

TABLE = yaml.safe_load(Path(__file__).with_name("scorers.yaml").read_text())
WORDS = ("one", "two", "three", "four", "five", "six")
ASKED = [{"prompt": f"No. {word}?", "answer": word, "value": i / 10} for i, word in enumerate(WORDS)]
LANGUAGE = {"task": "image-text-to-text", "responding": {"temperature": 1.0, "max_new_tokens": 3}}
DRAWING = {"task": "text-to-image", "drawing": {"num_inference_steps": 2, "height": 16, "width": 16}}


class Suites:
    """Files of suites, and evaluations of a tiny model by them."""

    def __init__(self, files, folder) -> None:
        self.files, self.folder = files, folder
        (folder / "scorers.py").write_text(TABLE["code"])

    def write(self, scorer="told", asked=ASKED, half="language", **changes):
        (self.folder / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
        path = self.folder / "mine.yaml"
        about = {"about": "x", "licence": "x", "prompts": "asked.jsonl", "primary_metric": "mine"}
        scorers = {"mine": {"name": "ocr"} if scorer == "ocr" else
                   {"name": "function", "path": f"{self.folder}/scorers.py:{scorer}"}}  # fmt: skip
        settings = LANGUAGE if half == "language" else DRAWING
        path.write_text(yaml.safe_dump(about | settings | {"scorers": scorers} | changes))
        return path

    def evaluate(self, name, *words, half="language", status=0):
        model, algorithm = ("llama", "grpo") if half == "language" else ("flux", "flow_grpo")
        run = TinyRun(self.files, half, model, name="suite")
        tree = json.loads(run.recipe.read_text())
        tree["rollout"]["batch_size"] = 2
        run.recipe.write_text(json.dumps(tree | {"algorithm": algorithm}))
        said = burnish("eval", run.recipe, "--suite", self.folder / "mine.yaml", "--output", self.folder / name, *words,
                       status=status)  # fmt: skip
        self.told = said.out
        return said.message if status else json.loads((self.folder / name / "result.json").read_text())


@pytest.fixture
def suites(files, tmp_path):
    return Suites(files, tmp_path)


def test_every_suite_that_ships_is_sound_and_its_prompts_can_be_had():
    from burnish.evaluation.suite import _instructed, chosen, read_suite, suite_names

    listed, sets = burnish("eval", "--list").out, burnish("data", "list").out
    for name in suite_names():
        suite = read_suite(name)
        assert name in listed
        assert all([suite.about, suite.licence, suite.sanity_checks]), "nothing would tell a broken scorer"
        prompts = str(suite.prompts)
        assert prompts.startswith("burnish:") or prompts.removeprefix("prepared:") in sets
    asked, some = [Prompt(text=word) for word in WORDS], replace(suite, max_prompts=3)
    instructed = Prompt(text="a b", messages=(Message("user", (Part("text", "a"), Part("text", " b"))),))
    assert (_instructed(Prompt(text="a"), " b"), _instructed(asked[0], "")) == (instructed, asked[0])
    assert chosen(some, asked) == chosen(some, asked[::-1])[::-1] != asked[:3], "by what they say"


@pytest.mark.parametrize("case", yaml.safe_load((Path(__file__).parent / "wrong.yaml").read_text()), ids=str)
def test_what_is_wrong_is_named(suites, case, monkeypatch):
    monkeypatch.chdir(suites.folder)
    suites.write(**case.get("change", {}))
    if "text" in case:
        Path("mine.yaml").write_text(case["text"])
    said = suites.evaluate("out", status=2)
    assert [name for name in case["names"] if name not in said] == []


@pytest.mark.parametrize(("scorer", "sanity_checks", "why"), TABLE["caught"])
def test_a_sound_scorer_passes_and_a_broken_one_is_caught(suites, scorer, sanity_checks, why):
    half = "language" if all(one["kind"] == "answers" for one in sanity_checks) else "generators"
    asked = ASKED if half == "language" else [{"prompt": "a blue cube", "answer": "Blue"}, {"prompt": 'a "red" cube'}]
    suites.write(scorer, asked, half, sanity_checks=sanity_checks, alive=None if sanity_checks else "mine")
    result = suites.evaluate("out", half=half)
    assert (result["valid"], result["missing"]["mine"]) == (not why, 6 if scorer == "nothing" else 0)
    assert why in " ".join(result.get("why_not", [""]))
    assert ("This result is not to be believed" in suites.told) == bool(why)


def valued(values, source="all"):
    return [{"prompt": f"{source} {i}", "value": value, "data_source": source} for i, value in enumerate(values)]


def test_a_number_has_the_interval_of_a_mean_over_prompts_or_over_tasks(suites):
    values = [(7 * i % 50) / 50 for i in range(50)]
    suites.write(asked=valued(values), n=2)
    many = suites.evaluate("many")
    assert (many["prompts"], many["samples"]) == (50, 100)
    overall = many["overall"]
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    assert overall["value"] == pytest.approx(statistics.mean(values))
    assert overall["low"] == pytest.approx(overall["value"] - half, abs=0.15 * half)
    assert overall["high"] == pytest.approx(overall["value"] + half, abs=0.15 * half)
    suites.write(asked=valued([0.0] * 5, "small") + valued([1.0] * 15, "large"), aggregation="tasks", version=2)
    tasks = suites.evaluate("tasks")
    for found, value in ((tasks["overall"], 0.5), (tasks["tasks"]["small"], 0.0)):
        assert (found["value"], found["low"], found["high"]) == (value,) * 3  # prompts are drawn within tasks
    suites.write(asked=valued([0.0, 1.0, 1.0, 1.0]) + valued([0.0], "alone"), version=3)
    few = suites.evaluate("few")
    for found, value in ((few["overall"], 0.6), (few["tasks"]["all"], 0.75)):
        assert (found["value"], found["low"]) == (pytest.approx(value), None)


def test_evaluations_are_compared_by_prompt_and_what_differs_is_said(suites):
    values = [(7 * i % 20) / 20 for i in range(20)]  # prompts differ far more than the evaluations do
    for name, more in (("before", 0.0), ("after", 0.02)):
        suites.write(asked=valued([value + more for value in values]), responding={"max_new_tokens": 3 + (more > 0)})
        suites.evaluate(name)
    said = burnish("eval", "--compare", suites.folder / "before", suites.folder / "after").out
    assert said.count("0.0200") >= 3, "the change, and both ends of its interval"
    assert "max_new_tokens is 3 before and 4 after" in said
    assert "scorers or settings of the suite differ" in said
    suites.write(asked=valued(values), version=2)
    suites.evaluate("newer")
    said = burnish("eval", "--compare", suites.folder / "before", suites.folder / "newer", status=2).message
    assert "version is 1" in said
    header = suites.folder / "before" / "suite.json"
    for change in ({"suite": 3}, {"unit": 0}, {"prompts": 10**12}, {"aggregation": "all"}):
        sound = header.read_text()
        header.write_text(json.dumps(json.loads(sound) | change))
        said = burnish("eval", "--compare", suites.folder / "before", suites.folder / "after", status=2).message
        header.write_text(sound)
        assert "not of this version" in said
    records = suites.folder / "before" / "samples.jsonl"
    raw = records.read_bytes()
    for damaged in (raw[:-20], re.sub(rb'"mine": [\d.]+', b'"mine": "0"', raw)):
        records.write_bytes(damaged)
        said = burnish("eval", "--compare", suites.folder / "before", suites.folder / "after", status=2).message
        assert re.search(r"not complete: \d+ of \d+ batches", said)


def test_another_evaluation_is_not_mixed_in(suites):
    suites.write(max_prompts=3)
    first = suites.evaluate("out")
    for change in ({"n": 2}, {"version": 2}, {"responding": {"max_new_tokens": 2}}, {"asked": ASKED[:2]}):
        suites.write(**{"max_prompts": 3} | change)
        assert "holds another evaluation: its " in suites.evaluate("out", status=2)
    suites.write(max_prompts=3, about="words")
    assert suites.evaluate("out") == first  # nothing that decides samples is another
