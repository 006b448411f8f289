"""A job: arguments, environment and checks first, then Spark, then epoch after epoch."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import pyarrow as pa

from . import session as spark_session
from .batch import Batch
from .commit import Settle
from .deadletters import DeadLetters, Journal
from .deliver import Delivery, Process
from .env import Env, expand
from .errors import ConfigError, DfcError, MissingEnv, TakenOver, WrongUsage
from .events import EVENT_COLUMNS, Events
from .failure import failure_line
from .features import check_all, check_needs
from .follow import FOLLOW_SECS
from .lease import Lease
from .policy import CommitPolicy
from .positions import Positions
from .progress import progress_for
from .record import Recording, record_sink
from .roll_call import roll_call
from .scratch import Scratch
from .sinks import DryRunSink, Lane, Sink
from .sources import BUILT, register
from .storage import Backend, Storage
from .storage.flags import add_flags, chosen
from .watch import Watch

_FAILED, _USAGE = 1, 2
_OF_SOURCES = ("dfc_", "turso_")  # needs of a job that have to do with its source


class Source(Protocol):
    """What a job needs to know of its source; dfc_runtime.sources has the real ones."""

    @property
    def id(self) -> str: ...

    def options(self) -> dict[str, str]: ...


class Job:
    """One pipeline's run, as job.py drives it: session, options, deliver, settle, run."""

    def __init__(
        self,
        name: str,
        *,
        sinks: Callable[[Env], Sequence[Sink]],
        tenant: str | None = None,
        env: Sequence[str] = (),
        storage: Storage | None = None,
        batch: Batch | None = None,
        lanes: int = 1,
        lane_key: str = "",
        journal: Journal | None = None,
        sink_batch_deadline_secs: int | None = None,
        needs: Sequence[str] = (),
        argv: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.tenant = tenant or None
        self.batch = batch or Batch()
        self.lanes = lanes
        self.lane_key = lane_key
        self.journal = journal
        self.sink_batch_deadline_secs = sink_batch_deadline_secs
        self.args = _arguments(name, sys.argv[1:] if argv is None else argv)
        self.progress = progress_for(name)
        self._stop = threading.Event()
        self._signals = 0
        self._handlers: dict[int, Any] = {}
        self._running = False
        self._scratch: Scratch | None = None
        self._spark: Any = None
        self._own_spark = False
        self._storage: Backend | None = None
        self._kept: Storage | None = None  # what the open storage is, for the tasks
        self._lease: Lease | None = None
        self._positions: Positions | None = None
        self._start = ""
        self._settle: Settle | None = None
        try:
            # A recording connects to the source alone, whose reader looks for its own variables.
            self.env = Env.stand_in(env, os.environ) if self.args.record else Env.require(env)
            self._storage_named = chosen(storage or Storage(), vars(self.args))
            self._storage_spec = self._storage_named.filled(self._fill_storage)
            self.sinks = tuple(sinks(self.env))
            self._standing = tuple(sink.id for sink in self.sinks), lanes
            if self.args.record:
                self._become_recording()
                needs = [name for name in needs if name.startswith(_OF_SOURCES)]
            elif self.args.dry_run:
                self.sinks = tuple(DryRunSink(sink) for sink in self.sinks)
            check_all(
                (
                    self._storage_spec.check,
                    lambda: check_needs(needs),
                    *(sink.check for sink in self.sinks),
                )
            )
        except DfcError as error:
            self._fail(error)

    # --- the steps of job.py -----------------------------------------------------------------

    def session(self) -> Any:
        """Starts Spark."""
        self._listen()
        self._scratch = Scratch(self.name)
        atexit.register(self._leave)
        conf = dict(_conf(item) for item in self.args.conf)
        try:
            self._take_lease()
            self._spark, self._own_spark = spark_session.start(
                self.name, str(self._scratch.path), self.args.master, conf, self.args.verbose
            )
        except Exception as error:
            self._fail(error)
        self._listen()  # once more: Spark has put its own handler for Ctrl-C
        return self._spark

    def options(self, source: Source) -> dict[str, str]:
        """Options of the reader: the source's own settings, and what this run adds to them."""
        scratch = self._scratch
        assert scratch is not None, "session() comes first"
        try:
            if (format := getattr(source, "format", "")) in BUILT:
                register(self._spark, format)  # no other: to load them all takes half a second
        except Exception as error:
            self._fail(error)
        try:
            self._positions = self._load_positions(source.id)
            self._start = self._positions.start
            if self.args.record:
                self._positions = Positions(
                    None, self.name, source.id, [sink.id for sink in self.sinks], self.lanes
                )
        except (DfcError, OSError) as error:
            self._fail(error)
        local = spark_session.on_one_machine(str(self._spark.sparkContext.master))
        ticks = [sink.tick_secs for sink in self.sinks if sink.tick_secs > 0]
        carried = {"columns": " ".join(EVENT_COLUMNS)} if self.args.record else {}
        return {
            **source.options(),
            **carried,
            "pipeline": self.name,
            "tenant": self.tenant or "",
            "start": self._start,
            "storage": self._storage_option(),
            "folder": str(scratch.segments),
            "carry": "file" if local else "inline",
            "lanes": str(self.lanes),
            "lane_key": self.lane_key,
            "batch_max_events": str(self.batch.max_events),
            "batch_max_bytes": str(self.batch.max_bytes),
            "batch_max_ms": str(self.batch.max_ms),
            "tick_secs": str(min(ticks, default=0)),
            "packed": "true",
            "sinks": json.dumps([sink.id for sink in self.sinks]),
        }

    def deliver(
        self, process: Process | None = None
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """The function for mapInArrow."""
        if process is None or self.args.record:
            process = _unchanged
        if self._spark is not None:
            # Spark keeps workers by their environment. In a pool of their own, those that deliver do not
            # change places with those that read, and sinks find the clients of the epoch before.
            self._spark.sparkContext.environment["DFC_WORKER"] = "deliver"
        delivery = Delivery(
            self.name,
            self.tenant,
            self.lanes,
            process,
            self.sinks,
            self.batch,
            self._dead_letters(),
            self.sink_batch_deadline_secs,
        )
        return delivery.in_plan()

    def _dead_letters(self) -> DeadLetters | None:
        """The queue; one for this run only when nothing is to be kept."""
        if self.journal is None:
            return None
        if self._storage is None:
            assert self._scratch is not None
            here = Storage("sqlite", str(self._scratch.path / "letters.db"))
            return DeadLetters(self.journal, here, self.name)
        assert self._kept is not None
        local = spark_session.on_one_machine(str(self._spark.sparkContext.master))
        if not local and not self._kept.shared:
            self._fail(
                ConfigError(
                    "a dead letter queue in SQLite needs workers on the driver's machine: "
                    "use storage in PostgreSQL, run on a local master, or turn `journal` off"
                )
            )
        return DeadLetters(self.journal, self._kept, self.name)

    def settle(self, policy: CommitPolicy) -> Callable[[Any, int], None]:
        """The function for foreachBatch."""
        assert self._positions is not None, "options() comes first"
        ids = tuple(sink.id for sink in self.sinks)
        if self.args.record:
            policy = CommitPolicy.required(*ids)
        assert self._scratch is not None
        self._settle = Settle(
            policy,
            self._positions,
            ids,
            self.progress,
            self._stop,
            self._scratch.ceiling,
            patient=self.args.once,
            follow_secs=self._follow_secs(),
        )
        return self._settle

    def _follow_secs(self) -> float:
        """How long a task may go on with segments that come later: it must see them, and alone."""
        local = spark_session.on_one_machine(str(self._spark.sparkContext.master))
        # What a sink prints comes with the acks, at the end of an epoch: people would wait for it.
        prints = any(type(sink).output is not Sink.output for sink in self.sinks)
        return FOLLOW_SECS if local and self.lanes == 1 and not (self.args.once or prints) else 0

    def run(self, writer: Any) -> None:
        """Runs epochs until the source is drained (--once), someone stops the job, or it fails."""
        assert self._scratch is not None and self._settle is not None
        trigger = {"availableNow": True} if self.args.once else {"processingTime": "0 seconds"}
        self.progress.started(
            sinks=[sink.id for sink in self.sinks],
            start=self._start,
            once=self.args.once or None,
            dry_run=self.args.dry_run or None,
        )
        self._running = True

        def start(checkpoint: str) -> Any:
            return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()

        lane, positions = Lane(self.name, 0, self.lanes), self._settle.positions
        try:
            if not self.args.dry_run:
                roll_call(
                    self.sinks,
                    lambda sink: dataclasses.replace(lane, known=positions.of(sink)[0]),
                    self._settle.policy,
                    lambda sink, why: self.progress.say(
                        "warning", "sink is not ready", sink=sink, reason=why
                    ),
                    self._stop,
                )
            Watch(
                start,
                self._settle,
                self._scratch,
                self.progress,
                {sink.id: sink for sink in self.sinks},
                lane,
                rewind=not self.args.once,
            ).run()
            if not self.args.dry_run and not self._settle.cut:  # a worker may be writing yet
                for sink in self.sinks:
                    sink.finish(self.name)
        except Exception as error:
            if not self._stop.is_set():
                self._fail(error)
            # Whoever stopped us may have stopped Java or the workers as well. What the last epoch
            # did not commit is delivered by the next run.
            self.progress.say("warning", "cut short", reason=failure_line(error))
        if self._lease is not None and not self._lease.held:
            self._fail(TakenOver(self.name))
        left_behind = sorted(self._settle.away)
        # First, because Spark's client may complain about a Java that has gone: the last word is ours.
        self._leave()
        try:
            self.progress.stopped(left_behind=left_behind or None)
        except OSError as error:  # a recording that cannot be written
            self._fail(error)
        if isinstance(self.progress, Recording) and not self.progress.lines:
            sys.exit(_FAILED)

    def _become_recording(self) -> None:
        """The same start as a dry run's, but one sink that takes the events as the source has them."""
        self.progress = Recording(self.name, self.args.record, self.args.record_to, self.stop)
        self.sinks = (record_sink(),)
        self.lanes = 1  # in the order of the log

    # --- stopping ----------------------------------------------------------------------------

    def stop(self) -> None:
        """Asks for a clean stop: the running epoch ends, nothing new begins."""
        self._stop.set()
        spark_session.hush()
        if self._scratch is not None:
            self._scratch.ask_stop()

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers.setdefault(number, signal.getsignal(number))
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signals += 1
        if self._signals > 1:
            # Java ends when our end of its standard input closes.
            os._exit(128 + number)
        self.stop()
        if not self._running:
            raise SystemExit(0)

    def _take_lease(self) -> None:
        """Opens storage, and makes sure that nobody else runs this pipeline on it."""
        if self.args.dry_run or self.args.record or self._storage_spec.backend == "memory":
            return
        self._open(self._storage_spec)
        assert self._storage is not None
        self._lease = Lease(self._storage, self.name, self.stop)
        self._lease.acquire(lambda why: self.progress.say("info", "waiting", reason=why))

    def _open(self, spec: Storage) -> None:
        if spec.backend == "sqlite":
            spec = dataclasses.replace(spec, path=os.path.abspath(spec.path))
        self._kept, self._storage = spec, spec.open()

    def _fill_storage(self, text: str) -> str:
        # A recording makes do without most variables, but a database is not found without its own.
        postgres = self._storage_named.backend == "postgres"
        return expand(text) if postgres else self.env.fill(text)

    def _storage_option(self) -> str:
        """For the reader, which fills references in by itself: a password stays out of Spark."""
        if self._storage is None or self._kept is None:
            return ""
        return (self._storage_named if self._kept.shared else self._kept).text

    def _leave(self) -> None:
        """Lets everything go; also when the process ends half way through its start."""
        atexit.unregister(self._leave)
        if self._own_spark and self._spark is not None:
            self._own_spark = False
            with contextlib.suppress(Exception):  # Java may have gone before us
                self._spark.stop()
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        if self._lease is not None:
            with contextlib.suppress(Exception):  # storage may be gone: the lease ends by itself
                self._lease.release()
            self._lease = None
        if self._storage is not None:
            self._storage.close()
            self._storage = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _fail(self, error: Exception) -> NoReturn:
        line = failure_line(error)
        self.progress.close()
        if self.args.verbose:
            import traceback

            traceback.print_exception(error)
        if sys.stderr.isatty() or not self._running:
            print(f"{self.name}: error: {line}", file=sys.stderr, flush=True)
        else:
            self.progress.say("error", "failed", reason=line)
        self._leave()
        sys.exit(_USAGE if isinstance(error, (MissingEnv, WrongUsage)) else _FAILED)

    def _load_positions(self, source_id: str) -> Positions:
        assert self._scratch is not None
        spec = self._storage_spec
        if spec.backend == "memory":
            spec = Storage("sqlite", str(self._scratch.path / "state.db"))
        ids, lanes = self._standing
        if not self.args.dry_run:
            if self._storage is None:
                self._open(spec)
            guard = self._lease.guard if self._lease is not None else None
            return Positions(self._storage, self.name, source_id, ids, lanes, guard=guard)
        # A dry run begins where the sinks stand, and leaves no trace.
        known = spec.find()
        try:
            return Positions(known, self.name, source_id, ids, lanes, keep=False)
        finally:
            if known is not None:
                known.close()


def _unchanged(events: Events) -> Events:
    return events


def _conf(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals or not key:
        raise ConfigError(f"--conf takes KEY=VALUE, not {item!r}")
    return key, value


def _arguments(name: str, argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=os.path.basename(sys.argv[0]) or name, description=f"Runs the pipeline {name}."
    )
    parser.add_argument("--once", action="store_true", help="end when the source is drained")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what the sinks would get; send and keep nothing",
    )
    parser.add_argument(
        "--record",
        type=int,
        default=0,
        metavar="N",
        help="write the next N events to --record-to and stop; send and keep nothing",
    )
    parser.add_argument("--record-to", metavar="FILE", help="where --record puts them, a line each")
    parser.add_argument("--master", help="Spark master (default: local[*])")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's"
    )
    add_flags(parser)
    parser.add_argument("--verbose", action="store_true", help="tracebacks and Spark's warnings")
    args = parser.parse_args(argv)
    if args.record < 0 or bool(args.record) != bool(args.record_to):
        parser.error("--record N and --record-to FILE go together")
    args.dry_run = args.dry_run or args.record > 0
    for item in args.conf:
        if "=" not in item.lstrip("="):
            parser.error(f"--conf takes KEY=VALUE, not {item!r}")
    return args
