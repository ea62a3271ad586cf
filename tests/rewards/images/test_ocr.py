import numpy as np
import pytest

from burnish.registry import lookup
from burnish.rewards.images.ocr import similarity, wanted
from burnish.types.prompt import Prompt
from tests.conformance import case
from tests.support.drawing import line, noise, scene

NUMBERS = ["472", "010", "950", "407", "186", "333"]


def ask(*answers: str) -> list[Prompt]:
    return [Prompt(text=f"the number {answer}", answer=answer) for answer in answers]


def ocr(**options):
    return lookup("flow reward", "ocr")(**options)


def test_scores_are_those_of_the_published_task():
    published = case("rewards", "reward/ocr_levenshtein")
    pairs = published.inputs["pairs(text,gt)"]
    assert len(pairs) == 8
    published.close([similarity(*pair, substring=True) for pair in pairs], published.expected["scores"])


def test_by_default_what_is_written_beside_the_answer_costs():
    assert similarity("472", "472", substring=False) == 1
    assert similarity("4720", "472", substring=False) == pytest.approx(2 / 3)
    assert similarity("4720", "472", substring=True) == 1
    assert similarity("471472473", "472", substring=False) == 0


def test_it_reads_what_is_drawn():
    verdicts = ocr().score([line(number) for number in NUMBERS], ask(*NUMBERS))
    assert [verdict.note for verdict in verdicts] == NUMBERS
    assert [(verdict.value, verdict.extras) for verdict in verdicts] == [(1.0, (1.0,))] * len(NUMBERS)


def test_another_number_is_worth_less_and_junk_nothing():
    near, far = ocr().score([line("473"), line("985")], ask("472", "472"))
    assert (near.value, near.extras) == (pytest.approx(2 / 3), (0.0,))
    assert far.value == 0
    blank = np.full((16, 32, 3), 255, dtype=np.uint8)
    junk = ocr().score([blank, *(noise(seed) for seed in range(4))], ask(*["472"] * 5))
    assert [verdict.value for verdict in junk] == [0.0] * 5
    assert junk[0].note == ""


def test_a_text_does_not_depend_on_the_batch():
    """Blurred digits, at the edge of what can be read, in batches of every size and order."""
    fuzzy = [line(str(100 + 37 * i)) // 2 + noise(i) // 2 for i in range(9)]
    sizes = [line("472", 48, 16), line("186", 32, 32), line("95", 20, 20)]
    images = [fuzzy[0], sizes[0], *fuzzy[1:5], sizes[1], *fuzzy[5:], sizes[2]]
    prompts = ask(*["472"] * len(images))
    reader = ocr()
    together = reader.score(images, prompts)
    assert len({verdict.note for verdict in together}) > 4
    assert [reader.score([image], [prompts[0]])[0] for image in images] == together
    assert reader.score(images[::-1], prompts)[::-1] == together
    assert reader.score(images[:5], prompts[:5]) + reader.score(images[5:], prompts[5:]) == together


def test_the_models_last_bits_do_not_depend_on_the_batch(monkeypatch):
    from burnish.rewards.images import ocr as module

    session, characters = module.recogniser(1)
    seen = []

    class Spy:
        def get_inputs(self):
            return session.get_inputs()

        def run(self, names, inputs):
            seen.append(session.run(names, inputs)[0])
            return seen[-1:]

    monkeypatch.setattr(module, "recogniser", lambda threads: (Spy(), characters))
    images = [line(number) // 2 + noise(i) // 2 for i, number in enumerate(NUMBERS)]
    module._read(images, 1)
    together = np.concatenate(seen)[: len(images)]
    for i, image in enumerate(images):
        seen.clear()
        module._read([image], 1)
        np.testing.assert_array_equal(seen[0][0], together[i])


def test_odd_shapes_are_read_too():
    shapes = [(1, 1), (200, 2), (2, 200), (64, 64)]
    verdicts = ocr().score([np.zeros((*shape, 3), np.uint8) for shape in shapes], ask(*["472"] * 4))
    assert [verdict.value for verdict in verdicts] == [0.0] * 4


def test_with_detection_it_finds_text_in_a_scene():
    images = [scene("OPEN"), np.full((64, 64, 3), 128, dtype=np.uint8)]
    found, empty = ocr(detect=True).score(images, ask("open", "open"))
    assert (found.value, found.extras, found.note) == (1.0, (1.0,), "OPEN")
    assert (empty.value, empty.note) == (0.0, "")


def test_the_answer_may_stand_in_quotes():
    assert wanted(Prompt(text='a sign that says "New York" and "no"')) == "New York"
    assert wanted(Prompt(text='a sign that says "New York"', answer="Paris")) == "Paris"
    assert wanted(Prompt(text="a sign")) is None
    (verdict,) = ocr().score([line("472")], [Prompt(text='a sign with "472" on it')])
    assert verdict.value == 1


def test_a_prompt_without_an_answer_is_refused_before_the_run_and_missing_in_it():
    prompts = [*ask("472"), Prompt(text="a sign")]
    with pytest.raises(ValueError, match=r"'a sign'.*answer"):
        ocr().check(prompts)
    ocr().check(prompts[:1])
    good, bad = ocr().score([line("472")] * 2, prompts)
    assert good.value == 1
    assert bad.value is None
    assert "a sign" in bad.note
