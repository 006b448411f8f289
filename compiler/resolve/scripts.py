"""Whether an inline script can be read at all: told here, at its line, and not when the job runs."""

from __future__ import annotations

import re

from ..diagnostics import Diagnostics, quote
from ..spec import Section

# Nothing behind it runs, but all of it is read first, and as strictly as it asks for.
_BEFORE = "throw 0;"
_STRICT = re.compile(r"""\s*(?:(?://[^\n]*|/\*.*?\*/)\s*)*(["'])use strict\1""", re.DOTALL)
_PLACE = re.compile(r"<input>:([0-9]+):([0-9]+)")
_FUNCTION = re.compile(r"=>|\bfunction\b|\bprocessBatch\b")


def check_script(section: Section, ident: str, diagnostics: Diagnostics) -> None:
    script = section.string("inline")
    if not _FUNCTION.search(script):
        diagnostics.error(
            "DFC425",
            section.at("inline"),
            f"the script of {quote(ident)} holds no function",
            "write `function processBatch(events) { … }`, or `(event) => …` for one at a time",
        )
        return
    try:
        import quickjs
    except ImportError:
        return  # the engine comes with the `run` extra; without it the job itself will tell
    context = quickjs.Context()
    before = '"use strict";' + _BEFORE if _STRICT.match(script) else _BEFORE
    try:
        context.eval(before + script)
    except quickjs.StackOverflow:
        diagnostics.error(
            "DFC426", section.at("inline"), f"the script of {quote(ident)} is nested too deeply"
        )
    except quickjs.JSException as error:
        what, _, trace = str(error).partition("\n")
        if not what.startswith("SyntaxError: "):
            return
        at, inside = section.at("inline"), ""
        if found := _PLACE.search(trace):
            line, col = int(found.group(1)), int(found.group(2))
            col -= len(before) if line == 1 else 0
            place = section.place("inline", line, max(col, 1))
            at, inside = place or at, "" if place else f" in its line {line}"
        message = what.removeprefix("SyntaxError: ")
        if message.endswith("''"):  # the token that is not there
            message = "it ends too soon"
        diagnostics.error(
            "DFC426", at, f"the script of {quote(ident)} is no JavaScript{inside}: {message}"
        )
