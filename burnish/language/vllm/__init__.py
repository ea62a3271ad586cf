"""vLLM as an engine: in a process and an environment of its own, with the trainer's tokens, pixels and weights."""
