"""What leaves the project: the wheel is complete, and the runtime stands alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE_PACKAGES = sysconfig.get_path("purelib")


def setuptools_settings() -> dict[str, Any]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = pyproject["tool"]["setuptools"]
    return settings


def python(code_or_script: str | Path, *args: str, path: list[Path], cwd: Path) -> str:
    """Runs Python with `path` and the dependencies, but without this project's editable install.

    `-S` leaves the `.pth` files alone that put the project's own folders on the import path.
    """
    run = ["-c", code_or_script] if isinstance(code_or_script, str) else [str(code_or_script)]
    prelude = [sys.executable, "-S", "-X", "utf8", *run, *args]
    env = {"PYTHONPATH": ":".join([*map(str, path), SITE_PACKAGES]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(prelude, capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's wheel unpacked in it, as `pip install --target` does."""
    tmp = tmp_path_factory.mktemp("wheel")
    source, target = tmp / "source", tmp / "target"
    source.mkdir()
    # A copy, because setuptools leaves a build folder behind and packs whatever an older one holds.
    for folder in setuptools_settings()["package-dir"].values():
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp)]
    subprocess.run([*pip, *build, str(source)], check=True)
    (wheel,) = tmp.glob("dfc-*.whl")
    install = ["install", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    return target


@pytest.fixture(scope="module")
def runtime_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime as `--py-files` takes it to the executors."""
    file = tmp_path_factory.mktemp("py-files") / "dfc_runtime.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted((ROOT / "runtime").rglob("*.py")):
            archive.write(path, Path("dfc_runtime") / path.relative_to(ROOT / "runtime"))
    return file


def test_packages_listed_are_the_packages_there_are() -> None:
    settings = setuptools_settings()
    there = []
    for package, folder in settings["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            there.append(".".join([package, *inner]))
    assert sorted(settings["packages"]) == sorted(there)


def test_every_folder_with_modules_is_a_package() -> None:
    for folder in setuptools_settings()["package-dir"].values():
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), f"{module.parent} would not be packed"


def test_wheel_holds_every_file_that_is_not_left_out_on_purpose(installed: Path) -> None:
    for package, folder in setuptools_settings()["package-dir"].items():
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                packed = installed.joinpath(*package.split(".")) / file.relative_to(ROOT / folder)
                assert packed.exists(), f"{file.relative_to(ROOT)} is missing from the wheel"


def test_wheel_has_schema_and_templates_as_resources(installed: Path, tmp_path: Path) -> None:
    code = """if True:
        import json
        from importlib.resources import files
        import dfc.compiler
        print(dfc.compiler.__file__)
        print(json.loads(files("dfc.schemas").joinpath("pipeline.schema.json").read_bytes())["$schema"])
        print(len(files("dfc.templates").joinpath("job.py.j2").read_text()) > 0)
    """
    module, schema, template = python(code, path=[installed], cwd=tmp_path).splitlines()
    assert Path(module).is_relative_to(installed)
    assert schema == "https://json-schema.org/draft/2020-12/schema"
    assert template == "True"


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_dfc_from_the_wheel_names_its_version(
    argument: str, installed: Path, tmp_path: Path
) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    printed = python(installed / "bin" / "dfc", argument, path=[installed], cwd=tmp_path)
    assert version in printed.split()


def test_dfc_from_the_wheel_compiles(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "quickstart.yaml", tmp_path)
    dfc = installed / "bin" / "dfc"
    job = python(dfc, "compile", "quickstart.yaml", path=[installed], cwd=tmp_path)
    compile(job, "job.py", "exec")


def test_runtime_alone_is_importable_without_spark(runtime_zip: Path, tmp_path: Path) -> None:
    code = """if True:
        import sys
        import dfc_runtime
        print(dfc_runtime.__file__)
        print(sorted({name.split(".")[0] for name in sys.modules} & {"dfc", "pyspark"}))
    """
    module, unwanted = python(code, path=[runtime_zip], cwd=tmp_path).splitlines()
    assert module.startswith(str(runtime_zip))
    assert unwanted == "[]"


def test_every_runtime_module_is_importable_from_a_zip(runtime_zip: Path, tmp_path: Path) -> None:
    code = """if True:
        import importlib, pkgutil, sys
        import dfc_runtime
        for module in pkgutil.walk_packages(dfc_runtime.__path__, "dfc_runtime."):
            importlib.import_module(module.name)
        print(sorted(name for name in sys.modules if name.split(".")[0] == "dfc"))
    """
    assert python(code, path=[runtime_zip], cwd=tmp_path).strip() == "[]"


def test_command_line_starts_without_spark_or_arrow() -> None:
    heavy = {"pyspark", "pyarrow", "pandas", "numpy", "numba", "dfc_runtime"}
    code = "import sys, dfc.compiler.cli; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
