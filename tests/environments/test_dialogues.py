"""Dialogues with environments: tools, the images that they show, a game, and runs that learn from them."""

import gc
import importlib.util
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from urllib.request import urlopen

import numpy as np
import pytest
import yaml
from PIL import Image

from burnish.environments.base import Observation, answers
from burnish.registry import lookup
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.utils.errors import UserError
from tests.support.processes import gone
from tests.support.scoring import evaluated
from tests.support.shown import blocks
from tests.support.tiny_run import ROOT, burnish

EXAMPLE = ROOT / "examples" / "grid_game.py"
HERE = "tests.support.tool_functions"
SUM = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 40}}</tool_call>'
Tools = lookup("environment", "tools")
TABLE = yaml.safe_load(Path(__file__).with_name("games.yaml").read_text())


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


def begun(tools, prompt: Prompt | None = None, seed: int = 0):
    episode = tools.episode()
    assert episode.reset(prompt or Prompt(text="?"), seed).content == ()
    return episode


def asked(tools, response: str) -> Observation:
    return begun(tools).step(response)


def call(name: str, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_call_is_answered_and_a_response_without_one_ends_the_dialogue(made):
    tools = made("add")
    seen = asked(tools, f"Let me see. {SUM}")
    assert (seen.words, seen.messages) == ("42", [{"role": "tool", "content": [{"type": "text", "text": "42"}]}])
    assert (seen.role, seen.done, seen.reward) == ("tool", False, None)
    assert (asked(tools, SUM + SUM).words.count("42"), len(asked(tools, SUM + SUM).messages)) == (2, 2)
    assert asked(tools, "It is 42.").done
    assert asked(made("add", role="user"), SUM).words == "<tool_response>\n42\n</tool_response>"
    assert asked(made("add", longest_result=3), call("add", a="abc", b="def")).words == "abc"


def test_a_wrong_call_is_told_so_to_the_model_however_deep_it_is_nested(made):
    tools = made("add", "sleep")
    for call, message in (
        *TABLE["told"],
        # Python's JSON and pickles end at depths of their own
        *((f'{{"name": "add", "arguments": {{"a": {depth * "["}{depth * "]"}}}}}', "error: ")
          for depth in (100, 500, 800, 900, 940, 980, 5000, 100_000)),
    ):  # fmt: skip
        assert message in asked(tools, f"<tool_call>{call}</tool_call>").words, call[:80]
    assert "42" in asked(tools, SUM).words


def test_a_tool_that_never_returns_or_dies_is_ended_and_the_next_call_works(made):
    tools = made("add", "sleep", "leave", timeout=1.0)
    assert asked(tools, SUM).words == "42"
    assert asked(tools, call("sleep", seconds=60)).words == "error: sleep took longer than 1 seconds"
    tools.timeout = 30.0
    assert asked(tools, call("leave")).words == "error: leave ended its process"
    assert asked(tools, SUM).words == "42"


def test_a_program_that_asks_nothing_is_broken_and_one_that_takes_too_long_is_ended():
    agent, slow = (lookup("environment", "agent")(**one) for one in
                   ({"command": ["true"]}, {"command": ["sleep", "600"], "deadline": 0.1}))  # fmt: skip
    with pytest.raises(RuntimeError, match="ended without a request to OPENAI_BASE_URL"):
        agent.episode().reset(Prompt(text="?"), 0)
    late = slow.episode()
    with pytest.raises(TimeoutError, match=r"longer than 0.1 s \(environment.deadline\)"):
        late.reset(Prompt(text="?"), 0)
    with urlopen(f"{slow.address.url}/models") as reply:
        assert [one["owned_by"] for one in json.load(reply)["data"]] == ["burnish"]
    ended = partial(gone, late.process.pid)
    slow.close()
    del late
    gc.collect()
    assert ended()


def test_a_tool_may_be_async_show_videos_and_draw_by_a_seed_of_its_call(made):
    tools = made("later", "empty")
    told = asked(tools, call("later", a=4))
    assert told.words == "[image]\n[video]\n?"
    assert (len(told.images), [video.shape for video in told.videos]) == (1, [(4, 28, 28, 3)])
    assert [part["type"] for part in told.messages[0]["content"]] == ["image", "video", "text"]
    with pytest.raises(TypeError, match="an observation holds dict, which is neither text nor an image"):
        Observation([{}])
    with pytest.raises(RuntimeError, match=r"the tools can't be loaded: .*missing 1 required .*'factor'"):
        asked(made(functions={"made": "tests.support.named_rewards:Loaded"}), call("made", images=[]))
    assert "error: OSError: an image of 0 x 0 pixels" in asked(tools, call("empty")).words
    assert "error: ValueError: an array of uint8 [0, 28, 28, 3]" in asked(tools, call("later", a=0)).words
    tools = made("seeded")

    def seeds(seed: int) -> list[str]:
        episode = begun(tools, seed=seed)
        return [episode.step(call("seeded")).words for _ in range(2)]

    first, other = seeds(3), seeds(4)
    assert first == seeds(3)
    assert len({*first, *other}) == 4


PAGE = np.full((40, 80, 3), 255, dtype=np.uint8)
PAGE[10:20, 60:70] = (200, 0, 0)
SHOWN = Prompt(
    text="<image>What is red?", images=(Media.array(PAGE),),
    messages=(Message("user", (Part("image"), Part("text", "What is red?"))),),
)  # fmt: skip


def test_tools_on_images_show_copies_that_can_be_looked_at_again(made):
    names = ("zoom", "zoom_relative", "crop", "draw_box", "draw_line")
    functions = {name: f"burnish.environments.images:{name}" for name in names}
    tools = made(functions=functions, calls="pythonic")
    told = {one["function"]["name"]: one["function"]["parameters"] for one in tools.tools()[None]}
    assert (list(told["zoom"]["properties"]), told["zoom"]["required"]) == (["bbox_2d", "image"], ["bbox_2d"])
    assert "in pixels" in told["zoom"]["properties"]["bbox_2d"]["description"]
    episode = begun(tools, SHOWN)

    def shown(calls: str) -> Image.Image:
        return episode.step(f"[{calls}]").images[-1]

    zoomed = shown("zoom(bbox_2d=[60, 10, 70, 20])")
    assert zoomed.size == (80, 80)
    assert np.asarray(zoomed).reshape(-1, 3).std(0).max() == 0  # nothing but the square
    assert shown("zoom_relative(bbox_2d=[750, 250, 875, 500])").tobytes() == zoomed.tobytes()
    assert shown("zoom(bbox_2d=[0, 0, 80, 80], image=2)").tobytes() == zoomed.tobytes()
    assert shown("zoom(bbox_2d=[0, 0, 80, 1])").size == (1024, 13)
    assert shown("crop(bbox_2d=[-5, 10, 70.4, 900])").size == (70, 30)
    drawn = np.asarray(shown("draw_box(bbox_2d=[5, 5, 20, 20], color='blue')"))
    assert [drawn[10, x].tolist() for x in (5, 6, 20)] == [[0, 0, 255], [255] * 3, [0, 0, 255]]
    assert shown("draw_line(points=[[0, 0], [10, 0]])").getpixel((4, 0)) == (255, 0, 0)
    assert shown("crop(bbox_2d=[0, 0, 80, 40])").tobytes() == Image.fromarray(PAGE).tobytes()
    assert shown("crop(bbox_2d=[0, 0, 100, 0.5], image=5)").size == (100, 1)
    for wrong, message in TABLE["wrong calls"]:
        seen = episode.step(f"[{wrong}]")
        assert (seen.images, message in seen.words) == ([], True)
    two = begun(made(functions=functions, calls="pythonic", role="user"), SHOWN)
    seen = two.step("[zoom(bbox_2d=[60, 10, 70, 20]), draw_box(bbox_2d=[0, 0, 9, 9])]")
    assert [one.size for one in seen.images] == [(80, 80), (80, 40)]
    assert seen.words.startswith("<tool_response>\n[image]\n</tool_response>\n<tool_response>")


def test_a_tool_draws_by_the_words_and_the_seed_and_what_can_t_draw_is_refused(files):
    from burnish.environments.drawing import Draw

    if not (files / "sd3").exists():
        burnish("tiny", "sd3", files / "sd3")
    draw = Draw(str(files / "sd3"), num_inference_steps=2, height=32, width=32, dtype="float32")
    first = np.asarray(draw("a red square", seed=3))
    assert first.shape == (32, 32, 3)
    assert np.array_equal(first, draw("a red square", seed=3))
    for other in (draw("a blue circle", seed=3), draw("a red square", seed=4)):
        assert not np.array_equal(first, other)
    drawing, adding = {"draw": f"{Draw.__module__}:Draw"}, {"add": f"{HERE}:add"}
    (told,) = Tools(functions=drawing).tools()[None]
    words = {"prompt": {"type": "string", "description": "what it shows"}}
    assert told["function"]["parameters"] == {"type": "object", "properties": words, "required": ["prompt"]}
    with pytest.raises(UserError, match=r"does not draw an image from a text with .*'height': 'x'"):
        Draw(str(files / "sd3"), height="x")
    for functions, arguments, message in (
        (drawing, {"draw": {}}, r"environment\.arguments\.draw .*'path'"),
        (drawing, {"draw": {"path": "nowhere"}}, "nowhere"),
        (adding, {"add": {"a": 2}}, r"arguments\.add .*not a class"),
    ):
        with pytest.raises(ValueError, match=message):
            Tools(functions=functions, arguments=arguments).check()
    assert Tools(functions=adding, arguments={"draw": {}}).contradictions(None)[-1][0]


def test_a_policy_learns_to_write_the_prompts_of_images(files, tmp_path):
    if not (files / "sd3").exists():
        burnish("tiny", "sd3", files / "sd3")
    drawing = {"path": str(files / "sd3"), "num_inference_steps": 2, "height": 32, "width": 32}
    bright = {"name": "function", "path": f"{HERE}:bright"}
    enhancer = lookup("environment", "function")(
        path="burnish.environments.drawing:PromptEnhancer", arguments=drawing | {"reward": bright}, max_turns=1
    )
    enhancer.check()
    begin = partial(begun, enhancer, Prompt(text="Rewrite", answer="a fox"))
    with ThreadPoolExecutor(3) as pool:  # as many dialogues may be answered at the same time
        together = list(pool.map(lambda seed: begin(seed).step(" a fox at dawn "), (3, 4, 4, 3, 4, 3)))
    seen = [begin(seed).step(" a fox at dawn ") for seed in (3, 3, 4)]
    assert [one.done for one in seen] == [True] * 3
    images = [np.asarray(one.images[0]) for one in seen]
    assert seen[0].reward == pytest.approx(images[0].mean() / 255 + len("a fox"))  # of what was asked for
    assert np.array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])
    assert [one.reward for one in together] == [seen[row].reward for row in (0, 2, 2, 0, 2, 0)]
    given = {"name": "function", "path": enhancer.path, "arguments": enhancer.arguments, "max_turns": 1}
    sampled = ["validation.n=2", "validation.temperature=1"]
    rows, _ = evaluated(files, {"environment": {}}, [{"prompt": "a fox"}], *sampled, environment=given)
    kept = [(files / "judged" / "pictures" / name).read_bytes() for row in rows for name in row["images"]]
    assert len({row["response"] for row in rows}) == len(set(kept)) == 2  # each response has its own image
    mute = drawing | {"reward": {"name": "function", "path": f"{HERE}:mute"}}
    with pytest.raises(ValueError, match="the image has no reward: "):
        begun(lookup("environment", "function")(path=enhancer.path, arguments=mute)).step("a fox")
    for wrong in (drawing | {"path": "nowhere", "reward": bright}, drawing | {"reward": "nothing_such"}):
        with pytest.raises(UserError):
            lookup("environment", "function")(path=enhancer.path, arguments=wrong).check()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_questions_are_asked_as_many_at_a_time_as_is_said(concurrency):
    under_way, most, meeting = [], [], Barrier(concurrency)

    def ask(number):
        under_way.append(number)
        most.append(len(under_way))
        if number < concurrency:
            meeting.wait(20)
        time.sleep(0.02)
        under_way.remove(number)
        return number if number != 4 else sys.exit("no")

    environment = SimpleNamespace(concurrency=concurrency, deadline=None)
    *found, failed, last = answers(environment, [partial(ask, number) for number in range(6)], lambda: None)
    assert (found, last, max(most)) == ([0, 1, 2, 3], 5, concurrency)
    assert isinstance(failed, SystemExit)


def played(files, folder, *texts: str, **options):
    (folder / "games.py").write_text(TABLE["games"])
    environment = {"name": "function", "path": f"{folder}/games.py:Game"} | options
    records = [{"prompt": text} for text in texts]
    return evaluated(files, {"environment": {"weight": 0.5}}, records, environment=environment)[0]


def test_dialogues_are_the_same_however_many_are_answered_at_once_and_one_that_waits_breaks_alone(files, tmp_path):
    apart = played(files, tmp_path, "One?", "Two?", "Three?", deadline=0.5, concurrency=2)
    assert [row["reward"] for row in apart] == [1.5, None, 1.5]
    assert "TimeoutError" in apart[1]["note"]
    assert apart[0]["response"].startswith("[user] Begin.\n")
    assert "[user] Turn 2.\n" in apart[0]["response"]
    assert apart[0]["note"].startswith("3 turns")
    others = played(files, tmp_path, "One?", "Three?")
    assert [row["response"] for row in others] == [row["response"] for row in apart[::2]]


@pytest.fixture
def grid(tmp_path):
    """The example, whose questions are written."""
    spec = importlib.util.spec_from_file_location("grid_game", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(tmp_path, 4)
    return module


def test_the_example_s_recipe_reads_the_files_that_it_writes(grid, tmp_path):
    records = [json.loads(line) for line in (tmp_path / "demonstrations.jsonl").read_text().splitlines()]
    assert [bool(grid.ANSWER.fullmatch(record["response"])) for record in records] == [True] * 4
    with chdir(ROOT):
        said = burnish("config", EXAMPLE.with_suffix(".yaml"), f"data.train_files={tmp_path}/questions.jsonl").out
    assert "GridGame" in said


@pytest.mark.thorough
@pytest.mark.usefixtures("grid")
def test_the_game_is_played_by_a_program_that_knows_nothing_of_burnish(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens
    given = ["model.path=burnish:vlm_quickstart/model", f"data.train_files={tmp_path}/questions.jsonl", "rollout.n=4"]
    small = [
        "data.train_batch_size=2", "steps=1", "validation.max_prompts=2", "optimizer.warmup_steps=0",
        f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    with chdir(ROOT):
        burnish("train", "examples/grid_agent.yaml", *given, *small)
    *_, row = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["train/dialogue/turns/mean"] > 1
    assert row["train/dialogue/broken_ratio"] == 0
    assert -0.5 < row["critic/rewards/mean"] <= 1


@pytest.mark.thorough
def test_the_page_s_agent_asks_twice_and_says_its_reward(files, tmp_path):
    (program,) = [one.text for one in blocks(ROOT / "docs" / "environments.md") if one.title == "my_agent.py"]
    (tmp_path / "agent.py").write_text(program)
    agent = {"name": "agent", "command": [sys.executable, str(tmp_path / "agent.py")]}
    (row,) = evaluated(files, {"environment": {}}, [{"prompt": "1 + 1?", "answer": "2"}], environment=agent)[0]
    assert (row["reward"], row["note"]) == (0, "2 turns")
    assert "Check it." in row["response"]
