"""What REST answers to a MirrorSink that is to copy exactly once."""

import asyncio

import pytest

from mm2py.config.override_policy import override_policy
from mm2py.observability.logging import SecretMask
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator
from tests.unit.runtime.test_sink_validation import ENTRIES, MIRROR, WORKER


@pytest.mark.parametrize(
    ("own", "enabled", "key"),
    [
        ({"copy.connector": "sink"}, True, "copy.connector"),
        ({"exactly.once.support": "required"}, True, "exactly.once.support"),
        ({"exactly.once.support": "required"}, False, "exactly.once.support"),
        ({}, True, ""),
        ({"copy.connector": "sink"}, False, ""),
    ],
)
def test_it_is_refused_at_the_key_that_asks_for_it(
    own: dict[str, str], enabled: bool, key: str
) -> None:
    worker = WORKER | {"exactly.once.source.support": "enabled" if enabled else "disabled"}
    validator = ConfigValidator(
        Plugins(ENTRIES),
        resolve=lambda raw: {name: text for name, text in raw.items() if text is not None},
        policy=override_policy("All"),
        mask=SecretMask(),
        worker=lambda _: worker,
    )
    found = asyncio.run(validator.validate(MIRROR | own))
    wrong = {it.name: it.errors for _, it in found.configs if it is not None and it.errors}
    assert list(wrong) == ([key] if key else [])
    assert found.error_count == len(wrong)
    for (text,) in wrong.values():
        assert "at least once" in text
        assert "copy.connector=source" in text
