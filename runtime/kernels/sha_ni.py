"""SHA-256 by the instructions that most processors have for it, for kernels compiled on one of them."""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

EDITION = 1  # raised with each change below: compiled kernels are kept by it
_WORDS = ir.VectorType(ir.IntType(32), 4)


def there() -> bool:
    """Whether this processor has them, and numba compiles for this processor."""
    if "NUMBA_CPU_NAME" in os.environ or "NUMBA_CPU_FEATURES" in os.environ:
        return False
    from llvmlite.binding import get_host_cpu_features

    return bool(get_host_cpu_features().get("sha"))


def mix(message: Any, at: int, words: Any, steps: Any, state: Any) -> None:
    """As sha256.mix; compiled only."""
    if EDITION:
        _mix_block(message, at, steps, state)


@intrinsic
def _mix_block(_: Any, message: Any, at: Any, steps: Any, state: Any) -> Any:
    return types.void(message, at, steps, state), _emit


def _emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    def call(name: str, *given: Any) -> Any:
        kind = ir.FunctionType(_WORDS, [_WORDS] * len(given))
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")
        return builder.call(function, given)

    def pick(one: Any, other: Any, *which: int) -> Any:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), 4), list(which))
        return builder.shuffle_vector(one, other, mask)

    def place(index: int, offset: Any) -> Any:
        array = context.make_array(signature.args[index])(context, builder, arguments[index])
        where = builder.gep(array.data, [offset])
        return builder.bitcast(where, _WORDS.as_pointer())

    def number(value: int) -> Any:
        return context.get_constant(types.intp, value)

    def load(index: int, offset: Any) -> Any:
        return builder.load(place(index, offset), align=1)

    at = context.cast(builder, arguments[1], signature.args[1], types.intp)
    low, high = load(3, number(0)), load(3, number(4))
    # The instructions want the state as F E B A and H G D C.
    old = abef, cdgh = pick(low, high, 5, 4, 1, 0), pick(low, high, 7, 6, 3, 2)
    words = [call("bswap.v4i32", load(0, builder.add(at, number(16 * part)))) for part in range(4)]
    for group in range(16):
        if group >= 4:
            # Four more words of the schedule out of the last sixteen.
            between = pick(words[-2], words[-1], 1, 2, 3, 4)
            mixed = builder.add(call("x86.sha256msg1", words[-4], words[-3]), between)
            words = [*words[1:], call("x86.sha256msg2", mixed, words[-1])]
        word = words[-1] if group >= 4 else words[group]
        step = builder.add(word, load(2, number(4 * group)))
        cdgh = call("x86.sha256rnds2", cdgh, abef, step)
        abef = call("x86.sha256rnds2", abef, cdgh, pick(step, step, 2, 3, 2, 3))
    abef, cdgh = builder.add(abef, old[0]), builder.add(cdgh, old[1])
    builder.store(pick(abef, cdgh, 3, 2, 7, 6), place(3, number(0)), align=1)
    builder.store(pick(abef, cdgh, 1, 0, 5, 4), place(3, number(4)), align=1)
    return context.get_dummy_value()
