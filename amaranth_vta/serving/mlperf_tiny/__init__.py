"""Answers the runner of MLPerf Tiny: ``vta serve --mlperf-tiny``.

The repository mlcommons/tiny defines the protocol, folders benchmark/api and benchmark/runner.
"""
