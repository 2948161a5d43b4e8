"""SGLang as the engine: its launch on GPUs and on a CPU, its client, its weights."""
