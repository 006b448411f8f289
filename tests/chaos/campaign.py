"""A campaign: load, kills, restarts, and a verdict when the source is drained."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from dfc_runtime.storage import Storage

from ..nats_streams import Streams
from ..services import Kafka, Nats, Postgres, Redis, Server, processes
from . import load, verdict, victims
from .scenes import ENDING, Scene

PATIENCE_SECS = 300  # with Spark's start on a machine that is busy, and servers that are away


class Broken(Exception):
    """A run did what no kill explains; the message says what."""


@dataclass(frozen=True, slots=True)
class Servers:
    kafka: Kafka
    redis: Redis
    nats: Nats
    postgres: Postgres | None

    @property
    def all(self) -> list[Server]:
        named = (self.kafka, self.redis, self.nats, self.postgres)
        return [server for server in named if server is not None]

    @property
    def env(self) -> dict[str, str]:
        return {key: value for server in self.all for key, value in server.env().items()}


@dataclass(slots=True)
class Report:
    """What a campaign did and found."""

    scene: str
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    mended: int = 0  # kills after which the same run went on
    events: int = 0
    letters: int = 0
    seconds: float = 0
    held: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.kills.most_common())
        held = ", ".join(f"{sink} {number}" for sink, number in self.held.items())
        text = [
            f"{self.scene}: {self.kills.total()} kills ({kinds}), {self.mended} mended without a "
            f"restart, {self.starts} starts of Spark, {self.seconds:.0f} s",
            f"  {self.events} changes, {self.letters} of them dead letters; held: {held}",
        ]
        return text + [f"  WRONG {problem}" for problem in self.problems]


class Campaign:
    """One scene in a folder of its own."""

    def __init__(
        self,
        scene: Scene,
        folder: Path,
        servers: Servers,
        *,
        kills: int,
        per_start: int,
        seed: int,
        seconds: float = math.inf,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.scene = scene
        self.folder = folder
        self.servers = servers
        self.kills = kills
        self.per_start = per_start
        self.seed = seed
        self.report = Report(scene.name)
        self.given_up = threading.Event()
        self.drains = threading.Event()  # no kills any more
        self._say = say
        self._choice = random.Random(seed)
        self._writer = load.Writer(self.database, seed)
        self._job: subprocess.Popen[bytes] | None = None
        self._log_from = 0
        self._began = 0.0
        self._seconds = seconds

    # --- the course of it

    def fight(self) -> None:
        """Kills and restarts, until the source is drained."""
        self._began = time.monotonic()
        try:
            self._prepare()
            self._start()
            self._until(lambda: load.is_watched(self.database), "watched the tables")
            self._writer.start()
            while self.report.kills.total() < self.kills and not self._late():
                self._round()
            self._writer.finish()
            self.drains.set()
            self._drain()
        finally:
            self._end()
            if self._writer.is_alive():
                self._writer.finish()
            self.report.seconds = time.monotonic() - self._began

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "chaos.yaml").write_text(self.scene.spec, encoding="utf-8")
        load.make_database(self.database)
        admin = AdminClient({"bootstrap.servers": self.servers.kafka.address})
        topics = [NewTopic(name, self.scene.lanes, 1) for name in self._topics]
        for made in admin.create_topics(topics).values():
            made.result(60)
        streams = Streams(self.servers.nats.env()["NATS_URL"])
        # One lane does without the server's memory of ids; several need it against a runner that
        # was replaced and still has something on its way.
        window = {"duplicate_window": 0.1} if self.scene.lanes == 1 else {}
        streams.add(self.scene.stream, f"{self.scene.name}.>", **window)

    def _round(self) -> None:
        """One run of the pipeline: some kills that Spark mends, then one that ends the run."""
        left = self.kills - self.report.kills.total()
        mending = min(self._choice.randint(1, 2 * self.per_start - 3), left - 1)
        if self._job is None:
            self._start()
        for _ in range(mending):
            if self._late():
                break
            self._kill(self._pick(self.scene.mending))
        self._kill(self._pick(ENDING))

    def _late(self) -> bool:
        return self.given_up.is_set() or time.monotonic() > self._began + self._seconds

    def _pick(self, weights: dict[str, int]) -> str:
        return self._choice.choices(list(weights), list(weights.values()))[0]

    def _kill(self, kind: str) -> None:
        """One kill, in the middle of a run's work."""
        job = self._running()
        before = self._written()
        self._until(lambda: self._written() != before, "wrote anything")
        self._writer.pause = load.BUSY_SECS
        time.sleep(self._choice.random())
        self._writer.pause = load.QUIET_SECS
        found: list[list[int]] = []
        # An executor may just be on its way back.
        self._until(lambda: found.extend(victims.find(job.pid, kind)) or found, f"had a {kind}")
        if job.poll() is not None:
            raise self._broken(f"ended with {job.returncode} before it was killed")
        if not victims.kill(self._choice.choice(found)):
            return  # gone by itself, as idle workers go; it does not count
        self.report.kills[kind] += 1
        if kind in ENDING:
            self._bury(job)
        else:
            self.report.mended += 1
        number = self.report.kills.total()
        at = time.monotonic() - self._began
        self._say(
            f"{self.scene.name}: kill {number} of {self.kills}: {kind}, after {at:.0f} s with "
            f"{self._writer.changes} changes"
        )

    def _bury(self, job: subprocess.Popen[bytes]) -> None:
        """Waits for the end of a run that has lost what it cannot do without."""
        try:
            job.wait(PATIENCE_SECS)
        except subprocess.TimeoutExpired:
            raise self._broken("still there after it lost its life") from None
        self._job = None

    def _drain(self) -> None:
        self._end()
        self._start("--once")
        job = self._running()
        try:
            code = job.wait(2 * PATIENCE_SECS)
        except subprocess.TimeoutExpired:
            raise self._broken("the last run never drained the source") from None
        if code != 0:
            raise self._broken(f"the last run ended with {code}")

    # --- the job

    def _start(self, *flags: str) -> None:
        log = self.folder / "run.log"
        self._log_from = log.stat().st_size if log.exists() else 0
        self.report.starts += 1
        screen = self.folder / f"console-{self.report.starts:04}.txt"
        command = [sys.executable, "-m", "dfc.compiler.cli", "run", "chaos.yaml"]
        with log.open("ab") as err, screen.open("ab") as out:
            self._job = subprocess.Popen(
                [*command, "--master", self.scene.master, *flags],
                cwd=self.folder,
                env={**os.environ, **self.servers.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        # From then on what is written is this run's work; what a killed driver left behind may have
        # written on until then.
        self._until(lambda: '"started"' in self._said(), "started")

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._job is not None
        return self._job

    def _end(self) -> None:
        if self._job is not None:
            if self._job.poll() is None:
                victims.kill(processes.family(self._job.pid))
            self._job.wait()
            self._job = None

    def _until(self, done: Callable[[], object], what: str) -> None:
        job, deadline = self._running(), time.monotonic() + PATIENCE_SECS
        while not done():
            if job.poll() is not None:
                raise self._broken(f"ended with {job.returncode} by itself")
            if self.given_up.is_set():
                raise self._broken("given up because of another scene")
            if time.monotonic() > deadline:
                raise self._broken(f"never {what}")
            time.sleep(0.05)

    def _broken(self, what: str) -> Broken:
        return Broken(f"{self.scene.name}: {what}: {self._said()[-3000:]}")

    def _said(self) -> str:
        with (self.folder / "run.log").open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode("utf-8", "replace")

    def _written(self) -> int:
        """Bytes of output so far, finished or not: only to see that a run is at work."""
        total = 0
        for path in (self.folder / "archive").rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:  # renamed while we looked
                total += 1
        return total

    @property
    def database(self) -> Path:
        return self.folder / "shop.db"

    @property
    def _topics(self) -> tuple[str, str]:
        return self.scene.name, f"{self.scene.name}-loose"

    # --- the verdict

    def judge(self) -> None:
        """Looks at what the sinks hold, while all servers are up."""
        report, env, changes = self.report, self.servers.env, self._writer.changes
        ordered = self.scene.lanes == 1
        if self.scene.postgres:
            storage = Storage("postgres", dsn=env["POSTGRES_DSN"])
        else:
            storage = Storage("sqlite", str(self.folder / "data" / "deltaforge.db"))
        letters, problems = verdict.dead_letters(storage, self.scene.name)
        report.events, report.letters = changes, len(letters)
        if (counted := load.last_number(self.database)) != changes:
            problems.append(f"source: {counted} changes seen of {changes} that were committed")
        if not letters:
            problems.append("dead letters: there are none, though some events fail in the script")
        judge = verdict.Verdict(changes, letters, problems)
        tables, wrong = verdict.in_files(self.folder / "archive")
        judge.problems += wrong
        judge.exactly_once("archive", tables.values(), ordered)
        brokers = env["KAFKA_BROKERS"]
        judge.exactly_once("bus", verdict.in_topic(brokers, self._topics[0]), ordered)
        judge.exactly_once("cache", [verdict.in_redis(env["REDIS_URI"], self.scene.name)], ordered)
        judge.exactly_once(
            "triggers", [verdict.in_nats(env["NATS_URL"], self.scene.stream)], ordered
        )
        judge.at_least_once("loose", verdict.in_topic(brokers, self._topics[1]), ordered)
        if self.scene.screen:
            screens = sorted(self.folder.glob("console-*.txt"))
            judge.at_least_once("screen", [verdict.on_console(screens)], ordered)
        report.held, report.problems = judge.held, judge.problems


def fight(campaigns: list[Campaign], abreast: int) -> None:
    """So many of them at once, each in its own folder."""
    with ThreadPoolExecutor(abreast) as pool:
        running = [pool.submit(campaign.fight) for campaign in campaigns]
        try:
            for done in as_completed(running):
                done.result()
        finally:
            for campaign in campaigns:
                campaign.given_up.set()  # the others, when one of them has failed
