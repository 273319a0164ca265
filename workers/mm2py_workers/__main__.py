"""``python -m mm2py_workers``: the command ``mm2py`` by its former name."""

from importlib.metadata import entry_points

if __name__ == "__main__":
    (command,) = entry_points(group="console_scripts", name="mm2py")
    command.load()()
