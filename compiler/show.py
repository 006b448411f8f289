"""The plan for people: a tree for the terminal, a Mermaid graph for documents."""

from __future__ import annotations

from .diagnostics import printable
from .plan import JavaScript, Plan, Processor, Sink, kind_of
from .resolve.sinks import destination

_MEANS = {"arrow": "Arrow column expressions", "kernel": "a kernel over JSON text"}


def tree(plan: Plan) -> str:
    source = plan.source
    lines = [
        f"pipeline {plan.name}  (tenant {plan.tenant})",
        f"├─ source {kind_of(source)} `{source.id}`  {source.span}",
        *(f"│    {line}" for line in _tables(plan)),
    ]
    for step in plan.passes:
        fused = f", {len(step.steps)} in one pass" if len(step.steps) > 1 else ""
        lines.append(f"├─ pass: {step.engine}{fused}")
        for processor in step.steps:
            lines.append(f"│    {kind_of(processor)} `{processor.id}`  {processor.span}")
            lines.append(f"│      runs {_runs(processor)}")
            lines.append(f"│      reads {_reads(processor.reads)}")
    for sink in plan.sinks:
        rule = "required" if sink.delivery.required else "best effort"
        lines.append(f"├─ sink {kind_of(sink)} `{sink.id}`, {rule}  {sink.span}")
        lines.append(f"│    to {destination(sink)}, {_envelope(sink)}")
        lines.append(f"│    reads {_reads(sink.delivery.reads)}")
    batch, commit = plan.batch, plan.commit
    whole = "whole transactions" if batch.respect_source_tx else "cut anywhere"
    policy = f"{commit.quorum} of " if commit.mode == "quorum" else ""
    lines += [
        f"├─ batch: {batch.max_events} events, {batch.max_bytes} bytes or {batch.max_ms} ms, {whole}",
        f"├─ commit: {commit.mode}, {policy}{', '.join(commit.sinks)}",
        f"├─ lanes: {plan.lanes.count}",
        f"├─ storage: {plan.storage.backend}",
        f"├─ columns carried: {' '.join(plan.columns)}",
        f"└─ environment: {', '.join(plan.env) or 'none needed'}",
    ]
    return "\n".join(map(printable, lines)) + "\n"


def mermaid(plan: Plan) -> str:
    """Left to right as events flow; ids are numbers, since names may hold anything."""
    lines = ["flowchart LR", f'  source[("{kind_of(plan.source)}<br/>{_label(plan.source.id)}")]']
    last = "source"
    steps = [s for p in plan.passes for s in p.steps]
    for n, step in enumerate(steps, 1):
        lines.append(f'  step{n}["{kind_of(step)}<br/>{_label(step.id)}"]')
        lines.append(f"  {last} --> step{n}")
        last = f"step{n}"
    for n, sink in enumerate(plan.sinks, 1):
        arrow = "-->" if sink.delivery.required else "-.->"
        lines.append(f'  sink{n}[/"{_label(sink.id)}<br/>{_label(destination(sink))}"/]')
        lines.append(f"  {last} {arrow} sink{n}")
    return "\n".join(lines) + "\n"


def _tables(plan: Plan) -> list[str]:
    tables = plan.source.tables
    if not tables:
        return ["all user tables"]
    shown = ", ".join(tables[:6])
    return [shown + (f" and {len(tables) - 6} more" if len(tables) > 6 else "")]


def _runs(processor: Processor) -> str:
    if isinstance(processor, JavaScript):
        return f"in {processor.engine}"
    return "as " + " and ".join(_MEANS[means] for means in processor.runs)


def _reads(reads: tuple[str, ...]) -> str:
    return "everything" if "*" in reads else ", ".join(reads)


def _envelope(sink: Sink) -> str:
    envelope = sink.delivery.envelope
    return envelope.type + (f" ({envelope.type_prefix}.*)" if envelope.type_prefix else "")


def _label(text: str) -> str:
    return "".join(c if c.isalnum() or c in " _-.:/" else f"#{ord(c)};" for c in text)
