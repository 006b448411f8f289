"""`kill -9` in the middle of `dfc run`, again and again: nothing is lost or repeated in any sink.

Killed are drivers, alone and with all their processes, Java, sources, Python workers and executors. The
long form of this is `./dev.sh chaos`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .chaos.campaign import Campaign, Servers, fight
from .chaos.scenes import SCENES
from .chaos.verdict import Event, Verdict
from .services import Kafka, Nats, Postgres, Redis


@pytest.mark.spark
@pytest.mark.minutes
def test_thirty_kills_lose_and_repeat_nothing(
    tmp_path: Path,
    kafka_server: Kafka,
    redis_server: Redis,
    nats_server: Nats,
    postgres_server: Postgres,
) -> None:
    servers = Servers(kafka_server, redis_server, nats_server, postgres_server)
    campaigns = [
        Campaign(
            SCENES[name], tmp_path / name, servers, kills=kills, per_start=6, seed=30, say=print
        )
        for name, kills in (("local", 16), ("cluster", 14))
    ]
    fight(campaigns, abreast=1)
    for campaign in campaigns:
        campaign.judge()
    reports = [campaign.report for campaign in campaigns]
    print("\n".join(line for report in reports for line in report.lines()))
    assert not [problem for report in reports for problem in report.problems]
    assert sum(report.kills.total() for report in reports) == 30
    assert all(report.events > 500 for report in reports), "too little to prove anything"


# --- that the verdict sees what goes wrong --------------------------------------------


def event(number: int, table: str = "orders", **more: object) -> Event:
    row = {"id": number % 3} if table == "orders" else {"name": "x", "number": number}
    made = {"event_id": f"{number}", "before": None, "after": row}
    return {**made, "source": {"table": table, "sequence": str(number)}, **more}


def judged(*events: Event, letters: tuple[int, ...] = (), ordered: bool = True) -> list[str]:
    verdict = Verdict(5, set(letters))
    verdict.exactly_once("sink", [list(events)], ordered)
    return verdict.problems


FIVE = [event(n) for n in range(1, 6)]


def test_the_verdict_has_nothing_to_say_about_what_is_right() -> None:
    assert judged(*FIVE) == []
    assert judged(*FIVE[:3], FIVE[4], letters=(4,)) == []


def test_the_verdict_names_what_is_lost() -> None:
    assert judged(*FIVE[:3], FIVE[4]) == ["sink: 1 of 5 events lost: 4"]


def test_the_verdict_names_what_is_repeated() -> None:
    assert judged(FIVE[0], *FIVE) == ["sink: 1 repeated: 1"]
    twice = [{**FIVE[0], "event_id": "another"}, *FIVE]
    assert judged(*twice) == ["sink: 1 repeated: 1"]


def test_the_verdict_names_what_is_out_of_order() -> None:
    swapped = [FIVE[1], FIVE[0], *FIVE[2:]]
    assert judged(*swapped) == ["sink: 1 out of order: 1"]
    assert judged(*swapped, ordered=False) == [], "these are different rows"
    assert judged(*FIVE[1:], FIVE[0], ordered=False) == ["sink: 1 out of order: 1"]


def test_the_verdict_names_a_dead_letter_that_was_delivered_all_the_same() -> None:
    assert judged(*FIVE, letters=(4,)) == [
        "sink: 1 events that are dead letters or unknown: 4",
    ]


def test_the_verdict_misses_a_copy() -> None:
    items = [event(n, "items") for n in range(1, 6)]
    copies = [event(n, "items", event_id=f"{n}'", synthetic=True) for n in range(1, 6)]
    for number, copy in enumerate(copies, 1):
        copy["after"] = {"copy": number}
    pairs = [one for pair in zip(items, copies, strict=True) for one in pair]
    assert judged(*pairs) == []
    assert len(judged(*pairs[:-1])) == 2, "their number, and their place"


def test_the_verdict_on_a_sink_that_may_repeat() -> None:
    verdict = Verdict(5, set())
    verdict.at_least_once("sink", [[*FIVE[:4], *FIVE[1:]]], ordered=True)
    assert verdict.problems == []
    verdict.at_least_once("sink", [[*FIVE[:2], FIVE[3], FIVE[2], FIVE[4]]], ordered=True)
    verdict.at_least_once("sink", [FIVE[:4]], ordered=True)
    assert verdict.problems == ["sink: 1 out of order: 3", "sink: 1 of 5 events lost: 5"]
