"""One plain notation for what people write in many: LaTeX, typographic signs, Markdown."""

from __future__ import annotations

import re

_SIGNS = str.maketrans({
    "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "∙": "*", "÷": "/", "∕": "/", "²": "^2", "³": "^3", "π": " pi ",
    "∞": " inf ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "：": ":", "，": ",", "％": "%", "°": " deg ",
    "½": " 1/2 ", "¼": " 1/4 ", "¾": " 3/4 ", "⅓": " 1/3 ", "⅔": " 2/3 ",
})  # fmt: skip
_COMMANDS = {
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "pm": "±", "pi": " pi ", "infty": " inf ", "cup": "∪",
    "circ": " deg ", "degree": " deg ", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "lt": "<", "gt": ">", "ne": "≠",
    "neq": "≠", "approx": "≈", "colon": ":", "dfrac": " frac", "tfrac": " frac", "cfrac": " frac", "frac": " frac",
    "sqrt": " sqrt", "quad": " ", "qquad": " ", "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "",
    "displaystyle": "", "euro": "€", "pounds": "£", "implies": " ", "therefore": " ", "lbrace": "⟨", "rbrace": "⟩",
}  # fmt: skip
_WORDS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|textrm|mathsf)\s*\{([^{}]*)\}")


def tidy(text: str) -> str:
    """An answer in signs that a parser knows: no dollar signs around it, no layout, one sign for each meaning."""
    text = re.sub(r"(?<=\d)(?:\\[,!]|\{,\})+(?=\d{3}(?!\d))", ",", text.replace(",\\!", "{,}"))
    text = _layout(text).translate(_SIGNS)
    text = re.sub(r"√\s*", " sqrt ", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda found: _COMMANDS.get(found[1], found[0]), text)
    text = re.sub(r"\^\s*(?:\{\s*deg\s*\}|deg)", " deg ", text)
    text = re.sub(r"\bdeg\s+([CF])\b", r"deg\1", text)
    text = re.sub(r"frac\s*(\d)\s*(\d)", r"frac{\1}{\2}", text)
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=\d)", "*", text.replace("**", "^"))
    text = re.sub(r"(?<![\d.])0*(\d{1,3}(?: \d{3})+)(?![ \d])", lambda found: found[1].replace(" ", ","), text)
    return re.sub(r"\b([ap])\.?\s?m\b\.?", r"\1m", text, flags=re.IGNORECASE).strip()


def _layout(text: str) -> str:
    """Without what only says how a text is set."""
    text = re.sub(r"^(\*\*|__|`+|\*)(.*)\1$", r"\2", text.strip())
    text = text.replace("\\{", "⟨").replace("\\}", "⟩").replace("\\%", "%")
    text = re.sub(r"\\[()\[\]]|\\[,;:! ]|~", " ", text)
    while (inner := _WORDS.sub(r" \1 ", text)) != text:
        text = inner
    priced = text.replace("\\$", "＄")
    if priced.count("$") != 1:  # one alone is a price, more of them stand around formulas
        priced = priced.replace("$", " ")
    return priced.replace("＄", "$")
