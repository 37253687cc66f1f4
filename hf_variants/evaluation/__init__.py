"""Measuring models on text: perplexity in windows and by position, bits per byte, and a unigram baseline to compare
with.
"""
