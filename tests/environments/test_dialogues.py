"""Dialogues with environments: tools, the pictures that they show, a game, and runs that learn from them."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from contextlib import chdir
from copy import copy

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.advantages.shaping import turn_numbers
from burnish.environments import pictures
from burnish.environments.base import Environment, Observation
from burnish.environments.call_formats import Call
from burnish.environments.drawing import Draw
from burnish.environments.schemas import schema
from burnish.environments.stepping import answers
from burnish.environments.tools import Tools
from burnish.language.logprobs import response_logprobs
from burnish.registry import options
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.utils.user_code import load_object
from tests.support.games import Shows, play, prompts
from tests.support.language_runs import assembly_of, game
from tests.support.language_samples import model_of
from tests.support.tiny_run import ROOT, burnish

HERE = "tests.support.tool_functions"
SUM = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 40}}</tool_call>'


@pytest.fixture
def made():
    """Makes tools of functions, by name, whose processes end with the test."""
    every = []

    def make(*names: str, timeout: float = 30.0, **given):
        functions = given.pop("functions", {name: f"{HERE}:{name}" for name in names})
        every.append(Tools(functions=functions, timeout=timeout, **given))
        return every[-1]

    yield make
    for tools in every:
        tools.close()


def asked(tools, response: str, seed: int = 0) -> Observation:
    episode = tools.episode()
    assert episode.reset(Prompt(text="?"), seed).content == ()
    return episode.step(response)


def test_a_call_is_answered_and_a_response_without_one_ends_the_dialogue(made):
    tools = made("add")
    seen = asked(tools, f"Let me see. {SUM}")
    assert (seen.words, seen.messages) == ("42", [{"role": "tool", "content": [{"type": "text", "text": "42"}]}])
    assert (seen.role, seen.done, seen.reward) == ("tool", False, None)
    assert (asked(tools, SUM + SUM).words.count("42"), len(asked(tools, SUM + SUM).messages)) == (2, 2)
    assert asked(tools, "It is 42.").done
    assert asked(made("add", role="user"), SUM).words == "<tool_response>\n42\n</tool_response>"
    assert made("add", longest_result=3).answer(Call("add", {"a": "abc", "b": "def"})) == ["abc"]
    _, responses = play(tools, [Prompt(text="One?")])
    assert [len(one.dialogue.responses) for one in responses] == [1, 1]


def test_a_wrong_call_is_told_so_to_the_model_however_deep_it_is_nested(made):
    tools = made("add", "sleep")
    for call, message in (
        ("add(2, 40)", "error: a call must be JSON"),
        ("[1]", "error: a call must be JSON"),
        ('{"name": "sub", "arguments": {}}', "error: there is no tool 'sub'; there are add, sleep"),
        ('{"name": ["add"], "arguments": {}}', "error: there is no tool"),
        ('{"name": "add", "arguments": [2, 40]}', "error: arguments must be an object"),
        ('{"name": "add", "arguments": {"a": 2}}', "error: TypeError: add() missing 1 required"),
        ('{"name": "add", "arguments": {"a": 2, "b": "x"}}', "error: TypeError"),
        # Python's JSON and pickles end at depths of their own
        *((f'{{"name": "add", "arguments": {{"a": {depth * "["}{depth * "]"}}}}}', "error: ")
          for depth in (100, 500, 800, 900, 940, 980, 5000, 100_000)),
    ):  # fmt: skip
        assert message in asked(tools, f"<tool_call>{call}</tool_call>").words, call[:80]
    assert "42" in asked(tools, SUM).words


def test_a_tool_that_never_returns_or_dies_is_ended_and_the_next_call_works(made):
    tools = made("add", "sleep", "leave", timeout=1.0)
    assert tools.answer(Call("add", {"a": 1, "b": 1})) == ["2"]
    assert tools.answer(Call("sleep", {"seconds": 60})) == ["error: sleep took longer than 1 seconds"]
    tools.timeout = 30.0
    assert tools.answer(Call("leave", {})) == ["error: leave ended its process"]
    assert "2" in asked(tools, SUM).words


def test_tools_run_in_as_many_processes_as_are_asked_at_once(made):
    tools = made("add", concurrency=2)
    calls = [lambda: tools.answer(Call("add", {"a": 1, "b": 2}))] * 7
    assert answers(calls, concurrency=2, deadline=None, check_cancelled=lambda: None) == [["3"]] * 7
    assert len(tools.processes) == 2


def test_a_tool_may_be_async_and_show_videos(made):
    tools = made("later", "empty")
    told = asked(tools, '<tool_call>{"name": "later", "arguments": {"a": 4}}</tool_call>')
    assert told.words == "[picture]\n[video]\n?"
    assert (len(told.pictures), [video.shape for video in told.videos]) == (1, [(4, 28, 28, 3)])
    assert [part["type"] for part in told.messages[0]["content"]] == ["image", "video", "text"]
    nothing = asked(tools, '<tool_call>{"name": "empty", "arguments": {}}</tool_call>')
    assert "error: OSError: a picture of 0 x 0 pixels" in nothing.words


PAGE = np.full((40, 80, 3), 255, dtype=np.uint8)
PAGE[10:20, 60:70] = (200, 0, 0)
SHOWN = Prompt(
    text="<image>What is red?", images=(Media.array(PAGE),),
    messages=(Message("user", (Part("image"), Part("text", "What is red?"))),),
)  # fmt: skip


def page() -> Image.Image:
    return Image.fromarray(PAGE)


def test_tools_on_pictures_enlarge_cut_and_draw_on_copies():
    zoomed = pictures.zoom([60, 10, 70, 20], images=[page()])
    assert zoomed.size == (80, 80)
    assert np.asarray(zoomed).reshape(-1, 3).std(0).max() == 0  # nothing but the square
    assert pictures.zoom_relative([750, 250, 875, 500], 1, images=[page()]).tobytes() == zoomed.tobytes()
    assert pictures.zoom([0, 0, 80, 1], images=[page()]).size == (1024, 13)
    assert pictures.crop([-5, 10, 70.4, 900], images=[page()]).size == (70, 30)
    wide = Image.new("RGB", (600, 40))
    assert pictures.crop([0, 0, 200, 2], images=[wide]).size == (200, 2)
    given = page()
    assert pictures.draw_box([5, 5, 20, 20], color="blue", images=[given]).getpixel((5, 10)) == (0, 0, 255)
    assert pictures.draw_line([[0, 0], [10, 0]], images=[given]).getpixel((4, 0)) == (255, 0, 0)
    assert given.tobytes() == page().tobytes()
    for box, number, image, message in (
        ([70, 10, 60, 20], 1, given, "holds no pixel"),
        ([0, 0, 9, 9], 2, given, "pictures 1 to 1"),
        ([1, 2], 1, given, "unpack"),
        ([0, 0, 600, 2], 1, wide, "600 x 2 pixels"),  # a strip that no processor takes
    ):
        with pytest.raises(ValueError, match=message):
            pictures.zoom(box, number, images=[image])


def test_the_model_is_told_of_arguments_but_not_of_pictures_and_seeds_that_a_tool_gets():
    told = schema("zoom", pictures.zoom)["function"]["parameters"]
    assert (list(told["properties"]), told["required"]) == (["bbox_2d", "image"], ["bbox_2d"])
    assert "in pixels" in told["properties"]["bbox_2d"]["description"]
    drawing = schema("draw", Draw)["function"]
    words = {"prompt": {"type": "string", "description": "what it shows"}}
    assert drawing["description"] == "Draw a picture."
    assert drawing["parameters"] == {"type": "object", "properties": words, "required": ["prompt"]}


@pytest.mark.parametrize("role", ["tool", "user"])
def test_a_picture_that_a_tool_returns_is_shown_and_can_be_looked_at_again(made, role):
    functions = {name: f"{pictures.__name__}:{name}" for name in ("zoom", "draw_box")}
    episode = made(functions=functions, calls="pythonic", role=role).episode()
    episode.reset(SHOWN, 0)
    seen = episode.step("[zoom(bbox_2d=[60, 10, 70, 20]), draw_box(bbox_2d=[0, 0, 9, 9])]")
    assert [one.size for one in seen.pictures] == [(80, 80), (80, 40)]
    again = episode.step("[zoom(bbox_2d=[0, 0, 80, 80], image=2)]")
    assert again.pictures[0].tobytes() == seen.pictures[0].tobytes()
    wrong = episode.step("[zoom(bbox_2d=[0, 0, 9, 9], image=9)]")
    assert (wrong.pictures, "pictures 1 to 4" in wrong.words) == ([], True)
    assert episode.step("It is the square.").done
    shown = seen.words.startswith("<tool_response>\n[picture]\n</tool_response>\n<tool_response>")
    assert shown == (role == "user")


@options
class Answering(Environment):
    """A tool that shows the same after whatever is said first."""

    def episode(self):
        self.__dict__["seen"] = iter([Observation([page(), "a page"], role="tool"), Observation(done=True)])
        return copy(self)

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation()

    def step(self, response: str) -> Observation:
        return next(self.__dict__["seen"])


def test_the_result_of_a_tool_keeps_its_pictures_where_a_template_has_no_form_for_results():
    completion, responses = play(Answering(), [SHOWN])
    assert all(len(one.dialogue.pictures) == 1 for one in responses)
    for ids, mask, length in zip(completion.ids, completion.mask, completion.length.tolist(), strict=True):
        said = model_of("qwen2_5_vl").tokenizer.decode(ids[:length][~mask[:length]])
        assert said.index("<tool_response>") < said.index("<|image_pad|>") < said.index("a page\n</tool_response>")


SIZE = {"num_inference_steps": 2, "height": 32, "width": 32}


@pytest.fixture(scope="module")
def painter(files) -> str:
    if not (files / "sd3").exists():
        burnish("tiny", "sd3", files / "sd3")
    return str(files / "sd3")


DRAWING = {"draw": f"{Draw.__module__}:Draw"}


def test_each_call_of_a_dialogue_has_a_seed_of_its_own(made):
    tools, call = made("seeded"), '<tool_call>{"name": "seeded", "arguments": {}}</tool_call>'

    def seeds(seed: int) -> list[str]:
        episode = tools.episode()
        episode.reset(Prompt(text="?"), seed)
        return [episode.step(call).words for _ in range(2)]

    first, other = seeds(3), seeds(4)
    assert first == seeds(3)
    assert len({*first, *other}) == 4


def test_what_a_tool_draws_depends_on_the_words_and_the_seed_and_what_can_t_draw_is_refused(painter):
    draw, half = (Draw(painter, dtype=dtype, **SIZE) for dtype in ("float32", "bfloat16"))
    first = np.asarray(draw("a red square", seed=3)).astype(int)
    assert first.shape == (32, 32, 3)
    assert np.array_equal(first, draw("a red square", seed=3))
    for other in (draw("a blue circle", seed=3), draw("a red square", seed=4)):
        assert not np.array_equal(first, other)
    assert 0 < np.abs(first - np.asarray(half("a red square", seed=3))).mean() < 8
    for functions, arguments, message in (
        (DRAWING, {"draw": {}}, r"environment\.arguments\.draw .*'path'"),
        (DRAWING, {"draw": {"path": "nowhere"}}, "nowhere"),
        ({"zoom": f"{pictures.__name__}:zoom"}, {"zoom": {"image": 2}}, r"arguments\.zoom .*no class"),
        ({"zoom": f"{pictures.__name__}:zoom"}, {"draw": {}}, r"arguments has draw.*functions has zoom"),
    ):
        with pytest.raises(ValueError, match=message):
            Tools(functions=functions, arguments=arguments).check()
    with pytest.raises(ValueError, match="steps"):
        Draw(painter, steps=3)


def test_answers_come_in_the_order_of_the_questions_and_one_that_fails_or_never_ends_is_alone_with_that():
    def fails() -> None:
        raise RuntimeError("no")

    barrier, ended = threading.Barrier(3), threading.Event()

    def meets(number: int) -> int:
        barrier.wait(20)  # all three are under way
        return number

    questions = [lambda number=number: meets(number) for number in range(3)]
    assert answers(questions, concurrency=3, deadline=None, check_cancelled=lambda: None) == [0, 1, 2]
    questions = [lambda: 1, ended.wait, fails, lambda: exit(3), lambda: 5]
    first, late, failed, left, last = answers(questions, concurrency=2, deadline=0.5, check_cancelled=lambda: None)
    ended.set()
    assert (first, last, "environment.deadline" in str(late)) == (1, 5, True)
    assert isinstance(failed, RuntimeError)
    assert isinstance(left, SystemExit)


def test_no_more_are_asked_at_a_time_than_the_option_says_and_a_stop_ends_the_wait():
    under_way, most, lock, ended = [0], [0], threading.Lock(), threading.Event()

    def ask() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.01)
        with lock:
            under_way[0] -= 1

    answers([ask] * 9, concurrency=3, deadline=None, check_cancelled=lambda: None)
    assert 1 <= most[0] <= 3

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        answers([ended.wait], concurrency=2, deadline=None, check_cancelled=stop)
    ended.set()


@options
class Hangs(Environment):
    """Never answers the second prompt."""

    def episode(self):
        return Hangs(**{name: getattr(self, name) for name in ("max_turns", "concurrency", "deadline")})

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.__dict__["text"] = prompt.text
        return Observation()

    def step(self, response: str) -> Observation:
        if self.__dict__["text"] == "Two?":
            time.sleep(2)
        return Observation(reward=1.0, done=True)


def test_dialogues_are_the_same_however_many_are_answered_at_once_and_one_that_waits_too_long_breaks_alone():
    games = [Shows(concurrency=count, deadline=limit) for count, limit in ((1, None), (3, 60.0))]
    (one, said), (other, told) = [play(environment, prompts()) for environment in games]
    assert [response.full_text for response in said] == [response.full_text for response in told]
    for name in ("ids", "mask", "logprob", "positions", "length"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    _, responses = play(Hangs(deadline=0.5, concurrency=2), prompts())
    errors = [response.dialogue.error for response in responses]
    assert [bool(error) for error in errors] == [False, False, True, True]
    assert "TimeoutError" in errors[2]


def test_what_is_learned_from_is_what_was_sampled_and_a_validation_keeps_the_whole_dialogue(tmp_path):
    assembly = assembly_of(*game(), "algorithm=grpo", "validation.max_prompts=2")
    answered = assembly.source.collect(1)
    model, temperature = assembly.roles.model, assembly.config.rollout.temperature
    scores = response_logprobs(model, model.network, answered.trace, temperature=temperature)
    torch.testing.assert_close(scores.logprob, answered.trace.logprob, rtol=0, atol=1e-5)
    assert answered.turn_rewards.tolist() == [[0.25, 0.5, 0.75, 0.0]] * 8
    assert answered.limit == 4 * 6
    assert assembly.evaluate(tmp_path, n=1)["val-aux/dialogue/turns/mean"] == 3
    first = json.loads((tmp_path / "samples.jsonl").read_text().splitlines()[0])
    assert first["response"].startswith("[user] [picture]Begin.\n")
    assert "[user] [picture]Turn 2.\n" in first["response"]
    assert len(first["images"]) == len(assembly.val_prompts[0].images) + 4
    assert first["note"].startswith("3 turns")


def test_turns_are_counted_where_the_policy_speaks():
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0, 1]]).bool()
    assert turn_numbers(mask).tolist() == [[0, 0, 0, 1, 0, 0, 2], [0] * 7, [0, 0, 0, 0, 0, 0, 1]]


EXAMPLE = ROOT / "examples" / "grid_game.py"
grid = sys.modules[load_object(f"{EXAMPLE}:GridGame", "environment").__module__]


def test_the_example_s_game_is_won_by_going_there_and_what_is_no_move_costs_something():
    one, other = grid.GridGame(), grid.GridGame()
    first, same = one.reset(Prompt(text="?"), 5), other.reset(Prompt(text="?"), 5)
    assert first.pictures[0].tobytes() == same.pictures[0].tobytes()
    for said in ("up", "<answer>north</answer>", "<answer>up</answer> I think", ""):
        before = one.agent
        seen = one.step(said)
        assert (seen.reward, seen.done, one.agent) == (-0.1, False, before)
    draw, rewards = random.Random(0), []
    while not rewards or not seen.done:
        seen = one.step(f"<answer>{grid.hesitant(one.agent, one.goal, draw)}</answer>")
        rewards.append(seen.reward)
        assert len(rewards) < 200
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert grid.moved((0, 0), "up") == grid.moved((0, 0), "left") == (0, 0)
    assert grid.moved((2, 1), "right") == grid.moved((2, 2), "right") == (2, 2)


@pytest.mark.thorough
def test_the_example_s_recipe_runs_on_the_files_that_it_writes(tmp_path):
    grid.main(tmp_path, 40)
    records = [json.loads(line) for line in (tmp_path / "demonstrations.jsonl").read_text().splitlines()]
    assert len(records) == 40
    assert all(grid.ANSWER.fullmatch(record["response"]) for record in records)
    small = [
        "data.train_batch_size=4", "validation.n=1", "validation.every=null", "scoring.processes=0",
        "optimizer.warmup_steps=0", "model.path=burnish:vlm_quickstart/model", "steps=1",
    ]  # fmt: skip
    recipe, rows = EXAMPLE.with_suffix(".yaml"), []
    for run, own in (
        ("warm", ["algorithm=sft", f"data.train_files={tmp_path}/demonstrations.jsonl"]),
        ("game", ["rollout.n=2", f"data.train_files={tmp_path}/questions.jsonl"]),
    ):
        with chdir(ROOT):
            burnish("train", recipe, *small, *own, f"output_dir={tmp_path / run}")
        rows.append(json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[-1]))
    assert rows[0]["actor/sft_loss"] > 0
    assert rows[1]["train/dialogue/turns/mean"] == 4
    assert rows[1]["critic/environment/mean"] < 0  # it does not speak of directions yet
