"""The Spark session of a job: quiet, local by default, and quick with small epochs."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import threading
from typing import Any

from .shipping import write_package

_LOGGING = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSSX}} %p %c{{1}}: %m%n%ex
"""


# Events pass Java by in whole segments; what it does is start and plan, and there its optimising
# compiler only takes the processor away from everybody else.
_QUICK_JAVA = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"

_GREETINGS = (
    "WARNING: Using incubator modules",
    "Setting default log level to",
    "To adjust logging level use",
)


# Tasks report what goes wrong with a sink; one that fails has lost its worker, and is worth another:
# each attempt goes on where the sinks stand, so that a long epoch may lose several.
_ATTEMPTS = 10

_hushed = threading.Event()


def on_one_machine(master: str) -> bool:
    """Whether workers share memory and files with the driver; `local-cluster` acts as if not."""
    return re.match(r"local($|\[)", master) is not None


def _with_attempts(master: str) -> str:
    """Spark gives up at the first lost worker on a local master unless the master says otherwise."""
    found = re.fullmatch(r"local(?:\[\s*([0-9]+|\*)\s*\])?", master)
    return f"local[{found[1] or 1},{_ATTEMPTS}]" if found else master


def settings(scratch: str, master: str) -> dict[str, str]:
    """What a job sets unless --conf says otherwise."""
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # One lane is one partition and nothing is shuffled: planning for more only takes time.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        "spark.python.worker.reuse": "true",
        "spark.task.maxFailures": str(_ATTEMPTS),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # The checkpoint is scratch for one run, so it may do without checksums and atomic renames.
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # The reader waits for news inside latestOffset; a second wait would only add to it.
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.driver.maxResultSize": "0",
    }
    if master.startswith("local"):
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.local.dir"] = os.path.join(scratch, "local")
    if master.startswith("local-cluster"):
        chosen["spark.executor.extraJavaOptions"] = _QUICK_JAVA
    return chosen


def start(
    name: str, scratch: str, master: str | None, conf: dict[str, str], verbose: bool
) -> tuple[Any, bool]:
    """A session, and whether it was made here (else it belongs to someone who will stop it)."""
    # Workers must be this very Python: the one on the PATH may lack pyarrow, or this package. Only
    # somebody who has machines of another make can know better.
    os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python") or sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate(), False

    if not verbose:
        # It logs the whole traceback of a lost connection, which is said in one line elsewhere,
        # and it does so through the root logger as well as its own.
        logging.getLogger().addFilter(lambda record: record.module != "java_gateway")
        logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has said the master
    chosen = SparkConf(loadDefaults=submitted)
    if master or not submitted:
        chosen.setMaster(_with_attempts(master or "local[*]"))
    master = chosen.get("spark.master") or ""
    usual = {name: os.environ[name] for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    if master.startswith("local") and not submitted:
        os.environ["PYSPARK_DRIVER_PYTHON"] = python = _python(scratch, conf)
        os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python") or python
    chosen.setAppName(f"dfc-{name}")
    for key, value in {**settings(scratch, master), **conf}.items():
        chosen.set(key, value)
    level = "warn" if verbose else "off"
    if submitted:
        chosen.set("spark.log.level", level.upper())
    else:
        log4j = os.path.join(scratch, "log4j2.properties")
        with open(log4j, "w") as file:
            file.write(_LOGGING.format(level=level))
        ours = f"-Dlog4j2.configurationFile={log4j} "
        if master.startswith("local"):
            from .archive import java_options

            ours += f"{_QUICK_JAVA} {java_options()}"
        else:
            ours += "-XX:+UseParallelGC"
        options = chosen.get("spark.driver.extraJavaOptions") or ""
        chosen.set("spark.driver.extraJavaOptions", f"{ours} {options}".strip())
    context = SparkContext(conf=chosen, gateway=None if submitted else _gateway(chosen, verbose))
    os.environ.update(
        usual
    )  # the scratch folder goes with this job, and others may come in this process
    if not on_one_machine(master):
        context.addPyFile(write_package(scratch))
    accumulators = getattr(context, "_accumulatorServer", None)
    if accumulators is not None and not verbose:
        accumulators.handle_error = lambda request, address: None  # the same for its connection
    return SparkSession(context), True


def _python(scratch: str, conf: dict[str, str]) -> str:
    """This Python, as Spark is to start it on this machine: with the modules that we have ourselves.

    Spark puts its own copy of pyspark before them, a zip that each process compiles anew, which takes it
    three quarters of a second; a job starts six.
    """
    path = os.path.join(scratch, "python")
    ours = (conf.get("spark.executorEnv.PYTHONPATH"), os.environ.get("PYTHONPATH"))
    places = os.pathsep.join(filter(None, ours))
    modules = f"export PYTHONPATH={shlex.quote(places)}" if places else "unset PYTHONPATH"
    with open(path, "w") as script:
        script.write(f'#!/bin/sh\n{modules}\nexec {shlex.quote(sys.executable)} "$@"\n')
    os.chmod(path, 0o700)
    return path if os.access(path, os.X_OK) else sys.executable  # a disk may allow no programs


def _gateway(conf: Any, verbose: bool) -> Any:
    """Java in a session of its own: a Ctrl-C or a signal to our process group is for us alone.

    It still ends with us, whatever happens, because its standard input ends then.
    """
    from pyspark.java_gateway import launch_gateway

    if verbose:
        return launch_gateway(conf, popen_kwargs={"start_new_session": True})
    _hushed.clear()
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="java-stderr", daemon=True).start()
    try:
        return launch_gateway(conf, popen_kwargs={"start_new_session": True, "stderr": writing})
    finally:
        os.close(writing)


def hush() -> None:
    """From now on Java's complaints are about being stopped, which is no news."""
    _hushed.set()


def _pass_on(reading: int) -> None:
    """Java's standard error without the greetings that no setting of Spark's turns off."""
    with open(reading, errors="replace") as lines:
        for line in lines:
            if not (_hushed.is_set() or line.startswith(_GREETINGS)):
                sys.stderr.write(line)
                sys.stderr.flush()
