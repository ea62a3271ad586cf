"""What a user's reward function may return, as verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.rewards.base import Verdict

SCORE = ("score", "reward")  # keys of a dict that hold the value
LISTS = ("scores", "rewards", *SCORE)  # of a dict about a batch
ANSWER = "pred"  # key of the answer that a response gives: equal ones vote together
NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")  # of a further value: it becomes a part of metric names
MOST = 64  # further values of a sample
TEXT = 500  # characters of a text that are kept as a note


def batch_verdicts(found: Any, who: str, tokens: Sequence[int] | None) -> list[Verdict]:
    """Of what a function returned for a batch: a list, a dict of lists, or a list and a dict of further lists.

    Args:
        found: is to hold a value per sample.
        who: the function, for messages.
        tokens: of each response, where it asked for their ids.

    Raises:
        ValueError, TypeError: it is none of these.
    """
    further: Mapping[str, Any] = {}
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping) and not _number(found[0]):
        found, further = found
    elif isinstance(found, Mapping):
        (key,) = [name for name in LISTS if name in found] or [""]
        if not key:
            raise ValueError(f"it returned a dict without {' or '.join(LISTS)}; its keys are {', '.join(found)}")
        found, further = found[key], {name: values for name, values in found.items() if name != key}
    values = list(found)
    each: list[dict[str, Any]] = [{} for _ in values]
    for name, column in further.items():
        listed = list(column) if not isinstance(column, str | bytes) and hasattr(column, "__len__") else None
        if listed is None or len(listed) != len(values):
            raise ValueError(f"it returned {len(values)} values, and {name!r} of another length beside them")
        for one, value in zip(each, listed, strict=True):
            one[name] = value
    counts = tokens if tokens is not None and len(tokens) == len(values) else [None] * len(values)
    return [verdict_of(v, who, count, more) for v, count, more in zip(values, counts, each, strict=True)]


def verdict_of(value: Any, who: str, tokens: int | None = None, further: Mapping[str, Any] | None = None) -> Verdict:
    """Of what was returned for one sample: a number, None, a dict, or a verdict."""
    if isinstance(value, Verdict):
        return value
    if isinstance(value, Mapping):
        return _of_dict(value, who, tokens)
    if value is None:
        return Verdict(None, (), f"{who} gave no value")
    if not _number(value):
        return fault(f"{who} gave {shown(value)}, which is not a number")
    if not math.isfinite(float(value)):
        return Verdict(None, (), f"{who} gave {float(value)}, which is not finite")
    return _of_dict({"score": value, **further}, who, tokens) if further else Verdict(float(value))


def fault(why: str) -> Verdict:
    """A missing value, because the reward returned what it must not."""
    return Verdict(None, (), why, fault=why)


def shown(value: Any) -> str:
    """A value for messages."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _of_dict(value: Mapping[str, Any], who: str, tokens: int | None) -> Verdict:
    """One named score; steps or tokens that it is made of; further numbers by name; texts as notes; an answer."""
    steps, each = value.get("steps"), value.get("tokens")
    keys = [name for name in SCORE if name in value] or [name for name in ("overall",) if name in value]  # EasyR1's
    if len(keys) > 1 or not (keys or steps is not None or each is not None):
        return fault(f"{who} gave {shown(dict(value))}; a dict needs one of {' and '.join(SCORE)}")
    try:
        by_step = tuple((int(end), _float(one)) for end, one in steps or ())
        by_token = tuple(_float(one) for one in each) if each is not None else ()
    except (TypeError, ValueError, OverflowError):
        return fault(f"{who} gave steps or tokens that are no numbers: write steps as [[end, value], ...]")
    if by_token and tokens != len(by_token):
        known = "it has to ask for response_ids" if tokens is None else f"the response has {tokens}"
        return fault(f"{who} gave values for {len(by_token)} tokens; {known}")
    score = value[keys[0]] if keys else sum(one for _, one in by_step) + sum(by_token)
    whole = verdict_of(score, who) if not isinstance(score, Mapping) else fault(f"{who} gave a dict as {keys[0]}")
    named: dict[str, float] = {}
    notes = []
    for name, one in value.items():
        if name in (*keys, "steps", "tokens") or one is None:
            continue
        if isinstance(one, str):
            notes.append(one[:TEXT] if name == "note" else f"{name}: {one[:TEXT]}")
        elif not _number(one):
            return fault(f"{who} gave {shown(one)} as {shown(name)}; further values must be numbers or texts")
        elif not isinstance(name, str) or not NAME.fullmatch(name):
            return fault(f"{who} named a further value {shown(name)}; use letters, digits, _ . and -")
        elif math.isfinite(float(one)):
            named[name] = float(one)
    if len(named) > MOST:
        return fault(f"{who} gave {len(named)} further values for a sample; at most {MOST} are logged")
    if whole.value is None:
        return Verdict(None, (), "; ".join([whole.note, *notes]), fault=whole.fault)
    answer = None if value.get(ANSWER) is None else str(value[ANSWER]).strip()
    return Verdict(whole.value, (), "; ".join(notes), steps=by_step, tokens=by_token, named=named, answer=answer)


def _number(value: Any) -> bool:
    try:
        if isinstance(value, str | bytes):
            return False
        float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of several values
        return False
    return True


def _float(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number
