"""A mixer from outside, as docs/adding-a-mixer.md shows it: registered, installed, trained, decoded, described."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.full.spec import FullSpec
from gridlaw.modules.mixers.registry import mixer_class, register_mixer, unregister_mixer

DOCS = Path(__file__).parents[2] / "docs" / "adding-a-mixer.md"

USE = """
import json, sys
from gridlaw.modules.catalog import architecture_names, describe, model_config, resolve_architecture, resolve_scale
described = describe(resolve_architecture("average"), resolve_scale("n1"), context=64)
assert "torch" not in sys.modules
assert "average" in architecture_names()
assert [layer.mixer["mixer"] for layer in described.layers] == ["average", "full"]
import torch
from gridlaw.modules.models.decoder import DecoderLM
config = model_config(resolve_architecture("average"), resolve_scale("n1"), vocab_size=50, context=64)
assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config
model = DecoderLM(config).initialise(0)
assert sum(p.numel() for n, p in model.named_parameters() if "embedding" not in n and "head" not in n
           and "sink" not in n) == described.num_params_non_embedding
from gridlaw.modules.errors import BadSetting
try:
    model(torch.zeros(1, 4, dtype=torch.long), document_ids=torch.zeros(1, 4, dtype=torch.long))
    raise SystemExit("documents were silently ignored")
except BadSetting as error:
    assert "document_mask is True" in str(error)
tokens = torch.randint(0, 50, (2, 40), generator=torch.Generator().manual_seed(0))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for _ in range(30):
    loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] - 0.5, losses
with torch.no_grad():
    cache = model.init_cache(2, 40)
    pieces = [model.extend(piece, cache) for piece in tokens.split([17, 1, 22], 1)]
    assert torch.allclose(torch.cat(pieces, 1), model(tokens), atol=1e-4)
print("learned", losses[0], losses[-1])
"""


def documented_files() -> dict[str, str]:
    """The guide's files by name: each block of Python begins with a comment that names it."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["average_mixer.py", "average_module.py"]
    return dict(blocks)


def write_files(folder: Path) -> None:
    for name, text in documented_files().items():
        (folder / name).write_text(text)


def run(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=script.parent)


def test_the_guide_needs_fewer_than_fifteen_lines() -> None:
    lines = [line for text in documented_files().values() for line in text.splitlines()]
    code = [line for line in lines if line.strip() and not line.startswith(("import", "from"))]
    assert len(code) < 15


def test_a_mixer_registered_in_the_process(tmp_path: Path) -> None:
    write_files(tmp_path)
    script = tmp_path / "use.py"
    register = "from gridlaw.modules.mixers.registry import register_mixer\n"
    script.write_text(f"from average_mixer import AverageSpec\n{register}register_mixer(AverageSpec)\n{USE}")
    out = run(script)
    assert out.returncode == 0, out.stderr
    assert "learned" in out.stdout


def test_a_mixer_installed_by_another_package(tmp_path: Path) -> None:
    """A distribution on the path with the entry point that the guide shows."""
    write_files(tmp_path)
    toml = re.search(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert toml is not None
    header, line = toml.group(1).strip().splitlines()
    assert header == '[project.entry-points."gridlaw.mixers"]'
    info = tmp_path / "average_mixer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: average-mixer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gridlaw.mixers]\n" + line.replace('"', "") + "\n")
    script = tmp_path / "use.py"
    script.write_text(USE)
    out = run(script)
    assert out.returncode == 0, out.stderr
    assert "learned" in out.stdout


def test_an_entry_point_that_is_no_mixer_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong_mixer.py").write_text("Wrong = 3\n")
    info = tmp_path / "wrong_mixer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-mixer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gridlaw.mixers]\nwrong = wrong_mixer:Wrong\n")
    script = tmp_path / "use.py"
    script.write_text("from gridlaw.modules.catalog import *\nresolve_architecture('wrong')\n")
    out = run(script)
    assert out.returncode == 1
    assert "entry point 'wrong' of group gridlaw.mixers is 3; allowed: a subclass of" in out.stderr


def test_a_taken_name_is_refused() -> None:
    class Other(FullSpec):
        pass

    with pytest.raises(BadSetting, match="mixer name is 'full'; allowed: a name that is not taken"):
        register_mixer(Other)
    assert mixer_class("full") is FullSpec


def test_a_mixer_is_registered_once_and_can_be_forgotten() -> None:
    namespace: dict[str, Any] = {"__name__": "guide"}
    exec(compile(documented_files()["average_mixer.py"], "guide", "exec"), namespace)
    spec_class = namespace["AverageSpec"]
    try:
        assert register_mixer(spec_class) is spec_class
        assert register_mixer(spec_class) is spec_class
        assert mixer_class("average") is spec_class
    finally:
        unregister_mixer("average")
    with pytest.raises(BadSetting, match="mixer is 'average'"):
        mixer_class("average")
