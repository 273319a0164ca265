"""mm2py: a drop-in for MirrorMaker 2. To import: ``mm2py.api``, ``mm2py.mirror_client``,
``mm2py.testing`` (docs/reference/extend.md); all else is private."""
