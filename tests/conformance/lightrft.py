"""LightRFT's cases, as tests go through them."""

import pytest

from tests.conformance import cases


def every(*prefixes: str) -> pytest.MarkDecorator:
    """One test per case; ``test_complete.py`` reads where this stands, so that no case is forgotten."""
    return pytest.mark.parametrize("c", cases("lightrft", *prefixes), ids=lambda c: c.id)
