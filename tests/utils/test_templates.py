"""Chat templates from anywhere are filled in within bounds, and as transformers fills them in."""

import os
import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from burnish.utils import templates
from burnish.utils.templates import TemplateRefused, filled

CHAT = [
    {"role": "user", "content": "a <b> é\n", "name": None},
    {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "image"}], "thinking": "d"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"of": [1, 2.5, None, True]}}}]
TEMPLATE = """
{%- set seen = namespace(roles=[]) %}{% for message in messages %}
  {% generation %}{{ bos_token }}{{ message.role }}{% endgeneration %}
  {% if message.role == 'assistant' %}{{ message.reasoning_content }}{% break %}{% endif %}
{{ message | tojson(indent=2) }} {{ tools | tojson }}
{% set seen.roles = seen.roles + [message.role] %}
{% endfor %}
{{ seen.roles | join(',') }}{% if add_generation_prompt %}{{ strftime_now('%Y') }}{% endif %}
"""


def values(tools=None):
    return {"messages": CHAT, "tools": tools, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_template_is_filled_in_as_by_transformers(tools):
    chat = [{name: one for name, one in message.items() if one is not None} for message in CHAT]
    theirs, _ = render_jinja_template(
        [chat], tools=tools, chat_template=TEMPLATE, add_generation_prompt=True, bos_token="<s>"
    )
    assert filled(TEMPLATE, values(tools)) == theirs[0]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for", "unexpected end of template|unexpected 'end of template'"),
        ("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}", "RecursionError"),
        ("{{ 'a'.center(10 ** 12) }}", "needs more than 1 GiB"),
        ("{{ 'a' * 20000000 }}", "writes 20000000 characters"),
        ("{% set n = namespace(_x=1) %}", "begins with an underscore"),
        ("{{ messages.append.__self__.__class__.__base__.__subclasses__() }}", "unsafe|undefined"),
    ],
)
def test_a_template_that_does_harm_is_refused(template, said):
    with pytest.raises(TemplateRefused, match=said):
        filled(template, values())
    assert filled("{{ messages[0].role }}", values()) == "user"


def test_a_template_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    with pytest.raises(TemplateRefused, match=r"more than 0\.5 seconds"):
        filled("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", values())


def test_a_fork_has_a_process_of_its_own():
    assert filled("a", values()) == "a"
    child = os.fork()
    if child == 0:
        text = ""
        try:
            text = filled("b", values())
            templates.close()
        finally:
            os._exit(int(text != "b"))
    start = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert time.monotonic() - start < templates.SECONDS
    assert filled("c", values()) == "c"


def test_a_chat_that_comes_again_is_not_filled_in_again(monkeypatch):
    asked = {"messages": [{"role": "user", "content": "again?"}]}
    once = templates.filled("{{ messages[0].content }}!", asked)
    monkeypatch.setattr(templates._OURS, "server", lambda: pytest.fail("it was asked again"))
    assert templates.filled("{{ messages[0].content }}!", asked) == once == "again?!"


def test_a_template_that_tells_the_time_is_asked_each_time():
    asked = {"messages": []}
    texts = {templates.filled("{{ strftime_now('%f') }}", asked) for _ in range(20)}
    assert len(texts) > 1
