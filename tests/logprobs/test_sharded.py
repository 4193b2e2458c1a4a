"""Log-probabilities of a vocabulary sharded over 2 and 4 tensor-parallel ranks."""

from __future__ import annotations

import json

import pytest

from tests.harness import REPO, torchrun
from tests.workers.sharded_logprobs import CASES


@pytest.fixture(scope="module", params=[2, 4])
def results(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("sharded") / "results.json"
    run = torchrun(request.param, REPO / "tests" / "workers" / "sharded_logprobs.py", str(path), timeout=180)
    assert run.returncode == 0, run.stdout
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", CASES)
def test_sharded(results, case):
    assert results[case] is None, results[case]
