"""Rewards behind an address: what is asked of servers, and a server whose clients are many, slow or wrong."""

import base64
import io
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from burnish.rewards.remote import ScoreRequest
from burnish.rewards.text.base import Response
from burnish.types.media import Fit, Media
from burnish.types.messages import read_calls
from burnish.types.prompt import Message, Part, Prompt
from burnish.types.samples import Clip, Sound
from tests.support.asked import flow_reward, reward
from tests.support.asked import values_of as values
from tests.support.clips import brightness_of_clips
from tests.support.drawing import line, noise, promised
from tests.support.http_servers import JsonServer, json_server
from tests.support.reward_service import get, post, raw, served

ANY = Prompt(text="?")
LARGEST = 16 << 20  # bytes of a reply
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
NUMBERS = count()  # what is known of a server is known by its address, and a port may be given again


def lengths(message, count):
    return 200, {"rewards": [len(text) for text in message["responses"]]}


@pytest.fixture
def server():
    with json_server(lengths) as one:
        one.url += f"/{next(NUMBERS)}"
        yield one


def ask(server: JsonServer, *texts: str, prompt: Prompt = ANY, **options) -> list:
    one = reward("remote", url=server.url, **{"deadline": 20, **options})
    return one([Response(text) for text in texts], [prompt] * len(texts))


def test_what_is_sent_is_lightrft_s_protocol_or_openrlhf_s(server):
    images = [np.full((4, 4, 3), level, dtype=np.uint8) for level in (0, 200)]
    seen = Prompt(text="<image><image>same?", answer="no", images=tuple(map(Media.array, images)))
    one = reward("remote", url=server.url)
    assert values(one, [Response("yes"), Response("no!!")], [seen, Prompt(text="hm?")]) == [3, 4]
    message = server.got[0]
    assert message["queries"] == ["<image><image>same?yes", "hm?no!!"]
    assert message["prompts"] == ["<image><image>same?", "hm?"]
    assert message["references"] == ["no", None]
    assert message["images"][1] is None
    for sent, image in zip(message["images"][0], images, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(sent)))), image)
    ask(server, "a")
    assert set(server.got[1]) == {"queries", "prompts", "responses"}  # what nobody has is not sent
    server.reply = lambda message, count: (200, {"rewards": [0.5], "extra_logs": {"x": [1]}})
    (score,) = ask(server, "yes", prompt=Prompt(text="same? ", answer="no"), protocol="openrlhf")
    assert score.value == 0.5
    assert server.got[2] == {"query": ["same? yes"], "prompts": ["same? "], "labels": ["no"]}


def test_large_batches_are_several_requests_in_order_and_failures_are_tried_again(server):
    scores = ask(server, *["x" * n for n in range(10)], batch_size=3, concurrency=2)
    assert [score.value for score in scores] == list(range(10))
    assert sorted(len(message["responses"]) for message in server.got) == [1, 3, 3, 3]
    server.reply = lambda message, count: (503, {}) if count < 7 else (200, {"rewards": [0.5]})
    assert ask(server, "a")[0].value == 0.5
    assert len(server.got) == 7
    server.reply = lambda message, count: (200, {"rewards": [1, None, "x", True, 0]})
    assert [score.value for score in ask(server, *"abcde")] == [1, None, None, None, 0]


@pytest.mark.parametrize(("reply", "why", "requests"), [
    ((500, {}), "2 tries .* status 500", 2), ((200, b"[" * 200_000), "2 tries .* nested too deeply", 2),
    ((200, b" " * (LARGEST + 1)), "2 tries .* more than 16 MiB", 2),
    ((200, {"rewards": [1]}), "1 scores for 2 samples", 1), ((200, {"rewards": 1}), "has no list 'rewards'", 1),
    ((302, b"", ("Location", "http://127.0.0.1:9/")), "status 302 redirect to http://127.0.0.1 not followed", 1),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_a_failed_request_is_missing_never_zero(server, reply, why, requests):
    server.reply = lambda message, count: reply
    scores = ask(server, "a", "b", retries=1)
    assert [score.value for score in scores] == [None, None]
    assert all(re.search(why, score.note) for score in scores)
    assert len(server.got) == requests


def test_what_is_sent_to_our_own_service_comes_there_as_it_is():
    Image.fromarray(noise(1, 9, 8)).save(bmp := io.BytesIO(), "BMP")
    small, png = Media.encoded(bmp.getvalue()), Media.array(noise(2, 20, 20))
    turns = (Message("user", (Part("image"), Part("text", "so?"))), Message("assistant", (), read_calls([CALL])))
    seen = Prompt(text="so?", negative="n", answer="4", source="s", label="l", extra='{"k": [1]}', messages=turns,
                  images=(small, png, replace(png, fit=Fit(max_pixels=100))))  # fmt: skip
    sound = Sound(samples=np.linspace(-1, 1, 8, dtype=np.float32)[None], rate=16)
    clip = Clip(frames=noise(3, 6, 20)[None], fps=4.0, sound=sound)
    given = [Response("a", finished=False), sound, clip, noise(4, 5, 6)]
    sent = ScoreRequest.of(given, [seen] * 4).model_dump_json(exclude_defaults=True)
    (response, heard, shown, drawn), (prompt, *_) = ScoreRequest.model_validate_json(sent).read(10_000, given[3].nbytes)
    with pytest.raises(BufferError, match="fewer at once"):
        ScoreRequest.model_validate_json(sent).read(10_000, given[3].nbytes - 1)
    assert (response, heard.rate, shown.fps, shown.sound.rate) == (given[0], 16, 4.0, 16)
    for one, other in ((heard, sound), (shown.sound, sound)):
        np.testing.assert_array_equal(one.samples, other.samples)
    for one, other in ((shown.frames, clip.frames), (drawn, given[3]), (prompt.images[0].image(), noise(1, 9, 8))):
        np.testing.assert_array_equal(one, other)
    assert [image.image().size for image in prompt.images] == [(9, 8), (20, 20), (10, 10)]
    assert prompt.images[1].read() == png.read(), "the file as it is"
    assert replace(prompt, images=()) == replace(seen, images=())


KNOWN = {"Authorization": "Bearer hush"}
GOOD = {"samples": [{"text": "abc"}], "prompts": [{"text": "?"}]}
SILENCE = save({"sound": np.zeros((1, 8), np.float32)})


def test_images_clips_and_sounds_are_scored_as_here_and_foreign_pages_are_refused(tmp_path):
    recipe = tmp_path / "mine.yaml"
    bright = "{name: function, path: 'tests.support.clips:brightness_of_clips', frames: null}"
    recipe.write_text(
        f"task: text-to-image\nrewards:\n  bright: {bright}\n  small: {{name: jpeg_compressibility}}\nsteps: 3\n"
    )
    sound = Sound.of(np.linspace(-1, 0.5, 7, dtype=np.float32)[None], 16_000)
    clip = Clip(frames=np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3), fps=8.0, sound=sound)
    samples, prompts = [line("472"), clip, noise(3)], [Prompt(text="the number 472", answer="472")] * 3
    small = values(flow_reward("jpeg_compressibility"), samples, prompts)
    expected = [one + size / 10 for one, size in zip(brightness_of_clips(samples, prompts), small, strict=True)]
    with served(str(recipe), "rewards.small.weight=0.1", "service.window=0") as service:
        one = flow_reward("remote", url=service.url, deadline=60.0, batch_size=2)
        scores = one(samples, prompts)
        assert [score.value for score in scores] == pytest.approx(expected, abs=1e-5)
        assert scores[0].numbers["small"] == pytest.approx(small[0])
        counted = get(f"{service.url}/metrics")[1]
        for counter in ('burnish_requests_total{status="200"} 2', 'burnish_samples_total{reward="small"} 3'):
            assert counter in counted
        status, answer, _ = post(f"{service.url}/score", GOOD)
        assert (status, answer["scores"][0]["fault"]) == (200, "")
        assert "this is a text" in answer["scores"][0]["note"]
        for host in ("localhost", f"[::1]:{service.port}"):
            assert post(f"{service.url}/score", GOOD, Host=host)[0] == 200
        for host in ("rebound.example", "127.0.0.1.example", "192.0.2.1", "[", ""):
            status, reply, _ = post(f"{service.url}/score", GOOD, Host=host)
            assert (status, f"Host header is {host!r}" in reply["error"]) == (421, True)
            assert get(f"{service.url}/metrics", Host=host)[0] == 421
        assert service.end() == 0
    (gone,) = flow_reward("remote", url=service.url, deadline=2.0)(samples[:1], prompts[:1])
    assert (gone.value, "gave up after" in gone.fault) == (None, True)


LIMITS = {"max_body_mb": 1, "read_timeout": 1, "queue": 400, "max_pixels": 10_000, "window": 0.1}


@pytest.fixture(scope="module")
def service():
    """Of lengths of responses, with small limits and a token."""
    limits = [f"service.{name}={value}" for name, value in LIMITS.items()]
    path = "function.path=tests.support.named_rewards:length"
    with served("function", path, "--task", "image-text-to-text", *limits, token="hush") as one:
        yield one


def image(width: int, height: int) -> str:
    return base64.b64encode(promised(width, height)).decode()


def tensors(content: bytes, **more) -> dict:
    return {"safetensors": base64.b64encode(content).decode(), **more}


def asking(**sample) -> dict:
    return {"samples": [sample], "prompts": [{"text": "?"}]}


@pytest.mark.parametrize(("body", "status", "why"), [
    (b"[" * 15_000, 400, "recursion limit"),
    (b" " * (32 << 20), 413, "service.max_body_mb"),  # more than sockets hold that nobody reads
    ({"samples": [], "prompts": [{"text": "?"}]}, 400, "0 samples, but 1 prompts"),
    (asking(finished=True), 400, "samples.0: it must have one of text, image, clip and sound"),
    (asking(clip=tensors(save({"frames": np.zeros((2, 4, 4, 1), np.uint8)}), fps=8.0)), 400, "must be [F, H, W, 3]"),
    (asking(clip=tensors(save({"frames": np.zeros((1, 9, 2000, 3), np.uint8)}), fps=8.0)), 400, "2000x9 pixels, more"),
    (asking(sound=tensors(save({"sound": np.zeros(8, np.float32)}), rate=8)), 400, "float32 with 2 dimensions"),
    ({"samples": [{"text": "a"}] * 401, "prompts": [{"text": "?"}] * 401}, 503, "service.queue"),
    (asking(text=3), 400, "samples.0.text: Input should be a valid string"),
    (asking(image=3), 400, "samples.0.image: Input should be a valid bytes"),
    (asking(image=image(4, 4)), 400, "samples.0: the image can't be read"),
    (asking(image=image(60_000, 60_000)), 400, "3600000000 pixels"),
    (asking(image=image(600, 600)), 400, "600x600 pixels, more than 10000"),
    (asking(sound=tensors(b"\x80\x04cos\nsystem\n.", rate=1)), 400, "safetensors can't"),
    (asking(sound=tensors(SILENCE, rate=0.3)), 400, "rate: Input should be a valid int"),
    (GOOD | {"prompts": [{"text": "?", "images": ["no"]}]}, 400, "prompts.0.images.0: Data should be"),
], ids=lambda value: str(value)[:30])  # fmt: skip
def test_a_bad_request_is_refused_with_its_reason(service, body, status, why):
    found, reply, _ = post(f"{service.url}/score", body, **KNOWN)
    assert (found, why in reply["error"]) == (status, True), reply
    assert len(reply["error"]) < 700


def test_wrong_tokens_kinds_of_content_places_and_bytes_are_refused(service):
    for given in (None, "Bearer wrong", "hush", "Bearer hushh", "Bearer h\u00fc"):
        headers = {} if given is None else {"Authorization": given}
        status, reply, more = post(f"{service.url}/score", GOOD, **headers)
        assert (status, "hush" in reply["error"], more["www-authenticate"]) == (401, False, "Bearer")
        assert get(f"{service.url}/metrics", **headers)[0] == 401
    assert post(f"{service.url}/score", GOOD, **(KNOWN | {"Content-Type": "application/x-pickle"}))[0] == 415
    negative = b"POST /score HTTP/1.1\r\nContent-Length: -5\r\n\r\n"
    for content in (b"\x00" * 100, negative, b"GET / HTTP/9\r\n\r\n"):
        assert b" 400 " in raw(service.port, content, wait=5.0).partition(b"\r\n")[0]
    long = b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 100_000
    assert b" 4" in raw(service.port, long, wait=5.0).partition(b"\r\n")[0]


def test_a_sample_that_fails_is_missing_alone(service, monkeypatch):
    monkeypatch.setenv("HUSH", "hush")
    one = reward("remote", url=service.url, protocol="burnish", deadline=60.0, token_variable="HUSH")
    scores = one([Response("a"), Response("bad"), Response("ccc")], [ANY] * 3)
    assert [score.value for score in scores] == [1.0, None, 3.0]
    assert "no bad" in scores[1].fault
    with pytest.raises(ValueError, match="url of reward remote contains"):
        reward("remote", url="http://me:secret@x").check([])
    Image.new("RGB", (4, 4)).save(png := io.BytesIO(), "PNG")
    drawn = asking(image=base64.b64encode(png.getvalue()).decode())
    assert "this is not a text" in post(f"{service.url}/score", drawn, **KNOWN)[1]["scores"][0]["note"]


def test_many_clients_at_once_all_get_their_own_scores_from_batches(service):
    def scores(number: int) -> list[float]:
        texts = [{"text": "x" * (number + 1)}, {"text": "y" * (number % 7 + 1)}]
        for _ in range(300):
            body = {"samples": texts, "prompts": [{"text": str(number)}] * 2}
            status, reply, headers = post(f"{service.url}/score", body, **KNOWN)
            if status == 200:
                return [score["value"] for score in reply["scores"]]
            assert (status, int(headers["retry-after"]) >= 1) == (503, True)
            time.sleep(0.1)
        raise AssertionError("never answered")

    with ThreadPoolExecutor(100) as pool:
        assert list(pool.map(scores, range(100))) == [[number + 1.0, number % 7 + 1.0] for number in range(100)]
    status, counted = get(f"{service.url}/metrics", **KNOWN)
    assert (status, "burnish_queue_samples 0" in counted) == (200, True)
