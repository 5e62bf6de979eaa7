"""Functions that NumPy computes on copies in RAM, here for arrays above `RAM_BYTES_MAX`."""

from __future__ import annotations

from typing import Any

#: The package's own functions, by NumPy's.
FUNCTIONS: dict[Any, Any] = {}
