"""``python -m mm2py_cli``: the command ``mm2py`` where its console script is not on the path."""

from mm2py_cli.entry import mm2py

if __name__ == "__main__":
    mm2py()
