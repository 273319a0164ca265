"""Where the console script ``mm2py`` begins: quiet at a stop signal while its modules load."""

import signal
from typing import NoReturn

from mm2py_workers.entry import begin


def mm2py() -> NoReturn:
    """Run ``mm2py``, whose commands clear up when they are interrupted."""
    begin()
    from mm2py_cli.app import main

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
