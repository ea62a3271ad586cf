"""Functions and classes of users as rewards: they get what their parameters name, and may return what they like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch

from burnish.registry import options
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.frames import FrameOptions
from burnish.types.clips import Clip, Kind, Sound
from burnish.types.prompt import Prompt
from tests.support import named_rewards
from tests.support.asked import flow_reward, reward
from tests.support.clips import brightness_of_clips
from tests.support.scoring import Response, function, grey, judged, judged_values, scorer

LEVELS = (51, 204, 102)


def drawn(name: str, **arguments):
    return flow_reward("function", path=f"tests.support.named_rewards:{name}", arguments=arguments)


def said(name: str, **arguments):
    return reward("function", path=f"tests.support.named_rewards:{name}", arguments=arguments)


def asked(text: str, **own) -> Prompt:
    return Prompt(text=text, answer="7", source="s", label="l", record=json.dumps(own), where="data.jsonl:1")


PROMPTS = [asked(text, difficulty=i) for i, text in enumerate("abc")]
PICTURES = [np.full((4, 4, 3), level, dtype=np.uint8) for level in LEVELS]


def test_parameters_name_what_a_function_gets():
    assert judged_values(drawn("by_name", scale=2.0), PICTURES, PROMPTS) == [0.0, 2.0, 4.0]
    got = named_rewards.CALLS.pop()
    assert (got["references"], got["sources"], got["labels"]) == (["7"] * 3, ["s"] * 3, ["l"] * 3)
    assert got["extra_info"] == [None] * 3


def test_a_sample_at_a_time_one_that_raises_and_named_values():
    prompts = [asked("a", bonus=2.0), asked("x"), asked("b", reward_model={"ground_truth": [1, 2]})]
    first, bad, last = judged(drawn("one_at_a_time"), PICTURES, prompts)
    assert (first.value, last.value) == pytest.approx((0.2, 0.4))
    assert (dict(first.named), first.note) == ({"bonus": 2.0}, "truth: 7")
    assert (dict(last.named), last.note) == ({"bonus": 0.5}, "truth: [1, 2]")
    assert bad.value is None
    assert "ZeroDivisionError: x is not for me" in bad.note
    assert "named_rewards.py:" in bad.note
    assert "Traceback" in bad.fault


def test_calls_of_an_async_function_wait_together_and_one_error_is_one_sample():
    prompts = [Prompt(text="q", answer=answer) for answer in ["yes"] * 19 + [None]]
    *known, last = judged(said("waiting"), [Response("yes")] * 20, prompts)
    assert named_rewards.MOST == [20]
    assert [one.value for one in known] == [1.0] * 19
    assert "ValueError: nothing to compare with" in last.note
    waits = flow_reward("function", path="tests.support.bad_rewards:waits")
    assert judged_values(waits, PICTURES, PROMPTS) == [0.0, 1.0, 2.0]


def test_functions_of_other_libraries_work_as_they_are():
    prompt = asked("q", data_source="s", extra_info={"index": 3}, solution="7")
    right, wrong = judged(said("compute_score"), [Response("7"), Response("8")], [prompt] * 2)
    assert (right.value, wrong.value, right.named["acc"], wrong.named["acc"]) == (1.0, 0.0, 1.0, 0.0)
    assert right.note == "pred: 7; source: s; extra: {'index': 3}"
    assert (right.answer, wrong.answer) == ("7", "8")

    chat = Prompt(text="q", record=json.dumps({"solution": None, "level": 2}), conversational=True)
    assert judged_values(said("trl"), [Response("7"), Response("8")], [prompt, chat]) == [1.0, None]
    got = named_rewards.CALLS.pop()
    assert got["prompts"] == ["q", [{"role": "user", "content": "q"}]]
    assert got["completions"] == ["7", [{"role": "assistant", "content": "8"}]]
    assert got["kwargs"]["level"] == [None, 2]

    first, *_ = judged(drawn("flow_grpo"), PICTURES, PROMPTS)
    assert (first.value, dict(first.named)) == (1.0, {"strict": 1.0})


SEEN = []


def easyr1_batch(reward_inputs, format_weight=0.1):
    return [{"overall": (1 - format_weight) * (one["response"] == one["ground_truth"]), "accuracy": 1.0,
             "length": one["response_length"]} for one in reward_inputs]  # fmt: skip


def easyr1_single(reward_input):
    return {"overall": 0.9 * (reward_input["response"] == reward_input["ground_truth"])}


def own(responses, prompts, metadata):
    SEEN.append(prompts)
    return [1.0] * len(responses)


def flow_grpo(images, prompts, metadata):
    SEEN.append(prompts)
    return [float(len(prompt)) for prompt in prompts], {}


@pytest.mark.parametrize(
    ("path", "form", "named"),
    [
        (f"{__name__}:easyr1_batch", "EasyR1", {"accuracy": 1.0, "length": 3.0}),
        (f"{__name__}:easyr1_single", "EasyR1", {}),
        ("tests.support.named_rewards:compute_score", "verl", {"acc": 1.0}),
        ("tests.support.named_rewards:trl", "TRL", {}),
    ],
)
def test_functions_of_others_score_responses_and_say_once_by_which_form_they_are_called(path, form, named, caplog):
    one, prompt = reward("function", path=path), asked("1 + 1?", solution="7")
    for _ in range(2):
        one.check([prompt])
    assert caplog.text.count("is called in the form of") == 1
    assert form in caplog.text
    inputs = {"response_ids": [[5, 6, 7], [5]]}
    right, wrong = judged(one, [Response("7"), Response("3")], [prompt] * 2, inputs=inputs)
    assert (right.value, wrong.value, right.named) == (0.9 if form == "EasyR1" else 1, 0, named)


def test_a_parameter_alone_does_not_change_what_prompts_are():
    SEEN.clear()
    judged(flow_reward("function", path=f"{__name__}:flow_grpo"), PICTURES[:1], PROMPTS[:1])
    judged(reward("function", path=f"{__name__}:own"), [Response("2")], PROMPTS[:1])
    assert [["a"], PROMPTS[:1]] == SEEN


def test_groups_and_pairs_are_compared_as_a_whole():
    prompts = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2
    pictures = [*PICTURES, PICTURES[0] // 9, PICTURES[0] // 9]
    assert judged_values(drawn("ranks"), pictures, prompts) == [0.0, 1.0, 0.5, 0.0, 1.0]
    assert judged_values(drawn("ranks"), pictures, prompts, group=[0] * 5) == [0.5, 1.0, 0.75, 0.0, 0.25]
    won = judged(drawn("brighter"), pictures, prompts)  # the second group raises, and takes no other with it
    assert [one.value for one in won] == [0.0, 1.0, 0.5, None, None]
    assert "ValueError: no difference" in won[3].note
    (alone,) = judged(drawn("brighter"), PICTURES[:1], PROMPTS[:1])
    assert (alone.value, "no other sample" in alone.note) == (None, True)


def test_latents_and_tokens_are_there_for_those_who_ask():
    latents = [np.full((1, 2, 2), level, np.float32) for level in (1, 2, 3)]
    norms = drawn("norms")
    assert norms.asks() == ("latents",)
    assert judged_values(norms, PICTURES, PROMPTS, inputs={"latents": latents}) == [1.0, 4.0, 9.0]
    (lacking,) = judged(norms, PICTURES[:1], PROMPTS[:1])
    assert (lacking.value, "asks for latents" in lacking.note) == (None, True)
    assert not judged(norms, PICTURES[:1], PROMPTS[:1], made_up=True)[0].asked

    (each,) = judged(said("token_values"), [Response("abcd")], PROMPTS[:1], inputs={"response_ids": [[5, 6, 7]]})
    assert (each.value, each.tokens, each.named["length"]) == (1.5, (0.5,) * 3, 3.0)
    (steps,) = judged(said("step_values"), [Response("abcd")], PROMPTS[:1])
    assert (steps.value, steps.steps, steps.note) == (1.5, ((2, 1.0), (4, 0.5)), "fine")


def test_a_class_is_made_once_in_a_process():
    one, before = drawn("Loaded", factor=0.25), named_rewards.Loaded.made
    one.check(PROMPTS)
    one.prepare()
    for _ in range(3):
        assert judged_values(one, PICTURES, PROMPTS) == [0.25] * 3
    assert named_rewards.Loaded.made == before + 1
    assert "_made" not in one.__getstate__()


def test_dicts_of_lists_and_odd_dicts():
    verdicts = judged(drawn("lists_in_dicts"), PICTURES, PROMPTS)
    assert [(one.value, dict(one.named)) for one in verdicts] == [(0.25, {"sharpness": 2.0})] * 3
    wrong = {
        "list": "[1, 2] as 'boxes'", "none": "score and reward", "both": "needs one of", "name": "'a b'",
        "many": "65 further values", "missing": "no face",
    }  # fmt: skip
    for text, why in wrong.items():
        (one,) = judged(drawn("odd_dicts"), PICTURES[:1], [Prompt(text=text)])
        assert one.value is None
        assert why in one.note
        assert bool(one.fault) == (text != "missing")


def test_what_is_no_finite_number_or_not_one_for_each_is_missing_and_says_why():
    texts = ("nan", "inf", "1e300", "dict", "None")
    verdicts = judged(function("odd_values"), grey(51, 5), [Prompt(text=text) for text in texts])
    for verdict, why in zip(verdicts, ("nan", "inf", "1e+300", "{}", "no value"), strict=True):
        assert verdict.value is None
        assert why in verdict.note
    assert all("2 values for 3" in one.note for one in judged(function("one_too_few"), grey(51, 3), PROMPTS))
    assert judged_values(function("fails_on_x"), grey(51, 2), [Prompt(text="x"), Prompt(text="b")]) == [None, 1.0]
    picture = grey(51)
    assert judged_values(function("paints_over"), picture, PROMPTS[:1]) == [0]
    assert (picture[0] == 51).all()


def test_a_file_may_hold_it_that_goes_to_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nimport os\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Weights:\n    one: float = 0.5\n"
        "def score(responses, prompts, scale=1):\n    os.chdir('/')\n"
        "    return [scale * len(r.text) * r.finished + Weights().one for r in responses]\n"
    )
    one = reward("function", path="mine.py:score", arguments={"scale": 10})
    one.check([])
    for _ in range(2):
        assert judged_values(one, [Response("abc"), Response("abc", finished=False)], PROMPTS[:2]) == [30.5, 0.5]


FUNCTIONS = "tests.support.reward_functions"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("brightness", "package.module:function"),
        (f"{FUNCTIONS}:", "package.module:function"),
        (f"{FUNCTIONS}:nothing", "nothing"),
        (f"{FUNCTIONS}:brightnes", "did you mean brightness?"),
        (f"{FUNCTIONS}:not_a_function", "not_a_function is not a function"),
        ("no.such.module:score", "No module named 'no'"),
        ("/no/such/file.py:score", "/no/such/file.py"),
        ("broken.py:score", "NameError: name 'undefined_name'"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_before_the_run(tmp_path, monkeypatch, path, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("undefined_name\n")
    with pytest.raises(ValueError, match="path") as refused:
        flow_reward("function", path=path).check([])
    assert why in str(refused.value)
    assert path in str(refused.value)


def everything_at_once(everything):
    return 1.0


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: drawn("by_name"), r"'difficulty'.* prompt 'd' \(data.jsonl:9\).* 'other'"),
        (lambda: drawn("wants_both"), r"named_rewards.py:\d+\) .*prompts of a batch.* image of one sample"),
        (lambda: drawn("wants_responses"), "responses.* generator's samples"),
        (lambda: said("by_name"), "images.* are responses"),
        (lambda: said("wants_latents"), "latents.* a generator draws"),
        (lambda: drawn("NotCalled"), "NotCalled has no __call__"),
        (lambda: drawn("Loaded"), r"Loaded.*missing.*'factor'"),
        (lambda: drawn("Loaded", speed=1), "'speed'|missing"),
        (lambda: flow_reward("function", path="tests.support.bad_rewards:takes_no_prompts"),
         r"takes_no_prompts\(samples\) \(.*bad_rewards\.py:\d+\).*function\(images, prompts\)"),
        (lambda: reward("function", path="tests.support.bad_rewards:raises", arguments={"scale": 2}),
         r"function\(responses, prompts, scale=\.\.\.\).*'scale'"),
        (lambda: reward("function", path=f"{__name__}:everything_at_once"), "reward_inputs.*completions"),
    ],
)  # fmt: skip
def test_what_nobody_has_is_refused_before_the_run(make, why):
    odd = Prompt(text="d", record='{"other": 1}', where="data.jsonl:9")
    with pytest.raises(ValueError, match=why):
        make().check([*PROMPTS, odd])


def takes_videos(videos):
    return [1.0] * len(videos)


SHADES = np.arange(0, 100, 10, dtype=np.uint8)  # of ten frames
SOUND = Sound(samples=np.full((1, 4), 0.5, np.float32), rate=4)


def clip(**changes: object) -> Clip:
    frames = np.broadcast_to(SHADES[:, None, None, None], (10, 4, 4, 3)).copy()
    return Clip(**{"frames": frames, "fps": 5.0} | changes)  # type: ignore[arg-type]


@options
class Level(Reward):
    """Brightness of a picture; none where it is above the limit."""

    extras = ("half",)
    limit: float = 255
    fewer: int = 0

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        values = [float(image.mean()) for image in images[self.fewer :]]
        return [Verdict(one, (one / 2,), f"{one:g}") if one < self.limit else Verdict(None, (), "bright")
                for one in values]  # fmt: skip

    def differentiable(self, pictures: torch.Tensor, prompts: Sequence[Prompt]) -> torch.Tensor:
        assert pictures.ndim == 4
        return pictures.mean((1, 2, 3))


@options
class Loudness(Reward):
    """Mean of a sound."""

    reads: ClassVar[tuple[Kind, ...]] = ("sound",)

    def score(self, images: Sequence[Sound], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(float(sound.samples.mean())) for sound in images]


@options
class Frames(Reward):
    """Number of frames."""

    reads: ClassVar[tuple[Kind, ...]] = ("clip",)

    def score(self, images: Sequence[Clip], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(float(len(one.frames))) for one in images]

    def differentiable(self, pictures: torch.Tensor, prompts: Sequence[Prompt]) -> torch.Tensor:
        assert pictures.ndim == 5
        return pictures.mean((1, 2, 3, 4))


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({}, np.mean([0, 10, 30, 40, 50, 60, 80, 90])),  # eight of ten
        ({"every": 4}, 40),
        ({"count": 2}, 45),
        ({"every": 4, "reduce": "min"}, 0),
        ({"every": 4, "reduce": "max"}, 80),
        ({"every": 3, "reduce": "median"}, 45),
        ({"reduce": "first"}, 0),
        ({"reduce": "last"}, 90),
    ],
    ids=str,
)
def test_a_reward_on_pictures_scores_a_clip_by_its_frames(given, value):
    one = Level(frames=FrameOptions(**given))
    (verdict,) = judged(one, [clip()], PROMPTS[:1])
    assert verdict.value == pytest.approx(value)
    assert verdict.extras == pytest.approx((value / 2,))
    pictures = torch.tensor(clip().frames).permute(0, 3, 1, 2)[None].float().requires_grad_()
    scores = one.with_gradients(pictures, PROMPTS[:1])
    assert scores.tolist() == pytest.approx([value])
    scores.sum().backward()
    assert pictures.grad.any()


def test_clips_of_different_lengths_pictures_and_sounds_are_scored_by_those_that_read_them():
    short = clip(frames=clip().frames[:1])
    verdicts = judged(Level(), [short, clip(), clip().frames[9]], PROMPTS)
    assert [verdict.value for verdict in verdicts] == [0, pytest.approx(45), 90]
    assert verdicts[1].note == "0 | 10 | 30 | 40 | ..."
    assert judged_values(Frames(), [clip()], PROMPTS[:1]) == [10]
    assert judged(Loudness(), [clip(sound=SOUND), SOUND], PROMPTS[:2]) == [Verdict(0.5)] * 2
    assert Frames().with_gradients(torch.ones(2, 3, 3, 4, 4), PROMPTS[:2]).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("one", "sample", "why"),
    [
        (Level(), SOUND, "scores images, but the model draws sounds"),
        (Frames(), clip().frames[0], "scores clips, but the model draws images"),
        (Loudness(), clip(), "the clip has none"),
        (Level(), clip(finite=False), "the clip has non-finite values"),
        (Loudness(), Sound(samples=SOUND.samples, rate=4, finite=False), "the sound has non-finite values"),
        (Level(limit=85), clip(), "bright"),
        (Level(fewer=1), clip(), "7 verdicts for 8 frames"),
        (flow_reward("border_darkness"), Response("2"), "this is a text"),
        (reward("exact"), clip().frames[0], "this is not a text"),
    ],
)
def test_what_it_cannot_score_is_missing_and_says_why(one, sample, why):
    (verdict,) = judged(one, [sample], PROMPTS[:1])
    assert verdict.value is None
    assert why in verdict.note


def test_what_it_cannot_score_is_known_before_anything_is_drawn():
    assert Level().refusal("image") == Level().refusal("clip") == Loudness().refusal("clip") == ""
    videos = flow_reward("function", path=f"{__name__}:takes_videos")
    for one in (Frames(), videos):
        assert "clips" in one.refusal("image") or "videos" in one.refusal("image")
        assert one.refusal("clip") == ""
    assert "frames" in Level(frames=FrameOptions()).refusal("image")
    with pytest.raises(ValueError, match="frames is never read"):
        Frames(frames=FrameOptions())
    for wrong in ({"every": 2, "count": 2}, {"every": 2, "reduce": "last"}):
        with pytest.raises(ValueError, match="every"):
            FrameOptions(**wrong)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_function_gets_the_clip_or_its_frames_wherever_it_judges(processes):
    path = f"{brightness_of_clips.__module__}:{brightness_of_clips.__name__}"
    rewards = {name: flow_reward("function", path=path, frames=frames) for name, frames in
               (("all", None), ("some", {"every": 5}))}  # fmt: skip
    with scorer(rewards, processes) as scoring:
        scores = scoring.score([clip(), clip(sound=SOUND)], PROMPTS[:2])
    assert scores.components.tolist() == [[45.0, 25.0], [45.5, 25.0]]
