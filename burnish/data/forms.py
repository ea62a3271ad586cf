"""Questions and dialogues as the tools of the field write them, as text or chat messages.

alpaca (instruction, input, output), sharegpt and LLaVA (conversations of from and value), queries with a history and a
system message. What is in messages of role and content already stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burnish.data.values import find, shown, text_of

INSTRUCTION, CONVERSATIONS = "instruction", "conversations"
DIALOGUES = ("messages", CONVERSATIONS)  # keys of whole dialogues, whose last turn may be the response
# speakers of sharegpt and its relatives, and the role of each in chat messages
SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "model": "assistant", "system": "system", "tool": "tool", "observation": "tool", "tool_response": "tool",
    "function_call": "assistant", "tool_call": "assistant",
}  # fmt: skip


def asked(values: Mapping[str, Any], usual: Sequence[str], key: str | None = None) -> tuple[str, Any]:
    """The key of a record's question, and the question: text, or messages; ("", None) if there is none.

    Args:
        values: the record.
        usual: keys to look for.
        key: the only key to look for, if data.prompt_key names one.

    Raises:
        ValueError: several keys hold one, or a turn is not in a known form.
    """
    name, value = find(values, usual, key, "prompt_key")
    if not name and key is None:
        name, value = find(values, (INSTRUCTION, CONVERSATIONS), None, "prompt_key")
    if name == INSTRUCTION and key is None and values.get("input"):
        value = f"{text_of(value, name)}\n{text_of(values['input'], 'input')}"
    if isinstance(value, list):
        value = [_message(turn, name) for turn in value]
    if name == CONVERSATIONS or (name in (INSTRUCTION, "query") and isinstance(value, str)):
        value = _with_history(values, name, value)
    return name, value


def said_whole(key: str, template: str | None) -> str | None:
    """The key of a record whose value is the prompt as it is, so that rewards need no other copy of it."""
    return key if template is None and key not in (INSTRUCTION, CONVERSATIONS) else None


def response_of(value: Any) -> Any:
    """A response that sharegpt writes as one turn, as messages; others as they are."""
    return [_message(value, "response")] if isinstance(value, Mapping) else value


def _with_history(values: Mapping[str, Any], name: str, value: Any) -> Any:
    """A question with the turns before it and the system message, where the record has some."""
    before = list(_history(values.get("history"))) if isinstance(value, str) else []
    system = values.get("system")
    if not before and not system:
        return value
    messages = [*before, {"role": "user", "content": text_of(value, name)}] if isinstance(value, str) else value
    if not system or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": text_of(system, "system")}, *messages]


def _history(turns: Any) -> Iterator[dict[str, str]]:
    if turns is None:
        return
    pairs = isinstance(turns, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in turns)
    if not pairs:
        raise ValueError(f"'history' is {shown(turns)}; it must be a list of pairs of a question and its response")
    for question, response in turns:
        yield {"role": "user", "content": text_of(question, "history")}
        yield {"role": "assistant", "content": text_of(response, "history")}


def _message(turn: Any, key: str) -> Any:
    """A turn as a message of role and content; what is one, or can't be read as one, as it is."""
    if not isinstance(turn, Mapping) or "role" in turn or "from" not in turn:
        return turn
    speaker = turn["from"]
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise ValueError(f"{key!r} has a turn from {shown(speaker)}; it must be from one of {', '.join(SPEAKERS)}")
    more = {name: value for name, value in turn.items() if name not in ("from", "value")}
    return {**more, "role": SPEAKERS[speaker], "content": text_of(turn.get("value"), f"{key}.value")}
