"""`./dev.sh chaos`: the long form of the crash harness."""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from ..services import Kafka, Nats, Postgres, Redis, ServiceError
from ..services.fixtures import Services
from .campaign import Broken, Campaign, Report, Servers, fight
from .scenes import SCENES, Scene
from .weather import Weather


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev.sh chaos",
        allow_abbrev=False,
        description="Kills parts of running pipelines with SIGKILL, at random moments and under load, "
        "starts them again until all is delivered, and counts what each sink holds. Ends with 1 when "
        "an event was lost, repeated where it must not be, or out of order.",
        epilog="scenes: "
        + "; ".join(f"{s.name}: {s.master}, {s.about}" for s in SCENES.values())
        + ". Killed are the driver alone, the driver with all its processes, its Java, the source's "
        "process, Python workers and, in the cluster, executors.",
    )
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="in all (default: 200)")
    parser.add_argument("--seed", type=int, metavar="S", help="repeats the same choices")
    parser.add_argument(
        "--scene",
        action="append",
        choices=sorted(SCENES),
        help="only this one, or several; the scenes share the kills",
    )
    parser.add_argument(
        "--outages",
        action="store_true",
        help="meanwhile freeze and kill Kafka, Redis, NATS and PostgreSQL too",
    )
    parser.add_argument(
        "--per-start",
        type=int,
        default=10,
        metavar="N",
        help="kills for each start of Spark, on average (default: 10; 2 at least)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        metavar="M",
        help="each scene kills no more after so long, and counts what is there then",
    )
    parser.add_argument(
        "--abreast",
        type=int,
        default=max(1, (os.cpu_count() or 1) // 2),
        metavar="N",
        help="scenes at once (default: one for every two processors). Spark gives up on a Python that "
        "does not answer within ten seconds, so more than the machine can bear is slower",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="work there, and leave everything there")
    asked = parser.parse_args(argv)
    if asked.kills < 1:
        parser.error("--kills: at least 1")
    if asked.abreast < 1:
        parser.error("--abreast: at least 1")
    if asked.per_start < 2:
        parser.error("--per-start: at least 2")
    if asked.keep and Path(asked.keep).exists() and any(Path(asked.keep).iterdir()):
        parser.error(f"--keep: {asked.keep} is not empty")
    return asked


def shares(total: int, scenes: list[Scene]) -> list[int]:
    """The kills of each scene, as even as can be."""
    return [total // len(scenes) + (i < total % len(scenes)) for i in range(len(scenes))]


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main(argv: list[str]) -> int:
    asked = arguments(argv)
    # Whoever ends us ends what we have started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    scenes = [SCENES[name] for name in asked.scene or SCENES]
    folder = Path(asked.keep) if asked.keep else Path(tempfile.mkdtemp(prefix="dfc-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"{asked.kills} kills, seed {seed}, in {folder}")
    services, began = Services(), time.monotonic()
    campaigns: list[Campaign] = []
    weather: Weather | None = None
    broken = ""
    try:
        servers = Servers(
            services.start(Kafka),
            # What is acknowledged must outlive a kill of the server.
            services.start(Redis, config={"appendfsync": "always"}),
            services.start(Nats),
            services.start(Postgres) if any(scene.postgres for scene in scenes) else None,
        )
        parts = zip(scenes, shares(asked.kills, scenes), strict=True)
        for number, (scene, kills) in enumerate(parts):
            say(f"scene {scene.name}: {kills} kills on {scene.master}, {scene.about}")
            campaigns.append(
                Campaign(
                    scene,
                    folder / scene.name,
                    servers,
                    kills=kills,
                    per_start=asked.per_start,
                    seed=seed + number,
                    seconds=60 * asked.minutes,
                    say=say,
                )
            )
        if asked.outages:
            # Not while the last runs drain their sources: nothing is killed then.
            over = lambda: all(c.drains.is_set() for c in campaigns if c.kills)  # noqa: E731
            weather = Weather(servers.all, seed, say, over)
            weather.start()
        fight([campaign for campaign in campaigns if campaign.kills], asked.abreast)
        if weather is not None:
            weather.finish()
        for campaign in campaigns:
            if campaign.kills:
                campaign.judge()
    except Broken as problem:
        broken = str(problem)
    except ServiceError as problem:
        broken = f"a server: {problem}"
    except KeyboardInterrupt:
        broken = "interrupted"
    except Exception:
        broken = f"the harness itself:\n{traceback.format_exc()}"
    finally:
        services.guard.close()
    outages = weather.outages if weather is not None else Counter()
    reports = [campaign.report for campaign in campaigns]
    return summary(
        reports, outages, broken, seed, folder, bool(asked.keep), time.monotonic() - began
    )


def summary(
    reports: list[Report],
    outages: Counter[str],
    broken: str,
    seed: int,
    folder: Path,
    keep: bool,
    seconds: float,
) -> int:
    print("\n== summary")
    for report in reports:
        print("\n".join(report.lines()))
    if outages:
        away = ", ".join(f"{number} {what}" for what, number in outages.most_common())
        print(f"{outages.total()} outages: {away}")
    kills = sum(report.kills.total() for report in reports)
    starts = sum(report.starts for report in reports)
    events = sum(report.events for report in reports)
    print(
        f"in all: {kills} kills, {starts} starts, {events} changes, {seconds:.0f} s "
        f"({seconds / max(kills, 1):.1f} s for a kill), seed {seed}"
    )
    wrong = sum(len(report.problems) for report in reports)
    if broken:
        print(f"FAILED: {broken}")
    elif wrong:
        print(f"FAILED: {wrong} promises were broken; they are marked WRONG above")
    else:
        print(
            "passed: each event exactly once and in order in archive (file), bus (kafka, exactly "
            "once), cache (redis) and triggers (nats); none lost in loose (kafka) and screen "
            "(console)"
        )
    if broken or wrong:
        print(f"logs, database and files are in {folder}")
        return 1
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
