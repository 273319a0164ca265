"""The demo's backfill says what it lacks before anything is started."""

import sys

import pytest

from mm2py.errors import ConfigError
from mm2py_workers.demo_backfill import require_spark


def test_without_the_extra_the_demo_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    with pytest.raises(ConfigError, match="needs pyspark") as refused:
        require_spark()
    assert "mm2py[demo,spark]" in str(refused.value.remedy)
