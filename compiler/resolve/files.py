"""Rules of file sinks: a folder each, and names that the sink will take."""

from __future__ import annotations

import posixpath

from ..diagnostics import Diagnostics, quote
from ..plan import FileSink, Literal, Route, spelled
from ..spec import Section

JOURNAL = ".dfc"  # where a file sink keeps its own notes
LONGEST_PART = 200  # bytes: a file system has 255, and file names grow longer than their folders


def check_name(route: Route, config: Section, diagnostics: Diagnostics) -> None:
    """What is literal of a name is known to be wrong before any event comes."""
    why = _refused(route)
    if why:
        diagnostics.error(
            "DFC423",
            config.at("name"),
            f"{quote(spelled(route))} is no name for a folder of this sink: {why}",
            "names joined by single slashes, such as `orders/${source.table}`",
        )


def check_folders(sinks: list[tuple[FileSink, Section]], diagnostics: Diagnostics) -> None:
    """Two sinks in one folder would take each other's files for their own."""
    taken: dict[str, FileSink] = {}
    for sink, config in sinks:
        folder = posixpath.normpath(spelled(sink.path))
        if folder in taken:
            first = taken[folder]
            diagnostics.error(
                "DFC422",
                config.at("path"),
                f"the sinks {quote(first.id)} and {quote(sink.id)} write to the same folder "
                f"{quote(folder)}",
                "give each a `path` of its own",
            )
        taken.setdefault(folder, sink)


def _refused(route: Route) -> str:
    steps: list[tuple[str, bool]] = [("", True)]  # text of each step, and whether it is all of it
    for part in route.parts:
        if isinstance(part, Literal):
            first, *more = part.text.split("/")
            text, whole = steps[-1]
            steps[-1] = (text + first, whole)
            steps += [(text, True) for text in more]
        else:
            steps[-1] = (steps[-1][0], False)
    if any(text == "" and whole for text, whole in steps):
        return "a step is empty"
    if steps[0] == (JOURNAL, True):
        return f"`{JOURNAL}` is where the sink keeps its journal"
    if any(len(text.encode(errors="replace")) > LONGEST_PART for text, _ in steps):
        return f"a step is longer than {LONGEST_PART} bytes"
    return ""
