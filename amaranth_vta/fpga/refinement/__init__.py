"""What is changed in netlists after synthesis, before placement or an estimate of the clock."""
