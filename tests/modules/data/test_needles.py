"""Needle samples: exact lengths, the needle where it should be, answers that cannot be guessed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridlaw.modules.data.embedded import python_library_texts
from gridlaw.modules.data.needles import NeedleMaker, WordPool, depth_fractions, haystack_of, needle_grid
from gridlaw.modules.data.tokenizers import BytesTokenizer, JsonTokenizer, Tokenizer
from gridlaw.modules.errors import BadSetting


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def maker(request: pytest.FixtureRequest, bpe_text: str) -> NeedleMaker:
    texts = python_library_texts()[:20]
    tokenizer: Tokenizer = BytesTokenizer()
    if request.param == "bpe":
        tokenizer = JsonTokenizer(bpe_text, vocab_size=600, end_token_id=0)
    return NeedleMaker(
        haystack=haystack_of((tokenizer.encode(text) for text in texts), max_tokens=10**6),
        words=WordPool(texts, tokenizer),
        tokenizer=tokenizer,
    )


@given(length=st.integers(90, 700), depth=st.floats(0, 1), candidates=st.integers(2, 12), seed=st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_any_sample_has_its_length_and_needle(
    maker: NeedleMaker, length: int, depth: float, candidates: int, seed: int
) -> None:
    """lm-eval #2963: scores near zero because the answer was cut off; the length is that of context and generation."""
    sample = maker.make(length=length, depth=depth, candidates=candidates, rng=np.random.default_rng(seed))
    assert len(sample.prompt) + sample.candidates.shape[1] == length
    assert len({tuple(value) for value in sample.candidates.tolist()}) == candidates
    text = maker.tokenizer.decode(sample.prompt)
    value = maker.tokenizer.decode(sample.candidates[sample.answer])
    question = text[text.rindex("\nThe key of ") :]
    assert text.count(question + value + ".\n") == 1
    assert maker.tokenizer.decode(sample.prompt[sample.needle_at :]).startswith(question + value)
    assert sample.prompt[0] == maker.tokenizer.end_token_id


def test_depth_goes_from_start_to_end(maker: NeedleMaker) -> None:
    samples = needle_grid(maker, lengths=[400], num_depths=5, samples=1, candidates=4, seed=0)
    places = [sample.needle_at for sample in samples]
    assert places[0] == 1
    assert places == sorted(places)
    # The last one ends where the question starts.
    text = maker.tokenizer.decode(samples[-1].prompt)
    assert text.count("\nThe key of ") == 2
    assert text[places[-1] - 1 :].count(".\n\nThe key of") == 1


def test_grid_is_deterministic_and_cells_are_independent(maker: NeedleMaker) -> None:
    def grid(lengths: list[int]) -> list[list[int]]:
        made = needle_grid(maker, lengths=lengths, num_depths=3, samples=2, candidates=4, seed=5)
        return [sample.prompt.tolist() for sample in made]

    assert grid([300, 400]) == grid([300, 400])
    assert grid([300, 400])[:6] == grid([300])
    assert grid([300])[0] != grid([300])[1]


def test_answers_are_spread_over_places(maker: NeedleMaker) -> None:
    samples = needle_grid(maker, lengths=[200], num_depths=10, samples=40, candidates=4, seed=0)
    counts = np.bincount([sample.answer for sample in samples], minlength=4)
    assert ((counts - 100) ** 2 / 100).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 1e-3


def test_single_depth_is_the_middle() -> None:
    assert depth_fractions(1) == [0.5]
    assert depth_fractions(3) == [0.0, 0.5, 1.0]


def test_impossible_samples_are_refused(maker: NeedleMaker) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(BadSetting, match="needle sample length is 20"):
        maker.make(length=20, depth=0.5, candidates=4, rng=rng)
    with pytest.raises(BadSetting, match="haystack text"):
        maker.make(length=10**7, depth=0.5, candidates=4, rng=rng)
    with pytest.raises(BadSetting, match="words to draw needles from"):
        WordPool(["only three words here"], BytesTokenizer()).draw(50, rng)
