"""The family on one CUDA card, against native: `python -m benchmarks.gpu`."""
