# Burnish with PyTorch for NVIDIA GPUs. docs/install.md shows how it is built and run.
FROM python:3.12-slim-bookworm

# PyTorch comes first, so that its layer stays when the source changes
ARG TORCH="torch==2.13.0"
RUN pip install --no-cache-dir ${TORCH}

ARG EXTRAS="data,math,ray"
COPY pyproject.toml README.md LICENSE /src/
COPY burnish /src/burnish
RUN pip install --no-cache-dir "/src[${EXTRAS}]"

# Runs are written to /work, models of the hub are kept in /hf: mount both. Any user may write there (docker run --user)
RUN mkdir --mode=1777 /work /hf
ENV HF_HOME=/hf HOME=/work OMP_WAIT_POLICY=PASSIVE
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["burnish"]
CMD ["doctor"]
