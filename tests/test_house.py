"""The house stands as docs/design.md says: folders, names, layers, packaging, light start-up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("platform", "modules", "pipelines")
BIN = Path(sys.executable).parent


def python(code: str, *, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_import_platform_from_the_root_is_the_standard_library() -> None:
    done = python("import platform; print(platform.__file__); print(platform.python_version())")
    assert done.returncode == 0, done.stderr
    assert "gridlaw" not in done.stdout
    assert Path(done.stdout.splitlines()[0]).name == "platform.py"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_init_directly_in_the_three_folders(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()
    assert (ROOT / "src" / "gridlaw" / folder).is_symlink()
    assert not os.path.isabs(os.readlink(ROOT / "src" / "gridlaw" / folder))


def test_every_subfolder_with_code_is_a_package() -> None:
    missing = [
        str(folder.relative_to(ROOT))
        for top in FOLDERS
        for folder in (ROOT / top).rglob("*")
        if folder.is_dir() and list(folder.glob("*.py")) and not (folder / "__init__.py").exists()
    ]
    assert missing == []


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on a copy of the tree at ``root``: its package comes before the installed one."""
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [str(BIN / "lint-imports"), "--config", str(root / ".importlinter"), "--no-cache"]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def copy_of_the_house(tmp_path: Path) -> Path:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "src", tmp_path / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_layers_hold_and_planted_violations_are_caught(copy_of_the_house: Path) -> None:
    clean = lint_imports(copy_of_the_house)
    assert clean.returncode == 0, clean.stdout
    planted = {
        "platform/planted.py": "import gridlaw.modules.catalog\n",
        "modules/planted.py": "import gridlaw.platform.errors\n",
        "modules/planted_ray.py": "import ray\n",
        "platform/planted_torch.py": "import torch\n",
    }
    for path, code in planted.items():
        (copy_of_the_house / path).write_text(code)
        broken = lint_imports(copy_of_the_house)
        assert broken.returncode != 0, f"{path} was not caught:\n{broken.stdout}"
        assert path.rsplit("/", 1)[1].removesuffix(".py") in broken.stdout
        (copy_of_the_house / path).unlink()


def test_bare_imports_of_our_folders_are_refused_by_ruff(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("import modules.catalog\nfrom pipelines import plan\n")
    command = [
        str(BIN / "ruff"),
        "check",
        "--config",
        str(ROOT / "pyproject.toml"),
        "--no-cache",
        str(tmp_path / "planted.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("TID251") == 2, done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and sdist built from a copy of the tree, so that nothing is left in it."""
    work = tmp_path_factory.mktemp("build")
    tree = work / "tree"
    ignore = shutil.ignore_patterns(".venv", ".git", "*.egg-info", "build", "gridlaw-runs", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignore)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(work / "dist"), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return {"wheel": next((work / "dist").glob("*.whl")), "sdist": next((work / "dist").glob("*.tar.gz"))}


def test_wheel_and_sdist_hold_code_and_yaml_once(distributions: dict[str, Path]) -> None:
    wheel = zipfile.ZipFile(distributions["wheel"]).namelist()
    with tarfile.open(distributions["sdist"]) as archive:
        sdist = archive.getnames()
    for path in ("gridlaw/platform/errors.py", "gridlaw/pipelines/grids/quickstart.yaml", "gridlaw/py.typed"):
        assert wheel.count(path) == 1
        assert any(name.endswith("/src/" + path) for name in sdist)
    assert not [name for name in wheel if name.startswith(("platform/", "modules/", "pipelines/", "tests/"))]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_installed_distribution_finds_its_grids(kind: str, distributions: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    subprocess.run([*command, str(distributions[kind])], check=True, timeout=240, capture_output=True)
    done = python(
        "import gridlaw.platform.errors as e; from gridlaw.pipelines.cli.main import main; print(e.__file__);"
        "main(['plan', 'quickstart', '--json'])",
        cwd=tmp_path,
        PYTHONPATH=str(target),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(target))
    assert '"full/n1/5N/seed0"' in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["plan", "quickstart"], ["plan", "quickstart", "--json"], ["describe", "swa-128", "--scale", "S1"]],
    ids=" ".join,
)
def test_light_commands_do_not_load_torch(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom gridlaw.pipelines.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = [m for m in ('torch', 'lightning', 'ray', 'transformers') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_help_loads_neither_pandas_nor_mlflow() -> None:
    code = (
        "import sys\nfrom gridlaw.pipelines.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'numpy', 'pandas', 'mlflow', 'pydantic', 'rich'} & set(sys.modules)\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
