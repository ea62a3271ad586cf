"""A reward service: what a run's own scorer says, by HTTP, for both tasks; and how it is asked to serve."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from burnish.config.serving import load_service
from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.rewards.judging import judge
from burnish.rewards.scoring import Scorer
from burnish.rewards.text.base import Response
from burnish.rewards.wire import Limits, decode_request, encode_prompt, encode_sample
from burnish.types.clips import Clip, Sound
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import ConfigError
from tests.support.drawing import line, noise
from tests.support.reward_service import get, post, served

LIMITS = Limits(samples=10, pixels=10_000, reserve=lambda count: None)
PROMPT = Prompt(text="the number 472", answer="472", source="mine", label="x", extra='{"a": [1]}', negative="no")


def remote(kind, url, **options):
    return lookup(kind, "remote")(url=url, **({"deadline": 60.0} | options))


def locally(samples, prompts, **rewards):
    with Scorer(rewards, ScoringOptions(processes=0)) as scorer:
        return scorer.score(samples, prompts)


def test_samples_and_prompts_arrive_as_they_were():
    wave = Sound.of(np.linspace(-1, 1, 7, dtype=np.float32)[None], 16_000)
    clip = Clip(frames=np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3), fps=8.0, sound=wave)
    picture = noise(1)
    seen = Prompt(text="<image>?", images=(Media.array(picture),), answer="1")
    samples = [picture, clip, wave, Response("yes", finished=False)]
    prompts = [PROMPT, PROMPT, PROMPT, seen]
    body = {
        "samples": [encode_sample(sample) for sample in samples],
        "prompts": [encode_prompt(prompt, media=True) for prompt in prompts],
    }
    found, told = decode_request(body, LIMITS)
    np.testing.assert_array_equal(found[0], picture)
    np.testing.assert_array_equal(found[1].frames, clip.frames)
    np.testing.assert_array_equal(found[1].sound.samples, wave.samples)
    np.testing.assert_array_equal(found[2].samples, wave.samples)
    assert (found[1].fps, found[2].rate, found[3]) == (8.0, 16_000, Response("yes", finished=False))
    assert [prompt.uid for prompt in told] == [prompt.uid for prompt in prompts]


@pytest.mark.slow
def test_pictures_are_scored_as_a_run_scores_them(monkeypatch):
    samples, prompts = [line("472"), noise(3), line("186")], [PROMPT] * 3
    rewards = {
        "ocr": lookup("flow reward", "ocr")(),
        "small": lookup("flow reward", "jpeg_compressibility")(weight=0.1),
    }
    expected = locally(samples, prompts, **rewards)
    arguments = ("ocr", "rewards.small.name=jpeg_compressibility", "small.weight=0.1")
    with served(*arguments, token="hush") as service:
        assert get(f"{service.url}/health") == (200, '{"status":"ok"}')
        assert get(f"{service.url}/metrics")[0] == 401
        monkeypatch.setenv("HUSH", "hush")
        verdicts = judge(remote("flow reward", service.url, token_variable="HUSH", batch_size=2), samples, prompts)
        assert [verdict.value for verdict in verdicts] == pytest.approx(expected.reward.tolist(), abs=1e-7)
        assert verdicts[0].named["small"] == pytest.approx(float(expected.components[0, -1]))
        assert verdicts[0].note == expected.notes[0]
        status, counted = get(f"{service.url}/metrics", Authorization="Bearer hush")
        assert status == 200
        assert 'burnish_requests_total{status="200"} 2' in counted
        assert 'burnish_samples_total{reward="ocr"} 3' in counted
        assert service.end() == 0


@pytest.mark.slow
def test_responses_are_scored_and_failures_are_missing():
    responses, prompts = [Response("a"), Response("bad"), Response("ccc")], [PROMPT] * 3
    with served(
        "function", "--task", "image-text-to-text", "function.path=tests.support.failing_rewards:aborts"
    ) as service:
        one = remote("language reward", service.url, protocol="burnish")
        verdicts = judge(one, responses, prompts)
        sent = {"samples": [encode_sample(noise(1))], "prompts": [encode_prompt(PROMPT, media=False)]}
        status, answer, _ = post(f"{service.url}/score", sent)
    assert [verdict.value for verdict in verdicts] == [1.0, None, 3.0]
    assert "died twice" in verdicts[1].fault
    assert (status, answer["scores"][0]["fault"]) == (200, "")
    assert "this is not a text" in answer["scores"][0]["note"]
    (gone,) = judge(
        remote("language reward", service.url, protocol="burnish", deadline=2.0), responses[:1], prompts[:1]
    )
    assert gone.value is None
    assert "gave up after" in gone.fault


def test_answers_come_back_for_votes():
    samples = [Response(f"<answer>{text}</answer>") for text in ("B", "(b)", "C")]
    with served("multiple_choice", "--task", "image-text-to-text") as service:
        one = remote("language reward", service.url, protocol="burnish")
        verdicts = judge(one, samples, [Prompt(text="?", answer="B")] * 3)
    assert [(verdict.value, verdict.answer) for verdict in verdicts] == [(1.0, "B"), (1.0, "B"), (0.0, "C")]


def test_requests_without_samples_and_wrong_names():
    with pytest.raises(ConfigError, match="ocrr"):
        load_service(["ocrr"])
    with pytest.raises(ConfigError, match="rewards of different tasks"):
        load_service(["ocr", "numeric"])
    with pytest.raises(ConfigError, match="say of which task, by --task text-to-image or"):
        load_service(["function", "function.path=x.py:y"])
    with pytest.raises(ConfigError, match=r"rewards\.ocr\.on_failure is raise, which is for the run"):
        load_service(["ocr", "ocr.on_failure=raise"])
    with pytest.raises(ConfigError, match="no value to serve"):
        load_service(["ocr", "ocr.weight=0"])
    with pytest.raises(ConfigError, match="end a run, not a service"):
        load_service(["ocr", "scoring.max_failures=3"])
    with pytest.raises(ConfigError, match=r"service\.que"):
        load_service(["ocr", "service.que=3"])
    found = load_service(["numeric", "format", "format.weight=0.1"])
    assert (found.task, list(found.rewards), found.rewards["format"].weight) == (
        "image-text-to-text", ["numeric", "format"], 0.1,
    )  # fmt: skip
    assert found.scoring.max_failures is None


def test_a_recipe_is_served_with_its_rewards(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("task: image-text-to-text\nrewards: {exact: {weight: 2}}\nsteps: 3\nservice: {window: 0}\n")
    found = load_service([str(recipe), "rewards.exact.ignore_case=false"])
    assert (found.rewards["exact"].weight, found.rewards["exact"].ignore_case, found.service.window) == (2, False, 0)


def test_other_machines_need_a_token():
    done = subprocess.run(
        [sys.executable, "-m", "burnish.cli", "serve-reward", "ocr", "--host", "192.0.2.1"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--host is 192.0.2.1, where others can reach the service; set a token" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_without_a_token_a_page_that_gave_this_machine_a_name_of_its_own_is_refused():
    body = {"samples": [{"text": "x"}], "prompts": [{"text": "?"}]}
    with served(
        "function", "--task", "image-text-to-text", "function.path=tests.support.failing_rewards:raises_on_bad"
    ) as service:
        for host in ("localhost", f"localhost:{service.port}", f"127.0.0.1:{service.port}", f"[::1]:{service.port}"):
            assert post(f"{service.url}/score", body, Host=host)[0] == 200
        for host in ("rebound.example", f"rebound.example:{service.port}", "127.0.0.1.example", "192.0.2.1", "[", ""):
            status, reply, _ = post(f"{service.url}/score", body, Host=host)
            assert status == 421
            assert f"the Host header is {host!r}; without a token" in reply["error"]
            assert get(f"{service.url}/metrics", Host=host)[0] == 421


@pytest.mark.slow
def test_many_requests_are_scored_together(tmp_path):
    arguments = (
        "function", "--task", "image-text-to-text", "service.window=0.3",
        "function.path=tests.support.failing_rewards:counts_itself",
        f"function.arguments={{folder: '{tmp_path}'}}",
    )  # fmt: skip
    from concurrent.futures import ThreadPoolExecutor

    with served(*arguments) as service, ThreadPoolExecutor(8) as pool:
        body = {"samples": [{"text": "x"}], "prompts": [{"text": "?"}]}
        replies = list(pool.map(lambda _: post(f"{service.url}/score", body)[0], range(8)))
    assert replies == [200] * 8
    together = [int(file.read_text().split()[2]) for file in tmp_path.iterdir()]
    assert max(together) > 1
