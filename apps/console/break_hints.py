"""What breaks a prefix, in words for people."""

from apps.trajectories.models import PrefixBreak

BREAK_HINTS = {
    PrefixBreak.TRANSIENT: "the client took words out again that were meant for one call",
    PrefixBreak.TEMPLATE: "the same messages, rendered in another way (thoughts left out, a date)",
    PrefixBreak.RETOKENISED: "the same answer, in other tokens than were sampled",
    PrefixBreak.EDIT: "the client changed what was said, or the tools",
    PrefixBreak.COMPACTION: "the client made the history shorter",
}
