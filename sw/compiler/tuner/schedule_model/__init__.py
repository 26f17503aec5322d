"""Room in scratchpads and cycles of a schedule, derived from its stages.

Factors of splits may be arrays: the schedule then stands for many, one per item, and so do all
results.
"""
