"""What only developers of AMI Kiln need: benches, linters, the test runner."""
