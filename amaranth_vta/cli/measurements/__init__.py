"""Commands that measure runs and machines."""
