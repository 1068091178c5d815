"""Requests that schemathesis makes of /openapi.json: described answers, and most of them served."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.install import MISSING, PYTHON
from tests.clients.test_clients import KEY, Zoo, start, stop
from tests.engine.tiny_model import write_tiny_model

HERE = Path(__file__).resolve().parent
# Of the requests that are valid by the description; the others are texts that only the engine can
# judge, such as a prompt with its answer that is longer than the context.
LEAST_SERVED = 0.6
NUM_REQUESTS = 60


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    model = write_tiny_model(tmp_path_factory.mktemp("fuzz") / "tiny", max_position_embeddings=2048)
    zoo = start(model, "--tool-call-parser", "hermes")
    yield zoo
    stop(zoo)


@pytest.mark.slow
def test_generated_requests_are_answered_as_described(tiny: Zoo) -> None:
    if not PYTHON.is_file():
        pytest.skip(MISSING)
    given = {"url": tiny.url, "key": KEY, "count": NUM_REQUESTS}
    done = subprocess.run(
        [str(PYTHON), str(HERE / "drive_schemathesis.py")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)

    assert len(found) > 20
    wrong = {name: told["wrong"] for name, told in found.items() if told["wrong"]}
    assert wrong == {}
    shares = {}
    for name, told in found.items():
        statuses = {int(status): count for status, count in told["statuses"].items()}
        assert not any(status >= 500 and status != 504 for status in statuses), (name, statuses)
        if name.endswith(" positive"):
            shares[name] = statuses.get(200, 0) / sum(statuses.values())
        elif statuses:
            assert statuses.keys() <= {200, 400, 404, 415}, (name, statuses)
    print(json.dumps(shares, indent=1))
    # The id of a model in a path is any text; the others are told by the description.
    del shares["GET /v1/models/{model} positive"]
    low = {name: share for name, share in shares.items() if share < LEAST_SERVED}
    assert low == {}, [found[name]["reasons"] for name in low]
