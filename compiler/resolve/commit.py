"""`spec.commit_policy` -> whose acknowledgements let the source move on."""

from __future__ import annotations

from ..diagnostics import Diagnostics
from ..plan import CommitPolicy, Sink
from ..spec import Section


def resolve_commit(
    policy: Section, sinks: tuple[Sink, ...], at_sinks: Section, diagnostics: Diagnostics
) -> CommitPolicy:
    mode, quorum = policy.string("mode"), policy.opt_integer("quorum")
    everyone = tuple(s.id for s in sinks)
    counted = everyone
    span = policy.keys.get("mode", policy.span)
    if mode == "required":
        counted = tuple(s.id for s in sinks if s.delivery.required)
        if sinks and not counted:
            diagnostics.error(
                "DFC405",
                span if policy.keys else at_sinks.at("sinks"),
                "no sink is `required`, so nothing would hold the source's position back",
                "mark one sink `required: true`, or use `commit_policy: {mode: quorum, quorum: 1}`",
            )
    if mode == "quorum":
        if quorum is None:
            diagnostics.error(
                "DFC402", span, "`mode: quorum` has no `quorum`", "say how many sinks must have it"
            )
        elif quorum > len(sinks):
            diagnostics.error(
                "DFC401",
                policy.at("quorum"),
                f"a quorum of {quorum} cannot be reached with {len(sinks)} sink"
                + ("s" if len(sinks) != 1 else ""),
                f"at most {len(sinks)}",
            )
    elif quorum is not None:
        diagnostics.error(
            "DFC402",
            policy.at("quorum"),
            f"`quorum` has no meaning with `mode: {mode}`",
            "use `mode: quorum`, or leave it out",
        )
    return CommitPolicy(mode, quorum, counted, policy.span)
