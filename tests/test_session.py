"""Masters, and what executors elsewhere are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
from dfc_runtime import session
from dfc_runtime.shipping import write_package

SPARK_ZIP = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"


@pytest.mark.parametrize(
    ("master", "one"),
    [
        ("local", True),
        ("local[4]", True),
        ("local[*,2]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_only_a_local_master_shares_files_with_its_workers(master: str, one: bool) -> None:
    assert session.on_one_machine(master) is one


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("local", "local[1,10]"),
        ("local[2]", "local[2,10]"),
        ("local[*]", "local[*,10]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_lost_worker_is_replaced_on_a_local_master_too(asked: str, given: str) -> None:
    assert session._with_attempts(asked) == given


def test_a_cluster_keeps_its_own_addresses_and_folders() -> None:
    local = session.settings("/scratch", "local[2]")
    elsewhere = session.settings("/scratch", "spark://host:7077")
    assert set(local) - set(elsewhere) == {
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.local.dir",
    }


@pytest.mark.parametrize("ours", [None, "/some place/it's here"])
def test_a_python_that_spark_starts_has_the_modules_that_we_have(
    ours: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ours is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", ours)
    python = session._python(str(tmp_path), {})
    look = "import os, pyspark, sys; print(os.environ.get('PYTHONPATH'), pyspark.__file__, sys.argv[1:])"
    spark = {**os.environ, "PYTHONPATH": f"{SPARK_ZIP}:/somewhere"}
    command = [python, "-c", look, "a b"]
    found = subprocess.run(command, env=spark, capture_output=True, text=True, check=True).stdout
    assert found.strip() == f"{ours} {pyspark.__file__} ['a b']"


@pytest.mark.spark
def test_workers_read_pyspark_where_we_do(spark: Any) -> None:
    """Out of Spark's own zip it takes each of them three quarters of a second longer."""

    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable, "for whoever starts a Spark after us"


def test_the_package_works_out_of_its_zip(tmp_path: Path) -> None:
    """All modules, and the files that scripts need; without the one that is installed here."""
    path = write_package(str(tmp_path))
    names = zipfile.ZipFile(path).namelist()
    assert len(names) == len(set(names))
    look = """
import importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import dfc_runtime
from importlib.resources import files
modules = [m.name for m in pkgutil.walk_packages(dfc_runtime.__path__, "dfc_runtime.")]
for name in modules:
    importlib.import_module(name)
texts = [len(files("dfc_runtime.scripts").joinpath(n).read_text()) for n in ("engine.py", "driver.js")]
print(json.dumps([dfc_runtime.__file__, len(modules), texts]))
"""
    done = subprocess.run(
        [sys.executable, "-c", look, path], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    file, modules, texts = json.loads(done.stdout)
    assert file.startswith(path)
    assert modules == len([name for name in names if name.endswith(".py")]) - 1, "all but itself"
    assert min(texts) > 1000


def test_a_module_that_has_changed_since_is_shipped_without_what_python_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shipped"
    package.mkdir()
    for name in ("__init__", "same", "changed"):
        (package / f"{name}.py").write_text("x = 1\n")
    code = "import shipped.same, shipped.changed"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    (package / "changed.py").write_text("x = 'another'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dfc_runtime.shipping.__package__", "shipped")
    path = write_package(str(tmp_path))
    assert set(zipfile.ZipFile(path).namelist()) == {
        "shipped/__init__.py",
        "shipped/__init__.pyc",
        "shipped/same.py",
        "shipped/same.pyc",
        "shipped/changed.py",
    }
    look = "import shipped.changed, shipped.same as s; print(s.x, s.__cached__, shipped.changed.x)"
    env["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, "-c", look], env=env, capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.split() == ["1", "None", "another"] or "same.pyc" in done.stdout


@pytest.mark.spark
def test_executors_of_a_cluster_get_the_package_from_the_job(tmp_path: Path) -> None:
    program = """
import sys
from dfc_runtime import session
spark, _ = session.start("t", sys.argv[1], "local-cluster[1,1,1024]", {}, False)
def where(_):
    import dfc_runtime.deliver
    return dfc_runtime.deliver.__file__
print(spark.sparkContext.parallelize([0], 1).map(where).first())
spark.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "dfc_runtime.zip/dfc_runtime/deliver.py" in done.stdout
