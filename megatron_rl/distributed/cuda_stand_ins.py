"""Stand-ins for the `torch.cuda` functions that Megatron-Core calls without asking whether there is CUDA.

On a CPU everything is in order already, so streams and synchronisation do nothing. Each stand-in is an object
of its own: importing torch._dynamo maps the functions of torch.cuda to their names and refuses one object
under two names.
"""

from __future__ import annotations

import time
from typing import Any

import torch

CPU = torch.device("cpu")


class Event:
    """A point in time."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self._time = None

    def record(self, stream=None):
        self._time = time.perf_counter()

    def elapsed_time(self, other) -> float:
        return (other._time - self._time) * 1e3

    def query(self):
        return True

    def synchronize(self):
        """Nothing is pending."""

    def wait(self, stream=None):
        """Nothing is pending."""


class Stream:
    """The one order in which a CPU works."""

    def __init__(self, device=None, priority=0, **kwargs):
        self.device, self.priority, self.cuda_stream = CPU, priority, 0

    def wait_stream(self, stream):
        """Nothing is pending."""

    def wait_event(self, event):
        """Nothing is pending."""

    def synchronize(self):
        """Nothing is pending."""

    def query(self):
        return True

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    @staticmethod
    def priority_range():
        return (0, 0)


class StreamContext:
    """`with torch.cuda.stream(...)`."""

    def __init__(self, stream=None):
        self.stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def cuda_stand_ins() -> dict[str, Any]:
    """Names in `torch.cuda` and what stands there on a CPU."""
    stream = Stream()
    return {
        # a device rather than a number: it is handed back as device=..., also where no mode can see it
        "current_device": lambda: CPU,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda device=None: stream,
        "stream": StreamContext,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "manual_seed": lambda seed: torch.default_generator.manual_seed(seed) and None,
        "manual_seed_all": lambda seed: None,
    }
