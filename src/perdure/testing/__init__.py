"""For tests of your own: a clock that moves when told, recordings of models and tools, kills, and the stores' contract.

Lies above everything but the command line and the benchmarks: it starts the children that the doctor starts. Only
``pytest_plugin`` and ``store_contract`` need pytest (``pip install "perdure[testing]"``); nothing imports this package.
Read ``pytest_plugin`` first.
"""

from perdure.testing.clock import FakeClock
from perdure.testing.kill import KillTestFailed, Outcome, kill_and_resume, kill_moments
from perdure.testing.recording import Recording, RecordingMiss, recorded

__all__ = [
    "FakeClock", "KillTestFailed", "Outcome", "Recording", "RecordingMiss", "kill_and_resume", "kill_moments",
    "recorded",
]  # fmt: skip
