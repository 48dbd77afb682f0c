# dora-rl on CPUs, or on GPUs with `--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126` and `--gpus all`.
#
#   docker build -t dora-rl .
#   docker run --rm -it --shm-size 1g -v "$PWD:/data" dora-rl train demo
FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir "torch>=2.11,<2.14" --index-url "$TORCH_INDEX"

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir "/src[train]" && rm -rf /src

# Runs and built-in models stay where the user can see them, and belong to whoever runs the container.
WORKDIR /data
ENV DORA_CACHE=/data/.dora-cache
ENTRYPOINT ["dora"]
CMD ["--help"]
