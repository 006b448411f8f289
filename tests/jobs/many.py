"""Jobs one after the other in one Spark, as they are asked for: `many.py FD`, and then lines on standard
input, each a job's file and its arguments in JSON. An answer is one line in the file with that number.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile

from dfc_runtime import session
from pyspark import cloudpickle


def run(path: str, arguments: list[str]) -> str:
    spec = importlib.util.spec_from_file_location("job", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["job"] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it
    sys.argv = [path, *arguments]
    try:
        module.main()
    except SystemExit as end:
        return str(end.code or 0)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return "0"


if __name__ == "__main__":
    session.start("many", tempfile.mkdtemp(), "local[2]", {}, False)
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as answers:
        for line in iter(sys.stdin.readline, ""):
            answers.write(run(*json.loads(line)) + "\n")
