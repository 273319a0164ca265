"""A clock that a test puts forward."""

from mm2py.clock import SYSTEM_CLOCK


class LateClock:
    """The real clock, put forward at will."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms()

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await SYSTEM_CLOCK.sleep(seconds)
