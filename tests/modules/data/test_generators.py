"""Made documents: fixed, solvable, and not repeated."""

import re

from gridlaw.modules.data.generators import documents, made_words, resolve


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


def test_seed_and_number_decide_a_document() -> None:
    first = list(documents(resolve("mqar", {"documents": 3}, field="f")))
    assert list(documents(resolve("mqar", {"documents": 2}, field="f"))) == first[:2]
    assert list(documents(resolve("mqar", {"documents": 3, "seed": 1}, field="f"))) != first


def test_words_are_the_same_everywhere() -> None:
    words = made_words()
    assert len(set(words)) == len(words) == 2000
    assert all(4 <= len(word) <= 8 for word in words)
