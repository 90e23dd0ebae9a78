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

# torch's wheels bring CUDA's libraries along; the host's driver comes in with --gpus
WORKDIR /opt/armillary
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt .

COPY docker/entrypoint.sh /usr/local/bin/armillary-entrypoint
VOLUME ["/data"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["armillary-entrypoint"]
CMD ["armillary", "--help"]
