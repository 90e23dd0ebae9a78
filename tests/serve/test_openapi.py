"""Schemathesis over the OpenAPI document: no fault of the server, no status that is not documented."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from servers import Server

EXAMPLES, SOAK_EXAMPLES = 8, 200
NOT_PROMISED: Any = [positive_data_acceptance]
"""What is legal depends on the checkpoint and on the other fields, so a request that fits may be refused."""


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def check_document(api: Any, examples: int) -> int:
    """Call every operation with requests that fit the document and with others; how many there are."""
    operations = [found.ok() for found in api.get_all_operations()]
    slow = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
    for operation in operations:
        for mode in GenerationMode:

            @hypothesis.settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=slow,
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def keeps_its_document(case: Any) -> None:
                case.call_and_validate(timeout=60, excluded_checks=NOT_PROMISED)

            with suppress(hypothesis.errors.Unsatisfiable):  # what takes any text cannot be asked wrongly
                keeps_its_document()
    return len(operations)


@pytest.mark.timeout(200)
def test_the_server_keeps_its_document(api: Any) -> None:
    assert check_document(api, EXAMPLES) == 12


@pytest.mark.soak
def test_the_server_keeps_its_document_for_long(api: Any) -> None:
    check_document(api, SOAK_EXAMPLES)
