"""Calls of tools and their schemas, as records have them."""

from __future__ import annotations

import pytest

from burnish.types.tool_calls import read_calls, read_tools


def test_half_of_a_surrogate_pair_is_refused_by_what_has_it():
    with pytest.raises(ValueError, match=r"has a tool call .* which no template could write"):
        read_calls([{"id": "a\ud800", "function": {"name": "look"}}])
    with pytest.raises(ValueError, match="'tools' has a schema that can't be written"):
        read_tools([{"name": "look", "description": "a\ud800"}])
