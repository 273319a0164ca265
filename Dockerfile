# A worker: docker run -v $PWD/mm2.properties:/etc/mm2py/mm2.properties:ro mm2py
# Everything it keeps is in Kafka: it runs as nobody in particular on a read-only file system.

FROM python:3.12-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv /opt/mm2py
# First what seldom changes: pinned, with hashes, and nothing but that.
COPY docker/requirements.txt docker/requirements.txt
RUN /opt/mm2py/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement docker/requirements.txt
COPY pyproject.toml hatch_build.py README.md ./
COPY mm2py mm2py
COPY connectors connectors
COPY workers workers
COPY jobs jobs
COPY migrate migrate
COPY cli cli
# The C kernel is built here; the image that runs needs no compiler.
RUN /opt/mm2py/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM python:3.12-slim-bookworm
ENV PATH=/opt/mm2py/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=build /opt/mm2py /opt/mm2py
COPY docker/healthcheck.py /opt/mm2py/healthcheck.py
USER 10001:10001
WORKDIR /
# REST: loopback by default, so docker exec reaches it (mm2py flow list) and nobody else does.
EXPOSE 8083
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "/opt/mm2py/healthcheck.py"]
ENTRYPOINT ["connect-mirror-maker-py"]
CMD ["/etc/mm2py/mm2.properties"]
