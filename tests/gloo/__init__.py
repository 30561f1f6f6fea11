"""Numbers on bare gloo processes: the loop, the data engine and Accelerate as the workers run them, without Ray."""
