"""What runs in vLLM's own environment. It imports nothing of Burnish, and Burnish reads only its ``wire``."""
