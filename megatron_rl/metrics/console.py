"""What rank 0 shows while a run is under way: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from megatron_rl.metrics.reduce import StepMetrics

_SHOWN = {
    "loss": "loss",
    "reward": "reward",
    "log_ratio_mean": "log-ratio",
    "grad_norm": "grad norm",
    "tokens_per_second": "tokens/s",
}


class RunConsole:
    """Prints for one rank; silent on the others."""

    def __init__(self, *, show: bool, log_interval: int = 1):
        self._console = Console(quiet=not show, highlight=False, soft_wrap=True)
        self._log_interval = log_interval
        self._progress: Progress | None = None
        self._total = 0
        self._remaining = _TimeLeft()

    def say(self, text: str) -> None:
        """A line of its own, above the progress bar if there is one."""
        self._console.print(text, markup=False)

    def start(self, first_step: int, total: int) -> None:
        """Begin a phase of `total` steps, of which `first_step` are done."""
        self._total = total
        self._remaining = _TimeLeft()
        if self._console.is_terminal and not self._console.quiet:
            self._progress = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task("", total=total, completed=first_step)
            self._progress.start()

    def step(self, step: int, metrics: StepMetrics, seconds: float) -> None:
        """Show the numbers of a finished step that took `seconds`."""
        text = describe(metrics)
        left = self._remaining.after(seconds, self._total - step)
        if self._progress is not None:
            self._progress.update(self._task, completed=step, description=text)
        elif step % self._log_interval == 0 or step == self._total:
            self.say(f"step {step}/{self._total}  {text}  left {left}")

    def stop(self) -> None:
        """End the phase."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def describe(metrics: StepMetrics) -> str:
    """The numbers that a person watches, in one line."""
    parts = []
    for name, label in _SHOWN.items():
        value = metrics.numbers.get(name)
        if value is not None:
            parts.append(f"{label} {value:,.0f}" if name == "tokens_per_second" else f"{label} {value:.4g}")
    return "  ".join(parts)


class _TimeLeft:
    """An estimate from a moving average of step times."""

    def __init__(self):
        self._average: float | None = None

    def after(self, seconds: float, steps_left: int) -> str:
        self._average = seconds if self._average is None else 0.9 * self._average + 0.1 * seconds
        left = round(self._average * steps_left)
        return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
