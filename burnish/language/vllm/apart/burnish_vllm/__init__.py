"""What runs in vLLM's own environment. It imports nothing of Burnish, and Burnish only its ``shared``."""
