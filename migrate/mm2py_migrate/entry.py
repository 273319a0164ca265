"""Where ``mirror-maker-py`` begins, as the other console scripts do in ``mm2py_workers.entry``."""

import sys
from importlib.util import find_spec
from typing import NoReturn

from mm2py_workers.entry import begin


def mirror_maker() -> NoReturn:
    """Run ``mirror-maker-py``, which needs confluent-kafka."""
    begin()
    if find_spec("confluent_kafka") is None:
        sys.stderr.write(
            "mirror-maker-py: confluent-kafka is not installed: pip install 'mm2py[mm1]'\n"
        )
        sys.exit(1)
    from mm2py_migrate.mirror_maker_1.command import main

    main()
