"""Command lines that nobody meant, and signals at any moment of a run."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.bench import Case, Expect, Place

# {drawing}, {seeing}: recipes; {run}, {answers}: finished runs; {model}: a pipeline; {place}: where all of it is
STANDS = {
    "{long}": "x" * 100_000, "{esc}": "\x1b", "{bell}": "\x07", "{half}": "\udce4", "{lines}": "a\n" * 12,
    "{deep}": "[" * 5000 + "]" * 5000, "{nines}": "9" * 1000,
    "{question}": "What? " * 200,
    "{forty}": " ".join(f"option{number}={number}" for number in range(40)),
}  # fmt: skip
# how commands begin, and each of their ends
REFUSED = r"""
 | trian | {esc}[31mtrain | обучить | {long} | '' | train '' | train {long} | train /dev/null | train {half}.yaml
 | train '{esc}]0;title{bell}.yaml' | train {lines}.yaml | eval {model} | push {run} | report {run} steps=3
train {drawing} | ..=3 | ste{esc}[31mps=3 | шаги=3 | output_dir={half} | {long}=3 | steps={long}
train {drawing} | steps={deep} | 'steps={a: &a [x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a]}'
train {drawing} | 'model.path="a\0b"' | model.path=/dev/zero | data.train_files=/dev/zero | output_dir=/dev/null
train {drawing} | resume={answers}/checkpoints/00000002 | rewards.brightness.path={long}.py:x | {forty}
eval {run} | -o {place}/prompts.txt | -o /proc/x | --suite {run}/config.yaml
sample {run} | 'a cat' -n 1000000000000 | 'a cat' -n ² | 'a cat' --guidance 1e300 | 'a cat' --seed {nines}
sample {run} | -p /dev/zero | 'a cat' -o {place}/prompts.txt | 'a cat' --height 100000000
sample {answers} | 'What?' -i {place}/prompts.txt | 'What?' -i /dev/zero
export {run} | -o {place} | -o {place}/prompts.txt
push {run} | --to ../../x | --to me/{esc}[31mx | --to me/x --dry-run -o {place}
"""
WORKS = r"""
 | config {drawing} seed=12345 | eval {run}/checkpoints/00000002 | eval {drawing}
sample {run} | {esc}[31mcat{bell} -n 1 -o out | قطة -n 1 -o out | 'a cat' -n ٣ -o out
sample {answers} | '{esc}[31mWhat?{bell}' -n 1 -o out | '[red]What?[/red][/nothing]' -n 1 -o out
sample {answers} | 'ما هذا؟ 👩‍👩‍👧‍👦' -n 1 -o out | {question} -n 1 -o out
train {drawing} | 'output_dir="a b/ä\t[red]$(x)"' | 'output_dir="\e[31mrun"'
completion | fish -- export {long} | bash -- "burnish train '"
"""


def cases() -> Iterator[Case]:
    for expect, text in (("refused", REFUSED), ("works", WORKS)):
        for start, *rests in (line.split(" | ") for line in text.strip("\n").splitlines()):
            for line in (f"{start} {rest}".strip() for rest in rests):
                yield _case(line, expect)
                if not line.isascii():  # also where the terminal can show ASCII alone
                    yield _case(line, expect, (("PYTHONIOENCODING", "ascii"),))


def _case(line: str, expect: Expect, environment: tuple[tuple[str, str], ...] = ()) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        stands = STANDS | {
            "{drawing}": str(place.recipe("drawing")), "{seeing}": str(place.recipe("seeing")),
            "{run}": str(place.run("drawing")), "{answers}": str(place.run("seeing")),
            "{model}": str(place.folder / "pipeline"), "{place}": str(place.folder),
        }  # fmt: skip
        given = shlex.split(line.replace("{forty}", STANDS["{forty}"]))
        for stand, meaning in stands.items():
            given = [word.replace(stand, meaning) for word in given]
        return given

    name = f"{line}, on an old terminal" if environment else line
    return Case(kind="command lines", name=name, make=make, expect=expect, environment=environment)
