# Armillary's server on an NVIDIA host. See docs/serving.md; it has not been run on the machine it was written on.
#
#   docker build -t armillary .
#   docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface \
#     -v armillary:/data -p 8000:8000 --ipc=host armillary armillary serve nvidia/Cosmos3-Nano --omni --port 8000
FROM python:3.11-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 \
    ARMILLARY_HOST=0.0.0.0 \
    XDG_DATA_HOME=/data

# process 1 has to reap what a killed process leaves behind; the version is the distribution's
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*

# torch's wheels bring CUDA's libraries along; the host's driver comes in with --gpus
WORKDIR /opt/armillary
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt .

COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/armillary-entrypoint
COPY docker/healthcheck.py ./
VOLUME ["/data"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# long enough for the first download of 128 GB
HEALTHCHECK --interval=30s --timeout=5s --start-period=3h CMD ["python", "/opt/armillary/healthcheck.py"]
ENTRYPOINT ["tini", "--", "armillary-entrypoint"]
CMD ["armillary", "--help"]
