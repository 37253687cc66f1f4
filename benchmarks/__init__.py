"""Speed and memory of the family beside transformers' native classes, as ratios within one run."""
