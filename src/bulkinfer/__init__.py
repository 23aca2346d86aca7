"""Run a prompt over a very large queue of documents with vLLM, each document exactly once, from one YAML file."""

__version__ = "0.1.0"
