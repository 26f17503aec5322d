"""Answers the runner of MLPerf Tiny: ``vta serve --mlperf-tiny``.

The protocol is that of the repository mlcommons/tiny, folders benchmark/api and benchmark/runner.
"""
