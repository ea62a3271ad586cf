"""Messages as tokens: a tokenizer with the chat template of its directory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.data.records import data_error
from burnish.types.messages import OWN, THOUGHTS, as_text
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object

if TYPE_CHECKING:
    from burnish.language.model.base import Chat, Tools
    from burnish.language.model.universal import LanguageModel
    from burnish.types.prompt import LabelledTools, Message, Prompt


CUT = "\ue0f0\ue0f1"  # a token where texts are split before they become tokens; it is taken out again
RESULT = "<tool_response>\n{}\n</tool_response>"  # as Qwen and Hermes format it


class ChatTokenizer:
    """A tokenizer and its chat template; without a template, messages are joined by line breaks.

    Control tokens that a user wrote as text are cut in two before they become tokens, so that they stay text.
    """

    def __init__(
        self, path: Path, tokenizer: Any, *, vision: bool, placeholders: tuple[str, ...], reads_parts: bool
    ) -> None:
        """Args: ``placeholders`` are what the template writes for media."""
        self.path, self.tokenizer = path, tokenizer
        self.placeholders, self.reads_parts = placeholders, reads_parts
        tokenizer.chat_template = read_template(path, tokenizer, vision=vision)
        tokenizer.add_tokens([CUT], special_tokens=True)
        self._lost: dict[Any, str] = {}  # what the template leaves out of conversations of a shape
        self._refused: dict[Any, str] = {}  # why it refuses them

    def render(self, messages: Chat, tools: Tools = (), *, prompt: bool = True, checked: bool = True) -> str:
        """The chat as text, with ``CUT`` in control tokens that are none.

        Args:
            messages: the conversation.
            tools: for templates that describe tools.
            prompt: end with the generation prompt.
            checked: refuse messages of which the template leaves something out.

        Raises:
            UserError: the template refuses the messages, or leaves something out.
        """
        if checked and (lost := self.left_out(messages)):
            raise UserError(lost)
        chat = [self._turn(message) for message in messages]
        if self.tokenizer.chat_template is None:
            return "\n".join(plain(message["content"]) for message in chat)
        return apply_template(self.path, self.tokenizer, chat, tools, prompt=prompt)

    def refusal(self, messages: Chat, tools: Tools = ()) -> str:
        """Why messages can't be asked, found once for messages of a shape; "" if they can."""
        if tools and not re.search(r"(?<![\w.])tools(?!\w)", self._template):
            return f"the chat template of {self.path} has no place for tools; tell of them in the messages"
        shape = (*shape_of(messages), bool(tools))
        if shape not in self._refused:
            try:
                self.render(messages, tools, checked=False)
                self._refused[shape] = ""
            except UserError as error:
                self._refused[shape] = str(error)
        return self._refused[shape] or self.left_out(messages)

    def left_out(self, messages: Chat) -> str:
        """What the template leaves out of messages, and the way out; "" if it writes all of them."""
        shape = shape_of(messages)
        if shape not in self._lost:
            self._lost[shape] = left_out(self, messages)
        lost = self._lost[shape] or ("" if self.mentions("tool_call_id") else out_of_order(messages))
        return lost and (
            f"the chat template of {self.path} leaves out {lost}; write it in another way (developer as system, "
            "several messages as one, keys in the content, results of tools with environment.role=user), or give "
            "another template (model.chat_template)"
        )

    def mentions(self, key: str) -> bool:
        """Whether the template reads a key of messages."""
        return re.search(rf"""[.'"]{key}(?!\w)""", self._template) is not None

    @property
    def _template(self) -> str:
        template = self.tokenizer.chat_template
        return "\n".join(template.values()) if isinstance(template, dict) else template or ""

    def after(self, messages: Chat, tools: Tools = (), *, prompt: bool = True) -> str:
        """What the template writes after a response: its end, and further messages."""
        said = unused_character(json.dumps(messages, ensure_ascii=False))
        text = self.render(
            [{"role": "user", "content": said}, {"role": "assistant", "content": said}, *messages], tools, prompt=prompt
        )
        if said not in text:
            raise UserError(
                f"the chat template of {self.path} drops messages of the assistant; download the model again"
            )
        return text.rpartition(said)[2]

    def ids(self, text: str) -> list[int]:
        """Tokens of a text that is split at ``CUT``.

        Raises:
            UserError: the tokenizer gives up on it.
        """
        try:
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust: no Exception, and its class has no public name
                raise
            raise UserError(
                f"the tokenizer of {self.path} can't read {text[:60]!r} ({len(text)} characters): {error}; shorten it, "
                "or download the model again"
            ) from None
        cut = self.tokenizer.convert_tokens_to_ids(CUT)
        return [token for token in ids if token != cut]

    def response_ids(self, text: str) -> list[int]:
        """Tokens of a response, without its end."""
        return self.ids(self._gap + self._cut(text))

    def turn_end(self, stop: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that the template writes after a response, up to the one that ends the turn."""
        if self.tokenizer.chat_template is not None:
            ids = self.ids(self.after([], prompt=False))
            ends = {token for token, added in self.tokenizer.added_tokens_decoder.items() if added.special} | {*stop}
            for index, token in enumerate(ids):
                if token in ends:
                    return tuple(ids[: index + 1])
        eos = self.tokenizer.eos_token_id
        return (eos if eos in stop else stop[0],)

    @cached_property
    def opening(self) -> list[int]:
        """Tokens that the tokenizer puts before a text; a chat template writes them itself."""
        if self.tokenizer.chat_template is not None:
            return []
        bare = self.tokenizer("a", add_special_tokens=False).input_ids
        full: list[int] = self.tokenizer("a").input_ids
        return full[: next(start for start in range(len(full)) if full[start:][: len(bare)] == bare)]

    def _turn(self, message: dict[str, Any]) -> dict[str, Any]:
        more = {key: value for key, value in message.items() if key not in OWN}
        for key in THOUGHTS:  # under the name that the template knows
            if key in more and not self.mentions(key):
                known = next(filter(self.mentions, THOUGHTS), key)
                more[known] = more.pop(key)
        calls = message.get("tool_calls", ())
        if calls and not self._call_forms:
            said = filter(None, [plain(message["content"]), *(as_text(**call["function"]) for call in calls)])
            message, calls = {**message, "content": "\n".join(said)}, ()
        turn = {**_in_texts(more, self._cut), "role": message["role"], "content": self._content(message)}
        if calls:
            turn["tool_calls"] = [self._call_forms[0](_in_texts(call, self._cut)) for call in calls]
        return turn

    @cached_property
    def _call_forms(self) -> list[Callable[[dict[str, Any]], dict[str, Any]]]:
        """The form, at first, in which the template takes the calls of tools that it writes; none if it writes none."""
        if self.tokenizer.chat_template is None:
            return []
        content: Any = [{"type": "text", "text": "a"}] if self.reads_parts else "a"
        forms: list[Callable[[dict[str, Any]], dict[str, Any]]] = [dict, _with_text]
        name, refusing = "tool-that-nobody-has", []
        call = {"type": "function", "function": {"name": name, "arguments": {"b": "c"}}, "id": "123456789"}
        for form in forms:  # an id of Mistral's length
            said = {"role": "assistant", "content": content, "tool_calls": [form(call)]}
            try:
                written = apply_template(
                    self.path, self.tokenizer, [{"role": "user", "content": content}, said], prompt=False
                )
            except UserError:
                refusing.append(form)
                continue
            if name in written and "{'b': 'c'}" not in written:  # as Python writes an object where text is expected
                return [form]
        return refusing  # which will say why

    def _content(self, message: dict[str, Any]) -> Any:
        content = message["content"]
        if isinstance(content, str) or not self.reads_parts:
            content = [{"type": "text", "text": plain(content)}]
        if message["role"] == "tool" and not re.search(r"""['"]tool['"]""", self._template):  # it has no form for them
            content = _as_result(content)
        parts = [part | {"text": self._cut(part["text"])} if part["type"] == "text" else part for part in content]
        # some templates read the first part without checking that there is one
        return (parts or [{"type": "text", "text": ""}]) if self.reads_parts else plain(parts)

    @cached_property
    def _gap(self) -> str:
        """White space that the template writes between the generation prompt and a response (SmolVLM)."""
        if self.tokenizer.chat_template is None:
            return ""
        said = unused_character("")
        question = [{"role": "user", "content": said}]
        before = self.render(question)
        full = self.render([*question, {"role": "assistant", "content": said}], prompt=False)
        gap = full[len(before) :].partition(said)[0] if full.startswith(before) else ""
        return gap if gap.isspace() else ""

    def _cut(self, text: str) -> str:
        return self._control.sub(lambda found: found[0][0] + CUT + found[0][1:], text)

    @cached_property
    def _control(self) -> re.Pattern[str]:
        """Tokens that must not come from text: special ones, and placeholders of media."""
        added = self.tokenizer.added_tokens_decoder.values()
        control = {token.content for token in added if token.special} | {*self.placeholders}
        return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or r"(?!)")


def apply_template(
    path: Path, tokenizer: Any, chat: Sequence[dict[str, Any]], tools: Tools = (), *, prompt: bool
) -> str:
    """A chat as the tokenizer's template writes it.

    Args:
        path: the directory of the template, for messages.
        tokenizer: with a template.
        chat: the messages.
        tools: for templates that describe tools.
        prompt: end with the generation prompt.

    Raises:
        UserError: the template refuses the messages.
    """
    try:
        text = tokenizer.apply_chat_template(  # in a sandbox
            list(chat), tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt
        )
        return str(text)
    except Exception as error:  # templates raise anything for messages of a form that they don't expect
        roles = ", ".join(str(message["role"]) for message in chat)
        raise UserError(
            f"the chat template of {path} refuses messages of roles {roles}: {error}; correct the "
            "messages or the template (model.chat_template), or download the model again"
        ) from error


def read_template(path: Path, tokenizer: Any, *, vision: bool) -> Any:
    """The chat template of a directory, or several by name; None if there is none.

    For vision-language models the processor's comes first, as in transformers: a key of processor_config.json, or
    chat_template.json of older processors. For others these are read if the tokenizer has none.

    Raises:
        UserError: a file can't be read.
    """
    own = tokenizer.chat_template
    if own is not None and not vision:
        return own
    files = [path / name for name in ("processor_config.json", "chat_template.json")]
    found = [read_object(file).get("chat_template") for file in files if file.is_file()]
    return next((template for template in found if template is not None), own)


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    """A call whose arguments are JSON as text, which some templates read."""
    function = call["function"]
    return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _in_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A call of a tool with all of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_in_texts(one, change) for one in value]
    if isinstance(value, dict):
        return {change(name): _in_texts(one, change) for name, one in value.items()}
    return value


def _as_result(content: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a tool returned in the usual form, images where they are."""
    before, after = RESULT.split("{}")
    if all(part["type"] == "text" for part in content):
        return [{"type": "text", "text": before + plain(content) + after}]
    return [{"type": "text", "text": before}, *content, {"type": "text", "text": after}]


def unused_character(text: str) -> str:
    """A character of Unicode's private use area that is not in the text."""
    return next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)


def plain(content: str | Sequence[dict[str, Any]]) -> str:
    """The text of a message."""
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def shape_of(messages: Chat) -> tuple[Any, ...]:
    """Equal for conversations of which a template writes the same things."""
    return tuple(
        (
            message["role"],
            tuple((part["type"], bool(part.get("text", "x").strip())) for part in _parts(message)),
            tuple(sorted(key for key in message if key not in OWN and message[key])),
            len(message.get("tool_calls", ())),
        )
        for message in messages
    )


def left_out(chat: ChatTokenizer, messages: Chat) -> str:
    """What of a conversation of this form the template doesn't write, for messages; "" if it writes everything.

    Every text is replaced by a mark that has to be in what the template makes of it. What the model has said may be
    rewritten, and its thoughts left out by a template that knows of thoughts, as models are trained that way.
    """
    marked = [_marked(message, number) for number, message in enumerate(messages)]
    try:
        text = chat.render(marked, checked=False).replace(CUT, "")
    except UserError:
        return ""  # it refuses them itself, or refuses marks
    for number, message in enumerate(marked):
        where = f"message {number + 1} of {len(messages)}, of role {message['role']}"
        called = bool(message.get("tool_calls"))
        # what models have said is rewritten on purpose: thoughts go
        parts = _parts(message) if called or message["role"] != "assistant" else []
        for place, part in enumerate(parts):
            if part["type"] == "text" and part["text"].strip() and part["text"] not in text:
                beside = " beside its tool_calls" if called else ""
                return f"the text of {where}{beside}" if len(parts) == 1 else f"part {place + 1} of {where}"
        if message.get("name") and message["role"] != "tool" and message["name"] not in text:
            return f"the name of {where}"
        if any(message.get(key) for key in THOUGHTS) and not any(map(chat.mentions, THOUGHTS)):
            return f"the {next(key for key in THOUGHTS if message.get(key))} of {where}"
    return ""


def out_of_order(messages: Chat) -> str:
    """The first result by whose id alone one could tell what it answers; "" if results come in the calls' order."""
    waiting: list[Any] = []
    for message in messages:
        if message.get("tool_calls"):
            waiting = [call.get("id") for call in message["tool_calls"]]
        elif (own := message.get("tool_call_id")) in waiting:
            if waiting.index(own):
                return f"the tool_call_id {own!r} of a result that comes before that of an earlier call"
            waiting.pop(0)
    return ""


def _marked(message: dict[str, Any], number: int) -> dict[str, Any]:
    content = [
        part | {"text": f"said{number}x{place}x"} if part["type"] == "text" and part["text"].strip() else part
        for place, part in enumerate(_parts(message))
    ]
    more = {"name": f"name{number}x"} if message.get("name") and message["role"] != "tool" else {}
    more |= {key: f"thought{number}x" for key in THOUGHTS if message.get(key)}
    return {**message, **more, "content": content}


def _parts(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def check_messages(reader: Callable[[], LanguageModel], prompts: Sequence[Prompt], tools: LabelledTools) -> None:
    """Refuse conversations that the chat template refuses, or of which it leaves something out.

    Args:
        reader: the model or its outline, asked only where messages are other than a question and a system message.
        prompts: all of them.
        tools: JSON schemas of functions that they tell of.

    Raises:
        UserError: with the first such prompts.
    """
    unusual = [prompt for prompt in prompts if prompt.tools or not _is_usual(prompt.messages)]
    unusual = list({(prompt.where, prompt.uid): prompt for prompt in unusual}.values())
    problems = [
        (prompt.name, why)
        for prompt in unusual
        if (why := reader().chat.refusal(prompt.chat(), prompt.told(tools) if prompt.tools else ()))
    ]
    if problems:
        count = len({(prompt.where, prompt.uid) for prompt in prompts})
        head = f"{len(problems)} of {count} conversations can't be asked: {problems[0][1]}"
        raise data_error([name for name, _ in problems], head)


def _is_usual(messages: Sequence[Message]) -> bool:
    """Whether a template's answer to the first conversation like it is told soon enough, for all of them."""
    roles = [message.role for message in messages]
    return roles in ([], ["user"], ["system", "user"]) and not any(
        message.more or sum(part.kind == "text" for part in message.parts) > 1 for message in messages
    )
