"""Tokens known before preparation are those that preparation gives; budgets beyond the data are refused."""

from pathlib import Path

import pytest

from gridlaw.modules.data.declaration import declare, locate
from gridlaw.modules.data.epochs import check_epochs, count_train_tokens
from gridlaw.modules.data.prepare import prepare
from gridlaw.modules.errors import BadSetting


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"mixture": ["generate:needle"], "heldout": {"fraction": 0.2}},
        {"mixture": [{"source": "embedded:python", "min_tokens": 20_000}, {"source": "generate:mqar", "weight": 0.25}]},
    ],
)
def test_exact_count_is_what_preparation_gives(data: dict, tmp_path: Path) -> None:
    declaration = declare(data, base_folder=tmp_path, context=200)
    counted = count_train_tokens(declaration, locate(data, base_folder=tmp_path))
    prepared = prepare(declaration, tmp_path / "prepared")
    assert counted is not None
    assert counted.exact
    assert counted.tokens == prepared.num_train_tokens


def test_estimate_from_file_sizes(jsonl: Path) -> None:
    data = {"mixture": ["*.jsonl"]}
    declaration, locations = declare(data, base_folder=jsonl, context=128), locate(data, base_folder=jsonl)
    counted = count_train_tokens(declaration, locations)
    prepared = prepare(declaration, jsonl / "prepared", locations=locations)
    assert counted is not None
    assert not counted.exact
    assert counted.tokens == pytest.approx(prepared.num_train_tokens, rel=0.3)


def test_remote_data_are_not_guessed(tmp_path: Path) -> None:
    data = {"mixture": [{"source": "hf:some/name", "revision": "abc"}]}
    assert count_train_tokens(declare(data, base_folder=tmp_path, context=128), {}) is None


def test_context_that_the_text_cannot_fill(tmp_path: Path) -> None:
    declaration = declare({}, base_folder=tmp_path, context=10**9)
    with pytest.raises(BadSetting, match=r"data\.context is 1000000000; allowed: .* training text fills"):
        count_train_tokens(declaration, {})


def test_budget_beyond_the_limit() -> None:
    assert check_epochs(250, 100, None) == 2.5
    with pytest.raises(BadSetting, match=r"5\.00 epochs of 100 training tokens.*at most 4 epochs.*max_epochs"):
        check_epochs(500, 100, None)
    assert check_epochs(500, 100, 5) == 5
