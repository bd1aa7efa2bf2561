"""Made documents: fixed, solvable, and not repeated."""

import re

import pytest

from gridlaw.modules.data.generators import ANSWERS, documents, made_words, num_characters, resolve
from gridlaw.modules.errors import BadSetting


def test_needle_documents_answer_themselves() -> None:
    identity = resolve("needle", {"documents": 50, "words": 40, "questions": 2}, field="f")
    made = list(documents(identity))
    assert made == list(documents(identity))
    assert len(set(made)) == 50
    for text in made:
        said = re.findall(r"\nThe key of (\w+) is (\w+)\.\n", text)
        assert len(said) == 4
        assert len(set(said)) == 2
        assert sorted(said[:2]) == sorted(said[2:])


def test_mqar_queries_repeat_pairs() -> None:
    identity = resolve("mqar", {"documents": 20, "pairs": 5, "questions": 7}, field="f")
    for text in documents(identity):
        lines = re.findall(r"\n (\w+) (\w)", text)
        pairs, asked = lines[:5], lines[5:]
        assert len(dict(pairs)) == len({value for _, value in pairs}) == 5
        assert len(asked) == 7
        assert set(asked) <= set(pairs)


def test_letters_stand_densely_and_repeat_their_pairs() -> None:
    identity = resolve("mqar", {"documents": 20, "pairs": 5, "questions": 7, "keys": "letters"}, field="f")
    for text in documents(identity):
        pairs = re.findall(r"[a-z][A-Z0-9]", text)
        assert "".join(pairs) == text and len(pairs) == 12
        assert len(dict(pairs[:5])) == 5
        assert set(pairs[5:]) <= set(pairs[:5])


def test_a_setting_that_came_later_leaves_older_data_alone() -> None:
    older = {"kind": "generate", "name": "mqar", "version": 1, "documents": 9, "pairs": 8, "questions": 8, "seed": 0}
    assert resolve("mqar", {"documents": 9}, field="f") == older
    assert resolve("mqar", {"documents": 9, "keys": "words"}, field="f") == older
    assert resolve("mqar", {"documents": 9, "keys": "letters"}, field="f") != older


def test_a_repeated_segment_is_repeated() -> None:
    identity = resolve("repeat", {"documents": 50, "shortest": 3, "longest": 9, "characters": 40}, field="f")
    made = list(documents(identity))
    assert len(set(made)) == 50
    periods = []
    for text in made:
        assert len(text) == 40
        periods.append(next(p for p in range(1, 40) if all(text[i] == text[i - p] for i in range(p, 40))))
    assert max(periods) == 9 and len(set(periods)) > 3


@pytest.mark.parametrize(
    ("name", "settings", "field"),
    [
        ("needle", {"documents": 10_000_000_000}, "documents"),
        ("needle", {"words": 100_000_000_000}, "words"),
        ("needle", {"questions": 1001}, "questions"),
        ("mqar", {"keys": "digits"}, "keys"),
        ("mqar", {"keys": "letters", "pairs": 27}, "pairs"),
        ("repeat", {"longest": 65, "characters": 128}, "longest"),
        ("repeat", {"shortest": 40}, "longest"),
    ],
)
def test_settings_that_cannot_be_are_refused(name: str, settings: dict[str, int | str], field: str) -> None:
    with pytest.raises(BadSetting, match=field):
        resolve(name, settings, field="f")


def test_seed_and_number_decide_a_document() -> None:
    first = list(documents(resolve("mqar", {"documents": 3}, field="f")))
    assert list(documents(resolve("mqar", {"documents": 2}, field="f"))) == first[:2]
    assert list(documents(resolve("mqar", {"documents": 3, "seed": 1}, field="f"))) != first


@pytest.mark.parametrize("name", ["needle", "mqar", "repeat", "passkey"])
def test_characters_are_counted_as_the_documents_have_them(name: str) -> None:
    identity = resolve(name, {"documents": 12}, field="f")
    assert num_characters(identity) == sum(len(text) for text in documents(identity))


def test_words_are_the_same_everywhere() -> None:
    words = made_words()
    assert len(set(words)) == len(words) == 2000
    assert all(4 <= len(word) <= 8 for word in words)


def test_passkeys_are_told_once_and_asked_once_in_documents_of_one_length() -> None:
    identity = resolve("passkey", {"documents": 30, "characters": 700, "passkeys": 3, "words": 4}, field="f")
    made = list(documents(identity))
    assert made == list(documents(identity))
    assert {len(text) for text in made} == {700}
    places = []
    for text in made:
        story, _, questions = text.partition(ANSWERS)
        told = re.findall(r"\n\nThis sequence of words is passkey (\d) to the vault: ([a-z ]+)\n\n", story)
        asked = re.findall(r"\nWhat is passkey (\d) to the vault\?\nPasskey: ([a-z ]+)\n", questions)
        assert told == asked
        assert [number for number, _ in told] == ["1", "2", "3"]
        assert all(len(words.split(" ")) == 4 for _, words in told)
        places += [story.index(words) / len(story) for _, words in told]
    assert min(places) < 0.2
    assert max(places) > 0.8


def test_passkeys_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"f\.settings\.characters is 200; allowed: at least \d+"):
        resolve("passkey", {"characters": 200}, field="f")
    with pytest.raises(BadSetting) as refused:
        resolve("passkey", {"characters": 1, "passkeys": 5, "words": 7}, field="f")
    least = int(re.search(r"at least (\d+)", str(refused.value))[1])
    settings = {"characters": least, "passkeys": 5, "words": 7, "documents": 20}
    assert {len(text) for text in documents(resolve("passkey", settings, field="f"))} == {least}
