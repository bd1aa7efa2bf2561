"""LongPPL against the package ``longppl`` 0.3.0, and its outcomes."""

import copy
import importlib
import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gridlaw.modules.data.batches import train_loader
from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.data.tokenizers import BytesTokenizer
from gridlaw.modules.models import checkpoint
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import longppl
from gridlaw.pipelines.evaluations.evaluators import HuggingFaceEvaluator, OwnEvaluator
from gridlaw.pipelines.evaluations.inputs import Inputs
from gridlaw.pipelines.evaluations.key_tokens import (
    KeyTokenFile,
    find_key_tokens,
    merge_slices,
    short_windows,
    tokens_inside,
)
from gridlaw.pipelines.evaluations.run import EvaluationRun, evaluate
from gridlaw.platform.errors import BadInput

package = importlib.import_module("longppl.longppl")  # the PyPI package, not our module of that name

MakeRun = Callable[..., EvaluationRun]
Models = Callable[[str], DecoderLM]

CONTEXT, SLIDE = 64, 24
ENTRY = {"evaluator": "full/n1/5N", "context": CONTEXT, "slide": SLIDE}


class AsHuggingFace:
    """One of our models and the bytes tokenizer behind the little of transformers' interface that the package uses."""

    device = torch.device("cpu")

    def __init__(self, model: DecoderLM) -> None:
        self.model, self.bytes = model, BytesTokenizer()

    def __call__(self, input_ids: torch.Tensor) -> SimpleNamespace:
        with torch.no_grad():
            return SimpleNamespace(logits=self.model(input_ids))

    def tokenizer(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        tokens, offsets = self.bytes.encode_with_offsets(text)
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        return {"input_ids": ids, "offset_mapping": torch.from_numpy(offsets)[None]}


@pytest.fixture(scope="module")
def trained(prepared: PreparedData, models: Models) -> DecoderLM:
    """A small model after 80 steps: well below the loss of letter frequencies."""
    from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale

    torch.manual_seed(0)
    config = model_config(resolve_architecture("full"), resolve_scale("n1"), vocab_size=257, context=256)
    model = DecoderLM(config).initialise(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    loader = iter(train_loader(prepared, seed=0, batch_size=8, micro_batch=8))
    for _ in range(80):
        batch = next(loader)
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 3.2
    return model.eval()


def texts_of(prepared: PreparedData, count: int) -> list[str]:
    """Texts of 256 characters from the middle of held-out documents, ASCII and not."""
    texts = [document.text[200:456] for document in prepared.heldout_documents if len(document.text) > 500]
    return [*texts[: count - 1], texts[0][:100] + "Größe 汉字 " + texts[0][100:240]]


def by_package(
    text: str, model: AsHuggingFace, evaluator: Any, evaluator_tokenizer: Any, alpha: float, beta: float
) -> dict[str, Any]:
    return package.compute_longppl(
        text,
        model,
        evaluator,
        tokenizer=model.tokenizer,
        evaluator_tokenizer=evaluator_tokenizer,
        trunc_len=CONTEXT,
        sliding_window=SLIDE,
        alpha=alpha,
        beta=beta,
    )


def check_parity(
    make_run: MakeRun, evaluated: DecoderLM, texts: list[str], own: Any, evaluator: Any, tokenizer: Any,
    *, alpha: float, beta: float, tmp_path: Path,
) -> None:  # fmt: skip
    """One text and several: the same key tokens (at least 50 a text), the same value within 1e-4."""
    pooled_sum, pooled_count = 0.0, 0
    for text in texts:
        expected = by_package(text, AsHuggingFace(evaluated), evaluator, tokenizer, alpha, beta)
        assert expected["n_key_token"] >= 50, "thresholds must give key tokens, else nothing is compared"
        theirs = package.find_key_token(text, evaluator, tokenizer, CONTEXT, SLIDE, None, alpha, beta)
        (slices,) = find_key_tokens(own, [text], context=CONTEXT, slide=SLIDE, alpha=alpha, beta=beta)
        # Characters of several tokens make the package's slices overlap: the characters are what counts.
        assert characters(slices) == characters(theirs.tolist())
        single = measure(make_run, evaluated, [text], own, alpha=alpha, beta=beta, folder=tmp_path / "one")
        assert single["metrics"]["longppl_key_tokens"] == expected["n_key_token"]
        assert single["metrics"]["longppl"] == pytest.approx(float(expected["longppl"]), rel=1e-4)
        assert single["metrics"]["longppl_ppl"] == pytest.approx(float(expected["ppl"]), rel=1e-4)
        pooled_sum += math.log(expected["longppl"]) * expected["n_key_token"]
        pooled_count += expected["n_key_token"]
    several = measure(make_run, evaluated, texts, own, alpha=alpha, beta=beta, folder=tmp_path / "all")
    assert several["num_samples"] == len(texts)
    assert several["metrics"]["longppl_key_tokens"] == pooled_count
    assert several["metrics"]["longppl"] == pytest.approx(math.exp(pooled_sum / pooled_count), rel=1e-4)


def characters(slices: list[list[int]]) -> set[int]:
    return {character for start, end in slices for character in range(start, end)}


def measure(
    make_run: MakeRun, evaluated: DecoderLM, texts: list[str], own: Any, *, folder: Path, **thresholds: float
) -> dict[str, Any]:
    """``compute`` with given texts and an evaluator that is loaded already."""
    from gridlaw.pipelines.evaluations.run import Parts

    name = str(abs(hash((tuple(texts), tuple(thresholds.items())))))
    run = make_run(
        {"longppl": {**ENTRY, **thresholds, "max_length": 256}},
        load=lambda: evaluated,
        parts=Parts(folder, name),
        work_folder=folder / name,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(longppl, "make_texts", lambda run, length: texts)
        patch.setattr(longppl, "_evaluator", lambda run: own)
        return longppl.compute(run)


def test_parity_with_the_package(make_run: MakeRun, models: Models, prepared: PreparedData, tmp_path: Path) -> None:
    """Untrained models, an evaluator other than the evaluated one, thresholds that find tokens."""
    evaluator = models("full")
    shim = AsHuggingFace(evaluator)
    check_parity(
        make_run, models("gdn"), texts_of(prepared, 4), OwnEvaluator(evaluator, BytesTokenizer()), shim, shim.tokenizer,
        alpha=-0.05, beta=-20.0, tmp_path=tmp_path,
    )  # fmt: skip


def test_parity_on_a_trained_model(
    make_run: MakeRun, trained: DecoderLM, models: Models, prepared: PreparedData, tmp_path: Path
) -> None:
    shim = AsHuggingFace(trained)
    check_parity(
        make_run, models("swa-128"), texts_of(prepared, 3), OwnEvaluator(trained, BytesTokenizer()), shim,
        shim.tokenizer, alpha=-0.02, beta=-4.0, tmp_path=tmp_path,
    )  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, prepared: PreparedData) -> Path:
    """A random Llama with a byte-level BPE of its own, saved as transformers does, BOS before each text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([document.text for document in prepared.heldout_documents[:5]], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder = tmp_path_factory.mktemp("llama")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=512, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_parity_with_another_tokenizer(
    make_run: MakeRun, models: Models, prepared: PreparedData, llama: Path, tmp_path: Path
) -> None:
    """The evaluator's BPE tokens are mapped to bytes by their place in the text."""
    own = HuggingFaceEvaluator(str(llama))
    texts = texts_of(prepared, 3)
    check_parity(
        make_run, models("full"), texts, own, own.model, own.tokenizer, alpha=-2.0, beta=-20.0, tmp_path=tmp_path
    )


def test_from_folders_with_an_own_and_a_foreign_evaluator(
    prepared: PreparedData, models: Models, llama: Path, tmp_path: Path
) -> None:
    """The whole way as the grid takes it: saved models, held-out text cut into texts, key tokens made once and kept."""
    evaluated = checkpoint.save_model(models("gdn"), tmp_path / "gdn")
    own = checkpoint.save_model(models("full"), tmp_path / "full")

    def run(folder: Path, settings: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        thresholds = {"context": CONTEXT, "slide": SLIDE, "alpha": -0.05, "beta": -20, "split": True, "documents": 6}
        return evaluate(
            "longppl",
            {**thresholds, **settings},
            model_folder=folder,
            prepared_folder=prepared.folder,
            work_folder=tmp_path / "work",
            inputs=inputs,
        )

    evaluator = {"identity": "abc", "folder": str(own), "data": str(prepared.folder)}
    inputs = Inputs(examples=str(tmp_path / "shared"), evaluator=evaluator)
    result = run(evaluated, {"evaluator": "full/n1/5N"}, inputs)
    assert result["num_samples"] + result["metrics"]["longppl_texts_dropped"] == 6
    assert result["details"]["longppl"]["low"] < result["metrics"]["longppl"] < result["details"]["longppl"]["high"]
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    # A second model: the examples are there, so the evaluator is not needed.
    gone = {**evaluator, "folder": str(tmp_path / "gone")}
    again = run(own, {"evaluator": "full/n1/5N"}, Inputs(examples=inputs.examples, evaluator=gone))
    assert again["num_samples"] == 6 - again["metrics"]["longppl_texts_dropped"]
    assert again["metrics"]["longppl_key_tokens"] == result["metrics"]["longppl_key_tokens"]
    # Somebody else's file of key tokens in the evaluator's place: the same key tokens, the same value.
    file = Inputs(evaluator={"identity": "theirs", "file": str(tmp_path / "shared" / "key-tokens.jsonl")})
    assert run(evaluated, {"evaluator": "./key-tokens.jsonl"}, file)["metrics"] == result["metrics"]
    foreign = run(evaluated, {"evaluator": str(llama)}, Inputs())
    assert foreign["metrics"]["longppl_key_tokens"] > 0
    assert foreign["metrics"]["longppl"] != result["metrics"]["longppl"]


def test_no_key_tokens_is_an_outcome(make_run: MakeRun, models: Models, prepared: PreparedData, tmp_path: Path) -> None:
    """longppl: explicit and counted, never NaN."""
    own = OwnEvaluator(models("full"), BytesTokenizer())
    result = measure(make_run, models("full"), texts_of(prepared, 3), own, alpha=1e6, beta=-2.0, folder=tmp_path)
    assert "longppl" not in result["metrics"]
    assert result["metrics"]["longppl_texts_dropped"] == 3
    assert result["metrics"]["longppl_ppl"] > 1
    assert result["details"]["outcome"] == "no key tokens"
    json.dumps(result, allow_nan=False)


def test_texts_with_few_key_tokens_are_dropped_and_counted() -> None:
    from gridlaw.pipelines.evaluations.registry import resolve_evaluation

    settings = resolve_evaluation({"longppl": {"evaluator": "gpt2"}}).settings
    sums = np.array([[30.0, 10, 100, 50], [900.0, 9, 1000, 50], [10.0, 20, 100, 50]])
    result = longppl._summarise(settings, sums)
    assert result["metrics"]["longppl"] == pytest.approx(math.exp(40 / 30))
    assert result["metrics"]["longppl_texts"] == 2
    assert result["metrics"]["longppl_texts_dropped"] == 1


def test_killed_search_goes_on(tmp_path: Path) -> None:
    path, made_by = tmp_path / "keys.jsonl", {"evaluator": "x"}
    found: list[str] = []

    def find(texts: list[str]) -> list[list[list[int]]]:
        if len(found) == 2:
            raise KeyboardInterrupt
        found.extend(texts)
        return [[[0, len(text)]] for text in texts]

    def complete() -> list[list[list[int]]]:
        file = KeyTokenFile(path, made_by)
        return file.complete(["a", "bb", "ccc"], find, report=lambda done, total: None, texts_per_call=1)

    with pytest.raises(KeyboardInterrupt):
        complete()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"text": "torn')
    found.clear()
    slices = complete()
    assert found == ["ccc"]
    assert slices == [[[0, 1]], [[0, 2]], [[0, 3]]]
    with pytest.raises(BadInput, match="Another evaluator or other thresholds"):
        KeyTokenFile(path, {"evaluator": "y"})
    path.write_text("__import__('os').abort()\n")
    with pytest.raises(BadInput, match="key token file"):
        KeyTokenFile(path, made_by)


@given(length=st.integers(1, 300), context=st.integers(1, 100), slide=st.integers(1, 60))
def test_every_token_beyond_the_short_context_is_judged_once(length: int, context: int, slide: int) -> None:
    windows = short_windows(length, context=context, slide=slide)
    judged = [start + context + at for start, count in windows for at in range(count)]
    assert judged == list(range(context, length))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=12))
def test_slices_hold_the_same_characters(pairs: list[tuple[int, int]]) -> None:
    offsets = np.array(sorted((start, start + size) for start, size in pairs)).reshape(-1, 2)
    merged = merge_slices(offsets)
    assert characters(merged) == characters(offsets.tolist())
    assert all(first[1] < second[0] for first, second in pairwise(merged))
    inside = tokens_inside(offsets, merged)
    assert inside == [index for index, (start, end) in enumerate(offsets.tolist()) if start < end]


@pytest.mark.parametrize("split", [False, True])
def test_cut_texts_are_the_document(split: bool) -> None:
    text = "Größe 汉字 and some plain words " * 5
    tokenizer = BytesTokenizer()
    pieces = longppl.cut_text(text, tokenizer, length=20, split=split)
    assert "".join(pieces) == (text if split else pieces[0])
    assert text.startswith(pieces[0])
    assert all(len(tokenizer.encode(piece)) <= 23 for piece in pieces)
    assert longppl.cut_text("short", tokenizer, length=20, split=split) == ["short"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 300}, r"max_length is 300; allowed: at most 256, the model's positions"),
        ({"context": 256}, "context is 256; allowed: below the length of the texts, 256"),
        ({}, r"evaluator is 'full/n1/5N'; allowed: a finished point.*Run the grid"),
        ({"corpus": "no/*.jsonl"}, "nothing matches"),
    ],
)
def test_wrong_settings_get_one_clear_message(make_run: MakeRun, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((BadInput, ValueError), match=message):
        longppl.compute(make_run({"longppl": {**ENTRY, **settings}}))


def test_evaluator_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a causal LM that transformers can load"):
        HuggingFaceEvaluator(str(tmp_path))


def test_corpus_of_its_own(make_run: MakeRun, models: Models, tmp_path: Path) -> None:
    (tmp_path / "reports.jsonl").write_text('{"text": "first report"}\n{"text": "second"}\n')
    run = make_run({"longppl": {**ENTRY, "corpus": str(tmp_path / "reports.jsonl")}})
    assert longppl.make_texts(run, 256) == ["first report", "second"]


def test_a_shared_file_must_have_the_thresholds_and_every_text(make_run: MakeRun, tmp_path: Path) -> None:
    path = tmp_path / "key-tokens.jsonl"
    made_by = {"evaluator": "x", "revision": None, "context": CONTEXT, "slide": SLIDE, "alpha": 2.0, "beta": -2.0}
    KeyTokenFile(path, made_by).complete(["some text"], lambda texts: [[[0, 4]]], report=lambda done, total: None)
    entry = {"longppl": {**ENTRY, "evaluator": str(path)}}
    inputs = Inputs(evaluator={"identity": "theirs", "file": str(path)})
    assert longppl.key_slices(make_run(entry, inputs=inputs), ["some text"], tmp_path) == [[[0, 4]]]
    with pytest.raises(BadInput, match="without 1 of 2 texts"):
        longppl.key_slices(make_run(entry, inputs=inputs), ["some text", "another"], tmp_path)
    other = {"longppl": {**entry["longppl"], "alpha": 1}}
    with pytest.raises(BadInput, match="Set the same thresholds"):
        longppl.key_slices(make_run(other, inputs=inputs), ["some text"], tmp_path)


def test_slow_tokenizers_are_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    slow = copy.copy(AutoTokenizer.from_pretrained(llama))
    monkeypatch.setattr(type(slow), "is_fast", property(lambda self: False))
    with pytest.raises(BadInput, match="whose tokenizer gives offsets"):
        HuggingFaceEvaluator(str(llama))
