"""The server's log: one JSON object a line on standard error, with the request id where there is one."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


def log(event: str, **fields: Any) -> None:
    """Write one event; fields that are None are left out."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": now, "event": event, **{key: value for key, value in fields.items() if value is not None}}
    sys.stderr.write(json.dumps(line, default=str) + "\n")
    sys.stderr.flush()


class _AsEvents(logging.Handler):
    """Libraries' warnings and errors, as events of their own."""

    def emit(self, record: logging.LogRecord) -> None:
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        log(record.levelname.lower(), logger=record.name, message=record.getMessage(), traceback=trace)


def log_libraries() -> None:
    """Send what libraries log, from warnings up, through `log`."""
    logging.basicConfig(handlers=[_AsEvents()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
