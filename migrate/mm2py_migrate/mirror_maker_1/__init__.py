"""The legacy MirrorMaker 1: ``mirror-maker-py``.

   1 command                         both files: options (old names) -> config/librdkafka (settings of confluent-kafka)
   2 mirror                          topics by our own client; a stream per member of the group
   3 stream                          a thread: poll, handler, send; commit after a flush
   4 mm2py_connectors/record_sender the shared producer: what is acknowledged, what was refused
   alone

To the flow that takes its place: ``migration`` -> ``mm2py_migrate.from_mirror_maker_1`` (the file)
-> ``mm2py_migrate.migrated_positions`` (offsets of the group -> ``mm2-offsets``).
"""
