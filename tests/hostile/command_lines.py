"""Command lines that nobody meant, and signals at any moment of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.bench import Case, Expect, Place

# {drawing}, {seeing}: recipes; {run}, {answers}: finished runs; {model}: a pipeline; {place}: where all of it is
STANDS = {
    "{long}": "x" * 100_000, "{esc}": "\x1b", "{bell}": "\x07", "{half}": "\udce4", "{lines}": "a\n" * 12,
    "{deep}": "[" * 5000 + "]" * 5000, "{dots}": ".".join(["a"] * 3000), "{nines}": "9" * 1000,
    "{question}": "What? " * 200, "{hundred}": ",".join(map(str, range(1, 101))),
    "{forty}": " ".join(f"option{number}={number}" for number in range(40)),
}  # fmt: skip
# how commands begin, and each of their ends
REFUSED = r"""
 | trian | {esc}[31mtrain | обучить | {long} | '' | --verbose | serve-reward | train '' | train {long}
 | train /dev/null | train '{esc}]0;title{bell}.yaml' | train {lines}.yaml | train {half}.yaml | eval runs/nothing
 | eval {model} | push | push {run} | report | report {run} steps=3 | doctor x
board | no_such_folder | . --port 99999
serve-reward | ocr --port 99999 | ocr --host 192.0.2.1 | /dev/null | ocr ocr.wight=1
train {drawing} | ..=3 | ste{esc}[31mps=3 | шаги=3 | output_dir={half} | {long}=3 | steps={long} | {dots}=3
train {drawing} | steps={deep} | 'steps={a: &a [x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a]}'
train {drawing} | model.path={long} | 'model.path="a\0b"' | model.path=/dev/zero | 'model.path="\e[31m"'
train {drawing} | data.train_files=/dev/zero | output_dir=/dev/null | resume={place}/prompts.txt | resume={place}
train {drawing} | resume={answers}/checkpoints/00000002 | rewards.brightness.path=nothing:nobody
train {drawing} | rewards.brightness.path=rewards.py | rewards.brightness.path=..x:y
train {drawing} | 'rewards.brightness.path="\0:x"' | rewards.brightness.path={long}.py:x
train {drawing} | rewards.brightness.path={place}:x | 'rewards.brightness.arguments={x: 1}' | --sweep | --sweep seed=1
train {drawing} | --sweep seed=1,,2 | --sweep sed=1,2 | --sweep output_dir=a,b | --sweep seed={long},{long}y
train {drawing} | --sweep seed={hundred} steps={hundred} rollout.n={hundred} | {forty}
train {seeing} | data.train_files=[]
eval {run} | steps=100 | validation.m=3 | -o {place}/prompts.txt | -o /proc/x | --suite genevil
eval {run} | --suite {run}/config.yaml | --suite vlm_quickstart | --suite quickstart --shard 3/2 -o out
eval {run} | --suite quickstart --shard 1/2 | --suite quickstart validation.height=8
eval {run} | --suite quickstart suite.steps=8 | --steps 3
eval {model}+{place} | --suite quickstart
eval --merge | a --compare b c
eval --compare | {run} {run}
sample {run} | '' | 'a cat' -n 0 | 'a cat' -n 1000000000000 | 'a cat' -n ² | 'a cat' --steps 100000000
sample {run} | 'a cat' --guidance 1e300 | 'a cat' --height 100000000 | 'a cat' --seed {nines} | -p nothing.txt
sample {run} | -p /dev/zero | 'a cat' -o {place}/prompts.txt | 'a cat' -i {place}/pictures/0.png
sample {answers} | 'What?' -i nothing.png | 'What?' -i {place}/prompts.txt | 'What?' -i /dev/zero | 'What?' -i {place}
sample {answers} | 'What?' --steps 3
export {run} | -o {place} | -o {place}/prompts.txt | -o out --format gguf
export {answers} | -o out --format lora
push {run} | --to ../../x | --to me/{esc}[31mx | --to me/x --dry-run -o {place}
completion | zsh -- train nothing rollout. | tcsh
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
