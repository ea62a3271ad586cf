"""A stand-in for a server with OpenAI's chat protocol."""

import math
from typing import Any

USAGE = {"prompt_tokens": 300, "completion_tokens": 1}


def listing(shares: dict[str, float], *, usage: dict[str, int] | None = USAGE) -> dict[str, Any]:
    """A reply of one token with the likeliest ones and their probabilities."""
    top = [{"token": token, "logprob": math.log(share), "bytes": None} for token, share in shares.items()]
    first = {**max(top, key=lambda one: one["logprob"]), "top_logprobs": top}
    choice = {"index": 0, "message": {"role": "assistant", "content": first["token"]}, "finish_reason": "length"}
    return {"choices": [choice | {"logprobs": {"content": [first]}}], "usage": usage}


def writing(text: str | None, *, reason: str = "stop", refusal: str | None = None) -> dict[str, Any]:
    """A reply that is a text, or a refusal."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": USAGE}


def question_of(request: dict[str, Any]) -> str:
    return request["messages"][0]["content"][-1]["text"]


def images_of(request: dict[str, Any]) -> list[str]:
    return [part["image_url"]["url"] for part in request["messages"][0]["content"][:-1]]
