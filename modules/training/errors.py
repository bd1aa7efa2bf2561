"""How a fit can end early. Imports no torch."""

from __future__ import annotations


class Diverged(RuntimeError):
    """Loss or gradient norm is not finite at optimizer step ``step``. The update was not made: weights stay finite."""

    def __init__(self, step: int, what: str) -> None:
        self.step, self.what = step, what
        super().__init__(f"training diverged at optimizer step {step}: {what}")

    def __reduce__(self) -> tuple[type[Diverged], tuple[int, str]]:
        return type(self), (self.step, self.what)


class Stopped(SystemExit):
    """A fit was asked to stop and saved first; the process should end with ``code`` (143 SIGTERM, 130 SIGINT)."""

    def __init__(self, code: int, step: int, checkpoint: str) -> None:
        super().__init__(code)
        self.step, self.checkpoint = step, checkpoint

    def __reduce__(self) -> tuple[type[Stopped], tuple[int, int, str]]:
        return type(self), (int(self.code or 0), self.step, self.checkpoint)

    def __str__(self) -> str:
        return (
            f"stopped at optimizer step {self.step}, saved in {self.checkpoint}; run again to go on (exit {self.code})"
        )
