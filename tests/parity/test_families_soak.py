"""The plans of the families on ranks: every variant, and bfloat16."""

import pytest
from family_proofs import RANKS, proofs

from rank_cases import Told, cases_of, run_cases

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
globals().update(proofs(complete=True))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_ranks(told: Told, case: str) -> None:
    told.check(case)
