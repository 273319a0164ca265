"""The face for tests of plug-ins: what the runtime expects of a task, and the contexts and the
clock it is given."""

from mm2py.testing.clock import FakeClock
from mm2py.testing.contexts import FakeConnectorContext, FakeTaskContext
from mm2py.testing.task_contract import BatchTaskContract, RecordTaskContract
from mm2py.testing.waiting import eventually

__all__ = [
    "BatchTaskContract",
    "FakeClock",
    "FakeConnectorContext",
    "FakeTaskContext",
    "RecordTaskContract",
    "eventually",
]
