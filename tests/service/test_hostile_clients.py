"""Clients that are many, slow, wrong or lie: each bad request is a 4xx that says why, and good ones are answered."""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import save

from tests.support.reward_service import Started, get, post, raw, served

GOOD = {"samples": [{"text": "abc"}], "prompts": [{"text": "?"}]}
KNOWN = {"Authorization": "Bearer hush"}
SMALL = (
    "service.max_body_mb=1", "service.memory_mb=24", "service.read_timeout=2", "service.max_samples=64",
    "service.queue=400", "service.max_pixels=10000", "service.max_values=20000",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service() -> Iterator[Started]:
    arguments = (
        "function",
        "--task",
        "image-text-to-text",
        "function.path=tests.support.failing_rewards:raises_on_bad",
    )
    with served(*arguments, *SMALL, token="hush") as one:
        assert post(f"{one.url}/score", GOOD, **KNOWN)[0] == 200
        yield one


def image(width: int, height: int, content: bytes = b"") -> str:
    """A PNG that says it has this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", content) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def sound() -> str:
    return base64.b64encode(save({"sound": np.zeros((1, 8), np.float32)})).decode()


def asking(**sample) -> dict:
    return {"samples": [sample], "prompts": [{"text": "?"}]}


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 400, "can't be read"),
        (b"{", 400, "can't be read"),
        (b"\xff\xfe", 400, "can't be read"),
        (b"[" * 15_000, 400, "nested too deeply"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, 400, "nested too deeply"),
        (b"[" + b"1," * 30_000 + b"1]", 413, "service.max_values"),
        (b" " * (2 << 20), 413, "service.max_body_mb"),
        ([1], 400, "must be an object"),
        (GOOD | {"rewards": 1}, 400, "'rewards'; known are"),
        ({"samples": 1, "prompts": []}, 400, "samples must be a list"),
        ({"samples": [], "prompts": [{"text": "?"}]}, 400, "0 samples, but 1 prompts"),
        ({"samples": [{"text": "a"}] * 65, "prompts": [{"text": "?"}] * 65}, 400, "65 entries, more than 64"),
        (asking(text=3), 400, r"samples[0]: text must be a text"),
        (asking(text="a", finished=1), 400, "finished must be true or false"),
        (asking(text="a", eval="x"), 400, "'eval' is not known"),
        (asking(image={"png": "?"}), 400, "not base64"),
        (asking(image={"png": image(4, 4)}), 400, "picture can't be read"),
        (asking(image={"png": image(60_000, 60_000, zlib.compress(b"0"))}), 400, "3600000000 pixels"),
        (asking(image={"png": image(600, 600, zlib.compress(b"0"))}), 400, "600x600 pixels, more than 10000"),
        (asking(image={"gif": "R0lGODlhAQABAAAAACw="}), 400, "known are png, jpeg, webp"),
        (asking(image={"png": base64.b64encode(b"GIF89a" + b"0" * 50).decode()}), 400, "can't be read"),
        (asking(image={"safetensors": base64.b64encode(b"\x80\x04cos\nsystem\n.").decode()}), 400, "safetensors can't"),
        (asking(clip={"fps": 8, "safetensors": base64.b64encode(b"\xff" * 64).decode()}), 400, "safetensors can't"),
        ({"samples": [{"text": "a"}], "prompts": [{"text": "?", "images": [{"png": "no"}]}]}, 400, "prompts[0]"),
        ({"samples": [{"text": "a"}], "prompts": [{"text": "?", "messages": [1]}]}, 400, "messages must have"),
        ({"samples": [{"text": "a"}], "prompts": [{"text": "?", "messages": 5}]}, 400, "messages must be a list"),
        (asking(text="a\ud800"), 400, "half of a surrogate pair"),
        (asking(sound={"rate": 0.3, "safetensors": sound()}), 400, "1 sample per second or more"),
        (b'{"samples": [{"sound": {"rate": 1' + b"0" * 400 + b"}}]}", 400, "401 digits"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_request_is_refused_with_its_reason(service, body, status, why):
    found, reply, _ = post(f"{service.url}/score", body, **KNOWN)
    assert found == status
    assert why in reply["error"]
    assert len(reply["error"]) < 700


@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", "Bearer ", "hush", "Basic hush", "Bearer hushh", "Bearer h\u00fc"]
)
def test_a_wrong_token_is_refused_before_anything_is_read(service, given):
    headers = {} if given is None else {"Authorization": given}
    status, reply, more = post(f"{service.url}/score", GOOD, **headers)
    assert status == 401
    assert "token is missing or wrong" in reply["error"]
    assert "hush" not in reply["error"]
    assert more["www-authenticate"] == "Bearer"
    assert get(f"{service.url}/metrics", **headers)[0] == 401


def test_other_kinds_of_content_and_other_places_are_refused(service):
    assert post(f"{service.url}/score", GOOD, **(KNOWN | {"Content-Type": "application/x-pickle"}))[0] == 415
    assert post(f"{service.url}/score", GOOD, **(KNOWN | {"Content-Encoding": "gzip"}))[0] == 415
    assert post(f"{service.url}/other", GOOD, **KNOWN)[0] == 404
    assert get(f"{service.url}/score")[0] == 405


def test_bytes_that_are_no_http_are_refused(service):
    for content in (b"\x00" * 100, b"POST /score HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        assert b" 400 " in raw(service.port, content, wait=5.0).partition(b"\r\n")[0]
    assert (
        b" 4"
        in raw(service.port, b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 100_000, wait=5.0).partition(b"\r\n")[0]
    )


def test_a_body_that_drips_ends_in_time_and_takes_nobody_else_with_it(service):
    head = (
        "POST /score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hush\r\nContent-Type: application/json\r\n"
        "Content-Length: 500\r\n\r\n"
    )
    slow = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(50)]
    for one in slow:
        one.sendall(head.encode() + b"{")
    begun = time.monotonic()
    assert post(f"{service.url}/score", GOOD, **KNOWN)[0] == 200
    for one in slow:
        one.settimeout(20)
        assert b" 408 " in one.recv(1000).partition(b"\r\n")[0]
        one.close()
    assert time.monotonic() - begun < 15


def test_two_hundred_clients_at_once_all_get_their_own_scores(service):
    before = service.memory()

    def ask(number: int) -> list[float]:
        for _ in range(100):
            texts = [{"text": "x" * (number + 1)}, {"text": "y" * (number % 7 + 1)}]
            body = {"samples": texts, "prompts": [{"text": str(number)}] * 2}
            status, reply, headers = post(f"{service.url}/score", body, **KNOWN)
            if status == 200:
                return [score["value"] for score in reply["scores"]]
            assert status == 503
            assert int(headers["retry-after"]) >= 1
            time.sleep(0.1)
        raise AssertionError("never answered")

    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(ask, range(200)))
    assert found == [[number + 1.0, number % 7 + 1.0] for number in range(200)]
    assert service.memory() - before < 100 << 20


def test_large_requests_at_once_stay_within_the_memory(service):
    before, body = service.memory(), json.dumps(asking(text="z" * 900_000)).encode()

    def ask(_: int) -> int:
        return post(f"{service.url}/score", body, **KNOWN)[0]

    with ThreadPoolExecutor(100) as pool:
        statuses = set(pool.map(ask, range(100)))
    assert statuses <= {200, 503}
    assert 200 in statuses
    assert service.memory() - before < 300 << 20
    status, counted = get(f"{service.url}/metrics", **KNOWN)
    assert (status, "burnish_memory_bytes 0" in counted, "burnish_queue_samples 0" in counted) == (200, True, True)
