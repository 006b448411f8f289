"""`./dev.sh up | down | status` and the helpers: `python -m tests.services COMMAND ...`."""

from __future__ import annotations

import argparse
import signal
import sys

from . import SERVERS, ServiceError, helpers, stack
from .install import install


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="./dev.sh", allow_abbrev=False)
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, *others: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, aliases=others, allow_abbrev=False)

    for name in ("install", "up", "down"):
        added = command(name)
        added.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SERVERS))
        if name == "down":
            added.add_argument("--wipe", action="store_true", help="remove their data")
    command("status")
    command("k-list")
    added = command("k-create")
    added.add_argument("topic")
    added.add_argument("partitions", nargs="?", type=int, default=1)
    for name in ("k-consume", "k-inspect"):
        added = command(name)
        added.add_argument("topic")
        added.add_argument("count", nargs="?", type=int, help="end after so many")
        added.add_argument("--from-beginning", action="store_true", help="as it is anyway")
    command("k-produce").add_argument("topic")
    added = command("redis-read")
    added.add_argument("stream")
    added.add_argument("count", nargs="?", type=int)
    command("redis-sh", "redis-cli").add_argument("arguments", nargs="*")
    added = command("nats-sub")
    added.add_argument("subject")
    added.add_argument("count", nargs="?", type=int, help="end after so many")
    added = command("nats-stream-add", "nats-stream-create")
    added.add_argument("stream")
    added.add_argument("subjects", nargs="+")
    for name in ("mysql-sh", "pg-sh"):
        command(name).add_argument("sql", nargs="?")
    return made


def main(arguments: list[str]) -> int:
    try:
        return _main(arguments)
    except ServiceError as problem:
        print(f"dev.sh: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _main(arguments: list[str]) -> int:
    # All that follows is the client's, options too.
    if arguments[0] in ("redis-sh", "redis-cli") and arguments[1:] != ["--help"]:
        helpers.redis_sh(*arguments[1:])
    asked = vars(parser().parse_args(arguments))
    names = asked.get("names", [])
    if unknown := [name for name in names if name not in SERVERS]:
        parser().error(f"no service {', '.join(unknown)}; there are: {', '.join(SERVERS)}")
    match asked.pop("command"):
        case "install":
            install(SERVERS[name] for name in names or SERVERS)
        case "up":
            return 0 if stack.up(names) else 1
        case "down":
            stack.down(names, asked["wipe"])
        case "status":
            stack.status()
        case "nats-stream-add" | "nats-stream-create":
            helpers.nats_stream_add(asked["stream"], *asked["subjects"])
        case other:
            asked.pop("from_beginning", None)
            getattr(helpers, other.replace("-", "_"))(**asked)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `./dev.sh k-consume orders | head`
    sys.exit(main(sys.argv[1:]))
