"""What the processes of a job load, and what they do without."""

from __future__ import annotations

import subprocess
import sys

import dfc_runtime

LOADED = """
import sys
import pyarrow as pa
import dfc_runtime.sources.mysql, dfc_runtime.sources.postgres
assert not sys.modules.keys() & {"dfc_runtime.sinks", "dfc_runtime.job"}, "a source needs neither"
import dfc_runtime.sinks
assert "pandas" not in sys.modules, "at import"
from dfc_runtime.lean import without_pandas
without_pandas()
made = pa.array(["a", None]).to_pylist(), pa.array([1]).to_numpy().tolist()
assert made == (["a", None], [1])
pa.RecordBatch.from_pylist([{"a": 1}])
assert "pandas" not in sys.modules, "at the first array"
import pandas
print(pandas.Series([1]).sum())
"""


def test_processes_load_what_they_need_and_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr


def test_every_name_of_a_job_is_there() -> None:
    assert set(dfc_runtime.__all__) == set(dfc_runtime._MODULES)
    assert all(getattr(dfc_runtime, name) is not None for name in dfc_runtime.__all__)
