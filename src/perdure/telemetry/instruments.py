"""What is measured: every instrument by name, unit and the few attributes it is told apart by.

No attribute ever names a session, a run or a checkpoint: there are as many of those as there are conversations, and a
time series each would bury whoever keeps them.
"""

from __future__ import annotations

from typing import NamedTuple

COUNTER, HISTOGRAM, GAUGE = "counter", "histogram", "gauge"

AGENT = "gen_ai.agent.name"
TOOL = "gen_ai.tool.name"
ERROR = "error.type"
STORE = "perdure.store"
KIND = "perdure.checkpoint.kind"
STATUS = "perdure.session.status"
OUTCOME = "perdure.outcome"
SOURCE = "perdure.replay.source"
DECISION = "perdure.approval.decision"
STATE = "perdure.session.state"

LABELS = {
    AGENT: "agent",
    TOOL: "tool",
    ERROR: "error_type",
    STORE: "store",
    KIND: "kind",
    STATUS: "status",
    OUTCOME: "outcome",
    SOURCE: "source",
    DECISION: "decision",
    STATE: "state",
}
"""How Prometheus calls the attributes."""
_SUFFIXES = {"s": "_seconds", "By": "_bytes"}

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_BYTES = (256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0)
_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0)
_PEOPLE = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 259200.0, 604800.0)


class Instrument(NamedTuple):
    """One thing that is counted, timed or looked at."""

    name: str
    kind: str
    unit: str
    about: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """Its name in the form of Prometheus, which adds ``_total`` to counters.

        >>> CHECKPOINT_DURATION.prometheus, RESUMES.prometheus
        ('perdure_checkpoint_duration_seconds', 'perdure_resumes')
        """
        return self.name.replace(".", "_") + _SUFFIXES.get(self.unit, "")


CHECKPOINT_DURATION = Instrument(
    "perdure.checkpoint.duration", HISTOGRAM, "s",
    "From handing a commit to the store until it is durable", (STORE, KIND), _FAST,
)  # fmt: skip
CHECKPOINT_SIZE = Instrument(
    "perdure.checkpoint.size", HISTOGRAM, "By", "Bytes of a commit, blobs apart", (STORE, KIND), _BYTES
)
RESUMES = Instrument(
    "perdure.resumes", COUNTER, "{resume}",
    "Attempts to open a session that was there, by where it stood and whether it could be had",
    (STATUS, OUTCOME, ERROR),
)  # fmt: skip
REPLAYS = Instrument(
    "perdure.effect.replays", COUNTER, "{effect}",
    "Calls that were answered by a recorded outcome instead of being made again", (TOOL, SOURCE),
)  # fmt: skip
IN_DOUBT = Instrument(
    "perdure.effect.in_doubt", COUNTER, "{effect}",
    "Calls that were started and whose outcome nobody had recorded", (TOOL,),
)  # fmt: skip
APPROVAL_REQUESTS = Instrument(
    "perdure.approval.requests", COUNTER, "{request}", "Requests for a person's agreement", (TOOL,)
)
APPROVAL_PENDING = Instrument("perdure.approval.pending", GAUGE, "{session}", "Sessions that wait for an approval")
APPROVAL_WAIT = Instrument(
    "perdure.approval.wait.duration", HISTOGRAM, "s",
    "From a request for approval to what became of it", (TOOL, DECISION), _PEOPLE,
)  # fmt: skip
OUTCOMES = Instrument(
    "perdure.session.outcomes", COUNTER, "{run}", "Runs of agents by how they ended", (AGENT, OUTCOME)
)
SESSIONS = Instrument("perdure.sessions", GAUGE, "{session}", "Sessions of the fleet by state", (AGENT, STATE))
SESSIONS_IN_DOUBT = Instrument(
    "perdure.session.in_doubt", GAUGE, "{session}", "Sessions in which a person must find out what happened"
)
SESSIONS_STUCK = Instrument(
    "perdure.session.stuck", GAUGE, "{session}", "Sessions that workers get no further with, as `why` says", (AGENT,)
)
QUEUE_LENGTH = Instrument("perdure.queue.length", GAUGE, "{session}", "Sessions that wait for a worker", (AGENT,))
RECOVERY = Instrument(
    "perdure.recovery.duration", HISTOGRAM, "s",
    "From the last commit of a session whose worker died to its next one, by another worker", (), _SECONDS,
)  # fmt: skip
TAKEOVERS = Instrument("perdure.worker.takeovers", COUNTER, "{session}", "Sessions taken over from dead workers")
HEARTBEATS = Instrument("perdure.worker.heartbeats", COUNTER, "{heartbeat}", "Signs of life that reached the store")
WORKERS = Instrument("perdure.workers", GAUGE, "{worker}", "Workers that gave a sign of life lately")
BUSY = Instrument("perdure.worker.busy", GAUGE, "{session}", "Sessions this worker works on")
SLOTS = Instrument("perdure.worker.slots", GAUGE, "{session}", "Sessions this worker can work on at once")

ALL = (
    CHECKPOINT_DURATION, CHECKPOINT_SIZE, RESUMES, REPLAYS, IN_DOUBT, APPROVAL_REQUESTS, APPROVAL_PENDING,
    APPROVAL_WAIT, OUTCOMES, SESSIONS, SESSIONS_IN_DOUBT, SESSIONS_STUCK, QUEUE_LENGTH, RECOVERY, TAKEOVERS,
    HEARTBEATS, WORKERS, BUSY, SLOTS,
)  # fmt: skip
