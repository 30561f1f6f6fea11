"""What only GPUs can show: `make test-gpu`."""
