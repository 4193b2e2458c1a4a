"""Every loss and aggregation, over two data-parallel times two context-parallel ranks."""

from __future__ import annotations

import json

from tests.harness import REPO, torchrun
from tests.losses.cases import VARIANTS


def test_ranks_together_find_what_one_process_finds(tmp_path):
    result = tmp_path / "result.json"
    run = torchrun(4, REPO / "tests" / "workers" / "spread_losses.py", str(result))
    assert result.exists(), run.stdout[-3000:]
    found = json.loads(result.read_text())
    assert found["wrong"] == {}
    assert found["tried"] >= 6 * len(VARIANTS)
