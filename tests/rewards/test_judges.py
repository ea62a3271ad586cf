"""Models as judges, behind an address and in this process: what is asked, what is read, and what has no value."""

import base64
import io
import json
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.rewards.judges.forms import Question, spellings
from burnish.rewards.judges.rewards import spelt_of
from burnish.rewards.text.base import Response
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.types.samples import Clip
from tests.support.asked import flow_reward, reward
from tests.support.http_servers import images_of, json_server, listing, question_of, writing
from tests.support.language_samples import folder_of, model_of, theirs_of
from tests.support.scoring import evaluated

ASKED = [["How many cats?", 2], ["Is it red?", "Yes"], ["What is it?", "cat"]]  # GenEval2's questions
CAT = Prompt(text="a cat", record=json.dumps({"vqa_list": ASKED}))
SHARES = {"Yes": 0.7, "No": 0.2, " yes": 0.04, "Maybe": 0.01}
# of a server's tokens what forms make: where one that is not listed may be likely, nothing
TABLE = json.loads(Path(__file__).with_name("judge_replies.json").read_text())
NUMBERS = count()  # what is known of a server is known by its address, and a port may be given again


def noise_image(seed: int, side: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


SEEN = Prompt(
    text="<image>2+2?", messages=(Message("user", (Part("image"), Part("text", "2+2?"))),),
    images=(Media.array(noise_image(7)),),
)  # fmt: skip


EDIT = Prompt(text="a cat", images=SEEN.images)


def of_png(address: str) -> np.ndarray:
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def endpoint(kind=flow_reward, **options):
    return kind("judge_endpoint", **{"model": "m", "deadline": 20.0, "retries": 2} | options)


def judged(one, samples, prompt=CAT):
    one.check([prompt])
    shown = list(samples)
    return one(shown, [prompt] * len(shown))


def values(scores) -> list[float | None]:
    return [score.value for score in scores]


def asked(server, *samples, prompt=CAT, **options):
    return judged(endpoint(url=server.url, **options), samples, prompt)


@contextmanager
def answering(reply):
    """A server whose address no other test knows."""
    with json_server(reply if callable(reply) else lambda request, count: (200, reply)) as server:
        server.url += f"/{next(NUMBERS)}/v1"
        yield server


def test_what_is_sent_to_a_server_and_what_is_read():
    with answering(listing(SHARES)) as server:
        (score,) = asked(server, noise_image(0), form="yes")
        (request,) = server.got
    assert score.value == pytest.approx(0.74)
    assert {name: request[name] for name in ("model", "temperature", "max_tokens", "logprobs", "top_logprobs")} == {
        "model": "m", "temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20,
    }  # fmt: skip
    assert question_of(request) == 'Does this image show "a cat"? Answer Yes or No.'
    assert (of_png(*images_of(request)) == noise_image(0)).all()


@pytest.mark.parametrize(("form", "shares", "value"), TABLE["shares"])
def test_a_token_that_is_not_listed_counts_as_zero_only_where_it_can_t_be_likely(form, shares, value):
    with answering(listing(shares)) as server:
        (score,) = asked(server, noise_image(0), form=form)
    assert score.value == (None if value is None else pytest.approx(value))
    assert value is not None or "something else" in score.note or "may be as likely" in score.note
    assert form != "soft_tifa_am" or score.note == "AM 0.283, GM 0.282 (2 0.300, Yes 0.300, cat 0.250)"


def test_what_a_server_writes_is_read_by_the_form_and_one_that_was_cut_says_so(tmp_path):
    (tmp_path / "question.txt").write_text("How good is {prompt}?")
    form = {"form": "unified_reward", "question_file": str(tmp_path / "question.txt")}
    replies = iter([writing("Final Score: 4"), writing("Final Sc", reason="length")])
    with answering(lambda request, count: (200, next(replies))) as server:
        (good,), (cut,) = (asked(server, noise_image(seed), **form) for seed in range(2))
        assert (server.got[0]["max_tokens"], question_of(server.got[0])) == (2048, "How good is a cat?")
    assert (good.value, good.note) == (0.8, "4")
    assert (cut.value, "it was cut: raise max_new_tokens" in cut.note) == (None, True)


def test_nothing_is_asked_twice_and_what_differs_is():
    with answering(listing(SHARES)) as server:
        first = asked(server, noise_image(0), noise_image(1), noise_image(0), form="yes")
        again = asked(server, noise_image(1), form="yes_no")  # the same list of tokens, read otherwise
        assert len(server.got) == 2
        assert values([*first, *again]) == pytest.approx([0.74] * 3 + [0.74 / 0.94])
        asked(server, noise_image(0), form="yes", model="other")
        asked(server, noise_image(0), form="yes", extra={"seed": 3, "logprobs": None})
        assert len(server.got) == 4
    assert (server.got[-1]["seed"], "logprobs" in server.got[-1]) == (3, False)


def test_a_busy_server_is_asked_again_and_one_that_is_slow_or_refuses_is_not():
    busy = [(503, {}), (429, {}), (200, listing(SHARES))]
    with answering(lambda request, count: busy[count - 1]) as server:
        assert values(asked(server, noise_image(0), form="yes")) == pytest.approx([0.74])
    with answering(lambda request, count: (400, {"error": "no such model"})) as server:
        (score,) = asked(server, noise_image(0))
        assert (score.value, "no such model" in score.fault, len(server.got)) == (None, True, 1)
    with answering(lambda request, count: time.sleep(60) or (200, {})) as server:
        assert values(asked(server, *map(noise_image, range(4)), deadline=0.3)) == [None] * 4


@pytest.mark.parametrize(("reply", "why"), [
    ({}, "no choices"), (writing("Yes"), "no logprobs"), (writing(None, refusal="I won't"), "refused: I won't"),
])  # fmt: skip
def test_a_reply_that_is_none_is_missing_with_its_reason(reply, why):
    with answering(reply) as server:
        for _ in range(2):
            (score,) = asked(server, noise_image(0), form="yes")
            assert (score.value, why in score.note) == (None, True)
            assert bool(score.fault) == ("refused" not in why)
        assert len(server.got) == 2  # nothing of the kind is kept


def test_pairs_of_a_group_are_sent_both_ways_around_so_that_what_a_place_gets_cancels():
    def reply(request, count):
        bright = [of_png(one).mean() / 255 for one in images_of(request)]
        if 0 in bright:
            return 200, writing("", reason="content_filter")
        first = min(0.9, max(0.05, 0.6 + bright[0] - bright[1]))  # what stands first gets 0.1 more
        return 200, listing({"1": first, "2": 0.95 - first, "x": 1e-4})

    def compared(*levels, **options):
        images = [np.full((4, 4, 3), level, np.uint8) for level in levels]
        return asked(server, *images, form="pair", **options)

    with answering(reply) as server:
        three = compared(100, 110, 120)
        assert len(server.got) == 6
        lost, alone = compared(100, 0), compared(100)
    first, second, third = values(three)
    assert first < 0.49 < second < 0.51 < third
    assert first + second + third == pytest.approx(1.5)
    assert "what stood first got 0.6" in three[1].note
    assert values([*lost, *alone]) == [None] * 3  # for both, and never a loss


def test_a_store_keeps_replies_for_the_processes_of_a_run_and_later_ones(files, tmp_path):
    options = {"form": "yes", "store": str(tmp_path / "judge.sqlite")}
    with answering(listing(SHARES)) as server:
        first = asked(server, *map(noise_image, range(3)), **options)
        again = asked(server, *map(noise_image, range(4)), **options)
        assert (values([*first, *again]), len(server.got)) == (pytest.approx([0.74] * 7), 4)
        judge = {"name": "judge_endpoint", "url": server.url, "model": "m", **options}
        records = [{"prompt": f"No. {number}"} for number in range(4)]
        for _ in range(2):
            rows, _ = evaluated(files, {"judge": judge}, records, "scoring.processes=2", "rollout.batch_size=2")
            assert None not in [row["reward"] for row in rows]
        assert len(server.got) == 8
        (tmp_path / "other").write_bytes(b"no database" * 100)
        with pytest.raises(ValueError, match="can't keep replies"):
            endpoint(url=server.url, store=str(tmp_path / "other")).check([CAT])


def test_clips_are_shown_by_frames_edits_after_what_they_begin_from_and_responses_with_their_images():
    clip = Clip(frames=np.stack([noise_image(i) for i in range(9)]), fps=8.0)
    with answering(listing(SHARES)) as server:
        asked(server, noise_image(1), prompt=EDIT)
        asked(server, noise_image(1))
        asked(server, clip)
        asked(server, clip, frames={"count": 2})
        shown = [images_of(request) for request in server.got]
        assert [len(one) for one in shown] == [2, 1, 8, 1, 1]
        assert shown[0][1] == shown[1][0] != shown[0][0]
        judged(endpoint(reward, url=server.url, media="leave_out"), [Response("4")], SEEN)
        chat = Prompt(text="b", messages=tuple(Message(who, (Part("text", who),)) for who in ("system", "user")))
        judged(endpoint(reward, url=server.url), [Response("4")], chat)
        assert (images_of(server.got[5]), "system: system\nuser: user" in question_of(server.got[6])) == ([], True)
        del server.got[5:]
        judged(endpoint(reward, url=server.url), [Response("4 {prompt}")], SEEN)
        assert "Response: 4 {prompt}" in question_of(server.got[5])
        assert len(images_of(server.got[5])) == 1


# as published judges write their scores, by form
READ = TABLE["read"]
NONSENSE = [
    "", "I'm sorry, but I can't help with that.", "{" * 20_000, '{"a":' * 5_000, "Final Score:" + " " * 200_000,
    "Style Score" + "\t" * 200_000, "<answer>" * 50_000, "\n" * 200_000, "## Score: " * 20_000,
]  # fmt: skip


def test_a_score_is_read_as_published_judges_write_it_or_has_no_value():
    from burnish.rewards.judges.forms import PARSERS, by_pattern, parsed

    for form, text, value in READ:
        found = parsed(PARSERS[form], text)
        assert found.value == (None if value is None else pytest.approx(value)), (form, text)
        assert found.note
    read = by_pattern(r"Verdict: ([\w.]+)", {"good": 0.75})
    told = ("Verdict: poor? Verdict: good", "Verdict: 3.5", "Verdict: poor", "Verdict: inf", "none")
    assert [parsed(read, text).value for text in told] == [0.75, 3.5, None, None, None]
    assert "'poor'" in parsed(read, told[2]).note
    for form in {form for form, _, _ in READ}:
        for text in NONSENSE:
            found = parsed(PARSERS[form], text)
            assert (found.value, "can't be read" in found.note) == (None, True), (form, text[:20])


def test_of_an_answer_of_geneval_2_the_first_token_counts_and_twice_where_two_spellings_share_it():
    model = model_of("llama")
    question = Question(answers=(spellings("How many?", "12"), spellings("Is it?", "No "), spellings("What?", "Cat")))
    for first, ids in ((True, slice(0, 1)), (False, slice(None))):
        found = spelt_of(model, replace(question, first=first))
        spelt = [["twelve", "Twelve", " twelve", " Twelve", "12", " 12"], ["No", "no", " No", " no"],
                 ["Cat", "Cat", " Cat", " Cat"]]  # fmt: skip
        own = [[model.response_ids(text)[: -len(model.end)][ids] for text in one] for one in spelt]
        assert found == [one if first else [*map(list, dict.fromkeys(map(tuple, one)))] for one in own]


def said(*texts, prompt=CAT, family="llama", **options):
    one = reward("judge", path=str(folder_of(family)), **options)
    return judged(one, [Response(text) for text in texts], prompt)


def by_transformers(question: str, answers):
    """Probabilities of answers, of several tokens each, by transformers alone."""
    model, network = model_of("llama"), theirs_of("llama")
    prompt, shares = model.encode([{"role": "user", "content": [{"type": "text", "text": question}]}]).ids[0], {}
    for answer in answers:
        ids = torch.tensor(model.response_ids(answer)[: -len(model.end)])
        with torch.no_grad():
            logits = network(input_ids=torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
        logits[:, model.banned] = -torch.inf
        shares[answer] = float(logits.log_softmax(-1).gather(1, ids[:, None]).sum().exp())
    return shares


@pytest.mark.parametrize("normalise", [True, False])
def test_a_score_is_the_worth_of_answers_by_their_probabilities(tmp_path, normalise):
    file, prompt = tmp_path / "question.txt", Prompt(text="Who?", answer="I")
    file.write_text("{prompt} / {response} / {answer}?")
    worth, texts = {"A": 1.0, "Bc": 0.5, "0": -1.0}, ["I do", "not me, but you", "{answer}"]
    options = {"answers": worth, "normalise": normalise, "least": 0.0}
    found = said(*texts, prompt=prompt, question_file=str(file), batch_size=2, **options)
    for text, score in zip(texts, found, strict=True):
        # what is in a response is no place to fill
        shares = by_transformers(f"Who? / {text} / I?", worth)
        value = sum(shares[one] * worth[one] for one in worth) / (sum(shares.values()) if normalise else 1)
        assert score.value == pytest.approx(value, rel=1e-4)


def test_it_sees_images_and_what_it_does_not_say_or_read_is_missing():
    other = Prompt(text=SEEN.text, messages=SEEN.messages, images=(Media.array(noise_image(8)),))
    found = [said("red", family="qwen2_5_vl", prompt=one, least=0.0)[0].value for one in (SEEN, other, SEEN)]
    assert found[0] == found[2] != found[1]
    with pytest.raises(ValueError, match="can't see the images"):
        said("red", prompt=SEEN)
    assert values(said("a", pattern="(Q?)", max_new_tokens=4)) == values(said("a", form="pair")) == [None]
    (unsure,) = said("I do", least=0.9)
    assert (unsure.value, "something else than Yes, No" in unsure.note) == (None, True)
    assert [one.value is None for one in said("x" * 50, "x", max_length=120, least=0.0)] == [True, False]


@pytest.mark.parametrize(("judge", "options", "why"), TABLE["refused"])
def test_what_can_t_judge_is_refused_before_anything_is_asked(tmp_path, monkeypatch, judge, options, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("Is it?")
    (tmp_path / "answered.txt").write_text("Is it {answer}?")
    made = {"response": reward, "image": flow_reward, "endpoint": endpoint}[judge]
    own = {"url": "http://127.0.0.1:9"} if made is endpoint else {"name": "judge", "path": str(folder_of("llama"))}
    with pytest.raises(ValueError, match=why):
        made(**own | options).check([CAT])
