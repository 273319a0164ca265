"""``mm2py doctor FILE``: what would keep a flow from working, asked of both clusters as the flow
would ask; changes nothing.

Walk: ``doctor_command`` -> ``examine`` (both sides opened, each check of ``CHECKS`` within its
time) -> a check: a function over ``Examined`` -> ``Row``: ok, warning, error, or skipped with the
cause and the command that mends it. A check is added as a function and one line of the table.
"""
