"""What a log has handed out and a copy's view may still lack."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
from dfc_runtime.sources.postgres_visible import Heard, Visible

SOME, NOT_YET = Visible.parse("8:11:9"), Visible.parse("8:10:")


def test_what_was_handed_out_before_a_copy_began_is_waited_for_too() -> None:
    """A commit may be in the log before others can see it, and a table be copied from then on."""
    batch = pa.record_batch({"tx_id": pa.array(["7", "10", None])})
    heard = Heard(SimpleNamespace(read=lambda wait: [batch]))  # type: ignore[arg-type]
    heard.read(0)
    heard.listen(lambda: SOME)
    assert heard.unseen(NOT_YET), "10 is not there yet"
    assert not heard.unseen(SOME)
    heard.read(0)
    heard.listen(None)
    assert heard.unseen(NOT_YET), "a copy that begins again is not allowed to forget"
