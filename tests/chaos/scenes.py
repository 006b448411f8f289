"""Where a campaign takes place: the master, the number of lanes, storage and the pipeline itself."""

from __future__ import annotations

from dataclasses import dataclass

_SPEC = """\
metadata: {{name: {name}, tenant: acme}}
spec:
  source:
    type: turso
    config: {{id: shop, url: shop.db, tables: [orders, items], cdc_mode: triggers, poll_interval_ms: 20}}
  processors:
    - type: javascript
      id: double
      on_error: dlq
      # A process of its own beside each worker, on a machine that may be busy with other things.
      limits: {{timeout_ms: 20000, cpu_ms: 20000}}
      inline: |
        (event) => {{
          if (event.op === "c" && event.after.id % 97 === 0) throw new Error("not this one");
          return event.source.table === "items" && event.after
            ? [event, {{ ...event, after: {{ copy: event.after.number }} }}]
            : event;
        }}
  sinks:
    - type: file
      config: {{id: archive, path: archive, name: "${{source.table}}", roll: {{max_events: 700}}}}
    - type: kafka
      config: {{id: bus, brokers: "${{KAFKA_BROKERS}}", topic: {name}, exactly_once: true}}
    - type: redis
      config: {{id: cache, uri: "${{REDIS_URI}}", stream: {name}}}
    - type: nats
      config: {{id: triggers, url: "${{NATS_URL}}", subject: {name}.events, stream: {stream}}}
    - type: kafka
      config: {{id: loose, brokers: "${{KAFKA_BROKERS}}", topic: {name}-loose}}
{screen}  batch: {{max_events: 50, max_ms: 5}}
  sharding: {{count: {lanes}}}
  journal: {{enabled: true, dlq: {{max_entries: 1000000}}}}
{storage}"""
_SCREEN = """\
    - type: console
      config: {id: screen}
"""
_POSTGRES = '  storage: {backend: postgres, dsn: "${POSTGRES_DSN}"}\n'

# What may be killed, and how often compared with the others. These end a run, so that Spark has to
# start anew; the job itself makes up for what each scene names.
ENDING = {"driver": 2, "family": 2, "java": 1}


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    about: str
    master: str
    lanes: int
    postgres: bool
    mending: dict[str, int]
    screen: bool = True  # without a sink that prints, tasks with one lane follow the reader

    @property
    def stream(self) -> str:
        return self.name.upper()

    @property
    def spec(self) -> str:
        return _SPEC.format(
            name=self.name,
            stream=self.stream,
            lanes=self.lanes,
            screen=_SCREEN if self.screen else "",
            storage=_POSTGRES if self.postgres else "",
        )


SCENES = {
    scene.name: scene
    for scene in (
        Scene(
            "local",
            "one lane, storage in SQLite",
            "local[2]",
            1,
            False,
            {"worker": 3, "source": 1},
            screen=False,
        ),
        Scene(
            "lanes",
            "two lanes, storage in SQLite",
            "local[2]",
            2,
            False,
            {"worker": 3, "source": 1},
        ),
        Scene(
            "cluster",
            "two lanes on executors of their own, storage in PostgreSQL",
            "local-cluster[2,1,1024]",
            2,
            True,
            {"executor": 4, "worker": 2, "source": 1},
        ),
    )
}
