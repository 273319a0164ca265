"""Where Spark looks for Python data sources (modules named ``pyspark_*``): ``format("mm2py")``
needs no ``spark.dataSource.register``.

Imported in any session of this Python that uses a data source in Python: without pyarrow it offers
none, and hinders no other.
"""

from contextlib import suppress

with suppress(ImportError):
    from mm2py_jobs.spark.data_source import Mm2pyDataSource

    DefaultSource = Mm2pyDataSource
