"""YAML text → plain values, with the line of every key and item. Not a general YAML reader: what a grid file needs.

Differences from PyYAML's ``safe_load``, each because the other way has bitten people:

* a key that stands twice is refused (PyYAML keeps the last one silently);
* numbers, booleans and empty values as YAML 1.2 has them: ``1e-3`` is a number, ``on`` and ``no`` are words,
  ``12:30`` and ``2026-01-31`` are words, ``010`` is ten;
* keys are text; values are text, numbers, true/false, empty, lists and mappings, and nothing else;
* anchors and merges work, but what refers to itself or grows beyond ``MAX_VALUES`` values is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from gridlaw.platform.spec.problems import Path, Problem, Shown, shown

MAX_VALUES = 100_000
MAX_DIGITS = 40
_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_KINDS = {"null", "bool", "int", "float", "str", "seq", "map"}


class _Loader(yaml.SafeLoader):
    """SafeLoader's grammar with YAML 1.2's plain scalars; only ``compose`` is used, nothing is constructed."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  PyYAML's own class attribute


_DIGITS = list("+-.0123456789")
for _tag, _pattern, _first in (
    (_MERGE, r"<<", ["<"]),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+", _DIGITS),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        _DIGITS,
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, kw_only=True)
class Document:
    """``value``: what the file says. ``lines``: the line, counted from 1, on which each path begins."""

    value: Any
    lines: dict[Path, int]

    def line(self, path: Path) -> int | None:
        """The line of ``path``, or of the nearest place above it that the file has."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


@dataclass
class _Reader:
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    open_nodes: set[int] = field(default_factory=set)
    num_values: int = 0

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise Problem(path, allowed=f"at most {MAX_VALUES} values in one file", hint="Is this a grid file?")
        if id(node) in self.open_nodes:
            raise Problem(path, allowed="an anchor that does not contain itself")
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind not in _KINDS:
            self._problem(path, node, seen=Shown(node.tag), allowed="plain YAML without tags", hint="Remove the tag")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, kind, path)
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._item(child, (*path, index)) for index, child in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode), node
            return self._mapping(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        return self.read(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for name, value in self._merge(value_node, path).items():
                    merged.setdefault(name, value)
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _STR:
                seen = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                self._problem(
                    (*path, "<key>"),
                    key_node,
                    seen=Shown(seen or "empty"),
                    allowed="keys that are text",
                    hint="Put the key in quotes if it is meant",
                )
                continue
            name = key_node.value
            here = (*path, name)
            if name in own:
                self._problem(
                    here, key_node, allowed="each key once", hint=f"It stands on line {self.lines[here]} already"
                )
                continue
            self.lines[here] = key_node.start_mark.line + 1
            own[name] = self.read(value_node, here)
        return {**{name: value for name, value in merged.items() if name not in own}, **own}

    def _merge(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for each in nodes:
            value = self.read(each, path)
            if not isinstance(value, dict):
                self._problem((*path, "<<"), each, seen=shown(value), allowed="a mapping, or a list of mappings")
                continue
            for name, inner in value.items():
                merged.setdefault(name, inner)
        return merged

    def _scalar(self, node: yaml.ScalarNode, kind: str, path: Path) -> Any:
        text = node.value
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        try:
            if len(text) > MAX_DIGITS:
                raise ValueError
            plain = text.replace("_", "").lower()
            if kind == "float":
                return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
            return int(plain, 16 if "0x" in plain else 8 if "0o" in plain else 10)
        except ValueError:  # a number of thousands of digits, or an explicit tag on what is no number
            self._problem(path, node, seen=shown(text), allowed=f"a number of at most {MAX_DIGITS} characters")
            return None

    def _problem(self, path: Path, node: yaml.Node, **what: Any) -> None:
        self.problems.append(Problem(path, line=node.start_mark.line + 1, **what))


def _syntax_problem(error: yaml.YAMLError) -> Problem:
    """What PyYAML says about text that is no YAML, in words, with its line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else None
    said = str(getattr(error, "problem", None) or str(error).splitlines()[0])
    hint = ""
    if "'\\t'" in said or "\\t" in said:
        hint = "A tab stands there: YAML indents with spaces"
    elif "single document" in str(error) or "single document" in str(getattr(error, "context", "")):
        hint = "Keep one grid in one file: remove the second '---'"
    elif "mapping values are not allowed" in said:
        hint = "Check the indentation, and put text with a colon in quotes"
    elif "undefined alias" in said:
        hint = "Name an anchor (&name) before it is used, or put text that begins with * in quotes"
    return Problem((), seen=Shown(f"not YAML ({said})"), allowed="a YAML mapping", hint=hint, line=line)


def read_yaml(text: str) -> tuple[Document, list[Problem]]:
    """The document of ``text`` and the mistakes that hinder reading it; raises nothing for them."""
    reader = _Reader()
    nothing = Document(value=None, lines=reader.lines)
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else reader.read(node, ())
    except yaml.YAMLError as error:
        return nothing, [_syntax_problem(error)]
    except RecursionError:
        return nothing, [Problem((), seen=Shown("nested too deeply"), allowed="a few levels of lists and mappings")]
    except Problem as problem:
        problem.line = nothing.line(problem.path)
        return nothing, [problem]
    return Document(value=value, lines=reader.lines), reader.problems
