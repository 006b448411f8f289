"""What a compilation costs: CPU seconds of `dfc compile` in a process of its own, nothing cached.

Targets: 0.4 s for the fan-out example, 3 s for a spec of 200 sinks and 2,000 tables.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FAN_OUT = Path(__file__).resolve().parents[2] / "examples" / "fan-out.yaml"
RUNS, SINKS, TABLES = 7, 200, 2_000
# In the order in which dfc imports them: each pays for what it is the first to need.
PARTS = ("yaml", "dfc.compiler.cli", "jinja2", "black")


def run() -> list[tuple[str, str]]:
    times = [_cpu_seconds(FAN_OUT) for _ in range(RUNS)]
    rows = [
        ("fan-out example, cold", f"{min(times):.3f} s CPU (target 0.4)"),
        (f"  median of {RUNS}", f"{statistics.median(times):.3f} s"),
        *((f"  import of {part}", f"{ms:.0f} ms") for part, ms in _imports().items()),
    ]
    with tempfile.TemporaryDirectory() as folder:
        spec, job = Path(folder, "large.yaml"), Path(folder, "job.py")
        spec.write_text(large_spec(SINKS, TABLES), "utf-8")
        times = [_cpu_seconds(spec, job) for _ in range(3)]
        rows += [
            (f"{SINKS} sinks, {TABLES:,} tables", f"{min(times):.2f} s CPU (target 3)"),
            ("  spec and job", f"{_size(spec)} and {_size(job)}"),
        ]
    return rows


def large_spec(sinks: int, tables: int) -> str:
    """Every kind of sink in turn, with templates, keys, envelopes and client settings."""
    lines = ["metadata: {name: large, tenant: acme}", "spec:"]
    lines += ["  source:", "    type: mysql", "    config:", "      id: shop"]
    lines += ["      dsn: ${MYSQL_DSN}", "      tables:"]
    lines += [f"        - shop_{n % 40}.table_{n}" for n in range(tables)]
    lines += ["  processors:", "    - {type: filter, ops: [create, update]}", "  sinks:"]
    kinds = [
        "kafka, config: {{id: s{n}, brokers: '${{K{n}}}', topic: 'a{n}.${{source.table}}',"
        " key: '${{after.id}}', client_conf: {{linger.ms: '5'}}}}",
        "redis, config: {{id: s{n}, uri: '${{R{n}}}', stream: 'b{n}:${{source.table}}'}}",
        "nats, config: {{id: s{n}, url: '${{N{n}}}', subject: 'c{n}.${{op}}',"
        " envelope: {{type: cloudevents, type_prefix: com.acme}}}}",
        "file, config: {{id: s{n}, path: './out/{n}', name: '${{source.db}}/${{source.table}}'}}",
    ]
    lines += [f"    - {{type: {kinds[n % len(kinds)].format(n=n)}}}" for n in range(sinks)]
    return "\n".join(lines) + "\n"


def _cpu_seconds(spec: Path, job: Path | None = None) -> float:
    output = ["-o", str(job)] if job else []
    command = [sys.executable, "-m", "dfc.compiler.cli", "compile", str(spec), *output]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return used.ru_utime + used.ru_stime


def _imports() -> dict[str, float]:
    """Milliseconds of CPU for each import, the least of several processes."""
    code = "import time\nat = time.process_time()\n" + "".join(
        f"import {part}\nnow = time.process_time()\nprint(now - at)\nat = now\n" for part in PARTS
    )
    runs = []
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        runs.append([1000 * float(line) for line in done.stdout.splitlines()])
    return {part: min(times) for part, times in zip(PARTS, zip(*runs, strict=True), strict=True)}


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1024:,.0f} KiB"
