from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.program

pytest.importorskip("build")

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
FOLDERS = {
    "agentspec": "agentspec",
    "adapters": "agentspec/adapters",
    "prompts": "agentspec/prompts",
}
DATA = {".py", ".json", ".jinja", ".jsonl", ".md", ".txt", ".typed", ".css", ".html", ".js", ".svg"}
IMPORTS = """
import agentspec, agentspec.adapters, agentspec.prompts, agentspec.adapters.probe
from agentspec.prompts.deep import probe
from importlib.resources import files
print(agentspec.__version__, files("agentspec.prompts").joinpath("probe/x.jinja").read_text())
print(agentspec.__file__, agentspec.adapters.__file__, agentspec.prompts.__file__, sep="\\n")
"""
NAMES = """
import agentspec, agentspec.adapters, agentspec.prompts
print(agentspec.__file__, agentspec.adapters.__file__, agentspec.prompts.__file__, sep="\\n")
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, since building writes into the tree; with a module and data where new ones may go."""
    copy = tmp_path_factory.mktemp("source")
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "adapters" / "probe.py").touch()
    (copy / "prompts" / "probe").mkdir()
    (copy / "prompts" / "probe" / "x.jinja").write_text("prompt")
    (copy / "prompts" / "deep").mkdir()
    (copy / "prompts" / "deep" / "__init__.py").touch()
    (copy / "prompts" / "deep" / "probe.py").touch()
    return copy


@pytest.fixture(scope="module")
def wheels(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of the tree, and the wheel of the tree's source distribution."""
    build = (sys.executable, "-m", "build", "--no-isolation")
    out = tmp_path_factory.mktemp("dist")
    run(*build, "--outdir", out / "sdist", cwd=source)
    run(*build, "--wheel", "--outdir", out / "tree", cwd=source)
    found = {}
    for name in ("sdist", "tree"):
        (found[name],) = (out / name).glob("agentspec_engine-*.whl")
    return found


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an empty environment."""
    venv.create(tmp_path / "env", with_pip=False)
    return tmp_path / "env" / "bin" / "python"


def install(python: Path, wheel: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
    run(*pip, "--no-deps", wheel, cwd=python.parent)


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_module_and_every_prompt(
    source: Path, wheels: dict[str, Path]
) -> None:
    expected = {
        f"{inside}/{path.relative_to(source / folder).as_posix()}"
        for folder, inside in FOLDERS.items()
        for path in (source / folder).rglob("*")
        if path.is_file() and path.suffix in DATA and "egg-info" not in str(path)
    }
    assert "agentspec/prompts/probe/x.jinja" in expected
    assert members(wheels["tree"]) == expected
    assert members(wheels["sdist"]) == expected


def test_a_wheel_in_an_empty_environment(
    wheels: dict[str, Path], python: Path, tmp_path: Path
) -> None:
    install(python, wheels["tree"])
    lines = run(python, "-I", "-W", "error", "-c", IMPORTS, cwd=tmp_path).splitlines()
    assert lines[0] == "0.1.0 prompt"
    assert all(line.startswith(str(tmp_path / "env")) for line in lines[1:])
    # The command stands on click; lend it this environment's, behind the empty one's own.
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run(python.parent / "agentspec", "--version", cwd=tmp_path).endswith("0.1.0\n")


def test_an_editable_install_in_an_empty_environment(
    source: Path, python: Path, tmp_path: Path
) -> None:
    # What `pip install -e .` does, without the build backend in the empty environment.
    hook = "import sys, setuptools.build_meta as b; b.build_editable(sys.argv[1])"
    run(sys.executable, "-W", "ignore", "-c", hook, tmp_path, cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    install(python, wheel)
    lines = run(python, "-I", "-W", "error", "-c", IMPORTS, cwd=tmp_path).splitlines()
    assert lines[0] == "0.1.0 prompt"
    assert lines[1:] == [
        str(source / folder / "__init__.py") for folder in ("agentspec", "adapters", "prompts")
    ]
    # A file that came after the installation is seen too.
    (source / "adapters" / "later.py").touch()
    run(python, "-I", "-c", "import agentspec.adapters.later", cwd=tmp_path)


def test_a_clone_that_is_the_current_folder_is_whole(source: Path) -> None:
    # -S: nothing is installed, so that all of it must come from the folder.
    places = run(sys.executable, "-S", "-c", NAMES, cwd=source).splitlines()
    assert places == [
        str(source / folder / "__init__.py") for folder in ("agentspec", "adapters", "prompts")
    ]


def test_what_is_pinned_is_what_is_declared() -> None:
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    declared = [
        *project["project"]["dependencies"],
        *(line for name, lines in extras.items() if name != "all" for line in lines),
        *(line for lines in project["dependency-groups"].values() for line in lines),
    ]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            (pins[canonicalize_name(pin.name)],) = pin.specifier
    assert set(pins) == {canonicalize_name(Requirement(line).name) for line in declared}
    for line in declared:
        requirement = Requirement(line)
        pin_of = pins[canonicalize_name(requirement.name)]
        assert pin_of.operator == "=="
        assert requirement.specifier.contains(pin_of.version), line
    frameworks = {path.stem.replace("_", "-") for path in (ROOT / "adapters").glob("*.py")}
    assert set(Requirement(*extras["all"]).extras) == set(extras) - {"all"} - frameworks
