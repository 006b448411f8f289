"""Arrays and composites of PostgreSQL as JSON lists and objects, whatever stands inside what.

Their text quotes that of their parts, and that again what is in these. The text of a part is put without its
quotes behind that of the whole, in a scratch array; parts that have parts themselves go on a stack.
"""

from __future__ import annotations

from typing import Any

from .jsontext import copy
from .postgres_program import ARRAY

# A frame of the stack: what is being read of an array or a composite.
_NODE, _AT, _END, _STATE, _LEVEL, _BASE = range(6)
FRAME = 6
_OPENED, _WANTS, _BEHIND = 1, 2, 3  # states of an array: behind `{`, a comma, an element

# The cursor: how deep the stack and how full the scratch array is, and the part that was found.
DEPTH, TOP, PART, PART_END, PART_NODE = range(5)

# What `next_part` returns instead of the new end of what is written.
ODD, FULL = -1, -2


def begin_nested(
    node: int, data: Any, at: int, end: int, scratch: Any, frames: Any, cursor: Any
) -> None:
    """Makes the text of an array or a composite the one that `next_part` reads."""
    cursor[TOP] = copy(data, at, end, scratch, 0)
    cursor[DEPTH] = 0
    frames[0, _NODE] = node
    frames[0, _AT] = 0
    frames[0, _END] = cursor[TOP]
    frames[0, _STATE] = 0
    frames[0, _LEVEL] = 0
    frames[0, _BASE] = 0


def next_part(
    nodes: Any,
    entries: Any,
    labels: Any,
    out: Any,
    used: int,
    scratch: Any,
    view: Any,
    frames: Any,
    cursor: Any,
) -> int:
    """Goes on to the next part without parts, and writes to `out` what stands before it.

    The part is view[cursor[PART]:cursor[PART_END]]; cursor[DEPTH] is -1 when there is none any more.
    `view` is the same memory as `scratch`, for reading. ODD for a text that its type does not have.
    """
    depth = cursor[DEPTH]
    top = cursor[TOP]
    while depth >= 0:
        node = frames[depth, _NODE]
        at = frames[depth, _AT]
        stop = frames[depth, _END]
        state = frames[depth, _STATE]
        level = frames[depth, _LEVEL]
        if used + 64 > len(out):
            return FULL
        part = -1
        part_end = -1
        part_node = nodes[node, 1]
        quoted = False
        null = False
        closed = False
        array = nodes[node, 0] == ARRAY
        delimiter = nodes[node, 2] if array else 44
        close = 125 if array else 41
        if array:
            if level == 0 and at < stop and view[at] == 91:  # lower bounds: [2:4]={...}
                while at < stop and view[at] != 61:
                    at += 1
                at += 1
            if at >= stop:
                return ODD
            c = view[at]
            if level == 0 and c != 123:
                return ODD
            if c == 125:
                if state == _WANTS:
                    return ODD
                out[used] = 93
                used += 1
                at += 1
                level -= 1
                state = _BEHIND
                if level == 0:
                    if at != stop:
                        return ODD
                    closed = True
            elif state == _BEHIND:
                if c != delimiter:
                    return ODD
                out[used] = 44
                used += 1
                at += 1
                state = _WANTS
            elif c == 123:
                out[used] = 91
                used += 1
                at += 1
                level += 1
                state = _OPENED
            else:
                part = at
                state = _BEHIND
        else:
            if level == 0:
                if at >= stop or view[at] != 40:
                    return ODD
                at += 1
                level = 1
            if at >= stop:
                return ODD
            count = nodes[node, 4]
            if state == count:
                if view[at] != 41 or at + 1 != stop:
                    return ODD
                if count == 0:
                    out[used] = 123
                    used += 1
                out[used] = 125
                used += 1
                closed = True
            else:
                if state > 0:
                    if view[at] != 44:
                        return ODD
                    at += 1
                    if at >= stop:
                        return ODD
                entry = nodes[node, 3] + state
                part_node = entries[entry, 0]
                label = entries[entry, 1]
                label_end = entries[entry, 2]
                if used + 64 + label_end - label > len(out):
                    return FULL
                out[used] = 123 if state == 0 else 44  # instead of the comma that labels begin with
                used = copy(labels, label + 1, label_end, out, used + 1)
                state += 1
                part = at
                null = view[at] == 44 or view[at] == 41
        if part >= 0 and not null:
            quoted = view[at] == 34
            if quoted:
                at += 1
                part = top
                part_end = top
                while True:
                    if at >= stop:
                        return ODD
                    c = view[at]
                    at += 1
                    if c == 34:
                        if array or at >= stop or view[at] != 34:
                            break
                        at += 1
                    elif c == 92:
                        if at >= stop:
                            return ODD
                        c = view[at]
                        at += 1
                    scratch[part_end] = c
                    part_end += 1
            else:
                while at < stop and view[at] != delimiter and view[at] != close:
                    at += 1
                part_end = at
                if part == part_end:
                    return ODD
                null = (
                    array
                    and part_end - part == 4
                    and view[part] == 78
                    and view[part + 1] == 85
                    and view[part + 2] == 76
                    and view[part + 3] == 76
                )
        if closed:
            top = frames[depth, _BASE]
            depth -= 1
            continue
        frames[depth, _AT] = at
        frames[depth, _STATE] = state
        frames[depth, _LEVEL] = level
        if null:
            out[used] = 110
            out[used + 1] = 117
            out[used + 2] = 108
            out[used + 3] = 108
            used += 4
        elif part >= 0:
            above = max(top, part_end)
            if nodes[part_node, 0] < ARRAY:
                cursor[DEPTH] = depth
                cursor[TOP] = top
                cursor[PART] = part
                cursor[PART_END] = part_end
                cursor[PART_NODE] = part_node
                return used
            depth += 1
            frames[depth, _NODE] = part_node
            frames[depth, _AT] = part
            frames[depth, _END] = part_end
            frames[depth, _STATE] = 0
            frames[depth, _LEVEL] = 0
            frames[depth, _BASE] = top
            top = above
    cursor[DEPTH] = -1
    return used


HELPERS = (begin_nested, next_part)
