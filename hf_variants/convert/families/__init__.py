"""One file per native family, named after its `model_type`; each holds a `FAMILY`. To add a family, add a file."""
