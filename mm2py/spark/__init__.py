"""Bulk work on Spark: Spark schedules lanes of whole partitions, each runs the data plane of mm2py; extra ``mm2py[spark]``."""
