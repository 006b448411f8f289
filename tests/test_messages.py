from __future__ import annotations

import pyarrow as pa
from dfc_runtime.events import Events
from dfc_runtime.messages import Messages, routing_error


def test_texts_and_columns_mix() -> None:
    m = Messages(to="t", key=pa.array(["a", "b", None]), value=pa.array(["1", "2", "3"]))
    assert list(m.rows(3)) == [("t", "a", "1", None), ("t", "b", "2", None), ("t", None, "3", None)]
    part = m.slice(1, 3)
    assert list(part.rows(2)) == [("t", "b", "2", None), ("t", None, "3", None)]
    assert part.column("to", 2).to_pylist() == ["t", "t"]
    assert part.column("headers", 2).null_count == 2


def test_first_message_without_destination() -> None:
    assert Messages(value="v").unrouted(3) == 3
    assert Messages(to=None, value="v").unrouted(3) == 0
    assert Messages(to=pa.array(["a", None, None]), value="v").unrouted(3) == 1
    assert Messages(to=pa.array(["a", "b"]), value="v").unrouted(2) == 2


def test_routing_error_names_event_and_sink() -> None:
    batch = pa.record_batch({"position": ["01"], "event_id": ["dfid:x"]})
    text = str(routing_error(Events(batch, pipeline="p"), 0, "archive"))
    assert "archive" in text and "dfid:x" in text
    text = str(routing_error(Events(batch.select(["position"]), pipeline="p"), 0, "archive"))
    assert "01" in text
