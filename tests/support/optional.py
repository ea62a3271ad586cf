"""What a test needs that an installation may lack."""

NEED_RAY = ("runtime/test_", "faults/test_ray")  # modules of tests, by what their paths begin with
