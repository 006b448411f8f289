"""Jars from Maven Central, as `kafka-jars.txt` lists them: a Kafka broker without Maven."""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .base import ServiceError

LIST = Path(__file__).with_name("kafka-jars.txt")
CENTRAL = "https://repo1.maven.org/maven2"


@dataclass(frozen=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"


def listed(of: Path = LIST) -> list[Jar]:
    lines = of.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [Jar(*f"{coordinates}:{sha256}".split(":")) for coordinates, sha256 in rows]


def folder() -> Path:
    """Shared by all checkouts of a user; named after the list, so that a new one gets its own."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    (version,) = (jar.version for jar in listed() if jar.artifact.startswith("kafka_"))
    stamp = hashlib.sha256(LIST.read_bytes()).hexdigest()[:8]
    return cache / "dfc" / f"kafka-{version}-{stamp}"


def complete() -> bool:
    """A jar gets its name only once it is whole, so its being there is enough."""
    there = folder()
    return all((there / jar.file).is_file() for jar in listed())


def repository() -> str:
    """MAVEN_REPO, or the mirror that the user's Maven goes through, or Maven Central."""
    if asked := os.environ.get("MAVEN_REPO"):
        return asked.rstrip("/")
    with contextlib.suppress(OSError, ElementTree.ParseError):
        settings = ElementTree.parse(Path.home() / ".m2" / "settings.xml")
        for mirror in settings.iterfind(".//{*}mirror"):
            of = (mirror.findtext("{*}mirrorOf") or "").split(",")
            url = mirror.findtext("{*}url")
            if url and {"central", "*", "external:*"} & {name.strip() for name in of}:
                return url.strip().rstrip("/")
    return CENTRAL


def fetch() -> None:
    """Downloads what is not there yet."""
    there = folder()
    there.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    there.mkdir(exist_ok=True, mode=0o700)
    wanted = [jar for jar in listed() if not (there / jar.file).is_file()]
    if wanted:
        base = repository()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda jar: _fetch(base, jar, there), wanted))


def _fetch(base: str, jar: Jar, there: Path) -> None:
    content = download(base, jar, LIST)
    part = there / f"{jar.file}.{os.getpid()}.part"
    part.write_bytes(content)
    part.rename(there / jar.file)


def download(base: str, jar: Jar, of: Path) -> bytes:
    url = f"{base}/{jar.path}"
    for attempt in range(3):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content: bytes = answer.read()
            break
        except (OSError, urllib.error.URLError) as error:
            if attempt == 2:
                hint = "MAVEN_REPO names another Maven repository"
                raise ServiceError(f"{url}: {error} ({hint})") from error
    if (found := hashlib.sha256(content).hexdigest()) != jar.sha256:
        raise ServiceError(f"{url} has checksum {found}, not {jar.sha256} of {of.name}")
    return content
