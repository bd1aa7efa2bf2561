"""YAML as grid files use it: YAML 1.2's plain scalars, no key twice, lines known."""

from __future__ import annotations

import math

import pytest

from gridlaw.platform.spec.yaml_reader import MAX_VALUES, read_yaml


def value_of(text: str) -> object:
    document, problems = read_yaml(text)
    assert problems == []
    return document.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("2E5", 2e5),
        (".5", 0.5),
        ("1_000_000", 1_000_000),
        ("010", 10),
        ("0x10", 16),
        ("-3", -3),
        ("on", "on"),
        ("no", "no"),
        ("true", True),
        ("12:30", "12:30"),
        ("2026-01-31", "2026-01-31"),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("1-sqrt", "1-sqrt"),
        ("5N", "5N"),
        (".inf", math.inf),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    found = value_of(f"a: {text}")["a"]  # type: ignore[index]
    assert found == value
    assert type(found) is type(value)


def test_lines_of_keys_and_items() -> None:
    document, _ = read_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n")
    assert document.line(("a",)) == 1
    assert document.line(("b", 1, "c")) == 4
    assert document.line(("b", 0, "not", "there")) == 3
    assert document.line(()) is None


def test_a_key_that_stands_twice_is_refused_with_both_lines() -> None:
    _, problems = read_yaml("a: 1\nb: 2\na: 3\n")
    assert [problem.line for problem in problems] == [3]
    assert "line 1" in str(problems[0])


def test_anchors_and_merges() -> None:
    text = "base: &b {x: 1, y: 2}\nmine: {<<: *b, y: 3}\nyours: {<<: [*b, {z: 4}]}\n"
    value = value_of(text)
    assert value == {"base": {"x": 1, "y": 2}, "mine": {"x": 1, "y": 3}, "yours": {"x": 1, "y": 2, "z": 4}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [*x]", "contain itself"),
        ("a:\n\tb: 1", "spaces"),
        ("a: 1\n---\nb: 2", "second '---'"),
        ("a: b: c", "colon"),
        ("a: *glob", "begins with *"),
        ("1: a", "text"),
        ("[x]: a", "text"),
        ("a: !!python/object:os.system {}", "without tags"),
        ("a: !thing x", "without tags"),
        ("a: " + "9" * 5000, "characters"),
        ("a: !!int x", "number"),
        ("a: [" * 3000, "deep"),
        ("{a: 1", "not YAML"),
        ("a: \x01", "not YAML"),
        ("a: {<<: 3}", "mapping"),
    ],
)
def test_what_cannot_be_read_is_one_message(text: str, said: str) -> None:
    _, problems = read_yaml(text)
    assert len(problems) == 1
    assert said in str(problems[0])


def test_a_file_that_grows_by_its_anchors_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    _, problems = read_yaml("\n".join(lines))
    assert str(MAX_VALUES) in str(problems[0])
